//! What the transport reports to users.

use std::fmt;
use std::net::SocketAddr;

use crate::interface::Family;
use crate::setting::DATAGRAM;
use crate::transport::NodeAddress;

/// Something that a user may want to know or fix; the transfer continues without it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The kernel granted a smaller receive buffer than was asked for.
    ReceiveBuffer {
        /// Bytes asked for.
        asked: usize,
        /// Bytes granted, on the same scale (the kernel's doubling taken off).
        granted: usize,
    },
    /// The kernel does not segment or does not join datagrams, so they are handled one by one.
    NoOffload {
        /// Whether the kernel segments them.
        gso: bool,
        /// Whether the kernel joins them.
        gro: bool,
    },
    /// The kernel refused to segment messages to this address, so datagrams are now sent one by
    /// one.
    GsoRefused {
        /// The destination.
        to: SocketAddr,
        /// The kernel's error number.
        errno: i32,
    },
    /// Datagrams of this length do not fit the interface or the route, are never fragmented, and
    /// are lost. (If a link further on is narrower, nothing reports it.)
    TooLarge {
        /// The destination.
        to: SocketAddr,
        /// The datagram's length, in bytes.
        len: usize,
    },
    /// The host itself does not let datagrams out to this address: they are lost.
    Blocked {
        /// The destination.
        to: SocketAddr,
    },
    /// There is no route to this address: datagrams to it are lost.
    Unreachable {
        /// The destination.
        to: SocketAddr,
        /// The kernel's error number.
        errno: i32,
    },
    /// A peer's address is not of the family in use, so nothing is sent to it.
    OtherFamily {
        /// The peer's address.
        address: SocketAddr,
        /// The family in use.
        family: Family,
    },
    /// A peer's address is not of this network, so nothing is sent to it.
    NoIpAddress {
        /// The peer's address.
        address: NodeAddress,
    },
}

impl Notice {
    /// A bit for each kind of notice that concerns one destination, so that each is reported once.
    pub(super) fn bit(&self) -> u8 {
        match self {
            Notice::GsoRefused { .. } => 1,
            Notice::TooLarge { .. } => 2,
            Notice::Blocked { .. } => 4,
            Notice::Unreachable { .. } => 8,
            _ => 0,
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = |errno: i32| std::io::Error::from_raw_os_error(errno);
        match self {
            Notice::ReceiveBuffer { asked, granted } => write!(
                f,
                "the kernel grants a receive buffer of {granted} bytes only, not {asked}; \
                 `sysctl -w net.core.rmem_max={asked}` allows more and avoids losses at high rates"
            ),
            Notice::NoOffload { gso, gro } => {
                let what = match (gso, gro) {
                    (false, true) => "cut datagrams (UDP_SEGMENT)",
                    (true, false) => "join datagrams (UDP_GRO)",
                    _ => "cut or join datagrams (UDP_SEGMENT, UDP_GRO)",
                };
                write!(
                    f,
                    "this kernel does not {what}: more processor time per byte"
                )
            }
            Notice::GsoRefused { to, errno } => write!(
                f,
                "segmentation offload to {to} was refused ({}): datagrams are sent one by one",
                reason(*errno)
            ),
            Notice::TooLarge { to, len } => write!(
                f,
                "datagrams of {len} bytes to {to} do not fit the interface or route there and are \
                 lost (EMSGSIZE); raise the MTU there or choose smaller ones with {DATAGRAM}"
            ),
            Notice::Blocked { to } => write!(
                f,
                "this host does not let datagrams out to {to}; check its firewall's output rules"
            ),
            Notice::Unreachable { to, errno } => {
                let hint = match to {
                    SocketAddr::V6(to) if to.ip().is_multicast() => {
                        "`ip -6 route add local ff00::/8 dev INTERFACE` adds what the loopback \
                         lacks"
                    }
                    _ => "check the routes",
                };
                write!(f, "no way to {to} ({}); {hint}", reason(*errno))
            }
            Notice::OtherFamily { address, family } => {
                write!(
                    f,
                    "{address} is not {family}, the family in use: nothing is sent to it"
                )
            }
            Notice::NoIpAddress { address } => {
                write!(f, "{address} is no IP address: nothing is sent to it")
            }
        }
    }
}
