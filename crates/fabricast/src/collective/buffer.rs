//! Where the bytes of a collective are: what turns its parts into objects that a driver moves.

use super::step::{Part, Peer};
use crate::object::{Memory, Object};

/// The bytes of one collective at one rank, complete or in transit.
pub trait Buffer {
    /// The object that a driver moves.
    type Object;

    /// The object of a part that is here, to be sent to `to`. `None`: the part cannot be sent yet.
    fn source(&mut self, part: Part, to: Peer) -> Option<Self::Object>;

    /// The object into which a part from `from` will be received. `None`: not yet.
    fn room(&mut self, part: Part, from: Peer) -> Option<Self::Object>;

    /// Takes an object back whose part was neither sent nor received: a driver has refused it, or
    /// the operation has failed.
    fn put_back(&mut self, part: Part, object: Self::Object) {
        let _ = (part, object);
    }

    /// Takes the object of a part back that has been received completely. `copies_max`: number of
    /// bytes of it that the buffer may copy, so that it can pass the part on and return the
    /// caller's memory before that is over.
    fn received(&mut self, part: Part, object: Self::Object, copies_max: u64);

    /// Takes the object of a part back that has been sent: nothing reads it any more.
    fn sent(&mut self, part: Part, object: Self::Object) {
        let _ = (part, object);
    }

    /// Number of bytes in copies from which the buffer passes parts on.
    fn copied(&self) -> u64 {
        0
    }

    /// Whether the rank has all its bytes, and no driver reads or writes the caller's memory,
    /// although steps are left.
    fn is_back(&self) -> bool {
        false
    }
}

/// A message in memory. A part is copied when it is sent and when it has been received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageBuffer {
    message: Vec<u8>,
}

impl MessageBuffer {
    /// From the message. At its root a message has its bytes; elsewhere it has its length, and the
    /// values do not matter.
    pub fn new(message: Vec<u8>) -> MessageBuffer {
        MessageBuffer { message }
    }

    /// The message.
    pub fn message(&self) -> &[u8] {
        &self.message
    }

    fn part(&mut self, part: Part) -> &mut [u8] {
        &mut self.message[part.offset as usize..][..part.len as usize]
    }
}

impl Buffer for MessageBuffer {
    type Object = Memory;

    fn source(&mut self, part: Part, _to: Peer) -> Option<Memory> {
        Some(Memory::new(self.part(part).to_vec()))
    }

    fn room(&mut self, part: Part, _from: Peer) -> Option<Memory> {
        Some(Memory::room(part.len as usize))
    }

    fn received(&mut self, part: Part, object: Memory, _copies_max: u64) {
        debug_assert_eq!(object.len(), part.len);
        self.part(part).copy_from_slice(object.as_slice());
    }
}
