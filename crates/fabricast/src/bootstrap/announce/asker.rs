//! A receiver's queries: several in a row, on each interface.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;

use super::announcement::{ASKED, PORT, QUERY, Query};
use super::senders::OTHERS;
use crate::bootstrap::message::VERSION;

/// Pauses between the queries of one round. There are several queries because a switch forwards a
/// group only some time after the join, and any datagram may be lost.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(15),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

const _: () = assert!(PAUSES[0].as_millis() < OTHERS.as_millis());

/// Sends queries on several interfaces, a few times in a row.
pub struct Asker {
    pub socket: UdpSocket,
    interfaces: Vec<u32>,
    /// Number of the queries, which answers repeat.
    pub asks: u64,
    /// When the next query is due.
    pub next: Option<Instant>,
    /// Queries of this round that have been sent.
    sent: usize,
    /// The pause after the last query of a round; `None` if a round ends the queries.
    rest: Option<Duration>,
}

impl Asker {
    /// Asks on the interfaces with these indices, with this number. `rest` is the pause from a
    /// round to the next query.
    pub fn new(interfaces: &[u32], asks: u64, rest: Option<Duration>) -> io::Result<Asker> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_multicast_ttl_v4(1)?;
        socket.set_nonblocking(true)?;
        Ok(Asker {
            socket,
            interfaces: interfaces.to_vec(),
            asks,
            next: Some(Instant::now()),
            sent: 0,
            rest,
        })
    }

    /// Sends a query if it is time to.
    pub fn tick(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let pause = PAUSES.get(self.sent).copied().or(self.rest);
        self.next = pause.map(|pause| now + pause);
        self.sent += 1;
        let query = Query {
            fabricast: VERSION,
            asks: self.asks,
        };
        let mut bytes = serde_json::to_vec(&query).expect("plain data");
        bytes.resize(QUERY, b' ');
        for &index in &self.interfaces {
            let any = &Ipv4Addr::UNSPECIFIED;
            // An interface that is down, or has no address, reaches no sender.
            if set_ip_multicast_if_with_ifindex(&self.socket, any, any, index).is_ok() {
                let _ = self.socket.send_to(&bytes, (ASKED, PORT));
            }
        }
    }

    /// Begins another round.
    pub fn again(&mut self, now: Instant) {
        (self.next, self.sent) = (Some(now), 0);
    }
}
