//! What anybody on the network can forge by multicast, and what contradicts itself by the channel.

use fabricast_proto::ibrmp::{
    Body, Failure, Fd, FileId, Message, Name, ReceiverEvent, ReceiverId, ReceiverOutput, Type,
};

use crate::world::{BLOCK, End, Shape, World};

const A: ReceiverId = ReceiverId(0);
const FILE: FileId = FileId(1);
/// Length of a file of three blocks and a half.
const LEN: u64 = 3 * BLOCK as u64 + 50;

fn bof(len: u64) -> Body {
    let name = Name::new(b"forged").expect("a name");
    Body::Bof { len, name }
}

fn data(offset: u64) -> Body {
    Body::Data { offset, len: BLOCK }
}

/// A file is sent, and somebody forges these messages before it, within it and after it. The first
/// number is the slot of each, the second its file.
fn sent_among(forged: &[(u16, u64, Body)]) -> World {
    let mut world = World::new(Shape::default(), 1);
    let forge = |world: &mut World| {
        for (fd, file, body) in forged {
            world.forge(A, *fd, *file, body.clone());
        }
        while world.deliver_multicast(A, 0) {}
    };
    forge(&mut world);
    world.open(LEN).expect("a slot");
    for _ in 0..5 {
        assert!(world.multicast(|_, _| true));
        forge(&mut world);
    }
    world.repeat();
    world
}

#[test]
pub fn a_forged_newer_file_ends_none() {
    let mut world = World::new(Shape::default(), 1);
    world.open(LEN).expect("a slot");
    for body in [bof(10), data(0), data(500), bof(LEN), data(0)] {
        assert!(world.multicast(|_, _| true));
        world.forge(A, 0, 9, body);
        while world.deliver_multicast(A, 0) {}
    }
    world.settle();
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
    assert_eq!(world.sent(A, Type::DataRequest), 0, "nothing was lost");
}

#[test]
fn a_forged_file_in_a_free_slot_gives_way() {
    for body in [bof(10), data(0), data(500)] {
        let world = sent_among(&[(0, 9, body)]);
        assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
        assert_eq!(world.closed[&FILE], (1, vec![]));
        let forged = world.stations[&A].ends.get(&FileId(9));
        assert_eq!(forged, Some(&End::Failed(Failure::Forged)));
    }
}

#[test]
fn a_forged_slot_ends_no_file() {
    let world = sent_among(&[(1, 1, bof(LEN)), (1, 1, data(0))]);
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
}

#[test]
fn a_forged_length_is_corrected_by_the_eof() {
    for len in [0, 1, LEN - 1, LEN + 1, 1 << 40] {
        let world = sent_among(&[(0, 1, bof(len))]);
        assert_eq!(world.stations[&A].ends[&FILE], End::Complete, "{len}");
        assert_eq!(world.closed[&FILE], (1, vec![]));
    }
}

#[test]
fn forged_bytes_behind_the_end_are_forgotten() {
    let beyond = [LEN - 10, LEN, 10 * LEN];
    let world = sent_among(&beyond.map(|offset| (0, 1, data(offset))));
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
    assert_eq!(world.stations[&A].machine.holes(), 0);
}

/// A receiver that was deceived requests bytes that will be multicast. It gets none of them by the
/// channel, and requests again what was lost.
#[test]
pub fn what_was_never_multicast_is_not_answered() {
    let mut world = World::new(Shape::default(), 1);
    world.open(LEN).expect("a slot");
    assert!(world.multicast(|_, _| true), "the BOF");
    world.forge(A, 0, 1, data(2 * u64::from(BLOCK)));
    world.settle();
    assert_eq!(world.sent(A, Type::DataRequest), 1);
    assert_eq!(world.received(A, Type::Data), 0);
    world.multicast_all(|_, message| !matches!(message.body, Body::Data { offset: 0, .. }));
    world.settle();
    assert_eq!(
        world.sent(A, Type::TransferDone),
        0,
        "its request was ignored"
    );
    world.repeat();
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
    assert_eq!(world.received(A, Type::Data), 1);
}

/// Forged DATA make a receiver request a BOF that was not multicast yet. When that BOF is lost, the
/// receiver requests it again at the EOF.
#[test]
fn a_bof_that_was_requested_too_early_is_requested_again_at_the_eof() {
    let mut world = World::new(Shape::default(), 1);
    world.open(LEN).expect("a slot");
    world.forge(A, 0, 1, data(0));
    world.settle();
    assert_eq!(world.sent(A, Type::BofRequest), 1);
    world.multicast_all(|_, message| message.kind() != Type::Bof);
    world.settle();
    assert_eq!(world.sent(A, Type::BofRequest), 2);
    assert_eq!(world.received(A, Type::Bof), 1);
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
}

#[test]
fn a_channel_that_contradicts_itself_ends_the_file() {
    let whole = Body::Eof { len: LEN };
    for second in [data(LEN), bof(LEN + 1)] {
        let mut world = World::new(Shape::default(), 1);
        world.open(LEN).expect("a slot");
        let station = world.stations.get_mut(&A).expect("A");
        for body in [&whole, &second] {
            let (fd, file, body) = (Fd(0), FILE, body.clone());
            let extent = station.machine.channel(&Message { fd, file, body });
            assert_eq!(extent, Ok(None));
        }
        let failed = std::iter::from_fn(|| match station.machine.poll() {
            ReceiverOutput::Wait => None,
            output => Some(output),
        })
        .any(|output| {
            let (fd, file, why) = (Fd(0), FILE, Failure::Contradiction);
            output == ReceiverOutput::Event(ReceiverEvent::Failed(fd, file, why))
        });
        assert!(failed, "{second:?}");
        assert_eq!(station.machine.open_files(), 0);
    }
}
