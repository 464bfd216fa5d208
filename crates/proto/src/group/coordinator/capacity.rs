//! How many addresses there are: the configured range, and what refusals have taught.

use core::time::Duration;

use crate::group::address::Refusal;
use crate::time::Time;

/// Wait after the first refusal before the coordinator tries one more address.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// Largest wait before the coordinator tries one more address.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// How many addresses the coordinator may hold.
pub(super) struct Capacity {
    range: u32,
    /// Most addresses that worked at once, after a refusal.
    limit: u32,
    backoff: Duration,
    /// When one address beyond the limit may be tried.
    retry: Time,
    reason: Refusal,
}

impl Capacity {
    pub(super) fn new(range: u32) -> Capacity {
        Capacity {
            range,
            limit: u32::MAX,
            backoff: RETRY_MIN,
            retry: Time::ZERO,
            reason: Refusal::NoAddresses,
        }
    }

    /// Whether one more address may be tried beside those held.
    pub(super) fn allows(&self, now: Time, held: u32) -> bool {
        held < self.range && (held < self.limit || self.retry <= now)
    }

    /// One more address is tried.
    pub(super) fn tried(&mut self, now: Time, held: u32) {
        if held >= self.limit {
            self.retry = now + self.backoff;
        }
    }

    /// An address was refused; this many others are held.
    pub(super) fn refused(&mut self, now: Time, held: u32, why: Refusal) {
        self.reason = why;
        if held >= self.limit {
            self.backoff = (self.backoff * 2).min(RETRY_MAX);
        }
        self.limit = self.limit.min(held);
        self.retry = now + self.backoff;
    }

    /// An address is proven; this many are held.
    pub(super) fn proven(&mut self, held: u32) {
        if held > self.limit {
            self.limit = held;
            self.backoff = RETRY_MIN;
        }
    }

    /// When one more address may be tried, if it is not now.
    pub(super) fn retry(&self, now: Time, held: u32) -> Time {
        match held < self.range && !self.allows(now, held) {
            true => self.retry,
            false => Time::NEVER,
        }
    }

    /// Why there are no more addresses.
    pub(super) fn reason(&self) -> Refusal {
        self.reason
    }
}
