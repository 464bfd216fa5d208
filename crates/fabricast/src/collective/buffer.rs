//! Where the bytes of a collective are: what turns them into objects that the driver moves.

use super::step::{Part, Peer};
use crate::object::{Memory, Object};

/// The messages of one rank, numbered from 0, complete or in transit.
pub trait Buffer {
    /// The object that the driver moves.
    type Object: Object;

    /// The object of a part that is here, to be sent to `to`.
    fn source(&mut self, message: usize, part: Part, to: Peer) -> Self::Object;

    /// The object into which a part from `from` will be received.
    fn room(&mut self, message: usize, part: Part, from: Peer) -> Self::Object;

    /// Takes the object of a part back that has been received completely.
    fn received(&mut self, message: usize, part: Part, object: Self::Object);
}

/// Messages in memory. A part is copied when it is sent and when it has been received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MessageBuffer {
    messages: Vec<Vec<u8>>,
}

impl MessageBuffer {
    /// From the messages. At its root, a message has its bytes; elsewhere it has its length, and
    /// the values do not matter.
    pub fn new(messages: Vec<Vec<u8>>) -> MessageBuffer {
        MessageBuffer { messages }
    }

    /// The messages, in the order of their numbers.
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
