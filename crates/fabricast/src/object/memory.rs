//! An object in memory: the bytes of a message, owned.

use super::{Divisible, Fetch, Object, Written};
use fabricast_proto::Outcome;

/// Bytes in memory, sent from or received into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    bytes: Vec<u8>,
}

impl Memory {
    /// An object of these bytes, to be sent.
    pub fn new(bytes: Vec<u8>) -> Memory {
        Memory { bytes }
    }

    /// Room for `len` bytes, zeroed, to be received into.
    pub fn room(len: usize) -> Memory {
        Memory {
            bytes: vec![0; len],
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the bytes back.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

// SAFETY: nothing but `write` changes or moves the bytes while the driver has the object.
#[allow(unsafe_code)]
unsafe impl Object for Memory {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn fetch(&mut self, _offset: u64, _len: u32) -> Fetch {
        Fetch::Ready
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        let start = offset as usize;
        &self.bytes[start..start + len as usize]
    }

    fn is_stable(&self) -> bool {
        true
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        let start = offset as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        Written::Placed
    }

    fn progress(&mut self, _report: &mut dyn FnMut(u64, u32, Outcome)) {}
}

impl Divisible for Memory {
    fn split_off(&mut self, at: u64) -> Memory {
        Memory::new(self.bytes.split_off(at as usize))
    }

    fn append(&mut self, mut rest: Memory) {
        self.bytes.append(&mut rest.bytes);
    }
}
