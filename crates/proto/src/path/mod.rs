//! A path of a stream: the group's multicast, or one receiver's unicast.
//!
//! A path has a window, a pacer and a queue of repairs. `prover` finds out which members multicast
//! reaches, `loss` how often a packet must be sent until it arrives.

mod bursts;
mod loss;
mod pacer;
mod prover;
mod rtt;
pub mod window;

pub use bursts::{Burst, Bursts};
pub use loss::Losses;
pub use pacer::Pacer;
pub use prover::Prover;
pub use rtt::RttEstimator;

use crate::border::Dest;
use crate::id::{Cut, Extent, NodeId, OpId};
use crate::repair::Parity;
use crate::repair::{XorExtents, XorSources};
use crate::seq::Seq;
use crate::wire::{Origin, Probe};
use window::Window;

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
        Extent::packet(self.id, index, self.len, self.cut.payload_size)
    }
}

/// A way of sending, with its own window and pace.
pub struct Path {
    /// Its number among all paths that this sender has had.
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
    /// Its member hears the group's path, and what that has sent is sent.
    pub follows: bool,
    /// Members that hold the window at its base.
    pub at_base: u32,
    /// What the members can take; `None`: nobody is ready.
    pub limit: Option<Seq>,
    /// Members that can take no more than that.
    pub at_limit: u32,
}

/// What the sender sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transmission {
    /// A data packet.
    Data {
        /// To whom.
        to: Dest,
        /// Its burst.
        burst: u16,
        /// Whose packet it is.
        origin: Origin,
        /// Its number.
        seq: Seq,
        /// Flags of the data frame.
        flags: u8,
        /// Its bytes.
        extent: Extent,
    },
    /// An XOR repair packet.
    Xor {
        /// To whom.
        to: Dest,
        /// Its burst.
        burst: u16,
        /// Which packets.
        sources: XorSources,
        /// Flags of the XOR repair frame.
        flags: u8,
        /// Their bytes.
        sum: XorExtents,
    },
    /// A parity packet.
    Parity {
        /// To whom.
        to: Dest,
        /// Its burst.
        burst: u16,
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
        sender: NodeId,
        /// Everything before this has been sent.
        next: Seq,
    },
    /// A probe to the group.
    Probe(Probe),
}
