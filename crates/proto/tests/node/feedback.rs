//! Tests of a receiver's feedback: its content and its timing.

use std::collections::BTreeSet;
use std::time::Duration;

use fabricast_proto::wire::{self, Frame, flag};
use fabricast_proto::{
    AddressId, Command, Event, Extent, GroupId, Node, NodeId, Outcome, Output, Placement, Scheme,
    Seq, Time,
};

use crate::common::{
    PAYLOAD, add, data, drain, flagged, flagged_at, frames_of, header, node, post,
};

#[test]
fn of_a_packet_that_comes_again_only_the_wrong_part_is_placed_again() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, u64::from(PAYLOAD))
        .expect("posted")
        .expect("an operation");
    let part = |offset, len| Extent { op, offset, len };
    let only = |n: &mut Node| flagged(n, 0, 0, PAYLOAD as usize, flag::LAST);
    let complete = Output::Event(Event::Complete(op));
    let whole = Placement::Write(part(0, PAYLOAD));
    assert_eq!(only(&mut n), whole);
    n.placed(Time(2), part(0, 32), Outcome::Ok);
    n.placed(Time(2), part(32, 32), Outcome::Corrupt);
    assert!(!drain(&mut n, Time(2)).iter().any(|o| o.0 == complete));
    assert_eq!(only(&mut n), whole);
    n.placed(Time(2), part(32, 32), Outcome::Ok);
    assert!(drain(&mut n, Time(2)).iter().any(|o| o.0 == complete));
}

/// How long a receiver waits for a lost packet before it sends a NACK, in ms, after an earlier
/// packet was 40 ms late.
fn patience_once_one_was_late(reorder_max: Duration) -> u64 {
    let mut scheme = Scheme::auto();
    scheme.detect.reorder_max = reorder_max;
    let mut n = node(1, 10, scheme);
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, 10 * u64::from(PAYLOAD));
    let op = op.expect("posted").expect("an operation");
    let at = |ms| Time::ZERO + Duration::from_millis(ms);
    let mut told = None;
    for ms in 1..200 {
        let arrived = match ms {
            1 => Some(0),
            2 => Some(2),
            42 => Some(1), // packets from 3 on arrive in order, except that 4 is lost
            90 => Some(3),
            100 => Some(5),
            _ => None,
        };
        if let Some(seq) = arrived {
            let placement = flagged_at(&mut n, at(ms), 0, seq, PAYLOAD as usize, 0);
            let extent = Extent::packet(op, seq, 10 * u64::from(PAYLOAD), PAYLOAD);
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
    told.expect("the sender was told")
}

#[test]
fn however_late_a_packet_was_the_next_one_is_not_waited_for_any_longer_than_the_scheme_says() {
    let ms = Duration::from_millis;
    assert_eq!(patience_once_one_was_late(ms(60)), 50);
    assert_eq!(patience_once_one_was_late(ms(2)), 2);
}

/// Calls `each` with all feedback that a node sends within 200 ms.
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

/// The ranges that a node NACKs within 200 ms, without repeats.
fn missing(node: &mut Node) -> BTreeSet<(u32, u32)> {
    let mut all = BTreeSet::new();
    reports(node, |f| {
        all.extend(f.missing.map(|(first, n)| (first.0, n)));
    });
    all
}

#[test]
fn an_operation_that_has_failed_asks_for_nothing_more() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    let op = post(&mut n, 1, 0, 4 * u64::from(PAYLOAD))
        .expect("posted")
        .expect("an operation");
    data(&mut n, 0, 0, PAYLOAD as usize);
    let first = Extent {
        op,
        offset: 0,
        len: PAYLOAD,
    };
    n.placed(Time(2), first, Outcome::Failed);
    data(&mut n, 0, 3, PAYLOAD as usize);
    let mut told = 0;
    reports(&mut n, |f| {
        told += 1;
        assert_eq!((f.cum, f.limit), (Seq(0), Seq(0)));
        assert_eq!(f.missing.count(), 0);
    });
    assert!((1..4).contains(&told), "said so {told} times");
}

#[test]
fn who_lacks_a_short_one_that_is_posted_asks_for_all_that_it_can_hold() {
    const HOLD: u32 = 8;
    let told = || {
        let mut n = node(1, HOLD, Scheme::auto());
        add(&mut n, 1);
        let sent = wire::Sync {
            group: GroupId(1),
            sender: NodeId(0),
            next: Seq(20),
        };
        n.packet(Time(2), Time(2), &header(0), &Frame::Sync(sent));
        assert_eq!(missing(&mut n), [].into(), "nothing is posted");
        n
    };
    let mut n = told();
    post(&mut n, 1, 0, 9 * u64::from(PAYLOAD)).expect("posted");
    assert_eq!(missing(&mut n), [(0, 9)].into());
    let mut n = told();
    post(&mut n, 1, 0, 1).expect("posted");
    assert_eq!(missing(&mut n), [(0, 1 + HOLD)].into());
    let lost = 5;
    for seq in (0..=HOLD).filter(|&seq| seq != lost) {
        let placement = flagged(&mut n, 0, seq, 1, flag::LAST);
        assert_eq!(
            matches!(placement, Placement::Unexpected(_)),
            seq > 0,
            "{seq}: {placement:?}"
        );
    }
    assert_eq!(missing(&mut n), [].into(), "what is posted is here");
}

/// A forged packet names a burst that the sender never sent. A receiver that believed it would
/// report no true burst for 200 ms, and the sender would not learn how fast it may send.
#[test]
fn true_packets_overrule_a_burst_that_never_was() {
    let mut n = node(1, 0, Scheme::auto());
    add(&mut n, 1);
    post(&mut n, 1, 0, 100 * u64::from(PAYLOAD)).expect("posted");
    let payload = [1; PAYLOAD as usize];
    let mut come = |now: Time, burst: u16, seq: u32| {
        let mut header = header(0);
        header.burst = burst;
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
            Frame::Feedback(f) => Some(f.burst),
            _ => None,
        });
        told.last()
    };
    let mut told = Vec::new();
    for seq in 0..90 {
        let now = Time::ZERO + Duration::from_millis(u64::from(seq) + 1);
        // A burst has ten packets; the forged packet repeats the last one.
        if seq == 20 {
            come(now, 0x7000, 19);
        }
        told.extend(come(now, 1 + (seq / 10) as u16, seq).map(|burst| (seq, burst)));
    }
    let (last, burst) = *told.last().expect("reports");
    assert!(last > 60, "{told:?}");
    assert_eq!(u32::from(burst), 1 + last / 10, "{told:?}");
}

/// At its first rate the pacer releases few long packets. The sooner feedback on them comes, the
/// sooner the pacer doubles the rate.
#[test]
fn the_first_long_packets_are_reported_soon() {
    const LONG: u32 = 8940;
    let mut n = node(1, 0, Scheme::auto());
    let add = Command::GroupAdd {
        group: GroupId(1),
        address: Some(AddressId(1)),
        members: (0..3).map(NodeId).collect(),
        payload_size: LONG,
        start: Seq(0),
    };
    assert_eq!(n.command(Time(1), add), Ok(None));
    assert!(post(&mut n, 1, 0, 90 * u64::from(LONG)).is_ok());
    drain(&mut n, Time(2));
    let mut told = Vec::new();
    for seq in 0..8 {
        // Feedback is at least two milliseconds apart, and the first feedback announced the post.
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

/// P1.6: receiver `i` acknowledges packet B if B mod M = i mod M, whatever feedback it has sent in
/// between. So the sender hears from one receiver after the other, and never from all at once.
#[test]
fn receivers_whose_acknowledgements_are_skewed_take_turns() {
    const EVERY: u32 = 8;
    for turn in 0..EVERY {
        let mut n = node(turn + 1, 0, Scheme::acknowledged().skewed(EVERY));
        let add = Command::GroupAdd {
            group: GroupId(1),
            address: Some(AddressId(1)),
            members: (0..=EVERY).map(NodeId).collect(),
            payload_size: PAYLOAD,
            start: Seq(0),
        };
        assert_eq!(n.command(Time(1), add), Ok(None));
        assert!(post(&mut n, 1, 0, 90 * u64::from(PAYLOAD)).is_ok());
        let told = |outputs: Vec<(Output, Vec<u8>)>| {
            let told = |o: &(Output, Vec<u8>)| matches!(o.0, Output::Transmit(_));
            outputs.iter().any(told)
        };
        assert!(told(drain(&mut n, Time(2))), "it has posted");
        for seq in 0..80 {
            let now = Time::ZERO + Duration::from_micros(10 * u64::from(seq + 1));
            let Placement::Write(extent) = data(&mut n, 0, seq, PAYLOAD as usize) else {
                panic!("packet {seq} is not written");
            };
            n.placed(now, extent, Outcome::Ok);
            let speaks = told(drain(&mut n, now));
            // A receiver skips its turn if it comes soon after its first feedback or after the
            // sync.
            let soon = (0..3).contains(&seq) || (41..44).contains(&seq);
            let its_turn = seq % EVERY == turn && !soon;
            assert_eq!(speaks, its_turn, "{turn}: {seq}");
            if seq == 40 {
                let sync = Frame::Sync(wire::Sync {
                    group: GroupId(1),
                    sender: NodeId(0),
                    next: Seq(41),
                });
                n.packet(now, now, &header(0), &sync);
                assert!(told(drain(&mut n, now)), "it was asked");
            }
        }
    }
}
