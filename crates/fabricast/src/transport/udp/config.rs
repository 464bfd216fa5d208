//! The options with which the transport is opened.

use crate::interface::{Family, Interface};
use crate::waker::Waker;

/// How to open a [`Udp`](super::Udp).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// The interface by which all datagrams leave and arrive.
    pub interface: Interface,
    /// IPv4 or IPv6. The default is the family of the address by which the interface is chosen,
    /// else IPv4 if the interface has an IPv4 address.
    pub family: Option<Family>,
    /// Port of the unicast socket; 0 (the default): any free port.
    pub port: u16,
    /// Time to live of multicasts: the number of routers that they may pass, plus one. With 1, the
    /// default, they never leave the local network. More needs routers that forward multicast, and
    /// their operator's consent.
    pub group_ttl: u8,
    /// Whether multicasts also go to receivers on this host. On by default; it costs nothing while
    /// none listens. (The loopback interface does it in any case.)
    pub loopback: bool,
    /// Largest datagram, in bytes. The default is what the interface's MTU leaves, up to an MTU of
    /// 9000.
    pub datagram: Option<usize>,
    /// Receive buffer to ask the kernel for, in bytes per socket. A receive socket serves up to 20
    /// group addresses, so what is sent to one of them can fill the buffer that the others need.
    /// [`Transport::backlog`](crate::transport::Transport::backlog) follows from what the kernel
    /// grants.
    pub receive_buffer: usize,
    /// Send buffer to ask for, in bytes. The default is the kernel's, which holds a sender back
    /// early.
    pub send_buffer: Option<usize>,
    /// Whether to let the kernel segment and join datagrams (GSO, GRO). On by default.
    pub offload: bool,
    /// What ends a wait from another thread. `None`: only datagrams and time end it.
    pub waker: Option<Waker>,
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
            waker: None,
        }
    }
}
