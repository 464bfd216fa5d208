//! An operation that this process has called.

use fabricast_proto::{GroupId, OpId};

use crate::collective::{CollectiveId, Ended};
use crate::communicator::networks::Network;

/// The name of an operation: one of a driver, or a collective of several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Op {
    Single(Network, OpId),
    Collective(CollectiveId),
}

/// What starting a broadcast has come to.
#[derive(Debug)]
pub(crate) enum Started<O> {
    /// The caller need not wait, and has its object back.
    Over(O),
    /// The object comes back when this operation ends.
    UnderWay(Op),
}

/// An operation for which a caller or another process still waits.
#[derive(Debug)]
pub(crate) struct Operation<O> {
    pub group: GroupId,
    /// Index of the operation among those that this process has called in the group.
    pub call: u64,
    /// Bytes that this process sends or receives; `None` for a barrier.
    pub len: Option<u64>,
    pub stage: Stage<O>,
}

/// How far an operation is.
#[derive(Debug)]
pub(crate) enum Stage<O> {
    /// A caller waits for its end.
    UnderWay,
    /// It has ended. Its caller has not asked for that yet.
    Ended {
        how: Ended,
        /// The object of a collective. A driver keeps that of a single operation.
        object: Option<O>,
        /// Bytes of copies that other processes still lack, if there are copies.
        copied: Option<u64>,
    },
    /// No caller waits for it any more. Other processes still lack copies of `copied` bytes.
    Copied { copied: u64 },
}

impl<O> Operation<O> {
    /// Whether a caller has still to learn how it ends.
    pub fn is_awaited(&self) -> bool {
        !matches!(self.stage, Stage::Copied { .. })
    }

    /// Whether it is still under way for its caller.
    pub fn is_under_way(&self) -> bool {
        matches!(self.stage, Stage::UnderWay)
    }

    /// Bytes of copies that other processes still lack, if there are copies.
    pub fn copied(&self) -> Option<u64> {
        match self.stage {
            Stage::UnderWay => None,
            Stage::Ended { copied, .. } => copied,
            Stage::Copied { copied } => Some(copied),
        }
    }
}
