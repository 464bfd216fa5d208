//! What the lock protects: the drivers, the operations that have ended, and the copies that others
//! still lack.

mod barriers;
mod break_off;
mod groups;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::io;
use std::mem;
use std::time::Duration;

use fabricast_proto::{Barrier, Event, GroupId, NodeId, OpId, PathState, Refused, Time};

use tracing::info;

use super::coalesce::Coalescer;
use super::group::{BreakOff, EVERYBODY, Leaving};
use super::left::Left;
use super::operation::{Op, Started};
use super::statistics::Statistics;
use crate::communicator::error::Error;
use crate::communicator::hierarchy::broadcast::{HierarchicalBroadcasts, News, Route};
use crate::communicator::hierarchy::topology::{GroupTopology, Hosts};
use crate::communicator::limits::{ADDRESSES, COPIES_MAX};
use crate::communicator::networks::buffer::BufferView;
use crate::communicator::networks::{Ended, Network, Networks};
use crate::communicator::wireup::Setting;
use crate::driver::Step;
use crate::object::Divisible;
use crate::transport::{self, GroupAddress, Ready, Sleeper, Transport, Watch};
use crate::waker::Waker;

/// Longest time for which a caller that only starts operations does not receive.
const UNHEARD_MAX: Duration = Duration::from_millis(1);
/// Largest number of passes over both networks in one step.
const PASSES_MAX: usize = 4;

/// What the engine knows of a group.
struct State {
    members: Vec<NodeId>,
    topology: GroupTopology,
    /// Copies that others still lack.
    copies: u32,
    /// Number of operations that this process has called.
    calls: u64,
    /// The last broadcasts that this process has sent: the index of the call, and the bytes.
    sent: VecDeque<(u64, u64)>,
}

/// An operation that this process has called.
struct Called {
    group: GroupId,
    /// Index of the operation among those that this process has called in the group.
    call: u64,
    /// Bytes that this process sends or receives; `None` for a barrier.
    len: Option<u64>,
}

/// A copy that others still lack.
struct Lacked {
    group: GroupId,
    call: u64,
    len: u64,
}

/// A group that breaks off, as this process knows it.
struct Breaking {
    at: BreakOff,
    /// This process has concluded it from a failed operation. No peer has said it.
    guessed: bool,
    /// What this process has still to call, and what it called before and is not over: operations
    /// that callers wait for, and copies.
    left: Option<(u64, usize, usize)>,
    /// When `left` has last changed.
    moved: Time,
    /// This process knows the root's length, or waits for it no longer.
    told: bool,
    /// When it waits no longer.
    told_by: Time,
    /// Since when all operations that this process called before are over.
    over: Option<Time>,
}

/// All that is behind a context's lock.
pub(crate) struct Engine<O: Divisible> {
    networks: Networks<O>,
    hierarchical: HierarchicalBroadcasts<O>,
    hosts: Hosts,
    rank: NodeId,
    /// Payload of a data packet in each network, in bytes.
    payload_size: [u32; 2],
    /// All processes, sorted.
    all: Vec<NodeId>,
    /// The IP multicast groups that the context's groups share.
    addresses: [GroupAddress; ADDRESSES],
    groups: BTreeMap<GroupId, State>,
    /// Groups that this process is leaving, for each network in which they exist.
    leaving: BTreeMap<(GroupId, Network), Leaving>,
    /// Operations under way that a caller waits for.
    pending: BTreeMap<Op, Called>,
    ended: BTreeMap<Op, Ended>,
    /// Objects of composed broadcasts that have ended.
    back: BTreeMap<u32, O>,
    /// Barriers in which this process, as leader, holds its local ranks until the leaders have met:
    /// their group, the algorithm of the leaders' barrier, and the index of the call.
    held: BTreeMap<OpId, (GroupId, Barrier, u64)>,
    /// The leaders' barriers that belong to `held`: their group, and the index of the call.
    meetings: BTreeMap<OpId, (GroupId, u64)>,
    /// Copies that others still lack and no caller waits for.
    copies: BTreeMap<Op, Lacked>,
    copied: u64,
    gone: BTreeSet<NodeId>,
    /// Groups in which an operation did not match, and of which all processes must still be told.
    spoilt: Vec<BreakOff>,
    /// Groups that break off, and how far they have come.
    breaking: BTreeMap<GroupId, Breaking>,
    /// Groups that this process does not have, and where they break off.
    foretold: BTreeMap<GroupId, BreakOff>,
    /// Callers that sleep: their waker, and the operation whose end wakes them (`None`: any).
    asleep: Vec<(Waker, Option<Op>)>,
    stream: Coalescer,
    wake: Option<Time>,
    /// When the engine last received.
    stepped_at: Time,
    /// The drivers have got the last operation that was started, and have nothing more to do for
    /// it.
    settled: bool,
    unshared: Option<String>,
    /// This process probes whether multicast reaches all hosts.
    proving: bool,
    /// Leaders of hosts that multicast does not reach: first those that this process has found,
    /// then those on which all processes have agreed.
    unreached: BTreeSet<NodeId>,
    /// Why the network is no longer used.
    broken: Option<String>,
    statistics: Statistics,
}

impl<O: Divisible> Engine<O> {
    pub fn new(setting: Setting<O>) -> Engine<O> {
        let Setting {
            networks,
            hosts,
            rank,
            size,
            payload_size,
            addresses,
            unshared,
        } = setting;
        Engine {
            networks,
            hierarchical: HierarchicalBroadcasts::new(),
            hosts,
            rank,
            payload_size,
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
            breaking: BTreeMap::new(),
            foretold: BTreeMap::new(),
            asleep: Vec::new(),
            stream: Coalescer::default(),
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

    /// Why this process shares no memory with others of its host, if there are any.
    pub fn unshared(&self) -> Option<&str> {
        self.unshared.as_deref()
    }

    /// Name of the port of the network between hosts.
    pub fn port(&self) -> &str {
        self.networks.far.net().port()
    }

    /// Whether other processes share this host's memory.
    pub fn has_local_ranks(&self) -> bool {
        self.networks.near.is_some()
    }

    /// From now on, an arrival over the network or through this host's memory ends the sleep of
    /// this thread.
    pub fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Vec<Box<dyn Watch>>> {
        self.networks.attach(sleeper)
    }

    /// Takes note of what a sleep has seen: the next step reads only what is ready.
    pub fn heed(&mut self, ready: &Ready) {
        self.networks.heed(ready);
    }

    /// Starts a broadcast. At the root a short object is copied, so that its caller need not wait.
    /// While the window has no slots for the copy, a caller that `waits` is refused
    /// ([`Refused::Busy`]), and the object of any other caller is read where it is.
    pub fn bcast(
        &mut self,
        now: Time,
        (group, root): (GroupId, NodeId),
        object: O,
        waits: bool,
    ) -> Result<Started<O>, (Refused, O)> {
        let Some(state) = self.groups.get(&group) else {
            return Err((Refused::NoGroup, object));
        };
        let len = object.len();
        let sends = root == self.rank;
        let far = self.networks.far.node();
        let payload_size = self.payload_size[Network::InterNode as usize];
        let copied = far.scheme().copies(len, payload_size);
        let copy = sends && copied && self.copied + len <= COPIES_MAX;
        let has_slots = !state.topology.is_far() || far.has_slots(group, len);
        if copy && !has_slots && waits {
            return Err((Refused::Busy, object));
        }
        let copy = copy && has_slots;
        let (op, over) = if state.topology.mixed {
            if !self.hierarchical.has_room(group) {
                return Err((Refused::Busy, object));
            }
            let route = Route::new(&self.hosts, &state.topology, root, self.rank);
            let (broadcast, over) = self.hierarchical.add(group, route, object, copy);
            (Op::HierarchicalBroadcast(broadcast), over)
        } else {
            let network = if state.topology.is_near() {
                Network::IntraNode
            } else {
                Network::InterNode
            };
            let part = BufferView::Own(object);
            let started = match sends {
                true if copy => self.networks.bcast(network, now, group, part),
                true => self.networks.lend(network, now, group, part),
                false => self.networks.post((network, root), now, group, part),
            };
            match started {
                Ok(op) => {
                    let back = copy.then(|| self.networks.take((network, op))).flatten();
                    (Op::Single(network, op), back.and_then(BufferView::own))
                }
                Err((refused, BufferView::Own(object))) => return Err((refused, object)),
                Err(_) => unreachable!("it is what was given"),
            }
        };
        let s = &mut self.statistics;
        let (count, bytes) = match sends {
            true => (&mut s.sent, &mut s.sent_bytes),
            false => (&mut s.received, &mut s.received_bytes),
        };
        (*count, *bytes) = (*count + 1, *bytes + len);
        let call = self.counts(group, sends.then_some(len));
        if let Some(object) = over {
            self.stream.add(now, len);
            self.passes(op, Lacked { group, call, len });
            return Ok(Started::Over(object));
        }
        self.stream.broken();
        let len = Some(len);
        self.pending.insert(op, Called { group, call, len });
        Ok(Started::UnderWay(op))
    }

    /// Records a copy that others still lack.
    fn passes(&mut self, op: Op, copy: Lacked) {
        self.copied += copy.len;
        if let Some(state) = self.groups.get_mut(&copy.group) {
            state.copies += 1;
        }
        self.copies.insert(op, copy);
    }

    /// Takes note that an operation has ended. Returns false if it was no copy.
    fn passed(&mut self, op: Op) -> bool {
        let Some(copy) = self.copies.remove(&op) else {
            return false;
        };
        self.copied -= copy.len;
        if let Some(state) = self.groups.get_mut(&copy.group) {
            state.copies -= 1;
        }
        true
    }

    /// Receives and sends. Returns when to step again, and whether the network is full: then room
    /// to send is a reason to step, too.
    pub fn step(&mut self, now: Time) -> Result<(Option<Time>, bool), Error> {
        self.is_whole()?;
        (self.stepped_at, self.settled) = (now, false);
        self.stream.sent();
        let step = self.networks.step(now);
        self.stepped(now, step)
    }

    /// Like [`Engine::step`], for a thread that sleeps if there is nothing to do. It does not step
    /// if an operation has just been started and nothing waits to be received.
    pub fn settle(&mut self, now: Time) -> Result<(Option<Time>, bool), Error> {
        match mem::take(&mut self.settled) && self.networks.is_drained() {
            true => Ok((self.wake, self.networks.is_full())),
            false => self.step(now),
        }
    }

    /// Sends what a caller has just started, without receiving: what belongs to it may be here
    /// already. In a stream of short broadcasts, several are sent at once. It receives every
    /// [`UNHEARD_MAX`], so that a caller that only starts operations still sees NACKs and probes.
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
        self.hierarchical.advance(now, &mut self.networks);
        let step = self.networks.advance(now);
        self.stepped(now, step)?;
        self.settled = true;
        Ok(())
    }

    /// Makes the next datagrams over the network fail, as if its interface were gone.
    #[cfg(test)]
    pub fn fail_send(&mut self) {
        self.networks.far.transport().fail_send();
    }

    /// Marks the network as failed. Callers get the error and take their memory back, so from now
    /// on nothing reads or writes it.
    pub fn breaks(&mut self, why: &dyn Display) {
        if self.broken.is_none() {
            self.broken = Some(why.to_string());
            self.networks.cancel(self.stepped_at);
        }
    }

    /// Takes what the networks tell, beside datagrams. A group whose address could not be joined
    /// after all would be served by nobody.
    fn hear_news(&mut self) -> io::Result<()> {
        while let Some(news) = self.networks.news() {
            match news {
                transport::News::JoinFailed(_, error) => return Err(error),
                news => info!(%news, "the network tells"),
            }
        }
        Ok(())
    }

    fn is_whole(&self) -> Result<(), Error> {
        let broken = self.broken.clone();
        broken.map_or(Ok(()), |why| Err(Error::Broken(why)))
    }

    /// Since when broadcasts wait to be coalesced.
    pub fn gathering(&self) -> Option<Time> {
        self.stream.since
    }

    fn stepped(
        &mut self,
        now: Time,
        step: io::Result<Step>,
    ) -> Result<(Option<Time>, bool), Error> {
        let advanced = self.go_on(now, step);
        let advanced = advanced.map_err(|e| Error::io("using the network", e));
        advanced.inspect_err(|e| self.breaks(e))
    }

    fn go_on(&mut self, now: Time, step: io::Result<Step>) -> io::Result<(Option<Time>, bool)> {
        let mut step = step?;
        self.hear_news()?;
        for pass in 0.. {
            let mut begun = self.on_events(now);
            begun |= self.hierarchical.advance(now, &mut self.networks);
            self.on_hierarchical();
            if !begun {
                break;
            }
            if pass == PASSES_MAX {
                step.wake = Some(now);
                break;
            }
            // Only the first step can tell whether more waits to be received.
            let more = step.wake.filter(|&at| at <= now);
            step = self.networks.advance(now)?;
            step.wake = more.or(step.wake);
        }
        let mut wake = step.wake;
        if !self.leaving.is_empty() {
            let (soonest, begun) = self.go_on_leaving(now);
            // The driver has not sent the barrier that was begun.
            let soonest = if begun { Some(now) } else { soonest };
            wake = wake.into_iter().chain(soonest).min();
        }
        self.wake = wake;
        Ok((wake, self.networks.is_full()))
    }

    /// Takes what the drivers report. Returns whether it began something in response.
    fn on_events(&mut self, now: Time) -> bool {
        let mut begun = false;
        while let Some((network, event)) = self.networks.event() {
            let (op, how) = match event {
                Event::Complete(op) => (op, Ended::Complete),
                Event::Failed(op) => (op, Ended::Failed),
                Event::Mismatch(op) => (op, Ended::Mismatch),
                Event::Arrived(op) => {
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
                    path_state,
                } => {
                    if path_state == PathState::Unicast {
                        self.unreached.insert(node);
                    }
                    continue;
                }
                Event::Path {
                    node, path_state, ..
                } => {
                    if network == Network::InterNode && path_state == PathState::Multicast {
                        let hosts = &self.hosts;
                        self.unreached.retain(|&other| !hosts.share(node, other));
                    }
                    self.statistics.unreached += u64::from(path_state != PathState::Multicast);
                    continue;
                }
                Event::Proven(_) | Event::Slow { .. } => continue,
            };
            if how == Ended::Mismatch {
                self.ring(Op::Single(network, op));
                self.mismatch(network, op);
                continue;
            }
            if let Some(broadcast) = self.hierarchical.heed((network, op), how) {
                if how == Ended::Failed {
                    self.fails(now, Op::HierarchicalBroadcast(broadcast));
                }
                continue;
            }
            if network == Network::InterNode
                && let Some((group, call)) = self.meetings.remove(&op)
            {
                begun |= self.met(now, group, call, how);
                continue;
            }
            let op = Op::Single(network, op);
            self.ring(op);
            if how == Ended::Failed {
                self.fails(now, op);
            }
            if self.passed(op) {
                continue;
            }
            let meets = |l: &&mut Leaving| match (op, &**l) {
                (Op::Single(_, op), Leaving::Meeting(meeting)) => op == *meeting,
                _ => false,
            };
            let leaving = self.leaving.iter_mut().filter(|((_, w), _)| *w == network);
            if let Some(leaving) = leaving.map(|(_, l)| l).find(meets) {
                *leaving = Leaving::Answering(now);
            } else if self.pending.contains_key(&op) {
                match how {
                    // A complete operation stays complete, even if its group has ended meanwhile.
                    Ended::Complete => _ = self.ended.insert(op, how),
                    _ => _ = self.ended.entry(op).or_insert(how),
                }
            }
        }
        begun
    }

    /// Takes note that an operation will not complete, because another member calls a different
    /// one. Its group continues until all members have been told: earlier operations must still
    /// complete, here and at members that receive them from this process.
    fn mismatch(&mut self, network: Network, op: OpId) {
        let single = Op::Single(network, op);
        let (group, call) = if let Some(broadcast) = self.hierarchical.mismatch((network, op)) {
            match self.pending.get(&Op::HierarchicalBroadcast(broadcast)) {
                Some(called) => (called.group, called.call),
                None => return,
            }
        } else if let Some(called) = self.pending.get(&single) {
            self.ended.insert(single, Ended::Mismatch);
            (called.group, called.call)
        } else if let Some(&meeting) = self.meetings.get(&op)
            && network == Network::InterNode
        {
            meeting
        } else {
            return;
        };
        let len = None;
        self.spoilt.push(BreakOff { group, call, len });
    }

    /// Takes what has become of composed broadcasts.
    fn on_hierarchical(&mut self) {
        while let Some(news) = self.hierarchical.news() {
            match news {
                News::Over {
                    broadcast,
                    how,
                    object,
                    passes,
                } => {
                    let op = Op::HierarchicalBroadcast(broadcast);
                    self.ring(op);
                    let Some(&Called { group, call, .. }) = self.pending.get(&op) else {
                        continue;
                    };
                    self.ended.entry(op).or_insert(how);
                    if let Some(len) = passes.filter(|_| self.groups.contains_key(&group)) {
                        self.passes(op, Lacked { group, call, len });
                    }
                    self.back.extend(object.map(|object| (broadcast, object)));
                }
                News::Gone(broadcast) => {
                    self.ring(Op::HierarchicalBroadcast(broadcast));
                    self.passed(Op::HierarchicalBroadcast(broadcast));
                }
            }
        }
    }

    /// Records that a caller sleeps: the thread that ends the operation `until` (`None`: any) wakes
    /// it.
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

    /// How the operation has ended, and its object. Each end is returned once.
    pub fn ended(&mut self, op: Op) -> Option<(Ended, Option<O>)> {
        let how = match *self.ended.get(&op)? {
            Ended::Complete => Ended::Complete,
            how => self.reason(op, how)?,
        };
        let object = match op {
            Op::HierarchicalBroadcast(broadcast) => self.back.remove(&broadcast),
            Op::Single(network, single) => {
                let part = self.networks.take((network, single));
                if part.is_none() && self.networks.has((network, single)) {
                    return None; // the driver reads it until the last datagram has gone
                }
                part.and_then(BufferView::own)
            }
        };
        self.ended.remove(&op);
        self.pending.remove(&op);
        Some((how, object))
    }

    /// Whether all receivers have what this process sent or passed on.
    pub fn is_flushed(&self) -> bool {
        let waits = |l: &Leaving| !matches!(l, Leaving::Answering(_));
        self.copies.is_empty() && !self.leaving.values().any(waits)
    }

    /// Takes note that a caller returns. Returns the work that it leaves behind.
    pub fn left(&mut self, now: Time) -> Left {
        self.stream.left(now);
        let copies = !self.copies.is_empty() || self.stream.since.is_some();
        match self.wake {
            _ if copies => Left::Copies,
            Some(due) => Left::Due(due),
            // The drivers plan nothing while there is no room for what waits to be sent.
            None if self.networks.is_full() => Left::Due(now),
            None => Left::Nothing,
        }
    }

    /// Where groups break off, as far as this process has found out since the last call.
    pub fn take_spoilt(&mut self) -> Vec<BreakOff> {
        mem::take(&mut self.spoilt)
    }

    /// Whether the group exists and has not ended.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    pub fn statistics(&self) -> Statistics {
        let near = self.networks.near.as_ref();
        Statistics {
            node: self.networks.far.node().counters(),
            near: near.map(|d| d.node().counters()).unwrap_or_default(),
            shm: near.map(|d| d.net().counters()).unwrap_or_default(),
            driver: self.networks.far.counters(),
            net: self.networks.far.net().counters(),
            faults: self.networks.far.net().fault_counters(),
            groups: self.groups.len() as u64,
            unshared: u64::from(self.unshared.is_some()),
            ..self.statistics
        }
    }
}
