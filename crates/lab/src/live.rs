//! `fabricast-lab papers --live` and `--answer`: P2's ping-pong over UDP (P2.5).

use std::net::IpAddr;
use std::time::Duration;

use fabricast::error::Error;
use fabricast::interface::{Family, Interface};
use fabricast::pingpong::{self, ASKER};
use fabricast::proto::NodeId;
use fabricast::transport::Transport;
use fabricast::transport::udp::{Udp, UdpConfig};
use fabricast_lab::papers::Live;

/// UDP port of all hosts: an asking host may also answer, on an address of its own.
const PORT: u16 = 7482;
/// Round trips to each number of peers, as in the paper.
const COUNT: u32 = 100;
/// Numbers of peers; those that exceed the number of hosts are left out.
const PEERS: [u32; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

fn open(interface: Interface, family: Family) -> Result<Udp, Error> {
    let config = UdpConfig {
        interface,
        family: Some(family),
        port: PORT,
        ..UdpConfig::default()
    };
    Udp::new(&config).map_err(|e| Error::io("opening the network", e))
}

/// Measures round trips to a rising number of these hosts: the first, the first two, and so on.
pub fn ask(hosts: &[IpAddr]) -> Result<Vec<Live>, Error> {
    let Some(&first) = hosts.first() else {
        return Ok(Vec::new());
    };
    let mut net = open(Interface::Toward(first), Family::of(first))?;
    for (node, &host) in (1..).map(NodeId).zip(hosts) {
        net.peer(node, &(host, PORT).into());
    }
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let all = hosts.len() as u32;
    let some = PEERS.into_iter().filter(|&p| p < all);
    some.chain([all])
        .map(|peers| {
            let found = pingpong::ask(&mut net, peers, COUNT);
            let found = found.map_err(|e| Error::io(format!("asking {peers} hosts"), e))?;
            Ok(Live {
                peers: u64::from(peers),
                min_us: us(found.min),
                mean_us: us(found.mean),
                sending_us: us(found.sending),
            })
        })
        .collect()
}

/// Answers the host `asker` until `go_on` returns `false`.
pub fn answer(asker: IpAddr, go_on: &dyn Fn() -> bool) -> Result<(), Error> {
    let mut net = open(Interface::Toward(asker), Family::of(asker))?;
    net.peer(ASKER, &(asker, PORT).into());
    pingpong::answer(&mut net, go_on).map_err(|e| Error::io("answering", e))
}
