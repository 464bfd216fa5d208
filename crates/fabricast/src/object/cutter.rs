//! How the files of a set are cut into packs: the sender's rule, which needs no bytes.
//!
//! A receiver that cuts files of the same lengths by it gets the same pieces. So it knows which
//! packs the files would make that it has already.

use super::pack::{PACK_MAX, PIECE_MAX, PIECES_MAX, Piece};

/// Bytes of the first pack of files. Each further one is twice as long, up to [`PACK_MAX`]: so the
/// first data leave early.
const FIRST: usize = 1 << 20;

/// The present pack, as pieces of files.
pub struct Cutter {
    pieces: Vec<Piece>,
    /// Bytes of these pieces, without holes.
    filled: usize,
    /// Bytes of all pieces of the present pack, at most.
    most: usize,
}

impl Default for Cutter {
    /// The first pack, without a piece.
    fn default() -> Cutter {
        Cutter {
            pieces: Vec::new(),
            filled: 0,
            most: FIRST,
        }
    }
}

impl Cutter {
    /// The pieces of the present pack.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes of the pieces of the present pack, without holes.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes of all pieces of the present pack, at most.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Whether the present pack has to leave before another piece comes.
    pub fn is_full(&self) -> bool {
        self.filled >= self.most || self.pieces.len() >= PIECES_MAX
    }

    /// Whether the present pack leaves where a file goes on: long files go in packs that leave
    /// soon.
    pub fn leaves_within_file(&self) -> bool {
        self.filled >= PIECE_MAX
    }

    /// The next piece of a file that has `len` bytes, from `offset` on. There begins a hole, or
    /// data, of `extent` bytes.
    pub fn cut(&self, (file, len): (u32, u64), offset: u64, extent: (bool, u64)) -> Piece {
        match extent {
            (true, extent) => Piece::Hole {
                file,
                offset,
                len: extent,
                last: offset + extent == len,
            },
            (false, extent) => {
                let room = (self.most - self.filled).min(PIECE_MAX);
                let here = extent.min(room as u64);
                Piece::Bytes {
                    file,
                    offset,
                    len: here as u32,
                    last: offset + here == len,
                }
            }
        }
    }

    /// Adds a piece to the present pack.
    pub fn push(&mut self, piece: Piece) {
        if let Piece::Bytes { len, .. } = piece {
            self.filled += len as usize;
        }
        self.pieces.push(piece);
    }

    /// Takes back all pieces of the present pack but the first `pieces`, which have `filled` bytes.
    pub fn truncate(&mut self, pieces: usize, filled: usize) {
        self.pieces.truncate(pieces);
        self.filled = filled;
    }

    /// Ends the present pack, and begins the next one.
    pub fn take(&mut self) -> Vec<Piece> {
        self.filled = 0;
        self.most = (self.most * 2).min(PACK_MAX);
        std::mem::take(&mut self.pieces)
    }
}
