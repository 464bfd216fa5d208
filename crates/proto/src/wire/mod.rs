//! The wire format (spec/1-wire). [`decode`] is the only way in: what it returns is checked, and
//! no accessor of it can fail. Writing goes through the `put_*` functions, which append to a
//! buffer of the caller's.
//!
//! A datagram is one [`Header`] and one or more frames. Numbers are big-endian.

mod ranges;
mod read;
mod write;

pub use ranges::{RANGE_LEN, Ranges};
pub use read::{Datagram, DecodeError, Frames, decode, source};
pub use write::{
    put_check, put_data, put_feedback, put_header, put_parity, put_probe, put_probe_ack, put_query,
    put_reply, put_sync, put_word, put_xor, set_check,
};

use crate::id::{GroupId, NodeId, Session};
use crate::repair::XorSources;
use crate::schedule::{Barrier, Reached};
use crate::seq::Seq;

/// The version that this code speaks.
pub const VERSION: u8 = 1;
/// Length of the header without extensions, in bytes.
pub const HEADER_LEN: usize = 16;
/// Length of a data frame, and of a coded or parity one, without its payload, in bytes.
pub const DATA_LEN: usize = 16;
/// What a data, coded or parity packet adds to its payload, in bytes.
pub const DATA_OVERHEAD: usize = HEADER_LEN + DATA_LEN;
/// Length of a check frame, in bytes.
pub const CHECK_LEN: usize = 8;
/// Length of a feedback frame without its ranges, in bytes.
pub const FEEDBACK_LEN: usize = 44;
/// Length of a sync frame, in bytes.
pub const SYNC_LEN: usize = 16;
/// Length of a probe without padding and of a probe's answer, in bytes.
pub const PROBE_LEN: usize = 12;
/// Length of a word, in bytes.
pub const WORD_LEN: usize = 24;
/// Length of a query and of a reply, in bytes. They are equal, so that a reply is no larger than
/// what caused it.
pub const QUERY_LEN: usize = 40;

/// Kinds of frames. Those that this version reserves are refused by [`decode`].
pub mod kind {
    /// Payload of a broadcast.
    pub const DATA: u8 = 1;
    /// What a receiver has, lacks and can take.
    pub const FEEDBACK: u8 = 2;
    /// What the sender has sent; asks for feedback.
    pub const SYNC: u8 = 3;
    /// Tries a path at full datagram size.
    pub const PROBE: u8 = 4;
    /// Answers a probe.
    pub const PROBE_ACK: u8 = 5;
    /// An XOR repair packet: the exclusive or of several packets of a broadcast.
    pub const CODED: u8 = 6;
    /// How far a node has come with the barriers of a group.
    pub const WORD: u8 = 7;
    /// Reserved: version, features and path MTU.
    pub const HELLO: u8 = 8;
    /// Proves that the datagram is as it was sent; always the first frame.
    pub const CHECK: u8 = 9;
    /// A parity packet of a block of a broadcast.
    pub const PARITY: u8 = 10;
    /// Asks a node whether it said what its datagrams seem to say.
    pub const QUERY: u8 = 11;
    /// Answers a query.
    pub const REPLY: u8 = 12;
    /// Reserved: an authentication trailer, always the last frame.
    pub const AUTH: u8 = 15;
}

/// Flags of frames, by kind.
pub mod flag {
    /// Data, coded: every receiver is to answer with feedback at its turn. Parity: those that still
    /// lack packets of the block. Word: the receiver is to answer with its own.
    pub const ACK_REQUEST: u8 = 1;
    /// Data: sent before, to somebody.
    pub const REPAIR: u8 = 2;
    /// Data: sent again by another node than the stream's sender.
    pub const RELAYED: u8 = 4;
    /// Data: the operation's last packet.
    pub const LAST: u8 = 8;
    /// Feedback: data has been received, so that the fields about the newest burst mean something.
    pub const BURST: u8 = 1;
    /// Feedback: piggybacked on a datagram that others receive, too.
    pub const PIGGYBACKED: u8 = 2;
    /// Probe and its answer: the probe went to the group's address.
    pub const MULTICAST: u8 = 1;
    /// Probe and its answer: the probe names the only node that is to answer.
    pub const ALONE: u8 = 2;
    /// Word: it goes to one node, and says how far that one has been heard to be.
    pub const ECHO: u8 = 2;
    /// Word, reply: no barrier of the group will complete any more.
    pub const ENDED: u8 = 4;
    /// Reply: the operation that was asked about is under way, and the reply describes it.
    pub const KNOWN: u8 = 1;
    /// Check: the sum of the datagram's words.
    pub const ADDITIVE: u8 = 1;
    /// Check: CRC-32C.
    pub const CRC32C: u8 = 2;
}

/// What each datagram carries to prove that it is as it was sent. Of a datagram whose proof fails
/// nothing is believed, not even its number: it is lost (P4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Nothing: what the network checks by itself is enough.
    None,
    /// The sum of its 32-bit words. It misses words that have changed places, and changes that
    /// cancel out.
    Additive,
    /// CRC-32C (Castagnoli).
    Crc32c,
}

/// What every datagram starts with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Number of the sender's burst (at most [`crate::limits::BURST_PACKETS`] data
    /// packets), modulo 2^16; echoed by feedback.
    pub burst: u16,
    /// The node that sends it.
    pub source: NodeId,
    /// To which session it belongs.
    pub session: Session,
}

/// Proof that a datagram is as it was sent. The driver computes it over all bytes but the value
/// itself ([`Check::covers`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Check {
    /// Which proof; never [`Checksum::None`].
    pub checksum: Checksum,
    /// What was computed when it was sent.
    pub value: u32,
    at: usize,
}

impl Check {
    /// What the value is computed over: what lies before it and what lies behind it in the
    /// datagram, or in the head of one, of which it is a part.
    pub fn covers<'a>(&self, bytes: &'a [u8]) -> [&'a [u8]; 2] {
        let (before, rest) = bytes.split_at(self.at);
        [before, &rest[4..]]
    }
}

/// One frame of a datagram, checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// See [`Data`].
    Data(Data<'a>),
    /// See [`XorRepair`].
    Xor(XorRepair<'a>),
    /// See [`Parity`].
    Parity(Parity<'a>),
    /// See [`Feedback`].
    Feedback(Feedback<'a>),
    /// See [`Sync`].
    Sync(Sync),
    /// See [`Probe`].
    Probe(Probe),
    /// Answer to a [`Probe`].
    ProbeAck(Probe),
    /// See [`Word`].
    Word(Word),
    /// See [`Query`].
    Query(Query),
    /// See [`Reply`].
    Reply(Reply),
}

/// One packet of a broadcast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Data<'a> {
    /// Group that it was sent to; the stream is named by group and sender.
    pub group: GroupId,
    /// Whose packet it is.
    pub origin: Origin,
    /// Sequence number of this packet; its bytes start at `(seq - op) * payload_size`.
    pub seq: Seq,
    /// [`flag::ACK_REQUEST`], [`flag::REPAIR`], [`flag::RELAYED`], [`flag::LAST`].
    pub flags: u8,
    /// The bytes.
    pub payload: &'a [u8],
}

/// Whose stream a data packet belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// The source's, and the operation is named by the sequence number of its first packet.
    Source(Seq),
    /// The source repairs for this sender ([`flag::RELAYED`]).
    Relayed(NodeId),
}

/// An XOR repair packet: the exclusive or of several packets of a broadcast, all sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XorRepair<'a> {
    /// Group that it was sent to.
    pub group: GroupId,
    /// Which packets.
    pub sources: XorSources,
    /// [`flag::ACK_REQUEST`].
    pub flags: u8,
    /// Their exclusive or; as long as the longest.
    pub payload: &'a [u8],
}

/// A parity packet of a block whose packets have all been sent before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parity<'a> {
    /// Group that it was sent to.
    pub group: GroupId,
    /// Number of the block's first packet.
    pub first: Seq,
    /// Packets of the block: 2 to [`crate::limits::BLOCK_PACKETS`].
    pub packets: u8,
    /// Which parity packet, less than [`crate::limits::PARITIES_MAX`].
    pub index: u8,
    /// [`flag::ACK_REQUEST`].
    pub flags: u8,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// The whole state of a receiver of one stream, so that any later one replaces a lost one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feedback<'a> {
    /// Group of the stream.
    pub group: GroupId,
    /// Sender of the stream.
    pub sender: NodeId,
    /// Everything before this has been placed.
    pub cum: Seq,
    /// Everything before this has been placed here and by all who report to this node.
    pub cum_subtree: Seq,
    /// The sender may send what lies before this; equal to `cum` is a closed window: the receiver
    /// has not posted what comes next and cannot hold it.
    pub limit: Seq,
    /// Everything before this is known to have been sent.
    pub high: Seq,
    /// Data packets not marked [`flag::REPAIR`] that had been received before the newest burst,
    /// modulo 2^32.
    pub received: u32,
    /// When the first packet of the newest burst arrived, by the receiver's clock in µs, modulo
    /// 2^32.
    pub arrived_us: u32,
    /// How long the receiver waited from then until this was sent, in µs.
    pub held_us: u32,
    /// The newest burst of the sender's that has arrived.
    pub burst: u16,
    /// [`flag::BURST`], [`flag::PIGGYBACKED`].
    pub flags: u8,
    /// What is missing, here or in the sub-tree, between `cum_subtree` and `high`, in rising order;
    /// cut off at [`crate::limits::RANGES_MAX`], and then only complete up to the last range.
    pub missing: Ranges<'a>,
}

/// Tells what has been sent, and asks for feedback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sync {
    /// Group of the stream.
    pub group: GroupId,
    /// Sender of the stream; the source is the sender or a co-root.
    pub sender: NodeId,
    /// Everything before this has been sent.
    pub next: Seq,
}

/// Tries a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Group whose path is tried.
    pub group: GroupId,
    /// Echoed in the answer.
    pub nonce: u32,
    /// [`flag::MULTICAST`], [`flag::ALONE`].
    pub flags: u8,
    /// With [`flag::ALONE`], the only node that is to answer. An answer does not repeat it.
    pub only: Option<NodeId>,
}

/// How far its source has come with the barriers of a group: state, so that any later one replaces
/// a lost one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Which group.
    pub group: GroupId,
    /// Barriers that the source has entered, and rounds of the last one that it has done.
    pub at: Reached,
    /// How far it has heard the receiver to be; none in a word that goes to the group.
    pub heard: Option<Reached>,
    /// What the last barrier that it has entered is; none before the first.
    pub barrier: Option<Barrier>,
    /// [`flag::ACK_REQUEST`], [`flag::ENDED`].
    pub flags: u8,
}

/// Asks a node by unicast what it sends, after a datagram that bears its name has contradicted what
/// this node expects. The forger of that datagram does not see the nonce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// Which group.
    pub group: GroupId,
    /// Asks about the operation of the receiver's own stream that contains this packet.
    pub seq: Seq,
    /// Echoed in the reply.
    pub nonce: u64,
}

/// What a node says of itself when it is asked by a [`Query`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// Which group.
    pub group: GroupId,
    /// The query's.
    pub nonce: u64,
    /// First packet and length in bytes of the operation of the source's stream that was asked
    /// about; `None`: no such operation is under way.
    pub op: Option<(Seq, u64)>,
    /// How far the source has come with the barriers of the group.
    pub at: Reached,
    /// The last barrier that the source has entered; none before the first.
    pub barrier: Option<Barrier>,
    /// Whether no barrier of the group will complete any more.
    pub ended: bool,
}

#[cfg(test)]
mod tests;
