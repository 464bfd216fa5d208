//! Broadcasts by each algorithm over UDP on the loopback, with datagrams lost on purpose.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use super::tests::{Here, Ranks, bcast, job_on};
use super::*;
use crate::object::Memory;
use crate::object::testing::{overwrite, pattern};

/// Longest time for which a test waits for what must come soon.
const SOON: Duration = Duration::from_secs(8);
const SIZE: u32 = 5;
const HOSTS: [u32; SIZE as usize] = [0, 1, 2, 2, 3];

/// Runs `each` as five ranks on four hosts, with 2 % loss.
fn by<R: Send>(
    algorithm: BroadcastAlgorithm,
    each: impl Fn(u32, &mut Ranks, Here) -> R + Sync,
) -> Vec<R> {
    job_on(&HOSTS, 0.02, |rank, ranks, options| {
        let options = Options {
            broadcast: algorithm,
            ..options.clone()
        };
        let context = Here::new(&options, ranks).unwrap();
        each(rank, ranks, context)
    })
}

fn end(context: &Here, ranks: &mut Ranks) -> Statistics {
    context.flush(&mut || ()).unwrap();
    ranks.allgather(&[]).unwrap();
    assert_eq!(context.lost(), None);
    context.statistics()
}

/// Broadcasts of these lengths from several roots, blocking, and then all at once. Returns all
/// ranks' statistics.
fn broadcasts(algorithm: BroadcastAlgorithm, sets: &[Vec<u32>]) -> Vec<Statistics> {
    let lens = [0, 1, 100_000, 3_000_000, 7];
    let messages = lens.map(pattern);
    by(algorithm, |rank, ranks, context| {
        let members: Vec<u32> = (0..SIZE).collect();
        let group = context.group(1, &members).unwrap();
        context.cover(&group, sets).unwrap();
        for root in [0, 3, 4] {
            for message in &messages {
                bcast(&context, &group, root, rank, message).unwrap();
            }
        }
        let mut requests = Vec::new();
        for root in 0..SIZE {
            for message in &messages {
                let object = match root == rank {
                    true => Memory::new(message.clone()),
                    false => Memory::room(message.len()),
                };
                let request = context.ibcast(&group, root, object, &mut || ()).unwrap();
                requests.push((message, request));
            }
            context.barrier(&group, None, &mut || ()).unwrap();
        }
        for (message, request) in requests {
            let object = context.wait(request, &mut || ()).unwrap();
            assert!(object.map(overwrite).as_ref() == Some(message));
        }
        context.leave(group);
        end(&context, ranks)
    })
}

#[test]
fn messages_between_two_reach_everybody_and_multicast_nothing() {
    let algorithms = [
        BroadcastAlgorithm::Tree,
        BroadcastAlgorithm::Chain,
        BroadcastAlgorithm::ScatterAllgather,
        BroadcastAlgorithm::Cover,
    ];
    for algorithm in algorithms {
        let statistics = broadcasts(algorithm, &[]);
        for (rank, s) in statistics.iter().enumerate() {
            let node = &s.node;
            assert_eq!((node.data, node.repairs_multicast), (0, 0), "{algorithm}");
            assert!(node.data_unicast > 0, "{algorithm}, rank {rank}");
            assert_eq!(s.near.data, 0, "{algorithm}");
            assert!(s.faults.send_lost + s.faults.receive_lost > 0);
        }
    }
}

/// How many tenths of a message each rank has sent when rank 0 has broadcast it once.
#[test]
fn each_algorithm_divides_the_work_among_the_ranks_in_its_own_way() {
    let len = 3_000_000;
    let packets = |algorithm| {
        let statistics = by(algorithm, |rank, ranks, context| {
            let group = context.group(1, &[0, 1, 2, 3, 4]).unwrap();
            bcast(&context, &group, 0, rank, &pattern(len)).unwrap();
            end(&context, ranks)
        });
        let all = statistics.iter().map(|s| s.node.data_unicast);
        all.collect::<Vec<u64>>()
    };
    let chain = packets(BroadcastAlgorithm::Chain);
    let tenths = |packets: Vec<u64>| {
        let tenths = packets.iter().map(|&p| (10 * p + chain[0] / 2) / chain[0]);
        tenths.collect::<Vec<u64>>()
    };
    let tree = tenths(packets(BroadcastAlgorithm::Tree));
    let ring = tenths(packets(BroadcastAlgorithm::ScatterAllgather));
    assert_eq!(tree, [30, 0, 10, 0, 0]);
    assert_eq!(ring, [16, 8, 10, 8, 8]);
    assert_eq!(tenths(chain.clone()), [10, 10, 10, 10, 0]);
}

#[test]
fn multicast_is_the_default() {
    assert_eq!(Options::default().broadcast, BroadcastAlgorithm::Multicast);
    let statistics = broadcasts(BroadcastAlgorithm::Multicast, &[]);
    // Ranks 2 and 3 share a host.
    assert!(statistics[2].near.data_unicast > 0 && statistics[0].node.data > 0);
}

/// Two sets that share a member cover the group of five, but for the roots' messages.
#[test]
fn a_cover_goes_by_the_sets_that_all_members_name() {
    let statistics = broadcasts(BroadcastAlgorithm::Cover, &[vec![2, 1, 0], vec![2, 3, 4]]);
    // Rank 2 is in both sets, and passes on by multicast what it receives by the first.
    assert!(statistics[2].node.data > 0);
    // From root 0, one multicast reaches the others of its set.
    assert!(statistics[0].node.data > 0);
}

#[test]
fn sets_have_members_only_and_are_named_once_before_all_else() {
    by(BroadcastAlgorithm::Cover, |rank, ranks, context| {
        let group = (rank < 4).then(|| context.group(1, &[0, 1, 2, 3]).unwrap());
        if let Some(group) = &group {
            let refused = |sets: &[Vec<u32>], why: CoverError| {
                let error = context.cover(group, sets).unwrap_err();
                assert!(matches!(error, Error::Cover(e) if e == why), "{error}");
            };
            refused(
                &[vec![0, 1], vec![0, 4]],
                CoverError::NoMember { set: 1, rank: 4 },
            );
            refused(
                &[vec![0], vec![1, 2, 1]],
                CoverError::Twice { set: 1, rank: 1 },
            );
            refused(&vec![vec![]; 65], CoverError::TooMany(65));
            let sets = [vec![0, 1, 2], vec![1, 2, 3]];
            context.cover(group, &sets).unwrap();
            refused(&sets, CoverError::Named);
            bcast(&context, group, 0, rank, &pattern(1000)).unwrap();
            refused(&sets, CoverError::Named);
            let next = context.group(2, &[0, 1, 2, 3]).unwrap();
            bcast(&context, &next, 0, rank, &pattern(1000)).unwrap();
            let error = context.cover(&next, &sets).unwrap_err();
            assert!(
                matches!(error, Error::Cover(CoverError::Started)),
                "{error}"
            );
        }
        let error = context.group(1 << 28, &[0, 1, 2, 3, 4]).unwrap_err();
        assert!(matches!(error, Error::GroupNumber(_)), "{error}");
        end(&context, ranks);
    });
}

/// The core refuses the second of two sets, so the first one goes, too, and both can be named
/// again.
#[test]
fn a_cover_that_is_refused_in_the_middle_leaves_nothing() {
    by(BroadcastAlgorithm::Cover, |rank, ranks, context| {
        let group = context.group(1, &[0, 1, 2, 3, 4]).unwrap();
        let sets = [vec![0, 1, 2, 3, 4], vec![2, 3, 4]];
        if rank == 2 {
            let engine = || context.callers.shared.lock();
            let [first, second] = [0, 1].map(|set| engine().set(group.id, set));
            engine().occupies(second);
            let error = context.cover(&group, &sets).unwrap_err();
            assert!(
                matches!(error, Error::Refused(Refused::GroupExists)),
                "{error}"
            );
            assert!(!engine().in_core(first) && !engine().in_core(second));
            assert!(engine().seen(group.id).unwrap().1.is_empty());
        }
        context.cover(&group, &sets).unwrap();
        (0..5).for_each(|root| bcast(&context, &group, root, rank, &pattern(5000)).unwrap());
        context.leave(group);
        end(&context, ranks);
    });
}

#[test]
fn all_use_one_algorithm() {
    let errors = job_on(&[0, 1, 2], 0.0, |rank, ranks, options| {
        let mut options = options.clone();
        if rank == 1 {
            options.broadcast = BroadcastAlgorithm::Chain;
        }
        Here::new(&options, ranks).err().unwrap().to_string()
    });
    for error in errors {
        assert!(error.contains("different algorithms"), "{error}");
    }
}

/// A receiver whose length differs gets the error, and what was called before completes.
#[test]
fn another_length_ends_the_group_by_messages_too() {
    let algorithms = [
        BroadcastAlgorithm::Tree,
        BroadcastAlgorithm::Chain,
        BroadcastAlgorithm::ScatterAllgather,
    ];
    for algorithm in algorithms {
        let failed = AtomicU32::new(0);
        by(algorithm, |rank, ranks, context| {
            let group = context.group(1, &[0, 1, 2, 3, 4]).unwrap();
            bcast(&context, &group, 0, rank, &pattern(200_000)).unwrap();
            let len = if rank == 2 { 600_008 } else { 600_000 };
            let got = bcast(&context, &group, 0, rank, &pattern(len));
            failed.fetch_add(u32::from(got.is_err()), Ordering::SeqCst);
            assert!(rank != 2 || got.is_err(), "{algorithm}");
            ranks.allgather(&[]).unwrap();
        });
        assert!(failed.load(Ordering::SeqCst) > 0);
    }
}

#[test]
fn groups_with_channels_come_and_go() {
    by(BroadcastAlgorithm::Tree, |rank, ranks, context| {
        for id in 1..100 {
            let members = if id % 2 == 0 {
                vec![0, 1, 2, 3, 4]
            } else {
                vec![4, 2, 0]
            };
            let Some(me) = members.iter().position(|&m| m == rank) else {
                continue;
            };
            let group = context.group(id, &members).unwrap();
            let root = id % members.len() as u32;
            bcast(&context, &group, root, me as u32, &pattern(id as usize)).unwrap();
            context.leave(group);
        }
        end(&context, ranks);
    });
}

/// Each process is a host of its own, so all have the group and its channels on the network, and
/// remove them with the group there.
#[test]
fn all_of_one_host_lead_and_their_channels_go_with_the_group() {
    let messages = BroadcastAlgorithm::ALL.into_iter();
    for algorithm in messages.filter(|&a| a != BroadcastAlgorithm::Multicast) {
        job_on(&[0, 0, 0], 0.02, |rank, ranks, options| {
            let options = Options {
                broadcast: algorithm,
                ..options.clone()
            };
            let context = Here::new(&options, ranks).unwrap();
            let group = context.group(1, &[0, 1, 2]).unwrap();
            context.cover(&group, &[vec![0, 1, 2]]).unwrap();
            (0..3).for_each(|root| bcast(&context, &group, root, rank, &pattern(500)).unwrap());
            let engine = || context.callers.shared.lock();
            let (leads, channels) = engine().seen(group.id).unwrap();
            let own = group.id;
            let exist = || engine().in_core(own) || channels.iter().any(|&c| engine().in_core(c));
            assert!(leads && !engine().has_local_ranks(), "{algorithm}");
            assert!(!channels.is_empty() && channels.iter().all(|&c| engine().in_core(c)));
            context.leave(group);
            context.flush(&mut || ()).unwrap();
            let until = Instant::now() + SOON;
            while exist() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!exist(), "{algorithm}, rank {rank}");
            ranks.allgather(&[]).unwrap();
        });
    }
}

#[test]
fn a_group_that_was_left_waits_for_its_channels() {
    by(BroadcastAlgorithm::Tree, |rank, ranks, context| {
        let group = context.group(1, &[0, 1, 2, 3, 4]).unwrap();
        bcast(&context, &group, 0, rank, &pattern(9)).unwrap();
        let engine = || context.callers.shared.lock();
        let now = context.callers.shared.clock.now();
        let long = Duration::from_secs(2);
        let channel = (rank == 2).then(|| engine().waits_on_channel(now, group.id, long));
        context.leave(group);
        context.flush(&mut || ()).unwrap();
        let Some(channel) = channel else {
            return end(&context, ranks);
        };
        std::thread::sleep(Duration::from_millis(300));
        assert!(engine().in_core(channel));
        let until = Instant::now() + SOON;
        while engine().in_core(channel) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!engine().in_core(channel));
        end(&context, ranks)
    });
}

/// Rank 2 passes parts on, and dies when it has some of them.
#[test]
fn a_lost_rank_that_passes_parts_on_is_named_to_all_others() {
    let messages = BroadcastAlgorithm::ALL.into_iter();
    for algorithm in messages.filter(|&a| a != BroadcastAlgorithm::Multicast) {
        for len in [1000, 3_000_000] {
            a_rank_is_lost(algorithm, len);
        }
    }
}

fn a_rank_is_lost(algorithm: BroadcastAlgorithm, len: usize) {
    by(algorithm, |rank, ranks, context| {
        let group = context.group(1, &[0, 1, 2, 3, 4]).unwrap();
        let sets = [vec![0, 1, 2], vec![2, 3, 4]];
        context.cover(&group, &sets).unwrap();
        let left = (rank != 2).then(|| context.group(2, &[0, 1, 3, 4]).unwrap());
        (0..5).for_each(|root| bcast(&context, &group, root, rank, &pattern(9)).unwrap());
        let received = || context.statistics().node.received;
        // The others begin after this.
        let before = received();
        ranks.allgather(&[]).unwrap();
        let start = |root| {
            let object = match root == rank {
                true => Memory::new(pattern(len)),
                false => Memory::room(len),
            };
            context.ibcast(&group, root, object, &mut || ())
        };
        if rank == 2 {
            let mut requests = [0, 4, 0].map(|root| start(root).unwrap());
            while received() == before {
                _ = context.test(&mut requests[2]).unwrap();
            }
            context.callers.peers.withdrawal().withdraw();
            drop(context);
            ranks.allgather(&[]).unwrap();
            return;
        }
        let left = left.unwrap();
        let begun = Instant::now();
        let lost =
            |error: Error| assert!(matches!(error, Error::RankLost { rank: 2, .. }), "{error}");
        // A part of them completes, if it does not come by way of rank 2.
        let requests = [0, 4, 0, 2, 3].map(start);
        let barrier = context.barrier(&group, None, &mut || ());
        lost(barrier.unwrap_err());
        for request in requests {
            let ended = request.and_then(|request| context.wait(request, &mut || ()));
            ended.err().into_iter().for_each(lost);
        }
        lost(bcast(&context, &group, 0, rank, &pattern(len)).unwrap_err());
        assert!(begun.elapsed() < SOON, "{algorithm}: {:?}", begun.elapsed());
        let me = [0, 1, 3, 4].iter().position(|&m| m == rank).unwrap() as u32;
        (0..4).for_each(|root| bcast(&context, &left, root, me, &pattern(len)).unwrap());
        context.leave(group);
        context.leave(left);
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn names_are_those_of_the_algorithms() {
    for algorithm in BroadcastAlgorithm::ALL {
        assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
    }
    let error = "star".parse::<BroadcastAlgorithm>().unwrap_err();
    assert!(error.to_string().contains("'star'"));
}

/// Receivers come only when the root has started all its broadcasts: more than the drivers take at
/// once, and more bytes than it copies.
#[test]
fn to_start_thousands_of_broadcasts_waits_for_nobody() {
    const COUNT: usize = 5000;
    let algorithms = [BroadcastAlgorithm::Multicast, BroadcastAlgorithm::Tree];
    for (hosts, algorithm) in [[0, 1, 2], [0, 0, 1], [0, 1, 1]]
        .iter()
        .flat_map(|hosts| algorithms.map(|algorithm| (hosts, algorithm)))
    {
        let (begun, blocked) = (AtomicBool::new(false), AtomicBool::new(false));
        job_on(hosts, 0.01, |rank, ranks, options| {
            let options = Options {
                broadcast: algorithm,
                ..options.clone()
            };
            let context = Here::new(&options, ranks).unwrap();
            let group = context.group(1, &[0, 1, 2]).unwrap();
            ranks.allgather(&[]).unwrap();
            while rank != 0 && !begun.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let message = |i: usize| {
                pattern(if i.is_multiple_of(100) {
                    20_000
                } else {
                    i % 2000
                })
            };
            let mut blocks = || {
                blocked.store(true, Ordering::SeqCst);
                begun.store(true, Ordering::SeqCst);
            };
            let mut requests = Vec::new();
            for i in 0..COUNT {
                let object = match rank {
                    0 => Memory::new(message(i)),
                    _ => Memory::room(message(i).len()),
                };
                requests.push(context.ibcast(&group, 0, object, &mut blocks).unwrap());
                if i % 20 == 0 {
                    requests.push(context.ibarrier(&group, None, &mut blocks).unwrap());
                }
            }
            begun.store(true, Ordering::SeqCst);
            let mut requests = requests.into_iter();
            for i in 0..COUNT {
                let request = requests.next().unwrap();
                let object = context.wait(request, &mut || ()).unwrap();
                assert!(object.map(overwrite) == Some(message(i)), "{i}");
                if i % 20 == 0 {
                    let barrier = requests.next().unwrap();
                    assert!(context.wait(barrier, &mut || ()).unwrap().is_none());
                }
            }
            end(&context, ranks);
        });
        assert!(!blocked.load(Ordering::SeqCst), "{hosts:?}, {algorithm}");
    }
}
