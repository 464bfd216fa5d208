//! NACKs come in: the sender queues what a receiver lacks for retransmission or for parity packets,
//! as far as the receiver has earned repairs.

use core::time::Duration;

use super::Sender;
use super::budget::PRICE_DOUBTED;
use super::member::{GROUP_PATH, Member};
use crate::limits::BLOCK_PACKETS;
use crate::mutant::{self, Mutant};
use crate::repair::{Packets, Part, positions};
use crate::scheme::Hierarchy;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::Feedback;

impl Sender {
    pub(super) fn on_nack(&mut self, now: Time, i: usize, as_of: Option<u32>, f: &Feedback<'_>) {
        let (rto, upto) = (self.rtt.rto(), self.repairable(&self.members[i]));
        if self.parity_requests.is_some() && self.members[i].path == GROUP_PATH {
            let noted = self.on_nack_of_blocks(now, i, f.missing, upto, (as_of, rto));
            self.members[i].repairs += noted;
            return;
        }
        for range in f.missing {
            let noted = self.queue_retransmissions(now, i, range, upto, (as_of, rto));
            self.members[i].repairs += noted;
        }
    }

    /// The sequence number before which this node can repair for a member. The member cannot take
    /// what lies beyond its window, and a co-root can only repair what it has placed.
    pub(super) fn repairable(&self, m: &Member) -> Seq {
        match self.relay {
            Some(relay) => m.limit.min(relay.have),
            None => m.limit,
        }
    }

    /// Queues repairs for member `i`, which lacks `n` packets from `first` on; only packets before
    /// `upto` are repaired. In a tree the repairs are for all receivers below the member, since the
    /// sender does not know which of them lacks the packets. `as_of`, `rto`: see [`Window::lacks`].
    /// Returns the number of new repairs.
    pub(super) fn queue_retransmissions(
        &mut self,
        now: Time,
        i: usize,
        (first, n): (Seq, u32),
        upto: Seq,
        (as_of, rto): (Option<u32>, Duration),
    ) -> u64 {
        let rtt = self.rtt.smoothed().unwrap_or_default();
        let mut left = self.affordable(now, i);
        let (most, singly) = (left, self.is_served_singly(i));
        if left == 0 {
            return 0;
        }
        let hierarchy = Hierarchy::new(self.topology, self.members.len() as u32);
        let Some(l) = &mut self.paths[self.members[i].path] else {
            return 0;
        };
        // Packets outside the window are left out, at no cost.
        let end = (first + n).min(upto).min(l.window.next());
        let first = first.max(l.window.base());
        let mut noted = 0;
        for seq in (0..end.from(first).max(0) as u32).map(|k| first + k) {
            let m = &self.members[i];
            let declines = !m.declined.is_empty() && m.wants(seq) != seq;
            if declines || l.window.is_on_its_way(now, seq, as_of, rtt) {
                continue;
            }
            let costs = singly || !l.window.is_queued(seq);
            let before = noted;
            for who in hierarchy.subtree(i as u32) {
                let m = &mut self.members[who as usize];
                let was_alone = l.window.was_sent_alone(seq, who);
                if !m.gone && l.window.lacks(now, seq, who, as_of, rto) {
                    noted += 1;
                    if was_alone {
                        m.lost_alone();
                    }
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

    /// Requests parity packets for member `i` of the group's path, which lacks these packets; only
    /// packets before `upto` are repaired. Returns the number of new repairs.
    pub(super) fn on_nack_of_blocks(
        &mut self,
        now: Time,
        i: usize,
        missing: impl Iterator<Item = (Seq, u32)>,
        upto: Seq,
        (as_of, rto): (Option<u32>, Duration),
    ) -> u64 {
        let mut noted = 0;
        let mut part: Option<Part> = None;
        let Some(group) = &self.paths[GROUP_PATH] else {
            return 0;
        };
        // Packets outside the window are left out, at no cost.
        let (base, upto) = (group.window.base(), upto.min(group.window.next()));
        for (first, n) in missing {
            let end = (first + n).min(upto);
            let mut at = first.max(base);
            while at.before(end) {
                let within = |p: &Part| at.within(p.first, p.packets);
                if !part.as_ref().is_some_and(within) {
                    noted += self.note_part(now, i, part.take(), (as_of, rto));
                    part = self.block_of(at);
                }
                let Some(p) = &mut part else { return noted };
                let last = end.min(p.first + p.packets);
                while at.before(last) {
                    p.which |= 1 << (at.from(p.first) as u32);
                    at += 1;
                }
            }
        }
        noted + self.note_part(now, i, part, (as_of, rto))
    }

    /// The code block of a packet, as a [`Part`] that has none of the block's packets yet.
    pub(super) fn block_of(&self, seq: Seq) -> Option<Part> {
        let op = self.ops.queue.get(self.ops.position(seq));
        let op = op.filter(|op| !seq.before(op.base))?;
        let index = seq.from(op.base) as u32 / BLOCK_PACKETS * BLOCK_PACKETS;
        Some(Part {
            first: op.base + index,
            packets: (op.cut.packets - index).min(BLOCK_PACKETS),
            which: 0,
        })
    }

    pub(super) fn note_part(
        &mut self,
        now: Time,
        i: usize,
        part: Option<Part>,
        (as_of, rto): (Option<u32>, Duration),
    ) -> u64 {
        let Some(mut part) = part.filter(|_| self.affordable(now, i) > 0) else {
            return 0;
        };
        let rtt = self.rtt.smoothed().unwrap_or_default();
        let Some(l) = &mut self.paths[GROUP_PATH] else {
            return 0;
        };
        for k in positions(part.which) {
            let (seq, who) = (part.first + k, i as u32);
            let sent = l.window.base().before(seq + 1) && seq.before(l.window.next());
            let sent = sent && !l.window.is_on_its_way(now, seq, as_of, rtt);
            let queued = sent && l.window.is_queued(seq);
            if queued {
                l.window.lacks(now, seq, who, as_of, rto);
            }
            if !sent || queued || l.window.is_mended(now, seq, who, as_of, rto) {
                part.which &= !((1 as Packets) << k);
            }
        }
        let Some(demand) = &mut self.parity_requests else {
            return 0;
        };
        let noted = demand.note(now, part, i as u32, as_of, rto);
        self.charge(i, noted);
        u64::from(noted)
    }

    /// Adds the repairs that member `i` earns, given that it has as many packets as lie before
    /// `had`. A member that is not believed earns nothing. Returns whether it has more than it ever
    /// had.
    pub(super) fn earn(&mut self, i: usize, had: Seq) -> bool {
        let m = &mut self.members[i];
        let path = self.paths[m.path].as_ref();
        let all_sent = path.is_some_and(|l| l.window.next() == self.ops.end);
        if !m.is_believed() {
            m.credit = 0;
            return false;
        }
        // A packet that a member has had is not missing there again. The member earns for it once,
        // whatever it reports.
        let has_more = m.had.before(had);
        if has_more {
            let more = had.from(m.had) as u32;
            m.had = had;
            let each = if all_sent { m.losses.tries() } else { 1 };
            let earned = more.saturating_mul(each);
            m.credit = m.credit.saturating_add(earned).min(self.budget.most);
        }
        has_more
    }

    /// Repairs that member `i` may ask for now.
    pub(super) fn affordable(&mut self, now: Time, i: usize) -> u32 {
        let m = &self.members[i];
        if mutant::active(Mutant::RepairsWithoutLimit) {
            return u32::MAX;
        }
        if m.credit >= self.budget.most {
            return m.credit;
        }
        if let Some(path) = &self.paths[m.path] {
            self.budget.save(now, path.pacer.rate());
        }
        // Where nothing limits the rate, as in shared memory, the share exceeds the number of
        // packets.
        m.credit.saturating_add(self.budget.saved as u32)
    }

    /// Charges member `i` with `repairs`, which are queued because it has sent a NACK.
    pub(super) fn charge(&mut self, i: usize, repairs: u32) {
        let m = &mut self.members[i];
        let beyond = repairs.saturating_sub(m.credit);
        m.credit -= repairs - beyond;
        if beyond > 0 {
            let price = if m.is_believed() { 1 } else { PRICE_DOUBTED };
            self.budget.saved -= f64::from(beyond * price);
        }
    }

    /// Whether a packet that is queued for other members costs one more transmission for this
    /// member.
    pub(super) fn is_served_singly(&self, i: usize) -> bool {
        self.budget.singly || self.members[i].path != GROUP_PATH
    }
}
