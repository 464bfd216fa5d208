//! What crosses a node's border: commands, placements and outcomes go in; outputs and events come
//! out. Vocabulary only; what they do is in `node`.

use core::time::Duration;

use crate::barrier::Barrier;
use crate::block::{Block, Packets, Parity};
use crate::id::{Extent, GroupId, NodeId, OpId, Session, Token};
use crate::scheme::Scheme;
use crate::seq::Seq;
use crate::sum::{Payload, Sum};
use crate::time::Time;
use crate::waits::Waits;

/// What a node is told when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this node is.
    pub node: NodeId,
    /// The session that it belongs to.
    pub session: Session,
    /// How it makes multicast reliable.
    pub scheme: Scheme,
    /// Packets of each stream that this node can hold for broadcasts that it has not posted yet.
    pub hold: u32,
    /// Packets that may wait in the receive buffer before the network drops them.
    pub backlog: u32,
    /// A fixed rate in bytes (on the wire, without Ethernet and IP headers) per second, or the
    /// pacer's own.
    pub rate: Option<u64>,
    /// A receiver that has told nothing new for so long, while the root waits for it, is reported
    /// as [`Event::Slow`].
    pub patience: Duration,
}

/// What the caller wants.
#[derive(Clone, Debug)]
pub enum Command {
    /// A group of which this node is a member. `chunk` is the payload of a data packet in bytes.
    /// A group of two is a channel of reliable messages in either direction: nothing goes to its
    /// address, which the transport need not know.
    /// Members are listed alike on all nodes (a member's position is its turn); the driver tells
    /// the transport their addresses.
    GroupAdd {
        /// Its name.
        group: GroupId,
        /// Everyone in it, this node included.
        members: Vec<NodeId>,
        /// Payload of a data packet in bytes, the same on every node.
        chunk: u32,
        /// Number of the first packet of every stream in it, the same on every node.
        start: Seq,
    },
    /// Nothing more will be sent to the group or expected from it.
    GroupRemove(GroupId),
    /// A node is gone (its process ended, its link is dead, it was given up): nobody waits for it.
    /// In the groups that exist it is gone for good.
    PeerRemove(NodeId),
    /// A node that was gone is there again, and a member of groups that are added from now on.
    PeerAdd(NodeId),
    /// Prove by full-size probes which members multicast reaches; ends with [`Event::Proven`].
    /// Members that it does not reach are served by unicast, or given up if that fails too.
    Prove {
        /// Whose members.
        group: GroupId,
        /// How long to try multicast; if not at all, all members are served by unicast.
        multicast: Duration,
        /// How long then to try unicast.
        unicast: Duration,
    },
    /// Multicast does not reach these members, as the proof of another group has shown: this node
    /// serves them by unicast until they answer a multicast (spec 2.8).
    Unreached {
        /// Of which group.
        group: GroupId,
        /// Who. Nodes that are no members, or that are gone, are left out.
        members: Vec<NodeId>,
    },
    /// Send an object of `len` bytes to all other members. They must post it.
    Bcast {
        /// To whom.
        group: GroupId,
        /// Bytes.
        len: u64,
        /// Whether somebody waits until everybody has it: then its last packet asks for
        /// acknowledgements, else they may take their time.
        awaited: bool,
    },
    /// Take the next object of `root`; it has `len` bytes.
    Post {
        /// In which group.
        group: GroupId,
        /// From whom.
        root: NodeId,
        /// Bytes.
        len: u64,
    },
    /// Enter a barrier of a group. The k-th one of a group is the same one at all its members, who
    /// give the same algorithm; [`Event::Complete`] says that all have entered. Further ones may be
    /// asked for meanwhile: each is entered when the one before it has been left.
    Barrier {
        /// Of which group.
        group: GroupId,
        /// How it is made.
        algorithm: Barrier,
        /// Whether it stops before its last round, if it has several: [`Event::Gathered`] says that
        /// it has, and [`Command::Proceed`] lets it go on. The rank that releases the others thus
        /// learns that they have entered, and can keep them until others elsewhere have, too.
        held: bool,
    },
    /// The barrier of a group that has stopped goes on.
    Proceed(GroupId),
}

/// Why a command was refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// No such group here.
    NoGroup,
    /// The group exists already.
    GroupExists,
    /// This node, or the root, is not a member.
    NotMember,
    /// `chunk` is outside [`crate::limits::CHUNK_MIN`]`..=`[`crate::limits::CHUNK_MAX`].
    Chunk,
    /// A bound of [`crate::limits`] is reached; try again when something has completed.
    Busy,
    /// The object would need more than 2^31 packets.
    TooLong,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Refused::NoGroup => "no such group",
            Refused::GroupExists => "the group exists already",
            Refused::NotMember => "not a member of the group",
            Refused::Chunk => "payload size out of range",
            Refused::Busy => "too many operations or groups at once",
            Refused::TooLong => "the object has more than 2^31 packets; use a larger payload",
        })
    }
}

impl std::error::Error for Refused {}

/// What to do with a payload that has just arrived; answered at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Copy it into the object and tell [`crate::Node::placed`] when it is really there.
    Write(Extent),
    /// It is the sum of this extent and others: add those to it, copy what comes out, as far as the
    /// extent goes, and tell [`crate::Node::placed`]. If the others cannot be had any more, that
    /// is [`Outcome::Corrupt`].
    Solve(Extent, Sum),
    /// Keep it until [`Output::Rebuild`] or [`Output::Forget`] speaks of its block, or the
    /// operation is released.
    Keep(Parity),
    /// Keep it under this name until [`Output::Place`] says where it belongs.
    Hold(Token),
    /// Not needed.
    Discard,
}

/// What became of bytes that were to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// They are in the object.
    Ok,
    /// They were not what was sent: they must come again.
    Corrupt,
    /// The object cannot take them (disk full): the operation fails.
    Failed,
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dest {
    /// To everybody who has joined the group's address.
    Group(GroupId),
    /// To one node.
    Node(NodeId),
}

/// One datagram to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// To whom.
    pub to: Dest,
    /// Bytes that follow the head, if any.
    pub payload: Option<Payload>,
    /// To be told to [`crate::Node::sent`] when the transport reads the payload no more.
    pub token: Token,
}

/// How a member is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// By the group's multicast.
    Multicast,
    /// By packets of its own: multicast does not reach it, or it is the group's only receiver.
    Unicast,
    /// No datagram reaches it.
    Nothing,
}

/// What the caller should know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A broadcast has been placed by every receiver that counts (root), or here (receiver). Every
    /// member has entered a barrier.
    Complete(OpId),
    /// A barrier that is held has come to its last round.
    Gathered(OpId),
    /// A broadcast cannot complete here: its bytes could not be placed. A barrier never will, nor
    /// any other of its group: a member is gone, or has found that algorithms differ.
    Failed(OpId),
    /// How a member is reached has become known or has changed.
    Path {
        /// In which group.
        group: GroupId,
        /// Which member.
        node: NodeId,
        /// How it is reached from now on.
        reach: Reach,
    },
    /// [`Command::Prove`] has ended.
    Proven(GroupId),
    /// A member keeps the others waiting beyond [`Config::patience`]; it is told once. The caller
    /// may go on waiting or say [`Command::PeerRemove`].
    Slow {
        /// In which group.
        group: GroupId,
        /// Which member.
        node: NodeId,
    },
    /// A stream's packets don't fit what was posted: the root's object has another length. Or
    /// another member makes this barrier by another algorithm; then all barriers of the group have
    /// failed.
    Mismatch(OpId),
}

/// What the node wants next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a datagram: the head is what `poll` appended, the payload follows.
    Transmit(Transmit),
    /// A held payload belongs here; write it and tell [`crate::Node::placed`]. [`Output::Discard`]
    /// frees one that is not needed.
    Place(Token, Extent),
    /// A held payload is not needed.
    Discard(Token),
    /// There are enough parity packets of this block: compute these packets from them and from the
    /// block's others, write them and tell [`crate::Node::placed`] of each. If that cannot be done,
    /// each is [`Outcome::Corrupt`]. The parity packets are not needed any more.
    Rebuild(Block, Packets),
    /// Parity packets of this block are not needed any more.
    Forget(Block),
    /// The object of this operation is not read or written any more.
    Release(OpId),
    /// Something to know.
    Event(Event),
    /// Nothing until then, or until the next call: strictly in the future.
    Wait(Option<Time>),
}

/// How far a member of a group has come, as the root knows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemberStatus {
    /// Who.
    pub node: NodeId,
    /// How it is reached.
    pub reach: Reach,
    /// Bytes of the stream placed there, all operations together.
    pub placed: u64,
    /// Data packets that it was sent again, by unicast or because it asked first.
    pub repairs: u64,
    /// When it was last heard.
    pub heard: Option<Time>,
    /// How long the root has waited for it since it last got on (spec 2.7).
    pub waited: Duration,
    /// Whether it is gone.
    pub gone: bool,
}

/// Counters of a node, all since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Data packets sent for the first time to a group.
    pub data: u64,
    /// Data packets sent again to a group.
    pub repairs_multicast: u64,
    /// Coded packets among them: sums of several data packets, and parity packets.
    pub repairs_coded: u64,
    /// Data packets sent again to one node.
    pub repairs_unicast: u64,
    /// Data packets sent for the first time to one node: one that multicast does not reach, or the
    /// only receiver of its group.
    pub data_unicast: u64,
    /// Datagrams sent for the sake of a feedback frame.
    pub feedback_sent: u64,
    /// Feedback frames that rode on other datagrams.
    pub feedback_rode: u64,
    /// Feedback frames received.
    pub feedback_received: u64,
    /// Data packets received.
    pub received: u64,
    /// Data packets received that were here already, or could neither be placed nor held.
    pub duplicates: u64,
    /// Words of barriers sent for the first time.
    pub words: u64,
    /// Words sent again, with a question, because nothing had moved for a while.
    pub words_again: u64,
    /// Words sent because somebody had asked.
    pub words_answered: u64,
    /// Words received.
    pub words_received: u64,
    /// Frames dropped because they fit no group, member, operation or window.
    pub foreign: u64,
    /// For receivers: how long losses lasted, from when they could be noticed (a later packet came,
    /// or a question) to their repair; of several at once the first.
    pub losses: Waits,
}
