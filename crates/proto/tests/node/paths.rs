//! Tests of how a sender learns which members multicast reaches: probes, answers, unicast fallback
//! and path re-probing.

use std::time::Duration;

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::wire::{self, Frame, Writer, flag};
use fabricast_proto::{
    AddressId, Barrier, Command, Dest, Event, GroupId, Node, NodeId, Output, PathState, Reached,
    Refused, Scheme, Seq, Time,
};

use crate::common::{PAYLOAD, add, answer, bcast, drain, drain_paced, header, node, ready, tell};

#[test]
fn a_member_may_go_while_paths_are_proven() {
    let mut n = node(0, 0, Scheme::auto());
    let add = Command::GroupAdd {
        group: GroupId(1),
        address: Some(AddressId(1)),
        members: (0..65).map(NodeId).collect(),
        payload_size: PAYLOAD,
        start: Seq(0),
    };
    assert_eq!(n.command(Time(1), add), Ok(None));
    let prove = Command::Prove {
        group: GroupId(1),
        multicast: Duration::from_millis(10),
        unicast: Duration::from_secs(1),
    };
    assert_eq!(n.command(Time(1), prove), Ok(None));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let by_unicast =
        |o: &Output| matches!(o, Output::Transmit(t) if t.to == Dest::Node(NodeId(64)));
    let unicast = (1..1_000)
        .find(|&ms| drain(&mut n, at(ms)).iter().any(|o| by_unicast(&o.0)))
        .expect("a round of unicast probes");
    // The driver stops polling at the end of the next round of probes, and a member goes.
    for _ in 0..64 {
        let mut space = [0; HEAD_MAX];
        let output = n.poll(at(unicast + 20), &mut Writer::new(&mut space));
        assert!(matches!(output, Output::Transmit(_)), "{output:?}");
    }
    let gone = Command::PeerRemove(NodeId(5));
    assert_eq!(n.command(at(unicast + 20), gone), Ok(None));
    for ms in unicast + 20..unicast + 100 {
        drain(&mut n, at(ms));
    }
}

#[test]
fn a_process_that_was_stopped_is_not_taken_for_unreachable() {
    let mut n = node(0, 0, Scheme::auto());
    let gone = Command::PeerRemove(NodeId(2));
    assert_eq!(n.command(Time(1), gone), Ok(None));
    add(&mut n, 1);
    let prove = Command::Prove {
        group: GroupId(1),
        multicast: Duration::from_secs(1),
        unicast: Duration::from_secs(10),
    };
    assert_eq!(n.command(Time(1), prove), Ok(None));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    // Node 1 stands still for eight seconds, and then answers all waiting probes: unicast first.
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for ms in 1..8_000 {
        for (output, head) in drain(&mut n, at(ms)) {
            let Output::Transmit(t) = output else {
                panic!("{output:?} after {ms} ms");
            };
            match t.to {
                Dest::Node(_) => alone.push(head),
                Dest::Address(_) => together.push(head),
            }
        }
    }
    alone
        .iter()
        .for_each(|head| answer(&mut n, 1, at(8_000), head));
    drain(&mut n, at(8_001));
    together
        .iter()
        .for_each(|head| answer(&mut n, 1, at(8_002), head));
    let events: Vec<_> = (8_003..8_100)
        .flat_map(|ms| drain(&mut n, at(ms)))
        .map(|o| o.0)
        .filter(|o| matches!(o, Output::Event(_)))
        .collect();
    assert_eq!(events, [Output::Event(Event::Proven(GroupId(1)))]);
    assert!(
        n.members(GroupId(1))
            .all(|m| m.path_state == PathState::Multicast)
    );
}

#[test]
fn a_sender_that_was_stopped_tries_multicast_all_the_same() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let prove = Command::Prove {
        group: GroupId(1),
        multicast: Duration::from_secs(1),
        unicast: Duration::from_secs(1),
    };
    assert_eq!(n.command(Time(1), prove), Ok(None));
    // The sender stands still for three seconds before its first probe.
    let late = Time::ZERO + Duration::from_secs(3);
    for ms in 0..200 {
        for (output, _) in drain(&mut n, late + Duration::from_millis(ms)) {
            if let Output::Transmit(t) = output {
                assert_eq!(t.to, Dest::Address(AddressId(1)));
            }
        }
    }
}

/// A sender uses what another group's proof showed from its first packet on.
#[test]
fn whom_multicast_is_known_not_to_reach_is_served_by_unicast_at_once() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let unreached = |members: &[u32]| Command::Unreached {
        group: GroupId(1),
        members: members.iter().copied().map(NodeId).collect(),
    };
    // The node ignores itself and a node outside the group.
    assert_eq!(n.command(Time(1), unreached(&[0, 1, 7])), Ok(None));
    bcast(&mut n, 1, 1);
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    for m in [1, 2] {
        tell(&mut n, m, at(1), (0, 100, 0), None);
    }
    let sent = |n: &mut Node, ms| {
        let said = drain(n, at(ms)).into_iter().filter_map(|(o, _)| match o {
            Output::Transmit(t) => Some(t.to),
            _ => None,
        });
        said.collect::<Vec<_>>()
    };
    // The sender still reaches the other member by multicast.
    let first = sent(&mut n, 1);
    assert_eq!(first.len(), 2, "{first:?}");
    assert!(first.contains(&Dest::Address(AddressId(1))) && first.contains(&Dest::Node(NodeId(1))));
    // The sender learns that multicast does not reach the last member when a stream exists already.
    assert_eq!(n.command(Time(2), unreached(&[2])), Ok(None));
    bcast(&mut n, 1, 1);
    let second: Vec<_> = (2..60).flat_map(|ms| sent(&mut n, ms)).collect();
    assert!(second.contains(&Dest::Node(NodeId(2))), "{second:?}");
    assert!(!second.contains(&Dest::Address(AddressId(1))), "{second:?}");
    assert!(
        n.members(GroupId(1))
            .all(|m| m.path_state == PathState::Unicast)
    );
    let unknown = Command::Unreached {
        group: GroupId(9),
        members: vec![],
    };
    assert_eq!(n.command(Time(3), unknown), Err(Refused::NoGroup));
}

/// The destinations to which node 0 sends the release of a barrier, which goes to all ranks. Node 0
/// knew that multicast does not reach node 1. With `regained`, node 1 has since answered a probe
/// that came by multicast.
fn released_to(regained: bool) -> Vec<Dest> {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let (group, members) = (GroupId(1), vec![NodeId(1)]);
    assert_eq!(
        n.command(Time(1), Command::Unreached { group, members }),
        Ok(None)
    );
    bcast(&mut n, 1, 1);
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    for m in [1, 2] {
        tell(&mut n, m, at(1), (0, 100, 0), None);
    }
    // A forger knows the format of such an answer, but not the probe's nonce.
    let forged = |nonce| wire::Probe {
        group,
        nonce,
        flags: flag::MULTICAST | flag::ALONE,
        only: None,
        by: None,
    };
    let mut answered = !regained;
    for ms in 2..1000 {
        for nonce in [0, 1, 2] {
            n.packet(at(ms), at(ms), &header(1), &Frame::ProbeAck(forged(nonce)));
        }
        assert!(
            answered
                || !n
                    .members(group)
                    .all(|m| m.path_state == PathState::Multicast)
        );
        for (output, head) in drain(&mut n, at(ms)) {
            let Output::Transmit(t) = output else {
                continue;
            };
            if !answered && t.to == Dest::Address(AddressId(group.0)) && t.payload.is_none() {
                answer(&mut n, 1, at(ms), &head);
                answered = n
                    .members(group)
                    .all(|m| m.path_state == PathState::Multicast);
            }
        }
    }
    assert!(answered, "it was not tried again");
    let (algorithm, now) = (Barrier::Release { fanout: 2 }, at(1000));
    let enter = Command::Barrier {
        group,
        algorithm,
        held: false,
        awaited: true,
    };
    assert!(n.command(now, enter).is_ok());
    drain(&mut n, now);
    for source in [1, 2] {
        let word = wire::Word {
            group,
            at: Reached {
                count: Seq(1),
                round: 0,
            },
            heard: None,
            barrier: Some(algorithm),
            flags: 0,
        };
        n.packet(now, now, &header(source), &Frame::Word(word));
    }
    let has_word = |head: &[u8]| {
        let datagram = wire::decode(head).expect("a good datagram");
        datagram
            .frames()
            .any(|frame| matches!(frame, Frame::Word(_)))
    };
    let said = drain(&mut n, now).into_iter();
    said.filter_map(|(output, head)| match output {
        Output::Transmit(t) if has_word(&head) => Some(t.to),
        _ => None,
    })
    .collect()
}

#[test]
fn barriers_use_multicast_again_for_whom_it_reaches_again() {
    let (all, one) = (Dest::Address(AddressId(1)), Dest::Node(NodeId(1)));
    assert_eq!(released_to(false), [all, one]);
    assert_eq!(released_to(true), [all]);
}

#[test]
fn a_forged_answer_to_a_probe_does_not_say_that_a_member_is_alone() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let group = GroupId(1);
    let prove = Command::Prove {
        group,
        multicast: Duration::from_secs(1),
        unicast: Duration::from_secs(1),
    };
    assert_eq!(n.command(Time(1), prove), Ok(None));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut proven = 0;
    for ms in 1..600 {
        for (output, head) in drain(&mut n, at(ms)) {
            proven += u32::from(output == Output::Event(Event::Proven(group)));
            let Ok(datagram) = wire::decode(&head) else {
                continue;
            };
            for frame in datagram.frames() {
                let Frame::Probe(probe) = frame else { continue };
                // A forger in the group receives multicast probes, and so sees their nonce.
                for (member, nonce) in [(1, 1), (1, probe.nonce), (2, probe.nonce)] {
                    let flags = 0;
                    let forged = Frame::ProbeAck(wire::Probe {
                        nonce,
                        flags,
                        ..probe
                    });
                    n.packet(at(ms), at(ms), &header(member), &forged);
                }
            }
            if ms > 500 {
                answer(&mut n, 1, at(ms), &head);
                answer(&mut n, 2, at(ms), &head);
            }
        }
        assert_eq!(proven, u32::from(ms > 500) * proven, "after {ms} ms");
    }
    assert_eq!(proven, 1);
    assert!(
        n.members(group)
            .all(|m| m.path_state == PathState::Multicast)
    );
}

#[test]
fn the_path_between_two_is_proven_by_unicast() {
    let mut n = node(0, 0, Scheme::auto());
    let add = Command::GroupAdd {
        group: GroupId(1),
        address: Some(AddressId(1)),
        members: (0..2).map(NodeId).collect(),
        payload_size: PAYLOAD,
        start: Seq(0),
    };
    assert_eq!(n.command(Time(1), add), Ok(None));
    let prove = Command::Prove {
        group: GroupId(1),
        multicast: Duration::from_secs(1),
        unicast: Duration::from_secs(1),
    };
    assert_eq!(n.command(Time(1), prove), Ok(None));
    let outputs = drain(&mut n, Time(2));
    let [(Output::Transmit(t), probe)] = &outputs[..] else {
        panic!("{outputs:?}");
    };
    assert_eq!(t.to, Dest::Node(NodeId(1)));
    answer(&mut n, 1, Time(3), probe);
    let (group, node, path_state) = (GroupId(1), NodeId(1), PathState::Unicast);
    let events = [
        Event::Path {
            group,
            node,
            path_state,
        },
        Event::Proven(group),
    ];
    let outputs: Vec<_> = drain(&mut n, Time(3)).into_iter().map(|o| o.0).collect();
    assert_eq!(outputs, events.map(Output::Event));
    // Node 1 uses the group's own path, and has no second path.
    bcast(&mut n, 1, 10);
    ready(&mut n, 1, Time(4));
    let sent = drain_paced(&mut n);
    let data = |o: &&(Output, Vec<u8>)| matches!(o.0, Output::Transmit(t) if t.payload.is_some());
    assert_eq!(sent.iter().filter(data).count(), 1);
    assert!(n.rate(group).is_some());
}

#[test]
fn a_probe_for_one_is_answered_by_that_one() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let probe = |nonce, only: Option<u32>| wire::Probe {
        group: GroupId(1),
        nonce,
        flags: flag::MULTICAST | only.map_or(0, |_| flag::ALONE),
        only: only.map(NodeId),
        by: None,
    };
    for p in [probe(7, None), probe(8, Some(1)), probe(9, Some(2))] {
        n.packet(Time(2), Time(2), &header(0), &Frame::Probe(p));
    }
    let mut answers = Vec::new();
    for (_, head) in drain(&mut n, Time(3)) {
        let datagram = wire::decode(&head).expect("a good datagram");
        answers.extend(datagram.frames().filter_map(|f| match f {
            Frame::ProbeAck(p) => Some(p),
            _ => None,
        }));
    }
    let only = None;
    let to_one = wire::Probe {
        only,
        ..probe(8, Some(1))
    };
    // A node answers the second probe of the same source twice.
    assert_eq!(answers, [probe(7, None), to_one, to_one]);
}

/// Two members prove a group at the same time, as the first two hosts of a job do.
#[test]
fn each_of_two_that_go_on_asking_is_answered_ever_more_often() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let mut answers = Vec::new();
    for nonce in 0..4 {
        let probe = wire::Probe {
            group: GroupId(1),
            nonce,
            flags: 0,
            only: None,
            by: None,
        };
        for source in [0, 2] {
            n.packet(Time(2), Time(2), &header(source), &Frame::Probe(probe));
        }
        answers.push(drain(&mut n, Time(3)).len());
    }
    assert_eq!(answers, [2, 4, 6, 8]);
}

/// A host that forges probes in a member's name directs few answers at that member, however many
/// probes it sends.
#[test]
fn probes_are_answered_so_often_a_second_and_no_more() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let mut answers = 0;
    for ms in 1..=1000 {
        let now = Time::ZERO + Duration::from_millis(ms);
        for nonce in 0..10 {
            let probe = wire::Probe {
                group: GroupId(1),
                nonce,
                flags: 0,
                only: None,
                by: None,
            };
            n.packet(now, now, &header(0), &Frame::Probe(probe));
            answers += drain(&mut n, now).len();
        }
    }
    // A node answers 1600 probes of three members together in a second, and 64 of each at once.
    assert!((590..=605).contains(&answers), "{answers}");
}

/// Sends a broadcast of two packets to nodes 1 and 2, from this millisecond on. Returns where each
/// packet went.
fn destinations(n: &mut Node, from: u64) -> Vec<(Dest, Seq)> {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let op = bcast(n, 1, 2 * u64::from(PAYLOAD));
    for receiver in [1, 2] {
        ready(n, receiver, at(from));
    }
    let mut packets = Vec::new();
    let outputs = (from..from + 10).flat_map(|ms| drain(n, at(ms)));
    for (output, head) in outputs.collect::<Vec<_>>() {
        let Output::Transmit(t) = output else {
            continue;
        };
        let bytes = [
            &head[..],
            &vec![0; t.payload.map_or(0, |_| PAYLOAD as usize)],
        ]
        .concat();
        for frame in wire::decode(&bytes).unwrap().frames() {
            if let Frame::Data(d) = frame {
                assert_eq!(t.payload.map(|p| p.op()), Some(op));
                packets.push((t.to, d.seq));
            }
        }
    }
    packets
}

#[test]
fn the_address_is_a_command_and_without_one_every_member_gets_a_copy() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let by = |n: &mut Node, address| {
        let group = GroupId(1);
        n.command(Time(1), Command::SendBy { group, address })
    };
    assert_eq!(by(&mut n, Some(AddressId(7))), Ok(None));
    let seven = Dest::Address(AddressId(7));
    assert_eq!(destinations(&mut n, 1), [(seven, Seq(0)), (seven, Seq(1))]);
    assert_eq!(by(&mut n, None), Ok(None));
    let [one, two] = [1, 2].map(|m| Dest::Node(NodeId(m)));
    let copies = [(one, Seq(2)), (two, Seq(2)), (one, Seq(3)), (two, Seq(3))];
    assert_eq!(destinations(&mut n, 20), copies);
    let unknown = Command::SendBy {
        group: GroupId(9),
        address: None,
    };
    assert_eq!(n.command(Time(1), unknown), Err(Refused::NoGroup));
}
