//! A transfer ends, and soon, however much is lost: half to nine tenths of what each receiver is
//! sent and of its feedback (P3.9).

use std::time::Duration;

use fabricast::proto::Time;
use fabricast_sim::fault::{Block, Blocked, LinkFaults};
use fabricast_sim::topology::{LinkSpec, Topology};
use fabricast_sim::{Cluster, Outcome, Scenario, Trace};

/// A scenario with a file of 1 MB and its hash list, after the paths have been proven, as in
/// `fabricast send`.
fn file(receivers: usize, payload_size: u32, loss: f64, seed: u64) -> Scenario {
    let mut s = Scenario::bulk(receivers + 1, 1_000_000, payload_size);
    s.seed = seed;
    s.streams[0].lens.push(32);
    s.topology = Topology::single(LinkSpec {
        rate: 1_250_000_000,
        delay: Duration::from_micros(20),
        queue: 4 << 20,
    });
    s.prove = Some(Duration::from_secs(1));
    s.faults.down = LinkFaults::uniform(loss);
    s.faults.heal_at = Duration::from_secs(300);
    s.complete_within = Duration::ZERO;
    s
}

fn run(s: &Scenario) -> Outcome {
    match Cluster::new(s, Trace::silent()).run() {
        Ok(o) => o,
        Err(e) => panic!("seed {}: {e}", s.seed),
    }
}

/// The longest time of several seeds.
fn slowest(receivers: usize, payload_size: u32, loss: f64) -> Time {
    let done = (0..8).map(|seed| run(&file(receivers, payload_size, loss, seed)).done_at);
    done.max().unwrap()
}

#[test]
fn a_transfer_ends_soon_whatever_is_lost() {
    for (loss, most) in [(0.5, 0.5), (0.7, 1.0), (0.8, 2.0), (0.9, 5.0)] {
        for payload_size in [1440, 8940] {
            let took = slowest(2, payload_size, loss).0 as f64 / 1e9;
            assert!(
                took <= most,
                "{loss} lost, packets of {payload_size}: {took} s"
            );
        }
    }
}

#[test]
fn a_transfer_to_one_or_to_many_ends_too() {
    for (receivers, loss) in [(1, 0.9), (8, 0.8), (24, 0.5), (24, 0.8)] {
        let took = run(&file(receivers, 1440, loss, 1)).done_at.0 as f64 / 1e9;
        assert!(took <= 10.0, "{receivers} receivers, {loss} lost: {took} s");
    }
}

/// When little is lost, the sender retransmits nothing that no receiver has asked for.
#[test]
fn what_is_repeated_is_repeated_only_where_much_is_lost() {
    for loss in [0.01, 0.05, 0.2] {
        let o = run(&file(2, 1440, loss, 1));
        let repairs = o.counters[0].repairs_multicast + o.counters[0].repairs_unicast;
        let lost = 2.0 * loss * o.counters[0].data as f64;
        assert!(
            (repairs as f64) < 1.6 * lost + 5.0,
            "{loss}: {repairs} repairs for {lost}"
        );
    }
}

/// Multicast ceases to reach all receivers when the sender has few new packets left, or none. Then
/// only repairs that do not arrive show it.
#[test]
fn multicast_that_fails_near_the_end_is_noticed() {
    for us in (500..6000).step_by(100) {
        let mut s = Scenario::bulk(4, 600_000, 1440);
        s.faults.blocks = (1..4)
            .map(|host| Block {
                host,
                what: Blocked::Multicast,
                at: Duration::from_micros(us),
                until: None,
            })
            .collect();
        s.faults.heal_at = Duration::from_secs(300);
        s.complete_within = Duration::ZERO;
        let took = run(&s).done_at;
        assert!(took < Time(3_000_000_000), "blocked at {us} us: {took:?}");
    }
}
