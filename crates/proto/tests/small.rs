//! Exhaustive tests of small cases: one sender, a few receivers, every pattern of early losses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fabricast_proto::wire::{self, Frame};
use fabricast_proto::{
    AddressId, CodeBlock, Command, Config, Dest, Event, Extent, GroupId, Node, NodeId, OpId,
    Outcome, Output, Packets, PathState, Payload, Placement, Scheme, Seq, Session, Time, Token,
};

const GROUP: GroupId = GroupId(9);
const PAYLOAD: u32 = 64;
const DELAY: Duration = Duration::from_micros(50);

type Lose = dyn FnMut(u32, usize, &[u8]) -> bool;

/// Nodes and a network that delays every datagram alike, and drops those that `lose` chooses.
struct Net {
    now: Time,
    nodes: Vec<Node>,
    wire: VecDeque<(Time, usize, Vec<u8>)>,
    sources: BTreeMap<(usize, OpId), Vec<u8>>,
    sinks: BTreeMap<(usize, OpId), Vec<u8>>,
    held: BTreeMap<(usize, Token), Vec<u8>>,
    /// Indices of the parity packets that each node has cached, by node and block.
    kept: BTreeMap<(usize, CodeBlock), BTreeSet<u8>>,
    complete: Vec<(usize, OpId)>,
    mismatches: Vec<(usize, OpId)>,
    sent: u32,
    /// Returns whether the network loses a copy of a datagram, given the number of the copy, the
    /// receiving node and the bytes.
    lose: Box<Lose>,
}

impl Net {
    fn new(
        nodes: u32,
        start: Seq,
        unexpected_max: u32,
        lose: impl FnMut(u32, usize, &[u8]) -> bool + 'static,
    ) -> Net {
        let members: Vec<NodeId> = (0..nodes).map(NodeId).collect();
        let nodes = members.iter().map(|&node| {
            let config = Config {
                node,
                session: Session(7),
                scheme: Scheme::auto(),
                unexpected_max,
                backlog: 1000,
                rate: None,
                patience: Duration::from_secs(60),
            };
            let mut n = Node::new(config, 1);
            let add = Command::GroupAdd {
                group: GROUP,
                address: Some(AddressId(GROUP.0)),
                members: members.clone(),
                payload_size: PAYLOAD,
                start,
            };
            n.command(Time::ZERO, add).unwrap();
            n
        });
        Net {
            now: Time(1),
            nodes: nodes.collect(),
            wire: VecDeque::new(),
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            held: BTreeMap::new(),
            kept: BTreeMap::new(),
            complete: Vec::new(),
            mismatches: Vec::new(),
            sent: 0,
            lose: Box::new(lose),
        }
    }

    fn bcast(&mut self, sender: usize, bytes: Vec<u8>) -> OpId {
        let len = bytes.len() as u64;
        let op = self.nodes[sender].command(
            self.now,
            Command::Bcast {
                group: GROUP,
                len,
                awaited: true,
            },
        );
        let op = op.unwrap().unwrap();
        self.sources.insert((sender, op), bytes);
        op
    }

    fn post(&mut self, at: usize, sender: usize, len: u64) -> OpId {
        let post = Command::Post {
            group: GROUP,
            sender: NodeId(sender as u32),
            len,
        };
        let op = self.nodes[at].command(self.now, post).unwrap().unwrap();
        self.sinks.insert((at, op), vec![0xee; len as usize]);
        op
    }

    fn write(&mut self, at: usize, extent: Extent, bytes: &[u8]) {
        let sink = self.sinks.get_mut(&(at, extent.op)).unwrap();
        assert_eq!(extent.len as usize, bytes.len());
        sink[extent.offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.nodes[at].placed(self.now, extent, Outcome::Ok);
    }

    /// Stands in for the decoder: takes the missing packets from the only object that was sent.
    fn rebuild(&mut self, at: usize, block: &CodeBlock, lacking: Packets) {
        let kept = self.kept.remove(&(at, *block)).unwrap();
        assert_eq!(kept.len(), lacking.count_ones() as usize);
        let object = self.sources.values().next().unwrap().clone();
        for e in block.extents(lacking) {
            self.write(at, e, &object[e.offset as usize..][..e.len as usize]);
        }
    }

    /// Polls one node until it waits. Returns when it wants to be polled again.
    fn drain(&mut self, at: usize) -> Option<Time> {
        loop {
            let mut bytes = Vec::new();
            let output = self.nodes[at].poll(self.now, &mut bytes);
            self.nodes[at].invariants();
            match output {
                Output::Wait(t) => return t,
                Output::Event(Event::Complete(op)) => self.complete.push((at, op)),
                Output::Event(Event::Mismatch(op)) => self.mismatches.push((at, op)),
                Output::Event(e) => panic!("node {at}: {e:?}"),
                Output::Release(_) | Output::Discard(_) => {}
                Output::DropParity(block) => _ = self.kept.remove(&(at, block)),
                Output::DecodeParity(block, lacking) => self.rebuild(at, &block, lacking),
                Output::Place(token, extent) => {
                    let bytes = self.held.remove(&(at, token)).unwrap();
                    self.write(at, extent, &bytes);
                }
                Output::Transmit(t) => {
                    if let Some(payload) = t.payload {
                        let object = &self.sources[&(at, payload.op())];
                        let head = bytes.len();
                        bytes.resize(head + payload.len() as usize, 0);
                        match payload {
                            Payload::Extent(e) => add(&mut bytes[head..], object, e),
                            Payload::Xor(s) => {
                                s.extents().for_each(|e| add(&mut bytes[head..], object, e));
                            }
                            // Parity packets stay zero: `rebuild` needs only their number.
                            Payload::Parity(_) => {}
                        }
                    }
                    self.nodes[at].sent(self.now, t.token);
                    let to: Vec<usize> = match t.to {
                        Dest::Node(n) => vec![n.0 as usize],
                        Dest::Address(_) => {
                            assert!(self.nodes.len() > 2, "a group of two has no address");
                            (0..self.nodes.len()).filter(|&n| n != at).collect()
                        }
                    };
                    for n in to {
                        let i = self.sent;
                        self.sent += 1;
                        if !(self.lose)(i, n, &bytes) {
                            self.wire.push_back((self.now + DELAY, n, bytes.clone()));
                        }
                    }
                }
            }
        }
    }

    /// Runs until no datagram is under way and no node waits for a time before `until`.
    fn run(&mut self, until: Time) {
        loop {
            let wakes: Vec<_> = (0..self.nodes.len()).map(|n| self.drain(n)).collect();
            let wake = wakes.into_iter().flatten().min();
            let arrival = self.wire.front().map(|w| w.0);
            let next = match (wake, arrival) {
                (Some(a), Some(b)) => a.min(b),
                (a, b) => match a.or(b) {
                    Some(t) => t,
                    None => return,
                },
            };
            if next > until {
                return;
            }
            assert!(next > self.now || arrival == Some(next));
            self.now = self.now.max(next);
            while self.wire.front().is_some_and(|w| w.0 <= self.now) {
                let (_, at, bytes) = self.wire.pop_front().unwrap();
                let datagram = wire::decode(&bytes).unwrap();
                for frame in datagram.frames() {
                    let placement =
                        self.nodes[at].packet(self.now, self.now, &datagram.header, &frame);
                    let payload = match frame {
                        Frame::Data(data) => data.payload,
                        Frame::Xor(coded) => coded.payload,
                        Frame::Parity(parity) => parity.payload,
                        _ => continue,
                    };
                    match placement {
                        Placement::Write(extent) => self.write(at, extent, payload),
                        Placement::DecodeXor(extent, others) => {
                            let mut sum = payload.to_vec();
                            let sink = &self.sinks[&(at, others.op)];
                            others.extents().for_each(|e| add(&mut sum, sink, e));
                            self.write(at, extent, &sum[..extent.len as usize]);
                        }
                        Placement::CacheParity(parity) => {
                            let kept = self.kept.entry((at, parity.block)).or_default();
                            assert!(kept.insert(parity.index), "kept already");
                        }
                        Placement::Unexpected(token) => {
                            self.held.insert((at, token), payload.to_vec());
                        }
                        Placement::Discard => {}
                    }
                }
            }
        }
    }
}

/// Adds an extent of an object to `sum` by exclusive or.
fn add(sum: &mut [u8], object: &[u8], e: Extent) {
    let bytes = &object[e.offset as usize..][..e.len as usize];
    sum.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
}

fn bytes(len: usize, salt: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ salt)
        .collect()
}

fn is_data(b: &[u8]) -> bool {
    b[wire::HEADER_LEN] == wire::kind::DATA
}

/// Two receivers get objects of lengths around the payload size, with numbers across the wrap. The
/// network loses every subset of the first eight copies of data packets.
#[test]
fn every_pattern_of_early_losses_is_repaired() {
    for len in [0usize, 1, 63, 64, 65, 128, 200] {
        for pattern in 0u32..1 << 8 {
            let mut count = 0;
            let mut net = Net::new(3, Seq(u32::MAX - 1), 0, move |_, _, b| {
                if !is_data(b) {
                    return false;
                }
                count += 1;
                count <= 8 && pattern >> (count - 1) & 1 == 1
            });
            let object = bytes(len, 5);
            let posts: Vec<_> = (1..3).map(|n| net.post(n, 0, len as u64)).collect();
            let op = net.bcast(0, object.clone());
            net.run(Time(3_000_000_000));
            for (n, post) in (1..3).zip(posts) {
                assert_eq!(
                    net.sinks[&(n, post)],
                    object,
                    "len {len} pattern {pattern:b}"
                );
                assert!(net.complete.contains(&(n, post)));
            }
            assert!(
                net.complete.contains(&(0, op)),
                "len {len} pattern {pattern:b}"
            );
            assert_eq!(net.complete.len(), 3);
        }
    }
}

/// The network loses every subset of the first ten datagrams of any kind, feedback and probes
/// included.
#[test]
fn lost_feedback_is_said_again() {
    for pattern in 0u32..1 << 10 {
        let mut net = Net::new(2, Seq(0), 0, move |i, _, _| i < 10 && pattern >> i & 1 == 1);
        let object = bytes(150, 1);
        let post = net.post(1, 0, 150);
        net.bcast(0, object.clone());
        net.run(Time(5_000_000_000));
        assert_eq!(net.sinks[&(1, post)], object, "pattern {pattern:b}");
        assert_eq!(net.complete.len(), 2, "pattern {pattern:b}");
    }
}

/// In a group of two, messages go both ways at once, and the network loses every subset of the
/// first ten datagrams. Messages arrive in order, and nothing is sent by multicast.
#[test]
fn a_group_of_two_is_a_channel_of_reliable_messages() {
    for pattern in 0u32..1 << 10 {
        let mut net = Net::new(2, Seq(u32::MAX - 1), 4, move |i, _, _| {
            i < 10 && pattern >> i & 1 == 1
        });
        let lens = [65usize, 0, 200];
        let message = |from: usize, i: usize| bytes(lens[i], (2 * i + from) as u8);
        let mut posts = Vec::new();
        for (i, &len) in lens.iter().enumerate() {
            for from in 0..2 {
                net.bcast(from, message(from, i));
                // The receiver posts the last message only when the others have arrived.
                if i < 2 {
                    posts.push((from, i, net.post(1 - from, from, len as u64)));
                }
            }
        }
        net.run(Time(1_000_000_000));
        assert_eq!(net.complete.len(), 8, "pattern {pattern:b}");
        for from in 0..2 {
            posts.push((from, 2, net.post(1 - from, from, lens[2] as u64)));
        }
        net.run(Time(6_000_000_000));
        assert_eq!(net.complete.len(), 12, "pattern {pattern:b}");
        for (from, i, post) in posts {
            assert_eq!(net.sinks[&(1 - from, post)], message(from, i));
        }
        for node in &net.nodes {
            let c = node.counters();
            assert_eq!((c.data, c.repairs_multicast, c.data_unicast), (0, 0, 7));
            assert!(
                node.members(GROUP)
                    .all(|m| m.path_state == PathState::Unicast)
            );
        }
    }
}

/// Two senders send several broadcasts at once, to receivers that can hold packets of operations
/// that they have not posted.
#[test]
fn streams_of_two_senders_do_not_mix() {
    let mut lost = 0;
    let mut net = Net::new(3, Seq(u32::MAX - 4), 16, move |_, _, b| {
        lost += u32::from(is_data(b));
        is_data(b) && lost % 5 == 0
    });
    let lens = [100usize, 0, 64, 1000, 1];
    let mut sent = Vec::new();
    for (i, &len) in lens.iter().enumerate() {
        for sender in [0usize, 1] {
            net.bcast(sender, bytes(len, (i * 2 + sender) as u8));
            sent.push((sender, len, (i * 2 + sender) as u8));
        }
    }
    net.run(Time(20_000_000));
    let mut posts = Vec::new();
    for &(sender, len, salt) in &sent {
        for at in (0..3).filter(|&n| n != sender) {
            posts.push((at, net.post(at, sender, len as u64), bytes(len, salt)));
        }
    }
    net.run(Time(5_000_000_000));
    for (at, post, want) in posts {
        assert_eq!(net.sinks[&(at, post)], want);
    }
    assert_eq!(net.complete.len(), 30);
}

/// A receiver posts late: before that the sender sends it nothing and does not wait for it, and
/// afterwards the receiver gets everything.
#[test]
fn late_is_not_lost() {
    let mut net = Net::new(4, Seq(0), 0, |_, _, _| false);
    let object = bytes(64 * 300, 3);
    let posts: Vec<_> = (1..3)
        .map(|n| net.post(n, 0, object.len() as u64))
        .collect();
    net.bcast(0, object.clone());
    net.run(Time(500_000_000));
    for (n, post) in (1..3).zip(&posts) {
        assert!(net.complete.contains(&(n, *post)), "{n} was held up");
    }
    let counters = net.nodes[0].counters();
    assert_eq!(counters.repairs_multicast + counters.repairs_unicast, 0);
    let late = net.post(3, 0, object.len() as u64);
    net.run(Time(5_000_000_000));
    assert_eq!(net.sinks[&(3, late)], object);
    assert_eq!(net.complete.len(), 4);
    assert_eq!(net.nodes[0].counters().repairs_multicast, 0);
}

/// Every receiver loses another packet: one XOR repair packet mends all losses but that of the last
/// packet, which shows where the operation ends. The sender does not combine packets that the same
/// receiver lacks. A second broadcast shows the loss at the end of the first.
#[test]
fn one_xor_repair_packet_mends_different_losses() {
    for shared in [false, true] {
        let mut net = Net::new(7, Seq(u32::MAX - 3), 0, move |_, to, b| {
            let Some(Frame::Data(d)) = wire::decode(b).unwrap().frames().next() else {
                return false;
            };
            let index = d.seq.from(Seq(u32::MAX - 3)) as usize;
            let lost = index == to + 5 || shared && index == 2 && to == 3;
            lost && d.flags & wire::flag::REPAIR == 0
        });
        let objects = [bytes(64 * 11 + 7, 5), bytes(100, 9)];
        let mut posts = Vec::new();
        for object in &objects {
            let len = object.len() as u64;
            posts.extend((1..7).map(|n| (n, net.post(n, 0, len), object)));
            net.bcast(0, object.clone());
        }
        net.run(Time(2_000_000_000));
        for (n, post, object) in posts {
            assert_eq!(&net.sinks[&(n, post)], object, "receiver {n}");
        }
        assert_eq!(net.complete.len(), 14);
        let c = net.nodes[0].counters();
        let repairs = (c.repairs_coded, c.repairs_multicast, c.repairs_unicast);
        assert_eq!(repairs, if shared { (1, 1, 2) } else { (1, 1, 1) });
    }
}

/// Many receivers lose different packets of two blocks. As many parity packets as the neediest
/// receiver lacks mend the losses, whichever of them a receiver gets. A receiver that alone lacks a
/// packet gets it by unicast.
#[test]
fn parity_packets_mend_any_losses_of_a_block() {
    for lost_parity in [false, true] {
        let start = Seq(u32::MAX - 3);
        let mut net = Net::new(21, start, 0, move |_, to, b| {
            match wire::decode(b).unwrap().frames().next() {
                Some(Frame::Data(d)) => {
                    let index = d.seq.from(start) as usize;
                    let other = index == to || index == 3 * to || index == 40 && to < 3;
                    other && d.flags & wire::flag::REPAIR == 0
                        || index == 199 && to == 9 && { d.flags & wire::flag::REPAIR == 0 }
                }
                Some(Frame::Parity(p)) => lost_parity && p.index == 1 && to == 2,
                _ => false,
            }
        });
        let object = bytes(64 * 199 + 7, 5);
        let posts: Vec<_> = (1..21)
            .map(|n| (n, net.post(n, 0, object.len() as u64)))
            .collect();
        net.bcast(0, object.clone());
        net.run(Time(2_000_000_000));
        for (n, post) in posts {
            assert_eq!(net.sinks[&(n, post)], object, "receiver {n}");
        }
        assert_eq!((net.complete.len(), net.kept.len()), (21, 0));
        let c = net.nodes[0].counters();
        // Receivers 1 and 2 lack three packets of the first block. Only receiver 9 lacks a packet
        // of the second block.
        let repairs = (c.repairs_coded, c.repairs_multicast, c.repairs_unicast);
        assert_eq!(repairs, (3, 3, if lost_parity { 2 } else { 1 }));
    }
}

/// A receiver posted more or less bytes than the sender sends, and loses exactly the last packet.
/// Others lose other packets, so that parity packets mend the losses. The odd receiver must not
/// take the others' bytes for its own: it reports the mismatch.
#[test]
fn a_parity_packet_shows_where_the_operation_ends() {
    for (packets, odd) in [(200, 8), (200, 6), (128, 7 + 64)] {
        let start = Seq(u32::MAX - 3);
        let mut net = Net::new(21, start, 0, move |_, to, b| {
            match wire::decode(b).unwrap().frames().next() {
                Some(Frame::Data(d)) => {
                    let lost = packets - 1 - to as i32 % 3;
                    d.seq.from(start) == lost && d.flags & wire::flag::REPAIR == 0
                }
                _ => false,
            }
        });
        let whole = 64 * (packets as u64 - 1);
        let object = bytes(whole as usize + 7, 5);
        let posts: Vec<_> = (1..21)
            .map(|n| (n, net.post(n, 0, whole + if n == 3 { odd } else { 7 })))
            .collect();
        net.bcast(0, object.clone());
        net.run(Time(2_000_000_000));
        for (n, post) in posts {
            let odd = n == 3;
            assert_eq!(net.mismatches.contains(&(n, post)), odd, "receiver {n}");
            assert_eq!(net.complete.contains(&(n, post)), !odd, "receiver {n}");
            if !odd {
                assert_eq!(net.sinks[&(n, post)], object, "receiver {n}");
            }
        }
        assert!(net.nodes[0].counters().repairs_coded > 0);
    }
}
