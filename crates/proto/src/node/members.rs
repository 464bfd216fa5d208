//! Members of a group join and leave.

use core::time::Duration;

use super::Node;
use super::group::Group;
use crate::barrier::Ended;
use crate::border::{Event, Output, PathState, Refused};
use crate::id::{GroupId, NodeId};
use crate::membership::Admission;
use crate::scheme::FeedbackTopology;
use crate::time::Time;

impl Node {
    /// What a member must know to take part in this node's stream to a group
    /// ([`crate::Command::GroupJoin`]). `None`: the stream has not begun, or the node is no member.
    pub fn admission(&self, group: GroupId, node: NodeId) -> Option<Admission> {
        let (_, group) = self.group(group).ok()?;
        group.own.get()?.admission(node)
    }

    pub(super) fn member_add(
        &mut self,
        now: Time,
        group: GroupId,
        node: NodeId,
    ) -> Result<(), Refused> {
        let (at, g) = self.group(group)?;
        g.takes_part()?;
        if node == self.config.node || g.expects(node) {
            return Err(Refused::IsMember);
        }
        if self.gone.contains(&node) {
            return Err(Refused::Gone);
        }
        if self.config.scheme.topology != FeedbackTopology::Direct {
            return Err(Refused::Hierarchy);
        }
        let g = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        let payload_size = g.payload_size;
        g.sender(&self.config)
            .add(now, &self.config, node, payload_size)?;
        g.path_state.remove(&node);
        g.probes.remove(&node);
        g.has_grown(&mut self.out);
        self.touch(at);
        Ok(())
    }

    pub(super) fn may_outpace(
        &mut self,
        group: GroupId,
        node: NodeId,
        may_hold: Option<Duration>,
    ) -> Result<(), Refused> {
        let (at, g) = self.group(group)?;
        g.takes_part()?;
        if node == self.config.node || !g.expects(node) {
            return Err(Refused::NotMember);
        }
        if self.config.scheme.topology != FeedbackTopology::Direct {
            return Err(Refused::Hierarchy);
        }
        let g = self.groups[at].as_mut().ok_or(Refused::NoGroup)?;
        g.sender(&self.config).may_outpace(node, may_hold);
        Ok(())
    }

    pub(super) fn member_remove(
        &mut self,
        now: Time,
        group: GroupId,
        node: NodeId,
    ) -> Result<(), Refused> {
        let (at, g) = self.group(group)?;
        if node == self.config.node || !g.expects(node) {
            return Err(Refused::NotMember);
        }
        // Events of the member that the driver has not fetched yet are of no interest any more.
        self.forget_events(|of, n| n == node && of == group);
        self.leave(now, at, node);
        Ok(())
    }

    pub(super) fn peer_remove(&mut self, now: Time, node: NodeId) {
        self.gone.insert(node);
        self.forget_events(|_, n| n == node);
        self.queries.retain(|q| q.0 != node);
        for at in 0..self.groups.len() {
            let known = |g: &Group| g.rank(node).is_some() || g.expects(node);
            if self.groups[at].as_ref().is_some_and(known) {
                self.leave(now, at, node);
            }
        }
    }

    fn forget_events(&mut self, about: impl Fn(GroupId, NodeId) -> bool) {
        self.out.retain(|o| match *o {
            Output::Event(
                Event::Path { group, node, .. }
                | Event::Slow { group, node }
                | Event::Outpaced { group, node },
            ) => !about(group, node),
            _ => true,
        });
    }

    /// A member leaves group `at`: nothing waits for it any more.
    fn leave(&mut self, now: Time, at: usize, node: NodeId) {
        let Some(group) = self.groups[at].as_mut() else {
            return;
        };
        group.path_state.insert(node, PathState::Nothing);
        if let Some(sender) = group.own.get_mut() {
            sender.remove(node, &mut self.out);
        }
        for prover in group.provers() {
            prover.remove(node);
        }
        // A member that joined later has no part in barriers, and no stream.
        if let Some(rank) = group.rank(node) {
            group.gone.insert(node);
            let scheme = &self.config.scheme;
            group.streams.change_all(scheme, |stream| {
                stream.remove(now, node, &mut self.out);
            });
            if let Some(words) = group.words.as_mut() {
                words.end(Ended::Failed, &mut self.out);
            }
            if let Some(mut stream) = group.streams.remove(scheme, rank) {
                self.leaving.extend(stream.unfinished());
                stream.abandon(&mut self.out);
            }
        }
        self.touch(at);
    }

    pub(super) fn group_join(
        &mut self,
        group: GroupId,
        sender: NodeId,
        payload_size: u32,
        admission: Admission,
    ) -> Result<(), Refused> {
        let me = self.config.node;
        let known = u32::from(admission.slot.index) < admission.receivers;
        if sender == me || admission.slot.epoch == 0 || !known {
            return Err(Refused::NotMember);
        }
        if self.config.scheme.topology != FeedbackTopology::Direct {
            return Err(Refused::Hierarchy);
        }
        let members = vec![me.min(sender), me.max(sender)];
        let start = (admission.first, Some(admission));
        self.add((group, None), members, payload_size, start)
    }
}
