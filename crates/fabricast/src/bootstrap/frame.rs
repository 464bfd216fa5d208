//! Frames on a control connection: a kind, a length, that many bytes.
//!
//! ```text
//!   0        1                          4
//!   ┌────────┬──────────────────────────┬───────────────
//!   │ kind   │ length (big-endian)      │ bytes
//!   └────────┴──────────────────────────┴───────────────
//! ```
//! Kind `M`: a message in JSON. Kind `B`: bulk bytes that the receiver requested. Kind `I`: a frame
//! of a reliable channel ([`fabricast_proto::ibrmp::Frame`]), with the bytes of its file if it is a
//! DATA message.

use fabricast_proto::ibrmp;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Length of a frame's head in bytes.
pub const HEAD: usize = 4;
/// Longest message in bytes. `Start` names every member: 65 536 of them fit.
pub const MESSAGE_MAX: usize = 1 << 19;
/// Longest message that a sender takes, in bytes: no message of a receiver needs more.
pub const REQUEST_MAX: usize = 4096;
/// Longest bulk frame in bytes: a block, or a part of the hash list.
pub const BULK_MAX: usize = crate::object::BLOCK;

/// Longest frame of a reliable channel to a receiver, in bytes.
pub const IBRMP_MAX: usize = ibrmp::HEADER_LEN + ibrmp::DATA_MAX as usize;
/// Longest frame of a reliable channel to the sender, in bytes: no request has a payload.
pub const IBRMP_REQUEST_MAX: usize = ibrmp::HEADER_LEN;

const MESSAGE: u8 = b'M';
const BULK: u8 = b'B';
const IBRMP: u8 = b'I';

const _: () = assert!(BULK_MAX < 1 << 24 && MESSAGE_MAX < 1 << 24);

/// Kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A message.
    Message,
    /// Bytes that were requested.
    Bulk,
    /// A frame of a reliable channel.
    Ibrmp,
}

/// The longest frames of each kind that a reader takes, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Longest {
    /// Of a message.
    pub message: usize,
    /// Of bulk bytes.
    pub bulk: usize,
    /// Of a frame of a reliable channel.
    pub ibrmp: usize,
}

/// What a sender takes.
pub const TO_SENDER: Longest = Longest {
    message: REQUEST_MAX,
    bulk: 0,
    ibrmp: IBRMP_REQUEST_MAX,
};
/// What a receiver takes.
pub const TO_RECEIVER: Longest = Longest {
    message: MESSAGE_MAX,
    bulk: BULK_MAX,
    ibrmp: IBRMP_MAX,
};

/// Parses a head into kind and length. `None` if the kind is unknown or the length is not allowed.
pub fn head(bytes: [u8; HEAD], longest: Longest) -> Option<(Kind, usize)> {
    let [kind, a, b, c] = bytes;
    let len = u32::from_be_bytes([0, a, b, c]) as usize;
    match kind {
        MESSAGE if len <= longest.message => Some((Kind::Message, len)),
        BULK if len <= longest.bulk => Some((Kind::Bulk, len)),
        IBRMP if len <= longest.ibrmp => Some((Kind::Ibrmp, len)),
        _ => None,
    }
}

fn put_head(out: &mut Vec<u8>, kind: u8, len: usize) {
    let [_, a, b, c] = (len as u32).to_be_bytes();
    out.extend_from_slice(&[kind, a, b, c]);
}

fn put(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    put_head(out, kind, bytes.len());
    out.extend_from_slice(bytes);
}

/// Appends a message.
pub fn put_message(out: &mut Vec<u8>, message: &impl Serialize) {
    let json = serde_json::to_vec(message).expect("messages are plain data");
    put(out, MESSAGE, &json);
}

/// Appends bulk bytes.
pub fn put_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, BULK, bytes);
}

/// Appends a frame of a reliable channel, up to its payload. The caller appends that: the bytes of
/// a DATA message, `payload` in number, or nothing.
pub fn put_ibrmp(out: &mut Vec<u8>, frame: &ibrmp::Frame, payload: usize) {
    let mut header = Vec::with_capacity(ibrmp::HEADER_LEN);
    frame.encode(&mut header);
    put_head(out, IBRMP, header.len() + payload);
    out.extend_from_slice(&header);
}

/// Parses a message.
pub fn message<M: DeserializeOwned>(bytes: &[u8]) -> Option<M> {
    serde_json::from_slice(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::super::message::{Start, ToReceiver};
    use super::*;

    #[test]
    fn a_head_says_no_more_than_is_allowed() {
        let mut out = Vec::new();
        put_bulk(&mut out, &[7; 1000]);
        let bytes = out[..HEAD].try_into().unwrap();
        let longest = |bulk| Longest {
            message: 10,
            bulk,
            ibrmp: 28,
        };
        assert_eq!(head(bytes, longest(1000)), Some((Kind::Bulk, 1000)));
        assert_eq!(head(bytes, longest(999)), None);
        assert_eq!(head(*b"GET ", TO_RECEIVER), None);
        assert_eq!(head([b'I', 0, 0, 28], TO_SENDER), Some((Kind::Ibrmp, 28)));
        assert_eq!(head([b'I', 0, 0, 29], TO_SENDER), None);
    }

    #[test]
    fn the_longest_start_fits() {
        let mut out = Vec::new();
        let ip = |text: &str| text.parse::<std::net::SocketAddr>().unwrap();
        let start = Start {
            group: Some(ip("[ff15::1234:5678]:7641").into()),
            root: ip("[fe80::1]:65535").into(),
            payload_size: 65_000,
            window: 32_768,
            members: (0..fabricast_proto::limits::MEMBERS_MAX as u32).collect(),
            scheme: "coroot(2)+aggregate(10)".into(),
            addresses: Vec::new(),
            compares: None,
            late: false,
        };
        put_message(&mut out, &ToReceiver::Start(start.clone()));
        assert!(out.len() - HEAD <= MESSAGE_MAX);
        assert_eq!(message(&out[HEAD..]), Some(ToReceiver::Start(start)));
    }
}
