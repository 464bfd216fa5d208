//! Sets that receivers have already, or have in part, as processes on the loopback.

use std::fs::{self, File};
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::forged::{false_sender, finder};
use crate::common::control::Peer;
use crate::common::feed::{ends, feed_in, follow, serve, until_all};
use crate::common::tree::{described, recv, send};
use crate::common::{End, Scratch};

pub(super) const FORCE: [&str; 1] = ["--force"];

/// Bytes of files that a receiver had already.
#[track_caller]
pub(super) fn present(done: &End) -> u64 {
    done.one("done")["tally"]["present_bytes"].as_u64().unwrap()
}

fn len(done: &End) -> u64 {
    done.one("done")["len"].as_u64().unwrap()
}

/// Bytes that the sender had on the wire.
pub(super) fn wire(sent: &End) -> u64 {
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

/// A member that has another file gets it before a late receiver gets all that it lacks.
#[test]
fn one_that_differs_does_not_wait_for_a_late_receiver() {
    let dir = Scratch::new();
    let top = dir.path("set");
    fs::create_dir(&top).unwrap();
    let to = dir.path("has");
    fs::create_dir(&to).unwrap();
    for n in 0..6 {
        let file = dir.file("file", 4_200_000 + n);
        fs::rename(file, top.join(n.to_string())).unwrap();
    }
    let copied = Command::new("cp").arg("-a").arg(&top).arg(&to).status();
    assert!(copied.unwrap().success());
    spoil(&to.join("set/5"), 9);
    fs::rename(dir.file("new", 4_000_000), top.join("new")).unwrap();
    let (mut sender, address) = send(&[&top], &["--rate", "5MB/s"]);
    let first = recv(&address, "first", &to, &FORCE);
    sender.until_share_of("slowest", 1);
    let late = recv(&address, "late", &dir.path("late"), &[]);
    sender.until("verified", |e| e["receiver"] == "first");
    let progress = sender.until("progress", |_| true);
    let slowest = progress["slowest"].as_u64().unwrap();
    assert!(slowest < 20_000_000, "{progress}");
    let first = first.end().expect(0);
    assert_eq!(present(&first), len(&first) - 4_200_005 - 4_000_000);
    late.end().expect(0);
    sender.end().expect(0);
    assert_eq!(described(&top), described(&dir.path("late/set")));
}

/// A file to which another group may write is received anew, since others may have it open.
#[test]
fn a_file_of_another_group_does_not_stay() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return;
    }
    let dir = Scratch::new();
    let (top, to) = (dir.path("set"), dir.path("to"));
    fs::create_dir(&top).unwrap();
    for name in ["ours", "theirs"] {
        fs::write(top.join(name), "some words").unwrap();
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(0o664)).unwrap();
    }
    transfer(&top, &[&to], &[]);
    let there = to.join("set/theirs");
    let before = inode(&there);
    std::os::unix::fs::chown(&there, None, Some(12_345)).unwrap();
    let (_, done) = transfer(&top, &[&to], &[]);
    assert_eq!(present(&done[0]), 10);
    assert_ne!(inode(&there), before);
    let (_, done) = transfer(&top, &[&to], &[]);
    assert_eq!(present(&done[0]), 20);
    let (_, done) = transfer(&top, &[&to], &["--no-compare"]);
    assert_eq!(present(&done[0]), 0);
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

/// A set, and a receiver's directory that has it, but for a file that takes a while: so others can
/// come before the end.
fn grown(dir: &Scratch) -> (PathBuf, PathBuf) {
    let (top, has) = (set(dir), dir.path("has"));
    transfer(&top, &[&has], &[]);
    fs::rename(dir.file("new", 10_000_000), top.join("new")).unwrap();
    (top, has)
}

/// A receiver that comes while what others lack is sent gets the files, too, that these compare.
#[test]
fn a_late_receiver_gets_what_was_compared() {
    let dir = Scratch::new();
    let (top, has) = grown(&dir);
    let late = dir.path("late");
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
    let (top, has) = grown(&dir);
    let late = dir.path("late");
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

/// If all is sent though receivers may have something of it, the sender says why.
#[test]
fn the_sender_says_why_all_is_sent() {
    let dir = Scratch::new();
    let top = dir.path("set");
    fs::create_dir(&top).unwrap();
    fs::rename(dir.file("old", 1_000_000), top.join("old")).unwrap();
    let (one, two) = (dir.path("one"), dir.path("two"));
    let to = [&*one, &*two];
    transfer(&top, &to, &[]);
    let coroot = ["--scheme", "coroot(1)"];
    let (sent, done) = transfer(&top, &to, &coroot);
    assert!(notices(&sent, "report to each other"));
    assert!(done.iter().all(|done| present(done) == 0));
    fs::rename(dir.file("new", 1_000_001), top.join("new")).unwrap();
    let (sent, done) = transfer(&top, &to, &[]);
    assert!(notices(&sent, "less than half"));
    assert!(done.iter().all(|done| present(done) == 0));
    let (sent, done) = transfer(&top, &to, &[]);
    assert!(!notices(&sent, "all of the set"));
    assert!(done.iter().all(|done| present(done) == 2_000_001));
}

fn notices(sent: &End, part: &str) -> bool {
    let says = |e: &Value| e["text"].as_str().is_some_and(|text| text.contains(part));
    sent.all("notice").any(says)
}
