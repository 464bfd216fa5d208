//! Attacks on files: an offer takes space, a source changes, a sender disappears.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::process::Signal;

use super::listener;
use crate::common::control::Peer;
use crate::common::place::Place;
use crate::common::{AT_ONCE, Flush, Scratch, same};

/// A sender offers a long file that it does not have.
pub fn offered_space(place: &impl Place) {
    const LEN: u64 = 50_000_000;
    let dir = Scratch::new();
    let (listener, address) = listener(place);
    let recv = place.receiver(&address, "r0", &dir.path("copy"), &[]);
    // A file that is being received may have no name, but the receiver has it open.
    let files = || {
        let open = format!("/proc/{}/fd", recv.pid().as_raw_nonzero());
        let open = std::fs::read_dir(open).unwrap().flatten().map(|e| e.path());
        let here = |fd: &PathBuf| fd.read_link().is_ok_and(|to| to.starts_with(dir.path("")));
        open.filter(here).filter(|fd| fd.is_file()).count()
    };
    let mut peer = Peer::accept(&listener);
    peer.welcome("x", LEN);
    peer.until("prepared");
    assert_eq!(files(), 0);
    peer.start(&format!("{}:9", place.ip(1)));
    peer.until("ready");
    assert_eq!(files(), 0);
    assert!(dir.names().is_empty());
    drop(peer);
    recv.end().expect(8);
    assert!(dir.names().is_empty());
}

/// The source is shortened, extended or replaced while the sender sends it.
pub fn changed_while_sent(place: &impl Place) {
    // More than the sender reads ahead, which is about 90 MiB. At this rate it takes about 2 s:
    // time to interfere.
    const SIZE: usize = 200_000_000;
    let steady = ["--no-announce", "--rate", "100MB/s", "--min-receivers", "2"];
    let dir = Scratch::new();
    type Change = fn(&std::fs::File);
    let changes: [(&str, Change); 3] = [
        ("shorter", |f| f.set_len(SIZE as u64 / 2).unwrap()),
        ("longer", |f| f.write_all_at(b"more", SIZE as u64).unwrap()),
        // Changes bytes that the sender has read, and others that it has not.
        ("was written to", |f| {
            f.write_all_at(b"other", 1000).unwrap();
            f.write_all_at(b"other", SIZE as u64 - 1000).unwrap();
        }),
    ];
    for (word, change) in changes {
        let source = dir.file("source", SIZE);
        let (mut send, address) = place.sender(&source, &steady);
        let a = place.receiver(&address, "r0", &dir.path("copy-0"), &[]);
        let b = place.receiver(&address, "r1", &dir.path("copy-1"), &[]);
        send.until_share(1);
        change(&std::fs::File::options().write(true).open(&source).unwrap());
        let sent = send.end().expect(10);
        assert!(sent.stderr.contains(word), "{}", sent.stderr);
        for recv in [a, b] {
            let end = recv.end_within(AT_ONCE).expect(8);
            assert!(end.stderr.contains(word), "{}", end.stderr);
        }
        assert_eq!(dir.names(), ["source"]);
    }
}

/// The source changes after the receiver has proven its copy.
pub fn changed_when_proven(place: &impl Place) {
    let dir = Scratch::new();
    let flush = Flush::new(&dir);
    let source = dir.file("a\u{1b}[2Jsource", 100_000);
    let before = std::fs::read(&source).unwrap();
    let (send, address) = place.sender(&source, &["--no-announce"]);
    let recv = flush.held(place, &address, "r0", &dir.path("copy"));
    let held = flush.reached();
    let file = std::fs::File::options().write(true).open(&source).unwrap();
    file.write_all_at(b"other", 1000).unwrap();
    drop(held);
    let sent = send.end().expect(10);
    assert_eq!(sent.result("r0")["state"], "verified");
    assert!(sent.stderr.contains("was written to"), "{}", sent.stderr);
    assert!(!sent.stderr.contains('\u{1b}'), "{:?}", sent.stderr);
    recv.end().expect(0);
    assert!(std::fs::read(dir.path("copy")).unwrap() == before);
}

/// The sender is killed or interrupted after the receiver has proven its copy.
pub fn sender_gone(place: &impl Place) {
    let dir = Scratch::new();
    let flush = Flush::new(&dir);
    let source = dir.file("source", 3_000_000);
    let copy = dir.path("copy");
    for signal in [Signal::KILL, Signal::INT] {
        let (mut send, address) = place.sender(&source, &["--no-announce"]);
        let mut recv = flush.held(place, &address, "r0", &copy);
        let held = flush.reached();
        // The sender has read the receiver's message. Otherwise its kernel would reset the
        // connection.
        send.until("progress", |e| e["slowest"] == e["len"]);
        send.signal(signal);
        recv.until("notice", |e| {
            e["text"].as_str().unwrap().contains("complete and proven")
        });
        drop(held);
        recv.end_within(AT_ONCE).expect(0);
        same(&source, &copy);
        std::fs::remove_file(&copy).unwrap();
        assert_eq!(dir.names(), ["source"]);
    }
}
