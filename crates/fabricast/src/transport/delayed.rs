//! A transport that reads and completes datagrams late, as a device does, over any other transport.
//!
//! It reads the bytes of a datagram some time after `send` has taken it, and completes datagrams
//! later still and out of order. It computes a checksum of the bytes when the datagram is posted,
//! and panics if it finds another one when it reads the datagram, or when it completes it: the
//! driver has reused or returned bytes too early. So it does if a slot has moved, which a device
//! would not notice. It overwrites the slot of each datagram that it
//! completes. The bytes of objects it does not overwrite, because retransmissions read them again.
//! It also tells late how joins have ended.

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

impl Delays {
    /// The delays in all tests, and in all scenarios of the simulator, that say nothing about them:
    /// the environment variable `DELAYED_US` gives the longest, in microseconds. `None` without it.
    pub fn in_tests(seed: u64) -> Option<Delays> {
        let micros = std::env::var("DELAYED_US").ok()?;
        let micros = micros
            .parse()
            .expect("DELAYED_US is a number of microseconds");
        Some(Delays {
            seed,
            longest: Duration::from_micros(micros),
        })
    }
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
    /// Datagrams that the transport below has taken and has not completed.
    below: Vec<Bytes>,
    /// Datagrams that were read.
    read: Vec<Read>,
    /// Answers to joins, and when each is told.
    answers: VecDeque<(Time, News)>,
    /// The transport below did not take what it was last given.
    refused: bool,
    /// The time of the last call.
    now: Time,
}

/// A datagram that is still to be read.
struct Posted {
    bytes: Bytes,
    read_at: Time,
}

/// A datagram that was read, or given up.
struct Read {
    id: DatagramId,
    /// When it is completed.
    complete_at: Time,
    /// Its bytes, unless it was given up: then its owner may have them back.
    bytes: Option<Bytes>,
}

impl Read {
    fn given_up(id: DatagramId) -> Read {
        Read {
            id,
            complete_at: Time::ZERO,
            bytes: None,
        }
    }
}

/// The bytes of a posted datagram, which nobody may change.
#[derive(Clone, Copy)]
struct Bytes {
    id: DatagramId,
    to: Dest,
    payload: Payload,
    /// Where the slot was when they were posted.
    slot: usize,
    /// Their checksum then.
    sum: u32,
}

impl Bytes {
    fn new(slots: &Slots, datagram: &Outgoing<'_>) -> Bytes {
        Bytes {
            id: datagram.id,
            to: datagram.to,
            payload: Payload(datagram.payload()),
            slot: place(slots, datagram),
            sum: sum(slots, datagram),
        }
    }

    /// The datagram once more, which must not have changed before `moment`.
    fn unchanged(&self, slots: &Slots, moment: &str) -> Outgoing<'_> {
        // SAFETY: the payload is that of a datagram that was made in this way and is not complete.
        #[allow(unsafe_code)]
        let datagram = unsafe { slots.lending(self.id, self.to, self.payload.bytes()) };
        assert!(
            place(slots, &datagram) == self.slot,
            "the slot of the datagram {:?} to {:?} has moved before the network had {moment} it",
            self.id,
            self.to,
        );
        assert!(
            sum(slots, &datagram) == self.sum,
            "bytes of the datagram {:?} to {:?} have changed before the network had {moment} it: \
             they were reused or given back too early",
            self.id,
            self.to,
        );
        datagram
    }
}

/// The address of a datagram's slot.
fn place(slots: &Slots, datagram: &Outgoing<'_>) -> usize {
    slots.pieces(datagram)[0].as_ptr().addr()
}

/// A checksum of all bytes of a datagram.
fn sum(slots: &Slots, datagram: &Outgoing<'_>) -> u32 {
    let pieces = slots.pieces(datagram).into_iter();
    pieces.fold(0, crc32c::crc32c_append)
}

/// The payload of a posted datagram, which the driver neither moves nor changes.
#[derive(Clone, Copy)]
struct Payload(*const [u8]);

// SAFETY: it points to bytes that nobody changes while they are posted (`Slots::lending`), so any
// thread may read them.
#[allow(unsafe_code)]
unsafe impl Send for Payload {}

impl Payload {
    /// The bytes.
    #[allow(unsafe_code)]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the pointer was made from a reference to that many bytes. By the contract of
        // `Slots::lending` they stay where they are, unchanged, until the datagram is completed or
        // given up, and such datagrams are in no list that this is called for. A driver that breaks
        // the contract is what this transport is there to find.
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
                below: Vec::with_capacity(BATCH),
                read: Vec::with_capacity(BATCH),
                answers: VecDeque::new(),
                refused: false,
                now: Time::ZERO,
            }),
        }
    }

    /// Wraps `inner` for a test, with the delays of all tests ([`Delays::in_tests`]).
    pub fn in_tests(inner: T, seed: u64) -> Delayed<T> {
        Delayed::new(inner, Delays::in_tests(seed))
    }

    /// When it reads or completes the next datagram, or answers a join; `None` if nothing is late,
    /// or if the transport underneath takes no datagram.
    pub fn late_until(&self) -> Option<Time> {
        let late = self.late.as_ref()?;
        let next = late.posted.front().filter(|_| !late.refused);
        let read = late.read.iter().map(|r| r.complete_at);
        let answer = late.answers.front().map(|a| a.0);
        read.chain(next.map(|p| p.read_at)).chain(answer).min()
    }

    /// The transport underneath.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport underneath, for simulators and tests.
    ///
    /// # Panics
    /// If it reads late itself: nobody may put another one in its place while it reads.
    pub fn inner_mut(&mut self) -> &mut T {
        assert!(!self.inner.caps().zero_copy, "a transport that reads late");
        &mut self.inner
    }
}

impl Late {
    /// A time from now on, within the longest delay.
    fn later(&mut self, now: Time) -> Time {
        let longest = self.longest.as_nanos() as u64;
        now + Duration::from_nanos(1 + self.rng.below(longest.max(1)))
    }

    fn post(&mut self, now: Time, slots: &Slots, datagram: &Outgoing<'_>) {
        let after = self.posted.back().map_or(now, |last| last.read_at);
        let read_at = self.later(now).max(after);
        self.posted.push_back(Posted {
            bytes: Bytes::new(slots, datagram),
            read_at,
        });
    }

    /// Takes note of what the transport below has completed.
    fn complete_below<T: Transport>(&mut self, now: Time, inner: &mut T) {
        let mut read = std::mem::take(&mut self.read);
        inner.completions(now, &mut |id| {
            let at = self.below.iter().position(|bytes| bytes.id == id);
            read.push(Read {
                id,
                complete_at: self.later(now),
                bytes: at.map(|at| self.below.remove(at)),
            });
        });
        self.read = read;
    }

    /// Hands the datagrams whose time has come to the transport below, which reads them.
    fn read<T: Transport>(&mut self, now: Time, inner: &mut T) -> io::Result<()> {
        (self.now, self.refused) = (now, false);
        if !self.below.is_empty() {
            self.complete_below(now, inner);
        }
        loop {
            let due = self.posted.iter().take_while(|p| p.read_at <= now).count();
            if due == 0 {
                return Ok(());
            }
            let slots = inner.slots();
            let mut batch = arrayvec::ArrayVec::<_, BATCH>::new();
            for posted in self.posted.iter().take(due.min(BATCH)) {
                batch.push(posted.bytes.unchanged(slots, "read"));
            }
            let offered = batch.len();
            let taken = inner.send(now, &batch)?;
            drop(batch);
            self.below
                .extend(self.posted.drain(..taken).map(|p| p.bytes));
            self.complete_below(now, inner);
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
        let slots = self.inner.slots();
        let post = |datagram| late.post(now, slots, datagram);
        batch.iter().for_each(post);
        Ok(batch.len())
    }

    fn completions(&mut self, now: Time, done: &mut dyn FnMut(DatagramId)) {
        let Some(late) = &mut self.late else {
            return self.inner.completions(now, done);
        };
        // An error comes again when the next datagram is sent or received.
        let _ = late.read(now, &mut self.inner);
        let slots = self.inner.slots();
        late.read.retain(|read| {
            if read.complete_at > now {
                return true;
            }
            if let Some(bytes) = &read.bytes {
                bytes.unchanged(slots, "completed");
            }
            for part in slots.parts(read.id) {
                part.fill(OVERWRITTEN);
            }
            done(read.id);
            false
        });
    }

    fn cancel(&mut self) {
        self.inner.cancel();
        if let Some(late) = &mut self.late {
            let done = &mut late.read;
            done.iter_mut().for_each(|r| *r = Read::given_up(r.id));
            let posted = late.posted.drain(..).map(|p| p.bytes.id);
            done.extend(posted.map(Read::given_up));
            late.below.clear();
            self.inner
                .completions(late.now, &mut |id| done.push(Read::given_up(id)));
        }
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        if let Some(late) = &mut self.late {
            late.read(now, &mut self.inner)?;
        }
        self.inner.recv(now, sink)
    }

    fn news(&mut self) -> Option<News> {
        let Some(late) = &mut self.late else {
            return self.inner.news();
        };
        while let Some(news) = self.inner.news() {
            if !matches!(news, News::Joined(_) | News::JoinFailed(..)) {
                return Some(news);
            }
            let after = late.answers.back().map_or(late.now, |last| last.0);
            let at = late.later(late.now).max(after);
            late.answers.push_back((at, news));
        }
        let told = late.answers.front().is_some_and(|a| a.0 <= late.now);
        told.then(|| late.answers.pop_front())?.map(|a| a.1)
    }

    fn due(&self) -> Option<Time> {
        self.late_until().into_iter().chain(self.inner.due()).min()
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
        slots.head(id).put(head);
        slots.trailer(id).put(b"!");
        // SAFETY: each test keeps the payload.
        #[allow(unsafe_code)]
        let datagram = unsafe { slots.lending(id, Dest::Node(NodeId(1)), payload) };
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
                let [head, _, trailer] = net.slots().parts(id);
                assert_eq!(
                    (&*head, &*trailer),
                    (&[OVERWRITTEN][..], &[OVERWRITTEN][..])
                );
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
    #[should_panic(expected = "before the network had read it")]
    fn a_slot_that_is_reused_too_early_is_found() {
        let mut net = delayed();
        let id = post(&mut net, Time::ZERO, b"head", b"");
        net.slots().parts(id)[0].fill(b'x');
        done(&mut net, Time::ZERO + LONGEST);
    }

    /// A device would read the old memory.
    #[test]
    #[should_panic(expected = "has moved before the network had read it")]
    fn a_slot_that_moves_is_found() {
        let mut net = delayed();
        let id = post(&mut net, Time::ZERO, b"head", b"");
        let mut moved = Slots::new(net.caps().datagram_max);
        assert_eq!(moved.take(), Some(id));
        moved.head(id).put(b"head");
        moved.trailer(id).put(b"!");
        let _old = std::mem::replace(net.slots(), moved);
        done(&mut net, Time::ZERO + LONGEST);
    }

    /// The payload of a datagram is changed before it is read, or before it is complete.
    fn change_payload_at(net: &mut Delayed<Wire>, at: Time) {
        let payload = Box::into_raw(Box::new(*b"payload"));
        // SAFETY: the memory is never freed, and no reference to it is in use when it is written.
        #[allow(unsafe_code)]
        unsafe {
            post(net, Time::ZERO, b"head", &*payload);
            done(net, at);
            (*payload)[3] = b'x';
        }
        done(net, Time::ZERO + 2 * LONGEST);
    }

    #[test]
    #[should_panic(expected = "before the network had read it")]
    fn a_payload_that_is_given_back_before_it_is_read_is_found() {
        change_payload_at(&mut delayed(), Time::ZERO);
    }

    #[test]
    #[should_panic(expected = "before the network had completed it")]
    fn a_payload_that_is_given_back_between_reading_and_completion_is_found() {
        let mut net = delayed();
        change_payload_at(&mut net, Time::ZERO + LONGEST);
    }

    /// The transport below completes a datagram only at the next look.
    #[test]
    fn a_transport_below_may_be_late_too() {
        let delays = Delays {
            seed: 8,
            longest: LONGEST,
        };
        let mut net = Delayed::new(delayed(), Some(delays));
        let slots = net.slots();
        let id = slots.take().unwrap();
        let datagram = slots.outgoing(id, Dest::Node(NodeId(1)));
        assert_eq!(net.send(Time::ZERO, &[datagram]).unwrap(), 1);
        let (mut now, mut completed) = (Time::ZERO, Vec::new());
        while completed.is_empty() {
            let due = net.due().expect("the datagram is under way");
            assert!(due > now, "it never rests");
            now = due;
            net.completions(now, &mut |id| completed.push(id));
        }
        assert_eq!((completed, net.due()), (vec![id], None));
        assert_eq!(net.inner.inner.inbox.len(), 1);
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
        let datagram = slots.outgoing(second, Dest::Node(NodeId(1)));
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
        assert_eq!(net.slots().parts(id)[0], *b"head");
        assert!(!net.caps().zero_copy && delayed().caps().zero_copy);
    }
}
