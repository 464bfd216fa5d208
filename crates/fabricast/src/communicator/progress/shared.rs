//! What callers and the progress thread share.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard};

use super::state::ProgressState;
use crate::communicator::operations::engine::Engine;
use crate::net::Clock;
use crate::object::Divisible;

/// What callers and the progress thread share.
pub(crate) struct Shared<O: Divisible> {
    pub engine: Mutex<Engine<O>>,
    pub clock: Clock,
    /// Number of callers that block.
    pub inside: AtomicUsize,
    /// When a caller was last inside, in ns of the clock.
    pub called: AtomicU64,
    /// Set by a caller whose broadcast waits to be coalesced with the next ones.
    pub hurry: AtomicBool,
    /// The last caller left copies behind, which receivers may NACK at any time.
    pub copies: AtomicBool,
    /// What the progress thread is doing.
    pub thread: ProgressState,
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
