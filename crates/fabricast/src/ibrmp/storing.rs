//! Proves and stores complete files, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use fabricast_proto::ibrmp::FileId;

use super::Fingerprint;
use super::fingerprint::Sections;
use crate::error::Error;
use crate::object::{FileMetadata, UnprovenFile};
use crate::waker::Waker;

/// What the sender says of a file that is complete here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// What proves its bytes, in hexadecimal ([`Fingerprint::digest`]).
    pub hash: String,
    /// What it is beside its bytes.
    pub metadata: FileMetadata,
}

/// A complete file, and what the sender says of it.
pub type Complete = (UnprovenFile, Told);

/// What has become of a file.
pub enum Stored {
    /// It is proven, and has its name.
    Named(Fingerprint),
    /// It is not what the sender has sent. The hash of each of its sections.
    Wrong(Complete, Vec<blake3::Hash>),
    /// It cannot be stored.
    Failed(Error),
}

/// The protocol's end of the thread. Dropping it ends the thread after the present file, and waits
/// for that.
pub struct Storing {
    jobs: Option<Sender<(FileId, Complete)>>,
    done: Receiver<(FileId, Stored)>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Storing {
    /// Starts the thread, which wakes `waker` after each file.
    pub fn start(waker: Waker) -> Result<Storing, Error> {
        let (jobs, to_do) = channel();
        let (tell, done) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = thread::Builder::new()
            .name("fabricast-write".into())
            .spawn(move || {
                for (id, (file, told)) in to_do {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let stored = store(file, told).unwrap_or_else(Stored::Failed);
                    if tell.send((id, stored)).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok(Storing {
            jobs: Some(jobs),
            done,
            is_over,
            thread: Some(thread),
        })
    }

    /// Has a complete file proven, and stored.
    pub fn store(&self, id: FileId, file: UnprovenFile, told: Told) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send((id, (file, told)));
        }
    }

    /// The next file that was handled, if there is one; does not block.
    pub fn done(&self) -> Option<(FileId, Stored)> {
        self.done.try_recv().ok()
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Proves and stores one file.
fn store(mut file: UnprovenFile, told: Told) -> Result<Stored, Error> {
    let mut sections = Sections::new(told.metadata.len);
    file.read_back(told.metadata.len, &mut |bytes| sections.update(bytes))?;
    let (fingerprint, sections) = sections.finish();
    if !Fingerprint::is(&fingerprint.digest(), &told.hash) {
        return Ok(Stored::Wrong((file, told), sections));
    }
    file.finish(&told.metadata)?;
    Ok(Stored::Named(fingerprint))
}
