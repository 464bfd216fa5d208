//! The receiving side of one stream: which packets have arrived, where their bytes belong, and when
//! the node sends feedback.
//!
//! Operations of a stream follow each other without a hole in the sequence numbers, and each length
//! is known when the operation is posted. So a packet's number determines its operation and its
//! bytes, and one cumulative number acknowledges many operations (P1.6).

mod advertised;
mod arrivals;
mod challenges;
mod children;
mod contradiction;
mod deadlines;
mod declined;
mod declines;
mod feedback;
mod feedback_timer;
pub mod gaps;
mod nack;
mod nack_timer;
mod packets;
mod parity;
mod parity_cache;
mod piggyback;
mod placed;
mod posted;
mod reports;
mod streams;
mod unexpected;

pub use piggyback::Piggyback;
pub use streams::Streams;

use std::collections::VecDeque;

use crate::border::{Config, Counters, Event, Output, Refused};
use crate::id::{Cut, GroupId, NodeId, OpId};
use crate::limits;
use crate::membership::Slot;
use crate::scheme::{FeedbackTopology, Scheme};
use crate::sender::{MemberConfig, Sender};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::Writer;
use arrivals::Arrivals;
use contradiction::Challenges;
use declined::Declines;
use feedback_timer::FeedbackTimer;
use gaps::Gaps;
use nack_timer::NackTimer;
use parity_cache::ParityCache;
use posted::{Posted, PostedOperations};
use reports::ChildReports;
use unexpected::UnexpectedBuffer;

/// What a node does for its children.
enum Children {
    /// It has no children.
    None,
    /// It reports what all of them have (P1.5).
    Aggregated(ChildReports),
    /// It repairs for them (P1.4).
    Served(Box<Sender>),
}

/// A stream's name, and this node's place in it.
pub struct Place {
    /// The stream's group.
    pub group: GroupId,
    /// The node that sends the stream.
    pub sender: NodeId,
    /// This node's position among the receivers.
    pub turn: u32,
    /// How many receivers there are, or were when this node joined.
    pub receivers: u32,
    /// The slot of a node that joined later.
    pub slot: Option<Slot>,
    /// The node to which this node sends feedback.
    pub collector: NodeId,
    /// The node's children, which send their feedback to it.
    pub reporters: Vec<MemberConfig>,
}

/// What the streams of a node share.
pub struct Shared<'a> {
    /// The node's counters.
    pub counters: &'a mut Counters,
    /// The last token given to a packet in an unexpected-message buffer.
    pub token: &'a mut u64,
    /// The node's outputs, which its driver executes next.
    pub out: &'a mut VecDeque<Output>,
}

/// The receive buffer that a stream may use, in packets.
#[derive(Clone, Copy, Debug)]
struct ReceiveBuffer {
    /// Packets of all streams that it can hold.
    packets: u32,
    /// Packets of this stream that it may hold.
    backlog: u32,
    /// Whether the sender must not exceed `backlog` (P1.10).
    credits: bool,
}

/// The receiving side of one stream.
pub struct Receiver {
    group: GroupId,
    sender: NodeId,
    turn: u32,
    receivers: u32,
    /// This node's slot if it joined later.
    slot: Option<Slot>,
    /// Number of the first packet that this node gets. It is not compared once packets have come.
    first: Seq,
    collector: NodeId,
    children: Children,
    /// The cumulative number last reported for the sub-tree; it never goes back.
    reported_subtree: Seq,
    /// The number that a probe asked about, while the answer waits a little for the children.
    probed: Option<Seq>,
    payload_size: u32,
    gaps: Gaps,
    /// Packets from `gaps.cum()` on that this node can have room for.
    window: u32,
    posted: PostedOperations,
    unexpected: UnexpectedBuffer,
    /// Missing packets before this number may be NACKed: all that are posted, and those that
    /// arrived but could not be held.
    nackable: Seq,
    declines: Declines,
    buffer: ReceiveBuffer,
    parities: ParityCache,
    arrivals: Arrivals,
    feedback: FeedbackTimer,
    nack: NackTimer,
    challenges: Challenges,
}

impl Receiver {
    /// The receiving side of a stream before any packet: its first number is `start`.
    pub fn new(config: &Config, place: Place, payload_size: u32, start: Seq) -> Receiver {
        let scheme = &config.scheme;
        let window = scheme.window;
        let Place {
            group,
            sender,
            turn,
            receivers,
            slot,
            collector,
            reporters,
        } = place;
        // The sender counts on nothing of a node that joins before it has heard the node.
        let unheard = match slot {
            None => config.first_packets(),
            Some(_) => 0,
        };
        let children = match scheme.topology {
            _ if reporters.is_empty() => Children::None,
            FeedbackTopology::Tree(_) => {
                let nodes = reporters.iter().map(|r| r.node);
                Children::Aggregated(ChildReports::new(nodes, start))
            }
            FeedbackTopology::Direct | FeedbackTopology::Coroots(_) => {
                let stream = (group, Some(sender));
                let relay = Sender::new(config, stream, &reporters, payload_size, start);
                Children::Served(Box::new(relay))
            }
        };
        Receiver {
            group,
            sender,
            turn,
            receivers,
            slot,
            first: start,
            collector,
            children,
            reported_subtree: start,
            probed: None,
            payload_size,
            gaps: Gaps::new(start, window.next_power_of_two()),
            window,
            posted: PostedOperations::new(start),
            unexpected: UnexpectedBuffer {
                packets: VecDeque::new(),
                max: config.unexpected_max.min(window),
            },
            nackable: start,
            declines: Declines::default(),
            buffer: ReceiveBuffer {
                packets: config.backlog.max(16),
                backlog: config.backlog.max(16),
                credits: scheme.credits,
            },
            parities: ParityCache::default(),
            arrivals: Arrivals::default(),
            feedback: FeedbackTimer::new(receivers, &scheme.feedback, start + unheard),
            nack: NackTimer::new(&scheme.detect, start),
            challenges: Challenges::default(),
        }
    }

    /// The node that sends this stream.
    pub fn sender(&self) -> NodeId {
        self.sender
    }

    /// The node to which this node sends feedback.
    pub fn collector(&self) -> NodeId {
        self.collector
    }

    /// Number of packets held for operations that are not posted.
    pub fn unexpected(&self) -> usize {
        self.unexpected.packets.len()
    }

    /// Posts the next operation: its name, its length in bytes, and its cut.
    ///
    /// Returns the number of its first packet.
    ///
    /// Errors: [`Refused::Busy`] if too many operations or packets are posted, and what a co-root's
    /// sender refuses.
    pub fn post(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (id, len, cut): (OpId, u64, Cut),
        out: &mut VecDeque<Output>,
    ) -> Result<Seq, Refused> {
        self.has_room_for(cut)?;
        let op = Posted {
            id,
            base: self.posted.end,
            cut,
            len,
            placed: 0,
            mismatch: false,
            vouched: false,
            failed: false,
        };
        let base = op.base;
        self.posted.end = op.end();
        let mut contradicted = false;
        while let Some(&h) = self
            .unexpected
            .packets
            .front()
            .filter(|h| h.seq.before(self.posted.end))
        {
            self.unexpected.packets.pop_front();
            let extent = op.extent(h.seq.from(op.base) as u32);
            if h.op == op.base && h.len == extent.len && h.last == op.is_last(h.seq) {
                out.push_back(Output::Place(h.token, extent));
            } else {
                out.push_back(Output::Discard(h.token));
                self.gaps.reopen(h.seq);
                contradicted = true;
            }
        }
        self.posted.queue.push_back(op);
        if contradicted {
            self.challenge(now, id);
        }
        if let Children::Served(relay) = &mut self.children {
            relay.bcast(now, (id, len, cut), scheme.is_awaited(len), out)?;
        }
        let (gap, asked) = (self.gaps.filled(), self.nackable);
        self.nackable = asked.max(self.posted.end);
        // Sequence numbers wrap: a number far behind `cum` would in time count as ahead.
        self.nack.upto = self.nack.upto.max(self.gaps.cum());
        if self.feedback.last.is_none() {
            if !self.feedback.advertised.before(self.posted.end) && !scheme.feedback.on_request_only
            {
                // The sender counts on room for what is posted, and hears this node when it has
                // come.
                return Ok(base);
            }
            // All receivers may post at the same time, so in large groups they take turns.
            let turn = if self.feedback.suppression > 1 {
                self.turn
            } else {
                0
            };
            self.feedback.schedule(now + scheme.feedback.turn * turn);
        } else if !self.gaps.cum().before(self.feedback.advertised) {
            // Nothing beyond `cum` is advertised, so the sender takes this node for not ready.
            self.feedback.schedule(now);
            self.repeat_feedback(scheme);
        } else if !scheme.feedback.on_request_only {
            if !gap.before(asked) && gap.before(self.nack.upto.min(self.posted.end)) {
                // The first gap belongs to an operation that was not posted until now: NACK it now,
                // because it holds this node up.
                self.feedback.schedule(now);
            }
            self.advertise_window(now);
        }
        Ok(base)
    }

    /// Whether another operation can be posted or declined. Refused ([`Refused::Busy`]) if there
    /// are too many, or if their packets' numbers could not be told apart.
    fn has_room_for(&self, cut: Cut) -> Result<(), Refused> {
        let span = self.posted.end.from(self.gaps.cum()).max(0) as u64;
        let many = self.posted.queue.len() >= limits::OPS_MAX || self.declines.is_full();
        match many || span + u64::from(cut.packets) >= 1 << 31 {
            true => Err(Refused::Busy),
            false => Ok(()),
        }
    }

    /// Ends the stream because its sender is gone: posted operations fail, and this node repairs
    /// nothing more for others.
    pub fn abandon(&mut self, out: &mut VecDeque<Output>) {
        for op in self.posted.queue.iter().filter(|op| !op.failed) {
            out.push_back(Output::Event(Event::Failed(op.id)));
        }
        match &self.children {
            Children::Served(relay) => out.extend(relay.idle().map(Output::Release)),
            _ => out.extend(self.posted.queue.iter().map(|op| Output::Release(op.id))),
        }
        self.posted.queue.clear();
        self.challenges.clear();
        self.parities.blocks.clear();
        self.children = Children::None;
        self.drop_unexpected(out);
        self.feedback.due = None;
        self.nack.reorder_timer = None;
    }

    /// Discards all held packets, because their operations will not be posted.
    pub fn drop_unexpected(&mut self, out: &mut VecDeque<Output>) {
        let held = self.unexpected.packets.drain(..);
        out.extend(held.map(|h| Output::Discard(h.token)));
    }

    /// Whether the next operation has failed: its bytes cannot be placed, so this node wants
    /// nothing more.
    fn has_failed(&self) -> bool {
        self.posted.queue.front().is_some_and(|op| op.failed)
    }

    /// When [`Receiver::relay`] has something to do; [`Time::ZERO`]: at once.
    pub(super) fn relay_due(&self, scheme: &Scheme) -> Option<Time> {
        match &self.children {
            Children::Served(relay) => relay.wake(scheme),
            Children::Aggregated(reports) => reports.has_questions().then_some(Time::ZERO),
            Children::None => None,
        }
    }

    /// When [`Receiver::poll`] has something to do.
    pub(super) fn feedback_due(&self) -> Option<Time> {
        let reorder_timer = self.nack.reorder_timer.map(|r| r.0);
        let both = [self.feedback.due, reorder_timer].into_iter();
        both.flatten().min()
    }

    /// Writes a feedback frame to `head` if one is due, after `header` has written what comes
    /// before it. Says whether it did.
    pub fn poll(
        &mut self,
        now: Time,
        scheme: &Scheme,
        head: &mut Writer<'_>,
        header: impl FnOnce(&mut Writer<'_>),
    ) -> bool {
        self.schedule_due_nack(now, scheme);
        if self.feedback.due.is_none_or(|d| d > now) {
            return false;
        }
        self.nack.forget_reordering(now, &scheme.detect);
        header(head);
        self.put_ack_and_nack(now, scheme, 0, (head, usize::MAX));
        self.on_feedback_sent(now, scheme);
        true
    }

    /// Panics if an invariant is broken; tests and soaks call it after every change.
    pub fn invariants(&self) {
        self.gaps.invariants();
        assert!(self.unexpected.packets.len() as u32 <= self.unexpected.max);
        assert!(!self.posted.end.before(self.gaps.cum()));
        if let Children::Served(relay) = &self.children {
            relay.invariants();
        }
    }
}
