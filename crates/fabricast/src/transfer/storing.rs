//! Proves and stores packs, on a thread of its own, in the order in which the sender announced
//! them.
//!
//! A pack that is damaged comes back to be repaired; those behind it wait until it returns.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::block_repair::BlockRepair;
use crate::error::Error;
use crate::object::pack::{Content, Header, Pack};
use crate::object::{BLOCK, Challenge, Tree};
use crate::waker::Waker;

/// Work for the thread.
pub enum Job {
    /// A pack that has arrived, with its number and the hash of its header as the sender told it.
    Arrived(u32, Pack, String),
    /// A pack that was damaged and is proven now.
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

/// The end of the thread that receives.
pub struct Storing {
    jobs: Sender<Job>,
    done: Receiver<Stored>,
    /// Jobs that have been given and not answered.
    waiting: usize,
}

impl Storing {
    /// Starts the thread; it wakes `waker` after each job. `damage`: damages every n-th block of
    /// the files, to test repairs; 0: none. `entries` and `len` are what the sender offered.
    pub fn start(tree: Tree, entries: u32, len: u64, damage: u64, waker: Waker) -> Storing {
        let (jobs, to_do) = channel();
        let (tell, done) = channel();
        thread::Builder::new()
            .name("fabricast-write".into())
            .spawn(move || {
                let mut store = Store {
                    tree,
                    offered: (entries, len),
                    damage,
                    blocks: 0,
                    next: 0,
                    early: BTreeMap::new(),
                };
                for job in to_do {
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
            jobs,
            done,
            waiting: 0,
        }
    }

    /// Gives the thread a job.
    pub fn give(&mut self, job: Job) {
        self.waiting += 1;
        // The thread has ended only after an error, which has been told.
        let _ = self.jobs.send(job);
    }

    /// What the thread has done, if anything; does not block.
    pub fn done(&mut self) -> Option<Stored> {
        let stored = self.done.try_recv().ok()?;
        self.waiting -= usize::from(!matches!(stored, Stored::Proven));
        Some(stored)
    }

    /// Whether the thread is at work.
    pub fn is_busy(&self) -> bool {
        self.waiting > 0
    }
}

/// The thread's part.
struct Store {
    tree: Tree,
    /// Entries and bytes of the set, as offered.
    offered: (u32, u64),
    damage: u64,
    /// Blocks of files so far.
    blocks: u64,
    /// Number of the pack to be stored next.
    next: u32,
    /// Packs that arrived before it.
    early: BTreeMap<u32, (Pack, String)>,
}

impl Store {
    fn work(&mut self, job: Job, tell: &mut dyn FnMut(Stored)) -> Result<(), Error> {
        match job {
            Job::Arrived(number, pack, hash) => {
                self.early.insert(number, (pack, hash));
            }
            Job::Mended(pack, header) => {
                tell(Stored::Proven);
                self.store(&pack, &header)?;
                tell(Stored::Pack(pack.bytes));
            }
            Job::Finish(challenge, node) => {
                let manifest = self.tree.manifest();
                let offered = (manifest.entries().len() as u32, manifest.len());
                if offered != self.offered {
                    let text = "the sender sent another set than it offered";
                    return Err(Error::Integrity(text.into()));
                }
                let proof = self.tree.answer(&challenge)?.proof(node).to_string();
                self.tree.finish()?;
                tell(Stored::Finished(proof, self.tree.failed()));
            }
        }
        while let Some((mut pack, hash)) = self.early.remove(&self.next) {
            self.spoil(&mut pack);
            let repair = BlockRepair::new(self.next, pack, hash)?;
            if !repair.is_done() {
                tell(Stored::Damaged(repair));
                break; // `next` comes back
            }
            if let Some((pack, header)) = repair.into_pack() {
                tell(Stored::Proven);
                self.store(&pack, &header)?;
                tell(Stored::Pack(pack.bytes));
            }
        }
        Ok(())
    }

    fn store(&mut self, pack: &Pack, header: &Header) -> Result<(), Error> {
        self.next += 1;
        match &header.content {
            Content::Page => {
                self.tree.add_page(pack.payload())?;
                let manifest = self.tree.manifest();
                let (entries, len) = self.offered;
                match manifest.entries().len() > entries as usize || manifest.len() > len {
                    true => Err(Error::Integrity(
                        "the sender sent more than it offered".into(),
                    )),
                    false => Ok(()),
                }
            }
            Content::Pieces(pieces) => self.tree.write(pieces, pack.payload()),
        }
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
