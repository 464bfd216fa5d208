//! The broadcasts of a stream that are under way, in the order of their packets' numbers.

use std::collections::VecDeque;

use crate::border::Refused;
use crate::id::{Cut, OpId};
use crate::limits;
use crate::path::Op;
use crate::seq::Seq;

/// The broadcasts under way. Their packets follow each other without a hole.
#[derive(Clone, Debug)]
pub(super) struct Operations {
    /// Oldest first.
    pub queue: VecDeque<Op>,
    /// The number that the next broadcast's first packet will have.
    pub end: Seq,
    /// Packets before this have been sent at least once, by one path or another.
    pub sent: Seq,
    /// Members that have not placed the first broadcast.
    pub waiting: usize,
}

impl Operations {
    /// No broadcast yet; the first packet will have number `start`.
    pub fn new(start: Seq) -> Operations {
        Operations {
            queue: VecDeque::new(),
            end: start,
            sent: start,
            waiting: 0,
        }
    }

    /// Adds a broadcast of `len` bytes, cut so, for which somebody waits or not. Refused if the
    /// packets under way could not be told apart any more.
    pub fn push(&mut self, (id, len, cut): (OpId, u64, Cut), awaited: bool) -> Result<(), Refused> {
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
        self.end = op.end();
        self.queue.push_back(op);
        Ok(())
    }

    /// Which broadcast packet `seq` is of, if it is of one: the first that ends after it.
    pub fn position(&self, seq: Seq) -> usize {
        self.queue.partition_point(|op| !seq.before(op.end()))
    }

    /// First packet and length of the broadcast that packet `seq` is of.
    pub fn describes(&self, seq: Seq) -> Option<(Seq, u64)> {
        let op = self.queue.get(self.position(seq))?;
        (!seq.before(op.base)).then_some((op.base, op.len))
    }
}
