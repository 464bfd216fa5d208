//! Groups of a job's processes that broadcast again and again: what MPI and other parallel
//! runtimes are built upon.
//!
//! ```text
//!   callers ── start, test, wait ──► Engine (driver, ended operations) ◄── progress thread
//!                                        one lock; a thread with work steps it
//! ```
//! A [`Context`] is one process's end: its sockets, its nodes, its connections to the failure
//! detector. A [`Group`] is an ordered set of processes, which all name it by one number.
//!
//! Each module owns a part of the state and imports only from the modules before it: `networks`
//! (both drivers), `hierarchy` (processes of one host), `wireup` (endpoint descriptors and the
//! failure detector), `operations` (the engine), `progress` (callers and the progress thread).
//! `limits`, `options` and `error` are shared.

#[cfg(test)]
mod address_tests;
#[cfg(test)]
mod algorithm_tests;
mod error;
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

use fabricast_proto::group::{Grant, Strategy};
use fabricast_proto::{Barrier, GroupId, NodeId, Refused, Time};

use self::operations::engine::Engine;
use self::operations::operation::{Op, Started};
use self::progress::callers::Callers;
use self::wireup::descriptor::agree_on_unreached;
use crate::collective::Ended;
use crate::object::Divisible;

pub use self::error::{CoverError, Error};
pub use self::limits::COVER_SETS_MAX;
pub use self::operations::group::Group;
pub use self::operations::statistics::{AddressStatistics, Reasons, Statistics, Taken};
pub use self::options::{Bootstrap, BootstrapError, BroadcastAlgorithm, Options, UnknownBroadcast};
pub use self::progress::callers::Meanwhile;
pub use self::wireup::descriptor::DESCRIPTOR_LEN;

/// Longest time that creating a context waits for probes to prove that multicast reaches all hosts.
const PROVE_MAX: Duration = Duration::from_millis(900);
/// Longest time that it waits after that for the pool's first address.
const POOL_MAX: Duration = Duration::from_millis(100);

/// One process's end of a job: its sockets, and the thread that serves others meanwhile.
pub struct Context<O: Divisible + Send + Sync + 'static> {
    callers: Callers<O>,
}

/// An operation that was started: a broadcast of an `O`, or a barrier.
#[derive(Debug)]
#[must_use = "an operation ends only in test or wait"]
pub struct Request<O>(State<O>);

/// How far an operation is.
#[derive(Debug)]
enum State<O> {
    UnderWay(Op),
    /// It has ended well; `None`: a barrier, or the object was given back already.
    Over(Option<O>),
}

impl<O> From<Started<O>> for Request<O> {
    fn from(started: Started<O>) -> Request<O> {
        Request(match started {
            Started::Over(object) => State::Over(Some(object)),
            Started::UnderWay(op) => State::UnderWay(op),
        })
    }
}

impl<O: Divisible + Send + Sync + 'static> Context<O> {
    /// Makes the processes of a job known to each other, opens the network, and waits until
    /// multicast reaches all hosts, for at most one second. Then, for at most a tenth of a second,
    /// until the first groups can have addresses of their own. All processes call it at once.
    ///
    /// # Errors
    /// Either all processes succeed, or all return an error with the same reason.
    pub fn new(options: &Options, bootstrap: &mut dyn Bootstrap) -> Result<Context<O>, Error> {
        let (setting, peers) = wireup::wire_up(options, bootstrap)?;
        let open = || {
            let engine = Engine::new(setting);
            let callers = Callers::new(engine, peers, options.runtime.clone())?;
            let context = Context { callers };
            context.listen()?;
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
        let mut engine = context.callers.shared.lock();
        engine.proven(now, &unreached);
        context.callers.left(engine);
        if options.addresses != Some(0) {
            context.await_pool()?;
        }
        Ok(context)
    }

    /// Tells the other processes, which call [`Context::new`], that this one takes no part, and
    /// `why`. A process whose options make no sense calls it, since the others would wait for it.
    /// Returns the error that they get, too.
    pub fn takes_no_part(why: &str, bootstrap: &mut dyn Bootstrap) -> Error {
        wireup::refuse(why, bootstrap)
    }

    /// Joins the address of all hosts, before there is any group.
    fn listen(&self) -> Result<(), Error> {
        self.callers
            .shared
            .lock()
            .listen(&self.callers.shared.clock)
    }

    /// Waits until an address of the pool is proven, so that the first groups can have it.
    fn await_pool(&self) -> Result<(), Error> {
        let clock = self.callers.shared.clock;
        let until = clock.now() + POOL_MAX;
        self.callers.until(&Cell::new(None), &mut || (), |engine| {
            let over = !engine.awaits_pool() || clock.now() >= until;
            over.then_some(())
        })
    }

    /// If this process probes the others: waits until it knows which of them its multicasts reach.
    fn prove(&self) -> Result<(), Error> {
        let clock = self.callers.shared.clock;
        let until = clock.now() + PROVE_MAX;
        self.callers.shared.lock().prove(clock.now())?;
        self.callers.until(&Cell::new(None), &mut || (), |engine| {
            let over = !engine.is_proving() || clock.now() >= until;
            over.then_some(())
        })
    }

    /// Makes a group of the processes `members`: ranks of this context, in an order that all
    /// members use. All members give it the same number `id`, and none of them uses the number for
    /// another group, now or later. Numbers are below 2^32 - 1, and with another algorithm of
    /// broadcasts than multicast below 2^31 / (64 + size of the context).
    ///
    /// # Errors
    /// [`Error::RankLost`]: a member is lost. [`Error::GroupMembers`], [`Error::GroupNumber`]: see
    /// there.
    pub fn group(&self, id: u32, members: &[u32]) -> Result<Group, Error> {
        let group = Group {
            id: GroupId(id),
            members: members.iter().copied().map(NodeId).collect(),
        };
        let mut engine = self.callers.shared.lock();
        // Under the lock: a loss that is noticed later ends the group.
        let mut lost = self.callers.peers.all_lost().into_iter();
        if let Some((rank, how)) = lost.find(|(rank, _)| members.contains(rank)) {
            return Err(Error::RankLost { rank, how });
        }
        engine.add(self.callers.shared.clock.now(), &group)?;
        Ok(group)
    }

    /// Takes an address in advance for a group of these ranks of this context, so that its first
    /// broadcast goes by it. The group's lowest rank gets one, if one is at hand; all others get
    /// `None`. The ranks pass it to [`Context::grant`] once they have agreed on the group and on
    /// this, or the lowest one to [`Context::put_back`].
    pub fn take_address(&self, members: &[u32]) -> Option<Grant> {
        let mut members: Vec<NodeId> = members.iter().copied().map(NodeId).collect();
        members.sort_unstable();
        let now = self.callers.shared.clock.now();
        self.callers.shared.lock().take_address(now, &members)
    }

    /// Gives an address to a group in which nobody has started anything. All members name the same
    /// one.
    pub fn grant(&self, group: &Group, address: Grant) {
        let now = self.callers.shared.clock.now();
        let mut engine = self.callers.shared.lock();
        engine.grant_address(now, group.id, address);
        self.callers.left(engine);
    }

    /// Returns an address that no group was granted.
    pub fn put_back(&self, address: Grant) {
        let now = self.callers.shared.clock.now();
        let mut engine = self.callers.shared.lock();
        engine.put_back_address(now, address);
        self.callers.left(engine);
    }

    /// Names the sets of members, in ranks of this context, that broadcasts of the group go to with
    /// [`BroadcastAlgorithm::Cover`], at most [`COVER_SETS_MAX`]. All members name the same list,
    /// before they start anything in the group. From this list each member finds the same cover. It
    /// could not find it from the groups that exist, because it knows only its own groups. A set of
    /// three members or more serves if none of it has the message yet or one has. With another
    /// algorithm, the sets change nothing.
    ///
    /// # Errors
    /// [`Error::Cover`]: a set has a process that is no member, or one twice, there are too many,
    /// the sets were named already, or something was started in the group.
    /// [`Error::GroupEnded`], [`Error::Refused`], [`Error::Io`]: see there. After an error the
    /// group has the sets that it had before.
    pub fn cover(&self, group: &Group, sets: &[Vec<u32>]) -> Result<(), Error> {
        let now = self.callers.shared.clock.now();
        self.callers.shared.lock().cover(now, group, sets)
    }

    /// Leaves the group. This process has received everything that it was to receive. What it has
    /// sent still goes to the other members. A group in which this process has started nothing ends
    /// at once, also if not all members could create it.
    pub fn leave(&self, group: Group) {
        let mut engine = self.callers.shared.lock();
        engine.leave(self.callers.shared.clock.now(), group.id);
        self.callers.left(engine);
    }

    /// Broadcasts from member `root` (an index into the group's members): the root sends `object`,
    /// every other member receives into its own, which has the same length. All members call it,
    /// in the same order as the group's other operations.
    ///
    /// Returns the object when it is no longer read or written: at the root of a long object when
    /// all members have it, at the root of a short one (by default at most 256 KiB) at once,
    /// because the root sends a copy. Calls `meanwhile` again and again while it blocks. In a group
    /// of one it returns at once.
    ///
    /// # Errors
    /// [`Error::NoMember`] and [`Error::Refused`]: nothing was sent. [`Error::LengthMismatch`],
    /// [`Error::GroupEnded`], [`Error::RankLost`]: the broadcast will not complete.
    /// [`Error::Broken`] and [`Error::Io`]: nor will any other of this context. After an error the
    /// object is dropped; nothing reads or writes it any more.
    pub fn bcast(
        &self,
        group: &Group,
        root: u32,
        object: O,
        meanwhile: Meanwhile<'_>,
    ) -> Result<O, Error> {
        let root = member(group, root)?;
        if group.size() == 1 {
            return Ok(object);
        }
        let (mut given, awaited) = (Some(object), Cell::new(None));
        let ended = self.callers.until(&awaited, meanwhile, |engine| {
            if awaited.get().is_none() {
                let start = |engine: &mut Engine<O>, now, object| {
                    engine.bcast(now, (group.id, root), object, true)
                };
                match self.engage(engine, group, &mut given, start)? {
                    Ok(Started::Over(object)) => return Some(Ok((Ended::Complete, Some(object)))),
                    Ok(Started::UnderWay(op)) => awaited.set(Some(op)),
                    Err(e) => return Some(Err(e)),
                }
            }
            engine.ended(awaited.get()?).map(Ok)
        });
        let object = self.outcome(ended??)?;
        Ok(object.expect("a broadcast that is complete gives its object back"))
    }

    /// Starts a broadcast like [`Context::bcast`]. [`Context::test`] or [`Context::wait`] gives the
    /// object back. Never blocks, and so never calls `meanwhile`: while many are under way, the
    /// broadcast waits for its turn.
    ///
    /// # Errors
    /// As for [`Context::bcast`]. [`Error::Refused`] also if 1 048 576 operations of the group wait
    /// or are under way.
    pub fn ibcast(
        &self,
        group: &Group,
        root: u32,
        object: O,
        _meanwhile: Meanwhile<'_>,
    ) -> Result<Request<O>, Error> {
        let root = member(group, root)?;
        if group.size() == 1 {
            return Ok(Request(State::Over(Some(object))));
        }
        let started = self.start(group, object, |engine, now, object| {
            engine.bcast(now, (group.id, root), object, false)
        });
        started.map(Request::from)
    }

    /// Enters a barrier, and returns when all members have entered it. `by` is the algorithm, the
    /// same at all members; `None`: the one that suits the group. Calls `meanwhile` again and again
    /// while it blocks.
    ///
    /// # Errors
    /// As for [`Context::bcast`], but for [`Error::NoMember`].
    pub fn barrier(
        &self,
        group: &Group,
        by: Option<Barrier>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), Error> {
        if group.size() == 1 {
            return Ok(());
        }
        let awaited = Cell::new(None);
        let ended = self.callers.until(&awaited, meanwhile, |engine| {
            if awaited.get().is_none() {
                match self.engage(engine, group, &mut Some(()), enter(group, by, true))? {
                    Ok(op) => awaited.set(Some(op)),
                    Err(e) => return Some(Err(e)),
                }
            }
            engine.ended(awaited.get()?).map(Ok)
        });
        self.outcome(ended??).map(|_| ())
    }

    /// Starts a barrier like [`Context::barrier`]. Never blocks, like [`Context::ibcast`].
    ///
    /// # Errors
    /// As for [`Context::ibcast`], but for [`Error::NoMember`].
    pub fn ibarrier(
        &self,
        group: &Group,
        by: Option<Barrier>,
        _meanwhile: Meanwhile<'_>,
    ) -> Result<Request<O>, Error> {
        if group.size() == 1 {
            return Ok(Request(State::Over(None)));
        }
        let started = self.start(group, (), enter(group, by, false));
        started.map(|op| Request(State::UnderWay(op)))
    }

    /// Whether the operation is over: then `Some`, with the object of a broadcast (of a barrier
    /// `None`). A second call after that gives no object. Does not block.
    ///
    /// # Errors
    /// As for [`Context::bcast`]. After an error nothing reads or writes the object any more.
    pub fn test(&self, request: &mut Request<O>) -> Result<Option<Option<O>>, Error> {
        let op = match &mut request.0 {
            State::UnderWay(op) => *op,
            State::Over(object) => return Ok(Some(object.take())),
        };
        let mut engine = self.callers.shared.lock();
        self.callers.end_lost(&mut engine);
        let mut ended = engine.ended(op);
        if ended.is_none() {
            engine.step(self.callers.shared.clock.now())?;
            ended = engine.ended(op);
        }
        self.callers.left(engine);
        let Some(ended) = ended else {
            return Ok(None);
        };
        request.0 = State::Over(None);
        self.outcome(ended).map(Some)
    }

    /// Waits until the operation is over. Returns the object of a broadcast. Of a barrier, and if
    /// [`Context::test`] has returned the object already, there is none. Calls `meanwhile` again
    /// and again while it blocks.
    ///
    /// # Errors
    /// As for [`Context::bcast`].
    pub fn wait(&self, request: Request<O>, meanwhile: Meanwhile<'_>) -> Result<Option<O>, Error> {
        let op = match request.0 {
            State::UnderWay(op) => op,
            State::Over(object) => return Ok(object),
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
            Ended::Mismatch => Err(Error::LengthMismatch),
        }
    }

    /// Waits until all members of all groups have what this process has sent.
    pub fn flush(&self, meanwhile: Meanwhile<'_>) -> Result<(), Error> {
        let any = Cell::new(None);
        self.callers
            .until(&any, meanwhile, |engine| engine.is_flushed().then_some(()))
    }

    /// Rank of the first process that this process knows to be lost, and how the loss was noticed.
    pub fn lost(&self) -> Option<(u32, String)> {
        self.callers.peers.lost()
    }

    /// The largest number that a group may have. Broadcasts by messages need some of the numbers
    /// for themselves ([`BroadcastAlgorithm`]).
    pub fn group_max(&self) -> u32 {
        self.callers.shared.lock().group_max()
    }

    /// The name of the network interface in use.
    pub fn interface(&self) -> String {
        self.callers.shared.lock().port().to_owned()
    }

    /// When groups get multicast addresses of their own, and the name of the subnet that grants
    /// these: `igmp`, `opensm`, or `failed` if it has failed for good.
    ///
    /// # Errors
    /// This process gives groups none, for this reason: [`Options::groups`] says so, it does not
    /// speak for its host, or multicast does not reach enough hosts.
    pub fn strategy(&self) -> Result<(Strategy, &'static str), &'static str> {
        self.callers.shared.lock().strategy()
    }

    /// Why this process shares no memory with other processes of its host. Then each of them counts
    /// as a host of its own. `None`: it shares memory, or is alone on its host.
    pub fn unshared(&self) -> Option<String> {
        self.callers.shared.lock().unshared().map(String::from)
    }

    /// Connections whose closing tells the other processes that this process has ended. No other
    /// process may hold them, and neither may a child after a fork. They keep their descriptor
    /// numbers while the context lives.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.callers.peers.connections()
    }

    /// Counters since the start.
    pub fn statistics(&self) -> Statistics {
        self.callers.shared.lock().statistics()
    }

    /// Starts an operation, which waits for its turn if there is no room for it now.
    fn start<A, S>(
        &self,
        group: &Group,
        given: A,
        start: impl Fn(&mut Engine<O>, Time, A) -> Result<S, (Refused, A)>,
    ) -> Result<S, Error> {
        let mut engine = self.callers.shared.lock();
        self.callers.end_lost(&mut engine);
        let started = self.engage(&mut engine, group, &mut Some(given), start);
        self.callers.left(engine);
        started.unwrap_or(Err(Error::Refused(Refused::Busy)))
    }

    /// Starts an operation with what is given. `None`: there is no room for it now, and `given` is
    /// still there.
    fn engage<A, S>(
        &self,
        engine: &mut Engine<O>,
        group: &Group,
        given: &mut Option<A>,
        start: impl Fn(&mut Engine<O>, Time, A) -> Result<S, (Refused, A)>,
    ) -> Option<Result<S, Error>> {
        if !engine.has(group.id) {
            return Some(Err(self.loss()));
        }
        // A network that has failed takes no more objects.
        if let Err(error) = engine.is_whole() {
            return Some(Err(error));
        }
        let (now, object) = (self.callers.shared.clock.now(), given.take()?);
        match start(engine, now, object) {
            Ok(started) => Some(engine.started(now).map(|()| started)),
            Err((Refused::Busy, back)) => {
                *given = Some(back);
                None
            }
            Err((refused, _)) => Some(Err(refused.into())),
        }
    }

    fn loss(&self) -> Error {
        match self.callers.peers.lost() {
            Some((rank, how)) => Error::RankLost { rank, how },
            None => Error::GroupEnded,
        }
    }
}

/// The node that is this member of the group.
fn member(group: &Group, root: u32) -> Result<NodeId, Error> {
    let node = group.members.get(root as usize).copied();
    node.ok_or(Error::NoMember {
        root,
        size: group.members.len(),
    })
}

/// Enters a barrier of the group by this algorithm.
fn enter<O: Divisible>(
    group: &Group,
    by: Option<Barrier>,
    waits: bool,
) -> impl Fn(&mut Engine<O>, Time, ()) -> Result<Op, (Refused, ())> {
    let id = group.id;
    move |engine, now, ()| {
        let entered = engine.barrier(now, (id, by), waits);
        entered.map_err(|refused| (refused, ()))
    }
}
