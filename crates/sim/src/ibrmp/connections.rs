//! P3's baseline (P3.8): the same data by reliable connections alone, one to each receiver. Each
//! keeps some messages under way, and the receiver acknowledges each message by itself.

use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::Time;
use fabricast::proto::ibrmp::{Channel, Credits, Cut};

use crate::fabric::{Fabric, Happening, Packet, Target};
use crate::topology::{LinkSpec, Topology};
use crate::workload::Kind;

/// By which connections the data go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// From the sender to each receiver (P3.8).
    Direct,
    /// From each host to the next one, as it arrives: MPI_Bcast's pipeline for long messages.
    Chain,
    /// From each host that has the data to another one that does not, as many as there are: the
    /// binomial tree of MPI_Bcast for short messages.
    Binomial,
}

/// An experiment with connections.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Connections {
    /// By which connections.
    pub shape: Shape,
    /// Number of receivers.
    pub receivers: u32,
    /// Bytes of the data.
    pub len: u64,
    /// Bytes of a message.
    pub message: u64,
    /// Messages under way on each connection.
    pub outstanding: u32,
    /// Rate of each link in bytes per second.
    pub rate: u64,
    /// Delay of each link.
    pub delay: Duration,
    /// Bytes of headers below each message.
    pub overhead: u64,
}

/// One connection.
struct Connection {
    from: u32,
    to: u32,
    /// The sending end, whose entries are messages, and the receiving end.
    ends: [Channel<u64>; 2],
}

impl Connections {
    /// The hosts between which there are connections, each from the host that has the data first.
    fn pairs(&self) -> Vec<(u32, u32)> {
        let receivers = 1..=self.receivers;
        match self.shape {
            Shape::Direct => receivers.map(|host| (0, host)).collect(),
            Shape::Chain => receivers.map(|host| (host - 1, host)).collect(),
            // The parent of a host is the host without its highest bit.
            Shape::Binomial => receivers
                .map(|host| (host & !(1 << host.ilog2()), host))
                .collect(),
        }
    }

    /// The time until all receivers have all data.
    pub fn time(&self) -> Duration {
        let hosts = self.receivers as usize + 1;
        let link = LinkSpec {
            rate: self.rate,
            delay: self.delay,
            queue: 1 << 40,
        };
        let mut fabric = Fabric::new(&Topology::single(link), hosts, self.overhead, 0);
        let limit = Credits {
            messages: self.outstanding,
            batch: 1,
        };
        let connection = |(from, to)| Connection {
            from,
            to,
            ends: [Channel::new(limit), Channel::new(limit)],
        };
        let mut all: Vec<Connection> = self.pairs().into_iter().map(connection).collect();
        let count = self.len.div_ceil(self.message).max(1);
        for number in 0..count {
            self.give(&mut all, 0, number);
        }
        let mut done = Time::ZERO;
        loop {
            self.send(&mut fabric, &mut all);
            let Some(happening) = fabric.next_happening() else {
                return done.since(Time::ZERO);
            };
            let Happening::Arrive { host, packet } = happening else {
                continue;
            };
            let between = |c: &&mut Connection| (c.from, c.to) == (packet.from, host);
            if let Some(connection) = all.iter_mut().find(between) {
                let [_, to] = &mut connection.ends;
                to.received().expect("a credit");
                to.processed(1);
                done = fabric.now();
                let number = u64::from_be_bytes(packet.bytes[..8].try_into().expect("a number"));
                self.give(&mut all, host, number);
            } else if let Some(connection) = all
                .iter_mut()
                .find(|c| (c.from, c.to) == (host, packet.from))
            {
                connection.ends[0].acknowledged(1).expect("no excess");
            }
        }
    }

    /// `host` has a message: it may go by the connections from there. In the tree it goes by one
    /// after the other, to the host farthest away first.
    fn give(&self, all: &mut [Connection], host: u32, number: u64) {
        let of_it = all.iter_mut().filter(|c| c.from == host);
        of_it.for_each(|c| c.ends[0].add(number));
    }

    fn send(&self, fabric: &mut Fabric, all: &mut [Connection]) {
        for connection in all {
            while let Some(number) = connection.ends[0].next(|&mut number| Cut::Last(number)) {
                let len = self.message.min(self.len - number * self.message).max(8);
                let mut bytes = vec![0; len as usize];
                bytes[..8].copy_from_slice(&number.to_be_bytes());
                packet(fabric, connection.from, connection.to, bytes);
            }
            while connection.ends[1].ack().is_some() {
                packet(fabric, connection.to, connection.from, Vec::new());
            }
        }
    }
}

fn packet(fabric: &mut Fabric, from: u32, to: u32, bytes: Vec<u8>) {
    let packet = Packet {
        from,
        to: Target::Host(to),
        kind: Kind::Message,
        way_ns: 0,
        bytes,
    };
    let now = fabric.now();
    fabric.send(now, Rc::new(packet));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(shape: Shape, receivers: u32) -> f64 {
        let of = Connections {
            shape,
            receivers,
            len: 10_000_000,
            message: 2000,
            outstanding: 32,
            rate: 1_000_000_000,
            delay: Duration::from_nanos(500),
            overhead: 0,
        };
        of.time().as_secs_f64()
    }

    #[test]
    fn each_receiver_costs_the_sender_the_whole_data_and_a_chain_does_not() {
        let one = of(Shape::Direct, 1);
        assert!((0.0099..0.0102).contains(&one), "{one}");
        assert!((of(Shape::Direct, 5) / one - 5.0).abs() < 0.05);
        assert!(of(Shape::Chain, 5) < 1.01 * one);
    }
}
