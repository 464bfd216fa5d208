//! Receivers that come, stay away, leave or are refused before a transfer starts.

use std::process::Command;

use crate::common::{
    AT_ONCE, FABRICAST, SIZE, Scratch, Terminal, receiver, same, sender, shell, steady,
};
use rustix::process::Signal;

#[test]
fn nobody_comes() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let (send, _) = sender(&source, &["--no-announce", "--start-timeout", "200ms"]);
    let end = send.end().expect(3);
    assert_eq!(end.one("error")["code"], 3);
}

#[test]
fn too_few_come() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let args = [
        "--no-announce",
        "--min-receivers",
        "2",
        "--start-timeout",
        "1s",
    ];
    let (send, address) = sender(&source, &args);
    let recv = receiver(&address, "r0", &dir.path("copy"), &[]);
    let end = send.end().expect(3);
    assert!(end.stderr.contains("only 1 of 2"), "{}", end.stderr);
    let end = recv.end_within(AT_ONCE).expect(8);
    assert!(end.stderr.contains("only 1 of 2"), "{}", end.stderr);
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn no_sender() {
    let dir = Scratch::new();
    let end = receiver(
        "127.0.0.1:9",
        "r0",
        &dir.path("copy"),
        &["--start-timeout", "300ms"],
    )
    .end();
    let end = end.expect(5);
    assert!(end.stderr.contains("127.0.0.1:9"), "{}", end.stderr);
    assert!(dir.names().is_empty());
}

#[test]
fn a_sender_that_never_starts() {
    let dir = Scratch::new();
    let source = dir.file("source", 10);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "2"]);
    let end = receiver(
        &address,
        "r0",
        &dir.path("copy"),
        &["--start-timeout", "500ms"],
    )
    .end();
    end.expect(5);
    send.until("left", |_| true);
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn who_comes_late_is_told_if_that_is_the_rule() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let args = [&steady("1")[..], &["--late", "refuse"]].concat();
    let (mut send, address) = sender(&source, &args);
    let recv = receiver(&address, "r0", &dir.path("copy-0"), &[]);
    send.until_share(5);
    let late = receiver(&address, "r1", &dir.path("copy-1"), &[]);
    let end = late.end().expect(9);
    assert!(end.stderr.contains("has begun"), "{}", end.stderr);
    send.end().expect(0);
    recv.end().expect(0);
}

/// A receiver that comes and cannot take part is in the table, also if no other comes.
#[test]
fn refused_receivers_are_told_of_when_none_is_left() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    for there in [false, true] {
        let args = ["--no-announce", "--min-receivers", "2", "--start-timeout"];
        let (mut send, address) = sender(&source, &[&args[..], &["3s"]].concat());
        let (copy, other) = (dir.path("copy"), dir.path("other"));
        let waits = there.then(|| receiver(&address, "waits", &copy, &[]));
        if there {
            send.until("connected", |_| true);
        }
        let unable = receiver(&address, "unable", &other, &["--max-size", "1"]);
        assert_eq!(send.until("refused", |_| true)["by"], "receiver");
        unable.end().expect(7);
        let end = send.end().expect(3);
        let result = end.result("unable");
        assert_eq!(result["state"], "refused");
        assert!(result["reason"].to_string().contains("--max-size"));
        let summary = end.one("summary");
        assert_eq!(
            (&summary["code"], &summary["refused"]),
            (&3.into(), &1.into())
        );
        let text = end.one("error")["text"].to_string();
        assert!(text.contains("1 came and was refused"), "{text}");
        assert_eq!(text.contains("only 1 of 2"), there, "{text}");
        if let Some(waits) = waits {
            assert_eq!(end.result("waits")["state"], "failed");
            waits.end().expect(8);
        }
    }
}

#[test]
fn an_interrupted_receiver_was_not_refused_and_an_interrupted_sender_tells_who_has_what() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "3"]);
    let [gone, stays] = ["gone", "stays"].map(|name| {
        let run = receiver(&address, name, &dir.path(name), &[]);
        send.until("connected", |e| e["receiver"] == name);
        run
    });
    gone.signal(Signal::INT);
    gone.end().expect(130);
    send.until("left", |e| e["receiver"] == "gone");
    send.signal(Signal::INT);
    let end = send.end().expect(130);
    stays.end().expect(8);
    assert_eq!(end.all("refused").count(), 0, "{end:#?}");
    let summary = end.one("summary");
    assert_eq!(
        (&summary["code"], &summary["refused"]),
        (&130.into(), &0.into())
    );
    assert_eq!(end.all("result").count(), 1);
    assert_eq!(end.result("stays")["state"], "failed");
}

/// A refused receiver does not count in the exit code; the last line counts it.
#[test]
fn the_last_line_counts_who_was_refused() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let mut command = Command::new(FABRICAST);
    command.arg("send").arg(&source);
    command.args(["--port", "0", "--interface", "127.0.0.1", "--no-announce"]);
    command.args(["--min-receivers", "1"]);
    let mut send = Terminal::start(command);
    let said = send.until("is the destination");
    let (_, rest) = said.split_once("--from ").unwrap();
    let address = rest.split_whitespace().next().unwrap().to_owned();
    let unable = receiver(&address, "unable", &dir.path("a"), &["--max-size", "1"]);
    unable.end().expect(7);
    let said = send.until("unable (127.0.0.1) cannot take part: ");
    assert!(!said.contains("was refused"), "{said}");
    let good = receiver(&address, "good", &dir.path("b"), &[]);
    send.until("1000 B to 1 of 1; 1 refused; in ");
    good.end().expect(0);
    assert_eq!(send.end(), Some(0));
}

/// `nohup` starts a command so that it ignores hangups.
#[test]
fn a_hangup_that_the_parent_has_ignored_ends_nothing() {
    let dir = Scratch::new();
    let source = dir.file("source", 100_000);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "2"]);
    let copy = dir.path("a");
    let to = copy.display();
    let first = shell(&format!(
        "trap '' HUP; exec {FABRICAST} recv {to} --json --from {address} --as a"
    ));
    send.until("connected", |e| e["receiver"] == "a");
    first.signal(Signal::HUP);
    let second = receiver(&address, "b", &dir.path("b"), &[]);
    first.end().expect(0);
    second.end().expect(0);
    send.end().expect(0);
    same(&source, &copy);
}
