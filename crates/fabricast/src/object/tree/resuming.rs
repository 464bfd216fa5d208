//! Going on with a set that an earlier process has stored in part (spec 5.11).
//!
//! The journal names packs. A pack is kept if what is on the disk matches the hashes of its header.
//! It counts only when the sender announces a pack with this header: so nothing gets its name that
//! the sender has not proven.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{self as sys, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::journal::{Journal, Record, is_own, journal_id, partial_name};
use super::kept::{Kept, is_hole};
use super::leftovers::remove_own;
use super::partial::Partial;
use super::ranges::Ranges;
use super::{Tree, absurd, beneath, disk};
use crate::error::Error;
use crate::object::manifest::{Kind, Manifest};
use crate::object::pack::{Content, Header, Pack, Piece};
use crate::object::{BLOCK, HASH};

/// Bytes of a block in which the system counts the space of files.
const STAT_BLOCK: u64 = 512;

/// Where the bytes of a file are that was not received by this process.
enum Found {
    /// In a partial file.
    Partial(File),
    /// In a file that has its name already.
    Named(File),
}

impl Tree {
    /// Opens the journal of the set whose manifest has this digest, and finds out what is on the
    /// disk already. From now on what is stored is kept for a later run if this one does not come
    /// to its end. Calls `go_on` now and then, and gives up if it returns an error.
    pub fn resume(
        &mut self,
        set: &blake3::Hash,
        go_on: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Kept, Error> {
        let id = journal_id(set, self.destination.name.as_deref());
        let Some(mut journal) = Journal::open(&self.root, id) else {
            return Ok(Kept::default());
        };
        let mut kept = Kept::default();
        self.id = Some(journal.id().to_owned());
        let mut pack = self.add_pages(&mut journal, set, &mut kept)?;
        while let Some(Record::Pack { header, len }) = pack {
            go_on()?;
            let hash: [u8; HASH] = blake3::hash(&header).into();
            if !kept.packs.contains(&hash)
                && let Some(header) = Header::decode(&header, len)
                && let Content::Pieces(pieces) = &header.content
                && self.is_proven(pieces, &header.hashes)
            {
                self.keep_holes(pieces);
                kept.packs.insert(hash);
                kept.bytes += len as u64;
                self.kept.insert(hash, header);
            }
            pack = journal.next();
        }
        self.journal = Some(journal);
        Ok(kept)
    }

    /// Adds the pages of the manifest that the journal has, if they are those of this set. Returns
    /// the record that follows.
    fn add_pages(
        &mut self,
        journal: &mut Journal,
        set: &blake3::Hash,
        kept: &mut Kept,
    ) -> Result<Option<Record>, Error> {
        // The digest of a manifest is that of its pages, one behind the other.
        let (mut digest, mut pages) = (blake3::Hasher::new(), Vec::new());
        let next = loop {
            match journal.next() {
                Some(Record::Page(page)) => {
                    digest.update(&page);
                    pages.push(page);
                }
                next => break next,
            }
        };
        if digest.finalize() != *set {
            let _ = journal.clear();
            return Ok(None);
        }
        // Of a set that is there already no pack was stored, and what is there is compared again.
        if next.is_none() && self.may_compare() {
            let (mut set, top) = (Manifest::default(), self.destination.name.as_deref());
            pages.iter().try_for_each(|page| set.add_page(page))?;
            remove_own(&self.root, (journal.id(), &set), top);
            let _ = journal.clear();
            return Ok(None);
        }
        self.resumes = true;
        for page in pages {
            self.add_page(&page)?;
            let hash = Pack::new(Content::Page, &page).hash();
            kept.packs.insert(hash.into());
        }
        Ok(next)
    }

    /// Notes what a file that an earlier run has left takes of the disk.
    fn keep_space(&mut self, file: u32, space: u64) {
        let kept = self.kept_space.entry(file).or_default();
        *kept += space;
        self.taken += space;
    }

    /// Counts the holes of a pack that is kept: they need no space any more.
    fn keep_holes(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            if let Piece::Hole { file, .. } = piece {
                let kept = self.kept_space.get(file).copied().unwrap_or(0);
                let room = self.len(*file).saturating_sub(kept);
                self.keep_space(*file, piece.size().min(room));
            }
        }
    }

    /// Whether what is on the disk matches a pack with these pieces and hashes. Notes what its
    /// files take of the disk.
    fn is_proven(&mut self, pieces: &[Piece], hashes: &[u8]) -> bool {
        let mut hashes = hashes.chunks_exact(HASH);
        let (mut block, mut open) = (Vec::with_capacity(BLOCK), None::<(u32, Found)>);
        let mut named = BTreeSet::new();
        for piece in pieces {
            let file = piece.file();
            let (start, whole) = match piece {
                Piece::Bytes { offset, .. } | Piece::Hole { offset, .. } => {
                    (*offset, self.is_file(file).then(|| self.len(file)))
                }
                Piece::Failed { .. } => return false,
            };
            let end = start + piece.size();
            if whole.is_none_or(|len| end > len || piece.is_last() != (end == len)) {
                return false;
            }
            if open.as_ref().is_none_or(|(of, _)| *of != file) {
                open = self.find(file).map(|found| (file, found));
            }
            let Some((_, Found::Partial(there) | Found::Named(there))) = &open else {
                return false;
            };
            if !self.kept_space.contains_key(&file) {
                let space = allocated(there).min(whole.unwrap_or(0));
                self.keep_space(file, space);
            }
            if let Some((_, Found::Named(_))) = &open {
                named.insert(file);
            }
            if let Piece::Hole { .. } = piece {
                if !is_hole(there, start, end) {
                    return false;
                }
                continue;
            }
            let mut at = start;
            while at < end {
                let filled = block.len();
                let some = (end - at).min((BLOCK - filled) as u64) as usize;
                block.resize(filled + some, 0);
                if there.read_exact_at(&mut block[filled..], at).is_err() {
                    return false;
                }
                at += some as u64;
                if block.len() == BLOCK && !is_next(&mut hashes, &mut block) {
                    return false;
                }
            }
        }
        let is_proven = block.is_empty() || is_next(&mut hashes, &mut block);
        if is_proven {
            let named = named.into_iter().map(|file| (file, Ranges::default()));
            self.named.extend(named);
        }
        is_proven
    }

    fn is_file(&self, file: u32) -> bool {
        let entry = self.manifest.entries().get(file as usize);
        entry.is_some_and(|entry| matches!(entry.kind, Kind::File(_)))
    }

    /// Opens what is on the disk of a file: the partial file, or else the file itself, if an
    /// earlier run may have made it.
    fn find(&mut self, file: u32) -> Option<Found> {
        if let Some(partial) = self.partial(file) {
            return Some(Found::Partial(partial));
        }
        let named = self.ours.contains(&file);
        let named = named.then(|| self.beneath(file, OFlags::RDONLY))?.ok()?;
        Some(Found::Named(named.into()))
    }

    /// Opens the partial file that an earlier run has left.
    pub(super) fn partial(&mut self, file: u32) -> Option<File> {
        let name = partial_name(self.id.as_ref()?, file);
        let directory = self.directory_of(file).ok()?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = beneath::open(&*directory, name, flags, Mode::empty());
        let file = File::from(opened.ok()?);
        is_own(&file).then_some(file)
    }

    /// Notes whether an entry that is there may be of an earlier run. A file with the length and
    /// the time of the sender's may be replaced; whether it has the sender's bytes, hashes decide.
    pub(super) fn may_be_ours(&mut self, entry: u32, there: &sys::Stat, name: &Path) -> bool {
        if !self.resumes {
            return false;
        }
        let directory = self.directory_of(entry).ok();
        let target = || {
            let directory = directory?;
            sys::readlinkat(&*directory, name, Vec::new()).ok()
        };
        let is_ours = is_like(&self.manifest, entry, there, target);
        if is_ours {
            self.ours.insert(entry);
            if let Kind::Copy(of) = self.entry(entry).kind {
                self.taken += (there.st_blocks as u64 * STAT_BLOCK).min(self.len(of));
            }
        }
        is_ours
    }

    /// Counts a pack that is kept as stored, since the sender has announced it. Completes the files
    /// whose bytes are all there. Returns the header of the pack, if it has files.
    pub fn keep(&mut self, hash: &[u8; HASH]) -> Result<Option<Header>, Error> {
        self.check_folding()?;
        let header = self.kept.remove(hash);
        let content = header.as_ref().map(|header| &header.content);
        let pieces = match content {
            Some(Content::Pieces(pieces)) => &pieces[..],
            _ => &[],
        };
        for piece in pieces {
            let (Piece::Bytes { offset, .. } | Piece::Hole { offset, .. }) = *piece else {
                continue;
            };
            let (file, end) = (piece.file(), offset + piece.size());
            let len = self.len(file);
            let overlap = || absurd("packs that overlap");
            self.check_announced(piece)?;
            if !self.incomplete.contains_key(&file) && !self.named.contains_key(&file) {
                let there = self.partial(file).ok_or_else(overlap)?;
                self.take_partial(file, there, Ranges::default())?;
            }
            if let Some(ranges) = self.named.get_mut(&file) {
                let is_new = ranges.add(offset..end);
                let is_whole = ranges.cover(len);
                is_new.then_some(()).ok_or_else(overlap)?;
                if is_whole {
                    self.named.remove(&file);
                    let opened = self.beneath(file, OFlags::RDONLY)?;
                    self.set_metadata(file, self.readable_mode(file), &opened)?;
                    self.note_done(file);
                    // Nobody knows whether it was flushed.
                    self.flushes_all = true;
                }
                continue;
            }
            let partial = self.incomplete.get_mut(&file).ok_or_else(overlap)?;
            partial
                .ranges
                .add(offset..end)
                .then_some(())
                .ok_or_else(overlap)?;
            self.complete(file)?;
        }
        self.name_batch()?;
        Ok(header)
    }

    /// Takes the name of a file away that an earlier run has made and that is not complete as the
    /// sender says. A file that has another name or owner by now stays as it is, and is copied.
    pub(super) fn unname(&mut self, file: u32, ranges: Ranges) -> Result<(), Error> {
        let Some(id) = self.id.clone() else {
            return Ok(());
        };
        let (directory, name) = (self.directory_of(file)?, self.name(file));
        let partial = partial_name(&id, file);
        let opened = File::from(self.beneath(file, OFlags::RDONLY)?);
        if !is_own(&opened) {
            if !opened.metadata().is_ok_and(|meta| meta.is_file()) {
                return Err(Error::Exists(self.path(file)));
            }
            disk::remove(&directory, &name);
            let mut partial = self.create(file, false)?;
            // All of it: packs that the sender has yet to announce were proven in this file.
            let copied = disk::copy(&opened, &partial.file, |_| Ok::<_, io::Error>(()));
            copied.map_err(|e| self.error(file, "copying", e))?;
            self.shorten(file, &partial.file)?;
            partial.ranges = ranges;
            // The bytes of the file that stays were counted for this one.
            let counted = partial.taken + self.kept_space.remove(&file).unwrap_or(0);
            partial.taken = self.len(file);
            self.taken = self.taken + partial.taken - counted;
            return self.add_incomplete(partial);
        }
        let fails = |tree: &Tree, e: Errno| tree.error(file, "renaming", e);
        disk::rename(&directory, &name, partial.as_ref()).map_err(|e| fails(self, e))?;
        // Its mode may let nobody write.
        let _ = disk::set_mode(&opened, disk::OWN);
        let there = self.partial(file);
        let there = there.ok_or_else(|| fails(self, Errno::NOENT))?;
        self.take_partial(file, there, ranges)
    }

    /// Goes on with a partial file that has these ranges.
    pub(super) fn take_partial(
        &mut self,
        entry: u32,
        file: File,
        ranges: Ranges,
    ) -> Result<(), Error> {
        let name = self.id.as_ref().map(|id| partial_name(id, entry).into());
        self.shorten(entry, &file)?;
        if !self.kept_space.contains_key(&entry) {
            self.keep_space(entry, allocated(&file).min(self.len(entry)));
        }
        let partial = Partial {
            entry,
            taken: self.kept_space.remove(&entry).unwrap_or(0),
            file,
            name,
            is_in_place: false,
            directory: self.directory_of(entry)?,
            ranges,
            is_kept: true,
        };
        self.add_incomplete(partial)
    }

    /// Cuts off what is behind the end of a file, since nobody proves it.
    fn shorten(&self, entry: u32, file: &File) -> Result<(), Error> {
        let len = file.metadata().map_or(0, |there| there.len());
        match self.entry(entry).kind {
            Kind::File(most) if len > most => {
                let cut = disk::set_len(file, most);
                cut.map_err(|e| self.error(entry, "shortening", e))
            }
            _ => Ok(()),
        }
    }

    /// Notes in the journal that a pack is stored.
    pub fn note_pack(&mut self, header: &[u8], len: usize) {
        if let Some(journal) = &mut self.journal {
            let header = header.to_vec();
            journal.add(&Record::Pack { header, len });
        }
    }

    /// Removes what is kept for a later run: another run would fail, too.
    pub fn discard(&mut self) {
        for partial in self.incomplete.values_mut().chain(&mut self.batch) {
            partial.is_kept = false;
        }
        self.delete_staged();
        if let Some(journal) = self.journal.take() {
            // Of an earlier run there may be some that this one has not opened.
            let top = self.destination.name.as_deref();
            remove_own(&self.root, (journal.id(), &*self.manifest), top);
            // It tells what this run has put there, which a later set may replace.
            if self.destination.received.is_none() || !journal.has_packs() {
                journal.remove();
            }
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self
            .journal
            .as_ref()
            .is_some_and(|journal| !journal.has_packs())
        {
            self.discard();
        }
    }
}

/// Whether what is there looks like an entry of a set that is no directory: it has the type, and
/// the length and the time of a file, or leads where a link leads. `target`: where it leads, if it
/// is a link.
pub(super) fn is_like(
    set: &Manifest,
    entry: u32,
    there: &sys::Stat,
    target: impl FnOnce() -> Option<CString>,
) -> bool {
    let it = |number: u32| &set.entries()[number as usize];
    let file = match it(entry).kind {
        Kind::HardLink(to) => to,
        _ => entry,
    };
    let (time, type_there) = (it(file), FileType::from_raw_mode(there.st_mode));
    let is_file = |of: u32| {
        matches!(it(of).kind, Kind::File(len) if there.st_size as u64 == len)
            && type_there == FileType::RegularFile
            && there.st_mtime == time.mtime
            && i128::from(there.st_mtime_nsec) == i128::from(time.mtime_ns)
    };
    match &it(entry).kind {
        Kind::Symlink(to) => target().is_some_and(|target| *target.as_bytes() == **to),
        Kind::Directory | Kind::Stream => false,
        Kind::Special(special) => {
            let (kind, device) = disk::special(*special);
            type_there == kind && there.st_rdev == device
        }
        Kind::Copy(of) => is_file(*of),
        Kind::File(_) | Kind::HardLink(_) => is_file(file),
    }
}

/// Bytes that a file takes on the disk.
fn allocated(file: &File) -> u64 {
    let blocks = file.metadata().map_or(0, |meta| meta.blocks());
    blocks * STAT_BLOCK
}

/// Whether a full block, which is emptied, matches the next hash.
fn is_next(hashes: &mut std::slice::ChunksExact<'_, u8>, block: &mut Vec<u8>) -> bool {
    let hash = blake3::hash(block);
    block.clear();
    hashes.next().is_some_and(|next| *hash.as_bytes() == *next)
}
