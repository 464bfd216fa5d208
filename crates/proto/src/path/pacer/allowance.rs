//! How much a path sends in Startup before its receivers say how fast they get it.
//!
//! The first rate is a guess, and on a slow link the first reports come late: they wait behind what
//! was sent at that rate. So a path first sends a little, and then at most twice what a receiver
//! has reported, as TCP's slow start does. A queue on the way then holds no more than that, and
//! what it drops is little. The receiver that is furthest ahead counts, so none can hold back the
//! others.

use core::time::Duration;

use crate::time::Time;

/// Bytes that may be sent before the first report: more than a receiver gets until it reports.
const FIRST: u64 = 32 << 10;
/// Number of packets that may be sent before the first report, also if they are long: some of them
/// arrive although most are lost.
const FIRST_PACKETS: u64 = 16;
/// Number of receivers up to which these numbers hold. With more of them each reports more rarely,
/// in proportion (feedback suppression).
const FEW: usize = 64;
/// Time for which a path waits for a report, with few receivers. Then it sends as much as at first,
/// after as much time again twice as much, and so on: reports also lack where most packets are
/// lost, or the way is long.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time after Startup for which the allowance holds. The rate may yet be wrong: a link may carry
/// its first bytes faster than those that follow (a token bucket), and reports show that late.
const SETTLES: Duration = Duration::from_millis(150);
/// Number of times in a row that this amount doubles.
const DOUBLINGS: u32 = 7;

/// How many bytes a path may send, all in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Bytes that may be sent before the first report, with few receivers.
    first: u64,
    /// Bytes that a receiver has reported, at most.
    reported: u64,
    /// Whether each reported byte allows two.
    doubles: bool,
    /// When Startup has ended; `None`: it has not.
    settles: Option<Time>,
    /// Bytes that may be sent because nothing was reported for too long.
    unheard: u64,
    /// When the last report came, or the path last sent something without one; `None`: it has not
    /// had to wait yet.
    since: Option<Time>,
    /// How often in a row it has waited in vain.
    in_vain: u32,
}

impl Allowance {
    /// The allowance of a path whose packets have `packet` bytes.
    pub(super) fn new(packet: usize) -> Allowance {
        Allowance {
            first: FIRST.max(FIRST_PACKETS * packet as u64),
            reported: 0,
            doubles: true,
            settles: None,
            unheard: 0,
            since: None,
            in_vain: 0,
        }
    }

    /// Notes that a receiver has reported a packet before which `bytes` bytes had been sent.
    pub(super) fn report(&mut self, now: Time, bytes: u64) {
        self.reported = self.reported.max(bytes);
        (self.since, self.in_vain) = (Some(now), 0);
    }

    /// Whether it still holds, at the end of a round after Startup. It does for some time after the
    /// first of them. If the path was much `too_fast` in one, each reported byte allows one more.
    pub(super) fn lasts(&mut self, now: Time, too_fast: bool) -> bool {
        self.doubles &= !too_fast;
        now < *self.settles.get_or_insert(now) + SETTLES
    }

    /// Number of bytes up to which a path to `receivers` receivers may send.
    fn upto(&self, receivers: usize) -> u64 {
        let factor = if self.doubles { 2 } else { 1 };
        let reported = factor * self.reported + self.first * times(receivers);
        reported.max(self.unheard)
    }

    /// Whether a path to `receivers` receivers that has sent `bytes` bytes waits for a report.
    pub(super) fn waits(&mut self, now: Time, bytes: u64, receivers: usize) -> bool {
        let since = *self.since.get_or_insert(now);
        if bytes < self.upto(receivers) {
            return false;
        }
        if now < since + PATIENCE * times(receivers) as u32 {
            return true;
        }
        self.unheard = bytes + ((self.first * times(receivers)) << self.in_vain);
        self.in_vain = (self.in_vain + 1).min(DOUBLINGS);
        self.since = Some(now);
        false
    }

    /// When a path that waits may send more without a report; `None`: it does not wait.
    pub(super) fn until(&self, bytes: u64, receivers: usize) -> Option<Time> {
        let waits = bytes >= self.upto(receivers);
        let since = self.since.filter(|_| waits)?;
        Some(since + PATIENCE * times(receivers) as u32)
    }
}

/// Factor for the rarer reports of many receivers.
fn times(receivers: usize) -> u64 {
    receivers.div_ceil(FEW).max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    /// The bytes that a path may send now, in packets of 1 KiB, if it has sent `bytes`.
    fn sends(allowance: &Allowance, bytes: u64, receivers: usize) -> u64 {
        let mut allowance = *allowance;
        let mut may = |n: &u64| !allowance.waits(ms(0), bytes + n * 1024, receivers);
        (0..).take_while(|n| may(n)).count() as u64 * 1024
    }

    #[test]
    fn each_reported_byte_allows_two() {
        let mut few = Allowance::new(1440);
        assert_eq!(sends(&few, 0, 64), FIRST);
        few.report(ms(1), 20 * 1024);
        few.report(ms(1), 10 * 1024);
        assert_eq!(sends(&few, FIRST, 64), 40 * 1024, "the quickest");
        let mut many = Allowance::new(1440);
        assert_eq!(sends(&many, 0, 130), 3 * FIRST);
        many.report(ms(1), 0);
        assert_eq!(sends(&many, FIRST, 130), 2 * FIRST);
        assert_eq!(sends(&Allowance::new(8192), 0, 2), 4 * FIRST);
    }

    #[test]
    fn without_reports_a_path_sends_now_and_then_and_ever_more() {
        let mut allowance = Allowance::new(1440);
        let mut sent = 0;
        for now in 0..=301 {
            while !allowance.waits(ms(now), sent, 2) {
                sent += 1024;
            }
        }
        assert_eq!(sent, (1 + 1 + 2 + 4) * FIRST, "after 0, 100, 200, 300 ms");
        assert_eq!(allowance.until(sent, 2), Some(ms(400)));
        assert_eq!(allowance.until(sent, 65), Some(ms(500)));
        allowance.report(ms(310), 4 * FIRST);
        assert_eq!(allowance.until(sent, 2), None);
        sent += FIRST;
        assert!(allowance.waits(ms(409), sent, 2));
        assert!(!allowance.waits(ms(410), sent, 2));
        assert!(allowance.waits(ms(410), sent + FIRST, 2), "as at first");
    }
}
