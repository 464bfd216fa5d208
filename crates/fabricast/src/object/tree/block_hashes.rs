//! Hashes of the blocks of a pack, whose bytes lie in files.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::object::{BLOCK, HASH};

/// What takes the hash of a block, and says whether to go on.
type Take<'a> = &'a mut dyn FnMut(&[u8; HASH]) -> bool;

/// The bytes of the current block.
#[derive(Default)]
pub struct BlockHashes {
    block: Vec<u8>,
}

impl BlockHashes {
    /// Reads the bytes of a file from `start` to `end`, which follow those that were read before.
    /// Shows them to `see`, and gives the hash of each block that they fill to `take`. False if
    /// they cannot be read, or `take` has said not to go on.
    pub fn read(
        &mut self,
        file: &File,
        (start, end): (u64, u64),
        see: &mut dyn FnMut(&[u8]),
        take: Take<'_>,
    ) -> bool {
        let mut at = start;
        while at < end {
            let filled = self.block.len();
            let some = (end - at).min((BLOCK - filled) as u64) as usize;
            self.block.resize(filled + some, 0);
            if file.read_exact_at(&mut self.block[filled..], at).is_err() {
                return false;
            }
            see(&self.block[filled..]);
            at += some as u64;
            if self.block.len() == BLOCK && !self.end(take) {
                return false;
            }
        }
        true
    }

    /// Ends the pack: gives the hash of its last block to `take`, if it is shorter than the others.
    pub fn end(&mut self, take: Take<'_>) -> bool {
        let goes_on = self.block.is_empty() || take(blake3::hash(&self.block).as_bytes());
        self.block.clear();
        goes_on
    }

    /// Drops what was read of the pack.
    pub fn clear(&mut self) {
        self.block.clear();
    }
}
