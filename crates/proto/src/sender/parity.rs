//! Repair by parity packets, in large groups: one parity packet mends any one loss of its block at
//! each receiver.

use core::time::Duration;

use super::Sender;
use super::member::GROUP_PATH;
use crate::border::Counters;
use crate::limits::XOR_RECEIVERS_MAX;
use crate::path::{Target, Transmission};
use crate::repair::{CodeBlock, Parity, ParityNeed, Who, positions};
use crate::scheme::{FeedbackTopology, How, Scheme};
use crate::seq::Seq;
use crate::time::Time;
use crate::wire::flag;

/// A number for members other than the one that the sender knows to lack a packet.
const OTHERS: u32 = u32::MAX - 1;

impl Sender {
    /// Whether a sender repairs code blocks with parity packets.
    pub(super) fn codes_blocks(scheme: &Scheme, members: usize, payload_size: u32) -> bool {
        let how = match scheme.repair.how {
            How::Parity => members > 1,
            How::Coded => members > XOR_RECEIVERS_MAX,
            How::Xor | How::Cheaper | How::Unicast | How::Multicast => false,
        };
        let asks = !scheme.detect.by_sender && !scheme.feedback.on_request_only;
        // The Reed-Solomon code works on words of 16 bits.
        how && asks && scheme.topology == FeedbackTopology::Direct && payload_size.is_multiple_of(2)
    }

    /// The parity packet that the sender sends now, if any. Packets for which a plain
    /// retransmission is better join the path's queue of repairs.
    pub(super) fn poll_blocks(
        &mut self,
        now: Time,
        scheme: &Scheme,
        counters: &mut Counters,
    ) -> Option<Transmission> {
        let until = self.repair_nacks_until(now, GROUP_PATH, scheme)?;
        let more = self.window_is_open(GROUP_PATH) && self.may_start(now);
        loop {
            let l = self.paths[GROUP_PATH].as_mut()?;
            let demand = self.parity_requests.as_mut()?;
            match demand.need(until, l.window.next(), more)? {
                ParityNeed::Packets { part, who, since } => {
                    let (one, others) = match who {
                        Who::One(one) => (one, None),
                        Who::Several(one) => (one, Some(OTHERS)),
                    };
                    for k in positions(part.which) {
                        for who in [Some(one), others].into_iter().flatten() {
                            let seq = part.first + k;
                            l.window.lacks(since, seq, who, None, Duration::ZERO);
                        }
                    }
                    demand.met(part.first);
                }
                ParityNeed::Parity { first, index, last } => {
                    return self.send_parity(now, scheme, counters, (first, index, last));
                }
            }
        }
    }

    pub(super) fn send_parity(
        &mut self,
        now: Time,
        scheme: &Scheme,
        counters: &mut Counters,
        (first, index, last): (Seq, u8, bool),
    ) -> Option<Transmission> {
        let at = self.ops.position(first);
        let payload_size = self.ops.queue.get(at)?.cut.payload_size;
        let burst = self.depart(now, GROUP_PATH, payload_size, scheme)?;
        let op = self.ops.queue.get_mut(at)?;
        op.out += 1;
        let at = first.from(op.base) as u32;
        let block = CodeBlock::at(op.id, at, op.len, payload_size);
        let end = block.end(op.len);
        self.parity_requests.as_mut()?.sent(now, first, burst);
        counters.repairs_multicast += 1;
        counters.repairs_coded += 1;
        self.arm_probe_timer(now, scheme);
        Some(Transmission::Parity {
            to: Target::All,
            burst: burst as u16,
            first,
            parity: Parity { block, index },
            end,
            flags: if last { flag::ACK_REQUEST } else { 0 },
        })
    }
}
