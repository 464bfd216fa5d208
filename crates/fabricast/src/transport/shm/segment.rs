//! Memory that the processes of one host share: for each a ring, and the state that wakers need.
//!
//! It has no name in any file system. The process that makes it hands its descriptor to the others,
//! over their [channels](super::fd_channel). It is gone with the last process, however the
//! processes end. Its length is sealed, so that no process can take away what another one has
//! mapped.
//!
//! ```text
//!   words  [ key, processes, ring words ]  [ claimed ][ head ][ state ], and a ring, for each
//! ```

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{self, FallocateFlags, MemfdFlags, SealFlags};

use super::ring::Ring;

/// Words between two words that different processes write: two cache lines, which processors fetch
/// in pairs.
const APART: usize = 16;
/// Index of the word that holds the key.
const KEY: usize = 0;
/// Index of the word that holds the number of processes.
const PROCESSES: usize = 1;
/// Index of the word that holds the length of a ring.
const RING: usize = 2;
/// Offset of a process's `claimed` counter in its control words.
const CLAIMED: usize = 0;
/// Offset of a process's `head` counter in its control words.
const HEAD: usize = APART;
/// Offset of the word that says whether a process sleeps.
const STATE: usize = 2 * APART;
/// Control words of each process.
const CONTROL: usize = 3 * APART;
/// Largest number of processes that may share one segment.
pub(super) const PROCESSES_MAX: usize = 256;

/// The shared memory of one host, mapped into this process.
pub(super) struct Segment {
    map: MmapRaw,
    processes: usize,
    ring: usize,
}

impl Segment {
    /// Makes a segment for `processes` processes with rings of `ring` words (a power of two).
    /// Returns it with the descriptor by which others open it. `key` is a number that only these
    /// processes know.
    pub fn create(key: u64, processes: usize, ring: usize) -> io::Result<(Segment, OwnedFd)> {
        debug_assert!(ring.is_power_of_two() && (1..=PROCESSES_MAX).contains(&processes));
        let fd = fs::memfd_create("fabricast", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let len = len(processes, ring) as u64;
        fs::ftruncate(&fd, len)?;
        // Memory that is not available must fail here, not by a signal when a process writes to it.
        fs::fallocate(&fd, FallocateFlags::empty(), 0, len)?;
        fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let segment = Segment::map(fd.as_fd(), processes, ring)?;
        for (at, word) in [
            (PROCESSES, processes as u64),
            (RING, ring as u64),
            (KEY, key),
        ] {
            segment.words()[at].store(word, Ordering::Relaxed);
        }
        Ok((segment, fd))
    }

    /// Maps the segment that another process has made for `processes` processes with this key.
    pub fn open(
        fd: BorrowedFd<'_>,
        key: u64,
        processes: usize,
        ring: usize,
    ) -> io::Result<Segment> {
        let wrong = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let sealed = SealFlags::SHRINK | SealFlags::SEAL;
        if !fs::fcntl_get_seals(fd)?.contains(sealed)
            || fs::fstat(fd)?.st_size as u64 != len(processes, ring) as u64
        {
            return wrong("the shared memory is not what was agreed on");
        }
        let segment = Segment::map(fd, processes, ring)?;
        let said = [KEY, PROCESSES, RING].map(|at| segment.words()[at].load(Ordering::Relaxed));
        match said == [key, processes as u64, ring as u64] {
            true => Ok(segment),
            false => wrong("the shared memory is another job's"),
        }
    }

    fn map(fd: BorrowedFd<'_>, processes: usize, ring: usize) -> io::Result<Segment> {
        let len = len(processes, ring);
        let map = MmapOptions::new().len(len).map_raw(fd.as_raw_fd())?;
        Ok(Segment {
            map,
            processes,
            ring,
        })
    }

    /// The number of processes that share it.
    pub fn processes(&self) -> usize {
        self.processes
    }

    #[allow(unsafe_code)]
    fn words(&self) -> &[AtomicU64] {
        let words = self.map.len() / size_of::<AtomicU64>();
        // SAFETY: the mapping is readable and writable, begins at a page, is `words` words long,
        // and lives as long as `self`. Its file cannot become shorter, because `create` seals it
        // and `open` checks the seal. Any bits are a valid `AtomicU64`, and all accesses are
        // atomic: this process accesses the words only through this slice, and the others do
        // likewise.
        unsafe { std::slice::from_raw_parts(self.map.as_mut_ptr().cast(), words) }
    }

    fn control(&self, process: usize, what: usize) -> &AtomicU64 {
        &self.words()[APART + process * CONTROL + what]
    }

    /// The ring that a process writes.
    pub fn ring(&self, process: usize) -> Ring<'_> {
        let start = rings(self.processes) + process * self.ring;
        Ring {
            claimed: self.control(process, CLAIMED),
            head: self.control(process, HEAD),
            words: &self.words()[start..start + self.ring],
        }
    }

    /// Whether a process sleeps, with the states of [wakers](super::fd_channel).
    pub fn state(&self, process: usize) -> &AtomicU64 {
        self.control(process, STATE)
    }
}

/// Index of the first word of the rings.
fn rings(processes: usize) -> usize {
    (APART + processes * CONTROL).next_multiple_of(512)
}

/// Length of a segment, in bytes.
fn len(processes: usize, ring: usize) -> usize {
    (rings(processes) + processes * ring) * size_of::<AtomicU64>()
}
