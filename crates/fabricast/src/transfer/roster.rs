//! Who takes part, and how far each has come, as the sender knows it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, Reach};

use super::events::{ReceiverReport, State};
use crate::bootstrap::PeerKey;
use crate::bootstrap::message::{Hello, Tally, harmless};

/// Where a receiver stands.
#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    /// It has been welcomed, and makes room for the file.
    Preparing,
    /// It waits for the start, or joins.
    Joining,
    /// It has joined and posted.
    Receiving,
    /// It has everything, and is proving or storing it.
    Storing(Work),
    /// It is over for this receiver.
    Over {
        /// How it ended.
        state: State,
        /// Why, if it failed.
        reason: Option<String>,
        /// When, in seconds since the start.
        seconds: f64,
    },
}

/// While a receiver proves and stores it is heard once a second; less patience than this would
/// take a busy disk for a stopped process.
const PATIENCE_STORING: Duration = Duration::from_secs(3);
/// The last flush says nothing of how far it is, and a large file in a large memory takes long:
/// less patience than this would take a disk that works for one that hangs.
const PATIENCE_FLUSHING: Duration = Duration::from_secs(60);

/// How far a receiver is that has everything.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Bytes of the list and the file that it has proven.
    done: u64,
    /// When it last said anything, and when it last said a larger number: to be alive is not to
    /// get on.
    heard: Instant,
    moved: Instant,
}

impl Work {
    /// It says for the first time that it is at work.
    pub fn begun(now: Instant, done: u64) -> Work {
        Work {
            done,
            heard: now,
            moved: now,
        }
    }

    /// It has said so again.
    pub fn said(&mut self, now: Instant, done: u64) {
        self.heard = now;
        if done > self.done {
            (self.done, self.moved) = (done, now);
        }
    }

    /// The patience, of those that count here, that it has used up; `total` bytes are to be proven.
    fn exceeded(&self, now: Instant, patience: Duration, total: u64) -> Option<Duration> {
        let storing = patience.max(PATIENCE_STORING);
        let moving = match self.done >= total {
            true => patience.max(PATIENCE_FLUSHING),
            false => storing,
        };
        let over = |since, limit| (now.duration_since(since) > limit).then_some(limit);
        over(self.heard, storing).or(over(self.moved, moving))
    }
}

/// A receiver.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its control connection.
    pub peer: PeerKey,
    /// Its number.
    pub node: NodeId,
    /// Its address at the control connection.
    pub address: SocketAddr,
    /// Ours there.
    pub local: SocketAddr,
    /// What it has said of itself.
    pub hello: Hello,
    /// Where it stands.
    pub stage: Stage,
    /// Since when it is here.
    pub since: Instant,
    /// How it is reached.
    pub reach: Reach,
    /// Bytes placed there.
    pub placed: u64,
    /// Data packets sent again that it had asked for, by unicast or because it asked first.
    pub repairs: u64,
    /// Since when the core waits for it no more: it has placed everything that there will be.
    pub complete: Option<Instant>,
    /// Whether its slowness has been told.
    pub slow: bool,
    /// When anything was last heard of it.
    pub heard: Instant,
    /// What it has counted.
    pub tally: Tally,
}

impl Member {
    /// One that has said hello.
    pub fn new(
        peer: PeerKey,
        node: NodeId,
        address: SocketAddr,
        local: SocketAddr,
        hello: Hello,
    ) -> Member {
        let now = Instant::now();
        Member {
            peer,
            node,
            address,
            local,
            hello,
            stage: Stage::Preparing,
            since: now,
            reach: Reach::Multicast,
            placed: 0,
            repairs: 0,
            complete: None,
            slow: false,
            heard: now,
            tally: Tally::default(),
        }
    }

    /// Where datagrams for it go.
    pub fn udp(&self) -> SocketAddr {
        let mut address = self.address; // the only one that it may have
        address.set_port(self.hello.udp_port);
        address
    }

    /// What it is called.
    pub fn name(&self) -> String {
        self.hello.name.clone()
    }

    /// Whether it is still waited for.
    pub fn active(&self) -> bool {
        !matches!(self.stage, Stage::Over { .. })
    }

    /// Whether it has the file.
    pub fn verified(&self) -> bool {
        matches!(&self.stage, Stage::Over { state, .. } if *state == State::Verified)
    }

    /// The patience that it has used up where the core does not watch it: after the start, which
    /// was at `joining` if that is not over, and when it has `total` bytes, if that is known.
    pub fn exceeded(
        &self,
        now: Instant,
        patience: Duration,
        joining: Option<Instant>,
        total: Option<u64>,
    ) -> Option<Duration> {
        let (since, limit) = match (&self.stage, joining, self.complete) {
            (Stage::Joining, Some(since), _) => (since, patience),
            (Stage::Storing(work), ..) => {
                return work.exceeded(now, patience, total.unwrap_or(u64::MAX));
            }
            (Stage::Receiving, _, Some(complete)) => (complete, patience.max(PATIENCE_STORING)),
            _ => return None,
        };
        (now.duration_since(since) > limit).then_some(limit)
    }

    /// Its line of the table.
    pub fn report(&self) -> ReceiverReport {
        let (state, reason, seconds) = match &self.stage {
            Stage::Over {
                state,
                reason,
                seconds,
            } => (*state, reason.clone(), *seconds),
            _ => (State::Lost, None, 0.0),
        };
        ReceiverReport {
            receiver: self.name(),
            address: self.address,
            state,
            reason,
            reach: reach_name(self.reach),
            seconds,
            repairs: self.repairs,
            tally: self.tally,
        }
    }
}

/// A word for how a member is reached.
pub fn reach_name(reach: Reach) -> &'static str {
    match reach {
        Reach::Multicast => "multicast",
        Reach::Unicast => "unicast",
        Reach::Nothing => "nothing",
    }
}

/// A name from the network, fit for a terminal and a table.
pub fn clean_name(name: &str) -> String {
    const NAME_MAX: usize = 64;
    let printable = name.chars().filter(|c| harmless(*c));
    match printable.take(NAME_MAX).collect::<String>() {
        name if name.is_empty() => "?".into(),
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const TOTAL: u64 = 1000;

    /// Says `done(second)` each second; the second at which patience ends, and which patience.
    fn ends(patience: Duration, done: impl Fn(u32) -> u64) -> Option<(u32, Duration)> {
        let start = Instant::now();
        let mut work = Work::begun(start, done(0));
        (1..200).find_map(|second| {
            let now = start + second * S;
            let exceeded = work.exceeded(now, patience, TOTAL);
            work.said(now, done(second));
            exceeded.map(|limit| (second, limit))
        })
    }

    #[test]
    fn who_works_and_gets_nowhere_is_slow() {
        assert_eq!(ends(S, |_| 0), Some((4, 3 * S)));
        assert_eq!(ends(10 * S, |_| 0), Some((11, 10 * S)));
        assert_eq!(ends(10 * S, |second| u64::from(second) / 8), None);
        // Smaller numbers are no movement.
        assert_eq!(
            ends(10 * S, |second| 300 - u64::from(second)),
            Some((11, 10 * S))
        );
    }

    #[test]
    fn the_last_flush_may_take_a_minute() {
        assert_eq!(ends(S, |_| TOTAL), Some((61, 60 * S)));
        assert_eq!(ends(90 * S, |_| TOTAL), Some((91, 90 * S)));
    }

    #[test]
    fn who_falls_silent_is_slow_at_once() {
        let start = Instant::now();
        let work = Work::begun(start, TOTAL);
        assert_eq!(work.exceeded(start + 3 * S, S, TOTAL), None);
        assert_eq!(work.exceeded(start + 4 * S, S, TOTAL), Some(3 * S));
    }
}
