//! Proves and stores complete files, on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use fabricast_proto::ibrmp::FileId;

use super::Fingerprint;
use crate::error::Error;
use crate::object::UnprovenFile;
use crate::waker::Waker;

/// A file, and what the sender says that it is.
type Job = (FileId, UnprovenFile, String);

/// What has become of a file: its fingerprint, or why it has no name.
pub type Stored = (FileId, Result<Fingerprint, Error>);

/// The protocol's end of the thread. Dropping it ends the thread after the present file, and waits
/// for that.
pub struct Storing {
    jobs: Option<Sender<Job>>,
    done: Receiver<Stored>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Storing {
    /// Starts the thread, which wakes `waker` after each file.
    pub fn start(waker: Waker) -> Result<Storing, Error> {
        let (jobs, to_do) = channel::<Job>();
        let (tell, done) = channel();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = thread::Builder::new()
            .name("fabricast-write".into())
            .spawn(move || {
                for (id, file, digest) in to_do {
                    if over.load(Ordering::Relaxed)
                        || tell.send((id, store(file, &digest))).is_err()
                    {
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

    /// Has a complete file proven by `digest`, and stored.
    pub fn store(&self, id: FileId, file: UnprovenFile, digest: String) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send((id, file, digest));
        }
    }

    /// The next file that was stored or refused, if there is one; does not block.
    pub fn done(&self) -> Option<Stored> {
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
fn store(file: UnprovenFile, digest: &str) -> Result<Fingerprint, Error> {
    let fingerprint = Fingerprint(file.hash()?);
    if !Fingerprint::is(&fingerprint.digest(), digest) {
        let path = file.path();
        return Err(Error::Integrity(format!(
            "what arrived of {} is not what the sender sent: a datagram was damaged or forged on \
             the way; it was not stored",
            path.display()
        )));
    }
    file.finish()?;
    Ok(fingerprint)
}
