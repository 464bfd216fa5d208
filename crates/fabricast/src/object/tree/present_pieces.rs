//! What is known of the pieces of files that are present, until the files are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use super::candidate::PieceProof;
use super::partial::Partial;
use crate::object::pack::Piece;

/// Most new files into which something is still to be copied: each has two descriptors.
pub const TAKING_OVER: usize = if cfg!(test) { 4 } else { 64 };

/// What is present of a set in its files' places.
#[derive(Default)]
pub struct Present {
    /// The pieces of files of which not all is here yet.
    pub files: BTreeMap<u32, Vec<(Piece, PieceProof)>>,
    /// New files that lack only what the old ones have.
    pub taking_over: Vec<TakingOver>,
    /// Bytes of pieces that are present and may still be copied.
    pub unsettled: u64,
    /// Files that somebody has changed since they were proven.
    pub changed: BTreeSet<u32>,
}

/// A new file that lacks only what the old one has.
pub struct TakingOver {
    pub partial: Partial,
    pub old: File,
    pub pieces: Vec<(Piece, PieceProof)>,
    /// Number of the pieces that are copied.
    pub copied: usize,
}

impl Present {
    /// Files that are not complete, and stay for a later run.
    pub fn partials(&mut self) -> impl Iterator<Item = &mut Partial> {
        self.taking_over.iter_mut().map(|it| &mut it.partial)
    }

    /// Forgets what is present of a file.
    pub fn forget(&mut self, file: u32) {
        let pieces = self.files.remove(&file).unwrap_or_default();
        self.unsettled -= bytes_of(&pieces);
    }
}

/// Bytes of pieces that are no holes.
pub fn bytes_of(pieces: &[(Piece, PieceProof)]) -> u64 {
    pieces.iter().map(|(piece, _)| copied(piece)).sum()
}

/// Bytes that are copied of a piece.
pub fn copied(piece: &Piece) -> u64 {
    match piece {
        Piece::Bytes { len, .. } => (*len).into(),
        _ => 0,
    }
}
