//! Wakes whoever waits in the transport, from any other thread.

use std::sync::{Arc, OnceLock};

/// Rung by threads that have something for the protocol thread. Until [`Bell::hang`] has said what
/// to ring it is silent, so that threads may start before the transport is open.
#[derive(Clone, Default)]
pub struct Bell(Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>);

impl Bell {
    /// A silent bell.
    pub fn new() -> Bell {
        Bell::default()
    }

    /// From now on [`Bell::ring`] does this. Only the first call counts.
    pub fn hang(&self, ring: impl Fn() + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(ring));
    }

    /// Wakes the protocol thread.
    pub fn ring(&self) {
        if let Some(ring) = self.0.get() {
            ring();
        }
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}
