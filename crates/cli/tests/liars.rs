//! Admitted receivers that lie in their feedback: they keep nobody else from the file.

mod common;

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::control::Peer;
use common::{Run, Scratch, receiver, same, sender};
use fabricast::proto::wire::{self, Feedback, Frame, Header, Ranges};
use fabricast::proto::{GroupId, NodeId, Seq, Session};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

/// What an admitted receiver tells that has no file.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// That it receives ever more, though it places nothing.
    Counts,
    /// That it lacks everything, again and again.
    LacksAll,
    /// That it is there, and nothing else: it never joins.
    Unready,
}

/// A receiver by hand that takes part and lies, until it is dropped.
struct Liar {
    peer: Peer,
    over: Arc<AtomicBool>,
    speaks: JoinHandle<()>,
}

impl Liar {
    /// It is admitted and has prepared; [`Liar::begin`] when all are there.
    fn admitted(address: &str) -> (Peer, UdpSocket, Value) {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = udp.local_addr().unwrap().port();
        let mut peer = Peer::hello(address, "liar", json!({"udp_port": port}));
        let welcome = peer.until("welcome");
        peer.say(json!({"say": "prepared"}));
        (peer, udp, welcome)
    }

    fn begin((mut peer, udp, welcome): (Peer, UdpSocket, Value), lie: Lie) -> Liar {
        let start = peer.until("start");
        if lie != Lie::Unready {
            peer.say(json!({"say": "ready"}));
        }
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let speaks = thread::spawn(move || speak(&udp, &welcome, &start, lie, &told));
        Liar { peer, over, speaks }
    }

    fn end(mut self) {
        self.peer.until("removed");
        self.over.store(true, Ordering::Relaxed);
        self.speaks.join().unwrap();
    }
}

/// Hears the group and answers probes, and tells its lie every few milliseconds.
fn speak(udp: &UdpSocket, welcome: &Value, start: &Value, lie: Lie, over: &AtomicBool) {
    let number = |v: &Value| v.as_u64().unwrap();
    let session = number(&welcome["session"]);
    let (first, window) = (Seq(session as u32), number(&start["window"]) as u32);
    let root: SocketAddr = start["root"].as_str().unwrap().parse().unwrap();
    let group: SocketAddrV4 = start["group"].as_str().unwrap().parse().unwrap();
    let header = Header {
        flight: 0,
        source: NodeId(number(&welcome["node"]) as u32),
        session: Session(session),
    };
    let hears = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    hears.set_reuse_address(true).unwrap();
    hears.bind(&SocketAddr::V4(group).into()).unwrap();
    hears
        .join_multicast_v4(group.ip(), &Ipv4Addr::LOCALHOST)
        .unwrap();
    let hears: UdpSocket = hears.into();
    let pause = Duration::from_millis(if lie == Lie::LacksAll { 2 } else { 20 });
    hears.set_read_timeout(Some(pause)).unwrap();
    let (mut bytes, mut said, mut count) = (vec![0; 65_536], Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        let mut answer = Vec::new();
        wire::put_header(&mut answer, &header);
        if let Ok(len) = hears.recv(&mut bytes)
            && let Ok(datagram) = wire::decode(&bytes[..len])
            && let Some(Frame::Probe(probe)) = datagram.frames().next()
        {
            wire::put_probe_ack(&mut answer, &probe);
        } else if said.elapsed() >= pause {
            said = Instant::now();
            count += 1;
            let (limit, high) = match lie {
                Lie::Unready => (first, first),
                Lie::Counts => (first + window, first),
                Lie::LacksAll => (first + window, first + window),
            };
            let feedback = Feedback {
                group: GroupId(0),
                root: NodeId(0),
                cum: first,
                below: first,
                limit,
                high,
                received: if lie == Lie::Counts { count } else { 1 },
                arrived_us: 0,
                held_us: 0,
                flight: 0,
                flags: 0,
                missing: Ranges::NONE,
            };
            let missing = (lie == Lie::LacksAll).then_some((first, window));
            wire::put_feedback(&mut answer, &feedback, missing.into_iter());
        } else {
            continue;
        }
        udp.send_to(&answer, root).unwrap();
    }
}

/// A transfer of so many bytes to an honest receiver and one that tells this lie.
fn lied_to(dir: &Scratch, len: usize, lie: Lie, args: &[&str]) -> (Run, Liar, Run) {
    let source = dir.file("source", len);
    let fixed = ["--no-announce", "--min-receivers", "2"];
    let (send, address) = sender(&source, &[&fixed, args].concat());
    let liar = Liar::admitted(&address);
    let good = receiver(&address, "good", &dir.path("copy"), &["--no-sync"]);
    (send, Liar::begin(liar, lie), good)
}

/// The window of the one that lies is 16 MiB: then everybody waits for it.
#[test]
fn who_only_says_that_it_gets_on_is_dropped() {
    let dir = Scratch::new();
    let args = ["--patience", "500ms", "--slow", "drop"];
    let (send, liar, good) = lied_to(&dir, 40_000_000, Lie::Counts, &args);
    liar.end();
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("liar")["state"], "dropped");
    assert_eq!(sent.result("good")["state"], "verified");
    same(&dir.path("source"), &dir.path("copy"));
}

/// Without `--slow`, and where nobody watches a terminal: the transfer never began, or never ended.
#[test]
fn who_only_speaks_keeps_nobody_waiting_for_ever() {
    for (lie, why) in [(Lie::Unready, "3 times"), (Lie::Counts, "6 times")] {
        let dir = Scratch::new();
        let (send, liar, good) = lied_to(&dir, 1_000_000, lie, &["--patience", "500ms"]);
        good.end().expect(0);
        let sent = send.end().expect(4);
        liar.end();
        assert_eq!(sent.result("liar")["state"], "dropped");
        let reason = sent.result("liar")["reason"].to_string();
        assert!(reason.contains(why), "{reason}");
        assert_eq!(sent.result("good")["state"], "verified");
        same(&dir.path("source"), &dir.path("copy"));
    }
}

#[test]
fn who_lacks_everything_does_not_starve_the_others() {
    const MB: u64 = 1_000_000;
    let dir = Scratch::new();
    let fixed = ["--patience", "1s", "--slow", "drop"];
    let args = [&fixed[..], &["--rate", "400Mbit"]].concat();
    let (mut send, liar, good) = lied_to(&dir, 40 * MB as usize, Lie::LacksAll, &args);
    // By bytes, for how fast this machine is does not matter: what the liar was sent by when the
    // honest receiver had half of the window. It has an eighth of the window in advance.
    let progress = send.until("progress", |e| e["fastest"].as_u64() >= Some(8 * MB));
    let fastest = progress["fastest"].as_u64().unwrap();
    let repairs = progress["repairs"].as_u64().unwrap() * 1440;
    assert!(repairs <= 2 * MB + fastest / 2, "{progress}");
    liar.end();
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("liar")["state"], "dropped");
    same(&dir.path("source"), &dir.path("copy"));
}
