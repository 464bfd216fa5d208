//! The clock of a sender, which stands still while the sender is stopped.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fabricast_proto::Time;

use crate::transfer::TICK;

/// A sender asks its clock more often, unless its process was stopped or its host slept.
const STOPPED: Duration = Duration::from_secs(1);

/// The time by which a sender judges its receivers. While its process is stopped, a sender hears
/// nobody and sends nothing, so no more than a [`TICK`] passes.
pub struct SenderClock {
    /// When the transfer started, or this clock was made.
    began: Instant,
    /// The same by this clock.
    start: Instant,
    /// When the clock was last asked.
    asked: Cell<Instant>,
    /// The time that has passed elsewhere and not by this clock.
    stopped: Cell<Duration>,
}

impl SenderClock {
    pub fn new() -> SenderClock {
        let now = Instant::now();
        SenderClock {
            began: now,
            start: now,
            asked: Cell::new(now),
            stopped: Cell::new(Duration::ZERO),
        }
    }

    /// Starts the transfer. Returns the time of that.
    pub fn begin(&mut self) -> Instant {
        (self.start, self.began) = (self.now(), Instant::now());
        self.start
    }

    /// When the transfer started.
    pub fn start(&self) -> Instant {
        self.start
    }

    /// The time now. It is earlier than that of other clocks if the sender was stopped.
    pub fn now(&self) -> Instant {
        self.at(Instant::now())
    }

    fn at(&self, now: Instant) -> Instant {
        let passed = now.saturating_duration_since(self.asked.replace(now));
        if passed > STOPPED {
            self.stopped.set(self.stopped.get() + passed - TICK);
        }
        now - self.stopped.get()
    }

    /// The time since the start, for the core.
    pub fn time(&self) -> Time {
        Time(self.now().duration_since(self.start).as_nanos() as u64)
    }

    /// When it was this time of the core.
    pub fn instant(&self, time: Time) -> Instant {
        self.start + Duration::from_nanos(time.0)
    }

    /// Seconds since the start as they passed for the user, in which the sender may have been
    /// stopped.
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_passes_while_the_sender_is_stopped() {
        let clock = SenderClock::new();
        let start = clock.start();
        let passed = |after| clock.at(start + after).duration_since(start);
        assert_eq!(passed(STOPPED), STOPPED);
        // It is stopped for a minute, and a second time for an hour.
        let minute = Duration::from_secs(60);
        assert_eq!(passed(STOPPED + minute), STOPPED + TICK);
        let again = STOPPED + minute + STOPPED;
        assert_eq!(passed(again), 2 * STOPPED + TICK);
        assert_eq!(passed(again + 60 * minute), 2 * STOPPED + 2 * TICK);
    }
}
