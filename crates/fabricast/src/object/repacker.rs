//! Reads packs again that were sent before, on a thread of its own, for receivers that lack them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::PackIndex;
use super::pack::Pack;
use crate::error::Error;
use crate::job_thread::{Desk, JobThread};
use crate::waker::Waker;

/// The number of a pack, and the files that have failed by now.
type Job = (u32, BTreeSet<u32>);
/// The number of a pack, and the pack, or why it cannot be read again.
type Read = (u32, Result<Again, String>);

/// A pack that was read again.
pub struct Again {
    /// The pack.
    pub pack: Pack,
    /// The files that were found to have changed since they were sent, and why, each once. The pack
    /// says that those of its files failed that were found now or before.
    pub lost: Vec<(u32, String)>,
}

/// The protocol's end of the thread.
pub struct Repacker(JobThread<Job, Read>);

impl Repacker {
    /// Starts the thread; it wakes `waker` whenever it has a pack.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(index: Arc<PackIndex>, waker: Waker) -> Result<Repacker, Error> {
        let body = move |desk: &Desk<Job, Read>| {
            let mut lost = BTreeMap::new();
            while let Some((number, failed)) = desk.next() {
                let known: BTreeSet<u32> = lost.keys().copied().collect();
                let read = index.pack(number, &failed, &mut lost).map(|pack| {
                    let found = lost.iter().filter(|(file, _)| !known.contains(file));
                    let lost = found.map(|(file, why)| (*file, why.clone())).collect();
                    Again { pack, lost }
                });
                desk.tell((number, read));
            }
        };
        JobThread::start("fabricast-again", waker, body).map(Repacker)
    }

    /// Has a pack read, without what came of the files `failed`.
    pub fn read(&self, number: u32, failed: BTreeSet<u32>) {
        self.0.give((number, failed));
    }

    /// What the thread has read, if anything; does not block.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn next(&self) -> Result<Option<Read>, Error> {
        self.0.next()
    }
}
