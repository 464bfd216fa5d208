//! Objects: what holds the bytes of operations. The protocol moves extents; an object moves the
//! bytes of one operation.

use fabricast_proto::Outcome;

use crate::error::Error;

/// Lets other threads run before this one goes on. Threads that hash and write packs call it each
/// time that they are about to work for longer than some 0.1 ms. All receivers get a pack at the
/// same time; where there are fewer cores than threads, the thread that takes datagrams would
/// otherwise wait for whole packs, and the sender would slow down.
fn give_way() {
    std::thread::yield_now();
}

/// Result of [`Object::fetch`]: whether bytes can be read now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fetch {
    /// The bytes are ready: [`Object::bytes`] may be called for them, for at least 64 further calls
    /// of `fetch`.
    Ready,
    /// The bytes are not ready yet; the object will wake the transport's waker.
    Later,
    /// The bytes will never be ready: the source has failed (it shrank, or the disk has an error).
    Failed,
}

/// Result of [`Object::write`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// The bytes are where they belong.
    Placed,
    /// The object keeps the bytes and is placing them; [`Object::progress`] reports the outcome.
    Later,
    /// The bytes cannot be placed (for example, the disk is full).
    Failed,
}

/// The bytes of one operation: memory, a file, a pattern.
///
/// # Safety
/// [`Object::is_stable`] keeps its promise. The driver relies on it when it lends bytes to a
/// transport that reads them late.
#[allow(unsafe_code)]
pub unsafe trait Object {
    /// Length of the object in bytes; it does not change.
    fn len(&self) -> u64;

    /// Whether the object has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes `offset .. offset + len` ready to be read. Ready bytes stay ready for at least 64
    /// further calls.
    fn fetch(&mut self, offset: u64, len: u32) -> Fetch;

    /// The bytes that [`Object::fetch`] has reported as ready.
    fn bytes(&self, offset: u64, len: u32) -> &[u8];

    /// Whether what [`Object::bytes`] returns stays where it is, unchanged, until the object is
    /// dropped or those bytes are written ([`Object::write`]), wherever the object is moved. If it
    /// does not, the driver copies the bytes for a transport that reads them late.
    fn is_stable(&self) -> bool {
        false
    }

    /// Adds (exclusive or) bytes to the front of `sum`; false if the object does not have them.
    /// `sum` has at least `len` bytes. An object that is being received has the bytes that were
    /// written, for as long as other bytes of the same window may be missing.
    fn add(&mut self, offset: u64, len: u32, sum: &mut [u8]) -> bool {
        add(sum, self.bytes(offset, len));
        true
    }

    /// Takes bytes that have arrived. Each extent is written once, unless it was found corrupt.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written;

    /// Reports the extents that [`Object::write`] had answered with [`Written::Later`]: offset,
    /// length and outcome. Extents come in any order, and one may cover many writes. Not called for
    /// an object that has never answered so.
    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome));
}

/// An object whose parts can be received each on its own.
pub trait Divisible: Object + Sized {
    /// Splits off everything from `at` on, as an object of its own.
    fn split_off(&mut self, at: u64) -> Self;

    /// Puts a part that was split off back.
    fn append(&mut self, rest: Self);
}

// SAFETY: it promises what the object in the box promises, which does not move.
#[allow(unsafe_code)]
unsafe impl<O: Object + ?Sized> Object for Box<O> {
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        (**self).fetch(offset, len)
    }
    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        (**self).bytes(offset, len)
    }
    fn is_stable(&self) -> bool {
        (**self).is_stable()
    }
    fn add(&mut self, offset: u64, len: u32, sum: &mut [u8]) -> bool {
        (**self).add(offset, len, sum)
    }
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        (**self).write(offset, bytes)
    }
    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        (**self).progress(report);
    }
}

/// The error for a sender that contradicts itself.
fn absurd(what: &str) -> Error {
    Error::Integrity(format!("what the sender sends makes no sense: {what}"))
}

mod memory;
pub use memory::Memory;

mod discard;
mod disk_space;
mod entry_ranges;
mod file_name;
pub mod manifest;
pub mod pack;
mod pack_index;
mod packer;
mod possession;
mod repacker;
mod source_set;
mod stream_writer;
mod target;
mod tree;
pub use discard::Discard;
pub use disk_space::{LEN_MAX, check_space, default_reserve};
pub use entry_ranges::{CANDIDATE_RANGES_MAX, EntryRanges};
pub use file_name::{any_name, parent, safe_name};
pub use pack_index::{PackIndex, PackRecord};
pub use packer::{Packed, Packer};
pub use possession::{Challenge, Secret};
pub use repacker::{Again, Repacker};
pub use source_set::{Selection, SourceFile, SourceSet, Unopened, Version};
pub use stream_writer::StreamWriter;
pub use target::{SetOutcome, Target};
pub use tree::{
    Candidates, Compared, Comparer, Destination, DryRun, FileMetadata, INCOMPLETE_MAX, Kept,
    Received, Remaining, Tree, UnprovenFile, folded_names, is_kept, remove_leftovers,
};

/// Adds (exclusive or) `bytes` to the front of `sum`.
fn add(sum: &mut [u8], bytes: &[u8]) {
    sum.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
}

/// Length of a hash block in bytes. Part of the protocol: a pack's header has a hash for each block
/// of the pack.
pub const BLOCK: usize = 1 << 20;
/// Bytes of a hash.
pub const HASH: usize = 32;

/// Length of a piece in bytes: a damaged block is repaired by pieces. Part of the protocol.
pub const PIECE: usize = 16 << 10;

const _: () = assert!(BLOCK.is_multiple_of(PIECE));

/// Number of pieces of a block of `len` bytes.
pub fn pieces(len: u64) -> u32 {
    len.div_ceil(PIECE as u64) as u32
}

/// Number of blocks of a pack or of all files together, of `len` bytes.
pub fn blocks(len: u64) -> u64 {
    len.div_ceil(BLOCK as u64)
}

/// Ignores that a mutex is poisoned. The thread that panicked has already said so. Its data are
/// still sound (they are only written in one step), and a second panic would hide the first.
fn poisoned<T>(e: std::sync::PoisonError<T>) -> T {
    e.into_inner()
}

#[cfg(test)]
pub(crate) mod testing {
    use std::cell::RefCell;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::pack::{Content, Header, Pack, Piece};
    use super::{Packed, Packer, Selection, SourceSet};
    use crate::waker::Waker;

    use super::Memory;

    /// Does what a caller may do that has a message back: reads it, and overwrites its memory. The
    /// memory stays where it is until the end of the thread, so that late readers find other bytes
    /// there. Returns the message.
    pub fn overwrite(message: Memory) -> Vec<u8> {
        thread_local!(static RETURNED: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) });
        let mut bytes = message.into_bytes();
        let copy = bytes.clone();
        bytes.fill(0xdd);
        RETURNED.with_borrow_mut(|returned| returned.push(bytes));
        copy
    }

    /// A directory of its own for one test.
    pub fn scratch() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("fabricast-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Bytes that differ from block to block.
    pub fn pattern(len: usize) -> Vec<u8> {
        let mut rng = fabricast_proto::rng::Rng::new(len as u64);
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&rng.bits().to_le_bytes()[..word.len()]);
        }
        bytes
    }

    /// Lists these sources, about which there is nothing to tell.
    pub fn set_of(sources: &[PathBuf]) -> Arc<SourceSet> {
        let set = SourceSet::list(sources, &Selection::default(), &mut |text| panic!("{text}"));
        let mut set = set.unwrap();
        set.find_identical(&mut || Ok(()), &mut |_| {}).unwrap();
        Arc::new(set)
    }

    /// A packer, and what waits for it.
    pub struct Packs(Packer, Waker);

    impl Packs {
        /// Starts to read a set.
        pub fn of(set: &Arc<SourceSet>) -> Packs {
            let waker = Waker::new().unwrap();
            Packs(Packer::start(set.clone(), waker.clone()).unwrap(), waker)
        }

        /// What the thread yields next.
        pub fn next(&self) -> Packed {
            loop {
                if let Some(packed) = self.0.next() {
                    return packed;
                }
                assert!(self.1.wait(Some(Duration::from_secs(60))).unwrap());
            }
        }
    }

    /// All packs of a set, and the files that cannot be read.
    pub fn packs(set: &Arc<SourceSet>) -> (Vec<Pack>, Vec<u32>) {
        let (packs, mut all, mut failed) = (Packs::of(set), Vec::new(), Vec::new());
        loop {
            match packs.next() {
                Packed::Pack(pack) => all.push(pack),
                Packed::Failed(file, _) => failed.push(file),
                Packed::End => return (all, failed),
                Packed::Gone => panic!("the thread has ended"),
                Packed::Pages | Packed::Compare(_) => panic!("nobody compares"),
            }
        }
    }

    /// The pieces of a pack; `None` for a page of the manifest.
    pub fn pieces_of(pack: &Pack) -> Option<Vec<Piece>> {
        let header = &pack.bytes[..pack.header];
        match Header::decode(header, pack.payload().len())
            .unwrap()
            .content
        {
            Content::Page => None,
            Content::Pieces(pieces) => Some(pieces),
        }
    }
}
