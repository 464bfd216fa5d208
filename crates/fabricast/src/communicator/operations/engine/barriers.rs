//! Barriers: of a host's processes, of the hosts' leaders, and of both, one within the other.

use fabricast_proto::{Barrier, GroupId, Refused, Time};

use super::Engine;
use super::broadcasts::{COLLECTIVES_MAX, channel};
use crate::collective::{Action, Pace, Step};
use crate::communicator::hierarchy::schedule;
use crate::communicator::networks::pieces::Pieces;
use crate::communicator::operations::operation::{Op, Operation, Stage};
use crate::object::Divisible;

impl<O: Divisible> Engine<O> {
    /// Starts a barrier of all members. If the group has several hosts, each leader holds its local
    /// ranks in their barrier until the leaders have met. A caller that `waits` is refused
    /// ([`Refused::Busy`]) while the group must wait for its address.
    pub fn barrier(
        &mut self,
        now: Time,
        (group, by): (GroupId, Option<Barrier>),
        waits: bool,
    ) -> Result<Op, Refused> {
        self.uses_address(now, group);
        let state = self.groups.get(&group).ok_or(Refused::NoGroup)?;
        if waits && self.is_early(group) {
            return Err(Refused::Busy);
        }
        let steps = schedule::barrier(&state.topology, by);
        let op = match self.meet(now, group, &steps)? {
            Some(op) => op,
            None if self.executor.count(group) >= COLLECTIVES_MAX => return Err(Refused::Busy),
            None => {
                let channel = |peer| channel(group, peer);
                let buffer = Pieces::none();
                let id = self
                    .executor
                    .add(group, Pace::Channels, steps, buffer, channel);
                Op::Collective(id)
            }
        };
        self.statistics.barriers += 1;
        let (call, len) = (self.counts(group, None), None);
        self.begins(
            op,
            Operation {
                group,
                call,
                len,
                stage: Stage::UnderWay,
            },
        );
        Ok(op)
    }

    /// Enters a barrier of one step at once, unless an earlier one waits. `None`: it is more than
    /// that.
    fn meet(&mut self, now: Time, group: GroupId, steps: &[Step]) -> Result<Option<Op>, Refused> {
        let &[Step { action, peer, .. }] = steps else {
            return Ok(None);
        };
        let channel = channel(group, peer);
        let Action::Meet(by) = action else {
            return Ok(None);
        };
        if !self.executor.is_clear(group, action, &channel) {
            return Ok(None);
        }
        match self.networks.barrier(channel.network, now, group, by, true) {
            Ok(op) => Ok(Some(Op::Single(channel.network, op))),
            Err(Refused::Busy) => Ok(None),
            Err(refused) => Err(refused),
        }
    }
}
