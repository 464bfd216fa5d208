//! Code blocks and parity packets: coded repair in large groups, which mends any losses of a block.
//!
//! An operation's packets form *blocks* of [`BLOCK_PACKETS`]; the last block may be shorter. A
//! *parity packet* of a block of `n` packets stands for any one of them: a receiver with any `n` of
//! the block's packets and parity packets can decode the block. So the sender need not know which
//! packets each receiver lacks, only how many the neediest receiver lacks. The core only names
//! blocks; the driver computes the parity (a Reed-Solomon code, spec 1.9).

use crate::id::{Extent, OpId};
use crate::limits::BLOCK_PACKETS;

/// A code block: consecutive packets of one operation that share parity packets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CodeBlock {
    /// The operation whose object contains the block.
    pub op: OpId,
    /// Offset of the block's first byte in the object.
    pub offset: u64,
    /// Length of the block in bytes.
    pub len: u32,
    /// Payload of a packet in bytes. A shorter last packet is padded with zeros.
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

    /// Number of packets in the block.
    pub fn packets(&self) -> u32 {
        self.len.div_ceil(self.payload_size)
    }

    /// Length in bytes of the last packet of the operation, which has `len` bytes; 0 if that packet
    /// is not in this block, or if the operation has no bytes.
    pub fn end(&self, len: u64) -> u16 {
        match self.offset + u64::from(self.len) == len {
            true => self.extent(self.packets().saturating_sub(1)).len as u16,
            false => 0,
        }
    }

    /// The extents of the block's packets that `which` names.
    pub fn extents(self, which: Packets) -> impl Iterator<Item = Extent> {
        positions(which).map(move |i| self.extent(i))
    }

    /// The extent of the block's packet `i`.
    pub fn extent(&self, i: u32) -> Extent {
        let mut extent = Extent::packet(self.op, i, u64::from(self.len), self.payload_size);
        extent.offset += self.offset;
        extent
    }
}

/// A parity packet of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parity {
    /// The block that the parity packet belongs to.
    pub block: CodeBlock,
    /// Index of the parity packet, less than [`crate::limits::PARITIES_MAX`].
    pub index: u8,
}

/// A set of packets of a block: bit `i` stands for the block's packet `i`.
pub type Packets = u128;

/// The positions in the block of the packets in `which`, in rising order.
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
                let has_last = at == len;
                let end = Extent::packet(OpId(1), first + block.packets() - 1, len, 100).len;
                assert_eq!(u32::from(block.end(len)), if has_last { end } else { 0 });
            }
            assert_eq!(at, len);
        }
    }
}
