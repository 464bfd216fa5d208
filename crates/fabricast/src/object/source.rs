//! A file to be sent: read ahead by a thread of its own, hashed on the way, never mapped.
//!
//! The protocol thread asks for extents with `fetch` and never touches the disk. Blocks of
//! [`BLOCK`] bytes lie in a bounded cache; each carries the first bytes of its successor, so that
//! a packet that straddles two blocks is still one slice. Every block is hashed each time it is
//! read: the first time the hash becomes an entry of the hash list, later (a repair of something
//! old) it must be the same, or the source has changed under our hands. After each read the file
//! must also be the one that was opened, by its length, times and inode: bytes that were changed
//! after they had been read would otherwise go unnoticed.

use std::collections::BTreeMap;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use fabricast_proto::Outcome;
use rustix::fs::OFlags;

use super::{
    AT_ONCE, BLOCK, Challenge, Fetch, HASH, LEN_MAX, Object, PIECE, Secret, Written, blocks,
    poisoned,
};
use crate::bell::Bell;
use crate::error::Error;
use crate::text::shown;

/// Blocks in the cache.
const SLOTS: usize = 96;
/// Blocks read before they are asked for, at first and at most: more once a block was late.
const AHEAD_MIN: u64 = 4;
const AHEAD: u64 = 16;
/// Blocks behind the last one asked for that are kept at first: more once one was asked for that
/// was not. The fewer, the likelier is a buffer still in the processor's cache when it is used
/// again.
const KEPT_MIN: u64 = 4;
/// What was ready stays so for this many further calls of `fetch` (the contract of [`Object`]).
const PINNED: u64 = 64;
/// Blocks of which the hashes of pieces are kept, 2 KiB each: what one receiver needs again, others
/// need, too.
const PIECE_LISTS: usize = 1024;
/// A block that is in no slot.
const NONE: u8 = u8::MAX;

const _: () = assert!(SLOTS < NONE as usize);
// The pinned blocks, those being read ahead, and room for repairs.
const _: () = assert!(SLOTS as u64 >= PINNED + AHEAD + 16);

/// A file that is sent: what the reading thread, the control thread and the transfer share.
pub struct Content {
    file: File,
    path: PathBuf,
    len: u64,
    mode: u32,
    /// As it was when it was opened.
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
    /// The samples by which receivers prove that they have the file, taken from what was hashed: to
    /// read them again at the end would cost time, and the source may have changed by then.
    samples: Vec<u8>,
}

/// What differs once a file has been modified. The times are in seconds and nanoseconds.
#[derive(PartialEq)]
struct Version {
    inode: (u64, u64),
    len: u64,
    /// When its bytes were changed; anybody who may write to the file can set this time.
    mtime: (i64, i64),
    /// When anything of it was changed; nobody can set this time.
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

/// Refuses what is no regular file.
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

impl Content {
    /// Opens a regular file to be sent.
    pub fn open(path: &Path) -> Result<Arc<Content>, Error> {
        let what = || format!("opening {}", path.display());
        // Opening some devices does something, and a FIFO without a writer would be waited for.
        let meta = std::fs::metadata(path).map_err(|e| Error::io(what(), e))?;
        check_type(path, meta.file_type())?;
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags.bits() as i32);
            options.open(path)
        };
        let file = open(OFlags::NONBLOCK | OFlags::NOCTTY)
            .or_else(|e| match e.kind() {
                // Its holder has to give up a lease first, and has some seconds to do so.
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
        Ok(Arc::new(Content {
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

    /// Its length in bytes, as it was when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its permissions.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// The hash list, when every block has been read.
    pub fn list(&self) -> Option<Vec<u8>> {
        (self.hashed.load(Ordering::Acquire) == blocks(self.len)).then(|| {
            let list = self.list.lock().unwrap_or_else(poisoned);
            list.bytes.clone()
        })
    }

    /// Appends at most `most` bytes of the hash list from `from` on, and says how long it is, when
    /// every block has been read.
    pub fn list_part(&self, from: usize, most: usize, into: &mut Vec<u8>) -> Option<usize> {
        if self.hashed.load(Ordering::Acquire) != blocks(self.len) {
            return None;
        }
        let list = self.list.lock().unwrap_or_else(poisoned);
        let rest = list.bytes.get(from..).unwrap_or(&[]);
        into.extend_from_slice(&rest[..rest.len().min(most)]);
        Some(list.bytes.len())
    }

    /// By what receivers prove that they have the file. Its key is told when every block has been
    /// read, not before.
    pub fn challenge(&self) -> &Challenge {
        &self.challenge
    }

    /// What only those know who have the file; of use when every block has been read.
    pub fn secret(&self) -> Secret {
        let list = self.list.lock().unwrap_or_else(poisoned);
        self.challenge.secret(&list.samples)
    }

    /// Why the source cannot be read any more.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// What to tell the caller of a [`Source`] that has failed: why the content cannot be read, or,
    /// if it knows of nothing, that there is nobody left who would read it.
    pub fn error(&self) -> Error {
        match self.failure() {
            Some(why) => Error::SourceChanged(why.to_owned()),
            None => Error::io("reading the source", io::Error::other("its reader ended")),
        }
    }

    /// Reads one block once more, for a receiver whose copy was damaged. Its hash must be the one
    /// in the list.
    pub fn reread(&self, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        self.read(block, 0, into)
    }

    /// The hashes of a block's pieces. The block is read, and must be what the list says.
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
            // Receivers go through the file from its beginning.
            known.pop_first();
        }
        known.insert(block, hashes.clone());
        Ok(hashes)
    }

    /// Appends some pieces of a block, which must be what they were.
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

    /// Reads a block and the first `tail` bytes of the next one, and hashes the block.
    fn read(&self, block: u64, tail: usize, into: &mut Vec<u8>) -> Result<(), String> {
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

    /// Whether the file is as it was when it was opened; if not, why not.
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
            // Possibly its bytes as well, if somebody has set the other time back.
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Empty,
    Reading,
    Ready,
}

struct Slot {
    state: State,
    block: u64,
    /// The call of `fetch` that used it last.
    used: u64,
    buffer: Vec<u8>,
}

struct Request {
    slot: u8,
    block: u64,
    buffer: Vec<u8>,
}

struct Done {
    slot: u8,
    buffer: Vec<u8>,
    ok: bool,
}

/// The protocol's end of a [`Content`]: an object to be sent.
pub struct Source {
    content: Arc<Content>,
    bell: Bell,
    slots: Vec<Slot>,
    slot_of: Vec<u8>,
    reading: usize,
    /// The first block that was never asked for.
    frontier: u64,
    calls: u64,
    failed: bool,
    /// Blocks to be read before they are asked for, and to be kept when they have been.
    ahead: u64,
    kept: u64,
    /// The last block that was late.
    late: u64,
    requests: SyncSender<Request>,
    done: Receiver<Done>,
}

impl Source {
    /// Sends `content` in extents of at most `extent_max` bytes; `bell` is rung when something
    /// that was not there has been read.
    pub fn new(content: Arc<Content>, extent_max: u32, bell: Bell) -> Source {
        let count = blocks(content.len);
        let slots = (0..count.min(SLOTS as u64)).map(|_| Slot {
            state: State::Empty,
            block: 0,
            used: 0,
            buffer: Vec::new(),
        });
        let (requests, to_read) = sync_channel::<Request>(SLOTS);
        let (tell, done) = sync_channel::<Done>(SLOTS);
        let (reader, ring) = (content.clone(), bell.clone());
        thread::Builder::new()
            .name("fabricast-read".into())
            .spawn(move || {
                for mut r in to_read {
                    let ok = reader
                        .read(r.block, extent_max as usize, &mut r.buffer)
                        .is_ok();
                    let (slot, buffer) = (r.slot, r.buffer);
                    // What was asked for is read also when nobody takes it any more: a short last
                    // block may have been sent as the end of its predecessor, and its hash is
                    // still wanted.
                    let _ = tell.send(Done { slot, buffer, ok });
                    ring.ring();
                }
            })
            .expect("the system gives us a thread");
        let mut source = Source {
            bell,
            slots: slots.collect(),
            slot_of: vec![NONE; count as usize],
            reading: 0,
            frontier: 0,
            calls: 0,
            failed: false,
            ahead: AHEAD_MIN,
            kept: KEPT_MIN,
            late: 0,
            requests,
            done,
            content,
        };
        source.read_ahead(0);
        source
    }

    /// Takes back what the reader has finished.
    fn collect(&mut self) {
        while self.reading > 0 {
            let done = match self.done.try_recv() {
                Ok(done) => done,
                Err(TryRecvError::Empty) => return,
                // The reader died, and what it was reading never comes.
                Err(TryRecvError::Disconnected) => {
                    self.failed = true;
                    return;
                }
            };
            self.reading -= 1;
            self.failed |= !done.ok;
            let slot = &mut self.slots[usize::from(done.slot)];
            slot.buffer = done.buffer;
            slot.state = State::Ready;
            slot.used = self.calls;
        }
    }

    /// Asks for a block; false if every slot is needed.
    fn request(&mut self, block: u64) -> bool {
        let old = self.calls.saturating_sub(PINNED);
        let behind = self.frontier.saturating_sub(self.ahead + self.kept);
        let ready = |s: &Slot| s.state == State::Ready && s.used < old;
        // One that is not kept, else an empty one, else the one that was not used for the longest
        // time.
        let rank = |s: &Slot| match s.state {
            State::Ready if s.block < behind => 0,
            State::Empty => 1,
            _ => 2,
        };
        let Some(at) = (0..self.slots.len())
            .filter(|&i| self.slots[i].state == State::Empty || ready(&self.slots[i]))
            .min_by_key(|&i| (rank(&self.slots[i]), self.slots[i].used))
        else {
            return false;
        };
        let slot = &mut self.slots[at];
        if slot.state == State::Ready {
            self.slot_of[slot.block as usize] = NONE;
        }
        slot.state = State::Reading;
        slot.block = block;
        self.slot_of[block as usize] = at as u8;
        let request = Request {
            slot: at as u8,
            block,
            buffer: std::mem::take(&mut slot.buffer),
        };
        self.reading += 1;
        // There are as many places in the channel as slots; it is closed only if the reader died.
        self.failed |= self.requests.try_send(request).is_err();
        true
    }

    fn read_ahead(&mut self, from: u64) {
        let end = (from + 1 + self.ahead).min(self.slot_of.len() as u64);
        while self.frontier < end && self.request(self.frontier) {
            self.frontier += 1;
        }
    }
}

impl Object for Source {
    fn len(&self) -> u64 {
        self.content.len
    }

    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        if len == 0 {
            return Fetch::Ready;
        }
        self.calls += 1;
        self.collect();
        if self.failed {
            return Fetch::Failed;
        }
        let block = offset / BLOCK as u64;
        // A short last block may be wanted only as the end of its predecessor's last packet; its
        // hash is wanted all the same.
        let last = (offset + u64::from(len) - 1) / BLOCK as u64;
        self.read_ahead(last);
        let slot = self.slot_of[block as usize];
        if slot == NONE && block + 1 < self.frontier {
            // It was there, and is wanted again: losses are repaired.
            self.kept = (self.kept * 2).min(SLOTS as u64);
        }
        if slot == NONE || self.frontier <= last {
            let asked = slot == NONE && self.request(block);
            if !asked && self.reading == 0 {
                // Every slot was used by the last calls: a few more calls, and one is free.
                self.bell.ring();
            }
            return Fetch::Later;
        }
        let slot = &mut self.slots[usize::from(slot)];
        if slot.state != State::Ready {
            if block > self.late {
                self.late = block;
                self.ahead = (self.ahead * 2).min(AHEAD);
            }
            return Fetch::Later;
        }
        slot.used = self.calls;
        Fetch::Ready
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        if len == 0 {
            return &[];
        }
        let slot = &self.slots[usize::from(self.slot_of[(offset / BLOCK as u64) as usize])];
        let start = (offset % BLOCK as u64) as usize;
        &slot.buffer[start..start + len as usize]
    }

    fn write(&mut self, _offset: u64, _bytes: &[u8]) -> Written {
        Written::Failed // a source is only read
    }

    fn progress(&mut self, _report: &mut dyn FnMut(u64, u32, Outcome)) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::testing::{pattern, scratch};
    use std::sync::mpsc;
    use std::time::Duration;

    fn source(path: &Path, extent: u32) -> (Arc<Content>, Source, mpsc::Receiver<()>) {
        let content = Content::open(path).unwrap();
        let (rung, heard) = mpsc::channel();
        let bell = Bell::new();
        bell.hang(move || _ = rung.send(()));
        let source = Source::new(content.clone(), extent, bell);
        (content, source, heard)
    }

    /// Fetches as a driver does: `Later` waits for the bell.
    fn get(s: &mut Source, heard: &mpsc::Receiver<()>, at: u64, len: u32) -> Option<Vec<u8>> {
        loop {
            match s.fetch(at, len) {
                Fetch::Ready => return Some(s.bytes(at, len).to_vec()),
                Fetch::Failed => return None,
                Fetch::Later => heard.recv_timeout(Duration::from_secs(10)).unwrap(),
            }
        }
    }

    #[test]
    fn reads_every_byte_in_order_and_again() {
        let dir = scratch();
        let bytes = pattern(130 * BLOCK + 777); // more blocks than slots
        let path = dir.join("f");
        std::fs::write(&path, &bytes).unwrap();
        let (content, mut s, heard) = source(&path, 8940);
        let mut at = 0;
        while at < bytes.len() {
            let n = (bytes.len() - at).min(8940);
            let got = get(&mut s, &heard, at as u64, n as u32).unwrap();
            assert!(got == bytes[at..at + n]);
            at += n;
        }
        // The last block is short: it was sent as the end of the one before, and is still read.
        let list = loop {
            match content.list() {
                Some(list) => break list,
                None => heard.recv_timeout(Duration::from_secs(10)).unwrap(),
            }
        };
        for (hash, block) in list.chunks(HASH).zip(bytes.chunks(BLOCK)) {
            assert_eq!(hash, blake3::hash(block).as_bytes());
        }
        // Few buffers have served for all.
        let used = s.slots.iter().filter(|slot| slot.state != State::Empty);
        assert!(used.count() as u64 <= AHEAD + KEPT_MIN + 3);
        // A repair of something long gone from the cache.
        let got = get(&mut s, &heard, 5 * BLOCK as u64 - 100, 8940).unwrap();
        assert!(got == bytes[5 * BLOCK - 100..][..8940]);
        assert!(s.kept > KEPT_MIN, "more is kept for other repairs");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_batch_stays_ready_although_it_spans_many_blocks() {
        let dir = scratch();
        let bytes = pattern(200 * BLOCK);
        let path = dir.join("f");
        std::fs::write(&path, &bytes).unwrap();
        let (_, mut s, heard) = source(&path, 1000);
        s.kept = SLOTS as u64;
        let at = |block: u64| block * BLOCK as u64;
        for block in 0..64 {
            get(&mut s, &heard, at(block), 1000).unwrap();
        }
        // They and what is read ahead fit into the cache, so that all are ready one after the
        // other.
        let ready = |block: &u64| s.fetch(at(*block), 1000) == Fetch::Ready;
        assert_eq!((0..64).filter(ready).count(), 64);
        // Now others want the room: each stays ready for 64 further calls, as `Object` promises.
        for others in 1..64 {
            s.fetch(at(180), 1000);
            for block in others - 1..64 {
                assert!(s.bytes(at(block), 1000) == &bytes[at(block) as usize..][..1000]);
            }
        }
        // And then the first have made room.
        get(&mut s, &heard, at(180), 1000).unwrap();
        assert_eq!(s.fetch(0, 1000), Fetch::Later);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_reader_that_dies_is_a_failure() {
        let dir = scratch();
        let path = dir.join("f");
        std::fs::write(&path, pattern(2 * BLOCK)).unwrap();
        for asked in [true, false] {
            let (content, mut s, heard) = source(&path, 1000);
            get(&mut s, &heard, BLOCK as u64, 1000).unwrap();
            (s.requests, _) = sync_channel(SLOTS);
            (_, s.done) = sync_channel(SLOTS);
            // Whether it dies while it reads or is found dead when it is asked.
            s.reading = usize::from(asked);
            s.slots[0].state = if asked { State::Reading } else { State::Empty };
            s.slot_of[0] = if asked { 0 } else { NONE };
            s.fetch(0, 1000);
            assert_eq!(s.fetch(0, 1000), Fetch::Failed);
            assert!(content.failure().is_none());
            assert!(matches!(content.error(), Error::Io { .. }));
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

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
            match Content::open(path) {
                Err(Error::Usage(text)) => assert!(text.contains(word), "{text}"),
                _ => panic!("{} was opened", path.display()),
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_that_shrinks_grows_or_changes_is_an_error() {
        let dir = scratch();
        let path = dir.join("f");
        let bytes = pattern(120 * BLOCK);
        type Change = fn(&File);
        let changes: [(&str, Change); 5] = [
            ("shorter", |f| f.set_len(100 * BLOCK as u64).unwrap()),
            ("longer", |f| f.set_len(121 * BLOCK as u64).unwrap()),
            ("written to", |f| f.write_all_at(b"other", 10).unwrap()),
            // Read already, and not read again.
            ("written to", |f| {
                f.write_all_at(b"x", 119 * BLOCK as u64).unwrap();
            }),
            ("was changed", |f| {
                let times = f.metadata().unwrap().modified().unwrap();
                f.write_all_at(b"other", 10).unwrap();
                f.set_modified(times).unwrap();
            }),
        ];
        for (word, change) in changes {
            std::fs::write(&path, &bytes).unwrap();
            let (content, mut s, heard) = source(&path, 1000);
            get(&mut s, &heard, 0, 1000).unwrap();
            // The clock of the file system ticks some hundred times a second.
            let written = |p: &Path| p.metadata().unwrap().modified().unwrap();
            let clock = dir.join("clock");
            while {
                std::fs::write(&clock, "tick").unwrap();
                written(&clock) == written(&path)
            } {}
            change(&File::options().write(true).open(&path).unwrap());
            // To the end, and back to the beginning, which has left the cache by then.
            let all = (0..120u64).chain(0..1).map(|k| k * BLOCK as u64);
            let failed = all
                .flat_map(|at| (0..2).map(move |_| at))
                .any(|at| get(&mut s, &heard, at, 1000).is_none());
            assert!(failed, "{word}");
            let why = content.failure().unwrap();
            assert!(why.contains(word), "{why}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
