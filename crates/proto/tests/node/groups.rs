//! Tests of a node when groups and peers come and go, and of commands with extreme arguments.

use std::time::Duration;

use fabricast_proto::wire::{self, Frame, flag};
use fabricast_proto::{
    Barrier, Command, Dest, Event, GroupId, Node, NodeId, Output, Placement, Reached, Refused,
    Scheme, Seq, Time, Token,
};

use crate::common::{
    PAYLOAD, add, bcast, data, drain, drain_paced, frames_of, header, node, post, ready,
};

#[test]
fn a_removed_group_gives_back_what_it_held() {
    let mut n = node(1, 10, Scheme::auto());
    add(&mut n, 1);
    let Placement::Unexpected(token) = data(&mut n, 0, 0, PAYLOAD as usize) else {
        panic!("not held");
    };
    assert_eq!(n.unexpected(), 1);
    assert_eq!(
        n.command(Time(3), Command::GroupRemove(GroupId(1))),
        Ok(None)
    );
    let outputs = drain(&mut n, Time(3));
    assert!(
        outputs.iter().any(|o| o.0 == Output::Discard(token)),
        "{outputs:?}"
    );
    assert_eq!(n.unexpected(), 0);
}

#[test]
fn a_removed_group_releases_an_object_when_the_transport_has_done_with_it() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let op = bcast(&mut n, 1, 3 * u64::from(PAYLOAD));
    ready(&mut n, 1, Time(2));
    ready(&mut n, 2, Time(2));
    let sent: Vec<Token> = drain_paced(&mut n)
        .into_iter()
        .filter_map(|o| match o.0 {
            Output::Transmit(t) if t.payload.is_some() => Some(t.token),
            _ => None,
        })
        .collect();
    assert_eq!(sent.len(), 3);
    assert_eq!(
        n.command(Time(3), Command::GroupRemove(GroupId(1))),
        Ok(None)
    );
    for token in sent {
        let outputs = drain(&mut n, Time(3));
        assert!(
            outputs.is_empty(),
            "{outputs:?} while a payload is being read"
        );
        n.sent(Time(3), token);
    }
    assert_eq!(drain(&mut n, Time(3))[0].0, Output::Release(op));
}

#[test]
fn nobody_waits_in_a_new_group_for_who_is_gone_until_it_is_there_again() {
    let mut n = node(0, 0, Scheme::auto());
    for peer in [1, 2] {
        assert_eq!(
            n.command(Time(1), Command::PeerRemove(NodeId(peer))),
            Ok(None)
        );
    }
    add(&mut n, 1);
    let op = bcast(&mut n, 1, 10);
    let complete = Output::Event(Event::Complete(op));
    assert!(drain(&mut n, Time(1)).iter().any(|o| o.0 == complete));
    assert_eq!(post(&mut n, 1, 1, 10), Err(Refused::NotMember));

    assert_eq!(n.command(Time(1), Command::PeerAdd(NodeId(1))), Ok(None));
    add(&mut n, 2);
    let op = bcast(&mut n, 2, 10);
    let complete = Output::Event(Event::Complete(op));
    assert!(
        !drain(&mut n, Time(1)).iter().any(|o| o.0 == complete),
        "node 1 is waited for"
    );
    assert!(post(&mut n, 2, 1, 10).is_ok());
    // Node 1 stays gone in the group that existed before.
    assert_eq!(post(&mut n, 1, 1, 10), Err(Refused::NotMember));
    let foreign = n.counters().foreign;
    assert_eq!(data(&mut n, 1, 0, 10), Placement::Discard);
    assert_eq!(n.counters().foreign, foreign + 1);
}

/// A member's frames about a stream of this node, or of a node that is gone, create no receiving
/// stream: each stream takes memory and a share of the buffers.
#[test]
fn a_stream_that_cannot_be_is_not_begun() {
    let mut n = node(1, 0, "auto+credits".parse().expect("a scheme"));
    let gone = Command::PeerRemove(NodeId(2));
    assert_eq!(n.command(Time(1), gone), Ok(None));
    add(&mut n, 1);
    for sender in [1, 2].map(NodeId) {
        let sync = Frame::Sync(wire::Sync {
            group: GroupId(1),
            sender,
            next: Seq(5),
        });
        let relayed = Frame::Data(wire::Data {
            group: GroupId(1),
            origin: wire::Origin::Relayed(sender),
            seq: Seq(0),
            flags: 0,
            payload: &[1; PAYLOAD as usize],
        });
        for frame in [sync, relayed] {
            n.packet(Time(2), Time(2), &header(0), &frame);
            assert_eq!(drain(&mut n, Time(2)), [], "of {sender:?}");
        }
        assert_eq!(
            post(&mut n, 1, sender.0, 10),
            Err(Refused::NotMember),
            "{sender:?}"
        );
    }
}

#[test]
fn a_scheme_of_zeros_neither_panics_nor_spins() {
    let mut scheme = Scheme::auto();
    scheme.feedback.every = 0;
    scheme.feedback.spacing_min = Duration::ZERO;
    scheme.feedback.delay_max = Duration::ZERO;
    scheme.feedback.turn = Duration::MAX;
    scheme.detect.reorder_min = Duration::ZERO;
    scheme.detect.reorder_max = Duration::ZERO;
    scheme.detect.rto_min = Duration::ZERO;
    scheme.detect.rto_max = Duration::ZERO;
    scheme.repair.nack_delay = Duration::MAX;
    scheme.window = 0;
    let mut receiver = node(1, 10, scheme.clone());
    let mut sender = node(0, 0, scheme);
    add(&mut sender, 1);
    add(&mut receiver, 1);
    bcast(&mut sender, 1, 1000);
    assert!(post(&mut receiver, 1, 0, 1000).is_ok());
    data(&mut receiver, 0, 5, PAYLOAD as usize);
    for ms in 1..50 {
        let now = Time::ZERO + Duration::from_millis(ms);
        drain(&mut sender, now);
        drain(&mut receiver, now);
    }
}

/// A node that enters the barriers of many groups at once sends each other node its words together,
/// and says the same as if each word had a datagram.
#[test]
fn words_of_several_groups_share_datagrams() {
    let groups = 100;
    let algorithm = Barrier::Dissemination { ways: 2 };
    let mut n = node(0, 0, Scheme::auto());
    for group in 1..=groups {
        add(&mut n, group);
    }
    // A group that is removed leaves the others their words.
    let enter = |n: &mut Node, group| {
        let enter = Command::Barrier {
            group: GroupId(group),
            algorithm,
            held: false,
            awaited: true,
        };
        assert!(n.command(Time(2), enter).is_ok());
    };
    (1..=groups).for_each(|group| enter(&mut n, group));
    let removed = Command::GroupRemove(GroupId(7));
    assert_eq!(n.command(Time(2), removed), Ok(None));
    let said = drain(&mut n, Time(2));
    let mut words: Vec<_> = frames_of(&said)
        .map(|(to, frame)| match (to, frame) {
            (Dest::Node(to), Frame::Word(word)) => (to, word.group),
            other => panic!("{other:?}"),
        })
        .collect();
    words.sort();
    let each = |to| {
        let groups = (1..=groups).filter(|group| *group != 7);
        groups.map(move |group| (NodeId(to), GroupId(group)))
    };
    assert_eq!(words, each(1).chain(each(2)).collect::<Vec<_>>());
    // A datagram of words is no longer than one with data: here it has room for three.
    assert_eq!(said.len(), 2 * 99usize.div_ceil(3));
    let longest = PAYLOAD as usize + Scheme::auto().data_overhead();
    assert!(said.iter().all(|(_, head)| head.len() <= longest));
    // One group alone, and the answers of others, go as before.
    let word = wire::Word {
        group: GroupId(1),
        at: Reached {
            count: Seq(1),
            round: 0,
        },
        heard: None,
        barrier: Some(algorithm),
        flags: flag::ACK_REQUEST,
    };
    n.packet(Time(3), Time(3), &header(1), &Frame::Word(word));
    assert_eq!(frames_of(&drain(&mut n, Time(3))).count(), 1);
}
