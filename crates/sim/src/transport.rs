//! One host's end of the simulated network, as the driver sees it.
//!
//! The transport shares nothing with the world. The cluster puts arrivals into `inbox` before a
//! step and takes departures from `outbox` after it, so that borrows never conflict.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use fabricast::driver::Driver;
use fabricast::proto::wire;
use fabricast::proto::{AddressId, Dest, NodeId, Time};
use fabricast::transport::delayed::{Delayed, Delays};
use fabricast::transport::{
    Arrival, Caps, DatagramId, GroupAddress, NodeAddress, Outgoing, Sleeper, Slots, Transport,
    Watch,
};

use crate::fabric::{Packet, Target};
use crate::object::PatternObject;
use crate::workload::{Costs, Kind};

/// How late the network reads a host's datagrams, if the scenario of this seed says `delay`. A
/// scenario that does not say it has the delays of all tests.
pub(crate) fn delays(delay: Option<Duration>, seed: u64, host: u32) -> Option<Delays> {
    let seed = seed ^ u64::from(host) << 32 ^ 0xde1a;
    let delays = match delay {
        Some(longest) => Some(Delays { seed, longest }),
        None => Delays::in_tests(seed),
    };
    delays.filter(|delays| !delays.longest.is_zero())
}

/// The driver of a host.
pub(crate) type HostDriver = Driver<Delayed<SimTransport>, Box<PatternObject>>;

/// The source of a datagram that names none.
const NOBODY: NodeId = NodeId(u32::MAX);

/// A datagram that the driver has sent in the step just ended.
#[derive(Debug)]
pub(crate) struct Departure {
    /// The destination. `None`: the transport does not know it and drops the datagram, as a socket
    /// would.
    pub(crate) to: Option<Target>,
    pub(crate) dest: Dest,
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
}

/// A change of membership that the driver has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Membership {
    Join(u32),
    Leave(u32),
}

/// The transport of a simulated host.
pub struct SimTransport {
    caps: Caps,
    /// Bytes that the receive queue holds.
    receive_buffer: usize,
    overhead: u64,
    /// Datagrams that have arrived, each with its time.
    inbox: VecDeque<(Time, Rc<Packet>)>,
    inbox_bytes: usize,
    /// Most datagrams that one step may take, as one `recvmmsg` would.
    batch: usize,
    received: usize,
    /// Processor time for the received datagrams, in nanoseconds.
    received_ns: u64,
    costs: Costs,
    outbox: Vec<Departure>,
    slots: Slots,
    /// Datagrams that were sent and not named as completed.
    sent: Vec<DatagramId>,
    /// Memory for the datagram that is handed up.
    arriving: Vec<u8>,
    /// Most datagrams that one step may send.
    sends: usize,
    /// Bytes that the host's queue still takes in this step.
    room: u64,
    /// Whether the last step met a full queue.
    pushed_back: bool,
    /// Whether a full queue pushes back; otherwise it drops what does not fit.
    back_pressure: bool,
    /// Node numbers are `first + stride * host`; `peers` lists the addresses that differ from that.
    numbering: Numbering,
    /// The number of this host.
    host: u32,
    /// Nodes whose address differs from the numbering; `None`: the node has been forgotten.
    peers: Vec<(NodeId, Option<u32>)>,
    addresses: Vec<(AddressId, u32, bool)>,
    memberships: Vec<Membership>,
}

/// How hosts are numbered as nodes. Numbers do not start at zero, so that nobody confuses the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbering {
    /// Number of the first host.
    pub first: u32,
    /// Distance between the numbers of two hosts.
    pub stride: u32,
    /// Number of hosts.
    pub hosts: u32,
}

impl Numbering {
    /// The node that runs on a host.
    pub fn node(&self, host: u32) -> NodeId {
        NodeId(self.first + self.stride * host)
    }

    /// The host on which a node runs.
    pub fn host(&self, node: NodeId) -> Option<u32> {
        let d = node.0.checked_sub(self.first)?;
        (d % self.stride == 0 && d / self.stride < self.hosts).then_some(d / self.stride)
    }
}

impl SimTransport {
    pub(crate) fn new(
        (caps, receive_buffer): (Caps, usize),
        overhead: u64,
        (batch, sends): (usize, usize),
        back_pressure: bool,
        (numbering, host): (Numbering, u32),
        costs: Costs,
    ) -> SimTransport {
        SimTransport {
            caps,
            receive_buffer,
            overhead,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            batch: batch.max(1),
            received: 0,
            received_ns: 0,
            costs,
            outbox: Vec::new(),
            slots: Slots::new(caps.datagram_max),
            sent: Vec::new(),
            arriving: Vec::new(),
            sends: sends.max(1),
            room: 0,
            pushed_back: false,
            back_pressure,
            numbering,
            host,
            peers: Vec::new(),
            addresses: Vec::new(),
            memberships: Vec::new(),
        }
    }

    /// Puts a datagram into the receive queue. Returns `false` if the queue is full (receiver not
    /// ready).
    pub(crate) fn deliver(&mut self, now: Time, packet: Rc<Packet>) -> bool {
        let len = packet.bytes.len();
        if self.inbox_bytes + len > self.receive_buffer {
            return false;
        }
        self.inbox_bytes += len;
        self.inbox.push_back((now, packet));
        true
    }

    /// Begins a step: `room` is the number of bytes that the network takes in it.
    pub(crate) fn begin(&mut self, room: u64) {
        self.room = room;
        self.pushed_back = false;
        self.received = 0;
        self.received_ns = 0;
    }

    /// Datagrams that the step has received, and the nanoseconds that the processor needs for them.
    pub(crate) fn received(&self) -> (usize, u64) {
        (self.received, self.received_ns)
    }

    /// Whether the step met a full sending queue.
    pub(crate) fn pushed_back(&self) -> bool {
        self.pushed_back
    }

    /// Whether datagrams wait to be received.
    pub(crate) fn waiting(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(crate) fn outbox(&mut self) -> &mut Vec<Departure> {
        &mut self.outbox
    }

    pub(crate) fn memberships(&mut self) -> &mut Vec<Membership> {
        &mut self.memberships
    }

    fn target(&self, dest: Dest) -> Option<Target> {
        match dest {
            Dest::Address(id) => self
                .addresses
                .iter()
                .find(|(known, _, _)| *known == id)
                .map(|&(_, address, _)| Target::Group(address)),
            Dest::Node(n) => match self.peers.iter().find(|(id, _)| *id == n) {
                Some(&(_, host)) => host.map(Target::Host),
                None => self.numbering.host(n).map(Target::Host),
            },
        }
    }
}

impl Transport for SimTransport {
    fn caps(&self) -> Caps {
        self.caps
    }

    fn backlog(&self, _payload_size: u32) -> u32 {
        (self.receive_buffer / self.caps.datagram_max) as u32
    }

    fn address(&self) -> NodeAddress {
        NodeAddress::Number(self.host)
    }

    /// The address of a node is the number of its host.
    fn peer(&mut self, node: NodeId, address: &NodeAddress) {
        self.peers.retain(|(n, _)| *n != node);
        let host = address.number();
        if self.numbering.host(node) != host {
            self.peers.push((node, host));
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.peers.retain(|(n, _)| *n != node);
        self.peers.push((node, None));
    }

    /// A multicast address is a number in the fabric.
    fn join(&mut self, id: AddressId, address: &GroupAddress, receive: bool) {
        self.leave(id);
        if let GroupAddress::Number(g) = *address {
            self.addresses.push((id, g, receive));
            if receive {
                self.memberships.push(Membership::Join(g));
            }
        }
    }

    fn leave(&mut self, id: AddressId) {
        if let Some(i) = self.addresses.iter().position(|(known, _, _)| *known == id) {
            let (_, g, receives) = self.addresses.remove(i);
            if receives {
                self.memberships.push(Membership::Leave(g));
            }
        }
    }

    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn send(&mut self, _now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        for (i, d) in batch.iter().enumerate() {
            assert!(
                d.len() <= self.caps.datagram_max,
                "a datagram of {} bytes, the path takes {}",
                d.len(),
                self.caps.datagram_max
            );
            let takes = d.len() as u64 + self.overhead;
            let enough = self.outbox.len() == self.sends;
            if enough || takes > self.room && self.back_pressure {
                self.pushed_back = true;
                return Ok(i);
            }
            self.room = self.room.saturating_sub(takes);
            let bytes = self.slots.pieces(d).concat();
            let to = self.target(d.to);
            let kind = match d.to {
                Dest::Address(_) => Kind::Group,
                Dest::Node(_) if d.payload_len() == 0 => Kind::Word,
                Dest::Node(_) if d.payload_len() as u64 >= self.costs.long_from => Kind::Long,
                Dest::Node(_) => Kind::Message,
            };
            self.outbox.push(Departure {
                to,
                dest: d.to,
                kind,
                bytes,
            });
            self.sent.push(d.id);
        }
        Ok(batch.len())
    }

    fn completions(&mut self, _now: Time, done: &mut dyn FnMut(DatagramId)) {
        self.sent.drain(..).for_each(done);
    }

    /// Every host of the simulation can send in any node's name: the source is what the datagram
    /// says.
    fn recv(&mut self, _now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        let mut count = 0;
        while self.received < self.batch {
            let Some((arrived, packet)) = self.inbox.pop_front() else {
                break;
            };
            self.inbox_bytes -= packet.bytes.len();
            self.received += 1;
            let cost = self.costs.of(packet.kind);
            self.received_ns += cost.receive_ns(packet.bytes.len() as u64);
            count += 1;
            let from = wire::source(&packet.bytes).or(Some(NOBODY));
            // The other receivers of the packet get the same bytes.
            self.arriving.clear();
            self.arriving.extend_from_slice(&packet.bytes);
            sink(&mut Arrival::borrowed(from, arrived, &mut self.arriving));
        }
        Ok(count)
    }

    fn is_drained(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Does nothing: the event queue waits, no thread does.
    fn attach(&mut self, _sleeper: &Sleeper) -> io::Result<Box<dyn Watch>> {
        struct Nobody;
        impl Watch for Nobody {}
        Ok(Box::new(Nobody))
    }

    /// Does nothing: the event queue waits, not the transport.
    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}
