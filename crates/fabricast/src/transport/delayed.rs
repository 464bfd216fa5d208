//! A transport that reads and completes datagrams late, as a device does, over any other transport.
//!
//! It reads the bytes of a datagram some time after `send` has taken it, and completes datagrams
//! later still and out of order. It overwrites the slot of each datagram that it completes. So it
//! shows whether a driver reuses or returns bytes too early: wrong bytes reach the network. The
//! bytes of objects it does not overwrite, because retransmissions read them again.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use fabricast_proto::rng::Rng;
use fabricast_proto::{AddressId, Dest, NodeId, Time};

use super::{
    Arrival, Caps, Counters, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Ready, Sleeper,
    Slots, Transport, Watch,
};

/// Largest number of datagrams that it hands to the transport below at once.
const BATCH: usize = 64;
/// What it writes over slots.
const OVERWRITTEN: u8 = 0xee;

/// How late datagrams are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delays {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Longest time after which a datagram is read, and after that as long again until it is
    /// completed.
    pub longest: Duration,
}

/// `T`, with delays or without.
pub struct Delayed<T: Transport> {
    inner: T,
    late: Option<Late>,
}

/// The datagrams that are late.
struct Late {
    rng: Rng,
    longest: Duration,
    /// Datagrams that were posted, in their order.
    posted: VecDeque<Posted>,
    /// Datagrams that were read, and when each is completed.
    read: Vec<(Time, DatagramId)>,
    /// The transport below did not take what it was last given.
    refused: bool,
    /// The time of the last call.
    now: Time,
}

struct Posted {
    id: DatagramId,
    to: Dest,
    payload: Payload,
    read_at: Time,
}

/// The payload of a posted datagram, which the driver neither moves nor changes.
#[derive(Clone, Copy)]
struct Payload(*const [u8]);

// SAFETY: it points to bytes that nobody changes while they are posted, so any thread may read
// them.
#[allow(unsafe_code)]
unsafe impl Send for Payload {}

impl Payload {
    /// The bytes.
    #[allow(unsafe_code)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the pointer was made from a reference to that many bytes. By the contract of
        // `Transport::send` the driver keeps them where they are, unchanged, until the datagram is
        // completed, and completed datagrams are in no list that this is called for. A driver that
        // breaks the contract is what this transport is there to find.
        unsafe { &*self.0 }
    }
}

impl<T: Transport> Delayed<T> {
    /// Wraps `inner`. Without delays it does nothing.
    pub fn new(inner: T, delays: Option<Delays>) -> Delayed<T> {
        Delayed {
            inner,
            late: delays.map(|delays| Late {
                rng: Rng::new(delays.seed),
                longest: delays.longest,
                posted: VecDeque::with_capacity(BATCH),
                read: Vec::with_capacity(BATCH),
                refused: false,
                now: Time::ZERO,
            }),
        }
    }

    /// The transport underneath.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport underneath.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl Late {
    /// A time from now on, within the longest delay.
    fn later(&mut self, now: Time) -> Time {
        let longest = self.longest.as_nanos() as u64;
        now + Duration::from_nanos(1 + self.rng.below(longest.max(1)))
    }

    fn post(&mut self, now: Time, datagram: &Outgoing<'_>) {
        let after = self.posted.back().map_or(now, |last| last.read_at);
        let read_at = self.later(now).max(after);
        self.posted.push_back(Posted {
            id: datagram.id,
            to: datagram.to,
            payload: Payload(datagram.payload),
            read_at,
        });
    }

    /// Hands the datagrams whose time has come to the transport below, which reads them.
    fn read<T: Transport>(&mut self, now: Time, inner: &mut T) -> io::Result<()> {
        (self.now, self.refused) = (now, false);
        loop {
            let due = self.posted.iter().take_while(|p| p.read_at <= now).count();
            if due == 0 {
                return Ok(());
            }
            let slots = inner.slots();
            let mut batch = arrayvec::ArrayVec::<_, BATCH>::new();
            for posted in self.posted.iter().take(due.min(BATCH)) {
                batch.push(slots.outgoing(posted.id, posted.to, posted.payload.bytes()));
            }
            let offered = batch.len();
            let taken = inner.send(now, &batch)?;
            drop(batch);
            self.posted.drain(..taken);
            let mut done = std::mem::take(&mut self.read);
            inner.completions(now, &mut |id| done.push((self.later(now), id)));
            self.read = done;
            if taken < offered {
                self.refused = true;
                return Ok(());
            }
        }
    }
}

impl<T: Transport> Transport for Delayed<T> {
    forward! { inner: names members slots is_drained sleep }

    fn caps(&self) -> Caps {
        let caps = self.inner.caps();
        Caps {
            zero_copy: caps.zero_copy || self.late.is_some(),
            ..caps
        }
    }

    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let Some(late) = &mut self.late else {
            return self.inner.send(now, batch);
        };
        // An error of earlier datagrams comes first: then nothing of this batch is taken.
        late.read(now, &mut self.inner)?;
        batch.iter().for_each(|datagram| late.post(now, datagram));
        Ok(batch.len())
    }

    fn completions(&mut self, now: Time, done: &mut dyn FnMut(DatagramId)) {
        let Some(late) = &mut self.late else {
            return self.inner.completions(now, done);
        };
        // An error comes again when the next datagram is sent or received.
        let _ = late.read(now, &mut self.inner);
        let slots = self.inner.slots();
        late.read.retain(|&(at, id)| {
            if at > now {
                return true;
            }
            slots.head(id).fill(OVERWRITTEN);
            slots.trailer(id).fill(OVERWRITTEN);
            done(id);
            false
        });
    }

    fn cancel(&mut self) {
        self.inner.cancel();
        if let Some(late) = &mut self.late {
            let done = &mut late.read;
            done.iter_mut().for_each(|(at, _)| *at = Time::ZERO);
            done.extend(late.posted.drain(..).map(|p| (Time::ZERO, p.id)));
            self.inner
                .completions(late.now, &mut |id| done.push((Time::ZERO, id)));
        }
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        if let Some(late) = &mut self.late {
            late.read(now, &mut self.inner)?;
        }
        self.inner.recv(now, sink)
    }

    fn due(&self) -> Option<Time> {
        let late = self.late.as_ref().and_then(|late| {
            let next = late.posted.front().filter(|_| !late.refused);
            let read = late.read.iter().map(|r| r.0);
            read.chain(next.map(|p| p.read_at)).min()
        });
        late.into_iter().chain(self.inner.due()).min()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let due = self.late.as_ref().and_then(|late| {
            let due = self.due()?;
            Some(due.since(late.now))
        });
        self.inner.wait(timeout.into_iter().chain(due).min())
    }
}

#[cfg(test)]
mod tests {
    use fabricast_proto::NodeId;

    use super::super::testing::Wire;
    use super::*;

    const LONGEST: Duration = Duration::from_millis(1);

    fn delayed() -> Delayed<Wire> {
        let delays = Delays {
            seed: 7,
            longest: LONGEST,
        };
        Delayed::new(Wire::echo(BATCH, BATCH), Some(delays))
    }

    /// Posts a datagram with this head and this payload.
    fn post(net: &mut Delayed<Wire>, now: Time, head: &[u8], payload: &[u8]) -> DatagramId {
        let slots = net.slots();
        let id = slots.take().unwrap();
        slots.head(id).extend_from_slice(head);
        slots.trailer(id).extend_from_slice(b"!");
        let datagram = slots.outgoing(id, Dest::Node(NodeId(1)), payload);
        assert_eq!(net.send(now, &[datagram]).unwrap(), 1);
        id
    }

    fn done(net: &mut Delayed<Wire>, now: Time) -> Vec<DatagramId> {
        let mut done = Vec::new();
        net.completions(now, &mut |id| done.push(id));
        done
    }

    #[test]
    fn bytes_are_read_late_and_completed_later_out_of_order() {
        let mut net = delayed();
        let posted: Vec<_> = (0..40)
            .map(|n| post(&mut net, Time::ZERO, &[n], b"payload"))
            .collect();
        assert!(net.inner.inbox.is_empty() && done(&mut net, Time::ZERO).is_empty());
        let (mut now, mut completed) = (Time::ZERO, Vec::new());
        while completed.len() < posted.len() {
            let due = net.due().expect("something is late");
            assert!(due > now, "it never rests");
            now = due;
            for id in done(&mut net, now) {
                // Who still used the slot would find other bytes there.
                assert_eq!(net.slots().head(id)[..], [OVERWRITTEN]);
                assert_eq!(net.slots().trailer(id)[..], [OVERWRITTEN]);
                completed.push(id);
            }
        }
        assert!(now <= Time::ZERO + 2 * LONGEST && net.due().is_none());
        assert_ne!(completed, posted, "out of order");
        completed.sort();
        let mut sorted = posted.clone();
        sorted.sort();
        assert_eq!(completed, sorted, "each once");
        let heads: Vec<u8> = net.inner.inbox.iter().map(|d| d[0]).collect();
        assert_eq!(heads, (0..40).collect::<Vec<u8>>(), "sent in order");
    }

    #[test]
    fn what_is_changed_too_early_is_sent_changed() {
        let mut net = delayed();
        let id = post(&mut net, Time::ZERO, b"head", b"");
        net.slots().head(id).fill(b'x');
        assert!(done(&mut net, Time::ZERO + LONGEST).is_empty());
        assert_eq!(net.inner.inbox, [b"xxxx!"]);
    }

    #[test]
    fn what_is_given_up_is_neither_read_nor_sent() {
        let mut net = delayed();
        let id = post(&mut net, Time::ZERO, b"head", b"payload");
        net.cancel();
        assert_eq!(done(&mut net, Time::ZERO), [id]);
        assert!(done(&mut net, Time::NEVER).is_empty());
        assert!(net.inner.inbox.is_empty() && net.due().is_none());
    }

    #[test]
    fn after_an_error_nothing_of_the_batch_is_taken() {
        let mut net = delayed();
        let first = post(&mut net, Time::ZERO, b"1", b"");
        net.inner.fails = true;
        let slots = net.slots();
        let second = slots.take().unwrap();
        let datagram = slots.outgoing(second, Dest::Node(NodeId(1)), b"");
        let later = Time::ZERO + LONGEST;
        assert!(net.send(later, &[datagram]).is_err());
        net.cancel();
        assert_eq!(done(&mut net, later), [first]);
    }

    #[test]
    fn without_delays_it_is_not_there() {
        let mut net = Delayed::new(Wire::echo(BATCH, BATCH), None);
        let id = post(&mut net, Time::ZERO, b"head", b"payload");
        assert_eq!(done(&mut net, Time::ZERO), [id]);
        assert_eq!(net.slots().head(id)[..], *b"head");
        assert!(!net.caps().zero_copy && delayed().caps().zero_copy);
    }
}
