//! Threads that work for another thread, and wake it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use crate::error::Error;
use crate::waker::Waker;

/// Starts a thread.
///
/// # Errors
/// The system does not give one: the user has as many as it may have, or there is no memory.
pub fn start(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let started = Builder::new().name(name.into()).spawn(body);
    started.map_err(|e| Error::io(format!("starting the thread {name}"), e))
}

/// The owner's end of a thread that does jobs, one after the other. `Job` is what it is given, and
/// `Done` what it tells. If the owner drops this, the thread ends after the job that it is at.
pub struct JobThread<Job, Done> {
    name: &'static str,
    jobs: Jobs<Job>,
    done: Receiver<Done>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    is_awaited: bool,
}

impl<Job: Send + 'static, Done: Send + 'static> JobThread<Job, Done> {
    /// Starts a thread. It wakes `waker` whenever it tells something, and when it ends.
    ///
    /// # Errors
    /// The system gives no thread, as for [`start`].
    pub fn start(
        name: &'static str,
        waker: Waker,
        body: impl FnOnce(&Desk<Job, Done>) + Send + 'static,
    ) -> Result<JobThread<Job, Done>, Error> {
        let (jobs, to_do) = channel();
        let (tell, done) = channel();
        let is_over = Arc::<AtomicBool>::default();
        let desk = Desk {
            jobs: to_do,
            tell: Some(tell),
            is_over: is_over.clone(),
            waker,
        };
        Ok(JobThread {
            name,
            jobs: Jobs::by(jobs),
            done,
            is_over,
            thread: Some(start(name, move || body(&desk))?),
            is_awaited: false,
        })
    }

    /// The same, but with `is_awaited` the owner that drops it waits for the end of the thread.
    pub fn awaited(mut self, is_awaited: bool) -> JobThread<Job, Done> {
        self.is_awaited = is_awaited;
        self
    }

    /// Gives the thread a job.
    pub fn give(&self, job: Job) {
        self.jobs.give(job);
    }

    /// The way for jobs, for other threads.
    pub fn jobs(&self) -> Jobs<Job> {
        self.jobs.clone()
    }

    /// What the thread has told, if anything; does not block.
    ///
    /// # Errors
    /// The thread has ended, and has told nothing more: it has panicked, or it had no more to do.
    pub fn next(&self) -> Result<Option<Done>, Error> {
        match self.done.try_recv() {
            Ok(done) => Ok(Some(done)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                let ended = io::Error::other("it has ended");
                Err(Error::io(format!("the thread {}", self.name), ended))
            }
        }
    }
}

impl<Job, Done> Drop for JobThread<Job, Done> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.jobs.close();
        if let Some(thread) = self.thread.take_if(|_| self.is_awaited) {
            // It has panicked at worst, and then the panic has been printed.
            let _ = thread.join();
        }
    }
}

/// The way for jobs to a thread. All clones are one way, and any thread may have one.
pub struct Jobs<Job>(Arc<Mutex<Option<Sender<Job>>>>);

impl<Job> Jobs<Job> {
    /// The way to the thread that has the other end of a channel.
    pub fn by(sender: Sender<Job>) -> Jobs<Job> {
        Jobs(Arc::new(Mutex::new(Some(sender))))
    }

    /// Gives the thread a job. A thread that has ended does not do it.
    pub fn give(&self, job: Job) {
        if let Some(jobs) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = jobs.send(job);
        }
    }

    fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<Job> Clone for Jobs<Job> {
    fn clone(&self) -> Jobs<Job> {
        Jobs(self.0.clone())
    }
}

/// The thread's own end.
pub struct Desk<Job, Done> {
    jobs: Receiver<Job>,
    /// `None` once the thread has ended.
    tell: Option<Sender<Done>>,
    is_over: Arc<AtomicBool>,
    waker: Waker,
}

impl<Job, Done> Desk<Job, Done> {
    /// The next job; blocks. `None`: the owner wants nothing more, and the thread should end.
    pub fn next(&self) -> Option<Job> {
        let job = self.jobs.recv().ok()?;
        (!self.is_over()).then_some(job)
    }

    /// Tells the owner something.
    pub fn tell(&self, done: Done) {
        if let Some(tell) = &self.tell {
            let _ = tell.send(done); // the owner may want nothing more
            self.waker.wake();
        }
    }

    /// Whether the owner wants nothing more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl<Job, Done> Drop for Desk<Job, Done> {
    fn drop(&mut self) {
        self.tell = None;
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn doubling(waker: &Waker) -> JobThread<u32, u32> {
        let body = |desk: &Desk<u32, u32>| {
            while let Some(job) = desk.next() {
                desk.tell(job.checked_mul(2).expect("a small number"));
            }
        };
        JobThread::start("fabricast-test", waker.clone(), body).unwrap()
    }

    /// What the thread tells next.
    fn next(thread: &JobThread<u32, u32>, waker: &Waker) -> Result<u32, Error> {
        loop {
            match thread.next() {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => assert!(waker.wait(Some(Duration::from_secs(10))).unwrap()),
                Err(error) => return Err(error),
            }
        }
    }

    #[test]
    fn jobs_are_done_in_their_order() {
        let waker = Waker::new().unwrap();
        let thread = doubling(&waker);
        thread.give(1);
        thread.jobs().give(2);
        assert_eq!(next(&thread, &waker).unwrap(), 2);
        assert_eq!(next(&thread, &waker).unwrap(), 4);
        let jobs = thread.jobs();
        drop(thread.awaited(true));
        jobs.give(3);
    }

    /// The owner of a thread that has panicked would wait for ever if nobody told it.
    #[test]
    fn the_end_of_a_thread_is_an_error() {
        let waker = Waker::new().unwrap();
        let thread = doubling(&waker);
        thread.give(u32::MAX);
        let error = next(&thread, &waker).unwrap_err().to_string();
        assert_eq!(error, "the thread fabricast-test: it has ended");
    }
}
