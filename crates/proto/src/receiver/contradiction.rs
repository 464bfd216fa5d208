//! The operation of a stream that a packet has contradicted.

use crate::challenge::Challenge;
use crate::id::OpId;
use crate::time::Time;

/// The operation that a packet has contradicted, and when new challenges may begin.
#[derive(Clone, Debug, Default)]
pub struct Challenges {
    pub op: Option<(OpId, Challenge)>,
    pub calm: Time,
}

impl Challenges {
    /// When the receiver has something to do.
    pub fn wake(&self) -> Option<Time> {
        self.op.as_ref().map(|(_, challenge)| challenge.wake())
    }

    /// The challenge is over.
    pub fn clear(&mut self) {
        self.op = None;
    }

    /// A packet contradicts operation `op`.
    pub fn arise(&mut self, now: Time, op: OpId) {
        if self.op.is_none() && now >= self.calm {
            self.op = Some((op, Challenge::new(now)));
        }
    }
}
