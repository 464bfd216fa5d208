//! Feedback comes in: how far a receiver is, how its path performs, and whether multicast reaches
//! it.

use core::time::Duration;
use std::collections::VecDeque;

use super::Sender;
use super::member::GROUP_PATH;
use crate::border::{Counters, Output};
use crate::id::NodeId;
use crate::mutant::{self, Mutant};
use crate::path::Burst;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::{Feedback, flag};

/// New packets over which losses are counted, at least. Fewer say little: the sender does not know
/// which packets of a burst have arrived.
const COUNTED_MIN: i32 = 16;

impl Sender {
    /// Takes feedback of a receiver.
    pub fn on_feedback(
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
        let believed = self.believed(i, f);
        let Some(f) = &believed else {
            counters.foreign += 1;
            return;
        };
        // A receiver that reports for a tree is as far as all receivers below it.
        let cum = if self.is_tree() { f.cum_subtree } else { f.cum };
        let m = &mut self.members[i];
        // The feedback is older than what the sender knows.
        if cum.before(m.cum) {
            return;
        }
        counters.feedback_received += 1;
        let first = m.heard.is_none();
        self.unheard -= usize::from(first);
        m.heard = Some(now);
        let unanswered = core::mem::take(&mut m.unanswered);
        let (old_cum, old_limit, was_ready) = (m.cum, m.limit, m.is_ready());
        let (old_subtree, subtree) = (m.cum_subtree, m.cum_subtree.max(f.cum_subtree));
        let gap = f.missing.clone().next().map_or(f.high, |r| r.0);
        if self.by_sender {
            m.missing.clear();
            m.missing.extend(f.missing);
            m.unseen = f.high;
            if m.cum == cum {
                m.unanswered = unanswered;
            }
        }
        let seen = (subtree, f.high, gap, f.received);
        if m.seen != seen {
            (m.seen, m.moved) = (seen, now);
        }
        let believed = mutant::active(Mutant::NumbersBelieved) && m.moved == now;
        if first || m.cum != cum || m.cum_subtree != subtree || believed {
            m.gets_on(now);
        }
        if m.cum != cum {
            m.advanced = now;
        }
        (m.cum, m.cum_subtree) = (cum, subtree);
        m.limit = f.limit;
        let path = m.path;
        // A receiver that lacks much may fill many gaps before its first one.
        if self.earn(i, cum.max(had(f))) {
            self.members[i].gets_on(now);
        }
        self.count_placed(i, old_subtree, subtree);
        let as_of = (f.flags & flag::BURST != 0).then(|| self.bursts.extend(f.burst));
        if let Some(burst) = as_of {
            self.measure_path(now, i, burst, f);
        }
        self.on_progress(i, old_cum, old_limit, was_ready);
        if !f.declined.is_empty() {
            self.update_window(self.members[i].path);
        }
        if self.members[i].path == path {
            self.detect_path_fallback((now, as_of), i, f, out);
        }
        if !self.by_sender {
            self.on_nack(now, i, as_of, f);
        }
        let newest = self.bursts.newest();
        let path = self.members[i].path;
        if let Some(l) = &mut self.paths[path] {
            l.pacer.tick(now, newest);
        }
        self.report_outpaced(out);
        self.finish(out);
    }

    /// What the sender believes of a member's feedback. `None`: nothing, since the feedback is not
    /// from the slot's present holder, or is about packets that were never sent.
    fn believed<'a>(&mut self, i: usize, f: &Feedback<'a>) -> Option<Feedback<'a>> {
        if !self.membership.is_current(i, f.slot) || !self.members[i].is_mine() {
            return None;
        }
        let placed = self.placed_by(i, f)?;
        let subtree = match f.declined.is_empty() {
            true => f.cum_subtree,
            false => placed,
        };
        Some(match self.relay {
            // A receiver only knows what it was told, and a forged sync tells it of packets that do
            // not exist.
            None => Feedback {
                cum: placed,
                cum_subtree: subtree,
                // A window that is closed stays so when declined packets move `cum`.
                limit: if f.limit == f.cum { placed } else { f.limit },
                high: f.high.min(self.ops.sent).max(placed),
                ..*f
            },
            // Receivers of a co-root's group may be ahead of what the co-root has posted.
            Some(_) => Feedback {
                cum: f.cum.min(self.ops.end),
                cum_subtree: f.cum_subtree.min(self.ops.end),
                high: f.high.min(self.ops.end),
                ..*f
            },
        })
    }

    /// The number before which a member has placed every packet, apart from those that it declines.
    /// `None`: the feedback is about packets that were never sent.
    fn placed_by(&mut self, i: usize, f: &Feedback<'_>) -> Option<Seq> {
        let most = match self.relay {
            None if !f.declined.is_empty() => return self.on_declined(i, f),
            None => self.ops.sent.max(self.members[i].cum),
            Some(_) => return Some(f.cum),
        };
        (!most.before(f.cum)).then_some(f.cum)
    }

    pub(super) fn count_placed(&mut self, i: usize, from: Seq, to: Seq) {
        if from == to {
            return;
        }
        if let Some(front) = self.ops.queue.front()
            && from.before(front.end())
            && !to.before(front.end())
        {
            self.ops.waiting -= 1;
        }
        let mut placed = 0u64;
        for op in &self.ops.queue {
            let (a, b) = (from.max(op.base), to.min(op.end()));
            if a.before(b) {
                let payload_size = u64::from(op.cut.payload_size);
                let bytes = u64::from(b.from(a) as u32) * payload_size;
                placed += if b == op.end() {
                    op.len - (u64::from(a.from(op.base) as u32) * payload_size).min(op.len)
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

    /// Measures round-trip time and rate with the burst that the report is about.
    pub(super) fn measure_path(&mut self, now: Time, i: usize, number: u32, f: &Feedback<'_>) {
        let Some(burst) = self.bursts.get(number).copied() else {
            return;
        };
        let held = Duration::from_micros(u64::from(f.held_us));
        let rtt = now.since(burst.at).saturating_sub(held);
        // Only a burst of the member's own path tells something of that path's rate.
        let m = &mut self.members[i];
        if let Some(l) = self.paths[m.path]
            .as_mut()
            .filter(|l| l.number == burst.path)
        {
            l.pacer.require(i, m.is_ready() && m.is_believed());
            let told = (f.received, f.arrived_us);
            if let Some(possible) = l.pacer.sample(now, i, (number, &burst), rtt, told) {
                m.judge(possible);
            }
            if !m.is_believed() {
                l.pacer.require(i, false);
            }
        }
        if !m.is_believed() {
            return;
        }
        self.rtt.sample(rtt);
        self.count_lost(i, &burst, f.received);
    }

    /// Counts losses on the way to a member, which had received `received` new packets when this
    /// burst reached it.
    pub(super) fn count_lost(&mut self, i: usize, burst: &Burst, received: u32) {
        let m = &mut self.members[i];
        let Some(l) = self.paths[m.path].as_ref() else {
            return;
        };
        let (path, sent_before, received_before) = m.counted;
        let here = (burst.path, burst.fresh, received);
        if burst.path != l.number {
            return;
        }
        // On the group's path the count begins with zero packets sent.
        if path != burst.path && (path, m.path) != (0, GROUP_PATH) {
            m.counted = here;
            return;
        }
        let sent = burst.fresh.wrapping_sub(sent_before) as i32;
        let arrived = received.wrapping_sub(received_before) as i32;
        if sent < COUNTED_MIN || arrived < 0 {
            return;
        }
        m.counted = here;
        let before = m.losses.tries();
        m.losses.note(sent as u32, arrived.min(sent) as u32);
        if m.losses.tries() != before {
            let path = m.path;
            self.weigh(path);
        }
    }
}

/// The sequence number before which as many packets lie as a receiver has, as far as it reports.
/// Gaps beyond the last one that it lists are unknown, so what lies there does not count.
fn had(f: &Feedback<'_>) -> Seq {
    let (mut had, mut at) = (f.cum_subtree, f.cum_subtree);
    for (first, n) in f.missing.take_while(|r| r.0.before(f.high)) {
        had += first.from(at) as u32;
        at = first + n;
    }
    had
}
