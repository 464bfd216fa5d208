//! The unexpected-message buffer: packets of broadcasts that are not posted yet.

use std::collections::VecDeque;

use crate::id::Token;
use crate::seq::Seq;

/// A packet that came before its operation was posted.
#[derive(Clone, Copy, Debug)]
pub struct Unexpected {
    pub seq: Seq,
    pub op: Seq,
    pub len: u32,
    pub last: bool,
    pub token: Token,
}

/// Packets that came before their broadcasts were posted.
pub struct UnexpectedBuffer {
    /// In the order of their numbers.
    pub packets: VecDeque<Unexpected>,
    /// At most so many are kept.
    pub max: u32,
}
