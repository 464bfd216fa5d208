//! The bytes that an operation moves: the caller's, or a copy that lets the caller continue at once
//! (P1.7, P4.8).

use fabricast_proto::{Outcome, limits};

use crate::object::{Fetch, Memory, Object, Written};

/// The object of an operation under way: the caller's, or a copy.
pub(super) enum Stored<O> {
    /// The caller's object, until the operation is over.
    Lent(O),
    /// A copy of the caller's bytes.
    Copy(Memory),
}

impl<O: Object> Stored<O> {
    /// A copy of the whole object, or `None` if not all its bytes are available now. It uses a
    /// buffer of `spare` if there is one.
    pub fn copy(object: &mut O, spare: &mut Vec<Vec<u8>>) -> Option<Stored<O>> {
        let len = object.len();
        let mut bytes = spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.reserve(usize::try_from(len).ok()?);
        // An object need not serve reads longer than a packet.
        for offset in (0..len).step_by(limits::PAYLOAD_MAX as usize) {
            let piece = (len - offset).min(u64::from(limits::PAYLOAD_MAX)) as u32;
            if object.fetch(offset, piece) != Fetch::Ready {
                return None;
            }
            bytes.extend_from_slice(object.bytes(offset, piece));
        }
        Some(Stored::Copy(Memory::new(bytes)))
    }
}

// SAFETY: it promises what the object promises that it holds.
#[allow(unsafe_code)]
unsafe impl<O: Object> Object for Stored<O> {
    fn len(&self) -> u64 {
        match self {
            Stored::Lent(o) => o.len(),
            Stored::Copy(m) => m.len(),
        }
    }
    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        match self {
            Stored::Lent(o) => o.fetch(offset, len),
            Stored::Copy(m) => m.fetch(offset, len),
        }
    }
    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        match self {
            Stored::Lent(o) => o.bytes(offset, len),
            Stored::Copy(m) => m.bytes(offset, len),
        }
    }
    fn is_stable(&self) -> bool {
        match self {
            Stored::Lent(o) => o.is_stable(),
            Stored::Copy(m) => m.is_stable(),
        }
    }
    fn add(&mut self, offset: u64, len: u32, sum: &mut [u8]) -> bool {
        match self {
            Stored::Lent(o) => o.add(offset, len, sum),
            Stored::Copy(m) => m.add(offset, len, sum),
        }
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        match self {
            Stored::Lent(o) => o.write(offset, bytes),
            Stored::Copy(m) => m.write(offset, bytes),
        }
    }
    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        match self {
            Stored::Lent(o) => o.progress(report),
            Stored::Copy(m) => m.progress(report),
        }
    }
}
