//! Taking what has arrived.

use std::io;
use std::mem;
use std::os::fd::AsFd;

use fabricast_proto::Time;

use super::interface::because;
use super::{RECEIVE_AT_ONCE, RECEIVE_MESSAGES, RECEIVE_MESSAGES_MIN, Udp, bit, hearsay, sys};

/// A call ends with the socket at which it has handed up this many datagrams.
const ENOUGH: usize = 64;
/// How often a call looks again when all it got was our own datagrams. After that it answers zero
/// although more may wait: `wait` sees it.
const ROUNDS: usize = 8;

/// In so many calls the node's own socket may have to wait for the groups': more than their buffers
/// hold.
const PASSED_MAX: u32 = 64;
/// The node's own socket.
const OWN: usize = 0;

/// So many calls rely on what the last `wait`, or the last read, said of a socket: that it is
/// empty.
const RELIED_MAX: u32 = 4;

impl Udp {
    /// Hands up what waits at the sockets and says how many datagrams. Bounded: one `recvmmsg` per
    /// socket, and no further socket after [`ENOUGH`] datagrams. Sockets that were empty a moment
    /// ago are passed over: a system call costs as much as some datagrams.
    ///
    /// The groups' sockets come first, each in its turn, and the node's own one when they are
    /// empty: for a question must not overtake the data that it asks about, or all of these would
    /// seem lost.
    pub(super) fn receive(
        &mut self,
        now: Time,
        sink: &mut dyn FnMut(Time, &[u8]),
    ) -> io::Result<usize> {
        self.relied += 1;
        if self.relied > RELIED_MAX {
            (self.empty, self.relied) = (0, 0);
        }
        let mut fresh = mem::take(&mut self.fresh);
        for _ in 0..ROUNDS {
            let own = self.empty & bit(OWN) == 0;
            // What has come to a group since its socket was empty came before what waits at our
            // own; unless all of them were looked at just now.
            let trusted = !own || mem::take(&mut fresh);
            let but = if trusted { self.empty } else { 0 };
            let (mut taken, mut given) = self.receive_groups(now, but, sink)?;
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
        let empty = |at| bit(at) == 0 || self.empty & bit(at) != 0;
        !(1..=self.inputs.len()).all(empty)
    }

    /// One `recvmmsg` at each group's socket that is not in `but`, until there is [`ENOUGH`].
    fn receive_groups(
        &mut self,
        now: Time,
        but: u64,
        sink: &mut dyn FnMut(Time, &[u8]),
    ) -> io::Result<(usize, usize)> {
        let groups = self.inputs.len();
        let (mut taken, mut given) = (0, 0);
        for step in 0..groups {
            let at = 1 + (self.turn + step) % groups;
            if but & bit(at) != 0 {
                continue;
            }
            let (n, datagrams) = self.receive_at(at, now, sink)?;
            (taken, given) = (taken + n, given + datagrams);
            if given >= ENOUGH {
                // Whoever had to wait is the first one next time.
                self.turn = at % groups;
                break;
            }
        }
        Ok((taken, given))
    }

    /// One `recvmmsg`: how many messages it took, and how many datagrams of them went up.
    fn receive_at(
        &mut self,
        at: usize,
        now: Time,
        sink: &mut dyn FnMut(Time, &[u8]),
    ) -> io::Result<(usize, usize)> {
        let socket = match at {
            0 => &self.socket,
            _ => &self.inputs[at - 1].socket,
        };
        self.counters.receive_calls += 1;
        let taken = match self.receiving.receive(socket.as_fd(), self.appetite) {
            Ok(taken) => taken,
            Err(e) => {
                return match e.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.empty |= bit(at);
                        Ok((0, 0))
                    }
                    Some(libc::EINTR) => Ok((0, 0)),
                    // Fatal for the program, not news from the network.
                    Some(libc::EBADF | libc::ENOTSOCK | libc::EINVAL | libc::EFAULT) => {
                        let name = &self.device.name;
                        Err(because(e, format!("cannot receive on interface {name}")))
                    }
                    // About a datagram sent earlier (a closed port), or no memory just now.
                    _ => {
                        self.counters.errors_ignored += 1;
                        Ok((0, 0))
                    }
                };
            }
        };
        if taken < self.appetite {
            self.empty |= bit(at);
        }
        self.appetite = appetite(self.receiving.filled_bytes(), taken);
        self.days.see(now);
        let mut given = 0;
        for i in 0..taken {
            let message = self.receiving.message(i);
            self.counters.messages_received += 1;
            if message.from == Some(self.local) {
                self.counters.own += split(&message, &mut |_| ());
                continue;
            }
            if message.truncated {
                self.counters.truncated += 1;
                continue;
            }
            // It may have come after `now`, while this process was about to read: cut to `now`, it
            // would look faster than the network is.
            let arrived = message.stamp.map_or(now, |s| self.days.time(s));
            // Those that go no further are counted as received, too.
            let (mut known, mut known_bytes, mut quiet) = (0, 0, 0);
            // All datagrams of a message have one sender, and as a rule say so.
            let mut sender = None;
            let (nodes, hearsay) = (&self.nodes, &mut self.hearsay);
            let datagrams = split(&message, &mut |bytes| {
                let is_known = |from| nodes.values().any(|n| n.is(Some(from)));
                if bytes.len() == hearsay::LEN && hearsay.take(message.from, bytes, is_known) {
                    known += 1;
                    known_bytes += bytes.len() as u64;
                    quiet += 1;
                    return;
                }
                let claimed = self.claims.and_then(|of| of(bytes));
                if let Some(node) = claimed.filter(|_| claimed != sender)
                    && (nodes.get(&node).is_some_and(|n| n.is(message.from))
                        || hearsay.is(node, message.from))
                {
                    sender = claimed;
                }
                if claimed.is_none() || claimed == sender {
                    known += 1;
                    known_bytes += bytes.len() as u64;
                    sink(arrived, bytes);
                }
            });
            self.counters.foreign += datagrams - known;
            self.counters.datagrams_received += known;
            self.counters.bytes_received += known_bytes;
            given += (known - quiet) as usize;
        }
        Ok((taken, given))
    }
}

/// How many messages like these, which were `taken`, `recvmmsg` is to take at once.
fn appetite(bytes: usize, taken: usize) -> usize {
    let each = (bytes / taken.max(1)).max(1);
    (RECEIVE_AT_ONCE / each).clamp(RECEIVE_MESSAGES_MIN, RECEIVE_MESSAGES)
}

/// Hands the datagrams in `message` to `sink`, and says how many.
fn split(message: &sys::Received<'_>, sink: &mut dyn FnMut(&[u8])) -> u64 {
    match message.segment {
        Some(segment) if message.bytes.len() > segment => {
            let datagrams = message.bytes.chunks(segment);
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
