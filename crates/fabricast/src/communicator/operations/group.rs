//! A group, as its members name it.

use std::collections::BTreeSet;

use fabricast_proto::{GroupId, NodeId};

/// An ordered set of processes, which all of them name by one number.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) id: GroupId,
    pub(crate) members: Vec<NodeId>,
}

impl Group {
    /// The number of processes in the group.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }
}

/// The channels between members of one group, and the sets of its cover.
#[derive(Default)]
pub(crate) struct Channels {
    /// The groups of the core that exist for it.
    pub groups: BTreeSet<GroupId>,
    /// The sets of the cover, as indices into the group's sorted members.
    pub sets: Vec<Vec<usize>>,
    /// The cover was named.
    pub named: bool,
}

/// The group of all hosts' leaders on the network, which exists only while multicast is proven. No
/// other group has this number.
pub(crate) const EVERYBODY: GroupId = GroupId(u32::MAX);

/// The group of all hosts' speakers, in which they answer the probes that prove an address. No
/// other group has this number.
pub(crate) const PROOF: GroupId = GroupId(u32::MAX - 1);

/// Where a group breaks off, because in this operation its members did not call the same, or meant
/// different lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BreakOff {
    pub group: GroupId,
    /// Index of the operation among all that a member calls in the group.
    pub call: u64,
    /// The root's number of bytes in that operation; `None` until the root has told it.
    pub len: Option<u64>,
}

impl BreakOff {
    /// Takes over what another member says of the same group: an earlier call, or the root's length
    /// in the same call.
    pub fn merge(&mut self, other: BreakOff) {
        if other.is_news_to(self) {
            *self = other;
        }
    }

    /// Whether this says more than `known`.
    pub fn is_news_to(&self, known: &BreakOff) -> bool {
        let tells = self.len.is_some() && known.len.is_none();
        self.call < known.call || self.call == known.call && tells
    }
}
