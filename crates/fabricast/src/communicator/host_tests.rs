//! Processes as threads, of which some share a host.

use std::sync::atomic::{AtomicU32, Ordering};

use super::hierarchy::schedule::SEGMENT;
use super::limits::COPY_MAX;
use super::tests::{Here, bcast, broadcasts, job_on};
use super::*;
use crate::object::Memory;
use crate::object::testing::{overwrite, pattern};

const S: usize = SEGMENT as usize;
/// Two hosts of two ranks, three hosts of two, and uneven hosts whose leaders are not the first
/// ranks.
const HOSTS: [&[u32]; 4] = [
    &[0, 0, 1, 1],
    &[0, 1, 2, 0, 1, 2],
    &[0, 0, 0, 1, 2, 2],
    &[2, 1, 1, 1],
];

fn leads(hosts: &[u32], rank: usize) -> bool {
    hosts[..rank].iter().all(|&h| h != hosts[rank])
}

#[test]
fn everybody_broadcasts_to_everybody_and_leaders_alone_use_the_network() {
    let lens = [0, 1, 1400, 70_000, 200_000, S - 1, S, S + 1, 3 * S + 5, 2];
    for hosts in HOSTS {
        let statistics = broadcasts(hosts, 0.0, &lens);
        for (rank, s) in statistics.iter().enumerate() {
            let far = s.node.received + s.node.data + s.node.data_unicast;
            assert_eq!(
                far > 0,
                leads(hosts, rank),
                "rank {rank} of {hosts:?}: {far}"
            );
            let local_ranks = hosts.iter().filter(|&&h| h == hosts[rank]).count();
            assert_eq!(
                s.near.received > 0,
                local_ranks > 1,
                "rank {rank} of {hosts:?}"
            );
            // The caller's broadcast counts once, whatever operations it is made of.
            assert_eq!(s.sent, lens.len() as u64);
            assert_eq!(s.received, (hosts.len() - 1) as u64 * s.sent);
        }
    }
}

#[test]
fn losses_on_the_network_are_mended_for_all_of_a_host() {
    let statistics = broadcasts(HOSTS[1], 0.05, &[1, 4, 30_000, 2, 2 * S + 9, 3]);
    assert!(statistics.iter().any(|s| s.node.losses.count() > 0));
}

#[test]
fn one_host_needs_no_network() {
    for s in broadcasts(&[5, 5, 5], 0.0, &[0, 1, 50_000, 5 * S + 1]) {
        assert_eq!(s.node.received + s.node.data + s.node.data_unicast, 0);
        assert_eq!(s.net.datagrams_received, 0);
    }
}

#[test]
fn groups_of_every_shape_come_and_go() {
    let shapes: [&[u32]; 6] = [
        &[3, 1],
        &[0, 1, 2, 3],
        &[2, 0],
        &[1, 2, 3],
        &[5, 4, 0],
        &[4, 5],
    ];
    job_on(HOSTS[2], 0.01, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        for id in 1..200u32 {
            let members = shapes[id as usize % shapes.len()];
            let Some(me) = members.iter().position(|&m| m == rank) else {
                continue;
            };
            let group = context.group(id, members).unwrap();
            let root = id % members.len() as u32;
            bcast(&context, &group, root, me as u32, &pattern(id as usize)).unwrap();
            context.barrier(&group, None, &mut || ()).unwrap();
            context.leave(group);
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn nobody_leaves_a_barrier_before_the_last_of_all_hosts_has_entered() {
    for hosts in HOSTS {
        let entered = AtomicU32::new(0);
        let size = hosts.len() as u32;
        job_on(hosts, 0.05, |rank, ranks, options| {
            let context = Here::new(options, ranks).unwrap();
            let members: Vec<u32> = (0..size).collect();
            let group = context.group(1, &members).unwrap();
            for i in 0..60 {
                let by = (i % 3 == 1).then(|| "dissemination(1)".parse().unwrap());
                if i % 10 == rank {
                    std::thread::sleep(Duration::from_millis(5));
                }
                entered.fetch_add(1, Ordering::SeqCst);
                context.barrier(&group, by, &mut || ()).unwrap();
                assert!(entered.load(Ordering::SeqCst) >= size * (i + 1));
            }
            context.flush(&mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
        });
    }
}

/// Ranks 0 and 2 lead. Rank 2 receives its broadcasts. It calls nothing more until rank 3, on the
/// same host, has received them too.
#[test]
fn a_leader_that_computes_passes_on_what_it_has_entered() {
    for len in [9, 100_000, 3 * S + 1] {
        let message = pattern(len);
        job_on(HOSTS[0], 0.05, |rank, ranks, options| {
            let context = Here::new(options, ranks).unwrap();
            let group = context.group(1, &[0, 1, 2, 3]).unwrap();
            for root in [0, 1, 0] {
                if rank == 3 {
                    ranks.allgather(&[]).unwrap();
                }
                bcast(&context, &group, root, rank, &message).unwrap();
                if rank != 3 {
                    ranks.allgather(&[]).unwrap();
                }
                ranks.allgather(&[]).unwrap();
            }
            context.flush(&mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
        });
    }
}

/// Each rank starts several broadcasts of several roots before it waits for any of them. The order
/// of the broadcasts is that of the calls.
#[test]
fn broadcasts_and_barriers_overlap() {
    let lens = [3, 2 * S, 5, S + 1, 0, 4000];
    job_on(HOSTS[1], 0.02, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[5, 4, 3, 2, 1, 0]).unwrap();
        let me = 5 - rank;
        for _ in 0..3 {
            let mut requests = Vec::new();
            for (root, len) in (0..).zip(lens) {
                let object = match root == me {
                    true => Memory::new(pattern(len)),
                    false => Memory::room(len),
                };
                let request = context.ibcast(&group, root, object, &mut || ()).unwrap();
                requests.push((Some(root), len, request));
                let request = context.ibarrier(&group, None, &mut || ()).unwrap();
                requests.push((None, 0, request));
            }
            for (root, len, request) in requests {
                let object = context.wait(request, &mut || ()).unwrap();
                // A broadcast gives its object back, a barrier has none.
                let expected = root.map(|_| pattern(len));
                assert!(object.map(overwrite) == expected, "{root:?}");
            }
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn a_lost_leader_is_named_and_other_groups_go_on() {
    let errors = job_on(HOSTS[0], 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let all = context.group(1, &[0, 1, 2, 3]).unwrap();
        let near = context.group(2, &[0, 1]).ok();
        bcast(&context, &all, 0, rank, &[7; 9]).unwrap();
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        if rank == 2 {
            context.callers.peers.withdrawal().withdraw();
            drop(context);
            ranks.allgather(&[]).unwrap();
            return String::new();
        }
        let error = bcast(&context, &all, 3, rank, &pattern(3 * S)).unwrap_err();
        if let Some(near) = near {
            bcast(&context, &near, 1, rank, &pattern(S)).unwrap();
            context.flush(&mut || ()).unwrap();
        }
        ranks.allgather(&[]).unwrap();
        error.to_string()
    });
    for error in [&errors[0], &errors[1], &errors[3]] {
        assert!(error.contains("rank 2 is lost"), "{error}");
    }
}

/// Receivers whose length differs from the root's get an error, by whichever network it reaches
/// them.
#[test]
fn another_length_is_an_error() {
    job_on(HOSTS[0], 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1, 2, 3]).unwrap();
        let object = match rank {
            0 => Memory::new(vec![1; 40_000]),
            _ => Memory::room(30_000),
        };
        let request = context.ibcast(&group, 0, object, &mut || ()).unwrap();
        let ended = context.wait(request, &mut || ());
        assert_eq!(ended.is_err(), rank > 0, "rank {rank}");
        ranks.allgather(&[]).unwrap();
    });
}

/// One rank passes another length, whose first segments equal the root's. Each rank in turn is that
/// rank, also a host's leader that has passed those segments on already. The rank gets its error,
/// and the broadcast that was called before completes.
#[test]
fn another_length_at_one_rank_ends_the_group_for_all() {
    let (len, other) = (2 * S + 37_000, 2 * S + 37_004);
    let short = pattern(1000);
    for hosts in &HOSTS[..2] {
        let size = hosts.len() as u32;
        let members: Vec<u32> = (0..size).collect();
        job_on(hosts, 0.0, |rank, ranks, options| {
            let context = Here::new(options, ranks).unwrap();
            let pairs =
                (0..size).flat_map(|root| (1..size).map(move |i| (root, (root + i) % size)));
            for (id, (root, odd)) in (1..).zip(pairs) {
                let group = context.group(id, &members).unwrap();
                ranks.allgather(&[]).unwrap();
                bcast(&context, &group, odd, rank, &short).unwrap();
                let mine = if rank == odd { other } else { len };
                let got = bcast(&context, &group, root, rank, &pattern(mine));
                assert!(rank != odd || got.is_err(), "root {root}, odd {odd}");
                let next = context.barrier(&group, None, &mut || ());
                assert!(got.is_err() || next.is_err(), "root {root}, odd {odd}");
                context.leave(group);
            }
            context.flush(&mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
        });
    }
}

/// One rank of four, in turn a leader and one that is led, makes each call late, when the others
/// have long known that a broadcast does not match. What was called before that broadcast still
/// completes, and a late rank whose length differs gets the error that says so.
#[test]
fn who_is_late_gets_all_that_was_called_before_a_mismatch() {
    let (short, long) = (pattern(1000), pattern(3 * S));
    job_on(HOSTS[0], 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let cases = [1, 2, 3].into_iter().flat_map(|late| {
            let odd_ones = [(0, S, 3 * S), (1, 9, 5), (3, 3 * S, S)];
            odd_ones.map(|odd| (late, odd))
        });
        for (id, (late, (odd, len, other))) in (1..).zip(cases) {
            let case = format!("late {late}, odd {odd}, {len} and {other} bytes, rank {rank}");
            let waits = || {
                if rank == late {
                    std::thread::sleep(Duration::from_millis(150));
                }
            };
            ranks.allgather(&[]).unwrap();
            let group = context.group(id, &[0, 1, 2, 3]).unwrap();
            waits();
            bcast(&context, &group, 0, rank, &short).expect(&case);
            waits();
            bcast(&context, &group, 0, rank, &short).expect(&case);
            let object = match rank {
                0 => Memory::new(long.clone()),
                _ => Memory::room(long.len()),
            };
            // Where rank 3 is late, only copies of what was called before are under way.
            let start = || context.ibcast(&group, 0, object, &mut || ()).unwrap();
            let before = (late != 3).then(start);
            waits();
            let mine = pattern(if rank == odd { other } else { len });
            let got = bcast(&context, &group, 0, rank, &mine);
            if let Some(before) = before {
                let before = context.wait(before, &mut || ()).expect(&case);
                assert!(overwrite(before.unwrap()) == long, "{case}");
            }
            // If the root is the odd one, all others differ.
            if (rank == odd) != (odd == 0) {
                let error = got.expect_err(&case);
                assert!(matches!(error, Error::LengthMismatch), "{case}: {error}");
            } else {
                let next = context.barrier(&group, None, &mut || ());
                assert!(got.is_err() || next.is_err(), "{case}");
            }
            context.leave(group);
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

/// The context's scheme says what is copied, also where all members share a host: the root of a
/// broadcast that is copied does not wait for a member that is late, any other root does.
#[test]
fn the_scheme_says_what_is_copied_on_a_host() {
    const LEN: usize = COPY_MAX as usize + S;
    for (scheme, copied) in [
        ("auto+copied(2000000)", true),
        ("auto", false),
        ("basic", false),
    ] {
        for hosts in [&[0, 0, 0][..], &[0, 1, 1]] {
            let entered = AtomicU32::new(0);
            job_on(hosts, 0.0, |rank, ranks, options| {
                let options = Options {
                    scheme: scheme.into(),
                    ..options.clone()
                };
                let context = Here::new(&options, ranks).unwrap();
                let group = context.group(1, &[0, 1, 2]).unwrap();
                ranks.allgather(&[]).unwrap();
                if rank == 2 {
                    std::thread::sleep(Duration::from_millis(200));
                    entered.store(1, Ordering::SeqCst);
                }
                bcast(&context, &group, 0, rank, &pattern(LEN)).unwrap();
                let waited = entered.load(Ordering::SeqCst) == 1;
                // Where the root is alone on its host, the late member's leader has the object.
                let waits = !copied && hosts[0] == hosts[2];
                assert!(rank != 0 || waited == waits, "{scheme}, {hosts:?}");
                context.flush(&mut || ()).unwrap();
                ranks.allgather(&[]).unwrap();
            });
        }
    }
}
