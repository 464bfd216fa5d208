//! The protocol core of Fabricast.
//!
//! A driver passes commands and packets to a [`Node`] and asks it what to do next. The node holds
//! no sockets, no clock, no threads and no payload bytes: **the core moves extents, the driver
//! moves bytes**. The same `Node` runs over UDP, in the simulator and, later, over InfiniBand
//! verbs.
//!
//! ```text
//!   command ─┐                          ┌─ Transmit(header bytes, extent)
//!   packet  ─┤→  Node (state machine) ─→├─ Place(token, extent)
//!   placed  ─┤                          ├─ Release / Event
//!   sent    ─┘                          └─ Wait(until)
//! ```
//!
//! A payload is an extent of an object. To repair several losses at once, it is the exclusive or of
//! several extents (`repair::xor`) or a parity packet of a code block (`repair::block`).
//!
//! Read `border` and `node` first, then `sender` (the sending side of a stream) and `receiver` (the
//! receiving side). A sender has `member`s and `path`s. A path has a window of packets under way, a
//! pacer and bursts; a prover finds out which members multicast reaches. A receiver has `gaps` and
//! a feedback scheduler, which sends ACKs and NACKs. `scheme::hierarchy` says to which node each
//! receiver reports: with most schemes to the sender, else to a co-root (a `Sender` within a
//! `Receiver`) or to its parent in a tree. `barrier` shares only the node with the streams.
//!
//! # A node driven by hand
//!
//! A driver is a loop: it passes packets to the node, and executes the outputs of [`Node::poll`]
//! until the output is [`Output::Wait`]. Here two nodes share a network that is a queue, and time
//! is a number:
//!
//! ```
//! use std::collections::VecDeque;
//! use std::time::Duration;
//!
//! use fabricast_proto::{
//!     Command, Config, Event, GroupId, Node, NodeId, Outcome, Output, Payload, Placement, Scheme,
//!     Seq, Session, Time, wire,
//! };
//!
//! let node = |id: u32| {
//!     let config = Config {
//!         node: NodeId(id),
//!         session: Session(1),
//!         scheme: Scheme::auto(),
//!         unexpected_max: 64,
//!         backlog: 256,
//!         rate: None,
//!         patience: Duration::from_secs(10),
//!     };
//!     let mut node = Node::new(config, u64::from(id));
//!     let add = Command::GroupAdd {
//!         group: GroupId(1),
//!         address: None,
//!         members: vec![NodeId(0), NodeId(1)],
//!         payload_size: 1000,
//!         start: Seq(0),
//!     };
//!     node.command(Time::ZERO, add).unwrap();
//!     node
//! };
//! let mut nodes = [node(0), node(1)];
//! let object: Vec<u8> = (0..5000).map(|i| i as u8).collect();
//! let mut copy = vec![0; object.len()];
//! let (group, len) = (GroupId(1), object.len() as u64);
//! let bcast = Command::Bcast { group, len, awaited: true };
//! nodes[0].command(Time::ZERO, bcast).unwrap();
//! let post = Command::Post { group, sender: NodeId(0), len };
//! nodes[1].command(Time::ZERO, post).unwrap();
//!
//! let (mut network, mut now, mut complete) = (VecDeque::<(usize, Vec<u8>)>::new(), Time(1), 0);
//! while complete < 2 {
//!     // Datagrams arrive: the node says where each payload belongs.
//!     while let Some((to, bytes)) = network.pop_front() {
//!         let datagram = wire::decode(&bytes).expect("only nodes write here");
//!         for frame in datagram.frames() {
//!             let placement = nodes[to].packet(now, now, &datagram.header, &frame);
//!             if let (Placement::Write(extent), wire::Frame::Data(data)) = (placement, frame) {
//!                 let at = extent.offset as usize;
//!                 copy[at..at + data.payload.len()].copy_from_slice(data.payload);
//!                 nodes[to].placed(now, extent, Outcome::Ok);
//!             }
//!         }
//!     }
//!     // Each node says what to do, until it has nothing more to do now.
//!     let mut next = None::<Time>;
//!     for (id, node) in nodes.iter_mut().enumerate() {
//!         loop {
//!             let mut space = [0; 2000];
//!             let mut datagram = wire::Writer::new(&mut space);
//!             match node.poll(now, &mut datagram) {
//!                 Output::Transmit(transmit) => {
//!                     if let Some(Payload::Extent(extent)) = transmit.payload {
//!                         let at = extent.offset as usize;
//!                         datagram.put(&object[at..at + extent.len as usize]);
//!                     }
//!                     if transmit.payload.is_some() {
//!                         node.sent(now, transmit.token);
//!                     }
//!                     network.push_back((1 - id, datagram.to_vec()));
//!                 }
//!                 Output::Event(Event::Complete(_)) => complete += 1,
//!                 Output::Wait(until) => {
//!                     next = [next, until].into_iter().flatten().min();
//!                     break;
//!                 }
//!                 _ => {}
//!             }
//!         }
//!     }
//!     if network.is_empty() {
//!         now = next.unwrap_or(now);
//!     }
//! }
//! assert_eq!(copy, object);
//! ```
#![forbid(unsafe_code)]

mod barrier;
mod border;
mod challenge;
pub mod group;
mod histogram;
pub mod ibrmp;
pub mod id;
pub mod limits;
mod membership;
pub mod mutant;
mod node;
mod nonce;
mod path;
mod receiver;
mod repair;
pub mod rng;
mod schedule;
pub mod scheme;
mod sender;
pub mod seq;
pub mod time;
#[cfg(test)]
mod vector;
pub mod wire;

pub use border::{
    Command, Config, Counters, Dest, Event, MemberStatus, Outcome, Output, PathState, Placement,
    Refused, Transmit,
};
pub use histogram::Histogram;
pub use id::{AddressId, Extent, GroupId, NodeId, OpId, Session, Token};
pub use membership::{Admission, Slot};
pub use node::Node;
pub use receiver::gaps;
pub use repair::{CodeBlock, Packets, Parity, Payload, XorExtents, XorSources, positions};
pub use schedule::{Barrier, Reached, Schedule, UnknownBarrier};
pub use scheme::Scheme;
pub use seq::Seq;
pub use time::Time;
