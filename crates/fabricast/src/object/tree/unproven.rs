//! A file that is proven as a whole, when all its bytes are there (spec 7.8).

use std::io::Read;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{self as sys, SeekFrom};

use super::partial::Partial;
use super::places::check_name;
use super::{Destination, Tree, WRITTEN, disk, give_way, write_parts};
use crate::error::Error;
use crate::object::manifest::{Entry, Kind, Manifest, TOP};

/// The number of the only entry.
const ENTRY: u32 = 0;
/// What the file is called until it is proven.
const NAMELESS: &[u8] = b"unproven";

/// What the sender says of a file beside its bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Metadata {
    /// Its name, unless the destination has one.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// Its permissions, with the set-id and sticky bits.
    pub mode: u16,
    /// When its bytes were changed, in seconds and nanoseconds since 1970.
    pub mtime: (i64, u32),
    /// Its owner: user and group.
    pub owner: (u32, u32),
}

/// A file that is being received, about which nothing is certain. It gets its name when it is
/// proven. Before that, it is removed when this value is dropped.
pub struct UnprovenFile {
    tree: Box<Tree>,
    partial: Partial,
}

fn manifest_of(entry: Entry) -> Result<Manifest, Error> {
    let mut manifest = Manifest::default();
    let added = manifest.add(entry);
    added.map_err(|e| Error::Usage(format!("this file cannot be received: {e}")))?;
    Ok(manifest)
}

impl UnprovenFile {
    /// Makes an empty file.
    ///
    /// # Errors
    /// The system's.
    pub fn new(destination: Destination) -> Result<UnprovenFile, Error> {
        let mut tree = Box::new(Tree::new(destination)?);
        tree.manifest = Arc::new(manifest_of(Entry {
            parent: TOP,
            name: NAMELESS.into(),
            kind: Kind::File(0),
            mode: 0,
            mtime: 0,
            mtime_ns: 0,
            owner: (u32::MAX, u32::MAX), // unknown until the file is proven
            attributes: Default::default(),
        })?);
        tree.starts.push(0);
        tree.done.push(true);
        let partial = tree.create(ENTRY, true)?;
        Ok(UnprovenFile { tree, partial })
    }

    /// The path that a file of this name gets.
    pub fn path(destination: &Destination, name: &str) -> PathBuf {
        let own = destination.name.as_deref();
        destination.root.join(own.unwrap_or(name.as_ref()))
    }

    /// Writes bytes, over those that are there.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = write_parts(&self.partial.file, bytes, offset);
        written.map_err(|e| self.tree.error(ENTRY, "writing", e))
    }

    /// Passes on the first `len` bytes of the file, as they can be read back. The file is as long
    /// from then on.
    ///
    /// # Errors
    /// The system's.
    pub fn read_back(&mut self, len: u64, to: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let file = &self.partial.file;
        let fails = |e: std::io::Error| self.tree.error(ENTRY, "reading back", e);
        disk::set_len(file, len).map_err(|e| fails(e.into()))?;
        sys::seek(file.as_fd(), SeekFrom::Start(0)).map_err(|e| fails(e.into()))?;
        let mut piece = vec![0; WRITTEN];
        loop {
            give_way();
            match (&*file).read(&mut piece).map_err(fails)? {
                0 => return Ok(()),
                n => to(&piece[..n]),
            }
        }
    }

    /// Flushes the file, and gives it its name, permissions, time, and owner if this process is
    /// root. It is proven now.
    ///
    /// # Errors
    /// The name cannot be used here, or is taken; or the system's.
    pub fn finish(self, metadata: &Metadata) -> Result<(), Error> {
        let UnprovenFile { mut tree, partial } = self;
        let name = match tree.destination.name {
            Some(_) => NAMELESS,
            None => metadata.name.as_bytes(),
        };
        check_name(name, false)?;
        let entry = Entry {
            name: name.into(),
            kind: Kind::File(metadata.len),
            mode: metadata.mode,
            mtime: metadata.mtime.0,
            mtime_ns: metadata.mtime.1,
            owner: metadata.owner,
            ..tree.entry(ENTRY).clone()
        };
        tree.manifest = Arc::new(manifest_of(entry)?);
        tree.make_place(ENTRY)?;
        tree.set_metadata(ENTRY, tree.readable_mode(ENTRY), &partial.file)?;
        tree.add_to_batch(partial)?;
        tree.name_batch()?;
        // Nothing is kept here of a file that was to have this name. To look for that would take
        // longer the more files there are.
        tree.end()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;
    use crate::object::testing::scratch;

    fn metadata(name: &str) -> Metadata {
        Metadata {
            name: name.into(),
            len: 5,
            mode: 0o640,
            mtime: (1_000_000_000, 7),
            owner: (12_345, 23_456),
        }
    }

    #[test]
    fn a_file_gets_its_name_and_metadata_when_it_is_proven() {
        let dir = scratch();
        let mut file = UnprovenFile::new(Destination::new(dir.clone())).unwrap();
        // Bytes may come again, and what lies behind the end was never sent.
        file.write(3, b"xxxxxxxx").unwrap();
        file.write(0, b"hel").unwrap();
        file.write(2, b"llo").unwrap();
        let mut read = Vec::new();
        file.read_back(5, &mut |bytes| read.extend_from_slice(bytes))
            .unwrap();
        assert_eq!(read, b"hello");
        file.finish(&metadata("f")).unwrap();
        let there = std::fs::metadata(dir.join("f")).unwrap();
        assert_eq!(there.permissions().mode() & 0o7777, 0o640);
        assert_eq!(
            (there.mtime(), there.mtime_nsec(), there.len()),
            (1_000_000_000, 7, 5)
        );
        let user = rustix::process::geteuid();
        if user.is_root() {
            assert_eq!((there.uid(), there.gid()), metadata("f").owner);
        } else {
            assert_eq!(there.uid(), user.as_raw());
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A sender that was found may be anybody, and gives files to nobody.
    #[test]
    fn a_file_gets_its_owner_from_a_sender_that_was_named() {
        let own = rustix::process::geteuid();
        for is_tame in [false, true] {
            let dir = scratch();
            let destination = Destination {
                is_tame,
                is_privileged: true,
                ..Destination::new(dir.clone())
            };
            let mut file = UnprovenFile::new(destination).unwrap();
            file.write(0, b"hello").unwrap();
            file.finish(&metadata("f")).unwrap();
            let there = std::fs::metadata(dir.join("f")).unwrap();
            let gives = own.is_root() && !is_tame;
            let expected = if gives { 12_345 } else { own.as_raw() };
            assert_eq!(there.uid(), expected, "found: {is_tame}");
            assert_eq!(there.gid() == 23_456, gives, "found: {is_tame}");
            std::fs::remove_dir_all(dir).unwrap();
        }
    }

    #[test]
    fn a_name_that_is_taken_or_none_is_refused_and_leaves_nothing() {
        let dir = scratch();
        std::fs::write(dir.join("taken"), "here").unwrap();
        for (name, code) in [
            ("taken", 1),
            ("../x", 2),
            ("", 2),
            ("a/b", 2),
            (".hidden", 2),
        ] {
            let mut file = UnprovenFile::new(Destination::new(dir.clone())).unwrap();
            file.read_back(5, &mut |_| ()).unwrap();
            let error = file.finish(&metadata(name)).unwrap_err();
            assert_eq!(error.exit_code(), code, "{name}: {error}");
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(std::fs::read(dir.join("taken")).unwrap(), b"here");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
