//! Barriers: of a host's processes, of the hosts' leaders, and of both, one within the other.

use fabricast_proto::{Barrier, Command, GroupId, OpId, Refused, Time};

use super::{Called, Engine};
use crate::communicator::networks::{Ended, Network};
use crate::communicator::operations::operation::Op;
use crate::object::Divisible;

impl<O: Divisible> Engine<O> {
    /// Starts a barrier of all members. If the group has several hosts, each leader holds its local
    /// ranks in their barrier until the leaders have met.
    pub fn barrier(
        &mut self,
        now: Time,
        group: GroupId,
        by: Option<Barrier>,
    ) -> Result<Op, Refused> {
        let state = self.groups.get(&group).ok_or(Refused::NoGroup)?;
        let (topology, call) = (&state.topology, state.calls);
        let (leaders, local_ranks) = (topology.leaders.len(), topology.local_ranks.len());
        let far = by.unwrap_or(usual(leaders));
        let op = match (topology.is_near(), topology.is_far()) {
            (true, true) => {
                let op = self.networks.hold(now, group, release(local_ranks))?;
                self.held.insert(op, (group, far, call));
                Op::Single(Network::IntraNode, op)
            }
            (true, false) => {
                let near = match leaders {
                    1 => by.unwrap_or(usual(local_ranks)),
                    // The leader holds them with the same barrier.
                    _ => release(local_ranks),
                };
                Op::Single(
                    Network::IntraNode,
                    self.networks
                        .barrier(Network::IntraNode, now, group, near)?,
                )
            }
            (false, _) => Op::Single(
                Network::InterNode,
                self.networks.barrier(Network::InterNode, now, group, far)?,
            ),
        };
        self.statistics.barriers += 1;
        self.counts(group, None);
        let len = None;
        self.pending.insert(op, Called { group, call, len });
        Ok(op)
    }

    /// Takes note that all local ranks have entered a barrier of several hosts: this leader now
    /// meets the others. Returns false if `op` is no such barrier.
    pub(super) fn gathered(&mut self, now: Time, op: OpId) -> bool {
        let Some((group, by, call)) = self.held.remove(&op) else {
            return false;
        };
        match self.networks.barrier(Network::InterNode, now, group, by) {
            Ok(far) => _ = self.meetings.insert(far, (group, call)),
            Err(_) => self.end(now, group),
        }
        true
    }

    /// Takes note that the leaders have met, and releases the local ranks.
    pub(super) fn met(&mut self, now: Time, group: GroupId, call: u64, how: Ended) -> bool {
        match how {
            Ended::Complete => {
                let proceeds =
                    self.networks
                        .command(Network::IntraNode, now, Command::Release(group));
                debug_assert!(proceeds.is_ok());
            }
            Ended::Failed | Ended::Mismatch => self.guess(now, group, call),
        }
        true
    }
}

/// The default barrier of a group with this many members. Two members tell each other at once.
pub(super) fn usual(members: usize) -> Barrier {
    match members {
        0..=2 => Barrier::Dissemination { ways: 1 },
        _ => release(members),
    }
}

/// A barrier in which rank 0 releases all others. With few members, rank 0 hears each itself.
fn release(members: usize) -> Barrier {
    let fanout = match members {
        0..=32 => members as u16,
        _ => 16,
    };
    Barrier::Release { fanout }
}
