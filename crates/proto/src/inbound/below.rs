//! What a receiver does for those who report to it: it combines what they tell (P1.5), or repairs
//! for them (P1.4).

use super::*;

impl Inbound {
    /// A peer is gone: who told it tells the root, and nobody waits for it.
    pub fn remove(&mut self, now: Time, node: NodeId, out: &mut VecDeque<Output>) {
        if self.collector == node {
            self.collector = self.root;
            self.plan(now);
        }
        match &mut self.below {
            Below::Nobody => {}
            Below::Combines(reporters) => reporters.remove(node),
            Below::Serves(relay) => relay.remove(node, out),
        }
    }

    /// An answer is wanted, on what was sent before `upto`. Who lacks some of it answers sooner,
    /// but not before it is sure. Who combines others' waits for them.
    pub(super) fn ask(&mut self, now: Time, scheme: &Scheme, upto: Seq) {
        self.repeat(scheme);
        let turn = scheme.feedback.turn * self.turn;
        let patience = self.patience(scheme);
        if let Some((at, _)) = &mut self.ripens {
            *at = (*at).min(now + patience);
        }
        let turn = match self.gaps.filled().before(upto) && self.gaps.is_open() {
            true if self.gaps.filled().before(self.ripe) => now + turn / 4,
            true => (now + turn / 4).max(self.ripens.map_or(now, |r| r.0)),
            false => now + turn,
        };
        match &self.below {
            Below::Combines(reporters) if reporters.below(self.gaps.cum()).before(upto) => {
                self.asked = Some(upto);
                self.plan(turn + scheme.feedback.delay_max);
            }
            _ => self.plan(turn),
        }
    }

    /// What one of those who report to this node tells. Says whether it is one of them.
    pub fn report(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (from, f): (NodeId, &Feedback<'_>),
        node: &mut Shared<'_>,
    ) -> bool {
        let own = self.gaps.cum();
        match &mut self.below {
            Below::Nobody => return false,
            Below::Serves(relay) => {
                relay.feedback(now, from, f, node.counters, node.out);
                let below = relay.below(own);
                if self.told_below.before(below) {
                    // The root waits for it at the end of an operation only.
                    let over = self.ops.is_empty() && below == own;
                    let delay = if over {
                        Duration::ZERO
                    } else {
                        scheme.feedback.delay_max
                    };
                    self.plan(now + delay);
                }
            }
            Below::Combines(reporters) => {
                let Some(news) = reporters.feedback(from, f) else {
                    return false;
                };
                node.counters.feedback_received += 1;
                let below = reporters.below(own);
                let rule = &scheme.feedback;
                let soon = self.spaced(now, self.last_feedback, scheme);
                if self.asked.is_some_and(|upto| !below.before(upto)) {
                    self.asked = None;
                    self.plan(now);
                } else if rule.asked_only {
                    // The answer is combined.
                } else if !f.missing.is_empty() || below.from(self.told_below) as u32 >= rule.every
                {
                    self.plan(soon);
                } else if news {
                    self.plan(now + rule.delay_max);
                }
            }
        }
        true
    }

    /// A co-root serves others with what it has, and takes for sent what it knows to be.
    pub(super) fn carry(&mut self, now: Time, out: &mut VecDeque<Output>) {
        if let Below::Serves(relay) = &mut self.below {
            relay.carry(now, self.gaps.cum(), self.gaps.high(), out);
        }
    }

    /// What this node sends for the root.
    pub fn relay(
        &mut self,
        now: Time,
        config: &Config,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Send> {
        match &mut self.below {
            Below::Serves(relay) => relay.poll(now, config, counters, out),
            Below::Combines(reporters) => reporters.question().map(|node| Send::Sync {
                to: Dest::Node(node),
                root: self.root,
                next: self.gaps.high(),
            }),
            Below::Nobody => None,
        }
    }

    /// The transport reads a payload of `op`, which this node has sent for the root, no more.
    pub fn sent(&mut self, op: OpId, out: &mut VecDeque<Output>) {
        if let Below::Serves(relay) = &mut self.below {
            relay.sent(op, out);
        }
    }

    /// Operations of which transmissions for the root are not finished, and how many.
    pub fn unfinished(&self) -> impl Iterator<Item = (OpId, u32)> + '_ {
        let relay = match &self.below {
            Below::Serves(relay) => Some(relay),
            _ => None,
        };
        relay.into_iter().flat_map(|r| r.unfinished())
    }

    /// How far the root may go for all who report through this node, of those who are ready; if
    /// none is, no further than they are.
    pub(super) fn limit_of_all(&self) -> Seq {
        let own = self.limit();
        match &self.below {
            Below::Combines(reporters) => {
                let ready = (own != self.gaps.cum()).then_some(own);
                let below = self.have_all();
                reporters.limit(ready).map_or(below, |l| l.max(below))
            }
            Below::Nobody | Below::Serves(_) => own,
        }
    }

    /// Packets from here on have no room here, or at a co-root in the window that it keeps for
    /// others.
    pub(super) fn room(&self) -> Seq {
        let own = self.gaps.cum() + self.window;
        match &self.below {
            Below::Serves(relay) => own.min(relay.room()),
            _ => own,
        }
    }

    /// What all who report to this node have, and it itself.
    pub(super) fn have_all(&self) -> Seq {
        let own = self.gaps.cum();
        let below = match &self.below {
            _ if mutant::active(Mutant::AnswersForItself) => own,
            Below::Nobody => own,
            Below::Combines(reporters) => reporters.below(own),
            Below::Serves(relay) => relay.below(own),
        };
        below.max(self.told_below)
    }
}
