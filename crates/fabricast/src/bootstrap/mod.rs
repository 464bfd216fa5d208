//! How nodes find each other and agree, before and beside the datagrams: a TCP rendezvous at the
//! sender.
//!
//! Each receiver opens one connection and keeps it. It carries who is there, what is sent and how
//! (`message`), what proves the data (the root of the hash list), and blocks that arrived damaged
//! (bulk fall-back); that it closes is how a killed process is noticed. [`Rendezvous`] is the
//! sender's end: one thread for all receivers. [`Control`] is a receiver's end. [`announce`] lets
//! a receiver find a sender without an address.
//!
//! Whatever comes from the network is hostile until it is checked: frames have a largest length,
//! messages out of turn close the connection, pending connections get ten seconds and a bounded
//! number of places (the oldest goes when there are more), and nobody is served more than a bounded
//! amount before the others have had their turn. Nothing of it is an error of ours; it is counted.
//!
//! A job launcher that already connects its ranks will not want this: `trait Bootstrap {
//! allgather(&[u8]) -> Vec<Vec<u8>> }` goes beside [`Rendezvous`] then (MPI, PMIx).

pub mod announce;
mod block_server;
mod blocks;
mod control;
mod event;
mod frame;
mod listening;
pub mod message;
mod peer;
mod rendezvous;
#[cfg(test)]
mod tests;

pub use blocks::Blocks;
pub use control::{Control, Heard, connect, connect_found};
pub use event::{Event, PeerKey};
pub use peer::NEEDS_MAX;
pub use rendezvous::{Rendezvous, pending_max};

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Port of the rendezvous unless another is chosen.
pub const PORT: u16 = 7640;
/// The lowest port that hosts are believed to use when others say so: any user may have the ports
/// from here on, and the services of a host listen below.
pub const PORT_MIN: u16 = 1024;
/// A host that answers nothing for so long is gone. (A stopped process is not: its kernel
/// answers.)
const UNREACHABLE: Duration = Duration::from_secs(10);

/// Makes the kernel notice a host or a link that is gone, `unreachable` after its last answer, and
/// send small messages at once.
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

/// IPv4 as such, also when it arrived at an IPv6 socket.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address, // with its scope
    }
}
