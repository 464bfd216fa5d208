//! Rendezvous of a transfer: how nodes find each other and agree, before and beside the datagrams,
//! over TCP connections to the sender.
//!
//! Each receiver opens one connection and keeps it open. The connection carries which receivers
//! take part, what is sent and how (`message`), what proves the data (the hashes of the packs),
//! and blocks that arrived damaged (bulk fallback). When the connection closes, the other end
//! learns that a process was killed. [`Rendezvous`] is the sender's end: one thread hears all
//! receivers, and workers serve them. [`Control`] is a receiver's end. [`announce`] lets a receiver
//! find a sender without an address.
//!
//! Whatever comes from the network is hostile until it is checked:
//!
//! - Frames have a largest length.
//! - Messages out of turn close the connection.
//! - Pending connections get ten seconds and a bounded number of places. When there are more, the
//!   oldest is closed.
//! - A peer is served a bounded amount before the others have had their turn.
//!
//! None of this is an error of the transfer; it is counted.
//!
//! A job launcher that already connects its ranks will not need this. Then a `trait Bootstrap {
//! allgather(&[u8]) -> Vec<Vec<u8>> }` goes beside [`Rendezvous`] (MPI, PMIx).

mod acceptor;
pub mod announce;
mod blocks;
mod connecting;
mod control;
mod cpus;
mod event;
mod fetcher;
pub mod frame;
mod listening;
pub mod message;
mod output;
mod peer;
pub mod psk;
mod rendezvous;
#[cfg(test)]
mod tests;
mod throttle;
mod workers;

pub use acceptor::pending_max;
pub(crate) use acceptor::{Acceptor, Incoming, Pending, set_up};
pub use blocks::{Blocks, Payload};
pub(crate) use connecting::connect_to;
pub use control::{Control, Heard, connect, connect_found};
pub use cpus::Cpus;
pub use event::{Event, PeerKey};
pub use fetcher::{Fetched, Fetcher};
pub use peer::NEEDS_MAX;
pub use psk::{PreSharedKey, Ticket};
pub use rendezvous::{ChannelFrame, Rendezvous};
pub use throttle::Throttle;
pub use workers::WorkerPlan;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// TCP port of the rendezvous, unless another is chosen.
pub const PORT: u16 = 7640;
/// The lowest port that a node believes when another says that a host uses it. Any user may have
/// the ports from here on; the services of a host listen below.
pub const PORT_MIN: u16 = 1024;
/// How long a host may answer nothing before it counts as gone. (A stopped process does not count
/// as gone: its kernel answers.)
pub(crate) const UNREACHABLE: Duration = Duration::from_secs(10);

/// Sets TCP options: the kernel notices a host or a link that is gone `unreachable` after its last
/// answer, and sends small messages at once.
pub(crate) fn tune(stream: &TcpStream, unreachable: Duration) -> io::Result<()> {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new()
        .with_time(unreachable * 3 / 10)
        .with_interval(unreachable / 5)
        .with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(unreachable))?;
    socket.set_tcp_nodelay(true)
}

/// The address with IPv4 as such, also if it arrived at an IPv6 socket.
pub(crate) fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address, // with its scope
    }
}
