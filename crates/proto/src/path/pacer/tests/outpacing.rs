//! Receivers with links of their own: which of them the sender would outpace.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::outpacing::TRIAL_MAX;
use super::super::*;
#[cfg(feature = "mutants")]
use crate::mutant::{self, Mutant};
use crate::rng::Rng;

/// Bytes of a burst.
const BURST: u32 = 10_000;
const PATIENCE: Duration = Duration::from_millis(300);
/// The speed of a link that is not slow, in bytes per second.
const LINK: f64 = 25e6;
/// Longest queue of a link, if the test sets no other; what comes when it is full is lost.
const QUEUE: Duration = Duration::from_millis(100);

/// A receiver with a link of its own.
struct Receiver {
    /// Its link's speed in bytes per second.
    link: f64,
    /// Longest queue before its link.
    queue: Duration,
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
    /// The speed of the sender's own link in bytes per second.
    uplink: f64,
    /// When that link has sent what it was given.
    free: Time,
    /// Bytes of a packet.
    packet: u32,
    /// The share of packets that each receiver loses on the way to its link.
    loss: f64,
    rng: Rng,
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
            queue: QUEUE,
            arrived: Time::ZERO,
            received: 0,
            reports: VecDeque::new(),
            is_there: true,
        };
        Bench {
            pacer,
            receivers: shares.iter().map(receiver).collect(),
            uplink: f64::INFINITY,
            free: Time::ZERO,
            packet: 1000,
            loss: 0.0,
            rng: Rng::new(1),
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
            let opens = self.pacer.opens_at().max(self.free);
            self.now = self.now.max(next.map_or(opens, |next| next.min(opens)));
            self.report();
            if self.now >= opens && self.pacer.is_open(self.now) {
                self.burst();
            }
        }
    }

    /// Sends while the first receiver's link has this share of its speed for a third of the
    /// patience, five times, each after a pause.
    fn hiccups(&mut self, pause: Duration, share: f64) {
        for _ in 0..5 {
            self.send(pause);
            self.receivers[0].link = LINK * share;
            self.send(PATIENCE / 3);
            self.receivers[0].link = LINK;
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
            group_fresh: self.fresh,
            bytes: u64::from(self.fresh) * u64::from(self.packet),
        };
        self.burst += 1;
        self.fresh += BURST / self.packet;
        self.pacer.sent(self.now, BURST);
        self.free = self.now + Duration::from_secs_f64(f64::from(BURST) / self.uplink);
        for receiver in self.receivers.iter_mut().filter(|r| r.is_there) {
            let took = Duration::from_secs_f64(f64::from(BURST) / receiver.link);
            let arrives = (self.now + Duration::from_micros(50)).max(receiver.arrived + took);
            if arrives.since(self.now) > receiver.queue {
                continue;
            }
            receiver.arrived = arrives;
            let before = receiver.received;
            let packets = 0..BURST / self.packet;
            let (rng, loss) = (&mut self.rng, self.loss);
            receiver.received += packets.filter(|_| !rng.chance(loss)).count() as u32;
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
        bench.hiccups(Duration::from_millis(pause), share);
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

/// The rate may be far below what the slow one takes, since its queue is being emptied. It is found
/// at the first trial all the same.
#[test]
fn one_whose_queue_is_long_is_outpaced_at_the_first_trial() {
    let mut bench = Bench::new(&[0.1, 1.0, 1.0, 1.0]);
    bench.send(2 * PATIENCE);
    assert_eq!(bench.outpaced, [0]);
}

/// A queue that is too short to be seen drops what is too much, from the first packets on. With
/// large packets the pacer takes these losses for usual ones. The others take all that the sender's
/// link carries, so the sender cannot send faster to try them.
#[test]
fn one_whose_short_queue_drops_the_rest_is_outpaced() {
    for patience in [PATIENCE, 4 * PATIENCE] {
        let mut bench = Bench::new(&[0.2, 1.0, 1.0, 1.0]);
        bench.pacer.may_outpace(0, Some(patience));
        (bench.uplink, bench.packet) = (LINK, 5000);
        bench.receivers[0].queue = Duration::from_millis(5);
        bench.send(2 * patience);
        assert_eq!(bench.outpaced, [0]);
    }
}

/// The queue of a slow receiver may be so long that nothing of a trial arrives for a while. Then
/// the sender takes the receiver for one that multicast does not reach.
#[test]
fn one_that_leaves_the_path_in_a_trial_takes_nothing_of_it() {
    let mut bench = Bench::new(&[0.1, 1.0, 1.0]);
    while !bench.pacer.outpacing.tries() {
        bench.send(Duration::from_millis(1));
    }
    bench.receivers[0].is_there = false;
    bench.pacer.require(0, false);
    bench.send(TRIAL_MAX);
    assert_eq!(bench.outpaced, [0]);
}

#[test]
fn one_that_has_left_the_path_before_a_trial_is_not_outpaced() {
    let mut bench = Bench::new(&[0.1, 0.1, 1.0, 1.0]);
    bench.send(PATIENCE);
    assert!(!bench.pacer.outpacing.tries());
    bench.pacer.require(0, false);
    bench.send(Duration::from_secs(3));
    assert_eq!(bench.outpaced, [1]);
}

/// All ways are equally lossy, and one link is a little slower than the others.
#[test]
fn losses_that_all_have_outpace_nobody() {
    let mut bench = Bench::new(&[0.7, 1.0, 1.0, 1.0]);
    bench.loss = 0.6;
    bench.send(Duration::from_secs(4));
    assert_eq!(bench.outpaced, [0; 0]);
}

/// Outpaces a receiver whose link has this share of the others' speed, and a queue this long.
/// Returns how many are outpaced.
#[cfg(feature = "mutants")]
fn outpaced(share: f64, queue: Duration) -> usize {
    let mut bench = Bench::new(&[share, 1.0, 1.0]);
    bench.receivers[0].queue = queue;
    bench.send(Duration::from_secs(3));
    bench.outpaced.len()
}

#[cfg(feature = "mutants")]
#[test]
fn every_mutant_of_the_pace_is_caught() {
    let a_moment = || {
        let mut bench = Bench::new(&[1.0, 1.0, 1.0]);
        bench.hiccups(Duration::from_millis(450), 0.05);
        bench.outpaced.len()
    };
    let cases: [(Mutant, &dyn Fn() -> usize, usize); Mutant::PACE.len()] = [
        (Mutant::OutpacesUntried, &|| outpaced(0.7, QUEUE), 0),
        (Mutant::NobodyIsOutpaced, &|| outpaced(0.1, QUEUE), 1),
        (Mutant::SilenceTakes, &|| outpaced(0.1, 10 * QUEUE), 1),
        (Mutant::MomentsCount, &a_moment, 0),
    ];
    for (mutant, run, right) in cases {
        let found = |mutant| {
            mutant::select(mutant);
            let outpaced = run();
            mutant::select(None);
            outpaced
        };
        assert_eq!(found(None), right, "{mutant:?}");
        assert_ne!(found(Some(mutant)), right, "{mutant:?}");
    }
}
