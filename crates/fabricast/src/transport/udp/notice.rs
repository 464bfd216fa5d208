//! What the transport reports to users, and what it counts.

use std::fmt;
use std::net::SocketAddr;

use super::Family;
use crate::setting::DATAGRAM;

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
        }
    }
}

/// Counters of a [`Udp`](super::Udp), since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdpCounters {
    /// Datagrams that the kernel accepted.
    pub datagrams_sent: u64,
    /// Bytes of the datagrams sent, without UDP and IP headers.
    pub bytes_sent: u64,
    /// Messages in which datagrams went to the kernel: fewer than datagrams where it segments
    /// (GSO).
    pub messages_sent: u64,
    /// Datagrams counted as sent although the kernel refused them (too large, blocked, no route). A
    /// [`Notice`] says why.
    pub lost_at_send: u64,
    /// Datagrams for an unknown node or group, counted as sent and dropped.
    pub unknown: u64,
    /// Datagrams handed up.
    pub datagrams_received: u64,
    /// Bytes of the datagrams handed up.
    pub bytes_received: u64,
    /// Messages in which datagrams came from the kernel: fewer than datagrams where it joins (GRO).
    pub messages_received: u64,
    /// This node's own datagrams that came back and were dropped.
    pub own: u64,
    /// Datagrams dropped because the node that they claim to come from has another address, or no
    /// address that is known here.
    pub foreign: u64,
    /// Messages dropped because they were longer than a buffer.
    pub truncated: u64,
    /// Packets that the kernel dropped at this transport's sockets, mostly because the receive
    /// buffer was full. Joined datagrams count as one.
    pub dropped_by_kernel: u64,
    /// Bytes that wait in the receive buffers now, on the scale of
    /// [`Caps::receive_buffer`](crate::transport::Caps::receive_buffer).
    pub queued: u64,
    /// `sendmmsg` calls.
    pub send_calls: u64,
    /// `recvmmsg` calls.
    pub receive_calls: u64,
    /// Calls of `wait`.
    pub wait_calls: u64,
    /// Errors that an earlier datagram had brought back (a closed port), and that were ignored.
    pub errors_ignored: u64,
    /// How often the interfaces were listed to check that the one in use is well.
    pub interface_checks: u64,
    /// Whether the kernel segments datagrams, except to single destinations for which it refused.
    pub gso: bool,
    /// Whether the kernel joins datagrams.
    pub gro: bool,
}
