//! Datagrams forged in another host's name.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};

use fabricast::proto::wire::{self, Frame, Origin};
use socket2::{Domain, Protocol, Socket, Type};

use crate::common::place::Place;
use crate::common::{BOUND, Scratch, same};

/// Sends datagrams with any source address.
struct Forger(Socket);

impl Forger {
    /// `None`, with a printed reason, if the process may not open raw sockets.
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

/// Host 3 forges data in the sender's name, of the right length and before the sender sends it.
/// Each packet spoils a block.
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

    // The attacker hears the group, as any host can, and sends its own bytes before the sender
    // does.
    let ear = place.on(3, || Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap());
    ear.set_reuse_address(true).unwrap();
    ear.bind(&group.into()).unwrap();
    ear.join_multicast_v4(group.ip(), &place.ip(3)).unwrap();
    ear.set_read_timeout(Some(BOUND)).unwrap();
    let ear = UdpSocket::from(ear);
    let mut bytes = vec![0; 65536];
    let (mut forged, mut first) = (0, None);
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
        // One in 100 packets, which is about one in every block.
        let begin = *first.get_or_insert(op);
        if data.seq.from(begin) < 100 * forged as i32 {
            continue;
        }
        let (origin, len) = (data.origin, data.payload.len());
        let mut fake = wire::head(|out| {
            wire::put_header(out, &datagram.header);
            wire::put_data(out, data.group, origin, data.seq + 40, 0, len as u32);
        });
        fake.resize(fake.len() + len, 0xee);
        forger.send(root, group, &fake);
        forged += 1;
    }

    let sent = send.end().expect(0);
    for (recv, name) in receivers.into_iter().zip(["r0", "r1"]) {
        let end = recv.end().expect(0);
        same(&source, &dir.path(name));
        let statistics = &end.one("done")["tally"];
        let count = |key: &str| {
            statistics[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{statistics}"))
        };
        let (mended, bytes) = (count("mended"), count("mended_bytes"));
        assert!(mended > 0, "nothing was forged in time: {statistics}");
        // The hashes of a block's pieces, and the one or two pieces in which a forged packet lies.
        let most = mended * 64 * 32 + u64::from(FORGED) * 2 * 16384;
        assert!(bytes <= most, "{statistics}");
        assert_eq!(sent.result(name)["tally"], *statistics);
    }
}
