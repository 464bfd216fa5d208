//! Parity packets that a receiver keeps until their blocks can be decoded.

use crate::limits::PARITIES_MAX;
use crate::repair::CodeBlock;
use crate::seq::Seq;

/// Blocks for which there is room at once.
pub const AT_ONCE: usize = 64;

const _: () = assert!(PARITIES_MAX as u32 <= u64::BITS);

/// A block of which parity packets are cached.
#[derive(Clone, Copy, Debug)]
pub struct CachedParity {
    /// The block.
    pub block: CodeBlock,
    /// Number of its first packet.
    pub first: Seq,
    /// Which parity packets, a bit each.
    pub parities: u64,
}

impl CachedParity {
    /// How many there are.
    pub fn count(&self) -> u32 {
        self.parities.count_ones()
    }
}

/// The cached parity packets of a stream.
#[derive(Debug, Default)]
pub struct ParityCache {
    /// Blocks of which parity packets are cached, in order.
    pub blocks: Vec<CachedParity>,
    /// What is missing and not made up for by these; used for each feedback anew.
    pub wanted: Vec<(Seq, u32)>,
}
