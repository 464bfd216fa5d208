//! Functions that write headers and frames. They cannot fail, and allocate only when the buffer
//! grows.

use super::{
    CHECK_LEN, Check, Checksum, DATA_LEN, FEEDBACK_LEN, Feedback, HEADER_LEN, Header, Origin,
    PROBE_LEN, Probe, QUERY_LEN, Query, Reply, SYNC_LEN, Sync, VERSION, WORD_LEN, Word, flag, kind,
};
use crate::id::GroupId;
use crate::limits;
use crate::repair::XorSources;
use crate::schedule::Barrier;
use crate::seq::Seq;

fn be(out: &mut Vec<u8>, n: u32) {
    out.extend_from_slice(&n.to_be_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, len: usize) {
    debug_assert!(len <= usize::from(u16::MAX));
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&(len as u16).to_be_bytes());
}

/// Appends a datagram's header.
pub fn put_header(out: &mut Vec<u8>, h: &Header) {
    out.extend_from_slice(&[VERSION, (HEADER_LEN / 4) as u8]);
    out.extend_from_slice(&h.burst.to_be_bytes());
    be(out, h.source.0);
    out.extend_from_slice(&h.session.0.to_be_bytes());
}

/// Appends a check frame after the header, or nothing for [`Checksum::None`]. The caller sets the
/// frame's value when it knows the datagram's bytes ([`set_check`]).
pub fn put_check(out: &mut Vec<u8>, checksum: Checksum) {
    let flag = match checksum {
        Checksum::None => return,
        Checksum::Additive => flag::ADDITIVE,
        Checksum::Crc32c => flag::CRC32C,
    };
    frame(out, kind::CHECK, flag, CHECK_LEN);
    be(out, 0);
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
pub fn put_data(out: &mut Vec<u8>, group: GroupId, origin: Origin, seq: Seq, flags: u8, len: u32) {
    let (flags, name) = match origin {
        Origin::Source(op) => (flags, op.0),
        Origin::Relayed(sender) => (flags | flag::RELAYED, sender.0),
    };
    frame(out, kind::DATA, flags, DATA_LEN + len as usize);
    be(out, group.0);
    be(out, name);
    be(out, seq.0);
}

/// Appends a coded frame without its payload of `len` bytes, which must follow.
pub fn put_xor(out: &mut Vec<u8>, group: GroupId, sources: &XorSources, flags: u8, len: u32) {
    frame(out, kind::CODED, flags, DATA_LEN + len as usize);
    be(out, group.0);
    be(out, sources.distances());
    be(out, sources.first().0);
}

/// Appends a parity frame without its payload of `len` bytes, which must follow. `block` is the
/// number of the block's first packet, its number of packets, the index of the parity packet, and
/// the length of the operation's last packet, or 0 if that is not in the block.
pub fn put_parity(
    out: &mut Vec<u8>,
    group: GroupId,
    (first, packets, index, end): (Seq, u8, u8, u16),
    flags: u8,
    len: u32,
) {
    frame(out, kind::PARITY, flags, DATA_LEN + len as usize);
    be(out, group.0);
    out.extend_from_slice(&[packets, index]);
    out.extend_from_slice(&end.to_be_bytes());
    be(out, first.0);
}

/// Appends a feedback frame that declines nothing. The ranges in `missing` are in rising order, at
/// or after `f.cum_subtree`, and not empty. Ranges beyond [`limits::RANGES_MAX`] are omitted.
/// `f.missing` and `f.declined` are ignored.
pub fn put_feedback(
    out: &mut Vec<u8>,
    f: &Feedback<'_>,
    missing: impl Iterator<Item = (Seq, u32)>,
) {
    put_declining_feedback(out, f, core::iter::empty(), missing);
}

/// Appends a feedback frame like [`put_feedback`]. The ranges in `declined` are in rising order,
/// and not empty. Ranges beyond [`limits::DECLINED_MAX`] are omitted.
pub fn put_declining_feedback(
    out: &mut Vec<u8>,
    f: &Feedback<'_>,
    declined: impl Iterator<Item = (Seq, u32)>,
    missing: impl Iterator<Item = (Seq, u32)>,
) {
    let start = out.len();
    let flags = f.flags & !(flag::SLOT | flag::DECLINED);
    frame(out, kind::FEEDBACK, flags, FEEDBACK_LEN);
    for n in [
        f.group.0,
        f.sender.0,
        f.cum.0,
        f.cum_subtree.0,
        f.limit.0,
        f.high.0,
    ] {
        be(out, n);
    }
    for n in [f.received, f.arrived_us, f.held_us] {
        be(out, n);
    }
    out.extend_from_slice(&f.burst.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
    if let Some(slot) = f.slot {
        out[start + 1] |= flag::SLOT;
        out.extend_from_slice(&slot.index.to_be_bytes());
        out.extend_from_slice(&slot.epoch.to_be_bytes());
    }
    let (at_declined, mut ranges) = (out.len(), 0u32);
    for (first, len) in declined.take(limits::DECLINED_MAX) {
        if ranges == 0 {
            out[start + 1] |= flag::DECLINED;
            be(out, 0);
        }
        be(out, first.0);
        be(out, len);
        ranges += 1;
    }
    if ranges > 0 {
        out[at_declined..at_declined + 4].copy_from_slice(&ranges.to_be_bytes());
    }
    let (mut at, mut count) = (f.cum_subtree, 0u16);
    for (first, len) in missing.take(limits::RANGES_MAX) {
        debug_assert!(!first.before(at) && len > 0 && len <= u32::from(u16::MAX));
        out.extend_from_slice(&(first.from(at) as u16).to_be_bytes());
        out.extend_from_slice(&(len as u16).to_be_bytes());
        at = first + len;
        count += 1;
    }
    let len = (out.len() - start) as u16;
    out[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
    out[start + 42..start + 44].copy_from_slice(&count.to_be_bytes());
}

/// Appends a sync frame.
pub fn put_sync(out: &mut Vec<u8>, s: &Sync) {
    frame(out, kind::SYNC, 0, SYNC_LEN);
    be(out, s.group.0);
    be(out, s.sender.0);
    be(out, s.next.0);
}

/// Appends a probe, padded with zeros so that the datagram has `size` bytes.
pub fn put_probe(out: &mut Vec<u8>, p: &Probe, size: usize) {
    let named = [p.only.map(|node| node.0), p.by.map(|address| address.0)];
    let named = named.into_iter().flatten();
    let least = PROBE_LEN + 4 * named.clone().count();
    let len = size.saturating_sub(out.len()).max(least);
    let end = out.len() + len;
    frame(out, kind::PROBE, p.flags, len);
    be(out, p.group.0);
    be(out, p.nonce);
    named.for_each(|number| be(out, number));
    out.resize(end, 0);
}

/// Appends the answer to a probe.
pub fn put_probe_ack(out: &mut Vec<u8>, p: &Probe) {
    frame(out, kind::PROBE_ACK, p.flags, PROBE_LEN);
    be(out, p.group.0);
    be(out, p.nonce);
}

/// Appends a word.
pub fn put_word(out: &mut Vec<u8>, w: &Word) {
    let echo = if w.heard.is_some() { flag::ECHO } else { 0 };
    frame(out, kind::WORD, w.flags | echo, WORD_LEN);
    let heard = w.heard.map_or((0, 0), |h| (h.count.0, h.round));
    let (code, number) = w.barrier.map_or((0, 0), Barrier::code);
    for n in [w.group.0, w.at.count.0, heard.0] {
        be(out, n);
    }
    out.extend_from_slice(&w.at.round.to_be_bytes());
    out.extend_from_slice(&heard.1.to_be_bytes());
    out.extend_from_slice(&[code, 0]);
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends a query.
pub fn put_query(out: &mut Vec<u8>, q: &Query) {
    let end = out.len() + QUERY_LEN;
    frame(out, kind::QUERY, 0, QUERY_LEN);
    be(out, q.group.0);
    be(out, q.seq.0);
    out.extend_from_slice(&q.nonce.to_be_bytes());
    out.resize(end, 0);
}

/// Appends a reply.
pub fn put_reply(out: &mut Vec<u8>, r: &Reply) {
    let known = if r.op.is_some() { flag::KNOWN } else { 0 };
    let ended = if r.ended { flag::ENDED } else { 0 };
    let (op, len) = r.op.unwrap_or((Seq(0), 0));
    let (code, number) = r.barrier.map_or((0, 0), Barrier::code);
    frame(out, kind::REPLY, known | ended, QUERY_LEN);
    be(out, r.group.0);
    be(out, op.0);
    out.extend_from_slice(&r.nonce.to_be_bytes());
    out.extend_from_slice(&len.to_be_bytes());
    be(out, r.at.count.0);
    out.extend_from_slice(&r.at.round.to_be_bytes());
    out.extend_from_slice(&[code, 0]);
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&[0, 0]);
}
