//! What a receiver finds of the set in its files' places, and what it tells the sender of that
//! (spec 5.16).

use std::time::{Duration, Instant};

use crate::object::{HASH, PresentPack, Proving};

/// How long a receiver that has candidates reads them before it says so, at most: by then it knows
/// what to decline of the first packs.
const HEAD_START: Duration = Duration::from_secs(1);

/// The packs that are present, and whether the sender still has to hear of them.
pub struct Looking {
    proving: Option<Proving>,
    since: Instant,
    /// Whether the sender waits for a word.
    is_awaited: bool,
}

impl Looking {
    /// A receiver that has said whether it may have something.
    pub fn new(may_have: bool) -> Looking {
        Looking {
            proving: None,
            since: Instant::now(),
            is_awaited: may_have,
        }
    }

    /// Begins, since the manifest is here.
    pub fn begin(&mut self, proving: Proving) {
        (self.proving, self.since) = (Some(proving), Instant::now());
    }

    /// Whether the receiver may find something before it tells the sender.
    pub fn is_awaited(&self) -> bool {
        self.is_awaited
    }

    /// Whether there are candidates, as soon as the sender is to hear of that; once.
    pub fn ends(&mut self) -> Option<bool> {
        let proving = self.proving.as_mut().filter(|_| self.is_awaited)?;
        let has_candidates = proving.has_candidates();
        let is_over = proving.is_done() || self.since.elapsed() >= HEAD_START;
        if !is_over {
            return None;
        }
        self.is_awaited = false;
        Some(has_candidates)
    }

    /// Notes that the sender has announced the pack with this number as the next one of the stream.
    pub fn streamed(&self, number: u32) {
        if let Some(proving) = &self.proving {
            proving.streamed(number);
        }
    }

    /// Takes the pack whose header has this hash, if it is present.
    pub fn take(&mut self, hash: &[u8; HASH]) -> Option<PresentPack> {
        self.proving.as_mut()?.take(hash)
    }
}
