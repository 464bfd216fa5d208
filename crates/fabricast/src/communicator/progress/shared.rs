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
    /// Callers that block.
    pub inside: AtomicUsize,
    /// When a caller was last inside, in ns of the clock.
    pub called: AtomicU64,
    /// Set by a caller that leaves something to be sent together with what comes next.
    pub hurry: AtomicBool,
    /// The last caller has left copies that others may ask for at any time.
    pub copies: AtomicBool,
    /// What the progress thread does.
    pub thread: ProgressState,
}

impl<O: Divisible> Shared<O> {
    pub fn lock(&self) -> MutexGuard<'_, Engine<O>> {
        self.engine.lock().unwrap_or_else(|e| {
            // A thread that panicked inside has said so. Its caller was told, and has taken back
            // what it had lent.
            let mut engine = e.into_inner();
            engine.breaks(&"a thread has panicked in it");
            engine
        })
    }
}
