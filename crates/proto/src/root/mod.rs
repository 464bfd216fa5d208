//! The sending side of a stream: one root's broadcasts to one group. A co-root has one too, for
//! those who report to it: its new packets are sent by the root, and it only repairs.
//!
//! A root sends over *lanes*. The first lane is the group's multicast; a member that multicast
//! does not reach, or that is behind, has a lane of its own: "a group of one". A lane has a
//! window, a queue of repairs and a pacer, so one mechanism serves all. A member belongs to one
//! lane at a time, and only members that are ready (their window is open) hold a lane back.
//!
//! ```text
//!   ops:    [ op 0 ........ )[ op 1 . )            numbered without a hole
//!   lane 0:      base ······ next                  multicast, its members' slowest and its newest
//!   lane 1:  base ·· (skipped) ·· next             one member that is behind: repairs only
//! ```

mod blocks;
mod budget;
mod regain;
mod relay;
mod reports;
mod survey;

pub use regain::Trial;

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use crate::border::{Config, Counters, Dest, Event, MemberStatus, Output, Reach, Refused};
use crate::demand::Demand;
use crate::flights::{Flight, Flights};
use crate::hierarchy::Hierarchy;
use crate::id::{Cut, GroupId, NodeId, OpId};
use crate::lane::{Lane, Op, Send};
use crate::limits;
use crate::losses::Losses;
use crate::member::{GROUP_LANE, Member};
use crate::mutant::{self, Mutant};
use crate::pace::Pacer;
use crate::scheme::{Detect, How, Scheme, Told};
use crate::seq::Seq;
use crate::sum::{Sources, Sum};
use crate::time::Time;
use crate::window::{Lacking, Window};
use crate::wire::{Feedback, Origin, flag};
use budget::Budget;

/// At most so many members are asked one by one; else the group is.
const ASK_SINGLY: usize = 8;
/// Packets that a lane sends before the next one has its turn: enough for a batch of datagrams.
const TURN_PACKETS: u32 = 32;
/// Before anybody has been heard, the first broadcast waits so long for all to be ready.
const GRACE: Duration = Duration::from_millis(50);

/// A receiver of a stream, as its root is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    /// Who.
    pub node: NodeId,
    /// How it is reached.
    pub reach: Reach,
    /// It reports to another receiver.
    pub delegated: bool,
    /// It reports here and is a co-root.
    pub coroot: bool,
}

/// The sending side of a stream.
pub struct Root {
    group: GroupId,
    /// Whose stream it is, at a co-root.
    relay: Option<NodeId>,
    /// At a co-root: everything before this has been placed here, and so can be repaired.
    have: Seq,
    /// At a co-root: everything before this is known to have been sent.
    high: Seq,
    told: Told,
    by_sender: bool,
    broadcasts: u32,
    /// Members that are co-roots.
    coroots: Vec<u32>,
    window: u32,
    rate: Option<u64>,
    /// A fixed rate holds for all lanes together.
    total: Option<Pacer>,
    members: Vec<Member>,
    lanes: Vec<Option<Lane>>,
    /// What is lacking in the group's lane, if that is repaired by blocks.
    demand: Option<Demand>,
    ops: VecDeque<Op>,
    end: Seq,
    /// Packets before this have been sent at least once, by one lane or another.
    front: Seq,
    flights: Flights,
    /// Members that have not placed the first operation.
    waiting: usize,
    budget: Budget,
    asks: VecDeque<Dest>,
    /// Members to be tried by multicast again.
    tries: VecDeque<NodeId>,
    /// Whose turn it is to be asked alone.
    ask_from: usize,
    survey_at: Option<Time>,
    /// When the last survey was, or operations began after a pause.
    surveyed: Time,
    started: Option<Time>,
    /// Members that have never been heard.
    unheard: usize,
    rtt: Option<Duration>,
    rtt_var: Duration,
    /// The lane whose turn it is to send, and how many packets it has sent in it.
    turn: usize,
    taken: u32,
    /// Number of the last lane.
    lane_number: u32,
}

impl Root {
    /// No broadcast yet; `members` are the receivers, sorted by node. The first packet will have
    /// number `start`. `relay`: the stream's root, if this is a co-root.
    pub fn new(
        config: &Config,
        (group, relay): (GroupId, Option<NodeId>),
        members: &[Charge],
        chunk: u32,
        start: Seq,
    ) -> Root {
        let window = config.scheme.window.next_power_of_two();
        let coroots = (0..).zip(members).filter(|(_, m)| m.coroot);
        let blocks = relay.is_none() && Root::codes_blocks(&config.scheme, members.len(), chunk);
        let mut root = Root {
            group,
            relay,
            have: start,
            high: start,
            told: config.scheme.told,
            by_sender: config.scheme.detect.by_sender,
            broadcasts: config.scheme.broadcasts,
            coroots: coroots.map(|(i, _)| i).collect(),
            window,
            rate: config.rate,
            total: config.rate.map(|r| Pacer::new(Some(r))),
            members: members
                .iter()
                .map(|m| Member::new(m.node, start, m.reach == Reach::Nothing, m.delegated))
                .collect(),
            lanes: Vec::new(),
            demand: blocks.then(|| Demand::new(window)),
            ops: VecDeque::new(),
            end: start,
            front: start,
            flights: Flights::new(),
            waiting: 0,
            budget: Budget::new(config, relay.is_some(), chunk),
            asks: VecDeque::new(),
            tries: VecDeque::new(),
            ask_from: 0,
            survey_at: None,
            surveyed: Time::ZERO,
            started: None,
            unheard: 0,
            rtt: None,
            rtt_var: Duration::ZERO,
            turn: 0,
            taken: 0,
            lane_number: 0,
        };
        let credit = root.budget.most();
        root.members.iter_mut().for_each(|m| m.credit = credit);
        root.unheard = root.members.iter().filter(|m| m.is_mine()).count();
        // A group of two needs no multicast: whatever one sends is for the other.
        let pair = members.len() == 1 && !mutant::active(Mutant::PairByGroup);
        let dest = match pair {
            true => Dest::Node(members[0].node),
            false => Dest::Group(group),
        };
        // Repaired by blocks, a lane counts losses instead.
        let known = (!blocks).then_some(0..members.len() as u32);
        let mut lane = root.lane(dest, start, known);
        lane.window.prepare();
        root.lanes.push(Some(lane));
        for (i, m) in members.iter().enumerate() {
            if pair {
                root.members[i].reach = Reach::Unicast;
            } else if m.reach == Reach::Unicast && !m.delegated {
                root.serve_alone(i, Reach::Unicast);
            }
        }
        root
    }

    /// A lane of which it is known who of `members` lacks what; see [`Window::new`].
    fn lane(&mut self, dest: Dest, start: Seq, members: Option<Range<u32>>) -> Lane {
        self.lane_number = self.lane_number.wrapping_add(1);
        Lane {
            number: self.lane_number,
            dest,
            window: Window::new(start, self.window, members),
            pacer: Pacer::new(self.rate),
            fresh: 0,
            lossy: 0,
            follows: false,
            at_base: 0,
            limit: None,
            at_limit: 0,
        }
    }

    /// Which of the members this node is.
    fn index_of(&self, node: NodeId) -> Option<usize> {
        self.members.binary_search_by_key(&node, |m| m.node).ok()
    }

    /// The pace of the group's lane, in bytes of UDP payload per second.
    pub fn rate(&self) -> u64 {
        self.lanes[GROUP_LANE]
            .as_ref()
            .map_or(0, |l| l.pacer.rate())
    }

    /// What is known of each receiver.
    pub fn status(&self) -> impl Iterator<Item = MemberStatus> + '_ {
        self.members.iter().map(|m| MemberStatus {
            node: m.node,
            reach: m.reach,
            placed: m.placed,
            repairs: m.repairs,
            heard: m.heard,
            waited: m.waited,
            gone: m.gone,
        })
    }

    /// A new broadcast of `len` bytes, cut so, for which somebody waits or not.
    pub fn bcast(
        &mut self,
        now: Time,
        (id, len, cut): (OpId, u64, Cut),
        awaited: bool,
        out: &mut VecDeque<Output>,
    ) -> Result<(), Refused> {
        // All that is under way must stay comparable.
        let span = self
            .ops
            .iter()
            .map(|o| u64::from(o.cut.packets))
            .sum::<u64>();
        if self.ops.len() >= limits::OPS_MAX || span + u64::from(cut.packets) >= 1 << 31 {
            return Err(Refused::Busy);
        }
        let op = Op {
            id,
            base: self.end,
            cut,
            len,
            awaited,
            out: 0,
            complete: false,
        };
        if self.ops.is_empty() {
            // Nobody was waited for while there was nothing to do.
            let sent = self.lanes[GROUP_LANE].as_ref().map_or(0, |l| l.fresh);
            self.surveyed = now;
            for m in &mut self.members {
                m.moved = now;
                m.gets_on(now);
                m.hearing.rest(now, sent);
            }
        }
        self.end = op.end();
        self.ops.push_back(op);
        self.started.get_or_insert(now);
        // Those who have all that was there count no more, unless they are ready for this.
        match self.is_tree() {
            true => (0..self.lanes.len()).for_each(|lane| self.settle(lane)),
            false => self.settle(GROUP_LANE),
        }
        self.count_waiting();
        self.finish(out);
        self.survey_at = Some(
            self.survey_at
                .map_or(now + GRACE / 5, |s| s.min(now + GRACE / 5)),
        );
        Ok(())
    }

    /// Gives member `i` a lane of its own.
    fn serve_alone(&mut self, i: usize, reach: Reach) {
        let sent = self.lanes[GROUP_LANE].as_ref().map(|l| l.window.next());
        let (node, cum) = (self.members[i].node, self.members[i].cum);
        // In a tree it is repaired for all below it.
        let members = match self.is_tree() {
            true => 0..self.members.len() as u32,
            false => i as u32..i as u32 + 1,
        };
        let mut lane = self.lane(Dest::Node(node), cum, Some(members));
        if let Some(sent) = sent {
            lane.window.skip_to(sent.max(cum));
        }
        lane.follows = reach == Reach::Multicast;
        self.members[i].losses = Losses::default();
        // A rate that nothing was sent at has not been found: the new lane finds its own.
        if let Some(group) = &self.lanes[self.members[i].lane]
            && group.pacer.bytes() > 0
        {
            lane.pacer.begin_at(group.pacer.rate() / 2);
        }
        let free = self.lanes.iter().position(Option::is_none);
        let at = free.unwrap_or(self.lanes.len());
        if at == self.lanes.len() {
            self.lanes.push(None);
        }
        self.lanes[at] = Some(lane);
        self.members[i].reach = reach;
        self.move_to(i, at);
    }

    /// How a member is reached has been proven.
    pub fn set_reach(&mut self, node: NodeId, reach: Reach, out: &mut VecDeque<Output>) {
        if reach == Reach::Nothing {
            return self.remove(node, out);
        }
        if let Some(i) = self.index_of(node)
            && reach == Reach::Unicast
            && self.members[i].reach != reach
            && self.members[i].is_mine()
        {
            self.serve_alone(i, reach);
        }
    }

    /// How many probes it took to have a member's answer.
    pub fn proven(&mut self, node: NodeId, probes: u32) {
        if let Some(i) = self.index_of(node) {
            self.members[i].probes = probes;
        }
    }

    /// Finds anew how lossy the ways of a lane's members are.
    fn weigh(&mut self, lane: usize) {
        let Some(l) = &mut self.lanes[lane] else {
            return;
        };
        let mine = self
            .members
            .iter()
            .filter(|m| m.lane == lane && m.is_mine());
        let lossy = mine.map(|m| m.losses.tries()).filter(|t| *t > 1);
        let (most, lossy) = lossy.fold((1, 0), |(most, n), t| (t.max(most), n + 1));
        l.lossy = lossy;
        l.window.expect(most);
    }

    fn move_to(&mut self, i: usize, lane: usize) {
        let from = core::mem::replace(&mut self.members[i].lane, lane);
        if from != lane {
            if let Some(l) = self.lanes[from].as_mut() {
                l.window.forget(i as u32);
                l.pacer.require(i, false);
            }
            if from == GROUP_LANE
                && let Some(demand) = &mut self.demand
            {
                demand.forget(i as u32);
            }
            if from != GROUP_LANE {
                self.lanes[from] = None;
            } else {
                self.settle(from);
                self.weigh(from);
            }
        }
        self.settle(lane);
        self.weigh(lane);
    }

    /// Members whose progress a lane waits for: those that are ready, or that have everything.
    fn counts(&self, m: &Member, lane: usize) -> bool {
        m.lane == lane && m.is_mine() && (m.is_ready() || m.cum == self.end || self.is_tree())
    }

    /// Whether new packets wait for what this member can take.
    fn limits(&self, m: &Member) -> bool {
        m.is_ready() || self.is_tree() && m.cum != self.end
    }

    /// Nobody in a tree can be served alone, so that all wait for one another.
    fn is_tree(&self) -> bool {
        matches!(self.told, Told::Tree(_))
    }

    /// Finds a lane's base and limit anew.
    fn settle(&mut self, lane: usize) {
        let Some(l) = &self.lanes[lane] else { return };
        let (mut base, mut at_base) = (None::<Seq>, 0);
        let (mut limit, mut at_limit) = (None::<Seq>, 0);
        for m in self.members.iter().filter(|m| self.counts(m, lane)) {
            match base {
                Some(b) if b.before(m.cum) => {}
                Some(b) if b == m.cum => at_base += 1,
                _ => (base, at_base) = (Some(m.cum), 1),
            }
            match limit {
                _ if !self.limits(m) => {}
                Some(l) if l.before(m.limit) => {}
                Some(l) if l == m.limit => at_limit += 1,
                _ => (limit, at_limit) = (Some(m.limit), 1),
            }
        }
        let old = l.window.base();
        if let Some(l) = &mut self.lanes[lane] {
            if let Some(b) = base.filter(|b| old.before(*b)) {
                l.window.release(b);
                if let Some(demand) = self.demand.as_mut().filter(|_| lane == GROUP_LANE) {
                    demand.release(b);
                }
            }
            l.at_base = at_base;
            (l.limit, l.at_limit) = (limit, at_limit);
        }
        self.follow(lane);
    }

    /// A member is gone.
    pub fn remove(&mut self, node: NodeId, out: &mut VecDeque<Output>) {
        let Some(i) = self.index_of(node) else {
            return;
        };
        if self.members[i].gone {
            return;
        }
        self.members[i].gone = true;
        // First, lest an operation be over before those are asked who reported to it.
        self.adopt_reporters(i);
        if self.members[i].delegated {
            return;
        }
        self.unheard -= usize::from(self.members[i].heard.is_none());
        let at = self.members[i].lane;
        if let Some(l) = &mut self.lanes[at] {
            l.window.forget(i as u32);
            l.pacer.require(i, false);
        }
        if at == GROUP_LANE {
            if let Some(demand) = &mut self.demand {
                demand.forget(i as u32);
            }
            self.settle(at);
            self.weigh(at);
        } else {
            self.lanes[at] = None;
        }
        if mutant::active(Mutant::RemovesNeighbour) {
            let next = (i + 1) % self.members.len();
            self.members[next].gone = true;
        }
        self.count_waiting();
        self.finish(out);
    }

    fn count_waiting(&mut self) {
        let Some(end) = self.ops.front().map(Op::end) else {
            self.waiting = 0;
            return;
        };
        let lacks = |m: &&Member| m.is_mine() && m.below.before(end);
        self.waiting = self.members.iter().filter(lacks).count();
    }

    /// Completes operations that everybody has placed, and releases those that nobody reads.
    fn finish(&mut self, out: &mut VecDeque<Output>) {
        while self.waiting == 0 {
            let Some(op) = self.ops.front_mut() else {
                break;
            };
            if self.relay.is_some() && self.have.before(op.end()) {
                break;
            }
            if !op.complete {
                op.complete = true;
                if self.relay.is_none() {
                    out.push_back(Output::Event(Event::Complete(op.id)));
                }
            }
            if op.out > 0 {
                break;
            }
            let end = op.end();
            out.push_back(Output::Release(op.id));
            self.ops.pop_front();
            // Everything before is placed by all; lanes whose members had nothing to say follow.
            for lane in self.lanes.iter_mut().flatten() {
                if lane.window.base().before(end) {
                    lane.window.release(end);
                }
            }
            if let Some(demand) = &mut self.demand {
                demand.release(end);
            }
            self.count_waiting();
        }
    }

    /// Broadcasts of which transmissions are not finished, and how many.
    pub fn unfinished(&self) -> impl Iterator<Item = (OpId, u32)> + '_ {
        let out = self.ops.iter().filter(|op| op.out > 0);
        out.map(|op| (op.id, op.out))
    }

    /// The transport reads a payload of `op` no more.
    pub fn sent(&mut self, op: OpId, out: &mut VecDeque<Output>) {
        if let Some(op) = self.ops.iter_mut().find(|o| o.id == op) {
            op.out -= 1;
        }
        self.finish(out);
    }

    /// What is to be sent now, if anything.
    pub fn poll(
        &mut self,
        now: Time,
        config: &Config,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Send> {
        if self.survey_at.is_some_and(|t| t <= now) {
            self.survey(now, config, out);
        }
        if mutant::active(Mutant::NeverAsks) {
            self.asks.clear();
        }
        if let Some(to) = self.asks.pop_front() {
            let next = self.lanes[GROUP_LANE].as_ref()?.window.next();
            let root = self.relay.unwrap_or(config.node);
            let next = match to {
                Dest::Group(_) => next,
                // One that is served alone is told of what its own lane has sent.
                Dest::Node(n) => self.lane_of(n).map_or(next, |l| l.window.next()),
            };
            return Some(Send::Sync { to, root, next });
        }
        if self.total.as_ref().is_some_and(|t| !t.is_open(now)) {
            return None;
        }
        // Lanes take turns, so that none starves, of a burst each, so that bursts stay whole.
        let lanes = self.lanes.len();
        for k in 0..lanes {
            let at = (self.turn + k) % lanes;
            if let Some(send) = self.poll_lane(now, at, &config.scheme, counters) {
                self.taken = if k == 0 { self.taken + 1 } else { 1 };
                self.turn = at;
                if self.taken >= TURN_PACKETS {
                    (self.turn, self.taken) = (at + 1, 0);
                }
                return Some(send);
            }
        }
        None
    }

    /// First packet and length of the operation under way that packet `seq` is of.
    pub fn describes(&self, seq: Seq) -> Option<(Seq, u64)> {
        let op = self.ops.get(self.op_at(seq))?;
        (!seq.before(op.base)).then_some((op.base, op.len))
    }

    /// Which broadcast under way packet `seq` is of, if it is of one: the first that ends after it.
    fn op_at(&self, seq: Seq) -> usize {
        self.ops.partition_point(|op| !seq.before(op.end()))
    }

    fn lane_of(&self, node: NodeId) -> Option<&Lane> {
        let i = self.index_of(node)?;
        self.lanes[self.members[i].lane].as_ref()
    }

    fn poll_lane(
        &mut self,
        now: Time,
        at: usize,
        scheme: &Scheme,
        counters: &mut Counters,
    ) -> Option<Send> {
        let may_start = self.may_start(now);
        let ripe = self.ripe(now, at, scheme);
        let end = self.end;
        if !self.lanes[at].as_ref()?.pacer.is_open(now) {
            return None;
        }
        if at == GROUP_LANE
            && self.demand.as_ref().is_some_and(|d| d.oldest().is_some())
            && let Some(parity) = self.poll_blocks(now, scheme, counters)
        {
            return Some(parity);
        }
        let l = self.lanes[at].as_mut()?;
        let alone = at != GROUP_LANE;
        let how = match self.relay {
            // A co-root's group has no address of its own.
            Some(_) => How::Unicast,
            None => scheme.repair.how,
        };
        let oldest = l.window.oldest_report();
        let repair = match oldest.is_some_and(|t| ripe.is_some_and(|ripe| t <= ripe)) {
            true => l.window.peek_repair(),
            false => None,
        };
        let (seq, one) = match repair {
            Some((seq, who)) => {
                let one = match (how, who) {
                    // Who else lacks it may have said so in vain.
                    (How::Coded | How::Sums | How::Blocks, Lacking::One(_)) if l.lossy > 1 => None,
                    (_, Lacking::Stubborn(i))
                    | (
                        How::Coded | How::Sums | How::Blocks | How::Cheaper | How::Unicast,
                        Lacking::One(i),
                    )
                    | (How::Unicast, Lacking::Several(Some(i))) => Some(i),
                    (How::Multicast, _) | (_, Lacking::Several(_)) => None,
                };
                (seq, one)
            }
            None => {
                let next = l.window.next();
                if !may_start || !self.is_open(at) {
                    return None;
                }
                (next, None)
            }
        };
        let dest = self.lanes[at].as_ref()?.dest;
        let to = one.map_or(dest, |i| Dest::Node(self.members[i as usize].node));
        let at_op = self.op_at(seq);
        let op = self.ops.get_mut(at_op)?;
        let l = self.lanes[at].as_mut()?;
        let sources = match (repair, how) {
            (Some((_, Lacking::One(_) | Lacking::Several(_))), How::Coded | How::Sums)
                if !alone && l.lossy == 0 =>
            {
                l.window.combine(op.base, op.end())?
            }
            _ => Sources::new(seq),
        };
        let coded = sources.count() > 1;
        let to = if coded { dest } else { to };
        let extent = op.extent(seq);
        // Of several packets the first is a full one.
        let len = if coded { op.cut.chunk } else { extent.len };
        let flight = self.depart(now, at, len, scheme)?;
        let l = self.lanes[at].as_mut()?;
        let op = self.ops.get_mut(at_op)?;
        if coded {
            l.window.repair_all(now, flight, &sources);
            counters.repairs_coded += 1;
        } else if repair.is_some() {
            l.window.repair(now, flight, one);
        } else {
            l.window.send(now, flight);
            l.fresh = l.fresh.wrapping_add(1);
            self.front = self.front.max(l.window.next());
        }
        *match (repair, to) {
            (Some(_), Dest::Group(_)) => &mut counters.repairs_multicast,
            (Some(_), Dest::Node(_)) => &mut counters.repairs_unicast,
            (None, Dest::Group(_)) => &mut counters.data,
            (None, Dest::Node(_)) => &mut counters.data_unicast,
        } += 1;
        op.out += 1;
        let last = sources.last() + 1;
        let asks = match (scheme.feedback.asked_only, repair) {
            // Who does not acknowledge what it is sent again will be sent it again.
            _ if self.by_sender && repair.is_some() => true,
            (true, Some(_)) => l.window.oldest_report().is_none(),
            (true, None) => {
                let full = last == op.end() && at_op as u32 + 1 >= self.broadcasts;
                full || !l.window.has_room() || l.limit == Some(last)
            }
            // Acknowledgements come unasked.
            (false, _) => last == end && !self.by_sender && op.awaited,
        };
        let ask = if asks { flag::ASK } else { 0 };
        let flight = flight as u16;
        let send = if coded {
            let mut sum = Sum::new(op.id);
            for seq in sources.iter() {
                sum.push(op.extent(seq));
            }
            Send::Coded {
                to,
                flight,
                sources,
                flags: ask,
                sum,
            }
        } else {
            let set = |is: bool, flag: u8| if is { flag } else { 0 };
            Send::Data {
                to,
                flight,
                origin: self.relay.map_or(Origin::Source(op.base), Origin::Root),
                seq,
                flags: ask
                    | set(repair.is_some(), flag::REPAIR)
                    | set(last == op.end(), flag::LAST),
                extent,
            }
        };
        if repair.is_none() && !alone {
            self.follow_group();
            self.copy_to_coroots(now, seq);
        }
        self.arm_survey(now, scheme);
        Some(send)
    }

    /// A packet with a payload of `len` bytes leaves a lane. Returns its flight.
    fn depart(&mut self, now: Time, at: usize, len: u32, scheme: &Scheme) -> Option<u32> {
        let l = self.lanes[at].as_mut()?;
        let flight = self.flights.packet(Flight {
            at: now,
            lane: l.number,
            fresh: l.fresh,
            bytes: l.pacer.bytes(),
        });
        let bytes = len + scheme.data_overhead() as u32;
        l.pacer.sent(now, bytes);
        if let Some(total) = &mut self.total {
            total.sent(now, bytes);
        }
        Some(flight)
    }

    /// How long a lane waits for others' reports of a loss: not at all if there are no others, and
    /// not for long if it has nothing else to send.
    fn gather(&self, at: usize, scheme: &Scheme) -> Duration {
        let gather = scheme.repair.gather;
        match self.rtt {
            _ if at != GROUP_LANE || self.members.len() == 1 => Duration::ZERO,
            Some(rtt) if !self.is_open(at) => gather.min(rtt / 4),
            _ => gather,
        }
    }

    /// Losses of a lane that were reported until then are repaired now; `None`: none can be yet.
    fn ripe(&self, now: Time, at: usize, scheme: &Scheme) -> Option<Time> {
        let gather = self.gather(at, scheme).as_nanos() as u64;
        now.0.checked_sub(gather).map(Time)
    }

    /// Whether a lane may send a new packet, its pace aside.
    fn is_open(&self, at: usize) -> bool {
        let Some(l) = &self.lanes[at] else {
            return false;
        };
        let next = l.window.next();
        let room = l.limit.is_some_and(|x| next.before(x)) && l.window.has_room();
        if !room || !next.before(self.end) || self.relay.is_some() {
            return false;
        }
        // Who hears the group is sent new packets by it, while others take them.
        let group = self.lanes[GROUP_LANE].as_ref();
        if l.follows && group.is_some_and(|g| g.limit.is_some()) {
            return false;
        }
        let most = self.ops.get(self.broadcasts as usize);
        most.is_none_or(|op| next.before(op.base))
    }

    /// The first packet waits a little for members that have not been heard.
    fn may_start(&self, now: Time) -> bool {
        self.started.is_none_or(|t| now.since(t) >= GRACE) || self.unheard == 0
    }

    /// When [`Root::poll`] has something to do.
    pub fn wake(&self, now: Time, scheme: &Scheme) -> Option<Time> {
        let mut wake = self.survey_at;
        let mut at = |t: Time| wake = Some(wake.map_or(t, |w| w.min(t)));
        if !self.asks.is_empty() || !self.tries.is_empty() {
            at(now);
        }
        let may_start = self.may_start(now);
        let total = self.total.as_ref().map_or(Time::ZERO, Pacer::opens_at);
        for (i, l) in self.lanes.iter().enumerate() {
            let Some(l) = l else { continue };
            let opens = l.pacer.opens_at().max(total);
            let demand = self.demand.as_ref().filter(|_| i == GROUP_LANE);
            let asked = demand.and_then(Demand::oldest);
            for t in [l.window.oldest_report(), asked].into_iter().flatten() {
                at(opens.max(t + self.gather(i, scheme)));
            }
            if self.is_open(i) {
                let start = self.started.unwrap_or(now) + GRACE;
                at(if may_start { opens } else { opens.max(start) });
            }
        }
        wake
    }

    /// Checked after every change in tests and soaks.
    pub fn invariants(&self) {
        for lane in self.lanes.iter().flatten() {
            lane.window.invariants();
            assert!(!self.end.before(lane.window.base()));
        }
        if let Some(demand) = &self.demand {
            demand.invariants();
        }
        for (at, lane) in self.lanes.iter().enumerate() {
            let Some(lane) = lane else { continue };
            let held = |m: &&Member| m.lane == at && m.is_mine() && self.limits(m);
            let limits = self.members.iter().filter(held).map(|m| m.limit);
            let limit = limits.clone().reduce(Seq::min);
            assert_eq!(lane.limit, limit, "lane {at}");
            // Who is counted though it holds nothing back would hold the lane for ever.
            if at == GROUP_LANE {
                let at_limit = limits.filter(|l| Some(*l) == limit).count();
                assert!(lane.at_limit as usize <= at_limit, "lane {at}'s limit");
                let base = lane.window.base();
                let held = |m: &&Member| self.counts(m, at) && !base.before(m.cum);
                let at_base = self.members.iter().filter(held).count();
                assert!(lane.at_base as usize <= at_base, "lane {at}'s base");
            }
        }
        assert!(!self.end.before(self.front));
        for (i, m) in self.members.iter().enumerate() {
            assert!(self.relay.is_some() || !self.front.before(m.cum));
            assert!(!self.end.before(m.cum));
            if !m.is_mine() {
                continue;
            }
            let lane = self.lanes[m.lane].as_ref();
            assert!(lane.is_some(), "member {i} has lost its lane");
            if let Some(l) = lane {
                let held = m.cum.before(l.window.base());
                assert!(!held || !m.is_ready(), "lane passed ready member {i}");
            }
        }
    }
}
