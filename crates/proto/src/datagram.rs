//! Writes the heads of datagrams: what each begins with, feedback that rides along, and what is
//! sent.

use crate::border::{Dest, Output, Transmit};
use crate::id::{GroupId, Token};
use crate::lane::Send;
use crate::scheme::Checksum;
use crate::sum::Payload;
use crate::wire::{self, Header, Probe, Query, Word};

/// What every datagram of a node begins with.
#[derive(Clone, Copy)]
pub struct Start {
    /// Its header, but for the flight.
    pub header: Header,
    /// What is to prove it.
    pub checksum: Checksum,
}

impl Start {
    /// Appends it.
    pub fn put(&self, head: &mut Vec<u8>, flight: u16) {
        let header = Header {
            flight,
            ..self.header
        };
        wire::put_header(head, &header);
        wire::put_check(head, self.checksum);
    }
}

/// Appends a probe of `size` bytes.
pub fn put_probe(to: Dest, probe: &Probe, size: usize, start: Start, head: &mut Vec<u8>) -> Output {
    let end = head.len() + size;
    start.put(head, 0);
    wire::put_probe(head, probe, end);
    control(to)
}

/// Appends a word.
pub fn put_word(to: Dest, word: &Word, start: Start, head: &mut Vec<u8>) -> Output {
    start.put(head, 0);
    wire::put_word(head, word);
    control(to)
}

/// Appends a query.
pub fn put_query(to: Dest, query: &Query, start: Start, head: &mut Vec<u8>) -> Output {
    start.put(head, 0);
    wire::put_query(head, query);
    control(to)
}

/// Appends the head of what a stream sends, with `size` the largest datagram. What `ride` appends,
/// for a destination and at most so many bytes, goes along.
pub fn put(
    send: Send,
    (group, size): (GroupId, usize),
    start: Start,
    head: &mut Vec<u8>,
    ride: impl FnOnce(&mut Vec<u8>, Dest, usize),
) -> Output {
    let from = head.len();
    let (to, flight, len) = match &send {
        Send::Data {
            to, flight, extent, ..
        } => (*to, *flight, extent.len),
        Send::Coded {
            to, flight, sum, ..
        } => (*to, *flight, sum.len()),
        Send::Parity {
            to, flight, parity, ..
        } => (*to, *flight, parity.block.chunk),
        Send::Sync { to, .. } => (*to, 0, 0),
        Send::Probe(probe) => return put_probe(Dest::Group(group), probe, size, start, head),
    };
    start.put(head, flight);
    // A sync frame is as long as a data frame.
    let used = head.len() - from + wire::DATA_LEN + len as usize;
    ride(head, to, size.saturating_sub(used));
    match send {
        Send::Data {
            origin,
            seq,
            flags,
            extent,
            ..
        } => {
            wire::put_data(head, group, origin, seq, flags, extent.len);
            data(to, Payload::Extent(extent))
        }
        Send::Coded {
            sources,
            flags,
            sum,
            ..
        } => {
            wire::put_coded(head, group, &sources, flags, sum.len());
            data(to, Payload::Sum(sum))
        }
        Send::Parity {
            first,
            parity,
            flags,
            ..
        } => {
            let named = (first, parity.block.packets() as u8, parity.index);
            wire::put_parity(head, group, named, flags, parity.block.chunk);
            data(to, Payload::Parity(parity))
        }
        Send::Sync { root, next, .. } => {
            wire::put_sync(head, &wire::Sync { group, root, next });
            control(to)
        }
        Send::Probe(_) => unreachable!("it has been put"),
    }
}

/// A datagram with a payload.
fn data(to: Dest, payload: Payload) -> Output {
    Output::Transmit(Transmit {
        to,
        payload: Some(payload),
        token: Token(u64::from(payload.op().0)),
    })
}

/// A datagram without payload.
pub fn control(to: Dest) -> Output {
    Output::Transmit(Transmit {
        to,
        payload: None,
        token: Token(0),
    })
}

const _: () = assert!(wire::SYNC_LEN == wire::DATA_LEN);
