//! The memory in which a transport keeps what it sends beside payloads.

use std::ops::{Deref, DerefMut};

use fabricast_proto::Dest;
use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::Writer;
use memmap2::MmapMut;

/// Number of slots: as many datagrams as a driver may have queued and posted.
pub const SLOTS: usize = 128;

/// The identity of a datagram from when a driver begins to write it until the transport has
/// completed it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DatagramId(u16);

impl DatagramId {
    /// A number below [`SLOTS`] that no other datagram has meanwhile.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A datagram to be sent. Its bytes are those in its slot, before and after the payload.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Which datagram it is, and its slot.
    pub id: DatagramId,
    /// The node or group to which the datagram goes.
    pub to: Dest,
    payload: &'a [u8],
    len: usize,
    payload_len: usize,
}

impl<'a> Outgoing<'a> {
    /// The payload where it lies in an object; empty if the slot holds it, or if there is none. A
    /// transport with [`super::Caps::zero_copy`] may read it until it has completed the datagram:
    /// [`Slots::lending`] promises that it stays where it is. Any other transport reads it in
    /// [`super::Transport::send`] alone.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Length of the datagram, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Length of the payload, in bytes, wherever it lies.
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }

    /// Whether the datagram has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The bytes of a datagram, in their order, without those pieces that are empty.
pub type Pieces<'a> = [&'a [u8]; 3];

/// Bytes of a cache line.
const LINE: usize = 64;

/// What a driver has written into a slot. Its three parts follow each other.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// Length of the header and the frames, in bytes.
    head: usize,
    /// Length of a payload that was computed or copied for this datagram, in bytes.
    inside: usize,
    /// Length of what follows the payload, in bytes.
    trailer: usize,
    taken: bool,
}

/// Writes one part of a datagram into its slot. When it is dropped, the part is what was written.
pub struct Part<'a> {
    out: Writer<'a>,
    /// Length of the part in the slot, in bytes.
    len: &'a mut usize,
}

impl<'a> Deref for Part<'a> {
    type Target = Writer<'a>;

    fn deref(&self) -> &Writer<'a> {
        &self.out
    }
}

impl<'a> DerefMut for Part<'a> {
    fn deref_mut(&mut self) -> &mut Writer<'a> {
        &mut self.out
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        *self.len = self.out.len();
    }
}

/// The slots of a transport: memory of a fixed size, each for one datagram. Slots lie in one
/// mapping of pages and do not move as long as the transport exists. Nobody writes to a slot while
/// the transport reads it.
pub struct Slots {
    /// The memory of all slots. The system gives a page when it is first used, so that slots which
    /// are never used cost nothing. An allocator would also give used memory, which it zeroes.
    bytes: MmapMut,
    slots: [Slot; SLOTS],
    free: Vec<DatagramId>,
    /// Length of a slot, in bytes.
    size: usize,
    /// Distance from one slot to the next, in bytes.
    stride: usize,
}

impl Slots {
    /// [`SLOTS`] free slots, for datagrams of at most `datagram_max` bytes
    /// ([`super::Caps::datagram_max`]). Panics if the system has no memory for them.
    pub fn new(datagram_max: usize) -> Slots {
        let size = datagram_max.max(HEAD_MAX);
        // With an odd number of cache lines, heads do not compete for the same places in a cache.
        let stride = (size.div_ceil(LINE) | 1) * LINE;
        Slots {
            bytes: MmapMut::map_anon(SLOTS * stride).expect("memory for slots"),
            slots: [Slot::default(); SLOTS],
            free: (0..SLOTS as u16).rev().map(DatagramId).collect(),
            size,
            stride,
        }
    }

    /// A free slot, which is empty; `None` if none is free.
    pub fn take(&mut self) -> Option<DatagramId> {
        let id = self.free.pop()?;
        self.slots[id.index()] = Slot {
            taken: true,
            ..Slot::default()
        };
        Some(id)
    }

    /// Frees the slot of a datagram that was completed, or that was not sent.
    pub fn release(&mut self, id: DatagramId) {
        let taken = &mut self.slots[id.index()].taken;
        assert!(std::mem::take(taken), "{id:?} was free");
        self.free.push(id);
    }

    /// Number of free slots.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Writes what comes before the payload, in place of all that the slot held.
    #[inline]
    pub fn head(&mut self, id: DatagramId) -> Part<'_> {
        let slot = &mut self.slots[id.index()];
        (slot.inside, slot.trailer) = (0, 0);
        let at = id.index() * self.stride;
        Part {
            out: Writer::new(&mut self.bytes[at..at + self.size]),
            len: &mut slot.head,
        }
    }

    /// Writes the payload behind the head, in place of all that followed the head.
    pub fn payload(&mut self, id: DatagramId) -> Part<'_> {
        let slot = &mut self.slots[id.index()];
        slot.trailer = 0;
        let at = id.index() * self.stride;
        Part {
            out: Writer::new(&mut self.bytes[at + slot.head..at + self.size]),
            len: &mut slot.inside,
        }
    }

    /// Writes what comes after the payload, in place of what was there.
    pub fn trailer(&mut self, id: DatagramId) -> Part<'_> {
        let slot = &mut self.slots[id.index()];
        let at = id.index() * self.stride;
        let start = at + slot.head + slot.inside;
        Part {
            out: Writer::new(&mut self.bytes[start..at + self.size]),
            len: &mut slot.trailer,
        }
    }

    /// What was written: the head, the payload, if it is in the slot, and the trailer.
    pub fn parts(&mut self, id: DatagramId) -> [&mut [u8]; 3] {
        let Slot {
            head,
            inside,
            trailer,
            ..
        } = self.slots[id.index()];
        let bytes = &mut self.bytes[id.index() * self.stride..];
        let (head, bytes) = bytes.split_at_mut(head);
        let (inside, bytes) = bytes.split_at_mut(inside);
        [head, inside, &mut bytes[..trailer]]
    }

    /// The datagram in a slot, all of whose bytes are there.
    pub fn outgoing(&self, id: DatagramId, to: Dest) -> Outgoing<'static> {
        self.with_payload(id, to, &[])
    }

    /// The datagram in a slot, with a payload that lies elsewhere.
    ///
    /// # Safety
    /// Once a transport with [`super::Caps::zero_copy`] has taken the datagram, the payload stays
    /// where it is, unchanged, until the transport has completed the datagram, or until
    /// [`super::Transport::cancel`] has returned, or until the transport is dropped.
    #[allow(unsafe_code)]
    pub unsafe fn lending<'a>(&self, id: DatagramId, to: Dest, payload: &'a [u8]) -> Outgoing<'a> {
        self.with_payload(id, to, payload)
    }

    fn with_payload<'a>(&self, id: DatagramId, to: Dest, payload: &'a [u8]) -> Outgoing<'a> {
        let slot = &self.slots[id.index()];
        Outgoing {
            id,
            to,
            payload,
            len: slot.head + slot.inside + payload.len() + slot.trailer,
            payload_len: slot.inside + payload.len(),
        }
    }

    /// All bytes of a datagram, in their order.
    pub fn pieces<'a>(&'a self, datagram: &Outgoing<'a>) -> Pieces<'a> {
        let id = datagram.id.index();
        let slot = &self.slots[id];
        let bytes = &self.bytes[id * self.stride..];
        let (front, bytes) = bytes.split_at(slot.head + slot.inside);
        [front, datagram.payload, &bytes[..slot.trailer]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_proto::NodeId;

    #[test]
    fn a_slot_serves_one_datagram_at_a_time() {
        let mut slots = Slots::new(1000);
        let all: Vec<DatagramId> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!((all.len(), slots.free()), (SLOTS, 0));
        let id = all[7];
        slots.head(id).put(b"head");
        slots.trailer(id).put(b"end");
        let datagram = slots.with_payload(id, Dest::Node(NodeId(1)), b"payload");
        assert_eq!(slots.pieces(&datagram).concat(), b"headpayloadend");
        assert_eq!((datagram.len(), datagram.payload_len()), (14, 7));
        slots.release(id);
        assert_eq!(slots.take(), Some(id));
        assert!(slots.outgoing(id, Dest::Node(NodeId(1))).is_empty());
    }

    #[test]
    fn what_is_written_anew_replaces_all_that_follows() {
        let mut slots = Slots::new(1000);
        let id = slots.take().unwrap();
        let says = |slots: &Slots| {
            let datagram = slots.outgoing(id, Dest::Node(NodeId(1)));
            let bytes = slots.pieces(&datagram).concat();
            assert_eq!(datagram.len(), bytes.len());
            (String::from_utf8(bytes).unwrap(), datagram.payload_len())
        };
        slots.head(id).put(b"head");
        slots.payload(id).put(b"payload");
        slots.trailer(id).put(b"end");
        assert_eq!(says(&slots), ("headpayloadend".into(), 7));
        let parts = slots.parts(id).map(|part| part.to_vec());
        assert_eq!(parts, [&b"head"[..], b"payload", b"end"]);
        slots.payload(id).put(b"other");
        assert_eq!(says(&slots), ("headother".into(), 5));
        slots.head(id).put(b"he");
        assert_eq!(says(&slots), ("he".into(), 0));
    }

    /// A device is told once where the slots are.
    #[test]
    fn slots_neither_move_nor_overlap_however_full_they_are() {
        for size in [HEAD_MAX, 1472, 8192] {
            let mut slots = Slots::new(size);
            let (mut all, mut places) = (Vec::new(), Vec::new());
            while let Some(id) = slots.take() {
                slots.head(id).put(&[1]);
                places.push(slots.parts(id)[0].as_ptr().addr());
                all.push(id);
            }
            let mut slots = Box::new(slots);
            for (n, &id) in (0..).zip(&all) {
                slots.head(id).put(&vec![n; size - 3]);
                slots.payload(id).zeros(2).fill(n);
                slots.trailer(id).put(&[n]);
            }
            for (n, (&id, &place)) in (0..).zip(all.iter().zip(&places)) {
                let datagram = slots.outgoing(id, Dest::Node(NodeId(1)));
                let [front, _, trailer] = slots.pieces(&datagram);
                assert_eq!(front.as_ptr().addr(), place);
                assert_eq!(trailer.as_ptr().addr(), place + size - 1);
                assert_eq!([front, trailer].concat(), vec![n; size]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "do not fit")]
    fn no_datagram_is_longer_than_a_slot() {
        let mut slots = Slots::new(1000);
        let id = slots.take().unwrap();
        slots.head(id).put(&[0; 999]);
        slots.payload(id).put(b"xy");
    }

    #[test]
    #[should_panic(expected = "was free")]
    fn a_slot_is_released_once() {
        let mut slots = Slots::new(1000);
        let id = slots.take().unwrap();
        slots.release(id);
        slots.release(id);
    }
}
