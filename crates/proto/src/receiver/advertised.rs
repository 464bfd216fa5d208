//! The advertised window: how far the sender may go.

use core::time::Duration;

use super::{Children, Receiver};
use crate::seq::Seq;
use crate::time::Time;

/// A receiver that has posted nothing may be about to; after this time the sender is told not to
/// wait for it.
const NOT_READY_AFTER: Duration = Duration::from_millis(1);

impl Receiver {
    /// With credits this stream has its share of the buffers, of so many streams (P1.10); an eighth
    /// is for what is not data.
    pub fn divide(&mut self, streams: u32) {
        if self.buffer.credits {
            self.buffer.backlog = (self.buffer.packets * 7 / 8 / streams).max(1);
        }
    }

    /// Packets before this can be placed, or held until they are posted.
    pub(super) fn takes(&self) -> Seq {
        self.room().min(self.posted.end + self.unexpected.max)
    }

    /// Packets from here on have no room here, or at a co-root in the window that it keeps for
    /// others.
    pub(super) fn room(&self) -> Seq {
        let own = self.gaps.cum() + self.window;
        match &self.children {
            Children::Served(relay) => own.min(relay.room()),
            _ => own,
        }
    }

    /// How far the sender may go: nowhere once an operation has failed, else what the window
    /// covers, what the receive buffer holds, and what has been posted or can be held.
    pub(super) fn advertised_window(&self) -> Seq {
        let (cum, high) = (self.gaps.cum(), self.gaps.high());
        if self.has_failed() {
            return cum;
        }
        let takes = self.takes();
        let lacks = || self.gaps.filled().before(self.nackable_end());
        if !cum.before(self.posted.end) && !high.before(takes) && !lacks() {
            // All that was posted is here, what can be held has been sent, and nothing is asked
            // for: nobody is to wait for the next post.
            return cum;
        }
        // With feedback suppression nobody reports so often.
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

    /// How far the sender may go for all who report through this node, of those who are ready; if
    /// none is, no further than they are.
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

    /// The sender may soon have to stop because it does not know how far it may go, or is to go on
    /// without this node. Says whether that is to be told.
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
