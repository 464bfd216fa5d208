//! Sets that receivers have already, or have in part, as processes on the loopback.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use fabricast::object::manifest::{Kind, Manifest, TOP};
use fabricast::object::pack::{Content, Pack, Piece};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::forged::{false_sender, finder};
use crate::common::attacks::liars;
use crate::common::control::{Peer, Stream, entry};
use crate::common::feed::{ends, feed_in, follow, serve, until_all};
use crate::common::place::Loopback;
use crate::common::tree::{described, recv, send};
use crate::common::{End, Run, Scratch};

const FORCE: [&str; 1] = ["--force"];

/// Bytes of files that a receiver had already.
#[track_caller]
fn present(done: &End) -> u64 {
    done.one("done")["tally"]["present_bytes"].as_u64().unwrap()
}

fn len(done: &End) -> u64 {
    done.one("done")["len"].as_u64().unwrap()
}

/// Bytes that the sender had on the wire.
fn wire(sent: &End) -> u64 {
    let wire = &sent.one("summary")["traffic"]["wire_bytes"];
    wire.as_u64().unwrap()
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

/// Sends these to receivers that may replace files, one for each directory, and waits for all.
#[track_caller]
fn transfer(top: &Path, to: &[&Path], args: &[&str]) -> (End, Vec<End>) {
    let least = to.len().to_string();
    let args = [&["--min-receivers", &least][..], args].concat();
    let (sender, address) = send(&[top], &args);
    let start = |(n, to): (usize, &&Path)| recv(&address, &format!("r{n}"), to, &FORCE);
    let runs: Vec<_> = to.iter().enumerate().map(start).collect();
    let done = runs.into_iter().map(|run| run.end().expect(0)).collect();
    (sender.end().expect(0), done)
}

/// Long and short files, and one with a hole.
fn set(dir: &Scratch) -> PathBuf {
    let top = dir.path("set");
    fs::create_dir_all(top.join("deep")).unwrap();
    for n in 0..3 {
        let long = dir.file(&format!("long {n}"), 9_000_000 + n);
        fs::rename(long, top.join(format!("long {n}"))).unwrap();
    }
    for n in 0..600 {
        fs::write(top.join(format!("deep/short {n:04}")), vec![n as u8; n]).unwrap();
    }
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(1 << 26).unwrap();
    sparse.write_all_at(&[1; 3_000_000], 1 << 25).unwrap();
    top
}

/// All of a set is there at three receivers, and next to nothing is sent. No file is made anew.
#[test]
fn of_a_set_that_is_there_next_to_nothing_is_sent() {
    let dir = Scratch::new();
    let top = set(&dir);
    let to = ["a", "b", "c"].map(|name| dir.path(name));
    let to: Vec<&Path> = to.iter().map(|to| &**to).collect();
    let (sent, done) = transfer(&top, &to, &[]);
    let all = len(&done[0]);
    assert!(wire(&sent) > 30_000_000, "{}", wire(&sent));
    done.iter().for_each(|done| assert_eq!(present(done), 0));
    let before: Vec<u64> = to.iter().map(|to| inode(&to.join("set/long 1"))).collect();
    let (sent, done) = transfer(&top, &to, &[]);
    assert!(wire(&sent) < 500_000, "{}", wire(&sent));
    for (n, (to, done)) in to.iter().zip(&done).enumerate() {
        assert_eq!(present(done), all);
        assert_eq!(sent.result(&format!("r{n}"))["tally"]["present_bytes"], all);
        assert_eq!(done.one("done")["root"], sent.one("summary")["root"]);
        assert_eq!(described(&top), described(&to.join("set")));
        assert_eq!(
            inode(&to.join("set/long 1")),
            before[n],
            "it was written again"
        );
    }
}

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
        liar.until("removed");
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
/// It says that it compares, and how far it is.
#[test]
fn a_receiver_waits_for_others_that_compare() {
    let dir = Scratch::new();
    let args = ["--receive-timeout", "500ms"];
    let (mut run, mut peer, mut stream, pack) = hand_made(&dir.path("to"), &args);
    let op = stream.announce_to_compare(&mut peer, &pack);
    stream.send_bytes(op, &pack.bytes[..pack.header]);
    peer.until("compared");
    run.until_ever("comparing", |_| true);
    run.until_ever("progress", |e| {
        (&e["present"], &e["placed"]) == (&json!(4), &json!(4))
    });
    std::thread::sleep(Duration::from_secs(2));
    peer.say(json!({"say": "end", "packs": 2, "key": "00".repeat(32)}));
    peer.until("verified");
    peer.say(json!({"say": "bye"}));
    run.end().expect(0);
}

/// Honest receivers that lack much of what they claimed are not slow: one has another file of
/// several, and one has others in all places. The sender's link takes its time.
#[test]
fn honest_receivers_that_differ_are_not_left_behind() {
    for rule in ["drop", "demote"] {
        let dir = Scratch::new();
        let top = dir.path("set");
        fs::create_dir(&top).unwrap();
        for n in 0..4 {
            let file = dir.file(&format!("file {n}"), 5_000_000 + n);
            fs::rename(file, top.join(format!("file {n}"))).unwrap();
        }
        let to = ["same", "one", "all", "also"].map(|name| dir.path(name));
        let to: Vec<&Path> = to.iter().map(|to| &**to).collect();
        for (n, to) in to.iter().enumerate() {
            fs::create_dir(to).unwrap();
            let copied = Command::new("cp").arg("-a").arg(&top).arg(to).status();
            assert!(copied.unwrap().success());
            let differ = [0, 1, 4, 0][n];
            (0..differ).for_each(|n| spoil(&to.join(format!("set/file {n}")), 9));
        }
        // Half of a window of small datagrams is far less than what is lacking.
        let args = [
            &["--rate", "2MB/s", "--patience", "2s", "--slow", rule][..],
            &["--datagram", "512"],
        ]
        .concat();
        let (sent, done) = transfer(&top, &to, &args);
        assert_eq!(sent.all("demoted").count(), 0, "{rule}");
        for (n, (to, done)) in to.iter().zip(&done).enumerate() {
            assert_eq!(sent.result(&format!("r{n}"))["state"], "verified", "{rule}");
            assert_eq!(present(done), [20_000_006, 15_000_006, 0, 20_000_006][n]);
            assert_eq!(described(&top), described(&to.join("set")));
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

/// Writes to a file at this place, which keeps its length and its time.
fn spoil(path: &Path, at: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"mine", at).unwrap();
    file.set_modified(time).unwrap();
}

/// Of two receivers one has another file, with the length and the time of the set's. It gets that
/// one, and nothing else is written. What shares a block with a short file comes with it.
#[test]
fn a_file_with_other_bytes_is_found_and_sent() {
    let dir = Scratch::new();
    let top = set(&dir);
    let to = ["a", "b"].map(|name| dir.path(name));
    let to: Vec<&Path> = to.iter().map(|to| &**to).collect();
    transfer(&top, &to, &[]);
    spoil(&to[0].join("set/long 1"), 5_000_000);
    let kept = |to: &Path| ["set/long 0", "set/long 2"].map(|name| inode(&to.join(name)));
    let before = [kept(to[0]), kept(to[1])];
    let (sent, done) = transfer(&top, &to, &[]);
    let all = len(&done[0]);
    assert_eq!(present(&done[0]), all - 9_000_001);
    assert_eq!(present(&done[1]), all);
    let differs = sent.one("catching_up");
    assert_eq!(
        (&differs["receiver"], &differs["part"]),
        (&json!("r0"), &json!("whole"))
    );
    let bytes = wire(&sent);
    assert!((9_000_000..20_000_000).contains(&bytes), "{bytes}");
    for (to, before) in to.iter().zip(before) {
        assert_eq!(described(&top), described(&to.join("set")));
        assert_eq!(kept(to), before);
    }
    spoil(&to[1].join("set/deep/short 0555"), 100);
    let (_, done) = transfer(&top, &to, &[]);
    assert_eq!(present(&done[0]), all);
    assert!(present(&done[1]) < all && present(&done[1]) > all / 2);
    assert_eq!(described(&top), described(&to[1].join("set")));
}

/// One receiver of two has nothing: all is sent, in as many packets as without any that may have
/// something.
#[test]
fn where_one_receiver_lacks_the_set_all_is_sent() {
    let dir = Scratch::new();
    let top = set(&dir);
    let (has, lacks, other) = (dir.path("has"), dir.path("lacks"), dir.path("other"));
    let (plain, _) = transfer(&top, &[&has, &other], &[]);
    let (sent, done) = transfer(&top, &[&has, &lacks], &[]);
    let packets = |sent: &End| sent.one("summary")["traffic"]["data"].clone();
    assert_eq!(packets(&sent), packets(&plain));
    let names = |sent: &End, who: &str| {
        let mut notices = sent.all("notice");
        notices.any(|e| {
            let text = e["text"].as_str().unwrap();
            text.starts_with("all of the set is sent") && text.contains(who)
        })
    };
    assert!(names(&sent, ": r1 can compare nothing") && names(&sent, "--force and --from"));
    assert!(!names(&plain, ""));
    done.iter().for_each(|done| assert_eq!(present(done), 0));
    for to in [has, lacks] {
        assert_eq!(described(&top), described(&to.join("set")));
    }
}

/// A receiver that replaces nothing, or has found its sender by an announcement, says and does what
/// it always has.
#[test]
fn only_one_that_replaces_files_and_names_its_sender_may_have_something() {
    let dir = Scratch::new();
    let (to, name) = (dir.path("to"), format!("may-have-{}", std::process::id()));
    fs::create_dir_all(&to).unwrap();
    let prepared = |listener: &TcpListener| {
        let mut peer = Peer::accept(listener);
        peer.welcome(&name, 4);
        peer.until("prepared")["may_have"].clone()
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let run = recv(&address, "r0", &to, &FORCE);
    assert_eq!(prepared(&listener), Value::Null, "nothing is there");
    drop(run);
    fs::write(to.join(&name), "mine").unwrap();
    let run = recv(&address, "r0", &to, &FORCE);
    assert_eq!(prepared(&listener), true);
    drop(run);
    let (_address, listener, announcing) = false_sender(&name);
    let run = finder(&name, &to, &FORCE);
    assert_eq!(prepared(&listener), Value::Null);
    drop((run, announcing));
}

/// A receiver that comes while files are compared gets all of them, after the others have them.
#[test]
fn a_late_receiver_gets_what_was_compared() {
    let dir = Scratch::new();
    let top = set(&dir);
    let (has, late) = (dir.path("has"), dir.path("late"));
    transfer(&top, &[&has], &[]);
    // What is new takes a while, so that the receiver comes before the end.
    fs::rename(dir.file("new", 10_000_000), top.join("new")).unwrap();
    let (mut sender, address) = send(&[&top], &["--rate", "10MB/s"]);
    let first = recv(&address, "first", &has, &FORCE);
    sender.until_share_of("slowest", 1);
    let late = recv(&address, "late", &late, &[]);
    let sent = sender.end().expect(0);
    let first = first.end().expect(0);
    assert_eq!(present(&first), len(&first) - 10_000_000);
    assert_eq!(present(&late.end().expect(0)), 0);
    assert_eq!(sent.result("late")["part"], "late");
    for to in [has, dir.path("late")] {
        assert_eq!(described(&top), described(&to.join("set")));
    }
}

/// A receiver that serves has what remains for late ones, too, and reads it in its place.
#[test]
fn what_remains_is_served_from_its_place() {
    let dir = Scratch::new();
    let top = set(&dir);
    let (has, late) = (dir.path("has"), dir.path("late"));
    transfer(&top, &[&has], &[]);
    fs::rename(dir.file("new", 10_000_000), top.join("new")).unwrap();
    let (mut sender, address) = send(&[&top], &["--rate", "10MB/s"]);
    let serving = recv(&address, "first", &has, &["--force", "--serve"]);
    sender.until_share_of("slowest", 1);
    let late = recv(&address, "late", &late, &[]);
    sender.end().expect(0);
    let serving = serving.end().expect(0);
    assert_eq!(present(&serving), len(&serving) - 10_000_000);
    late.end().expect(0);
    assert_eq!(described(&top), described(&dir.path("late/set")));
}

/// A follower that has lost its record has the files.
#[test]
fn a_follower_has_an_entry() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let big = dir.file("big", 8_000_000);
    let there = dir.path("to/feed");
    fs::create_dir_all(&there).unwrap();
    let copied = Command::new("cp").arg("-p").arg(&big).arg(&there).status();
    assert!(copied.unwrap().success());
    let before = inode(&there.join("big"));
    fs::rename(big, feed.join("big")).unwrap();
    let (sender, address) = serve(&feed, "0", &[]);
    let mut run = follow(&address, &dir.path("to"), &[]);
    until_all(&mut run, 1);
    assert_eq!(present(&ends(run)), 8_000_000);
    ends(sender);
    assert_eq!(inode(&there.join("big")), before);
}

/// A receiver that is killed leaves files as they were, and gets the set at the next time. It does
/// not compare where it has stored a part: it goes on with that.
#[test]
fn a_receiver_that_is_killed_goes_on() {
    let dir = Scratch::new();
    let top = set(&dir);
    let to = dir.path("to");
    transfer(&top, &[&to], &[]);
    let files = || {
        let mut lines = described(&to.join("set"));
        lines.retain(|line| !line.contains(".fabricast-") && !line.contains(": directory"));
        lines
    };
    let before = files();
    fs::rename(dir.file("new", 10_000_000), top.join("new")).unwrap();
    let (sender, address) = send(&[&top], &["--rate", "5MB/s"]);
    let mut run = recv(&address, "r0", &to, &FORCE);
    run.until_share_of("placed", 5);
    run.signal(Signal::KILL);
    assert_eq!(run.end().code, None);
    sender.end().expect(4);
    assert_eq!(files(), before);
    let (_, done) = transfer(&top, &[&to], &[]);
    assert!(done[0].all("resumed").next().is_some(), "{done:#?}");
    assert_eq!(present(&done[0]), 0);
    assert_eq!(described(&top), described(&to.join("set")));
    let (_, done) = transfer(&top, &[&to], &[]);
    assert_eq!(present(&done[0]), len(&done[0]));
}

/// A long file at three receivers, at any rate: what is sent does not grow with it.
#[test]
fn of_a_long_file_that_is_there_next_to_nothing_is_sent() {
    let dir = Scratch::new();
    let long = dir.path("long");
    let block: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
    let mut file = File::create(&long).unwrap();
    (0..520).for_each(|_| file.write_all(&block).unwrap());
    let to = ["a", "b", "c"].map(|name| dir.path(name));
    for to in &to {
        fs::create_dir(to).unwrap();
        let copied = Command::new("cp").arg("-p").arg(&long).arg(to).status();
        assert!(copied.unwrap().success());
    }
    let to: Vec<&Path> = to.iter().map(|to| &**to).collect();
    let (sent, done) = transfer(&long, &to, &[]);
    assert!(wire(&sent) < 2_000_000, "{}", wire(&sent));
    done.iter()
        .for_each(|done| assert_eq!(present(done), 520 << 20));
}
