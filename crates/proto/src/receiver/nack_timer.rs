//! When a receiver may send NACKs: a gap must have been open for longer than packets are reordered,
//! and what was NACKed in vain is NACKed again, ever more rarely.

use core::time::Duration;

use crate::scheme::Detect;
use crate::seq::Seq;
use crate::time::Time;

/// How long packets must have come in order to lower the patience with late ones by a quarter.
const FORGET: Duration = Duration::from_secs(10);

/// The state of a receiver's NACKs.
#[derive(Clone, Copy, Debug)]
pub struct NackTimer {
    /// Gaps before this have been open long enough to be reported.
    pub upto: Seq,
    /// When gaps before the number will have been open for long enough.
    pub reorder_timer: Option<(Time, Seq)>,
    /// The reordering threshold: how long a gap may be reordering before it is a loss.
    pub reorder_threshold: Duration,
    /// When the threshold was last learnt or forgotten.
    reorder_learnt: Time,
    /// Since when the first gap has been open.
    pub gap_opened: Time,
    /// When a NACK was last sent because it was due.
    pub last: Option<Time>,
    /// Retransmission timeout of NACKs: after this time what is missing is NACKed again.
    pub rto: Duration,
    /// How often that has been done since the timeout was doubled.
    pub retries: u32,
}

impl NackTimer {
    /// Nothing is missing; the stream begins at `start`.
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

    /// A NACK was sent again in vain: the next one waits twice as long once each of `tries` had its
    /// chance (exponential backoff, up to `max`).
    pub fn back_off(&mut self, tries: u32, max: Duration) {
        self.retries += 1;
        if self.retries >= tries {
            self.rto = (self.rto * 2).min(max);
            self.retries = 0;
        }
    }

    /// Packets may come so late and yet not be lost.
    pub fn learn_reordering(&mut self, now: Time, detect: &Detect, late: Duration) {
        if late > self.reorder_threshold {
            self.reorder_threshold = late.min(detect.reorder_max);
        }
        self.reorder_learnt = now;
    }

    /// Order that has been kept for long is relied on again, little by little.
    pub fn forget_reordering(&mut self, now: Time, detect: &Detect) {
        if now.since(self.reorder_learnt) > FORGET {
            self.reorder_threshold = (self.reorder_threshold * 3 / 4).max(detect.reorder_min);
            self.reorder_learnt = now;
        }
    }
}
