//! How fast a path sends: a policy that returns times and never sends.
//!
//! The pacer looks for the speed of the slowest required receiver (or of the link before it) and
//! stays there. It follows two measurements that feedback brings for every receiver. One is how
//! fast packets *arrive*. The other is how much longer than at best they *took*, which is the queue
//! that has built up. Loss alone does not slow the pacer down, because on a lossy link loss says
//! nothing about speed. Only loss far above the usual one does, which is what a switch without
//! queues shows.
//!
//! The pacer works in rounds. A round begins when the rate is set and ends when every required
//! receiver has reported on packets that were sent after that. *Startup* doubles the rate each
//! round until a queue builds up or less arrives than is sent. *Cruise* keeps a small standing
//! queue (so the link is never idle) and probes upwards, faster and faster, while there is none.
//! Every now and then the pacer drains the queue on purpose. If the queue does not go, another flow
//! fills it (TCP, for example). *Compete* then keeps a queue of its own beside the other flow's, or
//! takes losses as TCP does, until a drain finds the queue gone.

mod outpacing;
mod quanta;
mod receiver;
mod usual_loss;

use core::time::Duration;

use crate::path::Burst;
use crate::time::Time;
use outpacing::{Next, Outpacing, Round};
pub use quanta::Quanta;
use receiver::{Mark, QUEUE_LOW_US, ReceiverState, USED};
use usual_loss::{QUEUE_HIGH_US, STANDING, Sample, UsualLoss};

/// Rate before anything is known, in bytes per second. Doubled every round, it passes 1 Gbit/s in
/// five rounds.
const RATE_START: f64 = 8e6;
/// Least rate, in bytes per second.
const RATE_MIN: f64 = 16e3;
/// Largest rate, in bytes per second.
const RATE_MAX: f64 = 40e9;
/// Standing queue that Cruise aims at, in µs.
const QUEUE_AIM_US: f64 = 2_500.0;
/// Number of rounds that are remembered, to know what has stood for [`STANDING`].
const RECENT: usize = 8;
/// Rounds of which nothing is known.
const NOTHING: [(Time, f64, f64); RECENT] = [(Time::ZERO, f64::MAX, 0.0); RECENT];
/// Share by which the best delivered rate fades in a second.
const BEST_FADES: f64 = 1.0;
/// Time after which a queue above the aim is to be gone, in µs.
const DRAIN_US: f64 = 60_000.0;
/// Least share by which the rate probes above the delivered rate.
const UP_MIN: f64 = 0.02;
/// Share by which probing begins where the rate is below [`FALLEN`] of what arrived before: there
/// the link has carried more.
const UP_BACK: f64 = 0.1;
/// Largest share by which the rate probes above the delivered rate.
const UP_MAX: f64 = 0.5;
/// Share of the best rate that arrived in the last seconds below which the rate has fallen.
const FALLEN: f64 = 0.8;
/// Age from which a measured loss is not used.
const LOSS_AGE: Duration = Duration::from_millis(100);
/// Age from which a measured delivered rate is not used.
const DELIVERED_AGE: Duration = Duration::from_millis(250);
/// Time without arrivals, in µs, from which a measured delivered rate is not used: that was an
/// outage, not a slow link.
const OUTAGE_US: u32 = 250_000;
/// Time within which losses alone lower the rate to no less than a quarter.
const FALL_TIME: Duration = Duration::from_secs(1);
/// Least duration of a round.
const ROUND_MIN: Duration = Duration::from_millis(5);
/// Duration after which a round ends without the receivers that are silent.
const ROUND_MAX: Duration = Duration::from_millis(60);
/// Time over which delivered rates are smoothed, in µs, but in Startup each is twice the last.
const DELIVERED_OVER_US: f64 = 20_000.0;
/// Least time over which a delivered rate is measured, in µs.
const MEASURE_MIN_US: u32 = 5_000;
/// Period of the shortest delay, which is remembered for one to two periods because clocks drift.
const BASE_AGE: Duration = Duration::from_secs(5);
/// Time from the first round to the first drain. A drain lowers the rate by a quarter (in Compete
/// by half) to empty the queue. It shows the shortest delay, and whether another flow fills the
/// queue.
const DRAIN_FIRST: Duration = Duration::from_millis(700);
/// Time from one drain to the next.
const DRAIN_EVERY: Duration = Duration::from_secs(4);
/// Least duration of a drain.
const DRAIN_LEAST: Duration = Duration::from_millis(30);
/// Number of rounds without a queue after which a pacer that competes takes itself for alone.
const QUIET_ROUNDS: u32 = 20;
/// Largest queue that Compete aims at, in µs.
const COMPETE_QUEUE_MAX_US: f64 = 30_000.0;
/// Time by which the disagreement of two clocks may grow within a few seconds, in µs.
const CLOCK_SLACK_US: i64 = 2_000;
/// A delay that is shorter than any before by more than this, in µs, shows that a clock was set.
const CLOCK_STEP_US: i64 = 1_000_000;

/// What the pacer does with the rate; see the module.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    Startup,
    Cruise,
    Compete,
}

/// The share of what was sent that says how fast a path is: the share `got` of `packets` packets
/// has arrived, and the share `usual` is lost as a rule.
///
/// The rate follows the slowest of `paths` paths, and of many paths there is always one that has
/// lost more than usual by chance. Without a correction the rate falls as receivers become more,
/// although none of their paths is slower (Bhattacharyya, Towsley, Kurose, "The loss path
/// multiplicity problem in multicast congestion control", INFOCOM 1999). So a loss counts as usual
/// as far as chance explains it. The greatest of n normal deviates is expected to be at most
/// sqrt(2 ln n) standard deviations.
fn likely(got: f64, usual: f64, packets: f64, paths: f64) -> f64 {
    let deviation = (usual * (1.0 - usual) / packets).sqrt();
    let luck = (2.0 * paths.ln()).sqrt() * deviation;
    got.max((got + luck).min(1.0 - usual))
}

/// Factor by which delivered rates are smoothed longer than [`DELIVERED_OVER_US`] with `paths`
/// paths. The rate follows the least of many measurements, which is low by chance. Longer smoothing
/// makes it less so. With few paths it matters more that the rate follows a link that gets slower.
fn patience(paths: f64) -> f64 {
    const FEW: f64 = 8.0;
    1.0 + 4.0 * (paths / FEW).max(1.0).ln()
}

/// The pacer of one path.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Whether the rate is the node's fixed rate, which holds for all paths of the node together.
    fixed: bool,
    /// The rate, in bytes per second.
    rate: f64,
    /// When packets may leave at the rate.
    quanta: Quanta,
    phase: Phase,
    /// Members whose speed counts or has counted, sorted by number.
    paths: Vec<(u32, ReceiverState)>,
    round: u32,
    round_at: Time,
    round_bytes: u64,
    bytes: u64,
    up: f64,
    base_at: Time,
    /// When the next drain begins.
    drain_at: Option<Time>,
    /// The drain under way: its end, and the shortest queue in it, in µs.
    drain: Option<(Time, f64)>,
    /// Longest queue in a series of cuts, and how much of it should be gone by now, both in µs.
    cutting: Option<(f64, f64)>,
    /// When the rate began to fall because of losses, and the rate at that time.
    fell: Option<(Time, f64)>,
    /// The last rounds: end, queue (µs), delivered rate (bytes per second).
    recent: [(Time, f64, f64); RECENT],
    /// The best delivered rate of late, which fades, in bytes per second.
    best: f64,
    /// In Compete: the queue to aim at, in µs.
    aim: f64,
    /// In Compete: whether that queue, or a loss, has been met.
    met: bool,
    /// In Compete: rounds since there was a queue.
    quiet: u32,
    /// In Compete: when the rate was last cut.
    cut_at: Time,
    /// The best delivered rate of the last seconds, at most the rate itself, in bytes per second.
    peak: f64,
    /// Whether a few receivers hold the rate of the others down.
    outpacing: Outpacing,
}

impl Pacer {
    /// The pacer of a path without receivers. `fixed`: the node's fixed rate, in bytes per second.
    pub fn new(fixed: Option<u64>) -> Pacer {
        let rate = fixed.map_or(RATE_START, |r| (r as f64).max(1.0));
        Pacer {
            fixed: fixed.is_some(),
            rate,
            quanta: Quanta::new(rate),
            phase: Phase::Startup,
            paths: Vec::new(),
            round: 0,
            round_at: Time::ZERO,
            round_bytes: 0,
            bytes: 0,
            up: UP_MIN,
            base_at: Time::ZERO,
            drain_at: None,
            drain: None,
            cutting: None,
            fell: None,
            recent: NOTHING,
            best: 0.0,
            aim: 0.0,
            met: false,
            quiet: 0,
            cut_at: Time::ZERO,
            peak: 0.0,
            outpacing: Outpacing::default(),
        }
    }

    /// Begins at `rate` bytes per second, which the network is known to carry, in Cruise.
    pub fn begin_at(&mut self, rate: u64) {
        if !self.fixed {
            self.rate = (rate as f64).clamp(RATE_MIN, RATE_MAX);
            self.quanta.set_rate(self.rate);
            self.phase = Phase::Cruise;
        }
    }

    /// The rate, in bytes of UDP payload per second.
    pub fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// Bytes that were sent so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets whether `member` is one of those whose speed counts.
    pub fn require(&mut self, member: usize, required: bool) {
        let is_known = |p: &(u32, ReceiverState)| p.0.cmp(&(member as u32));
        if !required && self.paths.binary_search_by(is_known).is_err() {
            return;
        }
        let at = self.place(member);
        let path = &mut self.paths[at].1;
        if required && !path.required {
            // Old measurements say nothing about now.
            path.mark = None;
            path.delivered = None;
            path.loss.restart();
            path.held = None;
        }
        path.required = required;
    }

    /// The place of what is known of a member.
    fn place(&mut self, member: usize) -> usize {
        let member = member as u32;
        let found = self.paths.binary_search_by_key(&member, |p| p.0);
        found.unwrap_or_else(|at| {
            self.paths.insert(at, (member, ReceiverState::new()));
            at
        })
    }

    /// Sets whether the group may outpace `member`, if this has held the rate for the time
    /// `may_hold`.
    pub fn may_outpace(&mut self, member: usize, may_hold: Option<Duration>) {
        let at = self.place(member);
        self.outpacing.may(&mut self.paths[at].1, may_hold);
    }

    /// A member that the group would outpace without waiting for it, if one has been found since
    /// the last call. Its speed does not count any more.
    pub fn take_outpaced(&mut self) -> Option<usize> {
        self.outpacing.take(&mut self.paths)
    }

    /// The share of new packets that `member` loses as a rule.
    pub fn usual_loss(&self, member: usize) -> f64 {
        let found = self.paths.binary_search_by_key(&(member as u32), |p| p.0);
        found.map_or(0.0, |at| self.paths[at].1.loss.usual())
    }

    /// Forgets a member that is gone: another node may get its number.
    pub fn forget(&mut self, member: usize) {
        self.paths.retain(|p| p.0 != member as u32);
    }

    /// Whether a packet may leave now. At a fixed rate it may always: the rate holds for all paths
    /// of a node together.
    pub fn is_open(&self, now: Time) -> bool {
        self.fixed || self.quanta.is_open(now)
    }

    /// When a packet may leave.
    pub fn opens_at(&self) -> Time {
        match self.fixed {
            true => Time::ZERO,
            false => self.quanta.opens_at(),
        }
    }

    /// Notes that a packet of `bytes` bytes (UDP payload) leaves.
    pub fn sent(&mut self, now: Time, bytes: u32) {
        self.bytes += u64::from(bytes);
        if !self.fixed {
            self.quanta.sent(now, bytes);
        }
    }

    /// Takes feedback of `member`: burst `number` reached it at `arrived_us`, after `received` new
    /// packets. The burst and its report were under way for `rtt`. Says whether these numbers can
    /// be true; those that cannot be are not used. `None`: nothing follows from them.
    pub fn sample(
        &mut self,
        now: Time,
        member: usize,
        (number, burst): (u32, &Burst),
        rtt: Duration,
        (received, arrived_us): (u32, u32),
    ) -> Option<bool> {
        let i = self.paths.binary_search_by_key(&(member as u32), |p| p.0);
        let paths = self.paths.len() as f64;
        let path = &mut self.paths[i.ok()?].1;
        let is_old = (number.wrapping_sub(path.newest) as i32) <= 0 && path.newest != 0;
        if is_old || !self.outpacing.covers(burst.at) {
            return None;
        }
        path.newest = number;
        let way = arrived_us.wrapping_sub(burst.at.micros());
        let shorter = |a: u32, b: u32| (a.wrapping_sub(b) as i32) < 0;
        let shortest = |a, b| if shorter(a, b) { a } else { b };
        let base = path.base.into_iter().flatten().reduce(shortest);
        let longer = base.map_or(0, |b| i64::from(way.wrapping_sub(b) as i32));
        // No queue is longer than the whole round trip.
        let most = rtt.as_micros() as i64 + CLOCK_SLACK_US;
        if !(-CLOCK_STEP_US..=most).contains(&longer) {
            (path.base, path.mark) = ([Some(way), None], None);
            return Some(false);
        }
        path.base[0] = Some(path.base[0].map_or(way, |b| shortest(b, way)));
        if self.drain.is_some() && path.drained.is_none_or(|b| shorter(way, b)) {
            path.drained = Some(way);
        }
        let base = path
            .base
            .into_iter()
            .flatten()
            .reduce(shortest)
            .unwrap_or(way);
        let queue = way.wrapping_sub(base);
        if (number.wrapping_sub(self.round) as i32) >= 0 {
            path.queue_us = Some(path.queue_us.map_or(queue, |q| q.min(queue)));
        }
        let here = Mark {
            burst: *burst,
            received,
            arrived_us,
        };
        let since = arrived_us.wrapping_sub(path.last_us);
        path.last_us = arrived_us;
        let Some(mark) = path.mark.filter(|_| since < OUTAGE_US) else {
            path.mark = Some(here);
            return Some(true);
        };
        let dt = arrived_us.wrapping_sub(mark.arrived_us);
        let fresh = burst.fresh.wrapping_sub(mark.burst.fresh);
        if !(MEASURE_MIN_US..1 << 31).contains(&dt) || fresh < 16 {
            return Some(true);
        }
        path.mark = Some(here);
        if shorter(received, mark.received) {
            return Some(false);
        }
        if received == mark.received {
            // Nothing at all arrives: the path is gone, not slow.
            return Some(true);
        }
        let got = (f64::from(received.wrapping_sub(mark.received)) / f64::from(fresh)).min(1.0);
        let dt = f64::from(dt);
        let sent = burst.bytes.saturating_sub(mark.burst.bytes) as f64 / dt * 1e6;
        let packets = f64::from(fresh);
        let left_us = burst.at.since(mark.burst.at).as_micros() as f64;
        let seen = Sample {
            packets,
            loss: 1.0 - got,
            rate: sent * dt / left_us.max(1.0),
            queue_us: f64::from(queue),
        };
        path.loss.learn(now, seen);
        (path.measured, path.arrives) = (now, Some(sent * got));
        let usual = path.loss.usual();
        let delivered = sent * likely(got, usual, packets, paths) / (1.0 - usual).max(0.05);
        // A sender that pauses, with no queue before the receiver, shows how much it sends and not
        // how much would arrive.
        let paused = sent * dt < USED * self.rate * left_us && f64::from(queue) < QUEUE_LOW_US;
        path.delivered = Some(match path.delivered {
            None => delivered,
            Some(d) if paused && delivered < d => d,
            Some(_) if self.phase == Phase::Startup || self.outpacing.tries() => delivered,
            Some(d) => d + (delivered - d) * (dt / (dt + DELIVERED_OVER_US * patience(paths))),
        });
        Some(true)
    }

    /// Ends the round if it is complete, and sets the rate. `newest` is the newest burst.
    /// Called at each feedback.
    pub fn tick(&mut self, now: Time, newest: u32) {
        if self.fixed || now.since(self.round_at) < ROUND_MIN {
            return;
        }
        let required = || self.paths.iter().map(|p| &p.1).filter(|p| p.counts());
        let complete = required().all(|p| p.queue_us.is_some());
        if (!complete && now.since(self.round_at) < ROUND_MAX)
            || !required().any(|p| p.queue_us.is_some())
        {
            return;
        }
        let queue = required().filter_map(|p| p.queue_us).max().unwrap_or(0);
        let cap = required()
            .filter(|p| now.since(p.measured) < DELIVERED_AGE)
            .filter_map(|p| p.delivered)
            .fold(f64::MAX, f64::min);
        let mut lossy = required()
            .map(|p| &p.loss)
            .filter(|l| now.since(l.at()) < LOSS_AGE);
        // In Startup any loss far above the usual one counts. Later only loss that lasts counts,
        // which a burst of losses does not.
        let excess = match self.phase {
            Phase::Startup => lossy.any(UsualLoss::exceeds),
            _ => lossy.any(|l| l.lasts(now)),
        };
        let took = now.since(self.round_at).as_secs_f64();
        let sent = (self.bytes - self.round_bytes) as f64 / took;
        // Where only repairs are sent, nothing tells what arrives but the queue.
        let cap = if cap == f64::MAX { sent } else { cap };
        let (queue, cap) = self.standing(now, f64::from(queue), cap);
        // If nothing was sent for a while, no rate follows from that time.
        let took = took.min(2.0 * ROUND_MAX.as_secs_f64());
        let round = Round {
            now,
            took,
            rate: self.rate,
            sent,
            delivered: cap,
            may_try: self.phase != Phase::Startup && self.drain.is_none(),
        };
        match self.outpacing.end_round(&mut self.paths, round) {
            Next::Pace => self.set(now, queue, cap, excess, sent, took),
            Next::Try(rate) => self.rate = rate,
            // What the trial has measured does not count.
            Next::Again(rate) => (self.rate, self.recent) = (rate, NOTHING),
            Next::Found => (self.phase, self.recent) = (Phase::Startup, NOTHING),
        }
        self.rate = self.rate.clamp(RATE_MIN, RATE_MAX);
        self.quanta.set_rate(self.rate);
        self.round = newest.wrapping_add(1);
        self.round_at = now;
        self.round_bytes = self.bytes;
        for (_, p) in &mut self.paths {
            p.queue_us = None;
        }
        if now.since(self.base_at) > BASE_AGE {
            self.base_at = now;
            for (_, p) in &mut self.paths {
                p.base = [None, p.base[0].or(p.base[1])];
            }
        }
    }

    /// The shortest queue and the largest delivered rate of the last rounds: a late process or
    /// interrupt makes neither a queue nor a slower link.
    fn standing(&mut self, now: Time, queue: f64, cap: f64) -> (f64, f64) {
        self.recent.rotate_right(1);
        self.recent[0] = (now, queue, cap);
        let late = self.recent[1..].iter();
        late.filter(|r| now.since(r.0) < STANDING)
            .fold((queue, cap), |(q, c), r| (q.min(r.1), c.max(r.2)))
    }

    /// The control law: sets the rate from one round's measurements.
    fn set(&mut self, now: Time, queue: f64, cap: f64, excess: bool, sent: f64, took: f64) {
        // The window or the processor holds the sender back: what was sent says nothing about the
        // link.
        let limited = sent < USED * self.rate;
        self.best = (self.best * (1.0 - BEST_FADES * took)).max(cap.min(RATE_MAX));
        self.peak = (self.peak * (1.0 - 0.2 * took)).max(cap.min(self.rate));
        if self.draining(now, queue, cap, limited) {
            return;
        }
        match self.phase {
            Phase::Startup => {
                if queue > QUEUE_LOW_US * 2.0 || excess {
                    self.phase = Phase::Cruise;
                    self.rate = self.rate.min(cap.max(self.rate * 0.25)) * 0.9;
                } else if !limited {
                    self.rate *= 2.0;
                } else if self.rate > (4.0 * sent).max(4.0 * RATE_START) {
                    // The link does not hold the sender back: the rate need not run away.
                    self.phase = Phase::Cruise;
                }
            }
            Phase::Cruise => {
                if queue > QUEUE_HIGH_US || excess {
                    if queue <= QUEUE_HIGH_US {
                        self.note_lowered(now, sent);
                    }
                    let drain = ((queue - QUEUE_AIM_US) / DRAIN_US).clamp(0.02, 0.3);
                    let least = self.fall(now, queue);
                    self.rate = (self.rate.min(cap) * (1.0 - drain)).max(least);
                    self.best = cap;
                    self.up = self.least_up();
                } else if queue > QUEUE_LOW_US {
                    // The best delivered rate counts, not the last measurement alone: a process
                    // that was not running for a moment must not look like a slower link.
                    let want = self.best * (1.0 + (QUEUE_AIM_US - queue) / DRAIN_US);
                    self.rate += (want.min(self.rate * 1.1) - self.rate) * 0.5;
                    self.up = self.least_up();
                } else if !limited {
                    self.up = self.up.max(self.least_up());
                    let known = self.best * (1.0 + self.up);
                    self.rate = self.rate.max(known.min(self.rate * (1.0 + UP_MAX)));
                    self.up = (self.up * 1.5f64.powf(took / STANDING.as_secs_f64())).min(UP_MAX);
                }
                self.notice_competition(queue, cap, took);
            }
            Phase::Compete => self.compete(now, queue, excess, took),
        }
    }

    /// Notes for each receiver whose losses last that the rate is lowered because of them. So far
    /// `sent` bytes per second were sent.
    fn note_lowered(&mut self, now: Time, sent: f64) {
        let lasting = |p: &&mut (u32, ReceiverState)| p.1.counts() && p.1.loss.lasts(now);
        for (_, p) in self.paths.iter_mut().filter(lasting) {
            p.loss.note_lowered(sent);
        }
    }

    /// Share by which the rate begins to probe above what arrives.
    fn least_up(&self) -> f64 {
        if self.rate < FALLEN * self.peak {
            UP_BACK
        } else {
            UP_MIN
        }
    }

    /// The least rate to which the rate may fall: losses without a queue may yet have another
    /// reason.
    fn fall(&mut self, now: Time, queue: f64) -> f64 {
        if queue > QUEUE_HIGH_US {
            return 0.0;
        }
        if self.fell.is_none_or(|(at, _)| now.since(at) > FALL_TIME) {
            self.fell = Some((now, self.rate));
        }
        self.fell.map_or(0.0, |(_, rate)| rate * 0.25)
    }

    /// Drains the queue when it is time to, and learns from the drain whether another flow fills
    /// the queue. Says whether a drain is under way.
    fn draining(&mut self, now: Time, queue: f64, cap: f64, limited: bool) -> bool {
        if let Some((until, least)) = self.drain {
            let least = least.min(queue);
            self.drain = Some((until, least));
            if now < until {
                return true;
            }
            self.drain = None;
            self.rate /= self.drain_share();
            if least < 2.0 * QUEUE_LOW_US {
                // No other flow fills the queue, so this drain has shown the shortest delay. If an
                // earlier delay was a little shorter, that was a clock's mistake.
                for (_, p) in &mut self.paths {
                    p.base = p.drained.map_or(p.base, |b| [Some(b), None]);
                }
                self.phase = Phase::Cruise;
            } else {
                self.enter_compete(least);
            }
            return false;
        }
        let due = *self.drain_at.get_or_insert(now + DRAIN_FIRST);
        if now < due || limited || self.phase == Phase::Startup {
            return false;
        }
        self.drain_at = Some(now + DRAIN_EVERY);
        // At a rate that is lower by a quarter, a queue drains in four times its length.
        let least = Duration::from_micros(queue.min(COMPETE_QUEUE_MAX_US) as u64 * 5);
        self.drain = Some((now + least.max(DRAIN_LEAST), f64::MAX));
        for (_, p) in &mut self.paths {
            p.drained = None;
        }
        self.rate = self.rate.min(cap) * self.drain_share();
        true
    }

    /// Share of the rate that is left in a drain. A pacer that competes has only a share of the
    /// link, so it must give up more.
    fn drain_share(&self) -> f64 {
        if self.phase == Phase::Compete {
            0.5
        } else {
            0.75
        }
    }

    /// Enters Compete if the queue stays although the rate has been below the link's for long
    /// enough.
    fn notice_competition(&mut self, queue: f64, cap: f64, took: f64) {
        if queue <= QUEUE_HIGH_US {
            self.cutting = None;
            return;
        }
        let (from, gone) = match self.cutting {
            Some((from, gone)) if queue <= from => (from, gone),
            _ => (queue, 0.0),
        };
        let gone = gone + (1.0 - self.rate / cap).max(0.0) * took * 1e6;
        self.cutting = Some((from, gone));
        if gone > from + 5_000.0 && queue > from * 0.5 {
            self.rate = cap.min(self.peak * 0.5);
            self.enter_compete(queue);
        }
    }

    /// Enters Compete beside another flow that keeps a queue of `theirs` µs, and aims at as much
    /// again.
    fn enter_compete(&mut self, theirs: f64) {
        self.cutting = None;
        if self.phase != Phase::Compete {
            self.met = false;
            self.quiet = 0;
            self.aim = 0.0;
        }
        self.phase = Phase::Compete;
        let aim = (2.0 * theirs).clamp(QUEUE_AIM_US, COMPETE_QUEUE_MAX_US);
        self.aim = if self.aim == 0.0 {
            aim
        } else {
            0.5 * (self.aim + aim)
        };
    }

    /// Sets the rate beside a flow that fills the queue. The rate rises until the queue is as long
    /// as aimed at or packets are lost: fast at first, then additively. It falls multiplicatively.
    fn compete(&mut self, now: Time, queue: f64, excess: bool, took: f64) {
        self.quiet = if queue < QUEUE_LOW_US {
            self.quiet + 1
        } else {
            0
        };
        if self.quiet > QUIET_ROUNDS {
            self.phase = Phase::Cruise;
        } else if excess {
            self.met = true;
            if now.since(self.cut_at) > Duration::from_millis(200) {
                self.cut_at = now;
                self.rate *= 0.75;
            }
        } else if queue > self.aim {
            self.met = true;
            self.rate *= 1.0 - 0.5 * took;
        } else if self.met {
            self.rate += self.peak * 0.15 * took;
        } else {
            self.rate *= 1.0 + 1.5 * took;
        }
    }
}

#[cfg(test)]
mod tests;
