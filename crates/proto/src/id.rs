//! Names of things: nodes, groups, operations, extents.

/// A process that takes part, numbered by the bootstrap; unique within a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u32);

/// A set of nodes that receive the same multicasts; unique within a session, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupId(pub u32);

/// An operation of this node (a broadcast that it sends or has posted). Local: it is never on the
/// wire, where an operation is named by the sequence number of its first packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId(pub u32);

/// 64 random bits drawn in the bootstrap. A restart, a foreign job and a replay are other sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Session(pub u64);

/// Names a payload that the driver holds for the core, or the operation of which a transmission reads:
/// transmissions of one operation carry equal tokens, and each is told to [`crate::Node::sent`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// Bytes `offset .. offset + len` of the object of operation `op`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// The operation whose object is meant.
    pub op: OpId,
    /// First byte.
    pub offset: u64,
    /// Number of bytes; zero only for an object without bytes.
    pub len: u32,
}

impl Extent {
    /// Packet `index` of an object of `len` bytes, in payloads of `chunk` bytes.
    pub fn packet(op: OpId, index: u32, len: u64, chunk: u32) -> Extent {
        let offset = u64::from(index) * u64::from(chunk);
        let len = (len - offset).min(u64::from(chunk)) as u32;
        Extent { op, offset, len }
    }
}

/// Number of packets that an object of `len` bytes takes; one even if it has none.
pub fn packets(len: u64, chunk: u32) -> Option<u32> {
    let n = len.div_ceil(u64::from(chunk)).max(1);
    (n < 1 << 31).then_some(n as u32)
}
