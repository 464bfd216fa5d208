//! Where a received file lands: a partial file beside the destination, which gets the final name
//! only when every byte has been proven and is on the disk.
//!
//! Dropped before that, it removes the partial file. A process that is killed outright leaves a
//! `NAME.XXXX.partial`, which nobody mistakes for the file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use rustix::io::Errno;

use super::{BLOCK, HASH, blocks, poisoned};
use crate::error::Error;

/// Its file system lives in memory: allocating first would only do the work twice.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A file that is being received.
pub struct Landing {
    file: File,
    partial: PathBuf,
    path: PathBuf,
    overwrite: bool,
    len: u64,
    hashes: Mutex<Vec<u8>>,
    failure: OnceLock<Error>,
    written: AtomicU64,
    /// The partial file has become the file, or is removed.
    closed: OnceLock<()>,
    /// Damages every n-th block on its way to the disk, so that mending is tested; 0: none.
    damage: u64,
}

/// Bytes of a file name.
const NAME_MAX: usize = 255;

impl Landing {
    /// Creates the partial file for `path` and makes sure that `len` bytes fit.
    pub fn new(
        path: PathBuf,
        len: u64,
        mode: u32,
        overwrite: bool,
        damage: u64,
    ) -> Result<Landing, Error> {
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
        check_space(&path, len)?;
        let partial = partial_name(&path)?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode & 0o777)
            .open(&partial)
            .map_err(|e| Error::io(format!("creating {}", partial.display()), e))?;
        let landing = Landing {
            file,
            partial,
            path,
            overwrite,
            len,
            hashes: Mutex::new(vec![0; blocks(len) as usize * HASH]),
            failure: OnceLock::new(),
            written: AtomicU64::new(0),
            closed: OnceLock::new(),
            damage,
        };
        landing.allocate()?;
        Ok(landing)
    }

    fn allocate(&self) -> Result<(), Error> {
        let error = |e| Error::writing(&self.path, e);
        let memory = rustix::fs::fstatfs(&self.file)
            .is_ok_and(|fs| i128::from(fs.f_type) == i128::from(TMPFS_MAGIC));
        if self.len > 0 && !memory {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.len) {
                // Not every file system can; `check_space` has looked, and writing will tell.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(e) => return Err(error(e.into())),
            }
        }
        self.file.set_len(self.len).map_err(error)
    }

    /// The name that it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Hashes and writes one block; an error is kept for [`Landing::failure`].
    pub(super) fn write(&self, block: u64, bytes: &[u8]) -> bool {
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
        let hash = blake3::hash(bytes);
        self.file
            .write_all_at(bytes, block * BLOCK as u64)
            .map_err(|e| Error::writing(&self.path, e))?;
        let at = block as usize * HASH;
        self.hashes.lock().unwrap_or_else(poisoned)[at..at + HASH].copy_from_slice(hash.as_bytes());
        Ok(())
    }

    /// Reads back what has been written at `offset`.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.file.read_exact_at(into, offset).is_ok()
    }

    /// Why a block could not be written.
    pub fn failure(&self) -> Option<&Error> {
        self.failure.get()
    }

    /// Blocks, from `from` on, that are not what the sender's list says.
    pub fn differing(&self, list: &[u8], from: u64) -> Option<u64> {
        let mine = self.hashes.lock().unwrap_or_else(poisoned);
        let skip = from as usize * HASH;
        mine[skip..]
            .chunks_exact(HASH)
            .zip(list[skip..].chunks_exact(HASH))
            .position(|(a, b)| a != b)
            .map(|i| from + i as u64)
    }

    /// Replaces a damaged block; false if these bytes are not what the list says either.
    pub fn mend(&self, list: &[u8], block: u64, bytes: &[u8]) -> Result<bool, Error> {
        let at = block as usize * HASH;
        let len = (self.len - block * BLOCK as u64).min(BLOCK as u64) as usize;
        if bytes.len() != len || blake3::hash(bytes).as_bytes() != &list[at..at + HASH] {
            return Ok(false);
        }
        self.store(block, bytes)?;
        Ok(true)
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Removes the partial file now, whoever else still holds this.
    pub fn discard(&self) {
        if self.closed.set(()).is_ok() {
            let _ = std::fs::remove_file(&self.partial);
        }
    }

    /// Puts everything on the disk (`sync`) and gives the file its name.
    pub fn finish(&self, sync: bool) -> Result<(), Error> {
        if sync {
            self.file
                .sync_all()
                .map_err(|e| Error::writing(&self.path, e))?;
        }
        self.rename()?;
        let _ = self.closed.set(());
        if sync {
            let parent = parent(&self.path);
            File::open(parent)
                .and_then(|d| d.sync_all())
                .map_err(|e| Error::io(format!("writing {}", parent.display()), e))?;
        }
        Ok(())
    }

    fn rename(&self) -> Result<(), Error> {
        let what = || format!("renaming to {}", self.path.display());
        if self.overwrite {
            return std::fs::rename(&self.partial, &self.path).map_err(|e| Error::io(what(), e));
        }
        let keep = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(CWD, &self.partial, CWD, &self.path, keep) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(Error::Exists(self.path.clone())),
            // A file system without that flag: a link also never replaces anything.
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(&self.partial, &self.path)
                .and_then(|()| std::fs::remove_file(&self.partial))
                .map_err(|e| Error::io(what(), e)),
            Err(e) => Err(Error::io(what(), e)),
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.discard();
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

fn partial_name(path: &Path) -> Result<PathBuf, Error> {
    let mut bits = [0u8; 3];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io("drawing a random number", e))?;
    let [a, b, c] = bits;
    let suffix = format!(".{a:02x}{b:02x}{c:02x}.partial");
    // File systems take names of 255 bytes: of a longer one the end is left out.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut end = name.len().min(NAME_MAX - suffix.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    Ok(path.with_file_name(format!("{}{suffix}", &name[..end])))
}

fn check_space(path: &Path, len: u64) -> Result<(), Error> {
    let dir = parent(path);
    let fs = rustix::fs::statvfs(dir)
        .map_err(|e| Error::io(format!("looking at {}", dir.display()), e))?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    // Some file systems (network, FUSE) say that they have no blocks at all: they don't know.
    if fs.f_blocks > 0 && free < len {
        return Err(Error::NoSpace {
            path: path.to_owned(),
            detail: format!(
                "it has {} MiB, and {} MiB are free there: make room or name another destination",
                len.div_ceil(1 << 20),
                free >> 20
            ),
        });
    }
    Ok(())
}

/// The file name to use for what the sender calls `name`: its last component, without anything
/// that would leave the directory, hide in a terminal or be taken for another file.
pub fn safe_name(name: &str) -> Option<&str> {
    let bad = name.is_empty()
        || name.len() > 255
        || matches!(name, "." | "..")
        || name.contains('/')
        || name.chars().any(char::is_control);
    (!bad).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::testing::scratch;

    #[test]
    fn a_name_from_the_network_stays_in_its_directory() {
        for good in ["a", "image.iso", "..a", "a b", "…"] {
            assert_eq!(safe_name(good), Some(good));
        }
        for bad in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "a/b",
            "../x",
            "a\nb",
            "\x1b[2J",
        ] {
            assert_eq!(safe_name(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn dropped_early_it_leaves_nothing_and_never_replaces() {
        let dir = scratch();
        let path = dir.join("f");
        let l = Landing::new(path.clone(), 10, 0o644, false, 0).unwrap();
        assert!(l.write(0, b"0123456789"));
        drop(l);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);

        // Somebody else makes the file meanwhile.
        let l = Landing::new(path.clone(), 10, 0o644, false, 0).unwrap();
        std::fs::write(&path, "theirs").unwrap();
        assert!(matches!(l.finish(true), Err(Error::Exists(_))));
        drop(l);
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);

        let refused = Landing::new(path.clone(), 10, 0o644, false, 0);
        assert!(matches!(refused, Err(Error::Exists(_))));
        let l = Landing::new(path.clone(), 4, 0o600, true, 0).unwrap();
        assert!(l.write(0, b"ours"));
        l.finish(true).unwrap();
        drop(l);
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn more_than_the_disk_has_is_refused_first() {
        let dir = scratch();
        let l = Landing::new(dir.join("f"), 1 << 60, 0o644, false, 0);
        assert!(matches!(l, Err(Error::NoSpace { .. })));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
