//! The advertised window: how far the sender may go.

use core::time::Duration;

use super::{Children, Receiver};
use crate::seq::Seq;
use crate::time::Time;

/// Delay before a receiver that has posted nothing tells the sender not to wait for it; until then
/// it may yet post.
const NOT_READY_AFTER: Duration = Duration::from_millis(1);

impl Receiver {
    /// Sets this stream's share of the receive buffer, of `streams` streams, if credits are used
    /// (P1.10). An eighth of the buffer is for datagrams that are not data.
    pub fn divide(&mut self, streams: u32) {
        if self.buffer.credits {
            self.buffer.backlog = (self.buffer.packets * 7 / 8 / streams).max(1);
        }
    }

    /// The number before which packets can be placed, or held until they are posted.
    pub(super) fn takes(&self) -> Seq {
        self.room().min(self.posted.end + self.unexpected.max)
    }

    /// The number from which on packets have no room here or, at a co-root, in the window that it
    /// keeps for its delivery group.
    pub(super) fn room(&self) -> Seq {
        let own = self.gaps.cum() + self.window;
        match &self.children {
            Children::Served(relay) => own.min(relay.room()),
            _ => own,
        }
    }

    /// The right edge that this node advertises. It is `cum` once an operation has failed. Else it
    /// is limited by the window, by the receive buffer, and by what is posted or can be held.
    pub(super) fn advertised_window(&self) -> Seq {
        let (cum, high) = (self.gaps.cum(), self.gaps.high());
        if self.has_failed() {
            return cum;
        }
        let takes = self.takes();
        let lacks = || self.gaps.filled().before(self.nackable_end());
        if !cum.before(self.posted.end) && !high.before(takes) && !lacks() {
            // All that was posted is here, all that can be held has been sent, and this node NACKs
            // nothing: the sender is not to wait for the next post.
            return cum;
        }
        // With feedback suppression reports are rarer, so each allows for more packets.
        let credit = match self.buffer.credits {
            true => self.buffer.backlog,
            false => self
                .buffer
                .backlog
                .saturating_mul(self.feedback.suppression)
                .min(self.window),
        };
        takes.min(high + credit).max(cum)
    }

    /// The right edge for this node's whole sub-tree: the least of all nodes that are ready. If
    /// none is ready, it is the number before which all have placed everything.
    pub(super) fn advertised_for_all(&self) -> Seq {
        let own = self.advertised_window();
        match &self.children {
            Children::Aggregated(reports) => {
                let ready = (own != self.gaps.cum()).then_some(own);
                let subtree = self.cum_subtree();
                reports
                    .advertised(ready)
                    .map_or(subtree, |l| l.max(subtree))
            }
            Children::None | Children::Served(_) => own,
        }
    }

    /// Schedules feedback if the advertised window has changed enough. This is urgent if the sender
    /// may soon stop because it does not know that it may send more. It is less urgent if the
    /// sender is to go on without this node. Says whether either is the case.
    pub(super) fn advertise_window(&mut self, now: Time) -> bool {
        let used = match self.is_suppressed() && !self.buffer.credits {
            true => self.window / 2,
            false => self.window.min(self.buffer.backlog) / 4,
        };
        let limit = self.advertised_window();
        let presses = limit.from(self.feedback.advertised) >= used as i32;
        let closes = limit == self.gaps.cum() && self.feedback.advertised != limit;
        if presses {
            self.feedback.schedule(now);
        } else if closes {
            self.feedback.schedule(now + NOT_READY_AFTER);
        }
        presses || closes
    }
}
