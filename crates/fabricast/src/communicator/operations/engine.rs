//! What the lock protects: the drivers, the operations that have ended, and the copies that others
//! still lack.

mod addresses;
mod addressing;
mod barriers;
mod break_off;
mod broadcasts;
mod channels;
mod groups;
mod memberships;
mod records;
mod speaker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Display;
use std::io;
use std::mem;
use std::time::Duration;

use fabricast_proto::group::Strategy;
use fabricast_proto::scheme::Copied;
use fabricast_proto::{Event, GroupId, NodeId, OpId, PathState, Time};
use tracing::info;

use self::addresses::Addresses;
use self::memberships::Memberships;
use self::speaker::Speaker;
use super::coalesce::Coalescer;
use super::ending::Endings;
use super::group::{BreakOff, Channels, EVERYBODY};
use super::left::Left;
use super::operation::{Op, Operation, Stage};
use super::statistics::Statistics;
use crate::collective::{Ended, Executor, News};
use crate::communicator::error::Error;
use crate::communicator::hierarchy::topology::{GroupTopology, Hosts};
use crate::communicator::limits::COPIES_MAX;
use crate::communicator::networks::buffer::BufferView;
use crate::communicator::networks::pieces::Pieces;
use crate::communicator::networks::{Network, Networks};
use crate::communicator::options::BroadcastAlgorithm;
use crate::communicator::wireup::peers::Withdrawal;
use crate::communicator::wireup::{Addressing, Setting};
use crate::driver::{Join, Step};
use crate::object::Divisible;
use crate::transport::{self, Ready, Sleeper, Transport, Watch};
use crate::waker::Waker;

/// Longest time for which a caller that only starts operations does not receive.
const UNHEARD_MAX: Duration = Duration::from_millis(1);
/// Largest number of passes over both networks in one step.
const PASSES_MAX: usize = 4;

/// What the engine knows of a group.
struct State {
    members: Vec<NodeId>,
    topology: GroupTopology,
    /// Operations for which a caller or another process still waits.
    operations: u32,
    /// Channels to other members, and groups of members that broadcasts go to.
    channels: Channels,
    /// Number of operations that this process has called.
    calls: u64,
    /// The last broadcasts that this process has sent: the index of the call, and the bytes.
    sent: VecDeque<(u64, u64)>,
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
    executor: Executor<Network, Pieces<O>>,
    hosts: Hosts,
    rank: NodeId,
    /// Payload of a data packet in each network, in bytes.
    payload_size: [u32; 2],
    /// All processes, sorted.
    all: Vec<NodeId>,
    /// The leaders of all hosts, sorted.
    leaders: Vec<NodeId>,
    /// The multicast addresses that the context's groups share.
    addresses: Addresses,
    /// The addresses that this process is a member of.
    memberships: Memberships,
    /// This process's part in giving groups addresses of their own, if it has one.
    speaker: Option<Speaker>,
    /// What that part begins with.
    addressing: Option<Addressing>,
    /// When groups get addresses of their own, if they do.
    strategy: Option<Strategy>,
    /// Why they do not, although there is a strategy.
    unaddressed: &'static str,
    /// How broadcasts go to a group.
    algorithm: BroadcastAlgorithm,
    groups: BTreeMap<GroupId, State>,
    /// Groups that this process is leaving, for each network in which they exist.
    endings: Endings,
    /// All operations for which a caller or another process still waits.
    operations: BTreeMap<Op, Operation<O>>,
    /// Operations whose copies others still lack, and the bytes of these copies.
    copies: usize,
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
    /// Tells the other processes that this one takes part no more.
    withdrawal: Option<Withdrawal>,
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
            subnet,
            addressing,
            broadcast,
            unshared,
        } = setting;
        let copies_max = match networks.far.node().scheme().copied {
            Copied::Never => 0,
            _ => COPIES_MAX,
        };
        let all: Vec<NodeId> = (0..size).map(NodeId).collect();
        Engine {
            networks,
            executor: Executor::new(copies_max),
            leaders: hosts.leaders(&all),
            hosts,
            rank,
            payload_size,
            all,
            addresses: Addresses::new(addresses),
            speaker: None,
            memberships: Memberships::new(subnet),
            strategy: addressing.as_ref().map(|addressing| addressing.strategy),
            unaddressed: "there are fewer than three hosts",
            addressing,
            algorithm: broadcast,
            groups: BTreeMap::new(),
            endings: Endings::default(),
            operations: BTreeMap::new(),
            copies: 0,
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
            withdrawal: None,
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

    /// When groups get addresses of their own, and the name of the subnet that grants these. If
    /// this process gives groups none, why.
    pub fn strategy(&self) -> Result<(Strategy, &'static str), &'static str> {
        match self.strategy {
            Some(strategy) if self.speaker.is_some() => {
                Ok((strategy, self.memberships.subnet_name()))
            }
            Some(_) => Err(self.unaddressed),
            None if self.algorithm == BroadcastAlgorithm::Multicast => Err("so chosen"),
            None => Err("broadcasts go by messages"),
        }
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
    pub fn woken(&mut self, ready: &Ready) {
        self.networks.woken(ready);
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
        self.is_whole()?;
        self.begin_steps(now);
        if now.since(self.stepped_at) >= UNHEARD_MAX {
            return self.step(now).map(|_| ());
        }
        if self.stream.gathers(now) {
            return Ok(());
        }
        self.stream.sent();
        let step = self.networks.advance(now);
        self.stepped(now, step)?;
        self.settled = true;
        Ok(())
    }

    /// Makes the next datagrams over the network fail, as if its interface were gone.
    #[cfg(test)]
    pub fn fail_send(&mut self) {
        self.networks.far.net_mut().fail_send();
    }

    /// From now on the other processes are told by `withdrawal` if the network fails here.
    pub fn withdraws_by(&mut self, withdrawal: Withdrawal) {
        self.withdrawal = Some(withdrawal);
    }

    /// Marks the network as failed. Callers get the error and take their memory back, so from now
    /// on nothing reads or writes it. The other processes take this one for lost.
    pub fn breaks(&mut self, why: &dyn Display) {
        if self.broken.is_none() {
            self.broken = Some(why.to_string());
            if let Some(withdrawal) = &self.withdrawal {
                withdrawal.withdraw();
            }
            self.networks.cancel(self.stepped_at);
        }
    }

    /// Takes what the networks tell, beside datagrams. A group whose address could not be joined
    /// after all would be served by nobody.
    fn hear_news(&mut self, now: Time) -> io::Result<()> {
        while let Some(news) = self.networks.news() {
            match news {
                transport::News::Joined(id) => self.is_attached(now, id, Ok(Join::Done)),
                transport::News::JoinFailed(id, error) if self.memberships.is_attaching(id) => {
                    self.is_attached(now, id, Err(error));
                }
                transport::News::JoinFailed(_, error) => return Err(error),
                news => info!(%news, "the network tells"),
            }
        }
        Ok(())
    }

    /// An error if the network has failed.
    pub fn is_whole(&self) -> Result<(), Error> {
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
        self.hear_news(now)?;
        for pass in 0.. {
            let mut begun = self.on_events(now);
            begun |= self.begin_steps(now);
            self.on_news();
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
        if !self.endings.is_empty() {
            let (soonest, begun) = self.go_on_leaving(now);
            // The driver has not sent the barrier that was begun.
            let soonest = if begun { Some(now) } else { soonest };
            wake = wake.into_iter().chain(soonest).min();
        }
        let wake = wake.into_iter().chain(self.address(now)).min();
        self.wake = wake;
        Ok((wake, self.networks.is_full()))
    }

    /// Begins all steps of collectives that may begin. Returns whether there were any.
    fn begin_steps(&mut self, now: Time) -> bool {
        if self.executor.is_empty() {
            return false;
        }
        let mut begun = false;
        loop {
            match self.executor.next(now, &mut self.networks) {
                Ok(Some(_)) => begun = true,
                Ok(None) => return begun,
                // The driver has the group no more, or will never take the step.
                Err(stuck) => self.end(now, stuck.group),
            }
        }
    }

    /// Takes what the drivers report. Returns whether something may begin in response.
    fn on_events(&mut self, now: Time) -> bool {
        let mut begun = false;
        while let Some((network, event)) = self.networks.event() {
            let (op, how) = match event {
                Event::Complete(op) => (op, Ended::Complete),
                Event::Failed(op) => (op, Ended::Failed),
                Event::Mismatch(op) => (op, Ended::Mismatch),
                Event::Arrived(_) => {
                    begun |= self.executor.event(network, event).is_some();
                    continue;
                }
                Event::AddressSilent { address, node, .. } => {
                    self.is_silent(address, node);
                    continue;
                }
                Event::AddressProven { address, .. } => {
                    self.proof_ends(now, address);
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
                    group,
                    node,
                    path_state,
                } => {
                    if network == Network::InterNode && path_state == PathState::Unicast {
                        self.path_fails(now, group);
                    }
                    if network == Network::InterNode && path_state == PathState::Multicast {
                        let hosts = &self.hosts;
                        self.unreached.retain(|&other| !hosts.share(node, other));
                    }
                    self.statistics.unreached += u64::from(path_state != PathState::Multicast);
                    continue;
                }
                Event::Proven(_) | Event::Slow { .. } | Event::Outpaced { .. } => continue,
            };
            if how == Ended::Mismatch {
                self.ring(Op::Single(network, op));
                self.mismatch(network, op);
                continue;
            }
            if let Some(id) = self.executor.event(network, event) {
                if how == Ended::Failed {
                    self.fails(now, Op::Collective(id));
                }
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
            let is_last = matches!(op, Op::Single(_, id) if self.endings.met(now, network, id));
            if !is_last {
                self.ends(op, how, None, None);
            }
        }
        begun
    }

    /// Takes note that an operation will not complete, because another member calls a different
    /// one. Its group continues until all members have been told: earlier operations must still
    /// complete, here and at members that receive them from this process.
    fn mismatch(&mut self, network: Network, op: OpId) {
        let collective = self.executor.event(network, Event::Mismatch(op));
        let op = collective.map_or(Op::Single(network, op), Op::Collective);
        let Some(operation) = self.operations.get(&op).filter(|o| o.is_awaited()) else {
            return;
        };
        let (group, call, len) = (operation.group, operation.call, None);
        if collective.is_none() {
            let stage = Stage::Ended {
                how: Ended::Mismatch,
                object: None,
                copied: None,
            };
            self.changes(op, Some(stage));
        }
        self.spoilt.push(BreakOff { group, call, len });
    }

    /// Takes what has become of collectives.
    fn on_news(&mut self) {
        while let Some(news) = self.executor.news() {
            match news {
                News::Back { id, copied } => {
                    let op = Op::Collective(id);
                    self.ring(op);
                    let object = self.executor.buffer(id).and_then(Pieces::whole);
                    self.ends(op, Ended::Complete, object, Some(copied));
                }
                News::Over { id, how } => {
                    let op = Op::Collective(id);
                    self.ring(op);
                    let buffer = self.executor.remove(id);
                    if self.passed(op) {
                        continue;
                    }
                    let complete = buffer.filter(|_| how == Ended::Complete);
                    let object = complete.and_then(|mut buffer| buffer.whole());
                    self.ends(op, how, object, None);
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
        let Stage::Ended { how, copied, .. } = self.operations.get(&op)?.stage else {
            return None;
        };
        let how = match how {
            Ended::Complete => Ended::Complete,
            how => self.reason(op, how)?,
        };
        let object = match op {
            Op::Collective(_) => match &mut self.operations.get_mut(&op)?.stage {
                Stage::Ended { object, .. } => object.take(),
                Stage::UnderWay | Stage::Copied { .. } => None,
            },
            Op::Single(network, single) => {
                let part = self.networks.take((network, single));
                if part.is_none() && self.networks.has((network, single)) {
                    return None; // the driver reads it until the last datagram has gone
                }
                part.and_then(BufferView::own)
            }
        };
        self.changes(op, copied.map(|copied| Stage::Copied { copied }));
        Some((how, object))
    }

    /// Whether all receivers have what this process sent or passed on.
    pub fn is_flushed(&self) -> bool {
        self.copies == 0 && self.endings.is_flushed()
    }

    /// Takes note that a caller returns. Returns the work that it leaves behind.
    pub fn left(&mut self, now: Time) -> Left {
        self.stream.left(now);
        let copies = self.copies > 0 || self.stream.since.is_some();
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
            addresses: self.address_statistics(),
            ..self.statistics
        }
    }
}
