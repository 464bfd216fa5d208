//! Reads and hashes what receivers request again, on a thread of its own. A disk may take long, and
//! the control thread serves all receivers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::blocks::Blocks;
use super::frame;
use super::message::Need;

/// A request to read from the source.
#[derive(Clone, PartialEq, Debug)]
pub enum Job {
    /// The hash list, from this byte on.
    List(usize),
    /// A part of a block, or hashes of its pieces.
    Block(u64, Need),
}

/// The result of a job: a bulk frame, and what is left of the job; or an error of the source.
pub type Answer = Result<(Arc<[u8]>, Option<Job>), String>;

/// The control thread's end of the reading thread. Dropping it ends the thread after the present
/// job.
pub struct BlockServer {
    jobs: Sender<(u64, Job)>,
    done: Receiver<(u64, Answer)>,
}

impl BlockServer {
    /// Starts the thread; it writes to `wake` after each job.
    pub fn start(blocks: Arc<dyn Blocks>, wake: Arc<OwnedFd>) -> io::Result<BlockServer> {
        let (jobs, to_do) = channel::<(u64, Job)>();
        let (tell, done) = channel();
        thread::Builder::new()
            .name("fabricast-mend".into())
            .spawn(move || {
                for (key, job) in to_do {
                    if tell.send((key, answer(&*blocks, &job))).is_err() {
                        return;
                    }
                    let _ = rustix::io::write(&wake, &1u64.to_ne_bytes());
                }
            })?;
        Ok(BlockServer { jobs, done })
    }

    /// Queues a job for the connection `key`. A connection has one job at a time.
    pub fn queue(&self, key: u64, job: Job) {
        // The send fails only if the thread panicked, and then the panic has been printed.
        let _ = self.jobs.send((key, job));
    }

    /// The result of a finished job, if there is one.
    pub fn done(&self) -> Option<(u64, Answer)> {
        self.done.try_recv().ok()
    }
}

fn answer(blocks: &dyn Blocks, job: &Job) -> Answer {
    let mut bytes = Vec::new();
    let rest = match job {
        Job::Block(block, need) => {
            blocks.answer(*block, need, &mut bytes)?;
            None
        }
        Job::List(from) => {
            let len = blocks.list(*from, frame::BULK_MAX, &mut bytes);
            let end = from + bytes.len();
            let len = len.ok_or("the list is not there yet")?;
            (end < len).then_some(Job::List(end))
        }
    };
    let mut frame = Vec::with_capacity(frame::HEAD + bytes.len());
    frame::put_bulk(&mut frame, &bytes);
    Ok((frame.into(), rest))
}
