//! Flow control: how far each path may send. Of a path's members that are ready, the slowest keeps
//! the window's base, and the smallest advertised window keeps its right edge.

use core::time::Duration;
use std::collections::VecDeque;

use super::GRACE;
use super::Sender;
use super::member::{GROUP_PATH, Member};
use crate::border::{Event, Output, PathState};
use crate::id::NodeId;
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;

impl Sender {
    /// Whether a path waits for the progress of this member: the member is ready or has everything,
    /// or the topology is a tree.
    pub(super) fn counts(&self, m: &Member, path: usize) -> bool {
        m.path == path && m.is_mine() && (m.is_ready() || m.cum == self.ops.end || self.is_tree())
    }

    /// Whether new packets wait for the advertised window of this member.
    pub(super) fn limits(&self, m: &Member) -> bool {
        m.is_ready() || self.is_tree() && m.cum != self.ops.end
    }

    /// Recomputes the base and the limit of every path.
    pub(super) fn update_windows(&mut self) {
        for path in 0..self.paths.len() {
            self.update_window(path);
        }
    }

    /// Recomputes the base and the limit of a path.
    pub(super) fn update_window(&mut self, path: usize) {
        self.skip_unwanted(path);
        let Some(l) = &self.paths[path] else { return };
        // What nobody has been sent is not skipped. A member that has joined, or that declines,
        // waits for packets after that, so it holds no base. A co-root's receivers have packets
        // that the co-root has not sent.
        let most = match self.relay {
            None => Some(l.window.next()),
            Some(_) => None,
        };
        let (mut base, mut at_base) = (None::<Seq>, 0);
        let (mut limit, mut at_limit) = (None::<Seq>, 0);
        for m in self.members.iter().filter(|m| self.counts(m, path)) {
            match base {
                Some(b) if b.before(m.cum) => {}
                Some(b) if b == m.cum => at_base += 1,
                _ => (base, at_base) = (Some(m.cum), 1),
            }
            match limit {
                _ if !self.limits(m) => {}
                Some(l) if l.before(m.limit) => {}
                Some(l) if l == m.limit => at_limit += 1,
                _ => (limit, at_limit) = (Some(m.limit), 1),
            }
        }
        let old = l.window.base();
        if let Some(l) = &mut self.paths[path] {
            let unsent = |b: Seq| most.filter(|most| most.before(b));
            let held = base.map(|b| unsent(b).unwrap_or(b));
            if let Some(b) = held.filter(|b| old.before(*b)) {
                l.window.release(b);
                if let Some(demand) = self.parity_requests.as_mut().filter(|_| path == GROUP_PATH) {
                    demand.release(b);
                }
            }
            l.at_base = match base.and_then(unsent) {
                Some(_) => 0,
                None => at_base,
            };
            (l.limit, l.at_limit) = (limit, at_limit);
        }
        self.follow(path);
    }

    /// Recomputes how lossy the way to each member of a path is.
    pub(super) fn weigh(&mut self, path: usize) {
        let Some(l) = &mut self.paths[path] else {
            return;
        };
        let mine = self
            .members
            .iter()
            .filter(|m| m.path == path && m.is_mine());
        let lossy = mine.map(|m| m.losses.tries()).filter(|t| *t > 1);
        let (most, lossy) = lossy.fold((1, 0), |(most, n), t| (t.max(most), n + 1));
        l.lossy = lossy;
        l.window.expect(most);
    }

    /// Takes changed numbers of a member: the path may go on, or the member changes paths.
    pub(super) fn on_progress(&mut self, i: usize, old_cum: Seq, old_limit: Seq, was_ready: bool) {
        let (at, cum, limit, ready, unicast) = {
            let m = &self.members[i];
            (
                m.path,
                m.cum,
                m.limit,
                m.is_ready(),
                m.path_state == PathState::Unicast,
            )
        };
        let group_base = self.paths[GROUP_PATH].as_ref().map(|l| l.window.base());
        let behind = group_base.is_some_and(|b| cum.before(b));
        if at == GROUP_PATH && ready && behind {
            return self.fall_back_to_unicast(i, PathState::Multicast);
        }
        if at != GROUP_PATH && !unicast && !behind {
            return self.return_to_group_path(i);
        }
        let (tree, end) = (self.is_tree(), self.ops.end);
        let Some(l) = &mut self.paths[at] else { return };
        if !ready {
            l.pacer.require(i, false);
        }
        // Most reports move neither the base nor the limit. Then no other member need be looked at.
        let base = l.window.base();
        let holds = |cum: Seq, ready: bool| cum == base && (ready || cum == end);
        let (held, holds) = (holds(old_cum, was_ready), holds(cum, ready));
        l.at_base = l.at_base.saturating_sub(u32::from(held)) + u32::from(holds);
        let limits = |limit: Seq, ready: bool| ready && l.limit == Some(limit);
        let (limited, limits) = (limits(old_limit, was_ready), limits(limit, ready));
        l.at_limit = l.at_limit.saturating_sub(u32::from(limited)) + u32::from(limits);
        if tree
            || at != GROUP_PATH && was_ready != ready
            || l.at_base == 0
            || l.limit.is_some() && l.at_limit == 0
            || ready && l.limit.is_none_or(|x| limit.before(x))
        {
            self.update_window(at);
        }
    }

    /// Whether a path may send a new packet, apart from its pacer.
    pub(super) fn window_is_open(&self, at: usize) -> bool {
        let Some(l) = &self.paths[at] else {
            return false;
        };
        let next = l.window.next();
        let room = l.limit.is_some_and(|x| next.before(x)) && l.window.has_room();
        if !room || !next.before(self.ops.end) || self.relay.is_some() {
            return false;
        }
        // A member that hears the group gets new packets by multicast, while other members take
        // them.
        let group = self.paths[GROUP_PATH].as_ref();
        if l.follows && group.is_some_and(|g| g.limit.is_some()) {
            return false;
        }
        let most = self.ops.queue.get(self.broadcasts as usize);
        most.is_none_or(|op| next.before(op.base))
    }

    /// Sets whether the group may outpace a member that holds the rate for the time `may_hold`.
    pub fn may_outpace(&mut self, node: NodeId, may_hold: Option<Duration>) {
        let i = self.index_of(node);
        if let Some((i, group)) = i.zip(self.paths[GROUP_PATH].as_mut()) {
            group.pacer.may_outpace(i, may_hold);
        }
    }

    /// Reports the members that the group would outpace.
    pub(super) fn report_outpaced(&mut self, out: &mut VecDeque<Output>) {
        let Some(path) = self.paths[GROUP_PATH].as_mut() else {
            return;
        };
        while let Some(i) = path.pacer.take_outpaced() {
            out.push_back(Output::Event(Event::Outpaced {
                group: self.group,
                node: self.members[i].node,
            }));
        }
    }

    /// Whether new packets may be sent: they wait up to [`GRACE`] for members that have not been
    /// heard. If members hold some packets until they are posted, their windows say how many.
    pub(super) fn may_start(&self, now: Time) -> bool {
        self.may_start_at().is_none_or(|t| now >= t)
    }

    /// When new packets may be sent although not all members have been heard; `None`: only windows
    /// hold them back.
    pub(super) fn may_start_at(&self) -> Option<Time> {
        self.grace_ends().filter(|_| !self.begins_unheard)
    }

    /// When the sender ceases to wait for members that have not been heard, if it waits for any.
    pub(super) fn grace_ends(&self) -> Option<Time> {
        let waits = self.unheard > 0 && !self.grace_over;
        self.started.filter(|_| waits).map(|t| t + GRACE)
    }

    /// From now on members that have not been heard hold nothing back.
    pub(super) fn end_grace(&mut self) {
        self.grace_over = true;
        for m in self.members.iter_mut().filter(|m| m.heard.is_none()) {
            m.limit = m.cum;
        }
        self.update_windows();
    }

    /// NACK aggregation delay of a path: how long it waits for further members' NACKs of a loss.
    /// Zero if there are no other members, and short if the path has nothing else to send.
    pub(super) fn nack_delay(&self, at: usize, scheme: &Scheme) -> Duration {
        let delay = scheme.repair.nack_delay;
        match self.rtt.smoothed() {
            _ if at != GROUP_PATH || self.members.len() == 1 => Duration::ZERO,
            Some(rtt) if !self.window_is_open(at) => delay.min(rtt / 4),
            _ => delay,
        }
    }

    /// The time until which a NACK must have come for the path to repair the loss now; `None`: no
    /// loss can be repaired yet.
    pub(super) fn repair_nacks_until(&self, now: Time, at: usize, scheme: &Scheme) -> Option<Time> {
        let delay = self.nack_delay(at, scheme).as_nanos() as u64;
        now.0.checked_sub(delay).map(Time)
    }
}
