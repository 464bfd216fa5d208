//! The packs that have been sent, so that their parts can be read again for receivers that got
//! them damaged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::pack::{Content, Header, Pack, Piece};
use super::source_set::SourceSet;
use super::{BLOCK, HASH, PIECE, blocks, poisoned};

/// Number of blocks whose piece hashes are kept, 2 KiB each: what one receiver requests again,
/// others request, too.
const PIECE_LISTS: usize = 1024;

/// Hashes of the pieces of blocks, by pack and block.
type PieceHashes = BTreeMap<(u32, u64), Arc<[u8]>>;

/// The packs that have been sent, without the bytes of files.
pub struct PackIndex {
    set: Arc<SourceSet>,
    packs: Mutex<Vec<Arc<Sent>>>,
    /// Hashes of the pieces of some blocks.
    pieces: Mutex<PieceHashes>,
}

/// A pack that has been sent.
struct Sent {
    header: Vec<u8>,
    /// The payload of a page of the manifest.
    page: Vec<u8>,
    /// Length of the payload in bytes.
    len: u64,
}

impl PackIndex {
    /// An index of no packs.
    pub fn new(set: Arc<SourceSet>) -> PackIndex {
        PackIndex {
            set,
            packs: Mutex::default(),
            pieces: Mutex::default(),
        }
    }

    /// Notes the next pack.
    pub fn add(&self, pack: &Pack) {
        let payload = pack.payload();
        let header = pack.bytes[..pack.header].to_vec();
        let page = match Header::decode(&header, payload.len()).map(|h| h.content) {
            Some(Content::Page) => payload.to_vec(),
            _ => Vec::new(),
        };
        let sent = Sent {
            header,
            page,
            len: payload.len() as u64,
        };
        self.packs
            .lock()
            .unwrap_or_else(poisoned)
            .push(Arc::new(sent));
    }

    fn sent(&self, pack: u32) -> Option<Arc<Sent>> {
        let packs = self.packs.lock().unwrap_or_else(poisoned);
        packs.get(pack as usize).cloned()
    }

    /// Length of a pack's payload in bytes; `None` if it has not been sent.
    pub fn payload_len(&self, pack: u32) -> Option<u64> {
        self.sent(pack).map(|sent| sent.len)
    }

    /// Number of packs and of their blocks.
    pub fn parts(&self) -> u64 {
        let packs = self.packs.lock().unwrap_or_else(poisoned);
        packs.iter().map(|sent| 1 + blocks(sent.len)).sum()
    }

    /// Appends the header of a pack.
    pub fn header(&self, pack: u32, into: &mut Vec<u8>) -> Result<(), String> {
        let sent = self.sent(pack).ok_or("there is no such pack")?;
        into.extend_from_slice(&sent.header);
        Ok(())
    }

    /// Appends a block of a pack, read again. It must match its hash; otherwise its source has
    /// changed, and that fails the whole set.
    pub fn block(&self, pack: u32, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        let sent = self.sent(pack).ok_or("there is no such pack")?;
        let (start, first) = (block * BLOCK as u64, into.len());
        let end = (start + BLOCK as u64).min(sent.len);
        let header = Header::decode(&sent.header, sent.len as usize).ok_or("no pack")?;
        let read = match &header.content {
            Content::Page => {
                into.extend_from_slice(&sent.page[start as usize..end as usize]);
                Ok(())
            }
            Content::Pieces(pieces) => self.read(pieces, start, end, into),
        };
        let hash = &header.hashes[block as usize * HASH..][..HASH];
        read.and_then(|()| match blake3::hash(&into[first..]).as_bytes() == hash {
            true => Ok(()),
            false => Err("a file was written to while it was being sent".to_owned()),
        })
        .inspect_err(|why| self.set.fail(why.clone()))
    }

    /// Appends the bytes of a payload from `start` to `end`.
    fn read(
        &self,
        pieces: &[Piece],
        start: u64,
        end: u64,
        into: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut at = 0;
        for piece in pieces {
            let Piece::Bytes {
                file, offset, len, ..
            } = piece
            else {
                continue;
            };
            let (from, to) = (start.max(at), end.min(at + u64::from(*len)));
            if from < to {
                let filled = into.len();
                into.resize(filled + (to - from) as usize, 0);
                let opened = self.set.open(*file)?;
                opened.read(offset + (from - at), &mut into[filled..])?;
            }
            at += u64::from(*len);
        }
        Ok(())
    }

    /// The hashes of a block's pieces of 16 KiB. The block is read, unless they are known.
    pub fn piece_hashes(&self, pack: u32, block: u64) -> Result<Arc<[u8]>, String> {
        let known = || self.pieces.lock().unwrap_or_else(poisoned);
        if let Some(hashes) = known().get(&(pack, block)) {
            return Ok(hashes.clone());
        }
        let mut bytes = Vec::new();
        self.block(pack, block, &mut bytes)?;
        let each = bytes.chunks(PIECE).map(blake3::hash);
        let hashes: Arc<[u8]> = each.flat_map(|hash| *hash.as_bytes()).collect();
        let mut known = known();
        if known.len() >= PIECE_LISTS {
            // Receivers go through the set from its beginning, so the first block is needed least.
            known.pop_first();
        }
        known.insert((pack, block), hashes.clone());
        Ok(hashes)
    }

    /// Appends pieces of 16 KiB of a block.
    pub fn pieces(
        &self,
        pack: u32,
        block: u64,
        some: &[u32],
        into: &mut Vec<u8>,
    ) -> Result<(), String> {
        let mut bytes = Vec::new();
        self.block(pack, block, &mut bytes)?;
        for piece in some {
            let start = (*piece as usize * PIECE).min(bytes.len());
            let end = (start + PIECE).min(bytes.len());
            into.extend_from_slice(&bytes[start..end]);
        }
        Ok(())
    }
}
