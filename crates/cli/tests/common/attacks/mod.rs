//! Attacks by hand that several tests perform, on the loopback and between hosts.

pub mod files;
pub mod forged;
pub mod liars;
pub mod ranks;
pub mod seats;
pub mod third;

use std::net::{TcpListener, UdpSocket};

use super::place::Place;

/// Where a false sender listens on host 1, and its address.
fn listener(place: &impl Place) -> (TcpListener, String) {
    let listener = place.on(1, || TcpListener::bind((place.ip(1), 0)).unwrap());
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A socket at the address from which this machine speaks to `address`: datagrams count only from
/// where the connection comes from.
fn udp_towards(address: &str) -> UdpSocket {
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    udp.connect(address).unwrap();
    UdpSocket::bind((udp.local_addr().unwrap().ip(), 0)).unwrap()
}
