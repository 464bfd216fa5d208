//! Receivers that fall silent in phases in which only control messages are awaited. A receiver in
//! this process stops in its callback, at a point that no signal could hit so exactly.

mod common;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use common::{Run, Scratch, receiver, same, sender};
use fabricast::config::RecvOptions;
use fabricast::error::Error;
use fabricast::transfer::{self, RecvEvent, RecvReport};

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
