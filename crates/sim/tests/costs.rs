//! Costs of datagrams by kind, and roots that take turns: the parts of which the papers'
//! experiments are made.

use std::time::Duration;

use fabricast::proto::Scheme;
use fabricast_sim::workload::{After, Cost, Costs, GroupPlan, StreamPlan};
use fabricast_sim::{Cluster, Outcome, Scenario, Trace, measure};

fn run(s: &Scenario) -> Outcome {
    let outcome = Cluster::new(s, Trace::silent()).run();
    outcome.unwrap_or_else(|e| panic!("{e}"))
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
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
        start: Duration::ZERO,
    };
    let completed = |hosts, bytes: u64| {
        let mut s = Scenario::bulk(hosts, bytes, 1024);
        s.costs = costs;
        s.rate = Some(1 << 40);
        s.scheme = Scheme::acknowledged();
        // The first words take long, and the root waits for them.
        s.streams[0].start = us(10_000);
        measure(&s).unwrap().completed
    };
    let near = |d: Duration, us: u64| {
        let beyond = d.as_micros() as u64 - us;
        assert!(beyond < 40, "{d:?}, not {us} µs");
    };
    // In a group of two, data go as messages, short or long.
    near(completed(2, 8)[1], 100);
    near(completed(2, 600)[1], 1000);
    let three = completed(3, 600);
    near(three[1], 321);
    near(three[2], 321);
    near(three[0], 5321);
}

/// P1.12: one root broadcasts, another one answers, and only then comes the next broadcast.
#[test]
fn roots_take_turns() {
    let mut s = Scenario::bulk(3, 8, 1024);
    s.groups.push(GroupPlan {
        members: vec![0, 2],
        payload_size: 1024,
        start: 0,
    });
    s.streams[0].lens = vec![8; 50];
    let mut back = StreamPlan::new(1, 2, vec![8; 50]);
    back.after = Some(After { stream: 0, lag: 0 });
    s.streams.push(back);
    let free = run(&s).received_at[0];
    s.streams[0].after = Some(After { stream: 1, lag: 1 });
    let turns = run(&s).received_at[0];
    // A turn takes at least two ways of two cables of 5 µs each.
    assert!(turns.0 >= 50 * 20_000, "{turns:?}");
    assert!(free.0 < turns.0 / 2, "{free:?} {turns:?}");
}
