//! Reads and hashes what receivers request again, on a thread of its own. A disk may take long, and
//! the control thread serves all receivers.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::blocks::Blocks;
use super::frame;
use super::message::Need;
use crate::waker::Waker;

/// The result of a job: a bulk frame, or an error of the source.
pub type Answer = Result<Arc<[u8]>, String>;

/// The control thread's end of the reading thread. Dropping it ends the thread after the present
/// job.
pub struct BlockServer {
    jobs: Sender<(u64, Need)>,
    done: Receiver<(u64, Answer)>,
}

impl BlockServer {
    /// Starts the thread; it wakes `wake` after each job.
    pub fn start(blocks: Arc<dyn Blocks>, wake: Waker) -> io::Result<BlockServer> {
        let (jobs, to_do) = channel::<(u64, Need)>();
        let (tell, done) = channel();
        thread::Builder::new()
            .name("fabricast-mend".into())
            .spawn(move || {
                for (key, need) in to_do {
                    if tell.send((key, answer(&*blocks, &need))).is_err() {
                        return;
                    }
                    wake.wake();
                }
            })?;
        Ok(BlockServer { jobs, done })
    }

    /// Queues a job for the connection `key`. A connection has one job at a time.
    pub fn queue(&self, key: u64, need: Need) {
        // The send fails only if the thread panicked, and then the panic has been printed.
        let _ = self.jobs.send((key, need));
    }

    /// The result of a finished job, if there is one.
    pub fn done(&self) -> Option<(u64, Answer)> {
        self.done.try_recv().ok()
    }
}

fn answer(blocks: &dyn Blocks, need: &Need) -> Answer {
    let mut bytes = Vec::new();
    blocks.answer(need, &mut bytes)?;
    let mut frame = Vec::with_capacity(frame::HEAD + bytes.len());
    frame::put_bulk(&mut frame, &bytes);
    Ok(frame.into())
}
