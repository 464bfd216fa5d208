//! Processes as threads, on the loopback, with datagrams lost on purpose.

use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use super::progress::waiter::Waiter;
use super::*;
use crate::config::NetOptions;
use crate::interface::Interface;
use crate::object::Memory;
use crate::object::testing::{overwrite, pattern};

/// Threads that exchange what each gives.
pub(super) struct Ranks {
    rank: u32,
    all: Arc<(Mutex<Vec<Vec<u8>>>, Barrier)>,
}

impl Bootstrap for Ranks {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn size(&self) -> u32 {
        self.all.0.lock().unwrap().len() as u32
    }
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.all.0.lock().unwrap()[self.rank as usize] = mine.to_vec();
        self.all.1.wait();
        let all = self.all.0.lock().unwrap().clone();
        self.all.1.wait();
        Ok(all)
    }
}

fn options(loss: f64) -> Options {
    Options {
        net: NetOptions {
            interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
            datagram: Some(1472),
            inject_loss: loss,
            ..NetOptions::default()
        },
        ..Options::default()
    }
}

/// Runs `each` as `size` ranks, each on a host of its own, and returns their results.
fn job<R: Send>(
    size: u32,
    loss: f64,
    each: impl Fn(u32, &mut Ranks, &Options) -> R + Sync,
) -> Vec<R> {
    let hosts: Vec<u32> = (0..size).collect();
    job_on(&hosts, loss, each)
}

/// Like [`job`], with rank i on host `hosts[i]`.
pub(super) fn job_on<R: Send>(
    hosts: &[u32],
    loss: f64,
    each: impl Fn(u32, &mut Ranks, &Options) -> R + Sync,
) -> Vec<R> {
    let size = hosts.len() as u32;
    let all = Arc::new((
        Mutex::new(vec![Vec::new(); size as usize]),
        Barrier::new(size as usize),
    ));
    thread::scope(|scope| {
        let ranks = (0..size).map(|rank| {
            let (each, all) = (&each, all.clone());
            let host = Some(hosts[rank as usize].to_string());
            let options = Options {
                host,
                ..options(loss)
            };
            scope.spawn(move || or_all_end(|| each(rank, &mut Ranks { rank, all }, &options)))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// Runs a rank. If it panics, ends all tests: the other ranks would wait for it for ever.
fn or_all_end<R>(rank: impl FnOnce() -> R) -> R {
    panic::catch_unwind(AssertUnwindSafe(rank)).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        let text = text.or_else(|| cause.downcast_ref::<&str>().map(|s| s.to_string()));
        // Not by a macro, whose text a test keeps until it ends.
        let _ = writeln!(io::stderr(), "a rank panicked: {text:?}");
        process::exit(101)
    })
}

pub(super) type Here = Context<Memory>;

pub(super) fn bcast(
    context: &Here,
    group: &Group,
    root: u32,
    me: u32,
    bytes: &[u8],
) -> Result<(), Error> {
    let object = match me == root {
        true => Memory::new(bytes.to_vec()),
        false => Memory::room(bytes.len()),
    };
    let object = context.bcast(group, root, object, &mut || ())?;
    assert!(
        overwrite(object) == bytes,
        "rank {me} of root {root}, {} bytes",
        bytes.len()
    );
    Ok(())
}

/// Each rank broadcasts messages of these lengths to all others. Returns all ranks' statistics.
pub(super) fn broadcasts(hosts: &[u32], loss: f64, lens: &[usize]) -> Vec<Statistics> {
    let messages: Vec<Vec<u8>> = lens.iter().map(|&len| pattern(len)).collect();
    job_on(hosts, loss, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let size = hosts.len() as u32;
        let members: Vec<u32> = (0..size).collect();
        let group = context.group(1, &members).unwrap();
        for root in 0..size {
            for message in &messages {
                bcast(&context, &group, root, rank, message).unwrap();
            }
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        assert_eq!(context.lost(), None);
        context.statistics()
    })
}

#[test]
fn what_waits_for_more_leaves_before_its_caller_sleeps() {
    const COUNT: u8 = 30;
    let seen = job(2, 0.0, |rank, ranks, options| {
        let mut seen = None;
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1]).unwrap();
        bcast(&context, &group, 0, rank, &[0]).unwrap();
        context.flush(&mut || ()).unwrap();
        if rank == 0 {
            let mut engine = context.callers.shared.lock();
            let now = context.callers.shared.clock.now();
            // After this step the engine knows that nothing waits to be received.
            engine.step(now).unwrap();
            for i in 0..COUNT {
                let object = Memory::new(vec![i]);
                _ = engine
                    .bcast(now, (group.id, NodeId(0)), object, true)
                    .unwrap();
                engine.started(now).unwrap();
                engine.left(now);
            }
            let waits = engine.gathering().is_some();
            let before = engine.statistics().net.datagrams_sent;
            engine.settle(now).unwrap();
            let sends = engine.statistics().net.datagrams_sent > before;
            seen = Some((waits, sends, engine.gathering().is_some()));
        } else {
            (0..COUNT).for_each(|i| bcast(&context, &group, 0, rank, &[i]).unwrap());
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        seen
    });
    assert_eq!(seen[0], Some((true, true, false)));
}

#[test]
fn a_stream_begins_before_its_receivers_are_heard() {
    let sent = job(3, 0.0, |rank, ranks, options| {
        let mut sent = None;
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1, 2]).unwrap();
        ranks.allgather(&[]).unwrap();
        if rank == 0 {
            let mut engine = context.callers.shared.lock();
            let now = context.callers.shared.clock.now();
            let before = engine.statistics().node;
            let object = Memory::new(vec![7]);
            _ = engine
                .bcast(now, (group.id, NodeId(0)), object, true)
                .unwrap();
            engine.settle(now).unwrap();
            let after = engine.statistics().node;
            let heard = after.feedback_received - before.feedback_received;
            sent = Some((after.data - before.data, heard));
        } else {
            bcast(&context, &group, 0, rank, &[7]).unwrap();
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        sent
    });
    assert_eq!(sent[0], Some((1, 0)), "packets, reports");
}

#[test]
fn everybody_broadcasts_to_everybody() {
    broadcasts(
        &[0, 1, 2, 3],
        0.0,
        &[0, 1, 1399, 1400, 1401, 65_536, 1 << 20, 5],
    );
}

#[test]
fn losses_are_mended_while_the_root_is_away() {
    broadcasts(&[0, 1, 2], 0.05, &[1, 4, 30_000, 2, 500_000]);
}

#[test]
fn a_context_is_made_when_all_have_answered_a_multicast() {
    for size in [2, 3, 5] {
        let statistics = job(size, 0.0, |_, ranks, options| {
            let context = Here::new(options, ranks).unwrap();
            assert!(!context.callers.shared.lock().is_proving());
            let statistics = context.statistics();
            ranks.allgather(&[]).unwrap();
            statistics
        });
        for (rank, s) in statistics.iter().enumerate() {
            // Ranks 0 and 1 probe all others; two hosts have no multicast.
            let probes = if rank < 2 { size as u64 - 1 } else { 2 };
            let least = if size == 2 { 0 } else { probes };
            assert!(s.net.datagrams_received >= least, "{rank} of {size}: {s:?}");
            assert_eq!((s.groups, s.unreached), (0, 0));
        }
    }
}

/// The root's calls return at once, and none of them waits for anything.
#[test]
fn a_root_that_only_ever_starts_broadcasts_hears_what_others_lack() {
    let heard = job(2, 0.05, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1]).unwrap();
        let before = context.statistics().node.feedback_received;
        for i in 0..300 {
            bcast(&context, &group, 0, rank, &pattern(i)).unwrap();
            let until = std::time::Instant::now() + Duration::from_micros(200);
            while rank == 0 && std::time::Instant::now() < until {}
        }
        let heard = context.statistics().node.feedback_received - before;
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        heard
    });
    assert!(heard[0] > 2, "the root has heard {} reports", heard[0]);
}

#[test]
fn groups_come_and_go() {
    job(4, 0.01, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        for id in 1..200 {
            let members = match id % 3 {
                0 => vec![3, 1],
                1 => vec![0, 1, 2, 3],
                _ => vec![2, 0],
            };
            let Some(me) = members.iter().position(|&m| m == rank) else {
                continue;
            };
            let group = context.group(id, &members).unwrap();
            bcast(&context, &group, id % 2, me as u32, &pattern(id as usize)).unwrap();
            context.leave(group);
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn a_group_in_which_nothing_was_started_ends_at_once() {
    job(3, 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        // The other members do not have it, and could not answer.
        if rank == 0 {
            let group = context.group(1, &[0, 1, 2]).unwrap();
            context.leave(group);
            assert!(context.callers.shared.lock().is_flushed());
        }
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn nobody_leaves_a_barrier_before_the_last_has_entered() {
    use std::sync::atomic::AtomicU32;
    let entered = AtomicU32::new(0);
    let algorithms = ["release(8)", "dissemination(2)", "mcs"];
    job(4, 0.05, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1, 2, 3]).unwrap();
        for i in 0..60u32 {
            let by = algorithms.get(i as usize % 4).map(|a| a.parse().unwrap());
            if i % 10 == rank {
                thread::sleep(Duration::from_millis(5));
            }
            entered.fetch_add(1, Ordering::SeqCst);
            context.barrier(&group, by, &mut || ()).unwrap();
            assert!(entered.load(Ordering::SeqCst) >= 4 * (i + 1));
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn whoever_ends_anothers_operation_wakes_it() {
    let heard = job(2, 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let groups = [1, 2].map(|id| context.group(id, &[0, 1]).unwrap());
        let enter = |group| context.ibarrier(group, None, &mut || ()).unwrap();
        let mut heard = Vec::new();
        if rank == 0 {
            // Two callers sleep, each until its own barrier ends; a third comes and goes.
            let mut entered = groups.each_ref().map(enter);
            let asleep = entered.each_ref().map(|request| {
                let mut engine = context.callers.shared.lock();
                let sleeper = Waiter::new(&mut engine).unwrap();
                let State::UnderWay(op) = request.0 else {
                    panic!("a barrier of two is not over at once");
                };
                engine.falls_asleep(sleeper.waker(), Some(op));
                sleeper
            });
            ranks.allgather(&[]).unwrap();
            let mut listen =
                || heard.push(asleep.each_ref().map(|s| s.rest(Duration::ZERO).unwrap()));
            while context.test(&mut entered[0]).unwrap().is_none() {}
            listen();
            ranks.allgather(&[]).unwrap();
            let [_, second] = entered;
            context.wait(second, &mut || ()).unwrap();
            listen();
        } else {
            // A barrier that ends before its caller sleeps wakes no thread.
            ranks.allgather(&[]).unwrap();
            context.wait(enter(&groups[0]), &mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
            context.wait(enter(&groups[1]), &mut || ()).unwrap();
        }
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        heard
    });
    assert_eq!(heard[0], [[true, false], [false, true]]);
}

#[test]
fn what_a_caller_leaves_of_the_runtimes_work_the_next_one_takes_over() {
    let driven = AtomicBool::new(false);
    job(2, 0.0, |rank, ranks, options| {
        // Something has arrived for the runtime, which never reads it.
        let (runtime, mut above) = UnixStream::pair().unwrap();
        above.write_all(&[1]).unwrap();
        let options = Options {
            runtime: (rank == 0).then(|| Arc::new(runtime.into())),
            ..options.clone()
        };
        let context = Here::new(&options, ranks).unwrap();
        let group = context.group(1, &[0, 1]).unwrap();
        for round in 0..2 {
            let has_driven = || driven.load(Ordering::SeqCst);
            while rank == 1 && !has_driven() {
                thread::yield_now();
            }
            let mut meanwhile = || {
                assert!(rank == 1 || !context.callers.unserved.load(Ordering::SeqCst));
                driven.fetch_or(rank == 0, Ordering::SeqCst);
            };
            context.barrier(&group, None, &mut meanwhile).unwrap();
            assert_eq!(context.callers.unserved.load(Ordering::SeqCst), rank == 0);
            ranks.all.1.wait();
            if rank == 0 && round == 0 {
                driven.store(false, Ordering::SeqCst);
            }
            ranks.all.1.wait();
        }
        context.flush(&mut || ()).unwrap();
        ranks.all.1.wait();
    });
}

#[test]
fn who_is_lost_is_named() {
    let errors = job(3, 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1, 2]).unwrap();
        // A group with a process that is already lost cannot be made, so all make theirs first.
        ranks.allgather(&[]).unwrap();
        if rank == 2 {
            context.callers.peers.withdrawal().withdraw();
            drop(context);
            ranks.allgather(&[]).unwrap();
            return String::new();
        }
        let error = bcast(&context, &group, 2, rank, &[0; 9]).unwrap_err();
        // A later group with the lost rank fails at once, and groups without it continue.
        let again = context.group(2, &[2, 1, 0]).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        let left = context.group(3, &[0, 1]).unwrap();
        bcast(&context, &left, 1, rank, &[1; 9]).unwrap();
        context.flush(&mut || ()).unwrap();
        ranks.allgather(&[]).unwrap();
        error.to_string()
    });
    for error in &errors[..2] {
        assert!(error.contains("rank 2 is lost"), "{error}");
    }
}

/// A caller that gets the error has its bytes back: nothing writes to them any more.
#[test]
fn a_network_that_has_failed_once_is_used_no_more() {
    job(2, 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1]).unwrap();
        let enter = || context.barrier(&group, None, &mut || ());
        enter().unwrap();
        ranks.allgather(&[]).unwrap();
        if rank == 0 {
            context.callers.shared.lock().fail_send();
            let error = enter().unwrap_err().to_string();
            assert!(error.contains("using the network"), "{error}");
        }
        ranks.allgather(&[]).unwrap();
        if rank == 0 {
            let told = enter().unwrap_err().to_string();
            assert!(
                told.contains("used no more") && told.contains("using the network"),
                "{told}"
            );
        }
        ranks.allgather(&[]).unwrap();
    });
}

/// A panic in the engine ends the use of the network at once, not when somebody calls again.
#[test]
fn a_panic_under_the_lock_breaks_the_network_at_once() {
    job(2, 0.0, |rank, ranks, options| {
        let context = Here::new(options, ranks).unwrap();
        let group = context.group(1, &[0, 1]).unwrap();
        ranks.allgather(&[]).unwrap();
        if rank == 0 {
            let shared = &context.callers.shared;
            let panics = || {
                let _engine = shared.lock();
                panic!("on purpose");
            };
            assert!(panic::catch_unwind(AssertUnwindSafe(panics)).is_err());
            let engine = shared.engine.lock().err().unwrap().into_inner();
            assert!(engine.is_whole().is_err());
            drop(engine);
            let start = |_| context.ibcast(&group, 0, Memory::new(pattern(9)), &mut || ());
            for error in (0..3).map(|i| start(i).map(|_| ()).unwrap_err()) {
                assert!(error.to_string().contains("panicked"), "{error}");
            }
            assert_eq!(shared.lock().statistics().sent, 0);
        }
        ranks.allgather(&[]).unwrap();
    });
}

#[test]
fn all_use_one_scheme() {
    let errors = job(3, 0.0, |rank, ranks, options| {
        let scheme = if rank == 1 { "basic" } else { "auto" };
        let options = Options {
            scheme: scheme.into(),
            ..options.clone()
        };
        Here::new(&options, ranks).err().unwrap().to_string()
    });
    for error in errors {
        assert!(error.contains("different schemes"), "{error}");
    }
}

#[test]
fn one_that_cannot_take_part_is_told_to_all() {
    let errors = job(3, 0.0, |rank, ranks, options| {
        let mut options = options.clone();
        if rank == 1 {
            options.net.interface = Interface::Name("nowhere0".into());
        }
        Here::new(&options, ranks).err().unwrap().to_string()
    });
    for error in errors {
        assert!(
            error.contains("rank 1 cannot take part") && error.contains("nowhere0"),
            "{error}"
        );
    }
}

/// P1.3: a short broadcast goes into a slot of the window, so its caller waits while none is free.
/// The default scheme copies far more. The other receivers are prompt.
#[test]
fn a_window_without_a_free_slot_makes_the_next_broadcast_wait() {
    for (size, scheme, waits) in [
        (2, "window", true),
        (3, "window", true),
        (4, "window", true),
        (3, "auto", false),
    ] {
        let begun = AtomicBool::new(false);
        job(size, 0.0, |rank, ranks, options| {
            let scheme = scheme.into();
            let options = &Options {
                scheme,
                ..options.clone()
            };
            let context = Here::new(options, ranks).unwrap();
            let members: Vec<u32> = (0..size).collect();
            let group = context.group(1, &members).unwrap();
            ranks.allgather(&[]).unwrap();
            if rank == 1 {
                thread::sleep(Duration::from_millis(300));
                begun.store(true, Ordering::SeqCst);
            }
            for i in 0..65 {
                bcast(&context, &group, 0, rank, &pattern(i)).unwrap();
                let waited = begun.load(Ordering::SeqCst);
                assert!(rank != 0 || waited == (waits && i == 64), "{i}, {waited}");
            }
            // To start many waits for nobody.
            let object = |i| match rank {
                0 => Memory::new(pattern(i)),
                _ => Memory::room(i),
            };
            if rank != 0 {
                ranks.allgather(&[]).unwrap();
            }
            let start = |i| context.ibcast(&group, 0, object(i), &mut || ()).unwrap();
            let requests: Vec<_> = (0..200).map(start).collect();
            if rank == 0 {
                ranks.allgather(&[]).unwrap();
            }
            for (i, request) in requests.into_iter().enumerate() {
                let object = context.wait(request, &mut || ()).unwrap();
                assert!(object.map(overwrite) == Some(pattern(i)), "{i}");
            }
            context.flush(&mut || ()).unwrap();
            ranks.allgather(&[]).unwrap();
        });
    }
}
