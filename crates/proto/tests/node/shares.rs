//! Tests of a node with a fixed rate, whose streams to several groups share it by their weights.

use std::time::Duration;

use fabricast_proto::limits::{HEAD_MAX, WEIGHT_MAX};
use fabricast_proto::wire::{self, Frame, Writer};
use fabricast_proto::{
    Command, Config, GroupId, Node, NodeId, Output, Payload, Refused, Scheme, Time,
};

use crate::common::{PAYLOAD, add, config, feedback, header};

/// Bytes per second.
const RATE: u64 = 1_000_000;
/// Bytes of a datagram with a full packet.
const DATAGRAM: u64 = PAYLOAD as u64 + 32;

/// A node with a fixed rate and a group for each of `weights`.
fn node(weights: &[u32]) -> Node {
    let mut node = Node::new(
        Config {
            rate: Some(RATE),
            ..config(0, 8, Scheme::auto())
        },
        1,
    );
    for (group, &weight) in (1..).zip(weights) {
        add(&mut node, group);
        let group = GroupId(group);
        let weighed = node.command(Time(1), Command::Weight { group, weight });
        assert_eq!(weighed, Ok(None));
    }
    node
}

fn bcast(node: &mut Node, now: Time, group: u32, len: u64) {
    let bcast = Command::Bcast {
        group: GroupId(group),
        len,
        awaited: true,
    };
    node.command(now, bcast)
        .expect("a group")
        .expect("an operation");
}

/// The receivers of a group have placed all packets before `cum`, and take as many as they can.
fn acknowledge(node: &mut Node, now: Time, group: u32, cum: u32) {
    for from in [1, 2] {
        let feedback = wire::Feedback {
            arrived_us: now.micros(),
            ..feedback(group, (cum, cum + 10_000, cum))
        };
        let feedback = Frame::Feedback(feedback);
        node.packet(now, now, &header(from), &feedback);
    }
}

/// Lets a node send from `now` to `end`. All packets arrive. `cum`: packets sent to each group.
fn run(node: &mut Node, mut now: Time, end: Time, cum: &mut [u32]) {
    while now < end {
        let mut space = [0; HEAD_MAX];
        let mut head = Writer::new(&mut space);
        match node.poll(now, &mut head) {
            Output::Wait(wake) => {
                node.invariants();
                for (group, &cum) in (1..).zip(cum.iter()) {
                    if node.rate(GroupId(group)).is_some() {
                        acknowledge(node, now, group, cum);
                    }
                }
                let soon = now + Duration::from_micros(100);
                now = wake.map_or(end, |t| t.max(soon));
            }
            Output::Transmit(t) => {
                if let Some(Payload::Extent(_)) = t.payload {
                    // The payload is not needed to see the group: the frame's head names it.
                    head.put(&[0; PAYLOAD as usize]);
                    let datagram = wire::decode(&head).expect("what a node writes can be read");
                    for frame in datagram.frames() {
                        if let Frame::Data(data) = frame {
                            cum[data.group.0 as usize - 1] = data.seq.0 + 1;
                        }
                    }
                }
                node.sent(now, t.token);
            }
            _ => {}
        }
    }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

fn sum(cum: &[u32]) -> u64 {
    cum.iter().map(|&packets| u64::from(packets)).sum()
}

/// Bytes that leave within `ms` at the rate, and what may leave at once.
fn most(ms: u64) -> u64 {
    RATE / 1000 * (ms + 5) + DATAGRAM
}

const LONG: u64 = 10 << 20;

#[test]
fn streams_share_the_rate_by_their_weights() {
    let (mut node, mut cum) = (node(&[1, 4]), [0; 2]);
    for group in [1, 2] {
        bcast(&mut node, Time(1), group, LONG);
    }
    run(&mut node, Time(1), at(1000), &mut cum);
    let [one, four] = cum.map(f64::from);
    assert!((3.6..4.4).contains(&(four / one)), "{cum:?}");
    assert!(sum(&cum) * DATAGRAM <= most(1000), "{cum:?}");
    assert!(sum(&cum) * DATAGRAM >= RATE * 85 / 100, "{cum:?}");
}

#[test]
fn a_stream_alone_has_the_whole_rate() {
    let (mut node, mut cum) = (node(&[1, 1000]), [0; 2]);
    bcast(&mut node, Time(1), 1, LONG);
    run(&mut node, Time(1), at(500), &mut cum);
    assert!(
        u64::from(cum[0]) * DATAGRAM >= RATE / 2 * 85 / 100,
        "{cum:?}"
    );
    // What the other has not sent meanwhile is gone.
    let before = cum[0];
    bcast(&mut node, at(500), 2, LONG);
    let weight = Command::Weight {
        group: GroupId(2),
        weight: 1,
    };
    node.command(at(500), weight).expect("a group");
    run(&mut node, at(500), at(1000), &mut cum);
    let shares = [cum[0] - before, cum[1]].map(f64::from);
    assert!((0.8..1.2).contains(&(shares[0] / shares[1])), "{cum:?}");
    assert!(sum(&cum) * DATAGRAM <= most(1000), "{cum:?}");
}

/// Without an address each member gets a copy, and the rate holds for all copies. Members that are
/// gone get none, and cost nothing.
#[test]
fn the_rate_is_shared_by_those_that_are_there() {
    let (mut node, mut cum) = (node(&[1]), [0]);
    let by_none = Command::SendBy {
        group: GroupId(1),
        address: None,
    };
    node.command(Time(1), by_none).expect("a group");
    bcast(&mut node, Time(1), 1, LONG);
    run(&mut node, Time(1), at(500), &mut cum);
    let both = cum[0];
    assert!(u64::from(both) * 2 * DATAGRAM <= most(500), "{both}");
    assert!(u64::from(both) * 2 * DATAGRAM >= RATE / 2 * 85 / 100);
    let gone = Command::PeerRemove(NodeId(2));
    node.command(at(500), gone).expect("a member");
    run(&mut node, at(500), at(1000), &mut cum);
    let one = u64::from(cum[0] - both) * DATAGRAM;
    assert!((RATE / 2 * 85 / 100..=most(500)).contains(&one), "{one}");
}

#[test]
fn the_rate_changes_at_once() {
    let (mut node, mut cum) = (node(&[1, 1]), [0; 2]);
    for group in [1, 2] {
        bcast(&mut node, Time(1), group, LONG);
    }
    // At one byte in a second the next packet would be minutes away.
    assert_eq!(node.command(Time(1), Command::Rate(1)), Ok(None));
    run(&mut node, Time(1), at(100), &mut cum);
    assert!(sum(&cum) < 10, "{cum:?}");
    // Both have something to send, also the one that has sent last.
    assert!([1, 2].map(GroupId).iter().all(|g| node.takes_turns(*g)));
    assert_eq!(node.command(at(100), Command::Rate(RATE)), Ok(None));
    run(&mut node, at(100), at(600), &mut cum);
    let sent = sum(&cum) * DATAGRAM;
    assert!((RATE * 40 / 100..=most(500)).contains(&sent), "{cum:?}");
    assert_eq!(node.rate(GroupId(1)), Some(RATE));
    assert_eq!(node.command(at(600), Command::Rate(RATE / 4)), Ok(None));
    let before = sum(&cum);
    run(&mut node, at(600), at(1600), &mut cum);
    let sent = (sum(&cum) - before) * DATAGRAM;
    assert!(
        (RATE * 20 / 100..=most(1000) / 4).contains(&sent),
        "{cum:?}"
    );
}

#[test]
fn a_stream_that_waits_for_its_turn_is_not_quiet() {
    let (mut node, mut cum) = (node(&[1, 1]), [0; 2]);
    for group in [1, 2] {
        bcast(&mut node, Time(1), group, LONG);
    }
    run(&mut node, Time(1), at(50), &mut cum);
    for group in [1, 2] {
        assert!(!node.is_quiet(at(50), GroupId(group)));
    }
    // The group that has the next turn is removed: the other goes on.
    let before = cum;
    let removed = node.command(at(50), Command::GroupRemove(GroupId(1)));
    assert_eq!(removed, Ok(None));
    run(&mut node, at(50), at(150), &mut cum);
    assert_eq!(cum[0], before[0]);
    let sent = u64::from(cum[1] - before[1]) * DATAGRAM;
    assert!(sent >= RATE / 10 * 85 / 100, "{cum:?}");
}

#[test]
fn weights_and_rates_out_of_range_are_refused() {
    let mut node = node(&[1]);
    let mut weigh = |group: u32, weight| {
        let group = GroupId(group);
        node.command(Time(1), Command::Weight { group, weight })
    };
    for weight in [0, WEIGHT_MAX + 1, u32::MAX] {
        assert_eq!(weigh(1, weight), Err(Refused::Weight));
    }
    assert_eq!(weigh(1, WEIGHT_MAX), Ok(None));
    assert_eq!(weigh(2, 1), Err(Refused::NoGroup));
    assert_eq!(node.command(Time(1), Command::Rate(0)), Err(Refused::Rate));
    let mut free = Node::new(config(0, 8, Scheme::auto()), 1);
    assert_eq!(free.command(Time(1), Command::Rate(1)), Err(Refused::Rate));
}
