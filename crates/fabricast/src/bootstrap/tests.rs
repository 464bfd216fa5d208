//! Tests of the rendezvous over real sockets, with hostile peers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fabricast_proto::ibrmp::{self, Frame};
use socket2::SockRef;

use super::frame::Kind;
use super::message::{Announced, Channel, Hello, Need, ToReceiver, ToSender, VERSION};
use super::output::{Item, Output};
use super::workers::{Order, Report, Workers};
use super::{
    Blocks, ChannelFrame, Event, NEEDS_MAX, Payload, PeerKey, Rendezvous, WorkerPlan, frame,
};
use crate::object::{BLOCK, PIECE};
use crate::waker::Waker;

/// Long for a machine that is busy, short beside the ten seconds that a pending connection has.
const SOON: Duration = Duration::from_secs(5);

struct Nothing;

impl Blocks for Nothing {
    fn answer(&self, _: &Need, into: &mut Vec<u8>) -> Result<(), String> {
        into.extend([7; 32]);
        Ok(())
    }

    fn payload_len(&self, _: &Need) -> Option<u64> {
        Some(1)
    }

    fn parts(&self) -> u64 {
        2
    }
}

/// A pack of ten blocks and a bit, on a disk that answers only when the test tells it to.
struct Slow(Mutex<Receiver<()>>);

impl Blocks for Slow {
    fn answer(&self, need: &Need, into: &mut Vec<u8>) -> Result<(), String> {
        let told = self.0.lock().unwrap().recv_timeout(SOON);
        told.map_err(|_| "nobody told the disk".to_string())?;
        let block = need.block.unwrap_or(u64::MAX);
        into.extend([block as u8, u8::from(need.hashes), need.pieces.len() as u8]);
        Ok(())
    }

    fn payload_len(&self, need: &Need) -> Option<u64> {
        (need.pack == 0).then_some(10 * BLOCK as u64 + PIECE as u64 + 1)
    }

    fn parts(&self) -> u64 {
        12
    }
}

fn announced() -> ToReceiver {
    ToReceiver::Pack(Announced {
        len: 1,
        header: 1,
        hash: String::new(),
        again: None,
        kept: false,
    })
}

fn open_with(blocks: Arc<dyn Blocks>) -> Rendezvous {
    open_by(WorkerPlan::default(), blocks)
}

fn open_by(plan: WorkerPlan, blocks: Arc<dyn Blocks>) -> Rendezvous {
    let here = (Ipv4Addr::LOCALHOST, 0).into();
    Rendezvous::open(&[here], 0, blocks, plan, Waker::new().unwrap()).unwrap()
}

fn open() -> Rendezvous {
    open_with(Arc::new(Nothing))
}

fn framed(message: &ToSender) -> Vec<u8> {
    let mut out = Vec::new();
    frame::put_message(&mut out, message);
    out
}

fn hello(name: &str) -> Vec<u8> {
    framed(&ToSender::Hello(Hello {
        version: VERSION,
        name: name.into(),
        address: (Ipv4Addr::UNSPECIFIED.into(), 1).into(),
        datagram: 1472,
        stream: false,
        discard: false,
        window_bytes: 1 << 24,
        nonce: None,
    }))
}

fn connect(rendezvous: &Rendezvous, first: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(rendezvous.address()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(first).unwrap();
    stream
}

/// Takes events until the hello of `name`; returns how many came before it.
fn until_hello(rendezvous: &Rendezvous, name: &str) -> (super::PeerKey, usize) {
    let deadline = Instant::now() + SOON;
    for n in 0.. {
        match rendezvous.event_until(deadline) {
            Some(Event::Hello { peer, hello, .. }) if hello.name == name => return (peer, n),
            Some(_) => {}
            None => break,
        }
    }
    panic!("{name} is not heard");
}

/// Receives the next message, whatever bulk bytes come before it.
fn hear(stream: &mut TcpStream) -> ToReceiver {
    loop {
        let mut head = [0; frame::HEAD];
        stream.read_exact(&mut head).unwrap();
        let (kind, len) = frame::head(head, frame::TO_RECEIVER).unwrap();
        let mut bytes = vec![0; len];
        stream.read_exact(&mut bytes).unwrap();
        if kind == Kind::Message {
            return frame::message(&bytes).unwrap();
        }
    }
}

#[test]
fn a_receiver_of_another_version_learns_why_it_is_refused() {
    let other = VERSION + 1;
    let hello = |version: u32, rest: &str| {
        let json = format!(r#"{{"say": "hello", "version": {version}, {rest}}}"#);
        [&[b'M', 0, 0, json.len() as u8], json.as_bytes()].concat()
    };
    // A kind of address that this version does not know.
    let odd = r#""address": {"port": 7}, "datagram": 1472, "window_bytes": 16777216"#;
    for (version, name, rest) in [
        (other, "new", r#""name": "new", "lid": 5"#.into()),
        (other, "odd", format!(r#""name": "odd", {odd}"#)),
        (other, "127.0.0.1", r#""name": {"host": "h"}"#.into()),
        (VERSION, "same", format!(r#""name": "same", {odd}"#)),
    ] {
        let why = match version {
            VERSION => "cannot read".into(),
            other => format!("not {other}"),
        };
        let rendezvous = open();
        let mut stream = connect(&rendezvous, &hello(version, &rest));
        let ToReceiver::Refused { reason } = hear(&mut stream) else {
            panic!("{name} is not refused");
        };
        let both = format!("version {VERSION}");
        assert!(reason.contains(&both) && reason.contains(&why), "{reason}");
        let said = rendezvous.event_until(Instant::now() + SOON);
        let Some(Event::Refused {
            name: who,
            reason: noted,
            ..
        }) = said
        else {
            panic!("{said:?}");
        };
        assert_eq!((who.as_str(), noted), (name, reason));
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "nothing more is said");
    }
}

/// Otherwise it would take a sender that ends for one that was killed.
#[test]
fn who_comes_when_the_sender_ends_is_refused() {
    let rendezvous = open();
    let mut early = connect(&rendezvous, &hello("early"));
    let (peer, _) = until_hello(&rendezvous, "early");
    rendezvous.say(peer, ToReceiver::Bye);
    let mut late = [hello("late"), Vec::new()].map(|first| connect(&rendezvous, &first));
    drop(rendezvous);
    for stream in &mut late {
        let said = hear(stream);
        assert!(matches!(&said, ToReceiver::Refused { reason } if reason.contains("ended")));
    }
    assert_eq!(hear(&mut early), ToReceiver::Bye);
    assert_eq!(early.read(&mut [0]).unwrap(), 0, "nothing more is said");
}

#[test]
fn silent_connections_keep_nobody_out() {
    let rendezvous = open();
    let mut silent: Vec<TcpStream> = (0..80).map(|_| connect(&rendezvous, b"")).collect();
    let _good = connect(&rendezvous, &hello("good"));
    until_hello(&rendezvous, "good");
    // The oldest has been closed to make room.
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
}

#[test]
fn one_that_talks_much_is_not_heard_alone() {
    let rendezvous = open();
    let mut chatty = connect(&rendezvous, &hello("chatty"));
    until_hello(&rendezvous, "chatty");
    // The test takes no events now: the thread waits, and much is left in the connection.
    let (tell, told) = channel();
    let talk = framed(&ToSender::Working { done: 0 }).repeat(5000);
    let writer = thread::spawn(move || {
        chatty.write_all(&talk).unwrap();
        tell.send(()).unwrap();
        chatty
    });
    told.recv_timeout(SOON).unwrap();
    let _other = connect(&rendezvous, &hello("other"));
    let (_, before) = until_hello(&rendezvous, "other");
    assert!(before < 2000, "{before} messages of one before another's");
    drop(writer.join().unwrap());
}

#[test]
fn all_that_was_said_is_heard_before_the_end() {
    let rendezvous = open();
    let mut talk = hello("brief");
    talk.extend(framed(&ToSender::Working { done: 0 }).repeat(500));
    drop(connect(&rendezvous, &talk));
    until_hello(&rendezvous, "brief");
    let deadline = Instant::now() + SOON;
    for _ in 0..500 {
        let said = rendezvous.event_until(deadline);
        assert!(matches!(said, Some(Event::Said { .. })), "{said:?}");
    }
    let end = rendezvous.event_until(deadline);
    assert!(matches!(end, Some(Event::Lost { .. })), "{end:?}");
}

#[test]
fn nothing_is_mended_before_a_pack_is_announced() {
    let rendezvous = open();
    let need = framed(&ToSender::Need(Need::default()));
    for told in [false, true] {
        let mut stream = connect(&rendezvous, &hello("needy"));
        let (peer, _) = until_hello(&rendezvous, "needy");
        if told {
            rendezvous.say_all([peer], &announced());
            assert_eq!(hear(&mut stream), announced());
        }
        stream.write_all(&need).unwrap();
        if told {
            let mut bulk = [0; frame::HEAD + 32];
            stream.read_exact(&mut bulk).unwrap();
            assert_eq!(bulk[frame::HEAD..], [7; 32]);
        } else {
            let reason = r#"it said "need" out of turn"#.to_string();
            let refused = ToReceiver::Refused {
                reason: reason.clone(),
            };
            assert_eq!(hear(&mut stream), refused);
            let lost = rendezvous.event_until(Instant::now() + SOON);
            assert_eq!(lost, Some(Event::Lost { peer, reason }));
        }
    }
}

/// A rendezvous with a disk that answers once for each message of the test, and a receiver that may
/// request blocks.
fn proving() -> (Rendezvous, Sender<()>, TcpStream) {
    let (tell, told) = channel();
    let disk = Arc::new(Slow(Mutex::new(told)));
    let rendezvous = open_with(disk);
    let mut stream = connect(&rendezvous, &hello("needy"));
    let (peer, _) = until_hello(&rendezvous, "needy");
    rendezvous.say_all([peer], &announced());
    assert_eq!(hear(&mut stream), announced());
    (rendezvous, tell, stream)
}

fn need(block: u64, hashes: bool, pieces: &[u32]) -> Vec<u8> {
    need_of(0, block, hashes, pieces)
}

fn need_of(pack: u32, block: u64, hashes: bool, pieces: &[u32]) -> Vec<u8> {
    framed(&ToSender::Need(Need {
        pack,
        block: Some(block),
        hashes,
        pieces: pieces.to_vec(),
        ..Need::default()
    }))
}

#[test]
fn a_slow_disk_keeps_nobody_waiting_but_who_needs_it() {
    let (rendezvous, disk, mut needy) = proving();
    needy.write_all(&need(0, true, &[])).unwrap();
    needy.write_all(&need(1, false, &[3, 63])).unwrap();
    needy.write_all(&need(2, false, &[])).unwrap();
    // The thread reads for one receiver; meanwhile the sender hears the others.
    let _other = connect(&rendezvous, &hello("other"));
    until_hello(&rendezvous, "other");
    for expected in [[0, 1, 0], [1, 0, 2], [2, 0, 0]] {
        disk.send(()).unwrap();
        let mut bulk = [0; frame::HEAD + 3];
        needy.read_exact(&mut bulk).unwrap();
        assert_eq!(bulk, [b'B', 0, 0, 3, expected[0], expected[1], expected[2]]);
    }
}

#[test]
fn nobody_needs_what_there_is_not_or_too_much_of_it() {
    let cases = [
        (need(11, false, &[]), "cannot have"),
        (need_of(1, 0, false, &[]), "cannot have"),
        (need(u64::MAX, true, &[]), "cannot have"),
        (need(0, false, &[64]), "cannot have"),
        (need(10, false, &[2]), "cannot have"),
        (need(0, false, &[5, 5]), "cannot have"),
        (need(0, true, &[5]), "cannot have"),
    ];
    for (asked, why) in cases {
        let (_rendezvous, _disk, mut needy) = proving();
        needy.write_all(&asked).unwrap();
        match hear(&mut needy) {
            ToReceiver::Refused { reason } => assert!(reason.contains(why), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    // One request may be read already. Its answer comes before the refusal then.
    let (rendezvous, disk, mut needy) = proving();
    let asked = need(0, true, &[]).repeat(NEEDS_MAX + 2);
    needy.write_all(&asked).unwrap();
    let lost = rendezvous.event_until(Instant::now() + SOON);
    let Some(Event::Lost { reason: lost, .. }) = lost else {
        panic!("{lost:?}");
    };
    assert!(lost.contains("at once"), "{lost}");
    disk.send(()).unwrap();
    assert_eq!(hear(&mut needy), ToReceiver::Refused { reason: lost });
    // Eleven blocks and the header, each four times.
    let (_rendezvous, disk, mut needy) = proving();
    for _ in 0..4 * 12 {
        needy.write_all(&need(10, false, &[1])).unwrap();
        disk.send(()).unwrap();
        needy.read_exact(&mut [0; frame::HEAD + 3]).unwrap();
    }
    needy.write_all(&need(10, false, &[1])).unwrap();
    match hear(&mut needy) {
        ToReceiver::Refused { reason } => assert!(reason.contains("again and again"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// A file whose byte at each offset is known, which counts its reads.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Payload for Counted {
    fn read(&self, offset: u64, into: &mut [u8]) {
        self.0.fetch_add(1, Ordering::Relaxed);
        into.fill(offset as u8);
    }
}

/// A DATA message of `len` bytes at `offset`.
fn data(offset: u64, len: u32) -> Frame {
    Frame::Message(ibrmp::Message {
        fd: ibrmp::Fd(0),
        file: ibrmp::FileId(1),
        body: ibrmp::Body::Data { offset, len },
    })
}

/// Receives a DATA message, and checks that it is this one with its bytes.
fn hear_data(stream: &mut TcpStream, expected: &Frame) {
    let mut head = [0; frame::HEAD];
    stream.read_exact(&mut head).unwrap();
    let (kind, len) = frame::head(head, frame::TO_RECEIVER).unwrap();
    assert_eq!(kind, Kind::Ibrmp);
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    let (frame, payload) = ibrmp::decode(&bytes).unwrap();
    assert_eq!(frame, *expected);
    let Frame::Message(ibrmp::Message {
        body: ibrmp::Body::Data { offset, .. },
        ..
    }) = frame
    else {
        panic!("{frame:?}");
    };
    assert!(payload.iter().all(|byte| *byte == offset as u8));
}

fn channel_message() -> ToReceiver {
    ToReceiver::Channel(Channel {
        open: vec![],
        next: 1,
        slots: 1,
        messages: 32,
        batch: 16,
    })
}

/// Receivers with a reliable channel, at a sender whose workers have so many receivers each.
fn with_channels(each: usize, names: &[&str]) -> (Rendezvous, Vec<(TcpStream, PeerKey)>) {
    let plan = WorkerPlan {
        receivers_per_worker: each,
        workers_max: Some(9),
        ..WorkerPlan::default()
    };
    let rendezvous = open_by(plan, Arc::new(Nothing));
    let peers = names.iter().map(|name| with_channel(&rendezvous, name));
    let peers = peers.collect();
    (rendezvous, peers)
}

fn with_channel(rendezvous: &Rendezvous, name: &str) -> (TcpStream, PeerKey) {
    let mut stream = connect(rendezvous, &hello(name));
    let (peer, _) = until_hello(rendezvous, name);
    rendezvous.say(peer, channel_message());
    assert_eq!(hear(&mut stream), channel_message());
    (stream, peer)
}

fn sending(peer: PeerKey, frame: Frame, payload: &Arc<Counted>) -> ChannelFrame {
    let payload = Some(payload.clone() as Arc<dyn Payload>);
    ChannelFrame {
        peer,
        frame,
        payload,
    }
}

/// What waits for a connection whose socket takes little, and its other end.
fn small_output() -> (Output, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let reader = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    reader.set_read_timeout(Some(SOON)).unwrap();
    let stream = listener.accept().unwrap().0;
    let small = SockRef::from(&stream).set_send_buffer_size(1 << 16);
    small.and(stream.set_nonblocking(true)).unwrap();
    (Output::new(Arc::new(stream)), reader)
}

/// One receiver reads nothing, and another one of the same worker gets everything at once. Bytes of
/// the file are read when they can leave, and everything keeps its order.
#[test]
fn a_receiver_that_reads_nothing_holds_up_no_other_of_its_worker() {
    let wake = Waker::new().unwrap();
    let mut workers =
        Workers::start(WorkerPlan::default(), Arc::new(Nothing), wake.clone()).unwrap();
    let said: Arc<[u8]> = framed(&ToSender::Working { done: 7 }).into();
    let len = 60_000;
    let mut connections = Vec::new();
    for key in 0..2 {
        let (output, reader) = small_output();
        let file = Arc::new(Counted::default());
        let worker = workers.assign();
        assert_eq!(worker, 0);
        workers.order(worker, key, Order::Begin(output));
        for offset in 0..60 {
            let payload = Some(file.clone() as Arc<dyn Payload>);
            let item = Item::Channel(data(offset, len), payload);
            workers.order(worker, key, Order::Put(item));
        }
        workers.order(worker, key, Order::Put(Item::Frame(said.clone())));
        workers.order(worker, key, Order::Close);
        connections.push((reader, file));
    }
    workers.ring();
    let mut read_by_idle = usize::MAX;
    for key in [1, 0] {
        let (reader, file) = &mut connections[key];
        for offset in 0..60 {
            hear_data(reader, &data(offset, len));
        }
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, *said);
        assert_eq!(file.0.load(Ordering::Relaxed), 60);
        if key == 1 {
            read_by_idle = connections[0].1.0.load(Ordering::Relaxed);
        }
        wake.wait(Some(SOON)).unwrap();
        let Some((done, Report::Done(_))) = workers.report() else {
            panic!("the worker has not written everything");
        };
        assert_eq!(done, key as u64);
    }
    assert!(
        read_by_idle < 40,
        "{read_by_idle} of 60 were read, and nobody takes them"
    );
    assert_eq!(workers.counts().values(), [120]);
}

/// A receiver that reads nothing at all is given up before too much waits for it.
#[test]
fn not_too_much_waits_for_a_receiver_that_reads_nothing() {
    let (rendezvous, peers) = with_channels(1, &["idle"]);
    let payload = Arc::new(Counted::default());
    // Far more than may wait and a socket takes together.
    let frames = (0..2000).map(|n| sending(peers[0].1, data(n, ibrmp::DATA_MAX), &payload));
    rendezvous.send(frames.collect());
    let lost = rendezvous.event_until(Instant::now() + SOON);
    let Some(Event::Lost { reason, .. }) = lost else {
        panic!("{lost:?}");
    };
    assert!(reason.contains("reads nothing"), "{reason}");
}

/// The place of a receiver that has gone is free for the next one, at the same worker.
#[test]
fn places_at_workers_are_used_again() {
    let (rendezvous, mut peers) = with_channels(1, &["a", "b", "c"]);
    assert_eq!(rendezvous.sent_by_workers().len(), 3);
    // One goes by itself, one is dismissed.
    drop(peers.remove(0));
    let lost = rendezvous.event_until(Instant::now() + SOON);
    assert!(matches!(lost, Some(Event::Lost { .. })), "{lost:?}");
    rendezvous.close(peers[0].1);
    assert_eq!(peers[0].0.read(&mut [0]).unwrap(), 0, "it is closed");
    drop(peers.remove(0));
    let payload = Arc::new(Counted::default());
    for name in ["d", "e"] {
        let (mut stream, peer) = with_channel(&rendezvous, name);
        rendezvous.send(vec![sending(peer, data(0, 10), &payload)]);
        hear_data(&mut stream, &data(0, 10));
        peers.push((stream, peer));
    }
    assert_eq!(rendezvous.sent_by_workers(), [1, 1, 0]);
}

#[test]
fn what_is_said_to_all_reaches_all() {
    let rendezvous = open();
    let mut streams: Vec<_> = (0..3)
        .map(|i| {
            let name = i.to_string();
            let stream = connect(&rendezvous, &hello(&name));
            (stream, until_hello(&rendezvous, &name).0)
        })
        .collect();
    rendezvous.say_all(streams.iter().map(|(_, peer)| *peer), &ToReceiver::Bye);
    for (stream, _) in &mut streams {
        assert_eq!(hear(stream), ToReceiver::Bye);
    }
}
