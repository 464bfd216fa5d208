//! The protocol core of Fabricast.
//!
//! A [`Node`] is told commands and packets and is asked what to do next. It holds no sockets, no
//! clock, no threads and no payload bytes: **the core moves extents, the driver moves bytes**.
//! The same `Node` runs over UDP, in the simulator and, later, over InfiniBand verbs.
//!
//! ```text
//!   command ─┐                          ┌─ Transmit(header bytes, extent)
//!   packet  ─┤→  Node (state machine) ─→├─ Place(held, extent)
//!   placed  ─┤                          ├─ Release / Event
//!   sent    ─┘                          └─ Wait(until)
//! ```
//!
//! A payload is an extent of an object or, to repair several losses at once, a `sum` of extents or
//! a parity packet of a `block`.
//!
//! Read `border` and `node` first, then `root` (the sending side of a stream) and `inbound` (the
//! receiving side). A root is made of `lane`s, `member`s, `window`s of slots, `flights` and a
//! `pace`; a receiver of `gaps`; `prove` finds out whom multicast reaches, `losses` how often one
//! has to try. `hierarchy` says who reports to whom: with most schemes everybody to the root, else
//! to co-roots (a `root` within an `inbound`) or up a tree (`reporters`).
//! `barrier` stands by itself: it shares the node with the streams, and nothing else.
#![forbid(unsafe_code)]

mod barrier;
mod block;
mod border;
mod datagram;
mod demand;
mod doubt;
mod flights;
pub mod gaps;
mod hierarchy;
pub mod id;
mod inbound;
mod lane;
pub mod limits;
mod losses;
mod member;
pub mod mutant;
mod node;
mod nonce;
mod pace;
mod prove;
mod reporters;
pub mod rng;
mod root;
pub mod scheme;
pub mod seq;
mod sum;
pub mod time;
mod waits;
mod window;
pub mod wire;

pub use barrier::{Barrier, Reached, Schedule, UnknownBarrier};
pub use block::{Block, Packets, Parity, positions};
pub use border::{
    Command, Config, Counters, Dest, Event, MemberStatus, Outcome, Output, Placement, Reach,
    Refused, Transmit,
};
pub use id::{Extent, GroupId, NodeId, OpId, Session, Token};
pub use node::Node;
pub use scheme::Scheme;
pub use seq::Seq;
pub use sum::{Payload, Sources, Sum};
pub use time::Time;
pub use waits::Waits;
