//! A wait that grows from one failure to the next.

use core::time::Duration;

/// Largest wait. A host or a manager that failed for long is tried again within a minute.
const MAX: Duration = Duration::from_secs(60);

/// A wait that is doubled with each failure, up to a minute.
pub(super) struct Backoff {
    first: Duration,
    wait: Duration,
}

impl Backoff {
    /// A backoff whose first wait is this long.
    pub(super) const fn new(first: Duration) -> Backoff {
        Backoff { first, wait: first }
    }

    /// The present wait.
    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    /// From now on the wait is twice as long.
    pub(super) fn double(&mut self) {
        self.wait = (self.wait * 2).min(MAX);
    }

    /// From now on the wait is the first one again.
    pub(super) fn reset(&mut self) {
        self.wait = self.first;
    }
}
