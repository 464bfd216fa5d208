//! Tests of how a sender judges its receivers: which it probes, believes and reports as slow.

use std::time::Duration;

use fabricast_proto::wire::{self, Frame, flag};
use fabricast_proto::{
    AddressId, Command, Dest, Event, GroupId, Node, NodeId, Outcome, Output, Placement, Scheme,
    Seq, Time,
};

use crate::common::{
    PAYLOAD, add, bcast, config, drain, drain_paced, flagged, frames_of, node, post, ready, say,
    tell_gaps,
};

#[test]
fn one_silent_member_of_a_large_group_is_asked_alone() {
    let mut n = node(0, 0, Scheme::auto());
    let members = 40;
    let add = Command::GroupAdd {
        group: GroupId(1),
        address: Some(AddressId(1)),
        members: (0..members).map(NodeId).collect(),
        payload_size: PAYLOAD,
        start: Seq(0),
    };
    assert_eq!(n.command(Time(1), add), Ok(None));
    bcast(&mut n, 1, 10_000);
    for m in 1..members - 1 {
        ready(&mut n, m, Time(2));
    }
    drain(&mut n, Time(2));
    // When the sender looks for silent receivers, it has just heard from all but the last.
    let mut asked = Vec::new();
    for ms in 1..40 {
        let now = Time::ZERO + Duration::from_millis(ms * 5);
        for m in 1..members - 1 {
            ready(&mut n, m, now);
        }
        for (output, head) in drain(&mut n, now) {
            let Output::Transmit(t) = output else {
                continue;
            };
            let datagram = wire::decode(&head);
            if datagram.is_ok_and(|d| d.frames().any(|f| matches!(f, Frame::Sync(_)))) {
                asked.push(t.to);
            }
        }
    }
    assert!(
        asked.contains(&Dest::Node(NodeId(members - 1))),
        "{asked:?}"
    );
    assert!(
        !asked.contains(&Dest::Address(AddressId(1))),
        "everybody was asked: {asked:?}"
    );
}

#[test]
fn what_asks_is_flagged() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 3 * u64::from(PAYLOAD));
    ready(&mut n, 1, Time(2));
    ready(&mut n, 2, Time(2));
    let flags: Vec<u8> = drain_paced(&mut n)
        .into_iter()
        .filter_map(|(o, mut head)| match o {
            Output::Transmit(t) => {
                head.resize(head.len() + t.payload.map_or(0, |p| p.len() as usize), 0);
                wire::decode(&head).ok()?.frames().find_map(|f| match f {
                    Frame::Data(d) => Some(d.flags),
                    _ => None,
                })
            }
            _ => None,
        })
        .collect();
    assert_eq!(flags, [0, 0, flag::ACK_REQUEST | flag::LAST]);
}

/// A receiver whose `high` counts packets that do not exist: the sender still accepts its ACKs and
/// NACKs.
#[test]
fn a_receiver_that_knows_of_too_much_is_still_heard() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 4 * u64::from(PAYLOAD));
    ready(&mut n, 1, Time(2));
    ready(&mut n, 2, Time(2));
    drain_paced(&mut n);
    let later = Time::ZERO + Duration::from_millis(20);
    let placed = |n: &Node| n.members(GroupId(1)).map(|m| m.placed).sum::<u64>();
    say(&mut n, 1, later, 2, 90);
    assert_eq!(placed(&n), 2 * u64::from(PAYLOAD));
    // No receiver can have placed packets that were never sent.
    let foreign = n.counters().foreign;
    say(&mut n, 1, later, 5, 5);
    assert_eq!(placed(&n), 2 * u64::from(PAYLOAD));
    assert_eq!(n.counters().foreign, foreign + 1);
    n.invariants();
}

/// A sender has two receivers: the first has placed nearly all that was sent, the second places
/// nothing. The sender reports only the second as slow.
#[test]
fn who_has_all_that_was_sent_is_not_the_slow_one() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 1_000_000);
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut slow = Vec::new();
    let mut sent = 0;
    for ms in 1..90_000 {
        // The first receiver places packets in steps, as if it wrote large blocks.
        let placed = sent / 50 * 50;
        say(&mut n, 1, at(ms), placed, sent);
        if ms < 5 {
            ready(&mut n, 2, at(ms));
        }
        for (output, _) in drain(&mut n, at(ms)) {
            match output {
                Output::Transmit(t) => {
                    sent += u32::from(t.payload.is_some() && matches!(t.to, Dest::Address(_)));
                    n.sent(at(ms), t.token);
                }
                Output::Event(Event::Slow { node, .. }) => slow.push((ms, node)),
                _ => {}
            }
        }
    }
    assert_eq!(sent, 100, "the window of the second");
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert_eq!(slow[0].1, NodeId(2));
}

#[test]
fn who_is_sent_little_is_not_slow_although_nothing_is_placed() {
    let mut config = config(0, 0, Scheme::auto());
    // The rate allows one packet in two seconds.
    config.rate = Some(u64::from(PAYLOAD + 32) / 2);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, 100 * u64::from(PAYLOAD));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut sent = 0;
    for second in 0..180 {
        for m in [1, 2] {
            // The receivers place nothing yet: the block that they would write is far from full.
            say(&mut n, m, at(1_000 * second + 1), 0, sent);
        }
        for ms in (2..1_000).step_by(10) {
            for (output, _) in drain(&mut n, at(1_000 * second + ms)) {
                let slow = matches!(output, Output::Event(Event::Slow { .. }));
                assert!(!slow, "in second {second}: {output:?}");
                sent += u32::from(matches!(output, Output::Transmit(t) if t.payload.is_some()));
            }
        }
    }
    assert!((80..100).contains(&sent), "{sent}");
}

/// Which receivers the sender reports as slow within 90 s, and in which second. The first receiver
/// has all that was sent; `second` is what the second one says in each millisecond.
fn found_slow(n: &mut Node, second: impl Fn(&mut Node, u64)) -> Vec<(u64, NodeId)> {
    add(n, 1);
    bcast(n, 1, 1_000 * u64::from(PAYLOAD));
    let mut slow = Vec::new();
    for ms in 1..90_000 {
        let now = Time::ZERO + Duration::from_millis(ms);
        say(n, 1, now, 100, 100);
        second(n, ms);
        for (output, _) in drain(n, now) {
            if let Output::Event(Event::Slow { node, .. }) = output {
                slow.push((ms / 1_000, node));
            }
        }
    }
    slow
}

/// The sender judges a receiver by the packets that it has: a receiver can make up other numbers
/// without end.
#[test]
fn who_counts_up_without_placing_is_slow() {
    let mut n = node(0, 0, Scheme::auto());
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    // The second receiver reports that it knows of ever more packets and receives ever more.
    let slow = found_slow(&mut n, |n, ms| {
        say(n, 2, at(ms), 0, (ms as u32 / 300).min(100));
    });
    assert_eq!(slow, [(60, NodeId(2))]);
    // The first receiver has waited as long as the sender. It is not slow when it is the last
    // receiver.
    let gone = Command::PeerRemove(NodeId(2));
    assert_eq!(n.command(at(90_000), gone), Ok(None));
    for ms in 90_000..91_000 {
        for (output, _) in drain(&mut n, at(ms)) {
            let slow = matches!(output, Output::Event(Event::Slow { .. }));
            assert!(!slow, "at {ms}: {output:?}");
        }
    }
}

/// A receiver that lacks much fills many gaps before its first one, and gets on all the time.
#[test]
fn who_fills_later_gaps_is_not_slow() {
    // The second receiver fills one gap a second for 20 seconds, but not its first.
    let slow = found_slow(&mut node(0, 0, Scheme::auto()), |n, ms| {
        let has = (ms as u32 / 1_000).min(20);
        let gaps = [(Seq(0), 1), (Seq(1 + has), 99 - has)];
        let now = Time::ZERO + Duration::from_millis(ms);
        tell_gaps(n, 2, now, (0, 100, 100), &gaps);
    });
    assert_eq!(slow, [(80, NodeId(2))]);
}

#[test]
fn one_packet_leaves_before_all_receivers_have_been_heard() {
    let packets = |outputs: &[(Output, Vec<u8>)]| {
        let payload =
            |output: &Output| matches!(output, Output::Transmit(t) if t.payload.is_some());
        outputs.iter().filter(|(output, _)| payload(output)).count()
    };
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    // Where nodes hold nothing that is not posted, or others report for them, nothing leaves.
    for (hold, scheme, first) in [
        (8, Scheme::auto(), 1),
        (0, Scheme::auto(), 0),
        (8, Scheme::tree(2), 0),
        (8, Scheme::coroot(2), 0),
    ] {
        let mut n = node(0, hold, scheme.clone());
        add(&mut n, 1);
        bcast(&mut n, 1, 5 * u64::from(PAYLOAD));
        assert_eq!(packets(&drain_paced(&mut n)), first, "{hold} {scheme:?}");
        // The node says how much has never left.
        let group = GroupId(1);
        assert_eq!(n.unsent(group), (5 - first as u64) * u64::from(PAYLOAD));
    }
    // One receiver that has not been heard holds up the others for 50 ms.
    for late in [true, false] {
        let mut n = node(0, 8, Scheme::auto());
        add(&mut n, 1);
        bcast(&mut n, 1, 5 * u64::from(PAYLOAD));
        assert_eq!(packets(&drain(&mut n, at(1))), 1);
        say(&mut n, 1, at(2), 1, 1);
        assert_eq!(packets(&drain(&mut n, at(2))), 0);
        if !late {
            ready(&mut n, 2, at(3));
        }
        let soon: usize = (3..50).map(|ms| packets(&drain(&mut n, at(ms)))).sum();
        let later: usize = (50..60).map(|ms| packets(&drain(&mut n, at(ms)))).sum();
        assert_eq!((soon >= 4, later >= 4), (!late, late), "{soon} {later}");
    }
}

/// A receiver advertises no window before a packet on which the sender does not wait for it. It
/// acknowledges the packet at once: the sender then knows the window, too.
#[test]
fn a_receiver_of_one_packet_is_heard_when_it_has_come() {
    let mut on_request_only = Scheme::auto();
    on_request_only.feedback.on_request_only = true;
    for (hold, scheme, len, quiet) in [
        (8, Scheme::auto(), 1, true),
        (8, Scheme::auto(), u64::from(PAYLOAD) + 1, false),
        (0, Scheme::auto(), 1, false),
        (8, on_request_only, 1, false),
        (8, Scheme::tree(2), 1, false),
    ] {
        let mut n = node(1, hold, scheme.clone());
        add(&mut n, 1);
        assert!(post(&mut n, 1, 0, len).is_ok());
        let before = frames_of(&drain(&mut n, Time(2))).count();
        assert_eq!(before == 0, quiet, "{hold} {len} {scheme:?}");
        if !quiet {
            continue;
        }
        // A second broadcast does not fit into that window.
        let mut other = node(1, hold, scheme);
        add(&mut other, 1);
        for _ in 0..2 {
            assert!(post(&mut other, 1, 0, len).is_ok());
        }
        assert_eq!(frames_of(&drain(&mut other, Time(2))).count(), 1);
        let Placement::Write(extent) = flagged(&mut n, 0, 0, 1, flag::LAST) else {
            panic!("it is not placed");
        };
        n.placed(Time(3), extent, Outcome::Ok);
        let said = drain(&mut n, Time(3));
        let feedback: Vec<_> = frames_of(&said).map(|(_, frame)| frame).collect();
        match feedback[..] {
            [Frame::Feedback(f)] => assert!(f.cum == Seq(1) && f.cum.before(f.limit)),
            _ => panic!("{feedback:?}"),
        }
    }
}
