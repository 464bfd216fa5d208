//! Fast, dependable one-to-many communication on the multicast that the network already has.
//!
//! The protocol itself is in [`proto`]; here it meets the world: [`transport`]s that carry
//! datagrams, [`object`]s that hold bytes, and the [`driver`] that joins them to one node.
#![deny(unsafe_code)] // allowed again, with reasons, in `transport::udp::sys` and `transport::shm::segment` alone

pub use fabricast_proto as proto;

pub mod bell;
pub mod bootstrap;
pub mod collective;
pub mod communicator;
pub mod config;
pub mod driver;
pub mod error;
mod net;
pub mod object;
pub mod pattern;
pub mod pingpong;
pub mod text;
pub mod transfer;
pub mod transport;
