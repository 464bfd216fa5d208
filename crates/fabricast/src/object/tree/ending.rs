//! The end of a set: links, names that survive a power failure, and directories.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::leftovers::remove_replaced;
use super::naming::draw_name;
use super::{Tree, absurd, disk};
use crate::error::Error;
use crate::object::file_name::with_partial_name;
use crate::object::manifest::{Kind, Special, TOP};
use crate::text::shown;

/// More files and directories than this are flushed by flushing their file system.
const FLUSHED: usize = 16;

impl Tree {
    /// Ends the set, after [`Tree::answer`], and removes what is kept of sets that it has replaced.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.end()?;
        let top = self.destination.name.as_deref();
        remove_replaced(&self.root, &self.manifest, top);
        Ok(())
    }

    /// Ends the set: links, what is to be deleted, owners, modes and times of directories, and the
    /// flush of all that.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        if !self.is_complete() {
            return Err(absurd("it ends before all files are there"));
        }
        self.check_folding()?;
        let count = self.manifest.entries().len() as u32;
        self.name_held()?;
        if !self.has_copies {
            self.make_copies(&mut |_| Ok(()))?;
        }
        for entry in 0..count {
            match self.entry(entry).kind.clone() {
                Kind::Symlink(target) => self.make_symlink(entry, &target)?,
                Kind::HardLink(to) if self.failed.contains(&to) => _ = self.failed.insert(entry),
                Kind::HardLink(to) => self.make_link(entry, to)?,
                Kind::Special(what) if self.makes_special() => self.make_special(entry, what)?,
                _ => {}
            }
        }
        // What a file that was changed stood for may be among the rest.
        if self.destination.deletes && self.changed.is_empty() {
            self.deleted = self.delete_surplus()?;
        }
        // What is flushed is open by then: its mode may let nobody open it.
        let mut changed = self.touched()?;
        for entry in (0..count).rev() {
            let late = match self.entry(entry).kind {
                Kind::Directory => true,
                Kind::File(_) | Kind::Stream | Kind::Copy(_) => {
                    self.is_unreadable(entry) && !self.failed.contains(&entry)
                }
                _ => false,
            };
            if late {
                let opened = self.beneath(entry, OFlags::RDONLY)?;
                self.set_metadata(entry, self.mode(entry), &opened)?;
                if changed.len() <= FLUSHED {
                    changed.insert(entry, opened.into());
                }
            }
        }
        self.flush(changed)?;
        let placed = self.place_staged()?;
        if !placed.is_empty() {
            let mut changed = self.touched()?;
            // A run that is killed before this is gone on with, and gives them away then.
            for entry in placed {
                changed.extend(self.give_placed(entry)?.map(|opened| (entry, opened)));
            }
            self.flush(changed)?;
        }
        if let Some(journal) = self.journal.take() {
            journal.remove();
        }
        Ok(())
    }

    fn make_symlink(&mut self, entry: u32, target: &[u8]) -> Result<(), Error> {
        let directory = self.directory_of(entry)?;
        let target = OsStr::from_bytes(target);
        if !self.ours.contains(&entry) {
            self.place_link(entry, &directory, |name| {
                disk::link_to(target.as_ref(), &directory, name)
            })?;
        }
        let (name, times) = (self.name(entry), self.times(entry));
        if let Some(owner) = self.owner(entry) {
            let _ = disk::give_entry(&directory, &name, owner);
        }
        // Not every file system keeps times of links.
        let _ = disk::set_entry_times(&directory, &name, &times);
        Ok(())
    }

    fn make_special(&mut self, entry: u32, what: Special) -> Result<(), Error> {
        let directory = self.directory_of(entry)?;
        if !self.ours.contains(&entry) {
            self.place_link(entry, &directory, |name| {
                disk::make_special(what, &directory, name)
            })?;
        }
        let (name, times) = (self.name(entry), self.times(entry));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = sys::openat(&*directory, &name, flags, Mode::empty());
        let opened = opened.map_err(|e| self.error(entry, "opening", e))?;
        if let Some(owner) = self.owner(entry) {
            let _ = disk::give_entry(&directory, &name, owner);
        }
        let _ = disk::set_entry_times(&directory, &name, &times);
        disk::set_path_mode(&opened, self.mode(entry))
            .map_err(|e| self.error(entry, "setting mode of", e))
    }

    fn make_link(&mut self, entry: u32, to: u32) -> Result<(), Error> {
        let from = self.directory_of(to)?;
        let old = self.name(to);
        let directory = self.directory_of(entry)?;
        let file = |directory: &OwnedFd, name: &Path| {
            let there = sys::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok();
            there.map(|there| (there.st_dev, there.st_ino))
        };
        if file(&directory, &self.name(entry)) == file(&from, &old) {
            return Ok(()); // an earlier run has made it
        }
        self.place_link(entry, &directory, |name| {
            disk::link((&from, &old), &directory, name)
        })
    }

    /// Makes a link by `make`, in place of what is there if that may be replaced.
    fn place_link(
        &mut self,
        entry: u32,
        directory: &OwnedFd,
        make: impl Fn(&Path) -> Result<(), Errno>,
    ) -> Result<(), Error> {
        let name = self.name(entry);
        self.touched.insert(self.entry(entry).parent);
        self.make_way(entry, directory, &name)?;
        match make(&name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if self.may_replace(entry) => {
                let draw = draw_name(self.journal_id(), entry, directory);
                let ((), between) = with_partial_name(&name, draw, |n| Ok(make(n)?))?;
                let placed = disk::rename(directory, &between, &name);
                // Renaming one name of a file to another of its names does nothing.
                disk::remove(directory, &between);
                placed.map_err(|e| self.error(entry, "linking", e))
            }
            Err(Errno::EXIST) => Err(self.exists(entry)),
            Err(e) => Err(self.error(entry, "linking", e)),
        }
    }

    /// The directories that got names, open, as many as are flushed one by one, and one more.
    fn touched(&mut self) -> Result<BTreeMap<u32, File>, Error> {
        let touched = std::mem::take(&mut self.touched);
        let open = |directory| {
            let opened = match directory {
                TOP => self.root.try_clone().map_err(|e| {
                    Error::io(format!("opening {}", self.destination.root.display()), e)
                }),
                entry => self.beneath(entry, OFlags::RDONLY | OFlags::DIRECTORY),
            };
            Ok((directory, File::from(opened?)))
        };
        touched.into_iter().take(FLUSHED + 1).map(open).collect()
    }

    /// Flushes everything on the file systems that the set lies on.
    pub(super) fn flush_file_systems(&self) -> Result<(), Error> {
        self.file_systems.flush().map_err(|e| {
            let root = self.destination.root.display();
            Error::io(format!("flushing {root}"), e)
        })
    }

    /// Flushes what was changed at the end, so that it survives a power failure: files and
    /// directories by their entries.
    fn flush(&mut self, changed: BTreeMap<u32, File>) -> Result<(), Error> {
        if !self.destination.sync {
            return Ok(());
        }
        if changed.len() > FLUSHED || self.flushes_all {
            return self.flush_file_systems();
        }
        for (entry, file) in changed {
            match disk::flush(&file) {
                // Some file systems cannot flush a directory, and need not.
                Err(e) if e.kind() == ErrorKind::InvalidInput => {}
                Err(e) => {
                    let stands = match self.staged.is_empty() {
                        true => format!(
                            "{} is complete, proven and under its name, but a power failure may \
                             still undo that: ",
                            shown(&self.path(0))
                        ),
                        false => String::new(),
                    };
                    let path = match entry {
                        TOP => self.destination.root.clone(),
                        entry => self.path(entry),
                    };
                    let what = format!("{stands}flushing the directory {}", path.display());
                    return Err(Error::io(what, e));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
