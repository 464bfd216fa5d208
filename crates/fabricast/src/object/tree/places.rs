//! The places of entries: they are opened, directories are made, and what is there is looked at.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as sys, Access, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::journal::Record;
use super::{Tree, beneath, disk};
use crate::error::Error;
use crate::object::manifest::{Kind, TOP};
use crate::object::{absurd, any_name, safe_name};
use crate::setting::{DELETE, OVERWRITE};
use crate::text::shown;

impl Tree {
    /// Opens an entry beneath the destination. No symbolic link is followed, and what somebody else
    /// puts there in the meantime (a FIFO, a terminal) does not hold the thread.
    pub(super) fn beneath(&self, entry: u32, flags: OFlags) -> Result<OwnedFd, Error> {
        // What is opened by its path alone holds nobody, and the kernel takes no such flags for it.
        let quick = match flags.contains(OFlags::PATH) {
            true => OFlags::empty(),
            false => OFlags::NONBLOCK | OFlags::NOCTTY,
        };
        let flags = flags | quick | OFlags::CLOEXEC;
        beneath::open(&*self.root, self.relative(entry), flags, Mode::empty())
            .map_err(|e| self.error(entry, "opening", e))
    }

    /// Adds a page of the manifest, and makes the places of its entries.
    pub fn add_page(&mut self, page: &[u8]) -> Result<(), Error> {
        Arc::make_mut(&mut self.manifest).add_page(page)?;
        self.make_places()?;
        self.note_page(page);
        Ok(())
    }

    /// Adds a page of the manifest. The places of its entries are made later, by
    /// [`Tree::make_places`].
    pub fn take_page(&mut self, page: &[u8]) -> Result<(), Error> {
        Arc::make_mut(&mut self.manifest).add_page(page)?;
        self.note_page(page);
        Ok(())
    }

    fn note_page(&mut self, page: &[u8]) {
        if let Some(journal) = &mut self.journal {
            journal.add(&Record::Page(page.to_vec()));
        }
    }

    /// Makes the directories among the entries whose places are not made yet. An entry that is
    /// there already is an error, unless it may be replaced; a directory may always be there.
    pub fn make_places(&mut self) -> Result<(), Error> {
        let (first, count) = (
            self.starts.len() as u32,
            self.manifest.entries().len() as u32,
        );
        let mut start = match first.checked_sub(1) {
            Some(last) => self.starts[last as usize] + self.len(last),
            None => 0,
        };
        for entry in first..count {
            let e = self.entry(entry);
            let is_file = matches!(e.kind, Kind::File(_) | Kind::Stream);
            if let (Kind::HardLink(to), TOP) = (&e.kind, e.parent) {
                self.exposed.insert(*to);
            }
            self.starts.push(start);
            self.done.push(!is_file);
            self.remaining += usize::from(is_file);
            start += self.len(entry);
            if self.entry(entry).parent == TOP {
                self.check_top(entry)?;
            }
            if let Err(error) = self.make_place(entry) {
                // What is in the way may have come of this very set.
                self.check_folding()?;
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn check_top(&self, entry: u32) -> Result<(), Error> {
        if self.destination.name.is_some() {
            return match self.manifest.tops() {
                1 => Ok(()),
                _ => Err(absurd("it has several files for one name")),
            };
        }
        check_name(&self.entry(entry).name, self.destination.any_names)
    }

    /// Makes a directory, or checks that the place of another entry is free.
    pub(super) fn make_place(&mut self, entry: u32) -> Result<(), Error> {
        let is_directory = self.entry(entry).kind == Kind::Directory;
        if matches!(self.entry(entry).kind, Kind::Special(_)) && !self.makes_special() {
            self.special += 1;
            return Ok(());
        }
        let directory = self.directory_of(entry)?;
        // Nothing is in a directory that is new.
        if self.made.contains(&self.entry(entry).parent) {
            return match is_directory {
                true => self.make_directory(entry, &directory),
                false => Ok(()),
            };
        }
        let name = self.name(entry);
        let there = match sys::statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => None,
            Err(e) => return Err(self.error(entry, "looking at", e)),
            Ok(there) => Some(there),
        };
        let kind = there.map(|there| FileType::from_raw_mode(there.st_mode));
        let is_replaced = kind.is_some_and(|kind| is_directory != (kind == FileType::Directory))
            && (self.replaces_all(entry) || self.was_received(entry));
        let hint = || match self.entry(entry).parent {
            TOP => "move it away, or name another destination".to_owned(),
            _ => format!("move it away, or have it deleted with {OVERWRITE} and {DELETE}"),
        };
        match (is_directory, there, kind) {
            (true, ..) if is_replaced => {
                if self.stage(entry)? {
                    self.replaced.insert(entry);
                    return Ok(());
                }
                if !self.replaces_all(entry) {
                    return Err(Error::Usage(format!(
                        "{} is a directory at the sender and none here. It would have to go before \
                         the directory is complete, since nothing can be kept beside it: move it \
                         away",
                        shown(&self.path(entry))
                    )));
                }
                self.check_folding()?;
                disk::unlink(&directory, &name, false)
                    .map_err(|e| self.error(entry, "deleting", e))?;
                self.make_directory(entry, &directory)
            }
            (false, ..) if is_replaced => self.check_received(entry),
            (true, Some(_), _) if self.was_staged(entry) => Err(self.in_the_way(entry)),
            (true, Some(there), Some(FileType::Directory)) => {
                self.open_up(entry, &there, &directory, &name)
            }
            (false, None, _) => Ok(()),
            (true, None, _) => match self.stage(entry)? {
                true => Ok(()),
                false => self.make_directory(entry, &directory),
            },
            (true, Some(_), _)
                if self.destination.overwrite || self.destination.received.is_some() =>
            {
                Err(Error::Usage(format!(
                    "{} is a directory at the sender and none here: {}",
                    shown(&self.path(entry)),
                    hint()
                )))
            }
            (false, _, Some(FileType::Directory)) => Err(Error::Usage(format!(
                "{} is a directory here and none at the sender: {}",
                shown(&self.path(entry)),
                hint()
            ))),
            (false, Some(there), _) if self.may_be_ours(entry, &there, &name) => Ok(()),
            // What another run has left unfinished.
            (false, ..) if self.staged_top(entry).is_some() => {
                disk::unlink(&directory, &name, false).map_err(|e| self.error(entry, "deleting", e))
            }
            (false, Some(there), _) if self.is_replaced(entry, &there, &directory, &name) => Ok(()),
            _ => Err(self.exists(entry)),
        }
    }

    /// Lets this process use a directory of its user's that is there, if its mode does not: it gets
    /// the mode of the set at the end. What another user's directory refuses fails later.
    fn open_up(
        &self,
        entry: u32,
        there: &Stat,
        directory: &OwnedFd,
        name: &Path,
    ) -> Result<(), Error> {
        let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        if sys::accessat(directory, name, all, AtFlags::EACCESS) != Err(Errno::ACCESS) {
            return Ok(());
        }
        let opened = self.beneath(entry, OFlags::PATH | OFlags::DIRECTORY)?;
        let mode = Mode::from_raw_mode(there.st_mode) | Mode::RWXU;
        match disk::set_path_mode(&opened, mode) {
            Err(Errno::PERM) => Ok(()),
            changed => changed.map_err(|e| self.error(entry, "opening", e)),
        }
    }

    fn make_directory(&mut self, entry: u32, directory: &OwnedFd) -> Result<(), Error> {
        self.touched.insert(self.entry(entry).parent);
        match disk::make_directory(directory, &self.name(entry)) {
            Ok(()) => _ = self.made.insert(entry),
            // Two names are one to this file system, or somebody else has made it.
            Err(Errno::EXIST) => return Err(Error::Exists(self.path(entry))),
            Err(e) => return Err(self.error(entry, "making", e)),
        }
        Ok(())
    }

    /// Whether what has another type than the entry in its place is deleted. What lies beside the
    /// set in the destination never is.
    pub(super) fn replaces_all(&self, entry: u32) -> bool {
        self.destination.replaces_all() && self.entry(entry).parent != TOP
    }
}

/// Checks that a file or directory at the top may have this name.
pub(super) fn check_name(name: &[u8], any_names: bool) -> Result<(), Error> {
    let allowed = if any_names { any_name } else { safe_name };
    match std::str::from_utf8(name).ok().and_then(allowed) {
        Some(_) => Ok(()),
        None => Err(Error::Usage(format!(
            "the sender sends {:?}, which is no name for a file here",
            String::from_utf8_lossy(name)
        ))),
    }
}
