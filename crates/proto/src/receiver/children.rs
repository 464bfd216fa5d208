//! What a receiver does for its children: it combines their reports (P1.5), or repairs for them
//! (P1.4).

use core::time::Duration;
use std::collections::VecDeque;

use super::{Children, Receiver, Shared};
use crate::border::{Config, Counters, Output};
use crate::id::{NodeId, OpId};
use crate::mutant::{self, Mutant};
use crate::path::{Target, Transmission};
use crate::scheme::Scheme;
use crate::sender::Shares;
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::Feedback;

impl Receiver {
    /// Removes a peer that is gone. This node does not wait for it as a child. If the peer was its
    /// collector, it reports to the sender from now on.
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

    /// Takes the feedback of a child. False: this node combines reports and `from` is not one of
    /// its children, or it has no children at all.
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
                    // The sender waits for the sub-tree's ACK at the end of an operation only.
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
                    // The combined answer waits for all children.
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

    /// Tells a co-root's sender how much this node has placed, which it can repair, and how much it
    /// knows to be sent.
    pub(super) fn update_coroot(&mut self, now: Time, out: &mut VecDeque<Output>) {
        if let Children::Served(relay) = &mut self.children {
            relay.update(now, self.gaps.cum(), self.gaps.high(), out);
        }
    }

    /// The next transmission that this node makes for the sender: a repair, or a question to a
    /// child.
    pub fn relay(
        &mut self,
        now: Time,
        config: &Config,
        shares: Option<&mut Shares>,
        counters: &mut Counters,
        out: &mut VecDeque<Output>,
    ) -> Option<Transmission> {
        match &mut self.children {
            Children::Served(relay) => relay.poll(now, config, shares, counters, out),
            Children::Aggregated(reports) => reports.question().map(|node| Transmission::Sync {
                to: Target::Node(node),
                sender: self.sender,
                next: self.gaps.high(),
            }),
            Children::None => None,
        }
    }

    /// The node's fixed rate has changed.
    pub fn rate_has_changed(&mut self) {
        if let Children::Served(relay) = &mut self.children {
            relay.rate_has_changed();
        }
    }

    /// Notes that a payload that this node sends for the sender is sent again, this many times.
    pub fn sends_again(&mut self, base: Seq, times: u32) {
        if let Children::Served(relay) = &mut self.children {
            relay.sends_again(base, times);
        }
    }

    /// Notes that the transport no longer reads a payload of an operation, which this node has sent
    /// for the sender. The operation's first packet is `base`.
    pub fn sent(&mut self, base: Seq, out: &mut VecDeque<Output>) {
        if let Children::Served(relay) = &mut self.children {
            relay.sent(base, out);
        }
    }

    /// Operations with unfinished transmissions for the sender, and the number of these.
    pub fn unfinished(&self) -> impl Iterator<Item = (OpId, u32)> + '_ {
        let relay = match &self.children {
            Children::Served(relay) => Some(relay),
            _ => None,
        };
        relay.into_iter().flat_map(|r| r.unfinished())
    }

    /// The number before which this node and its sub-tree have everything. It never goes back.
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
