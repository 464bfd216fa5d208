//! The node: one process's end of the protocol, as a state machine without I/O.
//!
//! The driver calls [`Node::command`], [`Node::packet`], [`Node::placed`] and [`Node::sent`], and
//! after each of them drains [`Node::poll`] until it says [`Output::Wait`].

mod commands;
mod datagram;
mod group;
mod incoming;
mod outgoing;

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use crate::border::{Config, Counters, MemberStatus, Outcome, Output, Refused};
use crate::id::{Extent, GroupId, NodeId, OpId, Token};
use crate::nonce::Nonces;
use crate::path::Prover;
use crate::receiver::Receiver;
use crate::scheme::Scheme;
use crate::sender::Sender;
use crate::time::Time;
use crate::wire::{Probe, Query};
use group::Group;

/// Answers to probes that may wait to be sent; more are dropped, and the prober asks again.
const ACKS_MAX: usize = 64;
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
    unexpected_token: u64,
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
            unexpected_token: 0,
            out: VecDeque::new(),
            acks: VecDeque::new(),
            queries: VecDeque::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            counters: Counters::default(),
        }
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

    /// What became of bytes that [`crate::Placement::Write`] or [`Output::Place`] named. `extent`
    /// may cover many packets, or parts of the first and the last. What has been [`Outcome::Ok`]
    /// once stays placed and is not told again, even if another part of its packet is
    /// [`Outcome::Corrupt`] and the packet comes again.
    pub fn placed(&mut self, now: Time, extent: Extent, outcome: Outcome) {
        let Some(&(at, sender)) = self.ops.get(&extent.op) else {
            return;
        };
        if let Some(group) = self.groups[at].as_mut()
            && let Some(stream) = group.receivers.iter_mut().find(|s| s.sender() == sender)
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
        } else if let Some(&(at, sender)) = self.ops.get(&op)
            && let Some(group) = self.groups[at].as_mut()
        {
            match group.receivers.iter_mut().find(|s| s.sender() == sender) {
                Some(stream) => stream.sent(op, &mut self.out),
                None => group.sender(&self.config).sent(op, &mut self.out),
            }
        }
    }

    /// The scheme in use. What concerns bytes (`checksum`, `copied`) is the driver's to do.
    pub fn scheme(&self) -> &Scheme {
        &self.config.scheme
    }

    /// Counters since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The members of a group as its sender sees them, this node left out.
    pub fn members(&self, group: GroupId) -> impl Iterator<Item = MemberStatus> + '_ {
        let sender = self.group(group).ok().and_then(|(_, g)| g.sender.as_ref());
        sender.into_iter().flat_map(Sender::status)
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
        group.sender.as_ref().map(Sender::rate)
    }

    /// Whether nobody waits for anything of this node in a group, and this node for nobody: the
    /// group may be removed, or the process end. (For all groups together [`Output::Wait`] of
    /// nothing says so.)
    pub fn is_quiet(&self, now: Time, group: GroupId) -> bool {
        let group = self.group(group);
        group.is_ok_and(|(_, g)| !g.queued && g.wake(now, &self.config).is_none())
    }

    /// Payloads that are held for broadcasts not posted yet.
    pub fn unexpected(&self) -> usize {
        let streams = self.groups.iter().flatten().flat_map(|g| &g.receivers);
        streams.map(Receiver::unexpected).sum()
    }

    /// Panics if the node's state contradicts itself. Deep: for tests and soaks.
    pub fn invariants(&self) {
        assert!(self.timers.len() <= timers_max(self.groups.len()));
        for group in self.groups.iter().flatten() {
            if let Some(sender) = &group.sender {
                sender.invariants();
            }
            for stream in &group.receivers {
                let sender = stream.sender();
                assert!(sender != self.config.node && !group.gone.contains(&sender));
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
