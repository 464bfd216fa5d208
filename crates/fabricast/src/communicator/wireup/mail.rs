//! Messages between processes, over the connections of `peers`, whose thread carries them. Each
//! process has a connection to rank 0 alone, so all messages go to it or come from it.

use std::mem;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::waker::Waker;

/// A message: the rank to which it goes, or from which it comes, and its bytes.
pub(crate) type Letter = (u32, Vec<u8>);

/// What arrives from a process that has said farewell: no message is empty.
pub(crate) const FAREWELL_LETTER: &[u8] = &[];

/// What waits to be sent, and what has arrived.
pub(crate) struct Mail {
    outgoing: Mutex<Vec<Letter>>,
    incoming: Mutex<Vec<Letter>>,
    /// `incoming` is not empty: the engine reads this without the lock.
    arrived: AtomicBool,
    /// Wakes the thread that carries the messages.
    carrier: Arc<OwnedFd>,
    /// Wakes the thread that reads them while no caller does.
    reader: OnceLock<Waker>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mail {
    pub fn new(carrier: Arc<OwnedFd>) -> Mail {
        Mail {
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            arrived: AtomicBool::new(false),
            carrier,
            reader: OnceLock::new(),
        }
    }

    /// From now on, a message that arrives wakes this thread.
    pub fn wakes(&self, reader: Waker) {
        let _ = self.reader.set(reader);
    }

    /// Sends a message. It is lost if the process is.
    pub fn send(&self, to: u32, bytes: Vec<u8>) {
        locked(&self.outgoing).push((to, bytes));
        let _ = rustix::io::write(&*self.carrier, &1u64.to_ne_bytes());
    }

    /// What is to be carried.
    pub fn collect(&self) -> Vec<Letter> {
        mem::take(&mut *locked(&self.outgoing))
    }

    /// Delivers a message that has arrived.
    pub fn deliver(&self, from: u32, bytes: Vec<u8>) {
        locked(&self.incoming).push((from, bytes));
        self.arrived.store(true, Ordering::Release);
        if let Some(reader) = self.reader.get() {
            reader.wake();
        }
    }

    /// The messages that have arrived since the last call. Cheap if there are none.
    pub fn take(&self) -> Vec<Letter> {
        match self.arrived.swap(false, Ordering::AcqRel) {
            true => mem::take(&mut *locked(&self.incoming)),
            false => Vec::new(),
        }
    }

    /// Whether any message has arrived.
    pub fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Acquire)
    }
}
