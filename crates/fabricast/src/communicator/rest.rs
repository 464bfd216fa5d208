//! How a thread waits until something has come, over the network or through the memory of this host: it looks again and
//! again while its core has nothing else to do, or sleeps.

use std::cell::Cell;
use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use crate::transport::shm::Doze;
use crate::transport::udp::{Ready, Sending, Sleeper, Waker};

/// A look that takes longer than this was not one alone: somebody else has had the core.
const LENT: Duration = Duration::from_micros(3);
/// One that takes longer than this was with somebody who computes, and will go on to.
const LENT_MAX: Duration = Duration::from_micros(100);

/// After so many waits it is tried again whether the core is free, at the latest.
const SKIPS_MAX: u32 = 7;

/// Whether others want the core.
#[derive(Default)]
struct Rivals {
    /// Waits for which that is taken for granted: now, and when it is next found to be so.
    skips: Cell<u32>,
    patience: Cell<u32>,
}

impl Rivals {
    /// Whether this wait takes it for granted.
    fn skips(&self) -> bool {
        let left = self.skips.get();
        self.skips.set(left.saturating_sub(1));
        left > 0
    }

    fn some(&self) {
        let patience = (2 * self.patience.get() + 1).min(SKIPS_MAX);
        self.patience.set(patience);
        self.skips.set(patience);
    }

    fn none(&self) {
        self.patience.set(self.patience.get() / 2);
    }
}

/// What has ended a wait.
#[derive(Default)]
pub(super) struct Woken {
    /// Which sockets have something, if it was asked for.
    pub ready: Option<Ready>,
    /// Something has come, over the network or by memory.
    pub news: bool,
}

impl Woken {
    fn by_sockets(ready: Ready) -> Woken {
        Woken {
            ready: Some(ready),
            news: ready.is_news(),
        }
    }

    const fn by_memory() -> Woken {
        Woken {
            ready: None,
            news: true,
        }
    }
}

/// One thread's.
pub(super) struct Rest {
    far: Sleeper,
    near: Option<Doze>,
    rivals: Rivals,
}

impl Rest {
    pub fn new(far: Sleeper, near: Option<Doze>) -> io::Result<Rest> {
        if let Some(near) = &near {
            far.also(near.as_fd())?;
        }
        let rivals = Rivals::default();
        Ok(Rest { far, near, rivals })
    }

    /// Sleeps until there is something to look at, sending may go on, the waker was rung, or `timeout` has passed. If
    /// something has come by memory it does not sleep.
    pub fn sleep(&self, sending: Sending, timeout: Option<Duration>) -> io::Result<Woken> {
        let _asleep = match self.near.as_ref().map(Doze::begin) {
            Some(None) => return Ok(Woken::by_memory()),
            asleep => asleep,
        };
        self.far.sleep(sending, timeout).map(Woken::by_sockets)
    }

    /// Likewise, but for `spin` it looks again and again before it falls asleep: to be woken takes longer than most
    /// answers. It does so only as long as nobody else wants its core, to whom it is offered each time, and who may take it
    /// for a moment `lends` times; where it is taken more often, or for longer, the next waits do not even try.
    pub fn watch(
        &self,
        sending: Sending,
        timeout: Duration,
        spin: Duration,
        lends: u32,
    ) -> io::Result<Woken> {
        let began = Instant::now();
        let (mut now, mut lent) = (began, 0);
        let spin = match (lends == 0 && self.rivals.skips()) || sending != Sending::Idle {
            true => Duration::ZERO,
            false => spin.min(timeout),
        };
        while now - began < spin {
            if self.near.as_ref().is_some_and(Doze::has_news) {
                self.rivals.none();
                return Ok(Woken::by_memory());
            }
            if let Some(ready) = self.far.look()? {
                self.rivals.none();
                return Ok(Woken::by_sockets(ready));
            }
            thread::yield_now();
            let before = mem::replace(&mut now, Instant::now());
            let took = now - before;
            lent += u32::from(took > LENT);
            if lent > lends || took > LENT_MAX {
                self.rivals.some();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_others_want_is_left_to_them_for_longer_and_longer() {
        let rivals = Rivals::default();
        let skipped = || (0..).take_while(|_| rivals.skips()).count();
        assert_eq!(skipped(), 0);
        for expected in [1, 3, 7, 7] {
            rivals.some();
            assert_eq!(skipped(), expected);
        }
        rivals.none();
        rivals.none();
        rivals.some();
        assert_eq!(skipped(), 3);
    }
}
