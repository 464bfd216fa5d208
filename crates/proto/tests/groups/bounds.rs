//! No host can make the others wait without a bound, and none is believed about groups of others.

use std::time::Duration;

use fabricast_proto::group::{
    Config, Grant, Host, HostId, HostSet, Message, Output, Refusal, State, Strategy,
};
use fabricast_proto::{AddressId, GroupId, Time};

use crate::world::{Scenario, World};

fn set(hosts: &[u32]) -> HostSet {
    hosts.iter().map(|&host| HostId(host)).collect()
}

fn wait(world: &mut World, ms: u64) {
    let until = world.now + Duration::from_millis(ms);
    world.until(until).unwrap();
}

/// Eight hosts, some time after their start.
fn world(strategy: Strategy, addresses: u32) -> World {
    let mut scenario = Scenario::calm(8, strategy);
    scenario.addresses = addresses;
    let mut world = World::new(1, scenario);
    world.start().unwrap();
    wait(&mut world, 5000);
    world
}

fn own(world: &mut World, host: u32, id: u32) -> bool {
    let status = world.machine(host).status(GroupId(id)).expect("a group");
    status.own
}

/// Each of these groups sends bytes from its lowest host, ten times a second.
fn send(world: &mut World, seconds: u32, groups: &[(u32, u32, u64)]) {
    for _ in 0..10 * seconds {
        wait(world, 100);
        let now = world.now;
        for &(host, id, bytes) in groups {
            world.machine(host).sent(now, GroupId(id), bytes);
        }
        world.start().unwrap();
    }
}

/// A host that is stopped cannot say that it sends no more. Addresses that it has joined are taken
/// from nobody meanwhile, and others go to those that gain more.
#[test]
fn a_host_that_stops_keeps_no_address_from_others_that_gain_more() {
    let mut world = world(Strategy::Lazy, 5);
    let before = [
        &[1, 2, 5][..],
        &[1, 3, 5],
        &[2, 3, 5],
        &[1, 2, 3],
        &[1, 2, 4],
    ];
    for (id, hosts) in (1..).zip(before) {
        world.create(id, &set(hosts)).unwrap();
    }
    wait(&mut world, 12_000);
    assert!((1..=3).all(|id| own(&mut world, 5, id)));
    world.stop(HostId(5));
    for (id, hosts) in [(6, &[0, 1, 2]), (7, &[0, 2, 3])] {
        world.create(id, &set(hosts)).unwrap();
    }
    send(&mut world, 8, &[(0, 6, 1 << 20), (0, 7, 1 << 20)]);
    assert!(own(&mut world, 0, 6) && own(&mut world, 0, 7));
}

/// P5.2: a creation waits for some seconds at most, whichever host does not answer. The reason is
/// counted, and the group gets its address later.
#[test]
fn basic_does_not_wait_for_a_host_that_never_answers() {
    let mut world = world(Strategy::Basic, 64);
    world.stop(HostId(0));
    let hosts = set(&[1, 2, 3]);
    world.create(1, &hosts).unwrap();
    wait(&mut world, 2000);
    assert!(world.judge.groups[&GroupId(1)].ready.is_empty());
    wait(&mut world, 10_000);
    assert_eq!(world.judge.groups[&GroupId(1)].ready, hosts);
    let statistics = world.machine(1).statistics();
    assert_eq!(statistics.unaddressed[Refusal::NoAnswer.index()], 1);
    world.go_on(HostId(0));
    wait(&mut world, 1000);
    assert!(own(&mut world, 1, 1));
}

/// The machine of host 1 of four, with addresses that it has joined.
fn joined(now: Time, addresses: u32) -> Host {
    let config = Config {
        host: HostId(1),
        hosts: 4,
        strategy: Strategy::pool(8),
        addresses: 64,
        first: 1,
        context_address: true,
    };
    let mut host = Host::new(now, &config);
    for address in (1..=addresses).map(AddressId) {
        let grant = Grant { address, term: 1 };
        host.message(now, HostId(0), Message::Join { grant, hosts: None });
        outputs(&mut host, now);
        host.joined(now, address);
        assert_eq!(host.state(address), State::Joined);
    }
    outputs(&mut host, now);
    host
}

/// What a host wants done, without messages.
fn outputs(host: &mut Host, now: Time) -> Vec<Output> {
    let mut all = Vec::new();
    loop {
        match host.poll(now) {
            Output::Wait(_) => return all,
            Output::Tell { .. } => {}
            output => all.push(output),
        }
    }
}

/// A manager that answers no request to leave keeps no join waiting.
#[test]
fn leaves_without_an_answer_leave_room_for_joins() {
    let now = Time(1);
    let mut host = joined(now, 20);
    for address in (1..=20).map(AddressId) {
        host.message(now, HostId(0), Message::Withdraw(address));
        host.message(now, HostId(0), Message::Leave(address));
    }
    outputs(&mut host, now);
    let address = AddressId(30);
    let grant = Grant { address, term: 2 };
    host.message(now, HostId(0), Message::Join { grant, hosts: None });
    outputs(&mut host, now);
    let later = now + Duration::from_secs(1);
    let asked = outputs(&mut host, later);
    assert!(asked.contains(&Output::Join(address)), "{asked:?}");
    host.invariants();
}

/// After a restart of the manager the layer below regains all memberships by itself. What it has
/// regained is not asked for again.
#[test]
fn memberships_that_are_regained_are_kept() {
    let now = Time(1);
    let mut host = joined(now, 40);
    let counted = host.statistics().join_time.count();
    let later = now + Duration::from_secs(30);
    for address in (1..=40).map(AddressId) {
        host.lost(later, address);
    }
    let asked = outputs(&mut host, later).len();
    assert!(asked < 40);
    for address in (1..=40).rev().map(AddressId) {
        host.joined(later, address);
        assert_eq!(outputs(&mut host, later), [], "{address:?}");
        assert_eq!(host.state(address), State::Joined);
    }
    // A join that was not requested took no time, least of all since the one before.
    let times = host.statistics().join_time;
    assert_eq!(times.count(), counted + asked as u64);
    assert_eq!(times.total(), Duration::ZERO);
}

/// What a host says of groups that it is not in changes nothing.
#[test]
fn nobody_is_believed_about_groups_of_others() {
    let mut world = world(Strategy::Lazy, 1);
    for (id, hosts) in [(1, &[1, 2, 3]), (2, &[1, 2, 4])] {
        world.create(id, &set(hosts)).unwrap();
    }
    send(&mut world, 4, &[(1, 1, 1 << 20)]);
    let before = world.machine(0).statistics().coordinator;
    for _ in 0..5 {
        send(&mut world, 1, &[(1, 1, 1 << 20)]);
        let now = world.now;
        let lie = Message::Sent(vec![(GroupId(2), 1 << 40)]);
        world.machine(0).message(now, HostId(6), lie);
        let lie = Message::Unreached(AddressId(1));
        world.machine(0).message(now, HostId(6), lie);
        world.start().unwrap();
    }
    assert!(own(&mut world, 1, 1) && !own(&mut world, 1, 2));
    let statistics = world.machine(0).statistics().coordinator;
    assert_eq!(
        (statistics.taken_back, statistics.proofs),
        (before.taken_back, before.proofs)
    );
}

/// Nobody gives away what is in the share of another host.
#[test]
fn nobody_gives_an_address_of_another_hosts_share() {
    let mut world = world(Strategy::pool(4), 64);
    let (now, hosts) = (world.now, set(&[2, 3, 4]));
    let grant = world.machine(2).take(now, &hosts);
    assert!(grant.is_some());
    let lie = Message::Created {
        group: GroupId(1),
        hosts,
        grant,
    };
    let dealt = world.machine(0).snapshot().dealt;
    world.machine(0).message(now, HostId(3), lie);
    assert_eq!(world.machine(0).snapshot().dealt, dealt);
}
