//! Groups of a job's processes that broadcast again and again: what MPI and other parallel
//! runtimes are built upon.
//!
//! ```text
//!   callers ── start, test, wait ──► Engine (driver, ended operations) ◄── progress thread
//!                                        one lock; whoever has work steps it
//! ```
//! A [`Context`] is one process's end: its sockets, its node, its connection to the process that
//! watches all of them. A [`Group`] is an ordered set of processes that all name it by one number.
//!
//! Each room owns a part of the state, and imports from those before it alone: `networks` (both
//! drivers), `hierarchy` (processes of one host), `wireup` (how processes come to know each other,
//! and who is lost), `operations` (the engine), `progress` (callers and the thread). What several
//! need is in `limits` and `options`.

mod hierarchy;
#[cfg(test)]
mod host_tests;
mod limits;
mod networks;
mod operations;
mod options;
mod progress;
#[cfg(test)]
mod tests;
mod wireup;

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use fabricast_proto::{Barrier, GroupId, NodeId, Refused, Time};

use self::networks::Ended;
use self::operations::engine::Engine;
use self::operations::operation::Op;
use self::progress::callers::Callers;
use self::wireup::descriptor::agree_on_unreached;
use crate::error::Error;
use crate::object::Divisible;

pub use self::operations::group::Group;
pub use self::operations::statistics::Statistics;
pub use self::options::{Bootstrap, Options};
pub use self::progress::callers::Meanwhile;
pub use self::wireup::descriptor::DESCRIPTOR_LEN;

/// Multicast has so long to reach all hosts before a context is made without.
const PROVE_MAX: Duration = Duration::from_millis(900);

/// What was started, `None` if it was over at once; or why not, and what was given for it.
type Started<A> = Result<Option<Op>, (Refused, A)>;

/// One process's end.
pub struct Context<O: Divisible + Send + Sync + 'static> {
    callers: Callers<O>,
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
        let (setting, peers) = wireup::wire_up(options, bootstrap)?;
        let open = || {
            let mut engine = Engine::new(setting);
            engine.listen()?;
            let callers = Callers::new(engine, peers, options.runtime.clone())?;
            let context = Context { callers };
            context.prove()?;
            Ok(context)
        };
        let ready: Result<Context<O>, Error> = open();
        let tried = ready
            .as_ref()
            .map(|context| context.callers.shared.lock().tried());
        let unreached = agree_on_unreached(bootstrap, tried)?;
        let context = ready?;
        let now = context.callers.shared.clock.now();
        context.callers.shared.lock().proven(now, &unreached);
        Ok(context)
    }

    /// Waits until it is known whom this process reaches by multicast, if it is one that
    /// probes.
    fn prove(&self) -> Result<(), Error> {
        let clock = self.callers.shared.clock;
        let until = clock.now() + PROVE_MAX;
        self.callers.shared.lock().prove(clock.now())?;
        self.callers.until(&Cell::new(None), &mut || (), |engine| {
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
        let mut engine = self.callers.shared.lock();
        // With the lock: whose loss is noticed later ends the group.
        let mut lost = self.callers.peers.all_lost().into_iter();
        if let Some((rank, how)) = lost.find(|(rank, _)| members.contains(rank)) {
            return Err(is_lost(rank, &how));
        }
        if self.callers.peers.has_ended(id) {
            return Err(ended());
        }
        engine.add(&group)?;
        Ok(group)
    }

    /// This process is done with the group: everything that it was to receive has come. What it has
    /// sent is still brought to the others.
    pub fn leave(&self, group: Group) {
        let mut engine = self.callers.shared.lock();
        engine.leave(self.callers.shared.clock.now(), group.id);
        self.callers.left(engine);
    }

    /// Removes a group that nobody has used, because not all of its members have it.
    pub fn abandon(&self, group: Group) {
        let now = self.callers.shared.clock.now();
        self.callers.shared.lock().end(now, group.id);
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
        let mut engine = self.callers.shared.lock();
        self.callers.heed_lost(&mut engine);
        let mut ended = engine.ended(op);
        if ended.is_none() {
            engine.step(self.callers.shared.clock.now())?;
            ended = engine.ended(op);
        }
        self.callers.left(engine);
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
        let ended = self
            .callers
            .until(&awaited, meanwhile, |engine| engine.ended(op))?;
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
        self.callers
            .until(&any, meanwhile, |engine| engine.is_flushed().then_some(()))
    }

    /// The first process that was lost, as far as is known here, and how that was noticed.
    pub fn lost(&self) -> Option<(u32, String)> {
        self.callers.peers.lost()
    }

    /// The name of the network interface in use.
    pub fn interface(&self) -> String {
        self.callers.shared.lock().udp().device().name.clone()
    }

    /// Why this process shares no memory with others of its host although there are any: then each
    /// of them counts as a host of its own.
    pub fn unshared(&self) -> Option<String> {
        self.callers.shared.lock().unshared().map(String::from)
    }

    /// The connections that tell the others, when they close, that this process has ended: no other
    /// process may have them, a child after a fork neither. While the context lives they keep their
    /// numbers.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.callers.peers.connections()
    }

    /// Counters since the start.
    pub fn statistics(&self) -> Statistics {
        self.callers.shared.lock().statistics()
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
        let ended = self.callers.until(&awaited, meanwhile, |engine| {
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
        let started = self.callers.until(&any, meanwhile, |engine| {
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
        let (now, object) = (self.callers.shared.clock.now(), given.take()?);
        match start(engine, now, object) {
            Ok(op) => Some(engine.started(now).map(|()| op)),
            Err((Refused::Busy, back)) => {
                *given = Some(back);
                None
            }
            Err((refused, _)) => Some(Err(Error::Usage(refused.to_string()))),
        }
    }

    fn loss(&self) -> Error {
        match self.callers.peers.lost() {
            Some((rank, how)) => is_lost(rank, &how),
            None => ended(),
        }
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
