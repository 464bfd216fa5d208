//! Coded repair: one packet that mends different losses of different receivers.
//!
//! The payload of an *XOR repair packet* is the exclusive or of several packets of one operation,
//! its *sources*. A shorter packet (the last of its object) is padded with zeros. A receiver that
//! lacks one source recovers it by adding the sources that it has. The core only names the
//! sources; the driver computes the exclusive or.

use crate::id::{Extent, OpId};
use crate::limits::SOURCES_MAX;
use crate::seq::Seq;

/// The packets that an XOR repair packet combines, in rising order: the first, and the distance
/// from each to the next. All distances together take 32 bits, so that the head of an XOR repair
/// packet is as long as a data packet's (spec 1.7).
///
/// A distance is written in digits of three bits, lowest first, each in a nibble whose highest bit
/// says that another digit follows; the first distance is in the lowest nibble. A nibble of zero
/// ends the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XorSources {
    first: Seq,
    last: Seq,
    distances: u32,
    bits: u32,
    count: usize,
}

impl XorSources {
    /// A list with a single packet.
    pub fn new(first: Seq) -> XorSources {
        XorSources {
            first,
            last: first,
            distances: 0,
            bits: 0,
            count: 1,
        }
    }

    /// Decodes `distances`, which count from packet `first`. `None` if they are not written as
    /// [`XorSources::push`] writes them, or if they name less than two packets or more than
    /// [`SOURCES_MAX`].
    pub fn read(first: Seq, distances: u32) -> Option<XorSources> {
        let mut sources = XorSources::new(first);
        let mut rest = distances;
        while rest != 0 {
            let (mut distance, mut shift) = (0, 0);
            loop {
                distance |= (rest & 7) << shift;
                let more = rest & 8 != 0;
                rest >>= 4;
                shift += 3;
                if !more {
                    break;
                }
            }
            if distance == 0 || !sources.push(sources.last + distance) {
                return None;
            }
        }
        (sources.distances == distances && sources.count > 1).then_some(sources)
    }

    /// Adds a packet after the last. Returns false, and changes nothing, if there is no room.
    pub fn push(&mut self, seq: Seq) -> bool {
        let distance = seq.from(self.last);
        debug_assert!(distance > 0);
        let (mut rest, mut nibbles, mut bits) = (distance as u32, 0u64, 0);
        while rest > 0 {
            let more = u64::from(rest >> 3 != 0);
            nibbles |= (u64::from(rest & 7) | more << 3) << bits;
            rest >>= 3;
            bits += 4;
        }
        if self.bits + bits > 32 || self.count == SOURCES_MAX {
            return false;
        }
        self.distances |= (nibbles << self.bits) as u32;
        self.bits += bits;
        self.last = seq;
        self.count += 1;
        true
    }

    /// The first packet.
    pub fn first(&self) -> Seq {
        self.first
    }

    /// The last packet.
    pub fn last(&self) -> Seq {
        self.last
    }

    /// Number of packets.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The distances in their wire format.
    pub fn distances(&self) -> u32 {
        self.distances
    }

    /// The packets, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = Seq> {
        let (mut rest, mut at) = (self.distances, self.first);
        let others = core::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let (mut distance, mut shift) = (0, 0);
            loop {
                let nibble = rest & 15;
                distance |= (nibble & 7) << shift;
                (rest, shift) = (rest >> 4, shift + 3);
                if nibble & 8 == 0 {
                    break;
                }
            }
            at += distance;
            Some(at)
        });
        core::iter::once(self.first).chain(others)
    }
}

/// Extents of one operation that are combined by exclusive or. Extents shorter than the longest
/// are padded with zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XorExtents {
    /// The operation whose object contains the extents.
    pub op: OpId,
    /// Offset and length in bytes of each extent.
    extents: [(u64, u32); SOURCES_MAX],
    count: u8,
}

impl XorExtents {
    /// An empty list for operation `op`.
    pub fn new(op: OpId) -> XorExtents {
        XorExtents {
            op,
            extents: [(0, 0); SOURCES_MAX],
            count: 0,
        }
    }

    /// Adds an extent of the same operation. A list holds at most [`SOURCES_MAX`] extents.
    pub fn push(&mut self, extent: Extent) {
        debug_assert_eq!(extent.op, self.op);
        self.extents[usize::from(self.count)] = (extent.offset, extent.len);
        self.count += 1;
    }

    /// The extents.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let op = self.op;
        let extents = self.extents.iter().take(usize::from(self.count));
        extents.map(move |&(offset, len)| Extent { op, offset, len })
    }

    /// Length of the exclusive or in bytes: the length of the longest extent.
    pub fn len(&self) -> u32 {
        self.extents().map(|e| e.len).max().unwrap_or(0)
    }

    /// Whether the list has no extents.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_pushed_is_read(first: u32, steps in proptest::collection::vec(1u32..200, 1..8)) {
            let mut sources = XorSources::new(Seq(first));
            let mut want = vec![Seq(first)];
            for step in steps {
                let next = sources.last() + step;
                if sources.push(next) {
                    want.push(next);
                }
            }
            prop_assert_eq!(sources.iter().collect::<Vec<_>>(), want.clone());
            let read = XorSources::read(Seq(first), sources.distances());
            prop_assert_eq!(read, (want.len() > 1).then_some(sources));
        }

        /// Decoding refuses any distances from the network that encoding would not write.
        #[test]
        fn what_is_read_is_what_is_written(first: u32, distances: u32) {
            if let Some(sources) = XorSources::read(Seq(first), distances) {
                let mut again = XorSources::new(Seq(first));
                for seq in sources.iter().skip(1) {
                    prop_assert!(again.push(seq));
                }
                prop_assert_eq!(again, sources);
                prop_assert!(sources.iter().count() <= SOURCES_MAX);
            }
        }
    }

    #[test]
    fn distances_are_written_as_the_specification_says() {
        let mut sources = XorSources::new(Seq(100));
        assert!(sources.push(Seq(107)) && sources.push(Seq(115)) && sources.push(Seq(116)));
        // 7; 8 = 0 + 8 × 1; 1.
        assert_eq!(sources.distances(), 0x1187);
        for bad in [
            0,
            0x0000_0008,
            0x0000_0080,
            0x0000_0100,
            0x1111_1111 << 4,
            0x8888_8888,
        ] {
            assert_eq!(XorSources::read(Seq(0), bad), None, "{bad:x}");
        }
    }
}
