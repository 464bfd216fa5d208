//! Helpers that all files of this test share: they make a node, feed it and collect its outputs.

use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::{self, Frame, Header, Writer};
use fabricast_proto::{
    AddressId, Command, Config, Dest, GroupId, Node, NodeId, OpId, Output, Placement, Refused,
    Scheme, Seq, Session, Time,
};

pub const PAYLOAD: u32 = 64;

pub const SESSION: Session = Session(7);

pub fn node(id: u32, unexpected_max: u32, scheme: Scheme) -> Node {
    Node::new(config(id, unexpected_max, scheme), 1)
}

pub fn config(id: u32, unexpected_max: u32, scheme: Scheme) -> Config {
    Config {
        node: NodeId(id),
        session: SESSION,
        scheme,
        unexpected_max,
        backlog: 1000,
        rate: None,
        patience: Duration::from_secs(60),
    }
}

pub fn add(node: &mut Node, group: u32) {
    let add = Command::GroupAdd {
        group: GroupId(group),
        address: Some(AddressId(group)),
        members: (0..3).map(NodeId).collect(),
        payload_size: PAYLOAD,
        start: Seq(0),
    };
    assert_eq!(node.command(Time(1), add), Ok(None));
}

/// All outputs of a node at `now`, each with the head of its datagram.
pub fn drain(node: &mut Node, now: Time) -> Vec<(Output, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let mut space = [0; HEAD_MAX];
        let mut head = Writer::new(&mut space);
        let output = node.poll(now, &mut head);
        node.invariants();
        if let Output::Wait(_) = output {
            return all;
        }
        all.push((output, head.to_vec()));
        assert!(all.len() < 10_000, "it never waits");
    }
}

/// All outputs of a node in the first ten milliseconds: the pacer releases few packets at a time.
pub fn drain_paced(node: &mut Node) -> Vec<(Output, Vec<u8>)> {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    (1..10).flat_map(|ms| drain(node, at(ms))).collect()
}

pub fn data(node: &mut Node, from: u32, seq: u32, len: usize) -> Placement {
    flagged(node, from, seq, len, 0)
}

pub fn flagged(node: &mut Node, from: u32, seq: u32, len: usize, flags: u8) -> Placement {
    flagged_at(node, Time(2), from, seq, len, flags)
}

pub fn flagged_at(
    node: &mut Node,
    now: Time,
    from: u32,
    seq: u32,
    len: usize,
    flags: u8,
) -> Placement {
    let (header, payload) = (header(from), vec![1; len]);
    let frame = Frame::Data(wire::Data {
        group: GroupId(1),
        origin: wire::Origin::Source(Seq(0)),
        seq: Seq(seq),
        flags,
        payload: &payload,
    });
    node.packet(now, now, &header, &frame)
}

pub fn header(from: u32) -> Header {
    Header {
        burst: 1,
        source: NodeId(from),
        session: SESSION,
    }
}

/// Feeds feedback of receiver `from`, which can take 100 packets and has none.
pub fn ready(node: &mut Node, from: u32, now: Time) {
    say(node, from, now, 0, 0);
}

/// Feeds feedback of receiver `from`, which has placed packets before `cum` and knows that packets
/// before `high` were sent.
pub fn say(node: &mut Node, from: u32, now: Time, cum: u32, high: u32) {
    tell(node, from, now, (cum, cum + 100, high), None);
}

/// Feedback for node 0's stream to a group, with this `cum`, `limit` and `high`. It NACKs nothing.
pub fn feedback(group: u32, (cum, limit, high): (u32, u32, u32)) -> wire::Feedback<'static> {
    wire::Feedback {
        group: GroupId(group),
        sender: NodeId(0),
        cum: Seq(cum),
        cum_subtree: Seq(cum),
        limit: Seq(limit),
        high: Seq(high),
        received: high,
        arrived_us: 0,
        held_us: 0,
        burst: 0,
        flags: 0,
        slot: None,
        declined: wire::Declined::NONE,
        missing: wire::Ranges::NONE,
    }
}

/// Feeds feedback of receiver `from` with this `cum`, `limit` and `high`. It NACKs all packets from
/// `lacks` on, if given.
pub fn tell(
    node: &mut Node,
    from: u32,
    now: Time,
    (cum, limit, high): (u32, u32, u32),
    lacks: Option<u32>,
) {
    let lacks = lacks.filter(|&first| first < high);
    let missing = lacks.map(|first| (Seq(first), high - first));
    tell_gaps(node, from, now, (cum, limit, high), missing.as_slice());
}

/// As [`tell`], but the receiver NACKs these runs: first packet and number of packets.
pub fn tell_gaps(
    node: &mut Node,
    from: u32,
    now: Time,
    numbers: (u32, u32, u32),
    gaps: &[(Seq, u32)],
) {
    let feedback = feedback(1, numbers);
    let bytes = wire::head(|out| {
        wire::put_header(out, &header(from));
        wire::put_feedback(out, &feedback, gaps.iter().copied());
    });
    let datagram = wire::decode(&bytes).expect("a good datagram");
    for frame in datagram.frames() {
        node.packet(now, now, &datagram.header, &frame);
    }
}

pub fn bcast(node: &mut Node, group: u32, len: u64) -> OpId {
    let group = GroupId(group);
    let op = node.command(
        Time(1),
        Command::Bcast {
            group,
            len,
            awaited: true,
        },
    );
    op.expect("a group").expect("an operation")
}

pub fn post(node: &mut Node, group: u32, sender: u32, len: u64) -> Result<Option<OpId>, Refused> {
    let (group, sender) = (GroupId(group), NodeId(sender));
    node.command(Time(1), Command::Post { group, sender, len })
}

pub fn frames_of<'a>(
    outputs: &'a [(Output, Vec<u8>)],
) -> impl Iterator<Item = (Dest, Frame<'a>)> + 'a {
    let transmits = outputs.iter().filter_map(|(output, head)| match output {
        Output::Transmit(t) if t.payload.is_none() => Some((t.to, head)),
        _ => None,
    });
    transmits.flat_map(|(to, head)| {
        let datagram = wire::decode(head).expect("what a node writes can be read");
        datagram.frames().map(move |f| (to, f))
    })
}

/// Feeds member `from`'s answer to the probe with this head, sent by multicast or by unicast.
pub fn answer(node: &mut Node, from: u32, now: Time, head: &[u8]) {
    let datagram = wire::decode(head).expect("a probe");
    for frame in datagram.frames() {
        let Frame::Probe(probe) = frame else { continue };
        let ack = Frame::ProbeAck(probe);
        node.packet(now, now, &header(from), &ack);
    }
}
