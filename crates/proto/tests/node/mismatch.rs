//! Tests of data that contradict a post, by mistake or forged: which node the receiver queries, and
//! which replies it believes.

use std::time::Duration;

use fabricast_proto::wire::{self, Frame, flag};
use fabricast_proto::{
    AddressId, Command, Dest, Event, GroupId, Node, NodeId, OpId, Outcome, Output, Payload,
    Placement, Reached, Scheme, Seq, Time, XorSources,
};

use crate::common::{
    PAYLOAD, add, bcast, drain, flagged, flagged_at, frames_of, header, node, post, ready, tell,
};

#[test]
fn who_expects_more_or_less_than_the_sender_sends_is_told() {
    // All packets have one length, as if objects were cut into equal parts: the sender's and the
    // receiver's objects differ only in the number of packets.
    for (packets, flags) in [(1, 0), (2, flag::LAST)] {
        for posted_first in [true, false] {
            let mut n = node(1, 4, Scheme::auto());
            add(&mut n, 1);
            let mut op = None;
            let mut go = |n: &mut Node, posts: bool| match posts {
                true => op = post(n, 1, 0, packets * u64::from(PAYLOAD)).expect("posted"),
                false => _ = flagged(n, 0, 0, PAYLOAD as usize, flags),
            };
            go(&mut n, posted_first);
            go(&mut n, !posted_first);
            let op = op.expect("an operation");
            // The node reports the mismatch to its caller when the sender has confirmed it, and
            // only once.
            let meant = Some((Seq(0), (3 - packets) * u64::from(PAYLOAD)));
            let query = asks(&drain(&mut n, Time(2)), op);
            assert!(told(&mut n, 0, &query, meant, op));
            assert!(!told(&mut n, 0, &query, meant, op));
        }
    }
}

/// The only query among these outputs. Panics unless it goes to node 0, or if the outputs report a
/// mismatch of `op`.
fn asks(outputs: &[(Output, Vec<u8>)], op: OpId) -> wire::Query {
    let mismatch = Output::Event(Event::Mismatch(op));
    assert!(outputs.iter().all(|o| o.0 != mismatch), "{outputs:?}");
    let queries = frames_of(outputs).filter_map(|(to, frame)| match frame {
        Frame::Query(q) => Some((to, q)),
        _ => None,
    });
    let queries: Vec<_> = queries.collect();
    assert_eq!(queries.len(), 1, "{outputs:?}");
    assert_eq!(queries[0].0, Dest::Node(NodeId(0)));
    queries[0].1
}

/// Feeds node `from`'s reply that its operation is `meant`. Returns whether `n` then reports a
/// mismatch of `op`.
fn told(n: &mut Node, from: u32, query: &wire::Query, meant: Option<(Seq, u64)>, op: OpId) -> bool {
    told_at(n, Time(3), from, query, meant, op)
}

/// Like [`told`], at time `now`.
fn told_at(
    n: &mut Node,
    now: Time,
    from: u32,
    query: &wire::Query,
    meant: Option<(Seq, u64)>,
    op: OpId,
) -> bool {
    let at = Reached {
        count: Seq(0),
        round: 0,
    };
    let reply = wire::Reply {
        group: query.group,
        nonce: query.nonce,
        op: meant,
        at,
        barrier: None,
        ended: false,
    };
    n.packet(now, now, &header(from), &Frame::Reply(reply));
    let mismatch = Output::Event(Event::Mismatch(op));
    drain(n, now).iter().any(|o| o.0 == mismatch)
}

#[test]
fn forged_data_of_another_length_are_no_mismatch() {
    let len = 2 * u64::from(PAYLOAD);
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, len).expect("posted").expect("numbered");
    // The forger sends a packet that is too short, and a packet marked as the last.
    let forge = |n: &mut Node| {
        assert_eq!(flagged(n, 0, 0, 1, 0), Placement::Discard);
        let whole = PAYLOAD as usize;
        assert_eq!(flagged(n, 0, 0, whole, flag::LAST), Placement::Discard);
    };
    forge(&mut n);
    // The forged packets do not count as received on the path either.
    assert_eq!((n.counters().foreign, n.counters().received), (2, 0));
    let query = asks(&drain(&mut n, Time(2)), op);
    assert_eq!((query.group, query.seq), (GroupId(1), Seq(0)));
    // Another member's reply, a reply with another nonce, and the sender's reply.
    let wrong = wire::Query {
        nonce: query.nonce ^ 1,
        ..query
    };
    let other = Some((Seq(0), len + 1));
    assert!(!told(&mut n, 2, &query, other, op));
    assert!(!told(&mut n, 0, &wrong, other, op));
    assert!(!told(&mut n, 0, &query, Some((Seq(0), len)), op));
    // From now on the sender's reply settles the matter: forged packets cause no query.
    forge(&mut n);
    let more = drain(&mut n, Time(4));
    assert!(frames_of(&more).all(|f| !matches!(f.1, Frame::Query(_))));
    let placement = flagged(&mut n, 0, 0, PAYLOAD as usize, 0);
    assert!(matches!(placement, Placement::Write(_)));
}

/// Each packet of another length could cause a query, and so a packet that this node sends.
#[test]
fn forged_data_that_the_sender_does_not_know_of_cause_few_questions() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, 2 * u64::from(PAYLOAD))
        .expect("posted")
        .expect("numbered");
    let mut asked = 0;
    for ms in 1..=300 {
        let now = Time::ZERO + Duration::from_millis(ms);
        flagged_at(&mut n, now, 0, 0, 1, 0);
        let said = drain(&mut n, now);
        let queries = frames_of(&said).filter_map(|(_, frame)| match frame {
            Frame::Query(q) => Some(q),
            _ => None,
        });
        for query in queries.collect::<Vec<_>>() {
            asked += 1;
            assert!(!told_at(&mut n, now, 0, &query, None, op));
        }
    }
    assert!((1..=4).contains(&asked), "{asked}");
}

#[test]
fn who_is_asked_says_what_it_sends() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let len = 3 * u64::from(PAYLOAD);
    bcast(&mut n, 1, len);
    for (seq, op) in [(0, true), (2, true), (3, false), (u32::MAX, false)] {
        let query = wire::Query {
            group: GroupId(1),
            seq: Seq(seq),
            nonce: 77,
        };
        n.packet(Time(5), Time(5), &header(2), &Frame::Query(query));
        let outputs = drain(&mut n, Time(5));
        let replies = frames_of(&outputs).filter_map(|(to, frame)| match frame {
            Frame::Reply(r) => Some((to, r.nonce, r.op)),
            _ => None,
        });
        let op = op.then_some((Seq(0), len));
        let want = [(Dest::Node(NodeId(2)), 77, op)];
        assert_eq!(replies.collect::<Vec<_>>(), want, "{seq}");
    }
}

/// A receiver accepts repairs and syncs of a stream only from its sender, and from the collector
/// that the receiver reports to.
#[test]
fn nobody_else_speaks_for_the_sender() {
    // Of four nodes, node 3 reports directly to the sender, in a tree to node 1, and with two
    // delivery groups to node 2.
    let schemes = [Scheme::auto(), Scheme::tree(2), Scheme::coroot(2)];
    for (scheme, collector) in schemes.into_iter().zip(0..) {
        for from in 0..3 {
            let mut n = node(3, 0, scheme.clone());
            let group = Command::GroupAdd {
                group: GroupId(1),
                address: Some(AddressId(1)),
                members: (0..4).map(NodeId).collect(),
                payload_size: PAYLOAD,
                start: Seq(0),
            };
            assert_eq!(n.command(Time(1), group), Ok(None));
            let _ = post(&mut n, 1, 0, 2 * u64::from(PAYLOAD)).expect("posted");
            drain(&mut n, Time(2));
            let sync = Frame::Sync(wire::Sync {
                group: GroupId(1),
                sender: NodeId(0),
                next: Seq(2),
            });
            n.packet(Time(3), Time(3), &header(from), &sync);
            let payload = vec![1; PAYLOAD as usize];
            let data = Frame::Data(wire::Data {
                group: GroupId(1),
                origin: wire::Origin::Relayed(NodeId(0)),
                seq: Seq(0),
                flags: flag::RELAYED | flag::REPAIR,
                payload: &payload,
            });
            let placement = n.packet(Time(3), Time(3), &header(from), &data);
            let speaks = from == 0 || from == collector;
            let foreign = if speaks { 0 } else { 2 };
            assert_eq!(matches!(placement, Placement::Write(_)), speaks, "{from}");
            assert_eq!(n.counters().foreign, foreign, "{from}");
        }
    }
}

/// Only the last packet itself shows where the sender's operation ends. A receiver that could
/// compute it by an exclusive or asks the sender first: that operation may have another length.
#[test]
fn the_last_packet_is_not_computed_before_the_length_is_confirmed() {
    let len = 2 * u64::from(PAYLOAD);
    let payload = [3; PAYLOAD as usize];
    let mut sources = XorSources::new(Seq(0));
    assert!(sources.push(Seq(1)));
    let xor = Frame::Xor(wire::XorRepair {
        group: GroupId(1),
        sources,
        flags: 0,
        payload: &payload,
    });
    for meant in [len, len + 1] {
        let mut n = node(1, 0, Scheme::auto());
        add(&mut n, 1);
        let op = post(&mut n, 1, 0, len).expect("posted").expect("numbered");
        let feed = |n: &mut Node| n.packet(Time(2), Time(2), &header(0), &xor);
        let first = flagged(&mut n, 0, 0, PAYLOAD as usize, 0);
        let Placement::Write(extent) = first else {
            panic!("{first:?}");
        };
        n.placed(Time(2), extent, Outcome::Ok);
        assert_eq!(feed(&mut n), Placement::Discard);
        let query = asks(&drain(&mut n, Time(2)), op);
        let mismatch = told(&mut n, 0, &query, Some((Seq(0), meant)), op);
        assert_eq!(mismatch, meant != len);
        if !mismatch {
            assert!(matches!(feed(&mut n), Placement::DecodeXor(..)));
        }
    }
}

/// A sender repairs the last packet of an operation by itself, since receivers do not believe any
/// other packet where the operation ends.
#[test]
fn the_last_packet_is_repaired_by_itself() {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    for member in [1, 2] {
        ready(&mut n, member, at(1));
    }
    bcast(&mut n, 1, 4 * u64::from(PAYLOAD));
    (1..5).for_each(|ms| _ = drain(&mut n, at(ms)));
    // Each receiver lacks another packet, so that one repair could mend both.
    tell(&mut n, 1, at(9), (0, 100, 4), Some(3));
    tell(&mut n, 2, at(9), (2, 100, 3), Some(2));
    let repaired: Vec<_> = (9..100)
        .flat_map(|ms| drain(&mut n, at(ms)))
        .filter_map(|(output, _)| match output {
            Output::Transmit(t) => t.payload,
            _ => None,
        })
        .collect();
    assert!(!repaired.is_empty());
    for payload in repaired {
        assert!(matches!(payload, Payload::Extent(_)), "{payload:?}");
    }
}
