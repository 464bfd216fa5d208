//! The repairs that receivers request for each block, and the parity packets already sent for it.
//!
//! A report says how many packets of a block a receiver lacks, less the parity packets that it has
//! cached. The sender also subtracts parity packets that it sent after the last burst that the
//! report covers: they are still under way. What the neediest receiver then lacks is *wanted*: that
//! many parity packets mend the block for all receivers. The sender retransmits the packets instead
//! if no more different packets than that are lacking, or if only one receiver lacks any.

use core::time::Duration;
use std::collections::VecDeque;

use crate::limits::{BLOCK_PACKETS, PARITIES_MAX};
use crate::repair::Packets;
use crate::seq::Seq;
use crate::time::Time;

/// Some packets of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Number of the block's first packet.
    pub first: Seq,
    /// Number of packets in the block.
    pub packets: u32,
    /// The packets of the block that this part names.
    pub which: Packets,
}

/// The members that lack packets of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// Only this member.
    One(u32),
    /// Several members; the number is the member that reported first.
    Several(u32),
}

/// The repair that a block needs next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParityNeed {
    /// A parity packet.
    Parity {
        /// Number of the block's first packet.
        first: Seq,
        /// Index of the parity packet.
        index: u8,
        /// Whether this is the last parity packet that the block wants now.
        last: bool,
    },
    /// Retransmissions of packets.
    Packets {
        /// The packets to retransmit.
        part: Part,
        /// The members that lack them.
        who: Who,
        /// When the first report of the block arrived.
        since: Time,
    },
}

#[derive(Clone, Debug)]
struct Block {
    first: Seq,
    packets: u32,
    /// Packets that receivers reported as lacking since the block's wants were last met.
    lacking: Packets,
    /// Number of parity packets that the sender has yet to send.
    wanted: u32,
    who: Option<Who>,
    /// The burst in which each parity packet left; the first `sent` entries are valid.
    bursts: [u32; PARITIES_MAX as usize],
    /// Number of parity packets sent for the block.
    sent: u8,
    /// When the sender sent the last parity packet.
    at: Time,
}

/// The blocks of a path for which receivers reported missing packets, and what each block wants.
#[derive(Clone, Debug)]
pub struct ParityRequests {
    /// Blocks in rising order. Blocks before the window's base are dropped.
    blocks: VecDeque<Block>,
    /// First packets of the blocks that want repairs, and since when, in order of time.
    queue: VecDeque<(Seq, Time)>,
}

impl ParityRequests {
    /// An empty state, with room for a window of `window` packets.
    pub fn new(window: u32) -> ParityRequests {
        let blocks = (window / BLOCK_PACKETS) as usize + 2;
        ParityRequests {
            blocks: VecDeque::with_capacity(blocks),
            queue: VecDeque::with_capacity(blocks),
        }
    }

    /// Notes that member `who` lacks `part` of a block. Burst `as_of` is the last one that had
    /// reached the member when it reported (`None`: unknown). Parity packets of later bursts, or
    /// all if `as_of` is unknown, count as under way until `rto` after the last of them was sent.
    /// Returns by how many packets the report raises what the block wants.
    pub fn note(
        &mut self,
        now: Time,
        part: Part,
        who: u32,
        as_of: Option<u32>,
        rto: Duration,
    ) -> u32 {
        if part.which == 0 {
            return 0;
        }
        let at = self.at(part.first);
        if self.blocks.get(at).is_none_or(|b| b.first != part.first) {
            let block = Block {
                first: part.first,
                packets: part.packets,
                lacking: 0,
                wanted: 0,
                who: None,
                bursts: [0; PARITIES_MAX as usize],
                sent: 0,
                at: Time::ZERO,
            };
            self.blocks.insert(at, block);
        }
        let b = &mut self.blocks[at];
        let bursts = &b.bursts[..usize::from(b.sent)];
        let coming = match as_of {
            // A receiver that lost the last parity packet hears of no later burst.
            _ if now.since(b.at) >= rto => 0,
            Some(known) => {
                let later = |f: &&u32| (f.wrapping_sub(known) as i32) > 0;
                bursts.iter().rev().take_while(later).count()
            }
            None => bursts.len(),
        };
        let lacks = part.which.count_ones().saturating_sub(coming as u32);
        if lacks == 0 {
            return 0;
        }
        if b.who.is_none() {
            self.queue.push_back((part.first, now));
        }
        b.lacking |= part.which;
        b.who = Some(match b.who {
            None => Who::One(who),
            Some(Who::One(w)) if w == who => Who::One(who),
            Some(Who::One(w) | Who::Several(w)) => Who::Several(w),
        });
        let news = lacks.saturating_sub(b.wanted);
        b.wanted += news;
        news
    }

    /// Index in `blocks` at which the block is, or at which to insert it.
    fn at(&self, first: Seq) -> usize {
        self.blocks.partition_point(|b| b.first.before(first))
    }

    /// When the oldest report that still waits for its repair arrived.
    pub fn oldest(&self) -> Option<Time> {
        self.queue.front().map(|q| q.1)
    }

    /// The next repair for a block whose oldest report arrived at `until` or before. The sender has
    /// sent all packets before `next`. A block with unsent packets gets no parity packet yet if
    /// `more` packets will follow.
    pub fn need(&self, until: Time, next: Seq, more: bool) -> Option<ParityNeed> {
        // At most one block, the newest, has unsent packets: the second entry never waits.
        for &(first, since) in self.queue.iter().take(2) {
            let (Some(b), true) = (self.blocks.get(self.at(first)), since <= until) else {
                return None;
            };
            let whole = !next.before(b.first + b.packets);
            let Some(who) = b.who else { continue };
            let coded = matches!(who, Who::Several(_))
                && b.wanted < b.lacking.count_ones()
                && u32::from(b.sent) + b.wanted <= u32::from(PARITIES_MAX);
            return Some(match coded {
                true if whole => ParityNeed::Parity {
                    first,
                    index: b.sent,
                    last: b.wanted == 1,
                },
                true if more => continue,
                _ => ParityNeed::Packets {
                    part: Part {
                        first,
                        packets: b.packets,
                        which: b.lacking,
                    },
                    who,
                    since,
                },
            });
        }
        None
    }

    /// Notes that the parity packet that [`ParityRequests::need`] named leaves in burst `burst`.
    pub fn sent(&mut self, now: Time, first: Seq, burst: u32) {
        let at = self.at(first);
        let b = &mut self.blocks[at];
        b.bursts[usize::from(b.sent)] = burst;
        b.sent += 1;
        b.at = now;
        b.wanted -= 1;
        if b.wanted == 0 {
            self.met(first);
        }
    }

    /// Notes that what the block wanted is sent, or that the caller took over its repair.
    pub fn met(&mut self, first: Seq) {
        self.queue.retain(|q| q.0 != first);
        let at = self.at(first);
        let b = &mut self.blocks[at];
        (b.lacking, b.wanted, b.who) = (0, 0, None);
    }

    /// Drops the blocks before `base`: all receivers have placed them.
    pub fn release(&mut self, base: Seq) {
        while let Some(b) = self.blocks.front()
            && !base.before(b.first + b.packets)
        {
            let first = b.first;
            self.queue.retain(|q| q.0 != first);
            self.blocks.pop_front();
        }
    }

    /// Drops the requests of member `who`, which is gone. Where it was the first to report, the
    /// whole block's request goes with it: the other receivers report again.
    pub fn forget(&mut self, who: u32) {
        for at in 0..self.blocks.len() {
            let b = &self.blocks[at];
            if matches!(b.who, Some(Who::One(w) | Who::Several(w)) if w == who) {
                self.met(b.first);
            }
        }
    }

    /// Panics if the state contradicts itself. Tests and soaks call it after every change.
    pub fn invariants(&self) {
        let wanted = |b: &&Block| b.who.is_some();
        assert_eq!(self.blocks.iter().filter(wanted).count(), self.queue.len());
        for b in &self.blocks {
            assert_eq!(b.who.is_some(), b.wanted > 0);
            assert!(b.wanted <= b.lacking.count_ones() || b.sent > 0);
        }
        let firsts = self.blocks.iter().map(|b| b.first);
        assert!(firsts.is_sorted_by(|a, b| a.before(*b)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTO: Duration = Duration::from_millis(1);

    fn lacks(first: u32, which: Packets) -> Part {
        Part {
            first: Seq(first),
            packets: 128,
            which,
        }
    }

    fn parity(first: u32, index: u8, last: bool) -> Option<ParityNeed> {
        let first = Seq(first);
        Some(ParityNeed::Parity { first, index, last })
    }

    #[test]
    fn the_neediest_counts() {
        let mut d = ParityRequests::new(256);
        let all_sent = Seq(1000);
        assert_eq!(d.note(Time(1), lacks(0, 0b11), 4, Some(10), RTO), 2);
        assert_eq!(d.note(Time(2), lacks(0, 0b11100), 5, Some(10), RTO), 1);
        assert_eq!(d.note(Time(3), lacks(0, 0b10000), 6, Some(10), RTO), 0);
        assert_eq!(d.oldest(), Some(Time(1)));
        assert_eq!(d.need(Time(0), all_sent, true), None);
        for index in 0..3 {
            let need = d.need(Time(1), all_sent, true);
            assert_eq!(need, parity(0, index, index == 2));
            d.sent(Time(9), Seq(0), 20 + u32::from(index));
            d.invariants();
        }
        assert_eq!((d.oldest(), d.need(Time(9), all_sent, true)), (None, None));
        // A report that knew of no parity packet sent so far wants none: three are under way. A
        // report that knew of two of the three wants two.
        assert_eq!(d.note(Time(10), lacks(0, 0b111), 7, Some(19), RTO), 0);
        assert_eq!(d.note(Time(10), lacks(0, 0b111), 7, None, RTO), 0);
        assert_eq!(d.note(Time(10), lacks(0, 0b111), 7, Some(21), RTO), 2);
        // After an RTO no parity packet counts as under way.
        let later = Time(9) + RTO;
        assert_eq!(d.note(later, lacks(0, 0b111), 8, Some(19), RTO), 1);
        d.release(Seq(128));
        d.invariants();
        assert_eq!(d.oldest(), None);
    }

    #[test]
    fn few_packets_are_sent_themselves() {
        let mut d = ParityRequests::new(256);
        d.note(Time(1), lacks(0, 0b101), 4, Some(10), RTO);
        let packets = |who, which| {
            let (part, since) = (lacks(0, which), Time(1));
            Some(ParityNeed::Packets { part, who, since })
        };
        // First one member lacks packets, then two members lack the same.
        assert_eq!(d.need(Time(1), Seq(128), true), packets(Who::One(4), 0b101));
        d.note(Time(1), lacks(0, 0b001), 5, Some(10), RTO);
        assert_eq!(
            d.need(Time(1), Seq(128), true),
            packets(Who::Several(4), 0b101)
        );
        d.note(Time(1), lacks(0, 0b110), 5, Some(10), RTO);
        assert_eq!(d.need(Time(1), Seq(128), true), parity(0, 0, false));
        // A block with unsent packets waits, unless no more packets follow.
        assert_eq!(d.need(Time(2), Seq(127), true), None);
        assert_eq!(
            d.need(Time(2), Seq(127), false),
            packets(Who::Several(4), 0b111)
        );
        // When a member is gone, packets that only it lacked are not wanted.
        d.note(Time(2), lacks(128, 0b11), 5, Some(10), RTO);
        d.forget(5);
        d.met(Seq(0));
        assert_eq!(d.oldest(), None);
        d.invariants();
    }
}
