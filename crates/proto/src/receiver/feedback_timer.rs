//! When a receiver sends feedback, and what it last advertised.

use crate::scheme::FeedbackRule;
use crate::seq::Seq;
use crate::time::Time;

/// The state of a receiver's feedback.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackTimer {
    /// Data packets since the last feedback. With skew it counts from this node's turn, and is
    /// negative if the next turn is left out.
    pub count: i64,
    /// When the next feedback is due; `None`: none is scheduled.
    pub due: Option<Time>,
    /// When feedback was last sent.
    pub last: Option<Time>,
    /// The right edge of the window that was last advertised.
    pub advertised: Seq,
    /// Number of probes that came before the first data packet.
    pub probes: u32,
    /// How many more times the last feedback is to be repeated.
    pub repeats: u32,
    /// Feedback suppression: the factor by which counts and times are longer than in a small group.
    pub suppression: u32,
}

impl FeedbackTimer {
    /// The state before any feedback, in a group of `receivers`. The sender counts on room for the
    /// packets before `advertised`.
    pub fn new(receivers: u32, rule: &FeedbackRule, advertised: Seq) -> FeedbackTimer {
        FeedbackTimer {
            count: 0,
            due: None,
            last: None,
            advertised,
            probes: 0,
            repeats: 0,
            suppression: receivers.div_ceil(rule.suppress_above).max(1),
        }
    }

    /// Schedules feedback at `at`, unless it is due earlier.
    pub fn schedule(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}
