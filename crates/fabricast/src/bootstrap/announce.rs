//! Finding a sender without its address: it announces itself by multicast while it waits.
//!
//! An announcement names where the rendezvous is and what is offered; it proves nothing, and the
//! receiver then talks to that address over TCP as it would to one typed in. Two senders on one
//! network are ambiguous, and the receiver asks which.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};

use super::message::{VERSION, text};

/// Where announcements go: an address of the organisation-local scope.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 40);
const PORT: u16 = 7642;
/// How often a sender announces itself.
pub const EVERY: Duration = Duration::from_millis(500);
/// How long a receiver that has heard one sender listens for another.
const OTHERS: Duration = Duration::from_millis(1200);
/// Longest announcement.
const MAX: usize = 1400;

/// What a sender announces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// The version of the control messages.
    pub fabricast: u32,
    /// The transfer.
    pub session: u64,
    /// Port of the rendezvous, on the address that the announcement comes from.
    pub port: u16,
    /// Name of the file.
    #[serde(deserialize_with = "text")]
    pub name: String,
}

/// A sender's announcer on one interface.
pub struct Announcer {
    socket: UdpSocket,
    bytes: Vec<u8>,
    next: Instant,
}

impl Announcer {
    /// Announces on the interface with this address.
    pub fn new(address: Ipv4Addr, what: &Announcement) -> io::Result<Announcer> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        socket.set_multicast_if_v4(&address)?;
        socket.set_multicast_ttl_v4(1)?;
        socket.set_nonblocking(true)?;
        Ok(Announcer {
            socket: socket.into(),
            bytes: serde_json::to_vec(what).expect("plain data"),
            next: Instant::now(),
        })
    }

    /// Announces if it is time to; says when to call again.
    pub fn tick(&mut self, now: Instant) -> Instant {
        if now >= self.next {
            self.next = now + EVERY;
            // Nobody may be listening; a network that is down is noticed elsewhere.
            let _ = self.socket.send_to(&self.bytes, (GROUP, PORT));
        }
        self.next
    }
}

/// A receiver's ear.
pub struct Listener {
    socket: UdpSocket,
    heard: BTreeMap<u64, (SocketAddr, String)>,
    since: Option<Instant>,
}

/// What a [`Listener`] has found.
pub enum Found {
    /// Nothing that is certain yet.
    Nothing,
    /// One sender.
    One(SocketAddr),
    /// Several: where, and what they offer.
    Several(Vec<(SocketAddr, String)>),
}

impl Listener {
    /// Listens on the interfaces with these indices.
    pub fn new(interfaces: &[u32]) -> io::Result<Listener> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((GROUP, PORT)).into())?;
        let mut joined = Err(io::Error::new(
            io::ErrorKind::NotFound,
            "no interface can multicast",
        ));
        for &index in interfaces {
            let on = InterfaceIndexOrAddress::Index(index);
            let this = socket.join_multicast_v4_n(&GROUP, &on);
            joined = joined.or(this);
        }
        joined?;
        Ok(Listener {
            socket: socket.into(),
            heard: BTreeMap::new(),
            since: None,
        })
    }

    /// Listens for a moment.
    pub fn listen(&mut self, moment: Duration) -> io::Result<Found> {
        self.socket.set_read_timeout(Some(moment))?;
        let mut bytes = [0; MAX];
        match self.socket.recv_from(&mut bytes) {
            Ok((n, from)) => self.take(&bytes[..n], from.ip()),
            Err(e) if is_timeout(&e) => {}
            Err(e) => return Err(e),
        }
        match self.since {
            Some(since) if since.elapsed() >= OTHERS => {
                let all: Vec<_> = self.heard.values().cloned().collect();
                Ok(match &all[..] {
                    [one] => Found::One(one.0),
                    _ => Found::Several(all),
                })
            }
            _ => Ok(Found::Nothing),
        }
    }

    fn take(&mut self, bytes: &[u8], from: IpAddr) {
        const SENDERS_MAX: usize = 16;
        let Ok(a) = serde_json::from_slice::<Announcement>(bytes) else {
            return;
        };
        if a.fabricast == VERSION && self.heard.len() < SENDERS_MAX {
            self.since.get_or_insert_with(Instant::now);
            let address = SocketAddr::new(from, a.port);
            self.heard.insert(a.session, (address, a.name));
        }
    }
}

fn is_timeout(e: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(e.kind(), Interrupted | TimedOut | WouldBlock)
}
