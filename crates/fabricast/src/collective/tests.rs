//! All algorithms over UDP on the loopback, with datagrams lost on purpose.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabricast_proto::{
    AddressId, Command, Config, Event, GroupId, Node, NodeId, Scheme, Seq, Session, Time,
};

use super::*;
use crate::driver::Driver;
use crate::interface::Interface;
use crate::object::Memory;
use crate::object::testing::pattern;
use crate::transport::Transport;
use crate::transport::delayed::Delayed;
use crate::transport::fault::{Fault, Faults};
use crate::transport::udp::{Udp, UdpConfig};

const PAYLOAD: u32 = 1200;
/// Length of a segment, in bytes.
const SEGMENT: u64 = 16 << 10;
const START: Seq = Seq(u32::MAX - 3);
/// Longest wait before a rank checks whether all ranks are done.
const LOOK: Duration = Duration::from_millis(20);

type Net = Fault<Delayed<Udp>>;

fn open(rank: usize, loss: f64) -> Net {
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        receive_buffer: 212_992, // Linux allows this to every user unless configured otherwise.
        ..UdpConfig::default()
    };
    let faults = Faults {
        duplicate: loss / 2.0,
        reorder: loss,
        ..Faults::loss(rank as u64, loss)
    };
    let delayed = Delayed::in_tests(Udp::new(&config).unwrap(), rank as u64);
    Fault::new(delayed, faults)
}

fn node(rank: usize, net: &Net) -> Node {
    let config = Config {
        node: NodeId(rank as u32),
        session: Session(7),
        scheme: Scheme {
            window: 256,
            ..Scheme::auto()
        },
        unexpected_max: 64,
        backlog: net.backlog(PAYLOAD),
        rate: None,
        patience: Duration::from_secs(60),
    };
    Node::new(config, rank as u64)
}

/// Adds the groups of which this rank is a member, numbered from 1 and at addresses of their own.
fn join(driver: &mut Driver<Net, Memory>, rank: usize, groups: &[Vec<usize>], port: u16) {
    for (i, members) in (1u8..).zip(groups) {
        if members.contains(&rank) {
            let group = GroupId(i.into());
            let address = SocketAddr::from((Ipv4Addr::new(239, 255, 78, i), port));
            driver
                .join(AddressId(group.0), &address.into(), true)
                .unwrap();
            let add = Command::GroupAdd {
                group,
                address: Some(AddressId(group.0)),
                members: members.iter().map(|&m| NodeId(m as u32)).collect(),
                payload_size: PAYLOAD,
                start: START,
            };
            driver.command(Time::ZERO, add).unwrap();
        }
    }
}

/// Runs one rank until all ranks are done. Returns its messages at the end.
fn take_part(
    rank: usize,
    mut driver: Driver<Net, Memory>,
    schedules: &[Schedule],
    messages: Vec<Vec<u8>>,
    done: &AtomicUsize,
) -> Vec<Vec<u8>> {
    let clock = Instant::now();
    let now = || Time(1 + clock.elapsed().as_nanos() as u64);
    let steps: Vec<Vec<Step>> = schedules.iter().map(|s| s.steps(rank)).collect();
    let channel = |peer| {
        let (group, node) = match peer {
            Peer::Rank(peer) => (1000 + rank.min(peer) * 100 + rank.max(peer), peer),
            Peer::Group { group, root } => (1 + group, root),
            Peer::Local { .. } => unreachable!("a schedule knows no hosts"),
        };
        Channel {
            network: (),
            group: GroupId(group as u32),
            node: NodeId(node as u32),
        }
    };
    let peers: BTreeSet<Peer> = steps.iter().flatten().map(|step| step.peer).collect();
    for peer in peers.into_iter().filter(|p| matches!(p, Peer::Rank(_))) {
        let Channel { group, node, .. } = channel(peer);
        let add = Command::GroupAdd {
            group,
            address: Some(AddressId(group.0)),
            members: vec![NodeId(rank as u32), node],
            payload_size: PAYLOAD,
            start: START,
        };
        driver.command(now(), add).unwrap();
    }
    let mut executor = Executor::new(0);
    for (steps, message) in steps.iter().zip(messages) {
        let pace = Pace::Listed { ahead: AHEAD };
        let buffer = MessageBuffer::new(message);
        executor.add(GroupId(0), pace, steps.clone(), buffer, channel);
    }
    let ranks = schedules[0].nodes;
    let mut told = false;
    while done.load(Ordering::SeqCst) < ranks {
        let mut busy = false;
        while executor.next(now(), &mut driver).unwrap().is_some() {
            busy = true;
        }
        let step = driver.step(now()).unwrap();
        while let Some(event) = driver.event() {
            assert!(
                matches!(event, Event::Complete(_)),
                "rank {rank}: {event:?}"
            );
            executor.event((), event);
            busy = true;
        }
        busy |= executor.take_back(&mut driver);
        if executor.is_done() && !told {
            told = true;
            done.fetch_add(1, Ordering::SeqCst);
        }
        let at = now();
        let wake = step.wake.map_or(LOOK, |t| t.since(at).min(LOOK));
        if !busy && !wake.is_zero() {
            driver.transport().wait(Some(wake)).unwrap();
        }
    }
    assert!(executor.is_done() && !executor.has_failed());
    // Only ranks whose schedule broadcasts to a group multicast.
    let to_group = |s: &Step| s.action == Action::Send && matches!(s.peer, Peer::Group { .. });
    let broadcasts = steps.iter().flatten().any(to_group);
    let counters = driver.node().counters();
    assert_eq!(counters.data > 0, broadcasts);
    assert!(broadcasts || counters.repairs_multicast == 0);
    let messages = executor.buffers().map(MessageBuffer::message);
    messages.map(<[u8]>::to_vec).collect()
}

/// Runs messages of these lengths to the ranks of `target`, one after the other.
fn run(
    schedule: &Schedule,
    target: &BTreeSet<usize>,
    groups: &[Vec<usize>],
    lens: &[usize],
    loss: f64,
) {
    let messages: Vec<Vec<u8>> = lens.iter().map(|&len| pattern(len)).collect();
    let schedules = lens.iter().map(|&len| Schedule {
        segments: Segments::equal(len as u64, SEGMENT),
        ..schedule.clone()
    });
    let schedules: Vec<Schedule> = schedules.collect();
    let done = AtomicUsize::new(0);
    let ends: Vec<_> = (0..schedule.nodes).map(|rank| open(rank, loss)).collect();
    let peers: Vec<SocketAddr> = ends
        .iter()
        .map(|net| net.inner().inner().local_addr())
        .collect();
    let empty: Vec<Vec<u8>> = lens.iter().map(|&len| vec![0; len]).collect();
    thread::scope(|scope| {
        let (schedules, peers, done) = (&schedules, &peers, &done);
        let ranks: Vec<_> = ends
            .into_iter()
            .enumerate()
            .map(|(rank, mut net)| {
                let here = match rank == schedule.root {
                    true => messages.clone(),
                    false => empty.clone(),
                };
                scope.spawn(move || {
                    for (peer, &address) in peers.iter().enumerate() {
                        net.peer(NodeId(peer as u32), &address.into());
                    }
                    let mut driver = Driver::new(node(rank, &net), net);
                    // The test's own port, so that no other test uses it.
                    join(&mut driver, rank, groups, peers[0].port());
                    take_part(rank, driver, schedules, here, done)
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            let got = thread.join().unwrap();
            let wanted = match rank == schedule.root || target.contains(&rank) {
                true => &messages,
                false => &empty,
            };
            assert!(&got == wanted, "rank {rank}: {schedule:?}");
        }
    });
}

fn schedule(algorithm: Algorithm, nodes: usize, root: usize) -> Schedule {
    Schedule {
        algorithm,
        nodes,
        root,
        segments: Segments::whole(0),
    }
}

/// Runs messages from `root` to all ranks, without groups.
fn to_all(algorithm: Algorithm, nodes: usize, root: usize, lens: &[usize], loss: f64) {
    let schedule = schedule(algorithm, nodes, root);
    run(&schedule, &(0..nodes).collect(), &[], lens, loss);
}

#[test]
fn every_algorithm_delivers_over_udp_that_loses() {
    for algorithm in Algorithm::MESSAGES {
        to_all(algorithm, 5, 2, &[100_000, 0, 1, 40_001], 0.05);
    }
}

#[test]
fn odd_numbers_of_ranks_and_no_loss() {
    for algorithm in Algorithm::MESSAGES {
        for (nodes, root) in [(1, 0), (2, 1), (3, 0), (7, 6)] {
            to_all(algorithm.clone(), nodes, root, &[10_000, 3], 0.0);
        }
    }
}

/// The groups: one of the root, one that shares a member with it, one that a message reaches, and
/// two that do not serve. One target is in no group, and two ranks are no targets.
#[test]
fn a_cover_delivers_to_its_set_alone_over_udp_that_loses() {
    let groups = [
        vec![0, 8, 9],
        vec![2, 0, 3, 1],
        vec![5, 4, 3],
        vec![1, 2, 5],
        vec![6, 7, 8],
    ];
    for (root, loss) in [(0, 0.05), (2, 0.0), (10, 0.05)] {
        let target: BTreeSet<usize> = (0..9).chain([11]).collect();
        let cover = Cover::new(&target, root, &groups);
        let broadcasts = cover.hops().iter().filter(|hop| hop.group.is_some());
        assert_eq!(broadcasts.count(), 3);
        let schedule = schedule(Algorithm::Cover(cover), 12, root);
        run(&schedule, &target, &groups, &[100_000, 0, 1, 40_001], loss);
    }
}
