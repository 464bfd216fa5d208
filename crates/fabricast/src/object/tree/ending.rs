//! The end of a set: links, names that survive a power failure, and directories.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self as sys, AtFlags, OFlags};
use rustix::io::Errno;

use super::{Tree, absurd};
use crate::error::Error;
use crate::object::file_name::{partial_name, with_partial_name};
use crate::object::manifest::{Kind, TOP};
use crate::text::shown;

/// More directories than this are flushed by flushing their file system.
const FLUSHED: usize = 16;

impl Tree {
    /// Ends the set, after [`Tree::answer`]: links, the flush of names, then owners, modes and
    /// times of directories.
    pub fn finish(&mut self) -> Result<(), Error> {
        if !self.is_complete() {
            return Err(absurd("it ends before all files are there"));
        }
        let count = self.manifest.entries().len() as u32;
        for entry in 0..count {
            match self.entry(entry).kind.clone() {
                Kind::Symlink(target) => self.make_symlink(entry, &target)?,
                Kind::HardLink(to) if self.failed.contains(&to) => _ = self.failed.insert(entry),
                Kind::HardLink(to) => self.make_link(entry, to)?,
                _ => {}
            }
        }
        self.flush_names()?;
        for entry in (0..count).rev() {
            let late = match self.entry(entry).kind {
                Kind::Directory => true,
                Kind::File(_) => self.is_unreadable(entry) && !self.failed.contains(&entry),
                _ => false,
            };
            if late {
                let opened = self.beneath(entry, OFlags::RDONLY)?;
                self.set_metadata(entry, self.mode(entry), &opened)?;
            }
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
                sys::symlinkat(target, &*directory, name)
            })?;
        }
        let (name, times) = (self.name(entry), self.times(entry));
        if let Some((user, group)) = self.owner(entry) {
            let _ = sys::chownat(&*directory, &name, user, group, AtFlags::SYMLINK_NOFOLLOW);
        }
        // Not every file system keeps times of links.
        let _ = sys::utimensat(&*directory, &name, &times, AtFlags::SYMLINK_NOFOLLOW);
        Ok(())
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
            sys::linkat(&*from, &old, &*directory, name, AtFlags::empty())
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
        match make(&name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if self.may_replace(entry) => {
                let ((), between) = with_partial_name(&name, partial_name, |n| Ok(make(n)?))?;
                let placed = sys::renameat(directory, &between, directory, &name);
                // Renaming one name of a file to another of its names does nothing.
                let _ = sys::unlinkat(directory, &between, AtFlags::empty());
                placed.map_err(|e| self.error(entry, "linking", e))
            }
            Err(Errno::EXIST) => Err(Error::Exists(self.path(entry))),
            Err(e) => Err(self.error(entry, "linking", e)),
        }
    }

    /// Flushes the directories that got names, so that these survive a power failure.
    fn flush_names(&mut self) -> Result<(), Error> {
        let touched = std::mem::take(&mut self.touched);
        if !self.destination.sync {
            return Ok(());
        }
        if touched.len() > FLUSHED || self.flushes_all {
            return sys::syncfs(&*self.root).map_err(|e| {
                Error::io(format!("flushing {}", self.destination.root.display()), e)
            });
        }
        for directory in touched {
            let (opened, path) = match directory {
                TOP => (self.root.try_clone().ok(), self.destination.root.clone()),
                entry => {
                    let opened = self.beneath(entry, OFlags::RDONLY | OFlags::DIRECTORY)?;
                    (Some(opened), self.path(entry))
                }
            };
            match opened.map(File::from).map_or(Ok(()), |d| d.sync_all()) {
                // Some file systems cannot flush a directory, and need not.
                Err(e) if e.kind() == ErrorKind::InvalidInput => {}
                Err(e) => {
                    let what = shown(&self.path(0));
                    return Err(Error::io(
                        format!(
                            "{what} is complete, proven and under its name, but a power failure \
                             may still undo that: flushing the directory {}",
                            path.display()
                        ),
                        e,
                    ));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}
