//! Reads packs again that were sent before, on a thread of its own, for receivers that lack them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::PackIndex;
use super::pack::Pack;
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

/// The protocol's end of the thread. Dropping it ends the thread after the present pack.
pub struct Repacker {
    jobs: Sender<Job>,
    packs: Receiver<Read>,
}

impl Repacker {
    /// Starts the thread; it wakes `waker` whenever it has a pack.
    pub fn start(index: Arc<PackIndex>, waker: Waker) -> Repacker {
        let (jobs, to_do) = channel::<Job>();
        let (tell, packs) = channel();
        thread::Builder::new()
            .name("fabricast-again".into())
            .spawn(move || {
                let mut lost = BTreeMap::new();
                for (number, failed) in to_do {
                    let known: BTreeSet<u32> = lost.keys().copied().collect();
                    let read = index.pack(number, &failed, &mut lost).map(|pack| {
                        let found = lost.iter().filter(|(file, _)| !known.contains(file));
                        let lost = found.map(|(file, why)| (*file, why.clone())).collect();
                        Again { pack, lost }
                    });
                    if tell.send((number, read)).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })
            .expect("the system gives us a thread");
        Repacker { jobs, packs }
    }

    /// Has a pack read, without what came of the files `failed`.
    pub fn read(&self, number: u32, failed: BTreeSet<u32>) {
        // The send fails only if the thread panicked, and then the panic has been printed.
        let _ = self.jobs.send((number, failed));
    }

    /// What the thread has read, if anything; does not block.
    pub fn next(&self) -> Option<Read> {
        self.packs.try_recv().ok()
    }
}
