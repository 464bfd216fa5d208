//! Attacks by hand that several tests perform, on the loopback and between hosts.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::proto::wire::{self, Feedback, Frame, Header, Origin, Ranges};
use fabricast::proto::{GroupId, NodeId, Seq, Session};
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use super::control::Peer;
use super::place::Place;
use super::{BOUND, Run, Scratch, same};

/// What an admitted receiver tells that has no file.
#[derive(Clone, Copy, PartialEq)]
pub enum Lie {
    /// That it receives ever more, though it places nothing.
    Counts,
    /// That it lacks everything, again and again.
    LacksAll,
    /// That it is there, and nothing else: it never joins.
    Unready,
}

/// A receiver by hand that takes part and lies, until it is dropped.
pub struct Liar {
    peer: Peer,
    over: Arc<AtomicBool>,
    speaks: JoinHandle<()>,
}

impl Liar {
    /// It is admitted and has prepared; [`Liar::begin`] when all are there.
    fn admitted(address: &str) -> (Peer, UdpSocket, Value) {
        // Datagrams count only from where the connection comes from.
        let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
        udp.connect(address).unwrap();
        let udp = UdpSocket::bind((udp.local_addr().unwrap().ip(), 0)).unwrap();
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

    pub fn end(mut self) {
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
    let ip = match udp.local_addr().unwrap().ip() {
        IpAddr::V4(ip) => ip,
        other => panic!("{other}"),
    };
    let hears = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    hears.set_reuse_address(true).unwrap();
    hears.bind(&SocketAddr::V4(group).into()).unwrap();
    hears.join_multicast_v4(group.ip(), &ip).unwrap();
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

/// A transfer of so many bytes to an honest receiver and one on host 3 that tells this lie.
pub fn lied_to(
    place: &impl Place,
    dir: &Scratch,
    len: usize,
    lie: Lie,
    args: &[&str],
) -> (Run, Liar, Run) {
    let source = dir.file("source", len);
    let fixed = ["--no-announce", "--min-receivers", "2"];
    let (send, address) = place.sender(&source, &[&fixed, args].concat());
    let liar = place.on(3, || Liar::admitted(&address));
    let good = place.receiver(&address, "good", &dir.path("copy"), &["--no-sync"]);
    (send, place.on(3, || Liar::begin(liar, lie)), good)
}

/// A receiver says again and again that it lacks everything.
pub fn who_lacks_everything(place: &impl Place) {
    const MB: u64 = 1_000_000;
    let dir = Scratch::new();
    let fixed = ["--patience", "1s", "--slow", "drop"];
    let args = [&fixed[..], &["--rate", "400Mbit"]].concat();
    let (mut send, liar, good) = lied_to(place, &dir, 40 * MB as usize, Lie::LacksAll, &args);
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
    assert!(sent.result("liar")["repairs"].as_u64() > Some(0), "unheard");
    same(&dir.path("source"), &dir.path("copy"));
}

/// A sender names a third host as a receiver: it gets one small question and nothing else.
pub fn third_host(place: &impl Place) {
    let dir = Scratch::new();
    let listener = place.on(1, || TcpListener::bind((place.ip(1), 0)).unwrap());
    let address = listener.local_addr().unwrap().to_string();
    let third = place.on(3, || UdpSocket::bind((place.ip(3), 0)).unwrap());
    let pause = Some(Duration::from_millis(10));
    third.set_read_timeout(pause).unwrap();
    let root = place.on(1, || UdpSocket::bind((place.ip(1), 0)).unwrap());
    let nowhere = format!("{}:9", place.ip(1));
    let recv = place.receiver(&address, "r0", &dir.path("copy"), &[]);
    let mut peer = Peer::accept(&listener);
    let own = format!("{}:{}", place.ip(2), peer.until("hello")["udp_port"]);
    peer.say(json!({
        "say": "welcome", "version": 2, "session": 7, "node": 2, "name": "x", "len": 100_000,
        "mode": 0o644, "block": 1 << 20,
    }));
    peer.until("prepared");
    // It is to report to the third host, and is asked to again and again.
    peer.say(json!({
        "say": "start", "group": null, "root": root.local_addr().unwrap(), "chunk": 1000,
        "window": 64, "members": [0, 1, 2], "scheme": "tree(1)",
        "addresses": [third.local_addr().unwrap(), own],
    }));
    peer.until("ready");
    let header = wire::Header {
        flight: 0,
        source: NodeId(0),
        session: Session(7),
    };
    let (mut came, mut room) = (Vec::new(), [0; 2000]);
    for n in 0..40 {
        let mut bytes = Vec::new();
        wire::put_header(&mut bytes, &header);
        let sync = wire::Sync {
            group: GroupId(0),
            root: NodeId(0),
            next: Seq(7 + n),
        };
        wire::put_sync(&mut bytes, &sync);
        root.send_to(&bytes, &own).unwrap();
        came.extend(third.recv_from(&mut room).map(|(n, _)| n));
    }
    assert_eq!(came, [10]);
    // A second one costs the sender more than the third host.
    peer.until("unanswered");
    peer.say(json!({"say": "ask", "node": 1}));
    third.set_read_timeout(Some(BOUND)).unwrap();
    assert_eq!(third.recv_from(&mut room).unwrap().0, 10);
    drop(peer);
    recv.end().expect(8);
    third.set_nonblocking(true).unwrap();
    assert!(third.recv_from(&mut room).is_err());

    // Nor to one that is said to be many, or at a service's port.
    let (twice, service) = (
        third.local_addr().unwrap().to_string(),
        &format!("{}:53", place.ip(3)),
    );
    for others in [[&*twice, &*twice], [&*twice, service]] {
        let recv = place.receiver(&address, "r0", &dir.path("copy"), &[]);
        let mut peer = Peer::accept(&listener);
        peer.offer();
        peer.say(json!({
            "say": "start", "group": null, "root": nowhere, "chunk": 1000, "window": 64,
            "members": [0, 1, 2], "scheme": "tree(1)", "addresses": others,
        }));
        assert_eq!(peer.hear()["say"], "failed");
        let end = recv.end().expect(8);
        assert!(end.stderr.contains(others[1]), "{}", end.stderr);
    }

    // Nor by a scheme that was not asked for.
    let recv = place.receiver(&address, "r0", &dir.path("copy"), &["--scheme", "window"]);
    let mut peer = Peer::accept(&listener);
    peer.offer();
    peer.start(&nowhere);
    let end = recv.end().expect(9);
    assert!(end.stderr.contains("--scheme"), "{}", end.stderr);
}

/// Sends datagrams with any source.
struct Forger(Socket);

impl Forger {
    /// `None`, and a word about it, without the right to do so.
    fn new(ip: Ipv4Addr) -> Option<Forger> {
        const RAW: i32 = 255; // the sender writes the IP header
        match Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW))) {
            Ok(socket) => {
                socket.set_multicast_if_v4(&ip).unwrap();
                Some(Forger(socket))
            }
            Err(e) => {
                println!("skipped: forged packets; no raw sockets here: {e}");
                None
            }
        }
    }

    fn send(&self, from: SocketAddrV4, to: SocketAddrV4, bytes: &[u8]) {
        const HEADS: usize = 20 + 8;
        let mut packet = vec![0; HEADS];
        packet[0] = 0x45;
        packet[8..10].copy_from_slice(&[1, 17]); // one hop, UDP
        packet[12..16].copy_from_slice(&from.ip().octets());
        packet[16..20].copy_from_slice(&to.ip().octets());
        packet[20..22].copy_from_slice(&from.port().to_be_bytes());
        packet[22..24].copy_from_slice(&to.port().to_be_bytes());
        packet[24..26].copy_from_slice(&(8 + bytes.len() as u16).to_be_bytes());
        packet.extend_from_slice(bytes);
        self.0.send_to(&packet, &to.into()).unwrap();
    }
}

/// Host 3 forges data in the sender's name, of the right length and ahead of the sender: each
/// packet spoils a block.
pub fn forged_data(place: &impl Place) {
    const FORGED: u32 = 12;
    let Some(forger) = place.on(3, || Forger::new(place.ip(3))) else {
        return;
    };
    let dir = Scratch::new();
    let source = dir.file("source", 20_000_000);
    let args = ["--no-announce", "--min-receivers", "2", "--rate", "20MB/s"];
    let (mut send, address) = place.sender(&source, &args);
    let receivers = ["r0", "r1"].map(|r| place.receiver(&address, r, &dir.path(r), &[]));
    let starting = send.until("starting", |_| true);
    let address = |key: &str| starting[key].as_str().unwrap().parse::<SocketAddrV4>();
    let (group, root) = (address("group").unwrap(), address("root").unwrap());

    // It hears the group, as anybody can, and is ahead of the sender with bytes of its own.
    let ear = place.on(3, || Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap());
    ear.set_reuse_address(true).unwrap();
    ear.bind(&group.into()).unwrap();
    ear.join_multicast_v4(group.ip(), &place.ip(3)).unwrap();
    ear.set_read_timeout(Some(BOUND)).unwrap();
    let ear = UdpSocket::from(ear);
    let mut bytes = vec![0; 65536];
    let mut forged = 0;
    while forged < FORGED {
        let heard = ear.recv(&mut bytes).unwrap();
        let Ok(datagram) = wire::decode(&bytes[..heard]) else {
            continue;
        };
        let Some(Frame::Data(data)) = datagram.frames().next() else {
            continue;
        };
        let Origin::Source(op) = data.origin else {
            continue;
        };
        // One in each 100 packets: in every block about one.
        if data.seq.from(op) < 100 * forged as i32 {
            continue;
        }
        let (origin, len) = (data.origin, data.payload.len());
        let mut fake = Vec::new();
        wire::put_header(&mut fake, &datagram.header);
        wire::put_data(&mut fake, data.group, origin, data.seq + 256, 0, len as u32);
        fake.resize(fake.len() + len, 0xee);
        forger.send(root, group, &fake);
        forged += 1;
    }

    let sent = send.end().expect(0);
    for (recv, name) in receivers.into_iter().zip(["r0", "r1"]) {
        let end = recv.end().expect(0);
        same(&source, &dir.path(name));
        let tally = &end.one("done")["tally"];
        let count = |key: &str| tally[key].as_u64().unwrap_or_else(|| panic!("{tally}"));
        let (mended, bytes) = (count("mended"), count("mended_bytes"));
        assert!(mended > 0, "nothing was forged in time: {tally}");
        // The hashes of a block's pieces, and the one or two that a packet lies in.
        let most = mended * 64 * 32 + u64::from(FORGED) * 2 * 16384;
        assert!(bytes <= most, "{tally}");
        assert_eq!(sent.result(name)["tally"], *tally);
    }
}
