//! One message of a schedule, as one of its ends sees it.

/// Some bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub len: u64,
}

/// Which way a part goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the peer.
    Receive,
    /// To the peer.
    Send,
}

/// Who is at the other end of a step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Peer {
    /// A rank, over a channel: a message between two.
    Rank(usize),
    /// All other members of a group, or the one of them who broadcasts to it.
    Group {
        /// Which group, by its place in a list that is the same on every rank.
        group: usize,
        /// Who broadcasts.
        root: usize,
    },
}

/// One message, as one of its ends sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which way it goes.
    pub way: Direction,
    /// Who is at the other end.
    pub peer: Peer,
    /// What it carries.
    pub part: Part,
    /// A send begins when this step of the same rank has received what it carries. `None`: the
    /// rank has it from the start.
    pub after: Option<usize>,
}
