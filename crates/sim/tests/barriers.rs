//! Every barrier at every small number of hosts, by whole nodes. The cluster's watchman checks that
//! no host leaves before the last one has entered.

use std::time::Duration;

use fabricast::proto::Barrier;
use fabricast::proto::rng::Rng;
use fabricast_sim::fault::LinkFaults;
use fabricast_sim::workload::{BarrierPlan, GroupPlan};
use fabricast_sim::{Cluster, Outcome, Scenario, Trace};

/// Number of barriers that each host enters one after another.
const IN_A_ROW: usize = 2;

/// A scenario of `hosts` hosts, each of which enters each barrier a little sooner or later than the
/// others.
fn scenario(hosts: usize, algorithm: Barrier, seed: u64) -> Scenario {
    let mut s = Scenario::new(hosts);
    s.seed = seed;
    s.groups.push(GroupPlan {
        members: (0..hosts).collect(),
        payload_size: 64,
        start: u32::MAX - 1, // the numbers wrap within the test
    });
    let mut plan = BarrierPlan::new(0, vec![algorithm; IN_A_ROW]);
    let mut rng = Rng::new(seed);
    let us = |n| Duration::from_micros(n);
    plan.late = (0..hosts).map(|h| (h, us(rng.below(200)))).collect();
    plan.think_max = us(100);
    s.barriers.push(plan);
    s
}

fn run(s: &Scenario) -> Outcome {
    let outcome = Cluster::new(s, Trace::silent()).run();
    let outcome = outcome.unwrap_or_else(|e| {
        let algorithm = s.barriers[0].algorithms[0];
        panic!("{algorithm}, {} hosts, seed {}: {e}", s.hosts, s.seed)
    });
    let all = s.barriers[0].algorithms.len();
    assert_eq!(outcome.crossings[0].len(), all);
    outcome
}

/// The barriers with a parameter that has to stay below the number of hosts, one for each value.
fn numbered(hosts: usize) -> impl Iterator<Item = Barrier> {
    (1..hosts as u16).map(|ways| Barrier::Dissemination { ways })
}

fn presets(hosts: usize) -> Vec<Barrier> {
    let mut all = Barrier::UNNUMBERED.to_vec();
    for fanout in [2, 3, 4, 8, hosts as u16] {
        all.push(Barrier::CombiningTree { fanout });
        all.push(Barrier::Release { fanout });
    }
    all
}

#[test]
fn every_number_of_ways_at_every_number_of_hosts() {
    for hosts in 2..=64 {
        for algorithm in numbered(hosts) {
            run(&scenario(hosts, algorithm, hosts as u64));
        }
    }
}

#[test]
fn every_other_barrier_at_every_number_of_hosts() {
    for hosts in 2..=64 {
        for algorithm in presets(hosts) {
            run(&scenario(hosts, algorithm, hosts as u64));
        }
    }
}

#[test]
fn the_first_transmission_of_every_word_may_be_lost() {
    for hosts in 2..=64 {
        for algorithm in numbered(hosts).chain(presets(hosts)) {
            let mut s = scenario(hosts, algorithm, hosts as u64);
            s.faults.first_words = true;
            run(&s);
        }
    }
}

/// By chance, so all small numbers of hosts and those about powers of two are enough.
#[test]
fn words_may_be_lost_doubled_and_overtaken() {
    for hosts in (2..=20).chain([31, 32, 33, 63, 64]) {
        let some = |b: &Barrier| !matches!(b, Barrier::Dissemination { ways } if ways % 9 > 3);
        for algorithm in numbered(hosts).filter(some).chain(presets(hosts)) {
            let mut s = scenario(hosts, algorithm, 1000 + hosts as u64);
            s.barriers[0].algorithms = vec![algorithm; 5];
            s.faults.down = LinkFaults {
                loss: 0.1,
                duplicate: 0.1,
                reorder: 0.3,
                late_max: Duration::from_micros(500),
                ..LinkFaults::NONE
            };
            s.faults.heal_at = Duration::from_secs(3600);
            run(&s);
        }
    }
}
