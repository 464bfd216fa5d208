//! How the files of a set are cut into packs: the sender's rule, which needs no bytes.
//!
//! A receiver that cuts files of the same lengths by it gets the same pieces. So it knows which
//! packs the files would make that it has already.

use super::pack::{PACK_MAX, PIECE_MAX, PIECES_MAX, Piece};

/// Bytes of the first pack of files. Each further one is twice as long, up to [`PACK_MAX`]: so the
/// first data leave early.
const FIRST: usize = 1 << 20;

/// The pack that is being cut, as pieces of files.
pub struct Cutter {
    pieces: Vec<Piece>,
    /// Bytes of these pieces, without holes.
    filled: usize,
    /// Bytes of these pieces, with the holes of short files: where a pack of short files ends does
    /// not depend on holes, so that who lacks a file with holes knows it, too.
    spanned: usize,
    /// Most bytes that the pack may span.
    most: usize,
    /// Whether the file that is being cut has packs of its own.
    is_alone: bool,
}

/// How far a pack has been cut.
#[derive(Clone, Copy, Default)]
pub struct Mark {
    pieces: usize,
    filled: usize,
    spanned: usize,
}

impl Default for Cutter {
    /// The first pack, without a piece.
    fn default() -> Cutter {
        Cutter {
            pieces: Vec::new(),
            filled: 0,
            spanned: 0,
            most: FIRST,
            is_alone: false,
        }
    }
}

impl Cutter {
    /// Whether a file of `len` bytes has packs of its own: whatever becomes of it moves the ends of
    /// no other packs.
    pub fn is_alone(len: u64) -> bool {
        len >= PIECE_MAX as u64
    }

    /// The pieces of the pack.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Bytes of the pieces of the pack, without holes.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Most bytes that the pack may have.
    pub fn most(&self) -> usize {
        self.most
    }

    /// Begins a file of `len` bytes. True: the pack has to leave first.
    pub fn begin(&mut self, len: u64) -> bool {
        self.is_alone = Cutter::is_alone(len);
        self.is_alone
    }

    /// Ends the file. True: the pack has to leave. Behind a file with packs of its own, packs have
    /// their full length: how many the file had may depend on its holes.
    pub fn end(&mut self) -> bool {
        if self.is_alone {
            self.most = PACK_MAX;
        }
        self.is_alone
    }

    /// Whether the pack has to leave before another piece comes.
    pub fn is_full(&self) -> bool {
        self.spanned >= self.most || self.pieces.len() >= PIECES_MAX
    }

    /// Whether the pack leaves where a file goes on: long files go in packs that leave soon.
    pub fn leaves_within_file(&self) -> bool {
        self.is_alone && self.filled >= PIECE_MAX
    }

    /// The next piece of a file that has `len` bytes, from `offset` on. There begins a hole, or
    /// data, of `extent` bytes.
    pub fn cut(&self, (file, len): (u32, u64), offset: u64, extent: (bool, u64)) -> Piece {
        let room = (self.most - self.spanned).min(PIECE_MAX) as u64;
        match extent {
            (true, extent) => {
                let here = if self.is_alone {
                    extent
                } else {
                    extent.min(room)
                };
                Piece::Hole {
                    file,
                    offset,
                    len: here,
                    last: offset + here == len,
                }
            }
            (false, extent) => {
                let here = extent.min(room);
                Piece::Bytes {
                    file,
                    offset,
                    len: here as u32,
                    last: offset + here == len,
                }
            }
        }
    }

    /// Adds a piece to the pack.
    pub fn push(&mut self, piece: Piece) {
        let size = piece.size() as usize;
        match piece {
            Piece::Bytes { .. } => {
                self.filled += size;
                self.spanned += size;
            }
            Piece::Hole { .. } if !self.is_alone => self.spanned += size,
            _ => {}
        }
        self.pieces.push(piece);
    }

    /// How far the pack has been cut.
    pub fn mark(&self) -> Mark {
        Mark {
            pieces: self.pieces.len(),
            filled: self.filled,
            spanned: self.spanned,
        }
    }

    /// Takes back all pieces of the pack that were added after the mark.
    pub fn back_to(&mut self, mark: Mark) {
        self.pieces.truncate(mark.pieces);
        (self.filled, self.spanned) = (mark.filled, mark.spanned);
    }

    /// Ends the pack, and begins the next one.
    pub fn take(&mut self) -> Vec<Piece> {
        (self.filled, self.spanned) = (0, 0);
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
            if cutter.begin(len) && !cutter.pieces().is_empty() {
                end(&mut cutter);
            }
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
            if cutter.end() {
                end(&mut cutter);
            }
        }
        if !cutter.pieces().is_empty() {
            end(&mut cutter);
        }
        packs
    }

    #[test]
    fn packs_grow_and_leave_within_long_files() {
        const MIB: u64 = 1 << 20;
        let long = packs(&[20 * MIB + 1, 5]);
        let ends = [1, 3, 7, 11, 15, 19].map(|end| vec![(0, end * MIB)]);
        assert_eq!(long[..6], ends);
        assert_eq!(long[6..], [[(0, 20 * MIB + 1)], [(1, 5)]]);
        // A long file and its neighbours are in packs of their own, and packs are long then.
        let both = packs(&[5, 4 * MIB, 8 * MIB, 3 * MIB, 3 * MIB, 3 * MIB]);
        let counts: Vec<usize> = both.iter().map(Vec::len).collect();
        assert_eq!(counts, [1, 1, 1, 1, 1, 3]);
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
    fn a_hole_of_a_long_file_is_a_piece_without_bytes() {
        let mut cutter = Cutter::default();
        assert!(cutter.begin(1 << 40));
        let hole = cutter.cut((3, 1 << 40), 0, (true, 1 << 40));
        assert_eq!((hole.size(), hole.is_last()), (1 << 40, true));
        let mark = cutter.mark();
        cutter.push(hole);
        assert_eq!((cutter.filled(), cutter.pieces().len()), (0, 1));
        assert!(!cutter.is_full());
        cutter.back_to(mark);
        assert!(cutter.take().is_empty());
    }

    /// Where packs of short files end is known without knowing their holes.
    #[test]
    fn a_hole_of_a_short_file_takes_room() {
        let mut cutter = Cutter::default();
        let len = (FIRST + 10) as u64;
        assert!(!cutter.begin(len));
        cutter.push(cutter.cut((0, len), 0, (false, 4)));
        let hole = cutter.cut((0, len), 4, (true, len - 4));
        assert_eq!((hole.size(), hole.is_last()), (FIRST as u64 - 4, false));
        cutter.push(hole);
        assert!(cutter.is_full() && !cutter.end());
        assert_eq!(cutter.filled(), 4);
    }
}
