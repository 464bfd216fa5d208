//! A group that breaks off: in one operation its members did not call the same, or meant different
//! lengths. Operations that were called before still complete, also at members that call them late.
//! The group ends once they have.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_proto::{GroupId, Time};

use super::{Breaking, Engine, State};
use crate::collective::Ended;
use crate::communicator::operations::group::BreakOff;
use crate::communicator::operations::operation::{Op, Operation};
use crate::net::Clock;
use crate::object::Divisible;

/// Time for which a process keeps a group after all that it called before is over. Another member
/// may have lost a word that ends one of its earlier operations, and asks for it meanwhile.
const ANSWERING: Duration = Duration::from_millis(100);
/// Longest time for which a process waits until it knows the root's length. The root tells it when
/// it next calls something. It does not know the length any more if it has called many operations
/// since, and a barrier has no root.
const UNTOLD_MAX: Duration = Duration::from_secs(1);
/// Longest time for which a process keeps a group that breaks off while nothing that was called
/// before ends. A member may never call it.
const BREAKING_MAX: Duration = Duration::from_secs(5);
/// Number of broadcasts whose lengths their root remembers.
const SENT_MAX: usize = 256;
/// Largest number of groups that break off before this process has made them.
const FORETOLD_MAX: usize = 4096;

impl<O: Divisible> Engine<O> {
    /// Counts an operation that this process calls, with the bytes that it sends as the root of a
    /// broadcast. Returns the operation's index among those that it calls in the group.
    pub(super) fn counts(&mut self, group: GroupId, sends: Option<u64>) -> u64 {
        let Some(State { calls, sent, .. }) = self.groups.get_mut(&group) else {
            return 0;
        };
        if let Some(len) = sends {
            if sent.len() == SENT_MAX {
                sent.pop_front();
            }
            sent.push_back((*calls, len));
        }
        *calls += 1;
        *calls - 1
    }

    /// Takes note of where a group breaks off, as a peer says. The first operation that did not
    /// match counts. If this process was its root, it tells the length.
    pub fn break_off(&mut self, now: Time, at: BreakOff) {
        let awaits = || awaits(&self.operations, at.group);
        match self.groups.get(&at.group) {
            // The loss of a member is the reason why the group ends.
            Some(state) if state.members.iter().any(|m| self.gone.contains(m)) => {}
            Some(_) => self.breaks_at(now, at, false),
            None if awaits() => self.breaks_at(now, at, false),
            None if self.foretold.len() < FORETOLD_MAX => {
                let known = self.foretold.entry(at.group).or_insert(at);
                known.merge(at);
            }
            None => {}
        }
    }

    /// Takes note that this process has made a group that may break off already.
    pub(super) fn foretold(&mut self, now: Time, group: GroupId) {
        if let Some(at) = self.foretold.remove(&group) {
            self.breaks_at(now, at, false);
        }
    }

    /// Takes note that an operation has failed, because another member has ended the group. Where
    /// the group breaks off, or which rank is lost, this process learns from the peers.
    pub(super) fn fails(&mut self, now: Time, op: Op) {
        if let Some(operation) = self.operations.get(&op) {
            let (group, call) = (operation.group, operation.call);
            self.guess(now, group, call);
        }
    }

    /// Takes note that a group breaks off at this call or before. What a peer says replaces it.
    pub(super) fn guess(&mut self, now: Time, group: GroupId, call: u64) {
        let len = None;
        self.breaks_at(now, BreakOff { group, call, len }, true);
    }

    fn breaks_at(&mut self, now: Time, at: BreakOff, guessed: bool) {
        let breaking = self.breaking.entry(at.group).or_insert(Breaking {
            at,
            guessed,
            moved: now,
            left: None,
            told: false,
            told_by: now + UNTOLD_MAX,
            over: None,
        });
        match (breaking.guessed, guessed) {
            (true, false) => (breaking.at, breaking.guessed) = (at, false),
            (false, true) => return,
            _ => breaking.at.merge(at),
        }
        let BreakOff { group, call, len } = breaking.at;
        if let (Some(state), None, false) = (self.groups.get(&group), len, breaking.guessed)
            && let Some(&(_, len)) = state.sent.iter().find(|(sent, _)| *sent == call)
        {
            breaking.at.len = Some(len);
            self.spoilt.push(breaking.at);
        }
    }

    /// How an operation has ended that did not complete: [`Ended::Mismatch`] if its length is not
    /// the root's. `None` while this process waits to be told the root's length.
    pub(super) fn reason(&self, op: Op, how: Ended) -> Option<Ended> {
        let called = self.operations.get(&op);
        let breaking = called.and_then(|p| Some((p, self.breaking.get(&p.group)?)));
        let Some((p, b)) = breaking.filter(|(p, b)| p.call == b.at.call && p.len.is_some()) else {
            return Some(how);
        };
        match b.at.len {
            Some(_) if p.len == b.at.len => Some(Ended::Failed),
            Some(_) => Some(Ended::Mismatch),
            None if how == Ended::Failed && !b.told => None,
            None => Some(how),
        }
    }

    /// Ends the groups that break off, each as soon as what was called before is over.
    pub fn go_on_breaking(&mut self, clock: &Clock) {
        if self.breaking.is_empty() {
            return;
        }
        let now = clock.now();
        let mut done = Vec::new();
        let (operations, groups) = (&self.operations, &self.groups);
        self.breaking.retain(|&group, breaking| {
            breaking.told |= breaking.at.len.is_some() || now >= breaking.told_by;
            let Some(state) = groups.get(&group) else {
                // Callers still have to learn why their operations have failed.
                return awaits(operations, group);
            };
            let call = breaking.at.call;
            let before = |o: &&Operation<O>| o.group == group && o.call < call;
            let earlier = || operations.values().filter(before);
            let left = (
                call.saturating_add(1).saturating_sub(state.calls),
                earlier().filter(|o| o.is_under_way()).count(),
                earlier().filter(|o| o.copied().is_some()).count(),
            );
            if breaking.left.replace(left) != Some(left) {
                breaking.moved = now;
            }
            if breaking.told && left == (0, 0, 0) {
                breaking.over.get_or_insert(now);
            }
            let answered = breaking.over.is_some_and(|o| now.since(o) >= ANSWERING);
            if answered || now.since(breaking.moved) >= BREAKING_MAX {
                done.push(group);
            }
            true
        });
        done.into_iter().for_each(|group| self.end(now, group));
    }
}

/// Whether a caller has still to learn how an operation of the group ends.
fn awaits<O>(operations: &BTreeMap<Op, Operation<O>>, group: GroupId) -> bool {
    let mut all = operations.values();
    all.any(|o| o.group == group && o.is_awaited())
}
