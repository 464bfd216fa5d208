//! Flow control: how far each path may send. The slowest member of a path that is ready keeps its
//! window's base, and the smallest advertised window its right edge.

use core::time::Duration;

use super::GRACE;
use super::Sender;
use super::member::{GROUP_PATH, Member};
use crate::border::PathState;
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;

impl Sender {
    /// Members whose progress a path waits for: those that are ready, or that have everything.
    pub(super) fn counts(&self, m: &Member, path: usize) -> bool {
        m.path == path && m.is_mine() && (m.is_ready() || m.cum == self.ops.end || self.is_tree())
    }

    /// Whether new packets wait for what this member can take.
    pub(super) fn limits(&self, m: &Member) -> bool {
        m.is_ready() || self.is_tree() && m.cum != self.ops.end
    }

    /// Finds a path's base and limit anew.
    pub(super) fn update_window(&mut self, path: usize) {
        let Some(l) = &self.paths[path] else { return };
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
            if let Some(b) = base.filter(|b| old.before(*b)) {
                l.window.release(b);
                if let Some(demand) = self.parity_requests.as_mut().filter(|_| path == GROUP_PATH) {
                    demand.release(b);
                }
            }
            l.at_base = at_base;
            (l.limit, l.at_limit) = (limit, at_limit);
        }
        self.follow(path);
    }

    /// Finds anew how lossy the ways of a path's members are.
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

    /// A member's numbers have changed: the path may go on, or the member changes paths.
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
        // Most reports move neither the base nor the limit: then nobody else need be looked at.
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

    /// Whether a path may send a new packet, its pace aside.
    pub(super) fn is_open(&self, at: usize) -> bool {
        let Some(l) = &self.paths[at] else {
            return false;
        };
        let next = l.window.next();
        let room = l.limit.is_some_and(|x| next.before(x)) && l.window.has_room();
        if !room || !next.before(self.ops.end) || self.relay.is_some() {
            return false;
        }
        // A member that hears the group gets new packets by the group's path, while others take
        // them.
        let group = self.paths[GROUP_PATH].as_ref();
        if l.follows && group.is_some_and(|g| g.limit.is_some()) {
            return false;
        }
        let most = self.ops.queue.get(self.broadcasts as usize);
        most.is_none_or(|op| next.before(op.base))
    }

    /// The first packet waits a little for members that have not been heard.
    pub(super) fn may_start(&self, now: Time) -> bool {
        self.started.is_none_or(|t| now.since(t) >= GRACE) || self.unheard == 0
    }

    /// How long a path waits for others' reports of a loss: not at all if there are no others, and
    /// not for long if it has nothing else to send.
    pub(super) fn nack_delay(&self, at: usize, scheme: &Scheme) -> Duration {
        let delay = scheme.repair.nack_delay;
        match self.rtt.smoothed() {
            _ if at != GROUP_PATH || self.members.len() == 1 => Duration::ZERO,
            Some(rtt) if !self.is_open(at) => delay.min(rtt / 4),
            _ => delay,
        }
    }

    /// Losses of a path that were reported until then are repaired now; `None`: none can be yet.
    pub(super) fn repair_nacks_until(&self, now: Time, at: usize, scheme: &Scheme) -> Option<Time> {
        let delay = self.nack_delay(at, scheme).as_nanos() as u64;
        now.0.checked_sub(delay).map(Time)
    }
}
