//! Sets that a receiver has already, or has in part, as processes on the loopback.

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use common::tree::{recv, send, tree};
use common::{End, Scratch};

/// The rate of a sender whose packets are counted: it has a second to hear that nobody needs them
/// before it has sent half of the set.
const SLOW: [&str; 2] = ["--rate", "20MB/s"];

/// Sends a tree to one receiver, and returns what both printed.
fn transfer(top: &Path, to: &Path, args: &[&str], codes: (i32, i32)) -> (End, End) {
    let (sender, address) = send(&[top], &SLOW);
    let run = recv(&address, "r0", to, args);
    (sender.end().expect(codes.0), run.end().expect(codes.1))
}

/// A tree, and a directory to which it was sent.
fn received() -> (Scratch, PathBuf, PathBuf) {
    let dir = Scratch::new();
    let (top, to) = (tree(&dir), dir.path("to"));
    std::fs::rename(dir.file("long", 40_000_000), top.join("long")).unwrap();
    std::fs::rename(dir.file("short", 100_000), top.join("short")).unwrap();
    let (sender, address) = send(&[&top], &[]);
    let run = recv(&address, "r0", &to, &[]);
    sender.end().expect(0);
    assert_eq!(run.end().expect(0).one("done")["tally"]["here_bytes"], 0);
    (dir, top, to)
}

/// Checks that the bytes on the wire are less than half of the set's: some packets leave before the
/// sender hears that nobody needs them.
#[track_caller]
fn little_was_sent(sent: &End) {
    let summary = sent.one("summary");
    let (wire, len) = (&summary["traffic"]["wire_bytes"], &summary["len"]);
    assert!(wire.as_u64() < len.as_u64().map(|len| len / 2), "{wire}");
}

#[test]
fn a_set_that_is_there_is_complete_and_not_sent() {
    let (_dir, top, to) = received();
    let long = to.join("tree/long");
    let inode = long.metadata().unwrap().ino();
    for args in [&[][..], &["--force"]] {
        let (sent, done) = transfer(&top, &to, args, (0, 0));
        let (summary, done) = (sent.one("summary"), done.one("done"));
        assert_eq!(done["tally"]["here_bytes"], done["len"]);
        assert_eq!(sent.result("r0")["tally"]["here_bytes"], done["len"]);
        assert_eq!(sent.result("r0")["state"], "verified");
        assert_eq!(
            (&summary["verified"], &done["root"]),
            (&1.into(), &summary["root"])
        );
        little_was_sent(&sent);
        common::tree::check(&top, &to);
        assert_eq!(
            long.metadata().unwrap().ino(),
            inode,
            "it was written again"
        );
    }
}

#[test]
fn only_packs_with_changed_files_are_sent() {
    let (_dir, top, to) = received();
    std::fs::write(top.join("short"), "changed").unwrap();
    let (sender, address) = send(&[&top], &SLOW);
    let end = recv(&address, "r0", &to, &[]).end().expect(1);
    assert!(
        end.stderr.contains("short exists already"),
        "{}",
        end.stderr
    );
    let done = recv(&address, "r1", &to, &["--force"]).end().expect(0);
    let sent = sender.end().expect(0);
    let (here, len) = (
        &done.one("done")["tally"]["here_bytes"],
        &done.one("done")["len"],
    );
    let half = len.as_u64().map(|len| len / 2);
    assert!(here.as_u64() > half && here != len, "{here}");
    little_was_sent(&sent);
    common::tree::check(&top, &to);
}

/// The one that has the set declines it, while the other one gets all of it.
#[test]
fn of_two_receivers_one_has_the_set() {
    let (dir, top, to) = received();
    let other = dir.path("other");
    let (sender, address) = send(&[&top], &["--min-receivers", "2"]);
    let has = recv(&address, "has", &to, &[]);
    let lacks = recv(&address, "lacks", &other, &[]);
    let sent = sender.end().expect(0);
    has.end().expect(0);
    lacks.end().expect(0);
    let len = &sent.one("summary")["len"];
    assert_eq!(&sent.result("has")["tally"]["here_bytes"], len);
    assert_eq!(sent.result("lacks")["tally"]["here_bytes"], 0);
    assert_eq!(sent.one("summary")["verified"], 2);
    for to in [to, other] {
        common::tree::check(&top, &to);
    }
}

/// Length and time prove nothing. Without --force the file stays as it is.
#[test]
fn a_file_with_other_bytes_is_replaced_only_by_force() {
    let (_dir, top, to) = received();
    let path = to.join("tree/long");
    let file = File::options().write(true).open(&path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"mine", 20_000_000).unwrap();
    file.set_modified(time).unwrap();
    let mine = std::fs::read(&path).unwrap();
    let (_, end) = transfer(&top, &to, &[], (4, 1));
    assert!(end.stderr.contains("long exists already"), "{}", end.stderr);
    assert!(std::fs::read(&path).unwrap() == mine);
    let (sent, _) = transfer(&top, &to, &["--force"], (0, 0));
    little_was_sent(&sent);
    common::tree::check(&top, &to);
}
