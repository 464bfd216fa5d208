//! A group that breaks off: in one operation its members did not call the same, or meant different
//! lengths. Operations that were called before still complete, also at members that call them late.
//! The group ends once they have.

use std::time::Duration;

use fabricast_proto::{GroupId, Time};

use super::{Breaking, Engine, State};
use crate::communicator::networks::Ended;
use crate::communicator::operations::group::BreakOff;
use crate::communicator::operations::operation::Op;
use crate::net::Clock;
use crate::object::Divisible;

/// Time for which a process keeps a group after all that it called before is over. Another member
/// may have lost a word that ends one of its earlier operations, and asks for it meanwhile.
const ANSWERING: Duration = Duration::from_millis(100);
/// Longest time for which a process waits until it knows the root's length. The root has called so
/// many operations since that it does not know the length any more, or there is no root.
const UNTOLD_MAX: Duration = Duration::from_secs(1);
/// Longest time for which a process keeps a group that breaks off. A member may never call the
/// operations that were called before.
const BREAKING_MAX: Duration = Duration::from_secs(5);
/// Number of broadcasts whose lengths their root remembers.
const SENT_MAX: usize = 64;

impl<O: Divisible> Engine<O> {
    /// Takes note that this process is the root of a broadcast that it calls next.
    pub(super) fn sends(&mut self, group: GroupId, len: u64) {
        if let Some(State { calls, sent, .. }) = self.groups.get_mut(&group) {
            if sent.len() == SENT_MAX {
                sent.pop_front();
            }
            sent.push_back((*calls, len));
        }
    }

    /// Takes note of where a group breaks off, which this process need not have yet. The first
    /// operation that did not match counts. If this process was its root, it tells the length.
    pub fn break_off(&mut self, now: Time, at: BreakOff) {
        let breaking = self.breaking.entry(at.group).or_insert(Breaking {
            at,
            heard: now,
            told: at.len.is_some(),
            over: None,
        });
        if at.call < breaking.at.call || at.call == breaking.at.call && at.len.is_some() {
            (breaking.at, breaking.told) = (at, at.len.is_some());
        }
        let at = breaking.at;
        if let (Some(state), None) = (self.groups.get(&at.group), at.len)
            && let Some(&(_, len)) = state.sent.iter().find(|(call, _)| *call == at.call)
        {
            (breaking.at.len, breaking.told) = (Some(len), true);
            self.spoilt.push(breaking.at);
        }
    }

    /// Takes note that an operation has failed, because another member has ended the group. Where
    /// the group breaks off, or which rank is lost, this process learns from the peers.
    pub(super) fn fails(&mut self, now: Time, op: Op) {
        let called = self.pending.get(&op).map(|p| (p.group, p.call));
        let lacked = self.copies.get(&op).map(|copy| (copy.group, copy.call));
        if let Some((group, call)) = called.or(lacked) {
            let len = None;
            self.break_off(now, BreakOff { group, call, len });
        }
    }

    /// Why an operation has failed: [`Ended::Mismatch`] if its length is not the root's. `None`
    /// while this process waits to be told the root's length.
    pub(super) fn reason(&self, op: Op) -> Option<Ended> {
        let called = self.pending.get(&op);
        let breaking = called.and_then(|p| Some((p, self.breaking.get(&p.group)?)));
        match breaking {
            Some((p, b)) if p.call == b.at.call && p.len.is_some() && !b.told => None,
            Some((p, b)) if p.call == b.at.call && b.at.len.is_some() && p.len != b.at.len => {
                Some(Ended::Mismatch)
            }
            _ => Some(Ended::Failed),
        }
    }

    /// Ends the groups that break off, each as soon as what was called before is over.
    pub fn go_on_breaking(&mut self, clock: &Clock) {
        if self.breaking.is_empty() {
            return;
        }
        let now = clock.now();
        let mut done = Vec::new();
        for (&group, breaking) in &mut self.breaking {
            let known = now.since(breaking.heard);
            breaking.told |= known >= UNTOLD_MAX;
            let Some(state) = self.groups.get(&group) else {
                continue;
            };
            let call = breaking.at.call;
            let before = |g: GroupId, c: u64| g == group && c < call;
            let late = state.calls <= call
                || self
                    .pending
                    .iter()
                    .any(|(op, p)| before(p.group, p.call) && !self.ended.contains_key(op))
                || self.copies.values().any(|c| before(c.group, c.call));
            if breaking.told && !late {
                breaking.over.get_or_insert(now);
            }
            let answered = breaking.over.is_some_and(|o| now.since(o) >= ANSWERING);
            if answered || known >= BREAKING_MAX {
                done.push(group);
            }
        }
        done.into_iter().for_each(|group| self.end(now, group));
    }
}
