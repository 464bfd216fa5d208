//! Sets that a receiver has already, or has in part, as processes on the loopback.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::forged::{false_sender, finder};
use crate::common::control::Peer;
use crate::common::feed::{ends, feed_in, follow, serve, until_all};
use crate::common::tree::{check, described, recv, send, tree};
use crate::common::{End, Scratch};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The rate of a sender whose packets are counted: it has a second to hear that nobody needs them
/// before it has sent half of the set.
const SLOW: [&str; 2] = ["--rate", "20MB/s"];
const FORCE: [&str; 1] = ["--force"];

/// Sends a tree to one receiver that replaces files, and returns what both printed.
fn transfer(top: &Path, to: &Path) -> (End, End) {
    let (sender, address) = send(&[top], &SLOW);
    let run = recv(&address, "r0", to, &FORCE);
    (sender.end().expect(0), run.end().expect(0))
}

/// A tree, and a directory to which it was sent.
fn received() -> (Scratch, PathBuf, PathBuf) {
    let dir = Scratch::new();
    let (top, to) = (tree(&dir), dir.path("to"));
    fs::rename(dir.file("long", 40_000_000), top.join("long")).unwrap();
    fs::rename(dir.file("short", 100_000), top.join("short")).unwrap();
    fs::copy(top.join("short"), top.join("shorter")).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(1 << 26).unwrap();
    sparse.write_all_at(&[1; 6_000_000], 1 << 25).unwrap();
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &to, &[]);
    sender.end().expect(0);
    assert_eq!(present(&run.end().expect(0)), 0);
    (dir, top, to)
}

/// Bytes of files that a receiver had already.
fn present(done: &End) -> u64 {
    done.one("done")["tally"]["present_bytes"].as_u64().unwrap()
}

fn len(done: &End) -> u64 {
    done.one("done")["len"].as_u64().unwrap()
}

/// Checks that the bytes on the wire are less than half of those of `long`: some packets leave
/// before the sender hears that nobody needs them.
#[track_caller]
fn little_was_sent(sent: &End) {
    let wire = &sent.one("summary")["traffic"]["wire_bytes"];
    assert!(wire.as_u64() < Some(20_000_000), "{wire}");
}

/// Writes to a file at this place, which keeps its length and its time.
fn spoil(path: &Path, at: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"mine", at).unwrap();
    file.set_modified(time).unwrap();
}

/// What the files of a tree are.
fn files(top: &Path) -> Vec<String> {
    let mut lines = described(top);
    lines.retain(|line| !line.contains(": directory"));
    lines
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

/// All but the file with two names is there and stays, but gets the permissions again.
#[test]
fn a_set_that_is_there_is_complete_and_not_sent() {
    let (_dir, top, to) = received();
    let long = to.join("tree/long");
    let before = inode(&long);
    fs::set_permissions(&long, fs::Permissions::from_mode(0o600)).unwrap();
    let (sent, done) = transfer(&top, &to);
    assert!(present(&done) > len(&done) - 4_000_000, "{done:#?}");
    assert_eq!(sent.result("r0")["tally"]["present_bytes"], present(&done));
    assert_eq!(sent.result("r0")["state"], "verified");
    assert_eq!(done.one("done")["root"], sent.one("summary")["root"]);
    little_was_sent(&sent);
    check(&top, &to);
    assert_eq!(inode(&long), before, "it was written again");
}

/// Where receivers report for each other, none declines. All comes, and none of it counts as
/// present.
#[test]
fn in_a_tree_all_is_sent_again() {
    let dir = Scratch::new();
    let (file, to) = (dir.file("file", 5_000_000), dir.path("to"));
    for _ in 0..2 {
        let (sender, address) = send(&[&file], &["--scheme", "tree(2)"]);
        let done = recv(&address, "r0", &to, &FORCE).end().expect(0);
        assert_eq!(present(&done), 0);
        let sent = sender.end().expect(0);
        let wire = &sent.one("summary")["traffic"]["wire_bytes"];
        assert!(wire.as_u64() > Some(5_000_000), "{wire}");
    }
}

/// One long file of several has changed, and a short one with a hole is new. Nothing else is sent.
#[test]
fn a_file_that_changes_is_sent_without_its_neighbours() {
    let dir = Scratch::new();
    let (top, to) = (dir.path("set"), dir.path("to"));
    fs::create_dir(&top).unwrap();
    for n in 0..6 {
        let long = dir.file(&format!("long {n}"), 5_000_000 + n);
        fs::rename(long, top.join(format!("long {n}"))).unwrap();
    }
    for n in 0..500 {
        fs::write(top.join(format!("short {n:03}")), vec![n as u8; 4096]).unwrap();
    }
    let (sender, address) = send(&[&top], &[]);
    recv(&address, "r0", &to, &[]).end().expect(0);
    sender.end().expect(0);
    fs::write(top.join("long 2"), [0; 1000]).unwrap();
    let sparse = File::create(top.join("a hole")).unwrap();
    sparse.set_len(300_000).unwrap();
    sparse.write_all_at(b"end", 299_000).unwrap();
    let (_, done) = transfer(&top, &to);
    assert!(present(&done) >= 27_000_000, "{done:#?}");
    assert_eq!(described(&top), described(&to.join("set")));
}

/// Without --force nothing is looked at: what is there is in the way, whatever it is.
#[test]
fn what_is_there_is_in_the_way_without_force() {
    let (_dir, top, to) = received();
    let before = files(&to);
    let (sender, address) = send(&[&top], &[]);
    let end = recv(&address, "r0", &to, &[]).end().expect(1);
    assert!(end.stderr.contains("exists already"), "{}", end.stderr);
    sender.end().expect(4);
    assert_eq!(files(&to), before);
}

#[test]
fn only_packs_with_changed_files_are_sent() {
    let (_dir, top, to) = received();
    fs::write(top.join("short"), "changed").unwrap();
    let neighbour = to.join("tree/sparse");
    let (before, blocks) = (inode(&neighbour), neighbour.metadata().unwrap().blocks());
    spoil(&to.join("tree/long"), 20_000_000);
    let (sent, done) = transfer(&top, &to);
    assert!(present(&done) > len(&done) / 2 && present(&done) < len(&done));
    little_was_sent(&sent);
    check(&top, &to);
    assert_eq!(inode(&neighbour), before);
    // Holes stay holes, also of a file of which a part comes.
    spoil(&neighbour, (1 << 25) + 5);
    transfer(&top, &to);
    check(&top, &to);
    assert!(neighbour.metadata().unwrap().blocks() <= blocks);
}

/// The one that has the set declines it, while the other one gets all of it.
#[test]
fn of_two_receivers_one_has_the_set() {
    let (dir, top, to) = received();
    let other = dir.path("other");
    let (sender, address) = send(&[&top], &["--min-receivers", "2"]);
    let has = recv(&address, "has", &to, &FORCE);
    let lacks = recv(&address, "lacks", &other, &[]);
    let sent = sender.end().expect(0);
    let has = has.end().expect(0);
    assert!(present(&has) > len(&has) / 2, "{has:#?}");
    assert_eq!(present(&lacks.end().expect(0)), 0);
    assert_eq!(sent.one("summary")["verified"], 2);
    for to in [to, other] {
        check(&top, &to);
    }
}

/// Of the packs that were announced before it came, it finds those of long files.
#[test]
fn a_late_receiver_has_the_set() {
    let (dir, top, to) = received();
    let (mut sender, address) = send(&[&top], &SLOW);
    let first = recv(&address, "first", &dir.path("first"), &[]);
    sender.until_share_of("slowest", 25);
    let late = recv(&address, "late", &to, &FORCE).end().expect(0);
    let joined = late.one("joined");
    let number = |key: &str| joined[key].as_u64().unwrap();
    assert!(number("lacking") < number("packs") / 2, "{joined}");
    assert!(present(&late) > len(&late) / 2, "{late:#?}");
    first.end().expect(0);
    assert_eq!(sender.end().expect(0).one("summary")["verified"], 2);
    check(&top, &to);
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

/// A receiver that is killed while it replaces files leaves them as they were, and goes on.
#[test]
fn a_receiver_that_is_killed_goes_on() {
    let (_dir, top, to) = received();
    let long = to.join("tree/long");
    (2..9).for_each(|piece| spoil(&long, piece << 22));
    let spoiled = fs::read(&long).unwrap();
    let (sender, address) = send(&[&top], &SLOW);
    let mut run = recv(&address, "r0", &to, &FORCE);
    run.until_share_of("placed", 60);
    run.signal(Signal::KILL);
    assert_eq!(run.end().code, None);
    sender.end().expect(4);
    assert!(fs::read(&long).unwrap() == spoiled);
    let (sent, done) = transfer(&top, &to);
    assert!(done.all("resumed").next().is_some() && present(&done) > 0);
    little_was_sent(&sent);
    check(&top, &to);
}

/// With its copies the set is too long, as the manifest tells. The receiver has changed nothing by
/// then.
#[test]
fn a_set_that_is_too_long_changes_nothing() {
    let (_dir, top, to) = received();
    let there = to.join("tree");
    fs::remove_dir(there.join("empty")).unwrap();
    fs::write(there.join("empty"), "a file here, a directory there").unwrap();
    fs::remove_dir_all(there.join("deep")).unwrap();
    fs::write(there.join("surplus"), "not sent").unwrap();
    fs::set_permissions(there.join("long"), fs::Permissions::from_mode(0o600)).unwrap();
    let before = described(&there);
    let (sender, address) = send(&[&top], &[]);
    let all = sender.last("listening")["len"].as_u64().unwrap();
    let most = (all + 50_000).to_string();
    let args = ["--force", "--delete", "--max-size", &most];
    let end = recv(&address, "r0", &to, &args).end().expect(7);
    assert!(end.stderr.contains("--max-size"), "{}", end.stderr);
    sender.end().expect(4);
    assert_eq!(described(&there), before);
}

/// Packs of files are longer than the window: a pack that waits until all have declined it must not
/// hold up those behind it.
#[test]
fn packs_longer_than_the_window_are_declined() {
    let dir = Scratch::new();
    let (top, has) = (dir.path("many"), dir.path("has"));
    for folder in 0..9 {
        let folder = top.join(folder.to_string());
        fs::create_dir_all(&folder).unwrap();
        let many = (0..1000).map(|file| folder.join(file.to_string()));
        many.for_each(|path| fs::write(&path, [7; 4097]).unwrap());
    }
    fs::create_dir(&has).unwrap();
    let copied = Command::new("cp").arg("-a").arg(&top).arg(&has).status();
    assert!(copied.unwrap().success());
    let (sender, address) = send(&[&top], &["--scheme", "basic", "--datagram", "1000"]);
    let done = recv(&address, "has", &has, &FORCE).end().expect(0);
    assert!(present(&done) > 30_000_000, "{done:#?}");
    little_was_sent(&sender.end().expect(0));
}

/// Of several files and directories at the top any may be there.
#[test]
fn the_first_entry_need_not_be_there() {
    let dir = Scratch::new();
    let (a, b, to) = (
        dir.file("a", 1000),
        dir.file("b", 3_000_000),
        dir.path("to"),
    );
    fs::create_dir(&to).unwrap();
    let copied = Command::new("cp").arg("-p").arg(&b).arg(&to).status();
    assert!(copied.unwrap().success());
    let (sender, address) = send(&[&a, &b], &[]);
    let done = recv(&address, "r0", &to, &FORCE).end().expect(0);
    // The first pack has all of the first file.
    assert!(present(&done) >= 1_500_000, "{done:#?}");
    sender.end().expect(0);
}

/// What a receiver tells the sender of a directory before the start, which it has already.
fn prepared(listener: &TcpListener, name: &str) -> Value {
    let mut peer = Peer::accept(listener);
    peer.until("hello");
    peer.say(json!({
        "say": "welcome", "version": 10, "session": 7, "node": 1, "name": name, "len": 4,
        "tops": 1, "entries": 2, "block": 1 << 20,
    }));
    peer.until("prepared")
}

/// A receiver that replaces nothing says and does what it always has. A sender that was found by
/// its announcement may be anybody, and learns nothing.
#[test]
fn only_one_that_replaces_files_and_names_its_sender_looks() {
    let dir = Scratch::new();
    let (to, name) = (dir.path("to"), format!("looked-{}", std::process::id()));
    fs::create_dir_all(to.join(&name)).unwrap();
    fs::write(to.join(&name).join("there"), "mine").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (args, may_have) in [(&[][..], Value::Null), (&FORCE, true.into())] {
        let run = recv(&address, "r0", &to, args);
        assert_eq!(prepared(&listener, &name)["may_have"], may_have, "{args:?}");
        drop(run);
    }
    let (_address, listener, announcing) = false_sender(&name);
    let run = finder(&name, &to, &FORCE);
    assert_eq!(prepared(&listener, &name)["may_have"], Value::Null);
    drop((run, announcing));
}

/// All of a set is there, and next to nothing is sent.
#[test]
fn next_to_nothing_is_sent_of_what_is_there() {
    let dir = Scratch::new();
    let (top, to) = (dir.path("set"), dir.path("to"));
    fs::create_dir(&top).unwrap();
    for n in 0..4 {
        let long = dir.file(&format!("long {n}"), 20_000_000 + n);
        fs::rename(long, top.join(format!("long {n}"))).unwrap();
    }
    for n in 0..3000 {
        fs::write(top.join(format!("short {n:04}")), vec![n as u8; n]).unwrap();
    }
    for is_there in [false, true] {
        let (sender, address) = send(&[&top], &[]);
        let done = recv(&address, "r0", &to, &FORCE).end().expect(0);
        let sent = sender.end().expect(0);
        let wire = sent.one("summary")["traffic"]["wire_bytes"].as_u64();
        assert_eq!(wire < Some(2_000_000), is_there, "{wire:?}");
        let all = if is_there { len(&done) } else { 0 };
        assert_eq!(present(&done), all);
        assert_eq!(described(&top), described(&to.join("set")));
    }
}
