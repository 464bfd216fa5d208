//! Tests with the vectors of the specification, and properties of the decoder.

use super::*;
use crate::limits;
use crate::vector::vector;
use proptest::prelude::*;

const HEADER: Header = Header {
    burst: 0x0102,
    source: NodeId(3),
    session: Session(0x1122_3344_5566_7788),
};

/// The checksum in the example of spec 1.8.
const CHECK_VALUE: u32 = 0x0400_d574;

/// Checks that `written` is the vector and that the vector decodes to `want`.
fn agrees(name: &str, written: &[u8], want: &[Frame<'_>]) {
    let v = vector(name);
    assert_eq!(written, v, "{name}: what we write is not the vector");
    let datagram = decode(&v).unwrap();
    assert_eq!(datagram.header, HEADER);
    assert_eq!(datagram.frames().collect::<Vec<_>>(), want);
}

/// Memory for a datagram.
const SPACE: [u8; limits::HEAD_MAX] = [0; limits::HEAD_MAX];

/// A datagram that has its header.
fn start(space: &mut [u8]) -> Writer<'_> {
    let mut b = Writer::new(space);
    put_header(&mut b, &HEADER);
    b
}

#[test]
fn data_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    let (op, seq) = (Seq(0xffff_fffe), Seq(1));
    put_data(
        &mut b,
        GroupId(7),
        Origin::Source(op),
        seq,
        flag::ACK_REQUEST | flag::REPAIR,
        5,
    );
    b.put(b"hello");
    let data = Data {
        group: GroupId(7),
        origin: Origin::Source(op),
        seq,
        flags: 3,
        payload: b"hello",
    };
    agrees("data", &b, &[Frame::Data(data)]);
}

#[test]
fn coded_vector() {
    let mut sources = XorSources::new(Seq(0xffff_fffe));
    assert!(sources.push(Seq(0)) && sources.push(Seq(100)) && sources.push(Seq(107)));
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_xor(&mut b, GroupId(7), &sources, flag::ACK_REQUEST, 5);
    b.put(b"hello");
    let coded = XorRepair {
        group: GroupId(7),
        sources,
        flags: 1,
        payload: b"hello",
    };
    agrees("coded", &b, &[Frame::Xor(coded)]);
}

#[test]
fn parity_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    let first = Seq(0xffff_fffe);
    put_parity(&mut b, GroupId(7), (first, 128, 5, 5), flag::ACK_REQUEST, 5);
    b.put(b"hello");
    let parity = Parity {
        group: GroupId(7),
        first,
        packets: 128,
        index: 5,
        end: 5,
        flags: 1,
        payload: b"hello",
    };
    agrees("parity", &b, &[Frame::Parity(parity)]);
    let frame = HEADER_LEN + 8;
    for (at, bad) in [(0, 1), (0, 129), (1, 64), (2, 1), (3, 6)] {
        let mut wrong = b.to_vec();
        wrong[frame + at] = bad;
        assert_eq!(decode(&wrong).err(), Some(DecodeError::Block), "{at} {bad}");
    }
}

/// The feedback of the vectors: of a receiver that has all packets before 100.
fn feedback() -> Feedback<'static> {
    Feedback {
        group: GroupId(7),
        sender: NodeId(3),
        cum: Seq(100),
        cum_subtree: Seq(100),
        limit: Seq(1124),
        high: Seq(140),
        received: 139,
        arrived_us: 1_000_000,
        held_us: 250,
        burst: 0x0102,
        flags: flag::BURST,
        slot: None,
        declined: Declined::NONE,
        missing: Ranges::NONE,
    }
}

#[test]
fn feedback_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    let mut f = Feedback {
        cum_subtree: Seq(90),
        ..feedback()
    };
    let ranges = [(Seq(95), 2), (Seq(110), 1), (Seq(130), 4)];
    put_feedback(&mut b, &f, ranges.into_iter());
    let v = vector("feedback");
    assert_eq!(*b, v[..]);
    let datagram = decode(&v).unwrap();
    let Some(Frame::Feedback(got)) = datagram.frames().next() else {
        panic!("no feedback");
    };
    assert_eq!(got.missing.collect::<Vec<_>>(), ranges);
    f.missing = got.missing;
    assert_eq!(got, f);
}

/// A receiver that joined later names its slot; the frames of the others are as long as ever.
#[test]
fn feedback_of_a_receiver_that_joined_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    let slot = Slot { index: 5, epoch: 3 };
    let mut f = Feedback {
        slot: Some(slot),
        ..feedback()
    };
    put_feedback(&mut b, &f, [(Seq(110), 1)].into_iter());
    let v = vector("feedback-joined");
    assert_eq!(*b, v[..]);
    let datagram = decode(&v).unwrap();
    let Some(Frame::Feedback(got)) = datagram.frames().next() else {
        panic!("no feedback");
    };
    assert_eq!(got.missing.collect::<Vec<_>>(), [(Seq(110), 1)]);
    f.missing = got.missing;
    assert_eq!(got, f);
    let mut founder = v.clone();
    founder[HEADER_LEN + FEEDBACK_LEN + 3] = 0;
    assert_eq!(decode(&founder).err(), Some(DecodeError::Slot));
    let mut cut = v[..HEADER_LEN + FEEDBACK_LEN + 2].to_vec();
    cut[HEADER_LEN + 3] = FEEDBACK_LEN as u8 + 2;
    assert_eq!(decode(&cut).err(), Some(DecodeError::FrameLength));
}

/// A receiver that declines operations names their packets.
#[test]
fn feedback_of_a_receiver_that_declines_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    let f = feedback();
    let declined = [(Seq(90), 10), (Seq(200), 200_000)];
    let missing = [(Seq(110), 1)];
    assert!(put_declining_feedback(
        &mut b,
        usize::MAX,
        &f,
        declined.into_iter(),
        missing.into_iter(),
    ));
    let v = vector("feedback-declining");
    assert_eq!(*b, v[..]);
    let datagram = decode(&v).unwrap();
    let Some(Frame::Feedback(got)) = datagram.frames().next() else {
        panic!("no feedback");
    };
    assert_eq!(got.missing.collect::<Vec<_>>(), [(Seq(110), 1)]);
    assert_eq!(got.declined.collect::<Vec<_>>(), declined);
    let (declined, missing) = (got.declined, got.missing);
    assert_eq!(
        got,
        Feedback {
            declined,
            missing,
            ..f
        }
    );
    // No ranges, too many, an empty one, ranges that do not rise, and ranges that wrap around.
    let list = HEADER_LEN + FEEDBACK_LEN;
    for (at, bad) in [(3, 0), (3, 17), (11, 0), (12, 0x80), (8, 0x80)] {
        let mut wrong = v.clone();
        wrong[list + at] = bad;
        let refused = decode(&wrong).err();
        assert_eq!(refused, Some(DecodeError::Declined), "{at} {bad}");
    }
    let mut cut = v[..list + 10].to_vec();
    cut[HEADER_LEN + 3] = FEEDBACK_LEN as u8 + 10;
    assert_eq!(decode(&cut).err(), Some(DecodeError::FrameLength));
}

/// Memory may end where the room ends.
#[test]
fn feedback_that_exceeds_its_room_is_not_written() {
    let joined = Slot { index: 1, epoch: 1 };
    for (slot, declined, missing) in [
        (None, 0, 0),
        (None, 0, 3),
        (Some(joined), 0, 1),
        (Some(joined), 1, 0),
        (None, 2, 2),
    ] {
        let f = Feedback {
            arrived_us: 1,
            held_us: 2,
            burst: 3,
            slot,
            ..feedback()
        };
        let within = |room, space: &mut [u8]| {
            let mut b = start(space);
            let declined = (0..declined).map(|n| (Seq(200 + 10 * n), 5));
            let missing = (0..missing).map(|n| (Seq(110 + 10 * n), 5));
            let is_there = put_declining_feedback(&mut b, room, &f, declined, missing);
            (is_there, b.to_vec())
        };
        let mut space = SPACE;
        let (_, whole) = within(usize::MAX, &mut space);
        let needed = whole.len() - HEADER_LEN;
        for room in 0..=needed {
            let written = within(room, &mut space[..HEADER_LEN + room]);
            let is_there = room == needed;
            let len = if is_there { whole.len() } else { HEADER_LEN };
            assert_eq!(written, (is_there, whole[..len].to_vec()), "{room}");
        }
    }
}

#[test]
fn sync_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    let s = Sync {
        group: GroupId(7),
        sender: NodeId(3),
        next: Seq(140),
    };
    put_sync(&mut b, &s);
    agrees("sync", &b, &[Frame::Sync(s)]);
}

#[test]
fn probe_vectors() {
    let p = Probe {
        group: GroupId(7),
        nonce: 0xdead_beef,
        flags: flag::MULTICAST,
        only: None,
        by: None,
    };
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_probe(&mut b, &p, 40);
    agrees("probe", &b, &[Frame::Probe(p)]);
    let alone = Probe {
        flags: flag::MULTICAST | flag::ALONE,
        only: Some(NodeId(9)),
        ..p
    };
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_probe(&mut b, &alone, 40);
    agrees("probe-alone", &b, &[Frame::Probe(alone)]);
    let by_address = Probe {
        flags: flag::MULTICAST | flag::BY_ADDRESS,
        by: Some(AddressId(6)),
        ..p
    };
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_probe(&mut b, &by_address, 40);
    agrees("probe-by-address", &b, &[Frame::Probe(by_address)]);
    let both = Probe {
        flags: alone.flags | by_address.flags,
        only: alone.only,
        ..by_address
    };
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_probe(&mut b, &both, 40);
    let datagram = decode(&b).expect("a probe with both numbers");
    assert_eq!(datagram.frames().next(), Some(Frame::Probe(both)));
    // The datagram is too short to name its source.
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_probe(&mut b, &p, 0);
    b[HEADER_LEN + 1] |= flag::ALONE;
    assert_eq!(decode(&b).map(|_| ()), Err(DecodeError::FrameLength));
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_probe_ack(&mut b, &p);
    agrees("probe-ack", &b, &[Frame::ProbeAck(p)]);
}

#[test]
fn word_vector() {
    let at = |count, round| Reached {
        count: Seq(count),
        round,
    };
    let mut w = Word {
        group: GroupId(7),
        at: at(0, 1),
        heard: Some(at(0xffff_ffff, 3)),
        barrier: Some(Barrier::Dissemination { ways: 4 }),
        flags: flag::ACK_REQUEST,
    };
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_word(&mut b, &w);
    agrees("word", &b, &[Frame::Word(w)]);
    let frame = HEADER_LEN;
    let refused = |b: &[u8], at: usize, bad: u8| {
        let mut wrong = b.to_vec();
        wrong[frame + at] = bad;
        assert_eq!(decode(&wrong).err(), Some(DecodeError::Word), "{at} {bad}");
    };
    // Unknown flags, too many rounds, an unknown barrier, a parameter for a barrier without one,
    // and no parameter for a barrier that needs one.
    for (at, bad) in [
        (1, 8),
        (17, 65),
        (16, 1),
        (19, 65),
        (20, 0),
        (20, 9),
        (20, 2),
        (21, 1),
        (23, 0),
    ] {
        refused(&b, at, bad);
    }
    // A word to the group echoes nothing. Before the first barrier it names no barrier and no
    // round.
    (w.heard, w.barrier, w.at.round) = (None, None, 0);
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_word(&mut b, &w);
    assert_eq!(decode(&b).unwrap().frames().next(), Some(Frame::Word(w)));
    for (at, bad) in [(15, 1), (17, 1), (19, 1), (23, 1)] {
        refused(&b, at, bad);
    }
    b[frame + 3] = 20;
    b.truncate(frame + 20);
    assert_eq!(decode(&b).err(), Some(DecodeError::FrameLength));
}

#[test]
fn check_vector() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_check(&mut b, Checksum::Crc32c);
    let (op, seq) = (Seq(0xffff_fffe), Seq(1));
    put_data(&mut b, GroupId(7), Origin::Source(op), seq, 0, 5);
    // The driver computes the checksum; the value is that of spec 1.8.
    set_check(&mut b, Checksum::Crc32c, |[before, behind]| {
        assert_eq!((before.len(), behind.len()), (HEADER_LEN + 4, DATA_LEN));
        CHECK_VALUE
    });
    b.put(b"hello");
    let v = vector("check");
    assert_eq!(*b, v[..]);
    let datagram = decode(&v).unwrap();
    let check = datagram.check.unwrap();
    assert_eq!(
        (check.checksum, check.value),
        (Checksum::Crc32c, CHECK_VALUE)
    );
    assert_eq!(check.covers(&v).concat(), [&v[..20], &v[24..]].concat());
    assert!(matches!(datagram.frames().next(), Some(Frame::Data(d)) if d.payload == b"hello"));
    // The decoder refuses a check frame that comes after another frame, twice, alone, cut short, or
    // of an unknown kind.
    let [head, check, rest] = [&v[..16], &v[16..24], &v[24..]];
    let refused = |parts: &[&[u8]]| decode(&parts.concat()).err();
    assert_eq!(refused(&[head, rest, check]), Some(DecodeError::Kind));
    assert_eq!(
        refused(&[head, check, check, rest]),
        Some(DecodeError::Kind)
    );
    assert_eq!(refused(&[head, check]), Some(DecodeError::FrameCount));
    assert_eq!(refused(&[head, &check[..7]]), Some(DecodeError::Short));
    assert_eq!(
        refused(&[head, &[9, 3, 0, 8, 0, 0, 0, 0], rest]),
        Some(DecodeError::Check)
    );
    assert_eq!(
        refused(&[head, &[9, 2, 0, 4, 0, 0, 0, 0], rest]),
        Some(DecodeError::FrameLength)
    );
}

#[test]
fn several_frames_share_a_datagram() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    put_sync(
        &mut b,
        &Sync {
            group: GroupId(1),
            sender: NodeId(3),
            next: Seq(2),
        },
    );
    put_data(&mut b, GroupId(1), Origin::Source(Seq(0)), Seq(1), 0, 3);
    b.put(b"abc");
    put_data(&mut b, GroupId(2), Origin::Relayed(NodeId(9)), Seq(5), 0, 0);
    let kinds: Vec<_> = decode(&b)
        .unwrap()
        .frames()
        .map(|f| match f {
            Frame::Sync(_) => 0,
            Frame::Data(d) => 1 + d.payload.len(),
            _ => 9,
        })
        .collect();
    assert_eq!(kinds, [0, 4, 1]);
}

#[test]
fn extensions_of_the_header_are_skipped() {
    let mut space = SPACE;
    let mut b = start(&mut space);
    b[1] = 5;
    b.put(&[9; 4]);
    put_sync(
        &mut b,
        &Sync {
            group: GroupId(7),
            sender: NodeId(3),
            next: Seq(0),
        },
    );
    assert_eq!(decode(&b).unwrap().frames().count(), 1);
}

#[test]
fn query_and_reply_vectors() {
    let query = Query {
        group: GroupId(7),
        seq: Seq(250),
        nonce: 0x99aa_bbcc_ddee_ff00,
    };
    let mut space = SPACE;
    let mut q = start(&mut space);
    put_query(&mut q, &query);
    agrees("query", &q, &[Frame::Query(query)]);
    let reply = Reply {
        group: GroupId(7),
        nonce: query.nonce,
        op: Some((Seq(240), 65_536)),
        at: Reached {
            count: Seq(3),
            round: 1,
        },
        barrier: Some(Barrier::Dissemination { ways: 4 }),
        ended: false,
    };
    let mut space = SPACE;
    let mut r = start(&mut space);
    put_reply(&mut r, &reply);
    agrees("reply", &r, &[Frame::Reply(reply)]);
    // A reply is no larger than the query.
    assert_eq!(q.len(), r.len());
    let refused = |b: &[u8], at: usize, bad: u8| {
        let mut wrong = b.to_vec();
        wrong[HEADER_LEN + at] = bad;
        assert_eq!(decode(&wrong).err(), Some(DecodeError::Query), "{at} {bad}");
    };
    for (at, bad) in [(1, 1), (20, 1), (39, 1)] {
        refused(&q, at, bad);
    }
    // Unknown flags, an operation without KNOWN, too many rounds, an impossible barrier.
    for (at, bad) in [(1, 3), (1, 0), (33, 65), (34, 9), (35, 1), (37, 0), (39, 1)] {
        refused(&r, at, bad);
    }
    let none = Reply {
        op: None,
        at: Reached::none(Seq(9)),
        barrier: None,
        ended: true,
        ..reply
    };
    let mut space = SPACE;
    let mut r = start(&mut space);
    put_reply(&mut r, &none);
    assert_eq!(
        decode(&r).unwrap().frames().next(),
        Some(Frame::Reply(none))
    );
}

#[test]
fn every_refusal_has_its_reason() {
    let good = {
        let mut space = SPACE;
        let mut b = start(&mut space);
        put_sync(
            &mut b,
            &Sync {
                group: GroupId(7),
                sender: NodeId(3),
                next: Seq(0),
            },
        );
        b.to_vec()
    };
    let with = |i: usize, v: u8| {
        let mut b = good.clone();
        b[i] = v;
        decode(&b).err()
    };
    assert_eq!(decode(&good[..15]).err(), Some(DecodeError::Short));
    assert_eq!(decode(&good[..16]).err(), Some(DecodeError::FrameCount));
    assert_eq!(decode(&good[..18]).err(), Some(DecodeError::Short));
    assert_eq!(with(0, VERSION + 1), Some(DecodeError::Version));
    assert_eq!(with(1, 3), Some(DecodeError::HeaderLength));
    assert_eq!(with(1, 200), Some(DecodeError::Short));
    assert_eq!(with(16, kind::HELLO), Some(DecodeError::Kind));
    assert_eq!(with(16, kind::FEEDBACK), Some(DecodeError::FrameLength));
    assert_eq!(with(19, 3), Some(DecodeError::FrameLength));
    assert_eq!(with(19, 17), Some(DecodeError::Short));
    let mut many = good[..16].to_vec();
    for _ in 0..=limits::FRAMES_MAX {
        many.extend_from_slice(&good[16..]);
    }
    assert_eq!(decode(&many).err(), Some(DecodeError::FrameCount));
    let mut v = vector("coded");
    v[16 + 8..16 + 12].fill(0);
    assert_eq!(decode(&v).err(), Some(DecodeError::XorSources));
    let mut v = vector("feedback");
    v[16 + 27] -= 7; // high comes before the end of the last range
    assert_eq!(decode(&v).err(), Some(DecodeError::Ranges));
}

proptest! {
    /// For any bytes, the decoder refuses them or returns frames that can be read to the end.
    #[test]
    fn anything_decodes_or_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        read_all(&bytes);
    }

    /// Like the test with random bytes, but with damaged valid datagrams, which random bytes hardly
    /// ever resemble.
    #[test]
    fn damaged_vectors_decode_or_are_refused(
        which in 0usize..13, damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
        cut in 0usize..120,
    ) {
        let mut b = vector([
            "data", "coded", "parity", "feedback", "sync", "probe", "probe-ack", "check", "word",
            "query", "reply", "feedback-joined", "feedback-declining",
        ][which]);
        for (at, v) in damage {
            let i = usize::from(at) % b.len();
            b[i] = v;
        }
        b.truncate(b.len().saturating_sub(cut).max(1));
        read_all(&b);
    }

    /// The decoder reads back what was written, for any numbers.
    #[test]
    fn feedback_comes_back(
        cum: u32,
        window in 0u32..limits::WINDOW_MAX,
        gaps in proptest::collection::vec((0u32..50, 1u32..50), 0..150),
        slot in proptest::option::of((any::<u16>(), 1..=u16::MAX)),
    ) {
        let slot = slot.map(|(index, epoch)| Slot { index, epoch });
        let mut at = Seq(cum);
        let missing: Vec<_> = gaps.iter().map(|&(skip, len)| {
            let first = at + skip;
            at = first + len;
            (first, len)
        }).collect();
        let f = Feedback {
            group: GroupId(1),
            sender: NodeId(0),
            cum: Seq(cum),
            cum_subtree: Seq(cum),
            limit: Seq(cum) + window,
            high: at,
            received: 1, arrived_us: 2, held_us: 3, burst: 4, flags: 0, slot,
            declined: Declined::NONE, missing: Ranges::NONE,
        };
        let mut space = SPACE;
        let mut b = start(&mut space);
        put_feedback(&mut b, &f, missing.iter().copied());
        prop_assert!(b.len() <= limits::HEAD_MAX);
        let d = decode(&b).unwrap();
        let Some(Frame::Feedback(got)) = d.frames().next() else { panic!("no feedback") };
        let kept = missing.len().min(limits::RANGES_MAX);
        prop_assert_eq!(got.missing.collect::<Vec<_>>(), &missing[..kept]);
        prop_assert_eq!((got.limit, got.slot), (f.limit, f.slot));
    }
}

fn read_all(bytes: &[u8]) {
    if let Ok(d) = decode(bytes) {
        for frame in d.frames() {
            if let Frame::Feedback(f) = frame {
                for (first, len) in f.missing {
                    assert!(len > 0 && !first.before(f.cum_subtree) && !f.high.before(first + len));
                }
            }
        }
    }
}
