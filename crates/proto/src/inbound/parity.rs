//! Parity packets at a receiver: kept until a block lacks no more packets than are kept of it, and
//! counted in what is asked for.

use super::*;
use crate::block::{Block, Packets, Parity, positions};
use crate::limits::{BLOCK_PACKETS, KEPT_BYTES, PARITIES_MAX, RANGES_MAX};

/// Blocks for which there is room at once.
const AT_ONCE: usize = 64;

const _: () = assert!(PARITIES_MAX as u32 <= u64::BITS);

/// A block of which parity packets are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    block: Block,
    /// Number of its first packet.
    first: Seq,
    /// Which parity packets, a bit each.
    parities: u64,
}

impl Kept {
    fn count(&self) -> u32 {
        self.parities.count_ones()
    }
}

impl Inbound {
    /// A parity packet of this stream; otherwise as [`Inbound::data`].
    pub fn parity(
        &mut self,
        now: Time,
        flight: (u16, Time),
        scheme: &Scheme,
        parity: &wire::Parity<'_>,
        node: &mut Shared<'_>,
    ) -> Placement {
        let (high, filled) = (self.gaps.high(), self.gaps.filled());
        let Some(placement) = self.keep(parity, node) else {
            node.counters.foreign += 1;
            return Placement::Discard;
        };
        self.arrive(flight, node.counters);
        let last = parity.first + u32::from(parity.packets - 1);
        self.note_loss(now, (filled, high), false, node.counters);
        self.schedule(now, scheme, (last, 0), high, filled, false);
        let asked = parity.flags & flag::ASK != 0;
        if asked && self.lacking(parity.first, u32::from(parity.packets)) != 0 {
            // What was sent for this block was not enough.
            self.ripe = self.ripe.max(self.gaps.high().min(last + 1));
            self.ask(now, scheme, last + 1);
        }
        placement
    }

    /// What a parity packet is good for; `None`: it contradicts what was posted.
    fn keep(&mut self, parity: &wire::Parity<'_>, node: &mut Shared<'_>) -> Option<Placement> {
        let (first, packets) = (parity.first, u32::from(parity.packets));
        let end = first + packets;
        // As for sums.
        let room = self.room();
        let posted = self.op_at(first).filter(|op| !op.failed);
        let Some(op) = posted.filter(|_| !room.before(end)) else {
            node.counters.duplicates += 1;
            return Some(Placement::Discard);
        };
        let index = first.from(op.base) as u32;
        let whole = (op.cut.packets - index).min(BLOCK_PACKETS);
        if !index.is_multiple_of(BLOCK_PACKETS)
            || packets != whole
            || parity.payload.len() as u32 != op.cut.chunk
        {
            return None;
        }
        let chunk = op.cut.chunk;
        let block = Block::at(op.id, index, op.len, chunk);
        // All of a block is sent before its parity packets.
        self.gaps.announce(end);
        let at = self.kept.partition_point(|k| k.first.before(first));
        let known = self.kept.get(at).is_some_and(|k| k.first == first);
        let bit = 1 << parity.index;
        if self.lacking(first, packets) == 0 || known && self.kept[at].parities & bit != 0 {
            node.counters.duplicates += 1;
            return Some(Placement::Discard);
        }
        let all: u32 = self.kept.iter().map(Kept::count).sum();
        if u64::from(all + 1) * u64::from(chunk) > KEPT_BYTES {
            return Some(Placement::Discard); // it is asked for again
        }
        if !known {
            if self.kept.is_empty() {
                self.kept.reserve(AT_ONCE);
            }
            let kept = Kept {
                block,
                first,
                parities: 0,
            };
            self.kept.insert(at, kept);
        }
        self.kept[at].parities |= bit;
        self.rebuild(at, node.out);
        Some(Placement::Keep(Parity {
            block,
            index: parity.index,
        }))
    }

    /// Packets of `first .. first + n` that have not been seen, a bit each.
    fn lacking(&self, first: Seq, n: u32) -> Packets {
        (0..n).fold(0, |lacking, i| {
            lacking | Packets::from(!self.gaps.has(first + i)) << i
        })
    }

    /// Packet `seq` has been seen: its block may be complete by that, or be rebuilt.
    pub(super) fn fill(&mut self, seq: Seq, out: &mut VecDeque<Output>) {
        if self.kept.is_empty() {
            return;
        }
        let after = self.kept.partition_point(|k| !seq.before(k.first));
        if let Some(at) = after.checked_sub(1)
            && seq.within(self.kept[at].first, self.kept[at].block.packets())
        {
            self.rebuild(at, out);
        }
    }

    /// Has a block computed if as many of its parity packets are kept as it lacks packets.
    fn rebuild(&mut self, at: usize, out: &mut VecDeque<Output>) {
        let kept = self.kept[at];
        let lacking = self.lacking(kept.first, kept.block.packets());
        if lacking.count_ones() > kept.count() {
            return;
        }
        let mut computed = lacking;
        if mutant::active(Mutant::RebuildsWhatIsHere) {
            computed |= 1;
        }
        for i in positions(lacking) {
            self.gaps.see(kept.first + i);
        }
        self.kept.remove(at);
        out.push_back(match lacking {
            0 => Output::Forget(kept.block),
            _ => Output::Rebuild(kept.block, computed),
        });
    }

    /// Bytes of an operation, which begins at `base`, were not right: what was to be computed from
    /// them, and has not been yet, is missing again.
    pub(super) fn take_back_rebuilds(
        &mut self,
        base: Seq,
        corrupt: Extent,
        out: &mut VecDeque<Output>,
    ) {
        let end = corrupt.offset + u64::from(corrupt.len);
        for output in out {
            let Output::Rebuild(block, lacking) = *output else {
                continue;
            };
            let block_end = block.offset + u64::from(block.len);
            if block.op != corrupt.op || block_end <= corrupt.offset || end <= block.offset {
                continue;
            }
            let first = base + (block.offset / u64::from(block.chunk)) as u32;
            for i in positions(lacking) {
                self.gaps.reopen(first + i);
            }
            *output = Output::Forget(block);
        }
    }

    /// Nothing more of an operation is rebuilt.
    pub(super) fn forget_parities(&mut self, op: OpId, out: &mut VecDeque<Output>) {
        let gone = self.kept.extract_if(.., |k| k.block.op == op);
        out.extend(gone.map(|k| Output::Forget(k.block)));
    }

    /// Of what is missing before `upto` finds what is to be asked for: of each block so many
    /// packets less as parity packets of it are kept.
    pub(super) fn find_wanted(&mut self, upto: Seq) {
        let mut wanted = core::mem::take(&mut self.wanted);
        wanted.clear();
        wanted.reserve(2 * RANGES_MAX);
        let mut kept = self.kept.iter().map(|k| {
            let end = k.first + k.block.packets();
            let twice = u32::from(mutant::active(Mutant::KeptCountTwice));
            (k.first, end, k.count() << twice)
        });
        let mut block = kept.next();
        for (first, n) in self.gaps.missing(upto) {
            if wanted.len() >= RANGES_MAX {
                break; // no more fit the frame
            }
            let (mut at, end) = (first, first + n);
            while at.before(end) {
                while block.is_some_and(|b| !at.before(b.1)) {
                    block = kept.next();
                }
                let Some(b) = block.as_mut().filter(|b| b.0.before(end)) else {
                    wanted.push((at, end.from(at) as u32));
                    break;
                };
                if at.before(b.0) {
                    wanted.push((at, b.0.from(at) as u32));
                    at = b.0;
                }
                let here = end.min(b.1).from(at) as u32;
                let here_already = here.min(b.2);
                b.2 -= here_already;
                at += here_already;
                if here > here_already {
                    wanted.push((at, here - here_already));
                    at += here - here_already;
                }
            }
        }
        self.wanted = wanted;
    }
}
