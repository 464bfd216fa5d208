//! What a small broadcast costs while many multicast addresses are joined, over real UDP.
//!
//! One root broadcasts messages of a few bytes to receivers, each when all receivers have the one
//! before. All nodes are threads of this process, each with sockets of its own on the loopback, and
//! all have joined the same addresses. The group sends by the last of them. The program takes the
//! numbers of addresses in turn, so that what disturbs the machine disturbs them alike. It prints
//! medians over all turns: the processor time, system calls and time of a broadcast.

use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use fabricast::driver::Driver;
use fabricast::interface::Interface;
use fabricast::object::Memory;
use fabricast::proto::{
    AddressId, Command, Config, Event, GroupId, Node, NodeId, Scheme, Seq, Session, Time,
};
use fabricast::transport::udp::{Udp, UdpConfig};
use fabricast::transport::{News, Transport};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, Socket, Type};

const GROUP: GroupId = GroupId(1);
const ROOT: NodeId = NodeId(0);
/// Payload of a packet, in bytes: a message fits into one.
const PAYLOAD: u32 = 1400;
/// Length of a datagram on Ethernet, in bytes, although the loopback would take longer ones.
const DATAGRAM: usize = 1472;
/// Broadcasts before the measured ones: caches are cold.
const WARM: u32 = 50;
/// Longest wait before a node checks whether all nodes are done.
const LOOK: Duration = Duration::from_millis(20);
/// Time after which a turn has failed.
const TURN_MAX: Duration = Duration::from_secs(60);

type Failure = Box<dyn Error + Send + Sync>;

/// Measures small broadcasts while many multicast addresses are joined, on the loopback.
#[derive(Parser, Clone, Debug)]
struct Options {
    /// Numbers of addresses that every node joins, one after the other
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,64,128",
        value_parser = clap::value_parser!(u32).range(1..=250),
    )]
    addresses: Vec<u32>,
    /// Nodes, the root among them (in a group of two nothing is multicast)
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(3..=16))]
    nodes: u32,
    /// Broadcasts in a turn
    #[arg(
        long,
        default_value_t = 2000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    broadcasts: u32,
    /// Turns of each number of addresses
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Bytes of a message
    #[arg(
        long,
        default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PAYLOAD)),
    )]
    size: u32,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(prices) => {
            print(&options, &prices);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("addresses: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What one broadcast of a turn costs.
#[derive(Clone, Copy, Debug)]
struct Price {
    /// Time until all receivers have it, and the root knows, in µs.
    time: f64,
    /// Processor time of a receiver, in µs.
    receiver: f64,
    /// Processor time of the root, in µs.
    root: f64,
    /// System calls of a receiver that receive.
    receives: f64,
    /// System calls of a receiver that wait.
    waits: f64,
}

/// Measures all turns. Returns those of each number of addresses.
fn run(options: &Options) -> Result<Vec<Vec<Price>>, Failure> {
    let port = Port::reserve()?;
    let mut prices = vec![Vec::new(); options.addresses.len()];
    for _ in 0..options.turns {
        for (&addresses, prices) in options.addresses.iter().zip(&mut prices) {
            prices.push(turn(options, addresses, &port)?);
        }
    }
    Ok(prices)
}

/// A port that no other program uses, and that any number of receive sockets may share.
struct Port {
    socket: Socket,
}

impl Port {
    fn reserve() -> io::Result<Port> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_multicast_all_v4(false)?;
        let anywhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        socket.bind(&anywhere.into())?;
        // Set before, it would let the kernel choose a port that somebody shares already.
        socket.set_reuse_address(true)?;
        Ok(Port { socket })
    }

    fn number(&self) -> io::Result<u16> {
        let address = self.socket.local_addr()?.as_socket();
        Ok(address.map_or(0, |a| a.port()))
    }
}

/// What all nodes of a turn share.
struct Shared {
    clock: Instant,
    done: AtomicU32,
    failed: AtomicBool,
}

/// What one node has spent on the measured broadcasts.
struct Spent {
    time: Duration,
    processor: Duration,
    receives: u64,
    waits: u64,
}

fn turn(options: &Options, addresses: u32, port: &Port) -> Result<Price, Failure> {
    let mut nets = (0..options.nodes)
        .map(|_| open())
        .collect::<io::Result<Vec<Udp>>>()?;
    let peers: Vec<SocketAddr> = nets.iter().map(Udp::local_addr).collect();
    for net in &mut nets {
        for (peer, &address) in (0..).map(NodeId).zip(&peers) {
            net.peer(peer, &address.into());
        }
        for id in 1..=addresses {
            let ip: IpAddr = Ipv4Addr::new(239, 255, 79, id as u8).into();
            let address = SocketAddr::new(ip, port.number()?);
            net.join(AddressId(id), &address.into(), true);
            if let Some(News::JoinFailed(_, error)) = net.news() {
                return Err(error.into());
            }
        }
    }
    let shared = Shared {
        clock: Instant::now(),
        done: AtomicU32::new(0),
        failed: AtomicBool::new(false),
    };
    let spent: Vec<Spent> = thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .map(NodeId)
            .zip(nets)
            .map(|(me, net)| {
                let shared = &shared;
                scope.spawn(move || {
                    let part = Part::new(options, me, AddressId(addresses), net);
                    let spent = part.and_then(|part| part.play(shared));
                    shared.failed.fetch_or(spent.is_err(), Ordering::SeqCst);
                    spent
                })
            })
            .collect();
        let ends = threads.into_iter();
        ends.map(|t| t.join().map_err(|_| "a node has panicked")?)
            .collect::<Result<_, Failure>>()
    })?;
    let each = |total: f64| total / f64::from(options.broadcasts);
    let micros = |time: Duration| each(time.as_secs_f64() * 1e6);
    let (root, receivers) = spent.split_first().expect("there is a root");
    let mean =
        |of: &dyn Fn(&Spent) -> f64| receivers.iter().map(of).sum::<f64>() / receivers.len() as f64;
    Ok(Price {
        time: micros(root.time),
        receiver: mean(&|s| micros(s.processor)),
        root: micros(root.processor),
        receives: mean(&|s| each(s.receives as f64)),
        waits: mean(&|s| each(s.waits as f64)),
    })
}

fn open() -> io::Result<Udp> {
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        datagram: Some(DATAGRAM),
        ..UdpConfig::default()
    };
    Udp::new(&config)
}

/// One node's part: the root sends, the others receive.
struct Part<'a> {
    options: &'a Options,
    me: NodeId,
    driver: Driver<Udp, Memory>,
}

impl<'a> Part<'a> {
    fn new(
        options: &'a Options,
        me: NodeId,
        address: AddressId,
        net: Udp,
    ) -> Result<Part<'a>, Failure> {
        let config = Config {
            node: me,
            session: Session(1),
            scheme: Scheme::auto(),
            unexpected_max: 64,
            backlog: net.backlog(PAYLOAD),
            rate: None,
            patience: Duration::from_secs(10),
        };
        let node = Node::new(config, u64::from(me.0));
        let mut driver = Driver::new(node, net);
        let add = Command::GroupAdd {
            group: GROUP,
            address: Some(address),
            members: (0..options.nodes).map(NodeId).collect(),
            payload_size: PAYLOAD,
            start: Seq(0),
        };
        driver.command(Time::ZERO, add)?;
        Ok(Part {
            options,
            me,
            driver,
        })
    }

    /// Sends or receives all messages, one at a time. Then it serves the others until they are
    /// done, too.
    fn play(mut self, shared: &Shared) -> Result<Spent, Failure> {
        for i in 0..WARM {
            self.one(i, shared)?;
        }
        let before = self.now_spent(shared)?;
        for i in WARM..WARM + self.options.broadcasts {
            self.one(i, shared)?;
        }
        let after = self.now_spent(shared)?;
        shared.done.fetch_add(1, Ordering::SeqCst);
        while shared.done.load(Ordering::SeqCst) < self.options.nodes {
            self.step(shared)?;
        }
        Ok(Spent {
            time: after.time - before.time,
            processor: after.processor - before.processor,
            receives: after.receives - before.receives,
            waits: after.waits - before.waits,
        })
    }

    /// What this thread and its sockets have spent since the start.
    fn now_spent(&mut self, shared: &Shared) -> Result<Spent, Failure> {
        let counters = self.driver.net().counters();
        let spent = clock_gettime(ClockId::ThreadCPUTime);
        Ok(Spent {
            time: shared.clock.elapsed(),
            processor: Duration::try_from(spent)?,
            receives: counters.receive_calls,
            waits: counters.wait_calls,
        })
    }

    /// Sends or receives message `i`, and returns when it is over.
    fn one(&mut self, i: u32, shared: &Shared) -> Result<(), Failure> {
        let bytes = vec![i as u8; self.options.size as usize];
        let at = now(shared);
        let op = if self.me == ROOT {
            let sent = self.driver.bcast(at, GROUP, Memory::new(bytes.clone()));
            sent.map_err(|e| e.0)?.0
        } else {
            let room = Memory::room(bytes.len());
            let posted = self.driver.post(at, GROUP, ROOT, room);
            posted.map_err(|e| e.0)?
        };
        loop {
            if let Some(object) = self.driver.take(op) {
                if object.as_slice() != bytes {
                    return Err(format!("message {i} is not what was sent").into());
                }
                return Ok(());
            }
            self.step(shared)?;
        }
    }

    /// Does what is due, and then waits for more.
    fn step(&mut self, shared: &Shared) -> Result<(), Failure> {
        let step = self.driver.step(now(shared))?;
        let mut is_over = false;
        while let Some(event) = self.driver.event() {
            if let Event::Failed(_) | Event::Mismatch(_) = event {
                return Err(format!("node {}: {event:?}", self.me.0).into());
            }
            is_over = true;
        }
        if shared.failed.load(Ordering::SeqCst) || shared.clock.elapsed() > TURN_MAX {
            return Err(format!("node {} does not get on", self.me.0).into());
        }
        let at = now(shared);
        let wait = step.wake.map_or(LOOK, |t| t.since(at).min(LOOK));
        if !is_over && !wait.is_zero() {
            self.driver.transport().wait(Some(wait))?;
        }
        Ok(())
    }
}

fn now(shared: &Shared) -> Time {
    Time(1 + shared.clock.elapsed().as_nanos() as u64)
}

fn print(options: &Options, prices: &[Vec<Price>]) {
    let Options {
        broadcasts,
        turns,
        size,
        nodes,
        ..
    } = options;
    println!(
        "{broadcasts} broadcasts of {size} bytes to {} receivers in each of {turns} turns; medians \
         for a broadcast",
        nodes - 1,
    );
    println!("addresses   receiver (µs)   root (µs)   time (µs)   receive calls   wait calls");
    for (addresses, prices) in options.addresses.iter().zip(prices) {
        let of = |what: &dyn Fn(&Price) -> f64| median(prices.iter().map(what).collect());
        println!(
            "{addresses:9} {:15.2} {:11.2} {:11.2} {:15.2} {:12.2}",
            of(&|p| p.receiver),
            of(&|p| p.root),
            of(&|p| p.time),
            of(&|p| p.receives),
            of(&|p| p.waits),
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_addresses_is_measured() {
        let words = "addresses --addresses 1,40 --broadcasts 20 --turns 2";
        let options = Options::try_parse_from(words.split(' ')).unwrap();
        let prices = run(&options).unwrap();
        assert_eq!(prices.len(), 2);
        for prices in &prices {
            assert_eq!(prices.len(), 2);
            assert!(prices.iter().all(|p| p.receives > 0.0 && p.waits > 0.0));
        }
    }
}
