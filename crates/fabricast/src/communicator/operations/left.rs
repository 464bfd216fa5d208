//! The work that a caller leaves behind.

use fabricast_proto::Time;

/// The work that a caller leaves behind when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    /// Work that is due at this time: as a rule feedback, or a retransmission.
    Due(Time),
    /// Copies that no caller waits for and that receivers may NACK at any time.
    Copies,
}
