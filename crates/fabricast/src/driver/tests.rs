//! A node, its transport and its objects.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use fabricast_proto::wire::{Header, Probe};
use fabricast_proto::{Config, Scheme, Seq, Session};

use super::*;
use crate::object::Memory;
use crate::transport::udp::{Interface, Udp, UdpConfig};

const G: GroupId = GroupId(1);
const SESSION: Session = Session(7);
const CHUNK: u32 = 1000;

fn node(me: u32, others: &[u32]) -> Node {
    let config = Config {
        node: NodeId(me),
        session: SESSION,
        scheme: Scheme::bulk(),
        hold: 0,
        backlog: 64,
        rate: None,
        patience: Duration::from_secs(10),
    };
    let mut node = Node::new(config, 1);
    let add = Command::GroupAdd {
        group: G,
        members: others.iter().copied().chain([me]).map(NodeId).collect(),
        chunk: CHUNK,
        start: Seq(0),
    };
    node.command(Time::ZERO, add).unwrap();
    node
}

#[test]
fn a_forged_datagram_does_not_reach_the_node() {
    let config = UdpConfig {
        interface: Interface::Address(Ipv4Addr::LOCALHOST.into()),
        ..UdpConfig::default()
    };
    let mut udp = Udp::new(&config).unwrap();
    let (peer, liar) = ("127.0.0.1:0", "127.0.0.1:0");
    let [peer, liar] = [peer, liar].map(|a| UdpSocket::bind(a).unwrap());
    udp.peer(NodeId(2), peer.local_addr().unwrap());
    let home = udp.local_addr();
    let mut driver: Driver<Udp, Memory> = Driver::new(node(1, &[2]), udp);
    let probe = |nonce| {
        let header = Header {
            flight: 0,
            source: NodeId(2),
            session: SESSION,
        };
        let probe = Probe {
            group: G,
            nonce,
            flags: 0,
        };
        let mut bytes = Vec::new();
        wire::put_header(&mut bytes, &header);
        wire::put_probe(&mut bytes, &probe, 100);
        bytes
    };
    liar.send_to(&probe(1), home).unwrap();
    peer.send_to(&probe(2), home).unwrap();
    // The node answers what it has been handed: the true probe alone.
    peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    driver.step(Time(1)).unwrap();
    let mut bytes = [0; 2000];
    let len = peer.recv(&mut bytes).unwrap();
    let answer = wire::decode(&bytes[..len]).unwrap();
    let nonces: Vec<_> = answer.frames().collect();
    assert!(
        matches!(nonces[..], [Frame::ProbeAck(p)] if p.nonce == 2),
        "{nonces:?}"
    );
    assert_eq!(driver.transport().counters().foreign, 1);
}
