//! What a receiver does for those that report to it: it combines their reports (P1.5), or repairs
//! for them (P1.4).

use core::time::Duration;
use std::collections::VecDeque;

use super::{Children, Receiver, Shared};
use crate::border::{Config, Counters, Dest, Output};
use crate::id::{NodeId, OpId};
use crate::mutant::{self, Mutant};
use crate::path::Transmission;
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::Feedback;

impl Receiver {
    /// A peer is gone: who told it tells the sender, and nobody waits for it.
    pub fn remove(&mut self, now: Time, node: NodeId, out: &mut VecDeque<Output>) {
        if self.collector == node {
            self.collector = self.sender;
            self.feedback.schedule(now);
        }
        match &mut self.children {
            Children::None => {}
            Children::Aggregated(reports) => reports.remove(node),
            Children::Served(relay) => relay.remove(node, out),
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
        match &mut self.children {
            Children::None => return false,
            Children::Served(relay) => {
                relay.on_feedback(now, from, f, node.counters, node.out);
                let subtree = relay.cum_subtree(own);
                if self.reported_subtree.before(subtree) {
                    // The sender waits for it at the end of an operation only.
                    let over = self.posted.queue.is_empty() && subtree == own;
                    let delay = if over {
                        Duration::ZERO
                    } else {
                        scheme.feedback.delay_max
                    };
                    self.feedback.schedule(now + delay);
                }
            }
            Children::Aggregated(reports) => {
                let Some(news) = reports.on_feedback(from, f) else {
                    return false;
                };
                node.counters.feedback_received += 1;
                let subtree = reports.cum_subtree(own);
                let rule = &scheme.feedback;
                let soon = self.earliest_feedback(now, self.feedback.last, scheme);
                if self.probed.is_some_and(|upto| !subtree.before(upto)) {
                    self.probed = None;
                    self.feedback.schedule(now);
                } else if rule.on_request_only {
                    // The answer is combined.
                } else if !f.missing.is_empty()
                    || subtree.from(self.reported_subtree) as u32 >= rule.every
                {
                    self.feedback.schedule(soon);
                } else if news {
                    self.feedback.schedule(now + rule.delay_max);
                }
            }
        }
        true
    }

    /// A co-root serves others with what it has, and takes for sent what it knows to be.
    pub(super) fn update_coroot(&mut self, now: Time, out: &mut VecDeque<Output>) {
        if let Children::Served(relay) = &mut self.children {
            relay.update(now, self.gaps.cum(), self.gaps.high(), out);
        }
    }

    /// What this node sends for the sender.
    pub fn relay(
        &mut self,
        now: Time,
        config: &Config,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Transmission> {
        match &mut self.children {
            Children::Served(relay) => relay.poll(now, config, counters, out),
            Children::Aggregated(reports) => reports.question().map(|node| Transmission::Sync {
                to: Dest::Node(node),
                sender: self.sender,
                next: self.gaps.high(),
            }),
            Children::None => None,
        }
    }

    /// The transport reads a payload of `op`, which this node has sent for the sender, no more.
    pub fn sent(&mut self, op: OpId, out: &mut VecDeque<Output>) {
        if let Children::Served(relay) = &mut self.children {
            relay.sent(op, out);
        }
    }

    /// Operations of which transmissions for the sender are not finished, and how many.
    pub fn unfinished(&self) -> impl Iterator<Item = (OpId, u32)> + '_ {
        let relay = match &self.children {
            Children::Served(relay) => Some(relay),
            _ => None,
        };
        relay.into_iter().flat_map(|r| r.unfinished())
    }

    /// What all who report to this node have, and it itself.
    pub(super) fn cum_subtree(&self) -> Seq {
        let own = self.gaps.cum();
        let subtree = match &self.children {
            _ if mutant::active(Mutant::AnswersForItself) => own,
            Children::None => own,
            Children::Aggregated(reports) => reports.cum_subtree(own),
            Children::Served(relay) => relay.cum_subtree(own),
        };
        subtree.max(self.reported_subtree)
    }
}
