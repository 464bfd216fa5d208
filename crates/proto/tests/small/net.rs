//! Nodes, and a network that loses what a test chooses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::{self, Frame, Writer};
use fabricast_proto::{
    AddressId, CodeBlock, Command, Config, Dest, Event, Extent, GroupId, Node, NodeId, OpId,
    Outcome, Output, Packets, Payload, Placement, Scheme, Seq, Session, Time, Token,
};

pub const GROUP: GroupId = GroupId(9);
pub const PAYLOAD: u32 = 64;
const DELAY: Duration = Duration::from_micros(50);

type Lose = dyn FnMut(u32, usize, &[u8]) -> bool;

/// Nodes and a network that delays every datagram alike, and drops those that `lose` chooses.
pub struct Net {
    pub now: Time,
    pub nodes: Vec<Node>,
    wire: VecDeque<(Time, usize, Vec<u8>)>,
    pub sources: BTreeMap<(usize, OpId), Vec<u8>>,
    pub sinks: BTreeMap<(usize, OpId), Vec<u8>>,
    pub held: BTreeMap<(usize, Token), Vec<u8>>,
    /// Indices of the parity packets that each node has cached, by node and block.
    pub kept: BTreeMap<(usize, CodeBlock), BTreeSet<u8>>,
    pub complete: Vec<(usize, OpId)>,
    pub mismatches: Vec<(usize, OpId)>,
    /// Whether nodes may find that multicast does not reach a member.
    pub paths_change: bool,
    sent: u32,
    /// Returns whether the network loses a copy of a datagram, given the number of the copy, the
    /// receiving node and the bytes.
    lose: Box<Lose>,
}

impl Net {
    pub fn new(
        nodes: u32,
        start: Seq,
        unexpected_max: u32,
        lose: impl FnMut(u32, usize, &[u8]) -> bool + 'static,
    ) -> Net {
        Net::founded(nodes, nodes, start, unexpected_max, lose)
    }

    /// A network on which the first `founders` nodes are the members of the group.
    pub fn founded(
        nodes: u32,
        founders: u32,
        start: Seq,
        unexpected_max: u32,
        lose: impl FnMut(u32, usize, &[u8]) -> bool + 'static,
    ) -> Net {
        let members: Vec<NodeId> = (0..founders).map(NodeId).collect();
        let nodes = (0..nodes).map(|node| {
            let config = Config {
                node: NodeId(node),
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
            if node < founders {
                n.command(Time::ZERO, add).unwrap();
            }
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
            paths_change: false,
            sent: 0,
            lose: Box::new(lose),
        }
    }

    pub fn bcast(&mut self, sender: usize, bytes: Vec<u8>) -> OpId {
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

    pub fn post(&mut self, at: usize, sender: usize, len: u64) -> OpId {
        let post = Command::Post {
            group: GROUP,
            sender: NodeId(sender as u32),
            len,
        };
        let op = self.nodes[at].command(self.now, post).unwrap().unwrap();
        self.sinks.insert((at, op), vec![0xee; len as usize]);
        op
    }

    pub fn decline(&mut self, at: usize, sender: usize, len: u64) {
        let decline = Command::Decline {
            group: GROUP,
            sender: NodeId(sender as u32),
            len,
        };
        assert_eq!(self.nodes[at].command(self.now, decline), Ok(None));
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
            let mut space = [0; HEAD_MAX];
            let mut head = Writer::new(&mut space);
            let output = self.nodes[at].poll(self.now, &mut head);
            self.nodes[at].invariants();
            match output {
                Output::Wait(t) => return t,
                Output::Event(Event::Complete(op)) => self.complete.push((at, op)),
                Output::Event(Event::Path { .. }) if self.paths_change => {}
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
                    let mut bytes = head.to_vec();
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
    pub fn run(&mut self, until: Time) {
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
                self.deliver(at, &bytes);
            }
        }
    }

    /// Copies of datagrams sent so far, those that were lost included.
    pub fn sent(&self) -> u32 {
        self.sent
    }

    /// Gives a node a datagram.
    pub fn deliver(&mut self, at: usize, bytes: &[u8]) {
        let datagram = wire::decode(bytes).unwrap();
        for frame in datagram.frames() {
            let placement = self.nodes[at].packet(self.now, self.now, &datagram.header, &frame);
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

/// Adds an extent of an object to `sum` by exclusive or.
fn add(sum: &mut [u8], object: &[u8], e: Extent) {
    let bytes = &object[e.offset as usize..][..e.len as usize];
    sum.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
}

pub fn bytes(len: usize, salt: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31) ^ salt)
        .collect()
}

pub fn is_data(b: &[u8]) -> bool {
    b[wire::HEADER_LEN] == wire::kind::DATA
}
