//! What a root does because receivers answer for others: a co-root serves its own group with what
//! it has placed (P1.4), and who has lost its collector tells the root.

use super::*;

impl Root {
    /// A member's own collector is gone: it reports here from now on.
    fn adopt(&mut self, i: usize) {
        let m = &mut self.members[i];
        if !m.gone && core::mem::take(&mut m.delegated) {
            self.unheard += usize::from(m.heard.is_none());
        }
    }

    /// Member `i` is gone: who reported to it tells the root.
    pub(super) fn adopt_reporters(&mut self, i: usize) {
        if self.relay.is_some() || self.told == Told::Root {
            return; // nobody did, or it is not for this node to know
        }
        let hierarchy = Hierarchy::new(self.told, self.members.len() as u32);
        for orphan in hierarchy.reporters(Some(i as u32)) {
            self.adopt(orphan as usize);
        }
        self.count_waiting();
        self.settle(GROUP_LANE);
    }

    /// At a co-root: what it has placed itself, and what it knows to have been sent.
    pub fn carry(&mut self, now: Time, have: Seq, high: Seq, out: &mut VecDeque<Output>) {
        self.high = high;
        for lane in 0..self.lanes.len() {
            self.follow(lane);
        }
        let from = core::mem::replace(&mut self.have, have);
        for k in 0..have.from(from) as u32 {
            self.copy_to_coroots(now, from + k);
        }
        if from != have {
            self.finish(out);
        }
    }

    /// What everybody is sent the co-roots that report here get once more, before they ask (P1.4).
    pub(super) fn copy_to_coroots(&mut self, now: Time, seq: Seq) {
        let Some(l) = &mut self.lanes[GROUP_LANE] else {
            return;
        };
        for &i in &self.coroots {
            let m = &self.members[i as usize];
            if m.is_mine() && !seq.before(m.cum) && seq.before(m.limit) {
                l.window.lacks(now, seq, i, None, Duration::ZERO);
            }
        }
    }

    /// At a co-root: a lane takes for sent what the root has sent, as far as its window goes.
    pub(super) fn follow(&mut self, lane: usize) {
        if let Some(l) = self.lanes[lane].as_mut().filter(|_| self.relay.is_some()) {
            let room = l.window.base() + self.window;
            l.window.skip_to(self.high.min(room));
        }
    }

    /// At a co-root: what lies beyond has no room in its window.
    pub fn room(&self) -> Seq {
        let mut waits = self.members.iter().filter(|m| self.counts(m, GROUP_LANE));
        let l = self.lanes[GROUP_LANE].as_ref();
        let base = l
            .filter(|_| waits.next().is_some())
            .map(|l| l.window.base());
        base.unwrap_or(self.have) + self.window
    }

    /// What everybody has who reports here, and this node with `own`.
    pub fn below(&self, own: Seq) -> Seq {
        let mine = self.members.iter().filter(|m| m.is_mine());
        mine.fold(own, |least, m| least.min(m.below))
    }

    /// Operations that nothing reads any more.
    pub fn idle(&self) -> impl Iterator<Item = OpId> + '_ {
        self.ops.iter().filter(|op| op.out == 0).map(|op| op.id)
    }
}
