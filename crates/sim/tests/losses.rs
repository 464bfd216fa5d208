//! A transfer ends, and soon, however much is lost: half to nine tenths of what each receiver is
//! sent and of its feedback (P3.9).

use std::time::Duration;

use fabricast::proto::Time;
use fabricast_sim::fault::{Block, Blocked, LinkFaults, RateChange};
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

/// The longest time of several seeds. With some of them the first packets are lost often enough for
/// a receiver to NACK ever more rarely, before it knows how many are lost.
fn slowest(receivers: usize, payload_size: u32, loss: f64) -> Time {
    let seeds = (0..8).chain([15, 30, 122, 145, 199]);
    let done = seeds.map(|seed| run(&file(receivers, payload_size, loss, seed)).done_at);
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

/// Packets that the sender has sent for each packet of a file of `len` bytes.
fn sent_for_each(o: &Outcome, len: u64) -> f64 {
    let c = &o.counters[0];
    let sent = c.data + c.data_unicast + c.repairs_multicast + c.repairs_unicast;
    sent as f64 / (len as f64 / 1440.0)
}

/// Where multicast is lost more often than unicast, the sender takes the cheaper of both: never
/// much more than what both cost without loss (P3.10). Where both are lost, it sends to all.
#[test]
fn the_cheaper_of_multicast_and_unicast_is_taken() {
    for (loss, multicast_only, most) in [
        (0.0, true, 1.1),
        (0.5, true, 3.7),
        (0.8, true, 5.5),
        (0.9, true, 6.2),
        (0.5, false, 4.5),
        (0.8, false, 14.0),
    ] {
        let mut s = file(5, 1440, loss, 1);
        s.faults.down.multicast_only = multicast_only;
        let sent = sent_for_each(&run(&s), 1_000_000);
        println!("{loss} {multicast_only}: {sent}");
        assert!(sent <= most, "{loss} {multicast_only}: {sent}");
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

/// Where links carry less than the sender begins with, it does not take what their queues drop for
/// usual loss: then it would send faster than they carry, and most packets by unicast.
#[test]
fn what_the_queues_of_slow_links_drop_is_not_usual_loss() {
    for queue in [64, 256] {
        for rate in [250_000, 1_000_000, 2_000_000, 4_000_000, 12_000_000] {
            let mut s = file(5, 1440, 0.0, 1);
            let len = 10_000_000;
            s.streams[0].lens[0] = len;
            s.topology.host.queue = queue * 1024;
            let slow = |host| RateChange {
                host,
                at: Duration::ZERO,
                rate,
            };
            s.faults.rates = (1..s.hosts).map(slow).collect();
            let o = run(&s);
            let took = o.done_at.0 as f64 / 1e9 / (len as f64 / rate as f64);
            let each = sent_for_each(&o, len);
            println!("{queue} KiB, {rate} B/s: {took} of the links' time, {each} for each packet");
            assert!(took < 1.25 && each < 6.0, "{queue} {rate}: {took}, {each}");
        }
    }
}
