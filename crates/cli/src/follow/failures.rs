//! Entries that could not be received, and when they are wanted again.
//!
//! Short entries share a transfer, and one that cannot be stored fails all of them. So entries that
//! have failed together are wanted again in two halves, one after the other, until the one in the
//! way is alone. A long entry never shares a transfer, and neither waits for others nor holds them
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The pause before an entry is wanted again, at first and at most. It doubles when the entry fails
/// alone.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

#[derive(Default)]
struct Failure {
    /// When it is wanted again, together with all that have the same time and no others. `None`: it
    /// is wanted now.
    again: Option<Instant>,
    /// The last pause after it has failed alone; zero if it never has.
    pause: Duration,
    /// Whether it may share a transfer with others.
    shares: bool,
}

/// Entries that could not be received, by their digests.
#[derive(Default)]
pub struct Failures(BTreeMap<String, Failure>);

impl Failures {
    /// Notes that these have failed in one transfer. `shares`: whether they may share a transfer
    /// with others. Returns how long it is until the last of them is wanted again.
    pub fn add(&mut self, digests: &[&str], shares: bool, now: Instant) -> Duration {
        let mut pause = PAUSE.0;
        if let [alone] = digests {
            let failure = self.0.entry((*alone).into()).or_default();
            failure.pause = (failure.pause * 2).clamp(PAUSE.0, PAUSE.1);
            pause = failure.pause;
        }
        let mut last = now;
        for half in digests.chunks(digests.len().div_ceil(2).max(1)) {
            last = self.free(now + pause);
            for digest in half {
                let failure = self.0.entry((*digest).into()).or_default();
                (failure.again, failure.shares) = (Some(last), shares);
            }
        }
        last - now
    }

    /// The first time from `at` on that is a pause away from all others.
    fn free(&self, mut at: Instant) -> Instant {
        let taken: BTreeSet<Instant> = self.0.values().filter_map(|f| f.again).collect();
        for other in taken {
            if other < at + PAUSE.0 && at < other + PAUSE.0 {
                at = other + PAUSE.0;
            }
        }
        at
    }

    /// Notes that an entry is here.
    pub fn remove(&mut self, digest: &str, now: Instant) {
        let has_failed_alone = |failure: &Failure| !failure.pause.is_zero();
        if !self.0.remove(digest).is_some_and(|f| has_failed_alone(&f)) {
            return;
        }
        // What was in its way, such as a full disk, may have been in the way of others.
        for failure in self.0.values_mut().filter(|f| has_failed_alone(f)) {
            failure.again = failure.again.map(|_| now);
        }
    }

    /// Forgets all that are not among these.
    pub fn retain(&mut self, digests: &BTreeSet<&String>) {
        self.0.retain(|digest, _| digests.contains(digest));
    }

    /// The time of those that share a transfer and are wanted next, if no others of these are
    /// wanted now.
    fn next(&self) -> Option<Instant> {
        let sharing = self.0.values().filter(|failure| failure.shares);
        // `None` is less than any time.
        sharing.map(|failure| failure.again).min()?
    }

    /// Whether some are wanted now that were not before.
    pub fn is_due(&self, now: Instant) -> bool {
        let next = self.next();
        let is_next = |failure: &Failure| !failure.shares || failure.again == next;
        let is_due = |failure: &&Failure| failure.again.is_some_and(|again| again <= now);
        self.0.values().filter(is_due).any(is_next)
    }

    /// Wants the next ones, if they are due.
    pub fn want_due(&mut self, now: Instant) {
        let next = self.next();
        for failure in self.0.values_mut() {
            let is_next = !failure.shares || failure.again == next;
            if is_next && failure.again.is_some_and(|again| again <= now) {
                failure.again = None;
            }
        }
    }

    /// Whether the entry is not wanted yet.
    pub fn waits(&self, digest: &str) -> bool {
        self.0.get(digest).is_some_and(|f| f.again.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries that a follower wants of a feed that sends all of them in one transfer.
    struct World {
        failures: Failures,
        /// What has not come.
        lacking: BTreeSet<String>,
        /// What cannot be stored.
        blocked: BTreeSet<String>,
        now: Instant,
        transfers: u32,
    }

    impl World {
        fn new(entries: u32, blocked: impl Fn(u32) -> bool) -> World {
            let name = |n: u32| format!("{n:04}");
            World {
                failures: Failures::default(),
                lacking: (0..entries).map(name).collect(),
                blocked: (0..entries).filter(|n| blocked(*n)).map(name).collect(),
                now: Instant::now(),
                transfers: 0,
            }
        }

        /// One second, with all transfers that are wanted in it.
        fn second(&mut self) {
            loop {
                self.failures.want_due(self.now);
                let wanted: Vec<String> = self.lacking.iter().cloned().collect();
                let wanted = wanted.iter().filter(|digest| !self.failures.waits(digest));
                let wanted: Vec<&str> = wanted.map(|digest| &**digest).collect();
                if wanted.is_empty() {
                    break;
                }
                self.transfers += 1;
                if wanted.iter().any(|digest| self.blocked.contains(*digest)) {
                    assert!(self.failures.add(&wanted, true, self.now) >= PAUSE.0);
                    continue;
                }
                for digest in wanted {
                    self.failures.remove(digest, self.now);
                    self.lacking.remove(digest);
                }
            }
            self.now += Duration::from_secs(1);
        }
    }

    /// Whatever is in the way, all the others come.
    #[test]
    fn what_can_come_comes() {
        for blocked in 0..1u32 << 7 {
            let mut world = World::new(7, |n| blocked >> n & 1 == 1);
            (0..20).for_each(|_| world.second());
            assert_eq!(world.lacking, world.blocked);
        }
    }

    /// One entry of a thousand is found in seconds, and is then tried ever more rarely.
    #[test]
    fn one_in_the_way_is_found() {
        for which in [0, 500, 1023] {
            let mut world = World::new(1024, |n| n == which);
            (0..30).for_each(|_| world.second());
            assert_eq!(world.lacking, world.blocked);
            let before = world.transfers;
            (0..3600).for_each(|_| world.second());
            assert!(world.transfers - before <= 66, "{}", world.transfers);
        }
    }

    /// When nothing can be stored, the feed is asked once a second at most. When it can again, all
    /// comes soon.
    #[test]
    fn a_full_disk_that_has_space_again() {
        let mut world = World::new(300, |_| true);
        (0..2000).for_each(|_| world.second());
        assert!(world.transfers <= 2001, "{}", world.transfers);
        world.blocked.clear();
        (0..5).for_each(|_| world.second());
        assert_eq!(world.lacking.len(), 0);
    }

    /// A new entry that is wanted with one that is in the way comes nevertheless. What is wanted
    /// already is not mixed with others.
    #[test]
    fn a_new_one_is_not_held_back() {
        let mut world = World::new(2, |n| n == 0);
        (0..10).for_each(|_| world.second());
        world.failures.want_due(world.now + PAUSE.1);
        world.lacking.insert("new".into());
        (0..4).for_each(|_| world.second());
        assert_eq!(world.lacking, world.blocked);
        let mut failures = Failures::default();
        let now = Instant::now();
        assert_eq!(failures.add(&["a", "b", "c"], true, now), 2 * PAUSE.0);
        assert!(!failures.is_due(now) && failures.is_due(now + PAUSE.0));
        failures.want_due(now + PAUSE.0);
        assert!(!failures.waits("a") && !failures.waits("b"));
        assert!(!failures.is_due(now + PAUSE.1));
        failures.want_due(now + PAUSE.1);
        assert!(failures.waits("c"));
        failures.retain(&BTreeSet::from([&"c".to_string()]));
        failures.want_due(now + PAUSE.1);
        assert!(!failures.waits("c"));
    }

    /// A long entry that is wanted again, or waits for that, and short ones do not wait for each
    /// other.
    #[test]
    fn long_and_short_ones_do_not_wait_for_each_other() {
        let mut failures = Failures::default();
        let now = Instant::now();
        failures.add(&["long"], false, now);
        failures.want_due(now + PAUSE.0);
        failures.add(&["short"], true, now + PAUSE.0);
        assert!(!failures.waits("long") && failures.waits("short"));
        failures.want_due(now + 3 * PAUSE.0);
        assert!(!failures.waits("short"));
        // The long one comes for hours, and then fails; the short one is still wanted.
        failures.add(&["long"], false, now + PAUSE.1);
        failures.add(&["other"], false, now + PAUSE.1);
        assert!(!failures.is_due(now + PAUSE.1));
        failures.want_due(now + 2 * PAUSE.1);
        assert!(!failures.waits("long") && !failures.waits("other"));
    }
}
