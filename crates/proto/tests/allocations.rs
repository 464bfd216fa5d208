//! Checks that neither the data path nor a barrier allocates. The data path is that of a sender and
//! of a receiver, with losses, feedback and coded repairs, once their queues have grown.

mod cable;

use std::time::Duration;

use cable::Plan;
use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::{Frame, Header, Word, Writer};
use fabricast_proto::{
    AddressId, Barrier, Command, Config, Event, GroupId, Node, NodeId, Output, Reached, Scheme,
    Seq, Session, Time,
};

/// Data packets that the sender sends before the test counts allocations.
const WARM: u64 = 20_000;
/// Data packets of the object.
const PACKETS: u32 = 60_000;

#[test]
fn nothing_is_allocated_on_the_data_path() {
    let plan = Plan {
        receivers: 8,
        packets: PACKETS,
        loss: 0.01,
        rate: 125_000_000,
        streams: 0,
    };
    // Numbers of steps, and of allocations in them: of the sender, and of all receivers.
    let mut counted = [(0u64, 0u64); 2];
    let mut warm = false;
    let records = plan.run(&mut |peer, counters, step| {
        warm |= counters.data >= WARM;
        let allocations = allocation_counter::measure(step).count_total;
        // The end of the object does not count as data path.
        if warm && counters.data < u64::from(PACKETS) && counters.received < u64::from(PACKETS) {
            let side = &mut counted[usize::from(peer != 0)];
            side.0 += 1;
            side.1 += allocations;
        }
    });
    let sender = records[0].counters;
    assert!(sender.repairs_coded > 500, "{sender:?}");
    assert!(sender.feedback_received > 1_000, "{sender:?}");
    let [(sender, at_sender), (receivers, at_receivers)] = counted;
    assert!(sender > 1_000 && receivers > 100_000, "{counted:?}");
    assert_eq!(at_sender, 0, "allocations in {sender} steps of the sender");
    assert_eq!(
        at_receivers, 0,
        "allocations in {receivers} steps of receivers"
    );
}

/// The node is rank 1 of a group of three, with the dissemination barrier of two ways: in its one
/// round the node sends words to both others, and receives words of both.
#[test]
fn nothing_is_allocated_for_a_barrier() {
    let (group, algorithm) = (GroupId(1), Barrier::Dissemination { ways: 2 });
    let config = Config {
        node: NodeId(1),
        session: Session(7),
        scheme: Scheme::auto(),
        unexpected_max: 0,
        backlog: 64,
        rate: None,
        patience: Duration::from_secs(60),
    };
    let mut node = Node::new(config, 1);
    let add = Command::GroupAdd {
        group,
        address: Some(AddressId(group.0)),
        members: (0..3).map(NodeId).collect(),
        payload_size: 64,
        start: Seq(0),
    };
    node.command(Time::ZERO, add).expect("a new node");
    let mut space = [0; HEAD_MAX];
    let (mut complete, mut allocations) = (0, 0);
    for count in 1..1000 {
        let now = Time(u64::from(count) * 1000);
        let measured = allocation_counter::measure(|| {
            node.command(
                now,
                Command::Barrier {
                    group,
                    algorithm,
                    held: false,
                    awaited: true,
                },
            )
            .expect("there is room");
            for source in [0, 2].map(NodeId) {
                let header = Header {
                    burst: 0,
                    source,
                    session: Session(7),
                };
                let at = Reached {
                    count: Seq(count),
                    round: 0,
                };
                let word = Word {
                    group,
                    at,
                    heard: Some(Reached {
                        count: Seq(count - 1),
                        ..at
                    }),
                    barrier: Some(algorithm),
                    flags: 0,
                };
                node.packet(now, now, &header, &Frame::Word(word));
                loop {
                    match node.poll(now, &mut Writer::new(&mut space)) {
                        Output::Wait(_) => break,
                        Output::Event(Event::Complete(_)) => complete += 1,
                        _ => {}
                    }
                }
            }
        });
        if count > 100 {
            allocations += measured.count_total;
        }
    }
    assert_eq!((complete, allocations), (999, 0));
}
