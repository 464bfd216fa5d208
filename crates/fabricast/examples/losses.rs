//! How soon lost packets of small messages are repaired, over real UDP multicast.
//!
//! One root broadcasts messages of one packet each to receivers. The receivers are threads of this
//! process, each with sockets of its own on the loopback. Every node, the root too, drops a share
//! of all datagrams that it receives: data, repairs, probes and feedback alike, drawn for each node
//! separately. Messages leave in bursts of 1, 1, 2 and 8, with a pause after each burst. Within a
//! burst, the next packet shows that one is missing; at its end, the root's tail-loss probe does.
//! The program prints [`Counters::losses`] of each receiver, and of all together. It checks the
//! bytes of every message.

use std::collections::VecDeque;
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use fabricast::driver::Driver;
use fabricast::interface::Interface;
use fabricast::object::Memory;
use fabricast::proto::rng::Rng;
use fabricast::proto::{
    AddressId, Command, Config, Counters, Event, GroupId, Histogram, Node, NodeId, OpId, Refused,
    Scheme, Seq, Session, Time,
};
use fabricast::transport::fault::{Fault, Faults};
use fabricast::transport::udp::{Udp, UdpConfig};
use fabricast::transport::{News, Transport};

const GROUP: GroupId = GroupId(1);
const ROOT: NodeId = NodeId(0);
/// Payload of a packet, in bytes: a message fits into one.
const PAYLOAD: u32 = 1400;
/// Length of a datagram on Ethernet, in bytes, although the loopback would take longer ones.
const DATAGRAM: usize = 1472;
/// Indices of the messages of a [`CYCLE`] that begin a burst.
const BURSTS: [u32; 4] = [0, 1, 2, 4];
/// Number of messages after which the bursts repeat.
const CYCLE: u32 = 12;
/// Largest number of messages that a node has under way. A receiver posts more when half of them
/// have arrived.
const UNDER_WAY_MAX: u32 = 1024;
/// Longest wait before a node checks whether all nodes are done.
const LOOK: Duration = Duration::from_millis(20);
/// Longest time after the last message has left; beyond it, the run has failed.
const REST_MAX: Duration = Duration::from_secs(60);

type Failure = Box<dyn Error + Send + Sync>;

/// Measures how long losses of small messages last, over UDP multicast on the loopback.
#[derive(Parser, Clone, Copy, Debug)]
struct Options {
    /// Nodes, the root among them (in a group of two nothing is multicast)
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=64))]
    nodes: u32,
    /// Messages that the root broadcasts
    #[arg(
        long,
        default_value_t = 10_000,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    messages: u32,
    /// Bytes of a message
    #[arg(
        long,
        default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(PAYLOAD)),
    )]
    size: u32,
    /// Percent of the datagrams that each node drops of those it receives
    #[arg(long, value_name = "PERCENT", default_value = "1", value_parser = percent)]
    loss: f64,
    /// Milliseconds between the beginnings of two bursts
    #[arg(
        long,
        value_name = "MS",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000),
    )]
    every: u32,
    /// Where chance begins
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(ends) => {
            print(&options, &ends);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("losses: {error}");
            ExitCode::FAILURE
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(n) if (0.0..=50.0).contains(&n) => Ok(n),
        _ => Err("a number of percent from 0 to 50 is needed".into()),
    }
}

/// The result of one node.
struct End {
    counters: Counters,
    /// Datagrams that the node dropped.
    dropped: u64,
    /// Time from when each message was due at the root to its arrival (at the root: its arrival at
    /// all).
    delays: Histogram,
}

/// What all nodes share.
struct Shared {
    clock: Instant,
    done: AtomicU32,
    failed: AtomicBool,
}

/// Runs all nodes until every node has every message. Returns their results, the root's first.
/// Fails if anything is wrong or takes too long.
fn run(options: &Options) -> Result<Vec<End>, Failure> {
    let mut nets = (0..options.nodes)
        .map(|i| open(options, i))
        .collect::<Result<Vec<Net>, _>>()?;
    let peers: Vec<SocketAddr> = nets.iter().map(|net| net.inner().local_addr()).collect();
    // The port is the root's own, so no other run has it.
    let group = SocketAddr::new(Ipv4Addr::new(239, 255, 78, 1).into(), peers[0].port());
    for (i, net) in (0..).map(NodeId).zip(&mut nets) {
        net.join(AddressId(GROUP.0), &group.into(), i != ROOT);
        if let Some(News::JoinFailed(_, error)) = net.news() {
            return Err(error.into());
        }
        for (peer, &address) in (0..).map(NodeId).zip(&peers) {
            net.peer(peer, &address.into());
        }
    }
    let shared = Shared {
        clock: Instant::now(),
        done: AtomicU32::new(0),
        failed: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .map(NodeId)
            .zip(nets)
            .map(|(me, net)| {
                let shared = &shared;
                scope.spawn(move || {
                    let end = Part::new(options, me, net).and_then(|part| part.play(shared));
                    shared.failed.fetch_or(end.is_err(), Ordering::SeqCst);
                    end
                })
            })
            .collect();
        let ends = threads.into_iter();
        ends.map(|t| t.join().map_err(|_| "a node has panicked")?)
            .collect()
    })
}

type Net = Fault<Udp>;

fn open(options: &Options, i: u32) -> std::io::Result<Net> {
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        datagram: Some(DATAGRAM),
        ..UdpConfig::default()
    };
    let seed = Rng::new(options.seed ^ u64::from(i) << 32).bits();
    let faults = Faults {
        send_loss: 0.0,
        ..Faults::loss(seed, options.loss / 100.0)
    };
    Ok(Fault::new(Udp::new(&config)?, faults))
}

/// One node's part: the root sends, the others receive.
struct Part<'a> {
    options: &'a Options,
    me: NodeId,
    driver: Driver<Net, Memory>,
    /// Number of messages begun: sent, or posted.
    begun: u32,
    /// The messages begun that are not over.
    under_way: VecDeque<(OpId, u32)>,
    delays: Histogram,
}

impl<'a> Part<'a> {
    fn new(options: &'a Options, me: NodeId, net: Net) -> Result<Part<'a>, Failure> {
        let mut driver = Driver::new(node(options, me, &net), net);
        let add = Command::GroupAdd {
            group: GROUP,
            address: Some(AddressId(GROUP.0)),
            members: (0..options.nodes).map(NodeId).collect(),
            payload_size: PAYLOAD,
            start: Seq(0),
        };
        driver.command(Time::ZERO, add)?;
        Ok(Part {
            options,
            me,
            driver,
            begun: 0,
            under_way: VecDeque::new(),
            delays: Histogram::default(),
        })
    }

    /// Runs until all nodes are done, because the others may not have learned yet that all has
    /// arrived.
    fn play(mut self, shared: &Shared) -> Result<End, Failure> {
        let limit = due(self.options, self.options.messages) + REST_MAX;
        let now = || Time(1 + shared.clock.elapsed().as_nanos() as u64);
        let mut told = false;
        loop {
            self.begin(now())?;
            let step = self.driver.step(now())?;
            while let Some(event) = self.driver.event() {
                if let Event::Failed(_) | Event::Mismatch(_) = event {
                    return Err(format!("node {}: {event:?}", self.me.0).into());
                }
            }
            self.take_back(now())?;
            if self.is_done() && !told {
                told = true;
                shared.done.fetch_add(1, Ordering::SeqCst);
            }
            let all = shared.done.load(Ordering::SeqCst) == self.options.nodes;
            if all || shared.failed.load(Ordering::SeqCst) {
                break;
            }
            if shared.clock.elapsed() > limit {
                let (lacks, begun) = (self.under_way.len(), self.begun);
                let me = self.me.0;
                return Err(format!("node {me}: {lacks} of {begun} messages are not over").into());
            }
            let at = now();
            let wakes = [step.wake, self.next_due()].into_iter().flatten();
            let wait = wakes.map(|t| t.since(at)).fold(LOOK, Duration::min);
            if !wait.is_zero() {
                self.driver.transport().wait(Some(wait))?;
            }
        }
        Ok(End {
            counters: self.driver.node().counters(),
            dropped: self.driver.net().fault_counters().receive_lost,
            delays: self.delays,
        })
    }

    /// When the root sends the next message; `None` if it may not have one more under way.
    fn next_due(&self) -> Option<Time> {
        let more = self.begun < self.options.messages;
        let room = (self.under_way.len() as u32) < UNDER_WAY_MAX;
        (self.me == ROOT && more && room).then(|| Time::ZERO + due(self.options, self.begun))
    }

    /// Sends the messages that are due, or posts receives.
    fn begin(&mut self, now: Time) -> Result<(), Refused> {
        let (size, under_way) = (self.options.size, self.under_way.len() as u32);
        if self.me == ROOT {
            while self.next_due().is_some_and(|due| due <= now) {
                let message = Memory::new(message(self.begun, size));
                let sent = self.driver.bcast(now, GROUP, message);
                let (op, copied) = sent.map_err(|e| e.0)?;
                match copied {
                    None => self.note(op),
                    Some(_) => self.begun += 1,
                }
            }
        } else if under_way <= UNDER_WAY_MAX / 2 {
            let left = self.options.messages - self.begun;
            for _ in 0..left.min(UNDER_WAY_MAX - under_way) {
                let room = Memory::room(size as usize);
                let op = self.driver.post(now, GROUP, ROOT, room);
                self.note(op.map_err(|e| e.0)?);
            }
        }
        Ok(())
    }

    /// Records that the next message is under way.
    fn note(&mut self, op: OpId) {
        self.under_way.push_back((op, self.begun));
        self.begun += 1;
    }

    /// Takes the messages that are over, and checks them.
    fn take_back(&mut self, now: Time) -> Result<(), Failure> {
        let (driver, options, delays) = (&mut self.driver, self.options, &mut self.delays);
        let mut wrong = None;
        self.under_way.retain(|&(op, i)| match driver.take(op) {
            None => true,
            Some(object) => {
                if object.as_slice() != message(i, options.size) {
                    wrong.get_or_insert(i);
                }
                delays.note(now.since(Time::ZERO + due(options, i)));
                false
            }
        });
        match wrong {
            Some(i) => Err(format!("node {}: message {i} is not what was sent", self.me.0).into()),
            None => Ok(()),
        }
    }

    fn is_done(&self) -> bool {
        self.begun == self.options.messages && self.under_way.is_empty()
    }
}

fn node(options: &Options, me: NodeId, net: &Net) -> Node {
    let config = Config {
        node: me,
        session: Session(options.seed),
        scheme: Scheme::auto(),
        unexpected_max: 64,
        backlog: net.backlog(PAYLOAD),
        rate: None,
        patience: Duration::from_secs(10),
    };
    Node::new(config, options.seed ^ u64::from(me.0))
}

/// Time at which message `i` leaves, since the start.
fn due(options: &Options, i: u32) -> Duration {
    let (cycle, at) = (i / CYCLE, i % CYCLE);
    let burst = BURSTS.partition_point(|&first| first <= at) as u32;
    Duration::from_millis(u64::from(options.every)) * (cycle * BURSTS.len() as u32 + burst)
}

/// The bytes of message `i`.
fn message(i: u32, size: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(i));
    (0..size).map(|_| rng.bits() as u8).collect()
}

fn print(options: &Options, ends: &[End]) {
    let root = &ends[0].counters;
    println!(
        "{} messages of {} bytes to {} receivers, a burst of 1, 1, 2 or 8 each {} ms; each node \
         drops {} % of what it receives",
        options.messages,
        options.size,
        ends.len() - 1,
        options.every,
        options.loss,
    );
    println!(
        "the root sent {} packets to all and {} to one, again {} to all and {} to one; every \
         message is right",
        root.data, root.data_unicast, root.repairs_multicast, root.repairs_unicast
    );
    println!("receiver   dropped  repaired    median       99 %       max (ms)");
    let (mut all, mut delays) = (Histogram::default(), Histogram::default());
    for (i, end) in ends.iter().enumerate().skip(1) {
        all.add(&end.counters.losses);
        delays.add(&end.delays);
        println!(
            "{}",
            line(&i.to_string(), end.dropped, &end.counters.losses)
        );
    }
    let dropped = ends[1..].iter().map(|end| end.dropped).sum();
    println!("{}", line("all", dropped, &all));
    let [half, most, max] = milliseconds(&delays);
    println!("every message, lost or not, from when it was due: {half}, {most}, {max}");
}

fn line(who: &str, dropped: u64, losses: &Histogram) -> String {
    let [half, most, max] = milliseconds(losses);
    let repaired = losses.count();
    format!("{who:8} {dropped:9} {repaired:9} {half:>9} {most:>10} {max:>9}")
}

/// Median, 99th percentile and maximum.
fn milliseconds(waits: &Histogram) -> [String; 3] {
    [0.5, 0.99, 1.0].map(|share| match waits.quantile(share) {
        Some(time) => format!("{:.3}", time.as_secs_f64() * 1e3),
        None => "-".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_messages_arrive_and_losses_are_counted() {
        let words = "losses --nodes 9 --messages 400 --loss 5 --every 1";
        let options = Options::try_parse_from(words.split(' ')).unwrap();
        let ends = run(&options).unwrap();
        assert_eq!(ends.len(), 9);
        assert_eq!(ends[0].counters.losses.count(), 0, "the root lacks nothing");
        for (i, end) in ends.iter().enumerate().skip(1) {
            assert!(end.dropped > 0 && end.counters.losses.count() > 0, "{i}");
            assert_eq!(end.delays.count(), 400, "{i}");
        }
    }

    #[test]
    fn messages_leave_in_bursts() {
        let options = Options::parse_from(["losses", "--every", "1"]);
        let ms: Vec<u128> = (0..14).map(|i| due(&options, i).as_millis()).collect();
        assert_eq!(ms, [1, 2, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 5, 6]);
    }
}
