//! Files that were in their places before the set came, and turn out to be the set's (spec 5.16).
//!
//! A file stays untouched while all that is known of it is in its place already. When something
//! else comes, it gets a new file, into which the rest is copied from the old one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::OFlags;

use super::candidates::TakingOver;
use super::kept::is_hole;
use super::partial::Partial;
use super::{Tree, disk};
use crate::error::Error;
use crate::object::pack::{Content, Header, Piece};
use crate::object::{BLOCK, absurd};
use crate::text::shown;

/// Bytes that are copied in one step from an old file to its new one. A step takes about as long as
/// storing a pack, so that copying keeps up with the packs.
const STEP: u64 = 16 << 20;
/// Files whose owners, permissions and times are set in one step.
const FILES: usize = 256;

impl Tree {
    /// Counts a pack as stored whose files were in their places before.
    pub fn keep_present(&mut self, header: &Header) -> Result<(), Error> {
        self.check_folding()?;
        let Content::Pieces(pieces) = &header.content else {
            return Ok(());
        };
        for piece in pieces {
            self.check_announced(piece)?;
            self.keep_in_place(piece)?;
        }
        self.name_batch()
    }

    /// Counts a piece as stored that is in its file's place. It was announced.
    pub(super) fn keep_in_place(&mut self, piece: &Piece) -> Result<(), Error> {
        let file = piece.file();
        // What comes of a file that the sender could not read to its end is void.
        if self.failed.contains(&file) {
            return Ok(());
        }
        let overlap = || absurd("pieces of a file that overlap or are too long");
        let (start, end, len) = (piece.start(), piece.end(), self.len(file));
        let candidate = self.old.candidates.get_mut(&file).ok_or_else(overlap)?;
        let of_kind = match piece {
            Piece::Hole { .. } => &mut candidate.holes,
            _ => {
                candidate.data += end - start;
                self.old.unsettled += end - start;
                &mut candidate.bytes
            }
        };
        let is_new = candidate.all.add(start, end) && of_kind.add(start, end);
        if !is_new || end > len || piece.is_last() != (end == len) {
            return Err(overlap());
        }
        if let Some(partial) = self.incomplete.get_mut(&file) {
            let is_new = partial.ranges.add(start, end);
            is_new.then_some(()).ok_or_else(overlap)?;
            if let Piece::Hole { .. } = piece {
                self.leave_hole(file, start, end - start)?;
            }
            return self.complete(file);
        }
        if candidate.all.cover(len) {
            let kept = self.kept_space.get(&file).copied().unwrap_or(0);
            self.keep_space(file, len.saturating_sub(kept));
            self.note_done(file);
            self.old.remain.push(file);
            // Nobody knows whether it was flushed.
            self.flushes_all = true;
        }
        Ok(())
    }

    /// Whether pieces of a file that have come are in its place already. Then they count as if they
    /// had not come, and their bytes are taken off `bytes`.
    pub(super) fn are_present(
        &mut self,
        file: u32,
        pieces: &[Piece],
        bytes: &mut &[u8],
    ) -> Result<bool, Error> {
        let Some(candidate) = self.old.candidates.get(&file) else {
            return Ok(false);
        };
        let Ok(there) = self.try_beneath(file, OFlags::RDONLY).map(File::from) else {
            return Ok(false);
        };
        let mut rest = *bytes;
        let mut is_equal = |piece: &Piece| match piece {
            Piece::Bytes { offset, len, .. } => {
                let here;
                (here, rest) = rest.split_at(*len as usize);
                has_bytes(&there, here, *offset)
            }
            Piece::Hole { offset, .. } => is_hole(&there, *offset, piece.end()),
            Piece::Failed { .. } => false,
        };
        if !candidate.is_unchanged(&there)
            || !pieces.iter().all(&mut is_equal)
            || !candidate.is_unchanged(&there)
        {
            return Ok(false);
        }
        for piece in pieces {
            self.check_announced(piece)?;
            self.keep_in_place(piece)?;
        }
        *bytes = rest;
        Ok(true)
    }

    /// Adds what is proven of the old file to what the new one will have.
    pub(super) fn join_old(&mut self, file: u32) -> Result<(), Error> {
        let (Some(candidate), Some(partial)) = (
            self.old.candidates.get(&file),
            self.incomplete.get_mut(&file),
        ) else {
            return Ok(());
        };
        for (start, end) in candidate.all.iter() {
            if !partial.ranges.add(start, end) {
                return Err(absurd("pieces of a file that overlap"));
            }
        }
        let holes: Vec<_> = candidate.holes.iter().collect();
        for (start, end) in holes {
            self.leave_hole(file, start, end - start)?;
        }
        Ok(())
    }

    /// Frees the space that counts as a candidate's: it gets a new file, which needs its own.
    pub(super) fn leave_old(&mut self, file: u32) {
        if self.old.candidates.contains_key(&file)
            && let Some(kept) = self.kept_space.remove(&file)
        {
            self.taken -= kept;
        }
    }

    /// Completes a new file that has all that has come. What it lacks is copied from the old file,
    /// step by step.
    pub(super) fn complete_new(&mut self, partial: Partial) -> Result<(), Error> {
        let file = partial.entry;
        let Some(candidate) = self.old.candidates.get(&file).filter(|it| it.data > 0) else {
            return self.completed(partial);
        };
        let rest: Vec<_> = candidate.bytes.iter().collect();
        let old = File::from(self.open_old(file)?);
        self.note_done(file);
        self.old.taking_over.push(TakingOver { partial, old, rest });
        Ok(())
    }

    /// Opens a file that was in its place, if it is as it was.
    fn open_old(&self, file: u32) -> Result<OwnedFd, Error> {
        let opened = self.beneath(file, OFlags::RDONLY)?;
        self.check_unchanged(file, &opened)?;
        Ok(opened)
    }

    fn check_unchanged(&self, file: u32, opened: impl AsFd) -> Result<(), Error> {
        let candidate = self.old.candidates.get(&file);
        match candidate.is_some_and(|it| it.is_unchanged(opened)) {
            true => Ok(()),
            false => Err(Error::io(
                format!("keeping {}", shown(&self.path(file))),
                io::Error::other("somebody has changed it meanwhile; run the same again"),
            )),
        }
    }

    /// Whether something is to be copied from old files to new ones.
    pub fn takes_over(&self) -> bool {
        !self.old.taking_over.is_empty()
    }

    /// Copies some more from an old file to its new one. The newest goes first: so few wait, since
    /// the packs of each file give time to those before it.
    pub fn take_over(&mut self) -> Result<(), Error> {
        let Some(TakingOver { partial, old, rest }) = self.old.taking_over.last_mut() else {
            return Ok(());
        };
        let file = partial.entry;
        if let Some((start, end)) = rest.last_mut() {
            let some = (*end - *start).min(STEP);
            let copied = disk::copy_range(old, &partial.file, *start, some);
            *start += some;
            if start == end {
                rest.pop();
            }
            self.old.unsettled -= some;
            copied.map_err(|e| self.error(file, "writing", e))?;
            return Ok(());
        }
        if let Some(TakingOver { partial, old, .. }) = self.old.taking_over.pop() {
            self.check_unchanged(file, &old)?;
            self.taken += self.len(file).saturating_sub(partial.taken);
            self.add_complete(partial)?;
        }
        self.name_batch()
    }

    /// Sets owners, permissions and times of some more files that remain in their places. False:
    /// all have them.
    pub fn end_remaining(&mut self) -> Result<bool, Error> {
        for _ in 0..FILES {
            let Some(file) = self.old.remain.pop() else {
                return Ok(false);
            };
            let opened = self.open_old(file)?;
            self.set_metadata(file, self.readable_mode(file), &opened)?;
            self.old.unsettled -= self.old.candidates.get(&file).map_or(0, |it| it.data);
        }
        Ok(true)
    }

    /// Bytes of pieces that are in their files' places and do not count as stored yet: they may
    /// still be copied, or the files get their owners, permissions and times.
    pub fn unsettled(&self) -> u64 {
        self.old.unsettled
    }
}

/// Whether a file has these bytes from `at` on.
fn has_bytes(file: &File, bytes: &[u8], at: u64) -> bool {
    let mut there = vec![0; BLOCK.min(bytes.len())];
    bytes
        .chunks(BLOCK)
        .zip((at..).step_by(BLOCK))
        .all(|(bytes, at)| {
            let there = &mut there[..bytes.len()];
            file.read_exact_at(there, at).is_ok() && there == bytes
        })
}
