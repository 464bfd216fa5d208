//! Wakes a thread that waits for the network, from any other thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// What one thread wakes and another one waits for: in [`Transport::wait`] or in a [`Sleeper`]. It
/// may be made, and rung, before anything waits for it. All clones are one waker.
///
/// [`Transport::wait`]: crate::transport::Transport::wait
/// [`Sleeper`]: crate::transport::Sleeper
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Makes a waker. An error means that the process has too many open files.
    pub fn new() -> io::Result<Waker> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fd = eventfd(0, flags).map_err(|e| {
            let e = io::Error::from(e);
            io::Error::new(e.kind(), format!("cannot make an eventfd: {e}"))
        })?;
        Ok(Waker(Arc::new(fd)))
    }

    /// Ends the wait under way, or else the next one, at once. It cannot fail: the only error is an
    /// overflow after 2^64 rings, and then the waker is rung already.
    pub fn wake(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Blocks until the waker is rung or `timeout` has passed, and clears all rings. Returns
    /// whether it was rung. A signal ends the wait like a time-out.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let limit = timeout.and_then(|t| Timespec::try_from(t).ok());
        let rung = match poll(&mut [PollFd::new(self, PollFlags::IN)], limit.as_ref()) {
            Ok(count) => count > 0,
            Err(Errno::INTR) => false,
            Err(e) => return Err(e.into()),
        };
        if rung {
            self.hush();
        }
        Ok(rung)
    }

    /// Clears all rings so far.
    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    /// The descriptor, which is readable while the waker is rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl PartialEq for Waker {
    /// Whether both are the same waker.
    fn eq(&self, other: &Waker) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Waker {}
