//! What each strategy promises, and how addresses are shared out.

use std::time::Duration;

use fabricast_proto::group::{
    Config, Grant, Host, HostId, HostSet, Message, Output, Refusal, State, Strategy,
};
use fabricast_proto::{AddressId, GroupId, Time};

use crate::world::{Scenario, World};

fn set(hosts: &[u32]) -> HostSet {
    hosts.iter().map(|&host| HostId(host)).collect()
}

/// The machine of host 1 of four.
fn machine(now: Time, strategy: Strategy) -> Host {
    let config = Config {
        host: HostId(1),
        hosts: 4,
        strategy,
        addresses: 8,
        first: 1,
        context_address: true,
    };
    Host::new(now, &config)
}

/// A world whose pool is full, at the time when it is.
fn rested(scenario: Scenario) -> World {
    let mut world = World::new(1, scenario);
    world.start().unwrap();
    world.until(Time::ZERO + Duration::from_secs(5)).unwrap();
    world
}

/// P5.4: the first use of a new group waits for nothing and nobody.
#[test]
fn a_group_from_the_pool_sends_by_its_own_address_at_once() {
    let mut world = rested(Scenario::calm(8, Strategy::pool(8)));
    let hosts = set(&[0, 2, 5, 6]);
    let now = world.now;
    let grant = world.machine(0).take(now, &hosts).expect("a share");
    for host in hosts.iter() {
        let machine = world.machine(host.0);
        assert!(machine.create(now, GroupId(1), hosts.clone(), Some(grant)));
        let status = machine.status(GroupId(1)).expect("a group");
        assert_eq!(status.address, Some(grant.address));
        assert!(status.own);
        assert_eq!(status.times.used, Some(now));
    }
    // A second group of the same hosts shares the address.
    let again = world.machine(0).take(now, &hosts);
    assert_eq!(again, Some(grant));
}

/// P5.4: with the default, each host that may be a group's lowest has an address for it in advance.
#[test]
fn each_host_that_may_be_the_lowest_has_a_share() {
    for hosts in [4, 6, 8, 16, 32] {
        let mut world = rested(Scenario::calm(hosts, Strategy::default()));
        let now = world.now;
        for lowest in 0..hosts - 2 {
            let group = set(&[lowest, lowest + 1, lowest + 2]);
            let has_one = world.machine(lowest).take(now, &group).is_some();
            assert!(has_one, "{lowest} of {hosts}");
        }
    }
}

/// Carries what machines ask for, as a network without delays, until they only wait.
fn carry(machines: &mut [Host], now: Time) {
    let mut is_moved = true;
    while is_moved {
        is_moved = false;
        for from in 0..machines.len() {
            loop {
                let output = machines[from].poll(now);
                is_moved |= !matches!(output, Output::Wait(_));
                match output {
                    Output::Wait(_) => break,
                    Output::Join(a) | Output::JoinAnew(a) => machines[from].joined(now, a),
                    Output::Leave(a) => machines[from].left(now, a),
                    Output::Prove { address, .. } => {
                        machines[from].proved(now, address, &HostSet::new());
                    }
                    Output::Tell { to, message } => {
                        machines[to.0 as usize].message(now, HostId(from as u32), message);
                    }
                    Output::SendBy { .. } | Output::Ready(_) => {}
                }
            }
        }
    }
}

/// Groups without a common process may have the same number. Each has its address, until it ends.
#[test]
fn groups_of_the_same_number_are_told_apart() {
    let mut now = Time::ZERO;
    let config = |host| Config {
        host: HostId(host),
        hosts: 6,
        strategy: Strategy::Basic,
        addresses: 8,
        first: 1,
        context_address: true,
    };
    let mut machines: Vec<Host> = (0..6).map(|host| Host::new(now, &config(host))).collect();
    let both = [set(&[0, 1, 2]), set(&[3, 4, 5])];
    for hosts in &both {
        for host in hosts.iter() {
            assert!(machines[host.0 as usize].create(now, GroupId(1), hosts.clone(), None));
        }
    }
    let mut rest = |machines: &mut Vec<Host>| {
        for _ in 0..3000 {
            carry(machines, now);
            now = now + Duration::from_millis(1);
        }
        now
    };
    let later = rest(&mut machines);
    let is_own = |machine: &Host| machine.status(GroupId(1)).is_some_and(|status| status.own);
    assert!(machines.iter().all(is_own));
    for machine in &mut machines[..3] {
        machine.ended(later, GroupId(1));
    }
    rest(&mut machines);
    assert_eq!(machines[0].snapshot().alive, 1);
    assert!(machines[3..].iter().all(is_own));
}

/// P5.4: hosts outside leave, and the pool is filled again; only the new address needs a proof.
#[test]
fn hosts_outside_leave_and_the_pool_is_filled_again() {
    let mut world = rested(Scenario::calm(8, Strategy::pool(4)));
    let complete = |world: &mut World| {
        let statistics = world.machine(0).statistics().coordinator;
        statistics.proofs - statistics.silent
    };
    assert_eq!(complete(&mut world), 4);
    let hosts = set(&[0, 1, 2]);
    let grant = world.create(1, &hosts).unwrap().expect("a share");
    world.until(world.now + Duration::from_secs(5)).unwrap();
    assert_eq!(world.manager.members[&grant.address], hosts);
    assert_eq!(world.manager.table[&grant.address], hosts);
    assert_eq!(world.machine(0).snapshot().spare, 4);
    assert_eq!(complete(&mut world), 5);
}

/// P5.4: while a group's first broadcast is under way, nobody works for the address that it took.
#[test]
fn hosts_outside_leave_after_the_first_use() {
    for again in [false, true] {
        let mut world = rested(Scenario::calm(8, Strategy::pool(4)));
        let hosts = set(&[0, 1, 2]);
        let grant = world.create(1, &hosts).unwrap().expect("a share");
        let begun = world.now;
        let told = |world: &mut World, after: u64| {
            world.until(begun + Duration::from_micros(after)).unwrap();
            world.machine(0).snapshot().untold == 0
        };
        assert!(!told(&mut world, 1000));
        if again {
            world.machine(0).used_again(begun, GroupId(1));
            world.start().unwrap();
        }
        assert_eq!(told(&mut world, 1500), again);
        assert!(told(&mut world, 2000));
        world.until(begun + Duration::from_secs(1)).unwrap();
        assert_eq!(world.manager.members[&grant.address], hosts);
    }
}

/// A group with a host that is gone gets no address: the one that its lowest host took for it goes
/// back to the pool.
#[test]
fn what_a_group_with_a_host_that_is_gone_took_comes_back() {
    let mut world = rested(Scenario::calm(8, Strategy::pool(8)));
    let (now, gone) = (world.now, HostId(5));
    world.hosts[gone.0 as usize] = None;
    world.judge.crashed.insert(gone);
    // The coordinator knows that the host is gone. The group's lowest host does not know it yet.
    world.machine(0).gone(now, gone);
    let grant = world.create(1, &set(&[4, 5, 6])).unwrap();
    assert!(grant.is_some());
    for host in [1, 2, 3, 4, 6, 7] {
        world.machine(host).gone(now, gone);
    }
    world.start().unwrap();
    world.until(now + Duration::from_secs(5)).unwrap();
    let live = [0, 1, 2, 3, 4, 6, 7];
    let shares: u32 = live.map(|h| world.machine(h).snapshot().share).iter().sum();
    let snapshot = world.machine(0).snapshot();
    assert_eq!((snapshot.dealt, snapshot.spare), (shares, 8));
}

/// P5.2: the group is ready when its own address is proven, and not before.
#[test]
fn basic_waits_for_the_proof() {
    let mut world = rested(Scenario::calm(5, Strategy::Basic));
    let hosts = set(&[1, 2, 4]);
    world.create(1, &hosts).unwrap();
    let begin = world.now;
    while world.judge.groups[&GroupId(1)].ready != hosts {
        world.until(world.now + Duration::from_micros(50)).unwrap();
        for host in hosts.iter() {
            let ready = world.judge.groups[&GroupId(1)].ready.contains(host);
            let status = world.machine(host.0).status(GroupId(1)).expect("a group");
            assert_eq!(ready, status.own, "{host:?}");
        }
        assert!(world.now.since(begin) < Duration::from_secs(1));
    }
    let times = world.machine(1).status(GroupId(1)).expect("a group").times;
    let all = [times.requested, times.joined, times.proven, times.used];
    let all = all.map(|time| time.expect("has happened"));
    assert!(times.created <= all[0] && all.is_sorted(), "{times:?}");
}

/// P5.2: a group that gets no address is ready as soon as that is known, and the reason is told.
#[test]
fn basic_does_not_wait_where_there_is_no_address() {
    let mut scenario = Scenario::calm(5, Strategy::Basic);
    scenario.manager.limit = 0;
    let mut world = rested(scenario);
    let hosts = set(&[0, 1, 2]);
    world.create(1, &hosts).unwrap();
    world.until(world.now + Duration::from_secs(1)).unwrap();
    assert_eq!(world.judge.groups[&GroupId(1)].ready, hosts);
    let status = world.machine(1).status(GroupId(1)).expect("a group");
    assert_eq!(status.reason, Some(Refusal::NoAddresses));
    assert_eq!(status.address, Some(AddressId(0)));
    assert!(world.machine(1).statistics().last_refusal.is_some());
}

/// P5.3: the group is ready at once and changes to smaller addresses as they are proven.
#[test]
fn lazy_uses_the_smallest_address_that_is_proven() {
    let mut world = rested(Scenario::calm(6, Strategy::Lazy));
    let (large, small) = (set(&[0, 1, 2, 3]), set(&[1, 2, 3]));
    world.create(1, &large).unwrap();
    world.until(world.now + Duration::from_secs(1)).unwrap();
    let wide = world
        .machine(1)
        .status(GroupId(1))
        .expect("a group")
        .address;
    assert!(wide.is_some_and(|address| address != AddressId(0)));
    world.create(2, &small).unwrap();
    assert_eq!(world.judge.groups[&GroupId(2)].ready, small);
    let status = world.machine(1).status(GroupId(2)).expect("a group");
    assert_eq!((status.address, status.own), (wide, false));
    world.until(world.now + Duration::from_secs(1)).unwrap();
    let status = world.machine(1).status(GroupId(2)).expect("a group");
    assert!(status.own && status.address != wide, "{status:?}");
}

/// The addresses go to the groups that gain most by them.
#[test]
fn scarce_addresses_go_to_those_that_send_most() {
    let mut scenario = Scenario::calm(8, Strategy::Lazy);
    scenario.addresses = 2;
    let mut world = rested(scenario);
    let groups = [&[0, 1, 2][..], &[1, 2, 3], &[2, 3, 4], &[4, 5, 6, 7]].map(set);
    for (id, hosts) in (1..).zip(&groups) {
        world.create(id, hosts).unwrap();
    }
    for _ in 0..200 {
        world.until(world.now + Duration::from_millis(100)).unwrap();
        let now = world.now;
        for (id, bytes) in [(1, 10), (2, 1_000_000), (3, 20), (4, 2_000_000)] {
            let sender = groups[id as usize - 1].lowest().expect("a host");
            world.machine(sender.0).sent(now, GroupId(id), bytes);
        }
        world.start().unwrap();
    }
    let own = |world: &mut World, id: u32| {
        let sender = groups[id as usize - 1].lowest().expect("a host");
        world
            .machine(sender.0)
            .status(GroupId(id))
            .expect("a group")
            .own
    };
    assert_eq!(
        [1, 2, 3, 4].map(|id| own(&mut world, id)),
        [false, true, false, true]
    );
    assert!(world.machine(0).statistics().coordinator.taken_back >= 1);
}

/// What a group sent long ago does not keep the address from another one, although it still sends
/// a little.
#[test]
fn a_group_that_falls_quiet_gives_its_address_up() {
    let mut scenario = Scenario::calm(8, Strategy::Lazy);
    scenario.addresses = 1;
    let mut world = rested(scenario);
    let groups = [&[0, 1, 2][..], &[4, 5, 6]].map(set);
    for (id, hosts) in (1..).zip(&groups) {
        world.create(id, hosts).unwrap();
    }
    let owns = |world: &mut World, id: u32, sender: u32| {
        let status = world.machine(sender).status(GroupId(id));
        status.expect("a group").own
    };
    for (first, second) in [(1_000_000, 10), (10, 100_000)] {
        for _ in 0..200 {
            world.until(world.now + Duration::from_millis(100)).unwrap();
            let now = world.now;
            world.machine(0).sent(now, GroupId(1), first);
            world.machine(4).sent(now, GroupId(2), second);
            world.start().unwrap();
        }
        let loud = [first > second, second > first];
        assert_eq!([owns(&mut world, 1, 0), owns(&mut world, 2, 4)], loud);
    }
}

/// Groups for which there are no addresses share the context's, and each is counted once with the
/// reason, by its lowest host.
#[test]
fn groups_without_an_address_are_counted_with_the_reason() {
    for (limit, unaddressed) in [(0, 3), (2, 1), (64, 0)] {
        for strategy in [Strategy::pool(1), Strategy::Lazy, Strategy::Basic] {
            // One of two addresses is in the share of host 0, whatever the groups of host 1 lack.
            let pool = matches!(strategy, Strategy::Pool { .. });
            let unaddressed = unaddressed + u64::from(pool && limit == 2);
            let mut scenario = Scenario::calm(6, strategy);
            scenario.addresses = limit;
            let mut world = rested(scenario);
            for (id, hosts) in (1..).zip([&[1, 2, 3][..], &[1, 3, 4], &[1, 2, 4, 5]]) {
                world.create(id, &set(hosts)).unwrap();
            }
            world.until(world.now + Duration::from_secs(1)).unwrap();
            let statistics = world.machine(1).statistics();
            let mut expected = [0; Refusal::ALL.len()];
            expected[Refusal::NoAddresses.index()] = unaddressed;
            assert_eq!(statistics.unaddressed, expected, "{limit} {strategy}");
            let why = (unaddressed > 0).then_some(Refusal::NoAddresses);
            assert_eq!(statistics.scarce(), why);
            assert_eq!(world.machine(2).statistics().scarce(), None);
            let shared = world.machine(1).snapshot().wider;
            assert_eq!(u64::from(shared), unaddressed, "{limit} {strategy}");
        }
    }
}

/// N follows how fast groups come, within its bound, and goes back.
#[test]
fn the_pool_grows_while_groups_come_fast() {
    let strategy = Strategy::Pool { size: 2, max: 12 };
    let mut world = rested(Scenario::calm(6, strategy));
    assert_eq!(world.machine(0).snapshot().target, 2);
    for id in 1..=24 {
        let mut hosts = set(&[0, 1 + id % 5, 1 + (id + 1) % 5]);
        hosts.extend([HostId(1 + (id / 5) % 5)]);
        world.create(id, &hosts).unwrap();
        world.until(world.now + Duration::from_millis(4)).unwrap();
    }
    let target = world.machine(0).snapshot().target;
    assert!((4..=12).contains(&target), "{target}");
    world.until(world.now + Duration::from_secs(120)).unwrap();
    assert_eq!(world.machine(0).snapshot().target, 2);
    assert_eq!(world.machine(0).snapshot().spare, 2);
}

/// A group of two hosts has one receiver, and a pool gives it nothing.
#[test]
fn a_pair_uses_unicast() {
    let mut world = rested(Scenario::calm(4, Strategy::pool(8)));
    let hosts = set(&[0, 3]);
    assert_eq!(world.create(1, &hosts).unwrap(), None);
    let status = world.machine(3).status(GroupId(1)).expect("a group");
    assert_eq!((status.address, status.reason), (None, None));
}

/// Wrong calls and messages that a host does not expect change nothing.
#[test]
fn what_does_not_belong_is_ignored() {
    let (now, a) = (Time(1), AddressId(3));
    let mut host = machine(now, Strategy::Lazy);
    assert!(!host.create(now, GroupId(1), set(&[0, 2, 3]), None));
    assert!(!host.create(now, GroupId(1), set(&[1, 2, 9]), None));
    assert!(host.create(now, GroupId(1), set(&[1, 2, 3]), None));
    assert!(!host.create(now, GroupId(1), set(&[1, 2, 3]), None));
    while !matches!(host.poll(now), Output::Wait(_)) {}
    host.ended(now, GroupId(7));
    host.sent(now, GroupId(7), 1);
    host.joined(now, a);
    host.left(now, a);
    host.lost(now, a);
    host.refused(now, a, Refusal::Denied);
    host.proved(now, a, &HostSet::new());
    host.message(now, HostId(2), Message::Leave(AddressId(0)));
    host.message(now, HostId(0), Message::Joined(a));
    host.message(now, HostId(0), Message::Proven(a));
    host.invariants();
    assert_eq!(host.poll(now), Output::Wait(Time::NEVER));
    assert_eq!(host.state(AddressId(0)), State::InUse);
}

/// A creation that took long names an address which has gone to other groups since.
#[test]
fn an_address_of_an_earlier_term_is_ignored() {
    let (now, address) = (Time(1), AddressId(3));
    let mut host = machine(now, Strategy::pool(8));
    let join = |term| Message::Join {
        grant: Grant { address, term },
        hosts: None,
    };
    host.message(now, HostId(0), join(1));
    while !matches!(host.poll(now), Output::Wait(_)) {}
    host.joined(now, address);
    for message in [
        Message::Proven(address),
        Message::Withdraw(address),
        join(2),
    ] {
        host.message(now, HostId(0), message);
    }
    host.message(now, HostId(0), Message::Proven(address));
    assert_eq!(host.state(address), State::Proven);
    let hosts = set(&[0, 1, 2]);
    for (group, term, expected) in [(1, 1, AddressId(0)), (2, 2, address)] {
        let grant = Some(Grant { address, term });
        assert!(host.create(now, GroupId(group), hosts.clone(), grant));
        let status = host.status(GroupId(group)).expect("a group");
        assert_eq!(status.address, Some(expected));
    }
    host.invariants();
}

/// The coordinator shares out only proven addresses. So a grant that overtakes its message tells of
/// the proof, but not of a membership that was lost after it.
#[test]
fn a_grant_tells_of_the_proof() {
    let (now, address) = (Time(1), AddressId(3));
    let grant = Grant { address, term: 1 };
    for (lost, expected) in [(false, address), (true, AddressId(0))] {
        let mut host = machine(now, Strategy::pool(8));
        host.message(now, HostId(0), Message::Join { grant, hosts: None });
        while !matches!(host.poll(now), Output::Wait(_)) {}
        host.joined(now, address);
        if lost {
            host.lost(now, address);
            while !matches!(host.poll(now), Output::Wait(_)) {}
            host.joined(now, address);
        }
        assert_eq!(host.state(address), State::Joined);
        assert!(host.create(now, GroupId(1), set(&[0, 1, 2]), Some(grant)));
        let status = host.status(GroupId(1)).expect("a group");
        assert_eq!(status.address, Some(expected));
        host.message(now, HostId(0), Message::Proven(address));
        let status = host.status(GroupId(1)).expect("a group");
        assert_eq!(status.address, Some(address));
        host.invariants();
    }
}
