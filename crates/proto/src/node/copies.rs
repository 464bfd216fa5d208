//! A datagram that goes to each member of a group by unicast, since the group has no address.

use super::datagram::transmit;
use super::group::Group;
use crate::border::{Dest, Output, PathState};
use crate::id::NodeId;
use crate::repair::Payload;
use crate::wire::Writer;

/// The copies of one datagram that are still to be sent.
#[derive(Default)]
pub struct Copies {
    head: Vec<u8>,
    payload: Option<Payload>,
    /// The members to come, the next one last.
    to: Vec<NodeId>,
}

impl Copies {
    /// Begins to send a datagram of `me` to all members of a group that multicast would serve.
    /// Returns the first of them, to which it goes now.
    pub fn begin(
        &mut self,
        me: NodeId,
        group: &Group,
        (head, payload): (&[u8], Option<Payload>),
    ) -> NodeId {
        let others = group.peers(me).rev();
        let served = |m: &NodeId| group.path_state_of(*m) == PathState::Multicast;
        self.to.extend(others.filter(served));
        let first = self.to.pop();
        if !self.to.is_empty() {
            self.head.clear();
            self.head.extend_from_slice(head);
            self.payload = payload;
        }
        // If all have paths of their own or are gone, one copy is as good as none.
        let any = group.members.iter().find(|m| **m != me);
        first.or(any.copied()).unwrap_or(me)
    }

    /// The next copy; its head is appended to `head`.
    pub fn poll(&mut self, head: &mut Writer<'_>) -> Option<Output> {
        let to = self.to.pop()?;
        head.put(&self.head);
        Some(transmit(Dest::Node(to), self.payload))
    }

    pub fn is_empty(&self) -> bool {
        self.to.is_empty()
    }

    /// Number of copies to come.
    pub fn len(&self) -> u32 {
        self.to.len() as u32
    }
}
