//! Receivers that store nothing, and which receivers a sender requires, as processes on the
//! loopback.

use crate::common::tree::{described, recv, send, tree};
use crate::common::{self, FABRICAST, Run, SIZE, Scratch, receiver, same, sender, steady};
use rustix::process::Signal;

/// A receiver that stores nothing.
fn discards(address: &str, name: &str, args: &[&str]) -> Run {
    let fixed = [
        "recv",
        "--discard",
        "--json",
        "--from",
        address,
        "--as",
        name,
    ];
    Run::start(fixed.iter().chain(args))
}

/// Packets are lost and blocks are damaged, so what is not stored must be proven and mended.
#[test]
fn a_set_is_proven_and_not_stored() {
    let dir = Scratch::new();
    let top = tree(&dir);
    let (mut sender, address) = send(&[&top], &["--min-receivers", "2"]);
    let faults = ["--inject-loss", "5", "--inject-damage", "2"];
    let discard = discards(&address, "discard", &faults);
    let keep = recv(&address, "keep", &dir.path("to"), &[]);
    let event = sender.until("received", |_| true);
    assert_eq!(event["receiver"], "discard");
    let sent = sender.end().expect(0);
    keep.end().expect(0);
    assert_eq!(described(&dir.path("to/tree")), described(&top));
    assert_eq!(sent.result("discard")["state"], "received");
    assert_eq!(sent.result("keep")["state"], "verified");
    let sum = sent.one("summary");
    assert_eq!((&sum["received"], &sum["verified"]), (&1.into(), &1.into()));
    let done = discard.end().expect(0);
    let done = done.one("done");
    assert_eq!(
        (&done["state"], &done["path"]),
        (&"received".into(), &"/dev/null".into())
    );
    assert_eq!(done["len"], sum["len"]);
    assert!(done["tally"]["mended"].as_u64() > Some(0), "{done}");
}

/// It takes packs in any order, so it may come late.
#[test]
fn one_that_comes_late_gets_all_and_stores_nothing() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut send, address) = sender(&source, &steady("1"));
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    send.until_share(50);
    let late = discards(&address, "late", &[]).end().expect(0);
    assert_eq!(late.one("done")["len"], SIZE);
    first.end().expect(0);
    let sent = send.end().expect(0);
    let result = sent.result("late");
    assert_eq!(
        (&result["state"], &result["part"]),
        (&"received".into(), &"late".into())
    );
    assert_eq!(sent.result("first")["state"], "verified");
}

#[test]
fn a_stream_is_proven_and_not_stored() {
    let script = format!(
        "head -c 5000000 /dev/zero | {} send - --json --port 0 --interface 127.0.0.1 --no-announce",
        FABRICAST
    );
    let mut send = common::shell(&script);
    let listening = send.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap().to_owned();
    let discard = discards(&address, "discard", &[]).end().expect(0);
    assert_eq!(discard.one("done")["len"], 5_000_000);
    assert_eq!(send.end().expect(0).result("discard")["state"], "received");
}

/// The sender wants verified files, and says so to a receiver that can only receive them.
#[test]
fn one_that_cannot_verify_is_refused_where_that_is_wanted() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = [
        "--no-announce",
        "--accept",
        "verified",
        "--min-receivers",
        "1",
    ];
    let (mut send, address) = sender(&source, &args);
    let refused = discards(&address, "discard", &[]).end().expect(9);
    assert!(
        refused.stderr.contains("cannot verify") && refused.stderr.contains("--accept"),
        "{}",
        refused.stderr
    );
    send.until("refused", |e| e["receiver"] == "discard");
    receiver(&address, "keep", &dir.path("to"), &[])
        .end()
        .expect(0);
    same(&source, &dir.path("to"));
    assert_eq!(send.end().expect(0).one("summary")["verified"], 1);
}

#[test]
fn with_p3s_protocol_files_are_stored() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let (send, address) = sender(&source, &["--no-announce", "--scheme", "ibrmp"]);
    let end = discards(&address, "discard", &[]).end().expect(2);
    assert!(
        end.stderr.contains("proves files that are stored"),
        "{}",
        end.stderr
    );
    send.end().expect(4);
}

/// The start waits for those that are required, and the exit code asks for these alone.
#[test]
fn the_start_waits_for_those_that_are_required() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let args = ["--no-announce", "--rate", "20MB/s", "--require", "a,b"];
    let (mut send, address) = sender(&source, &args);
    let start = |name: &str| receiver(&address, name, &dir.path(name), &[]);
    let (a, other) = (start("a"), start("other"));
    let waits = send.until("notice", |_| true);
    assert!(
        waits["text"].as_str().unwrap().contains("waits for"),
        "{waits}"
    );
    send.until("connected", |e| e["receivers"] == 2);
    let b = start("b");
    send.until_share(20);
    other.signal(Signal::KILL);
    for (name, run) in [("a", a), ("b", b)] {
        run.end().expect(0);
        same(&source, &dir.path(name));
    }
    let sent = send.end().expect(0);
    assert_eq!(sent.result("other")["state"], "lost");
    assert_eq!(sent.one("summary")["code"], 0);
}

#[test]
fn one_that_is_required_and_lost_fails_the_transfer() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let args = ["--no-announce", "--rate", "20MB/s", "--require", "a"];
    let (mut send, address) = sender(&source, &[&args[..], &["--min-receivers", "2"]].concat());
    let start = |name: &str| receiver(&address, name, &dir.path(name), &[]);
    let (a, other) = (start("a"), start("other"));
    send.until_share(20);
    a.signal(Signal::KILL);
    other.end().expect(0);
    assert_eq!(send.end().expect(4).result("a")["state"], "lost");
}

#[test]
fn one_that_is_required_and_does_not_come_is_named() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = ["--no-announce", "--require", "a,b", "--start-timeout", "1s"];
    let (send, address) = sender(&source, &args);
    let a = receiver(&address, "a", &dir.path("a"), &[]);
    let end = send.end().expect(3);
    assert!(
        end.stderr.contains("b did not come") && end.stderr.contains("--require"),
        "{}",
        end.stderr
    );
    a.end().expect(8);
    assert!(!dir.path("a").exists());
}
