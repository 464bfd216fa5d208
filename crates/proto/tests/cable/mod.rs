//! A sender and its receivers at one cable, under virtual time and without payload bytes. The
//! benchmark and the test of allocations run on it.
//!
//! Each datagram occupies the cable for the time that the rate implies, and every receiver loses
//! datagrams independently. The run records the inputs of each node with their times, so that a
//! single node can replay them.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::rng::Rng;
use fabricast_proto::wire::{self, DATA_OVERHEAD, Writer};
use fabricast_proto::{
    AddressId, Command, Config, Counters, Dest, Event, GroupId, Node, NodeId, Outcome, Output,
    Placement, Scheme, Seq, Session, Time, Token,
};

/// Payload of a data packet in bytes.
const PAYLOAD: u32 = 1440;
const GROUP: GroupId = GroupId(1);
/// Length of the objects that members broadcast before the measured one, in bytes.
const SHORT: u64 = 8;
/// Pause between these broadcasts and the measured one.
const PAUSE: Duration = Duration::from_millis(1);
/// Bytes that Ethernet, IP and UDP add to a datagram.
const BELOW: u64 = 42;
/// Delay from one end to the other, without the queue.
const DELAY: Duration = Duration::from_micros(50);
/// Most datagrams that a driver takes from its node before it reports them as sent.
const BATCH: usize = 64;

/// Parameters of one broadcast.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of receivers.
    pub receivers: u32,
    /// Data packets of the object.
    pub packets: u32,
    /// Share of the datagrams that each node loses.
    pub loss: f64,
    /// Rate of the cable in bytes per second.
    pub rate: u64,
    /// Members that have each broadcast [`SHORT`] bytes before, and whose streams therefore exist
    /// at every node.
    pub streams: u32,
}

/// A function around each step of a node. It gets the node's number, its counters so far, and the
/// step, which it must call.
pub type Around<'a> = dyn FnMut(u32, Counters, &mut dyn FnMut()) + 'a;

impl Plan {
    /// Node `i` in its initial state, before the short broadcasts; node 0 is the sender.
    pub fn peer(&self, i: u32) -> Peer {
        let config = Config {
            node: NodeId(i),
            session: Session(7),
            scheme: Scheme::auto(),
            unexpected_max: 0,
            backlog: 1024,
            rate: None,
            patience: Duration::from_secs(60),
        };
        let mut node = Node::new(config, 1);
        let add = Command::GroupAdd {
            group: GROUP,
            address: Some(AddressId(GROUP.0)),
            members: (0..=self.receivers).map(NodeId).collect(),
            payload_size: PAYLOAD,
            start: Seq(0u32.wrapping_sub(self.packets / 2)), // the numbers wrap on the way
        };
        node.command(Time::ZERO, add).expect("a new node");
        let mut peer = Peer {
            node,
            buffer: vec![0; PAYLOAD as usize + DATA_OVERHEAD],
            space: vec![0; HEAD_MAX.max(PAYLOAD as usize + DATA_OVERHEAD)],
            tokens: Vec::with_capacity(BATCH),
            incomplete: 0,
        };
        for sender in 0..self.streams {
            peer.begin(Time::ZERO, i, sender, SHORT);
        }
        peer
    }

    /// Has node `i` begin the measured broadcast.
    fn begin(&self, now: Time, i: u32, peer: &mut Peer) {
        peer.begin(now, i, 0, u64::from(self.packets) * u64::from(PAYLOAD));
    }

    /// Runs the short broadcasts until every node waits for ever, then the measured one until every
    /// node has completed it. Calls `around` for every step of a node in the latter.
    pub fn run(&self, around: &mut Around<'_>) -> Vec<Record> {
        let peers = (0..=self.receivers).map(|i| self.peer(i));
        let mut cable = Cable {
            plan: *self,
            rng: Rng::new(1),
            free: Time::ZERO,
            ends: peers.map(End::new).collect(),
            sent: Batch::roomy(),
        };
        let mut began = Time(1);
        if self.streams > 0 {
            let mut last = Time::ZERO;
            while let Some(now) = cable.step(&mut |_, _, step| step()) {
                last = now;
            }
            began = last + PAUSE;
        }
        for (i, end) in (0..).zip(&mut cable.ends) {
            assert_eq!(end.peer.incomplete, 0, "node {i} waits for ever");
            end.record.began = (end.record.steps.len(), began);
            self.begin(began, i, &mut end.peer);
            end.wake = began;
        }
        while cable.ends.iter().any(|e| e.peer.incomplete > 0) {
            let stepped = cable.step(around);
            assert!(stepped.is_some(), "everybody waits for ever");
        }
        cable.ends.into_iter().map(End::finish).collect()
    }
}

/// A cable and the nodes at it.
struct Cable {
    plan: Plan,
    rng: Rng,
    /// When the sender's last datagram has left.
    free: Time,
    ends: Vec<End>,
    /// The datagrams of one step.
    sent: Batch,
}

impl Cable {
    /// Has the node step whose turn it is, and returns the time; `None`: all nodes wait for ever.
    fn step(&mut self, around: &mut Around<'_>) -> Option<Time> {
        let Cable { ends, sent, .. } = self;
        let next = (0..ends.len()).min_by_key(|&i| ends[i].next());
        let at = next.expect("there are nodes");
        let now = ends[at].next();
        if now == Time::NEVER {
            return None;
        }
        let end = &mut ends[at];
        let first = end.record.received.list.len();
        let arrived = end.inbox.iter().take_while(|d| d.0.at <= now).count();
        for (d, head) in end.inbox.drain(..arrived) {
            end.record.received.push(d, &head);
        }
        let told = first..end.record.received.list.len();
        sent.clear();
        let (peer, record) = (&mut end.peer, &end.record);
        let mut wake = None;
        let counters = peer.node.counters();
        around(at as u32, counters, &mut || {
            wake = peer.step(now, record.received.part(told.clone()), sent);
        });
        end.wake = wake.unwrap_or(Time::NEVER);
        end.record.steps.push((now, told));
        for (d, head) in sent.part(0..sent.list.len()) {
            let bytes = head.len() as u64 + u64::from(d.payload) + BELOW;
            let mut left = now;
            if at == 0 {
                let took = Duration::from_nanos(bytes * 1_000_000_000 / self.plan.rate);
                self.free = self.free.max(now) + took;
                left = self.free;
            }
            for (i, other) in ends.iter_mut().enumerate() {
                let meant = match d.to {
                    Dest::Address(_) => i != at,
                    Dest::Node(n) => i as u32 == n.0,
                };
                if meant && !self.rng.chance(self.plan.loss) {
                    let d = Datagram {
                        at: left + DELAY,
                        ..d
                    };
                    other.inbox.push_back((d, head.to_vec()));
                }
            }
        }
        Some(now)
    }
}

/// A node at the cable.
struct End {
    peer: Peer,
    wake: Time,
    /// Datagrams under way to the node, in order of arrival.
    inbox: VecDeque<(Datagram, Vec<u8>)>,
    record: Record,
}

impl End {
    fn new(peer: Peer) -> End {
        End {
            peer,
            wake: Time(1),
            inbox: VecDeque::new(),
            record: Record::default(),
        }
    }

    fn next(&self) -> Time {
        let arrival = self.inbox.front().map_or(Time::NEVER, |d| d.0.at);
        self.wake.min(arrival)
    }

    fn finish(mut self) -> Record {
        self.record.counters = self.peer.node.counters();
        self.record
    }
}

/// A datagram whose head is in a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    at: Time,
    to: Dest,
    head: (u32, u32),
    payload: u32,
}

/// Datagrams and their heads.
#[derive(Default)]
pub struct Batch {
    list: Vec<Datagram>,
    heads: Vec<u8>,
}

impl Batch {
    /// An empty batch with room for all datagrams that a step sends.
    pub fn roomy() -> Batch {
        Batch {
            list: Vec::with_capacity(4096),
            heads: Vec::with_capacity(1 << 18),
        }
    }

    fn clear(&mut self) {
        self.list.clear();
        self.heads.clear();
    }

    fn push(&mut self, d: Datagram, head: &[u8]) {
        let start = self.heads.len();
        self.heads.extend_from_slice(head);
        let head = (start as u32, self.heads.len() as u32);
        self.list.push(Datagram { head, ..d });
    }

    fn part(&self, which: Range<usize>) -> impl Iterator<Item = (Datagram, &[u8])> {
        let head = |d: &Datagram| d.head.0 as usize..d.head.1 as usize;
        self.list[which]
            .iter()
            .map(move |d| (*d, &self.heads[head(d)]))
    }
}

/// The inputs of a node, step by step.
#[derive(Default)]
pub struct Record {
    steps: Vec<(Time, Range<usize>)>,
    /// The step before which the measured broadcast began, and when it began.
    began: (usize, Time),
    received: Batch,
    /// The node's counters at the end.
    pub counters: Counters,
}

impl Record {
    /// Brings another node `i`, in its initial state, to where the measured broadcast begins.
    #[allow(dead_code, reason = "only the benchmark does")]
    pub fn prepare(&self, plan: &Plan, i: u32, peer: &mut Peer, sent: &mut Batch) {
        let (first, now) = self.began;
        self.feed(0..first, peer, sent);
        plan.begin(now, i, peer);
    }

    /// Feeds the recorded inputs of the measured broadcast to a prepared node. (It is a function of
    /// its own in the program, so that a profiler can count its instructions.)
    #[inline(never)]
    #[allow(dead_code, reason = "only the benchmark does")]
    pub fn replay(&self, peer: &mut Peer, sent: &mut Batch) {
        self.feed(self.began.0..self.steps.len(), peer, sent);
    }

    fn feed(&self, steps: Range<usize>, peer: &mut Peer, sent: &mut Batch) {
        for (now, told) in &self.steps[steps] {
            sent.clear();
            peer.step(*now, self.received.part(told.clone()), sent);
        }
    }
}

/// A node and its driver, except that the driver moves no bytes.
pub struct Peer {
    pub node: Node,
    /// Receive buffer: a datagram's head, and a payload that no code reads.
    buffer: Vec<u8>,
    /// Memory for the head that the node writes.
    space: Vec<u8>,
    tokens: Vec<Token>,
    /// Operations that are not complete.
    incomplete: u32,
}

impl Peer {
    /// Has this node, number `i`, begin its part in a broadcast of `sender`.
    fn begin(&mut self, now: Time, i: u32, sender: u32, len: u64) {
        let command = match i == sender {
            true => Command::Bcast {
                group: GROUP,
                len,
                awaited: true,
            },
            false => Command::Post {
                group: GROUP,
                sender: NodeId(sender),
                len,
            },
        };
        self.node.command(now, command).expect("there is room");
        self.incomplete += 1;
    }

    /// Feeds the arrived datagrams to the node, and polls it until it waits. Returns when it wants
    /// to be polled again. Does not allocate, unless `sent` grows.
    fn step<'a>(
        &mut self,
        now: Time,
        received: impl Iterator<Item = (Datagram, &'a [u8])>,
        sent: &mut Batch,
    ) -> Option<Time> {
        for (d, head) in received {
            self.buffer[..head.len()].copy_from_slice(head);
            let bytes = &self.buffer[..head.len() + d.payload as usize];
            let datagram = wire::decode(bytes).expect("a node writes what can be read");
            for frame in datagram.frames() {
                match self.node.packet(now, d.at, &datagram.header, &frame) {
                    Placement::Write(extent) | Placement::DecodeXor(extent, _) => {
                        self.node.placed(now, extent, Outcome::Ok);
                    }
                    Placement::CacheParity(_) | Placement::Unexpected(_) | Placement::Discard => {}
                }
            }
        }
        loop {
            let mut head = Writer::new(&mut self.space);
            let mut until = None;
            match self.node.poll(now, &mut head) {
                Output::Transmit(t) => {
                    let payload = t.payload.map_or(0, |p| p.len());
                    let d = Datagram {
                        at: now,
                        to: t.to,
                        head: (0, 0),
                        payload,
                    };
                    sent.push(d, &head);
                    self.tokens.push(t.token);
                }
                Output::DecodeParity(block, lacking) => {
                    for extent in block.extents(lacking) {
                        self.node.placed(now, extent, Outcome::Ok);
                    }
                }
                Output::Event(Event::Complete(_)) => self.incomplete -= 1,
                Output::Wait(wake) => until = Some(wake),
                _ => {}
            }
            if let Some(wake) = until.filter(|_| self.tokens.is_empty()) {
                return wake;
            }
            if until.is_some() || self.tokens.len() == BATCH {
                for token in self.tokens.drain(..) {
                    self.node.sent(now, token);
                }
            }
        }
    }
}
