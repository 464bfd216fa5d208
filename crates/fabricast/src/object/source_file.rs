//! A file to send, read block by block and hashed on the way, never mapped.
//!
//! Every block is hashed each time it is read. The first time, the hash becomes an entry of the
//! hash list. Later (a repair of an old block) the hash must be the same, or the source has changed
//! meanwhile. After each read the file must also still have the length, times and inode that it had
//! when it was opened. Otherwise changes to bytes that had been read before would go unnoticed.

use std::collections::BTreeMap;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::fs::OFlags;

use super::{AT_ONCE, BLOCK, Challenge, HASH, LEN_MAX, PIECE, Secret, blocks, poisoned};
use crate::error::Error;
use crate::text::shown;

/// Number of blocks whose piece hashes are kept, 2 KiB each: what one receiver requests again,
/// others request, too.
const PIECE_LISTS: usize = 1024;

/// A file that is sent, shared by the reading thread, the control thread and the transfer.
pub struct SourceFile {
    file: File,
    path: PathBuf,
    len: u64,
    mode: u32,
    /// State of the file when it was opened.
    version: Version,
    list: Mutex<List>,
    /// Hashes of the pieces of some blocks.
    pieces: Mutex<BTreeMap<u64, Arc<[u8]>>>,
    challenge: Challenge,
    hashed: AtomicU64,
    failure: OnceLock<String>,
}

struct List {
    bytes: Vec<u8>,
    known: Vec<bool>,
    /// The samples by which receivers prove that they have the file, copied from what was hashed.
    /// Reading them again at the end would cost time, and the source may have changed by then.
    samples: Vec<u8>,
}

/// The state of a file: at least one field differs after a change. The times are in seconds and
/// nanoseconds.
#[derive(PartialEq)]
struct Version {
    inode: (u64, u64),
    len: u64,
    /// When the file's bytes were changed. Anybody that may write to the file can set this time.
    mtime: (i64, i64),
    /// When anything of the file was changed. Nobody can set this time.
    ctime: (i64, i64),
}

impl Version {
    fn of(meta: &Metadata) -> Version {
        Version {
            inode: (meta.dev(), meta.ino()),
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Refuses anything but a regular file.
fn check_type(path: &Path, found: FileType) -> Result<(), Error> {
    let what = match found {
        t if t.is_file() => return Ok(()),
        t if t.is_dir() => {
            return Err(Error::Usage(format!(
                "{} is a directory; directories are not supported yet: send one file, for example \
                 a tar archive",
                path.display()
            )));
        }
        t if t.is_fifo() => "a FIFO (named pipe)",
        t if t.is_socket() => "a socket",
        t if t.is_block_device() || t.is_char_device() => "a device",
        _ => "not a regular file",
    };
    Err(Error::Usage(format!(
        "{} is {what}; only regular files can be sent yet: copy what it yields to a file first",
        path.display()
    )))
}

impl SourceFile {
    /// Opens a regular file to be sent.
    pub fn open(path: &Path) -> Result<Arc<SourceFile>, Error> {
        let what = || format!("opening {}", path.display());
        // The type is checked before opening: opening some devices does something, and opening a
        // FIFO without a writer blocks.
        let meta = std::fs::metadata(path).map_err(|e| Error::io(what(), e))?;
        check_type(path, meta.file_type())?;
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags.bits() as i32);
            options.open(path)
        };
        let file = open(OFlags::NONBLOCK | OFlags::NOCTTY)
            .or_else(|e| match e.kind() {
                // Another process holds a lease. It has to give the lease up first, and has some
                // seconds to do so.
                io::ErrorKind::WouldBlock => open(OFlags::NOCTTY),
                _ => Err(e),
            })
            .map_err(|e| Error::io(what(), e))?;
        // By now the path may lead to something else.
        let meta = file.metadata().map_err(|e| Error::io(what(), e))?;
        check_type(path, meta.file_type())?;
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).map_err(|e| Error::io(what(), e))?;
        let len = meta.len();
        if len > LEN_MAX {
            return Err(Error::Usage(format!(
                "{} has {len} bytes, and the longest file that can be sent has {LEN_MAX} (32 TiB)",
                path.display()
            )));
        }
        let count = blocks(len) as usize;
        let mut key = [0; 32];
        rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
            .map_err(|e| Error::io("drawing a random number", e))?;
        let challenge = Challenge::new(key, len);
        Ok(Arc::new(SourceFile {
            file,
            path: path.to_owned(),
            len,
            mode: meta.mode() & 0o777,
            version: Version::of(&meta),
            list: Mutex::new(List {
                bytes: vec![0; count * HASH],
                known: vec![false; count],
                samples: vec![0; challenge.bytes()],
            }),
            pieces: Mutex::default(),
            challenge,
            hashed: AtomicU64::new(0),
            failure: OnceLock::new(),
        }))
    }

    /// Length of the file in bytes, when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Permissions of the file.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// The hash list; `None` until every block has been read.
    pub fn list(&self) -> Option<Vec<u8>> {
        (self.hashed.load(Ordering::Acquire) == blocks(self.len)).then(|| {
            let list = self.list.lock().unwrap_or_else(poisoned);
            list.bytes.clone()
        })
    }

    /// Appends at most `most` bytes of the hash list from `from` on. Returns the length of the
    /// list, or `None` until every block has been read.
    pub fn list_part(&self, from: usize, most: usize, into: &mut Vec<u8>) -> Option<usize> {
        if self.hashed.load(Ordering::Acquire) != blocks(self.len) {
            return None;
        }
        let list = self.list.lock().unwrap_or_else(poisoned);
        let rest = list.bytes.get(from..).unwrap_or(&[]);
        into.extend_from_slice(&rest[..rest.len().min(most)]);
        Some(list.bytes.len())
    }

    /// The challenge by which receivers prove that they have the file. The sender tells its key
    /// only when every block has been read.
    pub fn challenge(&self) -> &Challenge {
        &self.challenge
    }

    /// The secret that only a node with the file knows; valid once every block has been read.
    pub fn secret(&self) -> Secret {
        let list = self.list.lock().unwrap_or_else(poisoned);
        self.challenge.secret(&list.samples)
    }

    /// Why the source cannot be read any more.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The error for the caller of a [`FileReader`](super::FileReader) that has failed: why the
    /// source cannot be read, or, if that is unknown, that the reading thread has ended.
    pub fn error(&self) -> Error {
        match self.failure() {
            Some(why) => Error::SourceChanged(why.to_owned()),
            None => Error::io("reading the source", io::Error::other("its reader ended")),
        }
    }

    /// Reads one block again, for a receiver whose copy is damaged. The block must match its hash
    /// in the list.
    pub fn reread(&self, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        self.read(block, 0, into)
    }

    /// The hashes of a block's pieces. The block is read, unless they are known, and must match the
    /// list.
    pub fn piece_hashes(&self, block: u64) -> Result<Arc<[u8]>, String> {
        let known = || self.pieces.lock().unwrap_or_else(poisoned);
        if let Some(hashes) = known().get(&block) {
            return Ok(hashes.clone());
        }
        let mut bytes = Vec::new();
        self.read(block, 0, &mut bytes)?;
        let each = bytes.chunks(PIECE).map(blake3::hash);
        let hashes: Arc<[u8]> = each.flat_map(|hash| *hash.as_bytes()).collect();
        let mut known = known();
        if known.len() >= PIECE_LISTS {
            // Receivers go through the file from its beginning, so the first block is needed least.
            known.pop_first();
        }
        known.insert(block, hashes.clone());
        Ok(hashes)
    }

    /// Appends some pieces of a block, which must match the hashes of the pieces.
    pub fn pieces(&self, block: u64, some: &[u32], into: &mut Vec<u8>) -> Result<(), String> {
        let hashes = self.piece_hashes(block)?;
        let mut read = || {
            for &piece in some {
                let start = block * BLOCK as u64 + u64::from(piece) * PIECE as u64;
                let end = (start + PIECE as u64).min(self.len);
                let at = into.len();
                into.resize(at + (end - start) as usize, 0);
                self.read_exactly(start, &mut into[at..])?;
                let hash = &hashes[piece as usize * HASH..][..HASH];
                if blake3::hash(&into[at..]).as_bytes() != hash {
                    return Err(self.written_to(start));
                }
            }
            self.check_version()
        };
        read().inspect_err(|why| _ = self.failure.set(why.clone()))
    }

    fn written_to(&self, at: u64) -> String {
        format!(
            "{} was written to while it was being sent (near byte {at})",
            self.path.display()
        )
    }

    /// Reads a block and the first `tail` bytes of the next one, hashes the block, and notes or
    /// checks its hash.
    pub(super) fn read(&self, block: u64, tail: usize, into: &mut Vec<u8>) -> Result<(), String> {
        let start = block * BLOCK as u64;
        let own = (self.len - start).min(BLOCK as u64) as usize;
        let want = (self.len - start).min((BLOCK + tail) as u64) as usize;
        into.resize(want, 0);
        self.read_and_hash(start, into, own)
            .and_then(|hash| self.check_version().map(|()| hash))
            .and_then(|hash| self.note(block, hash, &into[..own]))
            .inspect_err(|why| _ = self.failure.set(why.clone()))
    }

    /// Reads bytes, and hashes the first `own` of them.
    fn read_and_hash(
        &self,
        start: u64,
        into: &mut [u8],
        own: usize,
    ) -> Result<blake3::Hash, String> {
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        for piece in into.chunks_mut(AT_ONCE) {
            self.read_exactly(start + at as u64, piece)?;
            hasher.update(&piece[..piece.len().min(own - own.min(at))]);
            at += piece.len();
        }
        Ok(hasher.finalize())
    }

    fn read_exactly(&self, start: u64, into: &mut [u8]) -> Result<(), String> {
        self.file.read_exact_at(into, start).map_err(|e| {
            if e.kind() == io::ErrorKind::UnexpectedEof {
                format!(
                    "{} became shorter while it was being sent ({} bytes at the start); nobody \
                     has received it",
                    self.path.display(),
                    self.len
                )
            } else {
                format!("reading {} at byte {start}: {e}", self.path.display())
            }
        })
    }

    /// Checks that the file is as it was when it was opened; the error says what changed.
    pub fn check_version(&self) -> Result<(), String> {
        let path = shown(&self.path);
        let meta = self.file.metadata();
        let now = Version::of(&meta.map_err(|e| format!("reading {path}: {e}"))?);
        let then = &self.version;
        if now == *then {
            return Ok(());
        }
        let how = match now.len {
            len if len < then.len => "became shorter",
            len if len > then.len => "became longer",
            _ if now.mtime != then.mtime => "was written to",
            // Its bytes may have changed as well, if somebody has set `mtime` back.
            _ => "was changed (written to, renamed, deleted, or its permissions)",
        };
        let lengths = match now.len == then.len {
            true => String::new(),
            false => format!(" ({} bytes at the start, {} now)", then.len, now.len),
        };
        Err(format!("{path} {how} while it was being sent{lengths}"))
    }

    fn note(&self, block: u64, hash: blake3::Hash, bytes: &[u8]) -> Result<(), String> {
        let at = block as usize;
        let mut list = self.list.lock().unwrap_or_else(poisoned);
        if list.known[at] {
            if list.bytes[at * HASH..(at + 1) * HASH] != *hash.as_bytes() {
                return Err(self.written_to(block * BLOCK as u64));
            }
        } else {
            list.known[at] = true;
            let start = block * BLOCK as u64;
            let mut filled = 0;
            for &(offset, len) in self.challenge.samples() {
                if offset / BLOCK as u64 == block {
                    let from = (offset - start) as usize;
                    list.samples[filled..filled + len].copy_from_slice(&bytes[from..from + len]);
                }
                filled += len;
            }
            list.bytes[at * HASH..(at + 1) * HASH].copy_from_slice(hash.as_bytes());
            self.hashed.fetch_add(1, Ordering::Release);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::testing::scratch;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let dir = scratch();
        let fifo = dir.join("fifo");
        let status = std::process::Command::new("mkfifo").arg(&fifo).status();
        assert!(status.unwrap().success());
        let socket = dir.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, word) in [
            (fifo.as_path(), "FIFO"),
            (&socket, "socket"),
            (Path::new("/dev/zero"), "device"),
            (&dir, "directory"),
        ] {
            match SourceFile::open(path) {
                Err(Error::Usage(text)) => assert!(text.contains(word), "{text}"),
                _ => panic!("{} was opened", path.display()),
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
