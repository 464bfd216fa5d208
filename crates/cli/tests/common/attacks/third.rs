//! A sender that makes its receivers send to a host that did not ask for it.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use fabricast::proto::wire;
use fabricast::proto::{GroupId, NodeId, Seq, Session};
use serde_json::json;

use super::listener;
use crate::common::control::{Peer, ip};
use crate::common::place::Place;
use crate::common::{BOUND, Scratch};

/// A sender names a third host as a receiver. That host gets one small challenge and nothing else.
pub fn third_host(place: &impl Place) {
    let dir = Scratch::new();
    let (listener, address) = listener(place);
    let third = place.on(3, || UdpSocket::bind((place.ip(3), 0)).unwrap());
    let pause = Some(Duration::from_millis(10));
    third.set_read_timeout(pause).unwrap();
    let root = place.on(1, || UdpSocket::bind((place.ip(1), 0)).unwrap());
    let nowhere = format!("{}:9", place.ip(1));
    let recv = place.receiver(&address, "r0", &dir.path("copy"), &[]);
    let mut peer = Peer::accept(&listener);
    let hello = peer.until("hello");
    let own: SocketAddr = hello["address"]["ip"].as_str().unwrap().parse().unwrap();
    let own = format!("{}:{}", place.ip(2), own.port());
    peer.say(json!({
        "say": "welcome", "version": 11, "session": 7, "node": 2, "name": "x", "len": 100_000,
        "tops": 1, "entries": 1, "block": 1 << 20,
    }));
    peer.until("prepared");
    // The receiver must report to the third host, and the sender requests a report again and again.
    peer.say(json!({
        "say": "start", "group": null, "root": ip(root.local_addr().unwrap()), "chunk": 1000,
        "window": 64, "members": [0, 1, 2], "scheme": "tree(1)",
        "addresses": [ip(third.local_addr().unwrap()), ip(&own)],
    }));
    peer.until("ready");
    let header = wire::Header {
        burst: 0,
        source: NodeId(0),
        session: Session(7),
    };
    let (mut came, mut room) = (Vec::new(), [0; 2000]);
    for n in 0..40 {
        let sync = wire::Sync {
            group: GroupId(0),
            sender: NodeId(0),
            next: Seq(7 + n),
        };
        let bytes = wire::head(|out| {
            wire::put_header(out, &header);
            wire::put_sync(out, &sync);
        });
        root.send_to(&bytes, &own).unwrap();
        came.extend(third.recv_from(&mut room).map(|(n, _)| n));
    }
    assert_eq!(came, [10]);
    // A second challenge costs the sender more bytes than the third host receives.
    peer.until("unanswered");
    peer.say(json!({"say": "ask", "node": 1}));
    third.set_read_timeout(Some(BOUND)).unwrap();
    assert_eq!(third.recv_from(&mut room).unwrap().0, 10);
    drop(peer);
    recv.end().expect(8);
    third.set_nonblocking(true).unwrap();
    assert!(third.recv_from(&mut room).is_err());

    // The receiver refuses a host that is named twice, or named with a service's port.
    let (twice, service) = (
        third.local_addr().unwrap().to_string(),
        &format!("{}:53", place.ip(3)),
    );
    for others in [[&*twice, &*twice], [&*twice, service]] {
        let recv = place.receiver(&address, "r0", &dir.path("copy"), &[]);
        let mut peer = Peer::accept(&listener);
        peer.offer();
        peer.say(json!({
            "say": "start", "group": null, "root": ip(&nowhere), "chunk": 1000, "window": 64,
            "members": [0, 1, 2], "scheme": "tree(1)", "addresses": others.map(ip),
        }));
        assert_eq!(peer.hear()["say"], "failed");
        let end = recv.end().expect(8);
        assert!(end.stderr.contains(others[1]), "{}", end.stderr);
    }

    // The receiver refuses a scheme that it was not started with.
    let recv = place.receiver(&address, "r0", &dir.path("copy"), &["--scheme", "window"]);
    let mut peer = Peer::accept(&listener);
    peer.offer();
    peer.start(&nowhere);
    let end = recv.end().expect(9);
    assert!(end.stderr.contains("--scheme"), "{}", end.stderr);
}
