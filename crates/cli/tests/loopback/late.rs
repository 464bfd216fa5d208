//! Receivers that come when the transfer runs already, as processes on the loopback.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::common::control::{Peer, able};
use crate::common::place::Loopback;
use crate::common::tree::{described, recv, send, send_by, tree};
use crate::common::{self, AT_ONCE, FABRICAST, Flush, Run, SIZE, Scratch, receiver, same, steady};
use rustix::process::Signal;
use serde_json::json;

/// A tree with everything that a tree may have, and a long file: 35 MB.
fn long_tree(dir: &Scratch) -> std::path::PathBuf {
    let top = tree(dir);
    std::fs::rename(dir.file("long", SIZE), top.join("long")).unwrap();
    std::fs::rename(dir.file("zlast", 700_000), top.join("zlast")).unwrap();
    top
}

/// Three receivers come at different times. The one that was there from the start does not wait for
/// them.
fn several_come_late(loss: &[&str]) {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    let to = |name: &str| dir.path(&format!("to-{name}"));
    let (mut sender, address) = send(&[&top], &[&["--rate", "8MB/s"][..], loss].concat());
    let first = recv(&address, "first", &to("first"), loss);
    let mut late = Vec::new();
    for (name, share) in [("early", 5), ("half", 50), ("last", 80)] {
        sender.until_share_of("fastest", share);
        let mut run = recv(&address, name, &to(name), loss);
        run.until("joined", |e| e["lacking"].as_u64() > Some(0));
        late.push((name, run));
    }
    let first = first.end().expect(0);
    // It has ended, and the others still catch up.
    sender.until("verified", |e| e["receiver"] == "first");
    for (name, run) in late {
        let end = run.end().expect(0);
        assert_eq!(end.one("done")["root"], first.one("done")["root"]);
        assert_eq!(described(&to(name).join("tree")), described(&top), "{name}");
        let names: Vec<_> = std::fs::read_dir(to(name)).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
    let sent = sender.end().expect(0);
    let verified: Vec<&serde_json::Value> = sent.all("verified").collect();
    assert_eq!(verified[0]["receiver"], "first");
    assert_eq!(verified.len(), 4);
    for (name, part) in [("first", "whole"), ("early", "late"), ("last", "late")] {
        let result = sent.result(name);
        assert_eq!(
            (&result["part"], &result["state"]),
            (&json!(part), &json!("verified"))
        );
        assert_eq!(result["placed"], sent.one("summary")["len"]);
    }
    for name in ["early", "half", "last"] {
        assert!(sent.all("catching_up").any(|e| e["receiver"] == *name));
    }
}

#[test]
fn several_come_late_and_have_all_in_the_end() {
    several_come_late(&[]);
}

#[test]
fn several_come_late_while_packets_are_lost() {
    several_come_late(&["--inject-loss", "10"]);
}

/// Where a sender may have few descriptors, the receivers that take part hold no more of them than
/// their own, and a late one needs one more.
#[test]
fn a_late_receiver_needs_a_descriptor_of_its_own_alone() {
    let dir = Scratch::new();
    let source = dir.file("source", 4_000_000);
    let mut command = Command::new("sh");
    let options = "--json --port 0 --interface 127.0.0.1 --no-announce --min-receivers 16 \
                   --per-host 20 --rate 2MB/s";
    let script = format!(
        "ulimit -n 64; exec {FABRICAST} send {} {options}",
        source.display()
    );
    command.arg("-c").arg(script);
    let mut send = Run::spawn(command);
    let address = send.until("listening", |_| true)["address"].clone();
    let address = address.as_str().unwrap();
    let start = |name: &str| receiver(address, name, &dir.path(name), &[]);
    let names: Vec<String> = (0..16).map(|n| format!("r{n}")).collect();
    let mut runs: Vec<Run> = names.iter().map(|name| start(name)).collect();
    send.until_share_of("fastest", 20);
    runs.push(start("late"));
    runs.into_iter().for_each(|run| _ = run.end().expect(0));
    assert_eq!(send.end().expect(0).result("late")["part"], "late");
}

/// What a late receiver has missed says nothing of how fast it is.
#[test]
fn one_that_comes_late_is_not_slow_by_what_it_missed() {
    for rule in ["drop", "demote"] {
        let dir = Scratch::new();
        // Half of it is more than half of a window.
        let source = dir.file("source", 80_000_000);
        let rule = ["--slow", rule, "--patience", "1s", "--rate", "20MB/s"];
        let (mut sender, address) =
            common::sender(&source, &[&["--no-announce"], &rule[..]].concat());
        let first = receiver(&address, "first", &dir.path("first"), &[]);
        sender.until_share_of("fastest", 50);
        let late = receiver(&address, "late", &dir.path("late"), &[]);
        first.end().expect(0);
        late.end().expect(0);
        same(&source, &dir.path("late"));
        let sent = sender.end().expect(0);
        assert_eq!(sent.result("late")["part"], "late", "{rule:?}");
    }
}

/// What several lack is sent once for all of them.
#[test]
fn what_several_lack_is_sent_once() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut sender, address) = common::sender(&source, &steady("1"));
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until_share(50);
    let names = ["a", "b", "c"];
    let late = names.map(|name| receiver(&address, name, &dir.path(name), &[]));
    first.end().expect(0);
    for (name, run) in names.iter().zip(late) {
        run.end().expect(0);
        same(&source, &dir.path(name));
    }
    let sent = sender.end().expect(0);
    // The set and about half of it again, not three times.
    let bytes = sent.one("summary")["traffic"]["wire_bytes"].as_u64();
    assert!(bytes.unwrap() < 2 * SIZE as u64, "{sent:#?}");
}

/// The system may give a sender no more threads. Then it can send nothing again, and the receivers
/// that lack nothing lose nothing.
#[test]
fn without_more_threads_a_late_receiver_fails_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can start a user that has no more threads");
        return;
    }
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    // Threads are counted by user, and no limit binds root.
    let as_another_user = || {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=57123", "--regid=57123", "--clear-groups"]);
        command
    };
    let program = dir.path("fabricast");
    std::fs::copy(common::FABRICAST, &program).unwrap();
    let mut command = as_another_user();
    command.arg(program);
    let (mut sender, address) = send_by(command, &[&source], &["--rate", "8MB/s"]);
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until_share_of("fastest", 30);
    let pid = sender.pid().as_raw_nonzero().to_string();
    let limited = as_another_user()
        .args(["prlimit", "--nproc=1", "--pid", &pid])
        .status();
    assert!(limited.unwrap().success());
    let late = receiver(&address, "late", &dir.path("late"), &[]);
    first.end().expect(0);
    same(&source, &dir.path("first"));
    late.end().expect(9);
    assert!(!dir.path("late").exists());
    let sent = sender.end().expect(4);
    let why = &sent.result("late")["reason"];
    let why = why.as_str().unwrap();
    assert!(why.contains("starting the thread"), "{why}");
}

/// Files that have changed before they are sent again fail by name for the receivers that lack
/// them. These get all others.
#[test]
fn a_file_that_has_changed_fails_for_late_receivers_alone() {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    std::fs::write(top.join("a0"), [7; 70_000]).unwrap();
    std::fs::write(top.join("a1"), "another one").unwrap();
    std::fs::copy(top.join("a0"), top.join("a2")).unwrap();
    let before = described(&top);
    let (mut sender, address) = send(&[&top], &["--rate", "8MB/s"]);
    let to = ["first", "late"].map(|name| dir.path(&format!("to-{name}")));
    let first = recv(&address, "first", &to[0], &[]);
    sender.until_share_of("fastest", 50);
    std::fs::write(top.join("a0"), "changed").unwrap();
    std::fs::remove_file(top.join("a1")).unwrap();
    let late = recv(&address, "late", &to[1], &[]);
    first.end().expect(0);
    for name in ["a0", "a1", "a2"] {
        assert!(to[0].join("tree").join(name).exists());
    }
    let late = late.end().expect(10);
    assert!(
        late.stderr.contains("3 of the sender's files"),
        "{}",
        late.stderr
    );
    let lost = ["\"a0\"", "\"a1\"", "\"a2\""];
    let is_there = |line: &&String| !lost.iter().any(|name| line.starts_with(name));
    let expected: Vec<&String> = before.iter().filter(is_there).collect();
    let got = described(&to[1].join("tree"));
    assert_eq!(got.iter().collect::<Vec<_>>(), expected);
    assert_eq!(got.len(), before.len() - 3);
    let sent = sender.end().expect(10);
    assert_eq!(sent.result("first")["state"], "verified");
    let late = sent.result("late");
    assert_eq!(late["state"], "failed");
    let why = late["reason"].as_str().unwrap();
    assert!(
        why.contains("it lacks 3 files") && why.contains("a0"),
        "{why}"
    );
    let summary = sent.one("summary");
    assert!(summary["changed"].is_null(), "{summary:#?}");
    let failed = summary["failed"].as_array().unwrap();
    assert_eq!(failed.len(), 3, "{failed:?}");
    // A copy of a file is lost with it.
    for (failure, name) in failed.iter().zip(["a0", "a2", "a1"]) {
        let word = |key: &str| failure[key].as_str().unwrap();
        assert!(word("path").ends_with(name), "{failure}");
        assert!(word("reason").contains("do not have it"), "{failure}");
    }
}

/// A receiver that can get nothing any more is given up.
#[test]
fn a_late_receiver_whose_only_file_has_changed_gets_nothing() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let flush = Flush::new(&dir);
    let (sender, address) = common::sender(&source, &steady("1"));
    // The sender has read all of the file, and the transfer goes on.
    let first = flush.held(&Loopback, &address, "first", &dir.path("first"));
    let held = flush.reached();
    std::fs::remove_file(&source).unwrap();
    let late = receiver(&address, "late", &dir.path("late"), &[]);
    let late = late.end().expect(10);
    assert!(
        late.stderr.contains("cannot be sent any more"),
        "{}",
        late.stderr
    );
    assert!(!dir.path("late").exists());
    drop(held);
    first.end().expect(0);
    let sent = sender.end().expect(10);
    assert_eq!(sent.result("first")["state"], "verified");
    assert_eq!(sent.result("late")["state"], "failed");
}

/// A receiver that is killed while it catches up holds up nobody, and is lost in the table.
#[test]
fn one_that_is_killed_while_it_catches_up_is_lost() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut sender, address) = common::sender(&source, &steady("1"));
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until_share(20);
    let killed = receiver(&address, "killed", &dir.path("killed"), &[]);
    let other = receiver(&address, "other", &dir.path("other"), &[]);
    for _ in 0..2 {
        let event = sender.until("catching_up", |_| true);
        if event["receiver"] == "killed" {
            // It is behind until it is killed, however long the others take.
            killed.signal(Signal::STOP);
        }
    }
    first.end().expect(0);
    sender.until("verified", |e| e["receiver"] == "first");
    killed.signal(Signal::KILL);
    other.end().expect(0);
    same(&source, &dir.path("other"));
    let sent = sender.end().expect(4);
    assert_eq!(sent.result("killed")["state"], "lost");
    assert_eq!(sent.result("other")["state"], "verified");
}

/// The sender's user gives up when only a late receiver is left: it ends with an error.
#[test]
fn a_sender_that_gives_up_tells_late_receivers() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let args = [&steady("1")[..], &["--slow", "demote", "--patience", "1s"]].concat();
    let (mut sender, address) = common::sender(&source, &args);
    // A disk that others keep busy must not take longer than the patience with the late one.
    let first = receiver(&address, "first", &dir.path("first"), &["--no-sync"]);
    sender.until_share(20);
    let late = receiver(&address, "late", &dir.path("late"), &[]);
    sender.until("catching_up", |_| true);
    // It is demoted, so nobody waits for it, and it is behind however long the other takes.
    late.signal(Signal::STOP);
    first.end().expect(0);
    sender.until("verified", |_| true);
    sender.signal(Signal::INT);
    late.signal(Signal::CONT);
    let sent = sender.end_within(AT_ONCE).expect(130);
    assert_eq!(sent.result("late")["state"], "failed");
    let end = late.end_within(AT_ONCE).expect(8);
    assert!(end.stderr.contains("given up"), "{}", end.stderr);
    assert!(!dir.path("late").exists());
}

/// A receiver that is not prepared when the transfer starts comes late.
#[test]
fn one_that_is_not_prepared_at_the_start_comes_late() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut sender, address) = common::sender(&source, &steady("1"));
    let mut late = Peer::hello(&address, "late", able());
    late.until("welcome");
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until("streaming", |_| true);
    late.say(json!({"say": "prepared"}));
    assert_eq!(late.until("start")["late"], true);
    late.say(json!({"say": "failed", "code": 1, "reason": "that is all"}));
    first.end().expect(0);
    assert_eq!(sender.end().expect(4).result("late")["state"], "failed");
}

/// A receiver may prove what it has for longer than the sender waits for others.
#[test]
fn a_sender_waits_for_one_that_proves_what_it_has() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = ["--no-announce", "--start-timeout", "500ms"];
    let (sender, address) = common::sender(&source, &args);
    let mut peer = Peer::hello(&address, "r", able());
    peer.until("welcome");
    for _ in 0..3 {
        peer.say(json!({"say": "preparing"}));
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    peer.say(json!({"say": "prepared"}));
    peer.until("start");
    peer.say(json!({"say": "failed", "code": 1, "reason": "that is all"}));
    assert_eq!(sender.end().expect(4).result("r")["state"], "failed");
}

/// A sender that runs, and a client that has come late and is a member of the group.
fn member(dir: &Scratch, source: &Path) -> (Run, Run, Peer) {
    let (mut sender, address) = common::sender(source, &steady("1"));
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until_share(20);
    let mut liar = Peer::hello(&address, "liar", able());
    liar.until("welcome");
    liar.say(json!({"say": "prepared"}));
    assert_eq!(liar.until("start")["late"], true);
    liar.say(json!({"say": "ready"}));
    let join = liar.until("join");
    assert!(join["packs"].as_u64() > Some(1), "{join}");
    (sender, first, liar)
}

/// A receiver says what it has once, and cannot take that back: the sender sends it no pack twice.
#[test]
fn one_that_lies_about_what_it_lacks_is_given_up() {
    let lies = [
        json!([[0, 4_000_000_000u64]]),
        json!([[0, 1], [0, 1]]),
        json!([[1, 0]]),
        json!([[1, 1]]),
    ];
    for runs in lies {
        let dir = Scratch::new();
        let source = dir.file("source", SIZE);
        let (sender, first, mut liar) = member(&dir, &source);
        liar.say(json!({"say": "has", "runs": runs}));
        let why = liar.until("removed")["reason"].to_string();
        assert!(why.contains("out of turn"), "{why}");
        first.end().expect(0);
        assert_eq!(sender.end().expect(4).result("liar")["state"], "lost");
    }
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (sender, first, mut liar) = member(&dir, &source);
    liar.say(json!({"say": "has", "runs": []}));
    liar.say(json!({"say": "has", "runs": [[0, 1]]}));
    liar.until("removed");
    first.end().expect(0);
    sender.end().expect(4);
}

/// A set of one short file has a few packs. A receiver keeps no list of more, however they are
/// announced.
#[test]
fn a_sender_that_announces_more_packs_than_a_set_can_have_is_refused() {
    let absurd = json!({"say": "compare", "len": 100, "header": 60, "hash": "00".repeat(32)});
    for listed in [4_000_000_000u64, 6] {
        let dir = Scratch::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let run = receiver(&address, "r", &dir.path("x"), &[]);
        let mut peer = Peer::accept(&listener);
        let _stream = peer.start_set_with("x", 1, 4, json!({"late": true}));
        peer.say(json!({
            "say": "join", "slot": 0, "epoch": 1, "first": 7, "receivers": 1, "packs": listed,
        }));
        if listed == 6 {
            peer.until("need"); // as many may be, and it requests their list
            peer.say(absurd.clone());
        }
        assert_eq!(peer.until("failed")["code"], 8, "{listed}");
        run.end().expect(8);
    }
}
