//! What callers and the progress thread share.

use std::sync::{Mutex, MutexGuard};

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
    pub fn lock(&self) -> MutexGuard<'_, Engine<O>> {
        self.engine.lock().unwrap_or_else(|e| {
            // A thread panicked while it held the lock, and reported that. Its caller got an error
            // and took its memory back.
            let mut engine = e.into_inner();
            engine.breaks(&"a thread has panicked in it");
            engine
        })
    }
}
