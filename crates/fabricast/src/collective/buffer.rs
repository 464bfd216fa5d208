//! Where the bytes of a collective are: what makes objects of them for the driver to move.

use super::step::{Part, Peer};
use crate::object::{Memory, Object};

/// The messages of one rank, numbered from 0, whole or on their way.
pub trait Buffer {
    /// What the driver moves.
    type Object: Object;

    /// A part that is here, to be sent to `to`.
    fn source(&mut self, message: usize, part: Part, to: Peer) -> Self::Object;

    /// Room for a part that will come from `from`.
    fn room(&mut self, message: usize, part: Part, from: Peer) -> Self::Object;

    /// A part has been received whole; here is its object again.
    fn received(&mut self, message: usize, part: Part, object: Self::Object);
}

/// Messages in memory. A part is copied when it is sent and when it has been received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageBuffer {
    messages: Vec<Vec<u8>>,
}

impl MessageBuffer {
    /// These messages: at their root the bytes, elsewhere as many of any value.
    pub fn new(messages: Vec<Vec<u8>>) -> MessageBuffer {
        MessageBuffer { messages }
    }

    /// The messages.
    pub fn messages(&self) -> &[Vec<u8>] {
        &self.messages
    }

    fn part(&mut self, message: usize, part: Part) -> &mut [u8] {
        &mut self.messages[message][part.offset as usize..][..part.len as usize]
    }
}

impl Buffer for MessageBuffer {
    type Object = Memory;

    fn source(&mut self, message: usize, part: Part, _to: Peer) -> Memory {
        Memory::new(self.part(message, part).to_vec())
    }

    fn room(&mut self, _message: usize, part: Part, _from: Peer) -> Memory {
        Memory::room(part.len as usize)
    }

    fn received(&mut self, message: usize, part: Part, object: Memory) {
        self.part(message, part).copy_from_slice(object.as_slice());
    }
}
