//! Functions that write headers and frames.

use super::{
    CHECK_LEN, Check, Checksum, DATA_LEN, DECLINED_LEN, FEEDBACK_LEN, Feedback, HEADER_LEN, Header,
    Origin, PROBE_LEN, Probe, QUERY_LEN, Query, RANGE_LEN, Reply, SLOT_LEN, SYNC_LEN, Sync,
    VERSION, WORD_LEN, Word, Writer, flag, kind,
};
use crate::id::GroupId;
use crate::limits;
use crate::repair::XorSources;
use crate::schedule::Barrier;
use crate::seq::Seq;

/// Appends words of 32 bits.
fn put<const N: usize>(out: &mut Writer<'_>, words: [u32; N]) {
    let (bytes, _) = out.next(4 * N).as_chunks_mut();
    for (bytes, word) in bytes.iter_mut().zip(words) {
        *bytes = word.to_be_bytes();
    }
}

/// The word that consists of two numbers of 16 bits.
fn pair(high: u16, low: u16) -> u32 {
    u32::from(high) << 16 | u32::from(low)
}

/// The word that consists of two numbers of 8 bits, and one of 16 bits.
fn triple(high: u8, middle: u8, low: u16) -> u32 {
    pair(u16::from_be_bytes([high, middle]), low)
}

/// The first word of a frame of `len` bytes.
fn frame(kind: u8, flags: u8, len: usize) -> u32 {
    debug_assert!(len <= usize::from(u16::MAX));
    triple(kind, flags, len as u16)
}

/// Appends a datagram's header.
pub fn put_header(out: &mut Writer<'_>, h: &Header) {
    let session = h.session.0;
    let first = triple(VERSION, (HEADER_LEN / 4) as u8, h.burst);
    put(
        out,
        [first, h.source.0, (session >> 32) as u32, session as u32],
    );
}

/// Appends a check frame after the header, or nothing for [`Checksum::None`]. The caller sets the
/// frame's value when it knows the datagram's bytes ([`set_check`]).
pub fn put_check(out: &mut Writer<'_>, checksum: Checksum) {
    let flag = match checksum {
        Checksum::None => return,
        Checksum::Additive => flag::ADDITIVE,
        Checksum::Crc32c => flag::CRC32C,
    };
    put(out, [frame(kind::CHECK, flag, CHECK_LEN), 0]);
}

/// Sets the value of the check frame in `head`, which [`put_header`] and [`put_check`] have begun.
/// `compute` gets the bytes before and after the value. Does nothing for [`Checksum::None`].
pub fn set_check(head: &mut [u8], checksum: Checksum, compute: impl FnOnce([&[u8]; 2]) -> u32) {
    let at = HEADER_LEN + 4;
    if checksum != Checksum::None && head.len() >= at + 4 {
        let check = Check {
            checksum,
            value: 0,
            at,
        };
        let value = compute(check.covers(head));
        head[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
}

/// Appends a data frame without its payload of `len` bytes, which must follow.
pub fn put_data(
    out: &mut Writer<'_>,
    group: GroupId,
    origin: Origin,
    seq: Seq,
    flags: u8,
    len: u32,
) {
    let (flags, name) = match origin {
        Origin::Source(op) => (flags, op.0),
        Origin::Relayed(sender) => (flags | flag::RELAYED, sender.0),
    };
    let first = frame(kind::DATA, flags, DATA_LEN + len as usize);
    put(out, [first, group.0, name, seq.0]);
}

/// Appends a coded frame without its payload of `len` bytes, which must follow.
pub fn put_xor(out: &mut Writer<'_>, group: GroupId, sources: &XorSources, flags: u8, len: u32) {
    let first = frame(kind::CODED, flags, DATA_LEN + len as usize);
    put(
        out,
        [first, group.0, sources.distances(), sources.first().0],
    );
}

/// Appends a parity frame without its payload of `len` bytes, which must follow. `block` is the
/// number of the block's first packet, its number of packets, the index of the parity packet, and
/// the length of the operation's last packet, or 0 if that is not in the block.
pub fn put_parity(
    out: &mut Writer<'_>,
    group: GroupId,
    (block, packets, index, end): (Seq, u8, u8, u16),
    flags: u8,
    len: u32,
) {
    let first = frame(kind::PARITY, flags, DATA_LEN + len as usize);
    put(out, [first, group.0, triple(packets, index, end), block.0]);
}

/// Appends a feedback frame that declines nothing. The ranges in `missing` are in rising order, at
/// or after `f.cum_subtree`, and not empty. Ranges beyond [`limits::RANGES_MAX`] are omitted.
/// `f.missing` and `f.declined` are ignored.
pub fn put_feedback(
    out: &mut Writer<'_>,
    f: &Feedback<'_>,
    missing: impl Iterator<Item = (Seq, u32)>,
) {
    put_declining_feedback(out, usize::MAX, f, core::iter::empty(), missing);
}

/// Appends a feedback frame like [`put_feedback`], if the frame has at most `room` bytes. Otherwise
/// appends nothing. Returns whether the frame is there. The ranges in `declined` are in rising
/// order, and not empty. Ranges beyond [`limits::DECLINED_MAX`] are omitted.
pub fn put_declining_feedback(
    out: &mut Writer<'_>,
    room: usize,
    f: &Feedback<'_>,
    declined: impl Iterator<Item = (Seq, u32)>,
    missing: impl Iterator<Item = (Seq, u32)>,
) -> bool {
    let start = out.len();
    // The room is compared before bytes are written: a slot may end where it ends.
    let is_full = |out: &mut Writer<'_>, more: usize| {
        let full = out.len() - start + more > room;
        if full {
            out.truncate(start);
        }
        full
    };
    let mut flags = f.flags & !(flag::SLOT | flag::DECLINED);
    if f.slot.is_some() {
        flags |= flag::SLOT;
    }
    if is_full(out, FEEDBACK_LEN + f.slot.map_or(0, |_| SLOT_LEN)) {
        return false;
    }
    put(
        out,
        [
            frame(kind::FEEDBACK, flags, 0),
            f.group.0,
            f.sender.0,
            f.cum.0,
            f.cum_subtree.0,
            f.limit.0,
            f.high.0,
            f.received,
            f.arrived_us,
            f.held_us,
            pair(f.burst, 0),
        ],
    );
    if let Some(slot) = f.slot {
        put(out, [pair(slot.index, slot.epoch)]);
    }
    let (at_declined, mut ranges) = (out.len(), 0u32);
    for (first, len) in declined.take(limits::DECLINED_MAX) {
        let number = if ranges == 0 { 4 } else { 0 };
        if is_full(out, number + DECLINED_LEN) {
            return false;
        }
        if ranges == 0 {
            out[start + 1] |= flag::DECLINED;
            put(out, [0]);
        }
        put(out, [first.0, len]);
        ranges += 1;
    }
    if ranges > 0 {
        out[at_declined..at_declined + 4].copy_from_slice(&ranges.to_be_bytes());
    }
    let (mut at, mut count) = (f.cum_subtree, 0u16);
    for (first, len) in missing.take(limits::RANGES_MAX) {
        debug_assert!(!first.before(at) && len > 0 && len <= u32::from(u16::MAX));
        if is_full(out, RANGE_LEN) {
            return false;
        }
        put(out, [pair(first.from(at) as u16, len as u16)]);
        at = first + len;
        count += 1;
    }
    let len = (out.len() - start) as u16;
    out[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
    out[start + 42..start + 44].copy_from_slice(&count.to_be_bytes());
    true
}

/// Appends a sync frame.
pub fn put_sync(out: &mut Writer<'_>, s: &Sync) {
    let first = frame(kind::SYNC, 0, SYNC_LEN);
    put(out, [first, s.group.0, s.sender.0, s.next.0]);
}

/// Appends a probe, padded with zeros so that the datagram has `size` bytes.
pub fn put_probe(out: &mut Writer<'_>, p: &Probe, size: usize) {
    let named = [p.only.map(|node| node.0), p.by.map(|address| address.0)];
    let named = named.into_iter().flatten();
    let least = PROBE_LEN + 4 * named.clone().count();
    let len = size.saturating_sub(out.len()).max(least);
    let end = out.len() + len;
    put(out, [frame(kind::PROBE, p.flags, len), p.group.0, p.nonce]);
    named.for_each(|number| put(out, [number]));
    out.zeros(end - out.len());
}

/// Appends the answer to a probe.
pub fn put_probe_ack(out: &mut Writer<'_>, p: &Probe) {
    let first = frame(kind::PROBE_ACK, p.flags, PROBE_LEN);
    put(out, [first, p.group.0, p.nonce]);
}

/// Appends a word.
pub fn put_word(out: &mut Writer<'_>, w: &Word) {
    let echo = if w.heard.is_some() { flag::ECHO } else { 0 };
    let heard = w.heard.map_or((0, 0), |h| (h.count.0, h.round));
    let (code, number) = w.barrier.map_or((0, 0), Barrier::code);
    put(
        out,
        [
            frame(kind::WORD, w.flags | echo, WORD_LEN),
            w.group.0,
            w.at.count.0,
            heard.0,
            pair(w.at.round, heard.1),
            triple(code, 0, number),
        ],
    );
}

/// Appends a query.
pub fn put_query(out: &mut Writer<'_>, q: &Query) {
    let end = out.len() + QUERY_LEN;
    put(out, [frame(kind::QUERY, 0, QUERY_LEN), q.group.0, q.seq.0]);
    out.put(&q.nonce.to_be_bytes());
    out.zeros(end - out.len());
}

/// Appends a reply.
pub fn put_reply(out: &mut Writer<'_>, r: &Reply) {
    let known = if r.op.is_some() { flag::KNOWN } else { 0 };
    let ended = if r.ended { flag::ENDED } else { 0 };
    let (op, len) = r.op.unwrap_or((Seq(0), 0));
    let (code, number) = r.barrier.map_or((0, 0), Barrier::code);
    let first = frame(kind::REPLY, known | ended, QUERY_LEN);
    put(out, [first, r.group.0, op.0]);
    out.put(&r.nonce.to_be_bytes());
    out.put(&len.to_be_bytes());
    let reached = pair(r.at.round, u16::from_be_bytes([code, 0]));
    put(out, [r.at.count.0, reached, pair(number, 0)]);
}
