//! Callers. A caller steps the engine while it blocks. When it returns, the progress thread does
//! the work that is left.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, Time};

use super::hand_over::HandOver;
use super::shared::{Locked, Shared};
use super::thread::Progress;
use super::waiter::{Wait, Waiter, Woken};
use crate::communicator::error::Error;
use crate::communicator::operations::engine::Engine;
use crate::communicator::operations::group::BreakOff;
use crate::communicator::operations::operation::Op;
use crate::communicator::wireup::peers::Peers;
use crate::net::Clock;
use crate::object::Divisible;
use crate::waker::Waker;

/// Interval at which a blocked caller drives the runtime above it, checks for lost peers and runs
/// expired timers. The first interval is longer, at most 6 ms, if answers usually come soon.
const LOOK: Duration = Duration::from_millis(1);

/// The same interval if other processes share this host, once the caller has waited in vain.
/// Runtimes send messages between these processes through memory in several steps. Each step waits
/// until the other process drives its runtime, and no descriptor tells of it.
const LOOK_LOCAL: Duration = Duration::from_micros(250);

/// Longest time that a blocked caller spins before it sleeps, if its core has nothing else to do.
/// After a longer wait, the time to wake up hardly matters.
const SPIN: Duration = Duration::from_millis(1);

/// How often a caller yields its core and looks again before it sleeps, once a part of what it
/// waits for has come. Otherwise each word of a barrier would wake it.
const LENDS: u32 = 8;

/// A function that a blocking call calls again and again, so that the runtime above makes progress.
pub type Meanwhile<'a> = &'a mut dyn FnMut();

/// All callers of a context.
pub(crate) struct Callers<O: Divisible + Send + Sync + 'static> {
    pub shared: Arc<Shared<O>>,
    /// Idle waiters. Each blocked caller takes one, so there are as many as ever blocked at once.
    sleepers: Mutex<Vec<Waiter>>,
    runtime: Option<Arc<OwnedFd>>,
    /// The last caller returned while it drove the runtime above. The runtime's descriptor does not
    /// report the same work again, so the next caller that blocks starts by driving the runtime.
    pub unserved: AtomicBool,
    progress: Progress,
    pub peers: Peers,
}

impl<O: Divisible + Send + Sync + 'static> Callers<O> {
    /// Starts the progress thread. No caller is inside yet.
    pub fn new(
        mut engine: Engine<O>,
        peers: Peers,
        runtime: Option<Arc<OwnedFd>>,
    ) -> Result<Callers<O>, Error> {
        let udp = |e| Error::io("watching the sockets", e);
        let sleeper = callers_sleeper(&mut engine, runtime.as_ref()).map_err(udp)?;
        let own = Waiter::new(&mut engine).map_err(udp)?;
        engine.withdraws_by(peers.withdrawal());
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            clock: Clock(Instant::now()),
            hand_over: HandOver::default(),
        });
        let reader = own.waker().clone();
        let progress = Progress::start(shared.clone(), own)?;
        peers.mail().wakes(reader);
        Ok(Callers {
            shared,
            sleepers: Mutex::new(vec![sleeper]),
            runtime,
            unserved: AtomicBool::new(false),
            progress,
            peers,
        })
    }

    /// Steps the engine until `answer` returns a value, which it may do as soon as the operation
    /// `awaited` ends (`None`: any operation).
    pub fn until<R>(
        &self,
        awaited: &Cell<Option<Op>>,
        meanwhile: Meanwhile<'_>,
        answer: impl FnMut(&mut Engine<O>) -> Option<R>,
    ) -> Result<R, Error> {
        let driven = self.drive(awaited, meanwhile, answer);
        driven.inspect_err(|e| self.shared.lock().breaks(e))
    }

    fn drive<R>(
        &self,
        awaited: &Cell<Option<Op>>,
        meanwhile: Meanwhile<'_>,
        mut answer: impl FnMut(&mut Engine<O>) -> Option<R>,
    ) -> Result<R, Error> {
        let mut inside: Option<Inside<'_, O>> = None;
        let mut looked = Time::ZERO;
        let mut ready = None;
        let (mut news, mut runtime) = (false, false);
        loop {
            let mut engine = self.shared.lock();
            if let Some(inside) = &inside {
                engine.is_awake(&inside.waker);
            }
            self.end_lost(&mut engine);
            if let Some(answer) = answer(&mut engine) {
                self.left(engine);
                self.unserved.fetch_or(runtime, Ordering::AcqRel);
                return Ok(answer);
            }
            if let Some(ready) = ready.take() {
                engine.woken(&ready);
            }
            let now = self.shared.clock.now();
            let (wake, full) = engine.settle(now)?;
            if let Some(answer) = answer(&mut engine) {
                self.left(engine);
                self.unserved.fetch_or(runtime, Ordering::AcqRel);
                return Ok(answer);
            }
            let inside = match &mut inside {
                Some(inside) => inside,
                none => {
                    looked = now;
                    runtime = self.unserved.swap(false, Ordering::AcqRel);
                    none.insert(Inside::new(self, &mut engine, now)?)
                }
            };
            engine.falls_asleep(&inside.waker, awaited.get());
            let spoilt = engine.take_spoilt();
            drop(engine);
            self.tell(spoilt);
            // A part of what the caller waits for has come, so the rest is near.
            let lends = if news { LENDS } else { 0 };
            let woken = if runtime {
                looked = now;
                inside.serve(now, wake, meanwhile)?
            } else {
                inside.sleep(now, wake, full, lends)?
            };
            Woken {
                ready,
                news,
                runtime,
            } = woken;
            let since = now.since(looked);
            if inside.has_local_ranks && !news && !runtime && since >= LOOK_LOCAL {
                runtime = true;
            } else if !runtime && since >= LOOK {
                looked = now;
                meanwhile();
            }
        }
    }

    /// Hands the work that is left to the progress thread, when a caller returns.
    pub fn left(&self, mut engine: Locked<'_, O>) {
        let now = self.shared.clock.now();
        let (left, gathers) = (engine.left(now), engine.gathering().is_some());
        let spoilt = engine.take_spoilt();
        // Under the lock, so that what the last caller leaves is said last.
        let must_wake = self.shared.hand_over.returns(now, left, gathers);
        drop(engine);
        self.tell(spoilt);
        if must_wake {
            self.progress.wake();
        }
    }

    /// Tells all processes, this one included, where these groups break off.
    fn tell(&self, spoilt: Vec<BreakOff>) {
        spoilt.into_iter().for_each(|at| self.peers.break_off(at));
    }

    /// Ends the groups of lost processes, and the groups that break off.
    pub fn end_lost(&self, engine: &mut Engine<O>) {
        if self.peers.any_lost() {
            let now = self.shared.clock.now();
            for (rank, _) in self.peers.all_lost() {
                engine.give_up(now, NodeId(rank));
            }
        }
        for at in self.peers.take_broken_off() {
            engine.break_off(self.shared.clock.now(), at);
        }
        engine.go_on_breaking(&self.shared.clock);
    }

    fn sleepers(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.sleepers.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl<O: Divisible + Send + Sync + 'static> Drop for Callers<O> {
    fn drop(&mut self) {
        self.progress.stop();
        self.shared.lock().return_addresses(&self.shared.clock);
        self.peers.close();
    }
}

/// A caller that blocks. The value lives as long as the caller blocks.
struct Inside<'a, O: Divisible + Send + Sync + 'static> {
    callers: &'a Callers<O>,
    since: Time,
    /// Whether other processes share this host, so that the runtime above may serve them by memory.
    has_local_ranks: bool,
    look: Duration,
    /// `None` after the waiter has gone back to the idle ones.
    sleeper: Option<Waiter>,
    waker: Waker,
}

impl<'a, O: Divisible + Send + Sync + 'static> Inside<'a, O> {
    fn new(
        callers: &'a Callers<O>,
        engine: &mut Engine<O>,
        since: Time,
    ) -> Result<Inside<'a, O>, Error> {
        let idle = callers.sleepers().pop();
        let runtime = callers.runtime.as_ref();
        let sleeper = idle.map_or_else(|| callers_sleeper(engine, runtime), Ok);
        let sleeper = sleeper.map_err(|e| Error::io("watching the sockets", e))?;
        callers.shared.hand_over.enters();
        let has_local_ranks = runtime.is_some() && sleeper.has_local_ranks();
        Ok(Inside {
            callers,
            since,
            has_local_ranks,
            look: if has_local_ranks { LOOK_LOCAL } else { LOOK },
            waker: sleeper.waker().clone(),
            sleeper: Some(sleeper),
        })
    }

    fn sleep(&self, now: Time, wake: Option<Time>, full: bool, lends: u32) -> Result<Woken, Error> {
        let timeout = wake.map_or(self.look, |at| at.since(now).min(self.look));
        let wait = Wait {
            full,
            timeout,
            eased: timeout == self.look,
            spin: SPIN.saturating_sub(now.since(self.since)),
            lends,
        };
        match &self.sleeper {
            Some(sleeper) if !timeout.is_zero() => sleeper
                .watch(wait)
                .map_err(|e| Error::io("waiting for the network", e)),
            _ => Ok(Woken::default()),
        }
    }

    /// Drives the runtime above, which has something to do, until a timer expires here.
    fn serve(
        &self,
        now: Time,
        wake: Option<Time>,
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Woken, Error> {
        let timeout = wake.map_or(LOOK, |at| at.since(now).min(LOOK));
        let served = self.sleeper.as_ref().map(|s| s.serve(timeout, meanwhile));
        let served = served.unwrap_or_else(|| Ok(Woken::default()));
        served.map_err(|e| Error::io("waiting for the network", e))
    }
}

/// Makes a waiter for a caller.
fn callers_sleeper<O: Divisible>(
    engine: &mut Engine<O>,
    runtime: Option<&Arc<OwnedFd>>,
) -> io::Result<Waiter> {
    let sleeper = Waiter::new(engine)?;
    if let Some(runtime) = runtime {
        sleeper.watch_runtime(runtime.as_fd())?;
    }
    Ok(sleeper)
}

impl<O: Divisible + Send + Sync + 'static> Drop for Inside<'_, O> {
    fn drop(&mut self) {
        self.callers.sleepers().extend(self.sleeper.take());
        self.callers.shared.hand_over.leaves();
    }
}
