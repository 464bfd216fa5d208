//! The packs that a receiver has stored, as it gives them to others (spec 5.15).
//!
//! Only their headers are in memory. What the files hold is read back by the thread that stores
//! ([`ReadBack`]), and compared with the header: the files may have changed since.

use std::sync::Arc;

use super::stored_headers::StoredHeaders;
use super::storing::ReadBack;
use crate::bootstrap::Blocks;
use crate::bootstrap::message::Need;
use crate::object::BLOCK;
use crate::object::pack::{Content, PACK_MAX, Span, spans};

/// The packs that a receiver has stored: what another receiver may request.
pub struct StoredPacks {
    headers: Arc<StoredHeaders>,
    files: ReadBack,
    /// Most packs and blocks that the set can have.
    parts: u64,
}

impl StoredPacks {
    /// The packs with these headers, whose `files` hold the bytes. `parts`: most packs and blocks
    /// that the set can have.
    pub fn new(headers: Arc<StoredHeaders>, files: ReadBack, parts: u64) -> StoredPacks {
        StoredPacks {
            headers,
            files,
            parts,
        }
    }

    /// The header or the block that is requested, unless it is lacking.
    fn read(&self, need: &Need) -> Option<Vec<u8>> {
        let stored = self.headers.named(need.pack, &need.hash)?;
        let Some(block) = need.block else {
            return Some(stored.header.encode());
        };
        let Content::Pieces(pieces) = &stored.header.content else {
            return None;
        };
        let start = block.checked_mul(BLOCK as u64)?;
        let spans: Vec<Span> = spans(pieces, start, start + BLOCK as u64).collect();
        let bytes = self.files.read(spans)?;
        stored.header.proves(block, &bytes).then_some(bytes)
    }
}

impl Blocks for StoredPacks {
    /// Appends nothing if the pack is lacking, or its files have changed.
    fn answer(&self, need: &Need, into: &mut Vec<u8>) -> Result<(), String> {
        into.extend(self.read(need).unwrap_or_default());
        Ok(())
    }

    /// What may be requested of a pack: its header, and whole blocks. Whether it is here, only
    /// [`StoredPacks::answer`] tells.
    fn payload_len(&self, need: &Need) -> Option<u64> {
        let is_other = need.list || need.hashes || !need.pieces.is_empty();
        (!is_other).then_some(PACK_MAX as u64)
    }

    fn parts(&self) -> u64 {
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::PIECE;
    use crate::object::pack::{Header, Pack, Piece};
    use crate::object::testing::pattern;

    /// Two files in one pack of more than a block, and what reads them back.
    fn stored(bytes: Vec<u8>) -> (Pack, StoredPacks) {
        let piece = |file, offset, len: usize| Piece::Bytes {
            file,
            offset,
            len: len as u32,
            last: true,
        };
        let pieces = vec![piece(0, 0, 100), piece(1, 50, BLOCK)];
        let pack = Pack::new(Content::Pieces(pieces), &pattern(100 + BLOCK));
        let headers = Arc::new(StoredHeaders::default());
        let header = Header::decode(&pack.bytes[..pack.header], pack.payload().len());
        headers.add(7, header.unwrap());
        let files = ReadBack::answering(move |spans| {
            let at = |span: &Span| match span.file {
                0 => span.offset as usize,
                _ => 50 + span.offset as usize,
            };
            let each = spans
                .iter()
                .map(|span| bytes.get(at(span)..at(span) + span.len));
            let all: Option<Vec<&[u8]>> = each.collect();
            all.map(|all| all.concat())
        });
        (pack, StoredPacks::new(headers, files, 100))
    }

    fn answer(packs: &StoredPacks, number: u32, hash: &str, block: Option<u64>) -> Vec<u8> {
        let need = Need {
            pack: number,
            hash: hash.into(),
            block,
            ..Need::default()
        };
        let mut answer = Vec::new();
        packs.answer(&need, &mut answer).unwrap();
        answer
    }

    #[test]
    fn stored_packs_are_read_back_by_number_and_hash() {
        let (pack, packs) = stored(pattern(100 + BLOCK));
        let hash = pack.hash().to_hex().to_string();
        assert_eq!(answer(&packs, 7, &hash, None), pack.bytes[..pack.header]);
        for block in [0, 1] {
            assert_eq!(answer(&packs, 7, &hash, Some(block)), pack.block(block));
        }
        let other = blake3::hash(b"other").to_hex();
        for (number, hash, block) in [
            (8, &*hash, None),
            (7, "", None),
            (7, other.as_str(), Some(0)),
            (7, &*hash, Some(2)),
            (7, &*hash, Some(u64::MAX)),
        ] {
            assert_eq!(
                answer(&packs, number, hash, block),
                b"",
                "{number} {block:?}"
            );
        }
    }

    #[test]
    fn what_has_changed_since_is_lacking() {
        let mut changed = pattern(100 + BLOCK);
        changed[100 + PIECE] ^= 1;
        let (pack, packs) = stored(changed);
        let hash = pack.hash().to_hex().to_string();
        assert_eq!(answer(&packs, 7, &hash, Some(0)), b"");
        assert_eq!(answer(&packs, 7, &hash, Some(1)), pack.block(1));
        // The file has become shorter.
        let (_, packs) = stored(pattern(10));
        assert_eq!(answer(&packs, 7, &hash, Some(0)), b"");
    }

    #[test]
    fn nothing_but_headers_and_blocks_may_be_requested() {
        let (_, packs) = stored(Vec::new());
        let needs = [
            Need {
                list: true,
                ..Need::default()
            },
            Need {
                block: Some(0),
                hashes: true,
                ..Need::default()
            },
            Need {
                block: Some(0),
                pieces: vec![1],
                ..Need::default()
            },
        ];
        for need in needs {
            assert_eq!(packs.payload_len(&need), None, "{need:?}");
        }
        assert!(packs.payload_len(&Need::default()).is_some());
    }
}
