//! Receivers that fall silent in phases in which only control messages are awaited, and slow ones
//! that catch up. A receiver in this process stops in its callback, at a point that no signal could
//! hit so exactly.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::place::Loopback;
use crate::common::{Flush, Run, Scratch, receiver, same, sender};
use fabricast::config::RecvOptions;
use fabricast::error::Error;
use fabricast::transfer::{self, RecvEvent, RecvReport};
use rustix::process::Signal;
use serde_json::json;

/// A receiver that stops when it has everything, before it reports that.
struct Stopped {
    go_on: Sender<()>,
    end: JoinHandle<Result<RecvReport, Error>>,
}

fn stops_when_complete(from: &str, dest: PathBuf) -> Stopped {
    let (go_on, told): (_, Receiver<()>) = channel();
    let options = RecvOptions {
        from: Some(from.into()),
        name: Some("stopped".into()),
        ..RecvOptions::new(dest)
    };
    let end = thread::spawn(move || {
        transfer::recv(&options, &mut |event| {
            if event == RecvEvent::Storing {
                let _ = told.recv(); // returns also when the test has failed
            }
        })
    });
    Stopped { go_on, end }
}

#[test]
fn one_that_stops_when_it_has_all_is_dropped_if_that_is_the_rule() {
    for len in [0, 3_000_000] {
        let dir = Scratch::new();
        let source = dir.file("source", len);
        let args = ["--no-announce", "--min-receivers", "2"];
        let rule = ["--slow", "drop", "--patience", "1s"];
        let (send, address) = sender(&source, &[&args[..], &rule].concat());
        let stopped = stops_when_complete(&address, dir.path("copy-0"));
        let good = receiver(&address, "good", &dir.path("copy-1"), &[]);
        good.end().expect(0);
        let sent = send.end().expect(4);
        assert_eq!(sent.result("stopped")["state"], "dropped", "{len}");
        assert_eq!(sent.result("good")["state"], "verified");
        stopped.go_on.send(()).unwrap();
        // The receiver keeps a file that it has proven without the sender.
        stopped.end.join().unwrap().unwrap();
        same(&source, &dir.path("copy-0"));
    }
}

#[test]
fn one_that_stops_when_it_has_all_is_told_of_and_waited_for_otherwise() {
    let dir = Scratch::new();
    let source = dir.file("source", 0);
    let (mut send, address) = sender(
        &source,
        &["--no-announce", "--patience", "100ms", "--slow", "wait"],
    );
    let stopped = stops_when_complete(&address, dir.path("copy"));
    let slow = send.until("slow", |_| true);
    assert_eq!(slow["receiver"], "stopped");
    stopped.go_on.send(()).unwrap();
    stopped.end.join().unwrap().unwrap();
    send.end().expect(0);
    same(&source, &dir.path("copy"));
}

fn threads(run: &Run) -> Vec<String> {
    let tasks = format!("/proc/{}/task", run.pid().as_raw_nonzero());
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.unwrap_or_default().trim().to_owned()
    };
    std::fs::read_dir(tasks).unwrap().map(name).collect()
}

#[test]
fn a_source_that_all_have_is_let_go() {
    let dir = Scratch::new();
    let source = dir.file("source", 3_000_000);
    let (mut send, address) = sender(
        &source,
        &["--no-announce", "--patience", "100ms", "--slow", "wait"],
    );
    let stopped = stops_when_complete(&address, dir.path("copy"));
    send.until("streaming", |_| true);
    // By then the receiver has everything, and is silent.
    send.until("slow", |_| true);
    let left = threads(&send);
    assert!(
        left.len() > 1 && !left.contains(&"fabricast-read".to_owned()),
        "{left:?}"
    );
    stopped.go_on.send(()).unwrap();
    stopped.end.join().unwrap().unwrap();
    send.end().expect(0);
    same(&source, &dir.path("copy"));
}

/// A sender of a source by the rule `drop` that waits for one receiver alone, which flushes until
/// the last value is dropped. The patience is a second.
fn flushing(dir: &Scratch, source: &Path) -> (Run, Run, File) {
    let flush = Flush::new(dir);
    let args = ["--no-announce", "--min-receivers", "2"];
    let rule = ["--slow", "drop", "--patience", "1s"];
    let (send, address) = sender(source, &[&args[..], &rule].concat());
    let flushes = flush.held(&Loopback, &address, "flushes", &dir.path("copy-0"));
    let good = receiver(&address, "good", &dir.path("copy-1"), &[]);
    good.end().expect(0);
    let held = flush.reached();
    (send, flushes, held)
}

/// A disk may take long to flush a file. The receiver says that it is at work, and is not slow.
#[test]
fn one_that_flushes_for_longer_than_the_patience_is_not_dropped() {
    let dir = Scratch::new();
    let source = dir.file("source", 3_000_000);
    let (send, flushes, held) = flushing(&dir, &source);
    thread::sleep(Duration::from_secs(5));
    drop(held);
    flushes.end().expect(0);
    send.end().expect(0);
    same(&source, &dir.path("copy-0"));
}

/// While one receiver stands still, the sender sends nothing new. The others have all that there
/// is, and multicast reaches them.
#[test]
fn one_that_stands_still_makes_nobody_unreachable() {
    let dir = Scratch::new();
    let source = dir.file("source", 60_000_000);
    let fixed = ["--no-announce", "--min-receivers", "3", "--rate", "20MB/s"];
    let (mut send, address) = sender(&source, &[&fixed[..], &["--datagram", "1472"]].concat());
    let names = ["a", "b", "still"];
    let runs = names.map(|name| receiver(&address, name, &dir.path(name), &[]));
    send.until_share_of("fastest", 30);
    runs[2].signal(Signal::STOP);
    thread::sleep(Duration::from_secs(4));
    runs[2].signal(Signal::CONT);
    for (run, name) in runs.into_iter().zip(names) {
        run.end().expect(0);
        same(&source, &dir.path(name));
    }
    let sent = send.end().expect(0);
    let unreached = sent.all("path").filter(|e| e["reach"] == "unicast");
    let others: Vec<_> = unreached.filter(|e| e["receiver"] != "still").collect();
    assert!(others.is_empty(), "{others:?}");
}

/// While the sender's process is stopped it hears nobody, so that time is nobody's fault. The
/// receiver that stores goes on a moment later, or it could be heard in time.
#[test]
fn a_stop_of_the_sender_drops_nobody_that_stores() {
    let dir = Scratch::new();
    let (send, flushes, held) = flushing(&dir, &dir.file("source", 1_000_000));
    flushes.signal(Signal::STOP);
    send.signal(Signal::STOP);
    thread::sleep(Duration::from_secs(5));
    send.signal(Signal::CONT);
    thread::sleep(Duration::from_millis(300));
    flushes.signal(Signal::CONT);
    drop(held);
    flushes.end().expect(0);
    send.end().expect(0);
}

/// A sender by the rule `demote` with two receivers, and a third one, which is slow.
fn demoting(dir: &Scratch, patience: &str, args: &[&str]) -> (Run, Run, [Run; 2]) {
    demoting_of(("30MB/s", 60_000_000), dir, patience, args)
}

/// Like [`demoting`], at this rate, with so many bytes.
fn demoting_of(
    (rate, len): (&str, usize),
    dir: &Scratch,
    patience: &str,
    args: &[&str],
) -> (Run, Run, [Run; 2]) {
    let source = dir.file("source", len);
    let fixed = ["--no-announce", "--min-receivers", "3", "--rate", rate];
    let rule = ["--slow", "demote", "--patience", patience];
    let (mut send, address) = sender(&source, &[&fixed[..], &rule].concat());
    let slow = receiver(&address, "slow", &dir.path("slow"), args);
    let good = ["a", "b"].map(|name| receiver(&address, name, &dir.path(name), &[]));
    send.until_share_of("fastest", 20);
    (send, slow, good)
}

/// The others have everything; the slow receiver has it in the end.
fn catches_up(dir: &Scratch, send: Run, slow: Run) {
    let end = slow.end().expect(0);
    assert_eq!(end.all("demoted").count(), 1);
    assert!(end.one("joined")["lacking"].as_u64() > Some(0));
    same(&dir.path("source"), &dir.path("slow"));
    let sent = send.end().expect(0);
    let result = sent.result("slow");
    assert_eq!(result["state"], "verified");
    assert_eq!(result["part"], "demoted");
    assert_eq!(sent.result("a")["part"], "whole");
    let last = sent.all("verified").last().unwrap();
    assert_eq!(last["receiver"], "slow");
}

#[test]
fn one_that_stops_is_demoted_and_catches_up() {
    let dir = Scratch::new();
    let (mut send, slow, good) = demoting(&dir, "1s", &[]);
    slow.signal(Signal::STOP);
    let demoted = send.until("demoted", |e| e["receiver"] == "slow");
    assert!(demoted["placed"].as_u64() < demoted["len"].as_u64());
    for run in good {
        run.end().expect(0); // while it stands still
    }
    slow.signal(Signal::CONT);
    catches_up(&dir, send, slow);
}

/// A receiver that loses most packets makes progress all the time. It is demoted since it is far
/// behind. When it catches up, it may lose all that comes for some seconds by chance, as the sender
/// asks twice a second: three times the patience has to be longer.
#[test]
fn one_that_is_far_behind_is_demoted_and_catches_up() {
    let dir = Scratch::new();
    let (mut send, slow, good) = demoting(&dir, "3s", &["--inject-loss", "70"]);
    send.until_ever("demoted", |e| e["receiver"] == "slow");
    for run in good {
        run.end().expect(0);
    }
    catches_up(&dir, send, slow);
}

/// A receiver that gets on in bursts, as one does that has little of a CPU, never stands still for
/// the patience. The others would wait for it most of the time.
#[test]
fn one_that_gets_on_in_bursts_is_demoted() {
    let dir = Scratch::new();
    let (mut send, slow, good) = demoting_of(("200MB/s", 120_000_000), &dir, "1s", &[]);
    let (pid, (demoted, is_demoted)) = (slow.pid(), channel());
    let bursts = thread::spawn(move || {
        while is_demoted.try_recv().is_err() {
            for (signal, ms) in [(Signal::STOP, 400), (Signal::CONT, 20)] {
                rustix::process::kill_process(pid, signal).unwrap();
                thread::sleep(Duration::from_millis(ms));
            }
        }
    });
    send.until_ever("demoted", |e| e["receiver"] == "slow");
    for run in good {
        run.end().expect(0);
    }
    demoted.send(()).unwrap();
    bursts.join().unwrap();
    catches_up(&dir, send, slow);
}

/// A demoted receiver gets nothing until the others have everything. It does not give up.
#[test]
fn one_that_is_demoted_waits_for_its_turn() {
    let dir = Scratch::new();
    let args = ["--receive-timeout", "2s"];
    let (mut send, slow, good) = demoting_of(("10MB/s", 60_000_000), &dir, "500ms", &args);
    slow.signal(Signal::STOP);
    send.until("demoted", |e| e["receiver"] == "slow");
    slow.signal(Signal::CONT);
    for run in good {
        run.end().expect(0);
    }
    catches_up(&dir, send, slow);
}

/// A receiver that was slow to join, and is demoted later, has nothing to say until its turn comes.
#[test]
fn one_that_joined_slowly_and_is_demoted_waits_for_its_turn() {
    let dir = Scratch::new();
    let source = dir.file("source", 60_000_000);
    let fixed = ["--no-announce", "--min-receivers", "3", "--rate", "10MB/s"];
    let rule = ["--slow", "demote", "--patience", "500ms"];
    let (mut send, address) = sender(&source, &[&fixed[..], &rule].concat());
    let slow = receiver(&address, "slow", &dir.path("slow"), &[]);
    send.until_ever("connected", |e| e["receiver"] == "slow");
    slow.signal(Signal::STOP);
    let good = ["a", "b"].map(|name| receiver(&address, name, &dir.path(name), &[]));
    send.until_ever("slow", |e| e["receiver"] == "slow");
    slow.signal(Signal::CONT);
    send.until_share_of("fastest", 10);
    slow.signal(Signal::STOP);
    send.until_ever("demoted", |e| e["receiver"] == "slow");
    slow.signal(Signal::CONT);
    for run in good {
        run.end().expect(0);
    }
    catches_up(&dir, send, slow);
}

/// When all others are gone, the one that was demoted gets the set all the same.
#[test]
fn one_that_is_demoted_catches_up_when_the_others_are_gone() {
    let dir = Scratch::new();
    let (mut send, slow, good) = demoting_of(("10MB/s", 60_000_000), &dir, "500ms", &[]);
    slow.signal(Signal::STOP);
    send.until("demoted", |e| e["receiver"] == "slow");
    slow.signal(Signal::CONT);
    for run in good {
        run.signal(Signal::KILL);
    }
    slow.end().expect(0);
    same(&dir.path("source"), &dir.path("slow"));
    send.end().expect(4);
}

/// One that stays stopped is given up when it is to catch up.
#[test]
fn one_that_stays_stopped_is_dropped() {
    let dir = Scratch::new();
    let (mut send, slow, good) = demoting(&dir, "1s", &[]);
    slow.signal(Signal::STOP);
    send.until("demoted", |e| e["receiver"] == "slow");
    for run in good {
        run.end().expect(0);
    }
    assert_eq!(send.end().expect(4).result("slow")["state"], "dropped");
    slow.signal(Signal::KILL);
}

/// One that is demoted and killed is lost, and the others have everything.
#[test]
fn one_that_is_demoted_and_killed_is_lost() {
    let dir = Scratch::new();
    let (mut send, slow, good) = demoting(&dir, "1s", &[]);
    slow.signal(Signal::STOP);
    send.until("demoted", |e| e["receiver"] == "slow");
    slow.signal(Signal::KILL);
    for run in good {
        run.end().expect(0);
    }
    let sent = send.end().expect(4);
    let result = sent.result("slow");
    assert_eq!(
        (&result["state"], &result["part"]),
        (&json!("lost"), &json!("demoted"))
    );
    assert!(result["placed"].as_u64() < sent.one("summary")["len"].as_u64());
}
