//! What crosses a node's border: commands, placements and outcomes go in; outputs and events come
//! out. This module only defines the types; `node` acts on them.

use core::time::Duration;

use crate::histogram::Histogram;
use crate::id::{AddressId, Extent, GroupId, NodeId, OpId, Session, Token};
use crate::limits::FIRST_PACKETS;
use crate::membership::Admission;
use crate::repair::{CodeBlock, Packets, Parity};
use crate::repair::{Payload, XorExtents};
use crate::schedule::Barrier;
use crate::scheme::{FeedbackTopology, Scheme};
use crate::seq::Seq;
use crate::time::Time;

/// The configuration of a node, fixed when the node is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// The number of this node within its session.
    pub node: NodeId,
    /// The session that the node belongs to.
    pub session: Session,
    /// The scheme that makes multicast reliable; the same at all nodes of a session.
    pub scheme: Scheme,
    /// Packets of each stream that this node can hold for broadcasts that it has not posted yet.
    /// It is the same at all nodes of a session: the sender of a new stream relies on it and begins
    /// before it has heard the others.
    pub unexpected_max: u32,
    /// Packets that may wait in the receive buffer before the network drops them.
    pub backlog: u32,
    /// A fixed rate in bytes per second (on the wire, without Ethernet and IP headers), which holds
    /// for all streams of the node together; `None`: each path's pacer finds its rate.
    pub rate: Option<u64>,
    /// A receiver that has made no progress for this long while the sender waits for it is reported
    /// as [`Event::Slow`].
    pub patience: Duration,
}

impl Config {
    /// Packets of a new stream that its sender sends before it has heard the receivers, which it
    /// takes for a window that each of them has advertised.
    pub fn first_packets(&self) -> u32 {
        match self.scheme.topology {
            FeedbackTopology::Direct => self.unexpected_max.min(FIRST_PACKETS),
            // Where receivers report for others, the sender must have heard them.
            FeedbackTopology::Coroots(_) | FeedbackTopology::Tree(_) => 0,
        }
    }
}

/// A command of the caller to a node.
#[derive(Clone, Debug)]
pub enum Command {
    /// Adds a group that this node is a member of. Every member lists the members in the same
    /// order; a member's position is its turn to give feedback. The driver tells the transport the
    /// members' addresses.
    ///
    /// A group of two is a reliable message channel in both directions. It needs no address.
    GroupAdd {
        /// The group's number, the same on every node.
        group: GroupId,
        /// The multicast address by which this node sends to the group ([`Command::SendBy`]).
        address: Option<AddressId>,
        /// All members, this node included.
        members: Vec<NodeId>,
        /// Payload of a data packet in bytes, the same on every node.
        payload_size: u32,
        /// Number of the first packet of every stream in the group, the same on every node.
        start: Seq,
    },
    /// From now on, this node sends to a group by this multicast address, which all other members
    /// must have joined. Several groups may share an address, and members may send by different
    /// ones: frames name their group. Only the destination changes: nothing under way is lost or
    /// repeated. `None`: each datagram for the group goes to every member by unicast.
    SendBy {
        /// The group.
        group: GroupId,
        /// The address.
        address: Option<AddressId>,
    },
    /// Admits a node to this node's stream to a group, from the next broadcast on: broadcasts under
    /// way do not wait for it, and later ones do. The node gets a slot of the stream
    /// ([`crate::Node::admission`]), which the caller takes to it for [`Command::GroupJoin`]. The
    /// group's other members need not know of it, and the group's barriers go on without it. All
    /// members must have joined the address by which this node sends, also those of a group of two.
    ///
    /// A node that was removed may come back. Refused ([`Refused::Hierarchy`]) where receivers
    /// report for each other.
    MemberAdd {
        /// The group.
        group: GroupId,
        /// The node. It is no member, and it is not gone ([`Command::PeerRemove`]).
        node: NodeId,
    },
    /// Removes a node from a group: nothing waits for it any more, and its slot is free. What
    /// [`Command::PeerRemove`] does for all groups.
    MemberRemove {
        /// The group.
        group: GroupId,
        /// The member.
        node: NodeId,
    },
    /// Adds a group to which another node has admitted this one ([`Command::MemberAdd`]). This node
    /// receives the other node's stream, and takes no other part in the group.
    GroupJoin {
        /// The group's number, the same on every node.
        group: GroupId,
        /// The node whose stream it is.
        sender: NodeId,
        /// Payload of a data packet in bytes, the same on every node.
        payload_size: u32,
        /// What the sender's node has said about the join.
        admission: Admission,
    },
    /// Sets whether the group may outpace a member of this node's stream. If it may, and the member
    /// holds the others at less than half of what they could take, for as long as it may,
    /// [`Event::Outpaced`] says so.
    ///
    /// Refused ([`Refused::Hierarchy`]) where receivers report for each other.
    MayOutpace {
        /// The group.
        group: GroupId,
        /// The member.
        node: NodeId,
        /// How long it may do so. `None`, as at first: the group may not outpace it.
        may_hold: Option<Duration>,
    },
    /// Removes a group: this node sends nothing more to it and expects nothing more from it.
    GroupRemove(GroupId),
    /// A node is gone (its process ended, its link is dead, or the caller gave it up). No member
    /// waits for it any more. It returns to a group that exists now only by
    /// [`Command::MemberAdd`], after [`Command::PeerAdd`].
    PeerRemove(NodeId),
    /// A node that was gone is back. It can be a member of groups that are added from now on.
    PeerAdd(NodeId),
    /// Finds out by full-size probes which members multicast reaches. [`Event::Proven`] ends it.
    /// The sender serves members that multicast does not reach by unicast, and removes members that
    /// unicast does not reach either.
    Prove {
        /// The group whose members are probed.
        group: GroupId,
        /// How long multicast is tried. Zero: all members are served by unicast.
        multicast: Duration,
        /// How long unicast is tried after that.
        unicast: Duration,
    },
    /// Finds out which members a multicast address reaches, and from which it reaches this node: by
    /// full-size probes that go by the address, and are answered by it. [`Event::AddressProven`]
    /// ends it. The way in which the node sends to the group does not change.
    ProveAddress {
        /// A group of this node.
        group: GroupId,
        /// The address. The network must receive it.
        address: AddressId,
        /// The members that are probed. Nodes that are no members are ignored.
        members: Vec<NodeId>,
        /// How long they are probed.
        patience: Duration,
    },
    /// Records that multicast does not reach these members, as the proof of another group has
    /// shown. This node serves them by unicast until they answer a multicast probe (spec 2.8).
    Unreached {
        /// The group.
        group: GroupId,
        /// The members. Nodes that are no members, or that are gone, are ignored.
        members: Vec<NodeId>,
    },
    /// Broadcasts an object of `len` bytes to all other members of a group. They must post it.
    Bcast {
        /// The group.
        group: GroupId,
        /// Length of the object in bytes.
        len: u64,
        /// Whether the caller waits until every member has the object. If so, the last packet
        /// requests acknowledgements; if not, receivers may delay them.
        awaited: bool,
    },
    /// Posts a receive for the next object that `sender` broadcasts to a group.
    Post {
        /// The group.
        group: GroupId,
        /// The node that broadcasts.
        sender: NodeId,
        /// Length of the object in bytes, the same as at the sender.
        len: u64,
    },
    /// Declines the next object that `sender` broadcasts to a group, since this node has it
    /// already. Nothing of it is sent or repaired for this node, and nothing waits for this node
    /// because of it. If all receivers decline an object, it is complete without being sent.
    /// The command takes the place of [`Command::Post`]; no event follows.
    ///
    /// Refused ([`Refused::Hierarchy`]) where receivers report for each other.
    Decline {
        /// The group.
        group: GroupId,
        /// The node that broadcasts.
        sender: NodeId,
        /// Length of the object in bytes, the same as at the sender.
        len: u64,
    },
    /// Enters a barrier of a group. The k-th barrier of a group is the same one at all members, and
    /// all members name the same algorithm. [`Event::Complete`] says that all members have entered.
    /// Further barriers may be requested meanwhile: the node enters each of them when it has left
    /// the one before.
    Barrier {
        /// The group.
        group: GroupId,
        /// The barrier algorithm.
        algorithm: Barrier,
        /// Whether the barrier stops before its last round, if it has several rounds.
        /// [`Event::Arrived`] says that it has stopped, and [`Command::Release`] lets it go on. The
        /// rank that releases the others thus learns that they have entered, and can hold them
        /// until processes elsewhere have entered, too.
        held: bool,
        /// Whether a caller waits for the end of the barrier. If none does, the node probes later
        /// when words do not arrive.
        awaited: bool,
    },
    /// Lets the stopped barrier of a group go on.
    Release(GroupId),
    /// Sets the weight of this node's stream to a group. Streams that have something to send share
    /// the node's fixed rate in proportion to their weights. A stream with less to send than its
    /// share leaves the rest to the others. Without a fixed rate the weight has no effect.
    Weight {
        /// The group.
        group: GroupId,
        /// The weight, from 1 to [`crate::limits::WEIGHT_MAX`]. At first it is 1.
        weight: u32,
    },
    /// Sets this node's fixed rate, in bytes per second. The rate holds at once, also for what has
    /// been sent and is not paid for yet.
    ///
    /// Refused ([`Refused::Rate`]) if the rate is zero, or if the node was made without a fixed
    /// rate ([`Config::rate`]).
    Rate(u64),
}

/// Why a command was refused; nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// No such group here.
    NoGroup,
    /// The group exists already.
    GroupExists,
    /// This node, or the sender, is not a member.
    NotMember,
    /// `payload_size` is outside [`crate::limits::PAYLOAD_MIN`]`..=`[`crate::limits::PAYLOAD_MAX`],
    /// or the network's datagrams are shorter.
    PayloadSize,
    /// A bound of [`crate::limits`] is reached; try again when something has completed.
    Busy,
    /// The object would need more than 2^31 packets.
    TooLong,
    /// The node is a member already.
    IsMember,
    /// The node is gone ([`Command::PeerRemove`]).
    Gone,
    /// Receivers report for each other, so that none can join or decline.
    Hierarchy,
    /// This node has joined the group to receive one stream, and cannot take another part in it.
    ReceivesOnly,
    /// The weight is outside 1`..=`[`crate::limits::WEIGHT_MAX`].
    Weight,
    /// The rate is zero, or the node has no fixed rate that could change.
    Rate,
}

impl core::fmt::Display for Refused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Refused::NoGroup => "no such group",
            Refused::GroupExists => "the group exists already",
            Refused::NotMember => "not a member of the group",
            Refused::PayloadSize => "payload size out of range",
            Refused::Busy => "too many operations or groups at once",
            Refused::IsMember => "already a member of the group",
            Refused::Gone => "the node is gone",
            Refused::Hierarchy => {
                "no member joins or declines where receivers report for each other"
            }
            Refused::ReceivesOnly => "this node only receives one stream of the group",
            Refused::Weight => "weight out of range: it is from 1 to 1000",
            Refused::Rate => {
                "the rate cannot be set: it must be above zero, and the node must have a fixed rate"
            }
            Refused::TooLong => "the object has more than 2^31 packets; use a larger payload",
        })
    }
}

impl std::error::Error for Refused {}

/// What the driver does with a payload that has just arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// Write the payload to this extent of the object, and call [`crate::Node::placed`] when it is
    /// really there (a disk may take long).
    Write(Extent),
    /// The payload is the exclusive or of this extent and others. Exclusive-or the others into it,
    /// write as much of the result as the extent is long, and call [`crate::Node::placed`]. If the
    /// others cannot be read any more, report [`Outcome::Corrupt`].
    DecodeXor(Extent, XorExtents),
    /// Keep the payload until [`Output::DecodeParity`] or [`Output::DropParity`] names its block,
    /// or the operation is released.
    CacheParity(Parity),
    /// Keep the payload under this token: its broadcast is not posted yet. [`Output::Place`] says
    /// where it belongs, [`Output::Discard`] that it is not needed.
    Unexpected(Token),
    /// Drop the payload: it is not needed.
    Discard,
}

/// What became of bytes that were to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The bytes are in the object.
    Ok,
    /// The bytes are not what was sent. They must be sent again.
    Corrupt,
    /// The object cannot take the bytes (for example: disk full). The operation fails.
    Failed,
}

/// Where a datagram goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dest {
    /// To all nodes that have joined a multicast address.
    Address(AddressId),
    /// To one node.
    Node(NodeId),
}

/// One datagram to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transmit {
    /// The destination.
    pub to: Dest,
    /// The bytes that follow the head, if there are any.
    pub payload: Option<Payload>,
    /// Passed to [`crate::Node::sent`] when the transport does not read the payload any more.
    pub token: Token,
}

/// How a node reaches a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathState {
    /// By the group's multicast.
    Multicast,
    /// By unicast: multicast does not reach the member, or it is the group's only receiver.
    Unicast,
    /// No datagram reaches the member.
    Nothing,
}

/// What the node reports to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// An operation is complete. A broadcast of this node: every member that is not gone has placed
    /// or declined it. A broadcast of another node: this node has placed it. A barrier: every
    /// member has entered.
    Complete(OpId),
    /// A barrier that this node holds ([`Command::Barrier`]) has stopped before its last round.
    Arrived(OpId),
    /// An operation failed. A broadcast: its bytes could not be placed here. A barrier: a member is
    /// gone, or the members use different algorithms; no barrier of the group will complete.
    Failed(OpId),
    /// The path to a member has become known or has changed.
    Path {
        /// The group.
        group: GroupId,
        /// The member.
        node: NodeId,
        /// How this node reaches the member from now on.
        path_state: PathState,
    },
    /// [`Command::Prove`] has ended.
    Proven(GroupId),
    /// [`Command::ProveAddress`] has found that a member does not receive what goes by the address,
    /// or that this node does not receive what the member sends by it.
    AddressSilent {
        /// The group that names the member.
        group: GroupId,
        /// The address.
        address: AddressId,
        /// The member.
        node: NodeId,
    },
    /// [`Command::ProveAddress`] has ended. All members have answered that were not said to be
    /// silent.
    AddressProven {
        /// The group of the command.
        group: GroupId,
        /// The address.
        address: AddressId,
    },
    /// A member has kept the others waiting for longer than [`Config::patience`]. The node reports
    /// it once, until the member makes progress. The caller may go on waiting or remove the member
    /// ([`Command::PeerRemove`]).
    Slow {
        /// The group.
        group: GroupId,
        /// The member.
        node: NodeId,
    },
    /// A member that the group may outpace ([`Command::MayOutpace`]) takes less than half of what
    /// most others take, and has held them back for longer than [`Config::patience`]. The rate does
    /// not follow it any more. The caller removes it ([`Command::MemberRemove`]), or lets the rate
    /// follow it again ([`Command::MayOutpace`]).
    Outpaced {
        /// The group.
        group: GroupId,
        /// The member.
        node: NodeId,
    },
    /// Members mean different things by one operation. A broadcast: the sender's object has another
    /// length than the one posted here. A barrier: another member uses another algorithm, and all
    /// barriers of the group have failed.
    Mismatch(OpId),
}

/// What the driver does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Send a datagram: the head is what `poll` appended, the payload follows.
    Transmit(Transmit),
    /// Write the payload that was kept under this token ([`Placement::Unexpected`]) to this extent,
    /// and call [`crate::Node::placed`].
    Place(Token, Extent),
    /// Drop the payload that was kept under this token.
    Discard(Token),
    /// Compute these packets of the block from its other packets and from the cached parity
    /// packets, write them, and call [`crate::Node::placed`] for each. If that cannot be done,
    /// report each as [`Outcome::Corrupt`]. Then drop the parity packets of the block.
    DecodeParity(CodeBlock, Packets),
    /// Drop the cached parity packets of this block.
    DropParity(CodeBlock),
    /// The node neither reads nor writes the object of this operation any more: return it to the
    /// caller.
    Release(OpId),
    /// Report an event to the caller.
    Event(Event),
    /// Do nothing until this time (`None`: until the next call), which is strictly in the future.
    Wait(Option<Time>),
}

/// The progress of a receiver, as the sender knows it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemberStatus {
    /// The receiver.
    pub node: NodeId,
    /// How the sender reaches it.
    pub path_state: PathState,
    /// Bytes of the stream that the receiver has placed or declined, all operations together.
    pub placed: u64,
    /// Data packets that the sender retransmitted for it: by unicast, or because it was the first
    /// to NACK them.
    pub repairs: u64,
    /// When the sender last received feedback from it.
    pub heard: Option<Time>,
    /// How long the sender has waited for it since it last made progress (spec 2.7).
    pub waited: Duration,
    /// Whether it lacks packets that have been sent.
    pub lacks: bool,
    /// Whether the caller has removed it.
    pub gone: bool,
}

/// Counters of a node, all since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Data packets sent for the first time to a group.
    pub data: u64,
    /// Repairs sent to a group: retransmissions, XOR repair packets and parity packets.
    pub repairs_multicast: u64,
    /// XOR repair packets and parity packets sent to a group; `repairs_multicast` counts them, too.
    pub repairs_coded: u64,
    /// Data packets sent again to one node.
    pub repairs_unicast: u64,
    /// Data packets sent for the first time to one node: a member that multicast does not reach, or
    /// the only receiver of its group.
    pub data_unicast: u64,
    /// Datagrams sent for the sake of a feedback frame.
    pub feedback_sent: u64,
    /// Feedback frames that were piggybacked on other datagrams.
    pub feedback_piggybacked: u64,
    /// Feedback frames received.
    pub feedback_received: u64,
    /// Data packets received.
    pub received: u64,
    /// Data packets received that this node had already, or could neither place nor keep.
    pub duplicates: u64,
    /// Words of barriers sent for the first time.
    pub words: u64,
    /// Words sent again, with a request for an answer, because nothing had moved for a while.
    pub words_again: u64,
    /// Words sent because another rank had asked for them.
    pub words_answered: u64,
    /// Words received.
    pub words_received: u64,
    /// Frames dropped because they fit no group, member, operation or window.
    pub foreign: u64,
    /// How long losses lasted at a receiver, from when it could notice them (a later packet came,
    /// or a sync) to their repair. Of several losses at once only the first counts.
    pub losses: Histogram,
}
