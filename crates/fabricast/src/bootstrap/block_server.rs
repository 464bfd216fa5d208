//! Reads and hashes what receivers need again, on a thread of its own: a disk may take long, and
//! the control thread is there for everybody.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use super::blocks::Blocks;
use super::frame;
use super::message::Need;

/// Something to be read.
#[derive(Clone, PartialEq, Debug)]
pub enum Job {
    /// The hash list, from this byte.
    List(usize),
    /// Something of a block.
    Block(u64, Need),
}

/// What was read: a bulk frame, and what is left of the job.
pub type Answer = Result<(Arc<[u8]>, Option<Job>), String>;

/// The thread's end that the control thread has. Dropped, it ends the thread after the job at hand.
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

    /// Queues a job of a connection, which has one at a time.
    pub fn queue(&self, key: u64, job: Job) {
        // The thread ends only when this is dropped, or it panicked and has said so.
        let _ = self.jobs.send((key, job));
    }

    /// A job that is done, if there is one.
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
