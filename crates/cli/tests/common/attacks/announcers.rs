//! Hosts that announce what another host sends.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use rustix::process::Signal;
use socket2::{Domain, SockRef, Socket, Type};

use crate::common::place::Place;
use crate::common::{ANNOUNCED, Announcing, BOUND, Scratch, same};

/// A second host repeats the announcement that the sender makes, with the sender's session. It took
/// the sender's place, and nobody noticed that there were two.
pub fn repeated_session(place: &impl Place) {
    let dir = Scratch::new();
    let name = format!("repeated-{}", std::process::id());
    let source = dir.file(&name, 100_000);
    let (send, address) = place.sender(&source, &[]);
    let heard = place.on(3, || hear(place.ip(3), &name));
    // However busy the machine is, the receiver hears one host when it hears the other.
    send.signal(Signal::STOP);
    let socket = |host| {
        place.on(host, || {
            let socket = UdpSocket::bind((place.ip(host), 0)).unwrap();
            let by = SockRef::from(&socket).set_multicast_if_v4(&place.ip(host));
            by.unwrap();
            socket
        })
    };
    let both = Announcing::saying(vec![socket(1), socket(3)], heard);
    let copy = dir.path("copy");
    let by = place.ip(2).to_string();
    let fixed = ["recv", copy.to_str().unwrap(), "--json", "--interface", &by];
    let mut recv = place.start(2, &[&fixed[..], &["--name", &name]].concat());
    let trying = recv.until("trying", |_| true);
    let reason = trying["reason"].as_str().unwrap();
    for word in ["several", &address, &place.ip(3).to_string()] {
        assert!(reason.contains(word), "{word}: {reason}");
    }
    drop(both);
    send.signal(Signal::CONT);
    recv.end().expect(0);
    send.end().expect(0);
    same(&source, &copy);
}

/// The first announcement of `name` that arrives at the interface with the address `by`.
fn hear(by: Ipv4Addr, name: &str) -> Vec<u8> {
    let ear = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    ear.set_reuse_address(true).unwrap();
    ear.bind(&SocketAddrV4::new(ANNOUNCED.0, ANNOUNCED.1).into())
        .unwrap();
    ear.join_multicast_v4(&ANNOUNCED.0, &by).unwrap();
    ear.set_read_timeout(Some(BOUND)).unwrap();
    let ear = UdpSocket::from(ear);
    let mut bytes = [0; 2000];
    loop {
        let n = ear.recv(&mut bytes).unwrap();
        if String::from_utf8_lossy(&bytes[..n]).contains(name) {
            return bytes[..n].to_vec();
        }
    }
}
