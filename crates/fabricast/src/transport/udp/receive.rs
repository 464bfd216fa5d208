//! Receives datagrams that wait at the sockets.

use std::io;
use std::mem;
use std::os::fd::AsFd;

use fabricast_proto::Time;

use super::{RECEIVE_AT_ONCE, RECEIVE_MESSAGES, RECEIVE_MESSAGES_MIN, Udp, hearsay, sys, whole};
use crate::interface::because;
use crate::transport::Arrival;

type Sink<'s> = &'s mut dyn FnMut(&mut Arrival<'_>);

/// Number of datagrams after which a call reads no further socket.
const ENOUGH: usize = 64;
/// How often a call receives again when all it got was the node's own datagrams. After that it
/// returns zero although more may wait; the next `wait` notices them.
const ROUNDS: usize = 8;

/// Number of calls in which the node's own socket may have to wait for the groups' sockets: more
/// than their buffers hold.
const PASSED_MAX: u32 = 64;
/// Index of the node's own socket.
const OWN: usize = 0;

/// Number of calls that may rely on the last `wait`, or the last read, having found a socket empty.
const RELIED_MAX: u32 = 4;

impl Udp {
    /// Hands up the datagrams that wait at the sockets, and returns their number. The work is
    /// bounded: one `recvmmsg` per socket, and no further socket after [`ENOUGH`] datagrams.
    /// Sockets that were empty a moment ago are skipped, because a system call costs as much as
    /// some datagrams.
    ///
    /// The groups' sockets come first, each in its turn, and the node's own socket when they are
    /// empty. A probe must not overtake the data that it asks about, or all of these data would
    /// seem lost.
    pub(super) fn receive(&mut self, now: Time, sink: Sink<'_>) -> io::Result<usize> {
        self.relied += 1;
        if self.relied > RELIED_MAX {
            self.relied = 0;
            self.empty = false;
            self.inputs.iter_mut().for_each(|i| i.empty = false);
        }
        let mut fresh = mem::take(&mut self.fresh);
        for _ in 0..ROUNDS {
            let own = !self.empty;
            // Datagrams that came to a group after its socket was empty may have come before those
            // at the node's own socket, so read it again, unless the last wait looked at all
            // sockets just now.
            let trusted = !own || mem::take(&mut fresh);
            let (mut taken, mut given) = self.receive_groups(now, trusted, sink)?;
            if own && self.has_backlog() && self.passed < PASSED_MAX {
                self.passed += 1;
            } else if own {
                self.passed = 0;
                let (n, datagrams) = self.receive_at(OWN, now, sink)?;
                (taken, given) = (taken + n, given + datagrams);
            }
            if given > 0 || taken == 0 {
                return Ok(given);
            }
        }
        Ok(0)
    }

    /// Whether more may wait at a group's socket than has been read.
    fn has_backlog(&self) -> bool {
        self.inputs.iter().any(|i| !i.empty)
    }

    /// One `recvmmsg` at each group's socket until there are [`ENOUGH`] datagrams. If `trusted`,
    /// sockets that were empty when last looked at are left out.
    fn receive_groups(
        &mut self,
        now: Time,
        trusted: bool,
        sink: Sink<'_>,
    ) -> io::Result<(usize, usize)> {
        let groups = self.inputs.len();
        let (mut taken, mut given) = (0, 0);
        for step in 0..groups {
            let at = 1 + (self.turn + step) % groups;
            if trusted && self.inputs[at - 1].empty {
                continue;
            }
            let (n, datagrams) = self.receive_at(at, now, sink)?;
            (taken, given) = (taken + n, given + datagrams);
            if given >= ENOUGH {
                // The socket that had to wait comes first next time.
                self.turn = at % groups;
                break;
            }
        }
        Ok((taken, given))
    }

    /// One `recvmmsg`. Returns how many messages it took, and how many of their datagrams went up.
    fn receive_at(&mut self, at: usize, now: Time, sink: Sink<'_>) -> io::Result<(usize, usize)> {
        let (socket, empty) = match at {
            OWN => (&self.socket, &mut self.empty),
            _ => {
                let input = &mut self.inputs[at - 1];
                (&input.socket, &mut input.empty)
            }
        };
        self.counters.receive_calls += 1;
        let taken = match self.receiving.receive(socket.as_fd(), self.appetite) {
            Ok(taken) => taken,
            Err(e) => {
                return match e.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        *empty = true;
                        Ok((0, 0))
                    }
                    Some(libc::EINTR) => Ok((0, 0)),
                    // An error of the program, not of the network.
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::EFAULT) => {
                        let name = &self.device.name;
                        Err(because(e, format!("cannot receive on interface {name}")))
                    }
                    // The error concerns an earlier datagram (a closed port), or memory that is
                    // lacking just now.
                    _ => {
                        self.counters.errors_ignored += 1;
                        Ok((0, 0))
                    }
                };
            }
        };
        if taken < self.appetite {
            *empty = true;
        }
        self.appetite = appetite(self.receiving.filled_bytes(), taken);
        self.days.see(now);
        let mut given = 0;
        for i in 0..taken {
            let message = self.receiving.message(i);
            self.counters.messages_received += 1;
            if message.from == Some(self.local) {
                self.counters.own += split(message, &mut |_| ());
                continue;
            }
            if message.truncated {
                self.counters.truncated += 1;
                continue;
            }
            // The stamp may be later than `now`, if the datagram came while this process was about
            // to read. Cut to `now`, it would make the network look faster than it is.
            let arrived = message.stamp.map_or(now, |s| self.days.time(s));
            let from = message.from;
            let known = from.and_then(|a| self.sources.get(&whole(a)).copied());
            let hearsay = &mut self.hearsay;
            let source = known.or_else(|| hearsay.source(from?));
            // Questions and answers of `hearsay` go no further, but count as received, too.
            let mut quiet = 0;
            self.counters.bytes_received += message.bytes.len() as u64;
            let datagrams = split(message, &mut |bytes| {
                if bytes.len() == hearsay::LEN && hearsay.take(from, bytes, known.is_some()) {
                    quiet += 1;
                    return;
                }
                sink(&mut Arrival::borrowed(source, arrived, bytes));
            });
            self.counters.datagrams_received += datagrams;
            given += (datagrams - quiet) as usize;
        }
        Ok((taken, given))
    }
}

/// How many messages like the last `taken` ones the next `recvmmsg` should take.
fn appetite(bytes: usize, taken: usize) -> usize {
    let each = (bytes / taken.max(1)).max(1);
    (RECEIVE_AT_ONCE / each).clamp(RECEIVE_MESSAGES_MIN, RECEIVE_MESSAGES)
}

/// Hands the datagrams in `message` to `sink`, and returns their number.
fn split(message: sys::Received<'_>, sink: &mut dyn FnMut(&mut [u8])) -> u64 {
    match message.segment {
        Some(segment) if message.bytes.len() > segment => {
            let datagrams = message.bytes.chunks_mut(segment);
            let count = datagrams.len() as u64;
            datagrams.for_each(sink);
            count
        }
        _ => {
            sink(message.bytes);
            1
        }
    }
}
