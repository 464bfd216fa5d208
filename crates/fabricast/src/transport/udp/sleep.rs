//! Waiting for datagrams without owning the transport: while one thread sleeps, another may use it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::interface::because;
use super::{Blocked, STARVED, Udp, sharpen_timers, sys};

/// All sockets at which datagrams arrive, as one descriptor.
pub(super) struct Sockets(Arc<OwnedFd>);

impl Sockets {
    pub fn new() -> io::Result<Sockets> {
        let fd = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|e| because(e.into(), "cannot make an epoll descriptor"))?;
        Ok(Sockets(Arc::new(fd)))
    }

    /// From now on this socket is one of them, until it is closed.
    pub fn add(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let number = EventData::new_u64(socket.as_raw_fd() as u64);
        epoll::add(&*self.0, socket, number, EventFlags::IN)
            .map_err(|e| because(e.into(), "cannot watch a socket"))
    }
}

/// Sleeps until datagrams wait. Any number of threads may, each with one of its own.
pub struct Sleeper {
    sockets: Arc<OwnedFd>,
    /// The socket that sends.
    sender: OwnedFd,
    bell: Arc<sys::Bell>,
}

/// What a [`Sleeper`] waits for beside datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sending {
    /// Nothing.
    Idle,
    /// Room in the send buffer.
    Full,
    /// Memory in the kernel, which does not tell when it has some: only time helps.
    Starved,
}

impl Udp {
    /// A sleeper of its own for one thread.
    pub fn sleeper(&self) -> io::Result<Sleeper> {
        Ok(Sleeper {
            sockets: self.sockets.0.clone(),
            sender: self.socket.as_fd().try_clone_to_owned()?,
            bell: Arc::new(sys::Bell::new().map_err(|e| because(e, "cannot make an eventfd"))?),
        })
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

impl Sleeper {
    /// Blocks until a datagram waits, sending may go on, [`super::Waker::wake`] was called on this
    /// sleeper's waker, or `timeout` has passed.
    pub fn sleep(&self, sending: Sending, timeout: Option<Duration>) -> io::Result<()> {
        sharpen_timers();
        let entry = |fd, events| libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        let mut set = [
            entry(self.bell.raw(), libc::POLLIN),
            entry(self.sockets.as_raw_fd(), libc::POLLIN),
            entry(self.sender.as_raw_fd(), libc::POLLOUT),
        ];
        let (set, timeout) = match sending {
            Sending::Idle => (&mut set[..2], timeout),
            Sending::Full => (&mut set[..], timeout),
            Sending::Starved => (&mut set[..2], Some(timeout.unwrap_or(STARVED).min(STARVED))),
        };
        sys::poll(set, timeout).map_err(|e| because(e, "cannot wait for datagrams"))?;
        if set[0].revents != 0 {
            self.bell.hush();
        }
        Ok(())
    }

    /// Blocks until this sleeper's waker was rung, or `timeout` has passed, whatever arrives.
    pub fn rest(&self, timeout: Duration) -> io::Result<()> {
        sharpen_timers();
        let mut set = [libc::pollfd {
            fd: self.bell.raw(),
            events: libc::POLLIN,
            revents: 0,
        }];
        if sys::poll(&mut set, Some(timeout))? > 0 {
            self.bell.hush();
        }
        Ok(())
    }

    /// What ends this sleeper's sleep.
    pub fn waker(&self) -> super::Waker {
        super::Waker(self.bell.clone())
    }
}
