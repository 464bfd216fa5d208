//! What a sender does because receivers report for others. A co-root serves its own group with the
//! packets that it has placed (P1.4), and a receiver that has lost its collector reports to the
//! sender.

use core::time::Duration;
use std::collections::VecDeque;

use super::Sender;
use super::member::GROUP_PATH;
use crate::border::Output;
use crate::id::OpId;
use crate::scheme::{FeedbackTopology, Hierarchy};
use crate::seq::Seq;
use crate::time::Time;

impl Sender {
    /// Takes over a member whose collector is gone: the member reports to this node from now on.
    pub(super) fn adopt(&mut self, i: usize) {
        let m = &mut self.members[i];
        if !m.gone && core::mem::take(&mut m.delegated) {
            self.unheard += usize::from(m.heard.is_none());
        }
    }

    /// Takes over the members that reported to member `i`, which is gone.
    pub(super) fn adopt_reporters(&mut self, i: usize) {
        if self.relay.is_some() || self.topology == FeedbackTopology::Direct {
            return; // no member reported to it, or this node does not learn which did
        }
        let hierarchy = Hierarchy::new(self.topology, self.members.len() as u32);
        for orphan in hierarchy.reporters(Some(i as u32)) {
            self.adopt(orphan as usize);
        }
        self.count_waiting();
        self.update_window(GROUP_PATH);
    }

    /// At a co-root: takes over what this node has placed (`have`), and what it knows to have been
    /// sent (`high`).
    pub fn update(&mut self, now: Time, have: Seq, high: Seq, out: &mut VecDeque<Output>) {
        let Some(relay) = &mut self.relay else {
            return;
        };
        relay.high = high;
        let from = core::mem::replace(&mut relay.have, have);
        for path in 0..self.paths.len() {
            self.follow(path);
        }
        for k in 0..have.from(from) as u32 {
            self.copy_to_coroots(now, from + k);
        }
        if from != have {
            self.finish(out);
        }
    }

    /// Queues a copy of a packet for the co-roots that report to this node, before they send a
    /// NACK: the co-roots get each packet once more than the other receivers (P1.4).
    pub(super) fn copy_to_coroots(&mut self, now: Time, seq: Seq) {
        let Some(l) = &mut self.paths[GROUP_PATH] else {
            return;
        };
        for &i in &self.coroots {
            let m = &self.members[i as usize];
            if m.is_mine() && !seq.before(m.cum) && seq.before(m.limit) {
                l.window.lacks(now, seq, i, None, Duration::ZERO);
            }
        }
    }

    /// At a co-root: a path counts as sent what the sender has sent, as far as the path's window
    /// reaches.
    pub(super) fn follow(&mut self, path: usize) {
        let size = self.paths.window();
        if let (Some(l), Some(relay)) = (&mut self.paths[path], self.relay) {
            let room = l.window.base() + size;
            l.window.skip_to(relay.high.min(room));
        }
    }

    /// At a co-root: the right edge of its window. Packets beyond have no room in it.
    pub fn room(&self) -> Seq {
        let mut waits = self.members.iter().filter(|m| self.counts(m, GROUP_PATH));
        let l = self.paths[GROUP_PATH].as_ref();
        let base = l
            .filter(|_| waits.next().is_some())
            .map(|l| l.window.base());
        base.or(self.relay.map(|r| r.have)).unwrap_or(self.ops.end) + self.paths.window()
    }

    /// The sequence number before which this node, which has placed everything before `own`, and
    /// all receivers that report to it have placed everything.
    pub fn cum_subtree(&self, own: Seq) -> Seq {
        let mine = self.members.iter().filter(|m| m.is_mine());
        mine.fold(own, |least, m| least.min(m.cum_subtree))
    }

    /// Operations whose payloads the transport does not read at present.
    pub fn idle(&self) -> impl Iterator<Item = OpId> + '_ {
        self.ops
            .queue
            .iter()
            .filter(|op| op.out == 0)
            .map(|op| op.id)
    }
}
