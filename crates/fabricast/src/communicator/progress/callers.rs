//! Callers: they step the engine while they block, and leave to the progress thread what is still
//! to be done when they go.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabricast_proto::{GroupId, NodeId, Time};

use super::shared::Shared;
use super::state::ProgressState;
use super::thread::Progress;
use super::waiter::{Wait, Waiter, Woken};
use crate::communicator::error::Error;
use crate::communicator::operations::engine::Engine;
use crate::communicator::operations::operation::{Left, Op};
use crate::communicator::wireup::peers::Peers;
use crate::net::Clock;
use crate::object::Divisible;
use crate::transport::udp::{Sending, Waker};

/// A blocked caller looks after the runtime above it so often, sees that a peer is lost, and does
/// what is due. Where answers come soon as a rule the first time is later: at most 6 ms.
const LOOK: Duration = Duration::from_millis(1);

/// Likewise where other processes share this host, once it has waited in vain: runtimes send
/// messages between them through memory in several steps, each of which waits for the other process
/// to be driven, and no descriptor tells of it.
const LOOK_LOCAL: Duration = Duration::from_micros(250);

/// So long a blocked caller looks for what it waits for instead of sleeping, if its core has
/// nothing else to do: whoever waits longer hardly notices how long it takes to be woken.
const SPIN: Duration = Duration::from_millis(1);

/// So often it lends its core to others and looks again, once a part of what it waits for has come:
/// of the words of a barrier each would wake it otherwise.
const LENDS: u32 = 8;

/// Called again and again while a call blocks, so that the runtime above can go on.
pub type Meanwhile<'a> = &'a mut dyn FnMut();

/// All callers of a context.
pub(crate) struct Callers<O: Divisible + Send + Sync + 'static> {
    pub shared: Arc<Shared<O>>,
    /// Callers that block take one each; as many as ever blocked at once.
    sleepers: Mutex<Vec<Waiter>>,
    runtime: Option<Arc<OwnedFd>>,
    /// The last caller returned while it drove the runtime above. The runtime's descriptor does not
    /// report the same work again, so the next caller that blocks starts by driving the runtime.
    pub unserved: AtomicBool,
    progress: Progress,
    pub peers: Peers,
}

impl<O: Divisible + Send + Sync + 'static> Callers<O> {
    /// None is inside yet: the progress thread does the work.
    pub fn new(
        mut engine: Engine<O>,
        peers: Peers,
        runtime: Option<Arc<OwnedFd>>,
    ) -> Result<Callers<O>, Error> {
        let udp = |e| Error::io("watching the sockets", e);
        let sleeper = callers_sleeper(&mut engine, runtime.as_ref()).map_err(udp)?;
        let own = engine.sleeper().and_then(Waiter::new).map_err(udp)?;
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            clock: Clock(Instant::now()),
            inside: AtomicUsize::new(0),
            called: AtomicU64::new(0),
            hurry: AtomicBool::new(false),
            copies: AtomicBool::new(false),
            thread: ProgressState::default(),
        });
        let progress = Progress::start(shared.clone(), own)?;
        Ok(Callers {
            shared,
            sleepers: Mutex::new(vec![sleeper]),
            runtime,
            unserved: AtomicBool::new(false),
            progress,
            peers,
        })
    }

    /// Drives the engine until it answers, which it may as soon as the operation `awaited` ends
    /// (none: any).
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
            self.heed_lost(&mut engine);
            if let Some(answer) = answer(&mut engine) {
                self.left(engine);
                self.unserved.fetch_or(runtime, Ordering::AcqRel);
                return Ok(answer);
            }
            if let Some(ready) = ready.take() {
                engine.heed(&ready);
            }
            let now = self.shared.clock.now();
            let (wake, sending) = engine.settle(now)?;
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
            // Where something has come that was not all, the rest is near.
            let lends = if news { LENDS } else { 0 };
            let woken = if runtime {
                looked = now;
                inside.serve(now, wake, meanwhile)?
            } else {
                inside.sleep(now, wake, sending, lends)?
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

    /// A caller goes: what is still to be done is the progress thread's.
    pub fn left(&self, mut engine: MutexGuard<'_, Engine<O>>) {
        let now = self.shared.clock.now();
        let (left, gathers) = (engine.left(now), engine.gathering().is_some());
        let spoilt = engine.take_spoilt();
        drop(engine);
        self.tell(spoilt);
        self.shared
            .copies
            .store(left == Left::Copies, Ordering::SeqCst);
        self.shared.called.store(now.0, Ordering::SeqCst);
        // The thread must look more often, or look at all.
        let hurry = gathers && !self.shared.hurry.load(Ordering::Acquire);
        if hurry {
            self.shared.hurry.store(true, Ordering::Release);
        }
        if hurry || self.shared.thread.is_late(now, left) {
            self.progress.wake();
        }
    }

    /// Tells all others, and this process itself, that these groups end.
    fn tell(&self, spoilt: Vec<GroupId>) {
        spoilt.into_iter().for_each(|group| self.peers.end(group.0));
    }

    /// Gives up what was to be done with those that are lost.
    pub fn heed_lost(&self, engine: &mut Engine<O>) {
        if self.peers.any_lost() {
            let now = self.shared.clock.now();
            for (rank, _) in self.peers.all_lost() {
                engine.give_up(now, NodeId(rank));
            }
        }
        if self.peers.any_ended() {
            let now = self.shared.clock.now();
            for group in self.peers.all_ended() {
                engine.end(now, GroupId(group));
            }
        }
    }

    fn sleepers(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.sleepers.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl<O: Divisible + Send + Sync + 'static> Drop for Callers<O> {
    fn drop(&mut self) {
        self.progress.stop();
        self.peers.close();
    }
}

/// A caller that blocks, for as long as it lives.
struct Inside<'a, O: Divisible + Send + Sync + 'static> {
    callers: &'a Callers<O>,
    since: Time,
    /// Others share this host, and the runtime above may work for them by memory.
    has_local_ranks: bool,
    look: Duration,
    /// `None` when it goes.
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
        callers.shared.inside.fetch_add(1, Ordering::AcqRel);
        let has_local_ranks = runtime.is_some() && sleeper.has_local_ranks();
        Ok(Inside {
            callers,
            since,
            has_local_ranks,
            look: if has_local_ranks { LOOK_LOCAL } else { LOOK },
            waker: sleeper.waker(),
            sleeper: Some(sleeper),
        })
    }

    fn sleep(
        &self,
        now: Time,
        wake: Option<Time>,
        sending: Sending,
        lends: u32,
    ) -> Result<Woken, Error> {
        let timeout = wake.map_or(self.look, |at| at.since(now).min(self.look));
        let wait = Wait {
            sending,
            timeout,
            eased: timeout == self.look && sending != Sending::Starved,
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

    /// The runtime above has something to do: drives it, until something is due here.
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

/// What a caller sleeps in.
fn callers_sleeper<O: Divisible>(
    engine: &mut Engine<O>,
    runtime: Option<&Arc<OwnedFd>>,
) -> io::Result<Waiter> {
    let sleeper = Waiter::new(engine.sleeper()?)?;
    if let Some(runtime) = runtime {
        sleeper.heed_runtime(runtime.as_fd())?;
    }
    Ok(sleeper)
}

impl<O: Divisible + Send + Sync + 'static> Drop for Inside<'_, O> {
    fn drop(&mut self) {
        self.callers.sleepers().extend(self.sleeper.take());
        self.callers.shared.inside.fetch_sub(1, Ordering::AcqRel);
    }
}
