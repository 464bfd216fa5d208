//! Files of a set that are in their places before it comes (spec 5.16).
//!
//! A file stays as it is when all of it is present. When something of it comes, it gets a new file,
//! into which the rest is copied from the old one.

use std::fs::File;
use std::io::{self, ErrorKind};

use rustix::fs::{self as sys, OFlags};

use super::candidate::{PieceProof, Places, has_piece, is_at, is_candidate};
use super::partial::Partial;
use super::present_pieces::{TAKING_OVER, TakingOver, bytes_of, copied};
use super::proving::{PresentPack, Proving};
use super::{Tree, disk};
use crate::error::Error;
use crate::object::absurd;
use crate::object::pack::{Content, Header, Piece};
use crate::text::shown;
use crate::waker::Waker;

/// Bytes that are copied in one step from old files to new ones, at most; no piece has more. A step
/// takes about as long as storing a pack, so that copying keeps up with the packs.
const STEP: u64 = 16 << 20;
impl Tree {
    /// Starts to look for candidates, and for the packs that they make. The manifest is complete.
    /// `waker` is rung when something is found, and at the end.
    pub fn prove_present(&self, waker: Waker) -> Proving {
        Proving::start(self.places(), waker)
    }

    /// Where the files of the set lie.
    pub(super) fn places(&self) -> Places {
        Places {
            root: self.root.clone(),
            name: self.destination.name.clone(),
            manifest: self.manifest.clone(),
            staged: self.staged.clone(),
            is_root: self.is_root,
        }
    }

    /// Counts a pack as stored that is present. Returns its header.
    pub fn keep_present(&mut self, pack: PresentPack) -> Result<Header, Error> {
        self.check_folding()?;
        let PresentPack { header, proofs } = pack;
        if let Content::Pieces(pieces) = &header.content {
            for (piece, proof) in pieces.iter().zip(proofs) {
                self.check_announced(piece)?;
                // What comes of a file that has failed is void.
                if !self.failed.contains(&piece.file()) {
                    self.keep_piece(piece, proof)?;
                }
            }
        }
        self.name_batch()?;
        Ok(header)
    }

    fn keep_piece(&mut self, piece: &Piece, proof: PieceProof) -> Result<(), Error> {
        let (file, start, end) = (piece.file(), piece.start(), piece.end());
        let overlap = || absurd("pieces of a file that overlap or are too long");
        if self.named.contains_key(&file) {
            return self.keep_named(file, (start, end));
        }
        let Some(partial) = self.incomplete.get_mut(&file) else {
            self.present.unsettled += copied(piece);
            let pieces = self.present.files.entry(file).or_default();
            pieces.push((piece.clone(), proof));
            let size: u64 = pieces.iter().map(|(piece, _)| piece.size()).sum();
            return match size == self.len(file) {
                true => self.keep_file(file),
                false => Ok(()),
            };
        };
        partial
            .ranges
            .add(start, end)
            .then_some(())
            .ok_or_else(overlap)?;
        // What an earlier run has left may have the piece, and then nothing else may.
        if self.resumes && has_piece(&partial.file, piece, &proof) {
            return self.complete(file);
        }
        if let Piece::Hole { .. } = piece {
            self.leave_hole(file, start, end - start)?;
        } else {
            self.present.unsettled += copied(piece);
            let pieces = self.present.files.entry(file).or_default();
            pieces.push((piece.clone(), proof));
        }
        self.complete(file)
    }

    /// Keeps a file in its place, all of which is present. It gets the owner, the permissions and
    /// the time of the set. One that is no candidate any more, or may have other bytes by now, is
    /// copied: what is copied is proven.
    fn keep_file(&mut self, file: u32) -> Result<(), Error> {
        let Some(opened) = self.remaining_file(file) else {
            let created = self.create(file, false)?;
            self.add_incomplete(created)?;
            return self.complete(file);
        };
        self.present.forget(file);
        self.set_metadata(file, self.readable_mode(file), &opened)?;
        let kept = self.kept_space.get(&file).copied().unwrap_or(0);
        self.keep_space(file, self.len(file).saturating_sub(kept));
        self.note_done(file);
        // Nobody knows whether it was flushed.
        self.flushes_all = true;
        Ok(())
    }

    /// Opens a file all of which is present, if it is still a candidate with the bytes that were
    /// proven.
    fn remaining_file(&self, file: u32) -> Option<File> {
        let opened = File::from(self.try_beneath(file, OFlags::RDONLY).ok()?);
        let there = sys::fstat(&opened).ok()?;
        let pieces = self.present.files.get(&file)?;
        let is_it = is_candidate(self.entry(file), self.len(file), self.is_root, &there)
            && is_as_proven(&opened, pieces);
        is_it.then_some(opened)
    }

    /// Notes that somebody has changed a file since its packs were declined, so that it cannot be
    /// had any more.
    fn lose(&mut self, file: u32) -> Result<(), Error> {
        self.present.changed.insert(file);
        self.give_up(file)
    }

    /// Adds what is present of a file to what its new one has.
    pub(super) fn join_present(&mut self, file: u32) -> Result<(), Error> {
        let (Some(pieces), Some(partial)) = (
            self.present.files.get(&file),
            self.incomplete.get_mut(&file),
        ) else {
            return Ok(());
        };
        let mut holes = Vec::new();
        for (piece, _) in pieces {
            if !partial.ranges.add(piece.start(), piece.end()) {
                return Err(absurd("pieces of a file that overlap"));
            }
            if let Piece::Hole { offset, len, .. } = *piece {
                holes.push((offset, len));
            }
        }
        for (offset, len) in holes {
            self.leave_hole(file, offset, len)?;
        }
        Ok(())
    }

    /// Completes a new file that has all that has come. What it lacks is copied from the old file,
    /// step by step.
    pub(super) fn complete_new(&mut self, partial: Partial) -> Result<(), Error> {
        let file = partial.entry;
        let Some(pieces) = self.present.files.remove(&file) else {
            return self.completed(partial);
        };
        self.note_done(file);
        let old = self.try_beneath(file, OFlags::RDONLY).map(File::from).ok();
        let is_file = |old: &File| old.metadata().is_ok_and(|there| there.is_file());
        let Some(old) = old.filter(is_file) else {
            self.present.unsettled -= bytes_of(&pieces);
            return self.lose_new(partial);
        };
        self.present.taking_over.push(TakingOver {
            partial,
            old,
            pieces,
            copied: 0,
        });
        self.take_over()?;
        while self.present.taking_over.len() >= TAKING_OVER {
            self.take_over()?;
        }
        Ok(())
    }

    fn lose_new(&mut self, mut partial: Partial) -> Result<(), Error> {
        partial.is_kept = false;
        self.taken += self.len(partial.entry).saturating_sub(partial.taken);
        self.lose(partial.entry)
    }

    /// Copies some more from an old file to its new one. The newest goes first: so few wait, since
    /// the packs of each file give time to those before it. False: nothing is left to copy.
    pub fn take_over(&mut self) -> Result<bool, Error> {
        let Some(last) = self.present.taking_over.last_mut() else {
            return Ok(false);
        };
        let file = last.partial.entry;
        let (mut left, mut result) = (STEP, Ok(()));
        while let Some((piece, _)) = last.pieces.get(last.copied)
            && copied(piece) <= left
        {
            let some = copied(piece);
            result = disk::copy_range(&last.old, &last.partial.file, piece.start(), some);
            if result.is_err() {
                break;
            }
            last.copied += 1;
            self.present.unsettled -= some;
            left -= some;
        }
        let is_shorter = matches!(&result, Err(e) if e.kind() == ErrorKind::UnexpectedEof);
        if let Err(e) = result
            && !is_shorter
        {
            return Err(self.error(file, "writing", e));
        }
        if last.copied == last.pieces.len() || is_shorter {
            let Some(done) = self.present.taking_over.pop() else {
                return Ok(false);
            };
            self.present.unsettled -= bytes_of(&done.pieces[done.copied..]);
            self.taken_over(done)?;
        }
        Ok(!self.present.taking_over.is_empty())
    }

    /// Takes a new file into which all was copied, if what was copied is what was proven.
    fn taken_over(&mut self, done: TakingOver) -> Result<(), Error> {
        let TakingOver {
            mut partial,
            old,
            pieces,
            copied,
        } = done;
        let is_it = |(piece, proof): &(Piece, PieceProof)| has_piece(&partial.file, piece, proof);
        let is_unchanged = pieces.iter().all(|(_, proof)| is_at(&old, &proof.version));
        let is_proven = copied == pieces.len() && (is_unchanged || pieces.iter().all(is_it));
        if !is_proven {
            return self.lose_new(partial);
        }
        self.taken += self.len(partial.entry).saturating_sub(partial.taken);
        partial.taken = self.len(partial.entry);
        self.add_complete(partial)?;
        self.name_batch()
    }

    /// Bytes of packs that are stored which do not count yet: they may still be copied.
    pub fn unsettled(&self) -> u64 {
        self.present.unsettled
    }

    /// Whether this piece of a file is in its place, and not yet in the new file.
    pub(super) fn is_in_old(&self, file: u32, start: u64, end: u64) -> bool {
        let new = self.present.taking_over.iter();
        let new = new.filter(|it| it.partial.entry == file);
        let mut pieces = new
            .map(|it| &it.pieces[..])
            .chain(self.present.files.get(&file).map(|it| &it[..]))
            .flatten();
        pieces.any(|(piece, _)| piece.start() <= start && end <= piece.end())
    }

    /// The new file that lacks only what the old one has, if it is this file's.
    pub(super) fn taking_over(&self, file: u32) -> Option<&Partial> {
        let mut all = self.present.taking_over.iter().map(|it| &it.partial);
        all.find(|partial| partial.entry == file)
    }

    /// Whether files were changed since they were proven, and are lost.
    pub fn has_lost(&self) -> bool {
        !self.present.changed.is_empty()
    }

    /// Checks that no file was lost.
    ///
    /// # Errors
    /// Names those that were changed since they were proven.
    pub fn check_lost(&self) -> Result<(), Error> {
        let Some(&first) = self.present.changed.first() else {
            return Ok(());
        };
        let others = match self.present.changed.len() {
            1 => String::new(),
            count => format!(" and {} more files", count - 1),
        };
        Err(Error::io(
            format!("keeping {}{others}", shown(&self.path(first))),
            io::Error::other(
                "somebody has changed what was there while the set came; all else is complete: \
                 receive the set again",
            ),
        ))
    }
}

/// Whether an open file is as it was when its pieces were proven, or still has their bytes.
fn is_as_proven(opened: &File, pieces: &[(Piece, PieceProof)]) -> bool {
    let is_it = |(piece, proof): &(Piece, PieceProof)| has_piece(opened, piece, proof);
    pieces
        .iter()
        .all(|(_, proof)| is_at(opened, &proof.version))
        || pieces.iter().all(is_it)
}
