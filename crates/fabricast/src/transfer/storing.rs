//! Proves and stores packs, on a thread of its own, in the order in which the sender announced
//! them.
//!
//! The thread gets packs in that order. A pack that is damaged comes back to be repaired; those
//! behind it wait in the thread until it returns.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, JoinHandle};

use super::block_repair::BlockRepair;
use crate::bootstrap::message::Welcome;
use crate::error::Error;
use crate::object::pack::{Content, Header, Pack};
use crate::object::{BLOCK, Challenge, Tree};
use crate::waker::Waker;

/// Work for the thread.
enum Job {
    /// The next pack, and the hash of its header as the sender told it.
    Arrived(Pack, String),
    /// The pack that was damaged is proven now.
    Mended(Pack, Header),
    /// Every pack is stored: proves that to the sender as this node, and ends the set.
    Finish(Challenge, u32),
}

/// What the thread has done.
pub enum Stored {
    /// A pack is proven, and is being stored.
    Proven,
    /// A pack is stored; its memory comes back.
    Pack(Vec<u8>),
    /// A pack is damaged.
    Damaged(BlockRepair),
    /// The set is complete: the proof for the sender, and the files that the sender could not read.
    Finished(String, Vec<PathBuf>),
    /// It cannot go on.
    Failed(Error),
}

/// The protocol's end of the thread. Dropping it ends the thread after the present job, and waits
/// for that: files without a name of their own go with the thread.
pub struct Storing {
    jobs: Option<Sender<Job>>,
    done: Receiver<Stored>,
    thread: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    /// Jobs that have been given and not answered.
    waiting: usize,
    /// Number of the pack that the thread gets next.
    next: u32,
    /// Packs that arrived before it, with the hashes of their headers.
    early: BTreeMap<u32, (Pack, String)>,
}

impl Storing {
    /// Starts the thread; it wakes `waker` after each job. `damage`: damages every n-th block of
    /// the files, to test repairs; 0: none.
    pub fn start(tree: Tree, welcome: &Welcome, damage: u64, waker: Waker) -> Storing {
        let (jobs, to_do) = channel();
        let (tell, done) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let mut store = Store {
            tree,
            offered: Offered {
                name: welcome.name.clone(),
                entries: welcome.entries as usize,
                tops: welcome.tops,
                len: welcome.len,
            },
            damage,
            blocks: 0,
            next: 0,
            is_damaged: false,
            behind: VecDeque::new(),
        };
        let thread = thread::Builder::new()
            .name("fabricast-write".into())
            .spawn(move || {
                for job in to_do {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut tell = |stored| {
                        let _ = tell.send(stored);
                        waker.wake();
                    };
                    if let Err(error) = store.work(job, &mut tell) {
                        tell(Stored::Failed(error));
                        return;
                    }
                }
            })
            .expect("the system gives us a thread");
        Storing {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            is_over,
            waiting: 0,
            next: 0,
            early: BTreeMap::new(),
        }
    }

    /// Gives the thread a job.
    fn give(&mut self, job: Job) {
        self.waiting += 1;
        if let Some(jobs) = &self.jobs {
            // The thread has ended only after an error, which has been told.
            let _ = jobs.send(job);
        }
    }

    /// Takes a pack that has arrived. `hash`: the hash of its header as the sender told it.
    pub fn arrived(&mut self, number: u32, pack: Pack, hash: String) {
        self.early.insert(number, (pack, hash));
        while let Some((pack, hash)) = self.early.remove(&self.next) {
            self.next += 1;
            self.give(Job::Arrived(pack, hash));
        }
    }

    /// Takes the damaged pack, once it is proven.
    pub fn mended(&mut self, pack: Pack, header: Header) {
        self.give(Job::Mended(pack, header));
    }

    /// Ends the set, of which every pack is stored.
    pub fn finish(&mut self, challenge: Challenge, node: u32) {
        self.give(Job::Finish(challenge, node));
    }

    /// What the thread has done, if anything; does not block.
    pub fn done(&mut self) -> Option<Stored> {
        let stored = match self.done.try_recv() {
            Ok(stored) => stored,
            Err(TryRecvError::Empty) => return None,
            // An error comes before the end, and nobody asks again after it.
            Err(TryRecvError::Disconnected) => {
                let ended = io::Error::other("the thread that stores has ended");
                return Some(Stored::Failed(Error::io("storing the set", ended)));
            }
        };
        self.waiting -= usize::from(!matches!(stored, Stored::Proven));
        Some(stored)
    }

    /// Whether the thread has something to do. Packs behind one that has not arrived are nothing to
    /// do.
    pub fn is_busy(&self) -> bool {
        self.waiting > 0
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It has panicked at worst, and then the panic has been printed.
            let _ = thread.join();
        }
    }
}

/// What the sender offered.
struct Offered {
    name: String,
    entries: usize,
    /// Number of entries at the top.
    tops: u32,
    /// Bytes of all files together.
    len: u64,
}

/// The thread's part.
struct Store {
    tree: Tree,
    offered: Offered,
    damage: u64,
    /// Blocks of files so far.
    blocks: u64,
    /// Number of the next pack.
    next: u32,
    /// Whether a pack is being repaired.
    is_damaged: bool,
    /// Packs behind the one that is being repaired.
    behind: VecDeque<(Pack, String)>,
}

impl Store {
    fn work(&mut self, job: Job, tell: &mut dyn FnMut(Stored)) -> Result<(), Error> {
        match job {
            Job::Arrived(pack, hash) => self.behind.push_back((pack, hash)),
            Job::Mended(pack, header) => {
                self.is_damaged = false;
                self.store(pack, &header, tell)?;
            }
            Job::Finish(challenge, node) => {
                if !self.has_manifest() {
                    return Err(contradiction());
                }
                let proof = self.tree.answer(&challenge)?.proof(node).to_string();
                self.tree.finish()?;
                tell(Stored::Finished(proof, self.tree.failed()));
            }
        }
        while !self.is_damaged
            && let Some((mut pack, hash)) = self.behind.pop_front()
        {
            self.spoil(&mut pack);
            let repair = BlockRepair::new(self.next, pack, hash)?;
            self.next += 1;
            if !repair.is_done() {
                self.is_damaged = true;
                tell(Stored::Damaged(repair));
            } else if let Some((pack, header)) = repair.into_pack() {
                self.store(pack, &header, tell)?;
            }
        }
        Ok(())
    }

    /// Whether all pages of the manifest are there.
    fn has_manifest(&self) -> bool {
        let (manifest, offered) = (self.tree.manifest(), &self.offered);
        manifest.entries().len() == offered.entries
            && manifest.tops() == offered.tops
            && manifest.len() == offered.len
    }

    /// Stores a proven pack.
    fn store(
        &mut self,
        pack: Pack,
        header: &Header,
        tell: &mut dyn FnMut(Stored),
    ) -> Result<(), Error> {
        tell(Stored::Proven);
        match &header.content {
            Content::Page => {
                self.tree.add_page(pack.payload())?;
                let manifest = self.tree.manifest();
                let first = manifest.entries().first();
                let is_other = first.is_some_and(|e| *e.name != *self.offered.name.as_bytes());
                let is_more = manifest.entries().len() > self.offered.entries
                    || manifest.len() > self.offered.len;
                if is_other || is_more {
                    return Err(contradiction());
                }
            }
            Content::Pieces(_) if !self.has_manifest() => return Err(contradiction()),
            Content::Pieces(pieces) => self.tree.write(pieces, pack.payload())?,
        }
        tell(Stored::Pack(pack.bytes));
        Ok(())
    }

    /// Damages a pack on purpose.
    fn spoil(&mut self, pack: &mut Pack) {
        let bytes = &pack.bytes[..pack.header];
        let header = Header::decode(bytes, pack.payload().len());
        if self.damage == 0 || header.is_none_or(|h| h.content == Content::Page) {
            return;
        }
        for block in pack.bytes[pack.header..].chunks_mut(BLOCK) {
            if self.blocks.is_multiple_of(self.damage) {
                block[0] ^= 1;
            }
            self.blocks += 1;
        }
    }
}

/// The error for a sender whose manifest is not that of its offer.
fn contradiction() -> Error {
    Error::Integrity("the sender sends another set than it offered".into())
}
