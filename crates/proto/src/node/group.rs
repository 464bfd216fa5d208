//! A group as one of its members sees it: its own stream, the streams of others, and barriers.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::barrier::Words;
use crate::border::{Config, Output, PathState};
use crate::id::{GroupId, NodeId};
use crate::mutant::{self, Mutant};
use crate::nonce::Nonces;
use crate::path::Prover;
use crate::receiver::{Place, Receiver};
use crate::scheme::{FeedbackTopology, Hierarchy};
use crate::sender::{MemberConfig, Sender};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Probe, Query, flag};

/// Answers that all members together give to one probe. In a larger group each member gives one.
const ANSWERED: usize = 32;
/// A member gives at most this many answers to one probe.
const ANSWERS_MAX: usize = 8;
/// A prober that asks again after such a pause begins another proof.
const PAUSE: Duration = Duration::from_secs(10);
/// In the long run all members together give one prober one answer in this time. So a host that
/// asks in the prober's name causes little traffic to it. In a group of more than
/// [`ANSWER_EVERY_MEMBERS`] each member gives as many answers as in a group of that size, because a
/// proof asks each of them.
const ANSWER_EVERY: Duration = Duration::from_micros(625);
/// Largest group whose members share the answers of [`ANSWER_EVERY`].
const ANSWER_EVERY_MEMBERS: u32 = 8;
/// A member gives one prober so many answers at once.
const ANSWERS_AT_ONCE: u32 = 64;

/// A group that this node is a member of.
pub struct Group {
    pub id: GroupId,
    /// Sorted.
    pub members: Vec<NodeId>,
    pub payload_size: u32,
    pub start: Seq,
    pub path_state: BTreeMap<NodeId, PathState>,
    /// Members that took more than one probe to answer, and how many.
    pub probes: BTreeMap<NodeId, u32>,
    /// The members whose probes were heard here.
    pub heard: BTreeMap<NodeId, Heard>,
    /// Members that were there once: what still comes from them is foreign.
    pub gone: BTreeSet<NodeId>,
    pub sender: Option<Sender>,
    pub receivers: Vec<Receiver>,
    pub prover: Option<Prover>,
    /// Its barriers, once there has been one.
    pub words: Option<Words>,
    pub queued: bool,
    /// The earliest timer that is set for it.
    pub timer: Option<Time>,
}

/// What was heard of a member that probes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Heard {
    /// When its last probe came.
    at: Time,
    /// Its probes since the last pause.
    probes: u32,
    /// When the answers that were given to it will have been paid for.
    paid: Time,
}

impl Group {
    /// How many answers this node gives to a probe. A prober that goes on asking has perhaps not
    /// heard this node. In a large group it may wait for any of many members, which would all
    /// answer.
    pub fn answers(&mut self, now: Time, from: NodeId, probe: &Probe) -> usize {
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
    pub fn sender(&mut self, config: &Config) -> &mut Sender {
        self.sender.get_or_insert_with(|| {
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
            sender
        })
    }

    /// The stream of another member that has never gone.
    pub fn receiver(&mut self, config: &Config, sender: NodeId) -> Option<&mut Receiver> {
        if let Some(i) = self.receivers.iter().position(|s| s.sender() == sender) {
            return self.receivers.get_mut(i);
        }
        if sender == config.node || self.gone.contains(&sender) {
            return None;
        }
        let at = self.members.binary_search(&sender).ok()?;
        let me = self.members.binary_search(&config.node).ok()?;
        let turn = (me - usize::from(me > at)) as u32;
        let receivers = self.members.len() as u32 - 1;
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
            collector: collector
                .filter(|c| !self.gone.contains(c))
                .unwrap_or(sender),
            reporters: reporters.filter(|r| !self.gone.contains(&r.node)).collect(),
        };
        let stream = Receiver::new(config, place, self.payload_size, self.start);
        self.receivers.push(stream);
        self.divide();
        self.receivers.last_mut()
    }

    /// The stream of `sender`, if `from` may speak for it: the sender itself, or the collector that
    /// this node reports to (spec 2.12).
    pub fn spoken_for(
        &mut self,
        config: &Config,
        sender: NodeId,
        from: NodeId,
    ) -> Option<&mut Receiver> {
        let anybody = mutant::active(Mutant::AnybodySpeaks);
        if from != sender && config.scheme.topology == FeedbackTopology::Direct && !anybody {
            return None;
        }
        let stream = self.receiver(config, sender)?;
        (anybody || from == sender || from == stream.collector()).then_some(stream)
    }

    /// The streams that this node receives share its buffers.
    pub fn divide(&mut self) {
        let streams = self.receivers.len() as u32;
        self.receivers.iter_mut().for_each(|s| s.divide(streams));
    }

    /// This node's end of the barriers.
    pub fn words(&mut self, config: &Config) -> Option<&mut Words> {
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

    /// How a member is reached, as far as is known.
    pub fn path_state_of(&self, node: NodeId) -> PathState {
        self.path_state
            .get(&node)
            .copied()
            .unwrap_or(PathState::Multicast)
    }

    /// How a member is reached is known now. Streams and barriers that begin later take it from
    /// here.
    pub fn set_path_state(
        &mut self,
        node: NodeId,
        path_state: PathState,
        out: &mut VecDeque<Output>,
    ) {
        self.path_state.insert(node, path_state);
        if let Some(sender) = &mut self.sender {
            sender.set_path_state(node, path_state, out);
        }
        if let (Some(words), Ok(rank)) = (&mut self.words, self.members.binary_search(&node)) {
            words.set_aside(rank as u32, path_state == PathState::Unicast);
        }
    }

    /// Whether a node is a member and has never gone.
    pub fn expects(&self, node: NodeId) -> bool {
        // The stream of one that goes is removed.
        self.receivers.iter().any(|s| s.sender() == node)
            || (self.members.binary_search(&node).is_ok() && !self.gone.contains(&node))
    }

    /// A question that is due because somebody has contradicted what this node expects.
    pub fn query(&mut self, now: Time, nonces: &mut Nonces) -> Option<(NodeId, Query)> {
        let mut streams = self.receivers.iter_mut();
        if let Some(asked) = streams.find_map(|s| Some((s.sender(), s.query(now, nonces)?))) {
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

    pub fn wake(&self, now: Time, config: &Config) -> Option<Time> {
        let sender = self
            .sender
            .as_ref()
            .and_then(|r| r.wake(now, &config.scheme));
        let prover = self.prover.as_ref().map(Prover::wake);
        let receivers = self.receivers.iter();
        let receivers = receivers.filter_map(|s| s.wake(now, &config.scheme));
        let words = self.words.as_ref().and_then(Words::wake);
        receivers.chain(sender).chain(prover).chain(words).min()
    }
}
