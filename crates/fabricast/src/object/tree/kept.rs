//! What an earlier run has left of a set, and is proven.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;

use rustix::fs::{self as sys, SeekFrom};
use rustix::io::Errno;

use crate::object::HASH;
use crate::object::pack::Header;

/// The headers of the packs that are kept, by their hashes.
pub type KeptPacks = HashMap<[u8; HASH], Header>;

/// What of a set is on the disk already.
#[derive(Clone, Default, Debug)]
pub struct Kept {
    /// The hashes of the headers of packs that need not come again, the pages of the manifest
    /// included.
    pub packs: BTreeSet<[u8; HASH]>,
    /// Bytes of files in them.
    pub bytes: u64,
    /// Whether an earlier run of this set has left it.
    pub is_resumed: bool,
}

impl Kept {
    /// Whether nothing is there, so that everything has to come.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty()
    }
}

/// Whether a file has no data from `start` to `end`, as far as its file system can tell. It is as
/// long as that at least, or the hole is at its end.
pub fn is_hole(file: &File, start: u64, end: u64) -> bool {
    if start == end {
        return true;
    }
    match sys::seek(file, SeekFrom::Data(start)) {
        Ok(data) => data >= end,
        Err(Errno::NXIO) => file.metadata().is_ok_and(|meta| meta.len() >= end),
        Err(_) => false,
    }
}
