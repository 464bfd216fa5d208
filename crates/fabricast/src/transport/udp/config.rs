//! The choices with which the transport is opened.

use super::interface::{Family, Interface};

/// How to open a [`Udp`](super::Udp).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// Which interface everything leaves and enters by.
    pub interface: Interface,
    /// IPv4 or IPv6; by default that of the address by which the interface is chosen, else IPv4
    /// where there is any.
    pub family: Option<Family>,
    /// Port of the unicast socket; zero (the default): any free one.
    pub port: u16,
    /// Routers that a multicast may pass, plus one. 1, the default, never leaves the local
    /// network; more needs routers that forward multicast, and somebody's consent.
    pub group_ttl: u8,
    /// Whether multicasts also go to receivers on this very host. On by default; it costs nothing
    /// while none listens. (The loopback interface does it in any case.)
    pub loopback: bool,
    /// Largest datagram, in bytes; by default what the interface's MTU leaves, up to an MTU of
    /// 9000.
    pub datagram: Option<usize>,
    /// Bytes of receive buffer to ask the kernel for, per socket.
    /// [`Caps::receive_buffer`](crate::transport::Caps::receive_buffer) says what it gave.
    pub receive_buffer: usize,
    /// Bytes of send buffer to ask for; by default the kernel's, which holds a sender back early.
    pub send_buffer: Option<usize>,
    /// Whether to let the kernel cut and join datagrams (GSO, GRO). On by default.
    pub offload: bool,
}

impl Default for UdpConfig {
    fn default() -> UdpConfig {
        UdpConfig {
            interface: Interface::Auto,
            family: None,
            port: 0,
            group_ttl: 1,
            loopback: true,
            datagram: None,
            receive_buffer: 8 << 20,
            send_buffer: None,
            offload: true,
        }
    }
}
