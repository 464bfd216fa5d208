//! A few receivers may hold the rate of all others down. The pacer notices that, and tries whether
//! the others could take more (spec 2.10).

use core::time::Duration;

use super::receiver::{QUEUE_LOW_US, ReceiverState, USED};
use super::usual_loss::STANDING;
use crate::mutant::{self, Mutant};
use crate::time::Time;

/// Rate of a trial, as a multiple of what has arrived before it.
const TRIAL: f64 = 2.5;
/// What one measurement of a receiver shows that it takes, as a multiple of what it took of late,
/// at most: bursts may arrive together.
const TAKES_MAX: f64 = 2.0;
/// Share of what is sent in a trial above which a receiver takes it.
const TAKEN: f64 = 0.8;
/// Share of what is sent in a trial below which a receiver is outpaced.
const OUTPACED: f64 = 0.5;
/// Longest duration of a trial.
pub(super) const TRIAL_MAX: Duration = Duration::from_millis(300);
/// The pacer looks at who holds the rate over this part of the time for which it may: one in so
/// many.
const LOOK: f64 = 8.0;
/// Share of the time from which a receiver counts as one that holds the rate.
const HOLDS: f64 = 0.5;
/// Share of the time below which it does not any more.
const HOLDS_NOT: f64 = 0.25;
/// Losses are compared in parts of so many.
const PARTS: f64 = 1000.0;
/// Largest loss, as a share of the packets, that is left out of what a receiver takes.
const LOSS_MAX: f64 = 0.95;
/// Trials in vain after which the pause between two trials grows no more.
const VAIN_MAX: u32 = 6;

/// A trial of a higher rate.
#[derive(Clone, Copy, Debug)]
struct Trial {
    began: Time,
    /// Rate before the trial.
    rate: f64,
    /// Since when at least half of the receivers take what is sent.
    taken: Option<Time>,
}

/// Whether receivers may be outpaced, and what the pacer knows about that.
#[derive(Clone, Debug, Default)]
pub(super) struct Outpacing {
    /// How long receivers may hold the rate, at least; `None`: no receiver may be outpaced.
    least: Option<Duration>,
    trial: Option<Trial>,
    /// When the next trial may begin.
    next: Time,
    /// Trials in vain so far.
    vain: u32,
    /// Receivers that have been found and not been told of yet.
    untold: u32,
    /// Space for sorting.
    sorted: Vec<u32>,
}

/// The median of values; `space` is for sorting them.
fn median(values: impl Iterator<Item = u32>, space: &mut Vec<u32>) -> f64 {
    space.clear();
    space.extend(values);
    space.sort_unstable();
    let middle = space.get(space.len().saturating_sub(1) / 2);
    middle.map_or(0.0, |middle| f64::from(*middle))
}

/// The median of the usual losses of receivers, as a share of the packets, at most
/// [`LOSS_MAX`]; `space` is for sorting them.
fn median_loss<'a>(
    paths: impl Iterator<Item = &'a (u32, ReceiverState)>,
    space: &mut Vec<u32>,
) -> f64 {
    let losses = paths.map(|(_, path)| (path.loss.usual() * PARTS) as u32);
    (median(losses, space) / PARTS).min(LOSS_MAX)
}

/// A round of the pacer that ends.
#[derive(Clone, Copy)]
pub(super) struct Round {
    pub(super) now: Time,
    /// Its duration in seconds.
    pub(super) took: f64,
    /// The rate, in bytes per second, like those that follow.
    pub(super) rate: f64,
    /// The rate at which packets left.
    pub(super) sent: f64,
    /// The rate at which packets arrived at the slowest receiver.
    pub(super) delivered: f64,
    /// Whether a trial may begin now.
    pub(super) may_try: bool,
}

impl Round {
    /// Whether the sender has not used its rate.
    fn is_limited(&self) -> bool {
        self.sent < USED * self.rate
    }
}

/// What follows from a round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Next {
    /// The pacer sets the rate.
    Pace,
    /// A trial sets this rate.
    Try(f64),
    /// A trial was in vain, and the rate is this one again.
    Again(f64),
    /// Receivers are outpaced, and the pacer looks for the rate of the others.
    Found,
}

type Paths = [(u32, ReceiverState)];

impl Outpacing {
    /// Whether what left at this time says something of what is tried, or nothing is.
    pub(super) fn covers(&self, left: Time) -> bool {
        self.trial.is_none_or(|trial| trial.began <= left)
    }

    /// Whether a trial is under way.
    pub(super) fn tries(&self) -> bool {
        self.trial.is_some()
    }

    /// Sets whether the group may outpace a receiver, if this has held the rate for the time
    /// `may_hold`.
    pub(super) fn may(&mut self, path: &mut ReceiverState, may_hold: Option<Duration>) {
        self.least = self.least.into_iter().chain(may_hold).min();
        path.may_hold = may_hold;
        path.aside &= may_hold.is_some();
        path.held = None;
    }

    /// A receiver that has been found outpaced since the last call.
    pub(super) fn take(&mut self, paths: &mut Paths) -> Option<usize> {
        self.untold = self.untold.checked_sub(1)?;
        let (member, path) = paths.iter_mut().find(|(_, path)| path.found)?;
        path.found = false;
        Some(*member as usize)
    }

    /// Watches at the end of a round which receivers hold the rate, and tries a higher one if a
    /// few have done so for as long as they may.
    pub(super) fn end_round(&mut self, paths: &mut Paths, round: Round) -> Next {
        let Some(least) = self.least else {
            return Next::Pace;
        };
        if let Some(trial) = self.trial {
            return self.goes_on(paths, round, trial, least);
        }
        let most_lose = self.look(paths, round, least);
        let (mut all, mut few, mut expendable) = (0, 0, true);
        let (mut slowest, mut takes) = (round.delivered, f64::MAX);
        for (_, path) in paths.iter().filter(|p| p.1.counts()) {
            all += 1;
            if path.has_held(round.now, least) {
                few += 1;
                expendable &= path.may_hold.is_some();
                let delivered = path.delivered.unwrap_or(f64::MAX);
                if path.loses_more(most_lose) {
                    // A short queue drops all that is too much. So this receiver takes less than
                    // was delivered, from which its usual loss is left out.
                    let share = (1.0 - path.loss.usual()) / (1.0 - most_lose);
                    slowest = slowest.min(delivered * share);
                    takes = 0.0;
                } else {
                    // The rate may be below what it takes: its queue is being emptied.
                    let most = TAKES_MAX * delivered.min(round.delivered);
                    takes = takes.min(path.arrives.unwrap_or(0.0).min(most));
                }
            }
        }
        if few > 0 {
            slowest = slowest.max(takes);
        }
        let rate = TRIAL * slowest;
        let is_due = few > 0 && 2 * few <= all && expendable && round.now >= self.next;
        // A sender that does not use its rate may yet send as much as the trial does.
        let can_send = !round.is_limited() || rate <= round.sent;
        if !is_due || !can_send || !round.may_try {
            return Next::Pace;
        }
        if mutant::active(Mutant::OutpacesUntried) {
            self.find(paths, round.now, least, |_| true);
            return Next::Found;
        }
        self.trial = Some(Trial {
            began: round.now,
            rate: round.rate,
            taken: None,
        });
        for (_, path) in paths {
            (path.mark, path.delivered, path.arrives) = (None, None, None);
            // One that leaves the path from now on may do so because the trial silences it.
            path.held = path.held.filter(|_| path.counts());
        }
        Next::Try(rate)
    }

    /// Notes which receivers hold the rate: those whose queue is longer than that of most others,
    /// and those that lose far more than usual, or than most others do. Returns the usual loss of
    /// most.
    fn look(&mut self, paths: &mut Paths, round: Round, least: Duration) -> f64 {
        let counted = || paths.iter().filter(|p| p.1.counts());
        let sorted = &mut self.sorted;
        // One that has not reported on this round, which ended without it, has a long queue.
        let queues = counted().map(|p| p.1.queue_us.unwrap_or(u32::MAX));
        let queue_most = median(queues, sorted) + QUEUE_LOW_US;
        let most_lose = median_loss(counted(), sorted);
        for (_, path) in paths.iter_mut().filter(|p| p.1.counts()) {
            let may_hold = path.may_hold.unwrap_or(least).as_secs_f64();
            let learn = (round.took * LOOK / may_hold).min(1.0);
            let queue = path.queue_us.unwrap_or(u32::MAX);
            let loses = path.loss.exceeds() || path.loses_more(most_lose);
            let holds = f64::from(queue) > queue_most || loses;
            path.holds += (f64::from(u8::from(holds)) - path.holds) * learn;
            match path.holds {
                share if share > HOLDS => _ = path.held.get_or_insert(round.now),
                share if share < HOLDS_NOT => path.held = None,
                _ => {}
            }
        }
        most_lose
    }

    /// Goes on with a trial, or ends it.
    fn goes_on(
        &mut self,
        paths: &mut Paths,
        round: Round,
        mut trial: Trial,
        least: Duration,
    ) -> Next {
        let (now, sent) = (round.now, round.sent.min(round.rate));
        let (mut all, mut taken, mut unknown) = (0, 0, false);
        for (_, path) in paths.iter().filter(|p| p.1.counts()) {
            all += 1;
            taken += u32::from(path.delivered.is_some_and(|d| d >= TAKEN * sent));
            unknown |= path.delivered.is_none() && path.has_held(now, least);
        }
        let is_taken = 2 * taken >= all && all > 0 && !round.is_limited();
        trial.taken = trial.taken.or(Some(now)).filter(|_| is_taken);
        self.trial = Some(trial);
        let stands = trial.taken.is_some_and(|t| now.since(t) >= STANDING);
        if (unknown || !stands) && now.since(trial.began) < TRIAL_MAX {
            return Next::Try(round.rate);
        }
        self.trial = None;
        for (_, path) in paths.iter_mut() {
            // What was lost in the trial says nothing about the rate of before.
            path.loss.restart();
        }
        let counted = paths.iter().filter(|p| p.1.counts());
        let fast = OUTPACED * round.rate * (1.0 - median_loss(counted, &mut self.sorted));
        let silent = !mutant::active(Mutant::SilenceTakes);
        let slow = |path: &ReceiverState| path.arrives.map_or(silent, |a| a < fast);
        let may_find = stands && !mutant::active(Mutant::NobodyIsOutpaced);
        if may_find && self.find(paths, now, least, slow) {
            return Next::Found;
        }
        self.next = now + least * (1 << self.vain);
        self.vain = (self.vain + 1).min(VAIN_MAX);
        Next::Again(trial.rate)
    }

    /// Takes receivers for outpaced that have held the rate for as long as they may, and of which
    /// this is true, also if they have left the path in the trial. Their speed does not count from
    /// now on. Returns whether there are any.
    fn find(
        &mut self,
        paths: &mut Paths,
        now: Time,
        least: Duration,
        is_outpaced: impl Fn(&ReceiverState) -> bool,
    ) -> bool {
        let before = self.untold;
        for (_, path) in paths.iter_mut() {
            if path.may_hold.is_some() && path.has_held(now, least) && is_outpaced(path) {
                (path.aside, path.found, path.held) = (true, true, None);
                self.untold += 1;
            }
        }
        self.untold > before
    }
}
