//! How many addresses there are: the configured range, and what refusals have taught. A manager
//! that has no more addresses is not the same as one that is busy or does not answer.

use core::time::Duration;

use super::backoff::Backoff;
use crate::group::address::Refusal;
use crate::time::Time;

/// Wait after the first refusal before the coordinator tries one more address.
const RETRY: Duration = Duration::from_secs(1);
/// First wait after a manager has not answered, or has denied an address.
const PAUSE: Duration = Duration::from_millis(100);

/// How many addresses the coordinator may hold.
pub(super) struct Capacity {
    range: u32,
    /// Most addresses that worked at once, after a refusal.
    limit: u32,
    backoff: Backoff,
    /// When one address beyond the limit may be tried.
    retry: Time,
    /// How long the coordinator tries none after the next failure that says nothing of how many
    /// addresses there are, and until when it does now.
    pause: Backoff,
    paused: Time,
    reason: Refusal,
}

impl Capacity {
    pub(super) fn new(range: u32) -> Capacity {
        Capacity {
            range,
            limit: u32::MAX,
            backoff: Backoff::new(RETRY),
            retry: Time::ZERO,
            pause: Backoff::new(PAUSE),
            paused: Time::ZERO,
            reason: Refusal::NoAddresses,
        }
    }

    /// Whether one more address may be tried beside those held.
    pub(super) fn allows(&self, now: Time, held: u32) -> bool {
        let more = held < self.limit || self.retry <= now;
        held < self.range && self.paused <= now && more
    }

    /// One more address is tried.
    pub(super) fn tried(&mut self, now: Time, held: u32) {
        if held >= self.limit {
            self.retry = now + self.backoff.wait();
        }
    }

    /// An address was refused; this many others are held.
    pub(super) fn refused(&mut self, now: Time, held: u32, why: Refusal) {
        self.reason = why;
        if held >= self.limit {
            self.backoff.double();
        }
        self.limit = self.limit.min(held);
        self.retry = now + self.backoff.wait();
    }

    /// The manager did not answer, or denies an address. That says nothing of how many there are.
    pub(super) fn pause(&mut self, now: Time, why: Refusal) {
        self.reason = why;
        if self.paused <= now {
            self.paused = now + self.pause.wait();
            self.pause.double();
        }
    }

    /// An address is proven; this many are.
    pub(super) fn proven(&mut self, proven: u32) {
        self.pause.reset();
        self.reason = Refusal::NoAddresses;
        if proven > self.limit {
            self.limit = proven;
            self.backoff.reset();
        }
    }

    /// When one more address may be tried, if it is not now.
    pub(super) fn retry(&self, now: Time, held: u32) -> Time {
        match held < self.range && !self.allows(now, held) {
            true if held < self.limit => self.paused,
            true => self.retry.max(self.paused),
            false => Time::NEVER,
        }
    }

    /// Why there are no more addresses.
    pub(super) fn reason(&self) -> Refusal {
        self.reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A manager that is full has room for one more at most; one that is busy has room again.
    #[test]
    fn busy_is_not_full() {
        for (why, held_later) in [(Refusal::NoAnswer, 63), (Refusal::NoAddresses, 4)] {
            let mut capacity = Capacity::new(64);
            let now = Time::ZERO + SECOND;
            match why {
                Refusal::NoAnswer => capacity.pause(now, why),
                _ => capacity.refused(now, 4, why),
            }
            assert!(!capacity.allows(now, 4));
            let later = capacity.retry(now, 4);
            assert!(later > now && later <= now + SECOND);
            for held in 4..64 {
                if capacity.allows(later, held) {
                    capacity.tried(later, held);
                    assert!(held <= held_later, "{why}: {held}");
                } else {
                    assert!(held > held_later, "{why}: {held}");
                }
            }
        }
    }

    /// A manager that does not answer is asked more and more rarely, until it does.
    #[test]
    fn pauses_grow_until_an_address_is_proven() {
        let mut capacity = Capacity::new(64);
        let mut now = Time::ZERO + SECOND;
        for _ in 0..20 {
            capacity.pause(now, Refusal::NoAnswer);
            now = capacity.retry(now, 0);
        }
        capacity.pause(now, Refusal::NoAnswer);
        let minute = 60 * SECOND;
        assert_eq!(capacity.retry(now, 0), now + minute);
        now = now + minute;
        assert_eq!(capacity.reason(), Refusal::NoAnswer);
        capacity.proven(1);
        // What is lacking now, the range has not.
        assert_eq!(capacity.reason(), Refusal::NoAddresses);
        capacity.pause(now, Refusal::NoAnswer);
        assert_eq!(capacity.retry(now, 0), now + PAUSE);
    }
}
