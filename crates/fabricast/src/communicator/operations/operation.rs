//! An operation that is under way.

use fabricast_proto::OpId;

use crate::communicator::networks::Network;

/// An operation of one driver, or one that is composed of several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Op {
    Single(Network, OpId),
    HierarchicalBroadcast(u32),
}

/// What starting a broadcast has come to.
#[derive(Debug)]
pub(crate) enum Started<O> {
    /// The caller need not wait, and has its object back.
    Over(O),
    /// The object comes back when this operation ends.
    UnderWay(Op),
}
