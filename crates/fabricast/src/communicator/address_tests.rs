//! Groups that get multicast addresses of their own, over real sockets on the loopback.

use std::io;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Instant;

use fabricast_proto::AddressId;
use fabricast_proto::group::{Grant, Message, Refusal, Strategy};

use super::tests::{Here, Ranks, bcast, job_on};
use super::*;
use crate::communicator::limits::ADDRESSES;
use crate::communicator::operations::statistics::AddressStatistics;
use crate::subnet::failed::Failed;
use crate::subnet::igmp::Igmp;
use crate::subnet::{News, Subnet};
use crate::transport::GroupAddress;

/// The first address that is not shared.
const FIRST: AddressId = AddressId(ADDRESSES as u32);

const PATIENCE: Duration = Duration::from_secs(20);
const HOSTS: u32 = 5;

/// Runs `each` on hosts of one rank, whose groups get addresses by this strategy.
fn with(strategy: &str, loss: f64, each: impl Fn(u32, &mut Ranks, &Here) + Sync) {
    with_limit(strategy, None, loss, each);
}

/// Like [`with`], with at most this many addresses.
fn with_limit(
    strategy: &str,
    addresses: Option<u32>,
    loss: f64,
    each: impl Fn(u32, &mut Ranks, &Here) + Sync,
) {
    let hosts: Vec<u32> = (0..HOSTS).collect();
    with_hosts(&hosts, strategy, addresses, loss, each);
}

/// Like [`with_limit`], on these hosts of all ranks.
fn with_hosts(
    hosts: &[u32],
    strategy: &str,
    addresses: Option<u32>,
    loss: f64,
    each: impl Fn(u32, &mut Ranks, &Here) + Sync,
) {
    let strategy: Strategy = strategy.parse().unwrap();
    job_on(hosts, loss, |rank, ranks, options| {
        let options = Options {
            groups: Some(strategy),
            addresses,
            ..options.clone()
        };
        let context = Here::new(&options, ranks).unwrap();
        each(rank, ranks, &context);
    });
}

/// Broadcasts until all members say that the group has an address of its own.
fn until_own(context: &Here, group: &Group, rank: u32, ranks: &mut Ranks) {
    let begun = Instant::now();
    loop {
        let me = group.members.iter().position(|m| m.0 == rank);
        if let Some(me) = me {
            bcast(context, group, 0, me as u32, b"a word").unwrap();
        }
        let own = context.statistics().addresses.own;
        let is_member = me.is_some();
        let said = ranks.allgather(&[(own > 0 || !is_member) as u8]).unwrap();
        if said.iter().all(|own| own == &[1]) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", context.statistics());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A host outside gets nothing of what a group with an address of its own sends.
fn hosts_outside_hear_nothing(strategy: &str) {
    with(strategy, 0.0, |rank, ranks, context| {
        let group = Group {
            id: GroupId(7),
            members: [1, 2, 3].map(NodeId).to_vec(),
        };
        let member = group.members.contains(&NodeId(rank));
        if member {
            context.group(7, &[1, 2, 3]).unwrap();
        }
        until_own(context, &group, rank, ranks);
        // The leaves of the others may still be under way.
        std::thread::sleep(Duration::from_millis(300));
        let before = context.statistics().node.foreign;
        ranks.allgather(&[]).unwrap();
        if member {
            for root in [0, 1, 2].repeat(30) {
                bcast(context, &group, root, rank - 1, &[root as u8; 3000]).unwrap();
            }
            context.flush(&mut || ()).unwrap();
        }
        ranks.allgather(&[]).unwrap();
        let heard = context.statistics().node.foreign - before;
        assert!(member || heard == 0, "rank {rank} heard {heard} frames");
        if member {
            context.leave(group);
        }
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn with_a_pool_hosts_outside_hear_nothing() {
    hosts_outside_hear_nothing("pool(2)");
}

#[test]
fn with_lazy_addresses_hosts_outside_hear_nothing() {
    hosts_outside_hear_nothing("lazy");
}

#[test]
fn a_basic_group_waits_for_its_address() {
    with("basic", 0.0, |rank, ranks, context| {
        if (1..4).contains(&rank) {
            let group = context.group(7, &[1, 2, 3]).unwrap();
            bcast(context, &group, 0, rank - 1, b"the first").unwrap();
            if rank == 1 {
                assert_eq!(context.statistics().addresses.own, 1);
            }
            context.flush(&mut || ()).unwrap();
        }
        ranks.allgather(&[]).unwrap();
        // A barrier waits at every member.
        if (2..5).contains(&rank) {
            let group = context.group(8, &[2, 3, 4]).unwrap();
            context.barrier(&group, None, &mut || ()).unwrap();
            let others = u64::from(rank < 4);
            assert_eq!(context.statistics().addresses.own, 1 + others);
            context.flush(&mut || ()).unwrap();
        }
        ranks.allgather(&[]).unwrap();
    });
}

/// Groups of many different sets come and go, broadcast from all members, with losses; each
/// broadcast arrives once and whole, whatever address it goes by.
#[test]
fn groups_come_and_go_while_their_addresses_change() {
    for strategy in ["pool(2),max=4", "lazy", "basic"] {
        with(strategy, 0.02, |rank, ranks, context| {
            for id in 1..60u32 {
                let out = id % HOSTS;
                let members: Vec<u32> = (0..HOSTS).filter(|&m| m != out).collect();
                if rank != out {
                    let group = context.group(id, &members).unwrap();
                    let me = members.iter().position(|&m| m == rank).unwrap() as u32;
                    for root in 0..members.len() as u32 {
                        bcast(context, &group, root, me, &id.to_le_bytes().repeat(500)).unwrap();
                    }
                    context.leave(group);
                }
            }
            context.flush(&mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
        });
    }
}

/// With fewer addresses than groups, or none, all broadcasts arrive, and the reason is counted.
#[test]
fn groups_without_an_address_of_their_own_work() {
    for (limit, strategy) in [(0, "pool(2)"), (1, "lazy"), (0, "basic")] {
        with_limit(strategy, Some(limit), 0.0, |rank, ranks, context| {
            let groups: Vec<_> = (1..HOSTS)
                .map(|out| {
                    let members: Vec<u32> = (0..HOSTS).filter(|&m| m != out).collect();
                    let member = members.contains(&rank);
                    member.then(|| context.group(out, &members).unwrap())
                })
                .collect();
            for group in groups.iter().flatten() {
                let me = group.members.iter().position(|m| m.0 == rank).unwrap() as u32;
                bcast(context, group, 0, me, &[7; 3000]).unwrap();
            }
            context.flush(&mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
            let addresses = context.statistics().addresses;
            // Rank 0 is the lowest of all four groups.
            let without = if rank == 0 { 4 - u64::from(limit) } else { 0 };
            let exhausted = addresses.unaddressed.of(Refusal::NoAddresses);
            let counted = (addresses.unaddressed.total(), exhausted);
            assert_eq!(counted, (without, without), "{strategy} {rank}");
            assert_eq!(addresses.sent_own, 0, "{strategy} {rank}");
            for group in groups.into_iter().flatten() {
                context.leave(group);
            }
            ranks.allgather(&[]).unwrap();
        });
    }
}

/// A group that lacks the lowest process of a host can have no address. Its lowest member counts
/// that.
#[test]
fn groups_that_other_processes_lead_are_counted() {
    let hosts = [0, 0, 1, 1, 2, 2, 3, 3];
    with_hosts(&hosts, "lazy", None, 0.0, |rank, ranks, context| {
        let members = [1, 3, 5];
        let me = members.iter().position(|&m| m == rank);
        if let Some(me) = me {
            let group = context.group(1, &members).unwrap();
            bcast(context, &group, 0, me as u32, &[7; 3000]).unwrap();
            context.leave(group);
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        let unled = context.statistics().addresses.unled;
        assert_eq!(unled, u64::from(rank == 1), "{rank}");
    });
}

/// With an address from the pool that comes with the agreement on the group, the very first
/// broadcast goes by it, from whichever root, and no member waits for anything.
#[test]
fn the_first_broadcast_goes_by_a_granted_address() {
    with("pool(4)", 0.0, |rank, ranks, context| {
        // Groups of one set of hosts share an address, so each set has one group.
        for id in 1..3 {
            let members = [0, 2, 3 + id % 2];
            let me = members.iter().position(|&m| m == rank);
            // The pool is filled, and filled again, in the background.
            let begun = Instant::now();
            let granted = loop {
                let mine = me.and_then(|_| context.take_address(&members));
                let bytes = mine.map_or(0, Grant::number);
                let said = ranks.allgather(&bytes.to_le_bytes()).unwrap();
                let said = said
                    .iter()
                    .map(|b| u64::from_le_bytes(b[..].try_into().unwrap()));
                let taken: Vec<u64> = said.filter(|&number| number != 0).collect();
                assert!(taken.len() <= 1, "only the lowest member takes one");
                if let [number] = taken[..] {
                    break number;
                }
                assert!(
                    begun.elapsed() < PATIENCE,
                    "the pool stays empty: {taken:?} {:?}",
                    context.statistics().addresses
                );
                std::thread::sleep(Duration::from_millis(5));
            };
            let grant = Grant::from_number(granted).unwrap();
            if let Some(me) = me {
                let group = context.group(id, &members).unwrap();
                context.grant(&group, grant);
                let before = context.statistics().addresses.sent_own;
                let root = id % 3;
                bcast(context, &group, root, me as u32, b"the first").unwrap();
                let own = context.statistics().addresses.sent_own - before;
                assert_eq!(own, u64::from(root == me as u32), "rank {rank}, group {id}");
                // Hosts outside leave the address from the second use on.
                bcast(context, &group, root, me as u32, b"the second").unwrap();
                assert_eq!(context.callers.shared.lock().untold(), 0);
                context.leave(group);
            }
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

/// What a [`Told`] subnet was asked for, and whether it fails.
#[derive(Default)]
struct Record {
    asked: Vec<&'static str>,
    steps: u32,
    fails: bool,
}

/// A subnet that records what it is asked for.
struct Told(Igmp, Arc<Mutex<Record>>);

impl Told {
    fn record(&self) -> std::sync::MutexGuard<'_, Record> {
        self.1.lock().unwrap()
    }
}

impl Subnet for Told {
    fn create(&mut self, now: Time, address: &GroupAddress) {
        self.record().asked.push("create");
        self.0.create(now, address);
    }

    fn join(&mut self, now: Time, address: &GroupAddress) {
        self.0.join(now, address);
    }

    fn leave(&mut self, now: Time, address: &GroupAddress) {
        self.record().asked.push("leave");
        self.0.leave(now, address);
    }

    fn step(&mut self, _: Time) -> io::Result<()> {
        let mut record = self.record();
        record.steps += 1;
        match record.fails {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }

    fn news(&mut self) -> Option<News> {
        self.0.news()
    }

    fn due(&self) -> Option<Time> {
        self.record().fails.then_some(Time::ZERO)
    }
}

/// Shared addresses, too, are joined when the subnet has granted them, and returned at the end.
#[test]
fn the_subnet_grants_shared_addresses() {
    let hosts: Vec<u32> = (0..HOSTS).collect();
    job_on(&hosts, 0.0, |rank, ranks, options| {
        let options = Options {
            groups: None,
            ..options.clone()
        };
        let context = Here::new(&options, ranks).unwrap();
        let record = record(&context);
        let asked = || record.lock().unwrap().asked.clone();
        ranks.allgather(&[]).unwrap();
        if (1..4).contains(&rank) {
            let group = context.group(7, &[1, 2, 3]).unwrap();
            assert_eq!(asked(), ["create"]);
            bcast(&context, &group, 0, rank - 1, &[7; 3000]).unwrap();
            context.leave(group);
            // The group ends in the background.
            let begun = Instant::now();
            while asked() != ["create", "leave"] {
                assert!(begun.elapsed() < PATIENCE, "the address is not left");
                sleep(Duration::from_millis(5));
            }
        }
        ranks.allgather(&[]).unwrap();
        let before = asked().len();
        drop(context);
        // The address of all hosts.
        assert_eq!(asked()[before..], ["leave"]);
    });
}

/// Waits until something holds for a process's addresses.
fn until(context: &Here, what: &str, holds: impl Fn(&AddressStatistics) -> bool) {
    let begun = Instant::now();
    while !holds(&context.statistics().addresses) {
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: {:?}",
            context.statistics().addresses
        );
        sleep(Duration::from_millis(5));
    }
}

/// Puts a subnet that records under a process whose pool of two addresses is joined.
fn told(context: &Here) -> Arc<Mutex<Record>> {
    until(context, "the pool is not joined", |a| a.joins.times >= 2);
    record(context)
}

/// Puts a subnet that records under a process.
fn record(context: &Here) -> Arc<Mutex<Record>> {
    let record = Arc::default();
    let told = Told(Igmp::new(), Arc::clone(&record));
    context.callers.shared.lock().put_subnet(Box::new(told));
    record
}

/// A machine that tells a host something.
fn tell(context: &Here, message: &Message) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    context.callers.peers.mail().deliver(0, bytes);
}

/// A host that has to join again tells the kernel and the subnet so, each time.
#[test]
fn a_host_joins_again_in_earnest() {
    with("pool(2)", 0.0, |rank, ranks, context| {
        if rank == 1 {
            let record = told(context);
            for times in 1..=2 {
                tell(context, &Message::Rejoin(FIRST));
                let begun = Instant::now();
                while record.lock().unwrap().asked.len() < 2 * times {
                    assert!(begun.elapsed() < PATIENCE, "the subnet hears nothing");
                    sleep(Duration::from_millis(5));
                }
                sleep(Duration::from_millis(20));
                assert_eq!(
                    record.lock().unwrap().asked,
                    ["leave", "create"].repeat(times)
                );
            }
        }
        ranks.allgather(&[]).unwrap();
    });
}

/// The first error ends the use of a subnet: groups go on without it, and nobody spins.
#[test]
fn a_subnet_that_fails_is_given_up() {
    with("pool(2)", 0.0, |rank, ranks, context| {
        let record = told(context);
        ranks.allgather(&[]).unwrap();
        let failing = Record {
            fails: true,
            ..Record::default()
        };
        *record.lock().unwrap() = failing;
        tell(context, &Message::Rejoin(FIRST));
        sleep(Duration::from_millis(300));
        assert_eq!(record.lock().unwrap().steps, 1);
        ranks.allgather(&[]).unwrap();
        if (1..4).contains(&rank) {
            let group = context.group(7, &[1, 2, 3]).unwrap();
            bcast(context, &group, 0, rank - 1, b"the show goes on").unwrap();
            context.flush(&mut || ()).unwrap();
        }
        ranks.allgather(&[]).unwrap();
    });
}

/// A host that cannot join takes no address from the others. Its own groups share one.
#[test]
fn a_host_whose_subnet_fails_takes_no_address_from_others() {
    with("pool(2)", 0.0, |rank, ranks, context| {
        until(context, "the pool is not joined", |a| a.joins.times >= 2);
        ranks.allgather(&[]).unwrap();
        if rank == 3 {
            let failed = Box::new(Failed::default());
            context.callers.shared.lock().put_subnet(failed);
        }
        ranks.allgather(&[]).unwrap();
        let bcast_in = |id: u32, members: &[u32]| {
            let me = members.iter().position(|&m| m == rank)?;
            let group = context.group(id, members).unwrap();
            bcast(context, &group, 0, me as u32, &[7; 3000]).unwrap();
            Some(group)
        };
        // More groups than the pool had addresses before.
        let all = [[0, 1, 2], [0, 1, 4], [0, 2, 4], [1, 2, 4]];
        let groups = (1..).zip(&all).filter_map(|(id, of)| bcast_in(id, of));
        let groups: Vec<_> = groups.collect();
        let mine = groups.len() as u64;
        until(context, "a group has no address", |a| a.own == mine);
        let counted = |a: &AddressStatistics| a.unaddressed.of(Refusal::NoAnswer);
        // The host may have joined some more addresses before its subnet failed.
        let lame = [&[0, 1, 3][..], &[0, 2, 3], &[0, 3, 4], &[0, 1, 2, 3]];
        let mut ended = Vec::new();
        for ((id, of), own) in (9..).zip(lame).zip(mine + 1..) {
            ended.extend(bcast_in(id, of));
            if rank == 0 {
                let known = |a: &AddressStatistics| counted(a) == 1 || a.own == own;
                until(context, "the reason is not counted", known);
            }
            let is_counted = counted(&context.statistics().addresses) == 1;
            let said = ranks.allgather(&[is_counted.into()]).unwrap();
            if said[0] == [1] {
                break;
            }
        }
        if rank == 0 {
            let addresses = context.statistics().addresses;
            assert_eq!(counted(&addresses), 1, "the reason is not counted");
            assert_eq!(addresses.set_aside.of(Refusal::NoAnswer), 1);
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        groups
            .into_iter()
            .chain(ended)
            .for_each(|group| context.leave(group));
        ranks.allgather(&[]).unwrap();
    });
}

/// A process that has said farewell decides about addresses no more, so nobody waits for it.
#[test]
fn nobody_waits_for_who_has_said_farewell() {
    let hosts: Vec<u32> = (0..HOSTS).collect();
    job_on(&hosts, 0.0, |rank, ranks, options| {
        let options = Options {
            groups: Some(Strategy::Basic),
            ..options.clone()
        };
        let context = Here::new(&options, ranks).unwrap();
        if rank == 0 {
            drop(context);
            ranks.allgather(&[]).unwrap();
            ranks.allgather(&[]).unwrap();
            return;
        }
        ranks.allgather(&[]).unwrap();
        if rank < 4 {
            let group = context.group(7, &[1, 2, 3]).unwrap();
            bcast(&context, &group, 0, rank - 1, b"without rank 0").unwrap();
            context.flush(&mut || ()).unwrap();
        }
        ranks.allgather(&[]).unwrap();
    });
}
