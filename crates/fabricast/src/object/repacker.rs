//! Reads packs again that were sent before, on a thread of its own, for receivers that lack them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::PackIndex;
use super::pack::Pack;
use crate::waker::Waker;

/// The number of a pack, and the files that have failed by now.
type Job = (u32, BTreeSet<u32>);
/// The number of a pack, and the pack, or why it cannot be read again.
type Read = (u32, Result<Pack, String>);

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
                for (number, failed) in to_do {
                    if tell.send((number, index.pack(number, &failed))).is_err() {
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
