//! What is under way, and what a caller leaves behind.

use fabricast_proto::{OpId, Time};

use crate::communicator::networks::Network;

/// An operation: one of a driver's, or one that is composed of several.
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

/// What is still to be done when a caller goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    /// Something, then: as a rule others are to be told what has come, or what is lost is to be
    /// repeated.
    Due(Time),
    /// Copies that nobody waits for, and that others may ask for at any time.
    Copies,
}
