//! How a thread sleeps until something has come, over the network or through the memory of this host.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::transport::shm::Doze;
use crate::transport::udp::{Ready, Sending, Sleeper, Waker};

/// A look that takes longer than this was not one alone: somebody else has had the core.
const LENT: Duration = Duration::from_micros(3);

/// One thread's.
pub(super) struct Rest {
    far: Sleeper,
    near: Option<Doze>,
}

impl Rest {
    pub fn new(far: Sleeper, near: Option<Doze>) -> io::Result<Rest> {
        if let Some(near) = &near {
            far.also(near.as_fd())?;
        }
        Ok(Rest { far, near })
    }

    /// Sleeps until there is something to look at, sending may go on, the waker was rung, or `timeout` has passed. Says
    /// which sockets have something; `None`: it did not sleep, for something had come by memory.
    pub fn sleep(&self, sending: Sending, timeout: Option<Duration>) -> io::Result<Option<Ready>> {
        let Some(near) = &self.near else {
            return self.far.sleep(sending, timeout).map(Some);
        };
        let Some(asleep) = near.begin() else {
            return Ok(None);
        };
        let ready = self.far.sleep(sending, timeout)?;
        if ready.other {
            asleep.woken();
        }
        Ok(Some(ready))
    }

    /// Likewise, but for `spin` it looks again and again before it falls asleep: to be woken takes longer than most
    /// answers. It does so only as long as nobody else wants its core, to whom it is offered each time.
    pub fn watch(
        &self,
        sending: Sending,
        timeout: Duration,
        spin: Duration,
    ) -> io::Result<Option<Ready>> {
        let began = Instant::now();
        let mut now = began;
        while sending == Sending::Idle && now - began < spin.min(timeout) {
            if self.near.as_ref().is_some_and(Doze::has_news) {
                return Ok(None);
            }
            if let Some(ready) = self.far.look()? {
                if let Some(near) = self.near.as_ref().filter(|_| ready.other) {
                    near.hush();
                }
                return Ok(Some(ready));
            }
            thread::yield_now();
            let before = mem::replace(&mut now, Instant::now());
            if now - before > LENT {
                break;
            }
        }
        self.sleep(sending, Some(timeout.saturating_sub(now - began)))
    }

    /// Sleeps until the waker was rung, or `timeout` has passed, whatever comes. Says whether it was.
    pub fn rest(&self, timeout: Duration) -> io::Result<bool> {
        self.far.rest(timeout)
    }

    /// What ends this thread's sleep.
    pub fn waker(&self) -> Waker {
        self.far.waker()
    }
}
