//! The feedback scheduler: when a receiver sends ACKs (spec 2.4).
//!
//! Feedback is frequent enough for the sender to go on, and no more frequent than a sender of many
//! receivers can process.

use core::time::Duration;

use super::{Children, Receiver};
use crate::mutant::{self, Mutant};
use crate::scheme::{FeedbackRule, Scheme};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::flag;

/// Bytes of data packets after which a receiver sends its first report.
const FIRST_BYTES: u32 = 24 << 10;
/// Largest number of data packets before the first report.
const FIRST_MAX: u32 = 16;
/// Largest factor by which packet loss makes feedback more frequent.
const MORE_OFTEN_MAX: u32 = 4;
/// Largest number of probes that count before the first packet arrives. In a group of more
/// receivers than this, probes count for less, in proportion.
const PROBES_MAX: u32 = 8;

/// Time after which feedback that may have been lost is repeated.
const REPEAT_AFTER: Duration = Duration::from_millis(1);

impl Receiver {
    /// Schedules feedback after packet `seq` has come. `high` and `filled` are their values before
    /// it came; `fresh` says that it is no repair.
    pub(super) fn on_packet(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (seq, flags): (Seq, u8),
        high: Seq,
        filled: Seq,
        fresh: bool,
    ) {
        let rule = &scheme.feedback;
        let asked = flags & flag::ACK_REQUEST != 0 && !mutant::active(Mutant::NobodyIsAsked);
        if rule.on_request_only {
            if asked {
                self.on_probe(now, scheme, seq + 1);
            }
            return;
        }
        if filled != self.gaps.filled() {
            if fresh && filled != high {
                // The packet that closed the first gap was not lost, only late: wait that long from
                // now on.
                self.nack.learn_reordering(
                    now,
                    &scheme.detect,
                    now.since(self.nack.gap_opened) * 5 / 4,
                );
            }
            self.nack.gap_opened = now;
        } else if filled == high && self.gaps.is_open() {
            self.nack.gap_opened = now;
        }
        if high.before(seq) {
            self.arm_nack_timer(now, scheme);
        }
        if asked {
            self.on_probe(now + rule.piggyback, scheme, seq + 1);
        }
        if self.advertise_window(now) {
            // The feedback just scheduled comes soon.
        } else if self.feedback.count >= i64::from(self.packets_per_feedback(rule)) {
            let soon = self.earliest_feedback(now, self.feedback.last, scheme);
            self.feedback.schedule(soon + rule.piggyback);
        } else {
            self.feedback.schedule(
                now + rule.delay_max * self.feedback.suppression / self.tries().min(MORE_OFTEN_MAX),
            );
        }
    }

    /// Schedules the answer to a request for feedback on the packets before `upto`. A receiver that
    /// lacks some of them answers sooner, but not before the reordering threshold has passed. A
    /// node that combines its children's reports waits for them.
    pub(super) fn on_probe(&mut self, now: Time, scheme: &Scheme, upto: Seq) {
        self.repeat_feedback(scheme);
        let turn = scheme.feedback.turn * self.turn;
        let delay = self.reorder_delay(scheme);
        if let Some((at, _)) = &mut self.nack.reorder_timer {
            *at = (*at).min(now + delay);
        }
        let turn = match self.gaps.filled().before(upto) && self.gaps.is_open() {
            true if self.gaps.filled().before(self.nack.upto) => now + turn / 4,
            true => (now + turn / 4).max(self.nack.reorder_timer.map_or(now, |r| r.0)),
            false => now + turn,
        };
        match &self.children {
            Children::Aggregated(reports) if reports.cum_subtree(self.gaps.cum()).before(upto) => {
                self.probed = Some(upto);
                self.feedback.schedule(turn + scheme.feedback.delay_max);
            }
            _ => self.feedback.schedule(turn),
        }
    }

    /// Data packets from one report to the next. They are few at first, so that the pacer learns
    /// fast: at its first rate, 16 packets of 9000 bytes take 18 ms.
    pub(super) fn packets_per_feedback(&self, rule: &FeedbackRule) -> u32 {
        let first = (FIRST_BYTES / self.payload_size.max(1)).clamp(1, FIRST_MAX);
        let every = rule.every.min(first + self.arrivals.received / 16);
        // Few of the packets arrive, and few of the reports, too: hence the square.
        (every.saturating_mul(self.feedback.suppression) / self.tries().pow(2)).max(1)
    }

    /// Where the count of data packets begins after a report. With skew, the count ends at a packet
    /// whose number is this node's turn modulo `every` (P1.6), whatever else the node has reported
    /// in between. If that packet is less than half of `every` away, the count ends one turn later.
    pub(super) fn count_after_feedback(&self, rule: &FeedbackRule) -> i64 {
        let every = rule.every.saturating_mul(self.feedback.suppression);
        if !rule.skewed || self.packets_per_feedback(rule) < every {
            return 0;
        }
        let every = i64::from(every);
        let since = self.gaps.high().from(Seq(self.turn + 1));
        let since = i64::from(since).rem_euclid(every);
        match since > every / 2 {
            true => since - every,
            false => since,
        }
    }

    /// How often feedback is sent, on average, until the sender hears it, as far as is known. The
    /// loss in both directions is taken to be the same. In a suppressed group the other receivers'
    /// feedback is enough.
    pub(super) fn tries(&self) -> u32 {
        (self.arrivals.losses.tries() / self.feedback.suppression).max(1)
    }

    /// Has the next feedback repeated if much is lost, because a receiver does not learn when the
    /// sender has heard it.
    pub(super) fn repeat_feedback(&mut self, scheme: &Scheme) {
        if scheme.feedback.on_request_only || scheme.detect.by_sender {
            return; // the sender will ask
        }
        // The sender has not heard a receiver that it probes again and again. (Before the first
        // packet nothing else shows this.)
        let asks = match self.arrivals.newest {
            None => self.feedback.probes.min(PROBES_MAX) / self.receivers.div_ceil(PROBES_MAX),
            Some(_) => 1,
        };
        let tries = self.tries().max(asks);
        self.feedback.repeats = (tries - 1) * 2;
    }

    /// Whether feedback is suppressed: the sender could not listen to all receivers if each sent as
    /// often as in a small group.
    pub(super) fn is_suppressed(&self) -> bool {
        self.feedback.suppression > 1
    }

    /// The earliest time of feedback that is not urgent, if the last was sent at `last`.
    pub(super) fn earliest_feedback(&self, now: Time, last: Option<Time>, scheme: &Scheme) -> Time {
        let spacing = scheme.feedback.spacing_min * self.feedback.suppression
            / self.tries().min(MORE_OFTEN_MAX);
        last.map_or(now, |t| (t + spacing).max(now))
    }

    /// Notes that feedback has been written, and schedules the next one if it is needed.
    pub(super) fn on_feedback_sent(&mut self, now: Time, scheme: &Scheme) {
        self.feedback.due = None;
        self.probed = None;
        self.feedback.count = self.count_after_feedback(&scheme.feedback);
        self.feedback.last = Some(now);
        self.feedback.advertised = self.advertised_window();
        if self.sends_nacks(scheme) && self.owes_nack() {
            // Missing packets are NACKed again, ever more rarely, until something moves. Both the
            // NACK and the repair have to arrive: hence the square.
            let tries = self.tries().pow(2);
            let again = self.nack.sent(now, tries, scheme.detect.rto_max);
            self.feedback.schedule(again);
            return;
        }
        self.nack.nothing_sent();
        if self.feedback.repeats > 0 {
            self.feedback.repeats -= 1;
            self.feedback.schedule(now + REPEAT_AFTER);
        }
    }
}
