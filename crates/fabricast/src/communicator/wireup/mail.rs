//! Messages between processes, over the connections of `peers`, whose thread carries them. Each
//! process has a connection to rank 0 alone, so all messages go to it or come from it.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::waker::Waker;

/// A message: the rank to which it goes, or from which it comes, and its bytes.
pub(crate) type Letter = (u32, Vec<u8>);

/// What arrives from a process that has said farewell: no message is empty.
pub(crate) const FAREWELL_LETTER: &[u8] = &[];

/// Most bytes of one process's messages that nobody has taken. Beyond that the process has to wait.
const UNREAD_MAX: usize = 1 << 20;

/// The messages that nobody has taken.
#[derive(Default)]
struct Inbox {
    letters: Vec<Letter>,
    /// Bytes of `letters`, by the process from which they come.
    unread: BTreeMap<u32, usize>,
    /// Whether a process waits until its messages are taken.
    held_back: bool,
}

/// What waits to be sent, and what has arrived.
pub(crate) struct Mail {
    outgoing: Mutex<Vec<Letter>>,
    incoming: Mutex<Inbox>,
    /// `incoming` is not empty: the engine reads this without the lock.
    arrived: AtomicBool,
    /// Wakes the thread that carries the messages.
    carrier: Waker,
    /// Wakes the thread that reads them while no caller does.
    reader: OnceLock<Waker>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mail {
    pub fn new(carrier: Waker) -> Mail {
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
        self.carrier.wake();
    }

    /// What is to be carried.
    pub fn collect(&self) -> Vec<Letter> {
        mem::take(&mut *locked(&self.outgoing))
    }

    /// Whether more messages of a process may be read. If not, the carrier is woken when they may.
    pub fn has_room(&self, from: u32) -> bool {
        let inbox = &mut *locked(&self.incoming);
        let full = inbox
            .unread
            .get(&from)
            .is_some_and(|&bytes| bytes >= UNREAD_MAX);
        inbox.held_back |= full;
        !full
    }

    /// Delivers a message that has arrived.
    pub fn deliver(&self, from: u32, bytes: Vec<u8>) {
        let mut inbox = locked(&self.incoming);
        *inbox.unread.entry(from).or_default() += bytes.len();
        inbox.letters.push((from, bytes));
        drop(inbox);
        self.arrived.store(true, Ordering::Release);
        if let Some(reader) = self.reader.get() {
            reader.wake();
        }
    }

    /// The messages that have arrived since the last call. Cheap if there are none.
    pub fn take(&self) -> Vec<Letter> {
        match self.arrived.swap(false, Ordering::AcqRel) {
            true => {
                let inbox = mem::take(&mut *locked(&self.incoming));
                if inbox.held_back {
                    self.carrier.wake();
                }
                inbox.letters
            }
            false => Vec::new(),
        }
    }

    /// Whether any message has arrived.
    pub fn has_arrived(&self) -> bool {
        self.arrived.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A process that sends without an end waits for the reader. Others do not wait with it.
    #[test]
    fn unread_messages_of_a_process_are_bounded() {
        let carrier = Waker::new().unwrap();
        let is_rung = || carrier.wait(Some(Duration::ZERO)).unwrap();
        let mail = Mail::new(carrier.clone());
        let mut count = 0;
        while mail.has_room(3) {
            mail.deliver(3, vec![7; 1 << 14]);
            count += 1;
            assert!(count <= 64);
        }
        assert!(mail.has_room(4));
        mail.deliver(4, vec![8]);
        assert!(!is_rung());
        assert_eq!(mail.take().len(), count + 1);
        // The thread that reads the connections is woken.
        assert!(is_rung());
        assert!(mail.has_room(3) && mail.take().is_empty());
    }
}
