//! Coded repair in large groups: packets that mend any losses of a block.
//!
//! An operation's packets form *blocks* of [`BLOCK_PACKETS`], the last one shorter. A *parity
//! packet* of a block of `n` packets stands for any one of them: a receiver with any `n` of its
//! packets and parity packets has the block. So the sender only needs to know how many packets the
//! neediest receiver lacks. The core only names blocks; the driver computes (a Reed-Solomon
//! code, spec 1.9).

use crate::id::{Extent, OpId};
use crate::limits::BLOCK_PACKETS;

/// Packets of one operation that are coded together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CodeBlock {
    /// The operation whose object is meant.
    pub op: OpId,
    /// Its first byte.
    pub offset: u64,
    /// Its number of bytes.
    pub len: u32,
    /// Payload of a packet in bytes; a last packet that is shorter counts as followed by zeros.
    pub payload_size: u32,
}

impl CodeBlock {
    /// The block that begins with packet `index` of an object of `len` bytes, in payloads of
    /// `payload_size` bytes.
    pub fn at(op: OpId, index: u32, len: u64, payload_size: u32) -> CodeBlock {
        let offset = u64::from(index) * u64::from(payload_size);
        let whole = u64::from(BLOCK_PACKETS) * u64::from(payload_size);
        let len = (len - offset).min(whole) as u32;
        CodeBlock {
            op,
            offset,
            len,
            payload_size,
        }
    }

    /// How many packets it has.
    pub fn packets(&self) -> u32 {
        self.len.div_ceil(self.payload_size)
    }

    /// The bytes of some of its packets.
    pub fn extents(self, which: Packets) -> impl Iterator<Item = Extent> {
        positions(which).map(move |i| self.extent(i))
    }

    /// The bytes of its packet `i`.
    pub fn extent(&self, i: u32) -> Extent {
        let mut extent = Extent::packet(self.op, i, u64::from(self.len), self.payload_size);
        extent.offset += self.offset;
        extent
    }
}

/// A parity packet of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parity {
    /// Of which block.
    pub block: CodeBlock,
    /// Which one: less than [`crate::limits::PARITIES_MAX`].
    pub index: u8,
}

/// Packets of a block, a bit each.
pub type Packets = u128;

/// The places of these packets in their block, in rising order.
pub fn positions(which: Packets) -> impl Iterator<Item = u32> {
    (0..Packets::BITS).filter(move |i| which >> i & 1 == 1)
}

const _: () = assert!(BLOCK_PACKETS == Packets::BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_an_object_without_a_hole() {
        let payload_size = 100;
        for len in [150u64, 12_800, 12_801, 30_050] {
            let mut at = 0;
            for first in (0..len.div_ceil(u64::from(payload_size)) as u32).step_by(128) {
                let block = CodeBlock::at(OpId(1), first, len, payload_size);
                for i in 0..block.packets() {
                    let whole = Extent::packet(OpId(1), first + i, len, payload_size);
                    assert_eq!(block.extent(i), whole);
                    assert_eq!(whole.offset, at);
                    at += u64::from(whole.len);
                }
            }
            assert_eq!(at, len);
        }
    }
}
