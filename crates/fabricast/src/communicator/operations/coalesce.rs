//! Coalescing of the short broadcasts that a root makes one after the other: several leave at once.
//! A system call and a pass through the network stack cost the same for one datagram as for dozens.
//!
//! The first broadcasts leave at once: a receiver may wait for them, and a program that broadcasts
//! a few parameters does not notice coalescing. Only when the calls keep following each other
//! without a pause do broadcasts wait for the next ones, and never longer than [`WAIT_MAX`].

use std::time::Duration;

use fabricast_proto::Time;

/// Calls with less time than this between them follow each other without a pause.
const PAUSE: Duration = Duration::from_micros(10);
/// Calls also follow each other without a pause if the time between them is less than this fraction
/// of the time that the last send took, up to [`WAIT_MAX`]. A receiver that is woken may take the
/// core from the root, which then returns late.
const PAUSE_PART: u32 = 4;
/// Number of broadcasts without a pause that leave at once, before the next ones wait.
const STREAK: u32 = 8;
/// Upper bound of a streak. Three pauses in a row end a streak of any length, and the next
/// broadcasts leave at once again. A single pause may be the scheduler's doing.
const STREAK_MAX: u32 = 4 * STREAK;
/// Largest number of broadcasts that leave together.
const TOGETHER: u32 = 64;
/// Number of waiting bytes that leave without waiting for more.
const ENOUGH: u64 = 48 << 10;
/// Longest time that a broadcast waits. If its caller calls no more, the progress thread sends it.
pub(crate) const WAIT_MAX: Duration = Duration::from_micros(100);

/// The coalescing of one process's short broadcasts.
#[derive(Default)]
pub(crate) struct Coalescer {
    /// Broadcasts that followed each other without a pause.
    streak: u32,
    last: Time,
    /// When the present call started its broadcast.
    begun: Option<Time>,
    /// How long the last call that sent took.
    took: Duration,
    waiting: u32,
    bytes: u64,
    /// Since when broadcasts wait.
    pub since: Option<Time>,
}

impl Coalescer {
    /// Takes note that a short broadcast of `len` bytes was started.
    pub fn add(&mut self, now: Time, len: u64) {
        let pause = PAUSE.max(self.took / PAUSE_PART).min(WAIT_MAX);
        self.begun = Some(now);
        self.streak = match now.since(self.last) < pause {
            true => (self.streak + 1).min(STREAK_MAX),
            false => self.streak / 2 + 1,
        };
        self.waiting += 1;
        self.bytes += len;
    }

    /// Takes note that the call returns.
    pub fn left(&mut self, now: Time) {
        self.last = now;
        if let Some(begun) = self.begun.take()
            && self.since.is_none()
        {
            self.took = now.since(begun);
        }
    }

    /// Takes note that another operation was started, which ends the streak.
    pub fn broken(&mut self) {
        self.streak = 0;
    }

    /// Whether the last broadcast that was started waits for more.
    pub fn gathers(&mut self, now: Time) -> bool {
        let since = self.since.unwrap_or(now);
        let gathers = self.streak > STREAK
            && self.waiting < TOGETHER
            && self.bytes < ENOUGH
            && now.since(since) < WAIT_MAX;
        if gathers {
            self.since = Some(since);
        }
        gathers
    }

    /// Takes note that all waiting broadcasts have been handed on.
    pub fn sent(&mut self) {
        (self.waiting, self.bytes, self.since) = (0, 0, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Time {
        Time(1000 * n)
    }

    /// The number of broadcasts in each send, for `calls` broadcasts of `len` bytes. The calls have
    /// `pause` microseconds between them, and a call that sends takes `took`.
    fn sends(calls: u64, pause: u64, took: u64, len: u64) -> Vec<u32> {
        let mut stream = Coalescer::default();
        let mut left = Vec::new();
        let mut now = 1000;
        for _ in 0..calls {
            now += pause;
            stream.add(us(now), len);
            if !stream.gathers(us(now)) {
                left.push(stream.waiting);
                stream.sent();
                now += took;
            }
            stream.left(us(now));
        }
        left
    }

    /// Like [`sends`], with sends that take no time.
    fn run(calls: u64, pause: u64, len: u64) -> Vec<u32> {
        sends(calls, pause, 0, len)
    }

    #[test]
    fn a_few_leave_at_once_and_many_together() {
        assert_eq!(run(8, 1, 4), [1; 8]);
        let many = run(8 + 5 * u64::from(TOGETHER), 1, 4);
        assert_eq!(many, [[1; 8].as_slice(), &[TOGETHER; 5]].concat());
    }

    #[test]
    fn with_pauses_none_waits() {
        assert!(run(100, 11, 4).iter().all(|&n| n == 1));
    }

    #[test]
    fn a_pause_is_one_beside_what_sending_takes() {
        assert!(sends(100, 20, 40, 4).iter().all(|&n| n == 1));
        let crowded = sends(100, 20, 200, 4);
        assert_eq!(crowded[..8], [1; 8]);
        assert!(crowded[8..].iter().all(|&n| n == 6), "{crowded:?}");
        let slow = sends(100, 150, 4000, 4);
        assert!(slow.iter().all(|&n| n == 1), "{slow:?}");
    }

    #[test]
    fn enough_bytes_leave() {
        assert!(run(100, 1, 8 << 10)[8..].iter().all(|&n| n == 6));
        assert!(run(100, 1, ENOUGH).iter().all(|&n| n == 1));
    }

    #[test]
    fn none_waits_long() {
        let slow = run(100, 9, 4);
        assert!(slow[8..].iter().all(|&n| n == 13), "{slow:?}");
    }
}
