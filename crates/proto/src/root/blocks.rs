//! Repair by parity packets, in large groups: what receivers lack is gathered by blocks.

use super::*;
use crate::block::{Block, Packets, Parity, positions};
use crate::demand::{Need, Part, Who};
use crate::limits::{BLOCK_PACKETS, SUMS_MAX};

/// Somebody other than the member that is known.
const OTHERS: u32 = u32::MAX - 1;

impl Root {
    /// Whether a root repairs by blocks.
    pub(super) fn codes_blocks(scheme: &Scheme, members: usize, chunk: u32) -> bool {
        let how = match scheme.repair.how {
            How::Blocks => members > 1,
            How::Coded => members > SUMS_MAX,
            How::Sums | How::Cheaper | How::Unicast | How::Multicast => false,
        };
        let asks = !scheme.detect.by_sender && !scheme.feedback.asked_only;
        // The code works on words of 16 bits.
        how && asks && scheme.told == Told::Root && chunk.is_multiple_of(2)
    }

    /// Member `i` of the group's lane lacks these packets, of which those before `upto` are to be
    /// repaired. Returns how many repairs are news.
    pub(super) fn note_blocks(
        &mut self,
        now: Time,
        i: usize,
        missing: impl Iterator<Item = (Seq, u32)>,
        upto: Seq,
        (as_of, rto): (Option<u32>, Duration),
    ) -> u64 {
        let mut noted = 0;
        let mut part: Option<Part> = None;
        let Some(group) = &self.lanes[GROUP_LANE] else {
            return 0;
        };
        // What lies outside the window costs nothing to leave out.
        let (base, upto) = (group.window.base(), upto.min(group.window.next()));
        for (first, n) in missing {
            let end = (first + n).min(upto);
            let mut at = first.max(base);
            while at.before(end) {
                let within = |p: &Part| at.within(p.first, p.packets);
                if !part.as_ref().is_some_and(within) {
                    noted += self.note_part(now, i, part.take(), (as_of, rto));
                    part = self.block_of(at);
                }
                let Some(p) = &mut part else { return noted };
                let last = end.min(p.first + p.packets);
                while at.before(last) {
                    p.which |= 1 << (at.from(p.first) as u32);
                    at += 1;
                }
            }
        }
        noted + self.note_part(now, i, part, (as_of, rto))
    }

    /// The block that a packet is in, and none of its packets.
    fn block_of(&self, seq: Seq) -> Option<Part> {
        let op = self.ops.get(self.op_at(seq));
        let op = op.filter(|op| !seq.before(op.base))?;
        let index = seq.from(op.base) as u32 / BLOCK_PACKETS * BLOCK_PACKETS;
        Some(Part {
            first: op.base + index,
            packets: (op.cut.packets - index).min(BLOCK_PACKETS),
            which: 0,
        })
    }

    fn note_part(
        &mut self,
        now: Time,
        i: usize,
        part: Option<Part>,
        (as_of, rto): (Option<u32>, Duration),
    ) -> u64 {
        let Some(mut part) = part.filter(|_| self.affordable(now, i) > 0) else {
            return 0;
        };
        let rtt = self.rtt.unwrap_or_default();
        let Some(l) = &mut self.lanes[GROUP_LANE] else {
            return 0;
        };
        for k in positions(part.which) {
            let (seq, who) = (part.first + k, i as u32);
            let sent = l.window.base().before(seq + 1) && seq.before(l.window.next());
            let sent = sent && !l.window.is_on_its_way(now, seq, as_of, rtt);
            let queued = sent && l.window.is_queued(seq);
            if queued {
                l.window.lacks(now, seq, who, as_of, rto);
            }
            if !sent || queued || l.window.is_mended(now, seq, who, as_of, rto) {
                part.which &= !((1 as Packets) << k);
            }
        }
        let Some(demand) = &mut self.demand else {
            return 0;
        };
        let noted = demand.note(now, part, i as u32, as_of, rto);
        self.charge(i, noted);
        u64::from(noted)
    }

    /// The parity packet to be sent now, if any. What is better sent again itself joins the lane's
    /// repairs.
    pub(super) fn poll_blocks(
        &mut self,
        now: Time,
        scheme: &Scheme,
        counters: &mut Counters,
    ) -> Option<Send> {
        let ripe = self.ripe(now, GROUP_LANE, scheme)?;
        let more = self.is_open(GROUP_LANE) && self.may_start(now);
        loop {
            let l = self.lanes[GROUP_LANE].as_mut()?;
            let demand = self.demand.as_mut()?;
            match demand.need(ripe, l.window.next(), more)? {
                Need::Packets { part, who, since } => {
                    let (one, others) = match who {
                        Who::One(one) => (one, None),
                        Who::Several(one) => (one, Some(OTHERS)),
                    };
                    for k in positions(part.which) {
                        for who in [Some(one), others].into_iter().flatten() {
                            let seq = part.first + k;
                            l.window.lacks(since, seq, who, None, Duration::ZERO);
                        }
                    }
                    demand.met(part.first);
                }
                Need::Parity { first, index, last } => {
                    return self.send_parity(now, scheme, counters, (first, index, last));
                }
            }
        }
    }

    fn send_parity(
        &mut self,
        now: Time,
        scheme: &Scheme,
        counters: &mut Counters,
        (first, index, last): (Seq, u8, bool),
    ) -> Option<Send> {
        let at = self.op_at(first);
        let chunk = self.ops.get(at)?.cut.chunk;
        let flight = self.depart(now, GROUP_LANE, chunk, scheme)?;
        let op = self.ops.get_mut(at)?;
        op.out += 1;
        let at = first.from(op.base) as u32;
        let block = Block::at(op.id, at, op.len, chunk);
        self.demand.as_mut()?.sent(now, first, flight);
        counters.repairs_multicast += 1;
        counters.repairs_coded += 1;
        self.arm_survey(now, scheme);
        Some(Send::Parity {
            to: Dest::Group(self.group),
            flight: flight as u16,
            first,
            parity: Parity { block, index },
            flags: if last { flag::ASK } else { 0 },
        })
    }
}
