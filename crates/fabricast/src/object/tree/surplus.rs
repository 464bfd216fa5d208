//! What is in the directories of a set and not in the set: found, and deleted if the receiver's
//! user wants that.
//!
//! Only directories of the set are looked into, never the destination itself. The kernel resolves
//! each name beneath the destination, follows no link, and crosses no mount point.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self as sys, AtFlags, FileType};
use rustix::io::Errno;

use super::beneath::open_directory;
use super::paths::relative;
use super::{Destination, Tree, disk};
use crate::error::Error;
use crate::object::file_name::folded_hash;
use crate::object::manifest::{Kind, Manifest, TOP};
use crate::text::shown;

/// Names that begin like this are of receivers that are at work, or were.
pub(super) const OURS: &[u8] = b".fabricast-";
/// Deepest nesting of directories that are deleted: each has an open descriptor.
pub(super) const DEPTH_MAX: usize = 512;

/// An entry of a directory of the set that is not in the set.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Surplus {
    /// Number of the directory in the manifest.
    directory: u32,
    name: OsString,
}

/// The names in a directory, in order.
pub(super) fn names(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in sys::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The names that a directory lists and the set does not have; `wanted` and `listed` are sorted.
/// `file` tells which file has a name. A file system that does not tell upper case from lower, or
/// that stores names in a form of its own, may list a name of the set in another spelling. Some
/// FUSE file systems give each spelling a file number of its own.
fn unwanted(
    wanted: &[&[u8]],
    listed: Vec<OsString>,
    file: impl Fn(&OsStr) -> Option<(u64, u64)>,
) -> Vec<OsString> {
    let is_listed = |name: &&[u8]| listed.binary_search_by_key(name, |l| l.as_bytes()).is_ok();
    let otherwise = wanted.iter().filter(|name| !is_listed(name));
    let (files, spellings): (BTreeSet<_>, BTreeSet<_>) = otherwise
        .filter_map(|name| Some((file(OsStr::from_bytes(name))?, folded_hash(TOP, name))))
        .unzip();
    let is_unwanted = |name: &OsString| {
        let bytes = name.as_bytes();
        let is_other = wanted.binary_search(&bytes).is_err() && !bytes.starts_with(OURS);
        let is_wanted = || {
            spellings.contains(&folded_hash(TOP, bytes))
                || file(name).is_some_and(|there| files.contains(&there))
        };
        is_other && (files.is_empty() || !is_wanted())
    };
    let unwanted = listed.iter().filter(|name| is_unwanted(name));
    unwanted.cloned().collect()
}

/// Finds what is in the directories of a set and not in the set. What the directories `failed` hold
/// is not known, and none of it counts.
fn find(
    root: &OwnedFd,
    to: &Destination,
    manifest: &Manifest,
    failed: &BTreeSet<u32>,
) -> Result<Vec<Surplus>, Error> {
    let mut wanted = BTreeMap::<u32, Vec<&[u8]>>::new();
    for entry in manifest.entries().iter().filter(|e| e.parent != TOP) {
        wanted.entry(entry.parent).or_default().push(&entry.name);
    }
    wanted.values_mut().for_each(|names| names.sort_unstable());
    let mut surplus = Vec::new();
    for (number, entry) in (0..).zip(manifest.entries()) {
        if entry.kind != Kind::Directory || failed.contains(&number) {
            continue;
        }
        let path = relative(manifest, to.name.as_deref(), number);
        let fails = |e: Errno| Error::io(format!("reading {}", shown(&to.root.join(&path))), e);
        let directory = match open_directory(root, &path) {
            Ok(directory) => directory,
            // It is not there yet, or a link has its place.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(Errno::XDEV) => {
                return Err(Error::Usage(format!(
                    "{} is another file system, in which nothing is deleted: unmount it, or \
                     delete nothing",
                    shown(&to.root.join(&path))
                )));
            }
            Err(e) => return Err(fails(e)),
        };
        let wanted = wanted.get(&number).map_or(&[][..], Vec::as_slice);
        let listed = names(&directory).map_err(fails)?;
        let unwanted = unwanted(wanted, listed, |name| {
            let there = sys::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some((there.st_dev, there.st_ino))
        });
        surplus.extend(unwanted.into_iter().map(|name| Surplus {
            directory: number,
            name,
        }));
    }
    Ok(surplus)
}

/// Deletes an entry of a directory, with all that it holds. A mount point is an error. Returns how
/// many entries that were.
pub(super) fn delete(directory: &OwnedFd, name: &Path) -> Result<u64, (PathBuf, Errno)> {
    delete_below(directory, name, 0)
}

fn delete_below(directory: &OwnedFd, name: &Path, depth: usize) -> Result<u64, (PathBuf, Errno)> {
    let fails = |e| (name.to_owned(), e);
    let there = sys::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fails)?;
    if FileType::from_raw_mode(there.st_mode) != FileType::Directory {
        disk::unlink(directory, name, false).map_err(fails)?;
        return Ok(1);
    }
    if depth >= DEPTH_MAX {
        return Err(fails(Errno::MLINK));
    }
    let opened = open_directory(directory, name).map_err(fails)?;
    let mut count = 1;
    for below in names(&opened).map_err(fails)? {
        let deleted = delete_below(&opened, below.as_ref(), depth + 1);
        count += deleted.map_err(|(path, e)| (name.join(path), e))?;
    }
    disk::unlink(directory, name, true).map_err(fails)?;
    Ok(count)
}

/// The error for what could not be deleted.
pub(super) fn not_deleted(path: &Path, e: Errno) -> Error {
    let path = shown(path);
    match e {
        Errno::XDEV => Error::Usage(format!(
            "{path} is to be deleted and is another file system: unmount it first"
        )),
        Errno::MLINK => Error::Usage(format!(
            "{path} is to be deleted and lies too deep: delete it yourself"
        )),
        e => Error::io(format!("deleting {path}"), e),
    }
}

impl Tree {
    /// Whether a directory has the place of an entry that is none, and is to be deleted.
    pub(super) fn is_blocked(&mut self, entry: u32, directory: &OwnedFd, name: &Path) -> bool {
        (self.replaces_all(entry) || self.is_owned(entry))
            && sys::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)
                .is_ok_and(|there| FileType::from_raw_mode(there.st_mode) == FileType::Directory)
            && (self.replaces_all(entry) || self.was_received(entry))
    }

    /// Deletes a directory that has the place of an entry that is none, if that may be.
    pub(super) fn make_way(
        &mut self,
        entry: u32,
        directory: &OwnedFd,
        name: &Path,
    ) -> Result<(), Error> {
        if !self.is_blocked(entry, directory, name) {
            return Ok(());
        }
        if !self.replaces_all(entry) {
            return self.delete_received(entry);
        }
        let within = self.path(entry);
        let within = within.parent().unwrap_or(&self.destination.root);
        match delete(directory, name) {
            Ok(_) => Ok(()),
            Err((path, e)) => Err(not_deleted(&within.join(path), e)),
        }
    }

    /// Deletes what is in the directories of the set and not in the set. Returns how many entries
    /// that were.
    pub(super) fn delete_surplus(&mut self) -> Result<u64, Error> {
        let surplus = find(&self.root, &self.destination, &self.manifest, &self.failed)?;
        let mut count = 0;
        for Surplus { directory, name } in surplus {
            let within = self.path(directory);
            let fails = |path: &Path, e: Errno| not_deleted(&within.join(path), e);
            let relative = self.relative(directory);
            let opened =
                open_directory(&*self.root, &relative).map_err(|e| fails(Path::new(""), e))?;
            let deleted = delete(&opened, name.as_ref());
            count += deleted.map_err(|(path, e)| fails(&path, e))?;
            self.touched.insert(directory);
        }
        Ok(count)
    }
}

/// A set of which a receiver wants to know only what it would delete.
pub struct DryRun {
    root: OwnedFd,
    destination: Destination,
    manifest: Manifest,
}

impl DryRun {
    /// Opens the destination; the manifest comes by [`DryRun::add_page`]. Nothing changes there.
    pub fn new(destination: Destination) -> Result<DryRun, Error> {
        Ok(DryRun {
            root: destination.open()?,
            destination,
            manifest: Manifest::default(),
        })
    }

    /// The entries so far.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Adds a page of the manifest.
    pub fn add_page(&mut self, page: &[u8]) -> Result<(), Error> {
        Ok(self.manifest.add_page(page)?)
    }

    /// The paths that would be deleted. One that is a directory goes with all that it holds.
    pub fn surplus(&self) -> Result<Vec<PathBuf>, Error> {
        let none = BTreeSet::new(); // which directories fail comes later than the manifest
        let mut found = find(&self.root, &self.destination, &self.manifest, &none)?;
        if self.destination.replaces_all() {
            found.extend(self.of_another_type());
        }
        let name = self.destination.name.as_deref();
        let paths = found.into_iter().map(
            |Surplus {
                 directory,
                 name: last,
             }| {
                let within = relative(&self.manifest, name, directory);
                self.destination.root.join(within).join(last)
            },
        );
        Ok(paths.collect())
    }

    /// What is deleted to make way for an entry of another type.
    fn of_another_type(&self) -> impl Iterator<Item = Surplus> {
        let entries = self.manifest.entries().iter().filter(|e| e.parent != TOP);
        entries.filter_map(|entry| {
            let name = self.destination.name.as_deref();
            let directory =
                open_directory(&self.root, &relative(&self.manifest, name, entry.parent)).ok()?;
            let name = OsStr::from_bytes(&entry.name);
            let there = sys::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            let is_directory = FileType::from_raw_mode(there.st_mode) == FileType::Directory;
            (is_directory != (entry.kind == Kind::Directory)).then(|| Surplus {
                directory: entry.parent,
                name: name.to_owned(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_set_in_another_spelling_is_not_surplus() {
        let listed = ["FILE", "link", "other"].map(OsString::from).to_vec();
        // The file system takes "file" for "FILE". "link" is another name of that file.
        let file = |name: &OsStr| match name.to_str() {
            Some("FILE" | "file" | "link") => Some((1, 1)),
            Some("other") => Some((1, 2)),
            _ => None,
        };
        let of = |wanted: &[&[u8]]| unwanted(wanted, listed.clone(), file);
        assert_eq!(of(&[b"file"]), ["other"]);
        assert_eq!(of(&[b"FILE"]), ["link", "other"]);
        assert_eq!(of(&[b"FILE", b"absent"]), ["link", "other"]);
        assert_eq!(of(&[]), ["FILE", "link", "other"]);
        // Each spelling has a number of its own.
        let file = |name: &OsStr| match name.to_str() {
            Some("FILE") => Some((1, 1)),
            Some("file") => Some((1, 2)),
            Some(_) => Some((1, 3)),
            None => None,
        };
        assert_eq!(
            unwanted(&[b"file"], listed.clone(), file),
            ["link", "other"]
        );
    }
}
