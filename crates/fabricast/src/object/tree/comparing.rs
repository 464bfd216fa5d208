//! Compares candidates with packs of which only the headers have come (spec 5.16).
//!
//! A file is kept whole or received whole. It remains when all of its pieces were compared, in
//! their order and without a gap, the hashes of all blocks that they lie in are the sender's, and
//! its state is still what it was when it was looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs as sys;

use super::candidate::Candidates;
use super::kept::is_hole;
use crate::error::Error;
use crate::job_thread::{Desk, JobThread};
use crate::object::manifest::Kind;
use crate::object::pack::{Content, Header, Piece};
use crate::object::{BLOCK, Version};
use crate::waker::Waker;

/// A file that remains, and its state.
pub type Remaining = (u32, Version);

/// What the comparison of a pack has shown.
#[derive(Default, PartialEq, Debug)]
pub struct Compared {
    /// Number of the pack.
    pub number: u32,
    /// The files of which it is known now that they remain.
    pub remaining: Vec<Remaining>,
    /// The packs of which it is known now that all of their files remain, and their headers where
    /// the caller wants these.
    pub here: Vec<(u32, Option<Header>)>,
    /// Whether comparing has taken too long: nothing more is compared.
    pub gave_up: bool,
}

impl Compared {
    /// A pack that has shown nothing.
    fn of(number: u32) -> Compared {
        Compared {
            number,
            ..Compared::default()
        }
    }
}

/// A candidate of which a part was compared.
struct Part {
    version: Version,
    /// Where the next piece begins.
    next: u64,
    /// The packs that have pieces of it, and are not decided by it yet.
    packs: Vec<u32>,
    /// Whether it is known not to remain. What lies in one block with its bytes may still remain.
    differs: bool,
}

/// A pack of which not all files are decided.
struct Undecided {
    header: Option<Header>,
    /// Number of these files.
    files: usize,
    /// Whether a file of it does not remain.
    differs: bool,
}

/// The comparison of a set.
pub(super) struct Comparison {
    candidates: Candidates,
    /// Whether the caller wants the headers of packs that are here.
    keeps_headers: bool,
    /// Where the next candidate is among these, in the order in which an honest sender has them.
    next: usize,
    /// Candidates of which a part was compared.
    parts: BTreeMap<u32, Part>,
    packs: BTreeMap<u32, Undecided>,
    /// Room for the bytes of a block.
    block: Vec<u8>,
}

/// The block of a pack that is being read.
#[derive(Default)]
struct Block {
    /// Number of the block.
    number: u64,
    /// Its bytes so far.
    filled: usize,
    /// Whether some of them could not be read.
    is_broken: bool,
    /// The files that have bytes in it.
    files: Vec<u32>,
}

impl Comparison {
    pub(super) fn new(candidates: Candidates, keeps_headers: bool) -> Comparison {
        Comparison {
            candidates,
            keeps_headers,
            next: 0,
            parts: BTreeMap::new(),
            packs: BTreeMap::new(),
            block: Vec::new(),
        }
    }

    /// Compares a pack. Asks `goes_on` at each file and each block; `None` if that has returned
    /// false, after which nothing more can be compared.
    pub(super) fn compare(
        &mut self,
        number: u32,
        header: Header,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<Compared> {
        let mut compared = Compared::of(number);
        let Content::Pieces(pieces) = &header.content else {
            return Some(compared);
        };
        let (mut differing, mut block) = (BTreeSet::new(), Block::default());
        let mut files = Vec::new();
        for pieces in pieces.chunk_by(|one, next| one.file() == next.file()) {
            let file = pieces[0].file();
            files.push(file);
            goes_on().then_some(())?;
            let opened = self.begin(file, number);
            for piece in pieces {
                if !self.follows(piece, opened.as_ref()) {
                    differing.insert(file);
                }
                let opened = opened.as_ref();
                if let Piece::Bytes { offset, len, .. } = *piece {
                    let bytes = (file, offset, u64::from(len));
                    self.read(
                        opened,
                        bytes,
                        (&header, &mut block),
                        &mut differing,
                        goes_on,
                    )?;
                }
            }
            // What was read is compared yet. It was read from the file as it was looked at.
            if !opened.is_some_and(|opened| self.is_unchanged(file, &opened)) {
                differing.insert(file);
            }
        }
        self.end_block((&header, &mut block), &mut differing);
        files.sort_unstable();
        files.dedup();
        let is_open = |file: &u32| self.parts.get(file).is_some_and(|part| !part.differs);
        let undecided = Undecided {
            files: files.iter().filter(|file| is_open(file)).count(),
            differs: files.iter().any(|file| !is_open(file)),
            header: self.keeps_headers.then_some(header),
        };
        if undecided.files > 0 {
            self.packs.insert(number, undecided);
        }
        for file in files {
            let differs = differing.contains(&file);
            if differs {
                self.decide(file, false, &mut compared);
            }
            if self.is_whole(file)
                && let Some(part) = self.parts.get(&file)
            {
                if !part.differs {
                    compared.remaining.push((file, part.version.clone()));
                    self.decide(file, true, &mut compared);
                }
                self.parts.remove(&file);
            }
        }
        Some(compared)
    }

    /// Takes note that a pack has pieces of a file, and opens it; `None` if it is no candidate, or
    /// is none any more.
    fn begin(&mut self, file: u32, pack: u32) -> Option<File> {
        if !self.parts.contains_key(&file) {
            // A file that was decided is behind `next`, and does not begin again.
            let rest = &self.candidates.found[self.next..];
            let at = self.next + rest.binary_search_by_key(&file, |found| found.0).ok()?;
            self.next = at + 1;
            let part = Part {
                version: self.candidates.found[at].1.clone(),
                next: 0,
                packs: Vec::new(),
                differs: false,
            };
            self.parts.insert(file, part);
        }
        let part = self.parts.get_mut(&file)?;
        if part.packs.last() != Some(&pack) && !part.differs {
            part.packs.push(pack);
        }
        self.candidates.open(file, &part.version)
    }

    /// Whether a piece is the next one of its file, as the manifest has it. Holes must be holes.
    fn follows(&mut self, piece: &Piece, opened: Option<&File>) -> bool {
        let Some(part) = self.parts.get_mut(&piece.file()) else {
            return false;
        };
        let (Piece::Bytes { offset, .. } | Piece::Hole { offset, .. }) = *piece else {
            return false;
        };
        let (end, len) = (piece.end(), len_of(&self.candidates, piece.file()));
        let follows = offset == part.next && end <= len && piece.is_last() == (end == len);
        part.next = end;
        let is_like = |opened| match piece {
            Piece::Hole { .. } => is_hole(opened, offset, end),
            _ => true,
        };
        follows && !part.differs && opened.is_some_and(is_like)
    }

    /// Reads bytes of a file, which follow those that were read before, and compares each block
    /// that they fill. Of a file that is not `opened` nothing is read, and so nothing of the blocks
    /// that it lies in. Of one that differs only the bytes that share a block with others are read.
    fn read(
        &mut self,
        opened: Option<&File>,
        (file, offset, len): (u32, u64, u64),
        (header, block): (&Header, &mut Block),
        differing: &mut BTreeSet<u32>,
        goes_on: &dyn Fn() -> bool,
    ) -> Option<()> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            if block.filled == 0 && end - at >= BLOCK as u64 && differing.contains(&file) {
                at += BLOCK as u64;
                block.number += 1;
                continue;
            }
            if block.files.last() != Some(&file) {
                block.files.push(file);
            }
            let some = (end - at).min((BLOCK - block.filled) as u64) as usize;
            let filled = block.filled + some;
            self.block.resize(filled.max(self.block.len()), 0);
            let into = &mut self.block[block.filled..filled];
            let is_read = !block.is_broken
                && opened.is_some_and(|opened| opened.read_exact_at(into, at).is_ok());
            block.is_broken |= !is_read;
            block.filled = filled;
            at += some as u64;
            if filled == BLOCK {
                self.end_block((header, &mut *block), differing);
                goes_on().then_some(())?;
            }
        }
        Some(())
    }

    /// Compares the bytes of a block with the header. If they differ, nobody knows which of its
    /// files differs.
    fn end_block(&self, (header, block): (&Header, &mut Block), differing: &mut BTreeSet<u32>) {
        let bytes = &self.block[..block.filled];
        if block.filled > 0 && (block.is_broken || !header.proves(block.number, bytes)) {
            differing.extend(&block.files);
        }
        *block = Block {
            number: block.number + 1,
            ..Block::default()
        };
    }

    /// Whether an open file has the state that it had when it was looked at.
    fn is_unchanged(&self, file: u32, opened: &File) -> bool {
        let there = sys::fstat(opened).map(|there| Version::of(&there)).ok();
        let part = self.parts.get(&file);
        part.is_some_and(|part| there.as_ref() == Some(&part.version))
    }

    /// Whether all pieces of a file have come.
    fn is_whole(&self, file: u32) -> bool {
        let part = self.parts.get(&file);
        part.is_some_and(|part| part.next == len_of(&self.candidates, file))
    }

    /// Notes whether a file remains, and which packs are decided by that.
    fn decide(&mut self, file: u32, remains: bool, compared: &mut Compared) {
        let Some(part) = self.parts.get_mut(&file) else {
            return;
        };
        part.differs = !remains;
        for number in std::mem::take(&mut part.packs) {
            let Some(pack) = self.packs.get_mut(&number) else {
                continue;
            };
            pack.files -= 1;
            pack.differs |= !remains;
            if pack.files == 0
                && let Some(pack) = self.packs.remove(&number)
                && !pack.differs
            {
                compared.here.push((number, pack.header));
            }
        }
    }
}

/// Length of a file in bytes, as the manifest says.
fn len_of(candidates: &Candidates, file: u32) -> u64 {
    match candidates.manifest.entries()[file as usize].kind {
        Kind::File(len) => len,
        _ => 0,
    }
}

/// Bytes that a receiver compares in a second, at least, over all packs.
const SPEED_MIN: u64 = 20_000_000;
/// Bytes as which a file counts beside its own, for opening it.
const PER_FILE: u64 = 16_384;

/// The time for comparing: one that is too slow gives up, so that the others do not wait for it.
struct Time {
    /// For each pack, at most, and for all together beside what their bytes take.
    limit: Duration,
    /// What the bytes so far may take.
    allowed: Duration,
    spent: Duration,
}

impl Time {
    /// The time for the next pack.
    fn next(&mut self, header: &Header) -> Duration {
        if let Content::Pieces(pieces) = &header.content {
            let files = pieces.chunk_by(|one, next| one.file() == next.file());
            let read = pieces.iter().map(|piece| match piece {
                Piece::Bytes { len, .. } => u64::from(*len),
                Piece::Hole { .. } | Piece::Failed { .. } => 0,
            });
            let bytes = read.sum::<u64>() + files.count() as u64 * PER_FILE;
            self.allowed += Duration::from_secs_f64(bytes as f64 / SPEED_MIN as f64);
        }
        let left = (self.limit + self.allowed).saturating_sub(self.spent);
        left.min(self.limit)
    }
}

/// The protocol's end of a thread that compares packs. Dropping it ends the thread after the
/// present block.
pub struct Comparer {
    thread: JobThread<(u32, Header), Compared>,
    /// Packs that were given and not compared yet.
    waiting: usize,
}

impl Comparer {
    /// Starts the thread; it wakes `waker` whenever it has compared a pack. When a pack has taken
    /// longer than `limit`, or all packs so much longer than they take at 20 MB/s, the thread gives
    /// up: nothing of this pack and of later ones is here.
    /// `keeps_headers`: whether the caller wants the headers of packs that are here.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        candidates: Candidates,
        limit: Duration,
        keeps_headers: bool,
        waker: Waker,
    ) -> Result<Comparer, Error> {
        let body = move |desk: &Desk<(u32, Header), Compared>| {
            let mut comparison = Some(Comparison::new(candidates, keeps_headers));
            let mut time = Time {
                limit,
                allowed: Duration::ZERO,
                spent: Duration::ZERO,
            };
            while let Some((number, header)) = desk.next() {
                let began = Instant::now();
                let until = began + time.next(&header);
                let goes_on = || !desk.is_over() && Instant::now() < until;
                let had = comparison.is_some();
                let done = comparison
                    .as_mut()
                    .and_then(|comparison| comparison.compare(number, header, &goes_on));
                time.spent += began.elapsed();
                if done.is_none() {
                    comparison = None;
                }
                desk.tell(done.unwrap_or(Compared {
                    gave_up: had,
                    ..Compared::of(number)
                }));
            }
        };
        Ok(Comparer {
            thread: JobThread::start("fabricast-compare", waker, body)?,
            waiting: 0,
        })
    }

    /// Has a pack compared that has this header.
    pub fn compare(&mut self, number: u32, header: Header) {
        self.waiting += 1;
        self.thread.give((number, header));
    }

    /// What the thread has compared, if anything; does not block.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn take(&mut self) -> Result<Option<Compared>, Error> {
        let compared = self.thread.next()?;
        self.waiting -= usize::from(compared.is_some());
        Ok(compared)
    }

    /// Whether the thread has something to do.
    pub fn is_busy(&self) -> bool {
        self.waiting > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pack may take as long as the limit. What all take beside their bytes is bounded, too.
    #[test]
    fn one_that_is_slow_all_the_time_gives_up() {
        let limit = Duration::from_secs(5);
        let header = |len| {
            let piece = Piece::Bytes {
                file: 0,
                offset: 0,
                len,
                last: false,
            };
            Header {
                content: Content::Pieces(vec![piece]),
                hashes: Vec::new(),
            }
        };
        let second = header((SPEED_MIN - PER_FILE) as u32);
        let mut time = Time {
            limit,
            allowed: Duration::ZERO,
            spent: Duration::ZERO,
        };
        for _ in 0..100 {
            assert_eq!(time.next(&second), limit, "it is as fast as it has to be");
            time.spent += Duration::from_secs(1);
        }
        for left in [5, 5, 4, 3, 2, 1] {
            assert_eq!(time.next(&second), Duration::from_secs(left));
            time.spent += Duration::from_secs(2);
        }
        assert_eq!(time.next(&second), Duration::ZERO);
    }
}
