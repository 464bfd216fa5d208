//! How much a path may send beyond what its receivers have reported.
//!
//! The rate follows the receivers' reports. Before the first ones the rate is a guess, and on a
//! slow link they come late: they wait behind what was sent at the guessed rate. So the path sends
//! only some of its packets before the reports on the others, as TCP's congestion window does. A
//! queue then holds no more than that, and what it drops is little.

use core::time::Duration;

use super::receiver::ReceiverState;
use crate::time::Time;

/// Bytes that may always be under way: more than a receiver takes before its first report.
const LEAST: u64 = 32 << 10;
/// Number of receivers up to which [`LEAST`] holds. With more receivers each of them reports more
/// rarely, in proportion (feedback suppression).
const FEW: usize = 64;
/// Longest times between two reports for which bytes may be under way at the delivered rate.
const REPORTS: u32 = 5;
/// Longest time for which a receiver that reports nothing new holds the path back, in a small
/// group. It is also at most [`REPORTS`] times the longest time between two reports. After this
/// time without any report the path sends more, and ever more.
const SILENCE: Duration = Duration::from_millis(250);
/// Silences after which what is sent in vain doubles no more.
const VAIN_MAX: u32 = 7;

/// How many bytes a path may send, all in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Longest time from a packet to the report on it, in a small group; `None`: receivers report
    /// on request only, and nothing is held back.
    reports: Option<Duration>,
    /// Number of bytes up to which the path may send.
    upto: u64,
    /// When `upto` last rose; `None`: it is as at first.
    rose: Option<Time>,
    /// How often in a row no receiver has reported anything for too long.
    vain: u32,
    /// When `upto` may change: at once after a report, else when a receiver has been silent for too
    /// long to hold the path back any more.
    next: Time,
}

impl Allowance {
    /// `reports`: longest time from a packet to the report on it; `None`: nothing is held back.
    pub(super) fn new(reports: Option<Duration>) -> Allowance {
        Allowance {
            reports,
            upto: reports.map_or(u64::MAX, |_| LEAST),
            rose: None,
            vain: 0,
            next: Time::ZERO,
        }
    }

    /// Whether a path that has sent `bytes` may send more.
    pub(super) fn allows(&self, bytes: u64) -> bool {
        bytes < self.upto
    }

    /// When a path that may send no more is to call [`Allowance::update`].
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// Notes that a receiver has reported.
    pub(super) fn has_reported(&mut self) {
        self.next = Time::ZERO;
    }

    /// Takes what receivers have reported until now. The path has sent `bytes`, and looks for its
    /// rate from the beginning if it `starts`.
    pub(super) fn update(
        &mut self,
        now: Time,
        paths: &[(u32, ReceiverState)],
        bytes: u64,
        starts: bool,
    ) {
        let Some(reports) = self.reports else { return };
        let counted = || paths.iter().map(|p| &p.1).filter(|p| p.counts());
        let suppression = paths.len().div_ceil(FEW).max(1) as u32;
        let window = reports * REPORTS * suppression;
        let silence = window.min(SILENCE * suppression);
        let heard = || counted().filter(|p| now.since(p.reported_at) < silence);
        let least = LEAST * u64::from(suppression);
        let rose = *self.rose.get_or_insert(now);
        let first = heard().map(|p| p.reported_at).min();
        self.next = first.unwrap_or(rose) + silence;
        let Some(behind) = heard().map(|p| p.reported).min() else {
            if now >= self.next {
                (self.rose, self.next) = (Some(now), now + silence);
                self.upto = bytes + (least << self.vain);
                self.vain = (self.vain + 1).min(VAIN_MAX);
            }
            return;
        };
        self.vain = 0;
        let slowest = heard().filter_map(|p| p.delivered).reduce(f64::min);
        let upto = match slowest.filter(|_| !starts) {
            None => behind + least + behind,
            Some(delivered) => {
                // A few slow receivers do not hold the path back: the rate follows them.
                let ahead = heard().map(|p| p.reported).max().unwrap_or(behind);
                let quickest = heard().filter_map(ReceiverState::rtt).max();
                let over = window + quickest.unwrap_or_default();
                ahead + least + (delivered * over.as_secs_f64()) as u64
            }
        };
        if upto > self.upto {
            self.rose = Some(now);
        }
        self.upto = upto;
    }

    /// Lifts the bound until the next update.
    pub(super) fn lift(&mut self) {
        self.upto = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: Duration = Duration::from_millis(20);

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    /// Receivers that have reported `reported` bytes at `at`.
    fn receivers(count: u32, reported: u64, at: Time) -> Vec<(u32, ReceiverState)> {
        let mut state = ReceiverState::new();
        state.required = true;
        state.has_reported(at, reported, Duration::from_millis(1));
        (0..count).map(|member| (member, state.clone())).collect()
    }

    /// What a path may send that has sent `bytes`.
    fn upto(now: Time, paths: &[(u32, ReceiverState)], bytes: u64, starts: bool) -> u64 {
        let mut allowance = Allowance::new(Some(REPORT));
        allowance.update(now, paths, bytes, starts);
        allowance.upto
    }

    #[test]
    fn in_startup_each_reported_byte_allows_two() {
        let paths = receivers(3, 100_000, ms(1));
        assert_eq!(upto(ms(2), &paths, 110_000, true), 200_000 + LEAST);
        let mut paths = receivers(3, 100_000, ms(1));
        paths[1].1.reported = 0;
        assert_eq!(upto(ms(2), &paths, 110_000, true), LEAST, "the slowest");
        let paths = receivers(130, 0, ms(1));
        assert_eq!(upto(ms(2), &paths, 1000, true), 3 * LEAST);
    }

    #[test]
    fn later_the_delivered_rate_says_how_much() {
        let mut paths = receivers(3, 1_000_000, ms(1));
        paths[0].1.reported = 0;
        for (member, path) in &mut paths {
            path.delivered = Some(125_000.0 * f64::from(*member + 1));
        }
        // In 101 ms, the round trip among them, the slowest gets 12 625 bytes.
        let allowed = upto(ms(2), &paths, 1_010_000, false);
        assert_eq!(allowed, 1_000_000 + LEAST + 12_625);
    }

    #[test]
    fn a_receiver_that_is_silent_holds_back_for_a_moment() {
        let mut paths = receivers(2, 100_000, ms(1));
        paths[0].1.reported = 10_000;
        paths[1].1.reported_at = ms(101);
        assert_eq!(upto(ms(100), &paths, 110_000, true), 20_000 + LEAST);
        assert_eq!(upto(ms(101), &paths, 110_000, true), 200_000 + LEAST);
    }

    #[test]
    fn without_reports_a_path_still_sends_now_and_then() {
        let mut allowance = Allowance::new(Some(REPORT));
        let mut sent = 0;
        for now in 0..=301 {
            while allowance.allows(sent) {
                sent += 1024;
            }
            if allowance.next() <= ms(now) {
                allowance.update(ms(now), &[], sent, true);
            }
        }
        assert_eq!(
            sent,
            (1 + 1 + 2 + 4) * LEAST,
            "after 0, 100, 200 and 300 ms"
        );
        assert!(Allowance::new(None).allows(u64::MAX - 1));
    }
}
