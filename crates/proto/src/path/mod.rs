//! A path of a stream: the group's multicast, or one receiver's unicast.
//!
//! A path has a window, a pacer and a queue of repairs. `prover` finds out which members multicast
//! reaches. `loss` measures how often a packet must be sent until it arrives.

mod bursts;
mod loss;
mod pacer;
mod prover;
mod rtt;
pub mod window;

pub use bursts::{Burst, Bursts};
pub use loss::Losses;
pub use pacer::{Pacer, Quanta};
pub use prover::Prover;
pub use rtt::RttEstimator;

use crate::id::{Cut, Extent, NodeId, OpId};
use crate::repair::Parity;
use crate::repair::{XorExtents, XorSources};
use crate::seq::Seq;
use crate::wire::{Origin, Probe};
use window::Window;

/// Where a datagram of a group goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// To all members: by the group's multicast address, or to each by unicast if it has none.
    All,
    /// To one member.
    Node(NodeId),
}

/// A broadcast under way.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its name at this node.
    pub id: OpId,
    /// Number of the operation's first packet.
    pub base: Seq,
    /// Number and length of its packets.
    pub cut: Cut,
    /// Its length in bytes.
    pub len: u64,
    /// Whether a caller waits until every member has it.
    pub awaited: bool,
    /// Transmissions that the transport has not finished.
    pub out: u32,
    /// Whether every member that counts has it.
    pub complete: bool,
}

impl Op {
    /// Number of the first packet after it.
    pub fn end(&self) -> Seq {
        self.base + self.cut.packets
    }

    /// The extent of packet `seq`, which belongs to this operation.
    pub fn extent(&self, seq: Seq) -> Extent {
        let index = seq.from(self.base) as u32;
        Extent::packet(self.id, index, self.len, self.cut.payload_size)
    }
}

/// A path: the way to a group or to one receiver, with its own window and pacer.
pub struct Path {
    /// Its number among all paths that this sender has had.
    pub number: u32,
    /// The group or the receiver that it leads to.
    pub to: Target,
    /// The packets that have been sent and may have to be sent again.
    pub window: Window,
    /// Decides how fast the path sends.
    pub pacer: Pacer,
    /// Number of new packets sent.
    pub fresh: u32,
    /// Number of members that need more than one try for a packet, on average.
    pub lossy: u32,
    /// Whether its member hears the group's path too: then packets that the group's path has sent
    /// count as sent here.
    pub follows: bool,
    /// Number of members whose ACK is the window's base, which therefore hold it there.
    pub at_base: u32,
    /// The least right edge of all members that the sender waits for; `None`: no member is ready.
    pub limit: Option<Seq>,
    /// Number of members whose right edge is `limit`.
    pub at_limit: u32,
}

/// What the sender sends next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transmission {
    /// A data packet.
    Data {
        /// Its destination.
        to: Target,
        /// The burst that it belongs to.
        burst: u16,
        /// The stream that the packet belongs to.
        origin: Origin,
        /// The packet's number.
        seq: Seq,
        /// Flags of the data frame.
        flags: u8,
        /// The extent of its payload.
        extent: Extent,
    },
    /// An XOR repair packet.
    Xor {
        /// Its destination.
        to: Target,
        /// The burst that it belongs to.
        burst: u16,
        /// The packets that it combines.
        sources: XorSources,
        /// Flags of the XOR repair frame.
        flags: u8,
        /// The extents of these packets.
        sum: XorExtents,
    },
    /// A parity packet.
    Parity {
        /// Its destination.
        to: Target,
        /// The burst that it belongs to.
        burst: u16,
        /// Number of its code block's first packet.
        first: Seq,
        /// The code block, and the parity packet's index in it.
        parity: Parity,
        /// Length in bytes of the operation's last packet; 0: it is not in the block.
        end: u16,
        /// Flags of the parity frame.
        flags: u8,
    },
    /// A sync frame.
    Sync {
        /// Its destination.
        to: Target,
        /// The node that sends the stream.
        sender: NodeId,
        /// Everything before this has been sent.
        next: Seq,
    },
    /// A probe to the group.
    Probe(Probe),
}
