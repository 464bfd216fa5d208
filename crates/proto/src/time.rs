//! Time as the core knows it: nanoseconds since an origin that the driver chose.
//!
//! Every function that needs the time takes `now`; the core reads no clock.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time, in nanoseconds since the driver's origin. 64 bits last 584 years.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    /// The driver's origin.
    pub const ZERO: Time = Time(0);
    /// Later than every time that the driver ever reaches.
    pub const NEVER: Time = Time(u64::MAX);

    /// Duration from `earlier` to `self`; zero if `earlier` lies in the future.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Microseconds since the origin, modulo 2^32 (as the wire carries them).
    pub fn micros(self) -> u32 {
        (self.0 / 1000) as u32
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        Time(self.0.saturating_add(d.as_nanos() as u64))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;
    fn sub(self, d: Duration) -> Time {
        Time(self.0.saturating_sub(d.as_nanos() as u64))
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}ms", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
