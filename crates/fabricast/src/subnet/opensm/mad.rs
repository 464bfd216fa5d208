//! The bytes of management datagrams: requests about multicast memberships, and their answers.
//!
//! A MAD has 256 bytes: a common header (24), a header of RMPP (12, all zero: no answer here needs
//! more than one datagram), a header of subnet administration (20), and an attribute. The numbers
//! are those of the InfiniBand Architecture Specification, volume 1, sections 13.4 and 15.2.

use std::fmt;
use std::net::Ipv6Addr;

/// Length of a management datagram in bytes.
pub const MAD_LEN: usize = 256;
/// A management datagram.
pub type Mad = [u8; MAD_LEN];

/// Management class of subnet administration.
pub const CLASS_SA: u8 = 3;
/// Version of that class.
pub const CLASS_SA_VERSION: u8 = 2;
/// Queue pair of subnet administration.
pub const SA_QUEUE_PAIR: u32 = 1;
/// Key of that queue pair.
pub const SA_QUEUE_KEY: u32 = 0x8001_0000;

/// Attribute of a membership of a multicast group.
const MC_MEMBER_RECORD: u16 = 0x38;
/// Offset of the attribute.
const RECORD_AT: usize = 56;
/// Bit of the method that tells an answer.
const ANSWER: u8 = 0x80;
/// Bit of the join state of a port that sends and receives.
const FULL_MEMBER: u8 = 1;

/// Components of the record that a request sets.
const MGID: u64 = 1 << 0;
const PORT_GID: u64 = 1 << 1;
const Q_KEY: u64 = 1 << 2;
const T_CLASS: u64 = 1 << 6;
const P_KEY: u64 = 1 << 7;
const SL: u64 = 1 << 12;
const FLOW_LABEL: u64 = 1 << 13;
const JOIN_STATE: u64 = 1 << 16;

/// The status "busy": the request is to be sent again later.
const BUSY_BIT: u16 = 1;
/// The status of a create or join where the manager has no more multicast LIDs.
pub const NO_RESOURCES: u16 = 0x100;
/// The status of a plain join of a group that does not exist.
pub const INSUFFICIENT_COMPONENTS: u16 = 0x600;

/// A 128-bit InfiniBand address: of a port or of a multicast group. It is written as an IPv6
/// address is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GUID of the port that the address is of.
    pub fn guid(&self) -> u64 {
        read(&self.0, 8, u64::from_be_bytes)
    }

    /// The address of the port with another GUID in the same subnet.
    pub fn of_guid(&self, guid: u64) -> Gid {
        let mut gid = *self;
        gid.0[8..].copy_from_slice(&guid.to_be_bytes());
        gid
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a request is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Method {
    /// Reads the membership.
    Get = 0x01,
    /// Joins, and creates the group if the request has what that needs.
    Set = 0x02,
    /// Leaves.
    Delete = 0x15,
}

/// What the manager needs to know of a group to create it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Creation {
    /// Key that datagrams to the group carry.
    pub q_key: u32,
    /// Partition whose ports may join.
    pub p_key: u16,
    /// Service level.
    pub sl: u8,
}

/// A request about the membership of one port in one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Number that the answer repeats.
    pub transaction: u32,
    /// What to do.
    pub method: Method,
    /// The group.
    pub group: Gid,
    /// The port.
    pub port: Gid,
    /// With [`Method::Set`]: creates the group if it does not exist.
    pub creation: Option<Creation>,
}

/// The manager's answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Number of the request.
    pub transaction: u32,
    /// Zero, or why the manager has not done what the request says.
    pub status: u16,
    /// Multicast LID of the group.
    pub mlid: u16,
}

impl Answer {
    /// Whether the request is to be sent again later.
    pub fn is_busy(&self) -> bool {
        self.status & BUSY_BIT != 0
    }
}

/// Writes a request.
pub fn encode(request: &Request) -> Mad {
    let mut mad = [0; MAD_LEN];
    mad[0] = 1;
    mad[1] = CLASS_SA;
    mad[2] = CLASS_SA_VERSION;
    mad[3] = request.method as u8;
    // The upper half belongs to the kernel, which tells agents apart by it.
    mad[12..16].copy_from_slice(&request.transaction.to_be_bytes());
    mad[16..18].copy_from_slice(&MC_MEMBER_RECORD.to_be_bytes());
    let mut components = MGID | PORT_GID;
    let record = &mut mad[RECORD_AT..];
    record[..16].copy_from_slice(&request.group.0);
    record[16..32].copy_from_slice(&request.port.0);
    if request.method != Method::Get {
        record[48] = FULL_MEMBER;
        components |= JOIN_STATE;
    }
    if let (Method::Set, Some(creation)) = (request.method, request.creation) {
        record[32..36].copy_from_slice(&creation.q_key.to_be_bytes());
        record[40..42].copy_from_slice(&creation.p_key.to_be_bytes());
        record[44] = creation.sl << 4;
        components |= Q_KEY | T_CLASS | P_KEY | SL | FLOW_LABEL;
    }
    mad[48..56].copy_from_slice(&components.to_be_bytes());
    mad
}

/// Reads an answer. `None`: the datagram is something else.
pub fn decode(mad: &Mad) -> Option<Answer> {
    let is_answer = mad[3] & ANSWER != 0;
    let attribute = read(mad, 16, u16::from_be_bytes);
    if mad[1] != CLASS_SA || !is_answer || attribute != MC_MEMBER_RECORD {
        return None;
    }
    let record = &mad[RECORD_AT..];
    Some(Answer {
        transaction: transaction(mad),
        status: read(mad, 4, u16::from_be_bytes),
        mlid: read(record, 36, u16::from_be_bytes),
    })
}

/// The number of a request, also of one that has come back without an answer.
pub fn transaction(mad: &Mad) -> u32 {
    read(mad, 12, u32::from_be_bytes)
}

/// Reads a number in network byte order.
pub fn read<T, const N: usize>(bytes: &[u8], at: usize, number: fn([u8; N]) -> T) -> T {
    let mut copy = [0; N];
    copy.copy_from_slice(&bytes[at..at + N]);
    number(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().unwrap().octets())
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
        let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    }

    fn request(method: Method, creation: Option<Creation>) -> Request {
        Request {
            transaction: 0x0102_0304,
            method,
            group: gid("ff12:401b:ffff::1fe:1"),
            port: gid("fe80::2:c903:0:17"),
            creation,
        }
    }

    #[test]
    fn a_request_that_creates_has_these_bytes() {
        let creation = Creation {
            q_key: 0x0b1b,
            p_key: 0xffff,
            sl: 3,
        };
        let mad = encode(&request(Method::Set, Some(creation)));
        let expected = hex("01 03 02 02 0000 0000 0000000001020304 0038 0000 00000000
             000000000000000000000000
             0000000000000000 0000 0000 00000000000130c7
             ff12401bffff000000000000 01fe0001 fe80000000000000 0002c90300000017
             00000b1b 0000 00 00 ffff 00 00 30000000 01 000000");
        assert_eq!(mad[..expected.len()], expected);
        assert!(mad[expected.len()..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_plain_join_a_leave_and_a_question_name_less() {
        let head = "0000 0000 0000000001020304 0038 0000 00000000
                    000000000000000000000000 0000000000000000 0000 0000";
        let components = |method, creation| {
            let mad = encode(&request(method, creation));
            assert_eq!(mad[4..48], hex(head));
            (mad[3], read(&mad, 48, u64::from_be_bytes), mad[56 + 48])
        };
        let creation = Creation {
            q_key: 1,
            p_key: 1,
            sl: 1,
        };
        assert_eq!(components(Method::Set, None), (0x02, 0x1_0003, 1));
        assert_eq!(
            components(Method::Delete, Some(creation)),
            (0x15, 0x1_0003, 1)
        );
        assert_eq!(components(Method::Get, Some(creation)), (0x01, 0x3, 0));
    }

    #[test]
    fn an_answer_is_read() {
        let mut mad = encode(&request(Method::Set, None));
        assert_eq!(decode(&mad), None, "a request is no answer");
        mad[3] = 0x81;
        mad[4..6].copy_from_slice(&[0x01, 0x00]);
        // The kernel's half of the number does not matter.
        mad[8..12].copy_from_slice(&[9; 4]);
        mad[56 + 36..56 + 38].copy_from_slice(&[0xc0, 0x07]);
        let answer = Answer {
            transaction: 0x0102_0304,
            status: NO_RESOURCES,
            mlid: 0xc007,
        };
        assert_eq!(decode(&mad), Some(answer));
        assert!(!answer.is_busy());
        mad[5] = 1;
        assert!(decode(&mad).unwrap().is_busy());
        mad[1] = 4;
        assert_eq!(decode(&mad), None, "another class");
        mad[1] = CLASS_SA;
        mad[17] = 0x35;
        assert_eq!(decode(&mad), None, "another attribute");
    }

    #[test]
    fn a_port_s_address_has_its_guid() {
        let port = gid("fe80::2:c903:0:17");
        assert_eq!(port.guid(), 0x0002_c903_0000_0017);
        assert_eq!(port.of_guid(0x10), gid("fe80::10"));
        assert_eq!(format!("{port}"), "fe80::2:c903:0:17");
    }
}
