//! NACKs: when a receiver reports what it lacks, what it reports, and the frame that says so.

use core::iter::empty;
use core::time::Duration;

use super::arrivals::Newest;
use super::{Children, Receiver};
use crate::limits::RANGES_MAX;
use crate::mutant::{self, Mutant};
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{self, Declined, Feedback, Ranges, Writer, flag};

/// Largest number of packets of a short operation. A receiver may NACK lost packets of a short
/// operation before it is posted. Repairs of longer operations are XOR repair packets and parity
/// packets as a rule, which are of use only once the operation is posted.
const SHORT_MAX: u32 = 8;

impl Receiver {
    /// Whether the stream is in the midst of a long object: no caller waits for one packet of it,
    /// and the sender aggregates NACKs anyway.
    pub(super) fn is_mid_object(&self, scheme: &Scheme) -> bool {
        let high = self.gaps.high();
        let op = self.posted.queue.iter().find(|op| high.before(op.end()));
        op.is_some_and(|op| op.end().from(high) > scheme.feedback.every as i32)
    }

    /// Whether all that is posted has been sent.
    pub(super) fn is_at_end(&self) -> bool {
        !self.gaps.high().before(self.posted.end)
    }

    /// How long a packet may be late before it counts as lost.
    pub(super) fn reorder_delay(&self, scheme: &Scheme) -> Duration {
        match self.is_mid_object(scheme) {
            true => self
                .nack
                .reorder_threshold
                .max(scheme.repair.nack_delay / 4),
            false => self.nack.reorder_threshold,
        }
    }

    /// The first retransmission timeout of a NACK: after this time missing packets are NACKed
    /// again.
    pub(super) fn first_nack_rto(&self, scheme: &Scheme) -> Duration {
        let detect = &scheme.detect;
        match self.is_at_end() {
            true => {
                (detect.tail_min * 5).min(detect.rto_min) + scheme.feedback.turn * self.receivers
            }
            false => detect.rto_min,
        }
    }

    /// The earliest time at which a gap may be NACKed.
    pub(super) fn nack_time(&self, now: Time, scheme: &Scheme) -> Time {
        match self.is_mid_object(scheme) {
            true => self.earliest_feedback(now, self.nack.last, scheme),
            false => now,
        }
    }

    /// The number before which missing packets may be NACKed. A receiver that lacks packets of a
    /// posted short operation may NACK all that it can hold, because as a rule the next operations
    /// are as short. (A co-root's repairs cannot be held.)
    pub(super) fn nackable_end(&self) -> Seq {
        let filled = self.gaps.filled();
        let lacking = self.posted.queue.iter().find(|op| filled.before(op.end()));
        let lags = lacking.is_some_and(|op| op.cut.packets <= SHORT_MAX);
        let nackable = match lags && self.collector == self.sender {
            true => self.nackable.max(self.gaps.high()),
            false => self.nackable,
        };
        nackable.min(self.posted.end.max(self.takes()))
    }

    /// Finds the missing packets before `upto` that are to be NACKed. From the missing packets of
    /// each code block it leaves out as many as the block has cached parity packets.
    pub(super) fn find_nacks(&mut self, upto: Seq) {
        let mut wanted = core::mem::take(&mut self.parities.wanted);
        wanted.clear();
        wanted.reserve(2 * RANGES_MAX);
        let mut cached = self.parities.blocks.iter().map(|k| {
            let end = k.first + k.block.packets();
            let twice = u32::from(mutant::active(Mutant::KeptCountTwice));
            (k.first, end, k.count() << twice)
        });
        let mut block = cached.next();
        for (first, n) in self.gaps.missing(upto) {
            if wanted.len() >= RANGES_MAX {
                break; // no more fit the frame
            }
            let (mut at, end) = (first, first + n);
            while at.before(end) {
                while block.is_some_and(|b| !at.before(b.1)) {
                    block = cached.next();
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
        self.parities.wanted = wanted;
    }

    /// Whether this node sends NACKs by itself: not if the sender detects losses, nor if feedback
    /// is sent on request only.
    pub(super) fn sends_nacks(&self, scheme: &Scheme) -> bool {
        !scheme.detect.by_sender && !scheme.feedback.on_request_only
    }

    /// Starts the timer of the reordering threshold if there is a gap and the timer is not running.
    pub(super) fn arm_nack_timer(&mut self, now: Time, scheme: &Scheme) {
        if self.sends_nacks(scheme) && self.gaps.is_open() && self.nack.reorder_timer.is_none() {
            self.nack.reorder_timer = Some((now + self.reorder_delay(scheme), self.gaps.high()));
        }
    }

    /// Schedules a NACK if a gap has been open for longer than the reordering threshold.
    pub(super) fn schedule_due_nack(&mut self, now: Time, scheme: &Scheme) {
        let Some((_, upto)) = self.nack.reorder_timer.filter(|r| r.0 <= now) else {
            return;
        };
        self.nack.reorder_timer = None;
        self.nack.upto = upto;
        if self.gaps.filled().before(upto.min(self.nackable_end())) {
            let at = self.nack_time(now, scheme);
            self.feedback.schedule(at);
            self.nack.last = Some(at);
        }
        let mut missing = self.gaps.missing(self.gaps.high());
        if missing.any(|(s, _)| !s.before(upto)) {
            self.nack.reorder_timer = Some((now + self.reorder_delay(scheme), self.gaps.high()));
        }
    }

    /// Whether something is missing that may be NACKed now.
    pub(super) fn owes_nack(&self) -> bool {
        let upto = self.nack.upto.min(self.nackable_end());
        self.gaps.filled().before(upto) && !self.has_failed()
    }

    /// The number before which the feedback that is sent now NACKs missing packets.
    fn nack_limit(&self, scheme: &Scheme) -> Seq {
        if mutant::active(Mutant::GapsUnreported) || self.has_failed() {
            return self.gaps.cum();
        }
        // A receiver that sends no NACKs by itself reports all gaps that it knows when it is asked.
        let upto = match self.sends_nacks(scheme) {
            true => self.nack.upto,
            false => self.gaps.high(),
        };
        upto.min(self.nackable_end())
    }

    /// Appends a feedback frame to `head`: the ACK, the NACK and the advertised window. Appends
    /// nothing and returns false if the frame has more than `room` bytes.
    pub(super) fn put_ack_and_nack(
        &mut self,
        now: Time,
        scheme: &Scheme,
        flags: u8,
        (head, room): (&mut Writer<'_>, usize),
    ) -> bool {
        let newest = self.arrivals.newest.unwrap_or(Newest {
            burst: 0,
            at: now,
            received: 0,
        });
        // A receiver names no burst if it has received nothing, or if its newest burst is old.
        let known = self.arrivals.newest.is_some_and(|n| !n.is_old(now));
        self.reported_subtree = self.cum_subtree();
        let feedback = Feedback {
            group: self.group,
            sender: self.sender,
            cum: self.gaps.cum(),
            cum_subtree: self.reported_subtree,
            limit: self.advertised_for_all(),
            high: self.gaps.high(),
            received: newest.received,
            arrived_us: newest.at.micros(),
            held_us: now.since(newest.at).as_micros().min(u128::from(u32::MAX)) as u32,
            burst: newest.burst,
            flags: if known { flags | flag::BURST } else { flags },
            slot: self.slot,
            declined: Declined::NONE,
            missing: Ranges::NONE,
        };
        self.declines.forget_before(self.gaps.cum());
        let nack_upto = self.nack_limit(scheme);
        if !self.parities.blocks.is_empty() {
            self.find_nacks(nack_upto);
        }
        let declined = self.declines.runs();
        let own = self.gaps.missing(nack_upto);
        match &mut self.children {
            _ if !self.parities.blocks.is_empty() => {
                let wanted = self.parities.wanted.iter().copied();
                wire::put_declining_feedback(head, room, &feedback, declined, wanted)
            }
            Children::Aggregated(reports) => {
                let all = reports.missing(self.reported_subtree, own);
                // A node cannot report packets that it does not know to have been sent, though a
                // child may.
                let known = all.iter().map_while(|&(first, n)| {
                    let known = feedback.high.from(first).min(n as i32);
                    (known > 0).then_some((first, known as u32))
                });
                wire::put_declining_feedback(head, room, &feedback, empty(), known)
            }
            _ => wire::put_declining_feedback(head, room, &feedback, declined, own),
        }
    }
}
