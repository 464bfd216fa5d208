//! P3's messages as values, and their bytes (P3.2, spec 7.2).
//!
//! The values hold no payload of a file: the driver appends the bytes of a DATA message when it
//! sends one, and [`decode`] returns them beside the message when it reads one.

use std::sync::Arc;

use crate::limits;

/// Length of the header, with which every message starts, in bytes.
pub const HEADER_LEN: usize = 28;
/// Longest name of a file, in bytes. A BOF with it fits a datagram of 1232 bytes, which every IPv6
/// path carries.
pub const NAME_MAX: usize = 1024;
/// Most bytes of a file in one DATA message.
pub const DATA_MAX: u32 = limits::PAYLOAD_MAX;
/// Longest file, in bytes: what a file offset of the operating system can name.
pub const FILE_LEN_MAX: u64 = i64::MAX as u64;
/// Most files of one sender that are open at once, which is the number of its slots.
pub const SLOTS_MAX: u16 = 1024;

/// Bytes of a BOF's payload before the name: the file's length.
const BOF_LEN: usize = 8;

const _: () = assert!(HEADER_LEN + BOF_LEN + NAME_MAX <= 1232);

/// P3's *File ID*: the number of a file, unique within a sender. The sender numbers its files
/// 1, 2, 3 and so on in the order in which it opens them; it never uses a number again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// P3's *fd*: the sender's slot of an open file, less than [`SLOTS_MAX`]. Files use a slot one
/// after another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Fd(pub u16);

/// The name of a file: 1 to [`NAME_MAX`] bytes without NUL. The driver of the receiver decides
/// which names it accepts and where the file goes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name(Arc<[u8]>);

impl Name {
    /// The name of these bytes; `None` if it is empty, too long, or contains NUL.
    pub fn new(bytes: &[u8]) -> Option<Name> {
        let valid = (1..=NAME_MAX).contains(&bytes.len()) && !bytes.contains(&0);
        valid.then(|| Name(bytes.into()))
    }

    /// The bytes of the name.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// P3's *Message Type*. The discriminant is its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Type {
    /// An accumulated ACK. It is neither a request nor a response, and needs no credit.
    Ack = 0,
    /// Begin of file.
    Bof = 1,
    /// Bytes of a file.
    Data = 2,
    /// End of file.
    Eof = 3,
    /// The sender has closed the file.
    FileTimeout = 4,
    /// A request for the BOF.
    BofRequest = 5,
    /// A request for bytes of the file.
    DataRequest = 6,
    /// A receiver has the whole file.
    TransferDone = 7,
}

impl Type {
    /// All types, each at the index that is its number.
    const ALL: [Type; 8] = [
        Type::Ack,
        Type::Bof,
        Type::Data,
        Type::Eof,
        Type::FileTimeout,
        Type::BofRequest,
        Type::DataRequest,
        Type::TransferDone,
    ];
}

/// A request or a response, which is about one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The slot of the file at the sender.
    pub fd: Fd,
    /// The file.
    pub file: FileId,
    /// What the message says.
    pub body: Body,
}

/// What a message says about its file, by P3's names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// BOF, from the sender: name and length of the file. It goes by multicast before all DATA, and
    /// by the reliable channel when a receiver requests it.
    Bof {
        /// Length of the file in bytes.
        len: u64,
        /// Name of the file.
        name: Name,
    },
    /// DATA, from the sender: bytes of the file, by multicast, or by the reliable channel when a
    /// receiver requests them.
    Data {
        /// Position of the first byte in the file, which is P3's *Sequence Number*.
        offset: u64,
        /// Number of bytes, 1 to [`DATA_MAX`].
        len: u32,
    },
    /// EOF, from the sender by the reliable channel: the multicast of the file has ended.
    Eof {
        /// Length of the file in bytes.
        len: u64,
    },
    /// FILE_TIMEOUT, from the sender by the reliable channel: the file is closed, and requests for
    /// it are not answered any more.
    FileTimeout,
    /// BOF_REQUEST, from a receiver: it lacks the BOF.
    BofRequest,
    /// DATA_REQUEST, from a receiver: it lacks these bytes.
    DataRequest {
        /// Position of the first missing byte.
        offset: u64,
        /// Number of missing bytes, at least 1.
        len: u64,
    },
    /// TRANSFER_DONE, from a receiver: it has the BOF, all bytes and the EOF.
    TransferDone,
}

/// What travels between a sender and a receiver: an accumulated ACK or a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// An ACK for this number of messages, at least 1.
    Ack(u32),
    /// A request or a response.
    Message(Message),
}

/// Why bytes are no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// There are fewer bytes than the header says, or more.
    Size,
    /// The type has no meaning.
    Type,
    /// A field that must be zero in this type is not.
    Nonzero,
    /// A number lies outside its range, such as a slot, a file id, an offset or a length.
    Range,
    /// The name of the file is empty, too long, or contains NUL.
    Name,
}

/// The header of a message: P3's five fields, checked. Decode it first where messages come as a
/// stream of bytes, to learn how many bytes of payload follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    kind: Type,
    fd: Fd,
    file: FileId,
    sequence: u64,
    length: u64,
}

impl Header {
    /// Reads a header from the first [`HEADER_LEN`] bytes.
    ///
    /// # Errors
    /// All but [`DecodeError::Name`].
    pub fn decode(bytes: &[u8]) -> Result<Header, DecodeError> {
        let bytes: &[u8; HEADER_LEN] = bytes.first_chunk().ok_or(DecodeError::Size)?;
        let number = |at: usize| {
            let field = bytes[at..].first_chunk::<8>().expect("within the header");
            u64::from_be_bytes(*field)
        };
        let kind = Type::ALL.get(usize::from(bytes[0])).copied();
        let header = Header {
            kind: kind.ok_or(DecodeError::Type)?,
            fd: Fd(u16::from_be_bytes([bytes[2], bytes[3]])),
            file: FileId(number(4)),
            sequence: number(12),
            length: number(20),
        };
        if bytes[1] != 0 {
            return Err(DecodeError::Nonzero);
        }
        header.check()?;
        Ok(header)
    }

    /// Whether every field is within the range that the type allows.
    fn check(&self) -> Result<(), DecodeError> {
        let Header {
            fd,
            file,
            sequence,
            length,
            ..
        } = *self;
        let (is_zero, is_valid) = match self.kind {
            Type::Ack => (
                fd.0 == 0 && file.0 == 0 && sequence == 0,
                (1..=u64::from(u32::MAX)).contains(&length),
            ),
            Type::Bof => {
                let len_max = (BOF_LEN + NAME_MAX) as u64;
                (sequence == 0, (BOF_LEN as u64..=len_max).contains(&length))
            }
            Type::Data => (true, (1..=u64::from(DATA_MAX)).contains(&length)),
            Type::Eof => (sequence == 0, true),
            Type::DataRequest => (true, length > 0),
            Type::FileTimeout | Type::BofRequest | Type::TransferDone => {
                (sequence == 0 && length == 0, true)
            }
        };
        let is_file = self.kind == Type::Ack || fd.0 < SLOTS_MAX && file.0 > 0;
        let end = sequence.checked_add(length);
        let is_within = end.is_some_and(|end| end <= FILE_LEN_MAX);
        if !is_zero {
            Err(DecodeError::Nonzero)
        } else if is_valid && is_file && is_within {
            Ok(())
        } else {
            Err(DecodeError::Range)
        }
    }

    /// Number of bytes that follow the header, at most [`DATA_MAX`].
    pub fn payload_len(&self) -> usize {
        match self.kind {
            Type::Bof | Type::Data => self.length as usize,
            _ => 0,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend([self.kind as u8, 0]);
        out.extend(self.fd.0.to_be_bytes());
        for number in [self.file.0, self.sequence, self.length] {
            out.extend(number.to_be_bytes());
        }
    }
}

/// Reads one frame, which is all of `bytes`. Returns it with the bytes of the file if it is a DATA
/// message, else with none.
///
/// # Errors
/// Bytes that [`Frame::encode`] never writes.
pub fn decode(bytes: &[u8]) -> Result<(Frame, &[u8]), DecodeError> {
    let header = Header::decode(bytes)?;
    let payload = &bytes[HEADER_LEN..];
    if payload.len() != header.payload_len() {
        return Err(DecodeError::Size);
    }
    let Header {
        fd,
        file,
        sequence: offset,
        length: len,
        ..
    } = header;
    let body = match header.kind {
        Type::Ack => return Ok((Frame::Ack(len as u32), &[])),
        Type::Bof => {
            let (len, name) = payload.split_first_chunk().ok_or(DecodeError::Size)?;
            let len = u64::from_be_bytes(*len);
            if len > FILE_LEN_MAX {
                return Err(DecodeError::Range);
            }
            let name = Name::new(name).ok_or(DecodeError::Name)?;
            Body::Bof { len, name }
        }
        Type::Data => Body::Data {
            offset,
            len: len as u32,
        },
        Type::Eof => Body::Eof { len },
        Type::FileTimeout => Body::FileTimeout,
        Type::BofRequest => Body::BofRequest,
        Type::DataRequest => Body::DataRequest { offset, len },
        Type::TransferDone => Body::TransferDone,
    };
    let bytes = match body {
        Body::Data { .. } => payload,
        _ => &[],
    };
    Ok((Frame::Message(Message { fd, file, body }), bytes))
}

impl Frame {
    /// Appends the bytes of the frame. After a DATA message the driver appends the bytes of the
    /// file.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Message(message) => message.encode(out),
            Frame::Ack(messages) => Header {
                kind: Type::Ack,
                fd: Fd(0),
                file: FileId(0),
                sequence: 0,
                length: u64::from(*messages),
            }
            .put(out),
        }
    }
}

impl Message {
    /// Bytes of the file that follow the message: those of DATA.
    pub fn data_len(&self) -> u32 {
        match self.body {
            Body::Data { len, .. } => len,
            _ => 0,
        }
    }

    /// P3's type of the message.
    pub fn kind(&self) -> Type {
        match self.body {
            Body::Bof { .. } => Type::Bof,
            Body::Data { .. } => Type::Data,
            Body::Eof { .. } => Type::Eof,
            Body::FileTimeout => Type::FileTimeout,
            Body::BofRequest => Type::BofRequest,
            Body::DataRequest { .. } => Type::DataRequest,
            Body::TransferDone => Type::TransferDone,
        }
    }

    /// Appends the bytes of the message, without the bytes of the file.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (sequence, length) = match &self.body {
            Body::Bof { name, .. } => (0, (BOF_LEN + name.bytes().len()) as u64),
            Body::Data { offset, len } => (*offset, u64::from(*len)),
            Body::Eof { len } => (0, *len),
            Body::DataRequest { offset, len } => (*offset, *len),
            Body::FileTimeout | Body::BofRequest | Body::TransferDone => (0, 0),
        };
        let header = Header {
            kind: self.kind(),
            fd: self.fd,
            file: self.file,
            sequence,
            length,
        };
        header.put(out);
        if let Body::Bof { len, name } = &self.body {
            out.extend(len.to_be_bytes());
            out.extend(name.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::vector;
    use proptest::prelude::*;

    fn of(body: Body) -> Frame {
        let (fd, file) = (Fd(3), FileId(5));
        Frame::Message(Message { fd, file, body })
    }

    /// The frames of the vectors in the specification, by the names of their files.
    fn vectors() -> [(&'static str, Frame); 8] {
        let name = Name::new(b"radar").expect("a name");
        [
            ("ack", Frame::Ack(32)),
            ("bof", of(Body::Bof { len: 1600, name })),
            (
                "data",
                of(Body::Data {
                    offset: 500,
                    len: 5,
                }),
            ),
            ("eof", of(Body::Eof { len: 1600 })),
            ("file-timeout", of(Body::FileTimeout)),
            ("bof-request", of(Body::BofRequest)),
            (
                "data-request",
                of(Body::DataRequest {
                    offset: 600,
                    len: 400,
                }),
            ),
            ("transfer-done", of(Body::TransferDone)),
        ]
    }

    /// The frame's bytes with a payload of the right length.
    fn bytes(frame: &Frame, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        frame.encode(&mut out);
        if let Frame::Message(message) = frame
            && let Body::Data { .. } = message.body
        {
            out.extend(payload);
        }
        out
    }

    #[test]
    fn frames_equal_the_vectors_of_the_specification() {
        for (name, frame) in vectors() {
            let written = bytes(&frame, b"hello");
            assert_eq!(written, vector(&format!("ibrmp/{name}")), "{name}");
            let (read, payload) = decode(&written).expect(name);
            assert_eq!(read, frame);
            let is_data = name == "data";
            assert_eq!(payload, if is_data { &b"hello"[..] } else { b"" }, "{name}");
            for len in 0..written.len() {
                assert_eq!(decode(&written[..len]), Err(DecodeError::Size), "{name}");
            }
            assert_eq!(
                decode(&[&written[..], &[0]].concat()),
                Err(DecodeError::Size)
            );
        }
    }

    #[test]
    fn what_no_sender_and_no_receiver_writes_is_refused() {
        let with = |name: &str, at: usize, value: &[u8]| {
            let mut bytes = vector(&format!("ibrmp/{name}"));
            bytes[at..at + value.len()].copy_from_slice(value);
            decode(&bytes).map(|_| ()).expect_err(name)
        };
        let large = &u64::MAX.to_be_bytes();
        assert_eq!(with("eof", 0, &[8]), DecodeError::Type);
        assert_eq!(with("eof", 1, &[1]), DecodeError::Nonzero);
        assert_eq!(with("eof", 2, &[4, 0]), DecodeError::Range);
        assert_eq!(with("eof", 4, &[0; 8]), DecodeError::Range);
        assert_eq!(with("eof", 12, large), DecodeError::Nonzero);
        assert_eq!(with("eof", 20, large), DecodeError::Range);
        assert_eq!(with("ack", 11, &[5]), DecodeError::Nonzero);
        assert_eq!(with("ack", 20, &[0; 8]), DecodeError::Range);
        assert_eq!(with("ack", 23, &[1]), DecodeError::Range);
        assert_eq!(with("data", 12, large), DecodeError::Range);
        assert_eq!(with("data-request", 20, &[0; 8]), DecodeError::Range);
        assert_eq!(with("data-request", 20, large), DecodeError::Range);
        assert_eq!(with("transfer-done", 27, &[1]), DecodeError::Nonzero);
        assert_eq!(with("bof", 28, large), DecodeError::Range);
        assert_eq!(with("bof", 36, &[0]), DecodeError::Name);
        assert_eq!(Name::new(&[1; NAME_MAX + 1]), None);
        assert_eq!(Name::new(&[]), None);
    }

    prop_compose! {
        fn frames()(
            which in 0usize..8, fd in 0..SLOTS_MAX, file in 1u64.., offset in 0..FILE_LEN_MAX / 2,
            len in 1..FILE_LEN_MAX / 2, few in 1u32..300, name in "[a-z/]{1,40}",
        ) -> Frame {
            let name = Name::new(name.as_bytes()).expect("a name");
            let body = match which {
                0 => return Frame::Ack(few),
                1 => Body::Bof { len, name },
                2 => Body::Data { offset, len: few },
                3 => Body::Eof { len },
                4 => Body::FileTimeout,
                5 => Body::BofRequest,
                6 => Body::DataRequest { offset, len },
                _ => Body::TransferDone,
            };
            Frame::Message(Message { fd: Fd(fd), file: FileId(file), body })
        }
    }

    proptest! {
        /// The decoder reads back what was written, for any numbers.
        #[test]
        fn frames_come_back(frame in frames()) {
            let payload = match &frame {
                Frame::Message(Message { body: Body::Data { len, .. }, .. }) => *len as usize,
                _ => 0,
            };
            let payload = vec![7; payload];
            let written = bytes(&frame, &payload);
            let (read, rest) = decode(&written).expect("what was written");
            prop_assert_eq!(read, frame);
            prop_assert_eq!(rest, payload);
        }

        /// For any bytes, and for damaged vectors, which random bytes hardly ever resemble, the
        /// decoder refuses them or returns the frame that they are.
        #[test]
        fn anything_decodes_to_itself_or_is_refused(
            which in 0usize..9,
            damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
            random in proptest::collection::vec(any::<u8>(), 1..80),
        ) {
            let mut bytes = match vectors().get(which) {
                Some((name, _)) => vector(&format!("ibrmp/{name}")),
                None => random,
            };
            for (at, value) in damage {
                let at = usize::from(at) % bytes.len();
                bytes[at] = value;
            }
            if let Ok((frame, payload)) = decode(&bytes) {
                let mut again = Vec::new();
                frame.encode(&mut again);
                again.extend(payload);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
