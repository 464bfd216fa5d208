//! Each rule of the protocol by itself.

use fabricast_proto::ibrmp::{
    Body, ChannelError, Credits, Failure, Fd, FileId, Frame, Message, Name, ReceiverId, Refusal,
    SenderOutput, Type,
};

use crate::world::{BLOCK, End, Shape, TIMEOUT, World};

const A: ReceiverId = ReceiverId(0);
const B: ReceiverId = ReceiverId(1);
/// The first file of a world, and its slot.
const FD: Fd = Fd(0);
const FILE: FileId = FileId(1);
/// Length of a file of three blocks and a half.
const LEN: u64 = 3 * BLOCK as u64 + 50;

/// What a receiver has sent about the first file, in its order.
fn bodies(world: &World, receiver: ReceiverId) -> Vec<Body> {
    let sent = &world.stations[&receiver].sent;
    let about = sent.iter().filter(|message| message.file == FILE);
    about.map(|message| message.body.clone()).collect()
}

fn data_request(offset: u64, len: u64) -> Body {
    Body::DataRequest { offset, len }
}

/// A world with this number of receivers, where a file is multicast and each receiver gets the
/// messages for which `reaches` is true. The channels carry nothing yet.
fn multicast(receivers: usize, reaches: impl FnMut(ReceiverId, &Message) -> bool) -> World {
    let mut world = World::new(Shape::default(), receivers);
    world.open(LEN).expect("a slot");
    world.multicast_all(reaches);
    world
}

#[test]
pub fn table_1_bof_first_announces_name_and_length_and_nothing_is_requested() {
    let mut world = multicast(1, |_, _| true);
    let station = &world.stations[&A];
    assert_eq!(station.announced[&FILE], ("file".to_string(), LEN));
    assert_eq!(station.sent, []);
    world.settle();
    assert_eq!(bodies(&world, A), [Body::TransferDone]);
    assert_eq!(world.received(A, Type::Eof), 1);
    world.end();
}

#[test]
pub fn table_1_data_first_requests_the_bof() {
    let mut world = multicast(1, |_, message| message.kind() != Type::Bof);
    assert_eq!(bodies(&world, A), [Body::BofRequest]);
    world.settle();
    // The EOF comes before the answer, so the request is repeated.
    let requests = [Body::BofRequest, Body::BofRequest, Body::TransferDone];
    assert_eq!(bodies(&world, A), requests);
    assert!(
        world.received(A, Type::Bof) > 0,
        "the BOF comes by the channel"
    );
    assert_eq!(world.stations[&A].announced[&FILE].1, LEN);
    world.end();
}

#[test]
pub fn table_1_data_first_requests_the_data_that_lie_before() {
    let second = u64::from(BLOCK);
    let lost = |message: &Message| match message.body {
        Body::Data { offset, .. } => offset < second,
        _ => true,
    };
    let mut world = multicast(1, |_, message| !lost(message));
    assert_eq!(
        bodies(&world, A),
        [Body::BofRequest, data_request(0, second)]
    );
    world.settle();
    assert_eq!(world.received(A, Type::Data), 1);
    world.end();
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
}

#[test]
pub fn table_1_eof_first_requests_the_bof_and_the_whole_file() {
    let mut world = multicast(1, |_, _| false);
    assert_eq!(bodies(&world, A), []);
    assert!(world.deliver_down(A), "the EOF");
    assert_eq!(bodies(&world, A), [Body::BofRequest, data_request(0, LEN)]);
    world.settle();
    assert_eq!(world.received(A, Type::Data), 4);
    world.end();
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
}

#[test]
pub fn holes_are_found_by_offsets_that_do_not_follow_each_other() {
    let lost = [u64::from(BLOCK), 2 * u64::from(BLOCK)];
    let mut world = multicast(1, |_, message| match message.body {
        Body::Data { offset, .. } => !lost.contains(&offset),
        _ => true,
    });
    // One request for the two messages, before any EOF.
    assert_eq!(bodies(&world, A), [data_request(lost[0], 2 * lost[0])]);
    world.end();
}

#[test]
pub fn eof_makes_holes_requestable_without_the_bof() {
    let mut world = multicast(1, |_, message| match message.body {
        Body::Data { offset, .. } => offset == 0,
        _ => false,
    });
    let block = u64::from(BLOCK);
    assert!(world.deliver_down(A), "the EOF");
    assert_eq!(world.received(A, Type::Bof), 0);
    // The first request came with the DATA. The sender may have ignored it.
    let requests = [
        Body::BofRequest,
        data_request(block, LEN - block),
        Body::BofRequest,
    ];
    assert_eq!(bodies(&world, A), requests);
    world.end();
}

#[test]
pub fn transfer_done_comes_only_after_all_data_and_eof() {
    // All data are here, and the EOF is not.
    let mut world = multicast(1, |_, _| true);
    assert_eq!(bodies(&world, A), []);
    assert!(world.deliver_down(A), "the EOF");
    assert_eq!(bodies(&world, A), [Body::TransferDone]);
    // The EOF is here, and the last data are not.
    let mut world = multicast(1, |_, message| match message.body {
        Body::Data { offset, .. } => offset < u64::from(BLOCK),
        _ => true,
    });
    while world.received(A, Type::Data) < 3 {
        assert_eq!(world.sent(A, Type::TransferDone), 0);
        let moves = [world.deliver_down(A), world.deliver_up(A)];
        assert!(moves.contains(&true));
    }
    assert_eq!(world.sent(A, Type::TransferDone), 1);
    world.end();
}

#[test]
pub fn an_empty_file_is_complete_with_bof_and_eof() {
    for reaches in [true, false] {
        let mut world = World::new(Shape::default(), 2);
        world.open(0).expect("a slot");
        world.multicast_all(|_, _| reaches);
        world.settle();
        assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
        assert_eq!(world.sent(A, Type::BofRequest), usize::from(!reaches));
        world.end();
    }
}

#[test]
pub fn ghosts_delay_nothing_and_wait_for_the_next_file() {
    let mut world = multicast(2, |_, _| true);
    let ghost = world.join();
    world.settle();
    assert_eq!(
        world.closed[&FILE],
        (2, vec![]),
        "closed before its timeout"
    );
    assert_eq!(world.stations[&ghost].ends.get(&FILE), None);
    world.open(LEN).expect("a slot");
    world.multicast_all(|_, _| true);
    world.settle();
    assert_eq!(world.closed[&FileId(2)], (3, vec![]));
    assert_eq!(world.stations[&ghost].ends[&FileId(2)], End::Complete);
    world.end();
}

#[test]
pub fn a_ghost_that_hears_late_multicast_ends_without_the_file() {
    // One message that was multicast before the ghost came arrives after it, in a slot that is free
    // or where others have not finished, alone or beside a file that is still multicast.
    let (offset, len) = (0, BLOCK);
    let name = Name::new(b"file").expect("a name");
    let bof = Body::Bof { len: LEN, name };
    for late in [bof, Body::Data { offset, len }] {
        for (finished, beside) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut world = World::new(Shape::default(), 1);
            if beside {
                world.open(3 * LEN).expect("a slot");
            }
            let (fd, file) = world.open(LEN).expect("a slot");
            while world.deadline.is_none() {
                assert!(world.multicast(|_, _| true));
            }
            if finished {
                world.settle();
            }
            let ghost = world.join();
            let body = late.clone();
            let station = world.stations.get_mut(&ghost).expect("the ghost");
            station.multicast.push_back(Message { fd, file, body });
            world.settle();
            assert_eq!(world.stations[&ghost].ends.contains_key(&file), beside);
            assert_ne!(world.stations[&ghost].ends.get(&file), Some(&End::Complete));
            world.end();
        }
    }
}

#[test]
pub fn a_receiver_that_joins_before_the_eof_is_noted_and_gets_all() {
    let mut world = World::new(Shape::default(), 1);
    world.open(LEN).expect("a slot");
    for _ in 0..3 {
        world.multicast(|_, _| true);
    }
    let late = world.join();
    world.multicast_all(|_, _| true);
    world.settle();
    assert_eq!(world.closed[&FILE], (2, vec![]));
    assert_eq!(world.stations[&late].ends[&FILE], End::Complete);
    world.end();
}

#[test]
pub fn requests_for_closed_files_are_judged_by_the_tuples_of_the_paper() {
    let mut world = World::new(Shape::default(), 1);
    for _ in 0..4 {
        world.open(LEN).expect("a slot");
    }
    let fd = Fd(3);
    world.abandon(fd, FileId(4));
    assert_eq!(world.open(LEN), Some((fd, FileId(5))));
    assert_eq!(world.sender.tuple(fd), (Some(FileId(5)), Some(FileId(4))));
    world.multicast_all(|_, _| true);
    // ⟨3, 5, x⟩ expires to ⟨3, −1, 5⟩. The EOF has left, so nobody needs to be told.
    world.pass(TIMEOUT);
    assert_eq!(world.sender.tuple(fd), (None, Some(FileId(5))));
    let timeouts = |world: &World| {
        let down = world.stations[&A].down.iter();
        let is_timeout = |frame: &&Frame| match frame {
            Frame::Message(message) => message.kind() == Type::FileTimeout,
            Frame::Ack(_) => false,
        };
        down.filter(is_timeout).count()
    };
    let before = timeouts(&world);
    // ⟨3, 4⟩ is ignored.
    world.say(A, 3, 4, Body::BofRequest);
    assert_eq!(timeouts(&world), before);
    // ⟨3, 5⟩ is answered by FILE_TIMEOUT, once.
    world.say(A, 3, 5, Body::BofRequest);
    assert_eq!(timeouts(&world), before + 1);
    world.say(A, 3, 5, data_request(0, LEN));
    assert_eq!(timeouts(&world), before + 1);
    // Reused as ⟨3, 6, 5⟩: ⟨3, 5⟩ is ignored. Slots 0 to 2 are in use again first.
    for _ in 0..3 {
        world.open(LEN).expect("a slot");
    }
    assert_eq!(world.open(LEN), Some((fd, FileId(9))));
    let joined = world.join();
    world.say(joined, 3, 5, Body::BofRequest);
    assert_eq!(world.received(joined, Type::FileTimeout), 0);
    assert!(world.stations[&joined].down.is_empty());
}

#[test]
pub fn file_timeout_is_sent_once_to_each_receiver_and_only_if_needed() {
    // A has all and says so too late. B lacks all, and has requested it. C lacks data, and the
    // sender has not heard of it. D has left.
    let (c, d) = (ReceiverId(2), ReceiverId(3));
    let mut world = multicast(4, |receiver, message| {
        let is_first = matches!(message.body, Body::Data { offset: 0, .. });
        receiver == A || receiver == c && !is_first
    });
    world.leave(d);
    for receiver in [A, B, c] {
        assert!(world.deliver_down(receiver), "the EOF");
    }
    world.pass(TIMEOUT);
    assert_eq!(world.closed[&FILE], (4, vec![d, A, B, c]));
    for receiver in [A, B, c] {
        assert!(
            world.stations[&receiver].down.is_empty(),
            "nobody has requested anything"
        );
    }
    world.settle();
    let got = [A, B, c].map(|receiver| world.received(receiver, Type::FileTimeout));
    assert_eq!(got, [0, 1, 1]);
    assert_eq!(
        world.sent(B, Type::BofRequest) + world.sent(B, Type::DataRequest),
        2
    );
    let failed = Some(&End::Failed(Failure::Timeout));
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
    assert_eq!(world.stations[&B].ends.get(&FILE), failed);
    assert_eq!(world.stations[&c].ends.get(&FILE), failed);
    world.end();
}

#[test]
pub fn what_waits_for_credits_at_expiry_becomes_one_file_timeout() {
    let mut world = World::new(
        Shape {
            credits: Credits {
                messages: 1,
                batch: 1,
            },
            ..Shape::default()
        },
        1,
    );
    world.open(LEN).expect("a slot");
    world.multicast_all(|_, _| false);
    while world.received(A, Type::Data) < 1 {
        let moves = [world.deliver_down(A), world.deliver_up(A)];
        assert!(moves.contains(&true));
    }
    assert!(world.sender.waiting() > 0, "data wait for the ACK");
    world.pass(TIMEOUT);
    world.settle();
    assert_eq!(world.received(A, Type::FileTimeout), 1);
    assert_eq!(
        world.stations[&A].ends[&FILE],
        End::Failed(Failure::Timeout)
    );
    world.end();
}

#[test]
pub fn a_file_has_one_timeout_from_the_end_of_its_multicast() {
    let mut world = World::new(Shape::default(), 1);
    world.open(LEN).expect("a slot");
    world.multicast(|_, _| false);
    world.pass(3 * TIMEOUT);
    assert_eq!(world.closed.get(&FILE), None, "it is still multicast");
    world.multicast_all(|_, _| false);
    assert_eq!(world.deadline, Some(world.now + TIMEOUT));
    let end = world.now + TIMEOUT;
    // Requests do not prolong it.
    world.pass(TIMEOUT / 2);
    world.deliver_down(A);
    while world.deliver_up(A) {}
    assert_eq!(world.deadline, Some(end));
    world.pass(TIMEOUT / 2);
    assert_eq!(world.closed[&FILE], (1, vec![A]));
    world.end();
}

#[test]
pub fn file_ids_only_rise() {
    let mut world = World::new(Shape::default(), 1);
    let mut last = FileId(0);
    for _ in 0..5 {
        let (fd, file) = world.open(LEN).expect("a slot");
        assert!(file > last && fd == FD);
        last = file;
        world.multicast_all(|_, _| true);
        world.settle();
    }
    // What the network repeats or delays of an older file of the slot is nothing new.
    let sent = world.stations[&A].sent.len();
    let station = world.stations.get_mut(&A).expect("A");
    for file in [1, 4, 5] {
        let (file, fd) = (FileId(file), FD);
        let body = Body::Data {
            offset: 0,
            len: BLOCK,
        };
        station.multicast.push_back(Message { fd, file, body });
    }
    world.settle();
    let station = &world.stations[&A];
    assert_eq!(
        (station.sent.len(), station.machine.open_files()),
        (sent, 0)
    );
    world.end();
}

#[test]
pub fn a_new_file_in_a_slot_ends_the_one_before() {
    // The file expires at the sender, which tells nobody. The next file's messages tell it.
    for way in [Type::Bof, Type::Data, Type::Eof] {
        let mut world = multicast(1, |_, message| message.kind() == Type::Bof);
        world.stations.get_mut(&A).expect("A").up.clear();
        world.deliver_down(A);
        world.pass(TIMEOUT);
        let lost = world.stations.get_mut(&A).expect("A");
        lost.down.clear();
        assert_eq!(world.open(LEN), Some((FD, FileId(2))));
        world.multicast_all(|_, message| message.kind() == way);
        world.settle();
        let failed = End::Failed(Failure::Replaced);
        assert_eq!(world.stations[&A].ends[&FILE], failed, "by {way:?}");
        world.end();
    }
}

#[test]
pub fn at_zero_credits_answers_wait_and_resume_in_order() {
    let credits = Credits {
        messages: 2,
        batch: 2,
    };
    let shape = Shape {
        credits,
        ..Shape::default()
    };
    let mut world = World::new(shape, 1);
    for _ in 0..6 {
        world.open(LEN).expect("a slot");
    }
    world.multicast_all(|_, _| false);
    assert_eq!(
        world.stations[&A].down.len(),
        2,
        "as many as there are credits"
    );
    assert_eq!(world.sender.waiting(), 4);
    world.settle();
    let received = &world.stations[&A].received;
    let eofs = received
        .iter()
        .filter(|message| message.kind() == Type::Eof);
    let order: Vec<u64> = eofs.map(|message| message.file.0).collect();
    assert_eq!(order, [1, 2, 3, 4, 5, 6]);
    // The requests waited, too, and left in their order.
    let sent = &world.stations[&A].sent;
    let requests = sent
        .iter()
        .filter(|message| message.kind() == Type::DataRequest);
    let order: Vec<u64> = requests.map(|message| message.file.0).collect();
    assert_eq!(order, [1, 2, 3, 4, 5, 6]);
    let data = received
        .iter()
        .filter(|message| message.kind() == Type::Data);
    let order: Vec<u64> = data.map(|message| message.file.0).collect();
    assert!(order.is_sorted(), "{order:?}");
    world.end();
}

#[test]
pub fn one_ack_acknowledges_a_batch() {
    // One request, and the file in 40 messages by the channel.
    let mut world = World::new(Shape::default(), 1);
    world.open(40 * u64::from(BLOCK)).expect("a slot");
    world.multicast_all(|_, _| false);
    let mut acks = 0;
    while world.stations[&A].ends.is_empty() {
        assert!(world.deliver_down(A), "nothing moves");
        let up = &world.stations[&A].up;
        let is_ack = |frame: &&_| matches!(frame, Frame::Ack(4));
        acks += up.iter().filter(is_ack).count();
        while world.deliver_up(A) {}
    }
    // EOF, BOF and 40 DATA are 42 messages, of which the last two are no batch.
    assert_eq!(acks, 10);
    world.end();
}

#[test]
pub fn a_hole_that_was_filled_while_its_request_waited_is_not_requested() {
    let credits = Credits {
        messages: 1,
        batch: 1,
    };
    let shape = Shape {
        credits,
        ..Shape::default()
    };
    let mut world = World::new(shape, 1);
    world.open(6 * u64::from(BLOCK)).expect("a slot");
    let last = 5 * u64::from(BLOCK);
    while world.multicast(|_, message| match message.body {
        Body::Data { offset, .. } => offset != last,
        _ => true,
    }) {}
    // BOF, 0 and 2; then 4, and then 3, which was late.
    for at in [0, 0, 1, 2, 1] {
        assert!(world.deliver_multicast(A, at));
    }
    let block = u64::from(BLOCK);
    assert_eq!(bodies(&world, A), [data_request(block, block)]);
    world.settle();
    let requests = [data_request(block, block), data_request(last, block)];
    assert_eq!(
        bodies(&world, A),
        [&requests[..], &[Body::TransferDone]].concat()
    );
    world.end();
}

#[test]
pub fn nothing_is_requested_beyond_the_bound_of_holes_before_the_eof() {
    let shape = Shape {
        holes_max: 2,
        ..Shape::default()
    };
    let mut world = World::new(shape, 1);
    world.open(40 * u64::from(BLOCK)).expect("a slot");
    world.multicast_all(|_, message| match message.body {
        Body::Data { offset, .. } => offset / u64::from(BLOCK) % 2 == 1,
        _ => true,
    });
    assert_eq!(world.sent(A, Type::DataRequest), 2);
    assert_eq!(world.stations[&A].machine.holes(), 2);
    world.settle();
    assert_eq!(world.sent(A, Type::DataRequest), 3);
    assert_eq!(world.stations[&A].ends[&FILE], End::Complete);
    world.end();
}

#[test]
pub fn a_file_given_up_during_its_multicast_ends_by_file_timeout() {
    let mut world = World::new(Shape::default(), 2);
    let (fd, file) = world.open(LEN).expect("a slot");
    world.multicast(|receiver, _| receiver == A);
    world.settle();
    world.abandon(fd, file);
    world.settle();
    let failed = End::Failed(Failure::Timeout);
    assert_eq!(world.stations[&A].ends[&file], failed);
    assert_eq!(
        world.stations[&B].ends.get(&file),
        None,
        "it has heard of nothing"
    );
    world.end();
}

#[test]
pub fn a_receiver_that_cannot_store_a_file_is_unfinished() {
    let mut world = multicast(2, |_, _| true);
    world
        .stations
        .get_mut(&A)
        .expect("A")
        .machine
        .abandon(FD, FILE);
    world.settle();
    assert_eq!(world.sent(A, Type::TransferDone), 0);
    assert_eq!(world.closed.get(&FILE), None);
    world.pass(TIMEOUT);
    assert_eq!(world.closed[&FILE], (2, vec![A]));
}

#[test]
pub fn a_peer_that_breaks_the_rules_of_the_channel_is_refused() {
    let mut world = multicast(1, |_, _| true);
    let (fd, file) = (FD, FILE);
    let message = |body| Message { fd, file, body };
    let station = world.stations.get_mut(&A).expect("A");
    let wrong = station.machine.channel(&message(Body::BofRequest));
    assert_eq!(wrong, Err(ChannelError::Direction));
    assert_eq!(
        station.machine.acknowledged(1),
        Err(ChannelError::ExcessAck)
    );
    let wrong = world.sender.channel(A, &message(Body::Eof { len: 1 }));
    assert_eq!(wrong, Err(ChannelError::Direction));
    assert_eq!(
        world.sender.acknowledged(A, 9),
        Err(ChannelError::ExcessAck)
    );
    // By multicast only BOF and DATA go.
    let station = world.stations.get_mut(&A).expect("A");
    for body in [Body::FileTimeout, Body::Eof { len: 1 }] {
        assert_eq!(station.machine.multicast(&message(body)), None);
        assert_eq!(station.machine.open_files(), 1);
    }
}

#[test]
pub fn a_receiver_gets_no_byte_a_third_time_however_often_it_requests() {
    let mut world = multicast(2, |_, _| true);
    for _ in 0..3 {
        world.say(A, 0, 1, data_request(0, LEN));
        world.say(A, 0, 1, Body::BofRequest);
    }
    world.say(A, 0, 1, data_request(LEN, 1));
    // The EOF, and twice four blocks and the BOF. There are credits for eight messages.
    let down = &world.stations[&A].down;
    let messages = down
        .iter()
        .filter(|frame| matches!(frame, Frame::Message(_)));
    assert_eq!(messages.count(), 8);
    assert_eq!(world.sender.waiting(), 2);
    world.deliver_down(B);
}

#[test]
pub fn a_file_is_refused_without_a_free_slot() {
    let mut world = World::new(Shape::default(), 0);
    let name = || Name::new(b"file").expect("a name");
    let opened = world.sender.open(name(), u64::MAX);
    assert_eq!(opened, Err(Refusal::Length));
    for _ in 0..8 {
        world.open(LEN).expect("a slot");
    }
    assert_eq!(world.sender.open(name(), 1), Err(Refusal::NoSlot));
    // Nobody is there: a file is closed when it has been multicast.
    while world.multicast(|_, _| true) {}
    assert_eq!(world.closed.len(), 8);
    world.open(LEN).expect("a slot");
    world.end();
}

#[test]
pub fn files_take_turns() {
    let mut world = World::new(Shape::default(), 0);
    for _ in 0..3 {
        world.open(LEN).expect("a slot");
    }
    let mut order = Vec::new();
    while let Some(message) = world.sender.multicast(world.now) {
        order.push(message.file.0);
    }
    assert_eq!(order, [1, 2, 3].repeat(5));
}

#[test]
pub fn receivers_take_turns() {
    let mut world = multicast(2, |_, _| false);
    for receiver in [A, B] {
        let (fd, file, body) = (FD, FILE, data_request(0, LEN));
        let message = Message { fd, file, body };
        world.sender.channel(receiver, &message).expect("a credit");
    }
    let mut order = Vec::new();
    while let SenderOutput::Send(to, _) = world.sender.poll(world.now) {
        order.push(to);
    }
    assert_eq!(order.len(), 8, "four blocks each");
    assert!(order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
}
