//! Waiting for datagrams without owning a transport: while one thread sleeps, another may use it.
//!
//! A [`Sleeper`] belongs to one thread. Transports attach their descriptors to it, so that the
//! thread can wait for several transports, a waker and the runtime above at once.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;

use crate::interface::because;
use crate::waker::Waker;

/// Largest number of descriptors that one sleep reports. Of all others nothing is known then.
const READY_MAX: usize = 16;
/// Epoll data of a sleeper's waker. The data of any other descriptor that is read is its number.
const WAKER: u64 = u64::MAX;
/// Epoll data of a descriptor by which a transport sends.
const SENDER: u64 = u64::MAX - 1;
/// Epoll data of the runtime's descriptor.
const RUNTIME: u64 = u64::MAX - 2;

/// What one thread needs of a transport to wait for it, while other threads may use the transport.
pub trait Watch: Send {
    /// Whether something has arrived that memory tells of. What a descriptor tells of, the sleeper
    /// finds.
    fn has_news(&self) -> bool {
        false
    }

    /// Announces that the thread is about to sleep. Returns false if there is something to look at:
    /// then the thread does not sleep. With `full` the thread also wakes when the transport takes
    /// datagrams again.
    fn begin(&self, full: bool) -> io::Result<bool> {
        let _ = full;
        Ok(true)
    }

    /// The thread no longer sleeps. Called after each `begin`, whatever it has returned.
    fn end(&self) {}
}

/// The descriptors that had something to read when a sleep ended.
#[derive(Clone, Copy, Default, Debug)]
pub struct Ready {
    descriptors: [RawFd; READY_MAX],
    count: usize,
    /// More descriptors may have something to read.
    more: bool,
    /// The descriptor of [`Sleeper::watch_runtime`] is readable.
    pub runtime: bool,
    /// The waker was rung.
    pub rung: bool,
}

impl Ready {
    /// Whether any transport has something to read.
    pub fn is_news(&self) -> bool {
        self.count > 0
    }

    /// Whether this descriptor is readable, as far as is known. If more descriptors were ready than
    /// the sleep reports, any may be.
    pub fn may_have(&self, descriptor: BorrowedFd<'_>) -> bool {
        self.more || self.descriptors[..self.count].contains(&descriptor.as_raw_fd())
    }
}

/// Sleeps until datagrams wait at any attached transport.
pub struct Sleeper {
    epoll: Arc<OwnedFd>,
    waker: Waker,
}

impl Sleeper {
    /// Makes a sleeper for one thread, without transports.
    pub fn new() -> io::Result<Sleeper> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| because(e.into(), "cannot make an epoll descriptor"))?;
        let waker = Waker::new()?;
        let epoll = Arc::new(epoll);
        add(&epoll, waker.as_fd(), WAKER, EventFlags::IN)?;
        Ok(Sleeper { epoll, waker })
    }

    /// What a transport keeps to add descriptors to this sleeper.
    pub fn descriptors(&self) -> Descriptors {
        Descriptors(Arc::downgrade(&self.epoll))
    }

    /// From now on, the sleep also ends when the runtime above has something to do, that is, when
    /// `descriptor` is readable. Sleepers never read it.
    pub fn watch_runtime(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        add(&self.epoll, descriptor, RUNTIME, EventFlags::IN)
    }

    /// Blocks until an attached descriptor is ready, the waker was rung, or `timeout` has passed.
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<Ready> {
        sharpen_timers();
        Ok(self.wait(timeout)?.unwrap_or_default())
    }

    /// Looks once, without sleeping. `None`: nothing has arrived.
    pub fn look(&self) -> io::Result<Option<Ready>> {
        self.wait(Some(Duration::ZERO))
    }

    /// Waits at most `timeout`. `None`: nothing has arrived.
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<Ready>> {
        let limit = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut room = [MaybeUninit::<Event>::uninit(); READY_MAX];
        let waited = match epoll::wait(&*self.epoll, &mut room, limit.as_ref()) {
            // Linux before 5.11 lacks this call and waits in milliseconds.
            Err(Errno::NOSYS) => {
                let limit = timeout.map(|t| Duration::from_millis(t.as_millis() as u64 + 1));
                let limit = limit.and_then(|t| Timespec::try_from(t).ok());
                epoll::wait(&*self.epoll, &mut room, limit.as_ref())
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
        let mut ready = Ready {
            more: events.len() == READY_MAX,
            ..Ready::default()
        };
        for event in events {
            match event.data.u64() {
                WAKER => {
                    self.waker.hush();
                    ready.rung = true;
                }
                SENDER => {}
                RUNTIME => ready.runtime = true,
                descriptor => {
                    ready.descriptors[ready.count] = descriptor as RawFd;
                    ready.count += 1;
                }
            }
        }
        Ok(Some(ready))
    }

    /// Blocks until this sleeper's waker was rung or `timeout` has passed, whatever arrives.
    /// Returns whether the waker was rung.
    pub fn rest(&self, timeout: Duration) -> io::Result<bool> {
        sharpen_timers();
        let rung = self.waker.wait(Some(timeout));
        rung.map_err(|e| because(e, "cannot wait for a waker"))
    }

    /// What ends this sleeper's sleep.
    pub fn waker(&self) -> &Waker {
        &self.waker
    }
}

/// The set of descriptors of one sleeper, as transports know it.
#[derive(Clone)]
pub struct Descriptors(Weak<OwnedFd>);

impl Descriptors {
    /// From now on, the sleep also ends when `descriptor` can be read, until it is closed.
    pub fn read(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let name = descriptor.as_raw_fd() as u64;
        self.with(|epoll| add(epoll, descriptor, name, EventFlags::IN))
    }

    /// Prepares for [`Descriptors::send_on`].
    pub fn send(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.with(|epoll| add(epoll, descriptor, SENDER, EventFlags::empty()))
    }

    /// Sets whether the sleep also ends when `descriptor` can be written.
    pub fn send_on(&self, descriptor: BorrowedFd<'_>, on: bool) -> io::Result<()> {
        let flags = match on {
            true => EventFlags::OUT,
            false => EventFlags::empty(),
        };
        let name = EventData::new_u64(SENDER);
        self.with(|epoll| {
            epoll::modify(epoll, descriptor, name, flags)
                .map_err(|e| because(e.into(), "cannot watch a socket"))
        })
    }

    /// Whether the sleeper is gone.
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }

    fn with(&self, act: impl FnOnce(&OwnedFd) -> io::Result<()>) -> io::Result<()> {
        self.0.upgrade().map_or(Ok(()), |epoll| act(&epoll))
    }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>, name: u64, flags: EventFlags) -> io::Result<()> {
    epoll::add(epoll, fd, EventData::new_u64(name), flags)
        .map_err(|e| because(e.into(), "cannot watch a descriptor"))
}

/// Makes the time-outs of the calling thread exact, once per thread.
pub(super) fn sharpen_timers() {
    thread_local!(static SHARP: Cell<bool> = const { Cell::new(false) });
    if !SHARP.replace(true) {
        // A system without the option wakes up to 50 µs later.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
}
