//! What a receiver does with a stream's packets: it finds where their bytes belong.

use super::gaps::Seen;
use super::posted::Posted;
use super::unexpected::Unexpected;
use super::{Children, Receiver, Shared};
use crate::border::{Counters, Output, Placement};
use crate::id::Token;
use crate::mutant::{self, Mutant};
use crate::repair::XorExtents;
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Data, Origin, XorRepair, flag};

impl Receiver {
    /// Takes a data packet of this stream and says where its bytes belong. `burst`: the burst's
    /// number, and when the packet arrived.
    pub fn data(
        &mut self,
        now: Time,
        (burst, arrived): (u16, Time),
        scheme: &Scheme,
        data: &Data<'_>,
        node: &mut Shared<'_>,
    ) -> Placement {
        let fresh = data.flags & flag::REPAIR == 0;
        let high = self.gaps.high();
        let filled = self.gaps.filled();
        let repeat = self.gaps.has(data.seq);
        let Some(placement) = self.place_data(now, data, node) else {
            // A packet that contradicts tells nothing of the path either.
            node.counters.foreign += 1;
            return Placement::Discard;
        };
        self.count_packet((burst, arrived), scheme, &placement, node.counters);
        self.arrivals.received = self.arrivals.received.wrapping_add(u32::from(fresh));
        self.count_lost(high, fresh && !repeat);
        self.update_coroot(now, node.out);
        // A node that has joined still hears broadcasts that it gets nothing of.
        let others = high == self.first && data.seq.before(self.first);
        if fresh && repeat && !others {
            // The packet was late, not lost: its own repair overtook it.
            self.nack
                .learn_reordering(now, &scheme.detect, self.nack.reorder_threshold * 2);
        }
        self.note_loss(now, (filled, high), fresh, node.counters);
        self.on_packet(now, scheme, (data.seq, data.flags), high, filled, fresh);
        placement
    }

    /// Takes an XOR repair packet of this stream; otherwise as [`Receiver::data`].
    pub fn xor_repair(
        &mut self,
        now: Time,
        burst: (u16, Time),
        scheme: &Scheme,
        coded: &XorRepair<'_>,
        node: &mut Shared<'_>,
    ) -> Placement {
        let (high, filled) = (self.gaps.high(), self.gaps.filled());
        let Some(placement) = self.decode_xor(now, coded, node) else {
            node.counters.foreign += 1;
            return Placement::Discard;
        };
        self.count_packet(burst, scheme, &placement, node.counters);
        let last = (coded.sources.last(), coded.flags);
        self.note_loss(now, (filled, high), false, node.counters);
        self.on_packet(now, scheme, last, high, filled, false);
        placement
    }

    /// Counts a packet of this stream that contradicts nothing. `burst`: the burst's number, and
    /// when the packet arrived. If the packet is of use, packets arrive again, and what is missing
    /// is NACKed as often as at first.
    pub(super) fn count_packet(
        &mut self,
        burst: (u16, Time),
        scheme: &Scheme,
        placement: &Placement,
        counters: &mut Counters,
    ) {
        self.arrivals.note_burst(burst);
        counters.received += 1;
        self.feedback.count += 1;
        if *placement != Placement::Discard {
            self.nack.gets_on(self.first_nack_rto(scheme));
        }
    }

    /// Says what an XOR repair packet is good for: one packet, if it is the only source that is
    /// missing. `None`: the packet contradicts what was posted.
    pub(super) fn decode_xor(
        &mut self,
        now: Time,
        coded: &XorRepair<'_>,
        node: &mut Shared<'_>,
    ) -> Option<Placement> {
        let sources = &coded.sources;
        // Receivers have NACKed all sources, so these are posted as a rule. There are two
        // exceptions. A receiver that lacks a short operation also NACKs packets after it. A
        // receiver that was left behind has a path of its own by then, without XOR. Both NACK
        // again, and after some attempts the sender sends them the packet by itself.
        let posted = self
            .posted
            .find(sources.last())
            .filter(|op| !op.failed)
            .cloned();
        let Some(op) = posted.filter(|_| sources.last().before(self.room())) else {
            node.counters.duplicates += 1;
            return Some(Placement::Discard);
        };
        if sources.first().before(op.base) || coded.payload.len() as u32 != op.cut.payload_size {
            return None;
        }
        let extent = |seq: Seq| op.extent(seq.from(op.base) as u32);
        let mut missing = sources.iter().filter(|&s| !self.gaps.has(s));
        let (first, more) = (missing.next(), missing.next());
        // Packets that were held until this operation was posted may still be on their way into the
        // object.
        let pending = |o: &Output| matches!(o, Output::Place(..) | Output::DecodeParity(..));
        let whole = !node.out.iter().any(pending);
        let Some(seq) = first.filter(|_| more.is_none() && whole) else {
            node.counters.duplicates += u64::from(first.is_none());
            return Some(Placement::Discard);
        };
        if self.must_ask_before(&op, seq) {
            self.challenge(now, op.id);
            return Some(Placement::Discard);
        }
        let mut others = XorExtents::new(op.id);
        let forgotten = usize::from(mutant::active(Mutant::SumForgetsOne));
        for s in sources.iter().filter(|&s| s != seq).skip(forgotten) {
            others.push(extent(s));
        }
        Some(match self.gaps.see(seq) {
            Seen::New => {
                let extent = extent(seq);
                self.fill(seq, node.out);
                Placement::DecodeXor(extent, others)
            }
            Seen::Repeat | Seen::Beyond => Placement::Discard,
        })
    }

    /// Whether packet `seq` must not be computed from others before the sender has confirmed the
    /// operation's length: only the last packet itself shows where the sender's operation ends.
    pub(super) fn must_ask_before(&self, op: &Posted, seq: Seq) -> bool {
        op.is_last(seq) && !op.vouched
    }

    /// Says where a data packet belongs; `None`: the packet contradicts what was posted.
    pub(super) fn place_data(
        &mut self,
        now: Time,
        data: &Data<'_>,
        node: &mut Shared<'_>,
    ) -> Option<Placement> {
        let counters = &mut *node.counters;
        let (payload_size, len) = (self.payload_size, data.payload.len() as u32);
        let last = data.flags & flag::LAST != 0;
        let takes = self.takes();
        if len > payload_size {
            return None;
        }
        if !data.seq.before(takes) {
            counters.duplicates += 1;
            // The sender has sent everything before this packet.
            self.gaps.announce(takes);
            // A co-root's repairs cannot be held, so its receivers NACK only posted packets.
            if self.collector == self.sender {
                self.nackable = self.nackable.max(data.seq + 1);
            }
            return Some(Placement::Discard);
        }
        if data.seq.before(self.posted.end) {
            let Some(op) = self.posted.find(data.seq) else {
                counters.duplicates += 1;
                // Of an operation that is declined: what lies before it has been sent.
                self.gaps.announce(data.seq);
                return Some(Placement::Discard);
            };
            if op.failed {
                counters.duplicates += 1;
                return Some(Placement::Discard);
            }
            let extent = op.extent(data.seq.from(op.base) as u32);
            let other = matches!(data.origin, Origin::Source(base) if base != op.base);
            if other || len != extent.len || last != op.is_last(data.seq) {
                self.challenge(now, extent.op);
                return None;
            }
            match self.gaps.see(data.seq) {
                Seen::New => {
                    self.fill(data.seq, node.out);
                    Some(Placement::Write(extent))
                }
                Seen::Repeat | Seen::Beyond => {
                    counters.duplicates += 1;
                    Some(Placement::Discard)
                }
            }
        } else if let Origin::Source(op) = data.origin
            && data.seq.before(op)
        {
            None
        } else if let Origin::Source(op) = data.origin
            && self.gaps.see(data.seq) == Seen::New
        {
            *node.token += 1;
            let token = Token(*node.token);
            let at = self
                .unexpected
                .packets
                .partition_point(|h| h.seq.before(data.seq));
            let held = Unexpected {
                seq: data.seq,
                op,
                len,
                last,
                token,
            };
            self.unexpected.packets.insert(at, held);
            Some(Placement::Unexpected(token))
        } else {
            counters.duplicates += 1;
            Some(Placement::Discard)
        }
    }

    /// Counts how long the first loss has lasted, if a repair has just ended it. (A packet that
    /// closes a gap and is no repair was only late.)
    pub(super) fn note_loss(
        &self,
        now: Time,
        (filled, high): (Seq, Seq),
        fresh: bool,
        counters: &mut Counters,
    ) {
        if filled != self.gaps.filled() && filled != high && !fresh {
            counters.losses.note(now.since(self.nack.gap_opened));
        }
    }

    /// Counts packets for the packet loss. `high`: up to which number packets were known to have
    /// been sent before this one came. `new`: whether a new packet has come.
    pub(super) fn count_lost(&mut self, high: Seq, new: bool) {
        let sent = self.gaps.high().from(high).max(0) as u32;
        if sent > 0 || new {
            self.arrivals.losses.note(sent, u32::from(new));
        }
    }

    /// Takes a sync: the sender has sent everything before `next`, and requests feedback.
    pub fn sync(&mut self, now: Time, scheme: &Scheme, next: Seq) {
        if !self.gaps.is_open() {
            self.nack.gap_opened = now;
        }
        let high = self.gaps.high();
        self.gaps.announce(next);
        self.count_lost(high, false);
        if mutant::active(Mutant::NobodyIsAsked) {
            return;
        }
        // Packets sent just before the sync may arrive after it, because the sync and the data come
        // by different sockets.
        self.arm_nack_timer(now, scheme);
        self.feedback.probes += u32::from(self.arrivals.newest.is_none());
        self.on_probe(now, scheme, next);
        if let Children::Aggregated(reports) = &mut self.children {
            reports.on_probe(next);
        }
    }
}
