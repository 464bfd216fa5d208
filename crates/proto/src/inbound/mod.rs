//! The receiving side of one stream: what has come, where it belongs, and when the root is told.
//!
//! Operations of a stream follow each other without a hole in the sequence numbers, and their
//! lengths are known when they are posted; so a packet's number says to which operation and to
//! which bytes of it it belongs, and one cumulative number acknowledges many of them (P1.6).

mod below;
mod doubts;
mod parity;
mod riders;
mod speaking;

pub use riders::Ride;

use core::time::Duration;
use std::collections::VecDeque;

use crate::border::{Config, Counters, Dest, Event, Outcome, Output, Placement, Refused};
use crate::gaps::{Gaps, Seen};
use crate::id::{Cut, Extent, GroupId, NodeId, OpId, Token};
use crate::lane::Send;
use crate::limits;
use crate::losses::Losses;
use crate::mutant::{self, Mutant};
use crate::reporters::Reporters;
use crate::root::{Charge, Root};
use crate::scheme::{Scheme, Told};
use crate::seq::Seq;
use crate::sum::Sum;
use crate::time::Time;
use crate::wire::{self, Coded, Data, Feedback, Origin, Ranges, flag};
use doubts::Doubts;
use parity::Kept;

/// How long packets must have come in order to lower the patience with late ones by a quarter.
const FORGET: Duration = Duration::from_secs(10);

/// An operation of no more packets is a short one: each that is lost may be asked for before it is
/// posted. Repairs of longer ones come as sums and parity packets as a rule, which are of use only
/// once they are.
const SHORT_MAX: u32 = 8;

/// What is said again because it may be lost is said so soon.
const ECHO: Duration = Duration::from_millis(1);

/// The number of a flight (16 bits) is believed for so long: at 1 GB/s, in packets of 1.4 KB, half
/// of the numbers are used up in 0.7 s.
const FLIGHT_AGE: Duration = Duration::from_millis(200);

/// A broadcast that this node has posted.
#[derive(Clone, Debug)]
struct Posted {
    id: OpId,
    base: Seq,
    cut: Cut,
    len: u64,
    placed: u32,
    /// The root has confirmed that its object is another one.
    mismatch: bool,
    /// The root has confirmed its length: what contradicts that is not the root's.
    vouched: bool,
    /// Bytes of it could not be placed: it is over, and nothing more of it is taken.
    failed: bool,
}

impl Posted {
    fn end(&self) -> Seq {
        self.base + self.cut.packets
    }

    fn is_last(&self, seq: Seq) -> bool {
        seq + 1 == self.end()
    }

    /// The extent of packet `index`.
    fn extent(&self, index: u32) -> Extent {
        Extent::packet(self.id, index, self.len, self.cut.chunk)
    }
}

/// A packet that came before its operation was posted.
#[derive(Clone, Copy, Debug)]
struct Held {
    seq: Seq,
    op: Seq,
    len: u32,
    last: bool,
    token: Token,
}

/// So many packets of earlier bursts, and none of the newest, say that the newest one never was:
/// on the way packets hardly overtake so many others.
const EARLIER_MAX: u32 = 2 * limits::FLIGHT_PACKETS;

/// The newest flight that has reached this node.
#[derive(Clone, Copy, Debug)]
struct Newest {
    flight: u16,
    at: Time,
    received: u32,
}

impl Newest {
    /// Whether so many flights may have left since that its number means nothing any more.
    fn is_old(&self, now: Time) -> bool {
        now.since(self.at) >= FLIGHT_AGE
    }
}

/// What a node does for those who report to it.
enum Below {
    /// Nobody does.
    Nobody,
    /// It tells on what all of them have (P1.5).
    Combines(Reporters),
    /// It repairs for them (P1.4).
    Serves(Box<Root>),
}

/// A stream's name, and this node's place in it.
pub struct Place {
    /// Its group.
    pub group: GroupId,
    /// Who sends it.
    pub root: NodeId,
    /// This node's position among the receivers.
    pub turn: u32,
    /// How many receivers there are.
    pub receivers: u32,
    /// Whom this node tells.
    pub collector: NodeId,
    /// Who tells this node.
    pub reporters: Vec<Charge>,
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

/// The receiving side of one stream.
pub struct Inbound {
    group: GroupId,
    root: NodeId,
    turn: u32,
    receivers: u32,
    /// How much longer counts and times are than in a small group.
    stretch: u32,
    collector: NodeId,
    below: Below,
    /// What was last told of those below; it never goes back.
    told_below: Seq,
    /// What was asked for: the answer may wait a little for those below.
    asked: Option<Seq>,
    chunk: u32,
    gaps: Gaps,
    /// Packets that this node can have room for beyond what is placed.
    window: u32,
    ops: VecDeque<Posted>,
    /// Where the next operation to be posted begins.
    end: Seq,
    /// In order.
    held: VecDeque<Held>,
    hold_max: u32,
    /// What is missing before this may be asked for: all that is posted, and what came and could
    /// not be held.
    askable: Seq,
    /// Packets that the receive buffer can hold, of all streams.
    buffers: u32,
    /// Packets of this stream that the receive buffer may hold.
    backlog: u32,
    /// Whether the sender must not exceed `backlog` (P1.10).
    credits: bool,
    /// Boundary packets of which only some bytes are placed: number and bytes.
    partial: Vec<(Seq, u32)>,
    /// Blocks of which parity packets are kept, in order.
    kept: Vec<Kept>,
    /// What is missing and not made up for by these; used for each feedback anew.
    wanted: Vec<(Seq, u32)>,

    /// New packets received, and the newest flight.
    received: u32,
    newest: Option<Newest>,
    /// Packets of earlier bursts since the newest one's.
    earlier: u32,

    /// Data packets since the last feedback; with skew since this node's turn, and less than none
    /// if that was left out.
    count: i64,
    due: Option<Time>,
    last_feedback: Option<Time>,
    /// When a gap was last told of because it was due.
    last_gap: Option<Time>,
    last_limit: Seq,
    /// Gaps before this have been open long enough to be reported.
    ripe: Seq,
    /// When gaps before the number will have been.
    ripens: Option<(Time, Seq)>,
    reorder: Duration,
    /// When that was last learnt or forgotten.
    learnt: Time,
    /// Since when the first gap has been open.
    opened: Time,
    /// After how long what is missing is asked for again, and how often it has been since that was
    /// doubled.
    retry: Duration,
    doubts: Doubts,
    retries: u32,
    /// What is lost on the way here.
    losses: Losses,
    /// How often the root has asked before anything came.
    asks: u32,
    /// How often what was said last is still to be said again.
    echoes: u32,
}

impl Inbound {
    /// A stream of which nothing has been seen.
    pub fn new(config: &Config, place: Place, chunk: u32, start: Seq) -> Inbound {
        let scheme = &config.scheme;
        let window = scheme.window;
        let stretch = place.receivers.div_ceil(scheme.feedback.crowd).max(1);
        let Place {
            group,
            root,
            turn,
            receivers,
            collector,
            reporters,
        } = place;
        let below = match scheme.told {
            _ if reporters.is_empty() => Below::Nobody,
            Told::Tree(_) => {
                let nodes = reporters.iter().map(|r| r.node);
                Below::Combines(Reporters::new(nodes, start))
            }
            Told::Root | Told::Coroots(_) => {
                let stream = (group, Some(root));
                let relay = Root::new(config, stream, &reporters, chunk, start);
                Below::Serves(Box::new(relay))
            }
        };
        Inbound {
            group,
            root,
            turn,
            receivers,
            stretch,
            collector,
            below,
            told_below: start,
            asked: None,
            chunk,
            gaps: Gaps::new(start, window.next_power_of_two()),
            window,
            ops: VecDeque::new(),
            end: start,
            held: VecDeque::new(),
            hold_max: config.hold.min(window),
            askable: start,
            buffers: config.backlog.max(16),
            backlog: config.backlog.max(16),
            credits: scheme.credits,
            partial: Vec::new(),
            kept: Vec::new(),
            wanted: Vec::new(),
            received: 0,
            newest: None,
            earlier: 0,
            count: 0,
            due: None,
            last_feedback: None,
            last_gap: None,
            last_limit: start,
            ripe: start,
            ripens: None,
            reorder: scheme.detect.reorder_min,
            learnt: Time::ZERO,
            opened: Time::ZERO,
            retry: scheme.detect.ask_min,
            doubts: Doubts::default(),
            retries: 0,
            losses: Losses::default(),
            asks: 0,
            echoes: 0,
        }
    }

    /// Who sends this stream.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// Whom this node tells.
    pub fn collector(&self) -> NodeId {
        self.collector
    }

    /// With credits this stream has its share of the buffers, of so many streams (P1.10); an eighth
    /// is for what is not data.
    pub fn divide(&mut self, streams: u32) {
        if self.credits {
            self.backlog = (self.buffers * 7 / 8 / streams).max(1);
        }
    }

    /// Packets before this can be placed, or held until they are posted.
    fn takes(&self) -> Seq {
        self.room().min(self.end + self.hold_max)
    }

    /// What is missing before this is asked for: who lacks a short operation that is posted asks
    /// for all that it can hold, for as a rule what follows is as short. (A co-root's repairs
    /// cannot be held.)
    fn asks_to(&self) -> Seq {
        let filled = self.gaps.filled();
        let lacking = self.ops.iter().find(|op| filled.before(op.end()));
        let lags = lacking.is_some_and(|op| op.cut.packets <= SHORT_MAX);
        let askable = match lags && self.collector == self.root {
            true => self.askable.max(self.gaps.high()),
            false => self.askable,
        };
        askable.min(self.end.max(self.takes()))
    }

    /// Packets held for operations that are not posted.
    pub fn held(&self) -> usize {
        self.held.len()
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
            .ops
            .iter()
            .map(|o| u64::from(o.cut.packets))
            .sum::<u64>();
        if self.ops.len() >= limits::OPS_MAX || span + u64::from(cut.packets) >= 1 << 31 {
            return Err(Refused::Busy);
        }
        let op = Posted {
            id,
            base: self.end,
            cut,
            len,
            placed: 0,
            mismatch: false,
            vouched: false,
            failed: false,
        };
        self.end = op.end();
        let mut doubtful = false;
        while let Some(&h) = self.held.front().filter(|h| h.seq.before(self.end)) {
            self.held.pop_front();
            let extent = op.extent(h.seq.from(op.base) as u32);
            if h.op == op.base && h.len == extent.len && h.last == op.is_last(h.seq) {
                out.push_back(Output::Place(h.token, extent));
            } else {
                out.push_back(Output::Discard(h.token));
                self.gaps.reopen(h.seq);
                doubtful = true;
            }
        }
        self.ops.push_back(op);
        if doubtful {
            self.doubt(now, id);
        }
        if let Below::Serves(relay) = &mut self.below {
            relay.bcast(now, (id, len, cut), scheme.is_awaited(len), out)?;
        }
        let (gap, asked) = (self.gaps.filled(), self.askable);
        self.askable = asked.max(self.end);
        // Numbers that lie far behind would one day count as ahead.
        self.ripe = self.ripe.max(self.gaps.cum());
        if self.last_feedback.is_none() {
            // All may post at the same time.
            let turn = if self.stretch > 1 { self.turn } else { 0 };
            self.plan(now + scheme.feedback.turn * turn);
        } else if !self.gaps.cum().before(self.last_limit) {
            // The root takes this node for not ready.
            self.plan(now);
            self.repeat(scheme);
        } else if !scheme.feedback.asked_only {
            if !gap.before(asked) && gap.before(self.ripe.min(self.end)) {
                // What was lost before it was posted is what holds this node up now.
                self.plan(now);
            }
            self.tell_limit(now);
        }
        Ok(())
    }

    /// The root is gone: what is posted will not come, and nothing more is repaired for others.
    pub fn abandon(&mut self, out: &mut VecDeque<Output>) {
        for op in self.ops.iter().filter(|op| !op.failed) {
            out.push_back(Output::Event(Event::Failed(op.id)));
        }
        match &self.below {
            Below::Serves(relay) => out.extend(relay.idle().map(Output::Release)),
            _ => out.extend(self.ops.iter().map(|op| Output::Release(op.id))),
        }
        self.ops.clear();
        self.doubts.clear();
        self.kept.clear();
        self.below = Below::Nobody;
        self.forget_held(out);
        self.due = None;
        self.ripens = None;
    }

    /// What is held will not be asked for.
    pub fn forget_held(&mut self, out: &mut VecDeque<Output>) {
        let held = self.held.drain(..);
        out.extend(held.map(|h| Output::Discard(h.token)));
    }

    fn op_at(&mut self, seq: Seq) -> Option<&mut Posted> {
        // As a rule it is of the first operation.
        let first = self.ops.front();
        let i = match first.is_some_and(|op| seq.within(op.base, op.cut.packets)) {
            true => 0,
            false => self.ops.partition_point(|op| !seq.before(op.end())),
        };
        self.ops
            .get_mut(i)
            .filter(|op| seq.within(op.base, op.cut.packets))
    }

    /// A data packet of this stream; `flight`: its number, and when the packet arrived.
    pub fn data(
        &mut self,
        now: Time,
        (flight, arrived): (u16, Time),
        scheme: &Scheme,
        data: &Data<'_>,
        node: &mut Shared<'_>,
    ) -> Placement {
        let fresh = data.flags & flag::REPAIR == 0;
        let high = self.gaps.high();
        let filled = self.gaps.filled();
        let repeat = self.gaps.has(data.seq);
        let Some(placement) = self.place(now, data, node) else {
            // It tells nothing of the path either.
            node.counters.foreign += 1;
            return Placement::Discard;
        };
        self.arrive((flight, arrived), node.counters);
        self.received = self.received.wrapping_add(u32::from(fresh));
        self.count_lost(high, fresh && !repeat);
        self.carry(now, node.out);
        if fresh && repeat {
            // It was overtaken by its own repair.
            self.learn(now, scheme, self.reorder * 2);
        }
        self.note_loss(now, (filled, high), fresh, node.counters);
        self.schedule(now, scheme, (data.seq, data.flags), high, filled, fresh);
        placement
    }

    /// A coded packet of this stream; otherwise as [`Inbound::data`].
    pub fn coded(
        &mut self,
        now: Time,
        flight: (u16, Time),
        scheme: &Scheme,
        coded: &Coded<'_>,
        node: &mut Shared<'_>,
    ) -> Placement {
        let (high, filled) = (self.gaps.high(), self.gaps.filled());
        let Some(placement) = self.solve(coded, node) else {
            node.counters.foreign += 1;
            return Placement::Discard;
        };
        self.arrive(flight, node.counters);
        let last = (coded.sources.last(), coded.flags);
        self.note_loss(now, (filled, high), false, node.counters);
        self.schedule(now, scheme, last, high, filled, false);
        placement
    }

    /// Notes the burst that a packet belongs to. A forged packet may name one that never was, so
    /// many packets of earlier ones overrule the newest.
    fn arrive(&mut self, (flight, arrived): (u16, Time), counters: &mut Counters) {
        let ahead = self.newest.map_or(1, |n| match n.is_old(arrived) {
            true => 1,
            false => flight.wrapping_sub(n.flight) as i16,
        });
        let overruled = ahead < 0 && self.earlier >= EARLIER_MAX;
        if ahead > 0 || overruled {
            self.newest = Some(Newest {
                flight,
                at: arrived,
                received: self.received,
            });
        }
        self.earlier = match ahead < 0 && !overruled {
            true => self.earlier + 1,
            false => 0,
        };
        counters.received += 1;
        self.count += 1;
    }

    /// What a coded packet is good for: one packet, if it is the only one of them that is missing.
    /// `None`: it contradicts what was posted.
    fn solve(&mut self, coded: &Coded<'_>, node: &mut Shared<'_>) -> Option<Placement> {
        let sources = &coded.sources;
        // It is made of what receivers asked for, which is posted as a rule. (Who lacks a short
        // operation asks for more, and who was left behind, but that one has a lane of its own by
        // then, without sums: either asks again, and is sent it by itself after some attempts.)
        let posted = self.op_at(sources.last()).filter(|op| !op.failed).cloned();
        let Some(op) = posted.filter(|_| sources.last().before(self.room())) else {
            node.counters.duplicates += 1;
            return Some(Placement::Discard);
        };
        if sources.first().before(op.base) || coded.payload.len() as u32 != op.cut.chunk {
            return None;
        }
        let extent = |seq: Seq| op.extent(seq.from(op.base) as u32);
        let mut missing = sources.iter().filter(|&s| !self.gaps.has(s));
        let (first, more) = (missing.next(), missing.next());
        // What was held and is posted now may still be on its way into the object.
        let pending = |o: &Output| matches!(o, Output::Place(..) | Output::Rebuild(..));
        let whole = !node.out.iter().any(pending);
        let Some(seq) = first.filter(|_| more.is_none() && whole) else {
            node.counters.duplicates += u64::from(first.is_none());
            return Some(Placement::Discard);
        };
        let mut others = Sum::new(op.id);
        let forgotten = usize::from(mutant::active(Mutant::SumForgetsOne));
        for s in sources.iter().filter(|&s| s != seq).skip(forgotten) {
            others.push(extent(s));
        }
        Some(match self.gaps.see(seq) {
            Seen::New => {
                let extent = extent(seq);
                self.fill(seq, node.out);
                Placement::Solve(extent, others)
            }
            Seen::Repeat | Seen::Beyond => Placement::Discard,
        })
    }

    /// Where a data packet belongs; `None`: it contradicts what was posted.
    fn place(&mut self, now: Time, data: &Data<'_>, node: &mut Shared<'_>) -> Option<Placement> {
        let counters = &mut *node.counters;
        let (chunk, len) = (self.chunk, data.payload.len() as u32);
        let last = data.flags & flag::LAST != 0;
        let takes = self.takes();
        if len > chunk {
            return None;
        }
        if !data.seq.before(takes) {
            counters.duplicates += 1;
            // Whoever has sent this has sent what comes before it.
            self.gaps.announce(takes);
            // A co-root's repairs cannot be held.
            if self.collector == self.root {
                self.askable = self.askable.max(data.seq + 1);
            }
            return Some(Placement::Discard);
        }
        if data.seq.before(self.end) {
            let Some(op) = self.op_at(data.seq) else {
                counters.duplicates += 1;
                return Some(Placement::Discard);
            };
            if op.failed {
                counters.duplicates += 1;
                return Some(Placement::Discard);
            }
            let extent = op.extent(data.seq.from(op.base) as u32);
            let other = matches!(data.origin, Origin::Source(base) if base != op.base);
            if other || len != extent.len || last != op.is_last(data.seq) {
                self.doubt(now, extent.op);
                return None;
            }
            match self.gaps.see(data.seq) {
                Seen::New => {
                    self.fill(data.seq, node.out);
                    Some(Placement::Write(extent))
                }
                Seen::Repeat | Seen::Beyond => {
                    counters.duplicates += 1;
                    Some(Placement::Discard)
                }
            }
        } else if let Origin::Source(op) = data.origin
            && data.seq.before(op)
        {
            None
        } else if let Origin::Source(op) = data.origin
            && self.gaps.see(data.seq) == Seen::New
        {
            *node.token += 1;
            let token = Token(*node.token);
            let at = self.held.partition_point(|h| h.seq.before(data.seq));
            let held = Held {
                seq: data.seq,
                op,
                len,
                last,
                token,
            };
            self.held.insert(at, held);
            Some(Placement::Hold(token))
        } else {
            counters.duplicates += 1;
            Some(Placement::Discard)
        }
    }

    /// Counts how long the first loss has lasted, if what has just come was its repair. (What
    /// closes a gap by itself was only late.)
    fn note_loss(
        &self,
        now: Time,
        (filled, high): (Seq, Seq),
        fresh: bool,
        counters: &mut Counters,
    ) {
        if filled != self.gaps.filled() && filled != high && !fresh {
            counters.losses.note(now.since(self.opened));
        }
    }

    /// What was sent is known up to `high` no more, but further, and a new packet has come or not.
    fn count_lost(&mut self, high: Seq, new: bool) {
        let sent = self.gaps.high().from(high).max(0) as u32;
        if sent > 0 || new {
            self.losses.note(sent, u32::from(new));
        }
    }

    /// The root tells what it has sent and asks.
    pub fn sync(&mut self, now: Time, scheme: &Scheme, next: Seq) {
        if !self.gaps.is_open() {
            self.opened = now;
        }
        let high = self.gaps.high();
        self.gaps.announce(next);
        self.count_lost(high, false);
        if mutant::active(Mutant::NobodyIsAsked) {
            return;
        }
        // What was sent just before may be behind: the question and the data came by different
        // sockets.
        let asks = !scheme.detect.by_sender && !scheme.feedback.asked_only;
        if asks && self.gaps.is_open() && self.ripens.is_none() {
            self.ripens = Some((now + self.patience(scheme), self.gaps.high()));
        }
        self.asks += u32::from(self.newest.is_none());
        self.ask(now, scheme, next);
        if let Below::Combines(reporters) = &mut self.below {
            reporters.ask(next);
        }
    }

    /// The operation that comes next cannot be placed here: nothing more is wanted.
    fn has_failed(&self) -> bool {
        self.ops.front().is_some_and(|op| op.failed)
    }

    /// How far the root may go: nowhere once an operation has failed, else what the window covers,
    /// what the receive buffer holds, and what has been posted or can be held.
    fn limit(&self) -> Seq {
        let (cum, high) = (self.gaps.cum(), self.gaps.high());
        if self.has_failed() {
            return cum;
        }
        let takes = self.takes();
        let lacks = || self.gaps.filled().before(self.asks_to());
        if !cum.before(self.end) && !high.before(takes) && !lacks() {
            // All that was posted is here, what can be held has been sent, and nothing is asked
            // for: nobody is to wait for the next post.
            return cum;
        }
        // In a crowd nobody speaks so often.
        let credit = match self.credits {
            true => self.backlog,
            false => self.backlog.saturating_mul(self.stretch).min(self.window),
        };
        takes.min(high + credit).max(cum)
    }

    /// Bytes `extent` of one of this stream's operations have met their fate.
    pub fn placed(
        &mut self,
        now: Time,
        scheme: &Scheme,
        extent: Extent,
        outcome: Outcome,
        out: &mut VecDeque<Output>,
    ) {
        let Some(i) = self.ops.iter().position(|op| op.id == extent.op) else {
            return;
        };
        let op = &self.ops[i];
        let chunk = u64::from(op.cut.chunk);
        let (base, len) = (op.base, op.len);
        if self.ops[i].failed {
            return;
        }
        if outcome == Outcome::Failed {
            self.ops[i].failed = true;
            self.forget_parities(extent.op, out);
            out.push_back(Output::Event(Event::Failed(extent.op)));
            return;
        }
        let end = (extent.offset + u64::from(extent.len)).min(len);
        let mut at = extent.offset;
        loop {
            let index = (at / chunk) as u32;
            let (first, last) = (
                u64::from(index) * chunk,
                (u64::from(index) * chunk + chunk).min(len),
            );
            let part = (end.min(last) - at) as u32;
            let whole = (last - first) as u32;
            let seq = base + index;
            if outcome == Outcome::Corrupt {
                self.gaps.reopen(seq);
            } else if (part == whole || self.add_part(seq, part, whole)) && self.gaps.place(seq) {
                self.ops[i].placed += 1;
            }
            at = last;
            if at >= end {
                break;
            }
        }
        if outcome == Outcome::Corrupt {
            self.take_back_rebuilds(base, extent, out);
            self.ripe = self.gaps.high();
            self.plan(now + scheme.repair.gather);
        }
        self.carry(now, out);
        if self.ops[i].placed == self.ops[i].cut.packets {
            out.push_back(Output::Event(Event::Complete(extent.op)));
            // A co-root may still have to send it.
            if !matches!(self.below, Below::Serves(_)) {
                out.push_back(Output::Release(extent.op));
            }
            self.ops.remove(i);
            let rule = &scheme.feedback;
            if rule.asked_only {
                // Nobody has asked.
            } else if scheme.detect.by_sender && rule.every > 1 {
                // One acknowledgement may cover several broadcasts (P1.6).
                self.plan(now + rule.piggyback + rule.delay_max);
            } else if !scheme.detect.by_sender && !scheme.is_awaited(len) {
                self.plan(now + rule.piggyback + rule.unhurried);
            } else {
                self.plan(now + rule.piggyback + rule.turn * self.turn);
                self.repeat(scheme);
            }
        }
        if !scheme.feedback.asked_only {
            self.tell_limit(now);
        }
    }

    /// Adds to the placed bytes of a packet that lies across two extents; says whether it is whole.
    fn add_part(&mut self, seq: Seq, part: u32, whole: u32) -> bool {
        let i = match self.partial.iter().position(|p| p.0 == seq) {
            Some(i) => i,
            None => {
                self.partial.push((seq, 0));
                self.partial.len() - 1
            }
        };
        self.partial[i].1 += part;
        if self.partial[i].1 < whole {
            return false;
        }
        self.partial.swap_remove(i);
        true
    }

    /// When [`Inbound::poll`] has something to do.
    pub fn wake(&self, now: Time, scheme: &Scheme) -> Option<Time> {
        let relay = match &self.below {
            Below::Serves(relay) => relay.wake(now, scheme),
            Below::Combines(reporters) => reporters.has_questions().then_some(now),
            Below::Nobody => None,
        };
        let ripens = self.ripens.map(|r| r.0);
        let doubts = self.doubts.wake();
        [self.due, ripens, relay, doubts]
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
        if let Some((_, upto)) = self.ripens.filter(|r| r.0 <= now) {
            self.ripens = None;
            self.ripe = upto;
            if self.gaps.filled().before(upto.min(self.asks_to())) {
                let at = self.gap_told(now, scheme);
                self.plan(at);
                self.last_gap = Some(at);
            }
            if self
                .gaps
                .missing(self.gaps.high())
                .any(|(s, _)| !s.before(upto))
            {
                self.ripens = Some((now + self.patience(scheme), self.gaps.high()));
            }
        }
        if self.due.is_none_or(|d| d > now) {
            return false;
        }
        self.forget(now, scheme);
        header(head);
        self.write(now, scheme, 0, head);
        self.told(now, scheme);
        true
    }

    /// Feedback has been written.
    fn told(&mut self, now: Time, scheme: &Scheme) {
        self.due = None;
        self.asked = None;
        self.count = self.count_from(&scheme.feedback);
        self.last_feedback = Some(now);
        self.last_limit = self.limit();
        let asks = !scheme.detect.by_sender && !scheme.feedback.asked_only;
        let lacking = self.gaps.filled().before(self.ripe.min(self.asks_to()));
        if asks && lacking && !self.has_failed() {
            // What is missing is asked for again, ever more patiently, until something moves.
            self.plan(now + self.retry);
            self.retries += 1;
            // A question and what it asks for have both to arrive.
            if self.retries >= self.tries().pow(2) {
                self.retry = (self.retry * 2).min(scheme.detect.ask_max);
                self.retries = 0;
            }
        } else if self.echoes > 0 {
            self.echoes -= 1;
            self.plan(now + ECHO);
        }
    }

    fn write(&mut self, now: Time, scheme: &Scheme, flags: u8, head: &mut Vec<u8>) {
        let newest = self.newest.unwrap_or(Newest {
            flight: 0,
            at: now,
            received: 0,
        });
        // A receiver that has received nothing has no flight to tell of: it says so by its count.
        let known = self.newest.is_some_and(|n| !n.is_old(now));
        self.told_below = self.have_all();
        let feedback = Feedback {
            group: self.group,
            root: self.root,
            cum: self.gaps.cum(),
            below: self.told_below,
            limit: self.limit_of_all(),
            high: self.gaps.high(),
            received: newest.received,
            arrived_us: newest.at.micros(),
            held_us: now.since(newest.at).as_micros().min(u128::from(u32::MAX)) as u32,
            flight: newest.flight,
            flags: if known { flags | flag::FLIGHT } else { flags },
            missing: Ranges::NONE,
        };
        let ripe = if mutant::active(Mutant::GapsUnreported) || self.has_failed() {
            self.gaps.cum()
        } else {
            // Who is asked, or does not ask by itself, says what it knows.
            let told = scheme.detect.by_sender || scheme.feedback.asked_only;
            let ripe = if told { self.gaps.high() } else { self.ripe };
            ripe.min(self.asks_to())
        };
        if !self.kept.is_empty() {
            self.find_wanted(ripe);
        }
        let own = self.gaps.missing(ripe);
        match &mut self.below {
            _ if !self.kept.is_empty() => {
                wire::put_feedback(head, &feedback, self.wanted.iter().copied());
            }
            Below::Combines(reporters) => {
                let all = reporters.missing(self.told_below, own);
                // Of what it has not heard of itself it cannot speak.
                let known = all.iter().map_while(|&(first, n)| {
                    let known = feedback.high.from(first).min(n as i32);
                    (known > 0).then_some((first, known as u32))
                });
                wire::put_feedback(head, &feedback, known);
            }
            _ => wire::put_feedback(head, &feedback, own),
        }
    }

    /// Checked after every change in tests and soaks.
    pub fn invariants(&self) {
        self.gaps.invariants();
        assert!(self.held.len() as u32 <= self.hold_max);
        assert!(!self.end.before(self.gaps.cum()));
        if let Below::Serves(relay) = &self.below {
            relay.invariants();
        }
    }
}
