//! What a receiver does when bytes of a stream have been written, or could not be.

use std::collections::VecDeque;

use super::{Children, Receiver};
use crate::border::{Event, Outcome, Output};
use crate::id::Extent;
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::time::Time;

impl Receiver {
    /// Takes the outcome of writing the bytes `extent` of one of this stream's operations, whose
    /// first packet is `base`.
    pub fn placed(
        &mut self,
        now: Time,
        scheme: &Scheme,
        (extent, base): (Extent, Seq),
        outcome: Outcome,
        out: &mut VecDeque<Output>,
    ) {
        let Some(i) = self.posted.position(base) else {
            return;
        };
        let op = &self.posted.queue[i];
        debug_assert_eq!((op.id, op.base), (extent.op, base));
        let payload_size = u64::from(op.cut.payload_size);
        let len = op.len;
        if self.posted.queue[i].failed {
            return;
        }
        if outcome == Outcome::Failed {
            self.posted.queue[i].failed = true;
            self.forget_parities(extent.op, out);
            out.push_back(Output::Event(Event::Failed(extent.op)));
            return;
        }
        let end = (extent.offset + u64::from(extent.len)).min(len);
        let mut at = extent.offset;
        loop {
            let index = (at / payload_size) as u32;
            let (first, last) = (
                u64::from(index) * payload_size,
                (u64::from(index) * payload_size + payload_size).min(len),
            );
            let part = (end.min(last) - at) as u32;
            let whole = (last - first) as u32;
            let seq = base + index;
            if outcome == Outcome::Corrupt {
                self.gaps.reopen(seq);
            } else if (part == whole || self.posted.add_part(seq, part, whole))
                && self.gaps.place(seq)
            {
                self.posted.queue[i].placed += 1;
            }
            at = last;
            if at >= end {
                break;
            }
        }
        if outcome == Outcome::Corrupt {
            self.take_back_decoding(base, extent, out);
            self.nack.upto = self.gaps.high();
            self.feedback.schedule(now + scheme.repair.nack_delay);
        }
        self.update_coroot(now, out);
        if self.posted.queue[i].placed == self.posted.queue[i].cut.packets {
            out.push_back(Output::Event(Event::Complete(extent.op)));
            // A co-root may still have to send the operation's packets.
            if !matches!(self.children, Children::Served(_)) {
                out.push_back(Output::Release(extent.op));
            }
            self.posted.queue.remove(i);
            let rule = &scheme.feedback;
            if rule.on_request_only {
                // This receiver sends feedback on request only.
            } else if scheme.detect.by_sender && rule.every > 1 {
                // One acknowledgement may cover several broadcasts (P1.6).
                self.feedback
                    .schedule(now + rule.piggyback + rule.delay_max);
            } else if !scheme.detect.by_sender && !scheme.is_awaited(len) {
                self.feedback
                    .schedule(now + rule.piggyback + rule.ack_delay);
            } else {
                self.feedback
                    .schedule(now + rule.piggyback + rule.turn * self.turn);
                self.repeat_feedback(scheme);
            }
        }
        if !scheme.feedback.on_request_only {
            self.advertise_window(now);
        }
    }
}
