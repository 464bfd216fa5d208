//! Proves and stores packs, on a thread of its own.
//!
//! The thread gets the pages of the manifest first, in their order, and then packs as they arrive.
//! A pack that is damaged comes back to be repaired; those behind it wait in the thread until it
//! returns.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use super::block_repair::BlockRepair;
use super::incoming::Store;
use super::stored_headers::StoredHeaders;
use crate::bootstrap::message::Welcome;
use crate::error::Error;
use crate::job_thread::{Desk, JobThread, Jobs};
use crate::object::manifest::Manifest;
use crate::object::pack::{Content, Header, Pack, Piece, Span};
use crate::object::{BLOCK, Candidates, HASH, Kept, Remaining, SetOutcome, Target, check_space};
use crate::setting::MAX_SIZE;
use crate::waker::Waker;

/// How long a receiver looks for candidates, at most: half of the default patience, for which the
/// sender waits.
const LOOKING: Duration = Duration::from_secs(5);

/// What proves a pack that has arrived.
pub enum Proof {
    /// The hash of its header, as the sender told it. Whether the pack is right is not known yet.
    Hash(String),
    /// Its header: the pack is proven already.
    Header(Header),
}

/// Work for the thread.
enum Job {
    /// A pack, its number, and what proves it.
    Arrived(u32, Pack, Proof),
    /// A pack that is here from an earlier run, and the hash of its header.
    Keep(u32, [u8; HASH]),
    /// Files that remain, and packs all of whose files remain, with their headers where others may
    /// get them.
    Remain(Vec<Remaining>, Vec<(u32, Option<Header>)>),
    /// The pack that was damaged is proven now.
    Mended(Pack, Header),
    /// Every pack is stored: proves that to the sender as this node, by the challenge with this
    /// key, and ends the set.
    Finish([u8; 32], u32),
    /// Bytes of files that are stored are to be read back, for another thread.
    ReadBack(Vec<Span>, Sender<Option<Vec<u8>>>),
    /// The set has ended: the entries that files and directories were made of are wanted.
    Manifest(Sender<Manifest>),
}

/// Reads back what the thread has stored, for other threads. What waits to be stored comes first,
/// so no reader holds the transfer up.
pub struct ReadBack(Jobs<Job>);

impl ReadBack {
    /// The bytes of these spans, one behind the other, as the files hold them now. `None` if they
    /// cannot be read, or the thread has ended. Blocks until the thread has done what it was given
    /// before.
    pub fn read(&self, spans: Vec<Span>) -> Option<Vec<u8>> {
        let (answer, answered) = channel();
        self.0.give(Job::ReadBack(spans, answer));
        answered.recv().ok().flatten()
    }
}

/// What the thread has done. Each job that [`Storing::give`] gives is answered by one of `Pack`,
/// `Remain`, `Damaged`, `Finished` and `Failed`. The others come beside these.
pub enum Stored {
    /// A pack is proven, and is being stored.
    Proven,
    /// A pack is stored.
    Pack(u32),
    /// The manifest is complete.
    Manifest,
    /// The manifest is complete, and these are the candidates among what is there.
    Looked {
        candidates: Candidates,
        /// Whether the rest was left out, since looking took too long.
        is_cut: bool,
    },
    /// Files were counted as stored that remain. The bytes of all that do so far.
    Remain(u64),
    /// The manifest is complete, and this is a dry run: the paths that would be deleted.
    Surplus(Vec<PathBuf>),
    /// A pack is damaged.
    Damaged(BlockRepair),
    /// So many bytes of files were copied from others.
    Copied(u64),
    /// The set is complete.
    Finished(Finished),
    /// It cannot go on.
    Failed(Error),
}

/// A set that is complete.
pub struct Finished {
    /// The proof for the sender that the files can be read; `None` for a stream.
    pub proof: Option<String>,
    /// What has come of it.
    pub outcome: SetOutcome,
}

/// How much a set may have of which that is not known before: a stream, and copies of files.
pub struct Limits {
    /// Where it goes.
    pub path: PathBuf,
    /// Most bytes; `None`: any that fit.
    pub max_size: Option<u64>,
    /// Bytes that stay free, if it goes to a file system; `None`: the default.
    pub reserve: Option<Option<u64>>,
}

/// What the thread has done, and the memory of a stored pack.
type Done = (Stored, Vec<u8>);

/// The protocol's end of the thread. Dropping it ends the thread after the present job, and waits
/// for that: files without a name of their own go with the thread.
pub struct Storing {
    thread: JobThread<Job, Done>,
    /// Jobs that have been given and not answered.
    waiting: usize,
    /// Number of the pack that the thread gets next; `None` once it has the manifest, and takes any
    /// pack.
    next: Option<u32>,
    /// Whether the thread gets all packs in their order, also after the manifest.
    is_ordered: bool,
    /// Packs that arrived before it, with what proves them. The window bounds their memory: what
    /// the sender has sent lies within a window of what has not arrived.
    early: BTreeMap<u32, (Pack, Proof)>,
    store: Rc<Store>,
    /// Bytes that will yet be taken of the disk.
    to_take: Arc<AtomicU64>,
}

impl Storing {
    /// Starts the thread; it wakes `waker` after each job. `headers`: takes those of packs that are
    /// stored. `damage`: damages every n-th block of
    /// the files, to test repairs; 0: none. `compares`: whether candidates are wanted.
    pub fn start(
        (target, kept, headers): (Target, &Kept, Option<Arc<StoredHeaders>>),
        (welcome, compares): (&Welcome, bool),
        limits: Limits,
        damage: u64,
        store: Rc<Store>,
        waker: Waker,
    ) -> Result<Storing, Error> {
        // A stream is written in its order, and the sender of one has to know which packs are
        // proven: all before a number.
        let is_stream = matches!(target, Target::Stream(_));
        let is_ordered = is_stream || welcome.len.is_none();
        let mut work = Work {
            target,
            compares,
            headers,
            limits,
            to_take: Arc::default(),
            offered: Offered {
                name: welcome.name.clone(),
                entries: welcome.entries as usize,
                tops: welcome.tops,
                len: welcome.len,
                digest: blake3::Hash::from_hex(&welcome.manifest).ok(),
                is_kept: !kept.is_empty(),
            },
            damage,
            blocks: 0,
            damaged: None,
            behind: VecDeque::new(),
        };
        work.note_space();
        let to_take = work.to_take.clone();
        let body = move |desk: &Desk<Job, Done>| {
            while let Some(job) = desk.next() {
                let done = work.work(job, desk);
                work.note_space();
                if let Err(error) = done {
                    if is_final(&error) {
                        work.target.discard();
                    }
                    desk.tell((Stored::Failed(error), Vec::new()));
                    return;
                }
            }
        };
        let thread = JobThread::start("fabricast-write", waker, body)?;
        Ok(Storing {
            // One that writes to a pipe may wait for its reader, and leaves nothing behind.
            thread: thread.awaited(!is_stream),
            waiting: 0,
            next: kept.is_empty().then_some(0),
            is_ordered,
            early: BTreeMap::new(),
            store,
            to_take,
        })
    }

    /// Bytes that will yet be taken of the disk, as the thread knows.
    pub fn to_take(&self) -> u64 {
        self.to_take.load(Ordering::Relaxed)
    }

    /// Gives the thread a job.
    fn give(&mut self, job: Job) {
        self.waiting += 1;
        self.thread.give(job);
    }

    /// What reads back stored bytes, for other threads.
    pub fn read_back(&self) -> ReadBack {
        ReadBack(self.thread.jobs())
    }

    /// The entries that files and directories were made of, once the set is complete; elsewhere
    /// none. Blocks until the thread has done what it was given before.
    pub fn take_manifest(&self) -> Manifest {
        let (answer, answered) = channel();
        self.thread.give(Job::Manifest(answer));
        answered.recv().unwrap_or_default()
    }

    /// Takes a pack that has arrived, and what proves it.
    pub fn arrived(&mut self, number: u32, pack: Pack, proof: Proof) {
        self.early.insert(number, (pack, proof));
        self.give_early();
    }

    /// Gives the thread the packs that it can store.
    fn give_early(&mut self) {
        loop {
            let number = match self.next {
                Some(next) => next,
                None => self.early.first_key_value().map_or(0, |first| *first.0),
            };
            let Some((pack, proof)) = self.early.remove(&number) else {
                return;
            };
            self.next = self.next.map(|next| next + 1);
            self.store.wait(pack.bytes.len() as u64);
            self.give(Job::Arrived(number, pack, proof));
        }
    }

    /// Counts a pack as stored that is here from an earlier run.
    pub fn keep(&mut self, number: u32, hash: [u8; HASH]) {
        self.give(Job::Keep(number, hash));
    }

    /// Counts files as stored that remain, and packs all of whose files remain.
    pub fn remain(&mut self, files: Vec<Remaining>, packs: Vec<(u32, Option<Header>)>) {
        self.give(Job::Remain(files, packs));
    }

    /// Takes the damaged pack, once it is proven.
    pub fn mended(&mut self, pack: Pack, header: Header) {
        self.give(Job::Mended(pack, header));
    }

    /// Ends the set, of which every pack is stored.
    pub fn finish(&mut self, key: [u8; 32], node: u32) {
        self.give(Job::Finish(key, node));
    }

    /// What the thread has done, if anything; does not block.
    pub fn done(&mut self) -> Option<Stored> {
        let (stored, memory) = match self.thread.next() {
            Ok(done) => done?,
            // An error of the work comes before the end, and nobody asks again after it.
            Err(error) => return Some(Stored::Failed(error)),
        };
        match stored {
            Stored::Proven | Stored::Looked { .. } | Stored::Surplus(_) | Stored::Copied(_) => {}
            Stored::Manifest => {
                self.next = self.next.filter(|_| self.is_ordered);
                self.give_early();
            }
            Stored::Pack(_) => {
                self.waiting -= 1;
                self.store.done(memory.len() as u64);
                self.store.keep(memory);
            }
            Stored::Remain(_) | Stored::Damaged(_) | Stored::Finished(_) | Stored::Failed(_) => {
                self.waiting -= 1;
            }
        }
        Some(stored)
    }

    /// Whether the thread has something to do. Packs behind one that has not arrived are nothing to
    /// do.
    pub fn is_busy(&self) -> bool {
        self.waiting > 0
    }
}

/// What the sender offered.
struct Offered {
    name: String,
    entries: usize,
    /// Number of entries at the top.
    tops: u32,
    /// Bytes of all files together; `None`: a stream.
    len: Option<u64>,
    /// The digest of the manifest, if the sender has told it.
    digest: Option<blake3::Hash>,
    /// Whether the manifest is here from an earlier run.
    is_kept: bool,
}

/// The thread's part.
struct Work {
    target: Target,
    /// Whether candidates are looked for before anything is made.
    compares: bool,
    /// The headers of the packs that are stored, if others may get them.
    headers: Option<Arc<StoredHeaders>>,
    /// How much the set may have.
    limits: Limits,
    /// Bytes that the set will yet take of the disk.
    to_take: Arc<AtomicU64>,
    offered: Offered,
    damage: u64,
    /// Blocks of files so far.
    blocks: u64,
    /// Number of the pack that is being repaired, if one is.
    damaged: Option<u32>,
    /// Packs behind the one that is being repaired.
    behind: VecDeque<(u32, Pack, Proof)>,
}

impl Work {
    fn work(&mut self, job: Job, desk: &Desk<Job, Done>) -> Result<(), Error> {
        match job {
            Job::Arrived(number, pack, proof) => self.behind.push_back((number, pack, proof)),
            Job::Keep(number, hash) => {
                if let (Some(header), Some(headers)) = (self.target.keep(&hash)?, &self.headers) {
                    headers.add(number, header);
                }
                desk.tell((Stored::Proven, Vec::new()));
                desk.tell((Stored::Pack(number), Vec::new()));
            }
            Job::Remain(files, packs) => {
                self.target.remain(files)?;
                if let Some(headers) = &self.headers {
                    for (number, header) in packs {
                        header
                            .into_iter()
                            .for_each(|header| headers.add(number, header));
                    }
                }
                desk.tell((Stored::Remain(self.target.present()), Vec::new()));
            }
            Job::Mended(pack, header) => {
                let Some(number) = self.damaged.take() else {
                    return Err(contradiction());
                };
                self.store(number, pack, &header, desk)?;
            }
            Job::Finish(key, node) => {
                if !self.has_manifest() {
                    return Err(contradiction());
                }
                let to_take = self.to_take.clone();
                let secret = self.target.finish(key, &mut |bytes| {
                    let left = to_take.load(Ordering::Relaxed).saturating_sub(bytes);
                    to_take.store(left, Ordering::Relaxed);
                    desk.tell((Stored::Copied(bytes), Vec::new()));
                    match desk.is_over() {
                        true => Err(Error::Interrupted),
                        false => Ok(()),
                    }
                })?;
                let finished = Finished {
                    proof: secret.map(|secret| secret.proof(node).to_string()),
                    outcome: self.target.outcome(),
                };
                desk.tell((Stored::Finished(finished), Vec::new()));
            }
            // Nobody may wait for the answer any more.
            Job::ReadBack(spans, answer) => _ = answer.send(self.target.read_back(&spans)),
            Job::Manifest(answer) => _ = answer.send(self.target.take_manifest()),
        }
        while self.damaged.is_none()
            && let Some((number, mut pack, proof)) = self.behind.pop_front()
        {
            let hash = match proof {
                Proof::Header(header) => {
                    self.store(number, pack, &header, desk)?;
                    continue;
                }
                Proof::Hash(hash) => hash,
            };
            self.spoil(&mut pack);
            let repair = BlockRepair::new(number, pack, hash)?;
            if !repair.is_done() {
                self.damaged = Some(number);
                desk.tell((Stored::Damaged(repair), Vec::new()));
            } else if let Some((pack, header)) = repair.into_pack() {
                self.store(number, pack, &header, desk)?;
            }
        }
        Ok(())
    }

    /// Tells how much the set will yet take of the disk.
    fn note_space(&self) {
        let to_take = self.target.to_take(self.offered.len.unwrap_or(0));
        self.to_take.store(to_take, Ordering::Relaxed);
    }

    /// Whether all pages of the manifest are there.
    fn has_manifest(&self) -> bool {
        let (manifest, offered) = (self.target.manifest(), &self.offered);
        manifest.entries().len() == offered.entries
            && manifest.tops() == offered.tops
            && manifest.known_len() == offered.len
    }

    /// Stores a proven pack.
    fn store(
        &mut self,
        number: u32,
        pack: Pack,
        header: &Header,
        desk: &Desk<Job, Done>,
    ) -> Result<(), Error> {
        desk.tell((Stored::Proven, Vec::new()));
        match &header.content {
            // It is here already; this sender has cut it in other pages.
            Content::Page if self.offered.is_kept => {}
            Content::Page => {
                match self.compares {
                    true => self.target.take_page(pack.payload())?,
                    false => self.target.add_page(pack.payload())?,
                }
                let manifest = self.target.manifest();
                let first = manifest.entries().first();
                let is_other = first.is_some_and(|e| *e.name != *self.offered.name.as_bytes());
                let is_more = manifest.entries().len() > self.offered.entries
                    || manifest.len() > self.offered.len.unwrap_or(0);
                if is_other || is_more {
                    return Err(contradiction());
                }
                self.check_copies()?;
                if self.has_manifest() {
                    let digest = self.offered.digest;
                    if digest.is_some_and(|digest| digest != self.target.manifest().digest()) {
                        return Err(contradiction());
                    }
                    if self.compares {
                        self.look(desk)?;
                    }
                    if let Some(surplus) = self.target.surplus()? {
                        desk.tell((Stored::Surplus(surplus), Vec::new()));
                    }
                    desk.tell((Stored::Manifest, Vec::new()));
                }
            }
            Content::Pieces(_) if !self.has_manifest() => return Err(contradiction()),
            Content::Pieces(pieces) => {
                self.check_limits(pieces)?;
                let bytes = &pack.bytes[..pack.header];
                self.target.write(bytes, pieces, pack.payload())?;
                if let Some(headers) = &self.headers {
                    headers.add(number, header.clone());
                }
            }
        }
        desk.tell((Stored::Pack(number), pack.bytes));
        Ok(())
    }

    /// Finds the candidates before anything is made.
    fn look(&mut self, desk: &Desk<Job, Done>) -> Result<(), Error> {
        let until = Instant::now() + LOOKING;
        let mut is_cut = false;
        let go_on = &mut || {
            is_cut = Instant::now() >= until;
            !is_cut && !desk.is_over()
        };
        if let Some(candidates) = self.target.find_candidates(go_on) {
            desk.tell((Stored::Looked { candidates, is_cut }, Vec::new()));
        }
        self.target.make_places()
    }

    /// Checks that a set whose length was not known does not become too long.
    fn check_limits(&self, pieces: &[Piece]) -> Result<(), Error> {
        if self.offered.len.is_some() {
            return Ok(());
        }
        let limits = &self.limits;
        let here: u64 = pieces.iter().map(Piece::size).sum();
        let end = pieces.iter().map(Piece::end).max().unwrap_or(0);
        if let Some(most) = limits.max_size.filter(|most| end > *most) {
            return Err(Error::too_long(&limits.path, end, most, MAX_SIZE));
        }
        match limits.reserve {
            Some(reserve) => check_space(&limits.path, here, reserve),
            None => Ok(()),
        }
    }

    /// Checks that the files fit together with the copies that are made of some of them.
    fn check_copies(&self) -> Result<(), Error> {
        let (limits, manifest) = (&self.limits, self.target.manifest());
        let copied = manifest.copied();
        if copied == 0 {
            return Ok(());
        }
        let len = self.offered.len.unwrap_or(0);
        let all = len + copied;
        if let Some(most) = limits.max_size.filter(|most| all > *most) {
            return Err(Error::too_long(&limits.path, all, most, MAX_SIZE));
        }
        match (&self.target, limits.reserve) {
            (Target::Tree(_), Some(reserve)) => {
                check_space(&limits.path, self.target.to_take(len), reserve)
            }
            _ => Ok(()),
        }
    }

    /// Damages a pack on purpose.
    fn spoil(&mut self, pack: &mut Pack) {
        if self.damage == 0 {
            return;
        }
        let bytes = &pack.bytes[..pack.header];
        let header = Header::decode(bytes, pack.payload().len());
        if header.is_none_or(|h| h.content == Content::Page) {
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

/// Whether another run would fail, too, or what is kept for it is in the way. A disk that fails may
/// work later, and a user can mend a wrong use or go on after an interruption.
fn is_final(error: &Error) -> bool {
    !matches!(
        error,
        Error::Io { .. } | Error::Usage(_) | Error::Interrupted
    )
}

/// The error for a sender whose manifest is not that of its offer.
fn contradiction() -> Error {
    Error::Integrity("the sender sends another set than it offered".into())
}

#[cfg(test)]
impl ReadBack {
    /// What a thread reads back that answers so.
    pub fn answering(answer: impl Fn(&[Span]) -> Option<Vec<u8>> + Send + 'static) -> ReadBack {
        let (jobs, to_do) = channel();
        std::thread::spawn(move || {
            for job in to_do {
                if let Job::ReadBack(spans, to) = job {
                    let _ = to.send(answer(&spans));
                }
            }
        });
        ReadBack(Jobs::by(jobs))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_another_run_can_go_on_with_is_kept() {
        let disk = Error::io("writing a file", io::Error::from_raw_os_error(5));
        for error in [disk, Error::Interrupted, Error::Usage("wrong".into())] {
            assert!(!is_final(&error), "{error}");
        }
        let full = Error::writing("file".as_ref(), io::ErrorKind::StorageFull);
        for error in [full, contradiction(), Error::Exists("file".into())] {
            assert!(is_final(&error), "{error}");
        }
    }
}
