//! The sender's table of receivers: which take part, and how far each has come.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, PathState};

use super::balance::Balance;
use super::member_comparing::MemberComparing;
use super::missed::Missed;
use crate::bootstrap::PeerKey;
use crate::bootstrap::message::{Hello, ReceiverStatistics, harmless};
use crate::transfer::events::{Part, ReceiverReport, State};
use crate::transfer::kept_packs::KeptPacks;
use crate::transport::NodeAddress;

/// Stage of a receiver, as the sender knows it.
#[derive(Clone, PartialEq, Debug)]
pub enum Stage {
    /// The receiver has been welcomed, and makes room for the file.
    Preparing,
    /// The receiver is prepared and waits for the start, or joins the group.
    Joining,
    /// The receiver has joined and posted.
    Receiving,
    /// The receiver has all bytes, and proves or stores them.
    Storing(Work),
    /// The transfer is over for this receiver.
    Over {
        /// How it ended.
        state: State,
        /// Why, if it failed.
        reason: Option<String>,
        /// When it ended, in seconds since the start.
        seconds: f64,
    },
}

/// The least patience with a receiver that proves and stores. It reports once a second, and less
/// patience would take a busy disk for a stopped process.
const PATIENCE_STORING: Duration = Duration::from_secs(3);
/// The least patience with a receiver that says it is at work and stores nothing more. It flushes
/// each file before the bytes count as stored, and a flush reports no progress: a large file in a
/// large memory takes long. Less patience would take a disk that works for one that hangs.
const PATIENCE_FLUSHING: Duration = Duration::from_secs(60);

/// The least speed of proving and storing, in bytes per second. A receiver below it is slow, even
/// if it keeps reporting one more proven byte.
const STORING_SPEED_MIN: u64 = 5_000_000;

/// One kind of wait of the sender for a receiver.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wait {
    /// What the receiver did, or did not do, all this time.
    pub what: &'static str,
    /// How long the sender has waited.
    pub lasted: Duration,
    /// The receiver is slow if the wait is longer than this.
    pub limit: Duration,
}

impl Wait {
    const STANDS: &str = "it did not get on";
    const BEHIND: &str = "it was far behind the others";
    const HOLDS: &str = "it held the others at less than half of what they could take";
    const STORES: &str = "it proved and stored the file";

    fn new(what: &'static str, lasted: Duration, limit: Duration) -> Wait {
        Wait {
            what,
            lasted,
            limit,
        }
    }

    /// The wait of the core, which has lasted as long as it may.
    pub fn placing(limit: Duration) -> Wait {
        Wait::new(Wait::STANDS, limit, limit)
    }

    /// The wait for a receiver that has been far behind, for as long as it may.
    pub fn behind(limit: Duration) -> Wait {
        Wait::new(Wait::BEHIND, limit, limit)
    }

    /// The wait for a receiver that has held the others back, for as long as it may.
    pub fn holding(limit: Duration) -> Wait {
        Wait::new(Wait::HOLDS, limit, limit)
    }

    /// Whether the wait has lasted longer than `times` times its limit.
    pub fn exceeds(&self, times: u32) -> bool {
        self.lasted > self.limit.saturating_mul(times)
    }
}

/// Progress of a receiver that has all bytes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Bytes of the list and the file that the receiver has proven.
    done: u64,
    /// When the receiver first said that it is at work.
    begun: Instant,
    /// When the receiver last said anything.
    heard: Instant,
    /// When the receiver last reported more proven bytes: being alive is not progress.
    moved: Instant,
}

/// How long a receiver may take to prove and store so many bytes.
pub fn storing_time(patience: Duration, total: u64) -> Duration {
    patience.max(PATIENCE_FLUSHING) + Duration::from_secs(total / STORING_SPEED_MIN)
}

impl Work {
    /// Starts with the receiver's first word that it is at work.
    pub fn begun(now: Instant, done: u64) -> Work {
        Work {
            done,
            begun: now,
            heard: now,
            moved: now,
        }
    }

    /// Notes another word of the receiver.
    pub fn said(&mut self, now: Instant, done: u64) {
        self.heard = now;
        if done > self.done {
            (self.done, self.moved) = (done, now);
        }
    }

    /// How long the sender has waited for the receiver's next word, for progress and for the end.
    /// `total`: bytes to be proven.
    fn waits(&self, now: Instant, patience: Duration, total: u64) -> [Wait; 3] {
        let silent = patience.max(PATIENCE_STORING);
        let flushing = patience.max(PATIENCE_FLUSHING);
        let all = storing_time(patience, total);
        let since = |t| now.duration_since(t);
        [
            Wait::new(Wait::STANDS, since(self.heard), silent),
            Wait::new(Wait::STANDS, since(self.moved), flushing),
            Wait::new(Wait::STORES, since(self.begun), all),
        ]
    }
}

/// What a receiver has to do with the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It is no member, and is admitted when it has joined the group's address.
    Outside,
    /// It is no member, and waits to be admitted.
    Waiting,
    /// It was demoted, and is admitted when all packs have been announced.
    Aside,
    /// It is a member.
    Member,
    /// It is no member any more, since it has everything.
    Done,
}

/// A receiver, as the sender knows it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its control connection.
    pub peer: PeerKey,
    /// Its node number; zero until it is admitted.
    pub node: NodeId,
    /// Its address on the control connection.
    pub address: SocketAddr,
    /// The sender's address on the control connection.
    pub local: SocketAddr,
    /// The receiver's hello; the name in it is made fit for a terminal.
    pub hello: Hello,
    /// Its name in reports: as it says, unless another receiver has that name.
    pub name: String,
    /// Its stage.
    pub stage: Stage,
    /// Whether something of the set may be in its place there.
    pub may_have: bool,
    /// How far it is with comparing what it has, if it takes part in that.
    pub comparing: Option<MemberComparing>,
    /// When it connected, was prepared, or was admitted again.
    pub since: Instant,
    /// How it is reached.
    pub path_state: PathState,
    /// Bytes of the file that it has placed.
    pub placed: u64,
    /// How long the core has waited for this receiver since it last placed more.
    pub waited: Duration,
    /// Data packets sent again for this receiver: by unicast, or because it was the first to
    /// request them.
    pub repairs: u64,
    /// When the receiver had placed all bytes. From then on the core does not wait for it.
    pub complete: Option<Instant>,
    /// Whether the sender has told that it is slow.
    pub slow: bool,
    /// When the sender last heard anything from it.
    pub heard: Instant,
    /// What it has counted.
    pub statistics: ReceiverStatistics,
    /// Since when it takes part.
    pub part: Part,
    /// What it has to do with the group.
    pub place: Place,
    /// What it lacks of the packs that are not broadcast to it.
    pub missed: Missed,
    /// Packs of a stream that it has proven: all before this number.
    pub proven: u32,
    /// Since when the sender keeps as much of a stream as it may because this receiver has not
    /// proven it.
    pub unproven: Option<Instant>,
    /// Packs that it keeps from an earlier run, as it has said.
    pub keeps: KeptPacks,
    /// Bytes of the packs that were sent since it was admitted to the group.
    pub sent: u64,
    /// Bytes of the packs that were sent since it was admitted and that it has not placed.
    pub due: u64,
    /// Whether it lacks packets that have been sent.
    pub lacks_sent: bool,
    /// How long it has held the others up, less the time in which it has not.
    pub holds: Balance,
    /// How long it has been far behind the fastest receiver, less the time in which it was not.
    pub behind: Balance,
    /// Whether the others have gone on without it because it was slower than they were.
    pub left_behind: bool,
    /// Whether it was told that all packs have been announced.
    pub knows_end: bool,
}

impl Member {
    /// Creates the entry of a receiver that has said hello.
    pub fn new(peer: PeerKey, address: SocketAddr, local: SocketAddr, hello: Hello) -> Member {
        let now = Instant::now();
        let name = clean_name(&hello.name);
        let hello = Hello {
            name: name.clone(),
            ..hello
        };
        Member {
            peer,
            node: NodeId(0),
            address,
            local,
            hello,
            name,
            stage: Stage::Preparing,
            may_have: false,
            comparing: None,
            since: now,
            path_state: PathState::Multicast,
            placed: 0,
            waited: Duration::ZERO,
            repairs: 0,
            complete: None,
            slow: false,
            heard: now,
            statistics: ReceiverStatistics::default(),
            part: Part::Whole,
            place: Place::Member,
            missed: Missed::nothing(),
            proven: 0,
            unproven: None,
            keeps: KeptPacks::default(),
            sent: 0,
            due: 0,
            lacks_sent: false,
            holds: Balance::default(),
            behind: Balance::default(),
            left_behind: false,
            knows_end: false,
        }
    }

    /// The entry of a receiver that comes when the transfer runs already.
    pub fn late(self) -> Member {
        Member {
            part: Part::Late,
            place: Place::Outside,
            missed: Missed::unknown(),
            ..self
        }
    }

    /// Whether the sender waits for this receiver and it is a member of the group.
    pub fn in_group(&self) -> bool {
        self.active() && self.place == Place::Member
    }

    /// Whether it can compare what it has, as it has said before the start.
    pub fn may_compare(&self) -> bool {
        self.may_have && self.hello.verifies()
    }

    /// Whether it takes part in comparing: it was there from the start, and is a member of the
    /// group.
    pub fn compares(&self) -> bool {
        self.in_group() && self.part == Part::Whole && self.comparing.is_some()
    }

    /// Since when it has a pack to compare, if it takes part in comparing.
    fn has_to_compare_since(&self) -> Option<Instant> {
        let comparing = self.comparing.as_ref().filter(|_| self.compares());
        comparing.and_then(MemberComparing::waits_since)
    }

    /// Whether it takes part in comparing, and has a pack to compare.
    pub fn has_to_compare(&self) -> bool {
        self.has_to_compare_since().is_some()
    }

    /// Whether this receiver is another one that is gone, and has come back: from the same host,
    /// under the same name.
    pub fn replaces(&self, gone: &Member) -> bool {
        let is_same = gone.hello.name == self.hello.name && gone.address.ip() == self.address.ip();
        is_same && !gone.active() && !gone.is_complete()
    }

    /// The address that datagrams for it go to.
    pub fn datagrams(&self) -> NodeAddress {
        let mut address = self.address; // `contradiction` refuses any other
        address.set_port(self.hello.address.ip().map_or(0, |a| a.port()));
        address.into()
    }

    /// Its name in reports.
    pub fn name(&self) -> String {
        self.name.clone()
    }

    /// Whether the sender still waits for this receiver.
    pub fn active(&self) -> bool {
        !matches!(self.stage, Stage::Over { .. })
    }

    /// Whether the transfer has ended like this for the receiver.
    pub fn ended(&self, state: State) -> bool {
        matches!(&self.stage, Stage::Over { state: ended, .. } if *ended == state)
    }

    /// Whether the receiver has got everything.
    pub fn is_complete(&self) -> bool {
        matches!(&self.stage, Stage::Over { state, .. } if state.is_complete())
    }

    /// How long the sender has waited for this receiver, for each reason that counts at its stage.
    /// The core watches receivers that have something to place; this watches what comes over the
    /// control connection. `joining`: since when receivers join, if that is not over. `total`:
    /// bytes to be proven, if that is known.
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
        let limit = patience.max(PATIENCE_STORING);
        let proving = self.unproven.map(|since| stands(since, limit));
        let saying = self
            .missed
            .awaited_since()
            .map(|since| stands(since, patience));
        let comparing = self.has_to_compare_since();
        let comparing = comparing.map(|since| stands(since, patience));
        let all = std::iter::once(placing).chain(told.into_iter().flatten());
        all.chain(proving).chain(saying).chain(comparing)
    }

    /// The receiver's line of the table.
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
            part: self.part,
            placed: self.placed,
            statistics: self.statistics,
        }
    }
}

/// The word for how a member is reached.
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
pub mod testing {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::{Member, Stage};
    use crate::bootstrap::PeerKey;
    use crate::bootstrap::message::{Hello, VERSION};

    /// A receiver that connects from `address` to the sender's address `local`.
    pub fn receiver(address: &str, local: &str, stage: Stage) -> Member {
        let hello = Hello {
            version: VERSION,
            name: "x".into(),
            address: (Ipv4Addr::UNSPECIFIED.into(), 1).into(),
            datagram: 1472,
            window_bytes: 1 << 24,
            stream: false,
            discard: false,
            nonce: None,
        };
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 1);
        Member {
            stage,
            ..Member::new(PeerKey::default(), at(address), at(local), hello)
        }
    }

    /// A receiver to which data are sent.
    pub fn receiving() -> Member {
        receiver("127.0.0.1", "127.0.0.1", Stage::Receiving)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::receiving;
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const TOTAL: u64 = 1000;

    fn over(work: &Work, now: Instant, patience: Duration, total: u64) -> Option<Duration> {
        let mut waits = work.waits(now, patience, total).into_iter();
        waits.find(|w| w.exceeds(1)).map(|w| w.limit)
    }

    /// Reports `done(second)` each second. Returns the second at which patience ends, and the
    /// limit.
    fn ends(patience: Duration, done: impl Fn(u32) -> u64) -> Option<(u32, Duration)> {
        ends_of(TOTAL, patience, done)
    }

    /// Like `ends`, with `total` bytes to be proven.
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

    /// It could acknowledge everything and prove nothing, and hold the sender of a stream for ever.
    #[test]
    fn who_does_not_prove_a_stream_is_slow() {
        let mut member = receiving();
        let now = Instant::now();
        let is_slow = |member: &Member, seconds: u32| {
            let waits = member.waits(now + seconds * S, 10 * S, None, None);
            waits.into_iter().any(|wait| wait.exceeds(1))
        };
        assert!(!is_slow(&member, 100));
        member.unproven = Some(now);
        assert!(!is_slow(&member, 10) && is_slow(&member, 11));
    }

    #[test]
    fn who_works_and_gets_nowhere_is_slow() {
        assert_eq!(ends_of(u64::MAX, S, |_| 0), Some((61, 60 * S)));
        assert_eq!(ends_of(u64::MAX, 90 * S, |_| 0), Some((91, 90 * S)));
        assert_eq!(
            ends_of(u64::MAX, 10 * S, |second| u64::from(second) / 50),
            None
        );
        // Smaller numbers are no movement.
        assert_eq!(
            ends_of(u64::MAX, 10 * S, |second| 300 - u64::from(second)),
            Some((61, 60 * S))
        );
    }

    #[test]
    fn a_flush_may_take_a_minute() {
        for done in [TOTAL / 2, TOTAL] {
            assert_eq!(ends(S, |_| done), Some((61, 60 * S)));
            assert_eq!(ends(90 * S, |_| done), Some((91, 90 * S)));
        }
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
        // Where the receiver proves faster than that, only the flush is limited.
        let fast = |second| (u64::from(second) * STORING_SPEED_MIN).min(total);
        assert_eq!(ends_of(total, 90 * S, fast), Some((131, 90 * S)));
    }
}
