//! Parity packets at a receiver: cached until their code block lacks no more packets than it has
//! parity packets, and subtracted from what the receiver NACKs.

use std::collections::VecDeque;

use super::parity_cache::{AT_ONCE, CachedParity};
use super::{Receiver, Shared};
use crate::border::{Output, Placement};
use crate::id::{Extent, OpId};
use crate::limits::{BLOCK_PACKETS, PARITY_CACHE_BYTES};
use crate::mutant::{self, Mutant};
use crate::repair::{CodeBlock, Packets, Parity, positions};
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{self, flag};

impl Receiver {
    /// Takes a parity packet of this stream; otherwise as [`Receiver::data`].
    pub fn parity(
        &mut self,
        now: Time,
        burst: (u16, Time),
        scheme: &Scheme,
        parity: &wire::Parity<'_>,
        node: &mut Shared<'_>,
    ) -> Placement {
        let (high, filled) = (self.gaps.high(), self.gaps.filled());
        let Some(placement) = self.cache(now, parity, node) else {
            node.counters.foreign += 1;
            return Placement::Discard;
        };
        self.count_packet(burst, scheme, &placement, node.counters);
        let last = parity.first + u32::from(parity.packets - 1);
        self.note_loss(now, (filled, high), false, node.counters);
        self.on_packet(now, scheme, (last, 0), high, filled, false);
        let asked = parity.flags & flag::ACK_REQUEST != 0;
        if asked && self.lacking(parity.first, u32::from(parity.packets)) != 0 {
            // The packets sent for this block were not enough: NACK the rest.
            self.nack.upto = self.nack.upto.max(self.gaps.high().min(last + 1));
            self.on_probe(now, scheme, last + 1);
        }
        placement
    }

    /// Caches a parity packet if it is of use, and has its block decoded if that is possible now.
    /// `None`: the packet contradicts what was posted.
    pub(super) fn cache(
        &mut self,
        now: Time,
        parity: &wire::Parity<'_>,
        node: &mut Shared<'_>,
    ) -> Option<Placement> {
        let (first, packets) = (parity.first, u32::from(parity.packets));
        let end = first + packets;
        // The block is posted as a rule, as the sources of an XOR repair packet are; see
        // `decode_xor`.
        let room = self.room();
        let posted = self.posted.find(first).filter(|op| !op.failed);
        let Some(op) = posted.filter(|_| !room.before(end)) else {
            node.counters.duplicates += 1;
            return Some(Placement::Discard);
        };
        let index = first.from(op.base) as u32;
        let payload_size = op.cut.payload_size;
        let block = CodeBlock::at(op.id, index, op.len, payload_size);
        if parity.payload.len() as u32 != payload_size {
            return None;
        }
        let same = index.is_multiple_of(BLOCK_PACKETS) && packets == block.packets();
        if !same || parity.end != block.end(op.len) {
            let id = op.id;
            self.challenge(now, id);
            return None;
        }
        // The sender sends all of a block before its parity packets.
        self.gaps.announce(end);
        let at = self
            .parities
            .blocks
            .partition_point(|k| k.first.before(first));
        let known = self
            .parities
            .blocks
            .get(at)
            .is_some_and(|k| k.first == first);
        let bit = 1 << parity.index;
        if self.lacking(first, packets) == 0
            || known && self.parities.blocks[at].parities & bit != 0
        {
            node.counters.duplicates += 1;
            return Some(Placement::Discard);
        }
        let all: u32 = self.parities.blocks.iter().map(CachedParity::count).sum();
        if u64::from(all + 1) * u64::from(payload_size) > PARITY_CACHE_BYTES {
            return Some(Placement::Discard); // what it repairs is NACKed again
        }
        if !known {
            if self.parities.blocks.is_empty() {
                self.parities.blocks.reserve(AT_ONCE);
            }
            let cached = CachedParity {
                block,
                first,
                parities: 0,
            };
            self.parities.blocks.insert(at, cached);
        }
        self.parities.blocks[at].parities |= bit;
        self.decode(at, node.out);
        Some(Placement::CacheParity(Parity {
            block,
            index: parity.index,
        }))
    }

    /// Packets of `first .. first + n` that have not been seen, one bit each.
    pub(super) fn lacking(&self, first: Seq, n: u32) -> Packets {
        (0..n).fold(0, |lacking, i| {
            lacking | Packets::from(!self.gaps.has(first + i)) << i
        })
    }

    /// Updates the block of packet `seq`, which has just been seen: the block may be complete now,
    /// or may be decoded.
    pub(super) fn fill(&mut self, seq: Seq, out: &mut VecDeque<Output>) {
        if self.parities.blocks.is_empty() {
            return;
        }
        let after = self
            .parities
            .blocks
            .partition_point(|k| !seq.before(k.first));
        if let Some(at) = after.checked_sub(1)
            && seq.within(
                self.parities.blocks[at].first,
                self.parities.blocks[at].block.packets(),
            )
        {
            self.decode(at, out);
        }
    }

    /// Has the block at `at` decoded if it has as many cached parity packets as it lacks packets.
    pub(super) fn decode(&mut self, at: usize, out: &mut VecDeque<Output>) {
        let cached = self.parities.blocks[at];
        let lacking = self.lacking(cached.first, cached.block.packets());
        if lacking.count_ones() > cached.count() {
            return;
        }
        let mut computed = lacking;
        if mutant::active(Mutant::RebuildsWhatIsHere) {
            computed |= 1;
        }
        for i in positions(lacking) {
            self.gaps.see(cached.first + i);
        }
        self.parities.blocks.remove(at);
        out.push_back(match lacking {
            0 => Output::DropParity(cached.block),
            _ => Output::DecodeParity(cached.block, computed),
        });
    }

    /// Takes back decodings that read the corrupt bytes `corrupt` and have not been made yet: their
    /// packets are missing again. The operation begins at number `base`.
    pub(super) fn take_back_decoding(
        &mut self,
        base: Seq,
        corrupt: Extent,
        out: &mut VecDeque<Output>,
    ) {
        let end = corrupt.offset + u64::from(corrupt.len);
        for output in out {
            let Output::DecodeParity(block, lacking) = *output else {
                continue;
            };
            let block_end = block.offset + u64::from(block.len);
            if block.op != corrupt.op || block_end <= corrupt.offset || end <= block.offset {
                continue;
            }
            let first = base + (block.offset / u64::from(block.payload_size)) as u32;
            for i in positions(lacking) {
                self.gaps.reopen(first + i);
            }
            *output = Output::DropParity(block);
        }
    }

    /// Drops all cached parity packets of operation `op`.
    pub(super) fn forget_parities(&mut self, op: OpId, out: &mut VecDeque<Output>) {
        let gone = self.parities.blocks.extract_if(.., |k| k.block.op == op);
        out.extend(gone.map(|k| Output::DropParity(k.block)));
    }
}
