//! An InfiniBand port that is opened again after an error.
//!
//! The kernel closes a port under its users when its device is reset or its driver is loaded anew.
//! The descriptor then gives errors for ever, and a new one works as soon as the port is back. The
//! subnet manager knows nothing of that: memberships stay.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use fabricast_proto::Time;

use super::mad::{self, Mad};
use super::umad::{Agent, Destination, Port, Received, Umad};
use crate::transport::Descriptors;

/// Time from an error until the port is opened again. Each further failure doubles it.
const REOPEN_MIN: Duration = Duration::from_millis(100);
/// Longest time between two attempts to open the port.
const REOPEN_MAX: Duration = Duration::from_secs(4);

/// An open port that sends and receives management datagrams to and from the subnet manager.
pub(super) trait Device: Send {
    /// What the system knows of the port now.
    fn port(&self) -> io::Result<Port>;

    /// Sends a request. After `timeout` without an answer it comes back by [`Device::receive`].
    fn send(&mut self, to: Destination, mad: &Mad, timeout: Duration) -> io::Result<()>;

    /// The next datagram that has come in; `None` if there is none.
    fn receive(&mut self) -> io::Result<Option<Received>>;

    /// Blocks until a datagram has come in or `timeout` has passed.
    fn wait(&self, timeout: Duration) -> io::Result<()>;

    /// Lends the descriptor that is readable when a datagram has come in. Returns what `with`
    /// returns; false without such a descriptor.
    fn watch(&self, with: &dyn Fn(BorrowedFd<'_>) -> bool) -> bool;
}

/// A port of libibumad, with the right to ask the subnet manager.
pub(super) struct UmadDevice {
    umad: Umad,
    agent: Agent,
}

impl UmadDevice {
    /// Opens a port, as [`Umad::open`] does.
    pub(super) fn open(device: Option<&str>, number: u8) -> io::Result<UmadDevice> {
        let mut umad = Umad::open(device, number)?;
        let agent = umad.register(mad::CLASS_SA, mad::CLASS_SA_VERSION)?;
        Ok(UmadDevice { umad, agent })
    }
}

impl Device for UmadDevice {
    fn port(&self) -> io::Result<Port> {
        self.umad.port()
    }

    fn send(&mut self, to: Destination, mad: &Mad, timeout: Duration) -> io::Result<()> {
        self.umad.send(self.agent, to, mad, timeout)
    }

    fn receive(&mut self) -> io::Result<Option<Received>> {
        self.umad.receive()
    }

    fn wait(&self, timeout: Duration) -> io::Result<()> {
        self.umad.wait(timeout).map(|_| ())
    }

    fn watch(&self, with: &dyn Fn(BorrowedFd<'_>) -> bool) -> bool {
        self.umad.watch(with)
    }
}

/// Opens the port.
pub(super) type Opener = Box<dyn FnMut() -> io::Result<Box<dyn Device>> + Send>;

/// A port that is open, or will be again.
pub(super) struct Reopened {
    opener: Opener,
    device: Option<Box<dyn Device>>,
    /// What the system knew of the port when it was last looked at.
    port: Port,
    /// When the port is opened again, if it is not open.
    reopen_at: Time,
    /// Time to the attempt after the next failure.
    pause: Duration,
    /// The sleeper to whom arrivals are told.
    descriptors: Option<Descriptors>,
    /// Whether the system watches the descriptor for the sleeper.
    is_watched: bool,
}

impl Reopened {
    /// Opens the port for the first time.
    pub(super) fn new(mut opener: Opener) -> io::Result<Reopened> {
        let device = opener()?;
        let port = device.port()?;
        Ok(Reopened {
            opener,
            device: Some(device),
            port,
            reopen_at: Time::ZERO,
            pause: REOPEN_MIN,
            descriptors: None,
            is_watched: false,
        })
    }

    /// The port, as the system knew it when it was last looked at.
    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// Looks at the port again, if it is open. Returns it as it was known before.
    pub(super) fn look(&mut self) -> Port {
        let before = self.port.clone();
        if let Some(device) = &self.device {
            // A device that is being reset has no port for a while.
            self.port = device.port().unwrap_or_else(|_| Port {
                is_active: false,
                ..before.clone()
            });
        }
        before
    }

    /// Whether the port is open.
    pub(super) fn is_open(&self) -> bool {
        self.device.is_some()
    }

    /// Whether the system watches the port for a sleeper.
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched && self.is_open()
    }

    /// When the port is opened again; `None` while it is open.
    pub(super) fn due(&self) -> Option<Time> {
        (!self.is_open()).then_some(self.reopen_at)
    }

    /// Opens the port if that is due. Returns whether it has been opened.
    pub(super) fn reopen(&mut self, now: Time) -> bool {
        if self.is_open() || now < self.reopen_at {
            return false;
        }
        match (self.opener)() {
            Ok(device) => {
                self.device = Some(device);
                self.watch();
                true
            }
            Err(_) => {
                self.fails(now);
                false
            }
        }
    }

    /// Closes the port after an error; it is opened again later.
    fn fails(&mut self, now: Time) {
        self.device = None;
        self.reopen_at = now + self.pause;
        self.pause = REOPEN_MAX.min(2 * self.pause);
    }

    /// Sends a request. While the port is closed, that fails.
    pub(super) fn send(&mut self, to: Destination, mad: &Mad, timeout: Duration) -> io::Result<()> {
        match &mut self.device {
            Some(device) => device.send(to, mad, timeout),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// The next datagram that has come in. An error closes the port.
    pub(super) fn receive(&mut self, now: Time) -> io::Result<Option<Received>> {
        let Some(device) = &mut self.device else {
            return Ok(None);
        };
        match device.receive() {
            Ok(received) => {
                if received.is_some() {
                    self.pause = REOPEN_MIN;
                }
                Ok(received)
            }
            Err(error) => {
                self.fails(now);
                Err(error)
            }
        }
    }

    /// Blocks until a datagram has come in or `timeout` has passed.
    pub(super) fn wait(&self, timeout: Duration) {
        let waited = self.device.as_ref().map(|device| device.wait(timeout));
        if !matches!(waited, Some(Ok(()))) {
            // The next step finds the error; nobody is to spin until then.
            std::thread::sleep(timeout);
        }
    }

    /// From now on, arrivals end the sleep of a sleeper, also when the port is opened again.
    pub(super) fn attach(&mut self, descriptors: Descriptors) {
        self.descriptors = Some(descriptors);
        self.watch();
    }

    fn watch(&mut self) {
        // A library that stands in for the kernel's devices, as that of a simulated fabric, may
        // have a descriptor that only its own `poll` understands.
        self.is_watched = match (&self.device, &self.descriptors) {
            (Some(device), Some(descriptors)) => {
                device.watch(&|descriptor| descriptors.read(descriptor).is_ok())
            }
            _ => false,
        };
    }
}
