//! What a root is made of: broadcasts under way, lanes, and what they send.

use crate::block::Parity;
use crate::border::Dest;
use crate::id::{Cut, Extent, NodeId, OpId};
use crate::pace::Pacer;
use crate::seq::Seq;
use crate::sum::{Sources, Sum};
use crate::window::Window;
use crate::wire::{Origin, Probe};

/// A broadcast under way.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its name here.
    pub id: OpId,
    /// Number of its first packet.
    pub base: Seq,
    /// How many it has, and how long they are.
    pub cut: Cut,
    /// Its bytes.
    pub len: u64,
    /// Whether somebody waits until everybody has it.
    pub awaited: bool,
    /// Transmissions that the transport has not finished.
    pub out: u32,
    /// Everybody who counts has it.
    pub complete: bool,
}

impl Op {
    /// Number of the first packet after it.
    pub fn end(&self) -> Seq {
        self.base + self.cut.packets
    }

    /// The bytes of packet `seq`, which is one of it.
    pub fn extent(&self, seq: Seq) -> Extent {
        let index = seq.from(self.base) as u32;
        Extent::packet(self.id, index, self.len, self.cut.chunk)
    }
}

/// A way of sending, with its own window and pace.
pub struct Lane {
    /// Its number among all lanes that this root has had.
    pub number: u32,
    /// To whom.
    pub dest: Dest,
    /// What has been sent and may have to be sent again.
    pub window: Window,
    /// How fast.
    pub pacer: Pacer,
    /// New packets sent.
    pub fresh: u32,
    /// Members that need more than one try for a packet, on average.
    pub lossy: u32,
    /// Its member hears the group's lane, and what that has sent is sent.
    pub follows: bool,
    /// Members that hold the window at its base.
    pub at_base: u32,
    /// What the members can take; `None`: nobody is ready.
    pub limit: Option<Seq>,
    /// Members that can take no more than that.
    pub at_limit: u32,
}

/// What the root sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Send {
    /// A data packet.
    Data {
        /// To whom.
        to: Dest,
        /// Its flight.
        flight: u16,
        /// Whose packet it is.
        origin: Origin,
        /// Its number.
        seq: Seq,
        /// Flags of the data frame.
        flags: u8,
        /// Its bytes.
        extent: Extent,
    },
    /// A coded packet.
    Coded {
        /// To whom.
        to: Dest,
        /// Its flight.
        flight: u16,
        /// Which packets.
        sources: Sources,
        /// Flags of the coded frame.
        flags: u8,
        /// Their bytes.
        sum: Sum,
    },
    /// A parity packet.
    Parity {
        /// To whom.
        to: Dest,
        /// Its flight.
        flight: u16,
        /// Number of its block's first packet.
        first: Seq,
        /// Which one.
        parity: Parity,
        /// Flags of the parity frame.
        flags: u8,
    },
    /// A sync frame.
    Sync {
        /// To whom.
        to: Dest,
        /// Whose stream it is.
        root: NodeId,
        /// Everything before this has been sent.
        next: Seq,
    },
    /// A probe to the group.
    Probe(Probe),
}
