//! Broadcasts by messages between two, and to sets by several groups, under virtual time.

use std::collections::BTreeSet;
use std::time::Duration;

use fabricast::collective::Algorithm;
use fabricast::proto::rng::Rng;
use fabricast_sim::fault::{Burst, LinkFaults};
use fabricast_sim::workload::{Cost, Costs};
use fabricast_sim::{Baseline, Scenario, Timing, Trace, measure, run_scenario};

const PAYLOAD: u32 = 1440;

fn timing(s: &Scenario) -> Timing {
    match measure(s) {
        Ok(t) => t,
        Err(e) => panic!(
            "{:?} on {} hosts, seed {}: {e}",
            s.baseline, s.hosts, s.seed
        ),
    }
}

/// Sends as fast as the link, so that the pacer has nothing to learn: the test measures the
/// algorithm.
fn at_full_rate(mut s: Scenario) -> Scenario {
    s.rate = Some(s.topology.host.rate);
    s
}

/// Picks some of the first `hosts` hosts, each with this chance.
fn some(rng: &mut Rng, hosts: usize, chance: f64) -> Vec<usize> {
    (0..hosts).filter(|_| rng.chance(chance)).collect()
}

/// A random set of hosts that need not be a group, and groups, any of which may reach beyond the
/// set and overlap with others.
fn any_cover(seed: u64, hosts: usize, len: u64) -> (Baseline, BTreeSet<usize>) {
    let mut rng = Rng::new(seed);
    let root = rng.below(hosts as u64) as usize;
    let target: BTreeSet<usize> = some(&mut rng, hosts, 0.9).into_iter().collect();
    let groups = (0..rng.below(8)).map(|_| some(&mut rng, hosts, 0.3));
    let groups: Vec<_> = groups.filter(|g| g.len() > 1).collect();
    (Baseline::cover(&target, root, groups, len, PAYLOAD), target)
}

#[test]
fn every_algorithm_reaches_everybody() {
    for algorithm in Algorithm::MESSAGES {
        for hosts in [1, 2, 3, 4, 5, 8, 13, 33] {
            for len in [0, 1, 2000, 200_000] {
                let mut b = Baseline::new(algorithm.clone(), len, PAYLOAD);
                b.root = hosts / 2;
                b.lens.push(7);
                timing(&Scenario::baseline(hosts, b));
            }
        }
    }
}

#[test]
fn a_cover_reaches_its_set_and_nobody_else() {
    for seed in 0..200 {
        let hosts = 1 + seed as usize % 24;
        let (b, target) = any_cover(seed, hosts, [1, 2000, 200_000][seed as usize % 3]);
        let t = timing(&Scenario::baseline(hosts, b.clone()));
        for host in (0..hosts).filter(|&h| h != b.root) {
            let reached = t.completed[host] > Duration::ZERO;
            assert_eq!(reached, target.contains(&host), "seed {seed}: {b:?}");
        }
    }
}

/// Lost, repeated, reordered and late packets are repaired while the judge watches, and equal seeds
/// give equal runs.
#[test]
fn losses_and_late_hosts_are_mended() {
    for seed in 0..120 {
        let hosts = 2 + seed as usize % 11;
        let len = 3000 * (seed % 40);
        let mut b = match seed as usize % 4 {
            3 => any_cover(seed, hosts, len).0,
            i => Baseline {
                root: seed as usize % hosts,
                ..Baseline::new(Algorithm::MESSAGES[i].clone(), len, PAYLOAD)
            },
        };
        b.lens.extend([0, 1, 100_000]);
        b.segment = [0, 1000, 16 << 10][(seed / 3) as usize % 3];
        b.enter.push((hosts - 1, Duration::from_millis(seed % 7)));
        let mut s = Scenario::baseline(hosts, b);
        s.seed = seed;
        s.numbering = (1000, 7);
        s.unexpected_max = [0, 4, 256][(seed / 9) as usize % 3];
        s.faults.down = LinkFaults {
            loss: 0.1,
            burst: (seed % 2 == 1).then_some(Burst {
                enter: 0.01,
                leave: 0.1,
                loss: 0.8,
            }),
            duplicate: 0.02,
            reorder: 0.1,
            late_max: Duration::from_micros(300),
            ..LinkFaults::NONE
        };
        s.faults.heal_at = Duration::from_secs(3600);
        let once = run_scenario(&s, Trace::silent());
        assert!(once.result.is_ok(), "{once}");
        let again = run_scenario(&s, Trace::silent());
        assert_eq!((once.hash, once.result), (again.hash, again.result));
    }
}

/// Costs equal those in textbooks: the root's share of the work, and how time grows.
#[test]
fn costs_are_those_of_the_textbooks() {
    let len = 2_000_000;
    let run = |algorithm, hosts| {
        let b = Baseline::new(algorithm, len, PAYLOAD);
        timing(&at_full_rate(Scenario::baseline(hosts, b)))
    };
    let link = len as f64 / 125e6;
    let took = |t: &Timing| t.slowest.as_secs_f64() / link;
    let bytes = |t: &Timing| t.root_bytes as f64 / len as f64;
    let near = |x: f64, want: f64| assert!((want..want * 1.25).contains(&x), "{x}, not {want}");
    // Each node sends the message to all its children before it is done: the root sends it four
    // times.
    let t = run(Algorithm::Binomial, 16);
    near(bytes(&t), 4.0);
    assert!((4.0..6.0).contains(&took(&t)), "{}", took(&t));
    // A pipeline: the root sends the message once, and each hop adds a segment.
    let t = run(Algorithm::Chain, 16);
    near(bytes(&t), 1.0);
    assert!((1.4..2.0).contains(&took(&t)), "{}", took(&t));
    // The root sends all but one block in each of the two phases.
    let t = run(Algorithm::ScatterAllgather, 16);
    near(bytes(&t), 2.0 * 15.0 / 16.0);
    assert!((1.9..3.0).contains(&took(&t)), "{}", took(&t));
}

/// 64 hosts in groups of eight, and a message for four of the groups and six hosts of a fifth. It
/// costs a broadcast to each of the four groups, a message to each of them but the root's, and a
/// message to each of the six hosts.
#[test]
fn a_set_costs_a_broadcast_a_group_and_not_a_message_a_host() {
    let len = 2_000_000;
    let groups: Vec<Vec<usize>> = (0..64)
        .step_by(8)
        .map(|first| (first..first + 8).collect())
        .collect();
    let target = (8..46).collect();
    let b = Baseline::cover(&target, 20, groups, len, PAYLOAD);
    let t = timing(&at_full_rate(Scenario::baseline(64, b)));
    let times = t.all_bytes as f64 / len as f64;
    let operations = 4.0 + 3.0 + 6.0;
    assert!((operations..operations * 1.15).contains(&times), "{times}");
}

/// A small message pays for messages and hops, not for bytes.
#[test]
fn small_messages_go_down_a_tree_in_as_many_hops_as_it_is_deep() {
    let run = |algorithm, hosts| {
        let mut s = at_full_rate(Scenario::baseline(
            hosts,
            Baseline::new(algorithm, 4, PAYLOAD),
        ));
        s.costs = Costs::all(Cost {
            send: Duration::from_micros(2),
            receive: Duration::from_micros(2),
            ..Cost::default()
        });
        timing(&s).slowest.as_secs_f64()
    };
    let hop = run(Algorithm::Binomial, 2);
    for (hosts, depth) in [(4, 2.0), (8, 3.0), (64, 6.0), (100, 7.0)] {
        let hops = run(Algorithm::Binomial, hosts) / hop;
        assert!(
            (depth * 0.8..depth * 1.6).contains(&hops),
            "{hops} on {hosts}"
        );
    }
    let hops = run(Algorithm::Chain, 21) / hop;
    assert!((16.0..32.0).contains(&hops), "{hops}");
}

#[test]
fn a_host_that_comes_late_holds_up_those_below_it() {
    let mut b = Baseline::new(Algorithm::Chain, 100, PAYLOAD);
    b.enter.push((2, Duration::from_millis(40)));
    let t = timing(&Scenario::baseline(5, b));
    assert!(t.completed[1] < Duration::from_millis(5), "{t:?}");
    for host in 2..5 {
        assert!(t.completed[host] >= Duration::from_millis(39), "{t:?}");
    }
}

#[test]
fn a_thousand_hosts() {
    for algorithm in [Algorithm::Binomial, Algorithm::Chain] {
        let mut s = Scenario::baseline(1024, Baseline::new(algorithm, 4, PAYLOAD));
        s.judged = false;
        assert_eq!(timing(&s).completed.len(), 1024);
    }
}
