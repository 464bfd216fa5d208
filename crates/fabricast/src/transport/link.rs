//! An emulated link in front of a transport: a token bucket that every datagram is charged to.
//!
//! The loopback copies a datagram for each receiver at the speed of memory, so it does not show
//! what a copy costs. Behind a [`Link`], a datagram to a node costs its bytes. A datagram to a
//! group costs the same, however many nodes receive it, as on the wire from a host to its switch.
//! The link drops nothing. What it does not take yet is back-pressure, as from a full send buffer.

use std::io;
use std::time::Duration;

use fabricast_proto::{AddressId, NodeId, Time};

use super::fault::{Fault, FaultCounters};
use super::{
    Arrival, Caps, Counters, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Ready, Sleeper,
    Slots, Transport, Watch,
};

/// How far the link takes datagrams ahead of its rate: as much as a send buffer holds. It also
/// makes up for the time in which a busy machine does not run the sender.
const DEPTH: Duration = Duration::from_millis(4);
/// How far a full link empties before it takes datagrams again, so that many go at once.
const RESUME: Duration = Duration::from_millis(3);

const _: () = assert!(RESUME.as_nanos() < DEPTH.as_nanos());

/// `T` behind a link, or `T` alone.
pub struct Link<T: Transport> {
    under: T,
    bucket: Option<Bucket>,
}

/// The state of a link.
struct Bucket {
    /// The link's rate, in bytes per second.
    rate: u64,
    /// Bytes that the wire adds to each datagram.
    overhead: u64,
    /// When the link has sent all that it has taken.
    done: Time,
    /// How long the link takes nothing, if it did not take the last batch completely.
    pause: Option<Duration>,
    /// The time of the last batch.
    now: Time,
}

impl<T: Transport> Link<T> {
    /// Puts a link of `rate` bytes per second in front of `under`, or none if `rate` is `None`.
    /// Each datagram is charged `overhead` bytes more than its length.
    pub fn new(under: T, rate: Option<u64>, overhead: u64) -> Link<T> {
        Link {
            under,
            bucket: rate.map(|rate| Bucket {
                rate: rate.max(1),
                overhead,
                done: Time::ZERO,
                pause: None,
                now: Time::ZERO,
            }),
        }
    }
}

impl<T: Transport> Link<Fault<T>> {
    /// From now on sending fails, as if the port were gone.
    pub fn fail_send(&mut self) {
        self.under.fail_send();
    }

    /// Counters of the injected faults.
    pub fn fault_counters(&self) -> FaultCounters {
        self.under.fault_counters()
    }
}

impl Bucket {
    /// How many datagrams of `batch` the link takes now. If it does not take all, it notes how long
    /// it takes nothing.
    fn fits(&mut self, now: Time, batch: &[Outgoing<'_>]) -> usize {
        let waiting = match self.pause {
            Some(_) => RESUME,
            None => DEPTH,
        };
        (self.pause, self.now) = (None, now);
        let mut done = self.done;
        if done.since(now) > waiting {
            self.pause = Some(done.since(now) - RESUME);
            return 0;
        }
        for (i, datagram) in batch.iter().enumerate() {
            if done.since(now) > DEPTH {
                self.pause = Some(done.since(now) - RESUME);
                return i;
            }
            done = self.after(now, done, datagram);
        }
        batch.len()
    }

    /// When the link has sent `datagram`, too.
    fn after(&self, now: Time, done: Time, datagram: &Outgoing<'_>) -> Time {
        let bytes = datagram.len() as u64 + self.overhead;
        done.max(now) + Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.rate)
    }
}

impl<T: Transport> Transport for Link<T> {
    forward! { under: caps names members news slots completions cancel recv is_drained sleep }

    fn send(&mut self, now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let Some(bucket) = &mut self.bucket else {
            return self.under.send(now, batch);
        };
        let fits = bucket.fits(now, batch);
        let taken = match fits {
            0 => 0,
            fits => self.under.send(now, &batch[..fits])?,
        };
        for datagram in &batch[..taken] {
            bucket.done = bucket.after(now, bucket.done, datagram);
        }
        if taken < fits {
            bucket.pause = None; // the transport below says when it continues
        }
        Ok(taken)
    }

    fn due(&self) -> Option<Time> {
        let bucket = self.bucket.as_ref();
        let again = bucket.and_then(|b| b.pause.map(|pause| b.now + pause));
        again.into_iter().chain(self.under.due()).min()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let pause = self.bucket.as_ref().and_then(|b| b.pause);
        self.under.wait(timeout.into_iter().chain(pause).min())
    }
}

#[cfg(test)]
mod tests {
    use fabricast_proto::Dest;

    use super::super::send_plain;
    use super::super::testing::Wire;
    use super::*;

    const RATE: u64 = 50_000_000;
    const LEN: usize = 958;
    const OVERHEAD: u64 = 42;

    type Plain = (Dest, &'static [u8], &'static [u8]);

    fn send(link: &mut Link<Wire>, now: Time, batch: &[Plain]) -> usize {
        send_plain(link, now, batch).unwrap()
    }

    fn link(rate: Option<u64>, room: usize) -> Link<Wire> {
        Link::new(Wire::echo(room, 0), rate, OVERHEAD)
    }

    /// Sends for `time` as much as the link takes, to this destination, and waits as the link says.
    fn flood(link: &mut Link<Wire>, to: Dest, time: Duration) -> u64 {
        let datagram: Plain = (to, &[0; 8], &[0; LEN - 8]);
        let mut now = Time::ZERO;
        let (end, before) = (now + time, link.under.count);
        while now < end {
            if send(link, now, &[datagram; 64]) < 64 {
                link.wait(None).unwrap();
                now = now + link.under.waited.unwrap_or(Duration::from_micros(1));
            }
        }
        link.under.count - before
    }

    #[test]
    fn a_copy_to_each_costs_each_and_a_copy_to_all_costs_one() {
        for to in [Dest::Node(NodeId(1)), Dest::Address(AddressId(0))] {
            for room in [64, 5] {
                let sent = flood(&mut link(Some(RATE), room), to, Duration::from_secs(1));
                let bytes = sent * (LEN as u64 + OVERHEAD);
                // The bytes of one second, and those that the link takes ahead.
                let ahead = RATE / 1000 * DEPTH.as_millis() as u64 + 1000;
                assert!((RATE..=RATE + ahead).contains(&bytes), "{bytes}");
            }
        }
    }

    #[test]
    fn a_full_link_is_waited_for_and_then_takes_many() {
        let mut link = link(Some(RATE), 64);
        let datagram: Plain = (Dest::Address(AddressId(0)), &[0; LEN], &[]);
        // 4 ms are 200 datagrams of 1000 bytes with their overhead, and one that begins in time.
        let mut taken = 0;
        while let n @ 1.. = send(&mut link, Time::ZERO, &[datagram; 64]) {
            taken += n;
        }
        assert_eq!(taken, 201);
        link.wait(Some(Duration::from_secs(1))).unwrap();
        let pause = link.under.waited.unwrap();
        assert_eq!(pause, Duration::from_micros(1020));
        // A shorter wait stays as it is, and the link takes nothing before the pause is over.
        link.wait(Some(Duration::from_micros(5))).unwrap();
        assert_eq!(link.under.waited, Some(Duration::from_micros(5)));
        let early = Time::ZERO + (pause - Duration::from_micros(1));
        assert_eq!(send(&mut link, early, &[datagram; 64]), 0);
        assert_eq!(send(&mut link, Time::ZERO + pause, &[datagram; 64]), 51);
    }

    #[test]
    fn back_pressure_from_below_is_charged_for_what_was_taken() {
        let mut link = link(Some(RATE), 2);
        let datagram: Plain = (Dest::Address(AddressId(0)), &[0; LEN], &[]);
        assert_eq!(send(&mut link, Time::ZERO, &[datagram; 64]), 2);
        let bucket = link.bucket.as_ref().unwrap();
        assert_eq!(bucket.done, Time::ZERO + Duration::from_micros(40));
        link.wait(None).unwrap();
        assert_eq!(link.under.waited, None);
    }

    #[test]
    fn without_a_rate_there_is_no_link() {
        let mut link = link(None, 64);
        let datagram: Plain = (Dest::Node(NodeId(1)), &[0; LEN], &[]);
        for _ in 0..1000 {
            assert_eq!(send(&mut link, Time::ZERO, &[datagram; 64]), 64);
        }
        link.wait(None).unwrap();
        assert_eq!(link.under.waited, None);
    }
}
