//! Packets that mend losses without being copies: the exclusive or of several packets, and parity
//! packets of a block.

mod block;
mod requests;
mod xor;

pub use block::{CodeBlock, Packets, Parity, positions};
pub use requests::{ParityNeed, ParityRequests, Part, Who};
pub use xor::{XorExtents, XorSources};

use crate::id::{Extent, OpId};

/// What a datagram carries behind its head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// These bytes.
    Extent(Extent),
    /// The exclusive or of these.
    Xor(XorExtents),
    /// A parity packet of a block.
    Parity(Parity),
}

impl Payload {
    /// The operation whose object is read.
    pub fn op(&self) -> OpId {
        match self {
            Payload::Extent(e) => e.op,
            Payload::Xor(s) => s.op,
            Payload::Parity(p) => p.block.op,
        }
    }

    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::Extent(e) => e.len,
            Payload::Xor(s) => s.len(),
            Payload::Parity(p) => p.block.payload_size,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
