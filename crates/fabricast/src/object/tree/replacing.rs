//! What came from the sender before gives way to what comes now.
//!
//! A destination may belong to one sender, as a feed's directory does. Its caller knows what this
//! sender's earlier sets have put there, and journals say what interrupted runs have put there.
//! That is replaced, and nothing else is, unless the user wants it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self as sys, AtFlags, FileType};
use rustix::io::Errno;

use super::beneath::open_directory;
use super::received::{Begun, Received};
use super::resuming::is_like;
use super::surplus::{DEPTH_MAX, OURS, delete, names, not_deleted};
use super::{Tree, disk, leftovers};
use crate::error::Error;
use crate::object::manifest::{Kind, Manifest, TOP};
use crate::setting::{DELETE, OVERWRITE};
use crate::text::shown;

impl Tree {
    /// Whether what is in the place of an entry that is no directory may be replaced.
    pub(super) fn is_replaced(
        &mut self,
        entry: u32,
        there: &sys::Stat,
        directory: &OwnedFd,
        name: &Path,
    ) -> bool {
        if self.may_replace(entry) {
            return true;
        }
        let Some(received) = self.destination.received.clone() else {
            return false;
        };
        let target = || sys::readlinkat(directory, name, Vec::new()).ok();
        let path = self.manifest.path(entry);
        let is_known = is_like(&self.manifest, entry, there, target)
            || self.is_listed(entry, &path, &*received)
            || self.is_begun_at(&path, |set, other| is_like(set, other, there, target));
        if is_known {
            self.before.entries.insert(entry);
        }
        is_known
    }

    /// Whether the caller knows that an entry's place was received. `path`: that of the entry.
    fn is_listed(&mut self, entry: u32, path: &[u8], received: &dyn Received) -> bool {
        let top = self.top_of(entry);
        let name = self.own_name(top);
        let paths = self.before.paths.entry(top);
        let paths = paths.or_insert_with(|| received.paths(name.as_os_str()));
        let Some(paths) = paths else { return false };
        let within: PathBuf = Path::new(OsStr::from_bytes(path))
            .components()
            .skip(1)
            .collect();
        top == entry || paths.contains(&within)
    }

    /// Whether a run has begun a set with an entry at this path which `is_it`.
    fn is_begun_at(&mut self, path: &[u8], is_it: impl Fn(&Manifest, u32) -> bool) -> bool {
        let root = &self.root;
        let read = || leftovers::begun(root).into_iter().map(Begun::new).collect();
        let begun: &Vec<Begun> = self.before.begun.get_or_insert_with(read);
        begun.iter().any(|begun| {
            begun
                .find(path)
                .is_some_and(|entry| is_it(&begun.set, entry))
        })
    }

    /// The error for what is in an entry's place and is not replaced.
    pub(super) fn exists(&self, entry: u32) -> Error {
        let path = self.path(entry);
        match self.destination.received {
            None => Error::Exists(path),
            Some(_) => Error::Usage(format!(
                "{} is there, and this receiver has not received it: move it away, or have it \
                 replaced with {OVERWRITE}",
                shown(&path)
            )),
        }
    }

    /// Whether what has an entry's place may have been received from this sender.
    pub(super) fn is_owned(&self, entry: u32) -> bool {
        self.destination.received.is_some() && self.entry(entry).parent == TOP
    }

    /// What an entry's place held when it was received from this sender, if that is there: as the
    /// caller knows it, or nothing for a file or link that an interrupted run has put there.
    fn received(&mut self, entry: u32) -> Option<BTreeSet<PathBuf>> {
        let received = self.destination.received.clone();
        let received = received.filter(|_| self.is_owned(entry))?;
        let name = self.own_name(entry);
        received.paths(name.as_os_str()).or_else(|| {
            let root = self.root.clone();
            let there = sys::statat(&*root, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let target = || sys::readlinkat(&*root, &name, Vec::new()).ok();
            let is_it = |set: &Manifest, other| is_like(set, other, &there, target);
            let path = self.manifest.path(entry);
            self.is_begun_at(&path, is_it).then(BTreeSet::new)
        })
    }

    /// Whether what has the place of an entry of another type was received from this sender.
    pub(super) fn was_received(&mut self, entry: u32) -> bool {
        self.received(entry).is_some()
    }

    /// Checks that a directory which was received holds nothing else, unless all that the set does
    /// not have is to be deleted. What an interrupted run has put there was received, too.
    pub(super) fn check_received(&mut self, entry: u32) -> Result<(), Error> {
        let Some(paths) = self.received(entry).filter(|_| !self.destination.deletes) else {
            return Ok(());
        };
        let (root, name, top) = (
            self.root.clone(),
            self.own_name(entry),
            self.manifest.path(entry),
        );
        let is_known = &mut |found: &Found<'_>| {
            let path = [&top[..], b"/", found.within.as_os_str().as_bytes()].concat();
            let target = || sys::readlinkat(found.directory, found.name, Vec::new()).ok();
            let is_it = |set: &Manifest, other: u32| match set.entries()[other as usize].kind {
                Kind::Directory => is_directory(&found.there),
                _ => is_like(set, other, &found.there, target),
            };
            paths.contains(found.within) || self.is_begun_at(&path, is_it)
        };
        match foreign(&root, &name, Path::new(""), is_known, 0) {
            Ok(None) => Ok(()),
            Ok(Some(path)) => Err(Error::Usage(format!(
                "{} is a directory here and none at the sender, and {} did not come from there: \
                 move that away, or have it deleted with {DELETE}",
                shown(&self.path(entry)),
                shown(&self.path(entry).join(path))
            ))),
            Err(e) => Err(not_deleted(&self.path(entry), e)),
        }
    }

    /// Deletes what was received in an entry's place, which has another type.
    pub(super) fn delete_received(&mut self, entry: u32) -> Result<(), Error> {
        let name = self.own_name(entry);
        let there = sys::statat(&*self.root, &name, AtFlags::SYMLINK_NOFOLLOW);
        let deleted = if there.is_ok_and(|there| is_directory(&there)) {
            self.check_received(entry)?;
            delete(&self.root, &name).map(drop)
        } else {
            disk::unlink(&self.root, &name, false).map_err(|e| (name, e))
        };
        let root = &self.destination.root;
        deleted.map_err(|(path, e)| not_deleted(&root.join(path), e))
    }
}

fn is_directory(there: &sys::Stat) -> bool {
    FileType::from_raw_mode(there.st_mode) == FileType::Directory
}

/// What a directory of an entry holds under a name.
struct Found<'a> {
    directory: &'a OwnedFd,
    name: &'a OsStr,
    /// Its path, relative to the entry.
    within: &'a Path,
    there: sys::Stat,
}

/// The first path in a directory, relative to the entry that it belongs to, that is not known and
/// is no partial file of a receiver. `within`: where the directory lies in that entry.
fn foreign(
    parent: &OwnedFd,
    name: &Path,
    within: &Path,
    is_known: &mut dyn FnMut(&Found<'_>) -> bool,
    depth: usize,
) -> Result<Option<PathBuf>, Errno> {
    if depth >= DEPTH_MAX {
        return Err(Errno::MLINK);
    }
    let directory = open_directory(parent, name)?;
    for name in names(&directory)? {
        let path = within.join(&name);
        let bytes = name.as_encoded_bytes();
        let is_left = bytes.starts_with(OURS) && bytes.ends_with(b".partial");
        let found = Found {
            directory: &directory,
            name: &name,
            within: &path,
            there: sys::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW)?,
        };
        if !is_left && !is_known(&found) {
            return Ok(Some(path));
        }
        if is_directory(&found.there)
            && let Some(path) = foreign(&directory, name.as_ref(), &path, is_known, depth + 1)?
        {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
