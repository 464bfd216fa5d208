//! The sources that workers read: damaged parts of packs, and files of P3's protocol.

use std::sync::Arc;

use super::frame;
use super::message::Need;
use crate::object::PackIndex;

/// The source of the bytes of a DATA message of a reliable channel. A worker reads it.
pub trait Payload: Send + Sync {
    /// Reads bytes from `offset` on. If that fails, the source remembers it: the message goes in
    /// any case, with any bytes.
    fn read(&self, offset: u64, into: &mut [u8]);
}

/// The source of damaged parts. Workers call [`Blocks::answer`].
pub trait Blocks: Send + Sync {
    /// Appends what `need` requests, which exists. The error is one of the source.
    fn answer(&self, need: &Need, into: &mut Vec<u8>) -> Result<(), String>;
    /// Bytes behind the header of the pack that `need` names; `None` if it has not been announced.
    fn payload_len(&self, need: &Need) -> Option<u64>;
    /// Number of announced packs and of their blocks.
    fn parts(&self) -> u64;
    /// Number of pages of the manifest, each of which may be requested once; 0: there are none.
    fn pages(&self) -> u32 {
        0
    }
    /// The frame that answers the request for a page of the manifest, if there is one.
    fn page(&self, _number: u32) -> Option<Arc<[u8]>> {
        None
    }
}

impl Blocks for PackIndex {
    fn answer(&self, need: &Need, into: &mut Vec<u8>) -> Result<(), String> {
        if need.list {
            self.list(need.pack, into);
            return Ok(());
        }
        let pack = (need.pack, &*need.hash);
        let Some(block) = need.block else {
            return self.header(pack, into);
        };
        match need {
            Need { hashes: true, .. } => into.extend_from_slice(&self.piece_hashes(pack, block)?),
            Need { pieces, .. } if !pieces.is_empty() => self.pieces(pack, block, pieces, into)?,
            _ => self.block(pack, block, into)?,
        }
        Ok(())
    }

    fn payload_len(&self, need: &Need) -> Option<u64> {
        PackIndex::payload_len(self, (need.pack, &*need.hash))
    }

    fn parts(&self) -> u64 {
        PackIndex::parts(self)
    }

    fn pages(&self) -> u32 {
        PackIndex::pages(self)
    }

    fn page(&self, number: u32) -> Option<Arc<[u8]>> {
        PackIndex::page(self, number, |page| {
            let mut frame = Vec::new();
            frame::put_bulk(&mut frame, page);
            frame
        })
    }
}
