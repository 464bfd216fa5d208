//! Workers: threads that read bytes for receivers and write to their connections (P3.7, spec 7.8).
//!
//! A connection gets a worker when its receiver may request bytes. From then on this worker alone
//! writes there, so that everything keeps its order. A disk may take long, and the control thread
//! hears all receivers: so it reads no files. Each worker has a limited number of receivers, and
//! none of them can hold the others up for longer than one read takes.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::blocks::Blocks;
use super::cpus::Cpus;
use super::message::Need;
use super::output::{Gone, Item, Output};
use crate::error::Error;
use crate::setting::{RECEIVERS_PER_WORKER, WORKER_CPUS, WORKERS};
use crate::waker::Waker;

/// How many workers a sender has, and where they run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerPlan {
    /// Receivers that a worker has before another worker starts, at least 1.
    pub receivers_per_worker: usize,
    /// Most workers, at least 1; when there are so many, the one with the fewest receivers takes
    /// more. `None`: as many as this process may use CPUs.
    pub workers_max: Option<usize>,
    /// CPUs to which the workers are bound, in turn; `None`: they run on any CPU.
    pub cpus: Option<Cpus>,
}

impl Default for WorkerPlan {
    /// Eight receivers for each worker: a slow read holds up no more than seven others, and the
    /// threads are few.
    fn default() -> WorkerPlan {
        WorkerPlan {
            receivers_per_worker: 8,
            workers_max: None,
            cpus: None,
        }
    }
}

impl WorkerPlan {
    /// Checks that there can be such workers.
    ///
    /// # Errors
    /// A number is zero, or this process may not use one of the CPUs.
    pub fn check(&self) -> Result<(), Error> {
        if self.receivers_per_worker == 0 {
            let text = format!("a worker needs at least one receiver ({RECEIVERS_PER_WORKER})");
            return Err(Error::Usage(text));
        }
        if self.workers_max == Some(0) {
            return Err(Error::Usage(format!(
                "receivers get what they lack from workers, so there is at least one ({WORKERS})"
            )));
        }
        let checked = self.cpus.as_ref().map_or(Ok(()), Cpus::check);
        checked.map_err(|why| Error::Usage(format!("{why} ({WORKER_CPUS})")))
    }
}

/// Which worker has how many receivers.
struct Assignment {
    /// Receivers that a worker has before another one starts.
    each: usize,
    /// Most workers.
    most: usize,
    /// The number of receivers of each worker.
    receivers: Vec<usize>,
}

impl Assignment {
    /// Gives a receiver to the first worker that has room, else to a new one, else to the worker
    /// with the fewest. Returns the worker's number.
    fn add(&mut self) -> usize {
        let has_room = self.receivers.iter().position(|count| *count < self.each);
        let worker = has_room.unwrap_or_else(|| {
            if self.receivers.len() < self.most {
                self.receivers.push(0);
                return self.receivers.len() - 1;
            }
            let fewest = self.receivers.iter().enumerate().min_by_key(|(_, n)| **n);
            fewest.map_or(0, |(worker, _)| worker)
        });
        self.receivers[worker] += 1;
        worker
    }

    /// A receiver of this worker is gone.
    fn remove(&mut self, worker: usize) {
        self.receivers[worker] -= 1;
    }

    /// The last worker could not be started: there are no more, and its receiver has another one.
    fn refuse_last(&mut self) -> usize {
        self.receivers.pop();
        self.most = self.receivers.len();
        self.add()
    }
}

/// What a worker is to do for a connection.
pub enum Order {
    /// Write to it from now on.
    Begin(Output),
    /// Write this, too.
    Put(Item),
    /// Answer this request.
    Need(Need),
    /// Close it when everything is written.
    Close,
    /// Forget it: it is closed.
    Drop,
}

/// What a worker tells of a connection.
pub enum Report {
    /// It can write no more there, or may not.
    Gone(Gone),
    /// Everything is written before the connection closes. The worker has nothing to do with it any
    /// more.
    Done(Output),
}

/// The number of frames of reliable channels that each worker has sent.
#[derive(Clone, Default)]
pub struct WorkerCounts(Arc<Mutex<Vec<Arc<AtomicU64>>>>);

impl WorkerCounts {
    fn add(&self, count: Arc<AtomicU64>) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.push(count);
    }

    /// The numbers, in the order in which the workers have started.
    pub fn values(&self) -> Vec<u64> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }
}

/// The control thread's end of a worker.
struct Handle {
    orders: Sender<(u64, Order)>,
    wake: Waker,
    /// Whether it has orders that it does not know of yet.
    has_orders: bool,
    thread: JoinHandle<()>,
}

/// The workers of a rendezvous. Dropping it ends them, and waits until they have ended.
pub struct Workers {
    plan: WorkerPlan,
    assignment: Assignment,
    handles: Vec<Handle>,
    counts: WorkerCounts,
    blocks: Arc<dyn Blocks>,
    tell: Sender<(u64, Report)>,
    reports: Receiver<(u64, Report)>,
    /// Wakes the control thread.
    control: Waker,
}

impl Workers {
    /// Starts the first worker. A report wakes `control`.
    pub fn start(plan: WorkerPlan, blocks: Arc<dyn Blocks>, control: Waker) -> io::Result<Workers> {
        let (tell, reports) = channel();
        let cpus = || thread::available_parallelism().map_or(1, usize::from);
        let mut workers = Workers {
            assignment: Assignment {
                each: plan.receivers_per_worker.max(1),
                most: plan.workers_max.unwrap_or_else(cpus).max(1),
                receivers: vec![0],
            },
            plan,
            handles: Vec::new(),
            counts: WorkerCounts::default(),
            blocks,
            tell,
            reports,
            control,
        };
        workers.start_one()?;
        Ok(workers)
    }

    /// The number of frames of each worker.
    pub fn counts(&self) -> WorkerCounts {
        self.counts.clone()
    }

    fn start_one(&mut self) -> io::Result<()> {
        let number = self.handles.len();
        let (orders, to_do) = channel();
        let wake = Waker::new()?;
        let cpu = self.plan.cpus.as_ref().map(|cpus| cpus.nth(number));
        let sent = Arc::default();
        let mut worker = Worker {
            orders: to_do,
            wake: wake.clone(),
            outputs: BTreeMap::new(),
            blocks: self.blocks.clone(),
            tell: self.tell.clone(),
            control: self.control.clone(),
            sent: Arc::clone(&sent),
        };
        let thread = thread::Builder::new()
            // The kernel keeps 15 characters.
            .name(format!("fabricast-w{number}"))
            .spawn(move || {
                if let Some(Err(error)) = cpu.map(Cpus::bind) {
                    tracing::warn!(number, %error, "cannot bind the worker to its CPU");
                }
                while worker.turn() {}
            })?;
        self.counts.add(sent);
        self.handles.push(Handle {
            orders,
            wake,
            has_orders: false,
            thread,
        });
        Ok(())
    }

    /// Chooses the worker of a receiver, and returns its number.
    pub fn assign(&mut self) -> usize {
        let worker = self.assignment.add();
        if worker == self.handles.len()
            && let Err(error) = self.start_one()
        {
            tracing::warn!(%error, "cannot start another worker");
            return self.assignment.refuse_last();
        }
        worker
    }

    /// A worker has nothing to do with one of its receivers any more.
    pub fn release(&mut self, worker: usize) {
        self.assignment.remove(worker);
    }

    /// Queues an order for a worker, which learns of it by [`Workers::ring`].
    pub fn order(&mut self, worker: usize, key: u64, order: Order) {
        let handle = &mut self.handles[worker];
        // The send fails only if the worker has panicked, and then the panic has been printed.
        let _ = handle.orders.send((key, order));
        handle.has_orders = true;
    }

    /// Wakes the workers that have new orders.
    pub fn ring(&mut self) {
        for handle in &mut self.handles {
            if std::mem::take(&mut handle.has_orders) {
                handle.wake.wake();
            }
        }
    }

    /// What a worker tells of a connection, if anything.
    pub fn report(&self) -> Option<(u64, Report)> {
        self.reports.try_recv().ok()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for handle in std::mem::take(&mut self.handles) {
            drop(handle.orders);
            handle.wake.wake();
            let _ = handle.thread.join();
        }
    }
}

/// A worker's own state.
struct Worker {
    orders: Receiver<(u64, Order)>,
    wake: Waker,
    outputs: BTreeMap<u64, Output>,
    blocks: Arc<dyn Blocks>,
    tell: Sender<(u64, Report)>,
    control: Waker,
    sent: Arc<AtomicU64>,
}

impl Worker {
    /// Runs one round of `poll`; false when there are no more orders to come.
    fn turn(&mut self) -> bool {
        let blocked = |output: &Output| output.has_output() && output.is_blocked();
        let is_busy = |output: &Output| output.has_output() && !output.is_blocked();
        let pause = self.outputs.values().any(is_busy).then_some(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        for output in self.outputs.values().filter(|output| blocked(output)) {
            let stream = output.stream().as_fd();
            fds.push(PollFd::from_borrowed_fd(stream, PollFlags::OUT));
        }
        // If a signal interrupts `poll`, everything is tried again.
        let _ = poll(&mut fds, pause.as_ref());
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        drop(fds);
        let outputs = self.outputs.values_mut().filter(|output| blocked(output));
        for (output, _) in outputs.zip(&ready[1..]).filter(|(_, ready)| **ready) {
            output.unblock();
        }
        if ready[0] {
            self.wake.hush();
        }
        loop {
            match self.orders.try_recv() {
                Ok((key, order)) => self.obey(key, order),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        let due = |output: &Output| is_busy(output) || output.is_done();
        let keys = self.outputs.iter().filter(|(_, output)| due(output));
        let keys: Vec<u64> = keys.map(|(key, _)| *key).collect();
        for key in keys {
            self.write(key);
        }
        true
    }

    fn obey(&mut self, key: u64, order: Order) {
        match (order, self.outputs.get_mut(&key)) {
            (Order::Begin(mut output), _) => {
                output.count_in(&self.sent);
                self.outputs.insert(key, output);
            }
            (Order::Drop, _) => drop(self.outputs.remove(&key)),
            (Order::Put(item), Some(output)) => {
                if let Err(gone) = output.put(item) {
                    self.gone(key, gone);
                }
            }
            (Order::Need(need), Some(output)) => output.need(need),
            (Order::Close, Some(output)) => output.close(),
            // After an error the worker does not know the connection, and the control thread does.
            (_, None) => {}
        }
    }

    fn write(&mut self, key: u64) {
        let Some(output) = self.outputs.get_mut(&key) else {
            return;
        };
        match output.flush(&*self.blocks) {
            Err(gone) => self.gone(key, gone),
            Ok(()) if output.is_done() => {
                if let Some(output) = self.outputs.remove(&key) {
                    self.report(key, Report::Done(output));
                }
            }
            Ok(()) => {}
        }
    }

    fn gone(&mut self, key: u64, gone: Gone) {
        match (&gone, self.outputs.get_mut(&key)) {
            // The peer is told so before the connection closes.
            (Gone::Wrong(_), Some(output)) => output.drop_needs(),
            _ => drop(self.outputs.remove(&key)),
        }
        self.report(key, Report::Gone(gone));
    }

    fn report(&self, key: u64, report: Report) {
        if self.tell.send((key, report)).is_ok() {
            self.control.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(each: usize, most: usize) -> Assignment {
        Assignment {
            each,
            most,
            receivers: vec![0],
        }
    }

    fn add(assignment: &mut Assignment, count: usize) -> Vec<usize> {
        (0..count).map(|_| assignment.add()).collect()
    }

    #[test]
    fn a_worker_is_full_before_the_next_one_starts() {
        let mut assignment = assignment(2, 9);
        assert_eq!(add(&mut assignment, 5), [0, 0, 1, 1, 2]);
        // Places that are free again are used before another worker starts.
        assignment.remove(0);
        assignment.remove(1);
        assert_eq!(add(&mut assignment, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn beyond_the_most_workers_those_with_the_fewest_take_more() {
        let mut assignment = assignment(1, 3);
        assert_eq!(add(&mut assignment, 7), [0, 1, 2, 0, 1, 2, 0]);
        assignment.remove(1);
        assert_eq!(add(&mut assignment, 2), [1, 1]);
        // Every number of receivers and workers: no worker has two more than another.
        for most in 1..6 {
            let mut assignment = self::assignment(1, most);
            for count in 1..40 {
                assignment.add();
                let counts = &assignment.receivers;
                assert_eq!(counts.iter().sum::<usize>(), count);
                assert!(counts.len() <= most);
                assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
            }
        }
    }

    #[test]
    fn a_worker_that_cannot_start_leaves_its_receiver_to_another() {
        let mut assignment = assignment(1, 9);
        assert_eq!(add(&mut assignment, 3), [0, 1, 2]);
        assert_eq!(assignment.add(), 3);
        assert_eq!(assignment.refuse_last(), 0);
        assert_eq!(assignment.receivers, [2, 1, 1]);
        assert_eq!(add(&mut assignment, 3), [1, 2, 0]);
    }
}
