//! Values of a scheme, one at a time: what each is good for, shown by what happens without it; and what datagrams
//! cost by kind.

use std::time::Duration;

use fabricast::proto::Scheme;
use fabricast::proto::scheme::Checksum;
use fabricast_sim::fault::LinkFaults;
use fabricast_sim::workload::{After, Cost, Costs, GroupPlan, StreamPlan};
use fabricast_sim::{Cluster, Failure, Outcome, Scenario, Trace, measure};

fn run(s: &Scenario) -> Result<Outcome, Failure> {
    Cluster::new(s, Trace::silent()).run()
}

fn good(s: &Scenario) -> Outcome {
    run(s).unwrap_or_else(|e| panic!("{e}"))
}

/// One object to eight, over cables that change a bit in one of a hundred datagrams.
fn corrupting(checksum: Checksum) -> Scenario {
    let mut s = Scenario::bulk(9, 2_000_000, 1440);
    s.scheme.checksum = checksum;
    s.faults.down = LinkFaults {
        loss: 0.01,
        corrupt: 0.01,
        ..LinkFaults::NONE
    };
    if checksum != Checksum::Additive {
        s.faults.up = s.faults.down; // two changes may cancel out in a sum
    }
    s.faults.heal_at = std::time::Duration::from_secs(3600);
    s.complete_within = std::time::Duration::ZERO;
    s
}

#[test]
fn damaged_datagrams_are_found_by_a_checksum_alone() {
    let e = run(&corrupting(Checksum::None)).unwrap_err();
    assert!(e.what.starts_with("wrong bytes"), "{e}");
    for checksum in [Checksum::Additive, Checksum::Crc32c] {
        match run(&corrupting(checksum)) {
            Ok(o) => assert!(o.corrupt > 50, "{checksum:?}: {}", o.corrupt),
            Err(e) => panic!("{checksum:?}: {e}"),
        }
    }
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// P1.6: one acknowledgement for so many packets, whosesoever broadcasts they are.
#[test]
fn one_acknowledgement_covers_several_small_broadcasts() {
    let told = |scheme: Scheme| {
        let mut s = Scenario::bulk(5, 8, 1024);
        s.scheme = scheme;
        s.streams[0].lens = vec![8; 1000];
        s.streams[0].start = us(1000);
        let sent = good(&s)
            .counters
            .iter()
            .map(|c| c.feedback_sent)
            .sum::<u64>();
        sent / 4
    };
    let (each, tenth) = (
        told(Scheme::acknowledged()),
        told(Scheme::acknowledged().aggregate(10)),
    );
    assert!((1000..1020).contains(&each), "{each}");
    assert!((100..130).contains(&tenth), "{tenth}");
    // What is left over is acknowledged after a while, not never.
    let mut s = Scenario::bulk(3, 8, 1024);
    s.scheme = Scheme::acknowledged().aggregate(10);
    let t = measure(&s).unwrap();
    assert!((us(500)..us(5000)).contains(&t.completed[0]), "{t:?}");
}

#[test]
fn datagrams_cost_what_their_kind_costs() {
    let cost = |send, way, receive| Cost {
        send: us(send),
        way: us(way),
        receive: us(receive),
        byte_ps: 0,
    };
    let costs = Costs {
        message: cost(100, 0, 0),
        long: cost(1000, 0, 0),
        long_from: 500,
        group: cost(1, 20, 300),
        word: cost(0, 5000, 0),
    };
    let completed = |hosts, bytes: u64| {
        let mut s = Scenario::bulk(hosts, bytes, 1024);
        s.costs = costs;
        s.rate = Some(1 << 40);
        s.scheme = Scheme::acknowledged();
        // The first words are long under way, and the root waits for them.
        s.streams[0].start = us(10_000);
        measure(&s).unwrap().completed
    };
    let near = |d: Duration, us: u64| {
        let beyond = d.as_micros() as u64 - us;
        assert!(beyond < 40, "{d:?}, not {us} µs");
    };
    // To a group of two goes a message, short or long.
    near(completed(2, 8)[1], 100);
    near(completed(2, 600)[1], 1000);
    let three = completed(3, 600);
    near(three[1], 321);
    near(three[2], 321);
    near(three[0], 5321);
}

/// P1.12: one broadcasts, another answers, and only then comes the next one.
#[test]
fn roots_take_turns() {
    let mut s = Scenario::bulk(3, 8, 1024);
    s.groups.push(GroupPlan {
        members: vec![0, 2],
        chunk: 1024,
        start: 0,
    });
    s.streams[0].lens = vec![8; 50];
    let mut back = StreamPlan::new(1, 2, vec![8; 50]);
    back.after = Some(After { stream: 0, lag: 0 });
    s.streams.push(back);
    let free = good(&s).received_at[0];
    s.streams[0].after = Some(After { stream: 1, lag: 1 });
    let turns = good(&s).received_at[0];
    // A turn is two ways of two cables of 5 µs each, at least.
    assert!(turns.0 >= 50 * 20_000, "{turns:?}");
    assert!(free.0 < turns.0 / 2, "{free:?} {turns:?}");
}
