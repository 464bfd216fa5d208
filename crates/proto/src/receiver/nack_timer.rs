//! When a receiver may send NACKs: a gap must have been open for longer than packets are reordered.
//! What was NACKed in vain is NACKed again, ever more rarely.

use core::time::Duration;

use crate::scheme::Detect;
use crate::seq::Seq;
use crate::time::Time;

/// How long packets must have come in order until the reordering threshold falls by a quarter.
const FORGET: Duration = Duration::from_secs(10);

/// The state of a receiver's NACKs.
#[derive(Clone, Copy, Debug)]
pub struct NackTimer {
    /// Gaps before this number have been open long enough to be NACKed.
    pub upto: Seq,
    /// A deadline and a sequence number: after the deadline, gaps before the number may be NACKed.
    pub reorder_timer: Option<(Time, Seq)>,
    /// The reordering threshold: how long a gap may be reordering before it is a loss.
    pub reorder_threshold: Duration,
    /// When the threshold was last learnt or forgotten.
    reorder_learnt: Time,
    /// When the first gap opened.
    pub gap_opened: Time,
    /// When a NACK was last sent because it was due.
    pub last: Option<Time>,
    /// Retransmission timeout of NACKs: after this time what is missing is NACKed again.
    rto: Duration,
    /// When what is missing is NACKed again; `None`: nothing was NACKed.
    again: Option<Time>,
    /// How often missing packets were NACKed again since the timeout was last doubled.
    retries: u32,
}

impl NackTimer {
    /// The state before anything is missing; the stream begins at `start`.
    pub fn new(detect: &Detect, start: Seq) -> NackTimer {
        NackTimer {
            upto: start,
            reorder_timer: None,
            reorder_threshold: detect.reorder_min,
            reorder_learnt: Time::ZERO,
            gap_opened: Time::ZERO,
            last: None,
            rto: detect.rto_min,
            again: None,
            retries: 0,
        }
    }

    /// Notes that a packet has come that the receiver lacked: the timeout is `first` again.
    pub fn gets_on(&mut self, first: Duration) {
        (self.rto, self.again, self.retries) = (first, None, 0);
    }

    /// Notes a NACK, and returns when the next one is due. Whenever the timeout has passed, the
    /// NACK before was in vain. After `tries` of these the timeout doubles, up to `max`
    /// (exponential backoff). A NACK that goes along with other feedback says nothing of the one
    /// before.
    pub fn sent(&mut self, now: Time, tries: u32, max: Duration) -> Time {
        if self.again.is_some_and(|at| at <= now) {
            self.retries += 1;
        }
        if self.retries >= tries {
            self.rto = (self.rto * 2).min(max);
            self.retries = 0;
        }
        let again = now + self.rto;
        self.again = Some(again);
        again
    }

    /// Notes feedback that NACKs nothing.
    pub fn nothing_sent(&mut self) {
        self.again = None;
    }

    /// Raises the reordering threshold to `late`, because a packet came so late and yet was not
    /// lost.
    pub fn learn_reordering(&mut self, now: Time, detect: &Detect, late: Duration) {
        if late > self.reorder_threshold {
            self.reorder_threshold = late.min(detect.reorder_max);
        }
        self.reorder_learnt = now;
    }

    /// Lowers the reordering threshold by a quarter if packets have come in order for `FORGET`.
    pub fn forget_reordering(&mut self, now: Time, detect: &Detect) {
        if now.since(self.reorder_learnt) > FORGET {
            self.reorder_threshold = (self.reorder_threshold * 3 / 4).max(detect.reorder_min);
            self.reorder_learnt = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::Scheme;

    const MS: Duration = Duration::from_millis(1);
    const MAX: Duration = Duration::from_millis(500);

    fn timer() -> NackTimer {
        NackTimer::new(&Scheme::auto().detect, Seq(0))
    }

    /// Sends a NACK whenever one is due, and returns the times between them, in milliseconds.
    fn waits(timer: &mut NackTimer, now: &mut Time, tries: u32, nacks: usize) -> Vec<u128> {
        let wait = |_| {
            let again = timer.sent(*now, tries, MAX);
            again.since(core::mem::replace(now, again)).as_millis()
        };
        (0..nacks).map(wait).collect()
    }

    #[test]
    fn what_is_nacked_in_vain_is_nacked_ever_more_rarely() {
        let (mut t, mut now) = (timer(), Time::ZERO);
        let found = waits(&mut t, &mut now, 1, 8);
        assert_eq!(found, [10, 20, 40, 80, 160, 320, 500, 500]);
        let (mut t, mut now) = (timer(), Time::ZERO);
        assert_eq!(waits(&mut t, &mut now, 2, 5), [10, 10, 20, 20, 40]);
    }

    #[test]
    fn a_nack_beside_other_feedback_was_not_in_vain() {
        let mut t = timer();
        for k in 0..100 {
            let now = Time::ZERO + k * 5 * MS;
            assert_eq!(t.sent(now, 1, MAX), now + 10 * MS);
        }
        let mut now = Time::ZERO + 505 * MS;
        assert_eq!(waits(&mut t, &mut now, 1, 2), [20, 40]);
        t.nothing_sent();
        assert_eq!(waits(&mut t, &mut now, 1, 2), [40, 80]);
    }

    #[test]
    fn a_packet_that_comes_makes_nacks_as_frequent_as_at_first() {
        let (mut t, mut now) = (timer(), Time::ZERO);
        waits(&mut t, &mut now, 1, 5);
        t.gets_on(10 * MS);
        assert_eq!(waits(&mut t, &mut now, 1, 2), [10, 20]);
    }
}
