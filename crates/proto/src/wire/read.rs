//! The decoder of datagrams from the network, which may contain anything.

use core::fmt;

use super::ranges::Ranges;
use super::{
    CHECK_LEN, Check, Checksum, DATA_LEN, DECLINED_LEN, Data, Declined, FEEDBACK_LEN, Feedback,
    Frame, HEADER_LEN, Header, Origin, PROBE_LEN, Parity, Probe, QUERY_LEN, Query, RANGE_LEN,
    Reply, SLOT_LEN, SYNC_LEN, Sync, VERSION, WORD_LEN, Word, XorRepair, flag, kind,
};
use crate::id::{AddressId, GroupId, NodeId, Session};
use crate::limits;
use crate::membership::Slot;
use crate::repair::XorSources;
use crate::schedule::{Barrier, Reached};
use crate::seq::Seq;

/// Why [`decode`] refused a datagram. The node counts and drops refused datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// The datagram is shorter than its header, or a frame goes past its end.
    Short,
    /// The version is not [`crate::wire::VERSION`].
    Version,
    /// The header length is impossible.
    HeaderLength,
    /// The datagram has no frames, or more than [`limits::FRAMES_MAX`].
    FrameCount,
    /// The kind of a frame is unknown or reserved in this version.
    Kind,
    /// A frame's length does not fit its kind.
    FrameLength,
    /// The ranges of a feedback frame overrun, are empty, or go past `high`; or its numbers are
    /// further apart than a window.
    Ranges,
    /// A feedback frame names a slot in an epoch in which no node joins.
    Slot,
    /// A feedback frame declines no range, too many, an empty one, or ranges that do not rise.
    Declined,
    /// The checksum of a check frame is of an unknown kind.
    Check,
    /// A coded frame names fewer than two packets or too many, or encodes them in another way than
    /// [`crate::repair::XorSources`] does.
    XorSources,
    /// The block of a parity frame is impossible.
    Block,
    /// The barrier of a word is impossible, or the word has more rounds than the protocol allows.
    Word,
    /// A field of a query or a reply that must be zero is not, or its barrier is impossible.
    Query,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DecodeError::Short => "datagram or frame is cut short",
            DecodeError::Version => "unknown protocol version",
            DecodeError::HeaderLength => "impossible header length",
            DecodeError::FrameCount => "no frames, or too many",
            DecodeError::Kind => "unknown kind of frame",
            DecodeError::FrameLength => "frame length does not fit its kind",
            DecodeError::Ranges => "impossible ranges in feedback",
            DecodeError::Slot => "impossible slot in feedback",
            DecodeError::Declined => "impossible declined ranges in feedback",
            DecodeError::Check => "unknown checksum",
            DecodeError::XorSources => "impossible list of packets in a coded frame",
            DecodeError::Block => "impossible block in a parity frame",
            DecodeError::Word => "impossible barrier in a word",
            DecodeError::Query => "impossible query or reply",
        })
    }
}

impl std::error::Error for DecodeError {}

// The argument is an array, so that the compiler removes the bounds check of a constant index.
#[inline(always)]
fn u16_at<const N: usize>(b: &[u8; N], i: usize) -> u16 {
    u16::from_be_bytes([b[i], b[i + 1]])
}

#[inline(always)]
fn u32_at<const N: usize>(b: &[u8; N], i: usize) -> u32 {
    u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]])
}

#[inline(always)]
fn u64_at<const N: usize>(b: &[u8; N], i: usize) -> u64 {
    u64::from(u32_at(b, i)) << 32 | u64::from(u32_at(b, i + 4))
}

/// A datagram whose header and every frame have been checked.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The datagram's header.
    pub header: Header,
    /// The datagram's checksum, if it has one. [`decode`] does not compare it with the bytes; the
    /// driver does.
    pub check: Option<Check>,
    first: Frame<'a>,
    rest: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// The datagram's frames, in order.
    pub fn frames(&self) -> Frames<'a> {
        Frames {
            first: Some(self.first),
            rest: self.rest,
        }
    }
}

/// Iterator over the frames of a checked datagram.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    /// The first frame, as [`decode`] read it. Most datagrams have no other, and need not be read
    /// again.
    first: Option<Frame<'a>>,
    rest: &'a [u8],
}

impl<'a> Iterator for Frames<'a> {
    type Item = Frame<'a>;

    fn next(&mut self) -> Option<Frame<'a>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        if self.rest.is_empty() {
            return None;
        }
        match split(self.rest) {
            Ok((frame, rest)) => {
                self.rest = rest;
                Some(frame)
            }
            Err(e) => unreachable!("decode checked every frame: {e}"),
        }
    }
}

/// The source that a datagram names in its header, without a check of its frames. `None` if the
/// header is not valid.
pub fn source(bytes: &[u8]) -> Option<NodeId> {
    header(bytes).ok().map(|(header, _)| header.source)
}

/// Splits a datagram into its header and the bytes that follow.
#[inline(always)]
fn header(bytes: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
    let Some((fixed, _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(DecodeError::Short);
    };
    if bytes[0] != VERSION {
        return Err(DecodeError::Version);
    }
    let header_len = usize::from(bytes[1]) * 4;
    if header_len < HEADER_LEN {
        return Err(DecodeError::HeaderLength);
    }
    let body = bytes.get(header_len..).ok_or(DecodeError::Short)?;
    let header = Header {
        burst: u16_at(fixed, 2),
        source: NodeId(u32_at(fixed, 4)),
        session: Session(u64::from(u32_at(fixed, 8)) << 32 | u64::from(u32_at(fixed, 12))),
    };
    Ok((header, body))
}

/// Checks a datagram as a whole: header, every frame's bounds and every field that has rules.
pub fn decode(bytes: &[u8]) -> Result<Datagram<'_>, DecodeError> {
    let (header, body) = header(bytes)?;
    if body.is_empty() {
        return Err(DecodeError::FrameCount);
    }
    let (check, body) = match body[0] {
        kind::CHECK => check(bytes.len() - body.len(), body)?,
        _ => (None, body),
    };
    let (first, rest) = split(body)?;
    let (mut more, mut count) = (rest, 1);
    while !more.is_empty() {
        more = split(more)?.1;
        count += 1;
    }
    if count > limits::FRAMES_MAX {
        return Err(DecodeError::FrameCount);
    }
    Ok(Datagram {
        header,
        check,
        first,
        rest,
    })
}

/// Takes the check frame, if there is one, off the front of `b`, which begins `at` bytes from the
/// datagram's start. Another frame must follow.
fn check(at: usize, b: &[u8]) -> Result<(Option<Check>, &[u8]), DecodeError> {
    let Some((f, rest)) = b.split_first_chunk::<CHECK_LEN>() else {
        return Err(DecodeError::Short);
    };
    if usize::from(u16_at(f, 2)) != CHECK_LEN {
        return Err(DecodeError::FrameLength);
    }
    let checksum = match f[1] {
        flag::ADDITIVE => Checksum::Additive,
        flag::CRC32C => Checksum::Crc32c,
        _ => return Err(DecodeError::Check),
    };
    let check = Check {
        checksum,
        value: u32_at(f, 4),
        at: at + 4,
    };
    match rest.is_empty() {
        true => Err(DecodeError::FrameCount),
        false => Ok((Some(check), rest)),
    }
}

/// Takes one frame off the front of `b`. Returns it and the rest.
fn split(b: &[u8]) -> Result<(Frame<'_>, &[u8]), DecodeError> {
    let Some((start, _)) = b.split_first_chunk::<4>() else {
        return Err(DecodeError::Short);
    };
    let (flags, len) = (start[1], usize::from(u16_at(start, 2)));
    if len < 4 {
        return Err(DecodeError::FrameLength);
    }
    if len > b.len() {
        return Err(DecodeError::Short);
    }
    let (f, rest) = b.split_at(len);
    let exactly = |n| {
        if len != n {
            Err(DecodeError::FrameLength)
        } else {
            Ok(())
        }
    };
    let probe = |f: &[u8; PROBE_LEN]| Probe {
        group: GroupId(u32_at(f, 4)),
        nonce: u32_at(f, 8),
        flags,
        only: None,
        by: None,
    };
    let frame = match start[0] {
        kind::DATA => {
            let (f, payload) = fixed::<DATA_LEN>(f)?;
            Frame::Data(Data {
                group: GroupId(u32_at(f, 4)),
                origin: match flags & flag::RELAYED {
                    0 => Origin::Source(Seq(u32_at(f, 8))),
                    _ => Origin::Relayed(NodeId(u32_at(f, 8))),
                },
                seq: Seq(u32_at(f, 12)),
                flags,
                payload,
            })
        }
        kind::CODED => Frame::Xor(xor_repair(f, flags)?),
        kind::PARITY => Frame::Parity(parity(f, flags)?),
        kind::FEEDBACK => Frame::Feedback(feedback(f, flags)?),
        kind::SYNC => {
            exactly(SYNC_LEN)?;
            let (f, _) = fixed::<SYNC_LEN>(f)?;
            Frame::Sync(Sync {
                group: GroupId(u32_at(f, 4)),
                sender: NodeId(u32_at(f, 8)),
                next: Seq(u32_at(f, 12)),
            })
        }
        kind::PROBE => {
            let (f, mut rest) = fixed(f)?;
            let mut probe = probe(f);
            let mut number = || {
                let (number, padding) = fixed::<4>(rest)?;
                rest = padding;
                Ok(u32::from_be_bytes(*number))
            };
            if flags & flag::ALONE != 0 {
                probe.only = Some(NodeId(number()?));
            }
            if flags & flag::BY_ADDRESS != 0 {
                probe.by = Some(AddressId(number()?));
            }
            Frame::Probe(probe)
        }
        kind::PROBE_ACK => {
            exactly(PROBE_LEN)?;
            Frame::ProbeAck(probe(fixed(f)?.0))
        }
        kind::WORD => {
            exactly(WORD_LEN)?;
            let (f, _) = fixed::<WORD_LEN>(f)?;
            Frame::Word(word(f, flags).ok_or(DecodeError::Word)?)
        }
        kind::QUERY => {
            exactly(QUERY_LEN)?;
            let (f, _) = fixed::<QUERY_LEN>(f)?;
            if flags != 0 || f[20..].iter().any(|&b| b != 0) {
                return Err(DecodeError::Query);
            }
            Frame::Query(Query {
                group: GroupId(u32_at(f, 4)),
                seq: Seq(u32_at(f, 8)),
                nonce: u64_at(f, 12),
            })
        }
        kind::REPLY => {
            exactly(QUERY_LEN)?;
            let (f, _) = fixed::<QUERY_LEN>(f)?;
            Frame::Reply(reply(f, flags).ok_or(DecodeError::Query)?)
        }
        _ => return Err(DecodeError::Kind),
    };
    Ok((frame, rest))
}

/// Reads the XOR repair packet of a frame with these flags.
fn xor_repair(f: &[u8], flags: u8) -> Result<XorRepair<'_>, DecodeError> {
    let (f, payload) = fixed::<DATA_LEN>(f)?;
    let sources = XorSources::read(Seq(u32_at(f, 12)), u32_at(f, 8));
    Ok(XorRepair {
        group: GroupId(u32_at(f, 4)),
        sources: sources.ok_or(DecodeError::XorSources)?,
        flags,
        payload,
    })
}

/// Reads the parity packet of a frame with these flags.
fn parity(f: &[u8], flags: u8) -> Result<Parity<'_>, DecodeError> {
    let (f, payload) = fixed::<DATA_LEN>(f)?;
    let (packets, index, end) = (f[8], f[9], u16_at(f, 10));
    let block = (2..=limits::BLOCK_PACKETS).contains(&u32::from(packets));
    if !block || index >= limits::PARITIES_MAX || usize::from(end) > payload.len() {
        return Err(DecodeError::Block);
    }
    Ok(Parity {
        group: GroupId(u32_at(f, 4)),
        first: Seq(u32_at(f, 12)),
        packets,
        index,
        end,
        flags,
        payload,
    })
}

/// Reads the feedback of a frame with these flags.
fn feedback(frame: &[u8], flags: u8) -> Result<Feedback<'_>, DecodeError> {
    let (f, mut rest) = fixed::<FEEDBACK_LEN>(frame)?;
    let count = usize::from(u16_at(f, 42));
    let mut slot = None;
    if flags & flag::SLOT != 0 {
        let (named, ranges) = fixed::<SLOT_LEN>(rest)?;
        let (index, epoch) = (u16_at(named, 0), u16_at(named, 2));
        if epoch == 0 {
            return Err(DecodeError::Slot);
        }
        (slot, rest) = (Some(Slot { index, epoch }), ranges);
    }
    let mut declined = Declined::NONE;
    if flags & flag::DECLINED != 0 {
        let (ranges, all) = fixed::<4>(rest)?;
        let ranges = u32::from_be_bytes(*ranges) as usize;
        if !(1..=limits::DECLINED_MAX).contains(&ranges) {
            return Err(DecodeError::Declined);
        }
        let split = all.split_at_checked(ranges * DECLINED_LEN);
        let (list, after) = split.ok_or(DecodeError::FrameLength)?;
        (declined, rest) = (Declined { rest: list }, after);
        check_declined(declined)?;
    }
    if rest.len() != RANGE_LEN * count {
        return Err(DecodeError::FrameLength);
    }
    let (cum, cum_subtree) = (Seq(u32_at(f, 12)), Seq(u32_at(f, 16)));
    let feedback = Feedback {
        group: GroupId(u32_at(f, 4)),
        sender: NodeId(u32_at(f, 8)),
        cum,
        cum_subtree,
        limit: Seq(u32_at(f, 20)),
        high: Seq(u32_at(f, 24)),
        received: u32_at(f, 28),
        arrived_us: u32_at(f, 32),
        held_us: u32_at(f, 36),
        burst: u16_at(f, 40),
        flags: flags & !(flag::SLOT | flag::DECLINED),
        slot,
        declined,
        missing: Ranges {
            at: cum_subtree,
            rest,
        },
    };
    check_feedback(&feedback, count)?;
    Ok(feedback)
}

/// Checks declined ranges: they are not empty, rise, and span less than half of all numbers.
fn check_declined(declined: Declined<'_>) -> Result<(), DecodeError> {
    let mut spanned = 0u64;
    let mut end = None::<Seq>;
    for (first, len) in declined {
        let gap = end.map_or(0, |end| first.0.wrapping_sub(end.0));
        spanned += u64::from(gap) + u64::from(len);
        if len == 0 || spanned >= 1 << 31 {
            return Err(DecodeError::Declined);
        }
        end = Some(first + len);
    }
    Ok(())
}

/// Splits a frame into the part of fixed length that its kind always has, and the rest.
#[inline(always)]
fn fixed<const N: usize>(f: &[u8]) -> Result<(&[u8; N], &[u8]), DecodeError> {
    f.split_first_chunk().ok_or(DecodeError::FrameLength)
}

/// Reads a word. `None` if it is impossible, or if an unused field is not zero.
fn word(f: &[u8; WORD_LEN], flags: u8) -> Option<Word> {
    let reached = |count, round| {
        let few = usize::from(u16_at(f, round)) <= limits::ROUNDS_MAX;
        few.then_some(Reached {
            count: Seq(u32_at(f, count)),
            round: u16_at(f, round),
        })
    };
    let (at, heard) = (reached(8, 16)?, reached(12, 18)?);
    let code = (f[20], u16_at(f, 22));
    let barrier = Barrier::from_code(code);
    let echo = flags & flag::ECHO != 0;
    let none = Reached {
        count: Seq(0),
        round: 0,
    };
    // Before the first barrier the round must be zero.
    let known = barrier.is_some() || (code == (0, 0) && at.round == 0);
    let zeros = f[21] == 0 && (echo || heard == none);
    let flagged = flags & !(flag::ACK_REQUEST | flag::ECHO | flag::ENDED) == 0;
    (known && zeros && flagged).then_some(Word {
        group: GroupId(u32_at(f, 4)),
        at,
        heard: echo.then_some(heard),
        barrier,
        flags: flags & !flag::ECHO,
    })
}

/// Reads a reply. `None` if it is impossible, or if an unused field is not zero.
fn reply(f: &[u8; QUERY_LEN], flags: u8) -> Option<Reply> {
    let at = Reached {
        count: Seq(u32_at(f, 28)),
        round: u16_at(f, 32),
    };
    let code = (f[34], u16_at(f, 36));
    let barrier = Barrier::from_code(code);
    let op = (Seq(u32_at(f, 8)), u64_at(f, 20));
    let known = flags & flag::KNOWN != 0;
    let fits = usize::from(at.round) <= limits::ROUNDS_MAX
        && (barrier.is_some() || (code == (0, 0) && at.round == 0))
        && (known || op == (Seq(0), 0))
        && (f[35], f[38], f[39]) == (0, 0, 0)
        && flags & !(flag::KNOWN | flag::ENDED) == 0;
    fits.then_some(Reply {
        group: GroupId(u32_at(f, 4)),
        nonce: u64_at(f, 12),
        op: known.then_some(op),
        at,
        barrier,
        ended: flags & flag::ENDED != 0,
    })
}

fn check_feedback(f: &Feedback<'_>, count: usize) -> Result<(), DecodeError> {
    let near = |s: Seq| s.within(f.cum, limits::WINDOW_MAX + 1);
    let subtree = f.cum.within(f.cum_subtree, limits::WINDOW_MAX + 1);
    // The window that a receiver of the sub-tree advertises may end before what this node has.
    let limit = f.limit.within(f.cum_subtree, 2 * limits::WINDOW_MAX + 1);
    if count > limits::RANGES_MAX || !limit || !near(f.high) || !subtree {
        return Err(DecodeError::Ranges);
    }
    let span = f.high.from(f.cum_subtree) as u32;
    let mut used = 0u32;
    for r in f.missing.rest.as_chunks::<RANGE_LEN>().0 {
        let len = u32::from(u16_at(r, 2));
        used += u32::from(u16_at(r, 0)) + len;
        if len == 0 || used > span {
            return Err(DecodeError::Ranges);
        }
    }
    Ok(())
}
