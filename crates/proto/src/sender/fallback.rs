//! Path fallback: a member that multicast does not reach, or that is behind, has a path of its own,
//! and returns to the group's path when it hears multicast again and has caught up (P4.6).

use std::collections::VecDeque;

use super::Sender;
use super::member::{GROUP_PATH, Member};
use super::reachability::{REPROBE_MAX, REPROBE_MIN};
use crate::border::{Event, Output, PathState};
use crate::id::NodeId;
use crate::nonce::Nonces;
use crate::path::{Losses, Target, Transmission};
use crate::time::Time;
use crate::wire::{Feedback, Probe, flag};

impl Sender {
    /// Gives member `i` a path of its own.
    pub(super) fn fall_back_to_unicast(&mut self, i: usize, path_state: PathState) {
        let sent = self.paths[GROUP_PATH].as_ref().map(|l| l.window.next());
        let (node, cum) = (self.members[i].node, self.members[i].cum);
        // In a tree the path serves all receivers below the member, too.
        let members = match self.is_tree() {
            true => 0..self.members.len() as u32,
            false => i as u32..i as u32 + 1,
        };
        let mut path = self.paths.create(Target::Node(node), cum, Some(members));
        if let Some(sent) = sent {
            path.window.skip_to(sent.max(cum));
        }
        path.follows = path_state == PathState::Multicast;
        self.members[i].losses = Losses::default();
        // The group's rate is proven only if packets were sent at it. If none were, the new path
        // finds its own rate.
        if let Some(group) = &self.paths[self.members[i].path]
            && group.pacer.bytes() > 0
        {
            path.pacer.begin_at(group.pacer.rate() / 2);
        }
        let at = self.paths.add(path);
        self.members[i].path_state = path_state;
        self.move_to(i, at);
    }

    /// Takes the path state that a proof has found for a member.
    pub fn set_path_state(
        &mut self,
        node: NodeId,
        path_state: PathState,
        out: &mut VecDeque<Output>,
    ) {
        if path_state == PathState::Nothing {
            return self.remove(node, out);
        }
        if let Some(i) = self.index_of(node)
            && path_state == PathState::Unicast
            && self.members[i].path_state != path_state
            && self.members[i].is_mine()
        {
            self.fall_back_to_unicast(i, path_state);
        }
    }

    /// Takes the number of probes that a member needed to answer.
    pub fn proven(&mut self, node: NodeId, probes: u32) {
        if let Some(i) = self.index_of(node) {
            self.members[i].probes = probes;
        }
    }

    pub(super) fn move_to(&mut self, i: usize, path: usize) {
        let from = core::mem::replace(&mut self.members[i].path, path);
        if from != path {
            if let Some(l) = self.paths[from].as_mut() {
                l.window.forget(i as u32);
                l.pacer.require(i, false);
            }
            if from == GROUP_PATH
                && let Some(demand) = &mut self.parity_requests
            {
                demand.forget(i as u32);
            }
            if from != GROUP_PATH {
                self.paths[from] = None;
            } else {
                self.update_window(from);
                self.weigh(from);
            }
        }
        self.update_window(path);
        self.weigh(path);
    }

    /// New packets that the group's path has sent.
    pub(super) fn group_fresh(&self) -> u32 {
        self.paths[GROUP_PATH].as_ref().map_or(0, |l| l.fresh)
    }

    /// Watches whether multicast still reaches a member of the group's path. `as_of`: the newest
    /// burst that had reached the member, if it names one. What was sent later may still wait in
    /// the queue of a slow link.
    pub(super) fn detect_path_fallback(
        &mut self,
        (now, as_of): (Time, Option<u32>),
        i: usize,
        f: &Feedback<'_>,
        out: &mut VecDeque<Output>,
    ) {
        let all = self.group_fresh();
        let next = as_of.and_then(|burst| self.bursts.get(burst.wrapping_add(1)));
        let (as_of, sent) = match as_of.map(|burst| self.bursts.get(burst)) {
            Some(Some(burst)) => (burst.at, burst.group_fresh),
            // What was sent since a burst that is forgotten says nothing.
            Some(None) => return,
            None => (now, all),
        };
        let may_have = next.map_or(all, |next| next.group_fresh);
        let rtt = self.rtt.smoothed().unwrap_or_default();
        let has_all = f.cum == self.ops.sent;
        let m = &mut self.members[i];
        let counts = (f.received, sent, m.repairs as u32);
        // In a tree it is receivers below a member that has all that lack something.
        m.hearing
            .note_repairs(as_of, m.had, has_all, m.repairs as u32);
        if m.path_state != PathState::Multicast || !m.is_ready() {
            m.hearing
                .start(as_of, (f.received, may_have, m.repairs as u32));
        } else if m
            .hearing
            .is_lost((now, as_of), counts, may_have, rtt, m.losses.tries())
        {
            let node = m.node;
            self.fall_back_to_unicast(i, PathState::Unicast);
            out.push_back(Output::Event(Event::Path {
                group: self.group,
                node,
                path_state: PathState::Unicast,
            }));
        }
    }

    /// Chooses a member that the sender probes by multicast now, if one is due.
    pub(super) fn reprobe_paths(&mut self, now: Time) {
        // A group without an address has no multicast to return to.
        if self.relay.is_some() || self.is_pair() || self.to_each {
            return;
        }
        let end = self.ops.end;
        let mut first = None::<(Time, usize)>;
        for (i, m) in self.members.iter_mut().enumerate() {
            if m.path_state != PathState::Unicast || !m.is_behind(end) {
                continue;
            }
            let reprobe = &mut m.reprobe;
            let at = *reprobe.at.get_or_insert_with(|| {
                if now.since(reprobe.reached) > REPROBE_MAX {
                    reprobe.wait = REPROBE_MIN;
                }
                now + reprobe.wait
            });
            if at <= now && first.is_none_or(|f| at < f.0) {
                first = Some((at, i));
            }
        }
        if let Some((_, i)) = first {
            let m = &mut self.members[i];
            m.reprobe.wait = (m.reprobe.wait * 2).min(REPROBE_MAX);
            m.reprobe.at = Some(now + m.reprobe.wait);
            self.probing.reprobes.push_back(m.node);
        }
    }

    /// The next probe of path re-probing: only the named member answers it.
    pub fn next_reprobe(&mut self, nonces: &mut Nonces) -> Option<Transmission> {
        let node = self.probing.reprobes.pop_front()?;
        let i = self.index_of(node)?;
        let nonce = nonces.multicast();
        self.members[i].reprobe.nonce = Some(nonce);
        Some(Transmission::Probe(Probe {
            group: self.group,
            nonce,
            flags: flag::MULTICAST | flag::ALONE,
            only: Some(node),
            by: None,
        }))
    }

    /// Takes a member's answer to the probe with this nonce: multicast reaches the member again.
    /// Returns false if that is not the member's last probe, or not the first answer.
    pub fn on_reprobe_ack(
        &mut self,
        now: Time,
        (node, nonce): (NodeId, u32),
        out: &mut VecDeque<Output>,
    ) -> bool {
        let Some(i) = self.index_of(node) else {
            return false;
        };
        let sent = self.group_fresh();
        let m = &mut self.members[i];
        if m.path_state != PathState::Unicast || !m.is_mine() || m.reprobe.nonce != Some(nonce) {
            return false;
        }
        m.path_state = PathState::Multicast;
        (m.reprobe.at, m.reprobe.reached, m.reprobe.nonce) = (None, now, None);
        m.hearing.start(now, (m.seen.3, sent, m.repairs as u32));
        let (cum, limit, ready) = (m.cum, m.limit, m.is_ready());
        if let Some(l) = &mut self.paths[m.path] {
            l.follows = true;
        }
        self.follow_group();
        self.on_progress(i, cum, limit, ready);
        out.push_back(Output::Event(Event::Path {
            group: self.group,
            node,
            path_state: PathState::Multicast,
        }));
        true
    }

    /// Moves member `i` from its own path to the group's path.
    pub(super) fn return_to_group_path(&mut self, i: usize) {
        let alone = self.paths[self.members[i].path].as_ref();
        let sent = alone.map(|l| l.window.next());
        let mut others = self.members.iter().filter(|m| m.path == GROUP_PATH);
        // If no other member needs packets that the group has not been sent, the group need not be
        // sent the packets that this member has been sent.
        if let Some(sent) = sent
            && !others.any(Member::is_mine)
            && let Some(group) = &mut self.paths[GROUP_PATH]
        {
            group.window.skip_to(sent);
            self.follow_group();
        }
        self.move_to(i, GROUP_PATH);
    }

    /// Lets the paths of members that hear the group skip the packets that the group has been sent.
    /// If one of these packets is missing at the member, its path repairs it.
    pub(super) fn follow_group(&mut self) {
        let Some(next) = self.paths[GROUP_PATH].as_ref().map(|l| l.window.next()) else {
            return;
        };
        for path in self.paths.iter_mut().filter(|l| l.follows) {
            path.window.skip_to(next);
        }
    }

    /// Whether multicast reaches this member, as far as the sender knows.
    pub fn hears(&self, node: NodeId) -> bool {
        let found = self.index_of(node);
        found.is_some_and(|i| {
            !self.members[i].gone && self.members[i].path_state == PathState::Multicast
        })
    }
}
