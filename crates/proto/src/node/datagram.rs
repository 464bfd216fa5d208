//! Writes the heads of datagrams: header, piggybacked feedback, and the frame that is sent.

use crate::border::{Dest, Output, Transmit};
use crate::id::{AddressId, GroupId, Token};
use crate::path::{Target, Transmission};
use crate::repair::Payload;
use crate::scheme::Checksum;
use crate::wire::{self, Header, Probe, Query, Word, Writer};

/// What a node sends, beside the head that it has written.
#[derive(Clone, Copy)]
pub struct Datagram {
    /// Where it goes.
    pub to: Target,
    /// The address by which it goes to [`Target::All`], if that is not the group's.
    pub by: Option<AddressId>,
    /// The payload that follows the head.
    pub payload: Option<Payload>,
}

/// The beginning of every datagram of a node.
#[derive(Clone, Copy)]
pub struct Start {
    /// The header, except the burst.
    pub header: Header,
    /// The checksum that proves the datagram.
    pub checksum: Checksum,
}

impl Start {
    /// Appends the beginning of a datagram that belongs to `burst`.
    pub fn put(&self, head: &mut Writer<'_>, burst: u16) {
        let header = Header {
            burst,
            ..self.header
        };
        wire::put_header(head, &header);
        wire::put_check(head, self.checksum);
    }
}

/// Appends a probe of `size` bytes.
pub fn put_probe(
    to: Target,
    probe: &Probe,
    size: usize,
    start: Start,
    head: &mut Writer<'_>,
) -> Datagram {
    let end = head.len() + size;
    start.put(head, 0);
    wire::put_probe(head, probe, end);
    let by = probe.by;
    Datagram { by, ..control(to) }
}

/// Appends a word of a barrier.
pub fn put_word(to: Target, word: &Word, start: Start, head: &mut Writer<'_>) -> Datagram {
    start.put(head, 0);
    wire::put_word(head, word);
    control(to)
}

/// Appends a query.
pub fn put_query(to: Target, query: &Query, start: Start, head: &mut Writer<'_>) -> Datagram {
    start.put(head, 0);
    wire::put_query(head, query);
    control(to)
}

/// Appends the head of a transmission of a stream. `size` is the largest datagram. `piggyback`
/// appends feedback for a destination, up to a number of bytes.
pub fn put(
    send: &Transmission,
    (group, size): (GroupId, usize),
    start: Start,
    head: &mut Writer<'_>,
    piggyback: impl FnOnce(&mut Writer<'_>, Target, usize),
) -> Datagram {
    let from = head.len();
    let (to, burst, len) = match send {
        Transmission::Data {
            to, burst, extent, ..
        } => (*to, *burst, extent.len),
        Transmission::Xor { to, burst, sum, .. } => (*to, *burst, sum.len()),
        Transmission::Parity {
            to, burst, parity, ..
        } => (*to, *burst, parity.block.payload_size),
        Transmission::Sync { to, .. } => (*to, 0, 0),
        Transmission::Probe(probe) => {
            return put_probe(Target::All, probe, size, start, head);
        }
    };
    start.put(head, burst);
    // A sync frame is as long as a data frame.
    let used = head.len() - from + wire::DATA_LEN + len as usize;
    piggyback(head, to, size.saturating_sub(used));
    match *send {
        Transmission::Data {
            origin,
            seq,
            flags,
            extent,
            ..
        } => {
            wire::put_data(head, group, origin, seq, flags, extent.len);
            data(to, Payload::Extent(extent))
        }
        Transmission::Xor {
            sources,
            flags,
            sum,
            ..
        } => {
            wire::put_xor(head, group, &sources, flags, sum.len());
            data(to, Payload::Xor(sum))
        }
        Transmission::Parity {
            first,
            parity,
            end,
            flags,
            ..
        } => {
            let named = (first, parity.block.packets() as u8, parity.index, end);
            wire::put_parity(head, group, named, flags, parity.block.payload_size);
            data(to, Payload::Parity(parity))
        }
        Transmission::Sync { sender, next, .. } => {
            wire::put_sync(
                head,
                &wire::Sync {
                    group,
                    sender,
                    next,
                },
            );
            control(to)
        }
        Transmission::Probe(_) => unreachable!("it has been put"),
    }
}

/// A datagram with a payload.
fn data(to: Target, payload: Payload) -> Datagram {
    let payload = Some(payload);
    Datagram {
        payload,
        ..control(to)
    }
}

/// A datagram without a payload.
pub fn control(to: Target) -> Datagram {
    Datagram {
        to,
        by: None,
        payload: None,
    }
}

/// The output that sends a datagram.
pub fn transmit(to: Dest, payload: Option<Payload>) -> Output {
    let token = payload.map_or(0, |payload| u64::from(payload.op().0));
    Output::Transmit(Transmit {
        to,
        payload,
        token: Token(token),
    })
}

const _: () = assert!(wire::SYNC_LEN == wire::DATA_LEN);
