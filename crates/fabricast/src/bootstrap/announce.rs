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
/// A sender that is not heard for so long is gone: three of its announcements are missing.
const GONE: Duration = Duration::from_millis(1500);
/// Datagrams that are read in one moment.
const READ_MAX: usize = 64;
/// Senders that are kept in mind.
const SENDERS_MAX: usize = 16;

const _: () = assert!(GONE.as_millis() == 3 * EVERY.as_millis());
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
    senders: Senders,
}

struct Sender {
    address: SocketAddr,
    name: String,
    heard: Instant,
}

/// Who has been heard lately, by session.
#[derive(Default)]
struct Senders {
    heard: BTreeMap<u64, Sender>,
    /// Since when there has been somebody, and since when more than one.
    since: Option<Instant>,
    several: Option<Instant>,
}

/// What a [`Listener`] has found.
#[derive(PartialEq, Debug)]
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
            senders: Senders::default(),
        })
    }

    /// Listens for a moment, and takes what has come in the meantime.
    pub fn listen(&mut self, moment: Duration) -> io::Result<Found> {
        self.socket.set_read_timeout(Some(moment))?;
        let first = self.read();
        self.socket.set_nonblocking(true)?;
        let others = first.and_then(|more| {
            let mut more = more;
            for _ in 1..READ_MAX {
                more = more && self.read()?;
            }
            Ok(())
        });
        self.socket.set_nonblocking(false)?;
        others?;
        Ok(self.senders.found(Instant::now()))
    }

    /// Reads one datagram; false if none came.
    fn read(&mut self) -> io::Result<bool> {
        let mut bytes = [0; MAX];
        match self.socket.recv_from(&mut bytes) {
            Ok((n, from)) => {
                self.senders.take(&bytes[..n], from.ip(), Instant::now());
                Ok(true)
            }
            Err(e) if is_timeout(&e) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Senders {
    /// Takes a datagram from this address.
    fn take(&mut self, bytes: &[u8], from: IpAddr, now: Instant) {
        let Ok(a) = serde_json::from_slice::<Announcement>(bytes) else {
            return;
        };
        if a.fabricast != VERSION {
            return;
        }
        self.forget(now);
        let address = SocketAddr::new(from, a.port);
        // Nobody else can listen there: the one before has ended.
        self.heard
            .retain(|session, s| *session == a.session || s.address != address);
        if self.heard.len() >= SENDERS_MAX && !self.heard.contains_key(&a.session) {
            let oldest = self.heard.iter().min_by_key(|(_, s)| s.heard);
            if let Some(session) = oldest.map(|(session, _)| *session) {
                self.heard.remove(&session);
            }
        }
        let (name, heard) = (a.name, now);
        let sender = Sender {
            address,
            name,
            heard,
        };
        self.heard.insert(a.session, sender);
        self.count(now);
    }

    /// Who is there. Several are told only when none of them has fallen silent in the meantime: a
    /// sender that has ended, or a single forged datagram, confuses nobody for long.
    fn found(&mut self, now: Instant) -> Found {
        self.forget(now);
        let past = |since: Option<Instant>, wait| since.is_some_and(|t| now - t >= wait);
        if !past(self.since, OTHERS) || self.several.is_some() && !past(self.several, GONE) {
            return Found::Nothing;
        }
        let each = |s: &Sender| (s.address, s.name.clone());
        let mut all: Vec<_> = self.heard.values().map(each).collect();
        match all.len() {
            1 => Found::One(all.remove(0).0),
            _ => Found::Several(all),
        }
    }

    fn forget(&mut self, now: Instant) {
        self.heard.retain(|_, s| now - s.heard < GONE);
        self.count(now);
    }

    /// Notes since when there has been somebody, and more than one.
    fn count(&mut self, now: Instant) {
        let n = self.heard.len();
        self.since = (n > 0).then(|| self.since.unwrap_or(now));
        self.several = (n > 1).then(|| self.several.unwrap_or(now));
    }
}

fn is_timeout(e: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(e.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn address(port: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Hears (milliseconds, session, port) in this order, and asks each 100 ms until `end`; what
    /// was found that is not nothing, with when it was found first.
    fn heard(all: &[(u32, u64, u16)], end: u32) -> Vec<(u32, Found)> {
        let (start, mut senders) = (Instant::now(), Senders::default());
        let mut found: Vec<(u32, Found)> = Vec::new();
        for at in (0..=end).step_by(100) {
            let now = start + at * MS;
            for (_, session, port) in all.iter().filter(|a| a.0 == at) {
                let announcement = Announcement {
                    fabricast: VERSION,
                    session: *session,
                    port: *port,
                    name: session.to_string(),
                };
                let bytes = serde_json::to_vec(&announcement).unwrap();
                senders.take(&bytes, Ipv4Addr::LOCALHOST.into(), now);
            }
            let new = senders.found(now);
            if new != Found::Nothing && found.last().is_none_or(|(_, f)| *f != new) {
                found.push((at, new));
            }
        }
        found
    }

    fn every_500(from: u32, to: u32, session: u64, port: u16) -> Vec<(u32, u64, u16)> {
        let times = (from..=to).step_by(500);
        times.map(|at| (at, session, port)).collect()
    }

    #[test]
    fn two_senders_are_told() {
        let all = [every_500(0, 5000, 1, 1), every_500(300, 5000, 2, 2)].concat();
        let both = [(address(1), "1".to_owned()), (address(2), "2".to_owned())];
        assert_eq!(heard(&all, 5000), [(1800, Found::Several(both.into()))]);
    }

    #[test]
    fn a_sender_that_has_ended_is_forgotten() {
        // The next one comes soon, at another port or at its port.
        for port in [2, 1] {
            let all = [every_500(0, 500, 1, 1), every_500(800, 9000, 2, port)].concat();
            let found = heard(&all, 9000);
            let last = found.last().map(|(_, found)| found);
            assert_eq!(last, Some(&Found::One(address(port))));
            let several = |f: &&(u32, Found)| matches!(f.1, Found::Several(_));
            assert_eq!(found.iter().filter(several).count(), 0, "{found:?}");
        }
        let all = every_500(0, 2000, 1, 1);
        assert_eq!(heard(&all, 3400), [(1200, Found::One(address(1)))]);
        let mut late = every_500(0, 2000, 1, 1);
        late.push((5000, 2, 2));
        // The second one is listened for as the first one was.
        let found = [
            (1200, Found::One(address(1))),
            (6200, Found::One(address(2))),
        ];
        assert_eq!(heard(&late, 6400), found);
    }

    #[test]
    fn one_forged_datagram_confuses_nobody() {
        for at in [0, 700, 1200, 2000] {
            let mut all = every_500(0, 5000, 1, 1);
            all.push((at, 2, 2));
            let found = heard(&all, 5000);
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].1, Found::One(address(1)));
        }
    }

    #[test]
    fn many_senders_replace_the_oldest() {
        let mut all: Vec<_> = (2..40).map(|n| (0, n, n as u16)).collect();
        all.extend(every_500(100, 5000, 1, 1));
        let found = heard(&all, 5000);
        let last = found.last().map(|(_, found)| found);
        assert_eq!(last, Some(&Found::One(address(1))), "{found:?}");
    }
}
