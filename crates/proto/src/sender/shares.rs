//! A node's fixed rate, which its streams share by their weights.
//!
//! Streams take turns (start-time fair queueing; Goyal, Vin, Cheng, SIGCOMM 1996). A turn begins at
//! a virtual time, which is where the stream's last turn ended, but not before the turn that began
//! last. It ends later by the bytes that the stream has sent, divided by its weight. The next turn
//! is that of the waiting stream whose turn begins first.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::id::GroupId;
use crate::mutant::{self, Mutant};
use crate::path::Quanta;
use crate::time::Time;

/// Bytes after which it is another stream's turn, if one waits.
const TURN_BYTES: u64 = 65_536;
/// Virtual time of a byte at weight 1.
const BYTE: u64 = 1 << 32;

/// The fixed rate of a node, and the streams that wait for it.
pub struct Shares {
    quanta: Quanta,
    /// When the turn that began last has begun, in virtual time.
    began: u128,
    /// The stream whose turn it is, and the bytes that it has sent in this turn.
    turn: Option<(GroupId, u64)>,
    /// Streams that only the rate or the turns of others hold back, by where their turns begin.
    waiting: BinaryHeap<Reverse<(u128, GroupId)>>,
}

/// What a stream has of its node's fixed rate.
pub struct StreamShare {
    group: GroupId,
    /// Whether the stream takes turns. What a co-root repairs goes ahead.
    takes_turns: bool,
    /// Virtual time of a byte.
    byte: u64,
    /// Where the stream's next turn begins, if no other turn begins later before it waits.
    next: u128,
    /// Whether the stream waits for its turn.
    waits: bool,
    /// When a stream that takes no turns may send again.
    open_at: Time,
    /// Bytes of UDP payload of the packet that left last.
    pub(super) bytes: u32,
}

impl StreamShare {
    /// The share of the stream to a group. Its weight is 1.
    pub(super) fn new(group: GroupId, takes_turns: bool) -> StreamShare {
        StreamShare {
            group,
            takes_turns,
            byte: BYTE,
            next: 0,
            waits: false,
            open_at: Time::ZERO,
            bytes: 0,
        }
    }

    /// Sets the weight, which holds for the turn under way, too.
    pub(super) fn set_weight(&mut self, weight: u32) {
        self.byte = BYTE / u64::from(weight);
    }

    /// The stream's turn has begun.
    pub(super) fn begins(&mut self) {
        self.waits = false;
    }

    /// The rate has changed.
    pub(super) fn rate_has_changed(&mut self) {
        self.open_at = Time::ZERO;
    }

    /// Whether the stream waits for its turn.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// When the stream may send; [`Time::NEVER`]: when its turn begins.
    pub(super) fn opens_at(&self) -> Time {
        match self.waits {
            true => Time::NEVER,
            false => self.open_at,
        }
    }
}

impl Shares {
    /// Nothing has been sent. `rate`: bytes per second.
    pub fn new(rate: u64) -> Shares {
        Shares {
            quanta: Quanta::new((rate as f64).max(1.0)),
            began: 0,
            turn: None,
            waiting: BinaryHeap::new(),
        }
    }

    /// Sets the rate from `now` on, in bytes per second.
    pub fn set_rate(&mut self, now: Time, rate: u64) {
        self.quanta.change_rate(now, (rate as f64).max(1.0));
    }

    /// Forgets a group that has been removed.
    pub fn forget(&mut self, group: GroupId) {
        self.turn = self.turn.filter(|turn| turn.0 != group);
        self.waiting.retain(|Reverse((_, g))| *g != group);
    }

    /// When the next turn can begin; `None`: no stream waits for one.
    pub fn wake(&self) -> Option<Time> {
        let waits = self.turn.is_none() && !self.waiting.is_empty();
        waits.then(|| self.quanta.opens_at())
    }

    /// Whether it is the turn of the stream to this group.
    pub fn has_turn(&self, group: GroupId) -> bool {
        self.turn.is_some_and(|turn| turn.0 == group)
    }

    /// The group whose stream waits and may send now. Its turn begins.
    pub fn next_turn(&mut self, now: Time) -> Option<GroupId> {
        if self.turn.is_some() || !self.quanta.is_open(now) {
            return None;
        }
        let Reverse((begins, group)) = self.waiting.pop()?;
        self.begin(begins, group);
        Some(group)
    }

    fn begin(&mut self, begins: u128, group: GroupId) {
        self.began = begins;
        self.turn = Some((group, 0));
    }

    /// Whether a stream may send a packet now.
    pub(super) fn is_open(&mut self, now: Time, share: &mut StreamShare) -> bool {
        if !self.quanta.is_open(now) {
            return false;
        }
        match self.turn {
            _ if !share.takes_turns => true,
            Some((group, bytes)) if group == share.group && bytes < TURN_BYTES => true,
            Some((group, _)) if group != share.group => false,
            _ if !self.waiting.is_empty() => false,
            _ => {
                // No other stream waits: one turn follows another.
                self.end(share);
                share.next = self.next(share);
                self.begin(share.next, share.group);
                true
            }
        }
    }

    /// Where the next turn of a stream begins that waits from now on. What it did not use of its
    /// share is gone.
    fn next(&self, share: &StreamShare) -> u128 {
        match mutant::active(Mutant::PausesSaveUp) {
            true => share.next,
            false => share.next.max(self.began),
        }
    }

    /// Counts the packet of a stream that left last.
    pub(super) fn sent(&mut self, now: Time, share: &StreamShare) {
        self.quanta.sent(now, share.bytes);
        if let Some((group, sent)) = &mut self.turn
            && share.takes_turns
            && *group == share.group
        {
            *sent += u64::from(share.bytes);
        }
    }

    /// Ends a stream's turn, if it is its turn.
    fn end(&mut self, share: &mut StreamShare) {
        if let Some((group, bytes)) = self.turn
            && share.takes_turns
            && group == share.group
        {
            let byte = match mutant::active(Mutant::WeightsIgnored) {
                true => BYTE,
                false => share.byte,
            };
            share.next += u128::from(bytes) * u128::from(byte);
            self.turn = None;
        }
    }

    /// The stream sends nothing more now, which ends its turn if it is its turn. `ready`: it could
    /// send a packet now, but for the rate and the turns of others.
    pub(super) fn pause(&mut self, share: &mut StreamShare, ready: bool) {
        self.end(share);
        if share.waits {
            return;
        }
        if !share.takes_turns {
            share.open_at = self.quanta.opens_at();
        } else if ready {
            share.next = self.next(share);
            self.waiting.push(Reverse((share.next, share.group)));
            share.waits = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::limits::WEIGHT_MAX;
    use crate::rng::Rng;

    /// Bytes per second.
    const RATE: u64 = 25_000_000;
    /// Bytes of a packet.
    const PACKET: u32 = 1_400;
    /// Longest time whose bytes leave at once: a quantum, and what is caught up.
    const AT_ONCE: Duration = Duration::from_micros(4_500);

    /// A stream of the node.
    struct Stream {
        share: StreamShare,
        weight: u32,
        /// Bytes that it has to send.
        backlog: u64,
        sent: u64,
    }

    /// A node whose streams have something to send now and then.
    struct Bench {
        shares: Shares,
        streams: Vec<Stream>,
        now: Time,
        rng: Rng,
        /// For two streams that have both had something to send since then: the least and the
        /// largest of what the first has sent by weight less what the second has.
        apart: Vec<Option<[f64; 3]>>,
        /// How far they may come apart within any such time, as a share of what is allowed.
        worst: f64,
        /// Bytes that the others have sent since the first stream has last sent something, or had
        /// nothing to send; and the most that they have ever sent so.
        passed_over: [u64; 2],
    }

    impl Bench {
        fn new(seed: u64, weights: &[u32]) -> Bench {
            let stream = |(group, &weight)| {
                let mut share = StreamShare::new(GroupId(group), true);
                share.set_weight(weight);
                Stream {
                    share,
                    weight,
                    backlog: 0,
                    sent: 0,
                }
            };
            Bench {
                shares: Shares::new(RATE),
                streams: (0..).zip(weights).map(stream).collect(),
                now: Time(1),
                rng: Rng::new(seed),
                apart: vec![None; weights.len() * weights.len()],
                worst: 0.0,
                passed_over: [0; 2],
            }
        }

        /// A stream sends what it may, as `Sender::poll` does.
        fn poll(&mut self, i: usize) {
            loop {
                let stream = &mut self.streams[i];
                if stream.backlog == 0 {
                    self.shares.pause(&mut stream.share, false);
                    break;
                }
                if !self.shares.is_open(self.now, &mut stream.share) {
                    self.shares.pause(&mut stream.share, true);
                    break;
                }
                stream.share.bytes = u64::from(PACKET).min(stream.backlog) as u32;
                self.shares.sent(self.now, &stream.share);
                let bytes = u64::from(stream.share.bytes);
                stream.backlog -= bytes;
                stream.sent += bytes;
                let [now, most] = self.passed_over;
                let now = match i == 0 || self.streams[0].backlog == 0 {
                    true => 0,
                    false => now + bytes,
                };
                self.passed_over = [now, most.max(now)];
                self.judge();
            }
        }

        /// The node is polled until it waits. Streams that do not wait come in any order.
        fn drain(&mut self) {
            let first = self.rng.below(self.streams.len() as u64) as usize;
            for k in 0..self.streams.len() {
                let i = (first + k) % self.streams.len();
                if !self.streams[i].share.waits() {
                    self.poll(i);
                }
            }
            while let Some(group) = self.shares.next_turn(self.now) {
                self.streams[group.0 as usize].share.begins();
                self.poll(group.0 as usize);
            }
        }

        /// Runs for `long`. A wake-up is late now and then.
        fn run(&mut self, long: Duration) {
            let end = self.now + long;
            self.judge();
            self.drain();
            while let Some(wake) = self.shares.wake().filter(|t| *t < end) {
                let late = match self.rng.below(8) {
                    0 => self.rng.below(3_000_000),
                    _ => 0,
                };
                self.now = self.now.max(wake + Duration::from_nanos(late));
                self.drain();
            }
            self.now = self.now.max(end);
        }

        fn judge(&mut self) {
            let most = (TURN_BYTES + u64::from(PACKET)) as f64;
            for (at, apart) in self.apart.iter_mut().enumerate() {
                let [a, b] = [at / self.streams.len(), at % self.streams.len()];
                let (a, b) = (&self.streams[a], &self.streams[b]);
                if a.backlog == 0 || b.backlog == 0 {
                    *apart = None;
                    continue;
                }
                let by_weight = |s: &Stream| s.sent as f64 / f64::from(s.weight);
                let differ = by_weight(a) - by_weight(b);
                let [low, high, _] = apart.unwrap_or([differ; 3]);
                let [low, high] = [low.min(differ), high.max(differ)];
                let allowed = most / f64::from(a.weight) + most / f64::from(b.weight);
                self.worst = self.worst.max((high - low) / allowed);
                *apart = Some([low, high, differ]);
            }
        }

        fn sent(&self) -> u64 {
            self.streams.iter().map(|s| s.sent).sum()
        }
    }

    /// The most bytes that may leave within `long`.
    fn most(long: Duration) -> u64 {
        let time = long + AT_ONCE;
        (RATE as f64 * time.as_secs_f64()) as u64 + u64::from(PACKET)
    }

    #[test]
    fn a_stream_alone_sends_as_if_there_were_no_shares() {
        let mut bench = Bench::new(1, &[7]);
        bench.streams[0].backlog = RATE / 10;
        let (mut quanta, mut now) = (Quanta::new(RATE as f64), bench.now);
        let mut left = RATE / 10;
        bench.drain();
        loop {
            while left > 0 && quanta.is_open(now) {
                let bytes = u64::from(PACKET).min(left);
                quanta.sent(now, bytes as u32);
                left -= bytes;
            }
            assert_eq!(bench.streams[0].backlog, left);
            let Some(wake) = bench.shares.wake() else {
                break;
            };
            assert_eq!(wake, quanta.opens_at());
            now = wake;
            bench.now = now;
            bench.drain();
        }
        assert_eq!(left, 0);
    }

    #[test]
    fn streams_send_by_their_weights() {
        let mut bench = Bench::new(2, &[1, 4, 5]);
        bench.streams.iter_mut().for_each(|s| s.backlog = RATE);
        bench.run(Duration::from_secs(1));
        let shares = [0.1, 0.4, 0.5].map(|share| share * RATE as f64);
        for (stream, share) in bench.streams.iter().zip(shares) {
            let sent = stream.sent as f64;
            assert!((0.95..1.05).contains(&(sent / share)), "{sent} of {share}");
        }
        assert!(bench.sent() <= most(Duration::from_secs(1)));
        assert!(bench.worst <= 1.0, "{}", bench.worst);
    }

    #[test]
    fn what_a_stream_leaves_is_for_the_others() {
        let mut bench = Bench::new(3, &[100, 1]);
        bench.streams[1].backlog = RATE;
        // The first stream has a packet each 10 ms to send.
        for _ in 0..100 {
            bench.streams[0].backlog += u64::from(PACKET);
            bench.run(Duration::from_millis(10));
        }
        let [first, second] = [0, 1].map(|i| bench.streams[i].sent);
        assert_eq!(first, 100 * u64::from(PACKET));
        assert!(second + first > RATE * 99 / 100, "{second}");
    }

    /// How far streams with random pauses come apart, as a share of what is allowed.
    fn worst(seed: u64) -> f64 {
        let mut rng = Rng::new(seed ^ 0x5a5a);
        let weights: Vec<u32> = (0..2 + rng.below(4))
            .map(|_| [1, 1, 2, 10, 1000][rng.below(5) as usize])
            .collect();
        let mut bench = Bench::new(seed, &weights);
        let begin = bench.now;
        for _ in 0..30 {
            let i = rng.below(weights.len() as u64) as usize;
            bench.streams[i].backlog += rng.below(RATE / 20);
            let long = Duration::from_micros(rng.below(50_000));
            if rng.below(10) == 0 {
                bench.shares.set_rate(bench.now, RATE / 2);
                bench.run(long);
                bench.shares.set_rate(bench.now, RATE);
            }
            bench.run(long);
        }
        let allowed = most(bench.now.since(begin));
        assert!(bench.sent() <= allowed, "seed {seed}: {}", bench.sent());
        bench.run(Duration::from_secs(100));
        let left = bench.streams.iter().map(|s| s.backlog).sum::<u64>();
        assert_eq!(left, 0, "seed {seed}");
        bench.worst
    }

    #[test]
    fn streams_that_pause_catch_up_nothing() {
        for seed in 0..500 {
            let worst = worst(seed);
            assert!(worst <= 1.0, "seed {seed}: {worst}");
        }
    }

    /// The stream with the smallest weight waits for as many bytes of the others as their weights
    /// are larger, whether they always have something to send or pause after each packet.
    #[test]
    fn no_stream_locks_another_out() {
        for (weights, pauses) in [
            (&[1, WEIGHT_MAX][..], false),
            (&[1, 10, 3, 1], false),
            (&[1, 2, 2], true),
            (&[1, 1, 1, 1, 1], true),
        ] {
            let mut bench = Bench::new(5, weights);
            let turn = TURN_BYTES + u64::from(PACKET);
            let of_one = |weight: &u32| turn * (u64::from(*weight) + 1);
            let most: u64 = weights[1..].iter().map(of_one).sum();
            // Time in which the first stream would be passed over for twice as long.
            let end = bench.now + Duration::from_secs_f64(2.0 * most as f64 / RATE as f64);
            bench.streams[0].backlog = u64::MAX;
            while bench.now < end {
                for stream in &mut bench.streams[1..] {
                    let packets = if pauses { 1 } else { 1000 };
                    stream.backlog = packets * u64::from(PACKET);
                }
                bench.run(Duration::from_micros(100));
            }
            let longest = bench.passed_over[1];
            assert!(
                (1..=most).contains(&longest),
                "{weights:?}: {longest} of {most}"
            );
            assert!(bench.streams[0].sent > 0);
        }
    }

    #[test]
    fn a_group_that_is_removed_holds_nobody() {
        let mut bench = Bench::new(4, &[1, 1, 1]);
        bench.streams.iter_mut().for_each(|s| s.backlog = RATE);
        bench.run(Duration::from_millis(20));
        let wake = bench.shares.wake().expect("streams wait");
        let turn = bench.shares.next_turn(wake).expect("it is open");
        bench.shares.forget(turn);
        let second = bench.shares.next_turn(wake).expect("others wait");
        let third = GroupId(3 - turn.0 - second.0);
        bench.shares.forget(third);
        assert_eq!(bench.shares.next_turn(wake), None, "it is a turn already");
        bench.shares.forget(second);
        assert_eq!(bench.shares.next_turn(wake), None, "nobody waits");
        assert_eq!(bench.shares.wake(), None);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn every_mutant_of_the_shares_is_caught() {
        for mutant in Mutant::SHARES {
            mutant::select(Some(mutant));
            let caught = (0..20).any(|seed| worst(seed) > 1.0);
            mutant::select(None);
            assert!(caught, "{mutant:?}");
        }
    }
}
