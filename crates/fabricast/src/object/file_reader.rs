//! Reads a file ahead of its sending, on a thread of its own.
//!
//! The protocol thread asks for extents with `fetch` and never touches the disk. Blocks of
//! [`BLOCK`] bytes lie in a bounded cache. Each carries the first bytes of its successor, so that a
//! packet that straddles two blocks is still one slice.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use fabricast_proto::Outcome;

use super::source_file::SourceFile;
use super::{BLOCK, Fetch, Object, Written, blocks};
use crate::waker::Waker;

/// Blocks in the cache.
const SLOTS: usize = 96;
/// Blocks that are read before they are asked for, at first.
const AHEAD_MIN: u64 = 4;
/// Blocks that are read before they are asked for, once blocks were late.
const AHEAD: u64 = 16;
/// Blocks behind the last requested one that are kept at first. The number doubles when a block is
/// requested that was not kept. The fewer are kept, the likelier a buffer is still in the
/// processor's cache when it is used again.
const KEPT_MIN: u64 = 4;
/// Number of further calls of `fetch` during which ready bytes stay ready (the contract of
/// [`Object`]).
const PINNED: u64 = 64;
/// Marks a block that is in no slot.
const NONE: u8 = u8::MAX;

const _: () = assert!(SLOTS < NONE as usize);
// The cache holds the pinned blocks, those being read ahead, and room for repairs.
const _: () = assert!(SLOTS as u64 >= PINNED + AHEAD + 16);

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

/// The protocol's end of a [`SourceFile`]: an object to send.
pub struct FileReader {
    content: Arc<SourceFile>,
    waker: Waker,
    slots: Vec<Slot>,
    slot_of: Vec<u8>,
    reading: usize,
    /// The first block that was never asked for.
    frontier: u64,
    calls: u64,
    failed: bool,
    /// Blocks to read before they are asked for.
    ahead: u64,
    /// Blocks to keep after they were asked for.
    kept: u64,
    /// The last block that was late.
    late: u64,
    requests: SyncSender<Request>,
    done: Receiver<Done>,
}

impl FileReader {
    /// Sends `content` in extents of at most `extent_max` bytes. The reading thread wakes `waker`
    /// whenever it has read a block.
    pub fn new(content: Arc<SourceFile>, extent_max: u32, waker: Waker) -> FileReader {
        let count = blocks(content.len());
        let slots = (0..count.min(SLOTS as u64)).map(|_| Slot {
            state: State::Empty,
            block: 0,
            used: 0,
            buffer: Vec::new(),
        });
        let (requests, to_read) = sync_channel::<Request>(SLOTS);
        let (tell, done) = sync_channel::<Done>(SLOTS);
        let (reader, ring) = (content.clone(), waker.clone());
        thread::Builder::new()
            .name("fabricast-read".into())
            .spawn(move || {
                for mut r in to_read {
                    let ok = reader
                        .read(r.block, extent_max as usize, &mut r.buffer)
                        .is_ok();
                    let (slot, buffer) = (r.slot, r.buffer);
                    // A requested block is read even if its `FileReader` is gone: a short last
                    // block may have been sent as the end of its predecessor, and its hash is still
                    // needed.
                    let _ = tell.send(Done { slot, buffer, ok });
                    ring.wake();
                }
            })
            .expect("the system gives us a thread");
        let mut source = FileReader {
            waker,
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

    /// Takes back the blocks that the reading thread has finished.
    fn collect(&mut self) {
        while self.reading > 0 {
            let done = match self.done.try_recv() {
                Ok(done) => done,
                Err(TryRecvError::Empty) => return,
                // The reading thread died, and the block that it was reading never comes.
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

    /// Requests a block from the reading thread; false if every slot is in use.
    fn request(&mut self, block: u64) -> bool {
        let old = self.calls.saturating_sub(PINNED);
        let behind = self.frontier.saturating_sub(self.ahead + self.kept);
        let ready = |s: &Slot| s.state == State::Ready && s.used < old;
        // Choose a slot whose block is not kept, else an empty one, else the least recently used
        // one.
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
        // The channel has as many places as there are slots. It is closed only if the reading
        // thread died.
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

// SAFETY: it is not stable.
#[allow(unsafe_code)]
unsafe impl Object for FileReader {
    fn len(&self) -> u64 {
        self.content.len()
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
        // A short last block may be needed only as the end of its predecessor's last packet. It
        // must be read all the same, for its hash.
        let last = (offset + u64::from(len) - 1) / BLOCK as u64;
        self.read_ahead(last);
        let slot = self.slot_of[block as usize];
        if slot == NONE && block + 1 < self.frontier {
            // The block was in the cache and is needed again: the sender repairs losses.
            self.kept = (self.kept * 2).min(SLOTS as u64);
        }
        if slot == NONE || self.frontier <= last {
            let asked = slot == NONE && self.request(block);
            if !asked && self.reading == 0 {
                // The last calls used every slot. After a few more calls one is free.
                self.waker.wake();
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
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::error::Error;
    use crate::object::HASH;
    use crate::object::testing::{pattern, scratch};

    fn source(path: &Path, extent: u32) -> (Arc<SourceFile>, FileReader, Waker) {
        let content = SourceFile::open(path).unwrap();
        let waker = Waker::new().unwrap();
        let heard = waker.clone();
        let source = FileReader::new(content.clone(), extent, waker);
        (content, source, heard)
    }

    /// Fetches as a driver does: on `Later` it waits for the waker.
    fn get(s: &mut FileReader, heard: &Waker, at: u64, len: u32) -> Option<Vec<u8>> {
        loop {
            match s.fetch(at, len) {
                Fetch::Ready => return Some(s.bytes(at, len).to_vec()),
                Fetch::Failed => return None,
                Fetch::Later => assert!(heard.wait(Some(Duration::from_secs(10))).unwrap()),
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
        // The last block is short. It was sent as the end of the previous block, and must still be
        // read.
        let list = loop {
            match content.list() {
                Some(list) => break list,
                None => assert!(heard.wait(Some(Duration::from_secs(10))).unwrap()),
            }
        };
        for (hash, block) in list.chunks(HASH).zip(bytes.chunks(BLOCK)) {
            assert_eq!(hash, blake3::hash(block).as_bytes());
        }
        // Few buffers have served for all blocks.
        let used = s.slots.iter().filter(|slot| slot.state != State::Empty);
        assert!(used.count() as u64 <= AHEAD + KEPT_MIN + 3);
        // This repairs bytes that left the cache long ago.
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
        // These blocks and those read ahead fit into the cache, so all are ready one after the
        // other.
        let ready = |block: &u64| s.fetch(at(*block), 1000) == Fetch::Ready;
        assert_eq!((0..64).filter(ready).count(), 64);
        // Now other blocks need the slots. Each block stays ready for 64 further calls, as `Object`
        // promises.
        for others in 1..64 {
            s.fetch(at(180), 1000);
            for block in others - 1..64 {
                assert!(s.bytes(at(block), 1000) == &bytes[at(block) as usize..][..1000]);
            }
        }
        // After that, the first blocks have made room.
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
            // The thread dies while it reads, or is found dead when a block is requested.
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
    fn a_file_that_shrinks_grows_or_changes_is_an_error() {
        let dir = scratch();
        let path = dir.join("f");
        let bytes = pattern(120 * BLOCK);
        type Change = fn(&File);
        let changes: [(&str, Change); 5] = [
            ("shorter", |f| f.set_len(100 * BLOCK as u64).unwrap()),
            ("longer", |f| f.set_len(121 * BLOCK as u64).unwrap()),
            ("written to", |f| f.write_all_at(b"other", 10).unwrap()),
            // This block was read already, and is not read again.
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
            // The last change has two steps. A reader would see the first one alone.
            while s.reading > 0 {
                assert!(heard.wait(Some(Duration::from_secs(10))).unwrap());
                s.collect();
            }
            // The clock of the file system ticks some hundred times a second.
            let written = |p: &Path| p.metadata().unwrap().modified().unwrap();
            let clock = dir.join("clock");
            while {
                std::fs::write(&clock, "tick").unwrap();
                written(&clock) == written(&path)
            } {}
            change(&File::options().write(true).open(&path).unwrap());
            // Read to the end, and then the beginning again, which has left the cache by then.
            let all = (0..120u64).chain(0..1).map(|k| k * BLOCK as u64);
            let failed = all
                .flat_map(|at| (0..2).map(move |_| at))
                .any(|at| get(&mut s, &heard, at, 1000).is_none());
            assert!(failed, "{word}");
            let why = content.failure().unwrap();
            assert!(why.contains(word), "{word}: {why}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
