//! Sets that receivers have already, where one end lies, or words come late or bent, as processes
//! on the loopback.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use fabricast::object::manifest::{Kind, Manifest, TOP};
use fabricast::object::pack::{Content, Pack, Piece};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::again::{FORCE, present, wire};
use crate::common::attacks::liars;
use crate::common::control::{Peer, Stream, entry};
use crate::common::place::Loopback;
use crate::common::tree::{recv, send};
use crate::common::{Run, Scratch};

const LITTLE_PATIENCE: [&str; 4] = ["--patience", "2s", "--slow", "drop"];

/// A member that may have the set and says nothing: the other one gets the set as if nobody had
/// it, and the liar is dropped.
#[test]
fn one_that_never_says_what_it_found_does_not_stop_the_others() {
    let (sent, good) = liars::compares(&Loopback, &LITTLE_PATIENCE, |liar| {
        liar.until("end");
        liar.until("removed");
    });
    assert_eq!(
        (sent.result("liar")["state"].clone(), present(&good)),
        ("dropped".into(), 0)
    );
    assert!(wire(&sent) > 12_000_000);
}

/// A member that has nothing and says that it may have all. The other one compares what it has. The
/// sender sends all of it again to the liar alone, which is given up by its proof.
#[test]
fn one_that_claims_what_it_lacks_harms_itself() {
    let (sent, good) = liars::compares(&Loopback, &LITTLE_PATIENCE, |liar| {
        liar.say(json!({"say": "looked", "candidates": [[0, 1]]}));
        let packs = answer_until_end(liar);
        assert!(packs.len() >= 4, "{packs:?}");
        let runs = [[packs[0], packs[0] + packs.len() as u64]];
        liar.say(json!({"say": "has", "runs": runs}));
        let counted = json!({
            "say": "verified", "received": 0, "duplicates": 0, "mended": 0, "mended_bytes": 0,
            "dropped": 0, "proof": "0".repeat(64),
        });
        liar.say(counted);
        assert_eq!(liar.until("removed")["code"], 6);
    });
    assert_eq!(sent.result("liar")["state"], "failed");
    assert_eq!(present(&good), 12_000_000);
    assert!(wire(&sent) < 500_000, "{}", wire(&sent));
}

/// Like the one before, but it says that it lacks everything. It gets it again, and takes nothing.
#[test]
fn one_that_lacks_all_that_it_claimed_gets_it_after_the_others() {
    let (sent, good) = liars::compares(&Loopback, &LITTLE_PATIENCE, |liar| {
        liar.say(json!({"say": "looked", "candidates": [[0, 1]]}));
        answer_until_end(liar);
        liar.say(json!({"say": "has", "runs": []}));
        let again = liar.until("pack");
        assert!(again["again"].is_u64(), "{again}");
        liar.until("removed");
    });
    assert_eq!(sent.result("liar")["state"], "dropped");
    assert_eq!(present(&good), 12_000_000);
}

/// A member that compares nothing is slow, and the rule for slow receivers applies.
#[test]
fn one_that_never_compares_is_given_up() {
    for rule in ["drop", "demote"] {
        let args = ["--patience", "2s", "--slow", rule];
        let (sent, good) = liars::compares(&Loopback, &args[..], |liar| {
            liar.say(json!({"say": "looked", "candidates": [[0, 1]]}));
            if rule == "demote" {
                liar.until("demoted");
                liar.until("join");
            }
            liar.until("removed");
        });
        assert_eq!(sent.result("liar")["state"], "dropped", "{rule}");
        assert_eq!(present(&good), 12_000_000, "{rule}");
    }
}

/// A member that compares each pack within the patience, and holds the other one up all the time.
#[test]
fn one_that_compares_slowly_is_left_behind() {
    for rule in ["drop", "demote"] {
        let args = ["--patience", "3s", "--slow", rule];
        let (sent, good) = liars::compares(&Loopback, &args[..], |liar| {
            liar.say(json!({"say": "looked", "candidates": [[0, 1]]}));
            liar.until("compare");
            for number in 1..3 {
                std::thread::sleep(Duration::from_millis(1300));
                liar.say(json!({"say": "compared", "number": number}));
            }
            liar.until(if rule == "drop" { "removed" } else { "demoted" });
        });
        let liar = sent.result("liar");
        assert_eq!(present(&good), 12_000_000, "{rule}");
        if rule == "drop" {
            let reason = liar["reason"].as_str().unwrap();
            assert!(reason.contains("held the others"), "{reason}");
        }
    }
}

/// While members only compare, a late receiver has the network for itself.
#[test]
fn a_late_receiver_does_not_wait_for_those_that_compare() {
    let dir = Scratch::new();
    let mut late = None;
    liars::compares(&Loopback, &[], |liar| {
        liar.say(json!({"say": "looked", "candidates": [[0, 1]]}));
        liar.until("compare");
        let run = late.insert(recv(&liar.other(), "late", &dir.path("late"), &[]));
        run.until("progress", |e| e["placed"].as_u64() > Some(11_000_000));
        liar.say(json!({"say": "failed", "code": 1, "reason": "enough"}));
    });
    let late = late.unwrap();
    assert_eq!(present(&late.end().expect(0)), 0);
}

/// A late receiver that has a part from an earlier run keeps packs of which only the headers come.
#[test]
fn a_late_receiver_that_goes_on_keeps_what_is_compared() {
    let dir = Scratch::new();
    let (source, to) = (dir.file("source", 12_000_000), dir.path("late"));
    let (sender, address) = send(&[&source], &["--rate", "5MB/s"]);
    let mut run = recv(&address, "late", &to, &FORCE);
    run.until_share_of("placed", 90);
    run.signal(Signal::KILL);
    run.end();
    sender.end().expect(4);
    let mut late = None;
    let (sent, _) = liars::compares_in(&dir, &Loopback, &[], |liar| {
        let run = late.insert(recv(&liar.other(), "late", &to, &FORCE));
        run.until("joined", |_| true);
        liar.say(json!({"say": "looked", "candidates": [[0, 1]]}));
        liar.until("compare");
        liar.say(json!({"say": "failed", "code": 1, "reason": "enough"}));
    });
    let late = late.unwrap().end().expect(0);
    let kept = late.one("resumed")["bytes"].as_u64().unwrap();
    assert!(
        kept > 4_000_000 && wire(&sent) + kept < 13_500_000,
        "{kept}"
    );
    assert_eq!(
        fs::read(source).unwrap(),
        fs::read(to.join("source")).unwrap()
    );
}

/// Words that make no sense: the sender parts with the member that says them.
#[test]
fn words_out_of_turn_are_refused() {
    let looked = || json!({"say": "looked", "candidates": [[0, 1]]});
    let cases: [(&str, Vec<Value>); 6] = [
        (
            "no such pack",
            vec![looked(), json!({"say": "compared", "number": 7})],
        ),
        (
            "nothing announced",
            vec![json!({"say": "compared", "number": 1})],
        ),
        ("twice", vec![looked(), looked()]),
        (
            "falling",
            vec![json!({"say": "looked", "candidates": [[3, 4], [1, 2]]})],
        ),
        (
            "empty",
            vec![json!({"say": "looked", "candidates": [[3, 3]]})],
        ),
        (
            "too many",
            vec![json!({
                "say": "looked",
                "candidates": (0..200).map(|n| [2 * n, 2 * n + 1]).collect::<Vec<_>>(),
            })],
        ),
    ];
    for (why, words) in cases {
        let (sent, _) = liars::compares(&Loopback, &[], |liar| {
            words.into_iter().for_each(|word| liar.say(word));
        });
        assert_eq!(sent.result("liar")["state"], "lost", "{why}");
    }
}

/// Answers each pack that is compared, until all were announced. Returns their numbers.
fn answer_until_end(liar: &mut Peer) -> Vec<u64> {
    let (mut number, mut compared) = (0, Vec::new());
    loop {
        let message = liar.hear();
        match message["say"].as_str().unwrap() {
            "pack" => number += 1,
            "compare" => {
                liar.say(json!({"say": "compared", "number": number}));
                compared.push(number);
                number += 1;
            }
            "end" => return compared,
            _ => {}
        }
    }
}

/// A hand-made sender of a file "x" that the receiver may have, once the receiver has looked: the
/// receiver, the sender's connection, its datagrams, and the pack that has the file.
fn hand_made(to: &Path, args: &[&str]) -> (Run, Peer, Stream, Pack) {
    fs::create_dir(to).unwrap();
    fs::write(to.join("x"), "mine").unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let there = File::options().write(true).open(to.join("x")).unwrap();
    there.set_modified(time).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let run = recv(&address, "r0", to, &[&FORCE, args].concat());
    let mut peer = Peer::accept(&listener);
    let mut stream = peer.start_set_with("x", 1, 4, json!({"compares": 5000}));
    let mut manifest = Manifest::default();
    let x = entry(TOP, b"x", Kind::File(4), 0o644);
    manifest.add(x).unwrap();
    let mut page = Vec::new();
    manifest.put_page(0, &mut page);
    let page = Pack::new(Content::Page, &page);
    stream.send(&mut peer, &page, &page.bytes);
    assert_eq!(peer.until("looked")["candidates"], json!([[0, 1]]));
    let piece = Piece::Bytes {
        file: 0,
        offset: 0,
        len: 4,
        last: true,
    };
    (
        run,
        peer,
        stream,
        Pack::new(Content::Pieces(vec![piece]), b"mine"),
    )
}

/// A header that was bent on its way is requested again, and the file remains. If what comes then
/// is not what was announced, the receiver gives up.
#[test]
fn a_bent_header_is_requested_again() {
    for (is_bent, is_mended) in [(false, true), (true, true), (true, false)] {
        let dir = Scratch::new();
        let (run, mut peer, mut stream, pack) = hand_made(&dir.path("to"), &[]);
        let right = pack.bytes[..pack.header].to_vec();
        let mut header = right.clone();
        if is_bent {
            header[20] ^= 1;
        }
        let op = stream.announce_to_compare(&mut peer, &pack);
        stream.send_bytes(op, &header);
        if is_bent {
            let need = peer.until("need");
            assert_eq!((&need["pack"], &need["block"]), (&json!(1), &Value::Null));
            peer.give(if is_mended { &right } else { &header });
        }
        if !is_mended {
            assert_eq!(peer.until("failed")["code"], 6);
            assert_ne!(run.end().code, Some(0));
            continue;
        }
        assert_eq!(peer.until("compared")["number"], 1);
        peer.say(json!({"say": "end", "packs": 2, "key": "00".repeat(32)}));
        assert_eq!(peer.until("has")["runs"], json!([[1, 2]]));
        peer.until("working");
        peer.until("verified");
        peer.say(json!({"say": "bye"}));
        let done = run.end().expect(0);
        assert_eq!(present(&done), 4);
        assert_eq!(done.all("storing").count(), 1);
    }
}

/// A receiver that has compared all waits for the others, longer than it bears silence otherwise.
/// It says that it compares, and how far it is. After that it waits for what it lacks.
#[test]
fn a_receiver_waits_for_others_that_compare() {
    for differs in [false, true] {
        let dir = Scratch::new();
        let args = ["--receive-timeout", "2s"];
        let (mut run, mut peer, mut stream, pack) = hand_made(&dir.path("to"), &args);
        if differs {
            fs::write(dir.path("to/x"), "ours").unwrap();
        }
        let op = stream.announce_to_compare(&mut peer, &pack);
        stream.send_bytes(op, &pack.bytes[..pack.header]);
        peer.until("compared");
        run.until_ever("comparing", |_| true);
        let is_all = |e: &Value| (&e["present"], &e["placed"]) == (&json!(4), &json!(4));
        run.until_ever("progress", is_all);
        stream.set_quiet(true);
        std::thread::sleep(Duration::from_secs(4));
        peer.say(json!({"say": "end", "packs": 2, "key": "00".repeat(32)}));
        let here = peer.until("has")["runs"].clone();
        if differs {
            assert_eq!(here, json!([]));
            std::thread::sleep(Duration::from_millis(500));
            stream.set_quiet(false);
            let op = stream.announce_again(&mut peer, &pack, 1);
            stream.send_bytes(op, &pack.bytes);
        }
        peer.until("verified");
        peer.say(json!({"say": "bye"}));
        run.end().expect(0);
        assert_eq!(fs::read(dir.path("to/x")).unwrap(), b"mine");
    }
}

/// A sender that falls silent where nobody compares anything is given up as soon as the user says.
#[test]
fn silence_is_noticed_where_nothing_is_compared() {
    for compares in [false, true] {
        let dir = Scratch::new();
        let args = ["--receive-timeout", "2s"];
        let (run, mut peer, mut stream, pack) = hand_made(&dir.path("to"), &args);
        stream.set_quiet(true);
        match compares {
            false => _ = stream.announce(&mut peer, &pack, pack.bytes.len()),
            true => _ = stream.announce_to_compare(&mut peer, &pack),
        }
        let began = Instant::now();
        let end = run.end_within(Duration::from_secs(30)).expect(5);
        let said = "nothing has arrived for 2 s";
        assert!(end.stderr.contains(said), "{}", end.stderr);
        if compares {
            assert!(began.elapsed() > Duration::from_secs(5), "for the others");
        }
    }
}

/// A sender that announces more than a receiver has to bear is no sender of this version.
#[test]
fn a_sender_that_does_not_wait_for_comparisons_is_refused() {
    let dir = Scratch::new();
    let (run, mut peer, mut stream, pack) = hand_made(&dir.path("to"), &[]);
    (0..9).for_each(|_| _ = stream.announce_to_compare(&mut peer, &pack));
    peer.until("failed");
    assert_ne!(run.end().code, Some(0));
    assert_eq!(fs::read(dir.path("to/x")).unwrap(), b"mine");
}
