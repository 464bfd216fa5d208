//! The progress thread. While no caller is inside, it answers probes and retransmits what receivers
//! lost, for example while a root computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fabricast_proto::Time;

use super::hand_over::{BUSY_MAX, Seen, TURN};
use super::shared::Shared;
use super::waiter::Waiter;
use crate::communicator::error::Error;
use crate::communicator::operations::coalesce::WAIT_MAX;
use crate::object::Divisible;
use crate::waker::Waker;

/// Longest time between two looks of the thread while a caller blocks. Acknowledgements can be late
/// by this time, too.
const TURN_MAX: Duration = Duration::from_millis(50);

/// For how long the thread rests while callers do the work.
struct Turns {
    last: Duration,
    /// When a caller last left, as the thread has seen it.
    gone: Time,
}

impl Turns {
    fn new() -> Turns {
        let (last, gone) = (TURN / 2, Time::ZERO);
        Turns { last, gone }
    }

    /// The next rest. `None`: no caller is inside, the last one returned long ago, and the thread
    /// does the work.
    fn next(&mut self, now: Time, seen: Seen) -> Option<Duration> {
        let Seen {
            inside,
            returned,
            copies,
        } = seen;
        if !inside && now.since(returned) >= TURN {
            *self = Turns::new();
            return None;
        }
        let most = match inside && returned == self.gone {
            _ if copies => TURN,
            true => TURN_MAX,
            false => BUSY_MAX,
        };
        self.last = (2 * self.last).min(most);
        self.gone = returned;
        Some(self.last)
    }
}

/// The handle of the progress thread, with which its owner wakes and stops it.
pub(crate) struct Progress {
    thread: Option<JoinHandle<()>>,
    waker: Waker,
    over: Arc<AtomicBool>,
}

impl Progress {
    pub fn start<O: Divisible + Send + Sync + 'static>(
        shared: Arc<Shared<O>>,
        sleeper: Waiter,
    ) -> Result<Progress, Error> {
        let (waker, over) = (sleeper.waker().clone(), Arc::new(AtomicBool::new(false)));
        let until = over.clone();
        let thread = thread::Builder::new()
            .name("fabricast-progress".into())
            .spawn(move || run(&shared, &sleeper, &until))
            .map_err(|e| Error::io("starting the progress thread", e))?;
        Ok(Progress {
            thread: Some(thread),
            waker,
            over,
        })
    }

    /// Wakes the thread, because a caller has left work behind.
    pub fn wake(&self) {
        self.waker.wake();
    }

    pub fn stop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

fn run<O: Divisible>(shared: &Shared<O>, sleeper: &Waiter, over: &AtomicBool) {
    let mut turns = Turns::new();
    let mut ready = None;
    while !over.load(Ordering::Acquire) {
        shared.hand_over.works();
        if shared.hand_over.is_hurried() {
            if sleeper.rest(WAIT_MAX).is_err() || !send_on(shared) {
                return;
            }
            continue;
        }
        let now = shared.clock.now();
        let seen = shared.hand_over.look();
        if let Some(mut turn) = turns.next(now, seen) {
            if shared.hand_over.rests(now + turn, seen) {
                turn = TURN;
            }
            match sleeper.rest(turn) {
                Ok(true) => turns = Turns::new(),
                Ok(false) => {}
                Err(_) => return,
            }
            continue;
        }
        let step = || {
            let mut engine = shared.lock();
            if let Some(ready) = ready.take() {
                engine.woken(&ready);
            }
            engine.step(now)
        };
        let wake = |stepped: &Result<(Option<Time>, bool), _>| stepped.as_ref().ok()?.0;
        let Ok((wake, full)) = shared.hand_over.sleeps(step, wake) else {
            // The next caller gets the error.
            return;
        };
        let timeout = wake.map(|at| at.since(shared.clock.now()));
        if timeout.is_none_or(|t| !t.is_zero()) {
            let Ok(woken) = sleeper.sleep(full, timeout) else {
                return;
            };
            ready = woken.ready;
        }
    }
}

/// Sends what has waited long enough to be coalesced. Returns false if the network has failed.
fn send_on<O: Divisible>(shared: &Shared<O>) -> bool {
    let mut engine = shared.lock();
    let now = shared.clock.now();
    match engine.gathering() {
        Some(since) if now.since(since) >= WAIT_MAX => return engine.step(now).is_ok(),
        Some(_) => {}
        None => shared.hand_over.calms_down(now),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    const fn seen(inside: bool, returned: u64, copies: bool) -> Seen {
        Seen {
            inside,
            returned: ms(returned),
            copies,
        }
    }

    /// How long the thread rests after each look while callers keep coming. There is always a
    /// caller inside, but not the same one.
    fn rests(copies: bool) -> Vec<Duration> {
        let mut turns = Turns::new();
        (1..9)
            .map(|i| turns.next(ms(i), seen(true, i, copies)).unwrap())
            .collect()
    }

    #[test]
    fn callers_that_come_and_go_are_looked_after_every_few_turns() {
        assert_eq!(rests(true), [TURN; 8]);
        let rests = rests(false);
        assert_eq!(rests[0], TURN);
        assert!(rests.is_sorted() && rests[7] == BUSY_MAX, "{rests:?}");
    }

    #[test]
    fn one_caller_that_blocks_is_left_alone() {
        let mut turns = Turns::new();
        let mut next = |now, inside, returned| turns.next(ms(now), seen(inside, returned, false));
        assert_eq!(next(1, false, 1), Some(TURN));
        for (i, rest) in [2, 4, 8, 16, 32, 50, 50].into_iter().enumerate() {
            let rest = Duration::from_millis(rest);
            assert_eq!(next(2 + i as u64, true, 1), Some(rest));
        }
        assert_eq!(
            next(20, true, 19),
            Some(BUSY_MAX),
            "it has left and come back"
        );
        assert_eq!(next(24, false, 23), None, "it has gone");
        assert_eq!(next(24, false, 24), Some(TURN));
    }
}
