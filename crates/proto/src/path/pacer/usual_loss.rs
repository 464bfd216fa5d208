//! The share of new packets that do not reach one receiver: of late, and as a rule.
//!
//! Only loss far above the usual one tells that a path is too fast. What is usual is learnt, and
//! may be learnt wrongly: the first packets were lucky, or the path has changed. So the sender
//! looks what becomes of the loss once the rate has been lowered because of it. On a path that
//! carries only so much, the loss falls with the rate. If it stays, it has another reason, and is
//! usual from then on.

use core::time::Duration;

use crate::time::Time;

/// Queue above which the rate goes below what arrives, to drain it, in µs.
pub const QUEUE_HIGH_US: f64 = 5_000.0;
/// Time for which a queue, a delivered rate or excess loss must have stood to count.
pub const STANDING: Duration = Duration::from_millis(40);
/// Loss above the usual one that counts as congestion, as a share of the packets.
pub const LOSS_EXCESS: f64 = 0.15;
/// Number of packets from which something is learnt although a queue may have dropped some of them.
const LEARN_LEAST: f64 = 32.0;
/// Number of packets sent until which every loss counts as usual.
const LEARN_FREELY: f64 = 200.0;
/// Number of packets over which the loss of late is learnt.
const LATE_OVER: f64 = 100.0;
/// Number of packets over which the usual loss is learnt.
const USUAL_OVER: f64 = 2000.0;
/// Largest rise of the usual loss in a second while losses exceed it, as a share of the packets.
const USUAL_RISES: f64 = 0.05;
/// Number of packets for which excess loss must last, besides [`STANDING`], to count: bursts of
/// losses do not last.
const LASTING: f64 = 256.0;
/// Share of the former rate up to which a rate is so low that it shows whether the loss has stayed.
const LOWERED: f64 = 0.3;
/// Number of packets at such a rate that show it.
const PROOF: f64 = 256.0;
/// Share of the former rate above which the rate is as before.
const BACK: f64 = 0.6;

/// New packets that were sent to a receiver.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Their number.
    pub packets: f64,
    /// The share of them that was lost.
    pub loss: f64,
    /// How many bytes per second were sent meanwhile.
    pub rate: f64,
    /// The queue before the receiver, in µs.
    pub queue_us: f64,
}

/// The loss of one receiver.
#[derive(Clone, Debug, Default)]
pub struct UsualLoss {
    /// Share of packets lost of late.
    late: f64,
    /// Share of packets lost as a rule.
    usual: f64,
    /// Number of packets that both were learnt from.
    learnt: f64,
    /// When they were last learnt from.
    at: Time,
    /// Losses since the loss has been far above the usual one, and since when.
    excess: Option<(Time, Lost)>,
    /// Losses since the rate was lowered because of that.
    lowered: Option<Lowered>,
}

/// Packets that were sent, and how many of them were lost.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    packets: f64,
    lost: f64,
}

/// What was lost before the rate was lowered, and after that.
#[derive(Clone, Copy, Debug)]
struct Lowered {
    /// The rate before, in bytes per second.
    rate: f64,
    /// The share of packets lost at that rate.
    loss: f64,
    /// The packets sent at a rate that is low enough.
    since: Lost,
}

/// What has become of the loss since the rate was lowered.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    /// Too few packets have been sent to tell.
    Open,
    /// It has fallen.
    Fallen,
    /// It has stayed, and is this share of the packets.
    Stayed(f64),
}

impl UsualLoss {
    /// The share of packets that is lost as a rule.
    pub fn usual(&self) -> f64 {
        self.usual
    }

    /// When losses were last learnt from.
    pub fn at(&self) -> Time {
        self.at
    }

    /// Whether loss is far above the usual one.
    pub fn exceeds(&self) -> bool {
        self.late - self.usual > LOSS_EXCESS
    }

    /// Whether loss has been far above the usual one for so long that this is no burst of losses.
    pub fn lasts(&self, now: Time) -> bool {
        let excess = self.excess;
        excess.is_some_and(|(since, l)| now.since(since) >= STANDING && l.packets >= LASTING)
    }

    /// Forgets what was lost of late.
    pub fn restart(&mut self) {
        (self.late, self.excess, self.lowered) = (self.usual, None, None);
    }

    /// Learns from packets that were sent.
    pub fn learn(&mut self, now: Time, sample: Sample) {
        let Sample { packets, loss, .. } = sample;
        let known = self.learnt;
        self.late += (loss - self.late) * packets / (packets + known.min(LATE_OVER));
        // What a queue drops is not usual.
        if sample.queue_us <= QUEUE_HIGH_US || known < LEARN_LEAST {
            self.learn_usual(now, sample);
        }
        self.at = now;
        self.excess = self.exceeds().then(|| {
            let (since, lost) = self.excess.unwrap_or((now, Lost::default()));
            (since, lost.and(sample))
        });
    }

    fn learn_usual(&mut self, now: Time, sample: Sample) {
        let Sample { packets, loss, .. } = sample;
        // A sample may be so large that only its first packets are learnt from freely.
        let free = (LEARN_FREELY - self.learnt).clamp(0.0, packets);
        if free > 0.0 {
            self.learnt += free;
            self.usual += (loss - self.usual) * free / self.learnt;
        }
        // Drops of a queue too short to be seen are not usual loss. While loss is far above the
        // usual one, the usual loss rises by the clock, so slowly that the rate is lowered first.
        let most = match self.exceeds() {
            true => USUAL_RISES * now.since(self.at).as_secs_f64(),
            false => 1.0,
        };
        let rest = packets - free;
        if rest > 0.0 {
            let rise = (loss - self.usual) * rest / (rest + self.learnt.min(USUAL_OVER));
            self.usual += rise.min(most);
            self.learnt += rest;
        }
        let exceeds = self.exceeds();
        let Some(lowered) = &mut self.lowered else {
            return;
        };
        match lowered.note(sample) {
            Verdict::Open if exceeds || sample.rate <= BACK * lowered.rate => {}
            Verdict::Open | Verdict::Fallen => self.lowered = None,
            Verdict::Stayed(loss) => {
                (self.usual, self.late) = (self.usual.max(loss), loss);
                self.lowered = None;
            }
        }
    }

    /// Notes that the rate is lowered because losses last. So far `rate` bytes per second were
    /// sent.
    pub fn note_lowered(&mut self, rate: f64) {
        let Some((_, lost)) = self.excess else { return };
        if self.lowered.is_none_or(|l| l.rate < rate) {
            self.lowered = Some(Lowered {
                rate,
                loss: lost.share(),
                since: Lost::default(),
            });
        }
    }
}

impl Lost {
    fn and(self, sample: Sample) -> Lost {
        Lost {
            packets: self.packets + sample.packets,
            lost: self.lost + sample.packets * sample.loss,
        }
    }

    /// The share of the packets that was lost.
    fn share(self) -> f64 {
        self.lost / self.packets
    }
}

impl Lowered {
    fn note(&mut self, sample: Sample) -> Verdict {
        if sample.rate > LOWERED * self.rate {
            return Verdict::Open;
        }
        self.since = self.since.and(sample);
        if self.since.packets < PROOF {
            return Verdict::Open;
        }
        // What is lost now if the path carries as much as before and no more.
        let fallen = (1.0 - (1.0 - self.loss) * self.rate / sample.rate).max(0.0);
        match self.since.share() > 0.5 * (self.loss + fallen) {
            true => Verdict::Stayed(self.since.share()),
            false => Verdict::Fallen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: f64 = 1e7;

    fn sample(packets: f64, loss: f64) -> Sample {
        Sample {
            packets,
            loss,
            rate: RATE,
            queue_us: 0.0,
        }
    }

    /// A path that has lost nothing, and loses from then on as `loss` says of each rate. The rate
    /// is lowered to a quarter when losses last, and raised when they are over. Returns what is
    /// known after `samples` samples of 5 ms, and the rate.
    fn after(samples: u64, loss: impl Fn(f64) -> f64) -> (UsualLoss, f64) {
        let (mut known, mut rate) = (UsualLoss::default(), RATE);
        known.learn(Time::ZERO, sample(1000.0, 0.0));
        for k in 1..=samples {
            let now = Time(k * 5_000_000);
            let seen = Sample {
                rate,
                ..sample(32.0, loss(rate))
            };
            known.learn(now, seen);
            if known.lasts(now) {
                known.note_lowered(rate);
                rate = rate.min(RATE / 4.0);
            } else if !known.exceeds() {
                rate = (rate * 1.5).min(RATE);
            }
        }
        (known, rate)
    }

    #[test]
    fn loss_that_stays_when_the_rate_falls_is_usual() {
        for loss in [0.3, 0.5, 0.9] {
            let (known, rate) = after(60, |_| loss);
            assert!((known.usual() - loss).abs() < 0.02, "{loss}: {known:?}");
            assert_eq!(rate, RATE, "{loss}");
        }
    }

    #[test]
    fn loss_that_falls_with_the_rate_is_not_usual() {
        for carries in [0.02, 0.1, 0.3, 0.6] {
            for samples in 20..120 {
                let (known, _) = after(samples, |rate| (1.0 - carries * RATE / rate).max(0.0));
                assert!(known.usual() < 0.2, "{carries} {samples}: {known:?}");
            }
        }
    }

    #[test]
    fn neither_a_lucky_beginning_nor_a_queue_is_usual() {
        let mut lucky = UsualLoss::default();
        lucky.learn(Time(1), sample(16.0, 0.0));
        lucky.learn(Time(2), sample(300.0, 0.9));
        assert!(lucky.usual() > 0.8, "{lucky:?}");
        let mut queued = UsualLoss::default();
        queued.learn(Time(1), sample(40.0, 0.0));
        let full = Sample {
            queue_us: 2.0 * QUEUE_HIGH_US,
            ..sample(60.0, 0.5)
        };
        (0..100).for_each(|k| queued.learn(Time(1_000_000 * k), full));
        assert_eq!(queued.usual(), 0.0);
        assert!(
            queued.lasts(Time(100_000_000)),
            "beside another flow it counts"
        );
    }

    /// The rate was lowered a little at first, and the loss was gone. Later the path carries much
    /// less.
    #[test]
    fn what_was_lost_long_ago_is_not_compared() {
        let (mut known, mut now) = (UsualLoss::default(), Time(1));
        known.learn(now, sample(1000.0, 0.0));
        let mut learn = |known: &mut UsualLoss, rate: f64, carries: f64, samples: u32| {
            for _ in 0..samples {
                now = now + Duration::from_millis(5);
                let seen = Sample {
                    rate,
                    ..sample(32.0, (1.0 - carries / rate).max(0.0))
                };
                known.learn(now, seen);
                if known.lasts(now) {
                    known.note_lowered(rate);
                }
            }
        };
        learn(&mut known, RATE, 0.78 * RATE, 20);
        learn(&mut known, 0.78 * RATE, 0.78 * RATE, 100);
        learn(&mut known, 0.78 * RATE, 0.1 * RATE, 12);
        learn(&mut known, 0.2 * RATE, 0.1 * RATE, 12);
        assert!(known.usual() < 0.2, "{known:?}");
    }

    #[test]
    fn a_queue_too_short_to_be_seen_is_not_learnt_freely_later() {
        let (known, _) = after(4, |_| 0.5);
        assert!(known.exceeds() && known.usual() < 0.05, "{known:?}");
    }
}
