//! Clients that take seats of a transfer: many seats, seats without taking part, or without having
//! the file.

use std::net::UdpSocket;
use std::thread;

use fabricast::proto::NodeId;
use fabricast::proto::wire;
use serde_json::json;

use super::udp_towards;
use crate::common::control::{self, Peer};
use crate::common::place::Place;
use crate::common::{BOUND, FABRICAST, Run, Scratch, same};

/// A host takes another receiver's name, and more seats than one address may have.
pub fn few_seats(place: &impl Place) {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let seats = ["--min-receivers", "3", "--per-host", "3"];
    let args = [&["--no-announce", "--late", "refuse"][..], &seats].concat();
    let (mut send, address) = place.sender(&source, &args);
    let hello = |name, port: u16| {
        let hello = || Peer::hello(&address, name, control::port(port));
        place.on(3, hello)
    };
    let mut first = hello("first", 4000);
    first.until("welcome");
    first.say(json!({"say": "prepared"}));
    send.until("connected", |e| e["receiver"] == "first");
    // The first receiver with a name must not keep a later one with the same name out.
    let mut namesake = hello("first", 4001);
    let host = namesake.0.local_addr().unwrap().ip();
    let renamed = format!("first@{host}:4001");
    namesake.until("welcome");
    namesake.say(json!({"say": "prepared"}));
    send.until("connected", |e| e["receiver"] == *renamed);
    let mut second = hello("second", 4002);
    second.until("welcome");
    hello("third", 4003).refused("--per-host");
    // A receiver that cannot take part frees its seat for another one, and says why.
    second.say(json!({"say": "failed", "code": 7, "reason": "no space for it"}));
    send.until("refused", |e| e["receiver"] == "second");
    let good = place.receiver(&address, "good", &dir.path("copy"), &[]);
    first.until("start");
    let late = place.receiver(&address, "late", &dir.path("late"), &[]);
    late.end().expect(9);
    drop((first, namesake));
    good.end().expect(0);
    let sent = send.end().expect(4);
    assert_eq!(sent.result("good")["state"], "verified");
    assert_eq!(sent.result(&renamed)["state"], "lost");
    assert_eq!(sent.one("summary")["receivers"], 3);
    assert_eq!(sent.one("summary")["refused"], 3);
    for (receiver, why) in [
        ("second", "no space for it"),
        ("third", &*format!("3 receivers of {host}")),
        ("late", "has begun"),
    ] {
        let result = sent.result(receiver);
        assert_eq!(result["state"], "refused");
        assert!(result["reason"].as_str().unwrap().contains(why), "{result}");
    }
}

/// The first client comes by IPv6, and chose the family for all: it kept all others out.
pub fn other_family(place: &impl Place) {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = ["--no-announce", "--min-receivers", "2"];
    let (mut send, address) = place.sender_by(place.interface(), &source, &args);
    let port = address.rsplit(':').next().unwrap();
    let by_six = format!("[{}]:{port}", place.ip6(1));
    let mut six = place.on(3, || Peer::hello(&by_six, "six", json!({})));
    six.until("welcome");
    six.say(json!({"say": "prepared"}));
    send.until("connected", |e| e["receiver"] == "six");
    let by_four = format!("{}:{port}", place.ip(1));
    let good = [(2, "a"), (3, "b")]
        .map(|(host, name)| place.receiver_on(host, &by_four, name, &dir.path(name), &[]));
    six.refused("goes by IPv4");
    for run in good {
        run.end().expect(0);
    }
    let sent = send.end().expect(0);
    assert_eq!(sent.result("six")["state"], "refused");
    same(&source, &dir.path("a"));
}

/// A host connects until the sender has no file descriptors left.
pub fn descriptors(place: &impl Place) {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let mut command = place.launch(1, "sh");
    command.arg("-c").arg(format!(
        "ulimit -n 160; exec {} send {} --json --port 0 --interface {} --no-announce \
         --min-receivers 40 --per-host 1000",
        FABRICAST,
        source.display(),
        place.ip(1)
    ));
    let mut send = Run::spawn(command);
    let listening = send.until("listening", |_| true);
    let address = listening["address"].as_str().unwrap();
    let (mut peers, mut refused) = (Vec::new(), Vec::new());
    for n in 0..250 {
        let datagrams = control::port(4000 + n);
        let mut peer = place.on(3, || Peer::hello(address, &n.to_string(), datagrams));
        let answer = peer.hear();
        if answer["say"] == "refused" {
            let reason = answer["reason"].as_str().unwrap();
            assert!(reason.contains("ulimit -n"), "{reason}");
            refused.push(peer);
        } else {
            peers.push(peer);
        }
    }
    assert!((60..110).contains(&peers.len()), "{}", peers.len());
    // Refused clients that do not hang up hold no more descriptors than pending connections may.
    let open = format!("/proc/{}/fd", send.pid().as_raw_nonzero());
    let open = std::fs::read_dir(open).unwrap().count();
    assert!(
        open < 140,
        "{open} descriptors with {} refused",
        refused.len()
    );
    // The sender can still open what the transfer needs.
    for peer in &mut peers[..40] {
        peer.say(json!({"say": "prepared"}));
    }
    send.until("starting", |_| true);
    drop(peers);
    let sent = send.end().expect(4);
    assert_eq!(sent.one("summary")["receivers"], 40);
}

/// A receiver is admitted and then stays silent.
pub fn silent_seat(place: &impl Place) {
    let dir = Scratch::new();
    let source = dir.file("source", 1000);
    let args = [
        "--no-announce",
        "--min-receivers",
        "2",
        "--patience",
        "300ms",
    ];
    let (mut send, address) = place.sender(&source, &args);
    let mut silent = place.on(3, || Peer::hello(&address, "silent", json!({})));
    silent.until("welcome");
    silent.say(json!({"say": "prepared"}));
    let good = place.receiver(&address, "good", &dir.path("copy"), &[]);
    send.until("slow", |e| e["receiver"] == "silent");
    let reason = silent.until("removed")["reason"].to_string();
    assert!(reason.contains("nothing was heard of it"), "{reason}");
    let sent = send.end().expect(4);
    assert_eq!(sent.result("silent")["state"], "dropped");
    assert_eq!(sent.result("good")["state"], "verified");
    good.end().expect(0);
}

/// Answers every probe that arrives at `socket`, as node `node`.
fn answer_probes(socket: UdpSocket, node: u32) {
    let mut bytes = [0; 65_536];
    while let Ok((n, from)) = socket.recv_from(&mut bytes) {
        let Ok(datagram) = wire::decode(&bytes[..n]) else {
            continue;
        };
        for frame in datagram.frames() {
            if let wire::Frame::Probe(probe) = frame {
                let header = wire::Header {
                    burst: 0,
                    source: NodeId(node),
                    session: datagram.header.session,
                };
                let answer = wire::head(|out| {
                    wire::put_header(out, &header);
                    wire::put_probe_ack(out, &probe);
                });
                socket.send_to(&answer, from).unwrap();
            }
        }
    }
}

/// A receiver takes part and hears how the file is proven, but has not a byte of it.
pub fn unproven(place: &impl Place) {
    let dir = Scratch::new();
    let source = dir.file("source", 3_000_000);
    let args = [
        "--no-announce",
        "--min-receivers",
        "2",
        "--reach",
        "unicast",
    ];
    let (send, address) = place.sender(&source, &args);
    let socket = place.on(3, || udp_towards(&address));
    socket.set_read_timeout(Some(BOUND)).unwrap();
    let port = socket.local_addr().unwrap().port();
    let hello = || Peer::hello(&address, "liar", control::port(port));
    let mut liar = place.on(3, hello);
    let node = liar.until("welcome")["node"].as_u64().unwrap() as u32;
    thread::spawn(move || answer_probes(socket, node));
    liar.say(json!({"say": "prepared"}));
    let good = place.receiver(&address, "good", &dir.path("copy"), &[]);
    liar.until("start");
    liar.say(json!({"say": "ready"}));
    let key = liar.until("end")["key"].to_string();
    liar.say(json!({
        "say": "verified", "received": 1, "duplicates": 0, "mended": 0, "mended_bytes": 0,
        "dropped": 0, "proof": key.trim_matches('"'),
    }));
    let sent = send.end().expect(4);
    let result = sent.result("liar");
    assert_eq!(result["state"], "failed");
    assert!(
        result["reason"].as_str().unwrap().contains("proof"),
        "{result}"
    );
    assert_eq!(sent.result("good")["state"], "verified");
    good.end().expect(0);
    same(&source, &dir.path("copy"));
}
