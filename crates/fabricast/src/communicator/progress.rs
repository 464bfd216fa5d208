//! The thread that does what is to be done while no caller is inside: it answers what others ask
//! and sends again what they lost, for as long as a root computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fabricast_proto::Time;

use super::Shared;
use super::rest::Rest;
use super::stream::WAIT_MAX;
use crate::error::Error;
use crate::object::Divisible;
use crate::transport::udp::Waker;

/// While callers come and go they do the work; the thread looks after this time whether they
/// still do ...
pub(super) const TURN: Duration = Duration::from_millis(1);
/// ... and while one blocks, less and less often, up to this: it rings when it leaves.
const TURN_MAX: Duration = Duration::from_millis(50);

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
    let mut turn = TURN;
    // When a caller was last seen to have gone.
    let mut gone = Time::ZERO;
    let mut ready = None;
    while !over.load(Ordering::Acquire) {
        if shared.hurry.load(Ordering::Acquire) {
            if sleeper.rest(WAIT_MAX).is_err() || !send_on(shared) {
                return;
            }
            continue;
        }
        let now = shared.clock.now();
        let inside = shared.inside.load(Ordering::Acquire) > 0;
        let called = Time(shared.called.load(Ordering::Relaxed));
        if inside || now.since(called) < TURN {
            // Only who has been inside all the time rings when it leaves.
            turn = match inside && called == gone {
                true => (2 * turn).min(TURN_MAX),
                false => TURN,
            };
            gone = called;
            if sleeper.rest(turn).is_err() {
                return;
            }
            continue;
        }
        turn = TURN;
        // From here on a caller that leaves work behind must ring.
        shared.dozing.store(true, Ordering::Release);
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
        let timeout = wake.map(|at| at.since(shared.clock.now()));
        if timeout.is_none_or(|t| !t.is_zero()) {
            let Ok(slept) = sleeper.sleep(sending, timeout) else {
                return;
            };
            ready = slept;
        }
        shared.dozing.store(false, Ordering::Release);
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
