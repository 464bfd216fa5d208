//! The journal of a set that is received (spec 5.11): what is stored, so that a receiver that was
//! killed goes on where it was.
//!
//! It lies in the destination. Anything may have happened to it, and to the files that it speaks
//! of: it only says which bytes to hash, and the hashes decide. A record that makes no sense ends
//! it.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{self as sys, FileType, FlockOperation, Mode, OFlags};

use super::{beneath, disk};
use crate::object::manifest::{Manifest, PAGE_MAX, take};
use crate::object::pack::{HEADER_MAX, PACK_MAX};

/// The beginning of every journal.
const MAGIC: &[u8; 16] = b"fabricast jrnl 1";
const PAGE: u8 = 0;
const PACK: u8 = 1;
/// Bytes of a record before its content.
const HEAD: usize = 9;

/// What is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// A page of the manifest.
    Page(Vec<u8>),
    /// A pack of pieces of files.
    Pack {
        /// Its header.
        header: Vec<u8>,
        /// Bytes of its payload.
        len: usize,
    },
}

/// An open journal, which no other process has open as one.
pub struct Journal {
    root: Arc<OwnedFd>,
    /// What tells the set and its place apart from others in the same directory.
    id: String,
    file: File,
    /// Where the next record goes.
    end: u64,
    /// Whether it has packs.
    has_packs: bool,
    /// Whether its pages are on the disk.
    is_flushed: bool,
}

/// Whether an open file is a regular one of this user's that has one name. Others who may write to
/// the directory could have put another there.
pub fn is_own(file: &File) -> bool {
    sys::fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_nlink == 1
            && stat.st_uid == rustix::process::geteuid().as_raw()
    })
}

impl Journal {
    /// Opens the journal with this `id` in the directory `root`, or begins it. `None` if that
    /// cannot be done: another receiver has it, or the file is not this user's alone.
    pub fn open(root: &Arc<OwnedFd>, id: String) -> Option<Journal> {
        let file = disk::open_or_create(root, file_name(&id).as_ref()).ok()?;
        sys::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        // One that was removed meanwhile has no name.
        is_own(&file).then_some(())?;
        let mut journal = Journal {
            root: root.clone(),
            id,
            file,
            end: 0,
            has_packs: false,
            is_flushed: false,
        };
        let mut magic = [0; MAGIC.len()];
        match journal.file.read_exact_at(&mut magic, 0) {
            Ok(()) if magic == *MAGIC => journal.end = MAGIC.len() as u64,
            _ => journal.clear()?,
        }
        Some(journal)
    }

    /// The set of the journal with this `id`, as far as the journal has it. Locks nothing, so a
    /// receiver may go on with it meanwhile. `None` if the file is not this user's alone.
    pub fn peek(root: &Arc<OwnedFd>, id: &str) -> Option<Manifest> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = beneath::open(&**root, file_name(id), flags, Mode::empty());
        let file = File::from(opened.ok()?);
        is_own(&file).then_some(())?;
        let mut journal = Journal {
            root: root.clone(),
            id: id.to_owned(),
            file,
            end: MAGIC.len() as u64,
            has_packs: false,
            is_flushed: false,
        };
        Some(journal.set())
    }

    /// The set, as far as the next records are pages of it.
    pub fn set(&mut self) -> Manifest {
        let mut set = Manifest::default();
        while let Some(Record::Page(page)) = self.next() {
            if set.add_page(&page).is_err() {
                break;
            }
        }
        set
    }

    /// What tells the set and its place apart from others in the same directory.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether it has packs.
    pub fn has_packs(&self) -> bool {
        self.has_packs
    }

    /// Waits, once, until the pages are on the disk. Files get their names only after that. So a
    /// run after a power cut knows them for those of this one. What cannot be flushed may be lost.
    pub fn flush(&mut self) {
        if !std::mem::replace(&mut self.is_flushed, true) {
            let _ = disk::flush(&self.file);
            let _ = self.root.try_clone().map(|root| disk::flush(&root.into()));
        }
    }

    /// Empties the journal. `None` if that cannot be done.
    pub fn clear(&mut self) -> Option<()> {
        disk::set_len(&self.file, 0).ok()?;
        disk::write(&self.file, MAGIC, 0).ok()?;
        (self.end, self.has_packs) = (MAGIC.len() as u64, false);
        Some(())
    }

    /// Reads the next record, from where the last one ended; `None` at the end, and where no record
    /// is. Records that are added come after the last one that was read.
    pub fn next(&mut self) -> Option<Record> {
        let mut head = [0; HEAD];
        self.file.read_exact_at(&mut head, self.end).ok()?;
        let mut rest = &head[..];
        let [kind] = take(&mut rest)?;
        let count = u32::from_be_bytes(take(&mut rest)?) as usize;
        let len = u32::from_be_bytes(take(&mut rest)?) as usize;
        let most = match kind {
            PAGE if len == 0 => PAGE_MAX,
            PACK if len <= PACK_MAX => HEADER_MAX,
            _ => return None,
        };
        let mut bytes = vec![0; (count <= most).then_some(count)?];
        self.file
            .read_exact_at(&mut bytes, self.end + HEAD as u64)
            .ok()?;
        self.end += (HEAD + count) as u64;
        self.has_packs |= kind == PACK;
        Some(match kind {
            PAGE => Record::Page(bytes),
            _ => Record::Pack { header: bytes, len },
        })
    }

    /// Adds a record, in place of what may follow the last one. If that cannot be done (the disk is
    /// full), the journal stays as it is.
    pub fn add(&mut self, record: &Record) {
        let (kind, bytes, len) = match record {
            Record::Page(page) => (PAGE, page, 0),
            Record::Pack { header, len } => (PACK, header, *len),
        };
        let mut whole = vec![kind];
        whole.extend((bytes.len() as u32).to_be_bytes());
        whole.extend((len as u32).to_be_bytes());
        whole.extend(bytes);
        match disk::write(&self.file, &whole, self.end) {
            Ok(()) => {
                self.end += whole.len() as u64;
                self.has_packs |= kind == PACK;
            }
            Err(_) => _ = disk::set_len(&self.file, self.end),
        }
    }

    /// Removes the journal, when the set is complete or nothing is worth keeping.
    pub fn remove(self) {
        disk::remove(&self.root, file_name(&self.id).as_ref());
    }
}

/// What tells a set and its place apart from others in the same directory: `set` is the digest of
/// its manifest, `name` the name of the only entry at the top, if its user has chosen one.
pub fn journal_id(set: &blake3::Hash, name: Option<&OsStr>) -> String {
    let mut place = blake3::Hasher::new();
    place.update(set.as_bytes());
    if let Some(name) = name {
        place.update(name.as_encoded_bytes());
    }
    place.finalize().to_hex()[..16].to_owned()
}

/// The name of a journal.
pub fn file_name(id: &str) -> String {
    format!(".fabricast-{id}.journal")
}

/// The name of a file while it is written, in its directory. It is the same in each run.
pub fn partial_name(id: &str, file: u32) -> String {
    format!(".fabricast-{id}.{file}.partial")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;
    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::object::testing::scratch;

    fn directory(path: &std::path::Path) -> Arc<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Arc::new(sys::open(path, flags, Mode::empty()).unwrap())
    }

    fn open(root: &Arc<OwnedFd>) -> Option<Journal> {
        Journal::open(root, "x".into())
    }

    fn records() -> Vec<Record> {
        let pack = |n: u8| Record::Pack {
            header: vec![n; 10 + usize::from(n)],
            len: usize::from(n) * 1000,
        };
        vec![Record::Page(vec![1; 500]), pack(1), pack(0), pack(9)]
    }

    fn all(journal: &mut Journal) -> Vec<Record> {
        std::iter::from_fn(|| journal.next()).collect()
    }

    #[test]
    fn what_is_added_is_read_and_a_torn_end_is_replaced() {
        let dir = scratch();
        let root = directory(&dir);
        let mut journal = open(&root).unwrap();
        records().iter().for_each(|record| journal.add(record));
        assert!(open(&root).is_none(), "it is in use");
        drop(journal);
        let path = dir.join(".fabricast-x.journal");
        let len = path.metadata().unwrap().len();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len - 3)
            .unwrap();
        let mut journal = open(&root).unwrap();
        assert_eq!(all(&mut journal), records()[..3]);
        journal.add(&records()[3]);
        drop(journal);
        let mut journal = open(&root).unwrap();
        assert_eq!(all(&mut journal), records());
        journal.remove();
        assert!(!path.exists());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_is_not_this_users_alone_is_no_journal() {
        let dir = scratch();
        let (root, path) = (directory(&dir), dir.join(".fabricast-x.journal"));
        let other = dir.join("other");
        std::fs::write(&other, "other").unwrap();
        symlink(&other, &path).unwrap();
        assert!(open(&root).is_none());
        std::fs::remove_file(&path).unwrap();
        std::fs::hard_link(&other, &path).unwrap();
        assert!(open(&root).is_none());
        std::fs::remove_file(&path).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        sys::mknodat(&*root, &path, FileType::Fifo, mode, 0).unwrap();
        assert!(open(&root).is_none());
        assert_eq!(std::fs::read(&other).unwrap(), b"other");
        std::fs::remove_dir_all(dir).unwrap();
    }

    proptest! {
        #[test]
        fn any_bytes_are_records_up_to_an_end(
            tail in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..700, bit in 0..8u8
        ) {
            let dir = scratch();
            let root = directory(&dir);
            let mut journal = open(&root).unwrap();
            records().iter().for_each(|record| journal.add(record));
            let path = dir.join(".fabricast-x.journal");
            let mut bytes = std::fs::read(&path).unwrap();
            let at = at.min(bytes.len() - 1);
            bytes[at] ^= 1 << bit;
            bytes.extend(tail);
            std::fs::write(&path, bytes).unwrap();
            drop(journal);
            let mut journal = open(&root).unwrap();
            all(&mut journal);
            journal.add(&records()[1]);
            prop_assert!(journal.has_packs());
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
}
