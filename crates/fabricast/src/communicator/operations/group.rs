//! A group, as its members name it, and the stages of its end.

use fabricast_proto::{GroupId, NodeId, OpId, Time};

/// An ordered set of processes, as all of them name it.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) id: GroupId,
    pub(crate) members: Vec<NodeId>,
}

impl Group {
    /// How many processes are in it.
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }
}

/// Stands for everybody's groups while there are none; no group has this number.
pub(crate) const EVERYBODY: GroupId = GroupId(u32::MAX);

/// How far the end of a group has come. Others may lack something until all have come to a barrier
/// in it; then only words of that barrier can be lacking, and who lacks one asks soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaving {
    /// What was sent is still to be received.
    Flushing,
    /// Nothing is; others may not be so far.
    Meeting(OpId),
    /// All were so far at this time.
    Answering(Time),
}
