//! What a sender knows of one receiver, and whether multicast still reaches it.

use core::time::Duration;

use super::reachability::{Hearing, Reprobe};
use crate::border::PathState;
use crate::id::NodeId;
use crate::mutant::{self, Mutant};
use crate::path::Losses;
use crate::scheme::Detect;
use crate::seq::Seq;
use crate::time::Time;

/// The path that a new member belongs to: the group's.
pub const GROUP_PATH: usize = 0;

/// A member that has reported impossible numbers is believed after so many possible ones.
const ATONES: u8 = 8;

/// A receiver, as its sender knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Who.
    pub node: NodeId,
    /// The path that serves it.
    pub path: usize,
    /// How it is reached.
    pub path_state: PathState,
    /// Nobody waits for it any more.
    pub gone: bool,
    /// The receiver reports to a collector, not to the sender.
    pub delegated: bool,
    /// The receiver and all that report to it have placed everything before this.
    pub cum_subtree: Seq,
    /// The receiver has placed everything before this; with
    /// [`crate::scheme::FeedbackTopology::Tree`] so have all below it.
    pub cum: Seq,
    /// The receiver can take what lies before this: its advertised window.
    pub limit: Seq,
    /// When `cum` last moved.
    pub advanced: Time,
    /// What it said last that it lacks, where the sender notices losses; and everything from here
    /// on.
    pub missing: Vec<(Seq, u32)>,
    /// See `missing`.
    pub unseen: Seq,
    /// Bytes that it has placed.
    pub placed: u64,
    /// Packets that were sent again, or are to be, because it asked.
    pub repairs: u64,
    /// When it was last heard.
    pub heard: Option<Time>,
    /// What the receiver last reported: `cum_subtree`, `high`, its first gap, new packets received.
    /// A receiver can make these numbers up.
    pub seen: (Seq, Seq, Seq, u32),
    /// When `seen` last changed.
    pub moved: Time,
    /// When it last got on: it, or somebody who reports through it, had placed more.
    pub got_on: Time,
    /// How long the sender has waited for it since then.
    pub waited: Duration,
    /// It has told to have as many packets as lie before this: those have earned repairs.
    pub had: Seq,
    /// Repairs that its own progress has earned and that it has not been sent; see `sender/budget`.
    pub credit: u32,
    /// So many samples that can be true until those of this member are used (again).
    pub doubt: u8,
    /// When it was last probed, and how often since it was heard.
    pub probed: Time,
    /// See `probed`.
    pub unanswered: u32,
    /// It has been reported as slow, and has not moved since.
    pub slow: bool,
    /// What is lost on the way to the receiver.
    pub losses: Losses,
    /// Where the count of `losses` stands: the path's number, its new packets, and how many of them
    /// had been received.
    pub counted: (u32, u32, u32),
    /// How many probes it took to have an answer.
    pub probes: u32,
    /// Whether multicast reaches it.
    pub hearing: Hearing,
    /// When it is tried again, if it does not.
    pub reprobe: Reprobe,
}

impl Member {
    /// One that has not been heard and has nothing of what begins at `start`.
    pub fn new(node: NodeId, start: Seq, gone: bool, delegated: bool) -> Member {
        Member {
            node,
            path: GROUP_PATH,
            path_state: PathState::Multicast,
            gone,
            delegated,
            cum_subtree: start,
            advanced: Time::ZERO,
            missing: Vec::new(),
            unseen: start,
            cum: start,
            limit: start,
            placed: 0,
            repairs: 0,
            heard: None,
            seen: (start, start, start, 0),
            moved: Time::ZERO,
            got_on: Time::ZERO,
            waited: Duration::ZERO,
            had: start,
            credit: 0,
            doubt: 0,
            probed: Time::ZERO,
            unanswered: 0,
            slow: false,
            losses: Losses::default(),
            counted: (0, 0, 0),
            probes: 1,
            hearing: Hearing::default(),
            reprobe: Reprobe::NEW,
        }
    }

    /// It has told numbers that can be true, or that cannot.
    pub fn judge(&mut self, possible: bool) {
        self.doubt = match possible || mutant::active(Mutant::NumbersBelieved) {
            true => self.doubt.saturating_sub(1),
            false => ATONES,
        };
    }

    /// Whether what it tells of the way sets the pace, and what it has placed earns repairs.
    pub fn is_believed(&self) -> bool {
        self.doubt == 0
    }

    /// Whether it reports here, and is served from here.
    pub fn is_mine(&self) -> bool {
        !self.gone && !self.delegated
    }

    /// Whether it is waited for: it, or somebody below it, has not everything before `end`.
    pub fn is_behind(&self, end: Seq) -> bool {
        self.is_mine() && self.cum_subtree != end
    }

    /// How long it may take to answer, or to acknowledge: `first`, and longer each time that it had
    /// as many chances to as it needs, and did not.
    pub fn rto_with_backoff(&self, first: Duration, detect: &Detect) -> Duration {
        let vain = self.unanswered / self.chances();
        (first * (1 << vain.min(16))).min(detect.rto_max)
    }

    /// How often it is asked, on average, until there is an answer: both may be lost.
    fn chances(&self) -> u32 {
        match self.losses.is_known() {
            true => self.losses.tries().pow(2),
            false => self.probes.max(1),
        }
    }

    /// Whether it has been silent for so long that it is to be asked (again).
    pub fn is_silent(&self, now: Time, first: Duration, detect: &Detect) -> bool {
        let patience = self.rto_with_backoff(first, detect);
        let silent = self.heard.map_or(Duration::MAX, |h| now.since(h));
        silent >= patience && now.since(self.probed) >= patience
    }

    /// Whether it speaks, but has known for so long of less than was `sent` that it is to be told
    /// (again).
    pub fn is_behind_high(&self, now: Time, sent: Seq, detect: &Detect) -> bool {
        let long = |t: Time| now.since(t) >= detect.rto_max;
        self.heard.is_some() && self.seen.1.before(sent) && long(self.moved) && long(self.probed)
    }

    /// The sender begins to wait for it anew.
    pub fn gets_on(&mut self, now: Time) {
        (self.got_on, self.waited, self.slow) = (now, Duration::ZERO, false);
    }

    /// Whether its window is open: it has posted what comes next, or can hold it.
    pub fn is_ready(&self) -> bool {
        if mutant::active(Mutant::LateHoldsAll) {
            return true;
        }
        self.limit != self.cum
    }
}

/// A receiver of a stream, as its sender is told of it.
#[derive(Clone, Copy, Debug)]
pub struct MemberConfig {
    /// Who.
    pub node: NodeId,
    /// How it is reached.
    pub path_state: PathState,
    /// It reports to another receiver.
    pub delegated: bool,
    /// It reports here and is a co-root.
    pub coroot: bool,
}
