//! P3's protocol through the command line: `send --scheme ibrmp`, and `recv`.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use crate::common::control::Peer;
use crate::common::hosts::Hosts;
use crate::common::ibrmp::{Came, bof, into, of};
use crate::common::{self, End, FABRICAST, Run, Scratch, same, sender, set_mode};
use fabricast::ibrmp::Fingerprint;
use fabricast::proto::NodeId;
use fabricast::proto::ibrmp::{Body, Frame, Message};
use rustix::process::Signal;
use serde_json::json;

const IBRMP: [&str; 3] = ["--scheme", "ibrmp", "--no-announce"];
const BLOCK: u64 = 1472 - 28;

/// A listening sender of one file to this many receivers, whose datagrams have 1472 bytes.
pub fn start(source: &std::path::Path, count: &str, args: &[&str]) -> (Run, String) {
    let fixed = [
        &IBRMP[..],
        &["--min-receivers", count, "--datagram", "1472"],
    ]
    .concat();
    sender(source, &[&fixed[..], args].concat())
}

#[test]
fn several_files_at_once_reach_all_receivers() {
    let dir = Scratch::new();
    let sizes = [3_000_000, 1, 0, 200_000, 70_000];
    let names: Vec<String> = sizes.iter().map(|size| format!("f{size}")).collect();
    let files: Vec<_> = sizes
        .iter()
        .zip(&names)
        .map(|(size, name)| dir.file(name, *size))
        .collect();
    set_mode(&files[1], 0o640);
    let others: Vec<&str> = files[1..].iter().map(|f| f.to_str().unwrap()).collect();
    let args = [&others[..], &["--files-at-once", "3", "-vvv"]].concat();
    let (send, from) = start(&files[0], "3", &args);
    let losses = ["0", "20%", "90%"];
    let receivers: Vec<Run> = ["a", "b", "c"]
        .into_iter()
        .zip(losses)
        .map(|(name, loss)| into(&dir, name, &from, &["--inject-loss", loss]))
        .collect();
    let sent = send.end().expect(0);
    for (run, name) in receivers.into_iter().zip(["a", "b", "c"]) {
        let done = run.end().expect(0);
        assert_eq!(done.all("file_stored").count(), sizes.len());
        for (file, its) in files.iter().zip(&names) {
            let stored = dir.path(name).join(its);
            same(file, &stored);
            let [ours, theirs] = [file, &stored].map(|path| path.metadata().unwrap());
            assert_eq!(ours.modified().unwrap(), theirs.modified().unwrap());
            assert_eq!(ours.mode(), theirs.mode());
        }
        assert_eq!(std::fs::read_dir(dir.path(name)).unwrap().count(), 5);
        assert_eq!(sent.result(name)["state"], "verified");
        assert_eq!(done.one("done")["root"], sent.one("summary")["root"]);
    }
    let messages = &sent.one("summary")["messages"];
    assert_eq!(messages["multicast"]["BOF"], 5);
    assert_eq!(messages["sent"]["EOF"], 15);
    assert_eq!(messages["received"]["TRANSFER_DONE"], 15);
    // Files are open at the same time, each under a descriptor of its own.
    let opened = |fd| sent.stderr.contains(&format!("kind=\"BOF\" fd={fd} "));
    assert_eq!([0, 1, 2, 3].map(opened), [true, true, true, false]);
}

/// More files are complete than may wait to be stored, and what says so waits for credits, which
/// requests of other files have taken.
#[test]
fn many_open_files_do_not_wait_for_each_other() {
    let dir = Scratch::new();
    let names: Vec<String> = (0..100).map(|n| format!("f{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| dir.file(name, 300_000)).collect();
    let others: Vec<&str> = files[1..].iter().map(|f| f.to_str().unwrap()).collect();
    let args = [&others[..], &["--file-timeout", "8s"]].concat();
    let (send, from) = start(&files[0], "1", &args);
    let run = into(&dir, "r", &from, &["--inject-loss", "90%"]);
    let sent = send.end().expect(0);
    run.end().expect(0);
    for (file, name) in files.iter().zip(&names) {
        same(file, &dir.path("r").join(name));
    }
    let messages = &sent.one("summary")["messages"];
    assert_eq!(messages["received"]["TRANSFER_DONE"], 100);
    assert_eq!(messages["sent"]["FILE_TIMEOUT"], 0);
}

/// Only root can give files away; anybody else's are its own at both ends.
#[test]
fn a_file_keeps_its_owner_and_set_id_bits_only_on_request() {
    let dir = Scratch::new();
    let files = [("plain", 0o640), ("runs", 0o6755)].map(|(name, mode)| {
        let file = dir.file(name, 1000);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(12_345), Some(23_456)).unwrap();
        }
        set_mode(&file, mode);
        file
    });
    let (send, from) = start(&files[0], "2", &[files[1].to_str().unwrap()]);
    let receivers = [("a", &["--privileged"][..], 0o7777), ("b", &[], 0o777)]
        .map(|(name, args, kept)| (name, into(&dir, name, &from, args), kept));
    for (receiver, run, kept) in receivers {
        run.end().expect(0);
        for file in &files {
            let stored = dir.path(receiver).join(file.file_name().unwrap());
            let [sent, stored] = [file, &stored].map(|path| path.metadata().unwrap());
            let owner = |meta: &std::fs::Metadata| (meta.uid(), meta.gid());
            assert_eq!(owner(&stored), owner(&sent), "{receiver} {file:?}");
            let mode = stored.mode() & 0o7777;
            assert_eq!(mode, sent.mode() & kept, "{receiver} {file:?}");
        }
    }
    send.end().expect(0);
}

/// All seven types of messages are in the trace. A receiver that asks again and again for a file
/// that is closed gets FILE_TIMEOUT once.
#[test]
fn the_trace_has_every_message_and_file_timeout_comes_once() {
    let dir = Scratch::new();
    let file = dir.file("f", 100_000);
    let mut command = Command::new(FABRICAST);
    command.arg("send").arg(&file).args(IBRMP);
    command.args(["--json", "--port", "0", "--interface", "127.0.0.1"]);
    command.args([
        "--min-receivers",
        "2",
        "--file-timeout",
        "1s",
        "--per-host",
        "9",
        "-vvv",
    ]);
    let mut send = Run::spawn(command);
    let listening = send.until("listening", |_| true);
    let from = listening["address"].as_str().unwrap();
    let honest = into(&dir, "honest", from, &["--inject-loss", "90%"]);
    let mut late = Peer::admitted(from, "late");
    late.ready();
    // It gets the EOF, and requests nothing until all files are closed. The sender hears it after
    // the end of the multicast, so it is slow and not silent.
    assert_eq!(late.come().body(), Body::Eof { len: 100_000 });
    late.say(json!({"say": "working", "done": 0}));
    let (last, frames) = late.until_said("last");
    assert_eq!((&last["file"], frames), (&json!(1), vec![]));
    assert_eq!(last["lacking"], json!([{"file": 1, "name": "f"}]));
    let (offset, len) = (0, 1000);
    for _ in 0..8 {
        late.send_frame(&of(0, 1, Body::BofRequest), &[]);
        late.send_frame(&of(0, 1, Body::DataRequest { offset, len }), &[]);
    }
    // The ACK for the sixteen requests is the only other frame: no second FILE_TIMEOUT follows.
    let frames = BTreeSet::from([late.frame().0, late.frame().0].map(|f| format!("{f:?}")));
    let once = [of(0, 1, Body::FileTimeout), Frame::Ack(16)].map(|f| format!("{f:?}"));
    assert_eq!(frames, BTreeSet::from(once));
    late.say(
        json!({"say": "finished", "received": 0, "duplicates": 0, "mended": 0,
        "mended_bytes": 0, "dropped": 0}),
    );
    let (removed, frames) = late.until_said("removed");
    assert!(frames.is_empty(), "{frames:?}");
    let reason = removed["reason"].as_str().unwrap();
    assert!(
        reason.starts_with("f was closed") && reason.contains("1 s"),
        "{reason}"
    );
    honest.end().expect(0);
    same(&file, &dir.path("honest").join("f"));
    let sent = send.end().expect(4);
    assert_eq!(sent.one("expired")["receivers"], 1);
    assert_eq!(sent.one("summary")["messages"]["sent"]["FILE_TIMEOUT"], 1);
    for kind in [
        "BOF",
        "DATA",
        "EOF",
        "FILE_TIMEOUT",
        "BOF_REQUEST",
        "DATA_REQUEST",
        "TRANSFER_DONE",
    ] {
        assert!(
            sent.stderr.contains(&format!("kind=\"{kind}\"")),
            "{kind}: {}",
            sent.stderr
        );
    }
}

/// At zero credits answers wait, and go on in their order when an ACK brings credits.
#[test]
fn without_credits_the_sender_waits_and_goes_on_in_order() {
    let dir = Scratch::new();
    let file = dir.file("f", 100 * BLOCK as usize);
    let (send, from) = start(&file, "1", &[]);
    let mut peer = Peer::admitted(&from, "r");
    peer.ready();
    assert_eq!(peer.come().body(), Body::Eof { len: 100 * BLOCK });
    let (offset, len) = (0, 100 * BLOCK);
    peer.send_frame(&of(0, 1, Body::DataRequest { offset, len }), &[]);
    peer.send_frame(&of(0, 1, Body::BofRequest), &[]);
    let block = |n: u64| Body::Data {
        offset: n * BLOCK,
        len: BLOCK as u32,
    };
    // The EOF has used one of the 32 credits.
    for n in 0..31 {
        assert_eq!(peer.come().body(), block(n));
    }
    // Without a credit nothing more comes but an ACK, which needs none: for requests about a file
    // that there is not.
    for _ in 0..16 {
        peer.send_frame(&of(3, 9, Body::BofRequest), &[]);
    }
    assert_eq!(peer.frame().0, Frame::Ack(16));
    peer.send_frame(&Frame::Ack(16), &[]);
    for n in 31..47 {
        assert_eq!(peer.come().body(), block(n));
    }
    for n in 47..100 {
        if n % 16 == 15 {
            peer.send_frame(&Frame::Ack(16), &[]);
        }
        assert_eq!(peer.come().body(), block(n));
    }
    assert_eq!(peer.come().body(), bof("f", 100 * BLOCK));
    drop(peer);
    send.end().expect(4);
}

/// One accumulated ACK for a batch of requests.
#[test]
fn one_ack_for_a_batch_of_requests() {
    let dir = Scratch::new();
    let file = dir.file("f", 100_000);
    let (send, from) = start(&file, "1", &[]);
    let mut peer = Peer::admitted(&from, "r");
    peer.ready();
    assert!(matches!(peer.come().body(), Body::Eof { .. }));
    for n in 0..16 {
        let body = Body::DataRequest {
            offset: n * 10,
            len: 10,
        };
        peer.send_frame(&of(0, 1, body), &[]);
    }
    let mut answers = 0;
    loop {
        match peer.frame() {
            (Frame::Message(Message { body, .. }), payload) => {
                let Body::Data { offset, .. } = body else {
                    panic!("{body:?}");
                };
                assert_eq!((offset, payload.len()), (answers * 10, 10));
                answers += 1;
            }
            (Frame::Ack(messages), _) => {
                assert_eq!((messages, answers), (16, 16));
                break;
            }
        }
    }
    drop(peer);
    send.end().expect(4);
}

/// A receiver that breaks the rules of its channel loses its place, and no other does.
#[test]
fn a_receiver_that_breaks_the_rules_is_removed_and_the_others_go_on() {
    let dir = Scratch::new();
    let file = dir.file("f", 2_000_000);
    let request = of(0, 1, Body::DataRequest { offset: 0, len: 1 });
    let long = of(
        0,
        1,
        Body::DataRequest {
            offset: 0,
            len: 1 << 40,
        },
    );
    let bytes = |frame: &Frame| common::ibrmp::bytes(frame, &[]);
    let liars: [(&str, Vec<Vec<u8>>, &str); 5] = [
        (
            "credits",
            // It acknowledges no answer, so answers wait, and requests with them.
            (0..60)
                .map(|n| bytes(&of(0, 1, Body::DataRequest { offset: n, len: 1 })))
                .collect(),
            "without a credit",
        ),
        ("acks", vec![bytes(&Frame::Ack(1_000_000))], "never sent"),
        (
            "direction",
            vec![bytes(&of(0, 1, Body::FileTimeout))],
            "only a sender sends",
        ),
        (
            "garbage",
            vec![vec![0xff; 28]],
            "does not speak our language",
        ),
        ("long", vec![bytes(&long), bytes(&request)], ""),
    ];
    let (send, from) = start(&file, "6", &["--per-host", "9", "--file-timeout", "2s"]);
    let honest = into(&dir, "honest", &from, &[]);
    let peers: Vec<Peer> = liars
        .iter()
        .map(|(name, ..)| Peer::admitted(&from, name))
        .collect();
    let mut peers: Vec<Peer> = peers;
    peers.iter_mut().for_each(Peer::ready);
    for (mut peer, (_, frames, _)) in peers.into_iter().zip(&liars) {
        assert!(matches!(peer.frame().0, Frame::Message(_)), "the EOF");
        frames.iter().for_each(|frame| peer.send_raw(frame));
        // Until it is removed, or all files are closed.
        std::thread::spawn(move || {
            let is_over = |say: &str| ["removed", "refused", "last"].contains(&say);
            while !matches!(peer.come(), Came::Said(m) if is_over(m["say"].as_str().unwrap())) {}
        });
    }
    honest.end().expect(0);
    same(&file, &dir.path("honest").join("f"));
    let sent: End = send.end().expect(4);
    assert_eq!(sent.result("honest")["state"], "verified");
    for (name, _, why) in &liars {
        let result = sent.result(name);
        assert_ne!(result["state"], "verified", "{name}");
        let reason = result["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{name}: {reason}");
    }
}

/// Bytes that were changed on the way come again, and all that is stored is right.
#[test]
fn what_was_damaged_on_the_way_comes_again() {
    let dir = Scratch::new();
    let file = dir.file("f", 3_000_000);
    let (send, from) = start(&file, "2", &[]);
    let bad = into(&dir, "bad", &from, &["--inject-corruption", "30%"]);
    let good = into(&dir, "good", &from, &[]);
    for (run, name) in [(bad, "bad"), (good, "good")] {
        run.end().expect(0);
        same(&file, &dir.path(name).join("f"));
    }
    let sent = send.end().expect(0);
    assert_eq!(sent.result("bad")["state"], "verified");
    let mended = |name: &str| sent.result(name)["tally"]["mended_bytes"].as_u64().unwrap();
    assert!(mended("bad") > 1_000_000 && mended("good") < mended("bad"));
}

/// Receivers come and go while files are sent. Those that stay have everything, and one that has
/// come late has the files that were not over.
#[test]
fn receivers_come_and_go() {
    let dir = Scratch::new();
    let (one, two) = (dir.file("one", 4_000_000), dir.file("two", 4_000_001));
    let args = [
        two.to_str().unwrap(),
        "--files-at-once",
        "1",
        "--rate",
        "1MB/s",
    ];
    let (mut send, from) = start(&one, "2", &args);
    let stays = into(&dir, "stays", &from, &[]);
    let goes = into(&dir, "goes", &from, &[]);
    send.until_share_of("fastest", 20);
    goes.signal(Signal::KILL);
    send.until_share_of("fastest", 55);
    let late = into(&dir, "late", &from, &[]);
    stays.end().expect(0);
    let lacks = late.end().expect(10);
    let why = &lacks.one("file_failed")["reason"];
    assert!(why.as_str().unwrap().contains("1 file was over"), "{why}");
    assert_eq!(lacks.one("done")["failed_unnamed"], 1);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("goes")["state"], "lost");
    assert_eq!(sent.result("late")["part"], "late");
    assert_eq!(sent.result("late")["placed"], 4_000_001);
    assert_eq!(sent.result("stays")["state"], "verified");
    // Nobody is to believe that it has all.
    assert_eq!(sent.result("late")["state"], "failed");
    let why = sent.result("late")["reason"].as_str().unwrap();
    assert!(why.contains("1 file was over before it came"), "{why}");
    for receiver in ["stays", "late"] {
        same(&two, &dir.path(receiver).join("two"));
    }
    same(&one, &dir.path("stays").join("one"));
    assert!(!dir.path("late").join("one").exists());
}

#[test]
fn what_does_not_fit_is_refused() {
    let dir = Scratch::new();
    let file = dir.file("f", 1);
    std::fs::create_dir(dir.path("d")).unwrap();
    let (file, directory) = (file.to_str().unwrap(), dir.path("d"));
    let refused = |args: &[&str], why: &str| {
        let end = Run::start([&["send", "--json"], args].concat())
            .end()
            .expect(2);
        let text = end.one("error")["text"].as_str().unwrap();
        assert!(text.contains(why), "{text}");
    };
    let ibrmp = ["--scheme", "ibrmp"];
    let with = |more: &[&'static str], why: &str| {
        refused(&[&[file], &ibrmp[..], more].concat(), why);
    };
    with(&["--slow", "drop"], "--file-timeout");
    with(&["--checksum", "crc32c"], "--checksum does not fit");
    with(&["--reach", "unicast"], "--reach");
    refused(
        &[file, "--scheme", "ibrmp+blocks"],
        "not a scheme that blocks could change",
    );
    for option in [
        ["--file-timeout", "1s"],
        ["--receivers-per-worker", "3"],
        ["--workers", "3"],
        ["--worker-cpus", "0"],
    ] {
        refused(
            &[&[file], &option[..]].concat(),
            &format!("{} is for --scheme ibrmp alone", option[0]),
        );
    }
    with(
        &["--worker-cpus", "1023"],
        "CPU 1023 that this process may use; it may use",
    );
    refused(
        &[directory.to_str().unwrap(), "--scheme", "ibrmp"],
        "is a directory",
    );
}

/// A receiver learns of the protocol when the transfer starts. It then gives up, and the sender
/// tells why.
#[test]
fn what_does_not_fit_at_a_receiver_ends_it() {
    let dir = Scratch::new();
    let file = dir.file("f", 1000);
    std::fs::create_dir(dir.path("into")).unwrap();
    for (at, args, why) in [
        ("-", &[][..], "writes no stream"),
        ("into", &["--delete"], "sends no directories"),
    ] {
        let (send, from) = start(&file, "1", &[]);
        let dest = match at {
            "-" => at.to_owned(),
            _ => dir.path(at).to_str().unwrap().to_owned(),
        };
        let fixed = ["recv", &dest, "--json", "--from", &from, "--as", "r"];
        let end = Run::start([&fixed[..], args].concat()).end().expect(2);
        let text = &end.stderr;
        assert!(
            text.contains("P3's protocol") && text.contains(why),
            "{text}"
        );
        let sent = send.end();
        let reason = sent.result("r")["reason"].as_str().unwrap();
        assert!(reason.contains(why), "{reason}");
    }
    assert_eq!(std::fs::read_dir(dir.path("into")).unwrap().count(), 0);
}

/// A file that is written to while it is sent fails by name at the sender, no receiver stores it,
/// and the others arrive.
#[test]
fn a_source_that_changes_fails_alone() {
    let dir = Scratch::new();
    let (changes, stays) = (dir.file("changes", 4_000_000), dir.file("stays", 4_000_001));
    let args = [stays.to_str().unwrap(), "--rate", "4MB/s"];
    let (mut send, from) = start(&changes, "1", &args);
    let recv = into(&dir, "r", &from, &[]);
    send.until_share_of("fastest", 30);
    let file = std::fs::File::options().write(true).open(&changes).unwrap();
    file.set_len(4_000_001).unwrap();
    let done = recv.end().expect(10);
    let failed = done.one("file_failed");
    assert_eq!(failed["path"], json!(dir.path("r").join("changes")));
    assert_eq!(done.one("file_stored")["len"], 4_000_001);
    same(&stays, &dir.path("r").join("stays"));
    assert!(!dir.path("r").join("changes").exists());
    let sent = send.end().expect(10);
    let reason = sent.one("file_failed")["reason"].as_str().unwrap();
    assert!(reason.contains("became longer"), "{reason}");
    assert_eq!(sent.result("r")["state"], "verified");
    assert_eq!(sent.result("r")["placed"], 4_000_001);
    assert_eq!(done.one("done")["len"], 4_000_001);
}

/// A file that changes while an answer is read fails by name, and a receiver that has proven it
/// before is no liar.
#[test]
fn a_source_that_changes_makes_nobody_a_liar() {
    let dir = Scratch::new();
    let (one, two) = (dir.file("one", 10_000), dir.file("two", 10_001));
    let proof = |path: &std::path::Path, node: u32| {
        let fingerprint = Fingerprint::of(&std::fs::read(path).unwrap());
        fingerprint.proof(NodeId(node)).to_hex().to_string()
    };
    let one_proof = proof(&one, 1);
    let two_proofs = [proof(&two, 1), proof(&two, 2)];
    let (send, from) = start(&one, "2", &[two.to_str().unwrap(), "--per-host", "9"]);
    let mut has = Peer::admitted(&from, "has");
    let mut lacks = Peer::admitted(&from, "lacks");
    for peer in [&mut has, &mut lacks] {
        peer.ready();
    }
    for peer in [&mut has, &mut lacks] {
        for _ in 0..2 {
            assert!(matches!(peer.frame().0, Frame::Message(_)), "the EOF");
        }
    }
    has.send_frame(&of(0, 1, Body::TransferDone), &[]);
    let digest = has.until_said("digest").0;
    assert_eq!(
        (&digest["name"], digest["hash"].is_null()),
        (&json!("one"), false)
    );
    std::fs::write(&one, "other").unwrap();
    let (offset, len) = (0, 10_000);
    lacks.send_frame(&of(0, 1, Body::DataRequest { offset, len }), &[]);
    for (peer, proof) in [&mut has, &mut lacks].into_iter().zip(two_proofs) {
        peer.send_frame(&of(1, 2, Body::TransferDone), &[]);
        peer.until_said("digest");
        peer.say(json!({"say": "stored", "file": 2, "proof": proof}));
    }
    has.say(json!({"say": "stored", "file": 1, "proof": one_proof}));
    for peer in [&mut has, &mut lacks] {
        let (last, _) = peer.until_said("last");
        assert_eq!(last["failed"], json!([{"file": 1, "name": "one"}]));
        peer.say(
            json!({"say": "finished", "received": 0, "duplicates": 0, "mended": 0,
            "mended_bytes": 0, "dropped": 0}),
        );
        peer.until_said("bye");
    }
    let sent = send.end().expect(10);
    let reason = sent.one("file_failed")["reason"].as_str().unwrap();
    assert!(reason.contains("became shorter"), "{reason}");
    for name in ["has", "lacks"] {
        assert_eq!(sent.result(name)["state"], "verified");
    }
}

/// A sender that is interrupted tells the receivers, and one that is killed cannot. Either way they
/// end, and files that are complete stay.
#[test]
fn a_sender_that_goes_away_leaves_complete_files() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let dir = Scratch::new();
        let (long, short) = (dir.file("long", 40_000_000), dir.file("short", 1000));
        let args = [short.to_str().unwrap(), "--rate", "4MB/s"];
        let (send, from) = start(&long, "1", &args);
        let mut recv = into(&dir, "r", &from, &[]);
        recv.until("file_stored", |_| true);
        send.signal(signal);
        assert_eq!(send.end().code, code);
        recv.end().expect(8);
        same(&short, &dir.path("r").join("short"));
        assert_eq!(std::fs::read_dir(dir.path("r")).unwrap().count(), 1);
    }
}

/// `copy` starts receivers that take part by P3's protocol.
#[test]
fn a_copy_goes_by_the_protocol() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", 500_000);
    let end = hosts
        .copy(&source, "a,b:", &["--scheme", "ibrmp"])
        .end()
        .expect(0);
    hosts.has("a", ".", &source);
    hosts.has("b", ".", &source);
    assert_eq!(end.one("summary")["messages"]["multicast"]["BOF"], 1);
}

/// A receiver whose last bytes come in the moment in which its file is closed has the file. A wrong
/// proof is no proof.
#[test]
fn a_right_proof_counts_although_the_file_is_closed() {
    let dir = Scratch::new();
    let file = dir.file("f", 10_000);
    let fingerprint = Fingerprint::of(&std::fs::read(&file).unwrap());
    for (is_right, code) in [(true, 0), (false, 4)] {
        let (send, from) = start(&file, "1", &["--file-timeout", "1ms"]);
        let mut peer = Peer::admitted(&from, "r");
        peer.ready();
        peer.until_said("last");
        let proof = match is_right {
            true => fingerprint.proof(NodeId(1)),
            false => fingerprint.digest(),
        };
        let proof = proof.to_hex().to_string();
        peer.say(json!({"say": "stored", "file": 1, "proof": proof}));
        if is_right {
            peer.say(
                json!({"say": "finished", "received": 0, "duplicates": 0, "mended": 0,
                "mended_bytes": 0, "dropped": 0}),
            );
            peer.until_said("bye");
        } else {
            let (removed, _) = peer.until_said("removed");
            let reason = removed["reason"].as_str().unwrap();
            assert!(reason.contains("its proof is wrong"), "{reason}");
        }
        drop(peer);
        send.end().expect(code);
    }
}

/// Of more files than the sender names, those that it could not read to their end count once.
#[test]
fn many_files_that_cannot_be_read_count_once() {
    let dir = Scratch::new();
    let names: Vec<String> = (0..150).map(|n| format!("f{n}")).collect();
    let files: Vec<_> = names.iter().map(|name| dir.file(name, 100_000)).collect();
    let others = files[1..].iter().map(|file| file.to_str().unwrap());
    let all_at_once = ["--files-at-once", "200", "--rate", "3MB/s"];
    let args: Vec<&str> = others.chain(all_at_once).collect();
    let (mut send, from) = start(&files[0], "1", &args);
    let recv = into(&dir, "to", &from, &[]);
    send.until_share_of("fastest", 20);
    for file in &files[1..] {
        std::fs::write(file, "changed").unwrap();
    }
    let done = recv.end().expect(10);
    send.end().expect(10);
    let done = done.one("done");
    let named = done["failed"].as_array().unwrap().len() as u64;
    assert_eq!(
        named + done["failed_unnamed"].as_u64().unwrap(),
        149,
        "{named} by name"
    );
}
