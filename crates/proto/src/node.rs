//! The node: one process's end of the protocol, as a state machine without I/O.
//!
//! The driver calls [`Node::command`], [`Node::packet`], [`Node::placed`] and [`Node::sent`], and
//! after each of them drains [`Node::poll`] until it says [`Output::Wait`].

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use crate::barrier::{Barrier, Ended, Reached, To, Words};
use crate::border::{
    Command, Config, Counters, Dest, Event, MemberStatus, Outcome, Output, Placement, Reach,
    Refused,
};
use crate::datagram::{self, Start};
use crate::hierarchy::Hierarchy;
use crate::id::{Extent, GroupId, NodeId, OpId, Token};
use crate::inbound::{Inbound, Place, Ride, Shared};
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::nonce::Nonces;
use crate::prove::Prover;
use crate::root::{Charge, Root};
use crate::scheme::{Scheme, Told};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{self, Frame, Header, Origin, Probe, Query, Reply, flag};

/// Answers to probes that may wait to be sent; more are dropped, and the prober asks again.
const ACKS_MAX: usize = 64;
/// Answers that all members together give to one probe. In a larger group each member gives one.
const ANSWERED: usize = 32;
/// A member gives at most this many answers to one probe.
const ANSWERS_MAX: usize = 8;
/// Who asks again after such a pause is not in the midst of one proof.
const PAUSE: Duration = Duration::from_secs(10);
/// All members together give one prober an answer each time this has passed, in the long run: so
/// whoever asks in its name turns little on it. In a larger group than so many members each gives
/// as many answers as in one of this size, because a proof asks each of them.
const ANSWER_EVERY: Duration = Duration::from_micros(625);
const ANSWER_EVERY_MEMBERS: u32 = 8;
/// A member gives one prober so many answers at once.
const ANSWERS_AT_ONCE: u32 = 64;

/// One process's end of the protocol.
pub struct Node {
    config: Config,
    nonces: Nonces,
    index: BTreeMap<GroupId, usize>,
    groups: Vec<Option<Group>>,
    /// Peers that are gone: what still comes from them is foreign.
    gone: BTreeSet<NodeId>,
    ops: BTreeMap<OpId, (usize, NodeId)>,
    /// Broadcasts of groups that are removed, and transmissions of each that are not finished.
    leaving: BTreeMap<OpId, u32>,
    op: u32,
    held_token: u64,
    out: VecDeque<Output>,
    acks: VecDeque<(NodeId, Probe)>,
    /// Queries that wait for their replies, at most [`ACKS_MAX`].
    queries: VecDeque<(NodeId, Query)>,
    /// Groups that may have something to do now, and when others will have.
    ready: VecDeque<usize>,
    /// An entry that is not its group's `timer` has been overtaken by an earlier one, or is not
    /// needed any more.
    timers: BinaryHeap<Reverse<(Time, usize)>>,
    counters: Counters,
}

/// A group that this node is a member of.
struct Group {
    id: GroupId,
    /// Sorted.
    members: Vec<NodeId>,
    chunk: u32,
    start: Seq,
    reach: BTreeMap<NodeId, Reach>,
    /// Members that took more than one probe to answer, and how many.
    probes: BTreeMap<NodeId, u32>,
    /// The members whose probes were heard here.
    heard: BTreeMap<NodeId, Heard>,
    /// Members that were there once: what still comes from them is foreign.
    gone: BTreeSet<NodeId>,
    root: Option<Root>,
    inbound: Vec<Inbound>,
    prover: Option<Prover>,
    /// Its barriers, once there has been one.
    words: Option<Words>,
    queued: bool,
    /// The earliest timer that is set for it.
    timer: Option<Time>,
}

/// What was heard of a member that probes.
#[derive(Clone, Copy, Default, Debug)]
struct Heard {
    /// When its last probe came.
    at: Time,
    /// Its probes since the last pause.
    probes: u32,
    /// When the answers that were given to it will have been paid for.
    paid: Time,
}

impl Group {
    /// How often a probe is answered: who goes on asking has perhaps not heard this node. In a
    /// large group it may wait for any of many, who would all answer.
    fn answers(&mut self, now: Time, from: NodeId, probe: &Probe) -> usize {
        if self.members.binary_search(&from).is_err() {
            return 0;
        }
        let heard = self.heard.entry(from).or_default();
        let again = now.since(heard.at) < PAUSE;
        heard.probes = if again {
            heard.probes.saturating_add(1)
        } else {
            1
        };
        heard.at = now;
        let answering = match probe.flags & flag::MULTICAST != 0 {
            true => self.members.len(),
            false => 1,
        };
        let most = (ANSWERED / answering).clamp(1, ANSWERS_MAX);
        let wanted = heard.probes.min(most as u32);
        let each = ANSWER_EVERY * (self.members.len() as u32).min(ANSWER_EVERY_MEMBERS);
        heard.paid = heard.paid.max(now);
        let owed = heard.paid.since(now).as_nanos() / each.as_nanos();
        let copies = wanted.min(ANSWERS_AT_ONCE.saturating_sub(owed as u32));
        heard.paid = heard.paid + each * copies;
        copies as usize
    }

    /// This node's stream to the group.
    fn root(&mut self, config: &Config) -> &mut Root {
        self.root.get_or_insert_with(|| {
            let others = self.members.iter().filter(|&&m| m != config.node);
            let receivers: Vec<NodeId> = others.copied().collect();
            let hierarchy = Hierarchy::new(config.scheme.told, receivers.len() as u32);
            let charges = (0..).zip(&receivers).map(|(turn, &node)| Charge {
                node,
                reach: self.reach.get(&node).copied().unwrap_or(Reach::Multicast),
                delegated: hierarchy
                    .collector(turn)
                    .is_some_and(|c| !self.gone.contains(&receivers[c as usize])),
                coroot: hierarchy.collector(turn).is_none() && hierarchy.is_coroot(turn),
            });
            let charges: Vec<_> = charges.collect();
            let stream = (self.id, None);
            let mut root = Root::new(config, stream, &charges, self.chunk, self.start);
            for (&node, &probes) in &self.probes {
                root.proven(node, probes);
            }
            root
        })
    }

    /// The stream of another member that has never gone.
    fn inbound(&mut self, config: &Config, root: NodeId) -> Option<&mut Inbound> {
        if let Some(i) = self.inbound.iter().position(|s| s.root() == root) {
            return self.inbound.get_mut(i);
        }
        if root == config.node || self.gone.contains(&root) {
            return None;
        }
        let at = self.members.binary_search(&root).ok()?;
        let me = self.members.binary_search(&config.node).ok()?;
        let turn = (me - usize::from(me > at)) as u32;
        let receivers = self.members.len() as u32 - 1;
        let hierarchy = Hierarchy::new(config.scheme.told, receivers);
        let node = |turn: u32| self.members[turn as usize + usize::from(turn as usize >= at)];
        let collector = hierarchy.collector(turn).map(node);
        let reporters = hierarchy.reporters(Some(turn)).map(|t| Charge {
            node: node(t),
            reach: self.reach_of(node(t)),
            delegated: false,
            coroot: hierarchy.is_coroot(t),
        });
        let place = Place {
            group: self.id,
            root,
            turn,
            receivers,
            collector: collector.filter(|c| !self.gone.contains(c)).unwrap_or(root),
            reporters: reporters.filter(|r| !self.gone.contains(&r.node)).collect(),
        };
        let stream = Inbound::new(config, place, self.chunk, self.start);
        self.inbound.push(stream);
        self.divide();
        self.inbound.last_mut()
    }

    /// The stream of `root`, if `from` may speak for it: the root itself, or the collector that
    /// this node reports to (spec 2.12).
    fn spoken_for(&mut self, config: &Config, root: NodeId, from: NodeId) -> Option<&mut Inbound> {
        let anybody = mutant::active(Mutant::AnybodySpeaks);
        if from != root && config.scheme.told == Told::Root && !anybody {
            return None;
        }
        let stream = self.inbound(config, root)?;
        (anybody || from == root || from == stream.collector()).then_some(stream)
    }

    /// The streams that this node receives share its buffers.
    fn divide(&mut self) {
        let streams = self.inbound.len() as u32;
        self.inbound.iter_mut().for_each(|s| s.divide(streams));
    }

    /// This node's end of the barriers.
    fn words(&mut self, config: &Config) -> Option<&mut Words> {
        if self.words.is_none() {
            let rank = |node| self.members.binary_search(&node).ok().map(|at| at as u32);
            let size = self.members.len() as u32;
            let (me, ended) = (rank(config.node)?, !self.gone.is_empty());
            let mut words = Words::new(self.id, (me, size), self.start, ended);
            let aside = self.reach.iter().filter(|r| *r.1 == Reach::Unicast);
            for rank in aside.filter_map(|r| rank(*r.0)) {
                words.set_aside(rank, true);
            }
            self.words = Some(words);
        }
        self.words.as_mut()
    }

    /// How a member is reached, as far as is known.
    fn reach_of(&self, node: NodeId) -> Reach {
        self.reach.get(&node).copied().unwrap_or(Reach::Multicast)
    }

    /// How a member is reached is known now. Streams and barriers that begin later take it from
    /// here.
    fn set_reach(&mut self, node: NodeId, reach: Reach, out: &mut VecDeque<Output>) {
        self.reach.insert(node, reach);
        if let Some(root) = &mut self.root {
            root.set_reach(node, reach, out);
        }
        if let (Some(words), Ok(rank)) = (&mut self.words, self.members.binary_search(&node)) {
            words.set_aside(rank as u32, reach == Reach::Unicast);
        }
    }

    /// Whether a node is a member and has never gone.
    fn expects(&self, node: NodeId) -> bool {
        // The stream of one that goes is removed.
        self.inbound.iter().any(|s| s.root() == node)
            || (self.members.binary_search(&node).is_ok() && !self.gone.contains(&node))
    }

    /// A question that is due because somebody has contradicted what this node expects.
    fn query(&mut self, now: Time, nonces: &mut Nonces) -> Option<(NodeId, Query)> {
        let mut streams = self.inbound.iter_mut();
        if let Some(asked) = streams.find_map(|s| Some((s.root(), s.query(now, nonces)?))) {
            return Some(asked);
        }
        let (rank, nonce) = self.words.as_mut()?.query(now, nonces)?;
        let query = Query {
            group: self.id,
            seq: self.start,
            nonce,
        };
        Some((self.members[rank as usize], query))
    }

    fn wake(&self, now: Time, config: &Config) -> Option<Time> {
        let root = self.root.as_ref().and_then(|r| r.wake(now, &config.scheme));
        let prover = self.prover.as_ref().map(Prover::wake);
        let inbound = self.inbound.iter();
        let inbound = inbound.filter_map(|s| s.wake(now, &config.scheme));
        let words = self.words.as_ref().and_then(Words::wake);
        inbound.chain(root).chain(prover).chain(words).min()
    }
}

impl Node {
    /// A node that is in no group yet. Equal seeds and equal calls give equal answers. The seed
    /// must be secret and as long as it looks: who can guess it can answer this node's queries in
    /// another's name (spec 2.13).
    /// The scheme's values are brought within their bounds ([`Scheme::bounded`]).
    pub fn new(mut config: Config, seed: u64) -> Node {
        config.scheme = config.scheme.bounded();
        Node {
            config,
            nonces: Nonces::new(seed),
            index: BTreeMap::new(),
            groups: Vec::new(),
            gone: BTreeSet::new(),
            ops: BTreeMap::new(),
            leaving: BTreeMap::new(),
            op: 0,
            held_token: 0,
            out: VecDeque::new(),
            acks: VecDeque::new(),
            queries: VecDeque::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            counters: Counters::default(),
        }
    }

    /// Does what the caller wants, or refuses and changes nothing. Operations are numbered; other
    /// commands return `None`.
    pub fn command(&mut self, now: Time, command: Command) -> Result<Option<OpId>, Refused> {
        match command {
            Command::GroupAdd {
                group,
                members,
                chunk,
                start,
            } => self.group_add(group, members, chunk, start).map(|()| None),
            Command::GroupRemove(group) => self.group_remove(group).map(|()| None),
            Command::PeerRemove(node) => {
                self.peer_remove(now, node);
                Ok(None)
            }
            Command::PeerAdd(node) => {
                self.gone.remove(&node);
                Ok(None)
            }
            Command::Prove {
                group,
                multicast,
                unicast,
            } => self.prove(now, group, [multicast, unicast]).map(|()| None),
            Command::Unreached { group, members } => {
                self.unreached_are(group, &members).map(|()| None)
            }
            Command::Bcast {
                group,
                len,
                awaited,
            } => self.bcast(now, group, (len, awaited)).map(Some),
            Command::Post { group, root, len } => self.post(now, group, root, len).map(Some),
            Command::Barrier {
                group,
                algorithm,
                held,
            } => self.barrier(group, algorithm, held).map(Some),
            Command::Proceed(group) => self.proceed(group).map(|()| None),
        }
    }

    fn group_add(
        &mut self,
        group: GroupId,
        mut members: Vec<NodeId>,
        chunk: u32,
        start: Seq,
    ) -> Result<(), Refused> {
        if !members.is_sorted_by(|a, b| a < b) {
            members.sort_unstable();
            members.dedup();
        }
        if self.index.contains_key(&group) {
            return Err(Refused::GroupExists);
        }
        if !(limits::CHUNK_MIN..=limits::CHUNK_MAX).contains(&chunk) {
            return Err(Refused::Chunk);
        }
        if members.binary_search(&self.config.node).is_err() {
            return Err(Refused::NotMember);
        }
        if members.len() > limits::MEMBERS_MAX || self.index.len() >= limits::GROUPS_MAX {
            return Err(Refused::Busy);
        }
        let free = self.groups.iter().position(Option::is_none);
        let at = free.unwrap_or(self.groups.len());
        if at == self.groups.len() {
            self.groups.push(None);
        }
        let gone = self.gone.iter().copied();
        let gone: BTreeSet<_> = gone.filter(|m| members.binary_search(m).is_ok()).collect();
        self.groups[at] = Some(Group {
            id: group,
            members,
            chunk,
            start,
            reach: gone.iter().map(|&m| (m, Reach::Nothing)).collect(),
            probes: BTreeMap::new(),
            heard: BTreeMap::new(),
            gone,
            root: None,
            inbound: Vec::new(),
            prover: None,
            words: None,
            queued: false,
            timer: None,
        });
        self.index.insert(group, at);
        self.timers
            .reserve(timers_max(self.groups.len()) + 1 - self.timers.len());
        Ok(())
    }

    fn group_remove(&mut self, group: GroupId) -> Result<(), Refused> {
        let at = self.index.remove(&group).ok_or(Refused::NoGroup)?;
        self.ready.retain(|&g| g != at);
        if let Some(mut group) = self.groups[at].take() {
            if let Some(root) = &group.root {
                self.leaving.extend(root.unfinished());
            }
            for stream in &mut group.inbound {
                self.leaving.extend(stream.unfinished());
                stream.forget_held(&mut self.out);
            }
        }
        let ops = self.ops.iter().filter(|(_, (g, _))| *g == at);
        for (&op, _) in ops.filter(|(op, _)| !self.leaving.contains_key(op)) {
            let release = Output::Release(op);
            if !self.out.contains(&release) {
                self.out.push_back(release);
            }
        }
        self.ops.retain(|_, (g, _)| *g != at);
        Ok(())
    }

    fn peer_remove(&mut self, now: Time, node: NodeId) {
        self.gone.insert(node);
        // What has not been told of it yet is of no interest any more.
        self.out.retain(|o| match o {
            Output::Event(Event::Path { node: n, .. } | Event::Slow { node: n, .. }) => *n != node,
            _ => true,
        });
        self.queries.retain(|q| q.0 != node);
        for at in 0..self.groups.len() {
            let Some(group) = self.groups[at].as_mut() else {
                continue;
            };
            if group.members.binary_search(&node).is_err() {
                continue;
            }
            group.reach.insert(node, Reach::Nothing);
            group.gone.insert(node);
            if let Some(root) = group.root.as_mut() {
                root.remove(node, &mut self.out);
            }
            for stream in &mut group.inbound {
                stream.remove(now, node, &mut self.out);
            }
            if let Some(prover) = group.prover.as_mut() {
                prover.remove(node);
            }
            if let Some(words) = group.words.as_mut() {
                words.end(Ended::Failed, &mut self.out);
            }
            if let Some(i) = group.inbound.iter().position(|s| s.root() == node) {
                let mut stream = group.inbound.remove(i);
                self.leaving.extend(stream.unfinished());
                stream.abandon(&mut self.out);
                group.divide();
            }
            self.touch(at);
        }
    }

    fn prove(&mut self, now: Time, group: GroupId, patience: [Duration; 2]) -> Result<(), Refused> {
        let nonces = [self.nonces.multicast(), self.nonces.secret() as u32];
        let (at, group) = self.group(group)?;
        let node = self.config.node;
        let gone = |m: &NodeId| group.reach.get(m) == Some(&Reach::Nothing);
        let members = group.members.iter().filter(|m| **m != node && !gone(m));
        let pair = group.members.len() == 2;
        let prover = Prover::new(now, group.id, nonces, members.copied(), patience, pair);
        if let Some(group) = self.groups[at].as_mut() {
            group.prover = Some(prover);
        }
        self.touch(at);
        Ok(())
    }

    fn unreached_are(&mut self, group: GroupId, members: &[NodeId]) -> Result<(), Refused> {
        let (at, _) = self.group(group)?;
        let group = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        for &node in members {
            if node != self.config.node && group.expects(node) {
                group.set_reach(node, Reach::Unicast, &mut self.out);
            }
        }
        self.touch(at);
        Ok(())
    }

    fn bcast(
        &mut self,
        now: Time,
        group: GroupId,
        (len, awaited): (u64, bool),
    ) -> Result<OpId, Refused> {
        let (at, g) = self.group(group)?;
        let chunk = g.chunk;
        let cut = self.config.scheme.cut(len, chunk).ok_or(Refused::TooLong)?;
        let id = OpId(self.op.wrapping_add(1));
        if let Some(group) = self.groups[at].as_mut() {
            let root = group.root(&self.config);
            root.bcast(now, (id, len, cut), awaited, &mut self.out)?;
        }
        self.ops.insert(id, (at, self.config.node));
        self.op = id.0;
        self.touch(at);
        Ok(id)
    }

    fn post(&mut self, now: Time, group: GroupId, root: NodeId, len: u64) -> Result<OpId, Refused> {
        let (at, g) = self.group(group)?;
        let chunk = g.chunk;
        let cut = self.config.scheme.cut(len, chunk).ok_or(Refused::TooLong)?;
        let id = OpId(self.op.wrapping_add(1));
        let g = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        let stream = g.inbound(&self.config, root).ok_or(Refused::NotMember)?;
        let scheme = &self.config.scheme;
        stream.post(now, scheme, (id, len, cut), &mut self.out)?;
        self.ops.insert(id, (at, root));
        self.op = id.0;
        self.touch(at);
        Ok(id)
    }

    fn barrier(&mut self, group: GroupId, algorithm: Barrier, held: bool) -> Result<OpId, Refused> {
        let (at, _) = self.group(group)?;
        let id = OpId(self.op.wrapping_add(1));
        let group = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        let words = group.words(&self.config).ok_or(Refused::NotMember)?;
        words.begin(id, algorithm, held)?;
        self.op = id.0;
        self.touch(at);
        Ok(id)
    }

    fn proceed(&mut self, group: GroupId) -> Result<(), Refused> {
        let (at, _) = self.group(group)?;
        if let Some(words) = self.groups[at].as_mut().and_then(|g| g.words.as_mut()) {
            words.proceed();
        }
        self.touch(at);
        Ok(())
    }

    fn group(&self, group: GroupId) -> Result<(usize, &Group), Refused> {
        let &at = self.index.get(&group).ok_or(Refused::NoGroup)?;
        let group = self.groups[at].as_ref().ok_or(Refused::NoGroup)?;
        Ok((at, group))
    }

    /// The group may have something to do.
    fn touch(&mut self, at: usize) {
        if let Some(group) = self.groups[at].as_mut().filter(|g| !g.queued) {
            group.queued = true;
            self.ready.push_back(at);
        }
    }

    /// Takes one frame of a datagram that came out of the network at `arrived`: before `now`, if it
    /// has waited in a buffer since, or a little after it, if it came while the driver was reading.
    pub fn packet(
        &mut self,
        now: Time,
        arrived: Time,
        header: &Header,
        frame: &Frame<'_>,
    ) -> Placement {
        let id = match frame {
            Frame::Data(f) => f.group,
            Frame::Coded(f) => f.group,
            Frame::Parity(f) => f.group,
            Frame::Feedback(f) => f.group,
            Frame::Sync(f) => f.group,
            Frame::Probe(f) | Frame::ProbeAck(f) => f.group,
            Frame::Word(f) => f.group,
            Frame::Query(f) => f.group,
            Frame::Reply(f) => f.group,
        };
        let from = header.source;
        let known = self.index.get(&id).copied().filter(|&at| {
            header.session == self.config.session
                && from != self.config.node
                && !self.gone.contains(&from)
                && self.groups[at].as_ref().is_some_and(|g| g.expects(from))
        });
        let Some(at) = known else {
            self.counters.foreign += 1;
            return Placement::Discard;
        };
        let Some(group) = self.groups[at].as_mut() else {
            return Placement::Discard;
        };
        let scheme = &self.config.scheme;
        let mut placement = Placement::Discard;
        let foreign = self.counters.foreign;
        let mut shared = Shared {
            counters: &mut self.counters,
            token: &mut self.held_token,
            out: &mut self.out,
        };
        let flight = (header.flight, arrived);
        match frame {
            Frame::Data(f) => {
                let root = match f.origin {
                    Origin::Source(_) => from,
                    Origin::Root(root) => root,
                };
                match group.spoken_for(&self.config, root, from) {
                    Some(s) => placement = s.data(now, flight, scheme, f, &mut shared),
                    None => shared.counters.foreign += 1,
                }
            }
            Frame::Coded(f) => {
                if let Some(stream) = group.inbound(&self.config, from) {
                    placement = stream.coded(now, flight, scheme, f, &mut shared);
                }
            }
            Frame::Parity(f) => {
                if let Some(stream) = group.inbound(&self.config, from) {
                    placement = stream.parity(now, flight, scheme, f, &mut shared);
                }
            }
            Frame::Sync(f) => match group.spoken_for(&self.config, f.root, from) {
                Some(stream) => stream.sync(now, scheme, f.next),
                None => shared.counters.foreign += 1,
            },
            Frame::Feedback(f) if f.root == self.config.node => {
                let root = group.root(&self.config);
                root.feedback(now, from, f, shared.counters, shared.out);
            }
            Frame::Feedback(f) => {
                let stream = group.inbound.iter_mut().find(|s| s.root() == f.root);
                let told = stream.is_some_and(|s| s.report(now, scheme, (from, f), &mut shared));
                self.counters.foreign += u64::from(!told);
            }
            Frame::Probe(f) => {
                let mine = f.only.is_none_or(|only| only == self.config.node);
                let copies = match mine {
                    true => group.answers(now, from, f),
                    false => 0,
                };
                for _ in 0..copies.min(ACKS_MAX - self.acks.len()) {
                    self.acks.push_back((from, *f));
                }
            }
            Frame::ProbeAck(f) if f.flags & flag::ALONE != 0 => {
                let root = group.root.as_mut();
                let answered = (from, f.nonce);
                // Barriers, and streams that begin later, use multicast again, too.
                if root.is_some_and(|root| root.regained(now, answered, &mut self.out)) {
                    group.set_reach(from, Reach::Multicast, &mut self.out);
                }
            }
            Frame::ProbeAck(f) => {
                if let Some(prover) = group.prover.as_mut() {
                    prover.ack(now, from, f);
                }
            }
            Frame::Word(f) => {
                shared.counters.words_received += 1;
                let rank = group.members.binary_search(&from).ok();
                let words = group.words(&self.config).zip(rank);
                let fits = words.is_some_and(|(w, rank)| w.word(now, rank as u32, f));
                shared.counters.foreign += u64::from(!fits);
            }
            Frame::Query(f) => {
                if self.queries.len() < ACKS_MAX {
                    self.queries.push_back((from, *f));
                }
            }
            Frame::Reply(f) => {
                let mut inbound = group.inbound.iter_mut();
                let stream = inbound.find(|s| s.root() == from);
                let rank = group.members.binary_search(&from).ok();
                let words = group.words.as_mut().zip(rank);
                let asked = stream.is_some_and(|s| s.reply(now, f, shared.out))
                    || words.is_some_and(|(w, rank)| w.reply(rank as u32, f, shared.out));
                shared.counters.foreign += u64::from(!asked);
            }
        }
        if let Frame::Feedback(f) = frame
            && f.flags & flag::RIDES != 0
        {
            // It is for one of those who receive the datagram.
            self.counters.foreign = foreign;
        }
        self.touch(at);
        placement
    }

    /// What became of bytes that [`Placement::Write`] or [`Output::Place`] named. `extent` may
    /// cover many packets, or parts of the first and the last. What has been [`Outcome::Ok`] once
    /// stays placed and is not told again, even if another part of its packet is
    /// [`Outcome::Corrupt`] and the packet comes again.
    pub fn placed(&mut self, now: Time, extent: Extent, outcome: Outcome) {
        let Some(&(at, root)) = self.ops.get(&extent.op) else {
            return;
        };
        if let Some(group) = self.groups[at].as_mut()
            && let Some(stream) = group.inbound.iter_mut().find(|s| s.root() == root)
        {
            stream.placed(now, &self.config.scheme, extent, outcome, &mut self.out);
        }
        self.touch(at);
    }

    /// The transport reads this payload no more.
    pub fn sent(&mut self, _now: Time, token: Token) {
        let op = OpId(token.0 as u32);
        if let Some(out) = self.leaving.get_mut(&op) {
            *out -= 1;
            if *out == 0 {
                self.leaving.remove(&op);
                self.out.push_back(Output::Release(op));
            }
        } else if let Some(&(at, root)) = self.ops.get(&op)
            && let Some(group) = self.groups[at].as_mut()
        {
            match group.inbound.iter_mut().find(|s| s.root() == root) {
                Some(stream) => stream.sent(op, &mut self.out),
                None => group.root(&self.config).sent(op, &mut self.out),
            }
        }
    }

    /// What to do next. For [`Output::Transmit`] the datagram's head has been appended to `head`.
    /// Call until [`Output::Wait`].
    pub fn poll(&mut self, now: Time, head: &mut Vec<u8>) -> Output {
        if let Some((to, probe)) = self.acks.pop_front() {
            self.start().put(head, 0);
            wire::put_probe_ack(head, &probe);
            return datagram::control(Dest::Node(to));
        }
        while let Some((to, query)) = self.queries.pop_front() {
            if let Some(reply) = self.reply(&query) {
                self.start().put(head, 0);
                wire::put_reply(head, &reply);
                return datagram::control(Dest::Node(to));
            }
        }
        self.ring(now);
        loop {
            if let Some(output) = self.out.pop_front() {
                if let Output::Release(op) = output {
                    self.ops.remove(&op);
                }
                return output;
            }
            let Some(&at) = self.ready.front() else {
                self.ring(now); // what was set for groups that wait for nothing any more is no timer
                return Output::Wait(self.timers.peek().map(|t| t.0.0));
            };
            if let Some(output) = self.poll_group(now, at, head) {
                return output;
            }
            if self.out.is_empty() {
                self.ready.pop_front();
                self.set_timer(now, at);
            }
        }
    }

    /// What this node says of itself when it is asked; `None`: it has left the group meanwhile.
    fn reply(&self, query: &Query) -> Option<Reply> {
        let (_, group) = self.group(query.group).ok()?;
        let words = group.words.as_ref();
        let (at, barrier, ended) = words.map_or_else(
            || (Reached::none(group.start), None, !group.gone.is_empty()),
            Words::state,
        );
        Some(Reply {
            group: group.id,
            nonce: query.nonce,
            op: group.root.as_ref().and_then(|r| r.describes(query.seq)),
            at,
            barrier,
            ended,
        })
    }

    /// Moves groups whose time has come to those that are ready.
    fn ring(&mut self, now: Time) {
        while let Some(&Reverse((at_time, at))) = self.timers.peek() {
            let set = self.groups[at]
                .as_mut()
                .filter(|g| g.timer == Some(at_time));
            if at_time > now && set.is_some() {
                break;
            }
            self.timers.pop();
            if let Some(group) = set {
                group.timer = None;
                self.touch(at);
            }
        }
    }

    fn set_timer(&mut self, now: Time, at: usize) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        group.queued = false;
        match group.wake(now, &self.config) {
            Some(t) => {
                debug_assert!(t > now, "a wake-up must lie in the future");
                let t = t.max(Time(now.0 + 1));
                if group.timer.is_none_or(|set| t < set) {
                    group.timer = Some(t);
                    self.timers.push(Reverse((t, at)));
                }
            }
            None => group.timer = None,
        }
        if self.timers.len() > timers_max(self.groups.len()) {
            self.timers.clear();
            let groups = self.groups.iter().enumerate();
            let set = groups.filter_map(|(at, g)| Some(Reverse((g.as_ref()?.timer?, at))));
            self.timers.extend(set);
        }
    }

    /// What every datagram of this node begins with.
    fn start(&self) -> Start {
        Start {
            header: Header {
                flight: 0,
                source: self.config.node,
                session: self.config.session,
            },
            checksum: self.config.scheme.checksum,
        }
    }

    fn poll_group(&mut self, now: Time, at: usize, head: &mut Vec<u8>) -> Option<Output> {
        let begin = self.start();
        let group = self.groups[at].as_mut()?;
        // Words first: everybody waits for the slowest.
        if let Some(words) = group.words.as_mut()
            && let Some((to, word)) = words.poll(now, &mut self.counters, &mut self.out)
        {
            let to = match to {
                To::All => Dest::Group(group.id),
                To::Rank(rank) => Dest::Node(group.members[rank as usize]),
            };
            return Some(datagram::put_word(to, &word, begin, head));
        }
        if let Some((to, query)) = group.query(now, &mut self.nonces) {
            return Some(datagram::put_query(Dest::Node(to), &query, begin, head));
        }
        if let Some((to, probe)) = group.prover.as_mut().and_then(|p| p.poll(now)) {
            let size = group.chunk as usize + self.config.scheme.data_overhead();
            return Some(datagram::put_probe(to, &probe, size, begin, head));
        }
        self.finish_proof(now, at);
        let group = self.groups[at].as_mut()?;
        let (counters, out) = (&mut self.counters, &mut self.out);
        let root = group.root.as_mut();
        let mut send = root.and_then(|r| {
            let send = r.poll(now, &self.config, counters, out);
            send.or_else(|| r.trial(&mut self.nonces))
        });
        for stream in &mut group.inbound {
            send = send.or_else(|| stream.relay(now, &self.config, counters, out));
        }
        if let Some(send) = send {
            let size = group.chunk as usize + self.config.scheme.data_overhead();
            let Group { root, inbound, .. } = group;
            let ride = |head: &mut Vec<u8>, to: Dest, room: usize| {
                let root = root.as_ref();
                let boarded =
                    Ride { to, room, root }.board(now, &self.config.scheme, inbound, head);
                counters.feedback_rode += boarded;
            };
            return Some(datagram::put(send, (group.id, size), begin, head, ride));
        }
        let start = head.len();
        let spoke = group.inbound.iter_mut().position(|stream| {
            let put = |head: &mut Vec<u8>| begin.put(head, 0);
            stream.poll(now, &self.config.scheme, head, put)
        })?;
        self.counters.feedback_sent += 1;
        let to = Dest::Node(group.inbound[spoke].collector());
        let size = group.chunk as usize + self.config.scheme.data_overhead();
        let room = (start + size).saturating_sub(head.len());
        let ride = Ride {
            to,
            room,
            root: None,
        };
        let boarded = ride.board(now, &self.config.scheme, &mut group.inbound, head);
        self.counters.feedback_rode += boarded;
        Some(datagram::control(to))
    }

    /// Ends the proof of a group when all is known.
    fn finish_proof(&mut self, now: Time, at: usize) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        let Some(result) = group.prover.as_ref().and_then(|p| p.result(now)) else {
            return;
        };
        let result: Vec<_> = result.collect();
        group.prover = None;
        for (node, reach, probes) in result {
            if probes > 1 {
                group.probes.insert(node, probes);
            }
            if let Some(root) = &mut group.root {
                root.proven(node, probes);
            }
            if reach == Reach::Multicast {
                continue;
            }
            group.set_reach(node, reach, &mut self.out);
            self.out.push_back(Output::Event(Event::Path {
                group: group.id,
                node,
                reach,
            }));
        }
        self.out.push_back(Output::Event(Event::Proven(group.id)));
    }

    /// The scheme in use. What concerns bytes (`checksum`, `copied`) is the driver's to do.
    pub fn scheme(&self) -> &Scheme {
        &self.config.scheme
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The members of a group as its root sees them, this node left out.
    pub fn members(&self, group: GroupId) -> impl Iterator<Item = MemberStatus> + '_ {
        let root = self.group(group).ok().and_then(|(_, g)| g.root.as_ref());
        root.into_iter().flat_map(Root::status)
    }

    /// Members of a group that is being proven that have answered no probe yet.
    pub fn unanswered(&self, group: GroupId) -> impl Iterator<Item = NodeId> + '_ {
        let group = self.group(group).ok();
        let prover = group.and_then(|(_, g)| g.prover.as_ref());
        prover.into_iter().flat_map(Prover::unanswered)
    }

    /// The rate at which this node sends to the group, in bytes (of UDP payload) per second.
    pub fn rate(&self, group: GroupId) -> Option<u64> {
        let (_, group) = self.group(group).ok()?;
        group.root.as_ref().map(Root::rate)
    }

    /// Whether nobody waits for anything of this node in a group, and this node for nobody: the
    /// group may be removed, or the process end. (For all groups together [`Output::Wait`] of
    /// nothing says so.)
    pub fn is_quiet(&self, now: Time, group: GroupId) -> bool {
        let group = self.group(group);
        group.is_ok_and(|(_, g)| !g.queued && g.wake(now, &self.config).is_none())
    }

    /// Payloads that are held for broadcasts not posted yet.
    pub fn held(&self) -> usize {
        let streams = self.groups.iter().flatten().flat_map(|g| &g.inbound);
        streams.map(Inbound::held).sum()
    }

    /// Panics if the node's state contradicts itself. Deep: for tests and soaks.
    pub fn invariants(&self) {
        assert!(self.timers.len() <= timers_max(self.groups.len()));
        for group in self.groups.iter().flatten() {
            if let Some(root) = &group.root {
                root.invariants();
            }
            for stream in &group.inbound {
                let root = stream.root();
                assert!(root != self.config.node && !group.gone.contains(&root));
                stream.invariants();
            }
            if let Some(words) = &group.words {
                words.invariants();
            }
        }
    }
}

/// Timers that a node with so many groups keeps, those that were overtaken among them.
fn timers_max(groups: usize) -> usize {
    2 * groups + 8
}
