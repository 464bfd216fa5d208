//! Wakes whoever waits in the transport, from any other thread.

use std::sync::{Arc, OnceLock};

/// Rung by threads that have something for the protocol thread. Until [`Waker::connect`] has said
/// what to wake it is silent, so that threads may start before the transport is open.
#[derive(Clone, Default)]
pub struct Waker(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Waker {
    /// A silent waker.
    pub fn new() -> Waker {
        Waker::default()
    }

    /// From now on [`Waker::wake`] does this. Only the first call counts.
    pub fn connect(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(wake));
    }

    /// Wakes the protocol thread.
    pub fn wake(&self) {
        if let Some(wake) = self.0.get() {
            wake();
        }
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waker")
    }
}
