//! Control connections that no real receiver or sender makes.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::process::Command;

use crate::common::attacks;
use crate::common::control::{Peer, empty_file, ip, port};
use crate::common::place::Loopback;
use crate::common::{Announcing, FABRICAST, Flush, Run, Scratch, receiver, same, sender};
use fabricast::object::pack::{Content, Pack, Piece};
use serde_json::{Value, json};

/// The key that selects the pieces by which a receiver proves its file.
const KEY: &str = "0000000000000000000000000000000000000000000000000000000000000000";
#[test]
fn what_cannot_be_true_is_refused() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let (mut send, address) = sender(&source, &["--no-announce", "--min-receivers", "2"]);
    // An address other than the connection's.
    let elsewhere = json!({"address": ip("127.0.0.9:4000")});
    Peer::hello(&address, "x", elsewhere).refused("connects from 127.0.0.1");
    Peer::hello(&address, "x", port(0)).refused("below 1024");
    Peer::hello(&address, "x", port(53)).refused("below 1024");
    // A receiver of another version learns why, although it says its address otherwise.
    let mut old = Peer::connect(&address);
    old.say(json!({
        "say": "hello", "version": 2, "name": "old", "udp_port": 4000, "udp_address": null,
        "datagram": 1472, "window_bytes": 1 << 24,
    }));
    old.refused("version 11");
    let new = json!({"version": 12, "address": {"port": 7}});
    Peer::hello(&address, "new", new).refused("version 11");
    let refused = send.until("refused", |e| e["receiver"] == "new");
    assert!(
        refused["reason"].as_str().unwrap().contains("not 12"),
        "{refused}"
    );
    // Values that would make all receivers' packets, or the window, small.
    Peer::hello(&address, "x", json!({"datagram": 600})).refused("--datagram-min");
    Peer::hello(&address, "x", json!({"window_bytes": 1 << 22})).refused("too small");
    // Naming its own address is fine. A second receiver with the same address and port is refused.
    let itself = json!({"address": ip("127.0.0.1:4000")});
    let mut first = Peer::hello(&address, "first", itself);
    assert_eq!(first.hear()["say"], "welcome");
    Peer::hello(&address, "second", json!({})).refused("another receiver");
    // Messages out of turn.
    for word in ["keeps", "ready", "working", "need"] {
        let mut peer = Peer::hello(&address, "x", port(4001));
        assert_eq!(peer.hear()["say"], "welcome");
        peer.say(json!({"say": word, "done": 0, "pack": 0, "packs": []}));
        peer.refused("out of turn");
    }
    first.say(json!({"say": "prepared"}));
    send.until("connected", |e| e["receiver"] == "first");
    first.say(json!({"say": "prepared"}));
    first.refused("out of turn");
    send.until("left", |e| e["receiver"] == "first");
}

#[test]
fn nobody_has_verified_what_has_not_been_sent() {
    let dir = Scratch::new();
    let source = dir.file("source", 30_000_000);
    let args = ["--no-announce", "--min-receivers", "2", "--rate", "20MB/s"];
    let (mut send, address) = sender(&source, &args);
    let mut liar = Peer::hello(&address, "liar", json!({}));
    liar.hear();
    liar.say(json!({"say": "prepared"}));
    let good = receiver(&address, "good", &dir.path("copy"), &[]);
    assert_eq!(liar.hear()["say"], "start");
    liar.say(json!({"say": "ready"}));
    liar.say(json!({
        "say": "verified", "received": 1, "duplicates": 0, "mended": 0, "mended_bytes": 0,
        "dropped": 0, "proof": "",
    }));
    let failed = send.until("failed", |_| true);
    let reason = failed["reason"].as_str().unwrap();
    assert!(reason.contains("\"verified\" out of turn"), "{reason}");
    send.end().expect(4);
    good.end().expect(0);
    same(&source, &dir.path("copy"));
}

#[test]
fn a_seat_is_no_ones_before_it_is_prepared() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = ["--no-announce", "--max-receivers", "1", "--min-wait", "1h"];
    let (send, address) = sender(&source, &args);
    let mut idle = Peer::hello(&address, "idle", json!({}));
    assert_eq!(idle.hear()["say"], "welcome");
    let good = receiver(&address, "good", &dir.path("copy"), &[]);
    idle.refused("not prepared when others came");
    send.end().expect(0);
    good.end().expect(0);
    same(&source, &dir.path("copy"));
}

#[test]
fn who_never_prepares_is_given_up() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let (_send, address) = sender(&source, &["--no-announce"]);
    let mut idle = Peer::hello(&address, "idle", json!({}));
    assert_eq!(idle.hear()["say"], "welcome");
    idle.refused("not prepared within 10 s");
}

/// A sender cannot make a receiver believe that it keeps something: the receiver waits for it, as
/// long as for anything else.
#[test]
fn a_sender_that_spares_what_a_receiver_lacks_is_given_up() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let copy = dir.path("copy");
    let recv = receiver(&address, "r0", &copy, &["--receive-timeout", "1s"]);
    let mut peer = Peer::accept(&listener);
    let _stream = peer.start_set("x", 1, 0);
    let pack = empty_file(0o644);
    peer.say(json!({
        "say": "pack", "len": pack.bytes.len(), "header": pack.header,
        "hash": pack.hash().to_hex().as_str(), "kept": true,
    }));
    peer.say(json!({"say": "end", "packs": 1, "key": "0".repeat(64)}));
    let end = recv.end().expect(5);
    assert!(end.stderr.contains("--receive-timeout"), "{}", end.stderr);
    assert!(dir.names().is_empty());
}

/// A receiver may say that it keeps some packs, and no more than a sender bears.
#[test]
fn a_receiver_that_keeps_too_much_is_refused() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let (send, address) = sender(&source, &["--no-announce"]);
    let mut liar = Peer::hello(&address, "liar", json!({}));
    liar.hear();
    liar.say(json!({"say": "prepared"}));
    assert_eq!(liar.hear()["say"], "start");
    let packs = vec![u64::MAX; 190];
    for _ in 0..=16_384 / packs.len() {
        liar.say(json!({"say": "keeps", "packs": packs}));
    }
    liar.until("removed");
    let failed = &send.end().expect(4);
    let reason = failed.one("failed")["reason"].as_str().unwrap();
    assert!(reason.contains("\"keeps\" out of turn"), "{reason}");
}

#[test]
fn a_sender_that_stops_when_a_receiver_needs_it_is_given_up() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let copy = dir.path("copy");
    let recv = receiver(&address, "r0", &copy, &["--receive-timeout", "1s"]);
    let mut peer = Peer::accept(&listener);
    // The header is not the one that was announced, and the receiver requests it again.
    let mut stream = peer.start_set("x", 1, 0);
    let mut pack = empty_file(0o644);
    let announced = pack.clone();
    pack.bytes[1] ^= 1;
    stream.send(&mut peer, &announced, &pack.bytes);
    peer.until("need");
    drop(stream); // it would repeat what it has sent
    let end = recv.end().expect(5);
    assert!(end.stderr.contains("--receive-timeout"), "{}", end.stderr);
    assert!(dir.names().is_empty());
}

#[test]
fn a_receiver_that_is_removed_when_it_has_proven_all_keeps_the_file() {
    let dir = Scratch::new();
    let flush = Flush::new(&dir);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut recv = flush.held(&Loopback, &address, "r0", &dir.path("copy"));
    let mut peer = Peer::accept(&listener);
    let mut stream = peer.start_set("x", 1, 0);
    let page = empty_file(0o644);
    let last = Piece::Bytes {
        file: 0,
        offset: 0,
        len: 0,
        last: true,
    };
    for pack in [page, Pack::new(Content::Pieces(vec![last]), &[])] {
        stream.send(&mut peer, &pack, &pack.bytes);
    }
    peer.say(json!({"say": "end", "packs": 2, "key": KEY}));
    let held = flush.reached();
    peer.until("working");
    peer.say(json!({"say": "removed", "code": 9, "reason": "too slow"}));
    recv.until("notice", |e| {
        e["text"].as_str().unwrap().contains("too slow")
    });
    drop(held);
    recv.end().expect(0);
    assert_eq!(dir.names(), ["copy"]);
}

#[test]
fn a_sender_whose_data_come_from_elsewhere_is_not_believed() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for root in ["127.0.0.9:9", "127.0.0.1:0", "[::1]:9"] {
        let recv = receiver(&address, "r0", &dir.path("copy"), &[]);
        let mut peer = Peer::accept(&listener);
        peer.offer();
        peer.start(root);
        assert_eq!(peer.until("failed")["code"], 8);
        let end = recv.end().expect(8);
        assert!(end.stderr.contains(root), "{}", end.stderr);
        assert!(dir.names().is_empty());
    }
}

#[test]
fn what_a_sender_says_does_nothing_to_the_terminal() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let recv = receiver(&address, "r0", &dir.path("copy"), &[]);
    let mut peer = Peer::accept(&listener);
    peer.until("hello");
    peer.say(json!({"say": "refused", "reason": "\u{1b}]0;owned\u{7}no"}));
    let end = recv.end().expect(9);
    let control = |c: char| c.is_control() && c != '\n';
    assert!(!end.stderr.contains(control), "{:?}", end.stderr);
}

/// Finding 11: a false offer filled the disks of all receivers that listened.
#[test]
fn an_offer_takes_no_disk_space() {
    attacks::files::offered_space(&Loopback);
}

#[test]
fn what_is_too_long_is_refused_with_the_figures() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let cases: [(u64, &[&str], &[&str]); 4] = [
        (
            u64::MAX,
            &[],
            &["too long: 16777216.0 TiB", "at most 32.0 TiB"],
        ),
        (1 << 45, &[], &["33554432 MiB", "stay free", "--reserve"]),
        (
            1001,
            &["--max-size", "1000"],
            &["copy would be too long: 1001 B, at most 1000 B (--max-size)"],
        ),
        (1, &["--reserve", "4000T"], &["4194304000 MiB", "stay free"]),
    ];
    for (len, options, words) in cases {
        let recv = receiver(&address, "r0", &dir.path("copy"), options);
        let mut peer = Peer::accept(&listener);
        peer.welcome("x", len);
        assert_eq!(peer.until("failed")["code"], 7);
        let end = recv.end().expect(7);
        for word in words {
            assert!(end.stderr.contains(word), "{word}: {}", end.stderr);
        }
        assert!(dir.names().is_empty());
    }
}

/// Some file systems report that they have no blocks (FUSE if its server does not know, ramfs
/// always). There an offer of nearly 2^64 bytes crashed the process.
#[test]
fn a_file_system_that_knows_no_space_is_no_way_to_end_the_process() {
    let dir = Scratch::new();
    let (listener, to) = (TcpListener::bind("127.0.0.1:0").unwrap(), dir.path("to"));
    let address = listener.local_addr().unwrap().to_string();
    std::fs::create_dir(&to).unwrap();
    let mount = "mount -t ramfs none \"$1\"";
    let mut trial = Command::new("unshare");
    trial.args(["-m", "sh", "-c", mount, "sh"]).arg(&to);
    if !trial.output().is_ok_and(|done| done.status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    for (len, code) in [(u64::MAX, 7), (u64::MAX - (1 << 20), 7), (100_000, 8)] {
        let mut command = Command::new("unshare");
        let script = format!("{mount} && exec \"$2\" recv \"$1/x\" --json --from {address}");
        command.args(["-m", "sh", "-c", &script, "sh"]).arg(&to);
        command.arg(FABRICAST);
        let recv = Run::spawn(command);
        let mut peer = Peer::accept(&listener);
        peer.welcome("x", len);
        if code == 7 {
            assert_eq!(peer.until("failed")["code"], code);
        } else {
            peer.until("prepared");
        }
        drop(peer);
        let end = recv.end().expect(code);
        assert!(
            code == 8 || end.stderr.contains("32.0 TiB"),
            "{}",
            end.stderr
        );
    }
}

/// Findings 4 and 21: names that do something by themselves, or look like others.
#[test]
fn a_name_that_is_no_plain_one_needs_a_destination_that_the_user_names() {
    let dir = Scratch::new();
    let to = dir.path("to");
    std::fs::create_dir(&to).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for name in [
        ".bash_profile",
        "-rf",
        "invoice\u{202e}fdp.sh",
        "in\u{200b}voice",
    ] {
        let recv = receiver(&address, "r0", &to, &[]);
        let mut peer = Peer::accept(&listener);
        peer.welcome(name, 0);
        assert_eq!(peer.until("failed")["code"], 2);
        let end = recv.end().expect(2);
        assert!(
            end.stderr.contains("name the destination"),
            "{}",
            end.stderr
        );
        let shown = |c| end.stderr.contains(c);
        assert!(!shown('\u{202e}') && !shown('\u{200b}'), "{}", end.stderr);
        // With a destination that names the file, the receiver accepts the offer.
        let mut recv = receiver(&address, "r0", &to.join("named"), &[]);
        let mut peer = Peer::accept(&listener);
        peer.welcome(name, 0);
        peer.until("prepared");
        recv.until("connected", |e| {
            e["path"].as_str().unwrap().ends_with("to/named")
        });
        drop(peer);
        recv.end().expect(8);
    }
    let left: Vec<_> = std::fs::read_dir(&to).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Finding 15: one forged packet made each receiver fetch a whole block.
#[test]
fn forged_data_cost_pieces_and_not_blocks() {
    attacks::forged::forged_data(&Loopback);
}

#[test]
fn a_name_is_given_once_and_an_address_has_few_seats() {
    attacks::seats::few_seats(&Loopback);
}

#[test]
fn one_client_does_not_choose_the_family() {
    match UdpSocket::bind("[::1]:0") {
        Ok(_) => attacks::seats::other_family(&Loopback),
        Err(_) => eprintln!("skipped: there is no IPv6 here"),
    }
}

#[test]
fn receivers_leave_descriptors_to_the_transfer() {
    attacks::seats::descriptors(&Loopback);
}

#[test]
fn a_silent_seat_is_given_up_when_nobody_watches() {
    attacks::seats::silent_seat(&Loopback);
}

#[test]
fn to_say_that_one_has_the_file_is_not_enough() {
    attacks::seats::unproven(&Loopback);
}

#[test]
fn a_third_host_gets_one_small_question_and_nothing_else() {
    attacks::third::third_host(&Loopback);
}

#[test]
fn no_file_name_does_anything_to_a_terminal() {
    const NAME: &str = "in\u{202e}gpj\u{200b}\u{e0041}\u{1b}[2J\n.exe";
    const SHOWN: &str = r"in\u{202e}gpj\u{200b}\u{e0041}\u{1b}[2J\n.exe";
    let harmless = |words: &str| {
        words
            .lines()
            .all(|l| l.chars().all(fabricast::text::harmless))
    };
    let dir = Scratch::new();
    let source = dir.file(NAME, 1000);
    let path = source.to_str().unwrap();
    let here = ["--no-announce", "--port", "0", "--interface", "127.0.0.1"];
    let offer = [&["send", path, "--start-timeout", "1ms"][..], &here].concat();
    let words = Run::start(&offer).end().expect(3).stderr;
    assert!(harmless(&words) && words.contains(SHOWN), "{words:?}");
    let missing = Run::start(["send", dir.path(&format!("no{NAME}")).to_str().unwrap()]);
    let words = missing.end().expect(1).stderr;
    assert!(harmless(&words) && words.contains(SHOWN), "{words:?}");

    // JSON lines carry the same name, escaped.
    let mut offer_json = Command::new(FABRICAST);
    let output = offer_json.args(&offer).arg("--json").output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(harmless(&lines), "{lines:?}");
    let listening: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!(listening["name"], NAME);

    let (send, address) = sender(&source, &["--no-announce"]);
    let copy = dir.path(&format!("copy of {NAME}"));
    let recv = Run::start(["recv", copy.to_str().unwrap(), "--from", &address]);
    let words = recv.end().expect(0).stderr;
    assert!(harmless(&words) && words.contains(SHOWN), "{words:?}");
    send.end().expect(0);
}

/// A host whose firewall drops all datagrams holds up all receivers. The sender names it long
/// before patience ends.
#[test]
fn who_answers_no_datagram_is_named_while_all_wait() {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = ["--no-announce", "--min-receivers", "2", "--patience", "3s"];
    let (mut send, address) = sender(&source, &args);
    let good = receiver(&address, "good", &dir.path("copy"), &[]);
    let mut mute = Peer::hello(&address, "mute", json!({}));
    mute.until("welcome");
    mute.say(json!({"say": "prepared"}));
    mute.until("start");
    mute.say(json!({"say": "ready"}));
    let notice = send.until("notice", |e| {
        e["text"].as_str().unwrap().contains("waiting for")
    });
    assert_eq!(
        notice["text"],
        "waiting for mute, which has answered no datagram yet (--patience)"
    );
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("mute")["state"], "dropped");
}

/// A receiver on the loopback that takes a file with this name from any sender.
pub fn finder(name: &str, dest: &std::path::Path, args: &[&str]) -> Run {
    let dest = dest.to_str().unwrap();
    let fixed = [
        "recv",
        dest,
        "--json",
        "--interface",
        "127.0.0.1",
        "--name",
        name,
    ];
    Run::start(fixed.iter().chain(args))
}

/// A hand-made sender: its address, its listening socket, and its announcements.
pub fn false_sender(name: &str) -> (String, TcpListener, Announcing) {
    let listener = TcpListener::bind("127.0.0.77:0").unwrap();
    let address = listener.local_addr().unwrap();
    let by = Ipv4Addr::LOCALHOST;
    let announcing = Announcing::start(address.ip(), by, address.port(), name, 0);
    (address.to_string(), listener, announcing)
}

/// One announcement, by a host that then refuses, ended every receiver without --from.
#[test]
fn what_a_found_sender_does_before_the_start_ends_no_receiver() {
    let dir = Scratch::new();
    let name = format!("in-vain-{}", std::process::id());
    let source = dir.file(&name, 100_000);
    let to = dir.path("secret");
    std::fs::create_dir(&to).unwrap();
    let mut recv = finder(&name, &to, &[]);
    let late = finder(&name, &dir.path("late"), &["--start-timeout", "2s"]);
    let mut late = Some(late);
    type Does = fn(&mut Peer, &str);
    let cases: [(Does, &str); 5] = [
        (|_, _| (), "is gone"),
        (
            |p, _| p.say(json!({"say": "refused", "reason": "no"})),
            "refused: no",
        ),
        (|p, _| p.say_welcome("other", 1), "other"),
        (|p, name| p.say_welcome(name, u64::MAX), "32.0 TiB"),
        (
            |p, name| {
                p.say_welcome(name, 1);
                p.until("prepared");
                p.say(json!({"say": "aborted", "code": 130, "reason": "over"}));
            },
            "over",
        ),
    ];
    for (act, why) in cases {
        let (address, listener, announcing) = false_sender(&name);
        // Both receivers come to the first false sender.
        for _ in 0..1 + late.iter().count() {
            let mut peer = Peer::accept(&listener);
            let hello = peer.until("hello");
            assert!(
                !hello["name"].as_str().unwrap().contains("secret"),
                "{hello}"
            );
            act(&mut peer, &name);
            if why == "32.0 TiB" {
                let failed = peer.until("failed");
                assert!(!failed.to_string().contains("secret"), "{failed}");
            }
        }
        drop(announcing);
        recv.until("trying", |e| {
            let reason = e["reason"].as_str().unwrap();
            reason.contains(&address) && reason.contains(why)
        });
        if let Some(late) = late.take() {
            let end = late.end().expect(5);
            assert!(end.stderr.contains(why), "{}", end.stderr);
        }
    }
    let (send, _) = sender(&source, &[]);
    send.end().expect(0);
    recv.end().expect(0);
    same(&source, &to.join(name));
}

/// One announcement of another length in the sender's name made the receiver refuse the sender.
#[test]
fn who_announces_in_a_senders_name_does_not_keep_receivers_from_it() {
    let dir = Scratch::new();
    let name = format!("falsified-{}", std::process::id());
    let source = dir.file(&name, 100_000);
    let (send, address) = sender(&source, &["--no-announce"]);
    let address: SocketAddrV4 = address.parse().unwrap();
    let ip = (*address.ip()).into();
    let forger = Announcing::start(ip, Ipv4Addr::LOCALHOST, address.port(), &name, 100_001);
    let recv = finder(&name, &dir.path("copy"), &[]);
    recv.end().expect(0);
    drop(forger);
    send.end().expect(0);
    same(&source, &dir.path("copy"));
}

#[test]
fn who_repeats_a_senders_session_is_a_second_sender() {
    attacks::announcers::repeated_session(&Loopback);
}
