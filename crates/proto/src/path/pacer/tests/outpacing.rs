//! Receivers with links of their own: which of them the sender would outpace.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::*;
#[cfg(feature = "mutants")]
use crate::mutant::{self, Mutant};

/// Bytes of a burst, in packets of 1000 bytes.
const BURST: u32 = 10_000;
const PATIENCE: Duration = Duration::from_millis(300);
/// The speed of a link that is not slow, in bytes per second.
const LINK: f64 = 25e6;
/// Longest queue of a link; what comes when it is full is lost.
const QUEUE: Duration = Duration::from_millis(100);

/// A receiver with a link of its own.
struct Receiver {
    /// Its link's speed in bytes per second.
    link: f64,
    /// When the last packet arrives.
    arrived: Time,
    received: u32,
    /// Reports under way: when they arrive, burst, number of packets received before it.
    reports: VecDeque<(Time, u32, Burst, u32)>,
    is_there: bool,
}

/// A sender and its receivers.
struct Bench {
    pacer: Pacer,
    receivers: Vec<Receiver>,
    now: Time,
    burst: u32,
    fresh: u32,
    outpaced: Vec<usize>,
}

impl Bench {
    /// Receivers whose links have these shares of [`LINK`].
    fn new(shares: &[f64]) -> Bench {
        let mut pacer = Pacer::new(None);
        for member in 0..shares.len() {
            pacer.require(member, true);
            pacer.may_outpace(member, Some(PATIENCE));
        }
        let receiver = |share: &f64| Receiver {
            link: LINK * share,
            arrived: Time::ZERO,
            received: 0,
            reports: VecDeque::new(),
            is_there: true,
        };
        Bench {
            pacer,
            receivers: shares.iter().map(receiver).collect(),
            now: Time::ZERO,
            burst: 0,
            fresh: 0,
            outpaced: Vec::new(),
        }
    }

    /// Sends for the time `long`, as fast as the pacer allows. Receivers that are outpaced
    /// leave.
    fn send(&mut self, long: Duration) {
        let end = self.now + long;
        while self.now < end {
            let reports = self.receivers.iter().filter(|r| r.is_there);
            let next = reports.filter_map(|r| r.reports.front()).map(|r| r.0).min();
            let opens = self.pacer.opens_at();
            self.now = self.now.max(next.map_or(opens, |next| next.min(opens)));
            self.report();
            if self.pacer.is_open(self.now) {
                self.burst();
            }
        }
    }

    fn report(&mut self) {
        for (member, receiver) in self.receivers.iter_mut().enumerate() {
            while receiver.reports.front().is_some_and(|r| r.0 <= self.now)
                && let Some((at, number, burst, received)) = receiver.reports.pop_front()
            {
                let told = (received, at.micros());
                let rtt = self.now.since(burst.at);
                self.pacer
                    .sample(self.now, member, (number, &burst), rtt, told);
                self.pacer.tick(self.now, self.burst);
            }
        }
        while let Some(member) = self.pacer.take_outpaced() {
            self.outpaced.push(member);
            self.receivers[member].is_there = false;
            self.receivers[member].reports.clear();
            self.pacer.forget(member);
        }
    }

    fn burst(&mut self) {
        let burst = Burst {
            at: self.now,
            path: 0,
            fresh: self.fresh,
            bytes: u64::from(self.fresh) * 1000,
        };
        self.burst += 1;
        self.fresh += BURST / 1000;
        self.pacer.sent(self.now, BURST);
        for receiver in self.receivers.iter_mut().filter(|r| r.is_there) {
            let took = Duration::from_secs_f64(f64::from(BURST) / receiver.link);
            let arrives = (self.now + Duration::from_micros(50)).max(receiver.arrived + took);
            if arrives.since(self.now) > QUEUE {
                continue;
            }
            receiver.arrived = arrives;
            let before = receiver.received;
            receiver.received += BURST / 1000;
            receiver
                .reports
                .push_back((arrives, self.burst, burst, before));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_slow_ones_among_faster_ones_are_outpaced(
        slow in proptest::collection::vec(0.05f64..0.3, 1..4),
        more in 0usize..4,
        jitter in 0.9f64..1.0,
    ) {
        let fast = slow.len() + more;
        let others = (0..fast).map(|n| if n == 0 { jitter } else { 1.0 });
        let shares: Vec<f64> = slow.iter().copied().chain(others).collect();
        let mut bench = Bench::new(&shares);
        bench.send(Duration::from_secs(8));
        bench.outpaced.sort_unstable();
        prop_assert_eq!(&bench.outpaced, &(0..slow.len()).collect::<Vec<_>>());
        // The others then have their own pace.
        let before = bench.pacer.bytes();
        bench.send(Duration::from_secs(1));
        let share = (bench.pacer.bytes() - before) as f64 / LINK;
        prop_assert!(share > 0.75, "{}", share);
    }

    #[test]
    fn nobody_is_outpaced_where_all_are_about_as_fast(
        shares in proptest::collection::vec(0.6f64..1.0, 1..8),
        speed in prop::sample::select(vec![0.1, 1.0, 10.0]),
    ) {
        let shares: Vec<f64> = shares.iter().map(|share| share * speed).collect();
        let mut bench = Bench::new(&shares);
        bench.send(Duration::from_secs(4));
        prop_assert_eq!(bench.outpaced, Vec::<usize>::new());
    }

    #[test]
    fn nobody_is_outpaced_for_a_moment(pause in 450u64..1200, share in 0.05f64..0.5) {
        let mut bench = Bench::new(&[1.0, 1.0, 1.0]);
        for _ in 0..5 {
            bench.send(Duration::from_millis(pause));
            bench.receivers[0].link = LINK * share;
            bench.send(PATIENCE / 3);
            bench.receivers[0].link = LINK;
        }
        prop_assert_eq!(bench.outpaced, Vec::<usize>::new());
    }
}

#[test]
fn more_than_half_are_never_outpaced() {
    let mut bench = Bench::new(&[0.1, 0.1, 0.1, 1.0, 1.0]);
    bench.send(Duration::from_secs(3));
    assert_eq!(bench.outpaced, [0; 0]);
}

#[test]
fn one_that_must_not_be_outpaced_is_waited_for() {
    let mut bench = Bench::new(&[0.1, 1.0, 1.0]);
    bench.pacer.may_outpace(0, None);
    bench.send(Duration::from_secs(3));
    assert_eq!(bench.outpaced, [0; 0]);
    bench.pacer.may_outpace(0, Some(PATIENCE));
    bench.send(Duration::from_secs(1));
    assert_eq!(bench.outpaced, [0]);
}

#[cfg(feature = "mutants")]
#[test]
fn every_mutant_of_the_pace_is_caught() {
    for (mutant, shares, right) in [
        (Mutant::OutpacesUntried, [0.7, 1.0, 1.0], 0),
        (Mutant::NobodyIsOutpaced, [0.1, 1.0, 1.0], 1),
    ] {
        let found = |mutant| {
            mutant::select(mutant);
            let mut bench = Bench::new(&shares);
            bench.send(Duration::from_secs(3));
            mutant::select(None);
            bench.outpaced.len()
        };
        assert_eq!(found(None), right);
        assert_ne!(found(Some(mutant)), right, "{mutant:?}");
    }
}
