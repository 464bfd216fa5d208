//! What callers and the progress thread share.

use std::ops::{Deref, DerefMut};
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use super::hand_over::HandOver;
use crate::communicator::operations::engine::Engine;
use crate::net::Clock;
use crate::object::Divisible;

/// What callers and the progress thread share.
pub(crate) struct Shared<O: Divisible> {
    pub engine: Mutex<Engine<O>>,
    pub clock: Clock,
    pub hand_over: HandOver,
}

impl<O: Divisible> Shared<O> {
    pub fn lock(&self) -> Locked<'_, O> {
        // A thread that panicked while it held the lock has marked the engine as broken.
        Locked(self.engine.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The engine, while no other thread uses it. If its thread panics, nobody uses the engine any
/// more, and nothing reads or writes callers' memory: the caller gets an error and takes its own
/// back.
pub(crate) struct Locked<'a, O: Divisible>(MutexGuard<'a, Engine<O>>);

impl<O: Divisible> Deref for Locked<'_, O> {
    type Target = Engine<O>;

    fn deref(&self) -> &Engine<O> {
        &self.0
    }
}

impl<O: Divisible> DerefMut for Locked<'_, O> {
    fn deref_mut(&mut self) -> &mut Engine<O> {
        &mut self.0
    }
}

impl<O: Divisible> Drop for Locked<'_, O> {
    fn drop(&mut self) {
        if thread::panicking() {
            // What the panic has left half done may panic once more.
            let breaks = || self.0.breaks(&"a thread has panicked in it");
            let _ = panic::catch_unwind(AssertUnwindSafe(breaks));
        }
    }
}
