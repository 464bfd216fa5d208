//! The unexpected-message buffer: packets of broadcasts that are not posted yet.

use std::collections::VecDeque;

use crate::id::Token;
use crate::seq::Seq;

/// A packet that came before its operation was posted.
#[derive(Clone, Copy, Debug)]
pub struct Unexpected {
    /// Its number.
    pub seq: Seq,
    /// Number of its operation's first packet.
    pub op: Seq,
    /// Length of its payload in bytes.
    pub len: u32,
    /// Whether it is its operation's last packet.
    pub last: bool,
    /// The name by which the driver keeps its bytes.
    pub token: Token,
}

/// The unexpected-message buffer of one stream.
pub struct UnexpectedBuffer {
    /// The held packets, in the order of their numbers.
    pub packets: VecDeque<Unexpected>,
    /// Largest number of packets that the buffer holds.
    pub max: u32,
}
