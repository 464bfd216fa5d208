//! Directories at the top that are received under a hidden name (spec 5.4).
//!
//! In such a directory nothing of anybody else lies, and nobody but its owner may enter it. So a
//! small file is made under its own name there. That costs half as much as to make it without a
//! name and to link it. One rename at the end shows the whole directory.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{self as sys, Mode, OFlags};
use rustix::io::Errno;

use super::Tree;
use super::disk;
use super::journal::partial_name;
use super::surplus::delete;
use crate::error::Error;
use crate::object::manifest::TOP;
use crate::text::shown;

impl Tree {
    /// The directory at the top that an entry lies in, or is, if that is staged.
    pub(super) fn staged_top(&self, entry: u32) -> Option<u32> {
        if self.staged.is_empty() {
            return None;
        }
        let top = self.top_of(entry);
        self.staged.contains(&top).then_some(top)
    }

    /// The hidden name of a directory, while it is staged.
    pub(super) fn staged_name(&self, entry: u32) -> Option<PathBuf> {
        match self.staged.contains(&entry) {
            true => self.hidden_name(entry),
            false => None,
        }
    }

    /// The name under which a directory is staged, in this run and in another of the same set.
    fn hidden_name(&self, entry: u32) -> Option<PathBuf> {
        let id = self.id.as_ref()?;
        Some(partial_name(id, entry).into())
    }

    /// Stages a directory whose place is free, or goes on with the one that an earlier run has
    /// staged. Returns false if it is to be made in its place: it does not lie at the top, nothing
    /// is kept for a later run, or something else has the hidden name.
    pub(super) fn stage(&mut self, entry: u32) -> Result<bool, Error> {
        let Some(name) = self.hidden_name(entry) else {
            return Ok(false);
        };
        if self.entry(entry).parent != TOP {
            return Ok(false);
        }
        // Without the journal of the run that made it, nobody knows what is in it.
        if !self.resumes {
            self.delete_hidden(entry);
        }
        match disk::make_directory(&self.root, &name) {
            Ok(()) => _ = self.made.insert(entry),
            Err(Errno::EXIST) if self.resumes && self.enter(&name).is_some() => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(e) => return Err(self.error(entry, "making", e)),
        }
        self.staged.insert(entry);
        self.touched.insert(TOP);
        Ok(true)
    }

    /// Makes sure that this user may enter a directory at the top, which must be this user's.
    /// `None` if it is not.
    fn enter(&self, name: &Path) -> Option<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = sys::openat(&*self.root, name, flags, Mode::empty()).ok()?;
        let there = sys::fstat(&opened).ok()?;
        if there.st_uid != rustix::process::geteuid().as_raw() {
            return None;
        }
        // It may have its last permissions already.
        disk::set_path_mode(&opened, Mode::RWXU).ok()
    }

    /// The permissions with which a file begins that nobody else can open yet. They are the last
    /// ones, if possible, so that they need not be set again.
    pub(super) fn first_mode(&self, entry: u32) -> Mode {
        self.readable_mode(entry) & (Mode::RWXU | Mode::RWXG | Mode::RWXO)
    }

    /// Creates a file of a staged directory under its own name.
    pub(super) fn create_in_place(&self, entry: u32, directory: &OwnedFd) -> Result<File, Error> {
        let name = self.name(entry);
        let mode = self.first_mode(entry);
        let created = match disk::create(directory, Some(&name), mode) {
            Err(Errno::EXIST) if self.ours.contains(&entry) => {
                disk::remove(directory, &name);
                disk::create(directory, Some(&name), mode)
            }
            created => created,
        };
        created.map_err(|e| match e {
            // Two names are one to this file system.
            Errno::EXIST => Error::Exists(self.path(entry)),
            e => self.error(entry, "creating", e),
        })
    }

    /// Gives staged directories their own names. Everything in them is complete, and on the disk if
    /// that was asked for. Returns them.
    pub(super) fn place_staged(&mut self) -> Result<BTreeSet<u32>, Error> {
        let staged = std::mem::take(&mut self.staged);
        for &entry in &staged {
            let (hidden, own) = (self.hidden_name(entry), self.own_name(entry));
            let hidden = hidden.unwrap_or_default();
            // What was there before stays until everything is here.
            if self.replaced.contains(&entry) && self.was_received(entry) {
                self.delete_received(entry)?;
            }
            let placed = match disk::rename_new(&self.root, &hidden, &own) {
                // The file system does not have that flag. A directory replaces an empty one alone.
                Err(Errno::INVAL | Errno::NOSYS) => disk::rename(&self.root, &hidden, &own),
                placed => placed,
            };
            placed.map_err(|e| match e {
                Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR => self.in_the_way(entry),
                e => self.error(entry, "renaming to", e),
            })?;
            self.touched.insert(TOP);
        }
        Ok(staged)
    }

    /// The error for something that has come to the place of a directory that is staged. Both stay.
    pub(super) fn in_the_way(&self, entry: u32) -> Error {
        let hidden = self.hidden_name(entry).unwrap_or_default();
        Error::Usage(format!(
            "{} was not there when the set began, and is now; what has been received is in {}: \
             move one of them away, and receive the set again",
            shown(&self.path(entry)),
            shown(&self.destination.root.join(hidden))
        ))
    }

    /// Whether an earlier run has staged a directory and has not come to its end.
    pub(super) fn was_staged(&self, entry: u32) -> bool {
        let name = self.hidden_name(entry).filter(|_| self.resumes);
        name.is_some_and(|name| self.entry(entry).parent == TOP && self.enter(&name).is_some())
    }

    /// Deletes staged directories with all that they hold.
    pub(super) fn delete_staged(&mut self) {
        for entry in std::mem::take(&mut self.staged) {
            self.delete_hidden(entry);
        }
    }

    /// Deletes what has the hidden name of a directory, if it is this user's directory. What cannot
    /// be deleted stays.
    fn delete_hidden(&self, entry: u32) {
        let Some(name) = self.hidden_name(entry) else {
            return;
        };
        if self.enter(&name).is_some() {
            let _ = delete(&self.root, &name);
        }
    }
}
