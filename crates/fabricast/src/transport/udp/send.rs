//! Hands datagrams to the kernel, many at a time.
//!
//! A batch is planned into *messages*. A run of equally long datagrams to one destination (the last
//! may be shorter) is one message that the kernel segments (GSO). One `sendmmsg` sends several
//! messages. When the kernel refuses to segment, the destination is marked and the rest of the
//! batch is planned anew, so that there is one way to send, not two.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use fabricast_proto::{Dest, Time};

use super::sys::Message;
use super::{Blocked, Destination, Notice, STANDING, Udp};
use crate::interface::{self, because};
use crate::transport::Outgoing;

/// Largest number of datagrams in one message: the kernel's limit since GSO exists (newer kernels
/// allow 128).
const SEGMENTS_MAX: usize = 64;
/// Largest length of a message, in bytes: what the length fields of IP and UDP can hold.
const MESSAGE_BYTES_MAX: usize = 65_507;
/// Largest number of messages in one `sendmmsg`.
const MESSAGES_MAX: usize = 64;
/// Largest number of datagrams in one `sendmmsg`, which bounds what is planned anew after a
/// refusal.
const DATAGRAMS_MAX: usize = 512;
/// How often in a row a send is tried again after an error that concerned an earlier datagram.
const RETRIES: u32 = 8;

/// What to do about a message that the kernel did not accept.
enum Next {
    /// Try the message again.
    Again,
    /// Plan what is left anew, from this message on.
    Replan,
    /// The message is lost; continue with the next one.
    Skip,
    /// Send nothing more now.
    Stop,
}

impl Udp {
    /// Sends what the kernel accepts, from the front of `batch`. Returns the number of datagrams.
    pub(super) fn send_batch(&mut self, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        self.blocked = Blocked::No;
        let mut done = 0;
        while done < batch.len() {
            let start = done;
            let end = self.plan(batch, start);
            let (taken, ended) = self.hand_over_all(batch);
            done = self.messages.get(taken).map_or(end, |m| m.first);
            let known: usize = self.messages[..taken].iter().map(|m| m.count).sum();
            self.counters.unknown += (done - start - known) as u64;
            match ended {
                Ok(Next::Stop) => break,
                Ok(_) => (),
                Err(e) if done == 0 => return Err(e),
                Err(_) => {
                    // First report what was sent. The next call gets the error again, and `wait`
                    // returns at once, because the socket is not full.
                    self.blocked = Blocked::Full;
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Hands over the planned messages. Returns how many of them are done, and what to do next.
    fn hand_over_all(&mut self, batch: &[Outgoing<'_>]) -> (usize, io::Result<Next>) {
        let mut taken = 0;
        let mut retries = 0;
        while taken < self.messages.len() {
            let error = match self.hand_over(taken, batch) {
                Ok(n) => {
                    for message in &self.messages[taken..taken + n] {
                        let datagrams = &batch[message.first..message.first + message.count];
                        let bytes: usize = datagrams.iter().map(Outgoing::len).sum();
                        self.counters.datagrams_sent += message.count as u64;
                        self.counters.bytes_sent += bytes as u64;
                    }
                    self.counters.messages_sent += n as u64;
                    taken += n;
                    retries = 0;
                    continue;
                }
                Err(error) => error,
            };
            match self.refused(error, taken, batch) {
                Ok(Next::Again) if retries < RETRIES => retries += 1,
                Ok(Next::Again | Next::Skip) => {
                    self.counters.lost_at_send += self.messages[taken].count as u64;
                    taken += 1;
                    retries = 0;
                }
                end => return (taken, end),
            }
        }
        (taken, Ok(Next::Replan))
    }

    /// Fills `messages` from `batch[start..]`. Returns the index at which it stopped.
    fn plan(&mut self, batch: &[Outgoing<'_>], start: usize) -> usize {
        self.messages.clear();
        let longest_gso = self.device.mtu.saturating_sub(self.family.headers());
        let mut at = start;
        while at < batch.len() && at - start < DATAGRAMS_MAX && self.messages.len() < MESSAGES_MAX {
            let first = &batch[at];
            let Some(to) = self.destination(first.to) else {
                if let Dest::Node(node) = first.to {
                    self.hearsay.wanted(node);
                }
                at += 1;
                continue;
            };
            let segment = first.len();
            let mut count = 1;
            if self.gso && to.gso && segment > 0 && segment <= longest_gso {
                let mut bytes = segment;
                for next in &batch[at + 1..] {
                    let len = next.len();
                    if count == SEGMENTS_MAX
                        || next.to != first.to
                        || len > segment
                        || len == 0
                        || bytes + len > MESSAGE_BYTES_MAX
                    {
                        break;
                    }
                    count += 1;
                    bytes += len;
                    if len < segment {
                        break;
                    }
                }
            }
            let message = Message {
                to: to.address.clone(),
                first: at,
                count,
                segment: (count > 1).then_some(segment as u16),
            };
            self.messages.push(message);
            at += count;
        }
        at
    }

    /// Hands over the planned messages from number `from` on with one `sendmmsg`.
    fn hand_over(&mut self, from: usize, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        self.counters.send_calls += 1;
        #[cfg(test)]
        let to = from + self.script.lets_through(&self.messages[from..])?;
        #[cfg(not(test))]
        let to = self.messages.len();
        let fd = self.socket.as_fd();
        self.sending
            .send(fd, &self.messages[from..to], batch, &self.slots)
    }

    /// Decides what to do about an error at message number `at`.
    fn refused(&mut self, error: io::Error, at: usize, batch: &[Outgoing<'_>]) -> io::Result<Next> {
        let message = &self.messages[at];
        let first = batch[message.first];
        let to = message.to.as_socket().unwrap_or(self.local);
        let errno = error.raw_os_error().unwrap_or(0);
        let cut = message.segment.is_some();
        match errno {
            libc::EAGAIN => {
                self.blocked = Blocked::Full;
                Ok(Next::Stop)
            }
            libc::ENOBUFS | libc::ENOMEM => {
                self.blocked = Blocked::Starved;
                Ok(Next::Stop)
            }
            libc::EINTR => Ok(Next::Again),
            // The error concerns an earlier datagram; fetching the error has cleared it.
            libc::ECONNREFUSED | libc::ECONNRESET | libc::EPROTO | libc::EHOSTDOWN => {
                self.counters.errors_ignored += 1;
                Ok(Next::Again)
            }
            libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP | libc::ENOPROTOOPT
                if cut =>
            {
                if let Some(destination) = self.destination_mut(first.to) {
                    destination.gso = false;
                }
                self.notify_about(first.to, Notice::GsoRefused { to, errno });
                Ok(Next::Replan)
            }
            libc::EMSGSIZE => {
                let len = first.len();
                self.notify_about(first.to, Notice::TooLarge { to, len });
                Ok(Next::Skip)
            }
            libc::EPERM | libc::EACCES => {
                self.notify_about(first.to, Notice::Blocked { to });
                Ok(Next::Skip)
            }
            // One peer or group cannot be reached, while the interface is well. (A host without a
            // multicast route is served by unicast, like one behind a firewall.)
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::EADDRNOTAVAIL
                if self.still_there() =>
            {
                self.notify_about(first.to, Notice::Unreachable { to, errno });
                Ok(Next::Skip)
            }
            _ => Err(self.explained(error, to)),
        }
    }

    /// The error that ends sending, with the place where it happened and what may help.
    fn explained(&mut self, error: io::Error, to: SocketAddr) -> io::Error {
        self.stood_at = None;
        let there = self.still_there();
        let name = &self.device.name;
        let own = self.local.ip();
        let hint = if !there {
            format!(": the interface is down, gone, or has lost its address {own}")
        } else {
            ": check the routes".to_string()
        };
        because(
            error,
            format!("cannot send to {to} by interface {name}{hint}"),
        )
    }

    /// Whether the interface is up and still has this node's address. The transport asks only after
    /// an error. To list all interfaces is slow, and a peer that cannot be reached causes an error
    /// with every datagram, so a yes counts for [`STANDING`]. (A no ends sending.)
    fn still_there(&mut self) -> bool {
        let recent = |at: Time| self.now >= at && self.now.since(at) < STANDING;
        if self.stood_at.is_some_and(recent) {
            return true;
        }
        self.counters.interface_checks += 1;
        let own = self.local.ip();
        let there = interface::devices().is_ok_and(|all| {
            let same = |d: &&interface::Device| d.index == self.device.index;
            all.iter().find(same).is_some_and(|d| {
                d.up && (d.addresses.contains(&own) || d.loopback && own.is_loopback())
            })
        });
        self.stood_at = there.then_some(self.now);
        there
    }

    /// Reports `notice`, once per destination.
    fn notify_about(&mut self, to: Dest, notice: Notice) {
        let bit = notice.bit();
        let fresh = self.destination_mut(to).is_some_and(|destination| {
            let fresh = destination.noticed & bit == 0;
            destination.noticed |= bit;
            fresh
        });
        if fresh {
            self.notify(notice);
        }
    }

    fn destination(&self, to: Dest) -> Option<&Destination> {
        match to {
            Dest::Node(node) => self.nodes.get(&node),
            Dest::Address(id) => self.groups.get(&id).map(|g| &g.to),
        }
    }

    fn destination_mut(&mut self, to: Dest) -> Option<&mut Destination> {
        match to {
            Dest::Node(node) => self.nodes.get_mut(&node),
            Dest::Address(id) => self.groups.get_mut(&id).map(|g| &mut g.to),
        }
    }
}
