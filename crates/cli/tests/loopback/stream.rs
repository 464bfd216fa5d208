//! Standard input and standard output, between real processes on the loopback.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::control::{Peer, ip};
use crate::common::tree::{recv, send};
use crate::common::{self, FABRICAST, Run, Scratch, receiver};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Arguments of a sender on the loopback.
const SEND: [&str; 7] = [
    "send",
    "-",
    "--json",
    "--port",
    "0",
    "--interface",
    "127.0.0.1",
];

/// A sender of what is written to the pipe, and its address.
fn stream(args: &[&str]) -> (Run, String, PipeWriter) {
    let (read, write) = pipe().unwrap();
    let mut command = Command::new(FABRICAST);
    command.args(SEND).arg("--no-announce").args(args);
    command.stdin(read);
    let mut run = Run::fed(command);
    let listening = run.until("listening", |_| true);
    assert!(listening["len"].is_null(), "{listening}");
    let address = listening["address"].as_str().unwrap().to_owned();
    (run, address, write)
}

/// A receiver whose file goes to the pipe.
fn sink(address: &str, name: &str, args: &[&str]) -> (Run, PipeReader) {
    let (read, write) = pipe().unwrap();
    let fixed = ["recv", "-", "--json", "--from", address, "--as", name];
    (Run::piped(fixed.iter().chain(args), write), read)
}

fn read_all(mut read: PipeReader) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

fn bytes_of(dir: &Scratch, len: usize) -> Vec<u8> {
    std::fs::read(dir.file("source", len)).unwrap()
}

/// Writes again and again until the pipe closes. Returns the number of bytes so far.
fn pour(mut write: PipeWriter) -> (Arc<AtomicU64>, JoinHandle<()>) {
    let count = Arc::new(AtomicU64::new(0));
    let told = count.clone();
    let thread = thread::spawn(move || {
        let bytes = vec![7; 1 << 16];
        while write.write_all(&bytes).is_ok() {
            told.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
    });
    (count, thread)
}

/// A reader that takes little, and takes it all the time, gets on.
#[test]
fn a_pipe_that_is_slow_and_steady_is_not_dropped() {
    let dir = Scratch::new();
    let source = dir.file("source", 60_000_000);
    let rule = ["--no-announce", "--slow", "drop", "--patience", "3s"];
    let (send, address) = common::sender(&source, &rule);
    let (run, mut read) = sink(&address, "pipe", &[]);
    let mut bytes = vec![0; 60_000_000];
    // 8 MB in a second.
    for some in bytes.chunks_mut(400_000) {
        read.read_exact(some).unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    assert!(bytes == std::fs::read(source).unwrap());
    run.end().expect(0);
    send.end().expect(0);
}

/// A receiver of a stream whose control connection goes through this process, which lets it say of
/// one pack at a time, every second, that it is proven.
fn proves_slowly(address: &str) -> (Run, PipeReader) {
    let (sender, listener) = (
        address.to_owned(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    let (run, read) = sink(&listener.local_addr().unwrap().to_string(), "slow", &[]);
    thread::spawn(move || {
        let mut from = Peer::accept(&listener);
        let mut to = Peer::connect(&sender);
        let (mut forth, mut back) = (to.0.try_clone().unwrap(), from.0.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut forth, &mut back));
        let mut told = 0;
        while let Ok((kind, bytes)) = from.try_raw() {
            let message: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            let mut done = Ok(());
            if message["say"] == "proven" {
                for packs in told + 1..=message["packs"].as_u64().unwrap() {
                    thread::sleep(Duration::from_secs(1));
                    let proven = json!({"say": "proven", "packs": packs}).to_string();
                    done = to.put(kind, proven.as_bytes());
                    told = packs;
                }
            } else {
                done = to.put(kind, &bytes);
            }
            if done.is_err() {
                return;
            }
        }
    });
    (run, read)
}

/// The sender of a stream keeps it until all receivers have proven it. A receiver that says so as
/// slowly as it may holds the others up, and the rule for slow receivers applies.
#[test]
fn one_that_proves_a_stream_slowly_is_dropped() {
    let dir = Scratch::new();
    let sent = bytes_of(&dir, 400_000_000);
    let rule = ["--min-receivers", "2", "--slow", "drop", "--patience", "3s"];
    let (sender, address, mut write) = stream(&rule);
    let (slow, read) = proves_slowly(&address);
    let _ = read_all(read);
    let (good, read) = sink(&address, "good", &[]);
    let good_bytes = read_all(read);
    write.write_all(&sent).unwrap();
    drop(write);
    assert!(good_bytes.join().unwrap() == sent);
    good.end().expect(0);
    let result = sender.end().expect(4).result("slow").clone();
    assert_eq!(result["state"], "dropped");
    let reason = result["reason"].as_str().unwrap();
    assert!(reason.contains("held the others"), "{reason}");
    slow.end().expect(9);
}

/// Packs arrive damaged and datagrams are lost, so that the sender has to send parts of the stream
/// again. One receiver makes a file.
#[test]
fn a_stream_to_two_streams_and_a_file() {
    let dir = Scratch::new();
    let sent = bytes_of(&dir, 60_000_000);
    let (sender, address, mut write) = stream(&["--min-receivers", "3", "--name", "backup.tar"]);
    let damaged = ["--inject-damage", "3"];
    let (first, read) = sink(&address, "first", &damaged);
    let one = read_all(read);
    let (second, read) = sink(&address, "second", &["--inject-loss", "1%"]);
    let two = read_all(read);
    let third = recv(&address, "third", &dir.path("to"), &damaged);
    write.write_all(&sent).unwrap();
    drop(write);
    let end = sender.end().expect(0);
    assert!(one.join().unwrap() == sent && two.join().unwrap() == sent);
    assert!(std::fs::read(dir.path("to/backup.tar")).unwrap() == sent);
    let summary = end.one("summary");
    assert_eq!(
        (&summary["received"], &summary["verified"]),
        (&2.into(), &1.into())
    );
    assert_eq!(summary["len"], sent.len());
    for (run, name, state) in [
        (first, "first", "received"),
        (second, "second", "received"),
        (third, "third", "verified"),
    ] {
        assert_eq!(end.result(name)["state"], state);
        let done = run.end().expect(0);
        let done = done.one("done");
        assert_eq!(
            (&done["state"], &done["len"]),
            (&state.into(), &sent.len().into())
        );
        assert_eq!(done["root"], summary["root"]);
    }
    assert!(end.result("first")["tally"]["mended"].as_u64() > Some(0));
    assert_eq!(end.all("received").count(), 2);
}

#[test]
fn a_stream_without_bytes() {
    let dir = Scratch::new();
    let (sender, address, write) = stream(&["--min-receivers", "2"]);
    drop(write);
    let (sink, read) = sink(&address, "sink", &[]);
    let file = receiver(&address, "file", &dir.path("file"), &[]);
    sender.end().expect(0);
    assert_eq!(read_all(read).join().unwrap(), b"");
    sink.end().expect(0);
    file.end().expect(0);
    assert_eq!(std::fs::read(dir.path("file")).unwrap(), b"");
}

/// What has been written arrives while the stream goes on.
#[test]
fn a_stream_does_not_wait_for_more() {
    let (sender, address, mut write) = stream(&[]);
    let (sink, mut read) = sink(&address, "sink", &[]);
    for line in [b"first line\n", b"other line\n"] {
        write.write_all(line).unwrap();
        let mut got = [0; 11];
        read.read_exact(&mut got).unwrap();
        assert_eq!(&got, line);
    }
    drop(write);
    sender.end().expect(0);
    sink.end().expect(0);
}

#[test]
fn a_file_goes_to_a_stream_and_more_than_one_does_not() {
    let dir = Scratch::new();
    let file = dir.file("source", 9_000_000);
    let (sender, address) = send(&[&file], &[]);
    let (sink_, read) = sink(&address, "sink", &[]);
    let got = read_all(read);
    let end = sender.end().expect(0);
    assert_eq!(end.result("sink")["state"], "received");
    assert!(got.join().unwrap() == std::fs::read(&file).unwrap());
    sink_.end().expect(0);
    std::fs::create_dir(dir.path("empty")).unwrap();
    let empty = dir.path("empty");
    let cases: [(&[&Path], &str); 2] = [
        (&[&file, &empty], "sends 2 files and directories"),
        (&[&empty], "sends no single file"),
    ];
    for (sources, why) in cases {
        let (sender, address) = send(sources, &["--start-timeout", "5s"]);
        let (sink, read) = sink(&address, "sink", &[]);
        assert_eq!(read_all(read).join().unwrap(), b"");
        let end = sink.end().expect(2);
        assert!(
            end.one("error")["text"].as_str().unwrap().contains(why),
            "{end:?}"
        );
        drop(sender);
    }
}

/// A reader that does not read holds the sender back, and with it the input. It counts as slow, and
/// the rule for slow receivers holds.
#[test]
fn a_reader_that_stands_still_holds_the_input_and_is_dropped() {
    let rule = ["--min-receivers", "2", "--slow", "drop", "--patience", "1s"];
    let (mut sender, address, write) = stream(&rule);
    let (stuck, held) = sink(&address, "stuck", &[]);
    let (other, mut read) = sink(&address, "other", &[]);
    let (poured, pouring) = pour(write);
    let reading = thread::spawn(move || std::io::copy(&mut read, &mut std::io::sink()).unwrap());
    let failed = sender.until("failed", |_| true);
    assert_eq!(failed["receiver"], "stuck");
    // Window, packs that wait to be stored, and those that are read ahead.
    assert!(poured.load(Ordering::Relaxed) < 160 << 20, "{poured:?}");
    let at = poured.load(Ordering::Relaxed);
    while poured.load(Ordering::Relaxed) < at + (64 << 20) {
        sender.until("progress", |_| true); // the other one goes on
    }
    sender.signal(Signal::INT);
    let end = sender.end().expect(130);
    assert_eq!(end.result("stuck")["state"], "dropped");
    pouring.join().unwrap();
    reading.join().unwrap();
    other.end().expect(8);
    // Nobody has read a byte from it, and it ends all the same.
    stuck.end().expect(9);
    drop(held);
}

#[test]
fn a_reader_that_goes_away_fails_alone() {
    let dir = Scratch::new();
    let sent = bytes_of(&dir, 20_000_000);
    let (mut sender, address, mut write) = stream(&["--min-receivers", "2"]);
    let (gone, read) = sink(&address, "gone", &[]);
    drop(read);
    let (stays, read) = sink(&address, "stays", &[]);
    let got = read_all(read);
    write.write_all(&sent[..1 << 20]).unwrap();
    let failed = sender.until("failed", |_| true);
    let reason = failed["reason"].as_str().unwrap();
    assert!(
        failed["receiver"] == "gone" && reason.contains("has closed it"),
        "{reason}"
    );
    write.write_all(&sent[1 << 20..]).unwrap();
    drop(write);
    sender.end().expect(4);
    assert!(got.join().unwrap() == sent);
    stays.end().expect(0);
    gone.end().expect(1);
}

/// What was sent of a stream cannot be sent again, and a stream takes nothing out of order.
#[test]
fn nobody_comes_late_to_a_stream() {
    let dir = Scratch::new();
    let (mut sender, address, write) = stream(&[]);
    let (sink_, mut read) = sink(&address, "first", &[]);
    sender.until("streaming", |_| true);
    let late = receiver(&address, "late", &dir.path("late"), &[]);
    let end = late.end().expect(9);
    assert!(
        end.stderr.contains("a stream is sent once"),
        "{}",
        end.stderr
    );
    drop(write);
    assert_eq!(read.read(&mut [0]).unwrap(), 0);
    sender.end().expect(0);
    sink_.end().expect(0);
    let file = dir.file("source", common::SIZE);
    let (mut sender, address) = common::sender(&file, &common::steady("1"));
    let first = receiver(&address, "first", &dir.path("to"), &[]);
    sender.until_share(10);
    let (late, _read) = sink(&address, "late", &[]);
    let end = late.end().expect(9);
    let text = end.one("error")["text"].as_str().unwrap();
    assert!(text.contains("a stream is sent once"), "{text}");
    sender.end().expect(0);
    first.end().expect(0);
}

/// The reader of a pipe may stand still when the user gives up.
#[test]
fn ctrl_c_ends_each_side() {
    let dir = Scratch::new();
    let (mut sender, address, write) = stream(&["--min-receivers", "2", "--slow", "wait"]);
    let (mut stuck, held) = sink(&address, "stuck", &[]);
    let file = receiver(&address, "file", &dir.path("file"), &[]);
    let (_, pouring) = pour(write);
    sender.until("progress", |e| e["fastest"].as_u64() > Some(20_000_000));
    stuck.until("progress", |_| true);
    stuck.signal(Signal::INT);
    stuck.end().expect(130);
    sender.until("failed", |e| e["receiver"] == "stuck");
    sender.signal(Signal::INT);
    sender.end().expect(130);
    pouring.join().unwrap();
    drop(held);
    file.end().expect(8);
    assert_eq!(dir.names(), [""; 0]);
}

#[test]
fn what_ends_badly_leaves_nothing() {
    let dir = Scratch::new();
    // Nobody can read a directory.
    let mut command = Command::new(FABRICAST);
    command.args(SEND).arg("--no-announce");
    command.stdin(std::fs::File::open("/").unwrap());
    let mut sender = Run::fed(command);
    let listening = sender.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap();
    let file = receiver(address, "file", &dir.path("file"), &[]);
    let end = sender.end().expect(10);
    assert!(
        end.stderr.contains("reading standard input at byte 0"),
        "{}",
        end.stderr
    );
    file.end().expect(8);
    // A stream becomes longer than the receiver wants.
    let (sender, address, write) = stream(&[]);
    let file = receiver(&address, "file", &dir.path("file"), &["--max-size", "2M"]);
    let (_, pouring) = pour(write);
    let end = file.end().expect(7);
    assert!(end.stderr.contains("--max-size"), "{}", end.stderr);
    sender.end().expect(4);
    pouring.join().unwrap();
    assert_eq!(dir.names(), [""; 0]);
}

/// A sender that lets a stream begin in the midst would have it keep all that follows.
#[test]
fn a_sender_that_lies_about_the_start_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sink, _read) = sink(&address, "sink", &[]);
    let mut peer = Peer::accept(&listener);
    peer.welcome("x", 10);
    peer.until("prepared");
    peer.say(json!({
        "say": "start", "group": null, "root": ip(address), "chunk": 1000, "window": 64,
        "members": [0, 1], "scheme": "auto", "addresses": [], "late": true,
    }));
    let failed = peer.until("failed");
    assert!(
        failed["reason"]
            .as_str()
            .unwrap()
            .contains("not a fabricast sender"),
        "{failed}"
    );
    sink.end().expect(8);
}
