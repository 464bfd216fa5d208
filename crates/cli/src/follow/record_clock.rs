//! The clock by which a record counts the age of what was received. It is the time of day, so that
//! ages go on from run to run, but nothing gets older or younger when somebody sets that.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A time of day that departs from the time that has passed by more seconds was set.
const SET: u64 = 60;
/// The start of 2026, in seconds since 1970. A clock that shows less was never set: hosts without a
/// battery start in 1970.
const NEVER_SET: u64 = 1_767_225_600;

/// What two clocks say at the same time, in seconds.
#[derive(Clone, Copy, Debug)]
struct Reading {
    /// The time of day, since 1970.
    day: u64,
    /// The time since the host started, also while it slept.
    host: u64,
}

impl Reading {
    fn now() -> Reading {
        let day = SystemTime::now().duration_since(UNIX_EPOCH);
        Reading {
            day: day.unwrap_or_default().as_secs(),
            host: clock_gettime(ClockId::Boottime).tv_sec as u64,
        }
    }
}

/// A time of the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClockTime {
    /// Seconds since 1970.
    pub seconds: u64,
    /// Whether the time of day was set since the clock was last asked.
    pub was_set: bool,
}

/// The clock of a record.
#[derive(Debug)]
pub struct RecordClock {
    last: Reading,
}

impl RecordClock {
    pub fn new() -> RecordClock {
        RecordClock {
            last: Reading::now(),
        }
    }

    /// The time now, by this clock. Corrects the times of what was noted before, if the time of day
    /// was set since the clock was last asked.
    pub fn now<'a>(&mut self, noted: impl Iterator<Item = &'a mut u64>) -> ClockTime {
        self.at(Reading::now(), noted)
    }

    fn at<'a>(&mut self, now: Reading, noted: impl Iterator<Item = &'a mut u64>) -> ClockTime {
        let passed = now.host.saturating_sub(self.last.host);
        let expected = self.last.day.saturating_add(passed);
        let was_set = now.day.abs_diff(expected) > SET;
        let seconds = if was_set { now.day } else { expected };
        if was_set {
            for time in noted {
                // What is later was noted by a clock that was right when this one was not.
                if *time <= expected {
                    *time = seconds.saturating_sub(expected - *time);
                }
                *time = corrected(*time, seconds);
            }
        }
        self.last = Reading {
            day: seconds,
            ..now
        };
        ClockTime { seconds, was_set }
    }

    /// Corrects the times that an earlier run has noted by a clock that was never set. Returns
    /// whether there were any.
    pub fn correct<'a>(&self, noted: impl Iterator<Item = &'a mut u64>) -> bool {
        noted.fold(false, |has_changed, time| {
            let before = std::mem::replace(time, corrected(*time, self.last.day));
            has_changed || *time != before
        })
    }
}

/// A time that was noted before `now`. Nobody knows how old an entry is whose time was noted by a
/// clock that was never set. It counts as new, once the clock is set.
fn corrected(time: u64, now: u64) -> u64 {
    match time < NEVER_SET && now >= NEVER_SET {
        true => now,
        false => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 86_400;
    const NOW: u64 = NEVER_SET + 300 * DAY;

    fn clock(day: u64) -> RecordClock {
        let last = Reading { day, host: 10 };
        RecordClock { last }
    }

    /// The clock's time a day after it was made, when the time of day is this, and the corrected
    /// times of entries.
    fn a_day_later<const N: usize>(
        clock: &mut RecordClock,
        day: u64,
        mut noted: [u64; N],
    ) -> (u64, [u64; N]) {
        let host = 10 + DAY;
        let now = clock.at(Reading { day, host }, noted.iter_mut());
        (now.seconds, noted)
    }

    /// The host may have slept meanwhile.
    #[test]
    fn while_nobody_sets_the_time_of_day_it_is_the_time() {
        let noted = [NOW, NOW - 5 * DAY];
        for day in [NOW + DAY, NOW + DAY + SET, NOW + DAY - SET] {
            let now = a_day_later(&mut clock(NOW), day, noted);
            assert_eq!(now, (NOW + DAY, noted));
        }
    }

    #[test]
    fn to_set_the_time_of_day_makes_nothing_older_or_younger() {
        let noted = [NOW + DAY, NOW, NOW - 5 * DAY];
        for day in [NOW + 100 * DAY, NOW, NOW - DAY] {
            let (now, moved) = a_day_later(&mut clock(NOW), day, noted);
            let ages = moved.map(|time| now - time);
            assert_eq!((now, ages), (day, [0, DAY, 6 * DAY]));
        }
    }

    /// A host without a battery starts in 1970. What this run has noted gets the right time, and
    /// what an earlier one has noted had it.
    #[test]
    fn a_clock_that_is_right_only_later_makes_nothing_older() {
        let noted = [NOW - 5 * DAY, 7, 7 + DAY];
        let mut clock = clock(7);
        clock.correct([&mut 5, &mut 8].into_iter());
        let (now, moved) = a_day_later(&mut clock, NOW, noted);
        assert_eq!((now, moved), (NOW, [NOW - 5 * DAY, NOW - DAY, NOW]));
        // The next correction begins from there.
        let (now, moved) = a_day_later(&mut clock, NOW - DAY, moved);
        assert_eq!(
            (now, moved),
            (NOW - DAY, [NOW - 6 * DAY, NOW - 2 * DAY, NOW - DAY])
        );
    }

    /// So does one that was started several times before its clock was set. The second time it may
    /// be earlier than what was noted the first time.
    #[test]
    fn what_an_earlier_start_noted_in_1970_is_new_when_the_clock_is_set() {
        let mut clock = clock(60);
        clock.correct([&mut 5000].into_iter());
        let (now, moved) = a_day_later(&mut clock, NOW, [5000, 60]);
        assert_eq!((now, moved), (NOW, [NOW - DAY + 4940, NOW - DAY]));
        let far = 10 * DAY;
        let (now, moved) = a_day_later(&mut self::clock(60), NOW, [far, 60]);
        assert_eq!((now, moved), (NOW, [NOW, NOW - DAY]));
    }

    #[test]
    fn what_a_clock_noted_that_was_never_set_is_new() {
        let mut noted = [9, NEVER_SET - 1, NEVER_SET, NOW - 1, NOW + 1];
        assert!(clock(NOW).correct(noted.iter_mut()));
        assert_eq!(noted, [NOW, NOW, NEVER_SET, NOW - 1, NOW + 1]);
        let mut noted = [9];
        assert!(!clock(7).correct(noted.iter_mut()));
        assert_eq!(noted, [9]);
    }
}
