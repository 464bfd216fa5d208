//! Groups of a job's processes that broadcast again and again: what MPI and other parallel
//! runtimes are built upon.
//!
//! ```text
//!   callers ── start, test, wait ──► Engine (driver, ended operations) ◄── progress thread
//!                                        one lock; whoever has work steps it
//! ```
//! A [`Context`] is one process's end: its sockets, its node, its connection to the process that
//! watches all of them (`peers`). A [`Group`] is an ordered set of processes that all name it by
//! one number. A blocked caller steps the engine itself, and between steps lets the runtime above
//! make progress of its own. A thread that ends another's operation wakes it. When no caller is
//! inside, the `progress` thread answers what others ask and repairs what they lost. Nobody sleeps
//! with the lock.

mod card;
mod engine;
#[cfg(test)]
mod host_tests;
mod hosts;
mod joint;
mod near;
mod part;
mod peers;
mod progress;
mod rest;
mod stream;
#[cfg(test)]
mod tests;
mod ways;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fabricast_proto::{Barrier, GroupId, NodeId, Refused, Time};

use self::engine::{Ended, Engine, Left, Op};
use self::peers::Peers;
use self::progress::{Doing, Progress};
use self::rest::{Rest, Wait, Woken};
use crate::config::NetOptions;
use crate::error::Error;
use crate::net::Clock;
use crate::object::Divisible;
use crate::transport::udp::{Sending, Waker};

pub use self::card::CARD;
pub use self::engine::Statistics;

/// A blocked caller looks after the runtime above it so often, sees that a peer is lost, and does
/// what is due. Where answers come soon as a rule the first time is later: at most 6 ms.
const LOOK: Duration = Duration::from_millis(1);

/// Likewise where other processes share this host, once it has waited in vain: runtimes send
/// messages between them through memory in several steps, each of which waits for the other process
/// to be driven, and no descriptor tells of it.
const LOOK_MATES: Duration = Duration::from_micros(250);

/// So long a blocked caller looks for what it waits for instead of sleeping, if its core has
/// nothing else to do: whoever waits longer hardly notices how long it takes to be woken.
const SPIN: Duration = Duration::from_millis(1);

/// So often it lends its core to others and looks again, once a part of what it waits for has come:
/// of the words of a barrier each would wake it otherwise.
const LENDS: u32 = 8;

/// Multicast has so long to reach all hosts before a context is made without.
const PROVE_MAX: Duration = Duration::from_millis(900);

/// Choices of a context; every one has a default that works.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network.
    pub net: NetOptions,
    /// How multicast is made reliable: a name that [`fabricast_proto::Scheme`] reads.
    pub scheme: String,
    /// On which host this process is: those that say the same share its memory, if they can. By
    /// default the system's name of it, when it started, and its network.
    pub host: Option<String>,
    /// A descriptor that can be read while the runtime above has something to do. A blocked caller
    /// then calls `meanwhile` at once, and goes on calling it without sleeping until there is no
    /// more to do. Nothing here reads it.
    pub runtime: Option<Arc<OwnedFd>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            net: NetOptions::default(),
            scheme: "auto".into(),
            host: None,
            runtime: None,
        }
    }
}

/// What already connects the processes of a job: it makes them known to each other.
pub trait Bootstrap {
    /// Which of them this is, from 0.
    fn rank(&self) -> u32;

    /// How many there are.
    fn size(&self) -> u32;

    /// Gives `mine` to all, and returns what each gave, in the order of their ranks. All give
    /// equally many bytes. Called by all at once.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error>;
}

/// Called again and again while a call blocks, so that the runtime above can go on.
pub type Meanwhile<'a> = &'a mut dyn FnMut();

/// What was started, `None` if it was over at once; or why not, and what was given for it.
type Started<A> = Result<Option<Op>, (Refused, A)>;

/// One process's end.
pub struct Context<O: Divisible + Send + Sync + 'static> {
    shared: Arc<Shared<O>>,
    /// Callers that block take one each; as many as ever blocked at once.
    sleepers: Mutex<Vec<Rest>>,
    runtime: Option<Arc<OwnedFd>>,
    /// The last caller returned while it drove the runtime above. The runtime's descriptor does not
    /// report the same work again, so the next caller that blocks starts by driving the runtime.
    unserved: AtomicBool,
    progress: Progress,
    peers: Peers,
}

/// What callers and the progress thread share.
struct Shared<O: Divisible> {
    engine: Mutex<Engine<O>>,
    clock: Clock,
    /// Callers that block.
    inside: AtomicUsize,
    /// When a caller was last inside, in ns of the clock.
    called: AtomicU64,
    /// Set by a caller that leaves something to be sent together with what comes next.
    hurry: AtomicBool,
    /// The last caller has left copies that others may ask for at any time.
    copies: AtomicBool,
    /// What the progress thread does.
    thread: Doing,
}

impl<O: Divisible> Shared<O> {
    fn lock(&self) -> MutexGuard<'_, Engine<O>> {
        self.engine.lock().unwrap_or_else(|e| {
            // A thread that panicked inside has said so. Its caller was told, and has taken back
            // what it had lent.
            let mut engine = e.into_inner();
            engine.breaks(&"a thread has panicked in it");
            engine
        })
    }
}

/// An ordered set of processes, as all of them name it.
#[derive(Clone, Debug)]
pub struct Group {
    id: GroupId,
    members: Vec<NodeId>,
}

impl Group {
    /// How many processes are in it.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }
}

/// An operation that was started.
#[derive(Debug)]
#[must_use = "an operation ends only in test or wait"]
pub struct Request {
    /// `None`: it was over at once.
    op: Option<Op>,
}

impl<O: Divisible + Send + Sync + 'static> Context<O> {
    /// Makes the processes of a job known to each other, opens the network, and waits until
    /// multicast reaches all hosts, for a second at most. All call it at once, and either all
    /// succeed or all are told the same reason.
    pub fn new(options: &Options, bootstrap: &mut dyn Bootstrap) -> Result<Context<O>, Error> {
        let (engine, peers) = card::introduce(options, bootstrap)?;
        let runtime = options.runtime.clone();
        let ready = Context::open(engine, peers, runtime).and_then(|context| {
            context.prove()?;
            Ok(context)
        });
        let tried = ready.as_ref().map(|context| context.shared.lock().tried());
        let unreached = card::agree_on_unreached(bootstrap, tried)?;
        let context = ready?;
        let now = context.shared.clock.now();
        context.shared.lock().proven(now, &unreached);
        Ok(context)
    }

    fn open(
        mut engine: Engine<O>,
        peers: Peers,
        runtime: Option<Arc<OwnedFd>>,
    ) -> Result<Context<O>, Error> {
        engine.listen()?;
        let udp = |e| Error::io("watching the sockets", e);
        let sleeper = callers_sleeper(&mut engine, runtime.as_ref()).map_err(udp)?;
        let own = engine.sleeper().map_err(udp)?;
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            clock: Clock(Instant::now()),
            inside: AtomicUsize::new(0),
            called: AtomicU64::new(0),
            hurry: AtomicBool::new(false),
            copies: AtomicBool::new(false),
            thread: Doing::default(),
        });
        let progress = Progress::start(shared.clone(), own)?;
        Ok(Context {
            shared,
            sleepers: Mutex::new(vec![sleeper]),
            runtime,
            unserved: AtomicBool::new(false),
            progress,
            peers,
        })
    }

    /// Waits until it is known whom this process reaches by multicast, if it is one that probes.
    fn prove(&self) -> Result<(), Error> {
        let clock = self.shared.clock;
        let until = clock.now() + PROVE_MAX;
        self.shared.lock().prove(clock.now())?;
        self.until(&Cell::new(None), &mut || (), |engine| {
            let over = !engine.is_proving() || clock.now() >= until;
            over.then_some(())
        })
    }

    /// The processes `members` (ranks of this context, in an order that all of them use) as a
    /// group. All name it by the same number, which none of them uses for another one, now or
    /// later. There is none with a process that is lost.
    pub fn group(&self, id: u32, members: &[u32]) -> Result<Group, Error> {
        let group = Group {
            id: GroupId(id),
            members: members.iter().copied().map(NodeId).collect(),
        };
        let mut engine = self.shared.lock();
        // With the lock: whose loss is noticed later ends the group.
        let mut lost = self.peers.all_lost().into_iter();
        if let Some((rank, how)) = lost.find(|(rank, _)| members.contains(rank)) {
            return Err(is_lost(rank, &how));
        }
        if self.peers.has_ended(id) {
            return Err(ended());
        }
        engine.add(&group)?;
        Ok(group)
    }

    /// This process is done with the group: everything that it was to receive has come. What it has
    /// sent is still brought to the others.
    pub fn leave(&self, group: Group) {
        let mut engine = self.shared.lock();
        engine.leave(self.shared.clock.now(), group.id);
        self.left(engine);
    }

    /// Removes a group that nobody has used, because not all of its members have it.
    pub fn abandon(&self, group: Group) {
        let now = self.shared.clock.now();
        self.shared.lock().end(now, group.id);
    }

    /// Broadcasts from member `root` (an index into the group's members): there `object` is sent,
    /// elsewhere it is received into. Gives it back, unless it was copied: at the root a short one
    /// is, and nobody waits. In a group of one there is nothing to do.
    pub fn bcast(
        &self,
        group: &Group,
        root: u32,
        object: O,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Option<O>, Error> {
        self.run(group, meanwhile, object, broadcast(group, root)?)
    }

    /// Starts the same; at the root of a short one it is over at once.
    pub fn ibcast(
        &self,
        group: &Group,
        root: u32,
        object: O,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Request, Error> {
        self.start(group, meanwhile, object, broadcast(group, root)?)
    }

    /// Returns when all members have entered this barrier. `by` is how, the same at all; by default
    /// as suits the group.
    pub fn barrier(
        &self,
        group: &Group,
        by: Option<Barrier>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Error> {
        let entered = self.run(group, meanwhile, (), enter(group, by));
        entered.map(|_| ())
    }

    /// Starts the same.
    pub fn ibarrier(
        &self,
        group: &Group,
        by: Option<Barrier>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Request, Error> {
        self.start(group, meanwhile, (), enter(group, by))
    }

    /// Whether the operation is over; gives its object back if it was not copied. After an error
    /// the object is not touched any more.
    pub fn test(&self, request: &mut Request) -> Result<Option<Option<O>>, Error> {
        let Some(op) = request.op else {
            return Ok(Some(None));
        };
        let mut engine = self.shared.lock();
        self.heed_lost(&mut engine);
        let mut ended = engine.ended(op);
        if ended.is_none() {
            engine.step(self.shared.clock.now())?;
            ended = engine.ended(op);
        }
        self.left(engine);
        let Some(ended) = ended else {
            return Ok(None);
        };
        request.op = None;
        self.outcome(ended).map(Some)
    }

    /// Waits until the operation is over, and gives its object back if it was not copied.
    pub fn wait(&self, request: Request, meanwhile: Meanwhile<'_>) -> Result<Option<O>, Error> {
        let Some(op) = request.op else {
            return Ok(None);
        };
        let awaited = Cell::new(Some(op));
        let ended = self.until(&awaited, meanwhile, |engine| engine.ended(op))?;
        self.outcome(ended)
    }

    fn outcome(&self, (ended, object): (Ended, Option<O>)) -> Result<Option<O>, Error> {
        match ended {
            Ended::Complete => Ok(object),
            Ended::Failed => Err(self.loss()),
            Ended::Mismatch => Err(Error::Usage(
                "the root broadcasts another number of bytes than this process receives".into(),
            )),
        }
    }

    /// Waits until everybody has what this process has sent.
    pub fn flush(&self, meanwhile: Meanwhile<'_>) -> Result<(), Error> {
        let any = Cell::new(None);
        self.until(&any, meanwhile, |engine| engine.is_flushed().then_some(()))
    }

    /// The first process that was lost, as far as is known here, and how that was noticed.
    pub fn lost(&self) -> Option<(u32, String)> {
        self.peers.lost()
    }

    /// The name of the network interface in use.
    pub fn interface(&self) -> String {
        self.shared.lock().udp().device().name.clone()
    }

    /// Why this process shares no memory with others of its host although there are any: then each
    /// of them counts as a host of its own.
    pub fn unshared(&self) -> Option<String> {
        self.shared.lock().unshared().map(String::from)
    }

    /// The connections that tell the others, when they close, that this process has ended: no other
    /// process may have them, a child after a fork neither. While the context lives they keep their
    /// numbers.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.peers.connections()
    }

    /// Counters since the start.
    pub fn statistics(&self) -> Statistics {
        self.shared.lock().statistics()
    }

    /// Starts something and waits until it is over.
    fn run<A>(
        &self,
        group: &Group,
        meanwhile: Meanwhile<'_>,
        given: A,
        start: impl Fn(&mut Engine<O>, Time, A) -> Started<A>,
    ) -> Result<Option<O>, Error> {
        if group.size() == 1 {
            return Ok(None);
        }
        let (mut given, awaited) = (Some(given), Cell::new(None));
        let ended = self.until(&awaited, meanwhile, |engine| {
            if awaited.get().is_none() {
                match self.engage(engine, group, &mut given, &start)? {
                    Ok(op) if op.is_none() => return Some(Ok((Ended::Complete, None))),
                    Ok(op) => awaited.set(op),
                    Err(e) => return Some(Err(e)),
                }
            }
            engine.ended(awaited.get()?).map(Ok)
        });
        self.outcome(ended??)
    }

    /// Starts something as soon as there is room for it.
    fn start<A>(
        &self,
        group: &Group,
        meanwhile: Meanwhile<'_>,
        given: A,
        start: impl Fn(&mut Engine<O>, Time, A) -> Started<A>,
    ) -> Result<Request, Error> {
        if group.size() == 1 {
            return Ok(Request { op: None });
        }
        // Where many are under way, there is room when one ends.
        let (mut given, any) = (Some(given), Cell::new(None));
        let started = self.until(&any, meanwhile, |engine| {
            self.engage(engine, group, &mut given, &start)
        });
        Ok(Request { op: started?? })
    }

    /// Starts something with what is given; `None`: there is no room for it now.
    fn engage<A>(
        &self,
        engine: &mut Engine<O>,
        group: &Group,
        given: &mut Option<A>,
        start: &impl Fn(&mut Engine<O>, Time, A) -> Started<A>,
    ) -> Option<Result<Option<Op>, Error>> {
        if !engine.has(group.id) {
            return Some(Err(self.loss()));
        }
        let (now, object) = (self.shared.clock.now(), given.take()?);
        match start(engine, now, object) {
            Ok(op) => Some(engine.started(now).map(|()| op)),
            Err((Refused::Busy, back)) => {
                *given = Some(back);
                None
            }
            Err((refused, _)) => Some(Err(Error::Usage(refused.to_string()))),
        }
    }

    /// Drives the engine until it answers, which it may as soon as the operation `awaited` ends
    /// (none: any).
    fn until<R>(
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
            if inside.has_mates && !news && !runtime && since >= LOOK_MATES {
                runtime = true;
            } else if !runtime && since >= LOOK {
                looked = now;
                meanwhile();
            }
        }
    }

    /// A caller goes: what is still to be done is the progress thread's.
    fn left(&self, mut engine: MutexGuard<'_, Engine<O>>) {
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
    fn heed_lost(&self, engine: &mut Engine<O>) {
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

    fn sleepers(&self) -> MutexGuard<'_, Vec<Rest>> {
        self.sleepers.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn loss(&self) -> Error {
        match self.peers.lost() {
            Some((rank, how)) => is_lost(rank, &how),
            None => ended(),
        }
    }
}

impl<O: Divisible + Send + Sync + 'static> Drop for Context<O> {
    fn drop(&mut self) {
        self.progress.stop();
        self.peers.close();
    }
}

/// What starts a broadcast of a group's member.
fn broadcast<O: Divisible>(
    group: &Group,
    root: u32,
) -> Result<impl Fn(&mut Engine<O>, Time, O) -> Started<O>, Error> {
    let usage = || {
        let size = group.size();
        Error::Usage(format!("{root} is no member of a group of {size}"))
    };
    let node = group.members.get(root as usize).copied();
    let (id, node) = (group.id, node.ok_or_else(usage)?);
    Ok(move |engine: &mut Engine<O>, now, object| engine.bcast(now, id, node, object))
}

/// What enters a barrier.
fn enter<O: Divisible>(
    group: &Group,
    by: Option<Barrier>,
) -> impl Fn(&mut Engine<O>, Time, ()) -> Started<()> {
    let id = group.id;
    move |engine, now, ()| {
        let op = engine.barrier(now, id, by);
        op.map(Some).map_err(|refused| (refused, ()))
    }
}

fn ended() -> Error {
    Error::Usage(
        "the group has ended: its members did not call the same operation, of one length".into(),
    )
}

fn is_lost(rank: u32, how: &str) -> Error {
    Error::PeerLost(format!("rank {rank} is lost: {how}"))
}

/// A caller that blocks, for as long as it lives.
struct Inside<'a, O: Divisible + Send + Sync + 'static> {
    context: &'a Context<O>,
    since: Time,
    /// Others share this host, and the runtime above may work for them by memory.
    has_mates: bool,
    look: Duration,
    /// `None` when it goes.
    sleeper: Option<Rest>,
    waker: Waker,
}

impl<'a, O: Divisible + Send + Sync + 'static> Inside<'a, O> {
    fn new(
        context: &'a Context<O>,
        engine: &mut Engine<O>,
        since: Time,
    ) -> Result<Inside<'a, O>, Error> {
        let idle = context.sleepers().pop();
        let runtime = context.runtime.as_ref();
        let sleeper = idle.map_or_else(|| callers_sleeper(engine, runtime), Ok);
        let sleeper = sleeper.map_err(|e| Error::io("watching the sockets", e))?;
        context.shared.inside.fetch_add(1, Ordering::AcqRel);
        let has_mates = runtime.is_some() && sleeper.has_mates();
        Ok(Inside {
            context,
            since,
            has_mates,
            look: if has_mates { LOOK_MATES } else { LOOK },
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
) -> io::Result<Rest> {
    let sleeper = engine.sleeper()?;
    if let Some(runtime) = runtime {
        sleeper.heed_runtime(runtime.as_fd())?;
    }
    Ok(sleeper)
}

impl<O: Divisible + Send + Sync + 'static> Drop for Inside<'_, O> {
    fn drop(&mut self) {
        self.context.sleepers().extend(self.sleeper.take());
        self.context.shared.inside.fetch_sub(1, Ordering::AcqRel);
    }
}
