//! A transport that loses, repeats and reorders datagrams on purpose, over any other transport.
//!
//! Equal seeds and an equal sequence of datagrams give equal faults. A datagram to a group that is
//! lost when sent is lost to all members. A datagram that is lost when received is lost to this
//! node only. Datagrams are repeated and reordered when received.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use fabricast_proto::rng::Rng;
use fabricast_proto::{AddressId, NodeId, Time};

use super::{
    Arrival, Caps, Counters, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Ready, Sleeper,
    Slots, Transport, Watch,
};

/// How often a call receives again when all arrived datagrams were lost.
const ROUNDS: usize = 64;

/// The probability of each fault per datagram, `0.0 ..= 1.0`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Faults {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Probability that a datagram is lost when sent.
    pub send_loss: f64,
    /// Probability that a datagram is lost when received.
    pub receive_loss: f64,
    /// Probability that a datagram is received with a bit changed.
    pub corrupt: f64,
    /// Probability that a datagram is received twice.
    pub duplicate: f64,
    /// Probability that a datagram is received after up to `reorder_by` later ones.
    pub reorder: f64,
    /// Largest number of later datagrams that pass a reordered one. Fewer pass if fewer arrive
    /// before the network falls silent.
    pub reorder_by: u32,
}

impl Faults {
    /// Only loss: `loss` of what is sent and `loss` of what is received.
    pub fn loss(seed: u64, loss: f64) -> Faults {
        Faults {
            seed,
            send_loss: loss,
            receive_loss: loss,
            corrupt: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            reorder_by: 8,
        }
    }
}

/// Counters of the injected faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounters {
    /// Datagrams lost when sent.
    pub send_lost: u64,
    /// Datagrams lost when received.
    pub receive_lost: u64,
    /// Datagrams received with a bit changed.
    pub corrupted: u64,
    /// Datagrams received twice.
    pub duplicated: u64,
    /// Datagrams held back.
    pub reordered: u64,
}

/// `T` with faults.
pub struct Fault<T: Transport> {
    inner: T,
    faults: Faults,
    send_rng: Rng,
    receive: Receive,
    /// For each datagram of the last batch that is still to be sent, whether it is to be lost. It
    /// is drawn once, however often back-pressure makes the caller offer the datagram again.
    fates: VecDeque<bool>,
    /// Memory for the datagrams of a batch that are not lost; empty between calls.
    room: Vec<Outgoing<'static>>,
    /// Lost datagrams that were not named as completed.
    lost: Vec<DatagramId>,
    send_lost: u64,
    /// Sending fails from now on.
    broken: bool,
}

/// Faults on the receiving side.
struct Receive {
    faults: Faults,
    rng: Rng,
    held: Vec<Held>,
    counters: FaultCounters,
    given: usize,
}

/// A datagram that is held back.
struct Held {
    /// Number of datagrams that still pass it.
    by: u32,
    from: Option<NodeId>,
    at: Time,
    bytes: Vec<u8>,
}

impl<T: Transport> Fault<T> {
    /// Wraps `inner`.
    pub fn new(inner: T, faults: Faults) -> Fault<T> {
        let mut rng = Rng::new(faults.seed);
        Fault {
            inner,
            faults,
            send_rng: Rng::new(rng.bits()),
            receive: Receive {
                faults,
                rng: Rng::new(rng.bits()),
                held: Vec::new(),
                counters: FaultCounters::default(),
                given: 0,
            },
            fates: VecDeque::new(),
            room: Vec::new(),
            lost: Vec::new(),
            send_lost: 0,
            broken: false,
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

    /// From now on sending fails, as if the port were gone.
    pub fn fail_send(&mut self) {
        self.broken = true;
    }

    /// Counters of the injected faults since the start.
    pub fn fault_counters(&self) -> FaultCounters {
        FaultCounters {
            send_lost: self.send_lost,
            ..self.receive.counters
        }
    }
}

impl<T: Transport> Transport for Fault<T> {
    forward! { inner: caps names members news slots cancel due sleep }

    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        if self.broken {
            return Err(io::Error::new(
                io::ErrorKind::NetworkDown,
                "sending fails on purpose",
            ));
        }
        if self.faults.send_loss <= 0.0 {
            return self.inner.send(now, batch);
        }
        while self.fates.len() < batch.len() {
            self.fates
                .push_back(self.send_rng.chance(self.faults.send_loss));
        }
        let mut kept = emptied(std::mem::take(&mut self.room));
        let pairs = batch.iter().zip(&self.fates);
        kept.extend(
            pairs
                .filter(|(_, lost)| !**lost)
                .map(|(datagram, _)| *datagram),
        );
        let answer = match kept.is_empty() {
            true => Ok(0),
            false => self.inner.send(now, &kept),
        };
        let refused = answer.as_ref().is_ok_and(|&taken| taken < kept.len());
        self.room = emptied(kept);
        let mut taken = answer?;
        // Done are the datagrams that the network took, and the lost ones before, between and
        // (unless the network refused some) after them.
        let mut done = 0;
        while done < batch.len() {
            let lost = self.fates[0];
            if !lost && taken == 0 {
                debug_assert!(refused);
                break;
            }
            self.fates.pop_front();
            match lost {
                true => {
                    self.send_lost += 1;
                    self.lost.push(batch[done].id);
                }
                false => taken -= 1,
            }
            done += 1;
        }
        Ok(done)
    }

    fn completions(&mut self, now: Time, done: &mut dyn FnMut(DatagramId)) {
        self.lost.drain(..).for_each(&mut *done);
        self.inner.completions(now, done);
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        if self.receive.is_sound() {
            return self.inner.recv(now, sink);
        }
        self.receive.given = 0;
        for _ in 0..ROUNDS {
            let receive = &mut self.receive;
            let came = self
                .inner
                .recv(now, &mut |arrival| receive.datagram(arrival, sink))?;
            if came == 0 {
                // The network is silent: no datagram will come to pass those that are held.
                self.receive.release(None, sink);
            }
            // Zero would tell the caller that nothing waits, although all arrived datagrams were
            // lost.
            if came == 0 || self.receive.given > 0 {
                break;
            }
        }
        Ok(self.receive.given)
    }

    fn is_drained(&self) -> bool {
        self.receive.held.is_empty() && self.inner.is_drained()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = match self.receive.held.is_empty() {
            true => timeout,
            false => Some(Duration::ZERO),
        };
        self.inner.wait(timeout)
    }
}

type Sink<'s> = &'s mut dyn FnMut(&mut Arrival<'_>);

impl Receive {
    /// Whether no fault is injected on the receiving side.
    fn is_sound(&self) -> bool {
        let f = &self.faults;
        f.receive_loss
            .max(f.corrupt)
            .max(f.duplicate)
            .max(f.reorder)
            <= 0.0
    }

    fn datagram(&mut self, arrival: &mut Arrival<'_>, sink: Sink<'_>) {
        // Every datagram draws the same numbers, so that one kind of fault does not move another.
        let [lost, twice, late] = [
            self.faults.receive_loss,
            self.faults.duplicate,
            self.faults.reorder,
        ]
        .map(|p| self.rng.unit() < p);
        let by = 1 + self.rng.below(u64::from(self.faults.reorder_by.max(1))) as u32;
        let Arrival { from, at, .. } = *arrival;
        if lost {
            self.counters.receive_lost += 1;
        } else if self.rng.chance(self.faults.corrupt) && !arrival.bytes().is_empty() {
            self.counters.corrupted += 1;
            let bytes = arrival.bytes_mut();
            let bit = self.rng.below(8 * bytes.len() as u64) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
            self.give(arrival, sink);
        } else {
            if twice {
                self.counters.duplicated += 1;
                let mut copy = arrival.bytes().to_vec();
                self.give(&mut Arrival::lent(from, at, &mut copy), sink);
            }
            if late {
                self.counters.reordered += 1;
                let (by, bytes) = (by + 1, arrival.bytes().to_vec());
                self.held.push(Held {
                    by,
                    from,
                    at,
                    bytes,
                });
            } else {
                self.give(arrival, sink);
            }
        }
        self.release(Some(1), sink);
    }

    fn give(&mut self, arrival: &mut Arrival<'_>, sink: Sink<'_>) {
        self.given += 1;
        sink(arrival);
    }

    /// Hands up the held datagrams that `passed` more datagrams release; with `None`, all.
    fn release(&mut self, passed: Option<u32>, sink: Sink<'_>) {
        let mut i = 0;
        while i < self.held.len() {
            let wait = &mut self.held[i].by;
            *wait = passed.map_or(0, |n| wait.saturating_sub(n));
            if *wait > 0 {
                i += 1;
                continue;
            }
            let mut held = self.held.remove(i);
            self.give(
                &mut Arrival::lent(held.from, held.at, &mut held.bytes),
                sink,
            );
        }
    }
}

/// The same allocation, emptied, for datagrams of another lifetime.
fn emptied<'b>(mut datagrams: Vec<Outgoing<'_>>) -> Vec<Outgoing<'b>> {
    datagrams.clear();
    let gone = |_| -> Outgoing<'b> { unreachable!("it is empty") };
    datagrams.into_iter().map(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Wire;
    use super::super::{SLOTS, send_plain};
    use super::*;
    use fabricast_proto::Dest;

    /// Sends `0 .. count` in batches of 32 through `faults`; each call to the network below takes
    /// at most `room`. Returns what arrives.
    fn pass(faults: Faults, count: u32, room: usize) -> (Vec<u32>, FaultCounters) {
        let mut fault = Fault::new(Wire::echo(room, 16), faults);
        let heads: Vec<[u8; 4]> = (0..count).map(u32::to_be_bytes).collect();
        let to = Dest::Node(NodeId(1));
        let batch: Vec<(Dest, &[u8], &[u8])> =
            heads.iter().map(|h| (to, &h[..], &b""[..])).collect();
        let mut sent = 0;
        while sent < batch.len() {
            let end = batch.len().min(sent + 32);
            sent += send_plain(&mut fault, Time::ZERO, &batch[sent..end]).unwrap();
        }
        assert_eq!(fault.slots().free(), SLOTS, "all are completed once");
        assert_eq!(sent, batch.len(), "what is lost counts as sent");
        let mut arrived = Vec::new();
        let number = |d: &[u8]| u32::from_be_bytes(d.try_into().unwrap());
        while fault
            .recv(Time::ZERO, &mut |d| arrived.push(number(d.bytes())))
            .unwrap()
            > 0
        {}
        assert!(fault.inner().inbox.is_empty() && fault.receive.held.is_empty());
        (arrived, fault.fault_counters())
    }

    #[test]
    fn loses_its_share_on_both_sides() {
        let (arrived, counters) = pass(Faults::loss(7, 0.1), 100_000, 32);
        assert!(
            (9_500..10_500).contains(&counters.send_lost),
            "{counters:?}"
        );
        assert!(
            (8_500..9_500).contains(&counters.receive_lost),
            "{counters:?}"
        );
        let lost = counters.send_lost + counters.receive_lost;
        assert_eq!(arrived.len() as u64, 100_000 - lost);
        assert!(
            arrived.is_sorted_by(|a, b| a < b),
            "nothing repeated or reordered"
        );
    }

    #[test]
    fn everything_and_nothing() {
        assert_eq!(pass(Faults::loss(1, 1.0), 100, 32).0, Vec::<u32>::new());
        let all: Vec<u32> = (0..100).collect();
        assert_eq!(pass(Faults::loss(1, 0.0), 100, 5).0, all);
    }

    #[test]
    fn a_seed_means_the_same_under_back_pressure() {
        let faults = Faults::loss(3, 0.2);
        let free = pass(faults, 5_000, 32);
        assert_eq!(free, pass(faults, 5_000, 32));
        assert_eq!(free, pass(faults, 5_000, 3));
        assert_ne!(free.0, pass(Faults::loss(4, 0.2), 5_000, 32).0);
    }

    #[test]
    fn repeats_and_reorders() {
        let faults = Faults {
            duplicate: 0.1,
            reorder: 0.1,
            ..Faults::loss(5, 0.0)
        };
        let (arrived, counters) = pass(faults, 10_000, 32);
        assert!((800..1_200).contains(&counters.duplicated), "{counters:?}");
        assert!((800..1_200).contains(&counters.reordered), "{counters:?}");
        assert_eq!(arrived.len() as u64, 10_000 + counters.duplicated);
        // How far are arrived datagrams from their place, repetitions left out?
        let mut first: Vec<u32> = Vec::new();
        let mut seen = vec![false; 10_000];
        for n in &arrived {
            if !std::mem::replace(&mut seen[*n as usize], true) {
                first.push(*n);
            }
        }
        assert!(seen.iter().all(|s| *s), "all arrive");
        assert!(!first.is_sorted());
        let far = first
            .iter()
            .enumerate()
            .map(|(i, n)| n.abs_diff(i as u32))
            .max();
        assert!(far <= Some(2 * faults.reorder_by), "{far:?}");
    }

    #[test]
    fn waits_for_nobody_while_it_holds_something() {
        let mut fault = Fault::new(
            Wire::echo(1, 1),
            Faults {
                reorder: 1.0,
                ..Faults::loss(5, 0.0)
            },
        );
        let datagram = (Dest::Node(NodeId(1)), &b"x"[..], &b""[..]);
        send_plain(&mut fault, Time::ZERO, &[datagram]).unwrap();
        let mut bytes = b"y".to_vec();
        let mut arrival = Arrival::lent(None, Time::ZERO, &mut bytes);
        fault
            .receive
            .datagram(&mut arrival, &mut |_| panic!("it is held"));
        fault.wait(None).unwrap();
        assert_eq!(fault.inner.waited, Some(Duration::ZERO));
        let mut got = Vec::new();
        while fault
            .recv(Time::ZERO, &mut |d| got.push(d.bytes().to_vec()))
            .unwrap()
            > 0
        {}
        got.sort();
        assert_eq!(got, [b"x", b"y"]);
    }
}
