//! Hand-made attacks that several tests perform, on the loopback and between hosts.

pub mod announcers;
pub mod files;
pub mod forged;
pub mod liars;
pub mod ranks;
pub mod seats;
pub mod third;

use std::net::{TcpListener, UdpSocket};

use super::place::Place;

/// A false sender's listening socket on host 1, and its address.
fn listener(place: &impl Place) -> (TcpListener, String) {
    let listener = place.on(1, || TcpListener::bind((place.ip(1), 0)).unwrap());
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// A socket at the address from which this machine reaches `address`: a sender accepts datagrams
/// only from the address of the control connection.
fn udp_towards(address: &str) -> UdpSocket {
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    udp.connect(address).unwrap();
    UdpSocket::bind((udp.local_addr().unwrap().ip(), 0)).unwrap()
}
