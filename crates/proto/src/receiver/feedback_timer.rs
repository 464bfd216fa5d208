//! When a receiver sends feedback, and what it last said.

use crate::scheme::FeedbackRule;
use crate::seq::Seq;
use crate::time::Time;

/// The state of a receiver's feedback.
#[derive(Clone, Copy, Debug)]
pub struct FeedbackTimer {
    /// Data packets since the last feedback; with skew since this node's turn, and less than none
    /// if that was left out.
    pub count: i64,
    /// When feedback is sent next.
    pub due: Option<Time>,
    /// When feedback was last sent.
    pub last: Option<Time>,
    /// The right edge of the window that was last advertised.
    pub advertised: Seq,
    /// How often the sender has probed before anything came.
    pub probes: u32,
    /// How often what was said last is still to be said again.
    pub repeats: u32,
    /// Feedback suppression: how much longer counts and times are than in a small group.
    pub suppression: u32,
}

impl FeedbackTimer {
    /// Nothing has been sent in a group of so many receivers; the stream begins at `start`.
    pub fn new(receivers: u32, rule: &FeedbackRule, start: Seq) -> FeedbackTimer {
        FeedbackTimer {
            count: 0,
            due: None,
            last: None,
            advertised: start,
            probes: 0,
            repeats: 0,
            suppression: receivers.div_ceil(rule.suppress_above).max(1),
        }
    }

    /// Feedback is sent at this time, or earlier if it was due before.
    pub fn schedule(&mut self, at: Time) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }
}
