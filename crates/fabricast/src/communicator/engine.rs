//! What is behind the lock: the driver, what has ended, what is still to be brought to others.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use fabricast_proto::{Barrier, Command, Event, GroupId, NodeId, OpId, Reach, Refused, Seq, Time};

use super::Group;
use super::stream::Stream;
use crate::driver::{self, Driver, Step};
use crate::error::Error;
use crate::net::Net;
use crate::object::Object;
use crate::transport::Transport;
use crate::transport::fault::FaultCounters;
use crate::transport::udp::{Ready, Sending, Sleeper, Udp, UdpCounters, Waker};

/// Bytes of copies that may wait for others to receive them; beyond, the root waits itself.
const COPIES_MAX: u64 = 4 << 20;
/// IP groups that a context uses.
pub(super) const ADDRESSES: usize = 8;

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
    /// Of the protocol.
    pub node: fabricast_proto::Counters,
    /// Of the driver.
    pub driver: driver::Counters,
    /// Of the sockets.
    pub udp: UdpCounters,
    /// Of injected faults.
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
    /// How often a receiver was found that multicast does not reach, or no more: it is served by unicast.
    pub unreached: u64,
    /// Groups that are not over yet, those among them that this process has left and others have not.
    pub groups: u64,
}

/// What is known of a group.
struct State {
    members: Vec<NodeId>,
    /// Copies on their way.
    copies: u32,
}

/// How far the end of a group has come. Others may lack something until all have come to a barrier
/// in it; then only words of that barrier can be lacking, and who lacks one asks soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaving {
    /// What was sent is still to be received.
    Flushing,
    /// Nothing is; others may not be so far.
    Meeting(OpId),
    /// All were so far at this time.
    Answering(Time),
}

/// After all have met, a group is there for so long, to answer who lost a word ...
const ANSWERING: Duration = Duration::from_millis(50);
/// ... and until nobody owes it an answer, but not beyond this.
const ANSWERING_MAX: Duration = Duration::from_secs(5);

/// See the module.
pub(super) struct Engine<O: Object> {
    driver: Driver<Net, O>,
    rank: NodeId,
    chunk: u32,
    /// Everybody, and the addresses that groups share.
    all: Vec<NodeId>,
    addresses: [SocketAddr; ADDRESSES],
    groups: BTreeMap<GroupId, State>,
    /// Groups that this process is done with.
    leaving: BTreeMap<GroupId, Leaving>,
    /// Operations under way that somebody waits for.
    pending: BTreeMap<OpId, GroupId>,
    ended: BTreeMap<OpId, Ended>,
    /// Copies on their way, which nobody waits for, and their bytes.
    copies: BTreeMap<OpId, (GroupId, u64)>,
    copied: u64,
    gone: BTreeSet<NodeId>,
    /// Callers that sleep: what wakes them, and until which operation ends; none: any.
    asleep: Vec<(Waker, Option<OpId>)>,
    stream: Stream,
    wake: Option<Time>,
    statistics: Statistics,
}

impl<O: Object> Engine<O> {
    pub fn new(
        driver: Driver<Net, O>,
        (rank, size): (NodeId, u32),
        chunk: u32,
        addresses: [SocketAddr; ADDRESSES],
    ) -> Engine<O> {
        Engine {
            driver,
            rank,
            chunk,
            all: (0..size).map(NodeId).collect(),
            addresses,
            groups: BTreeMap::new(),
            leaving: BTreeMap::new(),
            pending: BTreeMap::new(),
            ended: BTreeMap::new(),
            copies: BTreeMap::new(),
            copied: 0,
            gone: BTreeSet::new(),
            asleep: Vec::new(),
            stream: Stream::default(),
            wake: None,
            statistics: Statistics::default(),
        }
    }

    pub fn udp(&self) -> &Udp {
        self.driver.net().inner()
    }

    /// Something that one thread sleeps in until there is something to step for.
    pub fn sleeper(&mut self) -> io::Result<Sleeper> {
        self.driver.transport().inner_mut().sleeper()
    }

    /// What a sleep has seen: the next step reads these sockets alone.
    pub fn heed(&mut self, ready: &Ready) {
        self.driver.transport().inner_mut().heed(ready);
    }

    /// Adds a group, and joins the IP group that it shares with others.
    pub fn add(&mut self, group: &Group) -> Result<(), Error> {
        let mut members = group.members.clone();
        members.sort_unstable();
        members.dedup();
        let known = members.iter().all(|m| self.all.binary_search(m).is_ok());
        if members.len() != group.members.len() || !known || !members.contains(&self.rank) {
            return Err(Error::Usage(
                "a group has different processes of its context, this one among them".into(),
            ));
        }
        if members.len() > 1 {
            let address = self.addresses[self.address(&members)];
            let joined = self.driver.transport().join(group.id, address, true);
            joined.map_err(|e| Error::io(format!("joining {address}"), e))?;
            let command = Command::GroupAdd {
                group: group.id,
                members: members.clone(),
                chunk: self.chunk,
                start: Seq(0),
            };
            let added = self.driver.command(Time::ZERO, command);
            added.map_err(|r| Error::Usage(r.to_string()))?;
        }
        let copies = 0;
        self.groups.insert(group.id, State { members, copies });
        Ok(())
    }

    /// Which IP group serves these processes: one for everybody's, the others for whoever comes.
    fn address(&self, members: &[NodeId]) -> usize {
        if members.len() == self.all.len() {
            return 0;
        }
        // Any function that all members compute alike, and that tells sets apart.
        let mix = |sum: u64, m: &NodeId| (sum ^ u64::from(m.0)).wrapping_mul(0x0100_0000_01b3);
        let mixed = members.iter().fold(0xcbf2_9ce4_8422_2325, mix);
        1 + ((mixed >> 32) % (ADDRESSES as u64 - 1)) as usize
    }

    pub fn leave(&mut self, now: Time, group: GroupId) {
        match self.groups.get(&group) {
            Some(state) if state.members.len() > 1 => {
                self.leaving.insert(group, Leaving::Flushing);
                // Whoever steps next begins with it, and nobody may call again.
                self.wake = Some(now);
            }
            _ => _ = self.groups.remove(&group),
        }
    }

    /// Brings the groups that this process leaves further; says when to look again, and whether a barrier was begun.
    fn go_on_leaving(&mut self, now: Time) -> (Option<Time>, bool) {
        let mut soonest: Option<Time> = None;
        let mut begun = false;
        let mut done = Vec::new();
        for (&group, leaving) in &mut self.leaving {
            match *leaving {
                Leaving::Flushing => {
                    let state = self.groups.get(&group);
                    let (members, copies) = state.map_or((0, 0), |g| (g.members.len(), g.copies));
                    if copies > 0 || self.pending.values().any(|g| *g == group) {
                        continue;
                    }
                    match self.driver.barrier(now, group, release(members)) {
                        Ok(op) => {
                            *leaving = Leaving::Meeting(op);
                            begun = true;
                        }
                        Err(Refused::Busy) => {}
                        Err(_) => done.push(group),
                    }
                }
                Leaving::Meeting(_) => {}
                Leaving::Answering(since) => {
                    let quiet = self.driver.node().is_quiet(now, group);
                    let end = since + if quiet { ANSWERING } else { ANSWERING_MAX };
                    match now >= end {
                        true => done.push(group),
                        false => soonest = Some(soonest.map_or(end, |t| t.min(end))),
                    }
                }
            }
        }
        for group in done {
            self.leaving.remove(&group);
            self.remove(now, group);
        }
        (soonest, begun)
    }

    /// Starts a barrier of all members.
    pub fn barrier(
        &mut self,
        now: Time,
        group: GroupId,
        by: Option<Barrier>,
    ) -> Result<OpId, Refused> {
        let members = self.groups.get(&group).map_or(0, |g| g.members.len());
        let algorithm = by.unwrap_or(release(members));
        let op = self.driver.barrier(now, group, algorithm)?;
        self.statistics.barriers += 1;
        self.pending.insert(op, group);
        Ok(op)
    }

    /// Starts a broadcast; `None`: its caller need not wait.
    pub fn bcast(
        &mut self,
        now: Time,
        group: GroupId,
        root: NodeId,
        object: O,
    ) -> Result<Option<OpId>, (Refused, O)> {
        let len = object.len();
        let sends = root == self.rank;
        let short = !self.driver.node().scheme().is_awaited(len);
        let copy = sends && short && self.copied + len <= COPIES_MAX;
        let op = match sends {
            true if copy => self.driver.bcast(now, group, object)?,
            true => self.driver.lend(now, group, object, true)?,
            false => self.driver.post(now, group, root, object)?,
        };
        let s = &mut self.statistics;
        let (count, bytes) = match sends {
            true => (&mut s.sent, &mut s.sent_bytes),
            false => (&mut s.received, &mut s.received_bytes),
        };
        (*count, *bytes) = (*count + 1, *bytes + len);
        if copy {
            self.stream.add(now, len);
            let lent = self.driver.take(op);
            debug_assert!(lent.is_some() || len == 0, "it was copied");
            self.copies.insert(op, (group, len));
            self.copied += len;
            if let Some(state) = self.groups.get_mut(&group) {
                state.copies += 1;
            }
            return Ok(None);
        }
        self.stream.broken();
        self.pending.insert(op, group);
        Ok(Some(op))
    }

    /// Lets the driver work; says when it wants to again, and what keeps it from sending.
    pub fn step(&mut self, now: Time) -> Result<(Option<Time>, Sending), Error> {
        self.stream.sent();
        let step = self.driver.step(now);
        self.stepped(now, step)
    }

    /// After something was started: the same, but without looking for what has arrived. What belongs to it may be
    /// here already; and of a stream of short broadcasts several are sent at once.
    pub fn started(&mut self, now: Time) -> Result<(), Error> {
        if self.stream.gathers(now) {
            return Ok(());
        }
        self.stream.sent();
        let step = self.driver.advance(now, false);
        self.stepped(now, step).map(|_| ())
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
        let step = step.map_err(|e| Error::io("using the network", e))?;
        while let Some(event) = self.driver.event() {
            let (op, how) = match event {
                Event::Complete(op) => (op, Ended::Complete),
                Event::Failed(op) => (op, Ended::Failed),
                Event::Mismatch(op) => {
                    if let Some(&group) = self.pending.get(&op) {
                        self.ended.insert(op, Ended::Mismatch);
                        self.end(now, group);
                        self.ring(op);
                    }
                    continue;
                }
                Event::Path { reach, .. } => {
                    self.statistics.unreached += u64::from(reach != Reach::Multicast);
                    continue;
                }
                Event::Proven(_) | Event::Slow { .. } => continue,
            };
            if let Some((group, len)) = self.copies.remove(&op) {
                self.copied -= len;
                if let Some(state) = self.groups.get_mut(&group) {
                    state.copies -= 1;
                }
            } else if let Some(leaving) = self
                .leaving
                .values_mut()
                .find(|l| **l == Leaving::Meeting(op))
            {
                *leaving = Leaving::Answering(now);
            } else if self.pending.contains_key(&op) {
                self.ended.entry(op).or_insert(how);
            }
            self.ring(op);
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

    fn remove(&mut self, now: Time, group: GroupId) {
        if self
            .groups
            .remove(&group)
            .is_some_and(|g| g.members.len() > 1)
        {
            let _ = self.driver.command(now, Command::GroupRemove(group));
            self.driver.transport().leave(group);
        }
    }

    /// From now on its caller sleeps: whoever ends the operation (none: any) for it is to wake it.
    pub fn falls_asleep(&mut self, waker: &Waker, until: Option<OpId>) {
        self.asleep.push((waker.clone(), until));
    }

    pub fn is_awake(&mut self, waker: &Waker) {
        self.asleep.retain(|(w, _)| w != waker);
    }

    fn ring(&self, ended: OpId) {
        let waits = |until: Option<OpId>| until.is_none_or(|op| op == ended);
        let hit = self.asleep.iter().filter(|(_, until)| waits(*until));
        hit.for_each(|(waker, _)| waker.wake());
    }

    /// How the operation has ended, and its object; once.
    pub fn ended(&mut self, op: OpId) -> Option<(Ended, Option<O>)> {
        let how = *self.ended.get(&op)?;
        let object = self.driver.take(op);
        if object.is_none() && self.driver.object(op).is_some() {
            return None; // it is read until the last datagram has gone
        }
        self.ended.remove(&op);
        self.pending.remove(&op);
        Some((how, object))
    }

    /// Whether everybody has what was sent.
    pub fn is_flushed(&self) -> bool {
        let waits = |l: &Leaving| !matches!(l, Leaving::Answering(_));
        self.copies.is_empty() && !self.leaving.values().any(waits)
    }

    /// A caller goes: whether something is left to do when nobody calls.
    pub fn left(&mut self, now: Time) -> bool {
        self.stream.left(now);
        self.wake.is_some() || !self.copies.is_empty() || self.stream.since.is_some()
    }

    /// Whether the group is there and was not given up.
    pub fn has(&self, group: GroupId) -> bool {
        self.groups.contains_key(&group)
    }

    /// A process is lost: its groups end, and what was under way in them.
    pub fn give_up(&mut self, now: Time, node: NodeId) {
        if self.gone.insert(node) {
            let groups = self
                .groups
                .iter()
                .filter(|(_, g)| g.members.contains(&node));
            let hit: Vec<GroupId> = groups.map(|(&group, _)| group).collect();
            hit.into_iter().for_each(|group| self.end(now, group));
        }
    }

    /// Ends a group, and what is under way in it.
    pub fn end(&mut self, now: Time, group: GroupId) {
        self.remove(now, group);
        self.leaving.remove(&group);
        let hit = self.pending.iter().filter(|(_, g)| **g == group);
        for (&op, _) in hit {
            self.ended.entry(op).or_insert(Ended::Failed);
        }
        let copied = &mut self.copied;
        self.copies.retain(|_, (g, len)| {
            *copied -= if *g == group { *len } else { 0 };
            *g != group
        });
    }

    pub fn statistics(&self) -> Statistics {
        Statistics {
            node: self.driver.node().counters(),
            driver: self.driver.counters(),
            udp: self.udp().counters(),
            faults: self.driver.net().counters(),
            groups: self.groups.len() as u64,
            ..self.statistics
        }
    }
}

/// The barrier of a group of so many, unless another is asked for: with few, rank 0 hears each itself.
fn release(members: usize) -> Barrier {
    let fanout = match members {
        0..=32 => members as u16,
        _ => 16,
    };
    Barrier::Release { fanout }
}
