//! What is behind the lock: the driver, what has ended, what is still to be brought to others.

mod barriers;
mod groups;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::time::Duration;

use fabricast_proto::{Barrier, Command, Event, GroupId, NodeId, OpId, Reach, Refused, Seq, Time};

use self::barriers::usual;
use self::groups::{EVERYBODY, Leaving};
use super::Group;
use super::hosts::{Hosts, Shape};
use super::joint::{Joints, News, Route};
use super::part::Part;
use super::rest::Rest;
use super::stream::Stream;
use super::ways::{Way, Ways};
use crate::driver::{self, Step};
use crate::error::Error;
use crate::object::Divisible;
use crate::transport::Transport;
use crate::transport::fault::FaultCounters;
use crate::transport::shm::ShmCounters;
use crate::transport::udp::{Ready, Sending, Udp, UdpCounters, Waker};

/// Bytes of copies that may wait for others to receive them, of a root's and again of what is
/// passed on; beyond, callers wait themselves.
pub(super) const COPIES_MAX: u64 = 4 << 20;
/// IP groups that a context uses.
pub(super) const ADDRESSES: usize = 8;

/// A caller that only starts operations looks for what has arrived once in so long.
const UNHEARD_MAX: Duration = Duration::from_millis(1);
/// Largest number of passes over both ways in one step.
const PASSES_MAX: usize = 4;

/// An operation: one of a driver's, or one that is composed of several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Op {
    Single(Way, OpId),
    Joint(u32),
}

/// What is still to be done when a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    Nothing,
    /// Something, then: as a rule others are to be told what has come, or what is lost is to be
    /// repeated.
    Due(Time),
    /// Copies that nobody waits for, and that others may ask for at any time.
    Copies,
}

/// How an operation has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    Complete,
    Failed,
    Mismatch,
}

/// Counters of a context, all since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Counters of the protocol on the network.
    pub node: fabricast_proto::Counters,
    /// Counters of the protocol between processes of this host.
    pub near: fabricast_proto::Counters,
    /// Counters of the memory that processes of this host share.
    pub shm: ShmCounters,
    /// Counters of the driver on the network.
    pub driver: driver::Counters,
    /// Counters of the sockets.
    pub udp: UdpCounters,
    /// Counters of injected faults.
    pub faults: FaultCounters,
    /// Broadcasts that this process started as root.
    pub sent: u64,
    /// Bytes of them.
    pub sent_bytes: u64,
    /// Broadcasts that this process received, those under way among them.
    pub received: u64,
    /// Bytes of them.
    pub received_bytes: u64,
    /// Barriers that this process entered.
    pub barriers: u64,
    /// How often a receiver was found that multicast does not reach, or no more: it is served by
    /// unicast.
    pub unreached: u64,
    /// 1 if this process was to share memory with others of its host and does not.
    pub unshared: u64,
    /// Groups that are not over yet, those among them that this process has left and others have
    /// not.
    pub groups: u64,
}

/// What is known of a group.
struct State {
    members: Vec<NodeId>,
    shape: Shape,
    /// Copies on their way.
    copies: u32,
}

/// See the module.
pub(super) struct Engine<O: Divisible> {
    ways: Ways<O>,
    joints: Joints<O>,
    hosts: Hosts,
    rank: NodeId,
    /// Payload of a data packet, by each way.
    chunk: [u32; 2],
    /// Everybody, and the addresses that groups share.
    all: Vec<NodeId>,
    addresses: [SocketAddr; ADDRESSES],
    groups: BTreeMap<GroupId, State>,
    /// Groups that this process is done with, by each way in which they exist.
    leaving: BTreeMap<(GroupId, Way), Leaving>,
    /// Operations under way that somebody waits for.
    pending: BTreeMap<Op, GroupId>,
    ended: BTreeMap<Op, Ended>,
    /// Objects of composed operations that have ended.
    back: BTreeMap<u32, O>,
    /// Barriers in which this process keeps its mates until the leaders have met: by what, and in
    /// which group.
    held: BTreeMap<OpId, (GroupId, Barrier)>,
    /// The leaders' barriers for them.
    meetings: BTreeMap<OpId, GroupId>,
    /// Copies on their way, which nobody waits for, and their bytes.
    copies: BTreeMap<Op, (GroupId, u64)>,
    copied: u64,
    gone: BTreeSet<NodeId>,
    /// Groups in which an operation did not match: all are to be told.
    spoilt: Vec<GroupId>,
    /// Callers that sleep: what wakes them, and until which operation ends; none: any.
    asleep: Vec<(Waker, Option<Op>)>,
    stream: Stream,
    wake: Option<Time>,
    /// When it was last looked for what has arrived.
    stepped_at: Time,
    /// What was started last has been handed to the drivers, and they have done what there was to
    /// do.
    settled: bool,
    unshared: Option<String>,
    /// This process probes whether multicast reaches all hosts.
    proving: bool,
    /// Leaders of hosts that multicast does not reach: first those that this process has found,
    /// then those on which all processes have agreed.
    unreached: BTreeSet<NodeId>,
    /// Why the network is used no more.
    broken: Option<String>,
    statistics: Statistics,
}

/// What a context begins with.
pub(super) struct Setting<O: Divisible> {
    pub ways: Ways<O>,
    pub hosts: Hosts,
    pub rank: NodeId,
    pub size: u32,
    /// Payload of a data packet over the network, and through shared memory.
    pub chunk: [u32; 2],
    pub addresses: [SocketAddr; ADDRESSES],
    /// Why no memory is shared with others of this host, if there are any.
    pub unshared: Option<String>,
}

impl<O: Divisible> Engine<O> {
    pub fn new(setting: Setting<O>) -> Engine<O> {
        let Setting {
            ways,
            hosts,
            rank,
            size,
            chunk,
            addresses,
            unshared,
        } = setting;
        Engine {
            ways,
            joints: Joints::new(),
            hosts,
            rank,
            chunk,
            all: (0..size).map(NodeId).collect(),
            addresses,
            groups: BTreeMap::new(),
            leaving: BTreeMap::new(),
            pending: BTreeMap::new(),
            ended: BTreeMap::new(),
            back: BTreeMap::new(),
            held: BTreeMap::new(),
            meetings: BTreeMap::new(),
            copies: BTreeMap::new(),
            copied: 0,
            gone: BTreeSet::new(),
            spoilt: Vec::new(),
            asleep: Vec::new(),
            stream: Stream::default(),
            wake: None,
            stepped_at: Time::ZERO,
            settled: false,
            unshared,
            proving: false,
            unreached: BTreeSet::new(),
            broken: None,
            statistics: Statistics::default(),
        }
    }

    /// Why no memory is shared with others of this host, if there are any.
    pub fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    pub fn udp(&self) -> &Udp {
        self.ways.far.net().inner()
    }

    /// Something that one thread sleeps in until there is something to step for.
    pub fn sleeper(&mut self) -> io::Result<Rest> {
        let near = self.ways.near.as_ref().map(|near| near.net().doze());
        Rest::new(self.ways.far.transport().inner_mut().sleeper()?, near)
    }

    /// What a sleep has seen: the next step reads these sockets alone.
    pub fn heed(&mut self, ready: &Ready) {
        self.ways.far.transport().inner_mut().heed(ready);
        if let Some(near) = self.ways.near.as_mut().filter(|_| ready.other) {
            near.transport().rung();
        }
    }

    /// Starts a broadcast; `None`: its caller need not wait.
    pub fn bcast(
        &mut self,
        now: Time,
        group: GroupId,
        root: NodeId,
        object: O,
    ) -> Result<Option<Op>, (Refused, O)> {
        let Some(state) = self.groups.get(&group) else {
            return Err((Refused::NoGroup, object));
        };
        let len = object.len();
        let sends = root == self.rank;
        let short = !self.ways.far.node().scheme().is_awaited(len);
        let copy = sends && short && self.copied + len <= COPIES_MAX;
        let op = if state.shape.mixed {
            if !self.joints.has_room(group) {
                return Err((Refused::Busy, object));
            }
            let route = Route::new(&self.hosts, &state.shape, root, self.rank);
            Op::Joint(self.joints.add(group, route, object, copy))
        } else {
            let way = if state.shape.is_near() {
                Way::Near
            } else {
                Way::Far
            };
            let part = Part::Own(object);
            let started = match sends {
                true if copy => self.ways.bcast(way, now, group, part),
                true => self.ways.lend(way, now, group, part),
                false => self.ways.post((way, root), now, group, part),
            };
            match started {
                Ok(op) => Op::Single(way, op),
                Err((refused, Part::Own(object))) => return Err((refused, object)),
                Err(_) => unreachable!("it is what was given"),
            }
        };
        let s = &mut self.statistics;
        let (count, bytes) = match sends {
            true => (&mut s.sent, &mut s.sent_bytes),
            false => (&mut s.received, &mut s.received_bytes),
        };
        (*count, *bytes) = (*count + 1, *bytes + len);
        if copy {
            self.stream.add(now, len);
            if let Op::Single(way, op) = op {
                let lent = self.ways.take((way, op));
                debug_assert!(lent.is_some() || len == 0, "it was copied");
            }
            self.passes(op, group, len);
            return Ok(None);
        }
        self.stream.broken();
        self.pending.insert(op, group);
        Ok(Some(op))
    }

    /// A copy is on its way.
    fn passes(&mut self, op: Op, group: GroupId, len: u64) {
        self.copies.insert(op, (group, len));
        self.copied += len;
        if let Some(state) = self.groups.get_mut(&group) {
            state.copies += 1;
        }
    }

    /// It has arrived; false: it was none.
    fn passed(&mut self, op: Op) -> bool {
        let Some((group, len)) = self.copies.remove(&op) else {
            return false;
        };
        self.copied -= len;
        if let Some(state) = self.groups.get_mut(&group) {
            state.copies -= 1;
        }
        true
    }

    /// Lets the drivers work; says when they want to again, and what keeps them from sending.
    pub fn step(&mut self, now: Time) -> Result<(Option<Time>, Sending), Error> {
        self.is_whole()?;
        (self.stepped_at, self.settled) = (now, false);
        self.stream.sent();
        let step = self.ways.step(now);
        self.stepped(now, step)
    }

    /// The same for who falls asleep if there is nothing to do: not again after something was
    /// started just now and nothing waits to be received.
    pub fn settle(&mut self, now: Time) -> Result<(Option<Time>, Sending), Error> {
        match mem::take(&mut self.settled) && self.ways.is_drained() {
            true => Ok((self.wake, self.udp().sending())),
            false => self.step(now),
        }
    }

    /// After something was started: the same, but without looking for what has arrived. What
    /// belongs to it may be here already; and of a stream of short broadcasts several are sent at
    /// once. But who only ever starts something is to hear, too, what others ask for.
    pub fn started(&mut self, now: Time) -> Result<(), Error> {
        self.settled = false;
        if now.since(self.stepped_at) >= UNHEARD_MAX {
            return self.step(now).map(|_| ());
        }
        self.is_whole()?;
        if self.stream.gathers(now) {
            return Ok(());
        }
        self.stream.sent();
        self.joints.advance(now, &mut self.ways);
        let step = self.ways.advance(now);
        self.stepped(now, step)?;
        self.settled = true;
        Ok(())
    }

    /// The next datagrams over the network are refused, as if its interface were gone.
    #[cfg(test)]
    pub fn fail_send(&mut self) {
        self.ways.far.transport().inner_mut().fail_send();
    }

    /// Callers are told of it, and take back what they have lent: from now on nothing is read or
    /// written.
    pub fn breaks(&mut self, why: &dyn Display) {
        self.broken.get_or_insert_with(|| why.to_string());
    }

    fn is_whole(&self) -> Result<(), Error> {
        let broken =
            |why: &String| Error::io("the network is used no more", io::Error::other(why.clone()));
        self.broken.as_ref().map_or(Ok(()), |why| Err(broken(why)))
    }

    /// Since when something waits to be sent for others to go with it.
    pub fn gathering(&self) -> Option<Time> {
        self.stream.since
    }

    fn stepped(
        &mut self,
        now: Time,
        step: io::Result<Step>,
    ) -> Result<(Option<Time>, Sending), Error> {
        let advanced = self.go_on(now, step);
        let advanced = advanced.map_err(|e| Error::io("using the network", e));
        advanced.inspect_err(|e| self.breaks(e))
    }

    fn go_on(&mut self, now: Time, step: io::Result<Step>) -> io::Result<(Option<Time>, Sending)> {
        let mut step = step?;
        for pass in 0.. {
            let mut begun = self.heed_events(now);
            begun |= self.joints.advance(now, &mut self.ways);
            self.heed_joints();
            if !begun {
                break;
            }
            if pass == PASSES_MAX {
                step.wake = Some(now);
                break;
            }
            // More may wait to be received, which only the first step could tell.
            let more = step.wake.filter(|&at| at <= now);
            step = self.ways.advance(now)?;
            step.wake = more.or(step.wake);
        }
        let mut wake = step.wake;
        if !self.leaving.is_empty() {
            let (soonest, begun) = self.go_on_leaving(now);
            // What was begun the driver has not sent yet.
            let soonest = if begun { Some(now) } else { soonest };
            wake = wake.into_iter().chain(soonest).min();
        }
        self.wake = wake;
        Ok((wake, self.udp().sending()))
    }

    /// Takes what the drivers report; says whether something was begun in answer to it.
    fn heed_events(&mut self, now: Time) -> bool {
        let mut begun = false;
        while let Some((way, event)) = self.ways.event() {
            let (op, how) = match event {
                Event::Complete(op) => (op, Ended::Complete),
                Event::Failed(op) => (op, Ended::Failed),
                Event::Mismatch(op) => (op, Ended::Mismatch),
                Event::Gathered(op) => {
                    begun |= self.gathered(now, op);
                    continue;
                }
                Event::Proven(EVERYBODY) => {
                    self.proving = false;
                    continue;
                }
                Event::Path {
                    group: EVERYBODY,
                    node,
                    reach,
                } => {
                    if reach == Reach::Unicast {
                        self.unreached.insert(node);
                    }
                    continue;
                }
                Event::Path { node, reach, .. } => {
                    if way == Way::Far && reach == Reach::Multicast {
                        let hosts = &self.hosts;
                        self.unreached.retain(|&other| !hosts.share(node, other));
                    }
                    self.statistics.unreached += u64::from(reach != Reach::Multicast);
                    continue;
                }
                Event::Proven(_) | Event::Slow { .. } => continue,
            };
            if how == Ended::Mismatch {
                self.ring(Op::Single(way, op));
                self.mismatch(way, op);
                continue;
            }
            if let Some(group) = self.joints.heed((way, op)) {
                if how == Ended::Failed {
                    self.joints.end(group, how);
                    self.end(now, group);
                }
                continue;
            }
            if way == Way::Far
                && let Some(group) = self.meetings.remove(&op)
            {
                begun |= self.met(now, group, how);
                continue;
            }
            let op = Op::Single(way, op);
            self.ring(op);
            if self.passed(op) {
                continue;
            }
            let meets = |l: &&mut Leaving| matches!((op, &**l), (Op::Single(_, op), Leaving::Meeting(m)) if op == *m);
            let leaving = self.leaving.iter_mut().filter(|((_, w), _)| *w == way);
            if let Some(leaving) = leaving.map(|(_, l)| l).find(meets) {
                *leaving = Leaving::Answering(now);
            } else if self.pending.contains_key(&op) {
                match how {
                    // Whatever has ended its group meanwhile.
                    Ended::Complete => _ = self.ended.insert(op, how),
                    _ => _ = self.ended.entry(op).or_insert(how),
                }
            }
        }
        begun
    }

    /// An operation will not be completed, for another member means something else by it. Its group
    /// goes on until all have been told: what was called before is still to come to its end, here
    /// and at others to whom this process brings it.
    fn mismatch(&mut self, way: Way, op: OpId) {
        let single = Op::Single(way, op);
        let group = match self.joints.mismatch((way, op)) {
            Some(group) => group,
            None => {
                let meeting = self.meetings.get(&op).filter(|_| way == Way::Far);
                let Some(&group) = meeting.or(self.pending.get(&single)) else {
                    return;
                };
                if self.pending.contains_key(&single) {
                    self.ended.insert(single, Ended::Mismatch);
                }
                group
            }
        };
        self.spoilt.push(group);
    }

    /// Takes what has become of composed operations.
    fn heed_joints(&mut self) {
        while let Some(news) = self.joints.news() {
            match news {
                News::Over {
                    joint,
                    how,
                    object,
                    passes,
                } => {
                    let op = Op::Joint(joint);
                    self.ring(op);
                    let Some(&group) = self.pending.get(&op) else {
                        continue;
                    };
                    self.ended.entry(op).or_insert(how);
                    if let Some(bytes) = passes.filter(|_| self.groups.contains_key(&group)) {
                        self.passes(op, group, bytes);
                    }
                    self.back.extend(object.map(|object| (joint, object)));
                }
                News::Gone(joint) => {
                    self.ring(Op::Joint(joint));
                    self.passed(Op::Joint(joint));
                }
            }
        }
    }

    /// From now on its caller sleeps: whoever ends the operation (none: any) for it is to wake it.
    pub fn falls_asleep(&mut self, waker: &Waker, until: Option<Op>) {
        self.asleep.push((waker.clone(), until));
    }

    pub fn is_awake(&mut self, waker: &Waker) {
        self.asleep.retain(|(w, _)| w != waker);
    }

    fn ring(&self, ended: Op) {
        let waits = |until: Option<Op>| until.is_none_or(|op| op == ended);
        let hit = self.asleep.iter().filter(|(_, until)| waits(*until));
        hit.for_each(|(waker, _)| waker.wake());
    }

    /// How the operation has ended, and its object; once.
    pub fn ended(&mut self, op: Op) -> Option<(Ended, Option<O>)> {
        let how = *self.ended.get(&op)?;
        let object = match op {
            Op::Joint(joint) => self.back.remove(&joint),
            Op::Single(way, single) => {
                let part = self.ways.take((way, single));
                if part.is_none() && self.ways.has((way, single)) {
                    return None; // it is read until the last datagram has gone
                }
                part.and_then(Part::own)
            }
        };
        self.ended.remove(&op);
        self.pending.remove(&op);
        Some((how, object))
    }

    /// Whether everybody has what was sent, or passed on.
    pub fn is_flushed(&self) -> bool {
        let waits = |l: &Leaving| !matches!(l, Leaving::Answering(_));
        self.copies.is_empty() && !self.leaving.values().any(waits)
    }

    /// A caller goes: what it leaves behind for when nobody calls.
    pub fn left(&mut self, now: Time) -> Left {
        self.stream.left(now);
        let copies = !self.copies.is_empty() || self.stream.since.is_some();
        match self.wake {
            _ if copies => Left::Copies,
            Some(due) => Left::Due(due),
            // Nothing is planned as long as there is no room for what waits to be sent.
            None if self.udp().sending() != Sending::Idle => Left::Due(now),
            None => Left::Nothing,
        }
    }

    /// The groups in which an operation did not match, since the last call.
    pub fn take_spoilt(&mut self) -> Vec<GroupId> {
        mem::take(&mut self.spoilt)
    }

    /// Whether the group is there and was not given up.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    pub fn statistics(&self) -> Statistics {
        let near = self.ways.near.as_ref();
        Statistics {
            node: self.ways.far.node().counters(),
            near: near.map(|d| d.node().counters()).unwrap_or_default(),
            shm: near.map(|d| d.net().counters()).unwrap_or_default(),
            driver: self.ways.far.counters(),
            udp: self.udp().counters(),
            faults: self.ways.far.net().counters(),
            groups: self.groups.len() as u64,
            unshared: u64::from(self.unshared.is_some()),
            ..self.statistics
        }
    }
}
