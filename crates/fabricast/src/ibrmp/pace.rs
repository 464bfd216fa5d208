//! The pace of multicast (spec 7.8). P3 leaves it to InfiniBand, where a sender cannot outrun its
//! receivers by much; over UDP it can, and all that overflows would go again by channels.
//!
//! Requests tell how much the neediest receiver lacks. Where it lacks more than usual, the sender
//! tries a lower rate. If as much arrives at the lower rate as before, the receiver could not take
//! more, and the lower rate stays. If less arrives, the rate is not what causes the losses: the old
//! rate comes back, and that much loss is usual from now on.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_proto::Time;

/// The rate before anything is known, in bytes per second: 100 Mbit/s.
const RATE_START: f64 = 12.5e6;
/// The rate up to which it rises fast, in bytes per second: 1 Gbit/s. What a receiver has requested
/// says less of what it lacks the more it lacks, so beyond that the rate rises slowly.
const RATE_FAST: f64 = 125e6;
/// The lowest rate, in bytes per second.
const RATE_MIN: f64 = 1e6;
/// The highest rate, in bytes per second: beyond it nothing is paced.
const RATE_MAX: f64 = 1e11;
/// Loss that is usual before anything is known: P3 receives more than 98 % by multicast.
const USUAL_LOSS: f64 = 0.02;
/// The lower rate that is tried, as a part of the rate.
const CUT: f64 = 0.7;
/// The least part of what arrived before the cut that arrives after it if the receiver could not
/// take more: midway between `CUT` and 1.
const KEPT: f64 = (1.0 + CUT) / 2.0;
/// After this many measurements a lower rate is tried again, if more is lost than `USUAL_LOSS`: on
/// a busy host a trial may mislead.
const TRY_EVERY: u32 = 16;
/// How much the rate rises after a measurement without unusual loss, before receivers have lost
/// anything by it, and after that.
const RISE: [f64; 2] = [2.0, 1.1];
/// The least part of the rate that must have been used for it to rise.
const USED: f64 = 0.8;
/// The shortest measurement. It is longer than a round trip in a cluster.
const EPOCH: Duration = Duration::from_millis(20);
/// The fewest bytes of a measurement.
const EPOCH_BYTES: u64 = 256 << 10;
/// The longest pause that is made up for.
const CATCH_UP: Duration = Duration::from_millis(2);

/// How long after the last answer multicast stands back, while answers wait for credits.
const STAND_BACK: Duration = Duration::from_millis(5);
/// How long multicast stands back at once. Then it goes as long, so that a receiver that is slow,
/// or that lies, takes at most half of the time from the others.
const STAND_BACK_MAX: Duration = Duration::from_millis(50);

/// How multicast stands back for answers.
#[derive(Debug, Default)]
pub struct StandBack {
    /// When the last answer left.
    answered: Option<Time>,
    /// When multicast began to stand back.
    since: Option<Time>,
}

impl StandBack {
    /// An answer has left.
    pub fn answered(&mut self, now: Time) {
        self.answered = Some(now);
    }

    /// Until when multicast stands back, while answers wait for credits; `None`: it may go now.
    pub fn until(&mut self, now: Time) -> Option<Time> {
        let until = self.answered? + STAND_BACK;
        if until <= now {
            return None;
        }
        let mut lasted = now.since(*self.since.get_or_insert(now));
        if lasted >= 2 * STAND_BACK_MAX {
            (self.since, lasted) = (Some(now), Duration::ZERO);
        }
        (lasted < STAND_BACK_MAX).then_some(until)
    }
}

/// When multicast may go.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second.
    rate: f64,
    is_fixed: bool,
    due: Time,
    /// When the measurement began.
    since: Option<Time>,
    /// Bytes sent since then.
    sent: u64,
    /// Bytes that each receiver has requested since then.
    requested: BTreeMap<u32, u64>,
    /// Whether no loss has come from the rate yet.
    is_starting: bool,
    /// Loss that is usual.
    usual: f64,
    /// Measurements since a lower rate was last tried.
    untried: u32,
    /// The rate before the cut that is being tried, and the bytes per second that arrived then.
    before: Option<(f64, f64)>,
}

impl Pace {
    /// A pace of so many bytes per second, or one that finds the rate.
    pub fn new(fixed: Option<u64>) -> Pace {
        Pace {
            rate: fixed.map_or(RATE_START, |rate| rate as f64),
            is_fixed: fixed.is_some(),
            due: Time::ZERO,
            since: None,
            sent: 0,
            requested: BTreeMap::new(),
            is_starting: true,
            usual: USUAL_LOSS,
            untried: 0,
            before: None,
        }
    }

    /// When the next message may go.
    pub fn due(&self) -> Time {
        self.due
    }

    /// Bytes per second.
    pub fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// A receiver has requested bytes.
    pub fn requested(&mut self, receiver: u32, bytes: u64) {
        let sum = self.requested.entry(receiver).or_default();
        *sum = sum.saturating_add(bytes);
    }

    /// Bytes have been multicast.
    pub fn sent(&mut self, now: Time, bytes: u64) {
        let earliest = Time(now.0.saturating_sub(CATCH_UP.as_nanos() as u64));
        self.due = self.due.max(earliest) + Duration::from_secs_f64(bytes as f64 / self.rate);
        self.sent += bytes;
        let since = *self.since.get_or_insert(now);
        let time = now.since(since);
        if !self.is_fixed && time >= EPOCH && self.sent >= EPOCH_BYTES {
            self.adapt(time.as_secs_f64());
            (self.since, self.sent) = (Some(now), 0);
            self.requested.clear();
        }
    }

    fn adapt(&mut self, seconds: f64) {
        let neediest = self.requested.values().max().copied().unwrap_or(0);
        let sent = self.sent as f64;
        let loss = (neediest as f64 / sent).min(1.0);
        let arrived = sent * (1.0 - loss) / seconds;
        self.untried += 1;
        match self.before.take() {
            Some((rate, before)) if loss > USUAL_LOSS && arrived <= before * KEPT => {
                self.rate = rate;
                self.usual = loss + USUAL_LOSS;
                self.is_starting = true;
                return;
            }
            // As much arrives as before: the rate was too high.
            Some(_) => self.usual = USUAL_LOSS,
            None => {}
        }
        match loss {
            _ if loss > self.usual || loss > USUAL_LOSS && self.untried >= TRY_EVERY => {
                self.before = Some((self.rate, arrived));
                self.untried = 0;
                self.is_starting = false;
                // What left may be less than the rate allowed.
                self.rate = (self.rate.min(sent / seconds) * CUT).max(RATE_MIN);
            }
            _ if sent / seconds > self.rate * USED => {
                let [starting, later] = RISE;
                let doubles = self.is_starting && self.rate < RATE_FAST;
                let rise = if doubles { starting } else { later };
                self.rate = (self.rate * rise).min(RATE_MAX);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends for some seconds to a receiver that takes `most` bytes per second and loses the part
    /// `loss` of what is sent. Returns the rate at the end and the bytes that arrived per second.
    fn run(mut pace: Pace, most: f64, loss: f64) -> (f64, f64) {
        const SECONDS: u64 = 4;
        const MESSAGE: u64 = 8000;
        let (mut sent, mut lost) = (0, 0.0);
        let (mut room, mut last) = (0.0, Time::ZERO);
        loop {
            let now = pace.due();
            if now > Time::ZERO + Duration::from_secs(SECONDS) {
                let arrived = (sent as f64 - lost) / SECONDS as f64;
                return (pace.rate, arrived);
            }
            room = (room + now.since(last).as_secs_f64() * most).min(most * 0.002);
            last = now;
            let arrives = MESSAGE as f64 * (1.0 - loss);
            let takes = room.min(arrives);
            room -= takes;
            let lacks = MESSAGE as f64 - takes;
            lost += lacks;
            pace.requested(1, lacks as u64);
            pace.sent(now, MESSAGE);
            sent += MESSAGE;
        }
    }

    #[test]
    fn a_receiver_that_takes_less_slows_the_sender() {
        for most in [20e6, 60e6, 300e6] {
            let (rate, arrived) = run(Pace::new(None), most, 0.0);
            assert!(rate < 1.3 * most, "{rate} for {most}");
            assert!(arrived > 0.7 * most, "{arrived} of {most}");
        }
    }

    #[test]
    fn losses_that_do_not_depend_on_the_rate_do_not_slow_the_sender() {
        for loss in [0.1, 0.5, 0.9] {
            let (rate, _) = run(Pace::new(None), f64::MAX, loss);
            assert!(rate >= 100.0 * RATE_START, "{rate} at {loss}");
        }
    }

    /// However long a receiver keeps answers waiting, multicast has half of the time.
    #[test]
    fn multicast_stands_back_for_half_of_the_time_at_most() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let (mut stand_back, mut back) = (StandBack::default(), 0);
        for ms in 0..10_000 {
            stand_back.answered(at(ms));
            back += u32::from(stand_back.until(at(ms)).is_some());
        }
        assert_eq!(back, 5000);
        // After a pause it stands back again at once, and goes when no answer leaves.
        stand_back.answered(at(20_000));
        assert_eq!(stand_back.until(at(20_000)), Some(at(20_005)));
        assert_eq!(stand_back.until(at(20_005)), None);
    }

    #[test]
    fn a_fixed_rate_stays() {
        let (rate, _) = run(Pace::new(Some(10_000_000)), 1e6, 0.0);
        assert_eq!(rate, 1e7);
    }

    #[test]
    fn a_receiver_that_asks_for_all_and_more_does_not_stop_the_sender() {
        let mut pace = Pace::new(None);
        for _ in 0..100_000 {
            let now = pace.due();
            pace.requested(1, u64::MAX);
            pace.sent(now, 8000);
        }
        assert!(pace.rate >= RATE_START * CUT);
    }
}
