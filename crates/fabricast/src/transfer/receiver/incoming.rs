//! Packs that arrive: their memory, and what holds the sender back while the disk is slow.
//!
//! A receiver posts every pack that is announced. A pack takes memory with its first bytes, so the
//! sender's window bounds the memory of packs that arrive. While too many packs wait to be stored,
//! arriving bytes are kept and not yet placed ([`Written::Later`]). So the receiver acknowledges
//! nothing, and the sender waits when its window is used up.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use fabricast_proto::{OpId, Outcome};

use crate::object::{BLOCK, Fetch, Object, PackRecord, Written};

/// Bytes of packs that wait to be stored, above which nothing more is placed.
const WAITING_MAX: u64 = 16 << 20;
/// Bytes of memory that is kept for further packs, at most.
const SPARE_MAX: usize = 64 << 20;

/// How long the receiver lets datagrams gather before it reads them, while data come. Many at one
/// wake-up cost far less than one by one.
const GATHER: Duration = Duration::from_micros(500);
/// The pause as in [`GATHER`], while more than [`AMID_BYTES`] are still to come. Nothing waits for
/// any one of these datagrams, so the pause may be longer.
const GATHER_AMID: Duration = Duration::from_millis(1);
/// The number of missing bytes above which [`GATHER_AMID`] applies.
const AMID_BYTES: u64 = 16 << 20;

/// Packs that are posted and have not arrived, at most. A sender announces little more than its
/// window (spec 5.3), and only packs of files without bytes are much smaller than 1 MiB.
pub const POSTED_MAX: usize = 4096;

/// A pack that is posted.
pub struct Posted {
    /// Its number.
    pub number: u32,
    /// The operation.
    pub op: OpId,
    /// What was announced of it.
    pub record: PackRecord,
    /// Whether only its header comes, since its files are compared.
    pub is_header: bool,
}

/// How long a receiver lets datagrams gather while `missing` bytes are still to come.
pub fn gather(missing: u64) -> Duration {
    match missing > AMID_BYTES {
        true => GATHER_AMID,
        false => GATHER,
    }
}

/// What the packs of a receiver share.
#[derive(Default)]
pub struct Store {
    /// Bytes of packs that have arrived and wait to be stored, or that other receivers may need.
    waiting: Cell<u64>,
    /// Bytes that were placed late, of packs that have arrived as a whole and do not count as
    /// waiting yet.
    released: Cell<u64>,
    /// Memory of packs that are stored.
    spare: RefCell<Vec<Vec<u8>>>,
}

impl Store {
    /// Counts bytes that have arrived and wait to be stored.
    pub fn wait(&self, bytes: u64) {
        self.waiting.set(self.waiting.get() + bytes);
    }

    /// Counts bytes that do not wait any more.
    pub fn done(&self, bytes: u64) {
        self.waiting.set(self.waiting.get() - bytes);
    }

    /// Whether so much waits that nothing more is taken.
    pub fn is_full(&self) -> bool {
        self.waiting.get() > WAITING_MAX
    }

    /// Bytes that may still come before so much waits that nothing more is taken.
    pub fn room(&self) -> u64 {
        WAITING_MAX.saturating_sub(self.waiting.get())
    }

    /// Counts bytes of a pack that has arrived and that are placed late, if so few wait that these
    /// may be.
    fn release(&self, bytes: u64) -> bool {
        let may = self.waiting.get() + self.released.get() <= WAITING_MAX;
        if may {
            self.released.set(self.released.get() + bytes);
        }
        may
    }

    /// Memory for a pack of `len` bytes. Memory that was in use before costs much less than new
    /// memory, but a short pack takes no long one.
    fn memory(&self, len: usize) -> Vec<u8> {
        let mut spare = self.spare.borrow_mut();
        let fits = |m: &Vec<u8>| (len..=2 * len).contains(&m.capacity());
        let at = spare.iter().rposition(fits);
        let Some(at) = at else {
            // Packs differ by their headers, so a long one gets room that fits the next one, too.
            let room = match len < BLOCK {
                true => len,
                false => len.next_multiple_of(BLOCK),
            };
            let mut memory = vec![0; room];
            memory.truncate(len);
            return memory;
        };
        let mut memory = spare.swap_remove(at);
        memory.resize(len, 0);
        memory
    }

    /// Keeps the memory of a stored pack, in place of the oldest. Short memory is not worth it.
    pub fn keep(&self, memory: Vec<u8>) {
        let mut spare = self.spare.borrow_mut();
        if memory.capacity() >= BLOCK {
            spare.push(memory);
        }
        while spare.iter().map(Vec::capacity).sum::<usize>() > SPARE_MAX {
            spare.remove(0);
        }
    }
}

/// A pack that arrives.
pub struct Incoming {
    /// Length of the pack in bytes.
    len: usize,
    /// Empty until the first bytes arrive.
    bytes: Vec<u8>,
    store: Rc<Store>,
    /// Number of bytes that have arrived.
    arrived: usize,
    /// Extents that are not placed yet: offset and length.
    late: Vec<(u64, u32)>,
    /// Bytes of the pack that count as released in the store.
    released: u64,
}

impl Incoming {
    /// A pack of `len` bytes, which takes no memory yet.
    pub fn new(len: usize, store: &Rc<Store>) -> Incoming {
        Incoming {
            len,
            bytes: Vec::new(),
            store: store.clone(),
            arrived: 0,
            late: Vec::new(),
            released: 0,
        }
    }

    /// The bytes that have arrived.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives the bytes up.
    pub fn into_bytes(mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let released = self.store.released.get();
        self.store.released.set(released - self.released);
    }
}

// SAFETY: its bytes have memory of their own, which is taken once and not resized.
#[allow(unsafe_code)]
unsafe impl Object for Incoming {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn fetch(&mut self, _offset: u64, _len: u32) -> Fetch {
        match self.bytes.is_empty() {
            true => Fetch::Later,
            false => Fetch::Ready,
        }
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        let start = offset as usize;
        &self.bytes[start..start + len as usize]
    }

    fn is_stable(&self) -> bool {
        true
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        if self.bytes.is_empty() {
            self.bytes = self.store.memory(self.len);
        }
        let start = offset as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        self.arrived += bytes.len();
        if self.store.is_full() {
            self.late.push((offset, bytes.len() as u32));
            return Written::Later;
        }
        Written::Placed
    }

    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        if self.store.is_full() {
            return;
        }
        // A pack that has arrived waits as soon as all of it is placed. If all such packs were
        // placed at once, nothing more could be until nearly all of them are stored, and the
        // receiver would seem to stand still.
        let has_arrived = self.arrived == self.len;
        let mut count = 0;
        for &(offset, len) in &self.late {
            if has_arrived {
                if !self.store.release(len.into()) {
                    break;
                }
                self.released += u64::from(len);
            }
            report(offset, len, Outcome::Ok);
            count += 1;
        }
        self.late.drain(..count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(pack: &mut Incoming) -> Vec<(u64, u32)> {
        let mut placed = Vec::new();
        pack.progress(&mut |offset, len, outcome| {
            assert_eq!(outcome, Outcome::Ok);
            placed.push((offset, len));
        });
        placed
    }

    #[test]
    fn what_arrives_while_the_disk_is_slow_is_kept_and_placed_later() {
        let store = Rc::default();
        let mut pack = Incoming::new(10, &store);
        assert_eq!(pack.as_slice(), b"", "it takes no memory");
        assert_eq!(pack.write(0, b"abc"), Written::Placed);
        store.wait(WAITING_MAX + 1);
        assert_eq!(pack.write(3, b"def"), Written::Later);
        assert_eq!(pack.write(6, b"ghij"), Written::Later);
        assert_eq!(placed(&mut pack), []);
        store.done(1);
        assert_eq!(placed(&mut pack), [(3, 3)]);
        assert_eq!(placed(&mut pack), []);
        store.done(3);
        assert_eq!(placed(&mut pack), [(6, 4)]);
        assert_eq!(pack.into_bytes(), b"abcdefghij");
    }

    /// A disk or pipe that is slow all the time takes one pack after the other, and the sender sees
    /// that.
    #[test]
    fn packs_that_wait_are_placed_only_as_others_are_stored() {
        let store = Rc::<Store>::default();
        let len = 1 << 20;
        let mut packs: Vec<Incoming> = (0..40).map(|_| Incoming::new(len, &store)).collect();
        store.wait(WAITING_MAX + 1);
        for pack in &mut packs {
            for half in [0, len / 2] {
                assert_eq!(pack.write(half as u64, &vec![1; len / 2]), Written::Later);
            }
        }
        let all_placed = |packs: &mut [Incoming]| -> usize {
            packs.iter_mut().map(|pack| placed(pack).len()).sum()
        };
        store.done(WAITING_MAX + 1);
        assert_eq!(
            all_placed(&mut packs),
            33,
            "16 MiB, and the half that goes beyond"
        );
        assert_eq!(all_placed(&mut packs), 0);
        // The first pack is stored.
        drop(packs.remove(0));
        assert_eq!(all_placed(&mut packs), 2);
        // A pack that lacks something never waits: it holds up those behind it.
        let mut pack = Incoming::new(len, &store);
        assert_eq!(pack.write(0, &[1; 5]), Written::Placed);
        store.wait(WAITING_MAX + 1);
        assert_eq!(pack.write(5, &[1; 5]), Written::Later);
        store.done(WAITING_MAX + 1);
        assert_eq!(placed(&mut pack), [(5, 5)]);
        drop((pack, packs));
        assert_eq!(store.released.get(), 0);
    }

    #[test]
    fn memory_is_used_again_and_bounded() {
        let store = Store::default();
        let kept = |store: &Store| {
            let spare = store.spare.borrow();
            spare.iter().map(Vec::capacity).sum::<usize>()
        };
        for _ in 0..SPARE_MAX / BLOCK + 9 {
            store.keep(vec![1; BLOCK]);
            store.keep(vec![1; 10]);
        }
        assert_eq!(kept(&store), SPARE_MAX);
        let mut memory = store.memory(BLOCK - 5);
        assert_eq!((memory.len(), kept(&store)), (BLOCK - 5, SPARE_MAX - BLOCK));
        memory.clear();
        // Neither too short nor much too long memory is taken.
        store.memory(BLOCK + 1);
        store.memory(BLOCK / 3);
        assert_eq!(kept(&store), SPARE_MAX - BLOCK);
    }
}
