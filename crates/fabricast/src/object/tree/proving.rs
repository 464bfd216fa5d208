//! Which packs of a set the files make that are in their places before it comes (spec 5.16).
//!
//! A receiver cuts what it has into packs as the sender does, and hashes them. A pack counts when
//! the sender announces one whose header has the same hash: so the sender proves each byte, and
//! lengths and times only say which files to read. A thread reads them, since that may take long.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{self as sys, Mode, OFlags};

use super::beneath;
use super::block_hashes::BlockHashes;
use super::paths::relative;
use crate::object::cutter::Cutter;
use crate::object::holes::{extent, has_holes};
use crate::object::manifest::{Kind, Manifest};
use crate::object::pack::{Content, Header, Piece};
use crate::object::{HASH, Version};

/// How long a wait for the thread lasts at most.
const TICK: Duration = Duration::from_millis(50);

/// A pack that files make which are in their places.
struct PresentPack {
    /// The hash of its header.
    hash: [u8; HASH],
    header: Header,
    /// Bytes of files in it.
    bytes: u64,
}

/// The packs that files make which are in their places. A thread reads the files. Dropping this
/// ends the thread.
pub struct Proving {
    found: Receiver<PresentPack>,
    /// Those that the thread has told of, by the hashes of their headers.
    packs: HashMap<[u8; HASH], PresentPack>,
    /// Number of the first pack that the sender has not announced. Those before come anyway.
    next: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proving {
    /// Starts the thread, which reads these files of a set beneath `root`.
    pub fn start(
        root: Arc<OwnedFd>,
        name: Option<OsString>,
        manifest: Arc<Manifest>,
        versions: BTreeMap<u32, Version>,
    ) -> Proving {
        let files = Files::new(root, name, manifest, versions);
        let (tell, found) = channel();
        let (next, is_over) = (files.next.clone(), files.is_over.clone());
        let thread = thread::Builder::new()
            .name("fabricast-prove".into())
            // `None`: nobody wants packs any more.
            .spawn(move || _ = files.prove(&tell))
            .expect("the system gives us a thread");
        Proving {
            found,
            packs: HashMap::new(),
            next,
            is_over,
            thread: Some(thread),
        }
    }

    fn add(&mut self, pack: PresentPack) {
        self.packs.insert(pack.hash, pack);
    }

    /// Waits a moment for the thread. False if it has read everything.
    pub fn wait(&mut self) -> bool {
        match self.found.recv_timeout(TICK) {
            Ok(found) => {
                self.add(found);
                true
            }
            Err(RecvTimeoutError::Timeout) => true,
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Notes that the sender has announced the pack with this number. If that is not here by now,
    /// it comes.
    pub fn announced(&mut self, number: u32) {
        self.next.fetch_max(number + 1, Ordering::Relaxed);
    }

    /// Takes the pack whose header has this hash, if it is here: its header, and the bytes of files
    /// in it.
    pub fn take(&mut self, hash: &[u8; HASH]) -> Option<(Header, u64)> {
        while let Ok(found) = self.found.try_recv() {
            self.add(found);
        }
        let pack = self.packs.remove(hash)?;
        Some((pack.header, pack.bytes))
    }
}

impl Drop for Proving {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has panicked at worst, and then the panic has been printed.
            let _ = thread.join();
        }
    }
}

/// A file that is read.
struct Opened {
    file: File,
    has_holes: bool,
    version: Version,
}

impl Opened {
    fn is_unchanged(&self) -> bool {
        sys::fstat(&self.file).is_ok_and(|there| Version::of(&there) == self.version)
    }
}

/// The thread's part.
struct Files {
    root: Arc<OwnedFd>,
    name: Option<OsString>,
    manifest: Arc<Manifest>,
    versions: BTreeMap<u32, Version>,
    next: Arc<AtomicU32>,
    is_over: Arc<AtomicBool>,
    /// Number of the current pack, if the sender cuts as this thread does.
    number: u32,
    cutter: Cutter,
    blocks: BlockHashes,
    hashes: Vec<u8>,
    /// Whether everything of the current pack is here so far.
    is_here: bool,
}

impl Files {
    fn new(
        root: Arc<OwnedFd>,
        name: Option<OsString>,
        manifest: Arc<Manifest>,
        versions: BTreeMap<u32, Version>,
    ) -> Files {
        Files {
            number: manifest.page_starts().len() as u32,
            root,
            name,
            manifest,
            versions,
            next: Arc::default(),
            is_over: Arc::default(),
            cutter: Cutter::default(),
            blocks: BlockHashes::default(),
            hashes: Vec::new(),
            is_here: true,
        }
    }

    /// Opens a file that is in its place.
    fn open(&self, file: u32) -> Option<Opened> {
        let version = self.versions.get(&file)?;
        let path = relative(&self.manifest, self.name.as_deref(), file);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = beneath::open(&*self.root, &path, flags, Mode::empty());
        let opened = File::from(opened.ok()?);
        let there = sys::fstat(&opened).ok()?;
        let is_it = Version::of(&there) == *version;
        is_it.then(|| Opened {
            has_holes: has_holes(&there),
            file: opened,
            version: version.clone(),
        })
    }

    fn prove(mut self, tell: &Sender<PresentPack>) -> Option<()> {
        for file in 0..self.manifest.entries().len() as u32 {
            if let Kind::File(len) = self.manifest.entries()[file as usize].kind {
                self.file(file, len, tell)?;
            }
        }
        self.flush(tell)
    }

    /// Cuts a file into pieces, as the sender does.
    fn file(&mut self, file: u32, len: u64, tell: &Sender<PresentPack>) -> Option<()> {
        if self.cutter.begin(len) {
            self.flush(tell)?;
        }
        self.pieces(file, len, tell)?;
        match self.cutter.end() {
            true => self.flush(tell),
            false => Some(()),
        }
    }

    /// Reads a file, piece by piece, and hashes the pieces of packs that may be here as a whole.
    fn pieces(&mut self, file: u32, len: u64, tell: &Sender<PresentPack>) -> Option<()> {
        let opened = self.open(file);
        let mut offset = 0;
        loop {
            if self.cutter.is_full() {
                self.flush(tell)?;
            }
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            let extent = match &opened {
                Some(it) => extent(&it.file, it.has_holes, offset, len),
                None => (false, len - offset),
            };
            let piece = self.cutter.cut((file, len), offset, extent);
            self.is_here &= self.next.load(Ordering::Relaxed) <= self.number;
            self.is_here = self.is_here && opened.as_ref().is_some_and(|it| self.read(it, &piece));
            offset = piece.end();
            self.cutter.push(piece);
            if offset == len {
                return Some(());
            }
            if self.cutter.leaves_within_file() {
                self.flush(tell)?;
            }
        }
    }

    fn read(&mut self, opened: &Opened, piece: &Piece) -> bool {
        let hashes = &mut self.hashes;
        let mut take = |hash: &[u8; HASH]| {
            hashes.extend(hash);
            true
        };
        let is_read = match piece {
            Piece::Bytes { offset, .. } => {
                let range = (*offset, piece.end());
                self.blocks.read(&opened.file, range, &mut take)
            }
            _ => true,
        };
        is_read && opened.is_unchanged()
    }

    /// Ends the current pack, and tells of it if all of it is here.
    fn flush(&mut self, tell: &Sender<PresentPack>) -> Option<()> {
        if self.cutter.pieces().is_empty() {
            return Some(());
        }
        let hashes = &mut self.hashes;
        self.blocks.end(&mut |hash| {
            hashes.extend(hash);
            true
        });
        let hashes = std::mem::take(&mut self.hashes);
        let pieces = self.cutter.take();
        self.number += 1;
        if !std::mem::replace(&mut self.is_here, true) {
            return Some(());
        }
        let bytes = pieces.iter().map(Piece::size).sum();
        let content = Content::Pieces(pieces);
        let header = Header { content, hashes };
        let hash = blake3::hash(&header.encode()).into();
        let pack = PresentPack {
            hash,
            header,
            bytes,
        };
        tell.send(pack).ok()
    }
}
