//! Operations that members decline: for a member that declines an operation, its packets count as
//! placed before they are sent, and what all members of a path decline is not sent there.

use super::Sender;
use super::member::{GROUP_PATH, Member};
use crate::border::PathState;
use crate::limits::DECLINED_MAX;
use crate::mutant::{self, Mutant};
use crate::seq::Seq;
use crate::wire::Feedback;

/// Largest number of ranges that the sender remembers of a member. One frame names fewer, but the
/// next may name others.
const REMEMBERED: usize = 4 * DECLINED_MAX;

/// The first packet at or after `seq` that is in none of the ranges, which rise.
fn skip(declined: &[(Seq, u32)], mut seq: Seq) -> Seq {
    for &(first, packets) in declined {
        if seq.within(first, packets) {
            seq = first + packets;
        }
    }
    seq
}

impl Member {
    /// The first packet at or after `seq` that the member wants.
    pub fn wants(&self, seq: Seq) -> Seq {
        skip(&self.declined, seq.max(self.cum))
    }

    /// Adds what feedback declines. What a member has declined once it does not want later.
    fn note_declined(&mut self, f: &Feedback<'_>) {
        let cum = self.cum;
        self.declined.extend(f.declined);
        self.declined.retain(|d| cum.before(d.0 + d.1));
        self.declined.sort_unstable_by_key(|d| d.0.from(cum));
        self.declined.dedup_by(|next, last| {
            let end = last.0 + last.1;
            let joins = !end.before(next.0);
            if joins {
                last.1 = end.max(next.0 + next.1).from(last.0) as u32;
            }
            joins
        });
        self.declined.truncate(REMEMBERED);
    }
}

impl Sender {
    /// The number before which the member that sent this feedback has placed every packet, apart
    /// from those that it declines, as far as broadcasts have begun. Notes what it declines.
    /// `None`: the member says to have placed packets that were not sent.
    pub(super) fn on_declined(&mut self, i: usize, f: &Feedback<'_>) -> Option<Seq> {
        let m = &mut self.members[i];
        let most = self.ops.sent.max(m.cum);
        let named = |seq: Seq| {
            let mut runs = f.declined;
            let run = runs.find(|r| r.0.before(seq) && !(r.0 + r.1).before(seq));
            run.map(|r| r.0)
        };
        // The member has come to the end of a run of packets that it declines.
        let placed = match most.before(f.cum) {
            true => named(f.cum).filter(|first| !most.before(*first))?,
            false => f.cum,
        };
        self.declined = true;
        m.note_declined(f);
        Some(skip(&m.declined, placed).min(self.ops.end))
    }

    /// Notes that operations have begun that members may have declined before.
    pub(super) fn skip_declined_ahead(&mut self) {
        if !self.declined {
            return;
        }
        let end = self.ops.end;
        self.count_waiting();
        for i in 0..self.members.len() {
            let m = &mut self.members[i];
            if m.declined.is_empty() || !m.is_mine() {
                continue;
            }
            let (ready, cum, before) = (m.is_ready(), m.wants(m.cum).min(end), m.cum_subtree);
            m.limit = if ready { m.limit.max(cum) } else { cum };
            (m.cum, m.cum_subtree) = (cum, cum);
            m.declined.retain(|d| cum.before(d.0 + d.1));
            self.count_placed(i, before, cum);
        }
        self.update_windows();
    }

    /// Lets a path skip the packets that none of the members which it reaches wants. The group's
    /// path reaches a member that has a path of its own only because it is behind.
    pub(super) fn skip_unwanted(&mut self, path: usize) {
        if !self.declined || self.relay.is_some() || mutant::active(Mutant::SentUnwanted) {
            return;
        }
        let Some(l) = &mut self.paths[path] else {
            return;
        };
        let next = l.window.next();
        let hears = |m: &Member| path == GROUP_PATH && m.path_state == PathState::Multicast;
        let members = self.members.iter().filter(|m| m.is_mine());
        let reached = members.filter(|m| m.path == path || hears(m));
        let wanted = reached.map(|m| m.wants(next)).reduce(Seq::min);
        if let Some(wanted) = wanted.map(|seq| seq.min(self.ops.end))
            && next.before(wanted)
        {
            l.window.skip_to(wanted);
            self.ops.sent = self.ops.sent.max(wanted);
            if path == GROUP_PATH {
                self.follow_group();
            }
        }
    }
}
