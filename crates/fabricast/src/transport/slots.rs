//! The memory in which a transport keeps what it sends beside payloads.

use fabricast_proto::Dest;
use fabricast_proto::limits::HEAD_MAX;

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

/// A slot: what a driver writes for one datagram.
#[derive(Default)]
struct Slot {
    /// Header and frames. A payload that was computed or copied for this datagram follows them.
    head: Vec<u8>,
    /// Number of bytes at the end of `head` that are payload.
    inside: usize,
    /// What follows the payload.
    trailer: Vec<u8>,
    taken: bool,
}

/// The slots of a transport. A slot is never moved, and nobody writes to it while the transport
/// reads it.
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<DatagramId>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::new()
    }
}

impl Slots {
    /// [`SLOTS`] free slots.
    pub fn new() -> Slots {
        let slot = || Slot {
            head: Vec::with_capacity(HEAD_MAX),
            ..Slot::default()
        };
        Slots {
            slots: std::iter::repeat_with(slot).take(SLOTS).collect(),
            free: (0..SLOTS as u16).rev().map(DatagramId).collect(),
        }
    }

    /// A free slot, which is empty; `None` if none is free.
    pub fn take(&mut self) -> Option<DatagramId> {
        let id = self.free.pop()?;
        let slot = &mut self.slots[id.index()];
        (slot.taken, slot.inside) = (true, 0);
        slot.head.clear();
        slot.trailer.clear();
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

    /// What comes before the payload.
    pub fn head(&mut self, id: DatagramId) -> &mut Vec<u8> {
        &mut self.slots[id.index()].head
    }

    /// Records that what was last appended to the head, from this offset on, is payload.
    pub fn payload_from(&mut self, id: DatagramId, start: usize) {
        let slot = &mut self.slots[id.index()];
        slot.inside = slot.head.len() - start;
    }

    /// What comes after the payload.
    pub fn trailer(&mut self, id: DatagramId) -> &mut Vec<u8> {
        &mut self.slots[id.index()].trailer
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
            len: slot.head.len() + payload.len() + slot.trailer.len(),
            payload_len: slot.inside + payload.len(),
        }
    }

    /// All bytes of a datagram, in their order.
    pub fn pieces<'a>(&'a self, datagram: &Outgoing<'a>) -> Pieces<'a> {
        let slot = &self.slots[datagram.id.index()];
        [&slot.head, datagram.payload, &slot.trailer]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabricast_proto::NodeId;

    #[test]
    fn a_slot_serves_one_datagram_at_a_time() {
        let mut slots = Slots::new();
        let all: Vec<DatagramId> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!((all.len(), slots.free()), (SLOTS, 0));
        let id = all[7];
        slots.head(id).extend_from_slice(b"head");
        slots.trailer(id).extend_from_slice(b"end");
        let datagram = slots.with_payload(id, Dest::Node(NodeId(1)), b"payload");
        assert_eq!(slots.pieces(&datagram).concat(), b"headpayloadend");
        assert_eq!(datagram.len(), 14);
        slots.release(id);
        assert_eq!(slots.take(), Some(id));
        assert!(slots.head(id).is_empty() && slots.trailer(id).is_empty());
    }

    #[test]
    #[should_panic(expected = "was free")]
    fn a_slot_is_released_once() {
        let mut slots = Slots::new();
        let id = slots.take().unwrap();
        slots.release(id);
        slots.release(id);
    }
}
