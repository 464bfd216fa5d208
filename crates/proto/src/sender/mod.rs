//! The sending side of a stream: one sender's broadcasts to one group. A co-root has one, too, for
//! the receivers that report to it: there the sender sends the new packets, and the co-root only
//! repairs.
//!
//! A sender sends over *paths*. The first path is the group's multicast; a member that multicast
//! does not reach, or that is behind, has a path of its own: "a group of one". A path has a
//! window, a queue of repairs and a pacer, so one mechanism serves all. A member belongs to one
//! path at a time, and only members that are ready (their window is open) hold a path back.
//!
//! ```text
//!   ops:    [ op 0 ........ )[ op 1 . )            numbered without a hole
//!   path 0:      base ······ next                  multicast, its members' slowest and its newest
//!   path 1:  base ·· (skipped) ·· next             one member that is behind: repairs only
//! ```

mod acks;
mod budget;
mod cheaper;
mod coroot;
mod declines;
mod fallback;
mod flow_control;
mod joins;
mod member;
mod nacks;
mod operations;
mod parity;
mod paths;
mod poll;
mod probing;
mod reachability;
mod shares;

use core::time::Duration;
use std::collections::VecDeque;

use crate::border::{Config, Event, MemberStatus, Output, PathState, Refused};
use crate::id::{Cut, GroupId, NodeId, OpId};
use crate::membership::Membership;
use crate::mutant::{self, Mutant};
use crate::path::{Bursts, Op, RttEstimator, Target};
use crate::repair::ParityRequests;
use crate::scheme::FeedbackTopology;
use crate::seq::Seq;
use crate::time::Time;
use budget::Budget;
use member::{GROUP_PATH, Member};
use operations::Operations;
use paths::Paths;
use shares::StreamShare;

pub use member::MemberConfig;
pub use shares::Shares;

/// Longest time that a sender waits for members that have not been heard.
const GRACE: Duration = Duration::from_millis(50);

/// The sending side of a stream.
pub struct Sender {
    group: GroupId,
    /// Whether the group has no address, so that each member gets a copy of what goes to all.
    to_each: bool,
    /// The stream that this node repairs; `None` unless it is a co-root.
    relay: Option<Relay>,
    topology: FeedbackTopology,
    by_sender: bool,
    broadcasts: u32,
    /// Members that are co-roots.
    coroots: Vec<u32>,
    /// Which node holds which slot.
    membership: Membership,
    /// What the sender knows of each slot's holder, or of its last one, by slot.
    members: Vec<Member>,
    paths: Paths,
    share: StreamShare,
    /// What members of the group's path lack, if the sender repairs it by code blocks.
    parity_requests: Option<ParityRequests>,
    ops: Operations,
    bursts: Bursts,
    budget: Budget,
    probing: Probing,
    /// When the first broadcast began.
    started: Option<Time>,
    /// Members that have never been heard.
    unheard: usize,
    /// Whether a member has ever declined an operation.
    declined: bool,
    /// Whether the first packets leave before all members have been heard.
    begins_unheard: bool,
    /// Whether [`GRACE`] is over.
    grace_over: bool,
    rtt: RttEstimator,
}

/// What a co-root knows of the stream that it repairs.
#[derive(Clone, Copy, Debug)]
struct Relay {
    /// The sender of the stream.
    sender: NodeId,
    /// This node has placed everything before this, and so can repair it.
    have: Seq,
    /// This node knows that everything before this has been sent.
    high: Seq,
}

/// Which members the sender probes, and when it looks for silent ones.
#[derive(Clone, Debug, Default)]
struct Probing {
    /// Destinations of the probes that are due.
    queue: VecDeque<Target>,
    /// Members on unicast that the sender is to probe by multicast.
    reprobes: VecDeque<NodeId>,
    /// Index of the member whose turn it is to be probed alone.
    next: usize,
    /// When the sender looks for silent members next.
    due: Option<Time>,
    /// When the sender last looked for silent members, or when operations began after a pause.
    checked: Time,
}

impl Sender {
    /// Creates the sending side of a stream that has no broadcast yet. `members` are the receivers,
    /// sorted by node. The first packet gets number `start`. `relay` is the stream's sender if this
    /// node is a co-root.
    pub fn new(
        config: &Config,
        (group, relay): (GroupId, Option<NodeId>),
        members: &[MemberConfig],
        payload_size: u32,
        start: Seq,
    ) -> Sender {
        let window = config.scheme.window.next_power_of_two();
        let coroots = (0..).zip(members).filter(|(_, m)| m.coroot);
        let blocks =
            relay.is_none() && Sender::codes_blocks(&config.scheme, members.len(), payload_size);
        let first = match relay {
            None => config.first_packets(),
            Some(_) => 0,
        };
        let mut sender = Sender {
            group,
            to_each: false,
            relay: relay.map(|sender| Relay {
                sender,
                have: start,
                high: start,
            }),
            topology: config.scheme.topology,
            by_sender: config.scheme.detect.by_sender,
            broadcasts: config.scheme.broadcasts,
            coroots: coroots.map(|(i, _)| i).collect(),
            membership: Membership::new(members.iter().map(|m| m.node)),
            members: members
                .iter()
                .map(|m| {
                    Member::new(
                        m.node,
                        start,
                        m.path_state == PathState::Nothing,
                        m.delegated,
                    )
                })
                .collect(),
            paths: Paths::new(window, config.rate),
            share: StreamShare::new(group, relay.is_none()),
            parity_requests: blocks.then(|| ParityRequests::new(window)),
            ops: Operations::new(start),
            bursts: Bursts::new(),
            budget: Budget::new(config, relay.is_some(), payload_size),
            probing: Probing::default(),
            started: None,
            unheard: 0,
            declined: false,
            begins_unheard: first > 0,
            grace_over: false,
            rtt: RttEstimator::default(),
        };
        for m in members
            .iter()
            .filter(|m| m.path_state == PathState::Nothing)
        {
            sender.membership.leave(m.node);
        }
        let credit = sender.budget.most();
        for m in &mut sender.members {
            m.credit = credit;
            if m.is_mine() {
                m.limit = start + first;
            }
        }
        sender.unheard = sender.members.iter().filter(|m| m.is_mine()).count();
        // A group of two needs no multicast: each member sends to the other alone.
        let pair = members.len() == 1 && !mutant::active(Mutant::PairByGroup);
        let to = match pair {
            true => Target::Node(members[0].node),
            false => Target::All,
        };
        // With repair by code blocks, `parity_requests` counts losses: the window need not know
        // which member lacks what.
        let known = (!blocks).then_some(0..members.len() as u32);
        let path = sender.paths.create(to, start, known);
        sender.paths.add(path);
        for (i, m) in members.iter().enumerate() {
            if pair {
                sender.members[i].path_state = PathState::Unicast;
            } else if m.path_state == PathState::Unicast && !m.delegated {
                sender.fall_back_to_unicast(i, PathState::Unicast);
            }
        }
        sender.update_windows();
        sender
    }

    /// The slot that `node` holds.
    fn index_of(&self, node: NodeId) -> Option<usize> {
        self.membership.index_of(node)
    }

    /// Whether receivers report up a tree. A member of a tree cannot be served alone, so all wait
    /// for one another.
    fn is_tree(&self) -> bool {
        matches!(self.topology, FeedbackTopology::Tree(_))
    }

    /// Number of packets of broadcasts under way that were never sent.
    pub fn unsent(&self) -> u64 {
        self.ops.end.from(self.ops.sent).max(0) as u64
    }

    /// Whether the group's members let the sender send no new packet: the window is closed, or
    /// everything has been sent.
    pub fn is_stopped(&self) -> bool {
        !self.window_is_open(GROUP_PATH)
    }

    /// Rate of the group's path, in bytes of UDP payload per second; with a fixed rate the one that
    /// the node was made with.
    pub fn rate(&self) -> u64 {
        self.paths[GROUP_PATH]
            .as_ref()
            .map_or(0, |l| l.pacer.rate())
    }

    /// The node's fixed rate has changed. What receivers may ask for that they have not earned is
    /// still counted at the rate that the node was made with: at a rate near zero they could ask
    /// for nothing, and a stream that is asked for nothing does not ask for its share.
    pub fn rate_has_changed(&mut self) {
        self.share.rate_has_changed();
    }

    /// Sets the weight by which the stream shares the node's fixed rate.
    pub fn set_weight(&mut self, weight: u32) {
        self.share.set_weight(weight);
    }

    /// The stream's turn to send has begun ([`Shares::next_turn`]).
    pub fn begins_turn(&mut self) {
        self.share.begins();
    }

    /// Whether the stream waits for its turn to send: it has something to send, and only the node's
    /// fixed rate and the turns of other streams hold it back.
    pub fn waits_for_turn(&self) -> bool {
        self.share.waits()
    }

    /// Status of each receiver.
    pub fn status(&self) -> impl Iterator<Item = MemberStatus> + '_ {
        // A node that has come back in another slot is not shown in its former one.
        let former = |m: &&Member| m.gone && self.membership.index_of(m.node).is_some();
        let members = self.members.iter().filter(move |m| !former(m));
        let sent = self.paths[GROUP_PATH]
            .as_ref()
            .map_or(self.ops.sent, |path| path.window.next());
        members.map(move |m| MemberStatus {
            node: m.node,
            path_state: m.path_state,
            placed: m.placed,
            repairs: m.repairs,
            heard: m.heard,
            waited: m.waited,
            lacks: m.cum.before(sent),
            gone: m.gone,
        })
    }

    /// Number of packets of broadcasts under way that some receiver has not placed.
    pub fn packets_under_way(&self) -> u32 {
        let Some(first) = self.ops.queue.front() else {
            return 0;
        };
        // Not the window's base: that does not wait for members that are not ready, nor for members
        // that have a path of their own.
        let mine = self.members.iter().filter(|m| m.is_mine());
        let behind = mine.map(|m| self.ops.end.from(m.cum).max(0) as u32).max();
        let most = self.ops.end.from(first.base).unsigned_abs();
        behind.unwrap_or(0).min(most)
    }

    /// Begins a broadcast of `len` bytes, which `cut` divides into packets. `awaited`: the caller
    /// waits for its completion. Returns the number of its first packet.
    pub fn bcast(
        &mut self,
        now: Time,
        (id, len, cut): (OpId, u64, Cut),
        awaited: bool,
        out: &mut VecDeque<Output>,
    ) -> Result<Seq, Refused> {
        let first = self.ops.queue.is_empty();
        let base = self.ops.push((id, len, cut), awaited)?;
        if first {
            // The sender waited for no member while it had no operation.
            let sent = self.group_fresh();
            self.probing.checked = now;
            for m in &mut self.members {
                m.moved = now;
                m.gets_on(now);
                m.hearing.rest(now, sent);
            }
        }
        self.started.get_or_insert(now);
        self.skip_declined_ahead();
        // Members that have placed everything before this operation count no more, unless they are
        // ready for it.
        match self.is_tree() {
            true => self.update_windows(),
            false => self.update_window(GROUP_PATH),
        }
        self.count_waiting();
        self.finish(out);
        self.probing.due = Some(
            self.probing
                .due
                .map_or(now + GRACE / 5, |s| s.min(now + GRACE / 5)),
        );
        Ok(base)
    }

    fn count_waiting(&mut self) {
        let Some(end) = self.ops.queue.front().map(Op::end) else {
            self.ops.waiting = 0;
            return;
        };
        let lacks = |m: &&Member| m.is_mine() && m.cum_subtree.before(end);
        self.ops.waiting = self.members.iter().filter(lacks).count();
    }

    /// Completes operations that all members have placed, and releases those whose payloads the
    /// transport does not read any more.
    fn finish(&mut self, out: &mut VecDeque<Output>) {
        while self.ops.waiting == 0 {
            let Some(op) = self.ops.queue.front_mut() else {
                break;
            };
            if self.relay.is_some_and(|r| r.have.before(op.end())) {
                break;
            }
            if !op.complete {
                op.complete = true;
                if self.relay.is_none() {
                    out.push_back(Output::Event(Event::Complete(op.id)));
                }
            }
            if op.out > 0 && !mutant::active(Mutant::ReleasesBeforeSent) {
                break;
            }
            let end = op.end();
            out.push_back(Output::Release(op.id));
            self.ops.queue.pop_front();
            // Without members nothing of it was left to send.
            self.ops.sent = self.ops.sent.max(end);
            // All members have placed everything before `end`. Paths whose members sent no feedback
            // on it follow.
            for path in self.paths.iter_mut() {
                if path.window.base().before(end) {
                    path.window.release(end);
                }
            }
            if let Some(demand) = &mut self.parity_requests {
                demand.release(end);
            }
            self.count_waiting();
        }
    }

    /// First packet and length of the operation under way to which packet `seq` belongs.
    pub fn describes(&self, seq: Seq) -> Option<(Seq, u64)> {
        self.ops.describes(seq)
    }

    /// Broadcasts with unfinished transmissions, and the number of these transmissions.
    pub fn unfinished(&self) -> impl Iterator<Item = (OpId, u32)> + '_ {
        let out = self.ops.queue.iter().filter(|op| op.out > 0);
        out.map(|op| (op.id, op.out))
    }

    /// A payload of the operation whose first packet is `base` is sent again, this many times.
    pub fn sends_again(&mut self, base: Seq, times: u32) {
        let at = self.ops.position(base);
        if let Some(op) = self.ops.queue.get_mut(at).filter(|op| op.base == base) {
            op.out += times;
        }
    }

    /// Sets whether the group has no address, so that a datagram leaves for each member that
    /// multicast would serve. The pacer counts them all.
    pub fn set_to_each(&mut self, to_each: bool) {
        self.to_each = to_each;
    }

    /// Datagrams that leave for one to the group.
    fn copies(&self) -> u32 {
        let is_served = |m: &&Member| !m.gone && m.path_state == PathState::Multicast;
        match self.to_each {
            true => self.members.iter().filter(is_served).count().max(1) as u32,
            false => 1,
        }
    }

    /// The transport does not read a payload any more. It belongs to the operation whose first
    /// packet is `base`.
    pub fn sent(&mut self, base: Seq, out: &mut VecDeque<Output>) {
        let at = self.ops.position(base);
        if let Some(op) = self.ops.queue.get_mut(at).filter(|op| op.base == base) {
            op.out -= 1;
        }
        self.finish(out);
    }

    /// Panics if the state contradicts itself. Tests and soaks call it after every change.
    pub fn invariants(&self) {
        for path in self.paths.iter().flatten() {
            path.window.invariants();
            assert!(!self.ops.end.before(path.window.base()));
        }
        if let Some(demand) = &self.parity_requests {
            demand.invariants();
        }
        for (at, path) in self.paths.iter().enumerate() {
            let Some(path) = path else { continue };
            let held = |m: &&Member| m.path == at && m.is_mine() && self.limits(m);
            let limits = self.members.iter().filter(held).map(|m| m.limit);
            let limit = limits.clone().reduce(Seq::min);
            assert_eq!(path.limit, limit, "path {at}");
            // A member that is counted although it holds nothing back would hold the path for ever.
            if at == GROUP_PATH {
                let at_limit = limits.filter(|l| Some(*l) == limit).count();
                assert!(path.at_limit as usize <= at_limit, "path {at}'s limit");
                let base = path.window.base();
                let held = |m: &&Member| self.counts(m, at) && !base.before(m.cum);
                let at_base = self.members.iter().filter(held).count();
                assert!(path.at_base as usize <= at_base, "path {at}'s base");
            }
        }
        assert!(!self.ops.end.before(self.ops.sent));
        self.membership.invariants();
        assert_eq!(self.membership.len(), self.members.len());
        for (i, m) in self.members.iter().enumerate() {
            let unsent = m.cum == m.first || self.declined;
            assert!(self.relay.is_some() || unsent || !self.ops.sent.before(m.cum));
            let held = self.membership.index_of(m.node) == Some(i);
            assert_eq!(held, !m.gone, "slot {i}");
            assert!(!self.ops.end.before(m.cum));
            if !m.is_mine() {
                continue;
            }
            let path = self.paths[m.path].as_ref();
            assert!(path.is_some(), "member {i} has lost its path");
            if let Some(l) = path {
                let held = m.cum.before(l.window.base());
                assert!(!held || !m.is_ready(), "path passed ready member {i}");
            }
        }
    }
}
