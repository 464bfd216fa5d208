//! A receiver by P3's protocol, through the command line, and a hand-made sender: what the receiver
//! requests, and what it makes of lies by the channel and of forged multicast.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::control::Peer;
use crate::common::ibrmp::{Came, Sending, bof, into, of};
use crate::common::{Run, Scratch};
use fabricast::proto::ibrmp::{Body, Frame, Message};
use serde_json::json;

/// A real receiver, and a hand-made sender of `files` files of `len` bytes together.
fn received(dir: &Scratch, files: u32, len: u64) -> (Run, Sending) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let from = listener.local_addr().unwrap().to_string();
    let run = into(dir, "r", &from, &[]);
    let sending = Sending::start(Peer::accept(&listener), files, len);
    (run, sending)
}

/// Table I: what the first message of a file makes a receiver request.
#[test]
fn the_first_message_says_what_is_lost() {
    let dir = Scratch::new();
    let (run, mut sending) = received(&dir, 3, 3000);
    let bytes = [vec![1; 600], vec![2; 400]].concat();
    let data = |offset, len| Body::Data { offset, len };
    // The multicast BOF: nothing is requested. The message after it, of another file, shows that.
    sending.multicast(&of(0, 1, bof("one", 1000)), &[]);
    // DATA first: BOF_REQUEST, and DATA_REQUEST for what lies before.
    sending.multicast(&of(1, 2, data(600, 400)), &bytes[600..]);
    assert_eq!(sending.peer.come().body(), Body::BofRequest);
    let (offset, len) = (0, 600);
    assert_eq!(
        sending.peer.come().body(),
        Body::DataRequest { offset, len }
    );
    // EOF first: both, for the whole file.
    let frame = of(2, 3, Body::Eof { len: 1000 });
    sending.peer.send_frame(&frame, &[]);
    assert_eq!(sending.peer.come().body(), Body::BofRequest);
    let (offset, len) = (0, 1000);
    assert_eq!(
        sending.peer.come().body(),
        Body::DataRequest { offset, len }
    );
    // What was requested comes. File 2 has all its bytes and its BOF, and no EOF: there is no
    // TRANSFER_DONE, as the next message shows, which is that of file 3.
    sending.peer.send_frame(&of(1, 2, bof("two", 1000)), &[]);
    sending
        .peer
        .send_frame(&of(1, 2, data(0, 600)), &bytes[..600]);
    sending.peer.send_frame(&of(2, 3, bof("three", 1000)), &[]);
    sending.peer.send_frame(&of(2, 3, data(0, 1000)), &bytes);
    let done = |fd, file| of(fd, file, Body::TransferDone);
    assert_eq!(sending.peer.frame().0, done(2, 3));
    sending.confirm(3, "three", &bytes);
    sending
        .peer
        .send_frame(&of(1, 2, Body::Eof { len: 1000 }), &[]);
    assert_eq!(sending.peer.frame().0, done(1, 2));
    sending.confirm(2, "two", &bytes);
    // The same for the first file, whose EOF comes before its last bytes.
    sending
        .peer
        .send_frame(&of(0, 1, Body::Eof { len: 1000 }), &[]);
    let (offset, len) = (0, 1000);
    assert_eq!(
        sending.peer.frame().0,
        of(0, 1, Body::DataRequest { offset, len })
    );
    sending
        .peer
        .send_frame(&of(0, 1, data(0, 600)), &bytes[..600]);
    sending
        .peer
        .send_frame(&of(0, 1, data(600, 400)), &bytes[600..]);
    assert_eq!(sending.peer.frame().0, done(0, 1));
    sending.confirm(1, "one", &bytes);
    sending.end(3);
    run.end().expect(0);
    for name in ["one", "two", "three"] {
        let path = dir.path("r").join(name);
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let there = std::fs::metadata(path).unwrap();
        assert_eq!(
            (there.mode() & 0o7777, there.mtime()),
            (0o640, 1_000_000_000)
        );
        assert_eq!(there.mtime_nsec(), 7);
    }
}

/// A sender that contradicts itself or the rules by the channel: an error, no hang, and nothing is
/// left.
#[test]
fn a_sender_that_lies_is_an_error() {
    let eof = |len| of(0, 1, Body::Eof { len });
    let lies = [
        (8, "more files", vec![of(0, 1, bof("x", 1 << 50))]),
        (8, "more files", vec![of(0, 2, Body::FileTimeout)]),
        (8, "never sent", vec![Frame::Ack(9)]),
        (8, "may not send", vec![of(0, 1, Body::TransferDone)]),
        (6, "contradicts", vec![eof(8), of(0, 1, bof("x", 9))]),
        (5, "closed", vec![eof(9), of(0, 1, Body::FileTimeout)]),
        (5, "closed", vec![]),
    ];
    for (code, why, frames) in lies {
        let dir = Scratch::new();
        let (run, mut sending) = received(&dir, 1, 9);
        for frame in frames {
            sending.peer.send_frame(&frame, &[]);
        }
        sending.peer.say(json!({"say": "last", "file": 1}));
        let done = run.end().expect(code);
        let text = done.one("error")["text"].as_str().unwrap();
        assert!(text.contains(why), "{why}: {text}");
        assert_eq!(std::fs::read_dir(dir.path("r")).unwrap().count(), 0);
    }
}

/// Anybody on the network can forge multicast. A receiver then gets the file from the sender
/// itself: names, slots, lengths and bytes that were forged end nothing, and what is stored is
/// right.
#[test]
fn forged_multicast_spoils_nothing() {
    let data = |offset, len| Body::Data { offset, len };
    let forged: [(&str, Vec<(Frame, usize)>); 8] = [
        ("a name", vec![(of(0, 1, bof("../x", 2000)), 0)]),
        ("a length", vec![(of(0, 1, bof("x", 7)), 0)]),
        ("a longer file", vec![(of(0, 1, bof("x", 3000)), 0)]),
        ("too long a file", vec![(of(0, 1, bof("x", 1 << 50)), 0)]),
        (
            "a slot",
            vec![(of(3, 1, bof("x", 2000)), 0), (of(3, 1, data(0, 9)), 9)],
        ),
        (
            "a newer file",
            vec![(of(0, 2, bof("x", 9)), 0), (of(0, 2, data(3, 9)), 9)],
        ),
        (
            "bytes behind the end",
            vec![(of(0, 1, data(1995, 9)), 9), (of(0, 1, data(2500, 9)), 9)],
        ),
        (
            "bytes",
            vec![
                (of(0, 1, bof("x", 2000)), 0),
                (of(0, 1, data(100, 900)), 900),
            ],
        ),
    ];
    let bytes = [vec![1; 1000], vec![2; 1000]].concat();
    for (what, frames) in forged {
        let dir = Scratch::new();
        let (run, mut sending) = received(&dir, 2, 3000);
        for (frame, len) in &frames {
            sending.multicast(frame, &vec![0xbb; *len]);
        }
        // What the sender itself has multicast, half of which is lost.
        sending.multicast(&of(0, 1, bof("true", 2000)), &[]);
        sending.multicast(&of(0, 1, data(0, 1000)), &bytes[..1000]);
        let len = 2000;
        sending.peer.send_frame(&of(0, 1, Body::Eof { len }), &[]);
        // The receiver gets what it requests. After a deception it may request again.
        loop {
            match sending.peer.come() {
                Came::Frame(Frame::Message(Message { fd, file, body }), _) => {
                    let is_true = (fd.0, file.0) == (0, 1);
                    match body {
                        Body::TransferDone => break,
                        Body::BofRequest if is_true => {
                            sending.peer.send_frame(&of(0, 1, bof("true", 2000)), &[]);
                        }
                        Body::DataRequest { offset, len } if is_true && offset < 2000 => {
                            let end = (offset + len).min(2000);
                            let part = &bytes[offset as usize..end as usize];
                            let body = data(offset, part.len() as u32);
                            sending.peer.send_frame(&of(0, 1, body), part);
                        }
                        _ => {} // the sender ignores requests for what there is not
                    }
                }
                other => assert!(matches!(other, Came::Frame(Frame::Ack(_), _)), "{other:?}"),
            }
        }
        sending.digest(1, "true", &bytes);
        let said = loop {
            match sending.peer.come() {
                Came::Said(message) if message["say"] == "need" => {
                    assert!(what.starts_with("bytes"), "{what}");
                    let told = blake3::hash(blake3::hash(&bytes).as_bytes());
                    match message["block"].is_null() {
                        true => sending.bulk(told.as_bytes()),
                        false => sending.bulk(&bytes),
                    }
                }
                Came::Said(message) => break message,
                Came::Frame(..) => {}
            }
        };
        assert_eq!(said["say"], "stored", "{what}: {said}");
        sending.end(1);
        run.end().expect(0);
        assert_eq!(
            std::fs::read(dir.path("r").join("true")).unwrap(),
            bytes,
            "{what}"
        );
        assert_eq!(
            std::fs::read_dir(dir.path("r")).unwrap().count(),
            1,
            "{what}"
        );
    }
}

/// A forged BOF that takes up the whole offer, before the sender has named anything, does not make
/// the sender's own BOF implausible.
#[test]
fn a_forged_length_rejects_no_other_bof() {
    for (fd, file) in [(3, 2), (3, 1)] {
        let dir = Scratch::new();
        let (run, mut sending) = received(&dir, 2, 2000);
        sending.multicast(&of(fd, file, bof("forged", 2000)), &[]);
        sending.multicast(&of(0, 1, bof("true", 2000)), &[]);
        let bytes = vec![1; 2000];
        let len = 2000;
        sending.peer.send_frame(&of(0, 1, Body::Eof { len }), &[]);
        // There is no BOF_REQUEST, before this one or after it.
        let request = Body::DataRequest { offset: 0, len };
        assert_eq!(sending.peer.frame().0, of(0, 1, request));
        let data = Body::Data {
            offset: 0,
            len: 2000,
        };
        sending.peer.send_frame(&of(0, 1, data), &bytes);
        assert_eq!(sending.peer.frame().0, of(0, 1, Body::TransferDone));
        sending.confirm(1, "true", &bytes);
        sending.end(1);
        run.end().expect(0);
        let here = std::fs::read(dir.path("r").join("true")).unwrap();
        assert_eq!(here, bytes);
    }
}

/// Forged DATA make the receiver request a BOF that is not multicast yet, which the sender ignores.
/// All bytes then come before the BOF, however many they are.
#[test]
fn a_file_comes_without_its_bof_until_the_eof() {
    const BLOCK: usize = 50_000;
    let dir = Scratch::new();
    let bytes: Vec<u8> = (0..6_000_000u32).map(|at| (at / 1000) as u8).collect();
    let len = bytes.len() as u64;
    let (run, mut sending) = received(&dir, 1, len);
    let forged = Body::Data { offset: 0, len: 9 };
    sending.multicast(&of(0, 1, forged), &bytes[..9]);
    assert_eq!(sending.peer.come().body(), Body::BofRequest);
    sending.peer.send_frame(&of(0, 1, Body::Eof { len }), &[]);
    let rest = Body::DataRequest {
        offset: 9,
        len: len - 9,
    };
    assert_eq!(sending.peer.come().body(), rest);
    assert_eq!(sending.peer.come().body(), Body::BofRequest);
    for (n, block) in bytes.chunks(BLOCK).enumerate() {
        let data = Body::Data {
            offset: (n * BLOCK) as u64,
            len: block.len() as u32,
        };
        sending.peer.send_frame(&of(0, 1, data), block);
    }
    sending.peer.send_frame(&of(0, 1, bof("true", len)), &[]);
    sending.until_done();
    sending.confirm(1, "true", &bytes);
    sending.end(1);
    run.end().expect(0);
    assert_eq!(std::fs::read(dir.path("r").join("true")).unwrap(), bytes);
}

/// Forged DATA near the end of a file make the receiver request almost all of it before it is
/// multicast. The sender ignores that. The receiver requests it again after the EOF, although the
/// channel brings other files all the time.
#[test]
fn a_request_that_was_ignored_is_repeated_while_other_files_come() {
    let dir = Scratch::new();
    let (run, mut sending) = received(&dir, 2, 4000);
    let bytes = vec![1; 2000];
    let data = |offset, len| Body::Data { offset, len };
    sending.multicast(&of(0, 1, bof("one", 2000)), &[]);
    sending.multicast(&of(0, 1, data(1900, 100)), &bytes[1900..]);
    let request = Body::DataRequest {
        offset: 0,
        len: 1900,
    };
    assert_eq!(sending.peer.come().body(), request);
    let len = 2000;
    sending.peer.send_frame(&of(0, 1, Body::Eof { len }), &[]);
    sending.peer.send_frame(&of(1, 2, Body::Eof { len }), &[]);
    let mut other = sending.peer.0.try_clone().map(Peer).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            (0..800).all(|_| {
                other.send_frame(&of(1, 2, data(0, 9)), &bytes[..9]);
                std::thread::sleep(Duration::from_millis(50));
                !is_over.load(Ordering::Relaxed)
            })
        });
        let again = of(0, 1, request);
        while sending.peer.frame().0 != again {}
        is_over.store(true, Ordering::Relaxed);
        let came_to_an_end = others.join().unwrap();
        assert!(!came_to_an_end, "only when nothing else came");
    });
    for (fd, file, name) in [(0, 1, "one"), (1, 2, "two")] {
        sending.peer.send_frame(&of(fd, file, bof(name, 2000)), &[]);
        sending
            .peer
            .send_frame(&of(fd, file, data(0, 2000)), &bytes);
        sending.until_done();
        sending.confirm(file, name, &bytes);
    }
    sending.end(2);
    run.end().expect(0);
    for name in ["one", "two"] {
        assert_eq!(std::fs::read(dir.path("r").join(name)).unwrap(), bytes);
    }
}

/// Somebody spoils each of many small files. The receiver takes in no EOF while too many of them
/// wait to be mended, and goes on when they are: their descriptors are bounded.
#[test]
fn files_that_wait_to_be_mended_are_bounded() {
    const MANY: u64 = 64;
    let dir = Scratch::new();
    let (run, mut sending) = received(&dir, 66, 66 * 3);
    let slot = |file: u64| (file % 4) as u16;
    for file in 1..=MANY {
        sending.by_channel(slot(file), file, b"bad");
        sending.until_done();
        // For BOF_REQUEST, DATA_REQUEST and TRANSFER_DONE.
        sending.peer.send_frame(&Frame::Ack(3), &[]);
        sending.digest(file, &format!("f{file}"), b"one");
        if file == 1 {
            sending.peer.until_said("need");
        }
    }
    let done = |file| of(slot(file), file, Body::TransferDone);
    sending.by_channel(slot(65), 65, b"one");
    sending.by_channel(slot(66), 66, b"one");
    // The receiver has asked about the first file. Only when that is mended, another is complete.
    let told = blake3::hash(blake3::hash(b"one").as_bytes());
    let mut frames = Vec::new();
    let mut is_asked = true; // about the first file
    for file in 1..=MANY {
        for answer in [&told.as_bytes()[..], b"one"] {
            if !std::mem::take(&mut is_asked) {
                let (need, before) = sending.peer.until_said("need");
                assert_eq!(need["pack"], file);
                frames.extend(before);
            }
            assert!(file > 1 || !frames.contains(&done(65)));
            sending.bulk(answer);
        }
    }
    while !frames.contains(&done(66)) {
        frames.push(sending.peer.frame().0);
    }
    sending.digest(65, "f65", b"one");
    sending.digest(66, "f66", b"one");
    sending.end(66);
    let ended = run.end().expect(0);
    assert_eq!(ended.all("file_stored").count(), 66);
}

/// A sender that does not say what proves a file, or does not send again what is wrong in it: an
/// error, and no hang.
#[test]
fn a_sender_that_falls_silent_at_the_end_is_an_error() {
    for answers in [false, true] {
        let dir = Scratch::new();
        let (run, mut sending) = received(&dir, 1, 100);
        sending.by_channel(0, 1, b"one");
        sending.until_done();
        if answers {
            sending.digest(1, "one", b"two");
            assert_eq!(sending.peer.until_said("need").0["pack"], 1);
        }
        sending.peer.say(json!({"say": "last", "file": 1}));
        let done = run.end().expect(8);
        let text = done.one("error")["text"].as_str().unwrap();
        assert!(text.contains("the sender does not s"), "{text}");
        assert_eq!(std::fs::read_dir(dir.path("r")).unwrap().count(), 0);
    }
}

/// A file whose name cannot be used here, or that somebody has here already, fails by itself.
#[test]
fn a_name_that_cannot_be_used_fails_one_file_alone() {
    for (name, why) in [("../x", "no name"), ("taken", "exists already")] {
        let dir = Scratch::new();
        let (run, mut sending) = received(&dir, 2, 20);
        let taken = dir.path("r").join("taken");
        std::fs::write(&taken, "here").unwrap();
        sending.by_channel(0, 1, b"one");
        sending.by_channel(1, 2, b"two");
        sending.until_done();
        sending.until_done();
        sending.digest(1, name, b"one");
        let (unstored, _) = sending.peer.until_said("unstored");
        assert_eq!(unstored["file"], 1);
        sending.confirm(2, "good", b"two");
        sending.end(2);
        let done = run.end().expect(10);
        let reason = done.one("file_failed")["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}");
        assert_eq!(std::fs::read(dir.path("r").join("good")).unwrap(), b"two");
        assert_eq!(std::fs::read(taken).unwrap(), b"here");
        assert_eq!(done.one("done")["failed"].as_array().unwrap().len(), 1);
    }
}

/// At the end a receiver knows which files it lacks, although it has heard of none of them: one was
/// closed, and the sender could not read another.
#[test]
fn a_receiver_names_the_files_that_it_lacks() {
    let dir = Scratch::new();
    let (run, mut sending) = received(&dir, 4, 100);
    sending.by_channel(0, 1, b"one");
    sending.until_done();
    sending.confirm(1, "one", b"one");
    sending.peer.say(json!({
        "say": "last", "file": 3, "failed": [{"name": "unread"}],
        "lacking": [{"file": 2, "name": "late"}],
    }));
    for file in [2, 3] {
        assert_eq!(sending.peer.until_said("unstored").0["file"], file);
    }
    sending.peer.until_said("finished");
    sending
        .peer
        .say(json!({"say": "removed", "code": 9, "reason": "late was closed"}));
    let done = run.end().expect(10);
    let failed: Vec<_> = done.all("file_failed").collect();
    let path = |name: &str| json!(dir.path("r").join(name));
    assert_eq!(failed[0]["path"], path("unread"));
    assert_eq!(failed[1]["path"], path("late"));
    assert!(failed[2]["path"].is_null());
    let reasons: Vec<_> = failed
        .iter()
        .map(|f| f["reason"].as_str().unwrap())
        .collect();
    assert!(reasons[0].contains("could not read") && reasons[1].contains("closed"));
    assert!(reasons[2].contains("file 3"), "{reasons:?}");
}

/// A sender that goes on without a receiver that has everything is an error.
#[test]
fn a_receiver_that_is_removed_at_the_end_does_not_end_well() {
    let dir = Scratch::new();
    let (run, mut sending) = received(&dir, 1, 100);
    sending.by_channel(0, 1, b"one");
    sending.until_done();
    sending.confirm(1, "one", b"one");
    sending.peer.say(json!({"say": "last", "file": 1}));
    sending.peer.until_said("finished");
    sending
        .peer
        .say(json!({"say": "removed", "code": 9, "reason": "too slow"}));
    let done = run.end().expect(9);
    assert!(
        done.one("error")["text"]
            .as_str()
            .unwrap()
            .contains("too slow")
    );
}
