//! Another network needs nothing but the trait: a broadcast, a barrier, a set of files and a job
//! of processes over `Pipe`.

mod pipe;

use std::io;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fabricast::communicator::{Bootstrap, BootstrapError, BroadcastAlgorithm, Context, Options};
use fabricast::config::{NetOptions, NetworkKind, OpenNetwork};
use fabricast::driver::Driver;
use fabricast::interface::Interface;
use fabricast::object::pack::{Content, Header, Pack};
use fabricast::object::{Destination, Memory, Packed, Packer, Selection, SourceSet, Tree};
use fabricast::proto::{
    AddressId, Barrier, Command, Config, Event, GroupId, Node, NodeId, OpId, Scheme, Seq, Session,
    Time,
};
use fabricast::transport::delayed::Delayed;
use fabricast::transport::{AnyTransport, GroupAddress, NodeAddress, Transport};
use fabricast::waker::Waker;

use pipe::{Hub, Pipe};

const NODES: u32 = 5;
const ROOT: NodeId = NodeId(0);
const ALL: GroupId = GroupId(1);
const ADDRESS: AddressId = AddressId(9);
const PAYLOAD: u32 = 1400;
const LIMIT: Duration = Duration::from_secs(60);

/// One node of the network.
struct End {
    driver: Driver<Delayed<Pipe>, Memory>,
    clock: Instant,
    /// Nodes that have nothing more to do.
    done: Arc<AtomicU32>,
}

impl End {
    fn new(hub: &Arc<Hub>, me: u32, clock: Instant, done: &Arc<AtomicU32>) -> End {
        let pipe = Delayed::in_tests(Pipe::new(hub, me), me.into());
        let config = Config {
            node: NodeId(me),
            session: Session(7),
            scheme: Scheme {
                window: 256,
                ..Scheme::auto()
            },
            unexpected_max: 256,
            backlog: pipe.backlog(PAYLOAD),
            rate: None,
            patience: LIMIT,
        };
        let mut driver = Driver::new(Node::new(config, u64::from(me)), pipe);
        for other in (0..NODES).filter(|&other| other != me) {
            let address = NodeAddress::Number(other);
            driver.transport().peer(NodeId(other), &address);
        }
        driver
            .join(ADDRESS, &GroupAddress::Number(9), true)
            .unwrap();
        let add = Command::GroupAdd {
            group: ALL,
            address: Some(ADDRESS),
            members: (0..NODES).map(NodeId).collect(),
            payload_size: PAYLOAD,
            start: Seq(0),
        };
        driver.command(Time::ZERO, add).unwrap();
        let done = Arc::clone(done);
        End {
            driver,
            clock,
            done,
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.elapsed().as_nanos() as u64)
    }

    /// Steps until `over` returns true.
    fn step_until(&mut self, mut over: impl FnMut(&mut Driver<Delayed<Pipe>, Memory>) -> bool) {
        loop {
            let now = self.now();
            let step = self.driver.step(now).unwrap();
            if over(&mut self.driver) {
                return;
            }
            assert!(self.clock.elapsed() < LIMIT, "it takes too long");
            let most = Duration::from_millis(5);
            let pause = step.wake.map_or(most, |at| at.since(now).min(most));
            self.driver.transport().wait(Some(pause)).unwrap();
        }
    }

    /// Steps until the operation is complete, and takes its object.
    fn complete(&mut self, op: OpId, has_object: bool) -> Option<Memory> {
        let (mut complete, mut object) = (false, None);
        self.step_until(|driver| {
            while let Some(event) = driver.event() {
                complete |= matches!(event, Event::Complete(o) if o == op);
                assert!(
                    !matches!(event, Event::Failed(_) | Event::Mismatch(_)),
                    "{event:?}"
                );
            }
            if complete && has_object && object.is_none() {
                object = driver.take(op);
            }
            complete && object.is_some() == has_object
        });
        object
    }

    /// Sends an object, or receives one.
    fn bcast(&mut self, me: u32, object: Memory) -> Memory {
        let now = self.now();
        let begun = match me {
            0 => self.driver.lend(now, ALL, object, true),
            _ => self.driver.post(now, ALL, ROOT, object),
        };
        let op = begun.map_err(|(refused, _)| refused).unwrap();
        self.complete(op, true).unwrap()
    }

    /// Goes on until all nodes are done: they may still need this one.
    fn leave(mut self) {
        self.done.fetch_add(1, Ordering::SeqCst);
        let done = Arc::clone(&self.done);
        self.step_until(|_| done.load(Ordering::SeqCst) == NODES);
    }
}

/// Runs a node's part on a thread for each node.
fn nodes(part: impl Fn(u32, &mut End) + Sync) {
    let (hub, clock, done) = (Hub::new(NODES), Instant::now(), Arc::default());
    thread::scope(|scope| {
        for me in 0..NODES {
            let (hub, done, part) = (&hub, &done, &part);
            scope.spawn(move || {
                let mut end = End::new(hub, me, clock, done);
                part(me, &mut end);
                end.leave();
            });
        }
    });
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}

#[test]
fn a_broadcast_and_a_barrier() {
    nodes(|me, end| {
        for len in [0, 1, 100_000, 1_000_000] {
            let memory = match me {
                0 => Memory::new(bytes(len)),
                _ => Memory::room(len),
            };
            let got = end.bcast(me, memory);
            assert!(got.as_slice() == bytes(len), "node {me}, {len} bytes");
            let now = end.now();
            let by = Barrier::Dissemination { ways: 2 };
            let op = end.driver.barrier(now, ALL, by).unwrap();
            end.complete(op, false);
        }
    });
}

/// What a receiver must know of a pack before the pack comes. A transfer says it over the control
/// connection, this test by a channel for each receiver.
#[derive(Clone)]
struct Announced {
    len: usize,
    header: usize,
    hash: blake3::Hash,
}

/// The next pack that the thread has read; `None` when all files have been read.
fn next_pack(packer: &Packer, waker: &Waker) -> Option<Pack> {
    loop {
        match packer.next() {
            Some(Packed::Pack(pack)) => return Some(pack),
            Some(Packed::End) => return None,
            Some(_) => panic!("a file cannot be read"),
            None => _ = waker.wait(Some(LIMIT)).unwrap(),
        }
    }
}

#[test]
fn a_file_and_a_directory() {
    let dir = std::env::temp_dir().join(format!("fabricast-pipe-{}", std::process::id()));
    let (file, sub) = (dir.join("file"), dir.join("sub"));
    std::fs::create_dir_all(&sub).unwrap();
    let content = bytes(5_000_000);
    std::fs::write(&file, &content).unwrap();
    std::fs::write(sub.join("small"), "small").unwrap();
    let (tell, told): (Vec<_>, Vec<_>) = (1..NODES).map(|_| channel::<Option<Announced>>()).unzip();
    let told: Vec<_> = told.into_iter().map(Mutex::new).collect();
    nodes(|me, end| {
        if me == 0 {
            let sources = [file.clone(), sub.clone()];
            let set = SourceSet::list(&sources, &Selection::default(), &mut |text| {
                panic!("{text}")
            })
            .unwrap();
            let waker = Waker::new().unwrap();
            let packer = Packer::start(Arc::new(set), waker.clone()).unwrap();
            let announce = |what: Option<Announced>| {
                tell.iter().for_each(|to| to.send(what.clone()).unwrap());
            };
            while let Some(pack) = next_pack(&packer, &waker) {
                announce(Some(Announced {
                    len: pack.bytes.len(),
                    header: pack.header,
                    hash: pack.hash(),
                }));
                end.bcast(me, Memory::new(pack.bytes));
            }
            announce(None);
            return;
        }
        let told = told[me as usize - 1].lock().unwrap();
        let root = dir.join(me.to_string());
        std::fs::create_dir(&root).unwrap();
        let mut tree = Tree::new(Destination::new(root.clone())).unwrap();
        loop {
            let mut next = None;
            end.step_until(|_| {
                next = told.try_recv().ok();
                next.is_some()
            });
            let Some(announced) = next.flatten() else {
                break;
            };
            let pack = Pack {
                bytes: end.bcast(me, Memory::room(announced.len)).into_bytes(),
                header: announced.header,
            };
            assert_eq!(pack.hash(), announced.hash);
            let header = Header::decode(&pack.bytes[..pack.header], pack.payload().len()).unwrap();
            assert_eq!(pack.differing(&header), [0; 0]);
            match &header.content {
                Content::Page => tree.add_page(pack.payload()).unwrap(),
                Content::Pieces(pieces) => tree.write(pieces, pack.payload()).unwrap(),
            }
        }
        tree.finish().unwrap();
        assert!(
            std::fs::read(root.join("file")).unwrap() == content,
            "node {me}"
        );
        assert_eq!(std::fs::read(root.join("sub/small")).unwrap(), b"small");
    });
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_port_that_goes_down_is_named() {
    let hub = Hub::new(NODES);
    let mut end = End::new(&hub, 0, Instant::now(), &Arc::default());
    end.driver.step(Time(1)).unwrap();
    hub.pull_the_plug(0);
    let error = end.driver.step(Time(2)).unwrap_err();
    assert!(error.to_string().contains("pipe0"), "{error}");
}

/// Opens the ends of a pipe network for a context.
struct Ends {
    hub: Arc<Hub>,
    me: u32,
}

impl OpenNetwork for Ends {
    fn open(&self, _waker: &Waker) -> io::Result<AnyTransport> {
        Ok(AnyTransport::new(Pipe::new(&self.hub, self.me)))
    }
}

/// Processes as threads that exchange what each gives.
struct Threads<'a> {
    rank: u32,
    given: &'a Mutex<Vec<Vec<u8>>>,
    all: &'a std::sync::Barrier,
}

impl Bootstrap for Threads<'_> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        NODES
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        self.given.lock().unwrap()[self.rank as usize] = mine.to_vec();
        self.all.wait();
        let given = self.given.lock().unwrap().clone();
        self.all.wait();
        Ok(given)
    }
}

/// Runs a job over the network: a context on a thread for each process, each on a host of its own.
fn job(broadcast: BroadcastAlgorithm, part: impl Fn(u32, Context<Memory>, &Hub) + Sync) {
    let hub = Hub::new(NODES);
    let given = Mutex::new(vec![Vec::new(); NODES as usize]);
    let all = std::sync::Barrier::new(NODES as usize);
    thread::scope(|scope| {
        for rank in 0..NODES {
            let (hub, given, all, part) = (Arc::clone(&hub), &given, &all, &part);
            scope.spawn(move || {
                let options = Options {
                    network: NetworkKind::Other(Arc::new(Ends {
                        hub: Arc::clone(&hub),
                        me: rank,
                    })),
                    host: Some(rank.to_string()),
                    net: NetOptions {
                        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
                        ..NetOptions::default()
                    },
                    broadcast,
                    ..Options::default()
                };
                let mut bootstrap = Threads { rank, given, all };
                let context = Context::new(&options, &mut bootstrap).unwrap();
                part(rank, context, &hub);
            });
        }
    });
}

#[test]
fn a_job_of_processes() {
    for broadcast in [BroadcastAlgorithm::Multicast, BroadcastAlgorithm::Tree] {
        let over = std::sync::Barrier::new(NODES as usize);
        job(broadcast, |me, context, _| {
            let members: Vec<u32> = (0..NODES).collect();
            let everybody = context.group(1, &members).unwrap();
            for root in 0..NODES {
                for len in [1, 4000, 300_000] {
                    let object = match me == root {
                        true => Memory::new(bytes(len)),
                        false => Memory::room(len),
                    };
                    let got = context.bcast(&everybody, root, object, &mut || ()).unwrap();
                    assert!(got.as_slice() == bytes(len), "{root} to {me}, {len} bytes");
                }
                context.barrier(&everybody, None, &mut || ()).unwrap();
            }
            context.leave(everybody);
            context.flush(&mut || ()).unwrap();
            over.wait();
        });
    }
}

#[test]
fn a_job_whose_port_goes_down_ends_with_an_error() {
    let all_out = std::sync::Barrier::new(NODES as usize);
    job(BroadcastAlgorithm::Multicast, |me, context, hub| {
        let members: Vec<u32> = (0..NODES).collect();
        let everybody = context.group(1, &members).unwrap();
        context.barrier(&everybody, None, &mut || ()).unwrap();
        // Nobody still needs rank 0 for this one.
        all_out.wait();
        if me == 0 {
            hub.pull_the_plug(me);
        }
        let error = context.barrier(&everybody, None, &mut || ()).unwrap_err();
        let error = error.to_string();
        match me {
            0 => assert!(error.contains("pipe0"), "{error}"),
            _ => assert!(error.contains("rank 0"), "{error}"),
        }
    });
}
