//! Which packs of a set are present: all their bytes are in candidates (spec 5.16).
//!
//! A thread cuts the files of the set into packs as the sender does, and hashes those that are in
//! candidates. Such a pack counts when the sender announces one whose header has the same hash: so
//! the sender proves each byte, and lengths and times only say which files to read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use super::block_hashes::BlockHashes;
use super::candidate::{Candidate, PieceProof, Places};
use crate::object::HASH;
use crate::object::cutter::Cutter;
use crate::object::holes::extent;
use crate::object::manifest::Kind;
use crate::object::pack::{Content, Header, Piece};
use crate::waker::Waker;

/// Packs that the thread leaves out when the stream has overtaken it, so that it is ahead again.
const SKIPPED: u32 = 3;

/// A pack whose bytes are all in candidates.
pub struct PresentPack {
    pub(super) header: Header,
    /// What proves each of its pieces.
    pub(super) proofs: Vec<PieceProof>,
}

impl PresentPack {
    /// Bytes of files in it, holes included.
    pub fn bytes(&self) -> u64 {
        match &self.header.content {
            Content::Pieces(pieces) => pieces.iter().map(Piece::size).sum(),
            Content::Page => 0,
        }
    }
}

/// What the thread tells.
enum Found {
    /// There is a candidate.
    Candidate,
    /// This pack is present, and the hash of its header.
    Pack([u8; HASH], PresentPack),
}

/// The packs that are present, as far as they are found. Dropping this ends the thread that looks
/// for them.
pub struct Proving {
    found: Receiver<Found>,
    has_candidates: bool,
    /// Whether the thread has looked at everything.
    is_done: bool,
    /// The packs that are present, by the hashes of their headers.
    packs: HashMap<[u8; HASH], PresentPack>,
    stream: Arc<Stream>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
#[derive(Default)]
struct Stream {
    /// Number of the first pack of the stream that this receiver was told of, and one more; 0:
    /// none yet.
    first: AtomicU32,
    /// Number of the next pack of the stream: those before come, if they are not found by now.
    next: AtomicU32,
    is_over: AtomicBool,
}

impl Proving {
    /// Starts to look for candidates, and for the packs that they make. `waker` is rung when
    /// something is found, and at the end.
    pub(super) fn start(places: Places, waker: Waker) -> Proving {
        let (tell, found) = channel();
        let stream = Arc::<Stream>::default();
        let prover = Prover::new(places, stream.clone(), tell, waker.clone());
        let thread = thread::Builder::new()
            .name("fabricast-prove".into())
            .spawn(move || {
                // `None`: nobody wants packs any more.
                let _ = prover.prove();
                waker.wake();
            })
            .expect("the system gives us a thread");
        Proving {
            found,
            has_candidates: false,
            is_done: false,
            packs: HashMap::new(),
            stream,
            thread: Some(thread),
        }
    }

    /// Takes what the thread has found.
    fn listen(&mut self) {
        loop {
            match self.found.try_recv() {
                Ok(Found::Candidate) => self.has_candidates = true,
                Ok(Found::Pack(hash, pack)) => _ = self.packs.insert(hash, pack),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.is_done = true;
                    return;
                }
            }
        }
    }

    /// Whether there are candidates, as far as that is known.
    pub fn has_candidates(&mut self) -> bool {
        self.listen();
        self.has_candidates
    }

    /// Whether the thread has looked at everything.
    pub fn is_done(&mut self) -> bool {
        self.listen();
        self.is_done
    }

    /// Notes that the sender has announced the pack with this number as the next one of the stream.
    /// If it is not found by now, it comes.
    pub fn streamed(&self, number: u32) {
        let (first, none) = (number + 1, Ordering::Relaxed);
        let _ = self.stream.first.compare_exchange(0, first, none, none);
        self.stream.next.store(number + 1, Ordering::Relaxed);
    }

    /// Takes the pack whose header has this hash, if it is present.
    pub fn take(&mut self, hash: &[u8; HASH]) -> Option<PresentPack> {
        self.listen();
        self.packs.remove(hash)
    }
}

impl Drop for Proving {
    fn drop(&mut self) {
        self.stream.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has panicked at worst, and then the panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The thread's part.
struct Prover {
    places: Places,
    stream: Arc<Stream>,
    tell: Sender<Found>,
    waker: Waker,
    has_candidates: bool,
    /// Number of the current pack, if the sender cuts as this thread does.
    number: u32,
    /// Packs of the stream before this number are left out.
    resumes_at: u32,
    cutter: Cutter,
    blocks: BlockHashes,
    hashes: Vec<u8>,
    proofs: Vec<PieceProof>,
    /// Whether everything of the current pack is present so far.
    is_present: bool,
}

impl Prover {
    fn new(places: Places, stream: Arc<Stream>, tell: Sender<Found>, waker: Waker) -> Prover {
        Prover {
            number: places.manifest.page_count(),
            places,
            stream,
            tell,
            waker,
            has_candidates: false,
            resumes_at: 0,
            cutter: Cutter::default(),
            blocks: BlockHashes::default(),
            hashes: Vec::new(),
            proofs: Vec::new(),
            is_present: true,
        }
    }

    /// Looks at all files. `None`: nobody wants to know more.
    fn prove(mut self) -> Option<()> {
        let manifest = self.places.manifest.clone();
        for (file, entry) in (0..).zip(manifest.entries()) {
            let Kind::File(len) = entry.kind else {
                continue;
            };
            if self.cutter.begin(len) {
                self.flush()?;
            }
            self.pieces(file, len)?;
            if self.cutter.end() {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// Cuts a file as the sender does. Reads the pieces of packs that may be present.
    fn pieces(&mut self, file: u32, len: u64) -> Option<()> {
        let candidate = self.places.open(file);
        if candidate.is_some() && !self.has_candidates {
            self.has_candidates = true;
            self.tell(Found::Candidate)?;
        }
        let mut offset = 0;
        loop {
            if self.cutter.is_full() {
                self.flush()?;
            }
            if self.stream.is_over.load(Ordering::Relaxed) {
                return None;
            }
            let extent = match &candidate {
                Some(it) => extent(&it.file, it.has_holes, offset, len),
                None => (false, len - offset),
            };
            let piece = self.cutter.cut((file, len), offset, extent);
            self.is_present = self.is_present && !self.is_left_out();
            if self.is_present {
                let proof = candidate.as_ref().and_then(|it| self.read(it, &piece));
                self.is_present = proof.is_some();
                self.proofs.extend(proof);
            }
            offset = piece.end();
            self.cutter.push(piece);
            if offset == len {
                return Some(());
            }
            if self.cutter.leaves_within_file() {
                self.flush()?;
            }
        }
    }

    /// Whether the current pack comes anyway. A thread that the stream has overtaken leaves out the
    /// next packs, too: it would be too late for each of them. Packs that were announced before
    /// this receiver joined have time.
    fn is_left_out(&mut self) -> bool {
        let first = self.stream.first.load(Ordering::Relaxed);
        if first == 0 || self.number + 1 < first {
            return false;
        }
        let next = self.stream.next.load(Ordering::Relaxed);
        if self.number < next {
            self.resumes_at = next + SKIPPED;
        }
        self.number < self.resumes_at
    }

    /// Reads a piece of a candidate. `None`: it cannot be read, or the candidate has changed.
    fn read(&mut self, candidate: &Candidate, piece: &Piece) -> Option<PieceProof> {
        let (mut hasher, hashes) = (blake3::Hasher::new(), &mut self.hashes);
        let mut take = |hash: &[u8; HASH]| {
            hashes.extend(hash);
            true
        };
        let is_read = match piece {
            Piece::Bytes { .. } => {
                let range = (piece.start(), piece.end());
                let mut see = |bytes: &[u8]| _ = hasher.update(bytes);
                self.blocks
                    .read(&candidate.file, range, &mut see, &mut take)
            }
            _ => true,
        };
        let version = candidate.unchanged().filter(|_| is_read)?;
        Some(PieceProof {
            version: version.clone(),
            hash: hasher.finalize().into(),
        })
    }

    /// Ends the current pack, and tells of it if it is present.
    fn flush(&mut self) -> Option<()> {
        if self.cutter.pieces().is_empty() {
            return Some(());
        }
        let pieces = self.cutter.take();
        self.number += 1;
        let mut hashes = std::mem::take(&mut self.hashes);
        let proofs = std::mem::take(&mut self.proofs);
        if !std::mem::replace(&mut self.is_present, true) {
            self.blocks.clear();
            return Some(());
        }
        self.blocks.end(&mut |hash| {
            hashes.extend(hash);
            true
        });
        let content = Content::Pieces(pieces);
        let header = Header { content, hashes };
        let hash = blake3::hash(&header.encode()).into();
        self.tell(Found::Pack(hash, PresentPack { header, proofs }))
    }

    fn tell(&self, found: Found) -> Option<()> {
        self.tell.send(found).ok()?;
        self.waker.wake();
        Some(())
    }
}

/// The hashes of the headers of packs that a thread finds which is told at once that these packs of
/// the stream were announced.
#[cfg(test)]
pub fn found_after(places: Places, streamed: &[u32]) -> std::collections::BTreeSet<[u8; HASH]> {
    let (tell, found) = channel();
    let proving = Proving {
        found,
        has_candidates: false,
        is_done: false,
        packs: HashMap::new(),
        stream: Arc::default(),
        thread: None,
    };
    streamed.iter().for_each(|number| proving.streamed(*number));
    let waker = Waker::new().expect("a waker");
    let prover = Prover::new(places, proving.stream.clone(), tell, waker);
    let _ = prover.prove();
    let found = proving.found.iter().filter_map(|found| match found {
        Found::Pack(hash, _) => Some(hash),
        Found::Candidate => None,
    });
    found.collect()
}
