//! A group as one of its members sees it: its own stream, the streams of others, and barriers.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::own_stream::OwnStream;
use crate::barrier::Words;
use crate::border::{Config, Output, PathState, Refused};
use crate::id::{AddressId, GroupId, NodeId};
use crate::membership::Admission;
use crate::mutant::{self, Mutant};
use crate::nonce::Nonces;
use crate::path::{Prover, Target};
use crate::receiver::{Piggyback, Place, Receiver, Streams};
use crate::scheme::{FeedbackTopology, Hierarchy, Scheme};
use crate::sender::{MemberConfig, Sender};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Probe, Query, Writer, flag};

/// Answers that all members together give to one probe. In a larger group each member gives one
/// answer.
const ANSWERED: usize = 32;
/// A member gives at most this many answers to one probe.
const ANSWERS_MAX: usize = 8;
/// Pause in a member's probes after which its next probe belongs to another proof.
const PAUSE: Duration = Duration::from_secs(10);
/// Interval at which all members together give one prober an answer, in the long run. A forger that
/// probes in the prober's name thus turns little traffic on it.
const ANSWER_EVERY: Duration = Duration::from_micros(625);
/// Group size up to which [`ANSWER_EVERY`] holds. In a larger group each member gives as many
/// answers as in a group of this size, because a proof asks each of them.
const ANSWER_EVERY_MEMBERS: u32 = 8;
/// Answers that a member gives one prober at once, at most.
const ANSWERS_AT_ONCE: u32 = 64;
/// Interval at which a member answers by multicast addresses in the long run, for all probers
/// together. Such an answer goes to all members, so that a forger must not have many of them.
const BY_ADDRESS_EVERY: Duration = Duration::from_millis(2);
/// Answers by multicast addresses that a member gives at once, at most: some for each address that
/// a context may have.
const BY_ADDRESS_AT_ONCE: u128 = 512;

/// A group that this node is a member of.
pub struct Group {
    pub id: GroupId,
    /// The multicast address by which this node sends.
    pub address: Option<AddressId>,
    /// The members that the group was added with, sorted by number. Nodes that join later are
    /// members of this node's own stream only, which knows them.
    pub members: Vec<NodeId>,
    /// What this node was told when it joined; `None`: it is one of those that the group was added
    /// with.
    pub joined: Option<Admission>,
    pub payload_size: u32,
    pub start: Seq,
    /// The weight by which this node's stream shares the node's fixed rate.
    pub weight: u32,
    pub path_state: BTreeMap<NodeId, PathState>,
    /// Probes that a member needed to answer, for members that needed more than one.
    pub probes: BTreeMap<NodeId, u32>,
    /// What this node heard of each member that probes.
    pub heard: BTreeMap<NodeId, Heard>,
    /// Members that have gone. Datagrams that still come from them count as foreign.
    pub gone: BTreeSet<NodeId>,
    /// This node's own stream.
    pub own: OwnStream,
    /// The streams of other members.
    pub streams: Streams,
    pub prover: Option<Prover>,
    /// Addresses that are being proven.
    pub provers: BTreeMap<AddressId, Prover>,
    /// The group's barriers, from the first one on.
    pub words: Option<Words>,
    /// Whether the group is among the node's groups that may have something to do now.
    pub queued: bool,
    /// When the answers by addresses will have been paid for, at one per [`BY_ADDRESS_EVERY`].
    pub paid_by_address: Time,
    /// The earliest timer that is set for the group.
    pub timer: Option<Time>,
}

/// What a node heard of a member that probes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Heard {
    /// When the member's last probe came.
    at: Time,
    /// The member's probes since the last pause.
    probes: u32,
    /// When the answers that the member got will have been paid for, at this node's share of one
    /// answer per [`ANSWER_EVERY`].
    paid: Time,
}

impl Group {
    /// The number of answers to a probe. A member that goes on probing may not have heard this
    /// node, so it gets more answers. In a large group each member gives only one: the prober may
    /// be waiting for any of many members, and all of them answer.
    pub fn answers(&mut self, now: Time, from: NodeId, probe: &Probe) -> usize {
        if self.members.binary_search(&from).is_err() {
            return 0;
        }
        if probe.by.is_some() {
            let paid = self.paid_by_address.max(now);
            let owed = paid.since(now).as_nanos() / BY_ADDRESS_EVERY.as_nanos();
            let answers = usize::from(owed < BY_ADDRESS_AT_ONCE);
            self.paid_by_address = paid + BY_ADDRESS_EVERY * answers as u32;
            return answers;
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

    /// Number of packets of this node's broadcasts that some receiver has not placed.
    pub fn packets_under_way(&self) -> u32 {
        self.own.get().map_or(0, Sender::packets_under_way)
    }

    /// From now on, this node sends to the group by this address.
    pub fn send_by(&mut self, address: Option<AddressId>) {
        self.address = address;
        if let Some(sender) = self.own.get_mut() {
            sender.set_to_each(address.is_none());
        }
    }

    /// Slots of this node's stream, held or free.
    fn slots(&self) -> u32 {
        let founders = self.members.len() as u32 - 1;
        self.own.get().map_or(founders, Sender::slots)
    }

    /// Whether the group has two members, and never had more. It needs no address.
    pub fn is_pair(&self) -> bool {
        self.members.len() == 2 && self.slots() == 1
    }

    /// The members of this node's stream, which is `me`, in rising order. Those that are gone may
    /// be among them.
    pub fn peers(&self, me: NodeId) -> impl DoubleEndedIterator<Item = NodeId> + '_ {
        let founders = match self.own.get() {
            None => &self.members[..],
            Some(_) => &[],
        };
        let joined = self.own.get().into_iter().flat_map(Sender::nodes);
        let founders = founders.iter().copied().filter(move |m| *m != me);
        founders.chain(joined)
    }

    /// Refuses what a node cannot do that has joined to receive one stream.
    pub fn takes_part(&self) -> Result<(), Refused> {
        match self.joined {
            None => Ok(()),
            Some(_) => Err(Refused::ReceivesOnly),
        }
    }

    /// This node's stream has another slot: a group of two may become a group that multicast
    /// serves.
    pub fn has_grown(&mut self, out: &mut VecDeque<Output>) {
        if let Some(sender) = self.own.get_mut() {
            for (&node, &path_state) in &self.path_state {
                if path_state == PathState::Unicast {
                    sender.set_path_state(node, path_state, out);
                }
            }
        }
    }

    /// The sending side of this node's stream to the group.
    pub fn sender(&mut self, config: &Config) -> &mut Sender {
        let to_each = self.address.is_none();
        self.own.begin(|| {
            let others = self.members.iter().filter(|&&m| m != config.node);
            let receivers: Vec<NodeId> = others.copied().collect();
            let hierarchy = Hierarchy::new(config.scheme.topology, receivers.len() as u32);
            let members_of_stream = (0..).zip(&receivers).map(|(turn, &node)| MemberConfig {
                node,
                path_state: self
                    .path_state
                    .get(&node)
                    .copied()
                    .unwrap_or(PathState::Multicast),
                delegated: hierarchy
                    .collector(turn)
                    .is_some_and(|c| !self.gone.contains(&receivers[c as usize])),
                coroot: hierarchy.collector(turn).is_none() && hierarchy.is_coroot(turn),
            });
            let members_of_stream: Vec<_> = members_of_stream.collect();
            let stream = (self.id, None);
            let mut sender = Sender::new(
                config,
                stream,
                &members_of_stream,
                self.payload_size,
                self.start,
            );
            for (&node, &probes) in &self.probes {
                sender.proven(node, probes);
            }
            sender.set_to_each(to_each);
            sender.set_weight(self.weight);
            sender
        })
    }

    /// The rank of a member: its position among the members.
    pub fn rank(&self, node: NodeId) -> Option<usize> {
        // As a rule the members' numbers follow one another.
        let first = self.members.first()?;
        let rank = node.0.wrapping_sub(first.0) as usize;
        if self.members.get(rank) == Some(&node) {
            return Some(rank);
        }
        self.members.binary_search(&node).ok()
    }

    /// The place of another member's stream, which begins now if it has not begun before; `None` if
    /// that member has gone.
    pub fn stream(&mut self, config: &Config, sender: NodeId) -> Option<usize> {
        let at = self.rank(sender)?;
        if let Some(place) = self.streams.place_of(at) {
            return Some(place);
        }
        if sender == config.node || self.gone.contains(&sender) {
            return None;
        }
        let me = self.rank(config.node)?;
        let (turn, receivers) = match &self.joined {
            Some(joined) => (u32::from(joined.slot.index), joined.receivers),
            None => {
                let turn = me - usize::from(me > at);
                (turn as u32, self.members.len() as u32 - 1)
            }
        };
        let hierarchy = Hierarchy::new(config.scheme.topology, receivers);
        let node = |turn: u32| self.members[turn as usize + usize::from(turn as usize >= at)];
        let collector = hierarchy.collector(turn).map(node);
        let reporters = hierarchy.reporters(Some(turn)).map(|t| MemberConfig {
            node: node(t),
            path_state: self.path_state_of(node(t)),
            delegated: false,
            coroot: hierarchy.is_coroot(t),
        });
        let place = Place {
            group: self.id,
            sender,
            turn,
            receivers,
            slot: self.joined.map(|joined| joined.slot),
            collector: collector
                .filter(|c| !self.gone.contains(c))
                .unwrap_or(sender),
            reporters: reporters.filter(|r| !self.gone.contains(&r.node)).collect(),
        };
        let stream = Receiver::new(config, place, self.payload_size, self.start);
        let rank = (at, self.members.len());
        Some(self.streams.add(&config.scheme, rank, stream))
    }

    /// The place of the stream of `sender`, if `from` may speak for it: the sender itself, or the
    /// collector that this node reports to (spec 2.12).
    pub fn spoken_for(&mut self, config: &Config, sender: NodeId, from: NodeId) -> Option<usize> {
        let anybody = mutant::active(Mutant::AnybodySpeaks);
        if from != sender && config.scheme.topology == FeedbackTopology::Direct && !anybody {
            return None;
        }
        // Nobody else can make this node begin a stream.
        let may = match self.begun(sender).and_then(|place| self.streams.get(place)) {
            Some(stream) => from == stream.collector(),
            None => Some(from) == self.collector(config, sender),
        };
        if !(may || anybody || from == sender) {
            return None;
        }
        self.stream(config, sender)
    }

    /// The collector of this node in the stream of another member that has not begun.
    fn collector(&self, config: &Config, sender: NodeId) -> Option<NodeId> {
        let (at, me) = (self.rank(sender)?, self.rank(config.node)?);
        if at == me {
            return None;
        }
        let receivers = self.members.len() as u32 - 1;
        let hierarchy = Hierarchy::new(config.scheme.topology, receivers);
        let turn = hierarchy.collector((me - usize::from(me > at)) as u32)? as usize;
        Some(self.members[turn + usize::from(turn >= at)])
    }

    /// The place of a stream that has begun.
    pub fn begun(&self, sender: NodeId) -> Option<usize> {
        self.streams.place_of(self.rank(sender)?)
    }

    /// Appends to a datagram, which goes to `to` and has `room` bytes left, the scheduled feedback
    /// that goes the same way. Returns the number of frames appended.
    pub fn piggyback(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (to, room): (Target, usize),
        head: &mut Writer<'_>,
    ) -> u64 {
        let only = match (to, scheme.topology) {
            // Each receiver sends its feedback to the stream's sender.
            (Target::Node(node), FeedbackTopology::Direct) => match self.begun(node) {
                Some(place) => Some(place),
                None => return 0,
            },
            _ => None,
        };
        let on = Piggyback {
            to,
            room,
            only,
            sender: self.own.get(),
        };
        self.streams.piggyback(now, scheme, on, head)
    }

    /// This node's state in the group's barriers; `None` if the node is no member.
    pub fn words(&mut self, config: &Config) -> Option<&mut Words> {
        self.takes_part().ok()?;
        if self.words.is_none() {
            let rank = |node| self.members.binary_search(&node).ok().map(|at| at as u32);
            let size = self.members.len() as u32;
            let (me, ended) = (rank(config.node)?, !self.gone.is_empty());
            let mut words = Words::new(self.id, (me, size), self.start, ended);
            let aside = self
                .path_state
                .iter()
                .filter(|r| *r.1 == PathState::Unicast);
            for rank in aside.filter_map(|r| rank(*r.0)) {
                words.set_aside(rank, true);
            }
            self.words = Some(words);
        }
        self.words.as_mut()
    }

    /// The path state of a member, as far as this node knows; multicast by default.
    pub fn path_state_of(&self, node: NodeId) -> PathState {
        self.path_state
            .get(&node)
            .copied()
            .unwrap_or(PathState::Multicast)
    }

    /// Sets the path state of a member, now that it is known. Streams and barriers that begin later
    /// take it from here.
    pub fn set_path_state(
        &mut self,
        node: NodeId,
        path_state: PathState,
        out: &mut VecDeque<Output>,
    ) {
        self.path_state.insert(node, path_state);
        if let Some(sender) = self.own.get_mut() {
            sender.set_path_state(node, path_state, out);
        }
        if let (Some(words), Ok(rank)) = (&mut self.words, self.members.binary_search(&node)) {
            words.set_aside(rank as u32, path_state == PathState::Unicast);
        }
    }

    /// Whether a node is a member and not gone.
    pub fn expects(&self, node: NodeId) -> bool {
        let founder = self.rank(node).is_some() && !self.gone.contains(&node);
        founder || self.own.get().is_some_and(|sender| sender.has(node))
    }

    /// A query that is due because a datagram has contradicted what this node expects.
    pub fn query(
        &mut self,
        now: Time,
        scheme: &Scheme,
        nonces: &mut Nonces,
    ) -> Option<(NodeId, Query)> {
        if let Some(asked) = self.streams.query(now, scheme, nonces) {
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

    /// All that is being proven.
    pub fn provers(&mut self) -> impl Iterator<Item = &mut Prover> {
        self.prover.iter_mut().chain(self.provers.values_mut())
    }

    /// Whether this node's stream waits for its turn to send.
    pub fn waits_for_turn(&self) -> bool {
        self.own.get().is_some_and(Sender::waits_for_turn)
    }

    /// When the group has something to do, apart from its turn to send; [`Time::ZERO`]: at once.
    pub fn wake(&self, scheme: &Scheme) -> Option<Time> {
        let addresses = self.provers.values().map(Prover::wake).min();
        let prover = self.prover.as_ref().map(Prover::wake);
        let words = self.words.as_ref().and_then(Words::wake);
        let own = self.own.wake(scheme);
        let all = [own, prover, addresses, self.streams.wake(), words];
        // A loop, since this is on every packet's way and the iterators of options are slow.
        let mut first = None;
        for at in all.into_iter().flatten() {
            first = Some(first.map_or(at, |first: Time| first.min(at)));
        }
        first
    }
}
