//! Coded repairs, which mend losses without being copies of packets: XOR repair packets, and parity
//! packets of a code block.

mod block;
mod requests;
mod xor;

pub use block::{CodeBlock, Packets, Parity, positions};
pub use requests::{ParityNeed, ParityRequests, Part, Who};
pub use xor::{XorExtents, XorSources};

use crate::id::{Extent, OpId};

/// The payload that the driver adds to a datagram's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload {
    /// The bytes of one extent.
    Extent(Extent),
    /// The exclusive or of several extents.
    Xor(XorExtents),
    /// A parity packet of a block.
    Parity(Parity),
}

impl Payload {
    /// The operation whose object the driver reads for this payload.
    pub fn op(&self) -> OpId {
        match self {
            Payload::Extent(e) => e.op,
            Payload::Xor(s) => s.op,
            Payload::Parity(p) => p.block.op,
        }
    }

    /// Length of the payload in bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::Extent(e) => e.len,
            Payload::Xor(s) => s.len(),
            Payload::Parity(p) => p.block.payload_size,
        }
    }

    /// Whether the payload has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
