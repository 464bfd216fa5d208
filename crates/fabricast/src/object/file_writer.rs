//! A file that is being received: packets are gathered into blocks, and a thread hashes and writes
//! the blocks.
//!
//! The protocol thread only copies. A block counts as placed when it is in the file. So a disk that
//! is slow or full closes the window instead of filling the memory. If the window is too small for
//! that, bytes count as placed when they are in memory, while few blocks wait for the disk, and the
//! last ones when the whole file is written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use fabricast_proto::Outcome;

use super::partial_file::PartialFile;
use super::{BLOCK, Fetch, Object, Written, add, blocks};
use crate::waker::Waker;

/// Blocks that may be incomplete or on their way to the disk.
const POOL: usize = 64;
/// Written blocks that stay in memory, because their packets may be needed to compute others. They
/// are few, so that the same memory is used again and again. Older blocks are read from the file.
const KEPT: usize = 4;
/// Fetched extents that are kept: 64 by the contract of [`Object::fetch`], and the latest one.
const LENT: usize = 65;
/// A window of fewer bytes may not contain a whole block.
const SMALL_WINDOW: u64 = 2 * BLOCK as u64;
/// Number of blocks on their way to the disk from which on a small window waits for the disk.
const WRITING_MAX: usize = 4;
/// Marks a block that is in no slot.
const NONE: u8 = u8::MAX;

const _: () = assert!(POOL < NONE as usize && KEPT < POOL);

/// Bytes of a file that may be under way; the window must not exceed them. A window of this many
/// bytes that starts in the middle of a block touches two blocks more.
pub const WINDOW_BYTES: u64 = ((POOL - KEPT - 2) * BLOCK) as u64;

struct Job {
    slot: u8,
    block: u64,
    buffer: Arc<Vec<u8>>,
}

struct Done {
    slot: u8,
    block: u64,
    ok: bool,
}

/// Bytes of one fetched extent.
#[derive(Default)]
struct Lent {
    offset: u64,
    bytes: Vec<u8>,
}

/// A block in memory.
struct Slot {
    filled: usize,
    /// Shared with the writing thread while a block is written; otherwise only this slot holds it.
    buffer: Arc<Vec<u8>>,
}

/// The protocol's end of a [`PartialFile`]: an object to receive.
pub struct FileWriter {
    len: u64,
    partial: Arc<PartialFile>,
    slots: Vec<Slot>,
    free: Vec<u8>,
    /// Written blocks and their slots, the oldest first.
    kept: VecDeque<(u64, u8)>,
    /// Fetched extents, the oldest first.
    lent: VecDeque<Lent>,
    /// Bytes read back from the file.
    scratch: Vec<u8>,
    slot_of: Vec<u8>,
    writing: usize,
    /// The window may not contain a whole block.
    has_small_window: bool,
    /// Bytes that have been written into blocks.
    gathered: u64,
    /// Extents in blocks that do not count as placed yet; only with a small window.
    put_off: Vec<(u64, u32)>,
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
}

impl FileWriter {
    /// Receives into `partial`, with a window of this many bytes. The writing thread wakes `waker`
    /// after each block.
    pub fn new(partial: Arc<PartialFile>, window: u64, waker: Waker) -> FileWriter {
        let len = partial.len();
        let count = blocks(len);
        let pool = count.min(POOL as u64) as usize;
        let (jobs, to_write) = sync_channel::<Job>(POOL);
        let (tell, done) = sync_channel(POOL);
        let file = partial.clone();
        thread::Builder::new()
            .name("fabricast-write".into())
            .spawn(move || {
                for Job {
                    slot,
                    block,
                    buffer,
                } in to_write
                {
                    let end = (len - block * BLOCK as u64).min(BLOCK as u64) as usize;
                    let ok = partial.write(block, &buffer[..end]);
                    drop(buffer);
                    if tell.send(Done { slot, block, ok }).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })
            .expect("the system gives us a thread");
        FileWriter {
            len,
            partial: file,
            slots: (0..pool)
                .map(|_| Slot {
                    filled: 0,
                    buffer: Arc::new(vec![0; BLOCK]),
                })
                .collect(),
            free: (0..pool as u8).rev().collect(),
            kept: VecDeque::with_capacity(KEPT + 1),
            lent: VecDeque::new(),
            scratch: Vec::new(),
            slot_of: vec![NONE; count as usize],
            writing: 0,
            has_small_window: window < SMALL_WINDOW,
            gathered: 0,
            put_off: Vec::new(),
            jobs,
            done,
        }
    }

    /// Copies bytes that lie in one block into its slot. False if there is no slot for them or the
    /// block cannot be passed to the writing thread.
    fn gather(&mut self, block: u64, start: usize, bytes: &[u8]) -> bool {
        let mut at = self.slot_of[block as usize];
        if at == NONE {
            // There is no free slot only if more is under way than the window allows.
            if self.free.is_empty() {
                self.forget();
            }
            let Some(free) = self.free.pop() else {
                return false;
            };
            self.slot_of[block as usize] = free;
            at = free;
        }
        let slot = &mut self.slots[usize::from(at)];
        let Some(buffer) = Arc::get_mut(&mut slot.buffer) else {
            return false;
        };
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        slot.filled += bytes.len();
        let whole = (self.len - block * BLOCK as u64).min(BLOCK as u64) as usize;
        debug_assert!(slot.filled <= whole, "an extent was written twice");
        if slot.filled < whole {
            return true;
        }
        self.writing += 1;
        let job = Job {
            slot: at,
            block,
            buffer: slot.buffer.clone(),
        };
        self.jobs.try_send(job).is_ok()
    }

    /// With a small window: whether bytes in memory do not count as placed.
    fn waits_for_disk(&self) -> bool {
        match self.gathered == self.len {
            true => self.writing > 0,
            false => self.writing >= WRITING_MAX,
        }
    }

    /// Drops the oldest written block from memory.
    fn forget(&mut self) {
        if let Some((block, slot)) = self.kept.pop_front() {
            self.slot_of[block as usize] = NONE;
            self.slots[usize::from(slot)].filled = 0;
            self.free.push(slot);
        }
    }
}

// SAFETY: it is not stable.
#[allow(unsafe_code)]
unsafe impl Object for FileWriter {
    fn len(&self) -> u64 {
        self.len
    }

    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        // This node lends what it has received to the nodes that it repairs for.
        let mut lent = match self.lent.len() {
            LENT => self.lent.pop_front().unwrap_or_default(),
            _ => Lent::default(),
        };
        lent.offset = offset;
        lent.bytes.clear();
        lent.bytes.resize(len as usize, 0);
        let here = self.add(offset, len, &mut lent.bytes);
        self.lent.push_back(lent);
        if here { Fetch::Ready } else { Fetch::Failed }
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        let lent = self.lent.iter().rev().find(|l| l.offset == offset);
        lent.map_or(&[], |l| &l.bytes[..len as usize])
    }

    fn add(&mut self, mut offset: u64, len: u32, mut sum: &mut [u8]) -> bool {
        let mut left = len as usize;
        while left > 0 {
            let start = (offset % BLOCK as u64) as usize;
            let here = left.min(BLOCK - start);
            let at = self.slot_of[(offset / BLOCK as u64) as usize];
            if let Some(slot) = self.slots.get(usize::from(at)) {
                add(sum, &slot.buffer[start..start + here]);
            } else {
                self.scratch.resize(here, 0);
                if !self.partial.read(offset, &mut self.scratch) {
                    return false;
                }
                add(sum, &self.scratch);
            }
            sum = &mut sum[here..];
            (offset, left) = (offset + here as u64, left - here);
        }
        true
    }

    fn write(&mut self, mut offset: u64, mut bytes: &[u8]) -> Written {
        let extent = (offset, bytes.len() as u32);
        self.gathered += bytes.len() as u64;
        let writing = self.writing;
        while !bytes.is_empty() {
            let start = (offset % BLOCK as u64) as usize;
            let (here, rest) = bytes.split_at(bytes.len().min(BLOCK - start));
            if !self.gather(offset / BLOCK as u64, start, here) {
                return Written::Failed;
            }
            offset += here.len() as u64;
            bytes = rest;
        }
        if self.has_small_window {
            // Of bytes that complete a block the driver hears later, also that they failed.
            if self.writing == writing && !self.waits_for_disk() {
                return Written::Placed;
            }
            self.put_off.push(extent);
        }
        Written::Later
    }

    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        while self.writing > 0
            && let Ok(Done { slot, block, ok }) = self.done.try_recv()
        {
            self.writing -= 1;
            self.kept.push_back((block, slot));
            if self.kept.len() > KEPT {
                self.forget();
            }
            let start = block * BLOCK as u64;
            let len = (self.len - start).min(BLOCK as u64) as u32;
            match ok {
                true if self.has_small_window => {}
                true => report(start, len, Outcome::Ok),
                false => report(start, len, Outcome::Failed),
            }
        }
        if !self.put_off.is_empty() && !self.waits_for_disk() {
            let placed = self.put_off.drain(..);
            placed.for_each(|(offset, len)| report(offset, len, Outcome::Ok));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::PIECE;
    use crate::object::testing::{pattern, scratch};
    use std::time::Duration;

    #[test]
    fn packets_in_any_order_become_the_file() {
        let dir = scratch();
        let bytes = pattern(70 * BLOCK + 5);
        let path = dir.join("f");
        let len = bytes.len() as u64;
        let mut partial = PartialFile::new(path, len, 0o644, false, Some(0), 0).unwrap();
        partial.allocate().unwrap();
        let partial = Arc::new(partial);
        let waker = Waker::new().unwrap();
        let heard = waker.clone();
        let mut sink = FileWriter::new(partial.clone(), WINDOW_BYTES, waker);

        // Within a window, the later half of the packets is written first.
        let payload_size = 8940;
        let window = 1 + (WINDOW_BYTES as usize - payload_size) / payload_size;
        let packets: Vec<usize> = (0..bytes.len()).step_by(payload_size).collect();
        let mut placed = 0;
        for some in packets.chunks(window / 2) {
            for &at in some.iter().rev() {
                let end = (at + payload_size).min(bytes.len());
                assert_eq!(sink.write(at as u64, &bytes[at..end]), Written::Later);
            }
            // The window moves on only when everything before it has been placed.
            let whole = (some.last().unwrap() + payload_size).min(bytes.len());
            let whole = if whole == bytes.len() {
                whole
            } else {
                whole / BLOCK * BLOCK
            };
            while placed < whole {
                assert!(heard.wait(Some(Duration::from_secs(10))).unwrap());
                sink.progress(&mut |_, len, outcome| {
                    assert_eq!(outcome, Outcome::Ok);
                    placed += len as usize;
                });
            }
            // The packets of this half of the window can be added, from memory or from the file.
            for &at in some {
                let end = (at + payload_size).min(bytes.len());
                let mut sum = bytes[at..end].to_vec();
                assert!(sink.add(at as u64, (end - at) as u32, &mut sum));
                assert!(sum.iter().all(|&b| b == 0), "packet at {at}");
            }
        }
        assert_eq!(placed, bytes.len());
        let mut sum = bytes[..payload_size].to_vec();
        assert!(sink.add(0, payload_size as u32, &mut sum) && sum.iter().all(|&b| b == 0));

        let mut list: Vec<u8> = Vec::new();
        bytes
            .chunks(BLOCK)
            .for_each(|b| list.extend(blake3::hash(b).as_bytes()));
        assert_eq!(partial.differing(&list, 0), None);
        list[32 * 7] ^= 1;
        assert_eq!(partial.differing(&list, 0), Some(7));
        assert_eq!(partial.differing(&list, 8), None);
        partial.finish(true).unwrap();
        assert!(std::fs::read(partial.path()).unwrap() == bytes);
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// A window of less than a block moves on although no block is complete. All is written when
    /// the last bytes count as placed.
    #[test]
    fn a_window_smaller_than_a_block_moves_on() {
        let dir = scratch();
        for len in [1, BLOCK - 1, BLOCK, 70 * BLOCK + 5] {
            let (bytes, path) = (pattern(len), dir.join(len.to_string()));
            let mut partial = PartialFile::new(path, len as u64, 0o644, false, Some(0), 0).unwrap();
            partial.allocate().unwrap();
            let partial = Arc::new(partial);
            let waker = Waker::new().unwrap();
            let heard = waker.clone();
            let (payload_size, window) = (1432, 64);
            let mut sink = FileWriter::new(partial.clone(), window * 1432, waker);
            let mut placed = 0;
            for (i, some) in bytes.chunks(payload_size).enumerate() {
                let at = i * payload_size;
                match sink.write(at as u64, some) {
                    Written::Placed => placed += some.len(),
                    written => assert_eq!(written, Written::Later),
                }
                let lacking = |placed| at + some.len() - placed;
                while lacking(placed) > window as usize * payload_size || at + some.len() == len {
                    if placed == len {
                        break;
                    }
                    sink.progress(&mut |_, len, outcome| {
                        assert_eq!(outcome, Outcome::Ok);
                        placed += len as usize;
                    });
                    _ = heard.wait(Some(Duration::from_millis(20)));
                }
            }
            assert_eq!(placed, len);
            let list: Vec<u8> = bytes
                .chunks(BLOCK)
                .flat_map(|b| *blake3::hash(b).as_bytes())
                .collect();
            assert_eq!(partial.differing(&list, 0), None);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_damaged_block_is_found_and_mended() {
        let dir = scratch();
        let bytes = pattern(2 * BLOCK);
        let (path, len) = (dir.join("f"), bytes.len() as u64);
        let mut partial = PartialFile::new(path, len, 0o644, false, Some(0), 2).unwrap();
        partial.allocate().unwrap();
        let mut list: Vec<u8> = Vec::new();
        for (i, b) in bytes.chunks(BLOCK).enumerate() {
            list.extend(blake3::hash(b).as_bytes());
            assert!(partial.write(i as u64, b));
        }
        assert_eq!(partial.differing(&list, 0), Some(0));
        let hashes: Vec<u8> = bytes[..BLOCK]
            .chunks(PIECE)
            .flat_map(|piece| *blake3::hash(piece).as_bytes())
            .collect();
        assert_eq!(partial.wrong_pieces(0, &hashes), [0]);
        assert!(!partial.mend(&list, 0, &[0], &bytes[1..=PIECE]).unwrap());
        assert!(!partial.mend(&list, 0, &[0], &bytes[..PIECE + 1]).unwrap());
        assert!(
            !partial
                .mend(&list, 0, &[1], &bytes[PIECE..2 * PIECE])
                .unwrap()
        );
        assert!(partial.mend(&list, 0, &[0], &bytes[..PIECE]).unwrap());
        assert_eq!(partial.differing(&list, 0), None);
        partial.finish(false).unwrap();
        assert!(std::fs::read(partial.path()).unwrap() == bytes);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
