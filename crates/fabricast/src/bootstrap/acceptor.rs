//! Takes the connections of clients that nobody knows yet, for a sender and for a feed.
//!
//! Any client that reaches the port may connect, and say nothing. So a connection without a place
//! has a bounded time, and there is a bounded number of them: the oldest goes when another comes.
//! While the system has no descriptor for one more, nothing is accepted for a moment.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::listening::listen;
use super::{UNREACHABLE, plain, tune};

/// Most connections without a place at once. When there are more, the oldest is closed: silent
/// connections keep no client out.
const PENDING_MAX: usize = 64;
/// How long a connection may say nothing.
const PENDING_TIME: Duration = Duration::from_secs(10);
/// How long a client may take to close after the last message to it.
pub(super) const LINGER: Duration = Duration::from_secs(2);
/// How long nothing is accepted after the system has refused a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Most connections without a place at once, given the number of descriptors that this process may
/// have.
pub fn pending_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let share = limit.current.map_or(usize::MAX, |l| l as usize / 8);
    PENDING_MAX.min(share.max(1))
}

/// Makes a connection one that never blocks, and that ends when the other host is gone.
pub fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    tune(stream, UNREACHABLE)
}

/// A connection without a place: it has said nothing yet, or is closing.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Its server's number for it, which is greater for later ones.
    pub key: u64,
    /// When it came, or began to close.
    pub since: Instant,
    /// Whether it is closing.
    pub is_closing: bool,
    /// Whether it is closing and has been told everything.
    pub is_told: bool,
}

impl Pending {
    /// Whether it has had its time.
    pub fn is_overdue(&self, now: Instant) -> bool {
        let limit = if self.is_closing {
            LINGER
        } else {
            PENDING_TIME
        };
        now.duration_since(self.since) > limit
    }
}

/// A new connection.
pub struct Incoming {
    /// The connection, which never blocks.
    pub stream: TcpStream,
    /// The client's address.
    pub address: SocketAddr,
    /// Our address.
    pub local: SocketAddr,
}

/// What has come in one turn.
#[derive(Default)]
pub struct Accepted {
    /// New connections.
    pub new: Vec<Incoming>,
    /// Connections without a place that have to go, to make room.
    pub surplus: Vec<u64>,
}

/// Why a connection could not be accepted.
#[derive(PartialEq, Debug)]
enum Refusal {
    /// There is none.
    Nothing,
    /// The system has no descriptor or no memory for one more.
    Full,
    /// The connection has gone, or a signal came: the next one is accepted at once.
    Passing,
    /// Any other reason. A pause follows, because it may come again and again.
    Other,
}

impl Refusal {
    fn of(error: &io::Error) -> Refusal {
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => Refusal::Full,
            Some(Errno::CONNABORTED | Errno::INTR) => Refusal::Passing,
            _ if error.kind() == ErrorKind::WouldBlock => Refusal::Nothing,
            _ => Refusal::Other,
        }
    }
}

/// The sockets at which a server listens.
pub struct Acceptor {
    listeners: Vec<TcpListener>,
    pending_max: usize,
    /// Whether the system refused the last connection.
    is_full: bool,
}

impl Acceptor {
    /// Listens on one port at these addresses, or at all addresses (IPv4 and IPv6) if there are
    /// none. Port 0: any free port.
    pub fn open(addresses: &[SocketAddr], port: u16) -> io::Result<Acceptor> {
        Ok(Acceptor {
            listeners: listen(addresses, port)?,
            pending_max: pending_max(),
            is_full: false,
        })
    }

    /// The address that it listens at; the first one if there are several.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listeners[0].local_addr().map(plain)
    }

    /// The sockets to wait for, for at most the time that is returned, if any: none after the
    /// system has refused a connection.
    pub fn listeners(&mut self) -> (&[TcpListener], Option<Duration>) {
        match std::mem::take(&mut self.is_full) {
            true => (&[], Some(PAUSE)),
            false => (&self.listeners, None),
        }
    }

    /// Accepts what has come. `pending`: all connections without a place, the oldest first. Those
    /// that have been told everything go first, and then those that have said nothing for longest.
    pub fn accept(&mut self, pending: impl Iterator<Item = Pending> + Clone) -> Accepted {
        let told = pending.clone().filter(|p| p.is_told);
        let others = pending.filter(|p| !p.is_told);
        let mut oldest: VecDeque<u64> = told.chain(others).map(|p| p.key).collect();
        let mut accepted = Accepted::default();
        for listener in &self.listeners {
            while accepted.new.len() < self.pending_max {
                let (stream, address) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(e) => match Refusal::of(&e) {
                        Refusal::Passing => continue,
                        Refusal::Nothing => break,
                        Refusal::Full => {
                            // One that has said nothing gives its descriptor back.
                            match oldest.pop_front() {
                                Some(key) => accepted.surplus.push(key),
                                None => self.is_full = true,
                            }
                            return accepted;
                        }
                        Refusal::Other => {
                            self.is_full = true;
                            break;
                        }
                    },
                };
                if oldest.len() + accepted.new.len() >= self.pending_max {
                    accepted.surplus.extend(oldest.pop_front());
                }
                // What fails here is gone already.
                if let (Ok(()), Ok(local)) = (set_up(&stream), stream.local_addr()) {
                    accepted.new.push(Incoming {
                        stream,
                        address: plain(address),
                        local: plain(local),
                    });
                }
            }
        }
        accepted
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn only_want_of_room_costs_a_stranger_its_place() {
        for full in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS] {
            assert_eq!(Refusal::of(&full.into()), Refusal::Full);
        }
        for passing in [Errno::CONNABORTED, Errno::INTR] {
            assert_eq!(Refusal::of(&passing.into()), Refusal::Passing);
        }
        assert_eq!(Refusal::of(&Errno::AGAIN.into()), Refusal::Nothing);
        assert_eq!(Refusal::of(&Errno::PERM.into()), Refusal::Other);
    }

    /// Those go first that have been told everything, and nobody goes while there is room.
    #[test]
    fn the_oldest_make_room() {
        let here = (Ipv4Addr::LOCALHOST, 0).into();
        let mut acceptor = Acceptor::open(&[here], 0).unwrap();
        acceptor.pending_max = 4;
        let at = acceptor.address().unwrap();
        let since = Instant::now();
        let pending = |key| Pending {
            key,
            since,
            is_closing: key == 2,
            is_told: key == 2,
        };
        for (there, come, surplus) in [
            (2, 1, vec![]),
            (3, 1, vec![]),
            (4, 1, vec![2]),
            (4, 3, vec![2, 0, 1]),
            (2, 4, vec![0, 1]),
            (4, 9, vec![2, 0, 1, 3]),
        ] {
            let clients: Vec<TcpStream> =
                (0..come).map(|_| TcpStream::connect(at).unwrap()).collect();
            let accepted = acceptor.accept((0..there).map(pending));
            assert_eq!(accepted.surplus, surplus, "{there} and {come}");
            assert_eq!(accepted.new.len(), come.min(4));
            // The others have their turn.
            drop(clients);
            while !acceptor.accept((0..0).map(pending)).new.is_empty() {}
        }
        let one = pending(0);
        assert!(!one.is_overdue(since + PENDING_TIME));
        assert!(one.is_overdue(since + PENDING_TIME + PAUSE));
        assert!(pending(2).is_overdue(since + LINGER + PAUSE));
    }
}
