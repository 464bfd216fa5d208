//! Who takes part, and how far each has come, as the sender knows it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, PathState};

use super::events::{ReceiverReport, State};
use crate::bootstrap::PeerKey;
use crate::bootstrap::message::{Hello, ReceiverStatistics, harmless};

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

/// A receiver that proves and stores fewer bytes in a second is slow, however often it says that it
/// has proven one more.
const STORING_SPEED_MIN: u64 = 5_000_000;

/// How long the sender has waited for a receiver, in one sense of the word.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// What the receiver did, or did not, all this time.
    pub what: &'static str,
    /// How long.
    pub lasted: Duration,
    /// It is slow if that takes longer.
    pub limit: Duration,
}

impl Wait {
    const STANDS: &str = "it did not get on";
    const STORES: &str = "it proved and stored the file";

    fn new(what: &'static str, lasted: Duration, limit: Duration) -> Wait {
        Wait {
            what,
            lasted,
            limit,
        }
    }

    /// The core has waited for it for as long as it may.
    pub fn placing(limit: Duration) -> Wait {
        Wait::new(Wait::STANDS, limit, limit)
    }

    /// Whether it has lasted for so many times what is allowed.
    pub fn exceeds(&self, times: u32) -> bool {
        self.lasted > self.limit.saturating_mul(times)
    }
}

/// How far a receiver is that has everything.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Bytes of the list and the file that it has proven.
    done: u64,
    /// When it first said so.
    begun: Instant,
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
            begun: now,
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

    /// How long the sender has waited for its next word, for progress and for the end; `total`
    /// bytes are to be proven.
    fn waits(&self, now: Instant, patience: Duration, total: u64) -> [Wait; 3] {
        let storing = patience.max(PATIENCE_STORING);
        let flushing = patience.max(PATIENCE_FLUSHING);
        let moving = match self.done >= total {
            true => flushing,
            false => storing,
        };
        let all = flushing + Duration::from_secs(total / STORING_SPEED_MIN);
        let since = |t| now.duration_since(t);
        [
            Wait::new(Wait::STANDS, since(self.heard), storing),
            Wait::new(Wait::STANDS, since(self.moved), moving),
            Wait::new(Wait::STORES, since(self.begun), all),
        ]
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
    /// What it has said of itself; the name is made fit for a terminal.
    pub hello: Hello,
    /// What it is called: as it says, unless another receiver is called so.
    pub name: String,
    /// Where it stands.
    pub stage: Stage,
    /// Since when it is here.
    pub since: Instant,
    /// How it is reached.
    pub path_state: PathState,
    /// Bytes placed there.
    pub placed: u64,
    /// How long the core has waited for it since it last placed more.
    pub waited: Duration,
    /// Data packets sent again that it had asked for, by unicast or because it asked first.
    pub repairs: u64,
    /// Since when the core waits for it no more: it has placed everything that there will be.
    pub complete: Option<Instant>,
    /// Whether its slowness has been told.
    pub slow: bool,
    /// When anything was last heard of it.
    pub heard: Instant,
    /// What it has counted.
    pub statistics: ReceiverStatistics,
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
        let name = clean_name(&hello.name);
        let hello = Hello {
            name: name.clone(),
            ..hello
        };
        Member {
            peer,
            node,
            address,
            local,
            hello,
            name,
            stage: Stage::Preparing,
            since: now,
            path_state: PathState::Multicast,
            placed: 0,
            waited: Duration::ZERO,
            repairs: 0,
            complete: None,
            slow: false,
            heard: now,
            statistics: ReceiverStatistics::default(),
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
        self.name.clone()
    }

    /// Whether it is still waited for.
    pub fn active(&self) -> bool {
        !matches!(self.stage, Stage::Over { .. })
    }

    /// Whether it has the file.
    pub fn verified(&self) -> bool {
        matches!(&self.stage, Stage::Over { state, .. } if *state == State::Verified)
    }

    /// How long the sender has waited for it, in each sense that counts at its stage: the core
    /// watches who has something to place, and what is only said is watched here. `joining`: since
    /// when receivers join, if that is not over; `total`: bytes to be proven, if that is known.
    pub fn waits(
        &self,
        now: Instant,
        patience: Duration,
        joining: Option<Instant>,
        total: Option<u64>,
    ) -> impl Iterator<Item = Wait> + Clone + use<> {
        let placing = Wait::new(Wait::STANDS, self.waited, patience);
        let stands = |since, limit| Wait::new(Wait::STANDS, now.duration_since(since), limit);
        let told = match (&self.stage, joining, self.complete) {
            (Stage::Joining, Some(since), _) => [Some(stands(since, patience)), None, None],
            (Stage::Storing(work), ..) => {
                let total = total.unwrap_or(u64::MAX);
                work.waits(now, patience, total).map(Some)
            }
            (Stage::Receiving, _, Some(complete)) => [
                Some(stands(complete, patience.max(PATIENCE_STORING))),
                None,
                None,
            ],
            _ => [None; 3],
        };
        std::iter::once(placing).chain(told.into_iter().flatten())
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
            reach: path_name(self.path_state),
            seconds,
            repairs: self.repairs,
            statistics: self.statistics,
        }
    }
}

/// A word for how a member is reached.
pub fn path_name(path_state: PathState) -> &'static str {
    match path_state {
        PathState::Multicast => "multicast",
        PathState::Unicast => "unicast",
        PathState::Nothing => "nothing",
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

    fn over(work: &Work, now: Instant, patience: Duration, total: u64) -> Option<Duration> {
        let mut waits = work.waits(now, patience, total).into_iter();
        waits.find(|w| w.exceeds(1)).map(|w| w.limit)
    }

    /// Says `done(second)` each second; the second at which patience ends, and which patience.
    fn ends(patience: Duration, done: impl Fn(u32) -> u64) -> Option<(u32, Duration)> {
        ends_of(TOTAL, patience, done)
    }

    /// The same where so many bytes are to be proven.
    fn ends_of(
        total: u64,
        patience: Duration,
        done: impl Fn(u32) -> u64,
    ) -> Option<(u32, Duration)> {
        let start = Instant::now();
        let mut work = Work::begun(start, done(0));
        (1..200).find_map(|second| {
            let now = start + second * S;
            let exceeded = over(&work, now, patience, total);
            work.said(now, done(second));
            exceeded.map(|limit| (second, limit))
        })
    }

    #[test]
    fn who_works_and_gets_nowhere_is_slow() {
        assert_eq!(ends(S, |_| 0), Some((4, 3 * S)));
        assert_eq!(ends(10 * S, |_| 0), Some((11, 10 * S)));
        assert_eq!(
            ends_of(u64::MAX, 10 * S, |second| u64::from(second) / 8),
            None
        );
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
        assert_eq!(over(&work, start + 3 * S, S, TOTAL), None);
        assert_eq!(over(&work, start + 4 * S, S, TOTAL), Some(3 * S));
    }

    /// An admitted receiver that acknowledges everything and proves a byte a second would keep the
    /// sender for years.
    #[test]
    fn who_proves_a_byte_a_second_is_slow() {
        assert_eq!(ends(S, u64::from), Some((61, 60 * S)));
        assert_eq!(ends(90 * S, u64::from), Some((91, 90 * S)));
        let total = 40 * STORING_SPEED_MIN;
        assert_eq!(ends_of(total, S, u64::from), Some((101, 100 * S)));
        // Only the flush is limited where it proves faster than that.
        let fast = |second| (u64::from(second) * STORING_SPEED_MIN).min(total);
        assert_eq!(ends_of(total, 90 * S, fast), Some((131, 90 * S)));
    }
}
