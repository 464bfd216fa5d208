//! One message of a schedule, as one of its ends sees it.

/// A range of bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub len: u64,
}

/// The direction in which a part goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the peer to this rank.
    Receive,
    /// From this rank to the peer.
    Send,
}

/// The other end of a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// A rank, over a channel: the step is a message between two ranks.
    Rank(usize),
    /// A group: for the sender all other members, for a receiver the member that broadcasts.
    Group {
        /// The group, as an index into a list that is the same on every rank.
        group: usize,
        /// The rank that broadcasts.
        root: usize,
    },
}

/// One message, as one of its ends sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The direction in which the message goes.
    pub way: Direction,
    /// The other end.
    pub peer: Peer,
    /// The bytes that the message carries.
    pub part: Part,
    /// The step of the same rank that receives what a send carries; the send begins after it.
    /// `None`: the rank has the bytes from the start.
    pub after: Option<usize>,
}
