//! The node: one process's end of the protocol, as a state machine without I/O.
//!
//! The driver calls [`Node::command`], [`Node::packet`], [`Node::placed`] and [`Node::sent`], and
//! after each of them drains [`Node::poll`] until it says [`Output::Wait`].

mod commands;
mod copies;
mod datagram;
mod gathered;
mod group;
mod incoming;
mod members;
mod op_table;
mod outgoing;
mod own_stream;

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use crate::border::{Config, Counters, MemberStatus, Outcome, Output, Refused};
use crate::id::{Extent, GroupId, NodeId, OpId, Token};
use crate::nonce::Nonces;
use crate::path::Prover;
use crate::receiver::Receiver;
use crate::scheme::{Copied, Scheme};
use crate::sender::{Sender, Shares};
use crate::time::Time;
use crate::wire::{Probe, Query};
use copies::Copies;
use gathered::Gathered;
use group::Group;
use op_table::{Entry, OpTable, Stream};

/// Answers to probes that may wait to be sent. The node drops further ones, and the prober probes
/// again.
const ACKS_MAX: usize = 64;
/// One process's end of the protocol.
pub struct Node {
    config: Config,
    nonces: Nonces,
    index: BTreeMap<GroupId, usize>,
    groups: Vec<Option<Group>>,
    /// The indices of `groups` that are free. The next group takes the least of them.
    free: BinaryHeap<Reverse<usize>>,
    /// Peers that are gone. Datagrams that still come from them count as foreign.
    gone: BTreeSet<NodeId>,
    ops: OpTable,
    /// Broadcasts of removed groups, and the number of unfinished transmissions of each.
    leaving: BTreeMap<OpId, u32>,
    unexpected_token: u64,
    out: VecDeque<Output>,
    acks: VecDeque<(NodeId, Probe)>,
    /// Queries that wait for their replies, at most [`ACKS_MAX`].
    queries: VecDeque<(NodeId, Query)>,
    /// The rest of a datagram for a group without an address.
    copies: Copies,
    /// Words that go together.
    gathered: Gathered,
    /// Groups that may have something to do now.
    ready: VecDeque<usize>,
    /// When other groups will have something to do. An entry that differs from its group's `timer`
    /// is obsolete: an earlier one has replaced it, or the group does not need it any more.
    timers: BinaryHeap<Reverse<(Time, usize)>>,
    counters: Counters,
    /// The fixed rate, which this node's streams share, if there is one.
    shares: Option<Shares>,
}

impl Node {
    /// Creates a node that is in no group yet. Equal seeds and equal calls give equal answers. The
    /// seed must be secret and random in all its 64 bits: an attacker that can guess it can answer
    /// this node's queries in another node's name (spec 2.13). The scheme's values are brought
    /// within their bounds ([`Scheme::bounded`]).
    pub fn new(mut config: Config, seed: u64) -> Node {
        config.scheme = config.scheme.bounded();
        let shares = config.rate.map(Shares::new);
        Node {
            config,
            nonces: Nonces::new(seed),
            index: BTreeMap::new(),
            groups: Vec::new(),
            free: BinaryHeap::new(),
            gone: BTreeSet::new(),
            ops: OpTable::new(),
            leaving: BTreeMap::new(),
            unexpected_token: 0,
            out: VecDeque::new(),
            acks: VecDeque::new(),
            queries: VecDeque::new(),
            copies: Copies::default(),
            gathered: Gathered::default(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            counters: Counters::default(),
            shares,
        }
    }

    fn group(&self, group: GroupId) -> Result<(usize, &Group), Refused> {
        let &at = self.index.get(&group).ok_or(Refused::NoGroup)?;
        let group = self.groups[at].as_ref().ok_or(Refused::NoGroup)?;
        Ok((at, group))
    }

    /// Records that the group may have something to do.
    fn touch(&mut self, at: usize) {
        if let Some(group) = self.groups[at].as_mut().filter(|g| !g.queued) {
            group.queued = true;
            self.ready.push_back(at);
        }
    }

    /// Takes the outcome for bytes that [`crate::Placement::Write`] or [`Output::Place`] named.
    /// `extent` may cover many packets, or parts of the first and the last. Bytes that were
    /// [`Outcome::Ok`] once stay placed, and the driver does not report them again. This holds even
    /// if another part of their packet is [`Outcome::Corrupt`] and the packet comes again.
    pub fn placed(&mut self, now: Time, extent: Extent, outcome: Outcome) {
        let Some(&Entry {
            group: at,
            stream,
            base,
            ..
        }) = self.ops.get(extent.op)
        else {
            return;
        };
        if let (Some(group), Stream::At(place)) = (self.groups[at].as_mut(), stream) {
            let (scheme, out) = (&self.config.scheme, &mut self.out);
            if let Some(mut stream) = group.streams.change(scheme, place) {
                stream.placed(now, scheme, (extent, base), outcome, out);
            }
        }
        self.touch(at);
    }

    /// The driver reports that the transport does not read the payload of `token` any more.
    pub fn sent(&mut self, _now: Time, token: Token) {
        let op = OpId(token.0 as u32);
        if let Some(out) = self.leaving.get_mut(&op) {
            *out -= 1;
            if *out == 0 {
                self.leaving.remove(&op);
                self.out.push_back(Output::Release(op));
            }
        } else if let Some(&Entry {
            group,
            stream,
            base,
            ..
        }) = self.ops.get(op)
            && let Some(group) = self.groups[group].as_mut()
        {
            let (scheme, out) = (&self.config.scheme, &mut self.out);
            match stream {
                Stream::Own => group.sender(&self.config).sent(base, out),
                Stream::At(place) => {
                    if let Some(mut stream) = group.streams.change(scheme, place) {
                        stream.sent(base, out);
                    }
                }
            }
        }
    }

    /// Whether a broadcast of `len` bytes to the group is copied when it is sent
    /// ([`Scheme::copies`]). False for a group that this node does not have.
    pub fn copies(&self, group: GroupId, len: u64) -> bool {
        let group = self.group(group);
        group.is_ok_and(|(_, g)| self.config.scheme.copies(len, g.payload_size))
    }

    /// Whether an object of `len` bytes that is copied for a broadcast to the group can be copied
    /// now: if the scheme copies it into the window, each of its packets has a free slot there.
    pub fn has_slots(&self, group: GroupId, len: u64) -> bool {
        let scheme = &self.config.scheme;
        let has_slots = |(_, g): (usize, &Group)| {
            let packets = len.div_ceil(u64::from(g.payload_size)).max(1);
            u64::from(g.packets_under_way()) + packets <= u64::from(scheme.window)
        };
        // A broadcast to a group that this node does not have is refused for that.
        scheme.copied != Copied::IntoWindow || self.group(group).map_or(true, has_slots)
    }

    /// The scheme in use. The driver executes the parts that concern bytes (`checksum`, `copied`).
    pub fn scheme(&self) -> &Scheme {
        &self.config.scheme
    }

    /// Counters since the node was made.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The members of a group as its sender sees them, this node left out.
    pub fn members(&self, group: GroupId) -> impl Iterator<Item = MemberStatus> + '_ {
        let sender = self.group(group).ok().and_then(|(_, g)| g.own.get());
        sender.into_iter().flat_map(Sender::status)
    }

    /// Members that have answered no probe yet, while the node proves the group.
    pub fn unanswered(&self, group: GroupId) -> impl Iterator<Item = NodeId> + '_ {
        let group = self.group(group).ok();
        let prover = group.and_then(|(_, g)| g.prover.as_ref());
        prover.into_iter().flat_map(Prover::unanswered)
    }

    /// The rate at which this node sends to the group, in bytes of UDP payload per second.
    pub fn rate(&self, group: GroupId) -> Option<u64> {
        let (_, group) = self.group(group).ok()?;
        let sender = group.own.get()?;
        Some(self.config.rate.unwrap_or_else(|| sender.rate()))
    }

    /// Whether this node's stream to a group waits for its turn to send at the node's fixed rate,
    /// or has it: it has something to send, and only the rate and other streams hold it back.
    pub fn takes_turns(&self, group: GroupId) -> bool {
        let has_turn = self.shares.as_ref().is_some_and(|s| s.has_turn(group));
        has_turn || self.group(group).is_ok_and(|g| g.1.waits_for_turn())
    }

    /// Bytes of this node's broadcasts to a group that it has never sent, each packet counted in
    /// full. A caller that keeps few of them under way admits members early: they get what is
    /// broadcast after they have joined.
    pub fn unsent(&self, group: GroupId) -> u64 {
        let group = self.group(group).ok();
        let sender = group.and_then(|(_, g)| Some((g.own.get()?, g.payload_size)));
        sender.map_or(0, |(sender, size)| sender.unsent() * u64::from(size))
    }

    /// Whether this node can send no new packet to a group: its members' windows are closed, or all
    /// of its broadcasts have been sent. Its rate is not asked.
    pub fn is_stopped(&self, group: GroupId) -> bool {
        let group = self.group(group).ok();
        let sender = group.and_then(|(_, g)| g.own.get());
        sender.is_none_or(Sender::is_stopped)
    }

    /// Whether no member of the group waits for this node, and this node waits for no member. The
    /// group may then be removed, or the process may end. (For all groups together,
    /// [`Output::Wait`] of `None` says so.)
    pub fn is_quiet(&self, _now: Time, group: GroupId) -> bool {
        let quiet =
            |g: &Group| !g.queued && !g.waits_for_turn() && g.wake(&self.config.scheme).is_none();
        self.group(group).is_ok_and(|(_, g)| quiet(g))
    }

    /// Number of payloads that the driver keeps for broadcasts not posted yet.
    pub fn unexpected(&self) -> usize {
        let groups = self.groups.iter().flatten();
        let streams = groups.flat_map(|g| g.streams.iter());
        streams.map(Receiver::unexpected).sum()
    }

    /// Panics if the node's state contradicts itself. It checks all groups, so only tests and soaks
    /// call it.
    pub fn invariants(&self) {
        assert!(self.timers.len() <= timers_max(self.groups.len()));
        self.ops.invariants();
        let none = |&Reverse(at): &Reverse<usize>| self.groups[at].is_none();
        assert!(self.free.iter().all(none));
        assert_eq!(self.free.len() + self.index.len(), self.groups.len());
        for group in self.groups.iter().flatten() {
            group.own.invariants(&self.config.scheme);
            for stream in group.streams.iter() {
                let sender = stream.sender();
                assert!(sender != self.config.node && !group.gone.contains(&sender));
                let found = group
                    .begun(sender)
                    .and_then(|place| group.streams.get(place));
                assert!(found.is_some_and(|s| s.sender() == sender));
            }
            group.streams.invariants(&self.config.scheme);
            if let Some(words) = &group.words {
                words.invariants();
            }
        }
    }
}

/// Timers that a node with this many groups keeps at most, including obsolete ones.
fn timers_max(groups: usize) -> usize {
    2 * groups + 8
}
