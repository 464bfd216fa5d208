//! A host that cannot join: it is set aside, and all others go on.

use std::time::Duration;

use fabricast_proto::group::{HostId, HostSet, Refusal, Strategy};
use fabricast_proto::{AddressId, GroupId};

use crate::world::{Scenario, World};

/// The host that cannot join. It is neither the coordinator nor the lowest of the groups below.
const LAME: HostId = HostId(5);

fn set(hosts: &[u32]) -> HostSet {
    hosts.iter().map(|&host| HostId(host)).collect()
}

/// Eight hosts with a pool of four addresses, some time after their start.
fn world(change: impl FnOnce(&mut Scenario)) -> World {
    seeded(1, change)
}

/// Like [`world`], with what chance decides drawn from this seed.
fn seeded(seed: u64, change: impl FnOnce(&mut Scenario)) -> World {
    let mut scenario = Scenario::calm(8, Strategy::pool(4));
    change(&mut scenario);
    let mut world = World::new(seed, scenario);
    world.start().unwrap();
    wait(&mut world, 10);
    world
}

fn wait(world: &mut World, seconds: u64) {
    let until = world.now + Duration::from_secs(seconds);
    world.until(until).unwrap();
}

/// By which address a group of host 0 sends, and whether that is its own.
fn sends(world: &mut World, id: u32) -> (Option<AddressId>, bool) {
    let status = world.machine(0).status(GroupId(id)).expect("a group");
    (status.address, status.own)
}

/// Groups of the others get addresses of the pool at once, one after another; a group with the host
/// has none, and its lowest host is told why.
fn others_go_on(world: &mut World, why: Refusal) {
    for id in 1..=6 {
        let hosts = set(&[0, 1, 1 + id % 3 + 1, 6 + id % 2]);
        let grant = world.create(id, &hosts).unwrap();
        let grant = grant.expect("an address of the pool");
        assert_eq!(sends(world, id), (Some(grant.address), true), "{id}");
        wait(world, 8);
    }
    assert_eq!(world.create(9, &set(&[0, 1, LAME.0])).unwrap(), None);
    wait(world, 8);
    assert_eq!(sends(world, 9), (Some(AddressId(0)), false));
    let status = world.machine(0).status(GroupId(9)).expect("a group");
    assert_eq!(status.reason, Some(why));
    let snapshot = world.machine(0).snapshot();
    assert_eq!((snapshot.spare, snapshot.target), (4, 4), "{snapshot:?}");
    let counted = world.machine(0).statistics();
    assert_eq!(counted.unaddressed[why.index()], 1);
    assert_eq!(counted.coordinator.set_aside[why.index()], 1);
    assert_eq!(world.machine(0).set_aside(), [(LAME, why)]);
}

/// After a while all addresses of the pool are joined by all hosts, and the group that had none has
/// its own.
fn all_are_back(world: &mut World) {
    wait(world, 100);
    assert!(sends(world, 9).1);
    for id in 1..=6 {
        assert!(sends(world, id).1);
    }
    let all = HostSet::first_hosts(8);
    let whole = world.manager.members.iter();
    let whole = whole.filter(|(at, members)| at.0 > 0 && **members == all);
    assert_eq!(whole.count(), 4);
    let hosts = set(&[0, 4, LAME.0]);
    assert!(world.create(10, &hosts).unwrap().is_some());
    assert!(sends(world, 10).1);
    wait(world, 1);
}

#[test]
fn a_host_that_is_denied_takes_the_pool_from_nobody() {
    let mut world = world(|scenario| scenario.manager.barred = Some(LAME));
    others_go_on(&mut world, Refusal::Denied);
    assert!(world.machine(0).statistics().scarce().is_some());
    world.manager.behaviour.barred = None;
    all_are_back(&mut world);
}

#[test]
fn a_host_that_the_manager_does_not_answer_takes_the_pool_from_nobody() {
    let mut world = world(|scenario| scenario.manager.unheard = Some(LAME));
    others_go_on(&mut world, Refusal::NoAnswer);
    world.manager.behaviour.unheard = None;
    all_are_back(&mut world);
}

/// Its process is stopped: it says nothing at all, and goes on later.
#[test]
fn a_host_that_stops_takes_the_pool_from_nobody() {
    let mut world = world(|_| {});
    world.stop(LAME);
    others_go_on(&mut world, Refusal::NoAnswer);
    world.go_on(LAME);
    all_are_back(&mut world);
}

/// Its link loses the probes of all addresses, also where it would have to prove them itself.
#[test]
fn a_host_that_probes_do_not_reach_takes_the_pool_from_nobody() {
    for deaf in [LAME, HostId(0)] {
        let mut world = world(|scenario| scenario.manager.deaf = Some(deaf));
        let hosts = set(&[2, 3, 4]);
        let grant = world.create(1, &hosts).unwrap().expect("an address");
        let status = world.machine(2).status(GroupId(1)).expect("a group");
        assert_eq!((status.address, status.own), (Some(grant.address), true));
        assert_eq!(world.create(2, &set(&[1, 2, deaf.0])).unwrap(), None);
        wait(&mut world, 8);
        let lowest = deaf.0.min(1);
        let status = world.machine(lowest).status(GroupId(2)).expect("a group");
        assert_eq!(status.reason, Some(Refusal::Unproven));
        assert_eq!(world.machine(0).snapshot().spare, 4);
        let counted = world.machine(0).statistics().coordinator.set_aside;
        assert_eq!(counted[Refusal::Unproven.index()], 1);
        assert_eq!(world.machine(0).snapshot().aside, 1);
        world.manager.behaviour.deaf = None;
        wait(&mut world, 100);
        assert_eq!(world.machine(0).snapshot().aside, 0);
        let status = world.machine(lowest).status(GroupId(2)).expect("a group");
        assert!(status.own, "{status:?}");
    }
}

/// Others whose answers are lost now and then are not set aside with a host that never answers.
#[test]
fn losses_set_no_other_host_aside() {
    for seed in 1..=16 {
        let mut world = seeded(seed, |scenario| {
            scenario.manager.deaf = Some(LAME);
            scenario.manager.probes_lost = 0.1;
        });
        wait(&mut world, 10);
        let counted = world.machine(0).statistics().coordinator.set_aside;
        assert_eq!(counted[Refusal::Unproven.index()], 1, "seed {seed}");
        assert_eq!(world.machine(0).set_aside(), [(LAME, Refusal::Unproven)]);
    }
}

/// An address that is denied to all hosts is the address's fault.
#[test]
fn an_address_that_all_are_denied_sets_nobody_aside() {
    let mut world = world(|scenario| scenario.manager.denied = Some(AddressId(2)));
    let grant = world.create(1, &set(&[0, 1, LAME.0])).unwrap();
    assert!(grant.is_some() && sends(&mut world, 1).1);
    wait(&mut world, 5);
    assert_eq!(world.machine(0).snapshot().spare, 4);
    let counted = world.machine(0).statistics().coordinator;
    assert_eq!(counted.set_aside, [0; Refusal::ALL.len()]);
    assert_eq!(counted.given_up[Refusal::Denied.index()], 1);
}
