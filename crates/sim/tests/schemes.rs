//! Values of a scheme, one at a time: each test shows what a value is good for by what happens
//! without it. Other tests show the costs of datagrams by kind.

use std::time::Duration;

use fabricast::proto::scheme::Checksum;
use fabricast::proto::{Counters, Histogram, PathState, Scheme, Time};
use fabricast_sim::fault::{Block, Blocked, LinkFaults};
use fabricast_sim::table::LINKS;
use fabricast_sim::workload::{Cost, Costs, GroupPlan, Sending, StreamPlan};
use fabricast_sim::{Cluster, Failure, Outcome, Scenario, Trace, group_id, measure};

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn run(s: &Scenario) -> Result<Outcome, Failure> {
    Cluster::new(s, Trace::silent()).run()
}

fn good(s: &Scenario) -> Outcome {
    run(s).unwrap_or_else(|e| panic!("{e}"))
}

/// Costs of receiving a datagram, in microseconds.
fn receiving(us: u64) -> Cost {
    Cost {
        receive: Duration::from_micros(us),
        ..Cost::default()
    }
}

/// A scenario with one object to eight receivers, over cables that change a bit in one of a hundred
/// datagrams.
fn corrupting(checksum: Checksum) -> Scenario {
    let mut s = Scenario::bulk(9, 2_000_000, 1440);
    s.scheme.checksum = checksum;
    s.faults.down = LinkFaults {
        loss: 0.01,
        corrupt: 0.01,
        ..LinkFaults::NONE
    };
    if checksum != Checksum::Additive {
        s.faults.up = s.faults.down; // in an additive sum, two changes may cancel out
    }
    s.faults.heal_at = Duration::from_secs(3600);
    s.complete_within = Duration::ZERO;
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

/// Multicast does not reach one of eight receivers for half a second of a transfer of two seconds.
#[test]
fn who_hears_multicast_again_joins_the_others_again() {
    let mut s = LINKS[0].scenario(8, 2.0);
    s.faults.blocks.push(Block {
        host: 3,
        what: Blocked::Multicast,
        at: ms(300),
        until: Some(ms(800)),
    });
    let mut reached = Vec::new();
    let mut cluster = Cluster::new(&s, Trace::silent());
    cluster.watch(|view| {
        let mut members = view.node(0).members(group_id(0));
        let path_state = members.nth(2).map(|m| m.path_state);
        if path_state.is_some() && path_state != reached.last().copied() {
            reached.extend(path_state);
        }
    });
    let with = match cluster.run() {
        Ok(o) => o,
        Err(e) => panic!("{e}"),
    };
    drop(cluster);
    assert_eq!(
        reached,
        [
            PathState::Multicast,
            PathState::Unicast,
            PathState::Multicast
        ]
    );
    // The member got by unicast the few packets of that time, and those that it missed.
    let (alone, all) = (with.counters[0].data_unicast, with.counters[0].data);
    assert!(alone * 4 < all, "{alone} of {all} by unicast");
}

/// For a while multicast reaches no receiver. Later it reaches all, and no receiver is served by
/// unicast any more.
#[test]
fn a_group_that_lost_multicast_gets_it_back() {
    let mut s = LINKS[0].scenario(4, 2.0);
    s.faults.blocks = (1..5)
        .map(|host| Block {
            host,
            what: Blocked::Multicast,
            at: ms(300),
            until: Some(ms(1500)),
        })
        .collect();
    s.faults.down = LinkFaults::uniform(0.01);
    s.faults.heal_at = Duration::from_secs(3600);
    s.complete_within = Duration::ZERO;
    let mut alone_at_last = Vec::new();
    let mut cluster = Cluster::new(&s, Trace::silent());
    cluster.watch(|view| {
        let members = view.node(0).members(group_id(0));
        alone_at_last = members
            .map(|m| m.path_state == PathState::Unicast)
            .collect();
    });
    let o = match cluster.run() {
        Ok(o) => o,
        Err(e) => panic!("{e}"),
    };
    drop(cluster);
    assert_eq!(alone_at_last, [false; 4]);
    let (alone, all) = (o.counters[0].data_unicast, o.counters[0].data);
    let packets = s.streams[0].packets(s.groups[0].payload_size);
    assert!(
        alone > 0 && all * 2 > packets,
        "{alone} by unicast, {all} of {packets} to all"
    );
}

/// A scenario with all hosts in one group, without work.
fn one_group(hosts: usize, scheme: &str) -> Scenario {
    let mut s = Scenario::new(hosts);
    s.scheme = scheme.parse().unwrap();
    s.groups.push(GroupPlan {
        members: (0..hosts).collect(),
        payload_size: 1440,
        start: 0,
    });
    s
}

/// A scenario in which every host broadcasts small objects to all others, one each 300 µs.
fn all_to_all(scheme: &str) -> Scenario {
    let hosts = 5;
    let mut s = one_group(hosts, scheme);
    for root in 0..hosts {
        let mut stream = StreamPlan::new(0, root, vec![64; 300]);
        stream.sending = Sending::Every(Duration::from_micros(300));
        s.streams.push(stream);
    }
    s.faults.down = LinkFaults::uniform(0.01);
    s.faults.heal_at = Duration::from_secs(3600);
    s.complete_within = Duration::ZERO;
    s
}

#[test]
fn piggybacked_acknowledgements_need_no_datagrams() {
    for scheme in ["window", "coroot(2)", "tree(2)", "auto"] {
        let feedback = |name: &str| match run(&all_to_all(name)) {
            Ok(o) => {
                let sum = |of: fn(&Counters) -> u64| o.counters.iter().map(of).sum::<u64>();
                assert_eq!(sum(|c| c.foreign), 0, "{name}");
                (sum(|c| c.feedback_sent), sum(|c| c.feedback_piggybacked))
            }
            Err(e) => panic!("{name}: {e}"),
        };
        let (alone, none) = feedback(scheme);
        let (still_alone, piggybacked) = feedback(&format!("{scheme}+piggyback"));
        assert_eq!(none, 0);
        // Urgent feedback (a loss, an ACK request) still goes by itself.
        assert!(
            still_alone * 2 < alone && piggybacked > still_alone,
            "{scheme}: {alone} by themselves, then {still_alone}, and {piggybacked} piggybacked"
        );
    }
}

/// A scenario of twelve hosts, each of which broadcasts sixty full packets at once to all others.
/// Their processors are slower than the network, and their buffers hold 64 packets.
fn rush(scheme: &str) -> Scenario {
    let hosts = 12;
    let mut s = one_group(hosts, scheme);
    for root in 0..hosts {
        s.streams.push(StreamPlan::new(0, root, vec![1440; 60]));
    }
    s.costs = Costs::all(receiving(20));
    s.receive_buffer = 64 * s.datagram_max();
    s
}

#[test]
fn nobody_sends_more_than_there_are_buffers_for() {
    let overflowed = |name: &str| match run(&rush(name)) {
        Ok(o) => o.not_ready,
        Err(e) => panic!("{name}: {e}"),
    };
    for scheme in ["window", "auto"] {
        let without = overflowed(scheme);
        assert!(without > 100, "{scheme}: {without}");
        for more in ["+credits", "+credits+piggyback"] {
            assert_eq!(overflowed(&format!("{scheme}{more}")), 0, "{scheme}{more}");
        }
    }
}

/// A root that is busy with its receivers' ACKs sends sooner if it finds them in its memory
/// (P1.11).
#[test]
fn acknowledgements_by_words_cost_the_root_less() {
    let time = |word| {
        let mut s = one_group(33, "window");
        s.streams.push(StreamPlan::new(0, 0, vec![64; 100]));
        s.streams[0].sending = Sending::Ahead(1);
        s.costs = Costs::all(receiving(2));
        s.costs.word.receive = word;
        match run(&s) {
            Ok(o) => (o.done_at, o.counters[0].feedback_received),
            Err(e) => panic!("{e}"),
        }
    };
    let (datagrams, words) = (
        time(Duration::from_micros(2)),
        time(Duration::from_nanos(50)),
    );
    assert!(
        words.0.0 * 3 < datagrams.0.0 * 2,
        "{words:?} instead of {datagrams:?}"
    );
}

/// P1.6: one ACK covers a given number of packets, no matter which broadcasts they belong to.
#[test]
fn one_acknowledgement_covers_several_small_broadcasts() {
    let told = |scheme: Scheme| {
        let mut s = Scenario::bulk(5, 8, 1024);
        s.scheme = scheme;
        s.streams[0].lens = vec![8; 1000];
        s.streams[0].start = ms(1);
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
    // The rest below that number is acknowledged after a while, not never. The first packet of a
    // stream is acknowledged at once, because the sender learns the window by that.
    let mut s = Scenario::bulk(3, 8, 1024);
    s.scheme = Scheme::acknowledged().aggregate(10);
    s.streams[0].lens = vec![8; 2];
    let t = measure(&s).unwrap();
    assert!(
        (Duration::from_micros(500)..ms(5)).contains(&t.completed[0]),
        "{t:?}"
    );
}

/// A small packet's loss is repaired within three round trips of when it can be noticed: by the
/// next packet, or by the probe at the end.
#[test]
fn small_losses_are_repaired_within_three_round_trips() {
    for every in [Duration::from_micros(50), ms(2)] {
        let mut s = Scenario::bulk(8, 0, 1440);
        s.streams[0].lens = vec![64; 3000];
        s.streams[0].sending = Sending::Every(every);
        s.faults.down = LinkFaults::uniform(0.01);
        s.faults.down.multicast_only = true;
        s.faults.heal_at = Duration::from_secs(3600);
        s.complete_within = Duration::ZERO;
        let o = match run(&s) {
            Ok(o) => o,
            Err(e) => panic!("{every:?}: {e}"),
        };
        let mut losses = Histogram::default();
        o.counters.iter().for_each(|c| losses.add(&c.losses));
        assert!(losses.count() > 150, "{every:?}: {}", losses.count());
        // One round trip: a datagram of about 140 bytes over two cables each way.
        let link = s.topology.host;
        let round = 4 * (link.delay + Duration::from_nanos(140 * 1_000_000_000 / link.rate));
        let (half, most) = (losses.quantile(0.5), losses.quantile(0.99));
        assert!(
            most <= Some(3 * round),
            "{every:?}: {half:?}, {most:?}, and a round trip is {round:?}"
        );
    }
}

/// A scenario of 3000 small broadcasts in 30 ms, to receivers that post one at a time. One receiver
/// comes only when all broadcasts are over.
fn away(hold: u32) -> Scenario {
    let mut s = Scenario::bulk(4, 0, 1440);
    s.scheme = Scheme::auto().copied(4096);
    s.unexpected_max = hold;
    s.streams[0].lens = vec![4; 3000];
    s.streams[0].sending = Sending::Every(Duration::from_micros(10));
    s.streams[0].posting.ahead = 1;
    s.streams[0].posting.late = vec![(2, ms(50))];
    s
}

/// A receiver that can hold only some of the broadcasts that it misses asks for as many of the
/// others as it can hold at once, not for each one when it comes to it. It also reports a few times
/// how far it is.
#[test]
fn who_was_left_behind_catches_up() {
    for hold in [64, 256, 1024] {
        let s = away(hold);
        let behind = s.streams[0].lens.len() as u64 - u64::from(hold);
        let o = good(&s);
        let repairs: u64 = o.counters.iter().map(|c| c.repairs_unicast).sum();
        let told = o.counters[2].feedback_sent;
        let shown = format!(
            "{hold} held: {:?}, {repairs} repairs, told {told} times",
            o.received_at
        );
        assert!(o.received_at[1] < Time::ZERO + ms(35), "{shown}");
        assert!(
            (behind..behind + behind / 50 + 1).contains(&repairs),
            "{shown}"
        );
        assert!(
            o.received_at[2] < Time::ZERO + ms(80) && told < 100,
            "{shown}"
        );
    }
}

/// A receiver that was left behind also catches up while the stream goes on.
#[test]
fn who_was_left_behind_is_repaired_before_the_stream_ends() {
    let mut small = away(64);
    small.streams[0].lens = vec![4; 10_000];
    small.streams[0].posting.late = vec![(2, ms(15))];
    let mut long = Scenario::bulk(4, 64 << 20, 1440);
    long.streams[0].posting.late = vec![(2, ms(50))];
    for s in [small, long] {
        let o = good(&s);
        let shown = format!("{:?}", o.received_at);
        assert!(o.received_at[2] < o.received_at[1] + ms(1), "{shown}");
    }
}

/// A receiver asks for what was lost before it posted as soon as it posts.
#[test]
fn what_was_lost_meanwhile_holds_nobody_up() {
    let mut s = away(3000);
    s.faults.down = LinkFaults::uniform(0.05);
    s.faults.down.multicast_only = true;
    s.faults.heal_at = Duration::from_secs(3600);
    s.complete_within = Duration::ZERO;
    let o = good(&s);
    let shown = format!("{:?}, {:?}", o.received_at, o.counters[0]);
    assert!(o.received_at[1] < Time::ZERO + ms(35), "{shown}");
    assert!(o.received_at[2] < Time::ZERO + ms(65), "{shown}");
}

/// A co-root's window closes while its group is behind. The sender waits for it as for any receiver
/// whose window is full, and does not leave it behind on a path of its own (P1.4).
#[test]
fn a_sender_waits_for_a_co_root_whose_group_is_behind() {
    for seed in 0..8 {
        let mut s = Scenario::bulk(6, 4_000_000, 1440);
        s.seed = seed;
        s.scheme = Scheme::coroot(2);
        s.faults.down = LinkFaults::uniform(0.01);
        s.faults.heal_at = Duration::from_secs(3600);
        s.complete_within = Duration::ZERO;
        let took = good(&s).done_at;
        assert!(took < Time(1_000_000_000), "seed {seed}: {took:?}");
    }
}
