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
    pub rto: Duration,
    /// How often missing packets were NACKed again since the timeout was last doubled.
    pub retries: u32,
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
            retries: 0,
        }
    }

    /// Notes that a NACK was sent again in vain. After `tries` of these the timeout doubles, up to
    /// `max` (exponential backoff).
    pub fn back_off(&mut self, tries: u32, max: Duration) {
        self.retries += 1;
        if self.retries >= tries {
            self.rto = (self.rto * 2).min(max);
            self.retries = 0;
        }
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
