//! The kernel's time stamps of arrival.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabricast_proto::Time;

/// Period of the clock comparison. A clock that is set, or that drifts, is noticed after one to two
/// periods.
const PERIOD: Duration = Duration::from_secs(2);

/// Translates the kernel's stamps, which are times of day, into the driver's time.
///
/// The two clocks are read one after the other. A process that is interrupted in between sees them
/// further apart than they are, so the smallest distance of the last seconds counts.
#[derive(Default)]
pub struct Days {
    /// Smallest distance of the two clocks in ns, in this period and in the last.
    distance: [Option<u64>; 2],
    since: Time,
}

impl Days {
    /// Compares the clocks; `now` is the time by the driver's clock.
    pub fn see(&mut self, now: Time) {
        let Ok(today) = SystemTime::now().duration_since(UNIX_EPOCH) else {
            return;
        };
        if now.since(self.since) > PERIOD {
            self.distance = [None, self.distance[0]];
            self.since = now;
        }
        let distance = (today.as_nanos() as u64).saturating_sub(now.0);
        let least = self.distance[0].map_or(distance, |d| d.min(distance));
        self.distance[0] = Some(least);
    }

    /// The time of a kernel stamp, by the driver's clock.
    pub fn time(&self, stamp: Duration) -> Time {
        let least = self.distance.iter().flatten().min().copied();
        Time((stamp.as_nanos() as u64).saturating_sub(least.unwrap_or(0)))
    }
}
