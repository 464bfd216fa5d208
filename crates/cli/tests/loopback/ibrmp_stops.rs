//! P3's protocol through the command line, where an end says nothing for a while.

use std::time::Duration;

use crate::common::Scratch;
use crate::common::control::Peer;
use crate::common::ibrmp::{bof, into, of};
use crate::ibrmp::start;
use fabricast::proto::ibrmp::Body;
use rustix::process::Signal;

/// A receiver that says nothing costs the time of one set of files, and is dropped then.
#[test]
fn a_silent_receiver_is_waited_for_once() {
    let dir = Scratch::new();
    let files = ["one", "two", "three"].map(|name| dir.file(name, 10_000));
    let others = [&files[1], &files[2]].map(|file| file.to_str().unwrap());
    let args = [
        &others[..],
        &[
            "--files-at-once",
            "1",
            "--file-timeout",
            "1s",
            "--patience",
            "1s",
        ],
    ]
    .concat();
    let (send, from) = start(&files[0], "2", &args);
    let honest = into(&dir, "honest", &from, &[]);
    let mut silent = Peer::admitted(&from, "silent");
    silent.ready();
    let (removed, frames) = silent.until_said("removed");
    let reason = removed["reason"].as_str().unwrap();
    assert!(
        reason.contains("said nothing") && reason.contains("one was closed"),
        "{reason}"
    );
    assert_eq!(frames.len(), 1, "the EOF of the first file: {frames:?}");
    honest.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("silent")["state"], "dropped");
    assert_eq!(sent.result("silent")["placed"], 0);
    assert_eq!(sent.result("honest")["state"], "verified");
    assert_eq!(sent.all("expired").count(), 1);
}

/// While the sender's process is stopped it hears nobody, so that time is nobody's fault.
#[test]
fn a_stop_of_the_sender_closes_no_file() {
    let dir = Scratch::new();
    let args = ["--file-timeout", "1s", "--patience", "1s"];
    let (send, from) = start(&dir.file("f", 10_000), "1", &args);
    let mut peer = Peer::admitted(&from, "peer");
    peer.ready();
    assert_eq!(peer.come().body(), Body::Eof { len: 10_000 });
    send.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(3)); // three times the file's timeout
    peer.send_frame(&of(0, 1, Body::BofRequest), &[]);
    send.signal(Signal::CONT);
    assert_eq!(peer.come().body(), bof("f", 10_000));
    drop(peer);
    send.end().expect(4);
}

/// One that was stopped for longer than it may finds out why the sender went on without it, and not
/// only that the connection has ended.
#[test]
fn a_receiver_that_was_removed_while_it_was_stopped_says_why() {
    let dir = Scratch::new();
    let files = ["a", "b", "c", "d", "e"].map(|name| dir.file(name, 1_000_000));
    let others = files[1..].iter().map(|file| file.to_str().unwrap());
    let limits = [
        "--file-timeout",
        "1s",
        "--patience",
        "1s",
        "--rate",
        "2MB/s",
    ];
    let args: Vec<&str> = others.chain(limits).collect();
    let (mut send, from) = start(&files[0], "2", &args);
    let stops = into(&dir, "stops", &from, &[]);
    let honest = into(&dir, "honest", &from, &[]);
    send.until_share_of("slowest", 20);
    stops.signal(Signal::STOP);
    honest.end().expect(0);
    send.end().expect(4);
    stops.signal(Signal::CONT);
    let stopped = stops.end().expect(9);
    let reason = stopped.one("error")["text"].as_str().unwrap().to_owned();
    assert!(reason.contains("gone on without"), "{reason}");
}
