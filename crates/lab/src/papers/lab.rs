//! The papers' methods of measuring, in virtual time: P1.12's tests, P4.11's and P2's, on a testbed
//! as calibrated.
//!
//! Nothing is lost in these tests. So time-outs are long, and the rate is fixed far above the speed
//! of the processors: the tests measure costs of messages, and what a scheme makes nodes wait for.

use std::time::Duration;

use fabricast::collective::Algorithm;
use fabricast::proto::rng::Rng;
use fabricast::proto::{Barrier, Scheme, Time};

use crate::model::Simulated;
use crate::model::rounds;
use fabricast_sim::Scenario;
use fabricast_sim::Trace;
use fabricast_sim::fault::Pause;
use fabricast_sim::workload::{After, BarrierPlan, Cost, GroupPlan, StreamPlan};
use fabricast_sim::{Baseline, Timing, measure};
use fabricast_sim::{Cluster, Failure};

/// Rate of the pacer in bytes per second, so high that the pacer never holds a packet back.
const RATE: u64 = 40_000_000_000;
/// Time-out, far longer than any test without losses takes.
const TIME_OUT: Duration = Duration::from_secs(10);
/// When the root begins: all others have posted by then.
const START: Duration = Duration::from_millis(100);
/// Broadcasts or barriers before those that are timed (P4.11).
pub const WARM_UPS: usize = 20;
/// Bytes of an application's acknowledgement (P1.12).
const ANSWER: u64 = 4;
/// Longest message between two hosts that is one datagram here, in bytes of payload.
const MESSAGE_MAX: u64 = 32_768;

/// A testbed and the number of its hosts in use.
#[derive(Clone, PartialEq, Debug)]
pub struct Bed {
    /// The testbed's costs and topology.
    pub simulated: Simulated,
    /// Number of hosts, the root among them.
    pub hosts: usize,
}

fn us(d: Duration) -> f64 {
    d.as_nanos() as f64 / 1e3
}

impl Bed {
    fn equip(&self, mut s: Scenario) -> Scenario {
        s.costs = self.simulated.costs;
        s.topology = self.simulated.topology.clone();
        s.overhead = 0;
        // A library looks for ACKs between any two packets that it sends.
        (s.batch, s.sends_at_once) = (1, 1);
        s.rate = Some(RATE);
        s.receive_buffer = 64 << 20;
        s.judged = false;
        s
    }

    /// A scenario of `count` broadcasts of one length by multicast.
    fn multicast(&self, scheme: &Scheme, bytes: u64, count: usize) -> Scenario {
        let payload_size = self.simulated.payload_bytes;
        let mut s = self.equip(Scenario::bulk(self.hosts, bytes, payload_size));
        s.scheme = scheme.clone();
        s.scheme.detect.rto_min = TIME_OUT;
        s.scheme.detect.rto_max = TIME_OUT;
        s.streams[0].lens = vec![bytes; count];
        s.streams[0].start = START;
        s
    }

    /// A scenario of `count` broadcasts of one length by messages along a binomial tree.
    fn binomial(&self, bytes: u64, count: usize) -> Scenario {
        let payload_size = bytes.clamp(64, MESSAGE_MAX) as u32;
        let mut b = Baseline::new(Algorithm::Binomial, bytes, payload_size);
        b.lens = vec![bytes; count];
        b.segment = 0;
        b.start = START;
        let mut s = self.equip(Scenario::baseline(self.hosts, b));
        // Network cards acknowledge messages between two hosts by themselves: that costs no
        // processor time and waits for no processor.
        s.costs.word = Cost::default();
        s.sends_at_once = usize::MAX;
        s
    }

    /// Measures latency by turns (P1.12): the root broadcasts and one receiver answers, `count`
    /// times. Each receiver has its turn. Returns the time of a turn less that of a message, in
    /// microseconds, for the receiver that is reached last.
    pub fn latency_by_turns(
        &self,
        scheme: &Scheme,
        bytes: u64,
        count: usize,
    ) -> Result<f64, Failure> {
        let two = Bed {
            hosts: 2,
            ..self.clone()
        };
        let message = turn_us(two.multicast(scheme, ANSWER, count), 1, count)? / 2.0;
        let mut most = 0.0f64;
        for host in 1..self.hosts {
            let turn = turn_us(self.multicast(scheme, bytes, count), host, count)?;
            most = most.max(turn - message);
        }
        Ok(most)
    }

    /// Time of one broadcast by multicast until the last receiver has it, by one clock, in
    /// microseconds.
    pub fn latency(&self, scheme: &Scheme, bytes: u64) -> Result<f64, Failure> {
        Ok(us(measure(&self.multicast(scheme, bytes, 1))?.slowest))
    }

    /// Time of one broadcast by messages until the last receiver has it, by one clock, in
    /// microseconds. Without ACKs in the background, turns would show the same.
    pub fn original_latency(&self, bytes: u64) -> Result<f64, Failure> {
        Ok(us(measure(&self.binomial(bytes, 1))?.slowest))
    }

    /// Mean time of broadcasts back to back, after warm-ups, until the root knows that all
    /// receivers have them, in microseconds (P1.12, P4.11).
    pub fn each(&self, scheme: &Scheme, bytes: u64, count: usize) -> Result<f64, Failure> {
        // With a scheme that synchronises, the test ends with a synchronisation.
        let round = match scheme.feedback.on_request_only {
            true => scheme.broadcasts as usize,
            false => 1,
        };
        steady(count, round, |n| self.multicast(scheme, bytes, n))
    }

    /// Mean time of broadcasts by messages, back to back, after warm-ups, in microseconds.
    pub fn original_each(&self, bytes: u64, count: usize) -> Result<f64, Failure> {
        steady(count, 1, |n| self.binomial(bytes, n))
    }

    /// Mean time of barriers back to back, after warm-ups, by the last host to leave, in
    /// microseconds (P2 section 4.1).
    pub fn barrier_each(&self, barrier: Barrier, count: usize) -> Result<f64, Failure> {
        let mut s = self.equip(Scenario::new(self.hosts));
        s.sends_at_once = usize::MAX; // words that leave together cost less
        s.groups.push(GroupPlan {
            members: (0..self.hosts).collect(),
            payload_size: self.simulated.payload_bytes,
            start: 0,
        });
        let mut plan = BarrierPlan::new(0, vec![barrier; WARM_UPS + count]);
        plan.start = START;
        s.barriers.push(plan);
        let outcome = Cluster::new(&s, Trace::silent()).run()?;
        let left = |n: usize| outcome.crossings[0][n - 1].left.iter().max().copied();
        let took = left(WARM_UPS + count)
            .unwrap_or_default()
            .since(left(WARM_UPS).unwrap_or_default());
        Ok(us(took) / count as f64)
    }

    /// Mean time that a process spends in a broadcast, in microseconds, over `times` broadcasts
    /// (P1.12). After a barrier the root broadcasts at once, and each receiver enters up to `skew`
    /// later.
    pub fn inside_us(
        &self,
        scheme: &Scheme,
        bytes: u64,
        skew: Duration,
        times: u64,
    ) -> Result<f64, Failure> {
        let root = self.simulated.costs.group.send_ns(bytes);
        self.skewed(&self.multicast(scheme, bytes, 1), root, skew, times)
    }

    /// Mean time that a process spends in a broadcast by messages, in microseconds; see
    /// [`Bed::inside_us`].
    pub fn original_inside_us(
        &self,
        bytes: u64,
        skew: Duration,
        times: u64,
    ) -> Result<f64, Failure> {
        let children = u64::from(rounds(self.hosts as u64));
        let root = children * self.simulated.costs.message.send_ns(bytes);
        self.skewed(&self.binomial(bytes, 1), root, skew, times)
    }

    /// Mean time inside `scenario` with late receivers, in microseconds. The root leaves as soon as
    /// it has sent, after `root_ns`. A receiver that has not entered neither looks at the network
    /// nor forwards messages.
    fn skewed(
        &self,
        scenario: &Scenario,
        root_ns: u64,
        skew: Duration,
        times: u64,
    ) -> Result<f64, Failure> {
        let mut inside_ns = times * root_ns;
        for seed in 0..times {
            let mut rng = Rng::new(seed);
            let mut late = vec![Duration::ZERO; self.hosts];
            let mut s = scenario.clone();
            for (host, late) in late.iter_mut().enumerate().skip(1) {
                *late = Duration::from_nanos(rng.below(skew.as_nanos() as u64 + 1));
                s.faults.pauses.push(Pause {
                    host,
                    at: START,
                    length: *late,
                });
            }
            let Timing { completed, .. } = measure(&s)?;
            let receivers = completed.iter().zip(&late).skip(1);
            inside_ns += receivers
                .map(|(done, late)| done.saturating_sub(*late).as_nanos() as u64)
                .sum::<u64>();
        }
        Ok(inside_ns as f64 / 1e3 / (times * self.hosts as u64) as f64)
    }
}

/// Mean time of each of `count` broadcasts after the warm-ups, in microseconds. Warm-ups and
/// broadcasts fill whole rounds.
fn steady(
    count: usize,
    round: usize,
    scenario: impl Fn(usize) -> Scenario,
) -> Result<f64, Failure> {
    let whole = |n: usize| n.next_multiple_of(round);
    let took = |n| Ok(us(measure(&scenario(n))?.completed[0]));
    let (first, count) = (whole(WARM_UPS), whole(count));
    Ok((took(first + count)? - took(first)?) / count as f64)
}

/// Mean time of a turn, in microseconds. After each broadcast `host` sends the root a message, and
/// only then comes the next broadcast.
fn turn_us(mut s: Scenario, host: usize, count: usize) -> Result<f64, Failure> {
    let group = match s.hosts {
        2 => 0, // the pair is the group
        _ => {
            s.groups.push(GroupPlan {
                members: vec![0, host],
                payload_size: s.groups[0].payload_size,
                start: 0,
            });
            1
        }
    };
    let mut back = StreamPlan::new(group, host, vec![ANSWER; count]);
    back.after = Some(After { stream: 0, lag: 0 });
    s.streams[0].after = Some(After { stream: 1, lag: 1 });
    s.streams.push(back);
    let answered = Cluster::new(&s, Trace::silent()).run()?.received_at[0];
    let began = Time(START.as_nanos() as u64);
    Ok(us(answered.since(began)) / count as f64)
}
