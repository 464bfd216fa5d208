//! Names of things: nodes, groups, operations, extents.

/// A process that takes part, numbered by the bootstrap; unique within a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u32);

/// A set of nodes that broadcast to each other; unique within a session, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct GroupId(pub u32);

/// A multicast address; unique within a session. Several groups may send by one address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AddressId(pub u32);

/// An operation of this node (a broadcast that it sends or has posted). It leads the node to its
/// group and its stream in one look-up, and so does whatever names it ([`Extent`], [`Token`]).
/// Local: it is never on the wire, where an operation is named by the sequence number of its first
/// packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId(pub u32);

/// 64 random bits drawn in the bootstrap. A restart, a foreign job and a replay are other sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Session(pub u64);

/// Names a payload that the driver holds for the core, or the operation whose object a transmission
/// reads. Transmissions of one operation carry equal tokens, and the driver passes each of them to
/// [`crate::Node::sent`].
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
    /// Packet `index` of an object of `len` bytes, in payloads of `payload_size` bytes.
    pub fn packet(op: OpId, index: u32, len: u64, payload_size: u32) -> Extent {
        let offset = u64::from(index) * u64::from(payload_size);
        let len = (len - offset).min(u64::from(payload_size)) as u32;
        Extent { op, offset, len }
    }

    /// Joins two extents to one, if `next` follows directly and the length of both fits 32 bits.
    pub fn joined(&self, next: &Extent) -> Option<Extent> {
        let follows = self.op == next.op && self.offset + u64::from(self.len) == next.offset;
        let len = self.len.checked_add(next.len).filter(|_| follows)?;
        Some(Extent { len, ..*self })
    }
}

/// Packets of the longest object that is cut into equal parts. Longer objects fill a message of the
/// network by themselves.
const EQUAL_MAX: u32 = 12;

/// How an object is cut into packets, the same at its sender and at its receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Number of packets; one even if the object has no bytes.
    pub packets: u32,
    /// Payload of each packet in bytes. The last packet's payload may be shorter.
    pub payload_size: u32,
}

impl Cut {
    /// Cuts an object of `len` bytes into packets with room for `payload_size` bytes; `None`: it
    /// has too many packets.
    pub fn new(len: u64, payload_size: u32) -> Option<Cut> {
        let n = len.div_ceil(u64::from(payload_size)).max(1);
        let packets = u32::try_from(n).ok().filter(|n| n >> 31 == 0)?;
        Some(Cut {
            packets,
            payload_size,
        })
    }

    /// Like [`Cut::new`], but cuts a short object into equal parts if that takes at most a third
    /// more packets. Many such objects in a row are then packets of one length, which networks take
    /// as one message.
    pub fn equal(len: u64, payload_size: u32) -> Option<Cut> {
        let whole = Cut::new(len, payload_size)?;
        let n = whole.packets;
        let even = |n: &u32| len.is_multiple_of(2 * u64::from(*n));
        let parts = match n {
            2..=EQUAL_MAX => (n..=n + n / 3).find(even),
            _ => None,
        };
        let equal = |packets| Cut {
            packets,
            payload_size: (len / u64::from(packets)) as u32,
        };
        Some(parts.map_or(whole, equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(len: u64) -> (u32, u32) {
        let cut = Cut::equal(len, 1448).unwrap();
        (cut.packets, cut.payload_size)
    }

    #[test]
    fn extents_are_joined_if_nothing_is_between_them() {
        let extent = |op, offset, len| Extent {
            op: OpId(op),
            offset,
            len,
        };
        let first = extent(1, 10, 5);
        assert_eq!(first.joined(&extent(1, 15, 7)), Some(extent(1, 10, 12)));
        for other in [
            extent(2, 15, 7),
            extent(1, 16, 7),
            extent(1, 10, 7),
            extent(1, 15, u32::MAX),
        ] {
            assert_eq!(first.joined(&other), None);
        }
    }

    #[test]
    fn short_objects_have_packets_of_one_length() {
        assert_eq!(
            [cut(2048), cut(4096), cut(8192)],
            [(2, 1024), (4, 1024), (8, 1024)]
        );
        // Equal parts take at most a third more packets, and the length must divide evenly.
        assert_eq!([cut(2900), cut(2049)], [(3, 1448), (2, 1448)]);
        assert_eq!(
            [cut(0), cut(1), cut(1448), cut(64 << 10)],
            [(1, 1448), (1, 1448), (1, 1448), (46, 1448)]
        );
    }

    #[test]
    fn no_object_has_more_packets_than_numbers_tell_apart() {
        assert_eq!(Cut::new(u64::MAX, 1448), None);
        assert_eq!(Cut::new((1 << 31) * 64, 64), None);
        assert!(Cut::new((1 << 31) * 64 - 64, 64).is_some());
    }
}
