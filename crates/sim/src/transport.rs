//! One host's end of the simulated network, as the driver sees it.
//!
//! The transport shares nothing with the world. The cluster puts arrivals into `inbox` before a
//! step and takes departures from `outbox` after it, so that borrows never conflict.

use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::{Dest, GroupId, NodeId, Time};
use fabricast::transport::{Caps, Outgoing, Transport};

use crate::fabric::{Packet, Target};
use crate::workload::{Costs, Kind};

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
#[derive(Debug)]
pub struct SimTransport {
    caps: Caps,
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
    /// Nodes whose address differs from the numbering; `None`: the node has been forgotten.
    peers: Vec<(NodeId, Option<u32>)>,
    groups: Vec<(GroupId, u32, bool)>,
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
        caps: Caps,
        overhead: u64,
        (batch, sends): (usize, usize),
        back_pressure: bool,
        numbering: Numbering,
        costs: Costs,
    ) -> SimTransport {
        SimTransport {
            caps,
            overhead,
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            batch: batch.max(1),
            received: 0,
            received_ns: 0,
            costs,
            outbox: Vec::new(),
            sends: sends.max(1),
            room: 0,
            pushed_back: false,
            back_pressure,
            numbering,
            peers: Vec::new(),
            groups: Vec::new(),
            memberships: Vec::new(),
        }
    }

    /// Puts a datagram into the receive queue. Returns `false` if the queue is full (receiver not
    /// ready).
    pub(crate) fn deliver(&mut self, now: Time, packet: Rc<Packet>) -> bool {
        let len = packet.bytes.len();
        if self.inbox_bytes + len > self.caps.receive_buffer {
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
            Dest::Group(g) => self
                .groups
                .iter()
                .find(|(id, _, _)| *id == g)
                .map(|&(_, address, _)| Target::Group(address)),
            Dest::Node(n) => match self.peers.iter().find(|(id, _)| *id == n) {
                Some(&(_, host)) => host.map(Target::Host),
                None => self.numbering.host(n).map(Target::Host),
            },
        }
    }
}

impl Transport for SimTransport {
    type Address = Target;

    fn caps(&self) -> Caps {
        self.caps
    }

    fn peer(&mut self, node: NodeId, address: Target) {
        self.peers.retain(|(n, _)| *n != node);
        let usual = self.numbering.host(node).map(Target::Host);
        if usual != Some(address) {
            let host = match address {
                Target::Host(h) => Some(h),
                Target::Group(_) => None,
            };
            self.peers.push((node, host));
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.peers.retain(|(n, _)| *n != node);
        self.peers.push((node, None));
    }

    fn join(&mut self, group: GroupId, address: Target, receive: bool) -> io::Result<()> {
        let Target::Group(g) = address else {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        };
        self.leave(group);
        self.groups.push((group, g, receive));
        if receive {
            self.memberships.push(Membership::Join(g));
        }
        Ok(())
    }

    fn leave(&mut self, group: GroupId) {
        if let Some(i) = self.groups.iter().position(|(id, _, _)| *id == group) {
            let (_, g, receives) = self.groups.remove(i);
            if receives {
                self.memberships.push(Membership::Leave(g));
            }
        }
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
            let mut bytes = Vec::with_capacity(d.len());
            bytes.extend_from_slice(d.head);
            bytes.extend_from_slice(d.body);
            let to = self.target(d.to);
            let kind = match d.to {
                Dest::Group(_) => Kind::Group,
                Dest::Node(_) if d.body.is_empty() => Kind::Word,
                Dest::Node(_) if d.body.len() as u64 >= self.costs.long_from => Kind::Long,
                Dest::Node(_) => Kind::Message,
            };
            self.outbox.push(Departure {
                to,
                dest: d.to,
                kind,
                bytes,
            });
        }
        Ok(batch.len())
    }

    fn recv(&mut self, _now: Time, sink: &mut dyn FnMut(Time, &[u8])) -> io::Result<usize> {
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
            sink(arrived, &packet.bytes);
        }
        Ok(count)
    }

    fn is_drained(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Does nothing: the event queue waits, not the transport.
    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }
}
