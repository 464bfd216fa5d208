//! The memberships that a process wants, and the requests that get it there. No I/O.
//!
//! Each membership, of one port in one group, is a small state machine with at most one request
//! under way. A request that is not answered, or is answered "busy", is sent again when its time
//! has run out; requests can be repeated without harm. That time follows how long the manager takes
//! to answer, and an answer to an earlier request counts as well. A membership that the manager has
//! granted once is never given up: if the manager has forgotten it, the client joins again.
//!
//! ```text
//!   Join ─ granted ─► In ─ every second, one of the port's ─► Check ─ still there ─► In
//!    ▲ │               │                                        │
//!    │ └ refused ► gone└─ last leave ─► Leave ─ answered ─► gone│
//!    └──────────────────── lost: then all others are checked ◄──┘
//! ```

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use fabricast_proto::Time;

use super::mad::{Answer, Gid, INSUFFICIENT_COMPONENTS, Method, NO_RESOURCES};
use crate::subnet::{News, Refusal};
use crate::transport::GroupAddress;

/// Largest number of requests under way. The manager answers one after the other.
const OUTSTANDING_MAX: usize = 32;
/// Largest number of memberships of one client.
const MEMBERSHIPS_MAX: usize = 16 << 10;
/// Shortest time after which a request is repeated. Each further repetition waits twice as long.
const PATIENCE_MIN: Duration = Duration::from_millis(250);
/// Longest time between two repetitions, unless the manager takes longer to answer.
const PATIENCE_MAX: Duration = Duration::from_secs(2);
/// Longest time between two repetitions. A manager that has been away is asked again that soon.
const PATIENCE_SLOW: Duration = Duration::from_secs(4);
/// How often a join is sent before it is refused: for half a minute, unless the manager is slow.
const TRIES_MAX: u32 = 16;
/// How long an answer to a request counts, whether the request was repeated meanwhile or not.
const ANSWER_MAX: Duration = Duration::from_secs(32);
/// How often one membership of each port is checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// One port's membership of one group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Membership {
    /// The port.
    pub port: Gid,
    /// The group.
    pub group: Gid,
}

/// A request that is to be sent now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its number.
    pub transaction: u32,
    /// What it is about.
    pub membership: Membership,
    /// What to do.
    pub method: Method,
    /// Whether a join may create the group.
    pub create: bool,
    /// How long an answer counts.
    pub answer_max: Duration,
}

/// A request that is not answered.
#[derive(Clone, Copy, Debug)]
struct Sent {
    membership: Membership,
    at: Time,
}

/// What a membership's next or present request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The port is to become a member.
    Join,
    /// The port is a member.
    In,
    /// The port is a member as far as is known, and the manager is asked.
    Check,
    /// The port is to leave.
    Leave,
}

/// An address by which the caller names the group. Several addresses may lead to one group.
#[derive(Debug)]
struct User {
    address: GroupAddress,
    /// Creates and joins that are neither refused nor undone.
    uses: u32,
    /// Those of them that are not answered.
    waiting: u32,
    /// Leaves that are not answered.
    leaving: u32,
}

#[derive(Debug)]
struct State {
    users: Vec<User>,
    phase: Phase,
    /// The request under way: the last one that was sent.
    transaction: Option<u32>,
    /// Earlier requests for the same, which may still be answered, the oldest first.
    late: VecDeque<u32>,
    /// When the request is sent again.
    timer: Option<Time>,
    /// Whether the membership stands in the queue of those that send.
    is_queued: bool,
    /// How often the request has been sent.
    tries: u32,
    /// Whether the last answer was "busy".
    was_busy: bool,
    create: bool,
    /// Whether the port was a member before.
    is_lost: bool,
    mlid: u16,
}

impl State {
    fn new() -> State {
        State {
            users: Vec::new(),
            phase: Phase::Join,
            transaction: None,
            late: VecDeque::new(),
            timer: None,
            is_queued: false,
            tries: 0,
            was_busy: false,
            create: false,
            is_lost: false,
            mlid: 0,
        }
    }

    fn uses(&self) -> u32 {
        self.users.iter().map(|u| u.uses).sum()
    }

    fn user(&mut self, address: &GroupAddress) -> &mut User {
        let at = self.users.iter().position(|u| u.address == *address);
        let at = at.unwrap_or_else(|| {
            self.users.push(User {
                address: address.clone(),
                uses: 0,
                waiting: 0,
                leaving: 0,
            });
            self.users.len() - 1
        });
        &mut self.users[at]
    }
}

/// The memberships of one process, for one port or as a proxy for several.
#[derive(Default)]
pub struct Client {
    memberships: BTreeMap<Membership, State>,
    /// Memberships whose request has not been sent, the oldest first.
    queue: VecDeque<Membership>,
    /// When requests are sent again.
    timers: BTreeSet<(Time, Membership)>,
    /// Requests under way.
    outstanding: BTreeMap<u32, Sent>,
    /// Requests that were repeated.
    late: BTreeMap<u32, Sent>,
    answer_time: AnswerTime,
    last_transaction: u32,
    /// When a membership of each port is checked next, and the group that was checked last.
    checks: BTreeMap<Gid, (Time, Option<Gid>)>,
    news: VecDeque<(Gid, News)>,
}

impl Client {
    /// Makes a client without memberships.
    pub fn new() -> Client {
        Client::default()
    }

    /// Begins a membership, or uses it once more.
    pub fn join(&mut self, wanted: Membership, address: &GroupAddress, create: bool) {
        let count = self.memberships.len();
        let state = match self.memberships.entry(wanted) {
            Entry::Vacant(_) if count >= MEMBERSHIPS_MAX => {
                let refused = News::Refused(address.clone(), Refusal::TooMany);
                self.news.push_back((wanted.port, refused));
                return;
            }
            Entry::Vacant(entry) => {
                self.queue.push_back(wanted);
                let state = entry.insert(State::new());
                state.is_queued = true;
                state
            }
            Entry::Occupied(entry) => entry.into_mut(),
        };
        state.create |= create;
        let is_in = matches!(state.phase, Phase::In | Phase::Check);
        let user = state.user(address);
        user.uses += 1;
        match is_in {
            true => {
                let joined = News::Joined(address.clone());
                self.news.push_back((wanted.port, joined));
            }
            false => user.waiting += 1,
        }
    }

    /// Undoes one join.
    pub fn leave(&mut self, membership: Membership, address: &GroupAddress) {
        let left = (membership.port, News::Left(address.clone()));
        let Some(state) = self.memberships.get_mut(&membership) else {
            return self.news.push_back(left);
        };
        let user = state.user(address);
        if user.uses > 0 {
            user.uses -= 1;
            user.waiting = user.waiting.min(user.uses);
        }
        if state.uses() > 0 {
            state.users.retain(|u| u.uses + u.leaving > 0);
            return self.news.push_back(left);
        }
        state.user(address).leaving += 1;
        match (state.phase, state.transaction) {
            // The answer decides whether there is something to leave.
            (Phase::Join, Some(_)) | (Phase::Leave, _) => {}
            (Phase::Join, None) if state.tries == 0 && !state.is_lost => self.left(membership),
            _ => self.begin(membership, Phase::Leave),
        }
    }

    /// Whether the port is a member, as far as is known, and the group's multicast LID.
    pub fn mlid(&self, membership: Membership) -> Option<u16> {
        let state = self.memberships.get(&membership)?;
        matches!(state.phase, Phase::In | Phase::Check).then_some(state.mlid)
    }

    /// Checks all memberships of a port: something has happened to it or to its manager.
    pub fn check(&mut self, port: Gid) {
        let all: Vec<_> = self.of_port(port).map(|(m, _)| *m).collect();
        for membership in all {
            if self.memberships[&membership].phase == Phase::In {
                self.begin(membership, Phase::Check);
            }
        }
    }

    /// Checks all memberships of all ports.
    pub fn check_all(&mut self) {
        let ports: Vec<_> = self.checks.keys().copied().collect();
        for port in ports {
            self.check(port);
        }
    }

    /// The next request to be sent. Its answer, or that it could not be sent, is told by
    /// [`Client::answered`] or [`Client::not_answered`].
    pub fn poll(&mut self, now: Time) -> Option<Request> {
        self.run_timers(now);
        while self.outstanding.len() < OUTSTANDING_MAX {
            let membership = self.queue.pop_front()?;
            // A membership that has gone may still stand in the queue.
            let Some(state) = self.memberships.get_mut(&membership) else {
                continue;
            };
            state.is_queued = false;
            let method = match state.phase {
                Phase::Join => Method::Set,
                Phase::Check => Method::Get,
                Phase::Leave => Method::Delete,
                Phase::In => continue,
            };
            if state.transaction.is_some() {
                continue;
            }
            self.last_transaction = self.last_transaction.wrapping_add(1);
            let transaction = self.last_transaction;
            let deadline = now + self.answer_time.patience(state.tries);
            state.tries = state.tries.saturating_add(1);
            state.transaction = Some(transaction);
            state.timer = Some(deadline);
            let create = state.create;
            self.timers.insert((deadline, membership));
            let sent = Sent {
                membership,
                at: now,
            };
            self.outstanding.insert(transaction, sent);
            return Some(Request {
                transaction,
                membership,
                method,
                create,
                answer_max: ANSWER_MAX,
            });
        }
        None
    }

    /// The manager has answered.
    pub fn answered(&mut self, now: Time, answer: &Answer) {
        let Some(Sent { membership, at }) = self.take(answer.transaction) else {
            return;
        };
        if answer.is_busy() {
            let state = self.state(membership);
            state.was_busy |= state.transaction.is_none();
            return;
        }
        self.answer_time.measured(now.since(at));
        let state = self.state(membership);
        match state.phase {
            Phase::Join if answer.status == 0 => self.joined(now, membership, answer.mlid),
            Phase::Join => self.join_failed(membership, answer.status),
            // The manager tells the join state to the privileged alone, but has no record of a
            // port that is no member.
            Phase::Check if answer.status == 0 => {
                state.mlid = answer.mlid;
                self.rest(membership);
            }
            Phase::Check => self.lost(membership),
            // The manager refuses a leave if the port is no member.
            Phase::Leave => self.left(membership),
            Phase::In => {}
        }
    }

    /// The network could not deliver a request, or its answer. It is sent again when its time has
    /// run out.
    pub fn not_answered(&mut self, transaction: u32) {
        self.take(transaction);
    }

    /// None of the requests so far will be answered. They are sent again when their time has run
    /// out.
    pub fn none_answered(&mut self) {
        let sent = self.outstanding.keys().chain(self.late.keys());
        for transaction in sent.copied().collect::<Vec<_>>() {
            self.take(transaction);
        }
    }

    /// What has happened, the oldest first, each with the port that it has happened to.
    pub fn news(&mut self) -> Option<(Gid, News)> {
        self.news.pop_front()
    }

    /// Whether an answer is awaited.
    pub fn is_waiting(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// When [`Client::poll`] has something to do.
    pub fn due(&self) -> Option<Time> {
        if !self.queue.is_empty() && self.outstanding.len() < OUTSTANDING_MAX {
            return Some(Time::ZERO);
        }
        let check = self.checks.values().map(|(time, _)| *time).min();
        let timer = self.timers.first().map(|(time, _)| *time);
        [check, timer].into_iter().flatten().min()
    }

    /// Takes a request that may still be answered.
    fn take(&mut self, transaction: u32) -> Option<Sent> {
        if let Some(sent) = self.outstanding.remove(&transaction) {
            let state = self.state(sent.membership);
            state.transaction = None;
            state.was_busy = false;
            return Some(sent);
        }
        let sent = self.late.remove(&transaction)?;
        let state = self.state(sent.membership);
        state.late.retain(|late| *late != transaction);
        Some(sent)
    }

    fn state(&mut self, membership: Membership) -> &mut State {
        let state = self.memberships.get_mut(&membership);
        state.expect("a membership exists while its request is under way")
    }

    fn of_port(&self, port: Gid) -> impl Iterator<Item = (&Membership, &State)> {
        let first = Membership {
            port,
            group: Gid([0; 16]),
        };
        let all = self.memberships.range(first..);
        all.take_while(move |(m, _)| m.port == port)
    }

    /// Ends what the membership does now, and queues its first request of a phase.
    fn begin(&mut self, membership: Membership, phase: Phase) {
        self.rest(membership);
        let state = self.state(membership);
        state.phase = phase;
        if !std::mem::replace(&mut state.is_queued, true) {
            self.queue.push_back(membership);
        }
    }

    /// Ends what the membership does now: nothing is sent until something new begins.
    fn rest(&mut self, membership: Membership) {
        let state = self.state(membership);
        state.phase = Phase::In;
        state.tries = 0;
        let (timer, transaction) = (state.timer.take(), state.transaction.take());
        let late = std::mem::take(&mut state.late);
        if let Some(timer) = timer {
            self.timers.remove(&(timer, membership));
        }
        if let Some(transaction) = transaction {
            self.outstanding.remove(&transaction);
        }
        for transaction in late {
            self.late.remove(&transaction);
        }
    }

    fn run_timers(&mut self, now: Time) {
        while let Some(&(time, membership)) = self.timers.first()
            && time <= now
        {
            self.timers.pop_first();
            self.time_is_up(membership);
        }
        let due = self.checks.iter().filter(|(_, (time, _))| *time <= now);
        let due: Vec<_> = due.map(|(port, (_, last))| (*port, *last)).collect();
        for (port, last) in due {
            let next = |after: Option<Gid>| {
                let mut all = self.of_port(port);
                let one = all.find(|(m, s)| s.phase == Phase::In && Some(m.group) > after);
                one.map(|(m, _)| *m)
            };
            // One question at a time, while the manager does not answer.
            let is_asked = self.of_port(port).any(|(_, s)| s.phase == Phase::Check);
            let chosen = match is_asked {
                true => None,
                false => next(last).or_else(|| next(None)),
            };
            if self.of_port(port).next().is_none() {
                self.checks.remove(&port);
                continue;
            }
            let group = chosen.map(|m| m.group).or(last);
            self.checks.insert(port, (now + CHECK_EVERY, group));
            if let Some(membership) = chosen {
                self.begin(membership, Phase::Check);
            }
        }
    }

    fn time_is_up(&mut self, membership: Membership) {
        let state = self.state(membership);
        state.timer = None;
        let transaction = state.transaction.take();
        let mut over = None;
        if let Some(transaction) = transaction {
            state.was_busy = false;
            state.late.push_back(transaction);
            if state.late.len() > TRIES_MAX as usize {
                over = state.late.pop_front();
            }
        }
        let (phase, tries, was_busy) = (state.phase, state.tries, state.was_busy);
        let is_given_up = tries >= TRIES_MAX && !state.is_lost;
        let is_wanted = state.uses() > 0;
        let sent = transaction.and_then(|t| Some((t, self.outstanding.remove(&t)?)));
        self.late.extend(sent);
        if let Some(over) = over {
            self.late.remove(&over);
        }
        if phase == Phase::Join && !is_wanted {
            // Whether the manager knows the membership nobody can tell, so it is left.
            self.begin(membership, Phase::Leave);
        } else if phase == Phase::Join && is_given_up {
            let refusal = match was_busy {
                true => Refusal::Busy,
                false => Refusal::TimedOut,
            };
            self.refuse(membership, refusal);
            // An answer may have been lost, so the port may be a member after all.
            self.begin(membership, Phase::Leave);
        } else {
            let state = self.state(membership);
            if !std::mem::replace(&mut state.is_queued, true) {
                self.queue.push_back(membership);
            }
        }
    }

    fn joined(&mut self, now: Time, membership: Membership, mlid: u16) {
        self.rest(membership);
        let state = self.memberships.get_mut(&membership).expect("is there");
        state.mlid = mlid;
        let is_back = std::mem::take(&mut state.is_lost);
        for user in &mut state.users {
            let again = u32::from(is_back && user.uses > user.waiting);
            for _ in 0..std::mem::take(&mut user.waiting) + again {
                let joined = News::Joined(user.address.clone());
                self.news.push_back((membership.port, joined));
            }
        }
        let is_wanted = state.uses() > 0;
        let check = (now + CHECK_EVERY, None);
        self.checks.entry(membership.port).or_insert(check);
        if !is_wanted {
            self.begin(membership, Phase::Leave);
        }
    }

    fn join_failed(&mut self, membership: Membership, status: u16) {
        let state = self.state(membership);
        if state.is_lost {
            // The group went with the memberships, and its creator may come back last.
            if status == INSUFFICIENT_COMPONENTS && !state.create {
                state.create = true;
                self.begin(membership, Phase::Join);
            }
            return;
        }
        let refusal = match status {
            NO_RESOURCES => Refusal::NoAddresses,
            _ => Refusal::Invalid(status),
        };
        self.refuse(membership, refusal);
        self.left(membership);
    }

    /// Answers all creates and joins that wait.
    fn refuse(&mut self, membership: Membership, refusal: Refusal) {
        let state = self.memberships.get_mut(&membership).expect("is there");
        for user in &mut state.users {
            user.uses -= user.waiting;
            for _ in 0..std::mem::take(&mut user.waiting) {
                let refused = News::Refused(user.address.clone(), refusal);
                self.news.push_back((membership.port, refused));
            }
        }
    }

    /// The port is not a member, as the manager says or because nothing was ever sent.
    fn left(&mut self, membership: Membership) {
        self.rest(membership);
        let state = self.memberships.get_mut(&membership).expect("is there");
        for user in &mut state.users {
            for _ in 0..std::mem::take(&mut user.leaving) {
                let left = News::Left(user.address.clone());
                self.news.push_back((membership.port, left));
            }
        }
        state.users.retain(|u| u.uses > 0);
        state.is_lost = false;
        match state.users.is_empty() {
            true => {
                self.memberships.remove(&membership);
            }
            false => self.begin(membership, Phase::Join),
        }
    }

    fn lost(&mut self, membership: Membership) {
        let state = self.memberships.get_mut(&membership).expect("is there");
        state.is_lost = true;
        for user in &state.users {
            let lost = News::Lost(user.address.clone());
            self.news.push_back((membership.port, lost));
        }
        self.begin(membership, Phase::Join);
        self.check(membership.port);
    }
}

/// How long the manager takes to answer, smoothed as in RFC 6298.
#[derive(Default)]
struct AnswerTime {
    /// Mean, and mean deviation from it; `None` before the first answer.
    smoothed: Option<(Duration, Duration)>,
}

impl AnswerTime {
    fn measured(&mut self, took: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (took, took / 2),
            Some((mean, deviation)) => (
                (mean * 7 + took) / 8,
                (deviation * 3 + took.abs_diff(mean)) / 4,
            ),
        });
    }

    /// When a request that was sent `tries` times before is repeated, counted from when it is sent.
    fn patience(&self, tries: u32) -> Duration {
        let (mean, deviation) = self.smoothed.unwrap_or_default();
        let first = (mean + 4 * deviation).clamp(PATIENCE_MIN, PATIENCE_SLOW);
        let doubled = PATIENCE_MAX.min(first * 2u32.pow(tries.min(8)));
        doubled.max(first)
    }
}

#[cfg(test)]
mod tests;
