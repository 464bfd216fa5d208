//! Receivers that serve: late ones get from them what they have missed, on the loopback.

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::control::{Peer, able};
use crate::common::feed;
use crate::common::hosts::Hosts;
use crate::common::place::Loopback;
use crate::common::tree::{described, recv, send, tree};
use crate::common::{self, End, Flush, Run, SIZE, Scratch, receiver, same, steady};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A tree of 35 MB, with everything that a tree may have.
fn long_tree(dir: &Scratch) -> PathBuf {
    let top = tree(dir);
    fs::rename(dir.file("long", SIZE), top.join("long")).unwrap();
    top
}

/// A sender of the tree, two receivers, and the place of the tree. The first receiver serves.
struct Begun {
    dir: Scratch,
    top: PathBuf,
    sender: Run,
    address: String,
    first: Run,
    second: Run,
}

impl Begun {
    fn new() -> Begun {
        let dir = Scratch::new();
        let top = long_tree(&dir);
        let (sender, address) = send(&[&top], &["--rate", "8MB/s", "--min-receivers", "2"]);
        let first = recv(&address, "first", &dir.path("first"), &["--serve"]);
        let second = recv(&address, "second", &dir.path("second"), &[]);
        Begun {
            dir,
            top,
            sender,
            address,
            first,
            second,
        }
    }

    /// A late receiver.
    fn late(&self, name: &str) -> Run {
        recv(&self.address, name, &self.dir.path(name), &[])
    }
}

/// Bytes that a receiver got from others, as it says, and as the sender says.
fn from_peers(name: &str, here: &End, sent: &End) -> u64 {
    let bytes = here.one("done")["tally"]["peer_bytes"].as_u64().unwrap();
    assert_eq!(sent.result(name)["tally"]["peer_bytes"], bytes);
    bytes
}

#[test]
fn a_late_receiver_gets_what_it_has_missed_from_one_that_serves() {
    let mut begun = Begun::new();
    begun.sender.until_share_of("slowest", 20);
    let mut late = begun.late("late");
    let joined = late.until("joined", |_| true);
    let missed = joined["packs"].as_u64().unwrap();
    assert!(joined["lacking"].as_u64() < Some(missed - 1), "{joined}");
    let late = late.end().expect(0);
    let first = begun.first.end().expect(0);
    let second = begun.second.end().expect(0);
    let sent = begun.sender.end().expect(0);
    for name in ["first", "second", "late"] {
        let there = described(&begun.dir.path(name).join("tree"));
        assert_eq!(there, described(&begun.top), "{name}");
        assert_eq!(sent.result(name)["state"], "verified");
    }
    assert!(from_peers("late", &late, &sent) > 1 << 20);
    for (name, here) in [("first", &first), ("second", &second)] {
        assert_eq!(from_peers(name, here, &sent), 0);
    }
}

/// The receivers that `copy` starts serve, also those of hosts that begin too late.
#[test]
fn hosts_of_a_copy_serve_one_that_begins_late() {
    let hosts = Hosts::new(&["a", "b"]);
    let source = hosts.dir.file("source", SIZE);
    let gate = hosts.dir.path("gate");
    let made = Command::new("mkfifo").arg(&gate).status();
    assert!(made.unwrap().success());
    hosts.behave("b", "cat ../gate >/dev/null; exec \"$@\"");
    let args = ["--serve", "--rate", "8MB/s", "--start-timeout", "1s"];
    let mut run = hosts.copy(&source, "a,b:", &args);
    run.until_share_of("slowest", 20);
    fs::write(gate, "").unwrap();
    let end = run.end().expect(0);
    for name in ["a", "b"] {
        hosts.has(name, ".", &source);
    }
    let late = end.result("b");
    assert_eq!(late["part"], "late");
    assert!(
        late["tally"]["peer_bytes"].as_u64() > Some(1 << 20),
        "{late}"
    );
    hosts.expect_none_left();
}

/// A follower serves others that come to the same transfer late.
#[test]
fn a_follower_serves_one_that_comes_late() {
    let dir = Scratch::new();
    let feed = feed::feed_in(&dir);
    fs::rename(dir.file("long", SIZE), feed.join("long")).unwrap();
    let (sender, address) = feed::serve(&feed, "0", &["--rate", "4MB/s"]);
    let mut first = feed::follow(&address, &dir.path("first"), &["--serve"]);
    first.until_share_of("placed", 20);
    let mut late = feed::follow(&address, &dir.path("late"), &[]);
    for (run, name) in [(&mut first, "first"), (&mut late, "late")] {
        feed::until_entry(run, "long");
        same(&feed.join("long"), &dir.path(name).join("feed/long"));
    }
    let late = feed::ends(late);
    let bytes = late.one("done")["tally"]["peer_bytes"].as_u64();
    assert!(bytes > Some(1 << 20), "{late:#?}");
    feed::ends(first);
    let sent = feed::ends(sender);
    assert_eq!(sent.all("publishing").count(), 1);
}

/// One that has been killed, and hangs before that.
#[test]
fn one_that_hangs_and_is_killed_costs_the_late_receiver_nothing() {
    let mut begun = Begun::new();
    begun.sender.until_share_of("slowest", 20);
    begun.first.signal(Signal::STOP);
    let mut late = begun.late("late");
    late.until("joined", |_| true);
    begun.first.signal(Signal::KILL);
    let late = late.end().expect(0);
    begun.second.end().expect(0);
    assert_eq!(late.one("done")["tally"]["peer_bytes"], 0);
    let there = described(&begun.dir.path("late").join("tree"));
    assert_eq!(there, described(&begun.top));
    let sent = begun.sender.end().expect(4);
    assert_eq!(sent.result("first")["state"], "lost");
    assert_eq!(sent.result("late")["state"], "verified");
}

/// What somebody has changed in the meantime, the one that serves does not give.
#[test]
fn a_file_that_has_changed_since_is_not_given() {
    let dir = Scratch::new();
    let sources = [dir.file("a", 3_000_000), dir.file("long", SIZE)];
    let each: Vec<&Path> = sources.iter().map(|path| &**path).collect();
    let (mut sender, address) = send(&each, &["--rate", "8MB/s"]);
    let first = recv(&address, "first", &dir.path("first"), &["--serve"]);
    sender.until_share_of("slowest", 40);
    let changed = dir.path("first").join("a");
    fs::write(&changed, vec![7; 3_000_000]).unwrap();
    let late = recv(&address, "late", &dir.path("late"), &[]);
    let late = late.end().expect(0);
    for source in &sources {
        same(source, &dir.path("late").join(source.file_name().unwrap()));
    }
    assert_eq!(late.all("peer_left").count(), 0, "{late:#?}");
    // Its own proof is wrong, and the sender says so.
    let first = first.end().expect(6);
    assert!(
        first.stderr.contains("its proof is wrong"),
        "{}",
        first.stderr
    );
    assert_eq!(first.all("done").count(), 0);
    let sent = sender.end().expect(4);
    assert_eq!(sent.result("first")["state"], "failed");
    assert!(from_peers("late", &late, &sent) > 1 << 20);
}

/// A late receiver by hand that is ready.
fn ready(address: &str) -> Peer {
    let mut peer = Peer::hello(address, "peer", able());
    peer.until("welcome");
    peer.say(json!({"say": "prepared"}));
    peer.until("start");
    peer.say(json!({"say": "ready"}));
    peer
}

/// A late receiver by hand that is told of those that serve, where the first of these is, and its
/// ticket.
fn told(address: &str) -> (Peer, String, Value) {
    let mut peer = ready(address);
    let told = peer.until("peers");
    let serving = &told["peers"][0];
    let at = serving["address"]["ip"].as_str().unwrap().to_owned();
    let shows = json!({"say": "ticket", "ticket": serving["ticket"]});
    (peer, at, shows)
}

/// A guest at this address, which shows this ticket.
fn guest(at: &str, shows: &Value) -> Peer {
    let mut guest = Peer::connect(at);
    guest.say(shows.clone());
    assert_eq!(guest.hear()["say"], "admitted");
    guest
}

/// While a late receiver still asks others, the sender tells it which other receivers serve by
/// then, and which are gone.
/// One goes on with what it kept, and another that is there from the start lacks that until the
/// end. It is not told who serves.
#[test]
fn one_that_serves_later_ends_nobody() {
    let dir = Scratch::new();
    let top = long_tree(&dir);
    let rate = ["--rate", "12MB/s"];
    let (sender, address) = send(&[&top], &rate);
    let mut kept = recv(&address, "kept", &dir.path("kept"), &[]);
    kept.until_share(50);
    kept.signal(Signal::KILL);
    sender.end().expect(4);
    let (mut sender, address) = send(&[&top], &[&rate[..], &["--min-receivers", "2"]].concat());
    let kept = recv(&address, "kept", &dir.path("kept"), &[]);
    let new = recv(&address, "new", &dir.path("new"), &[]);
    sender.until_share_of("fastest", 60);
    let mut serves = recv(&address, "serves", &dir.path("serves"), &["--serve"]);
    serves.until("joined", |_| true);
    for run in [kept, new, serves] {
        run.end().expect(0);
    }
    sender.end().expect(0);
    let tree = described(&top);
    for name in ["kept", "new", "serves"] {
        assert_eq!(described(&dir.path(name).join("tree")), tree);
    }
}

#[test]
fn a_late_receiver_is_told_who_comes_and_who_goes() {
    let mut begun = Begun::new();
    begun.sender.until_share_of("slowest", 5);
    let (mut peer, first, _) = told(&begun.address);
    let dest = begun.dir.path("third");
    let third = recv(&begun.address, "third", &dest, &["--serve"]);
    let at = |told: &Value| -> Vec<String> {
        let peers = told["peers"].as_array().unwrap().iter();
        let at = peers.map(|serving| serving["address"]["ip"].as_str().unwrap().to_owned());
        at.collect()
    };
    let both = at(&peer.until("peers"));
    assert_eq!((both.len(), &both[0]), (2, &first));
    begun.first.signal(Signal::KILL);
    assert_eq!(at(&peer.until("peers")), both[1..]);
    drop(peer);
    third.end().expect(0);
    begun.second.end().expect(0);
    begun.sender.end().expect(4);
}

/// One that has said all that it has is told of those that serve from then on. Then it may say
/// more, until it has said again that this is all. What has crossed is not that.
#[test]
fn one_that_has_said_all_is_told_of_those_that_come_then() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    // The third must come before the end, however busy the machine is.
    let (mut sender, address) = send(&[&source], &["--rate", "8MB/s", "--min-receivers", "1"]);
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until_share(60);
    let mut peer = ready(&address);
    let last = peer.until("join")["packs"].as_u64().unwrap() - 1;
    let says = |runs: Value, more: bool, told: u32| -> Value {
        json!({"say": "has", "runs": runs, "more": more, "told": told})
    };
    peer.say(says(json!([]), false, 0));
    sender.until("catching_up", |e| e["receiver"] == "peer");
    let second = receiver(&address, "second", &dir.path("second"), &["--serve"]);
    let told = |peer: &mut Peer| peer.until("peers")["peers"].as_array().unwrap().len();
    assert_eq!(told(&mut peer), 1);
    peer.say(says(json!([]), false, 0));
    peer.say(says(json!([[last, last + 1]]), true, 0));
    peer.say(says(json!([]), false, 1));
    peer.say(json!({"say": "need", "pack": 0, "list": true}));
    assert!(!peer.until_bulk().is_empty());
    let third = receiver(&address, "third", &dir.path("third"), &["--serve"]);
    assert_eq!(told(&mut peer), 2);
    peer.say(says(json!([]), false, 2));
    peer.say(says(json!([]), false, 2));
    let why = peer.until("removed")["reason"].to_string();
    assert!(why.contains("out of turn"), "{why}");
    first.end().expect(0);
    second.end().expect(0);
    third.end().expect(0);
    let sent = sender.end().expect(4);
    let told = sent.all("catching_up").filter(|e| e["receiver"] == "peer");
    assert_eq!(told.count(), 1);
}

/// Nobody serves when a receiver comes late. Another one is killed, and serves when it is back,
/// with what it had before.
#[test]
fn one_that_serves_later_gives_what_is_still_lacking() {
    let dir = Scratch::new();
    let source = dir.file("source", 2 * SIZE);
    let (mut sender, address) = send(&[&source], &["--rate", "8MB/s", "--min-receivers", "2"]);
    let first = recv(&address, "first", &dir.path("first"), &[]);
    let killed = recv(&address, "back", &dir.path("back"), &[]);
    sender.until_share_of("slowest", 65);
    let mut late = recv(&address, "late", &dir.path("late"), &[]);
    late.until("joined", |_| true);
    killed.signal(Signal::KILL);
    killed.end();
    let back = recv(&address, "back", &dir.path("back"), &["--serve"]);
    let late = late.end().expect(0);
    let back = back.end().expect(0);
    first.end().expect(0);
    let sent = sender.end().expect(0);
    for name in ["first", "back", "late"] {
        same(&source, &dir.path(name).join("source"));
        assert_eq!(sent.result(name)["state"], "verified");
    }
    assert_eq!(late.all("joined").count(), 1, "{late:#?}");
    assert!(from_peers("late", &late, &sent) > 1 << 20, "{sent:#?}");
    assert_eq!(from_peers("back", &back, &sent), 0);
}

/// A sender can have a late receiver connect to others a few times, and no more.
#[test]
fn a_sender_that_names_others_all_the_time_is_left() {
    let dir = Scratch::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let late = receiver(&address, "late", &dir.path("late"), &[]);
    let mut sender = Peer::accept(&listener);
    sender.welcome("x", 100);
    sender.until("prepared");
    let root = UdpSocket::bind("127.0.0.1:0").unwrap();
    let root = json!({"ip": root.local_addr().unwrap().to_string()});
    sender.say(json!({
        "say": "start", "group": null, "root": root, "chunk": 1000, "window": 64,
        "members": [0, 1], "scheme": "auto", "addresses": [], "late": true,
    }));
    sender.until("ready");
    sender.say(json!({
        "say": "join", "slot": 0, "epoch": 1, "first": 7, "receivers": 1, "packs": 1,
    }));
    let peers = json!({"say": "peers", "peers": []});
    (0..8).for_each(|_| sender.say(peers.clone()));
    sender.until("need");
    sender.say(peers);
    let end = late.end().expect(8);
    assert!(
        end.stderr.contains("not a fabricast sender"),
        "{}",
        end.stderr
    );
}

/// Nobody can be served after the stream, so one that has everything need not stay.
#[test]
fn one_that_has_everything_ends_while_another_has_not() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let flush = Flush::new(&dir);
    let (mut sender, address) = common::sender(&source, &steady("2"));
    let held = flush.held(&Loopback, &address, "held", &dir.path("held"));
    let first = receiver(&address, "first", &dir.path("first"), &["--serve"]);
    let reached = flush.reached();
    let first = first.end().expect(0);
    assert_eq!(first.one("done")["state"], "verified");
    sender.until("verified", |e| e["receiver"] == "first");
    drop(reached);
    held.end().expect(0);
    assert_eq!(sender.end().expect(0).result("first")["state"], "verified");
}

/// One host cannot take all places of a receiver that serves.
#[test]
fn a_few_guests_of_one_address_are_served() {
    let mut begun = Begun::new();
    begun.sender.until_share_of("slowest", 5);
    let (member, at, shows) = told(&begun.address);
    let mut guests: Vec<Peer> = (0..4).map(|_| guest(&at, &shows)).collect();
    let mut further = Peer::connect(&at);
    further.say(shows.clone());
    further.refused("of this address");
    // Where one goes, another may come.
    let need = json!({"say": "need", "pack": 1, "block": null});
    let mut talks = guests.pop().unwrap();
    talks.say(json!({"say": "working", "done": 1}));
    assert!(talks.is_closed());
    let mut next = guest(&at, &shows);
    next.say(need);
    assert_eq!(next.bulk(), b"");
    drop(member);
    begun.first.end().expect(0);
    begun.second.end().expect(0);
    begun.sender.end().expect(4);
}

/// Without the number that the sender tells, nobody gets anything from a receiver that serves.
#[test]
fn a_client_without_the_ticket_gets_nothing() {
    let mut begun = Begun::new();
    begun.sender.until_share_of("slowest", 20);
    let (member, at, shows) = told(&begun.address);
    let need = json!({"say": "need", "pack": 1, "block": null});
    let wrong = "5a".repeat(32);
    let first = [
        json!({"say": "ticket", "ticket": wrong}),
        json!({"say": "ticket", "ticket": "short"}),
        json!({"say": "serves", "port": 4000, "ticket": shows["ticket"]}),
        need.clone(),
    ];
    for first in first {
        let mut stranger = Peer::connect(&at);
        stranger.say(first);
        assert!(stranger.is_closed(), "it was told something");
    }
    assert!(Peer::hello(&at, "stranger", able()).is_closed());
    let mut other = Peer::connect(&at);
    other.say(json!({"say": "hello", "version": 1, "name": "stranger"}));
    assert!(other.is_closed(), "it was told a version");
    // With the number, it gets what is there, and nothing else.
    let mut guest = self::guest(&at, &shows);
    guest.say(need.clone());
    guest.say(json!({"say": "need", "pack": 4_000_000, "block": 15, "hash": wrong}));
    assert_eq!([guest.bulk(), guest.bulk()], [b"", b""]);
    guest.say(json!({"say": "need", "pack": 0, "list": true}));
    guest.refused("cannot have");
    let mut talks = self::guest(&at, &shows);
    talks.say(json!({"say": "working", "done": 1}));
    assert!(talks.is_closed());
    drop(member);
    begun.first.end().expect(0);
    begun.second.end().expect(0);
    begun.sender.end().expect(4);
}

/// A receiver that says that it serves and lies is named, and left.
#[test]
fn one_that_lies_costs_the_late_receiver_nothing() {
    let dir = Scratch::new();
    let source = dir.file("source", SIZE);
    let (mut sender, address) = common::sender(&source, &steady("1"));
    let first = receiver(&address, "first", &dir.path("first"), &[]);
    sender.until_share(20);
    let mut liar = Peer::hello(&address, "liar", able());
    liar.until("welcome");
    liar.say(json!({"say": "prepared"}));
    liar.until("start");
    liar.say(json!({"say": "ready"}));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ticket = "5a".repeat(32);
    liar.say(json!({"say": "serves", "port": port, "ticket": ticket}));
    liar.until("join");
    let mut late = receiver(&address, "late", &dir.path("late"), &[]);
    let mut guest = Peer::accept(&listener);
    let shown = guest.hear();
    assert_eq!(shown, json!({"say": "ticket", "ticket": ticket}));
    guest.say(json!({"say": "admitted"}));
    assert_eq!(guest.hear()["say"], "need");
    guest.give(&[7; 57]);
    let left = late.until("peer_left", |_| true);
    let named = left["peer"].as_str().unwrap();
    assert_eq!(named, listener.local_addr().unwrap().to_string());
    assert!(guest.is_closed());
    drop(liar);
    late.end().expect(0);
    same(&source, &dir.path("late"));
    first.end().expect(0);
    assert_eq!(sender.end().expect(4).result("liar")["state"], "lost");
}

/// What a receiver may say of itself: no port of a service, and once.
#[test]
fn one_that_offers_what_it_cannot_is_given_up() {
    let ticket = "5a".repeat(32);
    for ports in [&[80][..], &[4000, 4001]] {
        let mut begun = Begun::new();
        begun.sender.until_share_of("slowest", 5);
        let (mut peer, ..) = told(&begun.address);
        for port in ports {
            peer.say(json!({"say": "serves", "port": port, "ticket": ticket}));
        }
        let why = peer.until("removed")["reason"].to_string();
        assert!(why.contains("out of turn"), "{why}");
        begun.first.signal(Signal::INT);
        begun.second.signal(Signal::INT);
        begun.sender.signal(Signal::INT);
        begun.sender.end().expect(130);
    }
}

#[test]
fn one_that_keeps_no_files_cannot_serve() {
    let dir = Scratch::new();
    let to_pipe = Run::start(["recv", "-", "--from", "127.0.0.1:1", "--serve"]);
    let end = to_pipe.end().expect(2);
    assert!(end.stderr.contains("--serve"), "{}", end.stderr);
    let discards = ["recv", "--discard", "--from", "127.0.0.1:1", "--serve"];
    let end = Run::start(discards).end().expect(2);
    assert!(end.stderr.contains("--discard"), "{}", end.stderr);
    // By P3's protocol receivers do not know each other.
    let source = dir.file("source", 100_000);
    let (sender, address) = common::sender(&source, &["--no-announce", "--scheme", "ibrmp"]);
    let end = receiver(&address, "x", &dir.path("x"), &["--serve"]).end();
    let end = end.expect(2);
    assert!(end.stderr.contains("ibrmp"), "{}", end.stderr);
    sender.end().expect(4);
}
