//! A received file until it is complete: a file without a name in the destination's directory. It
//! gets its name only when every byte has been proven and is on the disk.
//!
//! The file begins empty: an offer costs no disk space and no memory. [`PartialFile::allocate`]
//! takes both when the transfer starts.
//!
//! A file without a name (`O_TMPFILE`) disappears with the process that has it open, however that
//! process ends. Where the file system has no such files, the data go to `NAME.XXXXXX.partial`.
//! Dropping a [`PartialFile`] removes that file; a process that is killed outright leaves it
//! behind.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags, RenameFlags};
use rustix::io::Errno;

use super::disk_space::{check_space, room};
use super::file_name::{parent, partial_name, with_partial_name};
use super::{AT_ONCE, BLOCK, Challenge, HASH, PIECE, Secret, blocks, poisoned};
use crate::error::Error;

/// Magic number of tmpfs. This file system lives in memory: allocating first would only do the work
/// twice.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A file that is being received.
pub struct PartialFile {
    file: File,
    /// Name of the file until it is complete; `None` if it has no name.
    partial: Option<PathBuf>,
    path: PathBuf,
    overwrite: bool,
    len: u64,
    /// Bytes of the file system that stay free; `None`: the larger of 1 % and 64 MiB.
    reserve: Option<u64>,
    /// Empty before [`PartialFile::allocate`].
    hashes: Mutex<Vec<u8>>,
    failure: OnceLock<Error>,
    written: AtomicU64,
    /// Set by what comes first: giving the file its name, or discarding it.
    closed: OnceLock<()>,
    /// Damages every n-th block on its way to the disk, to test repairs; 0: no block.
    damage: u64,
}

impl PartialFile {
    /// Creates the empty file that will be called `path`, after checking that `len` bytes fit there
    /// and `reserve` bytes stay free (`None`: the larger of 1 % and 64 MiB).
    pub fn new(
        path: PathBuf,
        len: u64,
        mode: u32,
        overwrite: bool,
        reserve: Option<u64>,
        damage: u64,
    ) -> Result<PartialFile, Error> {
        match path.symlink_metadata() {
            Ok(there) if there.is_dir() => {
                let text = format!(
                    "{} is a directory; name another destination",
                    path.display()
                );
                return Err(Error::Usage(text));
            }
            Ok(_) if !overwrite => return Err(Error::Exists(path)),
            _ => {}
        }
        check_space(&path, len, reserve)?;
        let (file, partial) = create(&path, mode & 0o777)?;
        Ok(PartialFile {
            file,
            partial,
            path,
            overwrite,
            len,
            reserve,
            hashes: Mutex::default(),
            failure: OnceLock::new(),
            written: AtomicU64::new(0),
            closed: OnceLock::new(),
            damage,
        })
    }

    /// Takes the memory and the disk space that the file needs. Other processes may have filled the
    /// disk since [`PartialFile::new`], so this checks the free space again.
    pub fn allocate(&mut self) -> Result<(), Error> {
        check_space(&self.path, self.len, self.reserve)?;
        *self.hashes.get_mut().unwrap_or_else(poisoned) = room(blocks(self.len) * HASH as u64)?;
        let error = |e| Error::writing(&self.path, e);
        let memory = rustix::fs::fstatfs(&self.file)
            .is_ok_and(|fs| i128::from(fs.f_type) == i128::from(TMPFS_MAGIC));
        if self.len > 0 && !memory {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.len) {
                // Not every file system can allocate. `check_space` has checked, and writing will
                // report an error.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(e) => return Err(error(e.into())),
            }
        }
        self.file.set_len(self.len).map_err(error)
    }

    /// The name that the file will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Hashes and writes one block; an error is kept for [`PartialFile::failure`].
    pub(crate) fn write(&self, block: u64, bytes: &[u8]) -> bool {
        let stored = if self.damage > 0 && block.is_multiple_of(self.damage) {
            let mut bytes = bytes.to_vec();
            bytes[0] ^= 1;
            self.store(block, &bytes)
        } else {
            self.store(block, bytes)
        };
        self.written
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        stored.map_err(|e| self.failure.set(e)).is_ok()
    }

    fn store(&self, block: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut hasher = blake3::Hasher::new();
        let mut start = block * BLOCK as u64;
        for piece in bytes.chunks(AT_ONCE) {
            hasher.update(piece);
            self.file
                .write_all_at(piece, start)
                .map_err(|e| Error::writing(&self.path, e))?;
            start += piece.len() as u64;
        }
        let hash = hasher.finalize();
        let at = block as usize * HASH;
        self.hashes.lock().unwrap_or_else(poisoned)[at..at + HASH].copy_from_slice(hash.as_bytes());
        Ok(())
    }

    /// Reads back bytes that were written at `offset`; false on an error.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, offset).is_ok()
    }

    /// Reads back the samples of `challenge`, and computes the secret from them.
    pub fn answer(&self, challenge: &Challenge) -> Result<Secret, Error> {
        let mut bytes = vec![0; challenge.bytes()];
        let mut rest = &mut bytes[..];
        for &(offset, len) in challenge.samples() {
            let (piece, behind) = rest.split_at_mut(len);
            self.file
                .read_exact_at(piece, offset)
                .map_err(|e| Error::io(format!("reading {} back", self.path.display()), e))?;
            rest = behind;
        }
        Ok(challenge.secret(&bytes))
    }

    /// Why a block could not be written.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// The first block, from `from` on, whose hash differs from the sender's list.
    pub fn differing(&self, list: &[u8], from: u64) -> Option<u64> {
        let mine = self.hashes.lock().unwrap_or_else(poisoned);
        let skip = from as usize * HASH;
        mine[skip..]
            .chunks_exact(HASH)
            .zip(list[skip..].chunks_exact(HASH))
            .position(|(a, b)| a != b)
            .map(|i| from + i as u64)
    }

    /// Reads a whole block back; `None` if it cannot be read.
    fn read_block(&self, block: u64) -> Option<Vec<u8>> {
        let start = block * BLOCK as u64;
        let mut bytes = vec![0; (self.len - start).min(BLOCK as u64) as usize];
        self.read(start, &mut bytes).then_some(bytes)
    }

    /// Pieces of a block that do not match `hashes`, which has one hash for each piece. All pieces
    /// if the block cannot be read.
    pub fn wrong_pieces(&self, block: u64, hashes: &[u8]) -> Vec<u32> {
        let bytes = self.read_block(block);
        let hashes = hashes.chunks_exact(HASH).enumerate();
        let wrong = hashes.filter(|(i, hash)| {
            let piece = bytes.as_ref().and_then(|b| b.chunks(PIECE).nth(*i));
            piece.is_none_or(|piece| blake3::hash(piece).as_bytes() != *hash)
        });
        wrong.map(|(i, _)| i as u32).collect()
    }

    /// Replaces `pieces` of a damaged block by `bytes`. Returns false, and changes nothing, if the
    /// block would still not match the list.
    pub fn mend(
        &self,
        list: &[u8],
        block: u64,
        pieces: &[u32],
        bytes: &[u8],
    ) -> Result<bool, Error> {
        let len = (self.len - block * BLOCK as u64).min(BLOCK as u64) as usize;
        let mut whole = self.read_block(block).unwrap_or_else(|| vec![0; len]);
        let mut rest = bytes;
        let mut extents = Vec::new();
        for piece in pieces {
            let start = *piece as usize * PIECE;
            let end = (start + PIECE).min(len);
            let Some((piece, after)) = rest.split_at_checked(end.saturating_sub(start)) else {
                return Ok(false);
            };
            whole[start..end].copy_from_slice(piece);
            extents.push(start..end);
            rest = after;
        }
        let at = block as usize * HASH;
        let hash = blake3::hash(&whole);
        if !rest.is_empty() || hash.as_bytes() != &list[at..at + HASH] {
            return Ok(false);
        }
        for extent in extents {
            self.file
                .write_all_at(
                    &whole[extent.clone()],
                    block * BLOCK as u64 + extent.start as u64,
                )
                .map_err(|e| Error::writing(&self.path, e))?;
        }
        self.hashes.lock().unwrap_or_else(poisoned)[at..at + HASH].copy_from_slice(hash.as_bytes());
        Ok(true)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Removes the partial file now, even if other holders of this object remain. A file that has
    /// its final name, or is about to get it, stays.
    pub fn discard(&self) {
        if self.closed.set(()).is_ok() {
            self.remove_partial();
        }
    }

    fn remove_partial(&self) {
        if let Some(partial) = &self.partial {
            let _ = std::fs::remove_file(partial);
        }
    }

    /// Writes everything to the disk (if `sync`) and gives the file its name.
    pub fn finish(&self, sync: bool) -> Result<(), Error> {
        if sync {
            self.file
                .sync_all()
                .map_err(|e| Error::writing(&self.path, e))?;
        }
        if self.closed.set(()).is_err() {
            return Err(Error::Interrupted); // it was discarded meanwhile
        }
        self.name().inspect_err(|_| self.remove_partial())?;
        match sync {
            true => self.flush_name(),
            false => Ok(()),
        }
    }

    /// Flushes the directory, so that the name survives a power failure.
    fn flush_name(&self) -> Result<(), Error> {
        let parent = parent(&self.path);
        match File::open(parent).and_then(|d| d.sync_all()) {
            // Some file systems cannot flush a directory, and need not.
            Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
            Err(e) => Err(Error::io(
                format!(
                    "{} is complete, proven and under its name, but a power failure may still undo \
                     that: flushing the directory {}",
                    self.path.display(),
                    parent.display()
                ),
                e,
            )),
            Ok(()) => Ok(()),
        }
    }

    fn name(&self) -> Result<(), Error> {
        let what = || format!("renaming to {}", self.path.display());
        let error = |e: io::Error| match (e.kind(), self.overwrite) {
            (ErrorKind::AlreadyExists, false) => Error::Exists(self.path.clone()),
            _ => Error::io(what(), e),
        };
        match (&self.partial, self.overwrite) {
            (None, false) => self.link(&self.path).map_err(error),
            // A link replaces nothing, so the file has a partial name for an instant.
            (None, true) => {
                let ((), partial) =
                    with_partial_name(&self.path, partial_name, |name| self.link(name))?;
                std::fs::rename(&partial, &self.path)
                    .inspect_err(|_| _ = std::fs::remove_file(&partial))
                    .map_err(error)
            }
            (Some(partial), true) => std::fs::rename(partial, &self.path).map_err(error),
            (Some(partial), false) => {
                let keep = RenameFlags::NOREPLACE;
                match rustix::fs::renameat_with(CWD, partial, CWD, &self.path, keep) {
                    // The file system does not have that flag. A link also never replaces anything.
                    Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(partial, &self.path)
                        .and_then(|()| std::fs::remove_file(partial))
                        .map_err(error),
                    result => result.map_err(|e| error(e.into())),
                }
            }
        }
    }

    /// Gives a file without a name the name `name`, which must be free.
    fn link(&self, name: &Path) -> io::Result<()> {
        let nameless = descriptor(&self.file);
        rustix::fs::linkat(CWD, nameless, CWD, name, AtFlags::SYMLINK_FOLLOW)?;
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        self.discard();
    }
}

/// Creates the file that will be called `path`: without a name, or with the returned one.
fn create(path: &Path, mode: u32) -> Result<(File, Option<PathBuf>), Error> {
    let mut open = OpenOptions::new();
    open.read(true).write(true).mode(mode);
    let mut nameless = open.clone();
    nameless.custom_flags(OFlags::TMPFILE.bits() as i32);
    // Without /proc the file could never get a name.
    if let Ok(file) = nameless.open(parent(path))
        && rustix::fs::stat(descriptor(&file)).is_ok()
    {
        return Ok((file, None));
    }
    open.create_new(true);
    let (file, partial) = with_partial_name(path, partial_name, |name| open.open(name))?;
    Ok((file, Some(partial)))
}

/// The path by which an open file can be linked.
fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::LEN_MAX;
    use crate::object::testing::scratch;

    fn partial(path: &Path, len: u64, mode: u32, overwrite: bool) -> Result<PartialFile, Error> {
        let mut partial = PartialFile::new(path.to_owned(), len, mode, overwrite, Some(0), 0)?;
        partial.allocate()?;
        Ok(partial)
    }

    #[test]
    fn dropped_early_it_leaves_nothing_and_never_replaces() {
        let dir = scratch();
        let path = dir.join("f");
        let l = partial(&path, 10, 0o644, false).unwrap();
        assert!(l.write(0, b"0123456789"));
        drop(l);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);

        // Another process creates the file meanwhile.
        let l = partial(&path, 10, 0o644, false).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(matches!(l.finish(true), Err(Error::Exists(_))));
        drop(l);
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);

        let refused = partial(&path, 10, 0o644, false);
        assert!(matches!(refused, Err(Error::Exists(_))));
        let l = partial(&path, 4, 0o600, true).unwrap();
        assert!(l.write(0, b"ours"));
        l.finish(true).unwrap();
        drop(l);
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_offer_takes_no_space_and_a_start_does() {
        use std::os::unix::fs::MetadataExt;
        let dir = scratch();
        let new = PartialFile::new(dir.join("f"), 5 << 20, 0o644, false, Some(0), 0);
        let mut l = new.unwrap();
        let there = |l: &PartialFile| l.file.metadata().map(|m| (m.len(), m.blocks())).unwrap();
        assert_eq!(there(&l), (0, 0));
        assert!(l.hashes.get_mut().unwrap().is_empty());
        l.allocate().unwrap();
        assert_eq!(there(&l).0, 5 << 20);
        assert_eq!(l.hashes.get_mut().unwrap().len(), 5 * HASH);
        drop(l);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn with_and_without_a_name_it_ends_alike() {
        let dir = scratch();
        for (i, (overwrite, nameless)) in
            [(false, true), (true, true), (false, false), (true, false)]
                .into_iter()
                .enumerate()
        {
            let make = |path: &Path| {
                let mut l =
                    PartialFile::new(path.to_owned(), 4, 0o600, overwrite, None, 0).unwrap();
                l.allocate().unwrap();
                if !nameless {
                    let mut open = OpenOptions::new();
                    open.read(true).write(true).create_new(true);
                    let (file, partial) =
                        with_partial_name(path, partial_name, |n| open.open(n)).unwrap();
                    (l.file, l.partial) = (file, Some(partial));
                }
                assert!(l.write(0, b"ours"));
                l
            };
            let names = || {
                let entries = std::fs::read_dir(&dir).unwrap();
                entries.map(|e| e.unwrap().file_name()).collect::<Vec<_>>()
            };
            let path = dir.join(format!("f{i}"));
            if overwrite {
                std::fs::write(&path, "theirs").unwrap();
            }
            let before = names();
            // Discarded while it is being stored, it gets no name afterwards.
            let l = make(&path);
            l.discard();
            assert!(matches!(l.finish(true), Err(Error::Interrupted)));
            assert_eq!(names(), before);
            let l = make(&path);
            l.finish(true).unwrap();
            l.discard();
            drop(l);
            assert_eq!(std::fs::read(&path).unwrap(), b"ours");
            assert_eq!(names().len(), i + 1);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn more_than_the_disk_has_is_refused_first() {
        let dir = scratch();
        let free = rustix::fs::statvfs(&dir).map_or(0, |fs| fs.f_bavail * fs.f_frsize);
        let mib = |n: u64| format!("{} MiB", n >> 20);
        let more = ((free >> 20) + 1024) << 20;
        let cases = [
            // length, reserve, what the error tells
            (LEN_MAX, None, mib(LEN_MAX)),
            (LEN_MAX + 1, Some(0), LEN_MAX.to_string()),
            (u64::MAX, Some(0), "32.0 TiB".to_string()),
            (1, Some(more), mib(more)),
        ];
        for (len, reserve, told) in cases {
            let l = PartialFile::new(dir.join("f"), len, 0o644, false, reserve, 0);
            let text = l.err().unwrap().to_string();
            let what = if len > LEN_MAX {
                "too long"
            } else {
                "no space"
            };
            assert!(text.contains(what) && text.contains(&told), "{text}");
            assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        }
        let l = PartialFile::new(dir.join("f"), 1, 0o644, false, Some(0), 0);
        drop(l.unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
