//! Where the rendezvous reads damaged blocks and the hash list again.

use super::message::Need;
use crate::object::SourceFile;

/// Where damaged blocks come from again. Called by a thread that does nothing else.
pub trait Blocks: Send + Sync {
    /// Appends what is needed of a block, which exists, as do the pieces. An error is the source's.
    fn answer(&self, block: u64, need: &Need, into: &mut Vec<u8>) -> Result<(), String>;
    /// Appends at most `most` bytes of the hash list from `from` on, and says how long it is;
    /// `None` before it is complete.
    fn list(&self, from: usize, most: usize, into: &mut Vec<u8>) -> Option<usize>;
    /// Length of the file in bytes.
    fn len(&self) -> u64;
    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Blocks for SourceFile {
    fn answer(&self, block: u64, need: &Need, into: &mut Vec<u8>) -> Result<(), String> {
        match need {
            Need { hashes: true, .. } => into.extend_from_slice(&self.piece_hashes(block)?),
            Need { pieces, .. } if !pieces.is_empty() => self.pieces(block, pieces, into)?,
            _ => self.reread(block, into)?,
        }
        Ok(())
    }

    fn list(&self, from: usize, most: usize, into: &mut Vec<u8>) -> Option<usize> {
        self.list_part(from, most, into)
    }

    fn len(&self) -> u64 {
        SourceFile::len(self)
    }
}
