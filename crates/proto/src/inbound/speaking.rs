//! When a receiver speaks (spec 2.4): often enough for the root to go on, and no more often than a
//! root of many can listen to.

use super::*;
use crate::scheme::FeedbackRule;

/// The first report comes after so many bytes of data packets, or after so many packets.
const FIRST_BYTES: u32 = 24 << 10;
const FIRST_MAX: u32 = 16;
/// However much is lost, feedback is not so many times as frequent.
const HASTE: u32 = 4;
/// So many questions count, in groups of up to so many receivers.
const ASKS_MAX: u32 = 8;

/// Who has posted nothing may be about to; after so long the root is told not to wait.
const ABSENT: Duration = Duration::from_millis(1);

impl Inbound {
    /// Decides when the root is to be told, now that packet `seq` has come.
    pub(super) fn schedule(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (seq, flags): (Seq, u8),
        high: Seq,
        filled: Seq,
        fresh: bool,
    ) {
        let rule = &scheme.feedback;
        let asked = flags & flag::ASK != 0 && !mutant::active(Mutant::NobodyIsAsked);
        if rule.asked_only {
            if asked {
                self.ask(now, scheme, seq + 1);
            }
            return;
        }
        if filled != self.gaps.filled() {
            (self.retry, self.retries) = (self.retry_first(scheme), 0);
            if fresh && filled != high {
                // What closes the first gap was not lost, only late: be so patient from now on.
                self.learn(now, scheme, now.since(self.opened) * 5 / 4);
            }
            self.opened = now;
        } else if filled == high && self.gaps.is_open() {
            self.opened = now;
        }
        if scheme.detect.by_sender {
            // A gap is the sender's affair.
        } else if self.gaps.is_open() && high.before(seq) && self.ripens.is_none() {
            self.ripens = Some((now + self.patience(scheme), self.gaps.high()));
        }
        if asked {
            self.ask(now + rule.piggyback, scheme, seq + 1);
        }
        if self.tell_limit(now) {
            // That is soon.
        } else if self.count >= i64::from(self.every(rule)) {
            let soon = self.spaced(now, self.last_feedback, scheme);
            self.plan(soon + rule.piggyback);
        } else {
            self.plan(now + rule.delay_max * self.stretch / self.tries().min(HASTE));
        }
    }

    /// Data packets from one report to the next: few at first, so that the pacer learns fast. At
    /// its first rate, 16 packets of 9000 bytes take 18 ms.
    fn every(&self, rule: &FeedbackRule) -> u32 {
        let first = (FIRST_BYTES / self.chunk.max(1)).clamp(1, FIRST_MAX);
        let every = rule.every.min(first + self.received / 16);
        // Of what is sent few arrive, and of the reports, too.
        (every.saturating_mul(self.stretch) / self.tries().pow(2)).max(1)
    }

    /// Where the count of data packets begins after a report. With skew it ends at a packet whose
    /// number is this node's, modulo `every` (P1.6), whatever else it has reported in between; but
    /// if that is less than half of them away, at the next one.
    pub(super) fn count_from(&self, rule: &FeedbackRule) -> i64 {
        let every = rule.every.saturating_mul(self.stretch);
        if !rule.skewed || self.every(rule) < every {
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

    /// Whether this is the midst of a long object: nobody waits for one packet of it, and the root
    /// gathers reports anyway.
    pub(super) fn is_amid(&self, scheme: &Scheme) -> bool {
        let high = self.gaps.high();
        let op = self.ops.iter().find(|op| high.before(op.end()));
        op.is_some_and(|op| op.end().from(high) > scheme.feedback.every as i32)
    }

    /// How long a packet may be late before it counts as lost.
    pub(super) fn patience(&self, scheme: &Scheme) -> Duration {
        match self.is_amid(scheme) {
            true => self.reorder.max(scheme.repair.gather / 4),
            false => self.reorder,
        }
    }

    /// After how long what is missing is asked for again.
    pub(super) fn retry_first(&self, scheme: &Scheme) -> Duration {
        let detect = &scheme.detect;
        match self.is_at_end() {
            true => {
                (detect.tail_min * 5).min(detect.ask_min) + scheme.feedback.turn * self.receivers
            }
            false => detect.ask_min,
        }
    }

    /// How often the root is told something until it hears it, as far as is known; ways are taken
    /// to lose as much in one direction as in the other. A crowd is loud enough.
    pub(super) fn tries(&self) -> u32 {
        (self.losses.tries() / self.stretch).max(1)
    }

    /// What is said next is said several times, if much is lost: nobody knows when it is heard.
    pub(super) fn repeat(&mut self, scheme: &Scheme) {
        if scheme.feedback.asked_only || scheme.detect.by_sender {
            return; // the root will ask
        }
        // Who is asked again and again has not been heard. (Nothing else tells before the first
        // packet.)
        let asks = match self.newest {
            None => self.asks.min(ASKS_MAX) / self.receivers.div_ceil(ASKS_MAX),
            Some(_) => 1,
        };
        let tries = self.tries().max(asks);
        self.echoes = (tries - 1) * 2;
    }

    /// Whether all that is posted has been sent.
    pub(super) fn is_at_end(&self) -> bool {
        !self.gaps.high().before(self.end)
    }

    /// Packets may come so late and yet not be lost.
    pub(super) fn learn(&mut self, now: Time, scheme: &Scheme, late: Duration) {
        if late > self.reorder {
            self.reorder = late.min(scheme.detect.reorder_max);
        }
        self.learnt = now;
    }

    /// Order that has been kept for long is relied on again, little by little.
    pub(super) fn forget(&mut self, now: Time, scheme: &Scheme) {
        if now.since(self.learnt) > FORGET {
            self.reorder = (self.reorder * 3 / 4).max(scheme.detect.reorder_min);
            self.learnt = now;
        }
    }

    /// The root may soon have to stop because it does not know how far it may go, or is to go on
    /// without this node.
    /// Says whether that is to be told.
    pub(super) fn tell_limit(&mut self, now: Time) -> bool {
        let used = match self.is_crowd() && !self.credits {
            true => self.window / 2,
            false => self.window.min(self.backlog) / 4,
        };
        let limit = self.limit();
        let presses = limit.from(self.last_limit) >= used as i32;
        let closes = limit == self.gaps.cum() && self.last_limit != limit;
        if presses {
            self.plan(now);
        } else if closes {
            self.plan(now + ABSENT);
        }
        presses || closes
    }

    /// Whether the root could not listen to all if each spoke as often as in a small group.
    pub(super) fn is_crowd(&self) -> bool {
        self.stretch > 1
    }

    /// When feedback may be sent again after the last one, were it not pressing.
    pub(super) fn spaced(&self, now: Time, last: Option<Time>, scheme: &Scheme) -> Time {
        let spacing = scheme.feedback.spacing_min * self.stretch / self.tries().min(HASTE);
        last.map_or(now, |t| (t + spacing).max(now))
    }

    /// When a gap may be told of.
    pub(super) fn gap_told(&self, now: Time, scheme: &Scheme) -> Time {
        match self.is_amid(scheme) {
            true => self.spaced(now, self.last_gap, scheme),
            false => now,
        }
    }

    pub(super) fn plan(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |d| d.min(at)));
    }
}
