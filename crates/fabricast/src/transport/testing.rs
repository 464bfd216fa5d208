//! A network for the tests of what drives or wraps a transport.

use std::collections::VecDeque;

use fabricast_proto::wire;

use super::delayed::Delayed;
use super::*;

/// Largest datagram, in bytes.
const DATAGRAM_MAX: usize = 9000;

/// Keeps what is sent, and hands up what a test puts into its inbox, `burst` datagrams in each
/// call. Takes at most `room` datagrams in each call, and records how long its caller waits.
pub struct Wire {
    pub room: usize,
    pub burst: usize,
    /// What is sent comes back to its sender.
    pub echoes: bool,
    pub inbox: VecDeque<Vec<u8>>,
    /// Datagrams that were taken and do not come back.
    pub sent: Vec<Vec<u8>>,
    /// Number of datagrams that were taken.
    pub count: u64,
    pub waited: Option<Duration>,
    /// Sending fails.
    pub fails: bool,
    slots: Slots,
    done: Vec<DatagramId>,
}

impl Wire {
    /// A network that takes everything and hands up everything.
    pub fn new() -> Wire {
        Wire {
            room: usize::MAX,
            burst: usize::MAX,
            echoes: false,
            inbox: VecDeque::new(),
            sent: Vec::new(),
            count: 0,
            waited: None,
            fails: false,
            slots: Slots::new(DATAGRAM_MAX),
            done: Vec::new(),
        }
    }

    /// A network that returns what is sent.
    pub fn echo(room: usize, burst: usize) -> Wire {
        Wire {
            room,
            burst,
            echoes: true,
            ..Wire::new()
        }
    }
}

/// Sends datagrams ([`send_plain`]), over a network that reads late if all tests do
/// ([`Delayed::in_tests`]). When it returns, the transport has read them. Returns how many were
/// taken.
pub fn send_in_tests<T: Transport>(
    net: &mut T,
    now: Time,
    batch: &[(Dest, &[u8], &[u8])],
) -> io::Result<usize> {
    let mut late = Delayed::in_tests(Borrowed { inner: net }, 1);
    let (mut taken, mut now) = (0, now);
    for some in batch.chunks(SLOTS) {
        let count = send_plain(&mut late, now, some)?;
        while late.slots().free() < SLOTS {
            match late.late_until() {
                Some(due) => now = now.max(due),
                None => late.wait(Some(Duration::from_secs(1)))?,
            }
            release_completed(&mut late, now);
        }
        taken += count;
        if count < some.len() {
            break;
        }
    }
    Ok(taken)
}

/// A transport that a test goes on using by itself.
struct Borrowed<'a, T> {
    inner: &'a mut T,
}

impl<T: Transport> Transport for Borrowed<'_, T> {
    forward! {
        inner: caps names members news slots send completions cancel recv is_drained due sleep wait
    }
}

/// The datagram in a slot of a transport that reads nothing late, with this payload.
#[allow(unsafe_code)]
pub fn lending<'a>(slots: &Slots, id: DatagramId, to: Dest, payload: &'a [u8]) -> Outgoing<'a> {
    // SAFETY: the transport reads the payload in `send` alone.
    unsafe { slots.lending(id, to, payload) }
}

impl Transport for Wire {
    fn caps(&self) -> Caps {
        Caps::datagrams(DATAGRAM_MAX)
    }
    fn backlog(&self, _: u32) -> u32 {
        100
    }
    fn address(&self) -> NodeAddress {
        NodeAddress::Number(1)
    }
    fn peer(&mut self, _: NodeId, _: &NodeAddress) {}
    fn forget(&mut self, _: NodeId) {}
    fn join(&mut self, _: AddressId, _: &GroupAddress, _: bool) {}
    fn leave(&mut self, _: AddressId) {}
    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }
    fn send(&mut self, _: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        if self.fails {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        let taken = batch.len().min(self.room);
        for datagram in &batch[..taken] {
            let bytes = self.slots.pieces(datagram).concat();
            match self.echoes {
                true => self.inbox.push_back(bytes),
                false => self.sent.push(bytes),
            }
            self.done.push(datagram.id);
        }
        self.count += taken as u64;
        Ok(taken)
    }
    fn completions(&mut self, _: Time, done: &mut dyn FnMut(DatagramId)) {
        self.done.drain(..).for_each(done);
    }
    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        let count = self.inbox.len().min(self.burst);
        for mut datagram in self.inbox.drain(..count) {
            let from = wire::source(&datagram);
            sink(&mut Arrival::lent(from, now, &mut datagram));
        }
        Ok(count)
    }
    fn attach(&mut self, _: &Sleeper) -> io::Result<Box<dyn Watch>> {
        unreachable!("no thread sleeps")
    }
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.waited = timeout;
        Ok(())
    }
}
