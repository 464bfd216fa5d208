//! Packs: what one broadcast of a transfer carries (spec 5.4).
//!
//! A pack begins with its header, which says what the bytes behind it are: a page of the manifest,
//! or pieces of files, each by file and offset. The header also has the BLAKE3 hash of each block
//! of these bytes. The sender tells the hash of the header over the control connection, so a
//! receiver proves a pack as soon as it has arrived, and writes nothing that is not proven.

use std::collections::BTreeSet;

use super::manifest::{PAGE_MAX, take};
use super::{BLOCK, HASH, PIECE, blocks, give_way};

/// Most bytes of files in a pack.
pub const PACK_MAX: usize = 16 << 20;
/// Most bytes of one piece of a file that goes on after it.
pub const PIECE_MAX: usize = 4 << 20;
/// Most entries of a header.
pub const PIECES_MAX: usize = 4096;
/// Longest reason of a failure in bytes.
const REASON_MAX: usize = 200;
/// Bytes of a header before its entries.
const HEAD: usize = 5;
/// Bytes of an entry that is a piece of a file.
const ENTRY: usize = 17;
/// Longest header in bytes: entries that are failures with reasons, and the hashes.
pub const HEADER_MAX: usize = HEAD + PIECES_MAX * (7 + REASON_MAX) + (PACK_MAX / BLOCK) * HASH;

const _: () = assert!(PAGE_MAX <= PACK_MAX && HEADER_MAX <= BLOCK);

/// One entry of a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of a file.
    Bytes {
        /// Number of the file in the manifest.
        file: u32,
        /// Where they begin.
        offset: u64,
        /// Their number.
        len: u32,
        /// Whether the file is complete with them.
        last: bool,
    },
    /// A hole of a file: bytes that are zero and need no space.
    Hole {
        /// Number of the file in the manifest.
        file: u32,
        /// Where the hole begins.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Whether the file is complete with it.
        last: bool,
    },
    /// The sender cannot read a file: nothing more of it comes, and what came is void.
    Failed {
        /// Number of the file in the manifest.
        file: u32,
        /// Why, in words.
        reason: String,
    },
}

impl Piece {
    /// Number of its file in the manifest.
    pub fn file(&self) -> u32 {
        match self {
            Piece::Bytes { file, .. } | Piece::Hole { file, .. } | Piece::Failed { file, .. } => {
                *file
            }
        }
    }

    /// Bytes of the file that it is, holes included.
    pub fn size(&self) -> u64 {
        match self {
            Piece::Bytes { len, .. } => (*len).into(),
            Piece::Hole { len, .. } => *len,
            Piece::Failed { .. } => 0,
        }
    }

    /// Where it ends in its file.
    pub fn end(&self) -> u64 {
        match self {
            Piece::Bytes { offset, .. } | Piece::Hole { offset, .. } => offset + self.size(),
            Piece::Failed { .. } => 0,
        }
    }

    /// Whether the file ends with it.
    pub fn is_last(&self) -> bool {
        matches!(self, Piece::Bytes { last, .. } | Piece::Hole { last, .. } if *last)
    }
}

/// What the bytes of a pack are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// A page of the manifest.
    Page,
    /// Pieces of files, one behind the other.
    Pieces(Vec<Piece>),
}

const PAGE: u8 = 0;
const PIECES: u8 = 1;
const BYTES: u8 = 0;
const LAST: u8 = 1;
const FAILED: u8 = 2;
const HOLE: u8 = 3;
const LAST_HOLE: u8 = 4;

/// Bytes of a file that lie one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Number of the file in the manifest.
    pub file: u32,
    /// Where they begin.
    pub offset: u64,
    /// Their number.
    pub len: usize,
}

/// Where the bytes of a payload from `start` to `end` lie in their files.
pub fn spans(pieces: &[Piece], start: u64, end: u64) -> impl Iterator<Item = Span> + '_ {
    let mut at = 0;
    pieces.iter().filter_map(move |piece| {
        let Piece::Bytes {
            file, offset, len, ..
        } = *piece
        else {
            return None;
        };
        let before = at;
        at += u64::from(len);
        let (from, to) = (start.max(before), end.min(at));
        (from < to).then(|| Span {
            file,
            offset: offset + (from - before),
            len: (to - from) as usize,
        })
    })
}

/// The header of a pack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the bytes are.
    pub content: Content,
    /// The BLAKE3 hashes of the blocks of these bytes.
    pub hashes: Vec<u8>,
}

impl Header {
    /// Length of a header in bytes, if `pieces` pieces of files have `len` bytes together.
    pub fn len_of(pieces: usize, len: usize) -> usize {
        HEAD + pieces * ENTRY + len.div_ceil(BLOCK) * HASH
    }

    /// Length in bytes of what lies behind the header of a pack of files.
    pub fn payload_len(&self) -> usize {
        match &self.content {
            Content::Page => 0,
            Content::Pieces(pieces) => {
                let lens = spans(pieces, 0, u64::MAX).map(|span| span.len);
                lens.sum()
            }
        }
    }

    /// Whether these bytes are a block of the pack.
    pub fn proves(&self, block: u64, bytes: &[u8]) -> bool {
        let hash = self.hashes.chunks_exact(HASH).nth(block as usize);
        hash.is_some_and(|hash| blake3::hash(bytes).as_bytes() == hash)
    }

    /// The header as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let pieces = match &self.content {
            Content::Page => {
                out.push(PAGE);
                &[][..]
            }
            Content::Pieces(pieces) => {
                out.push(PIECES);
                pieces
            }
        };
        out.extend((pieces.len() as u32).to_be_bytes());
        for piece in pieces {
            match piece {
                Piece::Bytes {
                    file,
                    offset,
                    len,
                    last,
                } => {
                    out.push(if *last { LAST } else { BYTES });
                    out.extend(file.to_be_bytes());
                    out.extend(offset.to_be_bytes());
                    out.extend(len.to_be_bytes());
                }
                Piece::Hole {
                    file,
                    offset,
                    len,
                    last,
                } => {
                    out.push(if *last { LAST_HOLE } else { HOLE });
                    out.extend(file.to_be_bytes());
                    out.extend(offset.to_be_bytes());
                    out.extend(len.to_be_bytes());
                }
                Piece::Failed { file, reason } => {
                    out.push(FAILED);
                    out.extend(file.to_be_bytes());
                    let reason = cut(reason, REASON_MAX).as_bytes();
                    out.extend((reason.len() as u16).to_be_bytes());
                    out.extend(reason);
                }
            }
        }
        out.extend(&self.hashes);
        out
    }

    /// The header of a pack with `len` bytes behind it; `None` if the bytes are no such header.
    pub fn decode(mut bytes: &[u8], len: usize) -> Option<Header> {
        let [kind] = take(&mut bytes)?;
        let count = u32::from_be_bytes(take(&mut bytes)?) as usize;
        let mut pieces = Vec::new();
        let mut sum = 0u64;
        for _ in 0..(count <= PIECES_MAX).then_some(count)? {
            let [kind] = take(&mut bytes)?;
            let file = u32::from_be_bytes(take(&mut bytes)?);
            pieces.push(match kind {
                BYTES | LAST => {
                    let offset = u64::from_be_bytes(take(&mut bytes)?);
                    let len = u32::from_be_bytes(take(&mut bytes)?);
                    offset.checked_add(len.into())?;
                    sum += u64::from(len);
                    let last = kind == LAST;
                    Piece::Bytes {
                        file,
                        offset,
                        len,
                        last,
                    }
                }
                HOLE | LAST_HOLE => {
                    let offset = u64::from_be_bytes(take(&mut bytes)?);
                    let len = u64::from_be_bytes(take(&mut bytes)?);
                    offset.checked_add(len)?;
                    let last = kind == LAST_HOLE;
                    Piece::Hole {
                        file,
                        offset,
                        len,
                        last,
                    }
                }
                FAILED => {
                    let len = usize::from(u16::from_be_bytes(take(&mut bytes)?));
                    let len = (len <= REASON_MAX).then_some(len)?;
                    let (text, rest) = bytes.split_at_checked(len)?;
                    bytes = rest;
                    let reason = std::str::from_utf8(text).ok()?.to_owned();
                    Piece::Failed { file, reason }
                }
                _ => return None,
            });
        }
        let content = match kind {
            PAGE if count == 0 && len <= PAGE_MAX => Content::Page,
            PIECES if sum == len as u64 => Content::Pieces(pieces),
            _ => return None,
        };
        let hashes = bytes.to_vec();
        (hashes.len() == blocks(len as u64) as usize * HASH).then_some(Header { content, hashes })
    }
}

/// The beginning of a text, in at most `most` bytes.
fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// A pack in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pack {
    /// Header and bytes.
    pub bytes: Vec<u8>,
    /// Length of the header in bytes.
    pub header: usize,
}

impl Pack {
    /// Whether it holds a page of the manifest.
    pub fn is_page(&self) -> bool {
        self.bytes.first() == Some(&PAGE)
    }

    /// Puts a pack together from its header's content and its bytes. The bytes are hashed.
    pub fn new(content: Content, bytes: &[u8]) -> Pack {
        Pack::around(content, bytes.to_vec(), 0)
    }

    /// Puts a pack together where its bytes are: in `memory`, behind a gap of `gap` bytes for the
    /// header. They are hashed, and moved only if the header is not as long as the gap.
    pub fn around(content: Content, mut memory: Vec<u8>, gap: usize) -> Pack {
        let hashes = memory[gap..].chunks(BLOCK).map(blake3::hash);
        let hashes = hashes.flat_map(|h| *h.as_bytes()).collect();
        let head = Header { content, hashes }.encode();
        let header = head.len();
        match header == gap {
            true => memory[..gap].copy_from_slice(&head),
            false => drop(memory.splice(..gap, head)),
        }
        Pack {
            bytes: memory,
            header,
        }
    }

    /// The files that cannot be read, as the pack says.
    pub fn failed_files(&self) -> BTreeSet<u32> {
        let header = Header::decode(&self.bytes[..self.header], self.payload().len());
        let Some(Content::Pieces(pieces)) = header.map(|header| header.content) else {
            return BTreeSet::new();
        };
        let failed = pieces.iter().filter(|p| matches!(p, Piece::Failed { .. }));
        failed.map(Piece::file).collect()
    }

    /// The BLAKE3 hash of the header.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.bytes[..self.header])
    }

    /// The bytes behind the header.
    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.header..]
    }

    /// The bytes of a block.
    pub fn block(&self, block: u64) -> &[u8] {
        let start = block as usize * BLOCK;
        let payload = self.payload();
        &payload[start..payload.len().min(start + BLOCK)]
    }

    /// The blocks whose hashes differ from those in `header`.
    pub fn differing(&self, header: &Header) -> Vec<u64> {
        let hashes = header.hashes.chunks_exact(HASH);
        let each = self.payload().chunks(BLOCK).zip(hashes).enumerate();
        let wrong = each.filter(|(_, (block, hash))| {
            give_way();
            blake3::hash(block).as_bytes() != *hash
        });
        wrong.map(|(i, _)| i as u64).collect()
    }

    /// Pieces of 16 KiB of a block that do not match `hashes`, which has one hash for each.
    pub fn wrong_pieces(&self, block: u64, hashes: &[u8]) -> Vec<u32> {
        let pieces = self.block(block).chunks(PIECE);
        let each = pieces.zip(hashes.chunks_exact(HASH)).enumerate();
        let wrong = each.filter(|(_, (piece, hash))| blake3::hash(piece).as_bytes() != *hash);
        wrong.map(|(i, _)| i as u32).collect()
    }

    /// Replaces `pieces` of a damaged block by `bytes`. Returns false, and changes nothing, if the
    /// block would still not match the header.
    pub fn mend(&mut self, header: &Header, block: u64, pieces: &[u32], bytes: &[u8]) -> bool {
        let mut whole = self.block(block).to_vec();
        let mut rest = bytes;
        for piece in pieces {
            let start = (*piece as usize * PIECE).min(whole.len());
            let end = (start + PIECE).min(whole.len());
            let Some((piece, after)) = rest.split_at_checked(end - start) else {
                return false;
            };
            whole[start..end].copy_from_slice(piece);
            rest = after;
        }
        let hash = &header.hashes[block as usize * HASH..][..HASH];
        if !rest.is_empty() || blake3::hash(&whole).as_bytes() != hash {
            return false;
        }
        let start = self.header + block as usize * BLOCK;
        self.bytes[start..start + whole.len()].copy_from_slice(&whole);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn piece() -> impl Strategy<Value = Piece> {
        let bytes = (any::<u32>(), 0..1u64 << 45, 0..5000u32, any::<bool>());
        let bytes = bytes.prop_map(|(file, offset, len, last)| Piece::Bytes {
            file,
            offset,
            len,
            last,
        });
        let failed = (any::<u32>(), "[a-zé]{0,150}");
        let failed = failed.prop_map(|(file, reason)| Piece::Failed {
            file,
            reason: cut(&reason, REASON_MAX).to_owned(),
        });
        let hole = (any::<u32>(), 0..1u64 << 45, 0..1u64 << 45, any::<bool>());
        let hole = hole.prop_map(|(file, offset, len, last)| Piece::Hole {
            file,
            offset,
            len,
            last,
        });
        prop_oneof![bytes, hole, failed]
    }

    fn len(pieces: &[Piece]) -> usize {
        let len = |piece: &Piece| match piece {
            Piece::Bytes { len, .. } => *len as usize,
            Piece::Hole { .. } | Piece::Failed { .. } => 0,
        };
        pieces.iter().map(len).sum()
    }

    #[test]
    fn the_longest_header_is_as_long_as_said() {
        let reason = "x".repeat(REASON_MAX + 1);
        let failed = vec![Piece::Failed { file: 0, reason }; PIECES_MAX];
        let hashes = vec![0; PACK_MAX / BLOCK * HASH];
        let content = Content::Pieces(failed);
        assert_eq!(Header { content, hashes }.encode().len(), HEADER_MAX);
    }

    #[test]
    fn a_header_that_contradicts_its_pack_is_none() {
        let piece = |offset, len| Piece::Bytes {
            file: 0,
            offset,
            len,
            last: false,
        };
        let decoded = |content, hashes: usize, len| {
            let hashes = vec![0; hashes * HASH];
            Header::decode(&Header { content, hashes }.encode(), len)
        };
        let pieces = |pieces: &[Piece]| Content::Pieces(pieces.to_vec());
        assert!(decoded(pieces(&[piece(0, 5)]), 1, 5).is_some());
        assert!(decoded(pieces(&[piece(0, 5)]), 1, 6).is_none(), "length");
        assert!(decoded(pieces(&[piece(0, 5)]), 2, 5).is_none(), "hashes");
        assert!(
            decoded(pieces(&[piece(u64::MAX, 5)]), 1, 5).is_none(),
            "offset"
        );
        let many = vec![piece(0, 0); PIECES_MAX + 1];
        assert!(decoded(pieces(&many), 0, 0).is_none(), "entries");
        assert!(decoded(pieces(&many[1..]), 0, 0).is_some());
        assert!(decoded(Content::Page, 1, PAGE_MAX).is_some());
        assert!(decoded(Content::Page, 2, PAGE_MAX + 1).is_none(), "page");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(pieces in vec(piece(), 0..40)) {
            let bytes = vec![7; len(&pieces)];
            let content = Content::Pieces(pieces);
            let pack = Pack::new(content.clone(), &bytes);
            let header = Header::decode(&pack.bytes[..pack.header], bytes.len()).unwrap();
            prop_assert_eq!(&header.content, &content);
            prop_assert_eq!(pack.payload(), bytes);
            prop_assert!(pack.differing(&header).is_empty());
        }

        #[test]
        fn a_bent_header_is_none_or_another(
            pieces in vec(piece(), 1..10), at in any::<prop::sample::Index>(), bit in 0..8u8
        ) {
            let len = len(&pieces);
            let hashes = vec![7; blocks(len as u64) as usize * HASH];
            let header = Header { content: Content::Pieces(pieces), hashes };
            let mut bytes = header.encode();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert_ne!(Header::decode(&bytes, len), Some(header.clone()));
            prop_assert_eq!(Header::decode(&bytes[..at], len), None);
        }
    }
}
