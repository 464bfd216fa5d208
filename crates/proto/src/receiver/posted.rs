//! The broadcasts that this node has posted and that are not complete, in the order of their
//! packets.

use std::collections::VecDeque;

use crate::id::{Cut, Extent, OpId};
use crate::seq::Seq;

/// A broadcast that this node has posted.
#[derive(Clone, Debug)]
pub struct Posted {
    pub id: OpId,
    pub base: Seq,
    pub cut: Cut,
    pub len: u64,
    pub placed: u32,
    /// The sender has confirmed that it sends another object under this number.
    pub mismatch: bool,
    /// The sender has confirmed the length: packets that contradict it are not the sender's.
    pub vouched: bool,
    /// Bytes of it could not be placed: the operation is over, and the node takes no more of its
    /// packets.
    pub failed: bool,
}

impl Posted {
    pub fn end(&self) -> Seq {
        self.base + self.cut.packets
    }

    pub fn is_last(&self, seq: Seq) -> bool {
        seq + 1 == self.end()
    }

    /// The extent of packet `index`.
    pub fn extent(&self, index: u32) -> Extent {
        Extent::packet(self.id, index, self.len, self.cut.payload_size)
    }
}

/// The broadcasts that are posted and not complete.
pub struct PostedOperations {
    /// Oldest first.
    pub queue: VecDeque<Posted>,
    /// Number of the first packet of the next broadcast to be posted.
    pub end: Seq,
    /// Packets that lie across two extents, with some of their bytes placed: number, and bytes
    /// placed.
    pub partial: Vec<(Seq, u32)>,
}

impl PostedOperations {
    /// The state before anything is posted; the first packet will have number `start`.
    pub fn new(start: Seq) -> PostedOperations {
        PostedOperations {
            queue: VecDeque::new(),
            end: start,
            partial: Vec::new(),
        }
    }

    /// The posted broadcast that packet `seq` belongs to.
    pub fn find(&self, seq: Seq) -> Option<&Posted> {
        self.queue.get(self.position(seq)?)
    }

    /// The position of the posted broadcast that packet `seq` belongs to.
    pub fn position(&self, seq: Seq) -> Option<usize> {
        // As a rule the packet belongs to the first broadcast.
        let first = self.queue.front();
        let i = match first.is_some_and(|op| seq.within(op.base, op.cut.packets)) {
            true => 0,
            false => self.queue.partition_point(|op| !seq.before(op.end())),
        };
        let op = self.queue.get(i);
        op.is_some_and(|op| seq.within(op.base, op.cut.packets))
            .then_some(i)
    }

    /// Adds `part` bytes to the placed bytes of a packet that lies across two extents; says whether
    /// all its `whole` bytes are placed.
    pub fn add_part(&mut self, seq: Seq, part: u32, whole: u32) -> bool {
        let i = match self.partial.iter().position(|p| p.0 == seq) {
            Some(i) => i,
            None => {
                self.partial.push((seq, 0));
                self.partial.len() - 1
            }
        };
        self.partial[i].1 += part;
        if self.partial[i].1 < whole {
            return false;
        }
        self.partial.swap_remove(i);
        true
    }
}
