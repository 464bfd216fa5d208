//! The operation of a stream that a packet has contradicted.

use crate::challenge::Challenge;
use crate::id::OpId;
use crate::time::Time;

/// The operation that a packet has contradicted, and when new challenges may begin.
#[derive(Clone, Debug, Default)]
pub struct Challenges {
    /// The operation, and its challenge; `None`: no challenge is under way.
    pub op: Option<(OpId, Challenge)>,
    /// No new challenge begins before this time.
    pub calm: Time,
}

impl Challenges {
    /// Ends the challenge.
    pub fn clear(&mut self) {
        self.op = None;
    }

    /// Begins a challenge of operation `op`, unless one is under way or it is too soon for a new
    /// one.
    pub fn arise(&mut self, now: Time, op: OpId) {
        if self.op.is_none() && now >= self.calm {
            self.op = Some((op, Challenge::new(now)));
        }
    }
}
