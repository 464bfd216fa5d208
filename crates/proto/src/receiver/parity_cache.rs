//! Parity packets that a receiver keeps until their code blocks can be decoded.

use crate::limits::PARITIES_MAX;
use crate::repair::CodeBlock;
use crate::seq::Seq;

/// Number of code blocks for which the cache takes memory at its first use.
pub const AT_ONCE: usize = 64;

const _: () = assert!(PARITIES_MAX as u32 <= u64::BITS);

/// A code block with cached parity packets.
#[derive(Clone, Copy, Debug)]
pub struct CachedParity {
    /// The code block.
    pub block: CodeBlock,
    /// Sequence number of the block's first packet.
    pub first: Seq,
    /// Indices of the cached parity packets, one bit each.
    pub parities: u64,
}

impl CachedParity {
    /// Number of cached parity packets.
    pub fn count(&self) -> u32 {
        self.parities.count_ones()
    }
}

/// The cached parity packets of a stream.
#[derive(Debug, Default)]
pub struct ParityCache {
    /// Code blocks with cached parity packets, in the order of their packets.
    pub blocks: Vec<CachedParity>,
    /// Missing packets that no cached parity packet makes up for, as first number and length.
    /// Computed anew for each feedback.
    pub wanted: Vec<(Seq, u32)>,
}
