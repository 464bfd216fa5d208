//! A root that broadcasts short messages one after the other: several then leave at once, because a
//! system call and a pass through the network stack cost the same for one datagram as for dozens.
//!
//! The first of them leave at once: somebody may wait for them, and a program that broadcasts a
//! few parameters does not notice. Only when the calls keep following each other without a pause do
//! they wait for the next ones, and never longer than [`WAIT_MAX`].

use std::time::Duration;

use fabricast_proto::Time;

/// Calls with less time than this between them follow each other without a pause.
const PAUSE: Duration = Duration::from_micros(10);
/// Calls also follow each other without a pause if the time between them is less than this part of
/// what the last one took to send, up to [`WAIT_MAX`]. Receivers that are woken may take the core
/// from the root, which then comes back late.
const PAUSE_PART: u32 = 4;
/// So many of them leave at once before the others wait.
const STREAK: u32 = 8;
/// However long it has lasted, two pauses and the next ones leave at once again; one alone is the
/// scheduler's.
const STREAK_MAX: u32 = 4 * STREAK;
/// So many leave together.
const TOGETHER: u32 = 64;
/// So many bytes are enough to leave.
const ENOUGH: u64 = 48 << 10;
/// None waits longer: a caller that has stopped calling leaves it to the progress thread.
pub(crate) const WAIT_MAX: Duration = Duration::from_micros(100);

/// See the module.
#[derive(Default)]
pub(crate) struct Coalescer {
    /// Broadcasts that followed each other.
    streak: u32,
    last: Time,
    /// When the present one was started.
    begun: Option<Time>,
    /// How long the last one that sent took.
    took: Duration,
    waiting: u32,
    bytes: u64,
    /// Since when some wait.
    pub since: Option<Time>,
}

impl Coalescer {
    /// A short broadcast was started.
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

    /// The call returns.
    pub fn left(&mut self, now: Time) {
        self.last = now;
        if let Some(begun) = self.begun.take()
            && self.since.is_none()
        {
            self.took = now.since(begun);
        }
    }

    /// Something else was started.
    pub fn broken(&mut self) {
        self.streak = 0;
    }

    /// Whether what was started last waits for others.
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

    /// Everything that waited has been handed on.
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

    /// Broadcasts of `len` bytes with `pause` microseconds between them, of which those that send
    /// take `took`: how many left with each that left.
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

    /// The same, and sending takes no time.
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
