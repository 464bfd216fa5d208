//! The source that the rendezvous reads damaged blocks and the hash list from.

use super::message::Need;
use crate::object::SourceFile;

/// The source of damaged blocks and of the hash list. A thread that does nothing else calls it.
pub trait Blocks: Send + Sync {
    /// Appends what `need` requests of a block. The block and its pieces exist. The error is one of
    /// the source.
    fn answer(&self, block: u64, need: &Need, into: &mut Vec<u8>) -> Result<(), String>;
    /// Appends at most `most` bytes of the hash list from `from` on. Returns the length of the
    /// list, or `None` before it is complete.
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
