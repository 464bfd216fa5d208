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

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts files of these lengths without holes, and returns the ends of their pieces by packs.
    fn packs(lens: &[u64]) -> Vec<Vec<(u32, u64)>> {
        let (mut cutter, mut packs) = (Cutter::default(), Vec::new());
        let mut end = |cutter: &mut Cutter| {
            let pieces = cutter.take();
            packs.push(pieces.iter().map(|p| (p.file(), p.end())).collect());
        };
        for (file, &len) in (0..).zip(lens) {
            let mut offset = 0;
            loop {
                if cutter.is_full() {
                    end(&mut cutter);
                }
                let piece = cutter.cut((file, len), offset, (false, len - offset));
                offset = piece.end();
                cutter.push(piece);
                if offset == len {
                    break;
                }
                if cutter.leaves_within_file() {
                    end(&mut cutter);
                }
            }
        }
        end(&mut cutter);
        packs
    }

    #[test]
    fn packs_grow_and_leave_within_long_files() {
        const MIB: u64 = 1 << 20;
        let long = packs(&[20 * MIB + 1, 5]);
        let ends = [1, 3, 7, 11, 15, 19].map(|end| vec![(0, end * MIB)]);
        assert_eq!(long[..6], ends);
        assert_eq!(long[6], [(0, 20 * MIB + 1), (1, 5)]);
        let short = packs(&[MIB; 40]);
        let counts: Vec<usize> = short.iter().map(Vec::len).collect();
        assert_eq!(counts, [1, 2, 4, 8, 16, 9]);
    }

    #[test]
    fn a_pack_has_so_many_pieces_and_no_more() {
        let empty = packs(&vec![0; PIECES_MAX + 1]);
        assert_eq!(
            empty.iter().map(Vec::len).collect::<Vec<_>>(),
            [PIECES_MAX, 1]
        );
    }

    #[test]
    fn a_hole_is_a_piece_without_bytes() {
        let mut cutter = Cutter::default();
        let hole = cutter.cut((3, 1 << 40), 0, (true, 1 << 40));
        assert_eq!((hole.size(), hole.is_last()), (1 << 40, true));
        cutter.push(hole);
        assert_eq!((cutter.filled(), cutter.pieces().len()), (0, 1));
        cutter.truncate(0, 0);
        assert!(cutter.take().is_empty());
    }
}
