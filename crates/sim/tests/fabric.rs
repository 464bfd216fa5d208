//! Facts about the network by itself, without any protocol on it.

use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::Time;
use fabricast_sim::fabric::{Fabric, Happening, Packet, Target};
use fabricast_sim::fault::{Blocked, Burst, LinkFaults};
use fabricast_sim::topology::{LinkSpec, Topology};
use fabricast_sim::workload::Kind;

const LINK: LinkSpec = LinkSpec {
    rate: 125_000_000,
    delay: Duration::from_micros(5),
    queue: 100_000,
};

fn packet(from: u32, to: Target, len: usize) -> Rc<Packet> {
    Rc::new(Packet {
        from,
        to,
        kind: Kind::Message,
        way_ns: 0,
        bytes: vec![from as u8; len],
    })
}

/// Everything that arrives from now on: time, receiving host, sending host.
fn arrivals(fabric: &mut Fabric) -> Vec<(u64, u32, u32)> {
    let mut all = Vec::new();
    while let Some(h) = fabric.next_happening() {
        if let Happening::Arrive { host, packet } = h {
            all.push((fabric.now().0, host, packet.from));
        }
    }
    all
}

fn group_of(fabric: &mut Fabric, members: impl Iterator<Item = u32>) -> Target {
    let group = fabric.group();
    for m in members {
        fabric.join(group, m);
    }
    Target::Group(group)
}

#[test]
fn a_link_delivers_at_its_rate() {
    let mut f = Fabric::new(&Topology::single(LINK), 2, 0, 1);
    for i in 0..100 {
        f.send(Time(i), packet(0, Target::Host(1), 1000));
    }
    let all = arrivals(&mut f);
    assert_eq!(all.len(), 100);
    // The first packet takes two hops of 8 µs and 5 µs each; then one arrives every 8 µs.
    assert_eq!(all[0].0, 26_000);
    assert_eq!(all[99].0 - all[0].0, 99 * 8_000);
}

#[test]
fn a_switch_that_cuts_through_costs_a_packet_its_delay_alone() {
    let mut topology = Topology::single(LINK);
    topology.cut_through = true;
    let mut f = Fabric::new(&topology, 2, 0, 1);
    for i in 0..100 {
        f.send(Time(i), packet(0, Target::Host(1), 1000));
    }
    let all = arrivals(&mut f);
    // The bytes count once, however many cables they pass; the rate is the same.
    assert_eq!(all[0].0, 18_000);
    assert_eq!(all[99].0 - all[0].0, 99 * 8_000);
}

#[test]
fn overhead_takes_time_too() {
    let mut f = Fabric::new(&Topology::single(LINK), 2, 250, 1);
    f.send(Time(0), packet(0, Target::Host(1), 1000));
    assert_eq!(arrivals(&mut f)[0].0, 30_000);
}

#[test]
fn a_queue_overflows_by_bytes() {
    let mut f = Fabric::new(&Topology::single(LINK), 2, 0, 1);
    for _ in 0..150 {
        f.send(Time(0), packet(0, Target::Host(1), 1000));
    }
    assert_eq!(f.room(0), 0);
    assert_eq!(arrivals(&mut f).len(), 100);
    assert_eq!(f.stats(f.uplink(0)).overflowed, 50);
    assert_eq!(f.room(0), 100_000);
}

#[test]
fn a_slower_link_behind_a_switch_is_where_the_queue_grows() {
    let mut f = Fabric::new(&Topology::single(LINK), 3, 0, 1);
    f.set_rate(f.downlink(2), 12_500_000);
    for i in 0..1000 {
        f.send(Time(i * 8_000), packet(0, Target::Host(2), 1000));
    }
    let all = arrivals(&mut f);
    // One packet leaves for every ten that come; a hundred more wait in the queue.
    assert!((198..=202).contains(&all.len()), "{}", all.len());
    let lost = f.stats(f.downlink(2)).overflowed;
    assert_eq!(lost as usize + all.len(), 1000);
    assert_eq!(all[20].0 - all[19].0, 80_000);
}

#[test]
fn a_change_of_rate_keeps_what_waits() {
    let mut f = Fabric::new(&Topology::single(LINK), 2, 0, 1);
    for _ in 0..100 {
        f.send(Time(0), packet(0, Target::Host(1), 1000));
    }
    f.set_rate(f.uplink(0), 62_500_000);
    assert_eq!(f.room(0), 0, "as many bytes wait as before");
    assert_eq!(f.half_drained(0).0, 800_001);
}

#[test]
fn multicast_is_copied_by_switches_and_only_where_members_are() {
    let t = Topology::two_level(4, LINK, LINK);
    let mut f = Fabric::new(&t, 16, 0, 1);
    let group = group_of(&mut f, [0, 1, 2, 5, 6, 15].into_iter());
    f.send(Time(0), packet(0, group, 1000));
    let mut hosts: Vec<u32> = arrivals(&mut f).iter().map(|a| a.1).collect();
    hosts.sort_unstable();
    assert_eq!(
        hosts,
        [1, 2, 5, 6, 15],
        "all members but the sender, once each"
    );
    // Up: one host, one switch. Down: two switches of three. Hosts: five.
    assert_eq!(f.stats_total().packets, 1 + 1 + 2 + 5);
    assert_eq!(f.stats(f.uplink(0)).packets, 1, "it leaves its sender once");
}

#[test]
fn who_leaves_receives_no_more() {
    let mut f = Fabric::new(&Topology::two_level(2, LINK, LINK), 6, 0, 1);
    let group = group_of(&mut f, 0..6);
    let Target::Group(g) = group else {
        unreachable!()
    };
    f.leave(g, 2);
    f.leave(g, 3);
    f.send(Time(0), packet(0, group, 100));
    let hosts: Vec<u32> = arrivals(&mut f).iter().map(|a| a.1).collect();
    assert_eq!(hosts, [1, 4, 5]);
    f.join(g, 3);
    f.send(f.now(), packet(5, group, 100));
    let mut hosts: Vec<u32> = arrivals(&mut f).iter().map(|a| a.1).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [0, 1, 3, 4]);
}

#[test]
fn a_sender_need_not_be_a_member() {
    let mut f = Fabric::new(&Topology::two_level(2, LINK, LINK), 6, 0, 1);
    let group = group_of(&mut f, 4..6);
    f.send(Time(0), packet(0, group, 100));
    let hosts: Vec<u32> = arrivals(&mut f).iter().map(|a| a.1).collect();
    assert_eq!(hosts, [4, 5]);
}

#[test]
fn unicast_finds_its_way_through_three_levels() {
    let mut t = Topology::two_level(2, LINK, LINK);
    t.fanout = vec![2, 2];
    let mut f = Fabric::new(&t, 11, 0, 1);
    for to in 1..11 {
        f.send(Time(0), packet(0, Target::Host(to), 100));
    }
    let mut hosts: Vec<u32> = arrivals(&mut f).iter().map(|a| a.1).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, (1..11).collect::<Vec<_>>());
}

fn lost_of(faults: LinkFaults, packets: u64) -> f64 {
    let mut f = Fabric::new(&Topology::single(LINK), 2, 0, 7);
    f.set_faults(f.downlink(1), faults);
    let mut got = 0;
    for i in 0..packets {
        f.send(Time(i * 8_000), packet(0, Target::Host(1), 1000));
        if i % 100 == 99 {
            got += arrivals(&mut f).len();
        }
    }
    1.0 - got as f64 / packets as f64
}

#[test]
fn loss_is_as_heavy_as_was_said() {
    let uniform = lost_of(LinkFaults::uniform(0.05), 100_000);
    assert!((uniform - 0.05).abs() < 0.003, "{uniform}");
    let burst = Burst {
        enter: 0.01,
        leave: 0.1,
        loss: 0.8,
    };
    let faults = LinkFaults {
        burst: Some(burst),
        ..LinkFaults::NONE
    };
    let bursty = lost_of(faults, 200_000);
    assert!((bursty - burst.mean_loss()).abs() < 0.006, "{bursty}");
}

#[test]
fn loss_between_switches_hits_the_whole_sub_tree() {
    let mut f = Fabric::new(&Topology::two_level(4, LINK, LINK), 8, 0, 3);
    let group = group_of(&mut f, 0..8);
    for trunk in f.trunks().to_vec() {
        f.set_faults(trunk, LinkFaults::uniform(0.3));
    }
    for i in 0..200 {
        f.send(f.now(), packet(0, group, 100 + i));
        let n = arrivals(&mut f).iter().filter(|a| a.1 >= 4).count();
        assert!(n == 0 || n == 4, "all or none beyond the trunk, not {n}");
    }
    assert!(f.stats_total().lost > 30);
}

#[test]
fn blocked_multicast_lets_unicast_through() {
    let mut f = Fabric::new(&Topology::single(LINK), 3, 0, 1);
    let group = group_of(&mut f, 0..3);
    f.block(f.downlink(2), Blocked::Multicast);
    f.send(Time(0), packet(0, group, 100));
    f.send(Time(0), packet(0, Target::Host(2), 100));
    let got = arrivals(&mut f);
    assert_eq!(got.iter().map(|a| a.1).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn late_packets_are_overtaken_and_some_come_twice() {
    let mut f = Fabric::new(&Topology::single(LINK), 2, 0, 5);
    let faults = LinkFaults {
        duplicate: 0.1,
        reorder: 0.5,
        late_max: Duration::from_millis(1),
        ..LinkFaults::NONE
    };
    f.set_faults(f.downlink(1), faults);
    for i in 0..100u32 {
        let p = Packet {
            from: 0,
            to: Target::Host(1),
            kind: Kind::Message,
            way_ns: 0,
            bytes: vec![i as u8; 500],
        };
        f.send(Time(u64::from(i) * 8_000), Rc::new(p));
    }
    let mut order = Vec::new();
    while let Some(h) = f.next_happening() {
        if let Happening::Arrive { packet, .. } = h {
            order.push(packet.bytes[0]);
        }
    }
    let doubled = f.stats(f.downlink(1)).doubled as usize;
    assert!(doubled > 2);
    assert_eq!(order.len(), 100 + doubled);
    assert!(!order.is_sorted());
}

#[test]
fn equal_seeds_give_equal_networks() {
    let run = |seed| {
        let mut f = Fabric::new(&Topology::two_level(3, LINK, LINK), 9, 42, seed);
        let group = group_of(&mut f, 0..9);
        for h in 0..9 {
            f.set_faults(f.downlink(h), LinkFaults::uniform(0.3));
        }
        for i in 0..50 {
            f.send(Time(i), packet(i as u32 % 9, group, 700));
        }
        arrivals(&mut f)
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
