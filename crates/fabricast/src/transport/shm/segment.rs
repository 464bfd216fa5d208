//! Memory that the processes of one host share: a ring for each of them, and what rings the wakers.
//!
//! It has no name in any file system: the process that makes it hands it to the others as a
//! descriptor, over their [wakers](super::fd_channel), and it is gone with the last of them,
//! however they end. Its length is sealed, so that nobody can take away what another one has
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

/// Words between two that different processes write: two cache lines, which processors fetch in
/// pairs.
const APART: usize = 16;
/// Words at the beginning.
const KEY: usize = 0;
const PROCESSES: usize = 1;
const RING: usize = 2;
/// Words of each process: counters of its ring, and whether it sleeps.
const CLAIMED: usize = 0;
const HEAD: usize = APART;
const STATE: usize = 2 * APART;
const CONTROL: usize = 3 * APART;
/// Processes that may share one.
pub(super) const PROCESSES_MAX: usize = 256;

/// See the module.
pub(super) struct Segment {
    map: MmapRaw,
    processes: usize,
    ring: usize,
}

impl Segment {
    /// One for so many processes, with rings of so many words (a power of two), and the descriptor
    /// that others open it by. `key` is a number that only these processes know.
    pub fn create(key: u64, processes: usize, ring: usize) -> io::Result<(Segment, OwnedFd)> {
        debug_assert!(ring.is_power_of_two() && (1..=PROCESSES_MAX).contains(&processes));
        let fd = fs::memfd_create("fabricast", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let len = len(processes, ring) as u64;
        fs::ftruncate(&fd, len)?;
        // What cannot be had is to be known now, not by a signal when it is written to.
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

    /// What another process has made for so many, with this key.
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

    /// How many processes share it.
    pub fn processes(&self) -> usize {
        self.processes
    }

    #[allow(unsafe_code)]
    fn words(&self) -> &[AtomicU64] {
        let words = self.map.len() / size_of::<AtomicU64>();
        // SAFETY: the mapping is readable and writable, begins at a page, is `words` words long,
        // and lives as long as `self`; its file cannot become shorter, for `create` and `open` see
        // to its seal. Any bits are an `AtomicU64`, and nobody touches these other than as such:
        // this process by this slice alone, the others likewise.
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

    /// Whether a process sleeps, as [wakers](super::fd_channel) have it.
    pub fn state(&self, process: usize) -> &AtomicU64 {
        self.control(process, STATE)
    }
}

/// Where the rings begin, in words.
fn rings(processes: usize) -> usize {
    (APART + processes * CONTROL).next_multiple_of(512)
}

/// Length in bytes.
fn len(processes: usize, ring: usize) -> usize {
    (rings(processes) + processes * ring) * size_of::<AtomicU64>()
}
