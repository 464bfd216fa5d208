//! An operation that is under way, and the work that a caller leaves behind.

use fabricast_proto::{OpId, Time};

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

/// The work that a caller leaves behind when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    /// Work that is due at this time: as a rule feedback, or a retransmission.
    Due(Time),
    /// Copies that no caller waits for and that receivers may NACK at any time.
    Copies,
}
