//! A node with a broadcast under way and one posted is fed hostile datagrams of its own session.
#![no_main]

use std::time::Duration;

use fabricast_proto::wire::{Frame, decode};
use fabricast_proto::{
    Command, Config, GroupId, Node, NodeId, Outcome, Output, Placement, Scheme, Seq, Session, Time,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let config = Config {
        node: NodeId(1),
        session: Session(0x1122_3344_5566_7788),
        scheme: Scheme::bulk(),
        hold: 4,
        backlog: 64,
        rate: None,
        patience: Duration::from_secs(1),
    };
    let mut node = Node::new(config, 0);
    let members = vec![NodeId(0), NodeId(1), NodeId(3)];
    let add = Command::GroupAdd { group: GroupId(7), members, chunk: 64, start: Seq(90) };
    node.command(Time(1), add).expect("a new group");
    node.command(Time(1), Command::Bcast { group: GroupId(7), len: 5000 }).expect("room");
    let post = Command::Post { group: GroupId(7), root: NodeId(3), len: 5000 };
    node.command(Time(1), post).expect("room");
    // Datagrams of 60 bytes each, a millisecond apart.
    let (mut now, mut head) = (Time(1), Vec::new());
    for bytes in input.chunks(60).take(200) {
        now = now + Duration::from_millis(1);
        if let Ok(datagram) = decode(bytes) {
            for frame in datagram.frames() {
                let placement = node.packet(now, &datagram.header, &frame);
                if let (Placement::Write(extent), Frame::Data(d)) = (placement, frame) {
                    assert_eq!(extent.len as usize, d.payload.len());
                    node.placed(now, extent, Outcome::Ok);
                }
            }
        }
        for step in 0.. {
            assert!(step < 100_000, "poll does not come to an end");
            head.clear();
            match node.poll(now, &mut head) {
                Output::Wait(_) => break,
                Output::Transmit(t) => node.sent(now, t.token),
                _ => {}
            }
        }
        node.invariants();
    }
});
