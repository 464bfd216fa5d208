//! What holds bytes. The protocol moves extents; an object moves the bytes of one operation.

use fabricast_proto::Outcome;

/// Whether bytes can be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// [`Object::bytes`] may be called for them until the next `fetch` batch.
    Ready,
    /// Not yet; the object will ring the transport's waker.
    Later,
    /// Never: the source has failed (it shrank, the disk has an error).
    Failed,
}

/// What became of bytes that were handed to [`Object::write`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// They are where they belong.
    Placed,
    /// They are kept and on their way; [`Object::progress`] will tell.
    Later,
    /// They cannot be placed (disk full).
    Failed,
}

/// The bytes of one operation: memory, a file, a pattern.
pub trait Object {
    /// Its length in bytes; it does not change.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes `offset .. offset + len` ready to be read. What was ready stays so for at least 64
    /// further calls.
    fn fetch(&mut self, offset: u64, len: u32) -> Fetch;

    /// The bytes that [`Object::fetch`] said are ready.
    fn bytes(&self, offset: u64, len: u32) -> &[u8];

    /// Takes bytes that have arrived. Each extent is written once, unless it was found corrupt.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written;

    /// Tells of extents that [`Object::write`] had put off: offset, length and what became of
    /// them. Extents are told in any order and may cover many writes.
    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome));
}

mod memory;
pub use memory::Memory;
