//! Operations that the receiver declines, because it has their objects already.
//!
//! Declined packets count as placed, also before the sender has begun their operation. So `cum` may
//! lie beyond what was sent, and feedback names the declined packets as the reason until this node
//! has placed a packet behind them.

use std::collections::VecDeque;

use super::Receiver;
use crate::border::{Output, Refused};
use crate::id::Cut;
use crate::mutant::{self, Mutant};
use crate::time::Time;

impl Receiver {
    /// Declines the next operation, which is cut like this.
    ///
    /// Errors: [`Refused::Busy`] if too many operations or packets are posted or declined.
    pub fn decline(
        &mut self,
        now: Time,
        cut: Cut,
        out: &mut VecDeque<Output>,
    ) -> Result<(), Refused> {
        self.has_room_for(cut)?;
        let base = self.posted.end;
        let end = base + cut.packets;
        self.posted.end = end;
        while let Some(h) = self.unexpected.packets.front()
            && h.seq.before(end)
        {
            out.push_back(Output::Discard(h.token));
            self.unexpected.packets.pop_front();
        }
        self.gaps.decline(base, end);
        self.nack.upto = self.nack.upto.max(self.gaps.cum());
        self.nackable = self.nackable.max(end);
        if !mutant::active(Mutant::DeclinesUntold) {
            self.declines.push(base, cut.packets);
        }
        self.feedback.schedule(now);
        Ok(())
    }
}
