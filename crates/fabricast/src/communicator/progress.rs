//! The thread that does what is to be done while no caller is inside: it answers what others ask
//! and sends again what they lost, for as long as a root computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fabricast_proto::Time;

use super::Shared;
use super::engine::Left;
use super::rest::Rest;
use super::stream::WAIT_MAX;
use crate::error::Error;
use crate::object::Divisible;
use crate::transport::udp::Waker;

/// While callers come and go they do the work; after this time without one the thread does it.
const TURN: Duration = Duration::from_millis(1);
/// As long as callers keep coming it looks less and less often, up to this. Acknowledgements can be so late.
const BUSY_MAX: Duration = Duration::from_millis(4);
/// While one of them blocks, up to this.
const TURN_MAX: Duration = Duration::from_millis(50);

/// Whether a caller that leaves this behind must ring for the thread.
pub(super) fn is_late(now: Time, left: Left, looks_at: Time) -> bool {
    match left {
        Left::Nothing => false,
        Left::Due(due) => due.max(now) + BUSY_MAX < looks_at,
        Left::Copies => now + TURN < looks_at,
    }
}

/// How long the thread rests while callers do the work.
struct Turns {
    last: Duration,
    /// When a caller was last seen to have gone.
    gone: Time,
}

impl Turns {
    fn new() -> Turns {
        let (last, gone) = (TURN / 2, Time::ZERO);
        Turns { last, gone }
    }

    /// Longer and longer: the same caller may be `inside` all the time, or one has `called` since.
    fn next(&mut self, inside: bool, called: Time) -> Duration {
        let most = match inside && called == self.gone {
            true => TURN_MAX,
            false => BUSY_MAX,
        };
        self.last = (2 * self.last).min(most);
        self.gone = called;
        self.last
    }
}

/// The thread, and how to end it.
pub(super) struct Progress {
    thread: Option<JoinHandle<()>>,
    waker: Waker,
    over: Arc<AtomicBool>,
}

impl Progress {
    pub fn start<O: Divisible + Send + Sync + 'static>(
        shared: Arc<Shared<O>>,
        sleeper: Rest,
    ) -> Result<Progress, Error> {
        let (waker, over) = (sleeper.waker(), Arc::new(AtomicBool::new(false)));
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

    /// A caller has left work behind.
    pub fn wake(&self) {
        self.waker.wake();
    }

    pub fn stop(&mut self) {
        self.over.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // It has said so itself if it panicked.
            let _ = thread.join();
        }
    }
}

fn run<O: Divisible>(shared: &Shared<O>, sleeper: &Rest, over: &AtomicBool) {
    let mut turns = Turns::new();
    let mut ready = None;
    while !over.load(Ordering::Acquire) {
        shared.looks_at.store(0, Ordering::SeqCst);
        if shared.hurry.load(Ordering::Acquire) {
            if sleeper.rest(WAIT_MAX).is_err() || !send_on(shared) {
                return;
            }
            continue;
        }
        let now = shared.clock.now();
        let inside = shared.inside.load(Ordering::Acquire) > 0;
        let called = Time(shared.called.load(Ordering::SeqCst));
        if inside || now.since(called) < TURN {
            let mut turn = turns.next(inside, called);
            shared.looks_at.store((now + turn).0, Ordering::SeqCst);
            if shared.called.load(Ordering::SeqCst) != called.0 {
                // Whoever has gone meanwhile relies on an early look.
                turn = TURN;
            }
            match sleeper.rest(turn) {
                Ok(true) => turns = Turns::new(),
                Ok(false) => {}
                Err(_) => return,
            }
            continue;
        }
        turns = Turns::new();
        // Until it is known, whoever leaves anything behind must ring.
        shared.looks_at.store(u64::MAX, Ordering::SeqCst);
        let stepped = {
            let mut engine = shared.lock();
            if let Some(ready) = ready.take() {
                engine.heed(&ready);
            }
            engine.step(now)
        };
        let Ok((wake, sending)) = stepped else {
            // Whoever calls next is told why.
            return;
        };
        let looks_at = wake.map_or(u64::MAX, |at| at.0);
        shared.looks_at.store(looks_at, Ordering::SeqCst);
        let timeout = wake.map(|at| at.since(shared.clock.now()));
        if timeout.is_none_or(|t| !t.is_zero()) {
            let Ok(slept) = sleeper.sleep(sending, timeout) else {
                return;
            };
            ready = slept;
        }
    }
}

/// Sends what has waited long enough for more to go with it. False: the network is gone.
fn send_on<O: Divisible>(shared: &Shared<O>) -> bool {
    let mut engine = shared.lock();
    let now = shared.clock.now();
    match engine.gathering() {
        Some(since) if now.since(since) >= WAIT_MAX => return engine.step(now).is_ok(),
        None if now.since(Time(shared.called.load(Ordering::Relaxed))) >= TURN => {
            shared.hurry.store(false, Ordering::Release);
        }
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn callers_that_come_and_go_are_looked_after_every_few_turns() {
        let mut turns = Turns::new();
        assert_eq!(turns.next(true, ms(1)), TURN);
        // Whenever the thread looks, there is one inside, but not the same.
        for called in 2..20 {
            assert!(turns.next(true, ms(called)) <= BUSY_MAX);
        }
    }

    #[test]
    fn one_caller_that_blocks_is_left_alone() {
        let mut turns = Turns::new();
        assert_eq!(turns.next(false, ms(1)), TURN);
        let mut last = TURN;
        while last < TURN_MAX {
            let next = turns.next(true, ms(1));
            assert!(next > last);
            last = next;
        }
        assert_eq!(turns.next(true, ms(1)), TURN_MAX);
        assert_eq!(
            turns.next(true, ms(2)),
            BUSY_MAX,
            "it has left and come back"
        );
    }

    #[test]
    fn who_leaves_something_rings_unless_the_thread_looks_in_time() {
        let (now, due) = (ms(100), |at| Left::Due(ms(at)));
        for (left, looks_at, late) in [
            (Left::Nothing, u64::MAX, false),
            (Left::Copies, 0, false), // it is at work
            (Left::Copies, 101, false),
            (Left::Copies, 104, true),
            (due(101), 104, false),
            (due(101), 105, false),
            (due(101), 106, true),
            (due(90), 105, true),
            (due(200), 150, false),
        ] {
            let looks_at = Time(looks_at.saturating_mul(1_000_000));
            assert_eq!(is_late(now, left, looks_at), late, "{left:?} {looks_at:?}");
        }
    }
}
