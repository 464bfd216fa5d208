//! A few receivers may hold the rate of all others down. The pacer notices that, and tries whether
//! the others could take more (spec 2.10).

use core::time::Duration;

use super::receiver::ReceiverState;
use super::{LOSS_EXCESS, Pacer, Phase, QUEUE_LOW_US, RECENT, STANDING, USED};
use crate::mutant::{self, Mutant};
use crate::time::Time;

/// Rate of a trial, as a multiple of what has arrived before it.
const TRIAL: f64 = 2.5;
/// Share of what is sent in a trial above which a receiver takes it.
const TAKEN: f64 = 0.8;
/// Share of what is sent in a trial below which a receiver is outpaced.
const OUTPACED: f64 = 0.5;
/// Longest duration of a trial.
const TRIAL_MAX: Duration = Duration::from_millis(300);
/// The pacer looks at who holds the rate over this part of the patience: one in so many.
const LOOK: f64 = 8.0;
/// Share of the time from which a receiver counts as one that holds the rate.
const HOLDS: f64 = 0.5;
/// Share of the time below which it does not any more.
const HOLDS_NOT: f64 = 0.25;
/// Losses are compared in parts of so many.
const PARTS: f64 = 1000.0;
/// Trials in vain after which the pause between two trials grows no more.
const VAIN_MAX: u32 = 6;

/// A trial of a higher rate.
#[derive(Clone, Copy, Debug)]
struct Trial {
    began: Time,
    /// Rate before the trial.
    rate: f64,
    /// Since when at least half of the receivers take what is sent.
    taken: Option<Time>,
}

/// Whether receivers may be outpaced, and what the pacer knows about that.
#[derive(Clone, Debug, Default)]
pub(super) struct Outpacing {
    /// How long a receiver may hold the rate; `None`: no receiver may be outpaced.
    patience: Option<Duration>,
    trial: Option<Trial>,
    /// When the next trial may begin.
    next: Time,
    /// Trials in vain so far.
    vain: u32,
    /// Receivers that have been found and not been told of yet.
    untold: u32,
    /// Space for sorting.
    sorted: Vec<u32>,
}

/// The median of values; `space` is for sorting them.
fn median(values: impl Iterator<Item = u32>, space: &mut Vec<u32>) -> f64 {
    space.clear();
    space.extend(values);
    space.sort_unstable();
    let middle = space.get(space.len().saturating_sub(1) / 2);
    middle.map_or(0.0, |middle| f64::from(*middle))
}

impl Outpacing {
    /// Whether a trial is under way.
    pub(super) fn tries(&self) -> bool {
        self.trial.is_some()
    }

    /// Whether what left at this time says something of what is tried, or nothing is.
    pub(super) fn covers(&self, left: Time) -> bool {
        self.trial.is_none_or(|trial| trial.began <= left)
    }
}

impl Pacer {
    /// Sets whether the group may outpace `member`, if this has held the rate for `patience`.
    pub fn may_outpace(&mut self, member: usize, patience: Option<Duration>) {
        self.outpacing.patience = patience.or(self.outpacing.patience);
        let path = self.path(member);
        path.expendable = patience.is_some();
        path.aside &= path.expendable;
        path.held = None;
    }

    /// A member that the group would outpace without waiting for it, if one has been found since
    /// the last call. Its speed does not count any more.
    pub fn take_outpaced(&mut self) -> Option<usize> {
        if self.outpacing.untold == 0 {
            return None;
        }
        self.outpacing.untold -= 1;
        let (member, path) = self.paths.iter_mut().find(|(_, p)| p.found)?;
        path.found = false;
        Some(*member as usize)
    }

    /// Watches at the end of a round which receivers hold the rate, and tries a higher one if a
    /// few have done so for as long as they may. `delivered`: what arrives at the slowest. `sent`:
    /// the rate at which packets left in the round, which took `took` seconds. Returns whether a
    /// trial sets the rate.
    pub(super) fn outpaces(&mut self, now: Time, delivered: f64, sent: f64, took: f64) -> bool {
        let Some(patience) = self.outpacing.patience else {
            return false;
        };
        let limited = sent < USED * self.rate;
        if let Some(trial) = self.outpacing.trial {
            return self.goes_on(now, trial, sent, limited);
        }
        self.look(now, took, patience);
        let counted = self.paths.iter().filter(|p| p.1.counts());
        let (mut all, mut few, mut expendable) = (0, 0, true);
        for (_, path) in counted {
            all += 1;
            if path.has_held(now, patience) {
                few += 1;
                expendable &= path.expendable;
            }
        }
        let is_due = few > 0 && 2 * few <= all && expendable && now >= self.outpacing.next;
        if !is_due || limited || self.phase == Phase::Startup || self.drain.is_some() {
            return false;
        }
        if mutant::active(Mutant::OutpacesUntried) {
            self.find(now, |_| true);
            return false;
        }
        self.outpacing.trial = Some(Trial {
            began: now,
            rate: self.rate,
            taken: None,
        });
        self.rate = TRIAL * delivered;
        for (_, path) in &mut self.paths {
            (path.mark, path.delivered, path.arrives) = (None, None, None);
        }
        true
    }

    /// Notes which receivers hold the rate: those whose queue is longer than that of most others,
    /// and those that lose far more than usual, or than most others do.
    fn look(&mut self, now: Time, took: f64, patience: Duration) {
        let counted = || self.paths.iter().filter(|p| p.1.counts());
        let sorted = &mut self.outpacing.sorted;
        // One that has not reported on this round, which ended without it, has a long queue.
        let queues = counted().map(|p| p.1.queue_us.unwrap_or(u32::MAX));
        let queue_most = median(queues, sorted) + QUEUE_LOW_US;
        let losses = counted().map(|p| (p.1.usual_loss * PARTS) as u32);
        let loss_most = median(losses, sorted) / PARTS + LOSS_EXCESS;
        let learn = (took * LOOK / patience.as_secs_f64()).min(1.0);
        for (_, path) in self.paths.iter_mut().filter(|p| p.1.counts()) {
            let queue = path.queue_us.unwrap_or(u32::MAX);
            let loses = path.over.is_some() || path.usual_loss > loss_most;
            let holds = f64::from(queue) > queue_most || loses;
            path.holds += (f64::from(u8::from(holds)) - path.holds) * learn;
            match path.holds {
                share if share > HOLDS => _ = path.held.get_or_insert(now),
                share if share < HOLDS_NOT => path.held = None,
                _ => {}
            }
        }
    }

    /// Goes on with a trial, or ends it. Returns whether it sets the rate.
    fn goes_on(&mut self, now: Time, mut trial: Trial, sent: f64, limited: bool) -> bool {
        let patience = self.outpacing.patience.unwrap_or_default();
        let (mut all, mut taken, mut unknown) = (0, 0, false);
        for (_, path) in self.paths.iter().filter(|p| p.1.counts()) {
            all += 1;
            let takes = |d| d >= TAKEN * sent.min(self.rate);
            taken += u32::from(path.delivered.is_some_and(takes));
            unknown |= path.delivered.is_none() && path.has_held(now, patience);
        }
        let is_taken = 2 * taken >= all && all > 0 && !limited;
        trial.taken = trial.taken.or(Some(now)).filter(|_| is_taken);
        self.outpacing.trial = Some(trial);
        let stands = trial.taken.is_some_and(|t| now.since(t) >= STANDING);
        if (unknown || !stands) && now.since(trial.began) < TRIAL_MAX {
            return true;
        }
        let most = OUTPACED * self.rate;
        self.outpacing.trial = None;
        self.recent = [(Time::ZERO, f64::MAX, 0.0); RECENT];
        for (_, path) in &mut self.paths {
            // What was lost in the trial says nothing about the rate of before.
            (path.loss, path.over) = (path.usual_loss, None);
        }
        let found = match stands && !mutant::active(Mutant::NobodyIsOutpaced) {
            true => self.find(now, |p| p.arrives.is_none_or(|rate| rate < most)),
            false => 0,
        };
        if found == 0 {
            self.outpacing.next = now + patience * (1 << self.outpacing.vain);
            self.outpacing.vain = (self.outpacing.vain + 1).min(VAIN_MAX);
            self.rate = trial.rate;
        }
        true
    }

    /// Takes receivers for outpaced that have held the rate for as long as they may, and of which
    /// this is true. Their speed does not count from now on, and the pacer looks for the rate of
    /// the others. Returns how many there are.
    fn find(&mut self, now: Time, is_outpaced: impl Fn(&ReceiverState) -> bool) -> u32 {
        let patience = self.outpacing.patience.unwrap_or_default();
        let counted = self.paths.iter_mut().map(|p| &mut p.1);
        let mut found = 0;
        for path in counted.filter(|p| p.counts() && p.expendable) {
            if path.has_held(now, patience) && is_outpaced(path) {
                (path.aside, path.found, path.held) = (true, true, None);
                found += 1;
            }
        }
        self.outpacing.untold += found;
        if found > 0 {
            self.phase = Phase::Startup;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::path::Burst;

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
}
