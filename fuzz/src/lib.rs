//! The bodies of the fuzz targets, which handle hostile bytes. A bounded test runs them, too.

mod control;
mod ibrmp;
mod journal;
mod place;
mod set;

pub use control::control;
pub use ibrmp::{Reached, ibrmp, ibrmp_frame};
pub use journal::{Left, journal, left, packs};
pub use set::{header, page, store};

use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::{self, Frame, Writer};
use fabricast_proto::{
    AddressId, Barrier, Command, Config, Counters, Extent, GroupId, Node, NodeId, Outcome, Output,
    Placement, Scheme, Seq, Session, Time,
};

/// Checks that `wire::decode` refuses `bytes`, or returns frames that can be read to the end.
pub fn decode(bytes: &[u8]) {
    let Ok(datagram) = wire::decode(bytes) else {
        return;
    };
    for frame in datagram.frames() {
        if let Frame::Feedback(f) = frame {
            for (first, len) in f.missing {
                assert!(len > 0 && !first.before(f.cum_subtree) && !f.high.before(first + len));
            }
        }
    }
}

/// Feeds hostile datagrams of its own session to a node with a broadcast under way, another one
/// posted, and two barriers begun.
///
/// `input` is a sequence of datagrams, each after its length in two bytes. The three highest bits
/// of the length are the milliseconds that pass before the datagram. Returns the node's counters,
/// which show a test how far hostile bytes get, and the number of decoded XOR repair packets.
pub fn node(input: &[u8]) -> (Counters, u32) {
    let mut node = busy();
    let (mut now, mut rest) = (Time(1), input);
    let mut solved = 0;
    for _ in 0..DATAGRAMS_MAX {
        let Some((datagram, wait)) = next(&mut rest) else {
            break;
        };
        // The datagram may have waited in a buffer since the one before.
        let arrived = now;
        now = now + wait;
        if let Ok(datagram) = wire::decode(datagram) {
            for frame in datagram.frames() {
                let placement = node.packet(now, arrived, &datagram.header, &frame);
                let extent = match (placement, frame) {
                    (Placement::Write(extent), Frame::Data(d)) => {
                        assert_eq!(extent.len as usize, d.payload.len());
                        extent
                    }
                    (Placement::DecodeXor(extent, others), Frame::Xor(c)) => {
                        let within = |e: Extent| e.offset + u64::from(e.len) <= LEN;
                        assert!(others.extents().all(within) && !others.is_empty());
                        assert!(extent.len as usize <= c.payload.len());
                        solved += 1;
                        extent
                    }
                    (Placement::CacheParity(kept), Frame::Parity(p)) => {
                        assert!(kept.block.offset + u64::from(kept.block.len) <= LEN);
                        assert!(p.payload.len() as u32 == kept.block.payload_size);
                        continue;
                    }
                    _ => continue,
                };
                assert!(extent.offset + u64::from(extent.len) <= LEN);
                node.placed(now, extent, Outcome::Ok);
            }
        }
        drain(&mut node, now);
        node.invariants();
    }
    (node.counters(), solved)
}

const DATAGRAMS_MAX: usize = 200;
/// Length in bytes of the object that is sent, and of the posted object.
const LEN: u64 = 5000;
/// Algorithm of the node's barriers.
const BARRIER: Barrier = Barrier::Dissemination { ways: 1 };
/// Number of the first packet of each stream; the first barrier has the number after it.
const START: u32 = 90;

fn busy() -> Node {
    let config = Config {
        node: NodeId(1),
        session: Session(0x1122_3344_5566_7788),
        scheme: Scheme::auto(),
        unexpected_max: 4,
        backlog: 64,
        rate: None,
        patience: Duration::from_secs(1),
    };
    let mut node = Node::new(config, 0);
    let group = GroupId(7);
    let add = Command::GroupAdd {
        group,
        address: Some(AddressId(group.0)),
        members: vec![NodeId(0), NodeId(1), NodeId(3)],
        payload_size: 64,
        start: Seq(START),
    };
    let prove = Command::Prove {
        group,
        multicast: Duration::from_millis(30),
        unicast: Duration::from_millis(20),
    };
    let post = Command::Post {
        group,
        sender: NodeId(3),
        len: LEN,
    };
    let barrier = Command::Barrier {
        group,
        algorithm: BARRIER,
        held: false,
        awaited: true,
    };
    let bcast = Command::Bcast {
        group,
        len: LEN,
        awaited: true,
    };
    for command in [add, prove, bcast, post, barrier.clone(), barrier] {
        node.command(Time(1), command).expect("there is room");
    }
    node
}

/// Takes the next datagram and the time before it off the front of an input.
fn next<'a>(rest: &mut &'a [u8]) -> Option<(&'a [u8], Duration)> {
    let (len, after) = rest.split_first_chunk()?;
    let len = u16::from_be_bytes(*len);
    let (datagram, after) = after.split_at(usize::from(len & 0x1fff).min(after.len()));
    *rest = after;
    Some((datagram, Duration::from_millis(u64::from(len >> 13))))
}

fn drain(node: &mut Node, now: Time) {
    let mut space = [0; HEAD_MAX];
    for step in 0.. {
        assert!(step < 100_000, "poll does not come to an end");
        match node.poll(now, &mut Writer::new(&mut space)) {
            Output::Wait(_) => break,
            Output::Transmit(t) => node.sent(now, t.token),
            Output::DecodeParity(block, lacking) => {
                for extent in block.extents(lacking) {
                    node.placed(now, extent, Outcome::Ok);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
