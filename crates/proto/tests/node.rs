//! What a node does when groups and peers come and go, when bytes turn out to be wrong, and when it
//! is told nonsense.

use std::collections::BTreeSet;
use std::time::Duration;

use fabricast_proto::wire::{self, Frame, Header, flag};
use fabricast_proto::{
    Barrier, Command, Config, Dest, Event, Extent, GroupId, Node, NodeId, OpId, Outcome, Output,
    Placement, Reach, Reached, Refused, Scheme, Seq, Session, Time, Token,
};

const CHUNK: u32 = 64;
const SESSION: Session = Session(7);

fn node(id: u32, hold: u32, scheme: Scheme) -> Node {
    Node::new(config(id, hold, scheme), 1)
}

fn config(id: u32, hold: u32, scheme: Scheme) -> Config {
    Config {
        node: NodeId(id),
        session: SESSION,
        scheme,
        hold,
        backlog: 1000,
        rate: None,
        patience: Duration::from_secs(60),
    }
}

fn add(node: &mut Node, group: u32) {
    let add = Command::GroupAdd {
        group: GroupId(group),
        members: (0..3).map(NodeId).collect(),
        chunk: CHUNK,
        start: Seq(0),
    };
    assert_eq!(node.command(Time(1), add), Ok(None));
}

/// All that a node says at `now`, and the heads of its datagrams.
fn drain(node: &mut Node, now: Time) -> Vec<(Output, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let mut head = Vec::new();
        let output = node.poll(now, &mut head);
        node.invariants();
        if let Output::Wait(_) = output {
            return all;
        }
        all.push((output, head));
        assert!(all.len() < 10_000, "it never waits");
    }
}

/// All that a node says in the first ten milliseconds: the pace lets few packets go at a time.
fn drain_paced(node: &mut Node) -> Vec<(Output, Vec<u8>)> {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    (1..10).flat_map(|ms| drain(node, at(ms))).collect()
}

fn data(node: &mut Node, from: u32, seq: u32, len: usize) -> Placement {
    flagged(node, from, seq, len, 0)
}

fn flagged(node: &mut Node, from: u32, seq: u32, len: usize, flags: u8) -> Placement {
    flagged_at(node, Time(2), from, seq, len, flags)
}

fn flagged_at(node: &mut Node, now: Time, from: u32, seq: u32, len: usize, flags: u8) -> Placement {
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

fn header(from: u32) -> Header {
    Header {
        flight: 1,
        source: NodeId(from),
        session: SESSION,
    }
}

/// Receiver `from` says that it can take 100 packets, and has nothing.
fn ready(node: &mut Node, from: u32, now: Time) {
    say(node, from, now, 0, 0);
}

/// Receiver `from` says that it has placed packets before `cum` and seen those before `high`.
fn say(node: &mut Node, from: u32, now: Time, cum: u32, high: u32) {
    tell(node, from, now, (cum, cum + 100, high), None);
}

/// Receiver `from` tells its `cum`, `limit` and `high`, and that it lacks everything from some
/// packet on.
fn tell(
    node: &mut Node,
    from: u32,
    now: Time,
    (cum, limit, high): (u32, u32, u32),
    lacks: Option<u32>,
) {
    let mut bytes = Vec::new();
    wire::put_header(&mut bytes, &header(from));
    let feedback = wire::Feedback {
        group: GroupId(1),
        root: NodeId(0),
        cum: Seq(cum),
        below: Seq(cum),
        limit: Seq(limit),
        high: Seq(high),
        received: high,
        arrived_us: 0,
        held_us: 0,
        flight: 0,
        flags: 0,
        missing: wire::Ranges::NONE,
    };
    let lacks = lacks.filter(|&first| first < high);
    let missing = lacks.map(|first| (Seq(first), high - first));
    wire::put_feedback(&mut bytes, &feedback, missing.into_iter());
    let datagram = wire::decode(&bytes).expect("a good datagram");
    for frame in datagram.frames() {
        node.packet(now, now, &datagram.header, &frame);
    }
}

fn bcast(node: &mut Node, group: u32, len: u64) -> OpId {
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

fn post(node: &mut Node, group: u32, root: u32, len: u64) -> Result<Option<OpId>, Refused> {
    let (group, root) = (GroupId(group), NodeId(root));
    node.command(Time(1), Command::Post { group, root, len })
}

#[test]
fn a_removed_group_gives_back_what_it_held() {
    let mut n = node(1, 10, Scheme::auto());
    add(&mut n, 1);
    let Placement::Hold(token) = data(&mut n, 0, 0, CHUNK as usize) else {
        panic!("not held");
    };
    assert_eq!(n.held(), 1);
    assert_eq!(
        n.command(Time(3), Command::GroupRemove(GroupId(1))),
        Ok(None)
    );
    let outputs = drain(&mut n, Time(3));
    assert!(
        outputs.iter().any(|o| o.0 == Output::Discard(token)),
        "{outputs:?}"
    );
    assert_eq!(n.held(), 0);
}

#[test]
fn a_removed_group_releases_an_object_when_the_transport_has_done_with_it() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let op = bcast(&mut n, 1, 3 * u64::from(CHUNK));
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
    // In the group that was there before, it is gone for good.
    assert_eq!(post(&mut n, 1, 1, 10), Err(Refused::NotMember));
    let foreign = n.counters().foreign;
    assert_eq!(data(&mut n, 1, 0, 10), Placement::Discard);
    assert_eq!(n.counters().foreign, foreign + 1);
}

#[test]
fn of_a_packet_that_comes_again_only_the_wrong_part_is_placed_again() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, u64::from(CHUNK))
        .expect("posted")
        .expect("an operation");
    let part = |offset, len| Extent { op, offset, len };
    let only = |n: &mut Node| flagged(n, 0, 0, CHUNK as usize, flag::LAST);
    let complete = Output::Event(Event::Complete(op));
    let whole = Placement::Write(part(0, CHUNK));
    assert_eq!(only(&mut n), whole);
    n.placed(Time(2), part(0, 32), Outcome::Ok);
    n.placed(Time(2), part(32, 32), Outcome::Corrupt);
    assert!(!drain(&mut n, Time(2)).iter().any(|o| o.0 == complete));
    assert_eq!(only(&mut n), whole);
    n.placed(Time(2), part(32, 32), Outcome::Ok);
    assert!(drain(&mut n, Time(2)).iter().any(|o| o.0 == complete));
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
    scheme.detect.ask_min = Duration::ZERO;
    scheme.detect.ask_max = Duration::ZERO;
    scheme.repair.gather = Duration::MAX;
    scheme.window = 0;
    let mut receiver = node(1, 10, scheme.clone());
    let mut root = node(0, 0, scheme);
    add(&mut root, 1);
    add(&mut receiver, 1);
    bcast(&mut root, 1, 1000);
    assert!(post(&mut receiver, 1, 0, 1000).is_ok());
    data(&mut receiver, 0, 5, CHUNK as usize);
    for ms in 1..50 {
        let now = Time::ZERO + Duration::from_millis(ms);
        drain(&mut root, now);
        drain(&mut receiver, now);
    }
}

/// After a packet that was 40 ms late: how long the next lost one is waited for before the root is
/// told, in ms.
fn patience_once_one_was_late(reorder_max: Duration) -> u64 {
    let mut scheme = Scheme::auto();
    scheme.detect.reorder_max = reorder_max;
    let mut n = node(1, 10, scheme);
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, 10 * u64::from(CHUNK));
    let op = op.expect("posted").expect("an operation");
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut told = None;
    for ms in 1..200 {
        let arrived = match ms {
            1 => Some(0),
            2 => Some(2),
            42 => Some(1), // packet 3 and what follows are in order, and 4 is lost
            90 => Some(3),
            100 => Some(5),
            _ => None,
        };
        if let Some(seq) = arrived {
            let placement = flagged_at(&mut n, at(ms), 0, seq, CHUNK as usize, 0);
            let extent = Extent::packet(op, seq, 10 * u64::from(CHUNK), CHUNK);
            assert_eq!(placement, Placement::Write(extent));
            n.placed(at(ms), extent, Outcome::Ok);
        }
        for (_, head) in drain(&mut n, at(ms)) {
            let Ok(datagram) = wire::decode(&head) else {
                continue;
            };
            let misses = |f: Frame<'_>| match f {
                Frame::Feedback(mut f) => f.missing.any(|(first, _)| first == Seq(4)),
                _ => false,
            };
            if told.is_none() && datagram.frames().any(misses) {
                told = Some(ms - 100);
            }
        }
    }
    told.expect("the root was told")
}

#[test]
fn however_late_a_packet_was_the_next_one_is_not_waited_for_any_longer_than_the_scheme_says() {
    let ms = Duration::from_millis;
    assert_eq!(patience_once_one_was_late(ms(60)), 50);
    assert_eq!(patience_once_one_was_late(ms(2)), 2);
}

#[test]
fn one_silent_member_of_a_large_group_is_asked_alone() {
    let mut n = node(0, 0, Scheme::auto());
    let members = 40;
    let add = Command::GroupAdd {
        group: GroupId(1),
        members: (0..members).map(NodeId).collect(),
        chunk: CHUNK,
        start: Seq(0),
    };
    assert_eq!(n.command(Time(1), add), Ok(None));
    bcast(&mut n, 1, 10_000);
    for m in 1..members - 1 {
        ready(&mut n, m, Time(2));
    }
    drain(&mut n, Time(2));
    // All but the last have just been heard when the root looks who is silent.
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
        !asked.contains(&Dest::Group(GroupId(1))),
        "everybody was asked: {asked:?}"
    );
}

#[test]
fn who_expects_more_or_less_than_the_root_sends_is_told() {
    // Packets of one length, as of objects that are cut into equal parts: their number alone
    // differs.
    for (packets, flags) in [(1, 0), (2, flag::LAST)] {
        for posted_first in [true, false] {
            let mut n = node(1, 4, Scheme::auto());
            add(&mut n, 1);
            let mut op = None;
            let mut go = |n: &mut Node, posts: bool| match posts {
                true => op = post(n, 1, 0, packets * u64::from(CHUNK)).expect("posted"),
                false => _ = flagged(n, 0, 0, CHUNK as usize, flags),
            };
            go(&mut n, posted_first);
            go(&mut n, !posted_first);
            let op = op.expect("an operation");
            // The caller is told when the root has confirmed it, and once.
            let meant = Some((Seq(0), (3 - packets) * u64::from(CHUNK)));
            let query = asks(&drain(&mut n, Time(2)), op);
            assert!(told(&mut n, 0, &query, meant, op));
            assert!(!told(&mut n, 0, &query, meant, op));
        }
    }
}

fn frames_of<'a>(outputs: &'a [(Output, Vec<u8>)]) -> impl Iterator<Item = (Dest, Frame<'a>)> + 'a {
    let transmits = outputs.iter().filter_map(|(output, head)| match output {
        Output::Transmit(t) if t.payload.is_none() => Some((t.to, head)),
        _ => None,
    });
    transmits.flat_map(|(to, head)| {
        let datagram = wire::decode(head).expect("what a node writes can be read");
        datagram.frames().map(move |f| (to, f))
    })
}

/// The only query among these outputs, which goes to node 0; they do not say that `op` does not
/// match.
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

/// Node `from` replies that its operation is `meant`. Whether the node now says that `op` does not
/// match.
fn told(n: &mut Node, from: u32, query: &wire::Query, meant: Option<(Seq, u64)>, op: OpId) -> bool {
    told_at(n, Time(3), from, query, meant, op)
}

/// As [`told`], at this time.
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
    let len = 2 * u64::from(CHUNK);
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, len).expect("posted").expect("numbered");
    // A packet that is too short, and one that is said to be the last.
    let forge = |n: &mut Node| {
        assert_eq!(flagged(n, 0, 0, 1, 0), Placement::Discard);
        let whole = CHUNK as usize;
        assert_eq!(flagged(n, 0, 0, whole, flag::LAST), Placement::Discard);
    };
    forge(&mut n);
    // They tell nothing of the path either.
    assert_eq!((n.counters().foreign, n.counters().received), (2, 0));
    let query = asks(&drain(&mut n, Time(2)), op);
    assert_eq!((query.group, query.seq), (GroupId(1), Seq(0)));
    // Another member's reply, one with another nonce, and the root's.
    let wrong = wire::Query {
        nonce: query.nonce ^ 1,
        ..query
    };
    let other = Some((Seq(0), len + 1));
    assert!(!told(&mut n, 2, &query, other, op));
    assert!(!told(&mut n, 0, &wrong, other, op));
    assert!(!told(&mut n, 0, &query, Some((Seq(0), len)), op));
    // From now on the root's word stands.
    forge(&mut n);
    let more = drain(&mut n, Time(4));
    assert!(frames_of(&more).all(|f| !matches!(f.1, Frame::Query(_))));
    let placement = flagged(&mut n, 0, 0, CHUNK as usize, 0);
    assert!(matches!(placement, Placement::Write(_)));
}

/// Each packet of another length could cause a question, and so a packet of this node.
#[test]
fn forged_data_that_the_root_does_not_know_of_cause_few_questions() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, 2 * u64::from(CHUNK))
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
    let len = 3 * u64::from(CHUNK);
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

/// Only a stream's root, and the collector that this node reports to, repair and say what was sent.
#[test]
fn nobody_else_speaks_for_the_root() {
    // Of four nodes, node 3 reports to the root, in a tree to node 1, with two co-roots to node 2.
    let schemes = [Scheme::auto(), Scheme::tree(2), Scheme::coroot(2)];
    for (scheme, collector) in schemes.into_iter().zip(0..) {
        for from in 0..3 {
            let mut n = node(3, 0, scheme.clone());
            let group = Command::GroupAdd {
                group: GroupId(1),
                members: (0..4).map(NodeId).collect(),
                chunk: CHUNK,
                start: Seq(0),
            };
            assert_eq!(n.command(Time(1), group), Ok(None));
            let _ = post(&mut n, 1, 0, 2 * u64::from(CHUNK)).expect("posted");
            drain(&mut n, Time(2));
            let sync = Frame::Sync(wire::Sync {
                group: GroupId(1),
                root: NodeId(0),
                next: Seq(2),
            });
            n.packet(Time(3), Time(3), &header(from), &sync);
            let payload = vec![1; CHUNK as usize];
            let data = Frame::Data(wire::Data {
                group: GroupId(1),
                origin: wire::Origin::Root(NodeId(0)),
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

/// A receiver that was told of packets that do not exist still acknowledges and lacks others.
#[test]
fn a_receiver_that_knows_of_too_much_is_still_heard() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 4 * u64::from(CHUNK));
    ready(&mut n, 1, Time(2));
    ready(&mut n, 2, Time(2));
    drain_paced(&mut n);
    let later = Time::ZERO + Duration::from_millis(20);
    let placed = |n: &Node| n.members(GroupId(1)).map(|m| m.placed).sum::<u64>();
    say(&mut n, 1, later, 2, 90);
    assert_eq!(placed(&n), 2 * u64::from(CHUNK));
    // Nobody can have placed what was never sent.
    let foreign = n.counters().foreign;
    say(&mut n, 1, later, 5, 5);
    assert_eq!(placed(&n), 2 * u64::from(CHUNK));
    assert_eq!(n.counters().foreign, foreign + 1);
    n.invariants();
}

#[test]
fn what_asks_is_flagged() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 3 * u64::from(CHUNK));
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
    assert_eq!(flags, [0, 0, flag::ASK | flag::LAST]);
}

#[test]
fn a_member_may_go_while_paths_are_proven() {
    let mut n = node(0, 0, Scheme::auto());
    let add = Command::GroupAdd {
        group: GroupId(1),
        members: (0..65).map(NodeId).collect(),
        chunk: CHUNK,
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
    // The driver stops asking at the end of the next round, and a member goes.
    let mut head = Vec::new();
    for _ in 0..64 {
        let output = n.poll(at(unicast + 20), &mut head);
        assert!(matches!(output, Output::Transmit(_)), "{output:?}");
    }
    let gone = Command::PeerRemove(NodeId(5));
    assert_eq!(n.command(at(unicast + 20), gone), Ok(None));
    for ms in unicast + 20..unicast + 100 {
        drain(&mut n, at(ms));
    }
}

/// A root with two receivers, of which the first has everything that was sent and the second
/// nothing new; says who is reported as slow.
#[test]
fn who_has_all_that_was_sent_is_not_the_slow_one() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 1_000_000);
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut slow = Vec::new();
    let mut sent = 0;
    for ms in 1..90_000 {
        // The first places in steps, as one does that writes large blocks.
        let placed = sent / 50 * 50;
        say(&mut n, 1, at(ms), placed, sent);
        if ms < 5 {
            ready(&mut n, 2, at(ms));
        }
        for (output, _) in drain(&mut n, at(ms)) {
            match output {
                Output::Transmit(t) => {
                    sent += u32::from(t.payload.is_some() && matches!(t.to, Dest::Group(_)));
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
    // One packet in two seconds.
    config.rate = Some(u64::from(CHUNK + 32) / 2);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, 100 * u64::from(CHUNK));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut sent = 0;
    for second in 0..180 {
        for m in [1, 2] {
            // The block that they belong to is far from full.
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

/// A receiver is judged by what it has placed: the other numbers it can make up.
#[test]
fn who_counts_up_without_placing_is_slow() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    bcast(&mut n, 1, 1_000 * u64::from(CHUNK));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut slow = Vec::new();
    for ms in 1..90_000 {
        say(&mut n, 1, at(ms), 100, 100);
        // The second knows of ever more packets and receives ever more.
        say(&mut n, 2, at(ms), 0, (ms as u32 / 300).min(100));
        for (output, _) in drain(&mut n, at(ms)) {
            if let Output::Event(Event::Slow { node, .. }) = output {
                slow.push((ms / 1_000, node));
            }
        }
    }
    assert_eq!(slow, [(60, NodeId(2))]);
    // The first has waited as long as the root, and is not to blame when it is the last one.
    let gone = Command::PeerRemove(NodeId(2));
    assert_eq!(n.command(at(90_000), gone), Ok(None));
    for ms in 90_000..91_000 {
        for (output, _) in drain(&mut n, at(ms)) {
            let slow = matches!(output, Output::Event(Event::Slow { .. }));
            assert!(!slow, "at {ms}: {output:?}");
        }
    }
}

/// New packets and repairs that leave now.
fn leave(n: &mut Node, now: Time) -> (u32, u32) {
    let (mut new, mut repairs) = (0, 0);
    for (output, head) in drain(n, now) {
        let Output::Transmit(t) = output else {
            continue;
        };
        n.sent(now, t.token);
        let len = t.payload.map_or(0, |p| p.len() as usize);
        let whole = [&head[..], &vec![0; len]].concat();
        let datagram = wire::decode(&whole).expect("what a node writes can be read");
        match datagram.frames().next() {
            Some(Frame::Data(d)) if d.flags & flag::REPAIR == 0 => new += 1,
            Some(Frame::Data(_) | Frame::Coded(_)) => repairs += 1,
            _ => {}
        }
    }
    (new, repairs)
}

/// What a receiver asks for beyond what its own progress earns takes a fifth of the pace at most.
#[test]
fn who_lacks_everything_again_and_again_is_sent_a_fifth() {
    let mut config = config(0, 0, Scheme::auto());
    config.scheme.window = 1024;
    config.rate = Some(1_000_000);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, 100_000 * u64::from(CHUNK));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let (mut sent, mut again) = (0u32, 0u32);
    for ms in 1..1_000 {
        // The first takes whatever comes, the second lags behind and lacks all of it.
        let placed = sent.saturating_sub(10);
        tell(&mut n, 1, at(ms), (placed, placed + 1024, sent), None);
        let lags = placed.saturating_sub(900);
        tell(&mut n, 2, at(ms), (lags, lags + 1024, sent), Some(lags));
        let (new, repairs) = leave(&mut n, at(ms));
        (sent, again) = (sent + new, again + repairs);
    }
    // It earns one for each that it says it has placed, and had 128 in advance.
    let most = 128 + sent + (sent + again) / 5;
    assert!(sent > 3_000 && again > 1_000, "{sent} {again}");
    assert!(again <= most + 50, "{again} repairs, {sent} packets");
}

/// Members that lack everything and get on are repaired at the full pace, whichever way they are
/// served.
#[test]
fn who_lacks_everything_at_the_end_is_sent_it_at_the_full_pace() {
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    for reach in [Reach::Multicast, Reach::Unicast] {
        let mut config = config(0, 0, Scheme::auto());
        config.scheme.window = 1024;
        config.rate = Some(1_000_000);
        let mut n = Node::new(config, 1);
        add(&mut n, 1);
        if reach == Reach::Unicast {
            let prove = Command::Prove {
                group: GroupId(1),
                multicast: Duration::ZERO,
                unicast: Duration::from_secs(1),
            };
            assert_eq!(n.command(Time(1), prove), Ok(None));
            for ms in 1..100 {
                for (output, probe) in drain(&mut n, at(ms)) {
                    if let Output::Transmit(t) = output {
                        let Dest::Node(to) = t.to else {
                            panic!("multicast is not tried: {t:?}")
                        };
                        answer(&mut n, to.0, at(ms), &probe);
                    }
                }
            }
        }
        let packets = 900;
        bcast(&mut n, 1, u64::from(packets) * u64::from(CHUNK));
        assert!(n.members(GroupId(1)).all(|m| m.reach == reach));
        let (mut first, mut again) = (0u32, 0u32);
        let mut all_sent = None;
        let ways = if reach == Reach::Unicast { 2 } else { 1 };
        for ms in 100..4_000 {
            let cum = again / ways;
            for m in [1, 2] {
                let lacks = all_sent.map(|_| cum);
                tell(
                    &mut n,
                    m,
                    at(ms),
                    (cum, cum + 1024, packets.min(first)),
                    lacks,
                );
            }
            let (new, repairs) = leave(&mut n, at(ms));
            (first, again) = (first + new, again + repairs);
            if first == ways * packets && all_sent.is_none() {
                all_sent = Some(ms);
            }
            if all_sent.is_some_and(|then| ms > then + 100) {
                break;
            }
        }
        assert!(all_sent.is_some(), "{reach:?}: {first} of {packets}");
        // A packet with its head has 109 bytes at most: 100 ms of the pace are 900 of them.
        assert!(again > 600, "{reach:?}: {again} repairs in 100 ms");
    }
}

/// The same when everything has been sent: others may lack some of it still.
#[test]
fn who_gets_nowhere_is_sent_a_fifth_to_the_end() {
    const FILE: u32 = 500;
    let mut config = config(0, 0, Scheme::auto());
    config.scheme.window = 1024;
    let overhead = config.scheme.data_overhead() as u32;
    config.rate = Some(1_000_000);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, u64::from(FILE * CHUNK));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let (mut sent, mut again) = (0u32, 0u32);
    for ms in 1..1_000 {
        tell(&mut n, 1, at(ms), (sent, sent + 1024, sent), None);
        // What the second has had it lacks again, which earns nothing more.
        let had = if ms % 2 == 0 { 0 } else { sent.min(50) };
        tell(&mut n, 2, at(ms), (0, 1024, sent), Some(had));
        let (new, repairs) = leave(&mut n, at(ms));
        (sent, again) = (sent + new, again + repairs);
    }
    assert_eq!(sent, FILE);
    let pace = 1_000_000 / (CHUNK + overhead);
    let most = 128 + 50 + pace / 5;
    assert!(again > pace / 10, "{again} repairs");
    assert!(
        again <= most + 50,
        "{again} repairs of {pace} packets a second"
    );
}

/// In memory the pace has no limit, and neither has a fifth of it.
#[test]
fn a_share_of_a_boundless_pace_is_boundless() {
    let mut config = config(0, 0, Scheme::auto());
    config.rate = Some(u64::MAX);
    let mut n = Node::new(config, 1);
    add(&mut n, 1);
    bcast(&mut n, 1, 90 * u64::from(CHUNK));
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut again = 0;
    for ms in 1..100 {
        tell(&mut n, 1, at(ms), (0, 100, 90), Some(0));
        for (output, _) in drain(&mut n, at(ms)) {
            if let Output::Transmit(t) = output {
                n.sent(at(ms), t.token);
                again += u32::from(t.payload.is_some());
            }
        }
    }
    assert!(again > 90, "{again}");
}

#[test]
fn an_operation_that_has_failed_asks_for_nothing_more() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, 4 * u64::from(CHUNK))
        .expect("posted")
        .expect("an operation");
    data(&mut n, 0, 0, CHUNK as usize);
    let first = Extent {
        op,
        offset: 0,
        len: CHUNK,
    };
    n.placed(Time(2), first, Outcome::Failed);
    data(&mut n, 0, 3, CHUNK as usize);
    let mut told = 0;
    reports(&mut n, |f| {
        told += 1;
        assert_eq!((f.cum, f.limit), (Seq(0), Seq(0)));
        assert_eq!(f.missing.count(), 0);
    });
    assert!((1..4).contains(&told), "said so {told} times");
}

/// What a node reports within 200 ms.
fn reports(node: &mut Node, mut each: impl FnMut(wire::Feedback<'_>)) {
    let said = (1..200).flat_map(|ms| drain(node, Time::ZERO + Duration::from_millis(ms)));
    for (_, head) in said {
        let Ok(datagram) = wire::decode(&head) else {
            continue;
        };
        for frame in datagram.frames() {
            if let Frame::Feedback(f) = frame {
                each(f);
            }
        }
    }
}

/// What it reports as missing, without repeats.
fn missing(node: &mut Node) -> BTreeSet<(u32, u32)> {
    let mut all = BTreeSet::new();
    reports(node, |f| {
        all.extend(f.missing.map(|(first, n)| (first.0, n)));
    });
    all
}

#[test]
fn who_lacks_a_short_one_that_is_posted_asks_for_all_that_it_can_hold() {
    const HOLD: u32 = 8;
    let told = || {
        let mut n = node(1, HOLD, Scheme::auto());
        add(&mut n, 1);
        let sent = wire::Sync {
            group: GroupId(1),
            root: NodeId(0),
            next: Seq(20),
        };
        n.packet(Time(2), Time(2), &header(0), &Frame::Sync(sent));
        assert_eq!(missing(&mut n), [].into(), "nothing is posted");
        n
    };
    let mut n = told();
    post(&mut n, 1, 0, 9 * u64::from(CHUNK)).expect("posted");
    assert_eq!(missing(&mut n), [(0, 9)].into());
    let mut n = told();
    post(&mut n, 1, 0, 1).expect("posted");
    assert_eq!(missing(&mut n), [(0, 1 + HOLD)].into());
    let lost = 5;
    for seq in (0..=HOLD).filter(|&seq| seq != lost) {
        let placement = flagged(&mut n, 0, seq, 1, flag::LAST);
        assert_eq!(
            matches!(placement, Placement::Hold(_)),
            seq > 0,
            "{seq}: {placement:?}"
        );
    }
    assert_eq!(missing(&mut n), [].into(), "what is posted is here");
}

/// A forged packet names a burst that never was. A receiver that believed it would tell nothing of
/// the true ones for 200 ms, and the root would not learn how fast it may send.
#[test]
fn true_packets_overrule_a_burst_that_never_was() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    post(&mut n, 1, 0, 100 * u64::from(CHUNK)).expect("posted");
    let payload = [1; CHUNK as usize];
    let mut come = |now: Time, burst: u16, seq: u32| {
        let mut header = header(0);
        header.flight = burst;
        let frame = Frame::Data(wire::Data {
            group: GroupId(1),
            origin: wire::Origin::Source(Seq(0)),
            seq: Seq(seq),
            flags: 0,
            payload: &payload,
        });
        n.packet(now, now, &header, &frame);
        let said = drain(&mut n, now);
        let frames = frames_of(&said).map(|(_, frame)| frame);
        let told = frames.filter_map(|frame| match frame {
            Frame::Feedback(f) => Some(f.flight),
            _ => None,
        });
        told.last()
    };
    let mut told = Vec::new();
    for seq in 0..90 {
        let now = Time::ZERO + Duration::from_millis(u64::from(seq) + 1);
        // Ten packets a burst; the forged packet repeats one.
        if seq == 20 {
            come(now, 0x7000, 19);
        }
        told.extend(come(now, 1 + (seq / 10) as u16, seq).map(|burst| (seq, burst)));
    }
    let (last, burst) = *told.last().expect("reports");
    assert!(last > 60, "{told:?}");
    assert_eq!(u32::from(burst), 1 + last / 10, "{told:?}");
}

/// Member 1 answers a probe: the one that came by multicast, or by unicast.
fn answer(node: &mut Node, from: u32, now: Time, head: &[u8]) {
    let datagram = wire::decode(head).expect("a probe");
    for frame in datagram.frames() {
        let Frame::Probe(probe) = frame else { continue };
        let ack = Frame::ProbeAck(probe);
        node.packet(now, now, &header(from), &ack);
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
    // It stands still for eight seconds, and then answers everything that waits: unicast first.
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for ms in 1..8_000 {
        for (output, head) in drain(&mut n, at(ms)) {
            let Output::Transmit(t) = output else {
                panic!("{output:?} after {ms} ms");
            };
            match t.to {
                Dest::Node(_) => alone.push(head),
                Dest::Group(_) => together.push(head),
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
    assert!(n.members(GroupId(1)).all(|m| m.reach == Reach::Multicast));
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
    // It stands still for three seconds before its first probe.
    let late = Time::ZERO + Duration::from_secs(3);
    for ms in 0..200 {
        for (output, _) in drain(&mut n, late + Duration::from_millis(ms)) {
            if let Output::Transmit(t) = output {
                assert_eq!(t.to, Dest::Group(GroupId(1)));
            }
        }
    }
}

/// A root makes use of another group's proof from its first packet on.
#[test]
fn whom_multicast_is_known_not_to_reach_is_served_by_unicast_at_once() {
    let mut n = node(0, 0, Scheme::auto());
    add(&mut n, 1);
    let unreached = |members: &[u32]| Command::Unreached {
        group: GroupId(1),
        members: members.iter().copied().map(NodeId).collect(),
    };
    // Itself and a stranger are no members to be served.
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
    // The other member is still reached by multicast.
    let first = sent(&mut n, 1);
    assert_eq!(first.len(), 2, "{first:?}");
    assert!(first.contains(&Dest::Group(GroupId(1))) && first.contains(&Dest::Node(NodeId(1))));
    // The root learns it of the last one while a stream is there already.
    assert_eq!(n.command(Time(2), unreached(&[2])), Ok(None));
    bcast(&mut n, 1, 1);
    let second: Vec<_> = (2..60).flat_map(|ms| sent(&mut n, ms)).collect();
    assert!(second.contains(&Dest::Node(NodeId(2))), "{second:?}");
    assert!(!second.contains(&Dest::Group(GroupId(1))), "{second:?}");
    assert!(n.members(GroupId(1)).all(|m| m.reach == Reach::Unicast));
    let unknown = Command::Unreached {
        group: GroupId(9),
        members: vec![],
    };
    assert_eq!(n.command(Time(3), unknown), Err(Refused::NoGroup));
}

/// To whom node 0 sends the words of a barrier whose release is for all. Multicast was known not to
/// reach node 1; `regained`: it has answered a multicast since then.
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
    // What such an answer looks like is known, and the nonce of the probe is not.
    let forged = |nonce| wire::Probe {
        group,
        nonce,
        flags: flag::MULTICAST | flag::ALONE,
        only: None,
    };
    let mut answered = !regained;
    for ms in 2..1000 {
        for nonce in [0, 1, 2] {
            n.packet(at(ms), at(ms), &header(1), &Frame::ProbeAck(forged(nonce)));
        }
        assert!(answered || !n.members(group).all(|m| m.reach == Reach::Multicast));
        for (output, head) in drain(&mut n, at(ms)) {
            let Output::Transmit(t) = output else {
                continue;
            };
            if !answered && t.to == Dest::Group(group) && t.payload.is_none() {
                answer(&mut n, 1, at(ms), &head);
                answered = n.members(group).all(|m| m.reach == Reach::Multicast);
            }
        }
    }
    assert!(answered, "it was not tried again");
    let (algorithm, now) = (Barrier::Release { fanout: 2 }, at(1000));
    let enter = Command::Barrier {
        group,
        algorithm,
        held: false,
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
    let (all, one) = (Dest::Group(GroupId(1)), Dest::Node(NodeId(1)));
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
                // A forger in the group sees what is multicast, and the nonce with it.
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
    assert!(n.members(group).all(|m| m.reach == Reach::Multicast));
}

#[test]
fn the_path_between_two_is_proven_by_unicast() {
    let mut n = node(0, 0, Scheme::auto());
    let add = Command::GroupAdd {
        group: GroupId(1),
        members: (0..2).map(NodeId).collect(),
        chunk: CHUNK,
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
    let (group, node, reach) = (GroupId(1), NodeId(1), Reach::Unicast);
    let events = [Event::Path { group, node, reach }, Event::Proven(group)];
    let outputs: Vec<_> = drain(&mut n, Time(3)).into_iter().map(|o| o.0).collect();
    assert_eq!(outputs, events.map(Output::Event));
    // It has the group's own lane, and not a second one.
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
    // The second probe of one node is answered twice.
    assert_eq!(answers, [probe(7, None), to_one, to_one]);
}

/// Long packets are few at the pacer's first rate, and the sooner their reports come, the sooner it
/// doubles that.
#[test]
fn the_first_long_packets_are_reported_soon() {
    const LONG: u32 = 8940;
    let mut n = node(1, 0, Scheme::auto());
    let add = Command::GroupAdd {
        group: GroupId(1),
        members: (0..3).map(NodeId).collect(),
        chunk: LONG,
        start: Seq(0),
    };
    assert_eq!(n.command(Time(1), add), Ok(None));
    assert!(post(&mut n, 1, 0, 90 * u64::from(LONG)).is_ok());
    drain(&mut n, Time(2));
    let mut told = Vec::new();
    for seq in 0..8 {
        // Reports are two milliseconds apart at least, and the first one has told of the post.
        let now = Time::ZERO + Duration::from_millis(u64::from(seq + 1));
        let Placement::Write(extent) = flagged_at(&mut n, now, 0, seq, LONG as usize, 0) else {
            panic!("packet {seq} is not written");
        };
        n.placed(now, extent, Outcome::Ok);
        if !drain(&mut n, now).is_empty() {
            told.push(seq);
        }
    }
    assert_eq!(told, [2, 4, 6]);
}

/// P1.6: receiver `i` acknowledges packet B if B mod M = i mod M, whatever it has said in between,
/// so that the root hears from one after the other and never from all at once.
#[test]
fn receivers_whose_acknowledgements_are_skewed_take_turns() {
    const EVERY: u32 = 8;
    for turn in 0..EVERY {
        let mut n = node(turn + 1, 0, Scheme::acknowledged().skewed(EVERY));
        let add = Command::GroupAdd {
            group: GroupId(1),
            members: (0..=EVERY).map(NodeId).collect(),
            chunk: CHUNK,
            start: Seq(0),
        };
        assert_eq!(n.command(Time(1), add), Ok(None));
        assert!(post(&mut n, 1, 0, 90 * u64::from(CHUNK)).is_ok());
        let told = |outputs: Vec<(Output, Vec<u8>)>| {
            let told = |o: &(Output, Vec<u8>)| matches!(o.0, Output::Transmit(_));
            outputs.iter().any(told)
        };
        assert!(told(drain(&mut n, Time(2))), "it has posted");
        for seq in 0..80 {
            let now = Time::ZERO + Duration::from_micros(10 * u64::from(seq + 1));
            let Placement::Write(extent) = data(&mut n, 0, seq, CHUNK as usize) else {
                panic!("packet {seq} is not written");
            };
            n.placed(now, extent, Outcome::Ok);
            let speaks = told(drain(&mut n, now));
            // Whose turn comes soon after its first word, or the question, leaves it out.
            let soon = (0..3).contains(&seq) || (41..44).contains(&seq);
            let its_turn = seq % EVERY == turn && !soon;
            assert_eq!(speaks, its_turn, "{turn}: {seq}");
            if seq == 40 {
                let sync = Frame::Sync(wire::Sync {
                    group: GroupId(1),
                    root: NodeId(0),
                    next: Seq(41),
                });
                n.packet(now, now, &header(0), &sync);
                assert!(told(drain(&mut n, now)), "it was asked");
            }
        }
    }
}

/// What a member says of the stream of this node, or of one that is gone, begins none: each takes
/// memory, and a share of the buffers.
#[test]
fn a_stream_that_cannot_be_is_not_begun() {
    let mut n = node(1, 0, "auto+credits".parse().expect("a scheme"));
    let gone = Command::PeerRemove(NodeId(2));
    assert_eq!(n.command(Time(1), gone), Ok(None));
    add(&mut n, 1);
    for root in [1, 2].map(NodeId) {
        let sync = Frame::Sync(wire::Sync {
            group: GroupId(1),
            root,
            next: Seq(5),
        });
        let relayed = Frame::Data(wire::Data {
            group: GroupId(1),
            origin: wire::Origin::Root(root),
            seq: Seq(0),
            flags: 0,
            payload: &[1; CHUNK as usize],
        });
        for frame in [sync, relayed] {
            n.packet(Time(2), Time(2), &header(0), &frame);
            assert_eq!(drain(&mut n, Time(2)), [], "of {root:?}");
        }
        assert_eq!(
            post(&mut n, 1, root.0, 10),
            Err(Refused::NotMember),
            "{root:?}"
        );
    }
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
        };
        for source in [0, 2] {
            n.packet(Time(2), Time(2), &header(source), &Frame::Probe(probe));
        }
        answers.push(drain(&mut n, Time(3)).len());
    }
    assert_eq!(answers, [2, 4, 6, 8]);
}

/// A host that forges probes in a member's name turns few answers on it, however many it sends.
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
            };
            n.packet(now, now, &header(0), &Frame::Probe(probe));
            answers += drain(&mut n, now).len();
        }
    }
    // The three members together 1600 in a second, and each 64 at once.
    assert!((590..=605).contains(&answers), "{answers}");
}
