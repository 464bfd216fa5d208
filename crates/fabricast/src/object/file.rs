//! The kinds of object that a file transfer has under way at once.

use fabricast_proto::Outcome;

use super::{Fetch, FileReader, FileWriter, Memory, Object, Written};

/// An object of a file transfer.
pub enum FileObject {
    /// A file that is sent.
    Source(FileReader),
    /// A file that is received.
    FileWriter(FileWriter),
    /// The list of the file's hashes.
    Memory(Memory),
}

macro_rules! each {
    ($self:ident, $o:ident => $call:expr) => {
        match $self {
            FileObject::Source($o) => $call,
            FileObject::FileWriter($o) => $call,
            FileObject::Memory($o) => $call,
        }
    };
}

// SAFETY: it promises what the object promises that it is.
#[allow(unsafe_code)]
unsafe impl Object for FileObject {
    fn len(&self) -> u64 {
        each!(self, o => o.len())
    }

    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        each!(self, o => o.fetch(offset, len))
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        each!(self, o => o.bytes(offset, len))
    }

    fn is_stable(&self) -> bool {
        each!(self, o => o.is_stable())
    }

    fn add(&mut self, offset: u64, len: u32, sum: &mut [u8]) -> bool {
        each!(self, o => o.add(offset, len, sum))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        each!(self, o => o.write(offset, bytes))
    }

    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        each!(self, o => o.progress(report));
    }
}
