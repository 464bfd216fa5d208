//! How a thread sleeps until something has come, over the network or through the memory of this host.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::transport::shm::Doze;
use crate::transport::udp::{Ready, Sending, Sleeper, Waker};

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

    /// Sleeps until the waker was rung, or `timeout` has passed, whatever comes. Says whether it was.
    pub fn rest(&self, timeout: Duration) -> io::Result<bool> {
        self.far.rest(timeout)
    }

    /// What ends this thread's sleep.
    pub fn waker(&self) -> Waker {
        self.far.waker()
    }
}
