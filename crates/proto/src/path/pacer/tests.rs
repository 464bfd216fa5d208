//! Tests of the pacer on links of constant and of changing rate.

mod outpacing;

use super::*;
use crate::rng::Rng;

/// A link, in bytes per second, and a sender that sends bursts of 10 packets of 1000 bytes.
struct Bench {
    pacer: Pacer,
    link: f64,
    now: Time,
    /// When the last packet arrives.
    arrived: Time,
    burst: u32,
    fresh: u32,
}

impl Bench {
    const BURST: u32 = 10_000;

    fn new(link: f64) -> Bench {
        let mut pacer = Pacer::new(None);
        pacer.require(0, true);
        Bench {
            pacer,
            link,
            now: Time::ZERO,
            arrived: Time::ZERO,
            burst: 0,
            fresh: 0,
        }
    }

    /// Sends for the time `long`, as fast as the pacer allows.
    fn send(&mut self, long: Duration) {
        let end = self.now + long;
        while self.now < end {
            self.now = self.now.max(self.pacer.opens_at());
            let took = Duration::from_secs_f64(f64::from(Bench::BURST) / self.link);
            self.arrived = (self.now + Duration::from_micros(50)).max(self.arrived + took);
            let burst = Burst {
                at: self.now,
                path: 0,
                fresh: self.fresh,
                group_fresh: self.fresh,
                bytes: u64::from(self.fresh) * 1000,
            };
            self.burst += 1;
            let number = self.burst;
            let (received, at) = (self.fresh, self.arrived);
            self.fresh += 10;
            self.pacer.sent(self.now, Bench::BURST);
            self.pacer.sample(
                at,
                0,
                (number, &burst),
                at.since(burst.at),
                (received, at.micros()),
            );
            self.pacer.tick(at, number);
        }
    }
}

/// Each receiver loses 1 % of the packets, and each loses other packets.
#[test]
fn of_many_receivers_none_is_slow_by_chance() {
    const LINK: f64 = 1.25e6;
    for receivers in [1, 128] {
        let (mut pacer, mut rng) = (Pacer::new(None), Rng::new(1));
        let mut received = vec![0; receivers];
        (0..receivers).for_each(|member| pacer.require(member, true));
        let (mut now, mut arrived, mut sent, mut number) = (Time::ZERO, Time::ZERO, 0, 0);
        let (mut rates, mut samples) = (0.0, 0.0);
        while now < Time::ZERO + Duration::from_secs(8) {
            now = now.max(pacer.opens_at());
            let took = Duration::from_secs_f64(f64::from(Bench::BURST) / LINK);
            arrived = (now + Duration::from_micros(50)).max(arrived + took);
            let burst = Burst {
                at: now,
                path: 0,
                fresh: sent,
                group_fresh: sent,
                bytes: u64::from(sent) * 1000,
            };
            (number, sent) = (number + 1, sent + 10);
            pacer.sent(now, Bench::BURST);
            let rtt = arrived.since(now);
            for (member, received) in received.iter_mut().enumerate() {
                let so_far = (*received, arrived.micros());
                // Each receiver reports on every fourth burst.
                if (member as u32 + number).is_multiple_of(4) {
                    pacer.sample(arrived, member, (number, &burst), rtt, so_far);
                }
                *received += (0..10).filter(|_| !rng.chance(0.01)).count() as u32;
            }
            pacer.tick(arrived, number);
            if now > Time::ZERO + Duration::from_secs(2) {
                (rates, samples) = (rates + pacer.rate() as f64 / LINK, samples + 1.0);
            }
        }
        let share = rates / samples;
        assert!(
            share > 0.95,
            "{receivers} receivers: {share:.3} of the link"
        );
    }
}

#[test]
fn the_rate_is_soon_back_after_a_link_was_slower_for_a_moment() {
    let mut bench = Bench::new(100e6);
    bench.send(Duration::from_millis(300));
    bench.link = 50e6;
    bench.send(Duration::from_millis(150));
    assert!((bench.pacer.rate() as f64) < 0.6 * 100e6);
    bench.link = 100e6;
    let before = bench.pacer.bytes();
    bench.send(Duration::from_millis(200));
    let share = (bench.pacer.bytes() - before) as f64 / (bench.link * 0.2);
    assert!(share > 0.85, "{share}");
}

#[test]
fn a_sender_that_pauses_again_and_again_is_not_slowed_down_for_it() {
    let mut bench = Bench::new(100e6);
    bench.send(Duration::from_millis(500));
    for pause in 0..60 {
        bench.now = bench.now + Duration::from_millis(60);
        for _ in 0..8 {
            bench.send(Duration::from_millis(5));
            let rate = bench.pacer.rate() as f64;
            assert!(rate > 0.6 * bench.link, "after {pause} pauses: {rate}");
        }
    }
}
