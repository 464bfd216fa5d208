//! All algorithms over UDP on the loopback, with datagrams lost on purpose.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fabricast_proto::{Config, Event, GroupId, Node, NodeId, Scheme, Seq, Session, Time};

use super::*;
use crate::driver::Driver;
use crate::object::Memory;
use crate::object::testing::pattern;
use crate::transport::fault::{Fault, Faults};
use crate::transport::udp::{Interface, Udp, UdpConfig};
use crate::transport::{Caps, Transport};

const CHUNK: u32 = 1200;
/// Nobody waits longer before it looks whether all are done.
const LOOK: Duration = Duration::from_millis(20);

type Net = Fault<Udp>;

fn open(rank: usize, loss: f64) -> Net {
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        receive_buffer: 212_992, // what Linux allows everybody unless told otherwise
        ..UdpConfig::default()
    };
    let faults = Faults {
        duplicate: loss / 2.0,
        reorder: loss,
        ..Faults::loss(rank as u64, loss)
    };
    Fault::new(Udp::new(&config).unwrap(), faults)
}

fn node(rank: usize, caps: Caps) -> Node {
    let config = Config {
        node: NodeId(rank as u32),
        session: Session(7),
        scheme: Scheme {
            window: 256,
            ..Scheme::auto()
        },
        hold: 64,
        backlog: (caps.receive_buffer / caps.datagram_max) as u32,
        rate: None,
        patience: Duration::from_secs(60),
    };
    Node::new(config, rank as u64)
}

/// One rank, until all ranks are done: what it has in the end.
fn take_part(
    rank: usize,
    net: Net,
    schedules: &[Schedule],
    messages: Vec<Vec<u8>>,
    done: &AtomicUsize,
) -> Vec<Vec<u8>> {
    let clock = Instant::now();
    let now = || Time(1 + clock.elapsed().as_nanos() as u64);
    let caps = net.caps();
    let mut driver: Driver<Net, Memory> = Driver::new(node(rank, caps), net);
    let mut runner = Runner::new(MessageBuffer::new(messages), AHEAD);
    schedules.iter().for_each(|s| runner.add(&s.steps(rank)));
    let channel = |peer: usize| Channel {
        group: GroupId((rank.min(peer) * 100 + rank.max(peer)) as u32),
        node: NodeId(peer as u32),
    };
    let me = (NodeId(rank as u32), CHUNK, Seq(u32::MAX - 3));
    runner.open(now(), &mut driver, me, channel).unwrap();
    let ranks = schedules[0].nodes;
    let mut told = false;
    while done.load(Ordering::SeqCst) < ranks {
        let mut busy = false;
        while runner.next(now(), &mut driver).unwrap().is_some() {
            busy = true;
        }
        let step = driver.step(now()).unwrap();
        while let Some(event) = driver.event() {
            assert!(
                matches!(event, Event::Complete(_)),
                "rank {rank}: {event:?}"
            );
            runner.heed(event);
            busy = true;
        }
        busy |= runner.take_back(&mut driver);
        if runner.is_done() && !told {
            told = true;
            done.fetch_add(1, Ordering::SeqCst);
        }
        let at = now();
        let wake = step.wake.map_or(LOOK, |t| t.since(at).min(LOOK));
        if !busy && !wake.is_zero() {
            driver.transport().wait(Some(wake)).unwrap();
        }
    }
    assert!(runner.has_all() && !runner.has_failed());
    let counters = driver.node().counters();
    assert_eq!((counters.data, counters.repairs_multicast), (0, 0));
    runner.buffer().messages().to_vec()
}

/// Messages of these lengths from `root` to all of `nodes`, one after the other.
fn run(algorithm: Algorithm, nodes: usize, root: usize, lens: &[usize], loss: f64) {
    let messages: Vec<Vec<u8>> = lens.iter().map(|&len| pattern(len)).collect();
    let schedule = |&len: &usize| Schedule {
        algorithm,
        nodes,
        root,
        len: len as u64,
        segment: 16 << 10,
    };
    let schedules: Vec<Schedule> = lens.iter().map(schedule).collect();
    let done = AtomicUsize::new(0);
    let ends: Vec<_> = (0..nodes).map(|rank| open(rank, loss)).collect();
    let peers: Vec<SocketAddr> = ends.iter().map(|net| net.inner().local_addr()).collect();
    thread::scope(|scope| {
        let (messages, schedules, peers, done) = (&messages, &schedules, &peers, &done);
        let ranks: Vec<_> = ends
            .into_iter()
            .enumerate()
            .map(|(rank, mut net)| {
                let here = messages.iter().map(|m| match rank == root {
                    true => m.clone(),
                    false => vec![0; m.len()],
                });
                let here = here.collect();
                scope.spawn(move || {
                    for (peer, &address) in peers.iter().enumerate() {
                        net.peer(NodeId(peer as u32), address);
                    }
                    take_part(rank, net, schedules, here, done)
                })
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            let got = thread.join().unwrap();
            assert!(&got == messages, "{algorithm:?}: rank {rank} of {nodes}");
        }
    });
}

#[test]
fn every_algorithm_delivers_over_udp_that_loses() {
    for algorithm in Algorithm::ALL {
        run(algorithm, 5, 2, &[100_000, 0, 1, 40_001], 0.05);
    }
}

#[test]
fn odd_numbers_of_ranks_and_no_loss() {
    for algorithm in Algorithm::ALL {
        for (nodes, root) in [(1, 0), (2, 1), (3, 0), (7, 6)] {
            run(algorithm, nodes, root, &[10_000, 3], 0.0);
        }
    }
}
