//! Reads the files of a set ahead of their sending, on a thread of its own, and makes packs of
//! them: pages of the manifest first, then the files in the order of the manifest.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread;

use super::manifest::Kind;
use super::pack::{Content, PACK_MAX, PIECES_MAX, Pack, Piece};
use super::source_set::SourceSet;
use crate::waker::Waker;

/// Packs that are read before they are asked for.
const AHEAD: usize = 1;
/// Bytes of the first pack of files. Each further one is twice as long, up to [`PACK_MAX`]: so the
/// first data leave early.
const FIRST: usize = 1 << 20;

/// What the packer yields.
pub enum Packed {
    /// The next pack.
    Pack(Pack),
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
    is_over: Arc<AtomicBool>,
}

impl Packer {
    /// Starts the thread; it wakes `waker` whenever it has a pack.
    pub fn start(set: Arc<SourceSet>, waker: Waker) -> Packer {
        let (tell, packs) = sync_channel(AHEAD);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        thread::Builder::new()
            .name("fabricast-read".into())
            .spawn(move || {
                let mut reading = Reading {
                    set: &set,
                    tell,
                    waker,
                    over: &over,
                    pieces: Vec::new(),
                    bytes: Vec::new(),
                    most: FIRST,
                };
                // `None`: nobody wants packs any more.
                let _ = reading.pages().and_then(|()| reading.files());
            })
            .expect("the system gives us a thread");
        Packer { packs, is_over }
    }

    /// What the thread has read, if anything; does not block.
    pub fn next(&self) -> Option<Packed> {
        match self.packs.try_recv() {
            Ok(packed) => Some(packed),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Packed::Gone),
        }
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
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
    /// Bytes of the next pack, at most.
    most: usize,
}

impl Reading<'_> {
    fn say(&self, packed: Packed) -> Option<()> {
        let said = self.tell.send(packed);
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

    fn files(&mut self) -> Option<()> {
        for (file, entry) in self.set.manifest().entries().iter().enumerate() {
            if let Kind::File(len) = entry.kind {
                self.file(file as u32, len)?;
            }
        }
        self.flush()?;
        self.say(Packed::End)
    }

    /// Hands the present pack over.
    fn flush(&mut self) -> Option<()> {
        if self.pieces.is_empty() {
            return Some(());
        }
        let pieces = std::mem::take(&mut self.pieces);
        let pack = Pack::new(Content::Pieces(pieces), &self.bytes);
        self.bytes.clear();
        self.most = (self.most * 2).min(PACK_MAX);
        self.say(Packed::Pack(pack))
    }

    fn file(&mut self, file: u32, len: u64) -> Option<()> {
        let opened = match self.set.open(file) {
            Ok(opened) => opened,
            Err(why) => return self.fail(file, why),
        };
        let mut offset = 0;
        loop {
            if self.bytes.len() >= self.most || self.pieces.len() >= PIECES_MAX {
                self.flush()?;
            }
            if self.over.load(Ordering::Relaxed) {
                return None;
            }
            let start = self.bytes.len();
            let here = (len - offset).min((self.most - start) as u64);
            self.bytes.resize(start + here as usize, 0);
            if let Err(why) = opened.read(offset, &mut self.bytes[start..]) {
                self.bytes.truncate(start);
                return self.fail(file, why);
            }
            self.set.sample(file, offset, &self.bytes[start..]);
            let last = offset + here == len;
            self.pieces.push(Piece::Bytes {
                file,
                offset,
                len: here as u32,
                last,
            });
            offset += here;
            if last {
                return Some(());
            }
        }
    }

    /// Says that a file cannot be read. Bytes of it that are in earlier packs are void.
    fn fail(&mut self, file: u32, reason: String) -> Option<()> {
        if self.pieces.len() >= PIECES_MAX {
            self.flush()?;
        }
        let name = self.set.manifest().entries()[file as usize].name.clone();
        let name = String::from_utf8_lossy(&name).into_owned();
        let told = format!("the sender cannot read {name} any more, or it changed");
        self.pieces.push(Piece::Failed { file, reason: told });
        self.say(Packed::Failed(file, reason))
    }
}
