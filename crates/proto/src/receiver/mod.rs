//! The receiving side of one stream: what has come, where it belongs, and when the sender is told.
//!
//! Operations of a stream follow each other without a hole in the sequence numbers, and their
//! lengths are known when they are posted; so a packet's number says to which operation and to
//! which bytes of it it belongs, and one cumulative number acknowledges many of them (P1.6).

mod advertised;
mod arrivals;
mod challenges;
mod children;
mod contradiction;
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
mod unexpected;

pub use piggyback::Piggyback;

use std::collections::VecDeque;

use crate::border::{Config, Counters, Event, Output, Refused};
use crate::id::{Cut, GroupId, NodeId, OpId};
use crate::limits;
use crate::scheme::{FeedbackTopology, Scheme};
use crate::sender::{MemberConfig, Sender};
use crate::seq::Seq;
use crate::time::Time;
use arrivals::Arrivals;
use contradiction::Challenges;
use feedback_timer::FeedbackTimer;
use gaps::Gaps;
use nack_timer::NackTimer;
use parity_cache::ParityCache;
use posted::{Posted, PostedOperations};
use reports::ChildReports;
use unexpected::UnexpectedBuffer;

/// What a node does for those who report to it.
enum Children {
    /// Nobody does.
    None,
    /// It tells on what all of them have (P1.5).
    Aggregated(ChildReports),
    /// It repairs for them (P1.4).
    Served(Box<Sender>),
}

/// A stream's name, and this node's place in it.
pub struct Place {
    /// Its group.
    pub group: GroupId,
    /// The node that sends it.
    pub sender: NodeId,
    /// This node's position among the receivers.
    pub turn: u32,
    /// How many receivers there are.
    pub receivers: u32,
    /// The node that this node reports to.
    pub collector: NodeId,
    /// The nodes that report to this node.
    pub reporters: Vec<MemberConfig>,
}

/// What the streams of a node share.
pub struct Shared<'a> {
    /// The node's counters.
    pub counters: &'a mut Counters,
    /// The last token that named a held packet.
    pub token: &'a mut u64,
    /// What the node says next.
    pub out: &'a mut VecDeque<Output>,
}

/// The receive buffer that a stream may use, in packets.
#[derive(Clone, Copy, Debug)]
struct ReceiveBuffer {
    /// What it can hold, of all streams.
    packets: u32,
    /// What it may hold of this stream.
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
    collector: NodeId,
    children: Children,
    /// What was last reported of the sub-tree; it never goes back.
    reported_subtree: Seq,
    /// What was asked for: the answer may wait a little for the children.
    probed: Option<Seq>,
    payload_size: u32,
    gaps: Gaps,
    /// Packets that this node can have room for beyond what is placed.
    window: u32,
    posted: PostedOperations,
    unexpected: UnexpectedBuffer,
    /// What is missing before this may be asked for: all that is posted, and what came and could
    /// not be held.
    nackable: Seq,
    buffer: ReceiveBuffer,
    parities: ParityCache,
    arrivals: Arrivals,
    feedback: FeedbackTimer,
    nack: NackTimer,
    challenges: Challenges,
}

impl Receiver {
    /// A stream of which nothing has been seen.
    pub fn new(config: &Config, place: Place, payload_size: u32, start: Seq) -> Receiver {
        let scheme = &config.scheme;
        let window = scheme.window;
        let Place {
            group,
            sender,
            turn,
            receivers,
            collector,
            reporters,
        } = place;
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
            buffer: ReceiveBuffer {
                packets: config.backlog.max(16),
                backlog: config.backlog.max(16),
                credits: scheme.credits,
            },
            parities: ParityCache::default(),
            arrivals: Arrivals::default(),
            feedback: FeedbackTimer::new(receivers, &scheme.feedback, start),
            nack: NackTimer::new(&scheme.detect, start),
            challenges: Challenges::default(),
        }
    }

    /// The node that sends this stream.
    pub fn sender(&self) -> NodeId {
        self.sender
    }

    /// The node that this node reports to.
    pub fn collector(&self) -> NodeId {
        self.collector
    }

    /// Packets held for operations that are not posted.
    pub fn unexpected(&self) -> usize {
        self.unexpected.packets.len()
    }

    /// Takes the next operation, of `len` bytes, cut so.
    pub fn post(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (id, len, cut): (OpId, u64, Cut),
        out: &mut VecDeque<Output>,
    ) -> Result<(), Refused> {
        let span = self
            .posted
            .queue
            .iter()
            .map(|o| u64::from(o.cut.packets))
            .sum::<u64>();
        if self.posted.queue.len() >= limits::OPS_MAX || span + u64::from(cut.packets) >= 1 << 31 {
            return Err(Refused::Busy);
        }
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
        // Numbers that lie far behind would one day count as ahead.
        self.nack.upto = self.nack.upto.max(self.gaps.cum());
        if self.feedback.last.is_none() {
            // All may post at the same time.
            let turn = if self.feedback.suppression > 1 {
                self.turn
            } else {
                0
            };
            self.feedback.schedule(now + scheme.feedback.turn * turn);
        } else if !self.gaps.cum().before(self.feedback.advertised) {
            // The sender takes this node for not ready.
            self.feedback.schedule(now);
            self.repeat_feedback(scheme);
        } else if !scheme.feedback.on_request_only {
            if !gap.before(asked) && gap.before(self.nack.upto.min(self.posted.end)) {
                // What was lost before it was posted is what holds this node up now.
                self.feedback.schedule(now);
            }
            self.advertise_window(now);
        }
        Ok(())
    }

    /// The sender is gone: what is posted will not come, and nothing more is repaired for others.
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

    /// What is held will not be asked for.
    pub fn drop_unexpected(&mut self, out: &mut VecDeque<Output>) {
        let held = self.unexpected.packets.drain(..);
        out.extend(held.map(|h| Output::Discard(h.token)));
    }

    /// The operation that comes next cannot be placed here: nothing more is wanted.
    fn has_failed(&self) -> bool {
        self.posted.queue.front().is_some_and(|op| op.failed)
    }

    /// When [`Receiver::poll`] has something to do.
    pub fn wake(&self, now: Time, scheme: &Scheme) -> Option<Time> {
        let relay = match &self.children {
            Children::Served(relay) => relay.wake(now, scheme),
            Children::Aggregated(reports) => reports.has_questions().then_some(now),
            Children::None => None,
        };
        let reorder_timer = self.nack.reorder_timer.map(|r| r.0);
        let challenges = self.challenges.wake();
        [self.feedback.due, reorder_timer, relay, challenges]
            .into_iter()
            .flatten()
            .min()
    }

    /// Writes a feedback frame to `head` if one is due, after `header` has written what comes
    /// before it.
    pub fn poll(
        &mut self,
        now: Time,
        scheme: &Scheme,
        head: &mut Vec<u8>,
        header: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        self.schedule_due_nack(now, scheme);
        if self.feedback.due.is_none_or(|d| d > now) {
            return false;
        }
        self.nack.forget_reordering(now, &scheme.detect);
        header(head);
        self.put_ack_and_nack(now, scheme, 0, head);
        self.on_feedback_sent(now, scheme);
        true
    }

    /// Checked after every change in tests and soaks.
    pub fn invariants(&self) {
        self.gaps.invariants();
        assert!(self.unexpected.packets.len() as u32 <= self.unexpected.max);
        assert!(!self.posted.end.before(self.gaps.cum()));
        if let Children::Served(relay) = &self.children {
            relay.invariants();
        }
    }
}
