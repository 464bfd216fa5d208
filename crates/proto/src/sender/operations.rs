//! The broadcasts of a stream that are under way, in the order of their packets' numbers.

use std::collections::VecDeque;

use crate::border::Refused;
use crate::id::{Cut, OpId};
use crate::limits;
use crate::path::Op;
use crate::seq::Seq;

/// The broadcasts under way. Their packets' numbers follow one another without a hole.
#[derive(Clone, Debug)]
pub(super) struct Operations {
    /// The broadcasts, oldest first.
    pub queue: VecDeque<Op>,
    /// The number that the next broadcast's first packet will have.
    pub end: Seq,
    /// Packets before this have been sent at least once, by any path.
    pub sent: Seq,
    /// Members that have not placed the first broadcast.
    pub waiting: usize,
}

impl Operations {
    /// Creates an empty queue. The first packet gets number `start`.
    pub fn new(start: Seq) -> Operations {
        Operations {
            queue: VecDeque::new(),
            end: start,
            sent: start,
            waiting: 0,
        }
    }

    /// Adds a broadcast of `len` bytes, which `cut` divides into packets. `awaited`: the caller
    /// waits for its completion. Returns the number of its first packet. Refused if there would be
    /// too many broadcasts, or so many packets under way that their numbers could not be told
    /// apart.
    pub fn push(
        &mut self,
        (id, len, cut): (OpId, u64, Cut),
        awaited: bool,
    ) -> Result<Seq, Refused> {
        let packets = self.queue.iter().map(|op| u64::from(op.cut.packets));
        let span = packets.sum::<u64>() + u64::from(cut.packets);
        if self.queue.len() >= limits::OPS_MAX || span >= 1 << 31 {
            return Err(Refused::Busy);
        }
        let op = Op {
            id,
            base: self.end,
            cut,
            len,
            awaited,
            out: 0,
            complete: false,
        };
        let base = core::mem::replace(&mut self.end, op.end());
        self.queue.push_back(op);
        Ok(base)
    }

    /// Position of the broadcast to which packet `seq` belongs, if it belongs to one: the first
    /// broadcast that ends after it.
    pub fn position(&self, seq: Seq) -> usize {
        self.queue.partition_point(|op| !seq.before(op.end()))
    }

    /// First packet and length of the broadcast to which packet `seq` belongs.
    pub fn describes(&self, seq: Seq) -> Option<(Seq, u64)> {
        let op = self.queue.get(self.position(seq))?;
        (!seq.before(op.base)).then_some((op.base, op.len))
    }
}
