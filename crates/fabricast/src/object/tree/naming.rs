//! How files come to be, and get their names.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self as sys, AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::candidate::TIME_STEP;
use super::disk::{self, OWN};
use super::partial::Partial;
use super::ranges::Ranges;
use super::{BATCH, Tree, journal};
use crate::error::Error;
use crate::object::file_name::{partial_name, with_partial_name};
use crate::object::manifest::Kind;

/// Files of at least this many bytes get their disk space before they are written.
const ALLOCATED: u64 = 1 << 20;

impl Tree {
    /// Creates the file of an entry: without a name, or with a partial one. One that a pack holds
    /// as a whole need not be kept for a later run.
    pub(super) fn create(&mut self, entry: u32, is_whole: bool) -> Result<Partial, Error> {
        let directory = self.directory_of(entry)?;
        let is_in_place = is_whole && self.staged_top(entry).is_some();
        let is_kept = !is_whole && self.journal.is_some();
        let hidden = match self.may_be_nameless && !is_kept {
            _ if is_in_place => Some(self.create_in_place(entry, &directory)?),
            true => disk::create(&directory, None, self.first_mode(entry)).ok(),
            false => None,
        };
        let (file, name) = match hidden {
            Some(file) => (file, None),
            None => {
                let draw = draw_name(self.journal_id(), entry, &directory);
                let (file, name) = with_partial_name(&self.name(entry), draw, |name| {
                    Ok(disk::create(&directory, Some(name), OWN)?)
                })?;
                (file, Some(name))
            }
        };
        let mut partial = Partial {
            entry,
            file,
            name,
            is_in_place,
            directory,
            is_kept,
            ranges: Ranges::default(),
            taken: 0,
        };
        let len = self.len(entry);
        let is_known = !self.manifest.is_stream();
        if is_known && len >= ALLOCATED && !in_memory(&partial.file) {
            match disk::allocate(&partial.file, len) {
                Ok(()) => {
                    partial.taken = len;
                    self.taken += len;
                }
                // Not every file system can allocate.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(e) => return Err(self.error(entry, "writing", e)),
            }
        }
        Ok(partial)
    }

    /// Makes the files that have the bytes of others, and names them. Calls `go_on` with the number
    /// of bytes that were copied since the last call, and gives up if it returns an error.
    pub fn make_copies(
        &mut self,
        go_on: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_folding()?;
        self.has_copies = true;
        for entry in 0..self.manifest.entries().len() as u32 {
            let Kind::Copy(of) = self.entry(entry).kind else {
                continue;
            };
            // What has become of the file since it was named is nothing that the sender has sent.
            let from = match self.failed.contains(&of) {
                true => None,
                false => self.unchanged(of),
            };
            let Some(from) = from else {
                self.failed.insert(entry);
                self.taken += self.len(of);
                continue;
            };
            let partial = self.create(entry, true)?;
            let (mut stopped, mut here) = (None, 0);
            let copied = disk::copy(&from, &partial.file, |bytes| {
                here += bytes;
                self.taken += bytes;
                go_on(bytes).map_err(|error| {
                    stopped = Some(error);
                    io::ErrorKind::Interrupted.into()
                })
            });
            copied.map_err(|e: io::Error| match stopped.take() {
                Some(stopped) => stopped,
                None => self.error(entry, "writing", e),
            })?;
            if here != self.len(of) || self.unchanged(of).is_none() {
                self.failed.insert(entry);
                continue;
            }
            self.set_metadata(entry, self.readable_mode(entry), &partial.file)?;
            self.add_to_batch(partial)?;
        }
        self.name_batch()
    }

    /// Opens a file that has its name, if it has the length and the time that it got.
    fn unchanged(&self, file: u32) -> Option<File> {
        let opened = File::from(self.beneath(file, OFlags::RDONLY).ok()?);
        let there = sys::fstat(&opened).ok()?;
        let time = self.times(file).last_modification;
        let is_it = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
            && there.st_size as u64 == self.len(file)
            && there.st_mtime.abs_diff(time.tv_sec) <= TIME_STEP;
        is_it.then_some(opened)
    }

    /// Takes a complete file. Files are flushed and named together. Those that have their own names
    /// are closed at once: what the system keeps of an open file costs less to use again soon. Only
    /// the first stays open, since it is flushed by itself if it is the only one.
    pub(super) fn add_to_batch(&mut self, partial: Partial) -> Result<(), Error> {
        self.touched.insert(self.entry(partial.entry).parent);
        if partial.is_in_place && (self.has_unflushed || !self.batch.is_empty()) {
            self.has_unflushed = true;
            return Ok(());
        }
        self.batch.push(partial);
        match self.batch.len() < BATCH {
            true => Ok(()),
            false => self.name_batch(),
        }
    }

    /// Flushes the complete files and gives them their names.
    pub(super) fn name_batch(&mut self) -> Result<(), Error> {
        let batch = std::mem::take(&mut self.batch);
        let has_unflushed = std::mem::take(&mut self.has_unflushed);
        if self.destination.sync && (has_unflushed || !batch.is_empty()) {
            if let Some(journal) = &mut self.journal {
                journal.flush();
            }
            match &batch[..] {
                [one] if !has_unflushed => {
                    disk::flush(&one.file).map_err(|e| self.error(one.entry, "writing", e))?;
                }
                _ => self.flush_file_systems()?,
            }
        }
        for mut partial in batch {
            if partial.is_in_place {
                continue;
            }
            let name = self.name(partial.entry);
            if self.held.len() < BATCH && self.is_blocked(partial.entry, &partial.directory, &name)
            {
                self.held.push(partial);
                continue;
            }
            self.give_name(&mut partial)?;
        }
        Ok(())
    }

    /// Deletes the directories that have the places of complete files, now that everything is here,
    /// and names the files.
    pub(super) fn name_held(&mut self) -> Result<(), Error> {
        for mut partial in std::mem::take(&mut self.held) {
            self.give_name(&mut partial)?;
        }
        Ok(())
    }

    /// What the partial files are called after that a later run of this set finds.
    pub(super) fn journal_id(&self) -> Option<&str> {
        self.journal.as_ref().and(self.id.as_deref())
    }

    fn give_name(&mut self, partial: &mut Partial) -> Result<(), Error> {
        let name = self.name(partial.entry);
        let overwrite = self.may_replace(partial.entry);
        let directory = partial.directory.clone();
        // A link replaces nothing, so the file gets a partial name first. It has that before
        // anything makes way for it: after a power cut a later run finds it.
        if overwrite && partial.name.is_none() {
            let draw = draw_name(self.journal_id(), partial.entry, &directory);
            let link = |name: &Path| Ok(disk::name(&partial.file, &directory, name)?);
            let ((), between) = with_partial_name(&name, draw, link)?;
            partial.name = Some(between);
        }
        self.make_way(partial.entry, &directory, &name)?;
        let named = match (&partial.name, overwrite) {
            (None, _) => disk::name(&partial.file, &directory, &name),
            (Some(between), true) => disk::rename(&directory, between, &name),
            (Some(between), false) => rename_new(&directory, between, &name),
        };
        named.map_err(|e| match (e, overwrite) {
            (Errno::EXIST, false) => self.exists(partial.entry),
            _ => self.error(partial.entry, "renaming to", e),
        })?;
        partial.name = None;
        Ok(())
    }
}

/// Draws partial names of an entry: that of the journal `id`, in place of what a run has left that
/// cannot be used, or any.
pub(super) fn draw_name(
    id: Option<&str>,
    entry: u32,
    directory: &OwnedFd,
) -> impl Fn(&Path) -> Result<PathBuf, Error> {
    move |path| match id {
        Some(id) => {
            let name = PathBuf::from(journal::partial_name(id, entry));
            disk::remove(directory, &name);
            Ok(name)
        }
        None => partial_name(path),
    }
}

/// Gives a file another name in its directory, where nothing is.
fn rename_new(directory: &OwnedFd, from: &Path, to: &Path) -> Result<(), Errno> {
    match disk::rename_new(directory, from, to) {
        // The file system does not have that flag.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        renamed => return renamed,
    }
    // A link never replaces anything.
    match disk::link((directory, from), directory, to) {
        // The file system does not have links either, as exFAT by FUSE. What comes between this
        // look and the rename is replaced.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
            match sys::statat(directory, to, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => disk::rename(directory, from, to),
                Err(e) => Err(e),
                Ok(_) => Err(Errno::EXIST),
            }
        }
        linked => {
            linked?;
            disk::remove(directory, from);
            Ok(())
        }
    }
}

/// Whether a file lies in memory (tmpfs): allocating first would only do the work twice.
fn in_memory(file: &File) -> bool {
    const TMPFS_MAGIC: i128 = 0x0102_1994;
    sys::fstatfs(file).is_ok_and(|fs| i128::from(fs.f_type) == TMPFS_MAGIC)
}
