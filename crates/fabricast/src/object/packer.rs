//! Reads the files of a set ahead of their sending, on a thread of its own, and makes packs of
//! them: pages of the manifest first, then the files in the order of the manifest, or a stream as
//! its bytes come.

mod stream;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};

use super::EntryRanges;
use super::manifest::Kind;
use super::pack::{Content, Header, PACK_MAX, PIECE_MAX, PIECES_MAX, Pack, Piece};
use super::source_set::{SourceFile, SourceSet};
use crate::error::Error;
use crate::job_thread;
use crate::text::shown;
use crate::waker::Waker;

/// Packs that are read before they are asked for.
const AHEAD: usize = 1;
/// Bytes of the first pack of files. Each further one is twice as long, up to a limit: so the first
/// data leave early.
const FIRST: usize = 1 << 20;
/// The limit for packs of small files is such that so many make up the set, and at least
/// [`PIECE_MAX`]. A receiver that is killed, and comes back, gets some of them in vain: those that
/// it had in part or not stored yet, and that which was under way.
const PACKS_MIN: u64 = 128;
/// Bytes of memory that is kept for further packs, at most.
const SPARE_MAX: usize = 48 << 20;

/// What the packer yields.
pub enum Packed {
    /// The next pack.
    Pack(Pack),
    /// All pages of the manifest have been yielded, and the caller has to say by
    /// [`Packer::compare`] which files are compared.
    Pages,
    /// The next pack, whose files are compared. All others come before.
    Compare(Pack),
    /// A file that cannot be read, and why. Receivers learn it from the next pack.
    Failed(u32, String),
    /// All files have been read.
    End,
    /// The thread has ended, before or after [`Packed::End`].
    Gone,
}

/// The protocol's end of the thread that reads. Dropping it ends the thread after the present pack.
pub struct Packer {
    packs: Receiver<Packed>,
    /// Where the files go that are compared, if any may be.
    compared: Option<Sender<EntryRanges>>,
    spare: Sender<Vec<u8>>,
    is_over: Arc<AtomicBool>,
    /// Whether the thread has read as much ahead as it may.
    waits: Arc<AtomicBool>,
}

impl Packer {
    /// Starts the thread; it wakes `waker` whenever it has a pack.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(set: Arc<SourceSet>, waker: Waker) -> Result<Packer, Error> {
        Packer::start_with(set, waker, None)
    }

    /// Like [`Packer::start`], but the thread waits after the pages of the manifest until
    /// [`Packer::compare`] says which files are compared.
    pub fn start_comparing(set: Arc<SourceSet>, waker: Waker) -> Result<Packer, Error> {
        let (compared, files) = channel();
        let mut packer = Packer::start_with(set, waker, Some(files))?;
        packer.compared = Some(compared);
        Ok(packer)
    }

    fn start_with(
        set: Arc<SourceSet>,
        waker: Waker,
        compared: Option<Receiver<EntryRanges>>,
    ) -> Result<Packer, Error> {
        let (tell, packs) = sync_channel(AHEAD);
        let (spare, given) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let waits = Arc::<AtomicBool>::default();
        let waiting = waits.clone();
        job_thread::start("fabricast-read", move || {
            let mut reading = Reading {
                set: &set,
                tell,
                waker,
                over: &over,
                waits: &waiting,
                compared: EntryRanges::default(),
                compares: false,
                pieces: Vec::new(),
                memory: Vec::new(),
                gap: 0,
                end: 0,
                start: (0, 0),
                most: FIRST,
                given,
                spare: Vec::new(),
            };
            // `None`: nobody wants packs any more.
            let _ = reading.pages().and_then(|()| match set.take_input() {
                Some(input) => reading.stream(&input),
                None => reading.parts(compared),
            });
        })?;
        Ok(Packer {
            packs,
            compared: None,
            spare,
            is_over,
            waits,
        })
    }

    /// Whether the thread has read as much ahead as it may, and waits for the caller.
    pub fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// Says which files are compared, after [`Packed::Pages`].
    pub fn compare(&self, files: EntryRanges) {
        if let Some(compared) = &self.compared {
            let _ = compared.send(files); // the thread has panicked at worst, and said so
        }
    }

    /// What the thread has read, if anything; does not block.
    pub fn next(&self) -> Option<Packed> {
        match self.packs.try_recv() {
            Ok(packed) => Some(packed),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Packed::Gone),
        }
    }

    /// Gives back the memory of a pack, for another one. That costs less than new memory.
    pub fn give_back(&self, memory: Vec<u8>) {
        let _ = self.spare.send(memory); // after the last pack nobody needs it
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// The thread's part.
struct Reading<'a> {
    set: &'a SourceSet,
    tell: SyncSender<Packed>,
    waker: Waker,
    over: &'a AtomicBool,
    waits: &'a AtomicBool,
    /// The files that are compared.
    compared: EntryRanges,
    /// Whether these are read now, and not the others.
    compares: bool,
    pieces: Vec<Piece>,
    /// The present pack: a gap for its header, the bytes of its pieces, and room.
    memory: Vec<u8>,
    /// Bytes of the gap.
    gap: usize,
    /// Where the bytes of its pieces end.
    end: usize,
    /// The number of pieces and the end of their bytes where the present file begins in the present
    /// pack.
    start: (usize, usize),
    /// Bytes of all pieces of the present pack, at most.
    most: usize,
    /// Memory that comes back.
    given: Receiver<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

impl Reading<'_> {
    fn say(&self, packed: Packed) -> Option<()> {
        self.waits.store(true, Ordering::Relaxed);
        let said = self.tell.send(packed);
        self.waits.store(false, Ordering::Relaxed);
        self.waker.wake();
        said.ok()
    }

    fn pages(&self) -> Option<()> {
        let manifest = self.set.manifest();
        let mut next = 0;
        while (next as usize) < manifest.entries().len() {
            let mut page = Vec::new();
            next = manifest.put_page(next, &mut page);
            self.say(Packed::Pack(Pack::new(Content::Page, &page)))?;
        }
        Some(())
    }

    /// Reads the files that are sent, and then those that are compared.
    fn parts(&mut self, compared: Option<Receiver<EntryRanges>>) -> Option<()> {
        if let Some(compared) = compared {
            self.say(Packed::Pages)?;
            self.compared = compared.recv().ok()?;
        }
        self.files()?;
        if !self.compared.is_empty() {
            self.compares = true;
            self.files()?;
        }
        self.say(Packed::End)
    }

    /// Whether a file of `len` bytes is one of those that are read now. One without bytes is sent.
    fn has(&self, file: u32, len: u64) -> bool {
        (len > 0 && self.compared.has(file)) == self.compares
    }

    /// Whether no other file shares a pack with a file of `len` bytes.
    fn stands_alone(&self, len: u64) -> bool {
        self.compares && len >= PIECE_MAX as u64
    }

    fn files(&mut self) -> Option<()> {
        for (file, entry) in self.set.manifest().entries().iter().enumerate() {
            let number = file as u32;
            match entry.kind {
                // If a long file differs, its neighbours need not come.
                Kind::File(len) if self.has(number, len) && self.stands_alone(len) => {
                    self.flush()?;
                    self.file(number, len)?;
                    self.flush()?;
                }
                Kind::File(len) if self.has(number, len) => self.file(number, len)?,
                _ if self.set.is_closed(number) && !self.compares => {
                    self.start = (self.pieces.len(), self.end);
                    let path = shown(&self.set.path(number));
                    self.fail(number, format!("the directory {path} cannot be read"))?;
                }
                _ => {}
            }
        }
        self.flush()
    }

    /// Bytes of pieces in the present pack.
    fn filled(&self) -> usize {
        self.end - self.gap
    }

    fn is_full(&self) -> bool {
        self.filled() >= self.most || self.pieces.len() >= PIECES_MAX
    }

    /// Begins a pack with bytes of this file from `offset` on. Its header gets as much room as it
    /// needs if all files can be read; otherwise the bytes have to be moved.
    fn begin(&mut self, file: u32, offset: u64) {
        let (mut pieces, mut len) = (0, 0);
        for (number, entry) in (file..).zip(&self.set.manifest().entries()[file as usize..]) {
            let Kind::File(whole) = entry.kind else {
                continue;
            };
            if !self.has(number, whole) {
                continue;
            }
            if number != file && self.stands_alone(whole) {
                break;
            }
            let rest = if pieces == 0 { whole - offset } else { whole };
            let here = rest.min((self.most - len).min(PIECE_MAX) as u64);
            (pieces, len) = (pieces + 1, len + here as usize);
            let is_full = len >= self.most || pieces >= PIECES_MAX;
            if here < rest || is_full || self.stands_alone(whole) {
                break;
            }
        }
        self.make_room(Header::len_of(self.pieces.len() + pieces, len), len);
    }

    /// Takes memory for a pack with a header of `gap` bytes and `len` bytes behind it.
    fn make_room(&mut self, gap: usize, len: usize) {
        (self.gap, self.end) = (gap, gap);
        self.spare.extend(self.given.try_iter());
        while self.spare.iter().map(Vec::capacity).sum::<usize>() > SPARE_MAX {
            self.spare.remove(0);
        }
        self.memory = self.spare.pop().unwrap_or_default();
        self.memory.resize(self.gap + len, 0);
    }

    /// Hands the present pack over.
    fn flush(&mut self) -> Option<()> {
        if self.pieces.is_empty() {
            return Some(());
        }
        let content = Content::Pieces(std::mem::take(&mut self.pieces));
        let mut memory = std::mem::take(&mut self.memory);
        memory.truncate(self.end);
        let gap = std::mem::take(&mut self.gap);
        self.end = 0;
        self.start = (0, 0);
        let limit = (self.set.manifest().len() / PACKS_MIN) as usize;
        self.most = (self.most * 2).min(limit.clamp(PIECE_MAX, PACK_MAX));
        let pack = Pack::around(content, memory, gap);
        self.say(match self.compares {
            true => Packed::Compare(pack),
            false => Packed::Pack(pack),
        })
    }

    fn file(&mut self, file: u32, len: u64) -> Option<()> {
        self.start = (self.pieces.len(), self.end);
        let opened = match self.set.open(file) {
            Ok(opened) => opened,
            Err(why) => return self.fail(file, why.into()),
        };
        let mut offset = 0;
        loop {
            if self.is_full() {
                self.flush()?;
            }
            if self.over.load(Ordering::Relaxed) {
                return None;
            }
            let (is_hole, extent) = opened.extent(offset);
            let result = match is_hole {
                true => {
                    let last = offset + extent == len;
                    self.pieces.push(Piece::Hole {
                        file,
                        offset,
                        len: extent,
                        last,
                    });
                    opened.check_version().map(|()| extent)
                }
                false => self.read(&opened, (file, len), offset, extent),
            };
            match result {
                Ok(here) => offset += here,
                Err(why) => return self.fail(file, why),
            }
            if offset == len {
                return Some(());
            }
            // Long files go in packs that leave soon.
            if self.filled() >= PIECE_MAX {
                self.flush()?;
            }
        }
    }

    /// Reads a piece of a file that has `len` bytes: from `offset` on, at most `extent` bytes.
    /// Returns the length of the piece.
    fn read(
        &mut self,
        opened: &SourceFile,
        (file, len): (u32, u64),
        offset: u64,
        extent: u64,
    ) -> Result<u64, String> {
        if self.memory.is_empty() {
            self.begin(file, offset);
        }
        let room = (self.most - self.filled()).min(PIECE_MAX);
        let here = extent.min(room as u64) as usize;
        let end = self.end + here;
        if self.memory.len() < end {
            self.memory.resize(end, 0); // a file could not be read, or has holes
        }
        let bytes = &mut self.memory[self.end..end];
        opened.read(offset, bytes)?;
        self.set.sample(file, offset, bytes);
        self.end = end;
        self.pieces.push(Piece::Bytes {
            file,
            offset,
            len: here as u32,
            last: offset + here as u64 == len,
        });
        Ok(here as u64)
    }

    /// Says that a file cannot be read. Bytes of it that are in earlier packs are void, and those
    /// in the present pack are left out: a receiver that got them damaged could never get them
    /// again.
    fn fail(&mut self, file: u32, reason: String) -> Option<()> {
        let (pieces, end) = self.start;
        self.pieces.truncate(pieces);
        self.end = end.max(self.gap);
        if self.pieces.len() >= PIECES_MAX {
            self.flush()?;
        }
        self.pieces.push(self.set.failure(file));
        self.say(Packed::Failed(file, reason))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::object::testing::{Packs, packs, pattern, pieces_of, scratch, set_of};

    #[test]
    fn packs_grow_and_carry_all_bytes_in_order() {
        let dir = scratch();
        let long = pattern(PACK_MAX * 3 + 5);
        let files: [(&str, &[u8]); 4] = [("a", b"first"), ("b", &long), ("c", b""), ("d", b"last")];
        for (name, content) in files {
            std::fs::write(dir.join(name), content).unwrap();
        }
        let (all, failed) = packs(&set_of(std::slice::from_ref(&dir)));
        assert_eq!(failed, [0; 0]);
        assert!(pieces_of(&all[0]).is_none(), "the manifest comes first");
        let lens: Vec<usize> = all[1..].iter().map(|p| p.payload().len() >> 20).collect();
        assert_eq!(lens, [1, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1]);
        let mut got = [const { Vec::new() }; 4];
        for pack in &all[1..] {
            let mut bytes = pack.payload();
            for piece in pieces_of(pack).unwrap() {
                let Piece::Bytes {
                    file,
                    offset,
                    len,
                    last,
                } = piece
                else {
                    panic!("{piece:?}");
                };
                let (got, whole) = (&mut got[file as usize - 1], files[file as usize - 1].1);
                assert_eq!(got.len() as u64, offset);
                let here;
                (here, bytes) = bytes.split_at(len as usize);
                got.extend_from_slice(here);
                assert_eq!(last, got.len() == whole.len());
            }
        }
        for (got, (name, content)) in got.iter().zip(files) {
            assert!(got == content, "{name}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_header_has_so_many_entries_and_no_more() {
        let dir = scratch();
        for i in 0..PIECES_MAX + 1 {
            File::create(dir.join(i.to_string())).unwrap();
        }
        let (all, _) = packs(&set_of(std::slice::from_ref(&dir)));
        let entries: Vec<usize> = all
            .iter()
            .filter_map(|pack| Some(pieces_of(pack)?.len()))
            .collect();
        assert_eq!(entries, [PIECES_MAX, 1]);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn holes_are_told_and_not_read() {
        use std::os::unix::fs::FileExt;
        let dir = scratch();
        std::fs::write(dir.join("a"), "before").unwrap();
        let sparse = File::create(dir.join("b")).unwrap();
        sparse.write_all_at(b"bytes", 1 << 30).unwrap();
        sparse.set_len(1 << 40).unwrap();
        std::fs::write(dir.join("c"), "after").unwrap();
        let (all, failed) = packs(&set_of(std::slice::from_ref(&dir)));
        assert_eq!((all.len(), failed.len()), (2, 0));
        let pieces = pieces_of(&all[1]).unwrap();
        let [first, hole, data, rest, last] = &pieces[..] else {
            panic!("{pieces:?}");
        };
        let hole_of = |piece: &Piece| match piece {
            Piece::Hole {
                offset, len, last, ..
            } => (*offset, *len, *last),
            _ => panic!("{piece:?}"),
        };
        assert_eq!(hole_of(hole), (0, 1 << 30, false));
        let (offset, len, is_last) = hole_of(rest);
        assert_eq!((offset + len, is_last), (1 << 40, true));
        assert!(matches!(
            data,
            Piece::Bytes {
                file: 2,
                last: false,
                ..
            }
        ));
        assert!(matches!(first, Piece::Bytes { file: 1, .. }));
        assert!(matches!(last, Piece::Bytes { file: 3, .. }));
        assert!(all[1].payload().starts_with(b"beforebytes"));
        assert!(all[1].payload().ends_with(b"after"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// What came of the file in earlier packs is void. The pack that says so has no bytes of it: a
    /// receiver that got them damaged could never get them again.
    #[test]
    fn a_file_that_fails_in_the_midst_leaves_no_bytes_in_its_last_pack() {
        let dir = scratch();
        std::fs::write(dir.join("a"), vec![1; PACK_MAX * 3]).unwrap();
        let long = File::options().write(true).open(dir.join("a")).unwrap();
        std::fs::write(dir.join("b"), "after it").unwrap();
        let set = set_of(std::slice::from_ref(&dir));
        let packs = Packs::of(&set);
        let Packed::Pack(_page) = packs.next() else {
            panic!("no page");
        };
        long.set_len(5).unwrap();
        let mut last = None;
        let why = loop {
            match packs.next() {
                Packed::Pack(pack) => last = Some(pack),
                Packed::Failed(file, why) => break (file, why),
                _ => panic!("it did not fail"),
            }
        };
        assert_eq!(why.0, 1);
        assert!(why.1.contains("shorter"), "{}", why.1);
        assert!(last.is_none_or(|pack| pack.payload().len() <= PIECE_MAX));
        let Packed::Pack(pack) = packs.next() else {
            panic!("no pack");
        };
        let pieces = pieces_of(&pack).unwrap();
        assert!(matches!(&pieces[0], Piece::Failed { file: 1, .. }));
        assert!(matches!(
            &pieces[1],
            Piece::Bytes {
                file: 2,
                offset: 0,
                last: true,
                ..
            }
        ));
        assert_eq!((pieces.len(), pack.payload()), (2, &b"after it"[..]));
        assert!(matches!(packs.next(), Packed::End));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
