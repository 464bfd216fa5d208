//! Waiting for datagrams without owning the transport: while one thread sleeps, another may use it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use super::interface::because;
use super::{Blocked, STARVED, Udp, bit, sharpen_timers, sys};

/// Largest number of sockets that one sleep reports. The next sleep reports further ones.
const READY_MAX: usize = 16;
/// Epoll data of a sleeper's waker. The data of a socket is its descriptor.
const BELL: u64 = u64::MAX;
/// Epoll data of the socket that sends.
const SENDER: u64 = u64::MAX - 1;
/// Epoll data of another descriptor that a thread waits for.
const OTHER: u64 = u64::MAX - 2;
/// Epoll data of the runtime's descriptor.
const RUNTIME: u64 = u64::MAX - 3;

/// Sleeps until datagrams wait. Any number of threads may sleep, each with a sleeper of its own.
pub struct Sleeper {
    /// Epoll descriptor of all sockets at which datagrams arrive, the one that sends, and the
    /// waker.
    watched: Arc<OwnedFd>,
    sender: OwnedFd,
    waker: Arc<sys::Waker>,
}

/// What a [`Sleeper`] waits for in addition to datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// Nothing else.
    Idle,
    /// Room in the send buffer.
    Full,
    /// Memory in the kernel. The kernel does not tell when it has some, so only time helps.
    Starved,
}

/// The sockets at which datagrams waited when a sleep ended.
#[derive(Clone, Copy, Default, Debug)]
pub struct Ready {
    sockets: [RawFd; READY_MAX],
    count: usize,
    /// The descriptor that [`Sleeper::also`] added is readable.
    pub other: bool,
    /// The descriptor of [`Sleeper::heed_runtime`] is readable.
    pub runtime: bool,
    /// The waker was rung.
    pub rung: bool,
}

impl Ready {
    /// Whether any datagram has arrived, or the descriptor of [`Sleeper::also`] is readable.
    pub fn is_news(&self) -> bool {
        self.count > 0 || self.other
    }

    fn has(&self, socket: BorrowedFd<'_>) -> bool {
        self.sockets[..self.count].contains(&socket.as_raw_fd())
    }
}

impl Udp {
    /// Makes a sleeper for one thread.
    pub fn sleeper(&mut self) -> io::Result<Sleeper> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| because(e.into(), "cannot make an epoll descriptor"))?;
        let sleeper = Sleeper {
            watched: Arc::new(watched),
            sender: self.socket.as_fd().try_clone_to_owned()?,
            waker: Arc::new(sys::Waker::new().map_err(|e| because(e, "cannot make an eventfd"))?),
        };
        let inputs = self.inputs.iter().map(|i| i.socket.as_fd());
        for socket in inputs.chain([self.socket.as_fd()]) {
            watch(
                &sleeper.watched,
                socket,
                socket.as_raw_fd() as u64,
                EventFlags::IN,
            )?;
        }
        let Sleeper {
            watched,
            sender,
            waker,
        } = &sleeper;
        watch(watched, waker.fd(), BELL, EventFlags::IN)?;
        watch(watched, sender.as_fd(), SENDER, EventFlags::empty())?;
        self.sleepers.push(sleeper.watched.clone());
        Ok(sleeper)
    }

    /// From now on, datagrams at this socket end the sleepers' sleep, until the socket is closed.
    pub(super) fn watch(&self, socket: &impl AsFd) -> io::Result<()> {
        let socket = socket.as_fd();
        let mut sleepers = self.sleepers.iter();
        sleepers.try_for_each(|s| watch(s, socket, socket.as_raw_fd() as u64, EventFlags::IN))
    }

    /// Takes note of what a sleep has seen: for some calls only these sockets are read.
    pub fn heed(&mut self, ready: &Ready) {
        let groups = self.inputs.iter().map(|i| i.socket.as_fd());
        let sockets = [self.socket.as_fd()].into_iter().chain(groups);
        let empty = sockets
            .enumerate()
            .filter(|(_, socket)| !ready.has(*socket));
        self.empty = empty.fold(0, |bits, (at, _)| bits | bit(at));
        (self.relied, self.fresh) = (0, true);
    }

    /// What keeps the last `send` from taking more.
    pub fn sending(&self) -> Sending {
        match self.blocked {
            Blocked::No => Sending::Idle,
            Blocked::Full => Sending::Full,
            Blocked::Starved => Sending::Starved,
        }
    }
}

fn watch(sleeper: &OwnedFd, fd: BorrowedFd<'_>, name: u64, flags: EventFlags) -> io::Result<()> {
    epoll::add(sleeper, fd, EventData::new_u64(name), flags)
        .map_err(|e| because(e.into(), "cannot watch a socket"))
}

impl Sleeper {
    /// From now on, the sleep also ends when `other` is readable.
    pub fn also(&self, other: BorrowedFd<'_>) -> io::Result<()> {
        watch(&self.watched, other, OTHER, EventFlags::IN)
    }

    /// From now on, the sleep also ends when the runtime above has something to do, that is, when
    /// `descriptor` is readable. Sleepers never read it.
    pub fn heed_runtime(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        watch(&self.watched, descriptor, RUNTIME, EventFlags::IN)
    }

    /// Blocks until a datagram waits, sending may continue, [`super::Waker::wake`] was called on
    /// this sleeper's waker, or `timeout` has passed.
    pub fn sleep(&self, sending: Sending, timeout: Option<Duration>) -> io::Result<Ready> {
        sharpen_timers();
        let timeout = match sending {
            Sending::Starved => Some(timeout.unwrap_or(STARVED).min(STARVED)),
            Sending::Full | Sending::Idle => timeout,
        };
        if sending == Sending::Full {
            self.heed_sender(EventFlags::OUT)?;
        }
        let ready = self.wait(timeout);
        if sending == Sending::Full {
            self.heed_sender(EventFlags::empty())?;
        }
        Ok(ready?.unwrap_or_default())
    }

    /// Looks once, without sleeping. `None`: nothing has arrived.
    pub fn look(&self) -> io::Result<Option<Ready>> {
        self.wait(Some(Duration::ZERO))
    }

    /// Waits at most `timeout`. `None`: nothing has arrived.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Ready>> {
        let limit = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut room = [MaybeUninit::<Event>::uninit(); READY_MAX];
        let waited = match epoll::wait(&*self.watched, &mut room, limit.as_ref()) {
            // Linux before 5.11 lacks this call and waits in milliseconds.
            Err(Errno::NOSYS) => {
                let limit = timeout.map(|t| Duration::from_millis(t.as_millis() as u64 + 1));
                let limit = limit.and_then(|t| Timespec::try_from(t).ok());
                epoll::wait(&*self.watched, &mut room, limit.as_ref())
            }
            waited => waited,
        };
        let events = match waited {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return Ok(None),
            Err(e) => return Err(because(e.into(), "cannot wait for datagrams")),
        };
        if events.is_empty() {
            return Ok(None);
        }
        let mut ready = Ready::default();
        for event in events {
            match event.data.u64() {
                BELL => {
                    self.waker.hush();
                    ready.rung = true;
                }
                SENDER => {}
                OTHER => ready.other = true,
                RUNTIME => ready.runtime = true,
                socket => {
                    ready.sockets[ready.count] = socket as RawFd;
                    ready.count += 1;
                }
            }
        }
        Ok(Some(ready))
    }

    /// Sets whether room in the send buffer ends the sleep.
    fn heed_sender(&self, flags: EventFlags) -> io::Result<()> {
        let name = EventData::new_u64(SENDER);
        epoll::modify(&*self.watched, &self.sender, name, flags)
            .map_err(|e| because(e.into(), "cannot watch a socket"))
    }

    /// Blocks until this sleeper's waker was rung or `timeout` has passed, whatever arrives.
    /// Returns whether the waker was rung.
    pub fn rest(&self, timeout: Duration) -> io::Result<bool> {
        sharpen_timers();
        let mut set = [libc::pollfd {
            fd: self.waker.raw(),
            events: libc::POLLIN,
            revents: 0,
        }];
        let rung = sys::poll(&mut set, Some(timeout))? > 0;
        if rung {
            self.waker.hush();
        }
        Ok(rung)
    }

    /// What ends this sleeper's sleep.
    pub fn waker(&self) -> super::Waker {
        super::Waker(self.waker.clone())
    }
}
