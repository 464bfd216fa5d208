//! One step of a schedule, as one rank sees it.

use fabricast_proto::Barrier;

/// A range of bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where the range begins, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub len: u64,
}

impl Part {
    /// The part of a step that carries no bytes.
    pub const NONE: Part = Part { offset: 0, len: 0 };

    /// Where the range ends, in bytes.
    pub fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// What a rank does in a step.
///
/// A reduction will be one more action: to combine a part that has arrived with the rank's own
/// bytes, once the step that received it is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It receives the part from the peer.
    Receive,
    /// It sends the part to the peer.
    Send,
    /// It enters the peers' barrier and holds them in it (spec 3.4). The step is over when all of
    /// them have entered.
    Hold(Barrier),
    /// It enters the peers' barrier. The step is over when all of them may leave.
    Meet(Barrier),
    /// It releases the peers that it holds in the barrier of an earlier step.
    Release,
}

impl Action {
    /// Whether the step is a phase of a barrier.
    pub fn is_barrier(&self) -> bool {
        !matches!(self, Action::Receive | Action::Send)
    }
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
        /// The rank that broadcasts; in a barrier the rank that releases the others.
        root: usize,
    },
    /// The ranks of this host, through the memory that they share.
    Local {
        /// The rank that broadcasts; in a barrier the rank that releases the others.
        root: usize,
    },
}

/// One step, as one rank sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// What the rank does.
    pub action: Action,
    /// The other end.
    pub peer: Peer,
    /// The bytes that the step carries.
    pub part: Part,
    /// The step of the same rank that must be over before this one begins: for a send, the step
    /// that receives what it carries. `None`: the step waits for no other.
    pub after: Option<usize>,
}
