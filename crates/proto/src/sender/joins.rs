//! Members join and leave a stream. A member that joins takes part from the next broadcast on:
//! broadcasts under way do not wait for it, and it gets nothing of them. For a member that leaves
//! nothing waits any more.

use std::collections::VecDeque;

use super::Sender;
use super::member::{GROUP_PATH, Member};
use crate::border::{Config, Output, PathState, Refused};
use crate::id::NodeId;
use crate::membership::Admission;
use crate::mutant::{self, Mutant};
use crate::path::Target;
use crate::repair::ParityRequests;
use crate::time::Time;

/// A path number that no path has: the count of a new member's losses begins with its first report.
const NO_PATH: u32 = u32::MAX;

impl Sender {
    /// Admits a node that is no member. Its slot is the lowest free one. Refused
    /// ([`Refused::Busy`]) if all slots are held.
    pub fn add(
        &mut self,
        now: Time,
        config: &Config,
        node: NodeId,
        payload_size: u32,
    ) -> Result<(), Refused> {
        let slot = self.membership.join(node).ok_or(Refused::Busy)?;
        let (i, first) = (usize::from(slot.index), self.ops.end);
        let mut member = Member::new(node, first, false, false);
        member.credit = self.budget.most();
        (member.moved, member.got_on) = (now, now);
        member.counted.0 = NO_PATH;
        member.hearing.start(now, (0, self.group_fresh(), 0));
        match self.members.get_mut(i) {
            Some(free) => *free = member,
            None => self.members.push(member),
        }
        self.unheard += 1;
        self.widen(config, payload_size);
        self.count_waiting();
        self.update_window(GROUP_PATH);
        Ok(())
    }

    /// Makes the group's path fit the present number of slots.
    fn widen(&mut self, config: &Config, payload_size: u32) {
        let slots = self.members.len();
        let blocks = Sender::codes_blocks(&config.scheme, slots, payload_size);
        let Some(l) = &mut self.paths[GROUP_PATH] else {
            return;
        };
        if blocks && self.parity_requests.is_none() {
            self.parity_requests = Some(ParityRequests::new(
                config.scheme.window.next_power_of_two(),
            ));
        }
        l.window.grow((!blocks).then_some(slots as u32));
        if l.to == Target::All {
            return;
        }
        // The group had two members, and its packets went to the other one alone.
        l.to = Target::All;
        let sent = l.fresh;
        for m in self.members.iter_mut().filter(|m| m.path == GROUP_PATH) {
            m.path_state = PathState::Multicast;
            m.hearing.start(m.moved, (m.seen.3, sent, m.repairs as u32));
        }
    }

    /// What a member must know to take part; `None`: the node is no member.
    pub fn admission(&self, node: NodeId) -> Option<Admission> {
        let slot = self.membership.slot_of(node)?;
        let oldest = self.ops.queue.front().map(|op| op.base);
        Some(Admission {
            slot,
            first: match oldest.filter(|_| mutant::active(Mutant::JoinsUnderWay)) {
                Some(oldest) => oldest,
                None => self.members[usize::from(slot.index)].first,
            },
            receivers: self.members.len() as u32,
        })
    }

    /// Whether a node is a member.
    pub fn has(&self, node: NodeId) -> bool {
        self.index_of(node).is_some()
    }

    /// The members, in rising order of their nodes.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + '_ {
        self.membership.nodes()
    }

    /// Number of slots, held or free.
    pub fn slots(&self) -> u32 {
        self.members.len() as u32
    }

    /// Whether the group has two members, so that all datagrams go to the other one by unicast.
    pub(super) fn is_pair(&self) -> bool {
        let group = self.paths[GROUP_PATH].as_ref();
        group.is_some_and(|l| l.to != Target::All)
    }

    /// Removes a member that leaves or is gone, and frees its slot.
    pub fn remove(&mut self, node: NodeId, out: &mut VecDeque<Output>) {
        let Some(i) = self.membership.leave(node) else {
            return;
        };
        self.members[i].gone = true;
        // This comes first: an operation must not complete before the sender waits for the
        // receivers that reported to this member.
        self.adopt_reporters(i);
        if self.members[i].delegated {
            return;
        }
        self.unheard -= usize::from(self.members[i].heard.is_none());
        let at = self.members[i].path;
        if let Some(l) = &mut self.paths[at] {
            l.window.forget(i as u32);
            l.pacer.forget(i);
        }
        if at == GROUP_PATH {
            if let Some(demand) = &mut self.parity_requests {
                demand.forget(i as u32);
            }
            self.update_window(at);
            self.weigh(at);
        } else {
            self.paths[at] = None;
        }
        if mutant::active(Mutant::RemovesNeighbour) {
            let next = (i + 1) % self.members.len();
            self.members[next].gone = true;
        }
        self.count_waiting();
        self.finish(out);
    }
}
