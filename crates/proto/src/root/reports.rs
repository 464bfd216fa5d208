//! What receivers tell: how far they are, how the way is, whether multicast reaches them, and what
//! they lack.

use super::*;

/// Losses are counted over at least so many packets: it is not known which of a flight have been
/// received.
const COUNTED_MIN: i32 = 16;

impl Root {
    /// What a receiver tells.
    pub fn feedback(
        &mut self,
        now: Time,
        from: NodeId,
        f: &Feedback<'_>,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) {
        let Some(i) = self.index_of(from) else {
            counters.foreign += 1;
            return;
        };
        let f = &match self.relay {
            // A receiver knows of what it was told, and a forged sync tells it of packets that do
            // not exist.
            None => Feedback {
                high: f.high.min(self.front).max(f.cum),
                ..*f
            },
            // A co-root's group may be ahead of what it has posted itself.
            Some(_) => Feedback {
                cum: f.cum.min(self.end),
                below: f.below.min(self.end),
                high: f.high.min(self.end),
                ..*f
            },
        };
        // Who answers for a tree below it is as far as that.
        let cum = if self.is_tree() { f.below } else { f.cum };
        let m = &mut self.members[i];
        // Older than what is known, or about packets that were never sent.
        let most = self.relay.map_or(self.front, |_| self.end);
        if !m.is_mine() || cum.before(m.cum) || most.before(f.cum) {
            counters.foreign += u64::from(!m.gone && !cum.before(m.cum));
            return;
        }
        counters.feedback_received += 1;
        let first = m.heard.is_none();
        self.unheard -= usize::from(first);
        m.heard = Some(now);
        let unanswered = core::mem::take(&mut m.unanswered);
        let (old_cum, old_limit, was_ready) = (m.cum, m.limit, m.is_ready());
        let (old_below, below) = (m.below, m.below.max(f.below));
        let gap = f.missing.clone().next().map_or(f.high, |r| r.0);
        if self.by_sender {
            m.missing.clear();
            m.missing.extend(f.missing);
            m.unseen = f.high;
            if m.cum == cum {
                m.unanswered = unanswered;
            }
        }
        let seen = (below, f.high, gap, f.received);
        if m.seen != seen {
            (m.seen, m.moved) = (seen, now);
        }
        let believed = mutant::active(Mutant::NumbersBelieved) && m.moved == now;
        if first || m.cum != cum || m.below != below || believed {
            m.gets_on(now);
        }
        if m.cum != cum {
            m.advanced = now;
        }
        (m.cum, m.below) = (cum, below);
        m.limit = f.limit;
        let lane = m.lane;
        self.earn(i, cum.max(had(f)));
        self.count_placed(i, old_below, below);
        let as_of = (f.flags & flag::FLIGHT != 0).then(|| self.flights.extend(f.flight));
        if let Some(flight) = as_of {
            self.measure(now, i, flight, f);
        }
        self.advance(i, old_cum, old_limit, was_ready);
        if self.members[i].lane == lane {
            self.watch(now, i, f, out);
        }
        if !self.by_sender {
            self.note_missing(now, i, as_of, f);
        }
        let newest = self.flights.newest();
        let lane = self.members[i].lane;
        if let Some(l) = &mut self.lanes[lane] {
            l.pacer.tick(now, newest);
        }
        self.finish(out);
    }

    fn count_placed(&mut self, i: usize, from: Seq, to: Seq) {
        if from == to {
            return;
        }
        if let Some(front) = self.ops.front()
            && from.before(front.end())
            && !to.before(front.end())
        {
            self.waiting -= 1;
        }
        let mut placed = 0u64;
        for op in &self.ops {
            let (a, b) = (from.max(op.base), to.min(op.end()));
            if a.before(b) {
                let chunk = u64::from(op.cut.chunk);
                let bytes = u64::from(b.from(a) as u32) * chunk;
                placed += if b == op.end() {
                    op.len - (u64::from(a.from(op.base) as u32) * chunk).min(op.len)
                } else {
                    bytes
                };
            }
            if !op.end().before(to) {
                break;
            }
        }
        self.members[i].placed += placed;
    }

    /// Round-trip time and pace, from the flight that the report is about.
    fn measure(&mut self, now: Time, i: usize, number: u32, f: &Feedback<'_>) {
        let Some(flight) = self.flights.get(number).copied() else {
            return;
        };
        let held = Duration::from_micros(u64::from(f.held_us));
        let rtt = now.since(flight.at).saturating_sub(held);
        // Only a flight of the member's own lane tells of that lane's pace.
        let m = &mut self.members[i];
        if let Some(l) = self.lanes[m.lane]
            .as_mut()
            .filter(|l| l.number == flight.lane)
        {
            l.pacer.require(i, m.is_ready() && m.is_believed());
            let told = (f.received, f.arrived_us);
            if let Some(possible) = l.pacer.sample(now, i, (number, &flight), rtt, told) {
                m.judge(possible);
            }
            if !m.is_believed() {
                l.pacer.require(i, false);
            }
        }
        if !m.is_believed() {
            return;
        }
        match self.rtt {
            None => (self.rtt, self.rtt_var) = (Some(rtt), rtt / 2),
            Some(r) => {
                self.rtt_var = (self.rtt_var * 3 + r.abs_diff(rtt)) / 4;
                self.rtt = Some((r * 7 + rtt) / 8);
            }
        }
        self.count_lost(i, &flight, f.received);
    }

    /// Counts what was lost on the way to a member: it had received so many new packets when this
    /// flight reached it.
    fn count_lost(&mut self, i: usize, flight: &Flight, received: u32) {
        let m = &mut self.members[i];
        let Some(l) = self.lanes[m.lane].as_ref() else {
            return;
        };
        let (lane, sent_before, received_before) = m.counted;
        let here = (flight.lane, flight.fresh, received);
        if flight.lane != l.number {
            return;
        }
        // The first lane begins with nothing sent.
        if lane != flight.lane && (lane, m.lane) != (0, GROUP_LANE) {
            m.counted = here;
            return;
        }
        let sent = flight.fresh.wrapping_sub(sent_before) as i32;
        let arrived = received.wrapping_sub(received_before) as i32;
        if sent < COUNTED_MIN || arrived < 0 {
            return;
        }
        m.counted = here;
        let before = m.losses.tries();
        m.losses.note(sent as u32, arrived.min(sent) as u32);
        if m.losses.tries() != before {
            let lane = m.lane;
            self.weigh(lane);
        }
    }

    /// A member's numbers have changed: the lane may go on, or the member changes lanes.
    pub(super) fn advance(&mut self, i: usize, old_cum: Seq, old_limit: Seq, was_ready: bool) {
        let (at, cum, limit, ready, unicast) = {
            let m = &self.members[i];
            (
                m.lane,
                m.cum,
                m.limit,
                m.is_ready(),
                m.reach == Reach::Unicast,
            )
        };
        let group_base = self.lanes[GROUP_LANE].as_ref().map(|l| l.window.base());
        let behind = group_base.is_some_and(|b| cum.before(b));
        if at == GROUP_LANE && ready && behind {
            return self.serve_alone(i, Reach::Multicast);
        }
        if at != GROUP_LANE && !unicast && !behind {
            return self.rejoin(i);
        }
        let (tree, end) = (self.is_tree(), self.end);
        let Some(l) = &mut self.lanes[at] else { return };
        if !ready {
            l.pacer.require(i, false);
        }
        // Most reports move neither the base nor the limit: then nobody else need be looked at.
        let base = l.window.base();
        let holds = |cum: Seq, ready: bool| cum == base && (ready || cum == end);
        let (held, holds) = (holds(old_cum, was_ready), holds(cum, ready));
        l.at_base = l.at_base.saturating_sub(u32::from(held)) + u32::from(holds);
        let limits = |limit: Seq, ready: bool| ready && l.limit == Some(limit);
        let (limited, limits) = (limits(old_limit, was_ready), limits(limit, ready));
        l.at_limit = l.at_limit.saturating_sub(u32::from(limited)) + u32::from(limits);
        if tree
            || at != GROUP_LANE && was_ready != ready
            || l.at_base == 0
            || l.limit.is_some() && l.at_limit == 0
            || ready && l.limit.is_none_or(|x| limit.before(x))
        {
            self.settle(at);
        }
    }

    /// Watches whether multicast still reaches a member of the group's lane.
    fn watch(&mut self, now: Time, i: usize, f: &Feedback<'_>, out: &mut VecDeque<Output>) {
        let sent = self.lanes[GROUP_LANE].as_ref().map_or(0, |l| l.fresh);
        let rtt = self.rtt.unwrap_or_default();
        let m = &mut self.members[i];
        if m.reach != Reach::Multicast || !m.is_ready() {
            m.hearing.start(now, f.received, sent);
        } else if m
            .hearing
            .is_lost(now, (f.received, sent), rtt, m.losses.tries())
        {
            let node = m.node;
            self.serve_alone(i, Reach::Unicast);
            out.push_back(Output::Event(Event::Path {
                group: self.group,
                node,
                reach: Reach::Unicast,
            }));
        }
    }

    fn note_missing(&mut self, now: Time, i: usize, as_of: Option<u32>, f: &Feedback<'_>) {
        let (rto, upto) = (self.rto(), self.repairable(&self.members[i]));
        if self.demand.is_some() && self.members[i].lane == GROUP_LANE {
            let noted = self.note_blocks(now, i, f.missing, upto, (as_of, rto));
            self.members[i].repairs += noted;
            return;
        }
        for range in f.missing {
            let noted = self.note(now, i, range, upto, (as_of, rto));
            self.members[i].repairs += noted;
        }
    }

    /// What lies beyond a member cannot take yet, and a co-root cannot repair what it has not
    /// itself.
    pub(super) fn repairable(&self, m: &Member) -> Seq {
        match self.relay {
            Some(_) => m.limit.min(self.have),
            None => m.limit,
        }
    }

    /// Member `i` lacks `n` packets from `first` on, of which those before `upto` are to be
    /// repaired: for all below it, since in a tree it is not known who it is. `as_of`, `rto`: see
    /// [`Window::lacks`]. Says how many repairs are news.
    pub(super) fn note(
        &mut self,
        now: Time,
        i: usize,
        (first, n): (Seq, u32),
        upto: Seq,
        (as_of, rto): (Option<u32>, Duration),
    ) -> u64 {
        let rtt = self.rtt.unwrap_or_default();
        let mut left = self.affordable(now, i);
        let (most, singly) = (left, self.is_served_singly(i));
        if left == 0 {
            return 0;
        }
        let hierarchy = Hierarchy::new(self.told, self.members.len() as u32);
        let Some(l) = &mut self.lanes[self.members[i].lane] else {
            return 0;
        };
        // What lies outside the window costs nothing to leave out.
        let end = (first + n).min(upto).min(l.window.next());
        let first = first.max(l.window.base());
        let mut noted = 0;
        for seq in (0..end.from(first).max(0) as u32).map(|k| first + k) {
            if l.window.is_on_its_way(now, seq, as_of, rtt) {
                continue;
            }
            let costs = singly || !l.window.is_queued(seq);
            let before = noted;
            for who in hierarchy.below(i as u32) {
                if !self.members[who as usize].gone {
                    noted += u64::from(l.window.lacks(now, seq, who, as_of, rto));
                }
            }
            left -= u32::from(costs && noted != before);
            if left == 0 {
                break;
            }
        }
        self.charge(i, most - left);
        noted
    }

    /// How long a repair may take until its report is believed to be about the repair.
    fn rto(&self) -> Duration {
        let rtt = self.rtt.unwrap_or(Duration::from_millis(20));
        (rtt * 2)
            .max(rtt + self.rtt_var * 4)
            .clamp(Duration::from_millis(2), Duration::from_millis(500))
    }
}

/// As many packets as a receiver has lie before this, as far as it tells: gaps beyond the last that
/// it lists are not known, so what lies there does not count.
fn had(f: &Feedback<'_>) -> Seq {
    let (mut had, mut at) = (f.below, f.below);
    for (first, n) in f.missing.take_while(|r| r.0.before(f.high)) {
        had += first.from(at) as u32;
        at = first + n;
    }
    had
}
