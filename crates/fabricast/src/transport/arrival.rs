//! A datagram that has arrived.

use std::ops::{Deref, Range};

use fabricast_proto::{NodeId, Time};

/// A datagram that has arrived, lent to the receiver for the time of one call.
pub struct Arrival<'a> {
    /// The node from whose address the datagram comes; `None`: no node is known to be there.
    pub from: Option<NodeId>,
    /// When the datagram came out of the network.
    pub at: Time,
    bytes: Bytes<'a>,
}

enum Bytes<'a> {
    /// The transport needs its buffer back after the call.
    Borrowed(&'a mut [u8]),
    /// The transport has a buffer for each datagram, and may give this one away.
    Lent(&'a mut Vec<u8>),
}

impl<'a> Arrival<'a> {
    /// A datagram in a buffer that holds others, too, or that the transport needs back.
    pub fn borrowed(from: Option<NodeId>, at: Time, bytes: &'a mut [u8]) -> Arrival<'a> {
        let bytes = Bytes::Borrowed(bytes);
        Arrival { from, at, bytes }
    }

    /// A datagram that fills a buffer of its own. The receiver may keep the buffer, and then leaves
    /// an empty one.
    pub fn lent(from: Option<NodeId>, at: Time, buffer: &'a mut Vec<u8>) -> Arrival<'a> {
        let bytes = Bytes::Lent(buffer);
        Arrival { from, at, bytes }
    }

    /// The datagram.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Lent(buffer) => buffer,
        }
    }

    /// The datagram, to be changed in place.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Borrowed(bytes) => bytes,
            Bytes::Lent(buffer) => buffer,
        }
    }

    /// Keeps a part of the datagram beyond the call. It is copied if the transport needs its buffer
    /// back, or if it is less than half of the buffer: what a peer sends must not hold much more
    /// memory than it is long. Nothing is left of the datagram in the other case.
    pub fn keep(&mut self, part: Range<usize>) -> Kept {
        match &mut self.bytes {
            Bytes::Lent(buffer) if part.len() >= buffer.capacity() / 2 => Kept {
                buffer: std::mem::take(buffer),
                part,
            },
            _ => Kept::copy(&self.bytes()[part]),
        }
    }
}

/// A part of a datagram that was kept.
pub struct Kept {
    buffer: Vec<u8>,
    part: Range<usize>,
}

impl Kept {
    /// A copy of these bytes.
    pub fn copy(bytes: &[u8]) -> Kept {
        Kept {
            buffer: bytes.to_vec(),
            part: 0..bytes.len(),
        }
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.part.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_part_does_not_keep_a_large_buffer() {
        for (len, lent) in [(1, false), (499, false), (500, true), (1000, true)] {
            let mut buffer = vec![7; 1000];
            let place = buffer.as_ptr();
            let mut arrival = Arrival::lent(None, Time::ZERO, &mut buffer);
            let kept = arrival.keep(0..len);
            assert_eq!(*kept, vec![7; len]);
            assert_eq!(kept.as_ptr() == place, lent, "{len} bytes");
            assert_eq!(buffer.is_empty(), lent);
        }
        // What counts is the memory, not how much of it the datagram fills.
        let mut buffer = Vec::with_capacity(60_000);
        buffer.push(7);
        drop(Arrival::lent(None, Time::ZERO, &mut buffer).keep(0..1));
        assert!(buffer.capacity() >= 60_000);
    }

    #[test]
    fn what_is_kept_is_copied_only_where_the_buffer_is_needed_back() {
        let mut buffer = b"head and payload".to_vec();
        let place = buffer.as_ptr();
        let mut arrival = Arrival::borrowed(None, Time::ZERO, &mut buffer);
        arrival.bytes_mut()[9] = b'P';
        let kept = arrival.keep(9..16);
        assert_eq!(&*kept, b"Payload");
        assert_eq!(buffer, b"head and Payload");

        let mut arrival = Arrival::lent(None, Time::ZERO, &mut buffer);
        let kept = arrival.keep(5..16);
        assert_eq!(&*kept, b"and Payload");
        assert_eq!(kept.as_ptr(), place.wrapping_add(5));
        assert!(buffer.is_empty());
    }
}
