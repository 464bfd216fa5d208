//! Receivers that are admitted and then lie.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::proto::limits::HEAD_MAX;
use fabricast::proto::wire::{self, Declined, Feedback, Frame, Header, Origin, Ranges, Writer};
use fabricast::proto::{GroupId, NodeId, Seq, Session};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::udp_towards;
use crate::common::control::{self, Peer};
use crate::common::place::Place;
use crate::common::{Run, Scratch, same};

/// The lies of an admitted receiver that has no file.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// It reports ever more received packets, but places none.
    Counts,
    /// It reports again and again that it lacks everything.
    LacksAll,
    /// It reports that it is there, but never joins.
    Unready,
    /// It acknowledges all that it hears. What it says over its control connection, it is told.
    Acknowledges,
    /// It pretends to the other receivers that it repairs for the sender. It sends wrong bytes, and
    /// claims that the sender has sent far more.
    Relays,
}

/// A hand-made receiver that takes part and lies until the sender drops it.
struct Liar {
    peer: Peer,
    over: Arc<AtomicBool>,
    /// Number of packets from the first one to the furthest that it has heard.
    heard: Arc<AtomicU32>,
    speaks: JoinHandle<()>,
}

impl Liar {
    /// Gets admitted and prepares. [`Liar::begin`] follows when all receivers are there.
    fn admitted(address: &str, lie: Lie) -> (Peer, UdpSocket, Value) {
        let udp = udp_towards(address);
        let port = udp.local_addr().unwrap().port();
        let mut peer = Peer::hello(address, "liar", control::port(port));
        let welcome = peer.until("welcome");
        peer.say(json!({"say": "prepared", "may_have": lie == Lie::Acknowledges}));
        (peer, udp, welcome)
    }

    fn begin((mut peer, udp, welcome): (Peer, UdpSocket, Value), lie: Lie) -> Liar {
        let start = peer.until("start");
        if lie != Lie::Unready {
            peer.say(json!({"say": "ready"}));
        }
        let over = Arc::new(AtomicBool::new(false));
        let heard = Arc::new(AtomicU32::new(0));
        let told = (Arc::clone(&over), Arc::clone(&heard));
        let speaks = thread::spawn(move || speak(&udp, &welcome, &start, lie, (&told.0, &told.1)));
        Liar {
            peer,
            over,
            heard,
            speaks,
        }
    }

    fn end(mut self) {
        self.peer.until("removed");
        self.stop();
    }

    fn stop(self) {
        self.over.store(true, Ordering::Relaxed);
        self.speaks.join().unwrap();
    }
}

/// Listens to the group, answers probes, and repeats its lie every few milliseconds. Notes how far
/// the data are that it hears.
fn speak(
    udp: &UdpSocket,
    welcome: &Value,
    start: &Value,
    lie: Lie,
    (over, heard): (&AtomicBool, &AtomicU32),
) {
    let number = |v: &Value| v.as_u64().unwrap();
    let session = number(&welcome["session"]);
    let (first, window) = (Seq(session as u32), number(&start["window"]) as u32);
    let root: SocketAddr = start["root"]["ip"].as_str().unwrap().parse().unwrap();
    let group: SocketAddrV4 = start["group"]["ip"].as_str().unwrap().parse().unwrap();
    let header = Header {
        burst: 0,
        source: NodeId(number(&welcome["node"]) as u32),
        session: Session(session),
    };
    let ip = match udp.local_addr().unwrap().ip() {
        IpAddr::V4(ip) => ip,
        other => panic!("{other}"),
    };
    let hears = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    hears.set_reuse_address(true).unwrap();
    hears.bind(&SocketAddr::V4(group).into()).unwrap();
    hears.join_multicast_v4(group.ip(), &ip).unwrap();
    let hears: UdpSocket = hears.into();
    let pause = Duration::from_millis(match lie {
        Lie::LacksAll | Lie::Relays | Lie::Acknowledges => 2,
        _ => 20,
    });
    let own = header.source.0 as usize;
    let has_come = |next: Seq| {
        heard.fetch_max(next.from(first).unsigned_abs(), Ordering::Relaxed);
    };
    hears.set_read_timeout(Some(pause)).unwrap();
    udp.set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    let (mut bytes, mut said, mut count) = (vec![0; 65_536], Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        let mut space = [0; HEAD_MAX];
        let mut answer = Writer::new(&mut space);
        wire::put_header(&mut answer, &header);
        let mut probe = None;
        // What comes to it alone comes to its own socket.
        let heard_some = hears.recv(&mut bytes).or_else(|_| udp.recv(&mut bytes));
        if let Ok(len) = heard_some
            && let Ok(datagram) = wire::decode(&bytes[..len])
        {
            match datagram.frames().next() {
                Some(Frame::Probe(asked)) => probe = Some(asked),
                // The last packets may have been lost, or come combined: a sync names them.
                Some(Frame::Data(data)) => has_come(data.seq + 1),
                Some(Frame::Sync(sync)) => has_come(sync.next),
                _ => {}
            }
        }
        if let Some(probe) = probe {
            wire::put_probe_ack(&mut answer, &probe);
        } else if said.elapsed() >= pause {
            said = Instant::now();
            count += 1;
            if lie == Lie::Relays {
                relay(udp, &header, start, (first, count), own);
            }
            let here = match lie {
                Lie::Acknowledges => first + heard.load(Ordering::Relaxed),
                _ => first,
            };
            let (limit, high) = match lie {
                Lie::Acknowledges => (here + window, here),
                Lie::Unready => (first, first),
                Lie::Counts | Lie::Relays => (first + window, first),
                Lie::LacksAll => (first + window, first + window),
            };
            let feedback = Feedback {
                group: GroupId(0),
                sender: NodeId(0),
                cum: here,
                cum_subtree: here,
                limit,
                high,
                received: if lie == Lie::Counts { count } else { 1 },
                arrived_us: 0,
                held_us: 0,
                burst: 0,
                flags: 0,
                slot: None,
                declined: Declined::NONE,
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

/// Sends wrong bytes, one packet further each time, and a sync, to all receivers but node `own`.
fn relay(udp: &UdpSocket, header: &Header, start: &Value, (first, count): (Seq, u32), own: usize) {
    let len = start["chunk"].as_u64().unwrap() as usize;
    let (group, root) = (GroupId(0), NodeId(0));
    let origin = Origin::Relayed(root);
    let mut wrong = wire::head(|out| {
        wire::put_header(out, header);
        wire::put_data(out, group, origin, first + count, 0, len as u32);
    });
    wrong.resize(wrong.len() + len, 0xee);
    let sync = wire::Sync {
        group,
        sender: root,
        next: first + count + 10_000,
    };
    let sync = wire::head(|out| {
        wire::put_header(out, header);
        wire::put_sync(out, &sync);
    });
    // The addresses are those of nodes 1, 2 and so on, in order.
    let addresses = start["addresses"].as_array().unwrap();
    assert!(addresses.len() > 1, "{start}");
    for (_, to) in (1..).zip(addresses).filter(|(node, _)| *node != own) {
        for bytes in [&wrong, &sync] {
            udp.send_to(bytes, to["ip"].as_str().unwrap()).unwrap();
        }
    }
}

/// Starts a transfer of `len` bytes to an honest receiver and to a liar on host 3.
fn lied_to(
    place: &impl Place,
    dir: &Scratch,
    len: usize,
    lie: Lie,
    args: &[&str],
) -> (Run, Liar, Run) {
    let source = dir.path("source");
    if !source.exists() {
        dir.file("source", len);
    }
    let fixed = ["--no-announce", "--min-receivers", "2"];
    let (send, address) = place.sender(&source, &[&fixed, args].concat());
    let liar = place.on(3, || Liar::admitted(&address, lie));
    let copy = ["--no-sync", "--force"];
    let good = place.receiver(&address, "good", &dir.path("copy"), &copy);
    (send, place.on(3, || Liar::begin(liar, lie)), good)
}

/// A receiver reports progress but places nothing. Its window is 16 MiB, so all others must wait
/// for it.
pub fn who_only_counts(place: &impl Place) {
    let dir = Scratch::new();
    let args = ["--patience", "500ms", "--slow", "drop"];
    let (send, liar, good) = lied_to(place, &dir, 40_000_000, Lie::Counts, &args);
    liar.end();
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("liar")["state"], "dropped");
    assert_eq!(sent.result("good")["state"], "verified");
    same(&dir.path("source"), &dir.path("copy"));
}

/// A receiver reports progress but places nothing, so the sender goes as far as the scheme's window
/// allows and waits for it.
pub fn window_of_the_scheme(place: &impl Place) {
    for (scheme, packets) in [("window", 64), ("channels(4)", 256)] {
        let dir = Scratch::new();
        let args = ["--scheme", scheme, "--patience", "500ms"];
        let (mut send, liar, good) = lied_to(place, &dir, 4_000_000, Lie::Counts, &args);
        assert_eq!(send.until("starting", |_| true)["window"], packets);
        send.until("slow", |e| e["receiver"] == "liar");
        assert_eq!(liar.heard.load(Ordering::Relaxed), packets, "{scheme}");
        drop((send, good));
        liar.stop();
    }
}

/// A receiver keeps sending, but the transfer never begins, or never ends. The default of `--slow`
/// applies, and standard error is no terminal.
pub fn who_only_speaks(place: &impl Place) {
    for (lie, why) in [(Lie::Unready, "3 times"), (Lie::Counts, "6 times")] {
        let dir = Scratch::new();
        let (send, liar, good) = lied_to(place, &dir, 1_000_000, lie, &["--patience", "500ms"]);
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

/// A receiver that was not chosen to repair for others sends them wrong bytes.
pub fn who_relays(place: &impl Place) {
    let dir = Scratch::new();
    let fixed = ["--patience", "500ms", "--slow", "drop", "--rate", "20MB/s"];
    let args = [&fixed[..], &["--scheme", "coroot(3)"]].concat();
    let (send, liar, good) = lied_to(place, &dir, 20_000_000, Lie::Relays, &args);
    liar.end();
    let end = good.end().expect(0);
    let done = end.one("done");
    let mended = &done["tally"]["mended"];
    assert_eq!(*mended, 0, "what it relays was believed: {done}");
    let sent = send.end().expect(4);
    assert_eq!(sent.result("liar")["state"], "dropped");
    same(&dir.path("source"), &dir.path("copy"));
}

/// A receiver reports again and again that it lacks everything.
pub fn who_lacks_everything(place: &impl Place) {
    const MB: u64 = 1_000_000;
    let dir = Scratch::new();
    let fixed = ["--patience", "1s", "--slow", "drop"];
    let args = [&fixed[..], &["--rate", "400Mbit"]].concat();
    let (mut send, liar, good) = lied_to(place, &dir, 40 * MB as usize, Lie::LacksAll, &args);
    // The liar may get an eighth of the window in advance, and a fifth of the rate as long as the
    // transfer lasts: on a busy machine that is more before the honest receiver has half of the
    // window.
    let progress = send.until("progress", |e| e["fastest"].as_u64() >= Some(8 * MB));
    let of = |name: &str| progress[name].as_f64().unwrap();
    let may_get = 2.0 * MB as f64 + of("rate") / 5.0 * of("seconds");
    assert!(of("repairs") * 1440.0 <= may_get, "{progress}");
    liar.end();
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("liar")["state"], "dropped");
    assert!(sent.result("liar")["repairs"].as_u64() > Some(0), "unheard");
    same(&dir.path("source"), &dir.path("copy"));
}

/// What becomes of a transfer of a file that an honest receiver has, while another one says over
/// its control connection what `tells` has it say: what the sender and the honest receiver print.
pub fn compares(
    place: &impl Place,
    args: &[&str],
    tells: impl FnOnce(&mut Peer),
) -> (crate::common::End, crate::common::End) {
    compares_in(&Scratch::new(), place, args, tells)
}

/// Like [`compares`], in this directory, where the file may be as `source`.
pub fn compares_in(
    dir: &Scratch,
    place: &impl Place,
    args: &[&str],
    tells: impl FnOnce(&mut Peer),
) -> (crate::common::End, crate::common::End) {
    let source = dir.path("source");
    if !source.exists() {
        dir.file("source", 12_000_000);
    }
    std::fs::copy(&source, dir.path("copy")).unwrap();
    let time = source.metadata().unwrap().modified().unwrap();
    let copy = std::fs::File::options().write(true).open(dir.path("copy"));
    copy.unwrap().set_modified(time).unwrap();
    let (send, mut liar, good) = lied_to(place, dir, 0, Lie::Acknowledges, args);
    tells(&mut liar.peer);
    let good = good.end().expect(0);
    let sent = send.end().expect(4);
    liar.stop();
    assert_eq!(sent.result("good")["state"], "verified");
    same(&dir.path("source"), &dir.path("copy"));
    (sent, good)
}
