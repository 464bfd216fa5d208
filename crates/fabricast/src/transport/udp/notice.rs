//! What is worth telling a person, and what is counted.

use std::fmt;
use std::net::SocketAddr;

use super::Family;
use crate::setting::DATAGRAM;

/// Something that a user may want to know or mend; the transfer goes on without.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The kernel granted a smaller receive buffer than was asked for.
    ReceiveBuffer {
        /// Bytes asked for.
        asked: usize,
        /// Bytes granted, on the same scale (the kernel's doubling taken off).
        granted: usize,
    },
    /// This kernel does not cut or does not join datagrams; they are handled one by one.
    NoOffload {
        /// Whether it cuts them.
        gso: bool,
        /// Whether it joins them.
        gro: bool,
    },
    /// The kernel would not cut messages on the way to this address: now they are sent one by one.
    GsoRefused {
        /// To whom.
        to: SocketAddr,
        /// Its error number.
        errno: i32,
    },
    /// Datagrams of this length do not fit the interface or the route, and are never cut up: they
    /// are lost. (That a link further on is narrower nobody tells.)
    TooLarge {
        /// To whom.
        to: SocketAddr,
        /// Its length in bytes.
        len: usize,
    },
    /// The host itself will not let datagrams out to this address: they are lost.
    Blocked {
        /// To whom.
        to: SocketAddr,
    },
    /// There is no way to this address: datagrams to it are lost.
    Unreachable {
        /// To whom.
        to: SocketAddr,
        /// The kernel's error number.
        errno: i32,
    },
    /// A peer's address is not of the family in use: nothing is sent to it.
    OtherFamily {
        /// The peer's address.
        address: SocketAddr,
        /// The family in use.
        family: Family,
    },
}

impl Notice {
    /// A bit for those that are about one destination, so that each is told once.
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

/// What a [`Udp`](super::Udp) has done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UdpCounters {
    /// Datagrams that the kernel took.
    pub datagrams_sent: u64,
    /// Their bytes, UDP and IP headers not counted.
    pub bytes_sent: u64,
    /// Messages in which they were handed over: fewer, where the kernel cuts them (GSO).
    pub messages_sent: u64,
    /// Datagrams counted as sent though the kernel would not have them (too large, blocked, no
    /// way there); a [`Notice`] says why.
    pub lost_at_send: u64,
    /// Datagrams for a node or group that was not known, counted as sent and dropped.
    pub unknown: u64,
    /// Datagrams handed up.
    pub datagrams_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Messages in which the kernel gave them: fewer, where it joins them (GRO).
    pub messages_received: u64,
    /// Datagrams of our own that came back and were dropped.
    pub own: u64,
    /// Datagrams dropped because the node that they claim to come from has another address, or
    /// none that is known here.
    pub foreign: u64,
    /// Messages dropped because they were longer than a buffer.
    pub truncated: u64,
    /// Packets that the kernel dropped at our sockets, mostly because the receive buffer was full;
    /// joined datagrams count as one.
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
    /// Errors that a datagram sent earlier had brought back (a closed port), and that were ignored.
    pub errors_ignored: u64,
    /// How often the interfaces were listed, to see whether ours is well.
    pub interface_checks: u64,
    /// Whether the kernel cuts datagrams, apart from single destinations where it refused.
    pub gso: bool,
    /// Whether the kernel joins datagrams.
    pub gro: bool,
}
