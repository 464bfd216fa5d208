//! How long the sender waits for a receiver, and how long it may.

use std::time::{Duration, Instant};

/// The least patience with a receiver that proves and stores. It reports once a second, and less
/// patience would take a busy disk for a stopped process.
pub const PATIENCE_STORING: Duration = Duration::from_secs(3);
/// The least patience with a receiver that says it is at work and stores nothing more. It flushes
/// each file before the bytes count as stored, and a flush reports no progress: a large file in a
/// large memory takes long. Less patience would take a disk that works for one that hangs.
const PATIENCE_FLUSHING: Duration = Duration::from_secs(60);

/// The least speed of proving and storing, in bytes per second. A receiver below it is slow, even
/// if it keeps reporting one more proven byte.
const STORING_SPEED_MIN: u64 = 5_000_000;

/// One kind of wait of the sender for a receiver.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// What the receiver did, or did not do, all this time.
    pub what: &'static str,
    /// How long the sender has waited.
    pub lasted: Duration,
    /// The receiver is slow if the wait is longer than this.
    limit: Duration,
    /// But never if it is no longer than this, however often the limit counts.
    least: Duration,
}

impl Wait {
    pub const STANDS: &str = "it did not get on";
    const BEHIND: &str = "it was far behind the others";
    const HOLDS: &str = "it held the others at less than half of what they could take";
    const STORES: &str = "it proved and stored the file";

    pub fn new(what: &'static str, lasted: Duration, limit: Duration) -> Wait {
        let least = Duration::ZERO;
        Wait {
            what,
            lasted,
            limit,
            least,
        }
    }

    /// The same wait, which may last as long as this, whatever its limit is.
    pub fn at_least(self, least: Duration) -> Wait {
        Wait { least, ..self }
    }

    /// The wait of the core, which has lasted as long as it may.
    pub fn placing(limit: Duration) -> Wait {
        Wait::new(Wait::STANDS, limit, limit)
    }

    /// The wait for a receiver that has been far behind, for as long as it may.
    pub fn behind(limit: Duration) -> Wait {
        Wait::new(Wait::BEHIND, limit, limit)
    }

    /// The wait for a receiver that has held the others back, for as long as it may.
    pub fn holding(limit: Duration) -> Wait {
        Wait::new(Wait::HOLDS, limit, limit)
    }

    /// How long the wait may last if its limit counts `times` times.
    pub fn bound(&self, times: u32) -> Duration {
        self.limit.saturating_mul(times).max(self.least)
    }

    /// Whether the wait has lasted longer than `times` times its limit.
    pub fn exceeds(&self, times: u32) -> bool {
        self.lasted > self.bound(times)
    }

    /// Whether to tell of the wait: it is longer than its limit, and half as long as it may always
    /// be. So the user hears of a receiver some time before it is removed.
    pub fn is_to_tell(&self) -> bool {
        self.lasted > self.limit.max(self.least / 2)
    }
}

/// Progress of a receiver that has all bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Bytes of the list and the file that the receiver has proven.
    done: u64,
    /// When the receiver first said that it is at work.
    begun: Instant,
    /// When the receiver last said anything.
    heard: Instant,
    /// When the receiver last reported more proven bytes: being alive is not progress.
    moved: Instant,
}

/// The time of proving and storing so many bytes at the least speed.
fn proving_time(total: u64) -> Duration {
    Duration::from_secs(total / STORING_SPEED_MIN)
}

/// How long a receiver may take to prove and store so many bytes.
pub fn storing_time(patience: Duration, total: u64) -> Duration {
    patience.max(PATIENCE_FLUSHING) + proving_time(total)
}

impl Work {
    /// Starts with the receiver's first word that it is at work.
    pub fn begun(now: Instant, done: u64) -> Work {
        Work {
            done,
            begun: now,
            heard: now,
            moved: now,
        }
    }

    /// Notes another word of the receiver.
    pub fn said(&mut self, now: Instant, done: u64) {
        self.heard = now;
        if done > self.done {
            (self.done, self.moved) = (done, now);
        }
    }

    /// How long the sender has waited for the receiver's next word, for progress and for the end.
    /// `total`: bytes to be proven.
    pub fn waits(&self, now: Instant, patience: Duration, total: u64) -> [Wait; 3] {
        let proving = proving_time(total);
        let since = |t| now.duration_since(t);
        [
            Wait::new(Wait::STANDS, since(self.heard), patience).at_least(PATIENCE_STORING),
            Wait::new(Wait::STANDS, since(self.moved), patience).at_least(PATIENCE_FLUSHING),
            Wait::new(Wait::STORES, since(self.begun), patience + proving)
                .at_least(PATIENCE_FLUSHING + proving),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const TOTAL: u64 = 1000;

    fn over(work: &Work, now: Instant, patience: Duration, total: u64) -> Option<Duration> {
        let mut waits = work.waits(now, patience, total).into_iter();
        waits.find(|w| w.exceeds(1)).map(|w| w.bound(1))
    }

    /// Reports `done(second)` each second. Returns the second at which patience ends, and the
    /// limit.
    fn ends(patience: Duration, done: impl Fn(u32) -> u64) -> Option<(u32, Duration)> {
        ends_of(TOTAL, patience, done)
    }

    /// Like `ends`, with `total` bytes to be proven.
    fn ends_of(
        total: u64,
        patience: Duration,
        done: impl Fn(u32) -> u64,
    ) -> Option<(u32, Duration)> {
        let start = Instant::now();
        let mut work = Work::begun(start, done(0));
        (1..200).find_map(|second| {
            let now = start + second * S;
            let exceeded = over(&work, now, patience, total);
            work.said(now, done(second));
            exceeded.map(|limit| (second, limit))
        })
    }

    #[test]
    fn who_works_and_gets_nowhere_is_slow() {
        assert_eq!(ends_of(u64::MAX, S, |_| 0), Some((61, 60 * S)));
        assert_eq!(ends_of(u64::MAX, 90 * S, |_| 0), Some((91, 90 * S)));
        assert_eq!(
            ends_of(u64::MAX, 10 * S, |second| u64::from(second) / 50),
            None
        );
        // Smaller numbers are no movement.
        assert_eq!(
            ends_of(u64::MAX, 10 * S, |second| 300 - u64::from(second)),
            Some((61, 60 * S))
        );
    }

    #[test]
    fn a_flush_may_take_a_minute() {
        for done in [TOTAL / 2, TOTAL] {
            assert_eq!(ends(S, |_| done), Some((61, 60 * S)));
            assert_eq!(ends(90 * S, |_| done), Some((91, 90 * S)));
        }
    }

    /// One that is given up only after several times the patience has no more than that.
    #[test]
    fn a_flush_may_take_no_longer_than_several_times_the_patience() {
        let start = Instant::now();
        let mut work = Work::begun(start, TOTAL / 2);
        let mut is_over = |times: u32, patience: Duration, seconds: u32| {
            let now = start + seconds * S;
            work.said(now, 0);
            let waits = work.waits(now, patience, TOTAL).into_iter();
            waits.into_iter().any(|wait| wait.exceeds(times))
        };
        assert!(!is_over(6, S, 60) && is_over(6, S, 61));
        assert!(!is_over(6, 10 * S, 60) && is_over(6, 10 * S, 61));
        assert!(!is_over(6, 20 * S, 120) && is_over(6, 20 * S, 121));
    }

    /// By the default patience of ten seconds one that is given up has been told of before.
    #[test]
    fn a_long_flush_is_told_of_some_time_before_the_receiver_is_removed() {
        let start = Instant::now();
        let mut work = Work::begun(start, TOTAL / 2);
        let mut is_told = |patience: Duration, seconds: u32| {
            let now = start + seconds * S;
            work.said(now, 0);
            let waits = work.waits(now, patience, TOTAL).into_iter();
            waits.into_iter().any(|wait| wait.is_to_tell())
        };
        assert!(!is_told(10 * S, 30) && is_told(10 * S, 31));
        assert!(!is_told(40 * S, 40) && is_told(40 * S, 41));
    }

    #[test]
    fn who_falls_silent_is_slow_at_once() {
        let start = Instant::now();
        let work = Work::begun(start, TOTAL);
        assert_eq!(over(&work, start + 3 * S, S, TOTAL), None);
        assert_eq!(over(&work, start + 4 * S, S, TOTAL), Some(3 * S));
    }

    /// An admitted receiver that acknowledges everything and proves a byte a second would keep the
    /// sender for years.
    #[test]
    fn who_proves_a_byte_a_second_is_slow() {
        assert_eq!(ends(S, u64::from), Some((61, 60 * S)));
        assert_eq!(ends(90 * S, u64::from), Some((91, 90 * S)));
        let total = 40 * STORING_SPEED_MIN;
        assert_eq!(ends_of(total, S, u64::from), Some((101, 100 * S)));
        // Where the receiver proves faster than that, only the flush is limited.
        let fast = |second| (u64::from(second) * STORING_SPEED_MIN).min(total);
        assert_eq!(ends_of(total, 90 * S, fast), Some((131, 90 * S)));
    }
}
