//! What receivers ask for of each block, and the parity packets that have been sent for it.
//!
//! A report says how many packets of a block a receiver lacks, parity packets that it keeps taken
//! off. Those that were sent after what the report knows of are on their way and are taken off too.
//! What the neediest still lacks is *wanted*: that many parity packets mend the block for all,
//! unless fewer different packets are lacking than that, or only one receiver lacks any.

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
    /// How many the block has.
    pub packets: u32,
    /// Which of them.
    pub which: Packets,
}

/// The receivers that lack packets of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// This member.
    One(u32),
    /// Several; this one among them.
    Several(u32),
}

/// What a block needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParityNeed {
    /// This parity packet.
    Parity {
        /// Number of the block's first packet.
        first: Seq,
        /// Its index.
        index: u8,
        /// Whether no more are wanted after it.
        last: bool,
    },
    /// These packets themselves.
    Packets {
        /// Which packets.
        part: Part,
        /// The receivers that lack them.
        who: Who,
        /// When the first report came.
        since: Time,
    },
}

#[derive(Clone, Debug)]
struct Block {
    first: Seq,
    packets: u32,
    /// Packets that somebody has reported since the last parity packet that was wanted.
    lacking: Packets,
    /// Parity packets to be sent.
    wanted: u32,
    who: Option<Who>,
    /// Bursts of those that were sent, and when the last was.
    bursts: [u32; PARITIES_MAX as usize],
    sent: u8,
    at: Time,
}

/// The blocks of a path of which packets are lacking.
#[derive(Clone, Debug)]
pub struct ParityRequests {
    /// In order; those before the window's base are forgotten.
    blocks: VecDeque<Block>,
    /// Blocks of which something is wanted, and since when.
    queue: VecDeque<(Seq, Time)>,
}

impl ParityRequests {
    /// Nothing is lacking of a window of so many packets.
    pub fn new(window: u32) -> ParityRequests {
        let blocks = (window / BLOCK_PACKETS) as usize + 2;
        ParityRequests {
            blocks: VecDeque::with_capacity(blocks),
            queue: VecDeque::with_capacity(blocks),
        }
    }

    /// Member `who` lacks this part of a block, as it was when burst `as_of` had reached it
    /// (`None`: unknown). What was sent later (or may have been) is on its way, until the last of
    /// it was sent `rto` ago. Returns how many packets are wanted for it that were not.
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
            // A receiver that has lost the last of them hears of no later burst.
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

    /// Where a block is, or would be.
    fn at(&self, first: Seq) -> usize {
        self.blocks.partition_point(|b| b.first.before(first))
    }

    /// When the oldest report came of those that have not been seen to.
    pub fn oldest(&self) -> Option<Time> {
        self.queue.front().map(|q| q.1)
    }

    /// What a block needs whose oldest report came before `until`, or at it. Packets before `next`
    /// have been sent; a block that is not all sent waits if `more` will be sent.
    pub fn need(&self, until: Time, next: Seq, more: bool) -> Option<ParityNeed> {
        // Only the newest block can be one that waits.
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

    /// The parity packet that [`ParityRequests::need`] named leaves in this burst.
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

    /// What was wanted of this block is sent, or is somebody else's affair.
    pub fn met(&mut self, first: Seq) {
        self.queue.retain(|q| q.0 != first);
        let at = self.at(first);
        let b = &mut self.blocks[at];
        (b.lacking, b.wanted, b.who) = (0, 0, None);
    }

    /// Everything before `base` is placed.
    pub fn release(&mut self, base: Seq) {
        while let Some(b) = self.blocks.front()
            && !base.before(b.first + b.packets)
        {
            let first = b.first;
            self.queue.retain(|q| q.0 != first);
            self.blocks.pop_front();
        }
    }

    /// Member `who` is gone: nothing is wanted for it. What it was the first to want others ask for
    /// again.
    pub fn forget(&mut self, who: u32) {
        for at in 0..self.blocks.len() {
            let b = &self.blocks[at];
            if matches!(b.who, Some(Who::One(w) | Who::Several(w)) if w == who) {
                self.met(b.first);
            }
        }
    }

    /// Checked after every change in tests and soaks.
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
        // Who knew of none of them wants none; who knew of all wants as many as it lacks.
        assert_eq!(d.note(Time(10), lacks(0, 0b111), 7, Some(19), RTO), 0);
        assert_eq!(d.note(Time(10), lacks(0, 0b111), 7, None, RTO), 0);
        assert_eq!(d.note(Time(10), lacks(0, 0b111), 7, Some(21), RTO), 2);
        // Nor is anything on its way for ever.
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
        // One member alone, and later two that lack the same.
        assert_eq!(d.need(Time(1), Seq(128), true), packets(Who::One(4), 0b101));
        d.note(Time(1), lacks(0, 0b001), 5, Some(10), RTO);
        assert_eq!(
            d.need(Time(1), Seq(128), true),
            packets(Who::Several(4), 0b101)
        );
        d.note(Time(1), lacks(0, 0b110), 5, Some(10), RTO);
        assert_eq!(d.need(Time(1), Seq(128), true), parity(0, 0, false));
        // A block that is not all sent waits, unless no more is sent.
        assert_eq!(d.need(Time(2), Seq(127), true), None);
        assert_eq!(
            d.need(Time(2), Seq(127), false),
            packets(Who::Several(4), 0b111)
        );
        // What only one lacked is not wanted when it is gone.
        d.note(Time(2), lacks(128, 0b11), 5, Some(10), RTO);
        d.forget(5);
        d.met(Seq(0));
        assert_eq!(d.oldest(), None);
        d.invariants();
    }
}
