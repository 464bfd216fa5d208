//! Wakes a thread that waits in the transport, from any other thread.

use std::sync::{Arc, OnceLock};

/// Other threads use it when they have something for the protocol thread. It does nothing until
/// [`Waker::connect`] has set what it wakes, so threads may start before the transport is open.
#[derive(Clone, Default)]
pub struct Waker(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Waker {
    /// A waker that is not connected and does nothing.
    pub fn new() -> Waker {
        Waker::default()
    }

    /// Sets what [`Waker::wake`] does from now on. Only the first call counts.
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
