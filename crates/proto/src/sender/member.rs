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

/// Plausible samples after which the sender again believes a member that reported numbers that
/// cannot be true.
const ATONES: u8 = 8;
/// Time after which it is forgotten what was lost of the repairs to a member alone: the sender
/// tries again.
const ALONE_AGE: Duration = Duration::from_secs(1);

/// A receiver, as its sender knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// The receiver's node.
    pub node: NodeId,
    /// Number of the first packet that the receiver gets.
    pub first: Seq,
    /// Index of the path that serves the receiver.
    pub path: usize,
    /// How the sender reaches the receiver.
    pub path_state: PathState,
    /// Whether the member is gone, so that the sender does not wait for it any more.
    pub gone: bool,
    /// Whether the receiver reports to a collector, not to the sender.
    pub delegated: bool,
    /// The receiver and all that report to it have placed everything before this.
    pub cum_subtree: Seq,
    /// The receiver has placed everything before this; with
    /// [`crate::scheme::FeedbackTopology::Tree`] so have all below it.
    pub cum: Seq,
    /// The receiver's advertised window: the receiver can take packets before this.
    pub limit: Seq,
    /// When `cum` last moved.
    pub advanced: Time,
    /// Packets that the receiver declines, as first packet and number of packets, in rising order.
    /// They end after `cum`.
    pub declined: Vec<(Seq, u32)>,
    /// The gaps that the receiver last reported, where the sender detects losses: first packet and
    /// length of each.
    pub missing: Vec<(Seq, u32)>,
    /// The receiver lacks everything from here on, according to the report of `missing`.
    pub unseen: Seq,
    /// Bytes that the receiver has placed.
    pub placed: u64,
    /// Packets that were retransmitted, or are queued to be, because of this receiver's NACKs.
    pub repairs: u64,
    /// When the sender last received feedback from the receiver.
    pub heard: Option<Time>,
    /// What the receiver last reported: `cum_subtree`, `high`, its first gap, new packets received.
    /// A receiver can make these numbers up.
    pub seen: (Seq, Seq, Seq, u32),
    /// When `seen` last changed.
    pub moved: Time,
    /// When the receiver last made progress: it, or a receiver that reports through it, had placed
    /// more, or it had more packets than ever before (`had`).
    pub got_on: Time,
    /// How long the sender has waited for the receiver since then (`got_on`).
    pub waited: Duration,
    /// The receiver has reported to have as many packets as lie before this. These have earned
    /// repairs.
    pub had: Seq,
    /// Repairs that the receiver's progress has earned and that the sender has not made; see
    /// `sender/budget`.
    pub credit: u32,
    /// Plausible samples that must still come before the sender uses the receiver's samples again;
    /// zero if it believes the receiver.
    pub doubt: u8,
    /// When the sender last probed the receiver.
    pub probed: Time,
    /// Probes since the receiver was last heard.
    pub unanswered: u32,
    /// Whether the receiver has been reported as slow and has made no progress since.
    pub slow: bool,
    /// Losses on the way to the receiver.
    pub losses: Losses,
    /// Losses of what was sent again to the receiver alone, and when that was counted last.
    alone: (Losses, Time),
    /// Where the count of `losses` stands: the path's number, the new packets that it had sent, and
    /// how many new packets the receiver had received.
    pub counted: (u32, u32, u32),
    /// Probes that the receiver needed to answer the proof of its path.
    pub probes: u32,
    /// Watches whether multicast reaches the receiver.
    pub hearing: Hearing,
    /// When the sender tries multicast again, if multicast does not reach the receiver.
    pub reprobe: Reprobe,
}

impl Member {
    /// Creates a member that has not been heard and has no packet of a stream that begins at
    /// `start`.
    pub fn new(node: NodeId, start: Seq, gone: bool, delegated: bool) -> Member {
        Member {
            node,
            first: start,
            path: GROUP_PATH,
            path_state: PathState::Multicast,
            gone,
            delegated,
            cum_subtree: start,
            advanced: Time::ZERO,
            declined: Vec::new(),
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
            alone: (Losses::default(), Time::ZERO),
            counted: (0, 0, 0),
            probes: 1,
            hearing: Hearing::default(),
            reprobe: Reprobe::NEW,
        }
    }

    /// Records whether the numbers that the receiver reported can be true.
    pub fn judge(&mut self, possible: bool) {
        self.doubt = match possible || mutant::active(Mutant::NumbersBelieved) {
            true => self.doubt.saturating_sub(1),
            false => ATONES,
        };
    }

    /// Whether the sender believes the receiver: its samples of the path then set the rate, and the
    /// packets that it has placed earn repairs.
    pub fn is_believed(&self) -> bool {
        self.doubt == 0
    }

    /// Notes that a packet is sent again to the receiver alone.
    pub fn sent_alone(&mut self, now: Time) {
        if now.since(self.alone.1) > ALONE_AGE {
            self.alone.0 = Losses::default();
        }
        self.alone.0.note(1, 1);
        self.alone.1 = now;
    }

    /// Notes that the receiver lacks a packet that was sent again to it alone.
    pub fn lost_alone(&mut self) {
        self.alone.0.lost();
    }

    /// How often a packet is sent to the receiver alone, on average, until it arrives. 1.0 as long
    /// as little is known of late.
    pub fn transmissions_alone(&self, now: Time) -> f64 {
        match now.since(self.alone.1) > ALONE_AGE {
            true => 1.0,
            false => self.alone.0.transmissions(),
        }
    }

    /// Whether the receiver reports to this node, which then repairs for it.
    pub fn is_mine(&self) -> bool {
        !self.gone && !self.delegated
    }

    /// Whether the sender waits for the receiver: it, or a receiver below it, lacks something
    /// before `end`.
    pub fn is_behind(&self, end: Seq) -> bool {
        self.is_mine() && self.cum_subtree != end
    }

    /// How long the receiver may take to answer or to acknowledge: `first`, with backoff. The time
    /// doubles each time the receiver had as many chances as it needs, and did not answer.
    pub fn rto_with_backoff(&self, first: Duration, detect: &Detect) -> Duration {
        let vain = self.unanswered / self.chances();
        (first * (1 << vain.min(16))).min(detect.rto_max)
    }

    /// Probes that it takes, on average, to get an answer: the probe and the answer may both be
    /// lost.
    fn chances(&self) -> u32 {
        match self.losses.is_known() {
            true => self.losses.tries().pow(2),
            false => self.probes.max(1),
        }
    }

    /// Whether the receiver has been silent for so long that the sender is to probe it (again).
    pub fn is_silent(&self, now: Time, first: Duration, detect: &Detect) -> bool {
        let patience = self.rto_with_backoff(first, detect);
        let silent = self.heard.map_or(Duration::MAX, |h| now.since(h));
        silent >= patience && now.since(self.probed) >= patience
    }

    /// Whether the receiver sends feedback, but its `high` has been behind `sent` for so long that
    /// the sender is to tell it (again) what was sent.
    pub fn is_behind_high(&self, now: Time, sent: Seq, detect: &Detect) -> bool {
        let long = |t: Time| now.since(t) >= detect.rto_max;
        self.heard.is_some() && self.seen.1.before(sent) && long(self.moved) && long(self.probed)
    }

    /// Records progress of the receiver: the sender begins to wait for it anew.
    pub fn gets_on(&mut self, now: Time) {
        (self.got_on, self.waited, self.slow) = (now, Duration::ZERO, false);
    }

    /// Whether the receiver's window is open (it has posted what comes next, or can hold it), or is
    /// closed because the receiver waits for others: a co-root's window closes when its group is
    /// behind, and opens as the group gets on.
    pub fn is_ready(&self) -> bool {
        if mutant::active(Mutant::LateHoldsAll) {
            return true;
        }
        self.limit != self.cum || self.cum_subtree.before(self.cum)
    }
}

/// A receiver of a stream, as the sender's caller names it.
#[derive(Clone, Copy, Debug)]
pub struct MemberConfig {
    /// The receiver's node.
    pub node: NodeId,
    /// How the sender reaches the receiver.
    pub path_state: PathState,
    /// Whether the receiver reports to another receiver.
    pub delegated: bool,
    /// Whether the receiver reports to this node and is a co-root.
    pub coroot: bool,
}
