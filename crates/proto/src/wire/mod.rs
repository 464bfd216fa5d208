//! The wire format (spec/1-wire). Only [`decode`] reads datagrams: its result is checked, and none
//! of its accessors can fail. The `put_*` functions append to a [`Writer`] of the caller.
//!
//! A datagram is one [`Header`] and one or more frames. Numbers are big-endian.

mod ranges;
mod read;
mod write;
mod writer;

pub use ranges::{DECLINED_LEN, Declined, RANGE_LEN, Ranges};
pub use read::{Datagram, DecodeError, Frames, decode, source};
pub use write::{
    put_check, put_data, put_declining_feedback, put_feedback, put_header, put_parity, put_probe,
    put_probe_ack, put_query, put_reply, put_sync, put_word, put_xor, set_check,
};
pub use writer::{Writer, head};

use crate::id::{AddressId, GroupId, NodeId, Session};
use crate::membership::Slot;
use crate::repair::XorSources;
use crate::schedule::{Barrier, Reached};
use crate::seq::Seq;

/// The protocol version that this code implements.
pub const VERSION: u8 = 2;
/// Length of the header without extensions, in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of a data, coded or parity frame without its payload, in bytes.
pub const DATA_LEN: usize = 16;
/// Bytes that a data, coded or parity packet adds to its payload.
pub const DATA_OVERHEAD: usize = HEADER_LEN + DATA_LEN;
/// Length of a check frame, in bytes.
pub const CHECK_LEN: usize = 8;
/// Length of a feedback frame without a slot and without ranges, in bytes.
pub const FEEDBACK_LEN: usize = 44;
/// Length of the slot in the feedback of a receiver that joined later, in bytes.
pub const SLOT_LEN: usize = 4;
/// Length of a sync frame, in bytes.
pub const SYNC_LEN: usize = 16;
/// Length of a probe without padding and of a probe's answer, in bytes.
pub const PROBE_LEN: usize = 12;
/// Length of a word, in bytes.
pub const WORD_LEN: usize = 24;
/// Length of a query and of a reply, in bytes. Both are equal, so that a reply is no larger than
/// the query that caused it.
pub const QUERY_LEN: usize = 40;

/// Kinds of frames. [`decode`] refuses the reserved kinds.
pub mod kind {
    /// Payload of a broadcast.
    pub const DATA: u8 = 1;
    /// Feedback: what a receiver has (ACK), lacks (NACK) and can take (advertised window).
    pub const FEEDBACK: u8 = 2;
    /// A sync: up to which packet the sender has sent. It requests feedback.
    pub const SYNC: u8 = 3;
    /// A probe, which tests a path at full datagram size.
    pub const PROBE: u8 = 4;
    /// The answer to a probe.
    pub const PROBE_ACK: u8 = 5;
    /// An XOR repair packet: the exclusive or of several packets of a broadcast.
    pub const CODED: u8 = 6;
    /// A word: a node's progress through the barriers of a group.
    pub const WORD: u8 = 7;
    /// Reserved: version, features and path MTU.
    pub const HELLO: u8 = 8;
    /// A checksum, which shows whether the datagram arrived unchanged; always the first frame.
    pub const CHECK: u8 = 9;
    /// A parity packet of a block of a broadcast.
    pub const PARITY: u8 = 10;
    /// A query, which asks a node whether it really sent what datagrams in its name say.
    pub const QUERY: u8 = 11;
    /// The reply to a query.
    pub const REPLY: u8 = 12;
    /// Reserved: an authentication trailer, always the last frame.
    pub const AUTH: u8 = 15;
}

/// Flags of frames, by kind.
pub mod flag {
    /// Data, coded: every receiver answers with feedback at its turn. Parity: only receivers that
    /// still lack packets of the block answer. Word: the receiver answers with its own word.
    pub const ACK_REQUEST: u8 = 1;
    /// Data: the packet was sent before, to at least one receiver.
    pub const REPAIR: u8 = 2;
    /// Data: another node than the stream's sender sends the packet again.
    pub const RELAYED: u8 = 4;
    /// Data: the operation's last packet.
    pub const LAST: u8 = 8;
    /// Feedback: the receiver has received data, so that the fields about the newest burst are
    /// valid.
    pub const BURST: u8 = 1;
    /// Feedback: the feedback is piggybacked on a datagram that other nodes receive, too.
    pub const PIGGYBACKED: u8 = 2;
    /// Feedback: the receiver joined later, and the feedback names its slot.
    pub const SLOT: u8 = 4;
    /// Feedback: the receiver declines operations, and the feedback says which packets.
    pub const DECLINED: u8 = 8;
    /// Probe and its answer: the probe went to the group's address.
    pub const MULTICAST: u8 = 1;
    /// Probe and its answer: the probe names the only node that answers it.
    pub const ALONE: u8 = 2;
    /// Probe and its answer: the probe names the address by which members answer.
    pub const BY_ADDRESS: u8 = 4;
    /// Word: the word goes to one node, and repeats that node's progress as far as it is known.
    pub const ECHO: u8 = 2;
    /// Word, reply: no barrier of the group will complete any more.
    pub const ENDED: u8 = 4;
    /// Reply: the operation that the query names is under way, and the reply describes it.
    pub const KNOWN: u8 = 1;
    /// Check: the checksum is the sum of the datagram's 32-bit words.
    pub const ADDITIVE: u8 = 1;
    /// Check: the checksum is CRC-32C.
    pub const CRC32C: u8 = 2;
}

/// The checksum in each datagram. A receiver drops a datagram whose checksum is wrong: it trusts
/// none of its fields, not even its number, and the datagram counts as lost (P4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// No checksum: the checks of the network suffice.
    None,
    /// The sum of the datagram's 32-bit words. It misses swapped words, and changes that cancel
    /// out.
    Additive,
    /// CRC-32C (Castagnoli).
    Crc32c,
}

/// The header, with which every datagram starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Number of the sender's burst (at most [`crate::limits::BURST_PACKETS`] data packets),
    /// modulo 2^16. Feedback echoes it.
    pub burst: u16,
    /// The node that sends the datagram.
    pub source: NodeId,
    /// The session that the datagram belongs to.
    pub session: Session,
}

/// The checksum of a datagram. The driver, which moves the bytes, computes it over all bytes except
/// the value itself ([`Check::covers`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// Kind of checksum; never [`Checksum::None`].
    pub checksum: Checksum,
    /// The value that the sender computed.
    pub value: u32,
    at: usize,
}

impl Check {
    /// The bytes that the value covers: those before it and those after it. `bytes` is the datagram
    /// that contains this check, or the datagram's head.
    pub fn covers<'a>(&self, bytes: &'a [u8]) -> [&'a [u8]; 2] {
        let (before, rest) = bytes.split_at(self.at);
        [before, &rest[4..]]
    }
}

/// One checked frame of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// A data packet.
    Data(Data<'a>),
    /// An XOR repair packet.
    Xor(XorRepair<'a>),
    /// A parity packet.
    Parity(Parity<'a>),
    /// A receiver's feedback.
    Feedback(Feedback<'a>),
    /// A sender's sync.
    Sync(Sync),
    /// A probe of a path.
    Probe(Probe),
    /// The answer to a [`Probe`].
    ProbeAck(Probe),
    /// A node's word.
    Word(Word),
    /// A query to a node.
    Query(Query),
    /// The reply to a [`Query`].
    Reply(Reply),
}

/// One packet of a broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data<'a> {
    /// The group that the packet was sent to. Group and sender together name the stream.
    pub group: GroupId,
    /// The stream that the packet belongs to.
    pub origin: Origin,
    /// Sequence number of this packet; its bytes start at `(seq - op) * payload_size`.
    pub seq: Seq,
    /// [`flag::ACK_REQUEST`], [`flag::REPAIR`], [`flag::RELAYED`], [`flag::LAST`].
    pub flags: u8,
    /// The packet's bytes.
    pub payload: &'a [u8],
}

/// The stream that a data packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The stream of the datagram's source. The sequence number is that of the operation's first
    /// packet, which names the operation.
    Source(Seq),
    /// The stream of this sender, for which the source repairs ([`flag::RELAYED`]).
    Relayed(NodeId),
}

/// An XOR repair packet: the exclusive or of several packets of a broadcast, all sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XorRepair<'a> {
    /// The group that the packet was sent to.
    pub group: GroupId,
    /// The packets that are combined.
    pub sources: XorSources,
    /// [`flag::ACK_REQUEST`].
    pub flags: u8,
    /// The exclusive or of the sources, as long as the longest of them.
    pub payload: &'a [u8],
}

/// A parity packet of a block whose packets have all been sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parity<'a> {
    /// The group that the packet was sent to.
    pub group: GroupId,
    /// Number of the block's first packet.
    pub first: Seq,
    /// Number of packets in the block: 2 to [`crate::limits::BLOCK_PACKETS`].
    pub packets: u8,
    /// Index of the parity packet, less than [`crate::limits::PARITIES_MAX`].
    pub index: u8,
    /// Length in bytes of the operation's last packet, at least 1; 0: it is not in the block.
    pub end: u16,
    /// [`flag::ACK_REQUEST`].
    pub flags: u8,
    /// The parity packet's bytes.
    pub payload: &'a [u8],
}

/// Feedback: the whole state of a receiver of one stream, so that later feedback replaces lost
/// feedback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feedback<'a> {
    /// Group of the stream.
    pub group: GroupId,
    /// Sender of the stream.
    pub sender: NodeId,
    /// The receiver has placed every packet before this one.
    pub cum: Seq,
    /// The receiver and all receivers in its sub-tree have placed every packet before this one.
    pub cum_subtree: Seq,
    /// The advertised window: the sender may send packets before this one. If it equals `cum`, the
    /// window is closed: the receiver has not posted what comes next and cannot hold it.
    pub limit: Seq,
    /// The receiver knows that every packet before this one was sent.
    pub high: Seq,
    /// Number of data packets without [`flag::REPAIR`] that the receiver had received before the
    /// newest burst, modulo 2^32.
    pub received: u32,
    /// When the first packet of the newest burst arrived, by the receiver's clock in µs, modulo
    /// 2^32.
    pub arrived_us: u32,
    /// Time in µs from that arrival until the receiver sent this feedback.
    pub held_us: u32,
    /// The sender's newest burst that has arrived.
    pub burst: u16,
    /// [`flag::BURST`], [`flag::PIGGYBACKED`]. `slot` says whether the frame has [`flag::SLOT`],
    /// and `declined` whether it has [`flag::DECLINED`].
    pub flags: u8,
    /// The receiver's slot; `None`: the group was added with the receiver.
    pub slot: Option<Slot>,
    /// Packets of operations that the receiver declines: at most [`crate::limits::DECLINED_MAX`]
    /// ranges, which may lie before `cum` or after it.
    pub declined: Declined<'a>,
    /// The packets between `cum_subtree` and `high` that are missing here or in the sub-tree, in
    /// rising order. There are at most [`crate::limits::RANGES_MAX`] ranges. A list that was cut
    /// off is complete up to its last range.
    pub missing: Ranges<'a>,
}

/// A sync: states which packets have been sent, and requests feedback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sync {
    /// Group of the stream.
    pub group: GroupId,
    /// Sender of the stream; the source is the sender or a co-root.
    pub sender: NodeId,
    /// The sender has sent every packet before this one.
    pub next: Seq,
}

/// A probe, which tests a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The group whose path is tested.
    pub group: GroupId,
    /// Number that the answer echoes.
    pub nonce: u32,
    /// [`flag::MULTICAST`], [`flag::ALONE`], [`flag::BY_ADDRESS`].
    pub flags: u8,
    /// With [`flag::ALONE`], the only node that answers. The answer does not repeat it.
    pub only: Option<NodeId>,
    /// With [`flag::BY_ADDRESS`], the address by which members answer; else they answer by unicast.
    /// The answer does not repeat it.
    pub by: Option<AddressId>,
}

/// A word: the source's progress through the barriers of a group. It is state, so that a later word
/// replaces a lost one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// The group whose barriers are meant.
    pub group: GroupId,
    /// Barriers that the source has entered, and rounds of the last one that it has done.
    pub at: Reached,
    /// The receiver's progress as the source has heard it; `None` in a word that goes to the group.
    pub heard: Option<Reached>,
    /// Algorithm of the last barrier that the source has entered; `None` before the first.
    pub barrier: Option<Barrier>,
    /// [`flag::ACK_REQUEST`], [`flag::ENDED`].
    pub flags: u8,
}

/// A query: asks a node by unicast what it really sends, after a datagram in its name contradicted
/// what this node expects. A forger of that datagram does not see the nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// The group that the query is about.
    pub group: GroupId,
    /// A packet of the operation in question, in the queried node's own stream.
    pub seq: Seq,
    /// Number that the reply echoes.
    pub nonce: u64,
}

/// The reply to a [`Query`], in which a node states its own state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The group that the query was about.
    pub group: GroupId,
    /// The query's nonce.
    pub nonce: u64,
    /// First packet and length in bytes of the operation that the query named, in the source's own
    /// stream. `None`: no such operation is under way.
    pub op: Option<(Seq, u64)>,
    /// The source's progress through the barriers of the group.
    pub at: Reached,
    /// Algorithm of the last barrier that the source has entered; `None` before the first.
    pub barrier: Option<Barrier>,
    /// Whether no barrier of the group will complete any more.
    pub ended: bool,
}

#[cfg(test)]
mod tests;
