//! What the sender does with receivers that keep the others waiting.

use std::time::{Duration, Instant};

use super::receiver_table::{Member, Stage};
use super::waits::{PATIENCE_STORING, Wait};
use crate::config::{SendOptions, Slow};
use crate::setting::{PATIENCE, SLOW};
use crate::text::spoken;

/// With [`Slow::Alive`], the sender removes a slow receiver that is silent for this many times the
/// patience. It also removes a receiver that has not joined by then, whatever that receiver sends.
const SILENCE: u32 = 3;
/// With [`Slow::Alive`], the sender removes a slow receiver that sends feedback but makes no
/// progress for this many times what [`Slow::Drop`] grants. Otherwise it would hold up all others
/// for ever.
const STANDSTILL: u32 = 6;

/// With [`Slow::Demote`] and [`Slow::Drop`], a receiver may catch up for this many times as long as
/// the stream took, times the number of receivers that catch up: each of them may lack other packs.
/// One with a twentieth of the others' speed has everything by then.
const CATCH_UP: u32 = 20;

impl Member {
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
        let stands = |since| Wait::new(Wait::STANDS, now.duration_since(since), patience);
        let told = match (&self.stage, joining, self.complete) {
            (Stage::Joining, Some(since), _) => [Some(stands(since)), None, None],
            (Stage::Storing(work), ..) => {
                let total = total.unwrap_or(u64::MAX);
                work.waits(now, patience, total).map(Some)
            }
            (Stage::Receiving, _, Some(complete)) => {
                let wait = stands(complete).at_least(PATIENCE_STORING);
                [Some(wait), None, None]
            }
            _ => [None; 3],
        };
        let proving = self.unproven.map(stands);
        let proving = proving.map(|wait| wait.at_least(PATIENCE_STORING));
        let saying = self.missed.awaited_since().map(stands);
        let comparing = self.has_to_compare_since().map(stands);
        let all = std::iter::once(placing).chain(told.into_iter().flatten());
        all.chain(proving).chain(saying).chain(comparing)
    }
}

/// When those that are not behind were done: when all packs of the stream had been announced, or
/// when half of the receivers were complete.
#[derive(Clone, Copy, Debug)]
pub struct OthersDone {
    /// That time.
    pub at: Instant,
    /// How long it was from the start.
    pub lasted: Duration,
}

impl OthersDone {
    /// The same, but it took as long as this, if it took less.
    pub fn at_least(self, lasted: Duration) -> OthersDone {
        let lasted = self.lasted.max(lasted);
        OthersDone { lasted, ..self }
    }
}

/// When half of these receivers were complete, and how long that took since `start`; `None` if they
/// are not. For a receiver that is neither demoted nor late this takes the place of the end of the
/// stream, which all receivers of a small set hear at once.
pub fn half_complete(members: &[Member], start: Instant) -> Option<OthersDone> {
    // Its last word says that it is complete.
    let complete = || members.iter().filter(|m| m.is_complete()).map(|m| m.heard);
    let half = members.len().div_ceil(2).checked_sub(1)?;
    if half >= complete().count() {
        return None;
    }
    let mut complete: Vec<Instant> = complete().collect();
    let (_, &mut at, _) = complete.select_nth_unstable(half);
    let lasted = at.duration_since(start);
    Some(OthersDone { at, lasted })
}

/// How long a receiver may be behind after the others were done, if `receivers` catch up.
fn catch_up_limit(patience: Duration, others: OthersDone, receivers: u32) -> Duration {
    let standstill = patience.saturating_mul(STANDSTILL);
    let lasted = others.lasted.saturating_mul(CATCH_UP);
    standstill.saturating_add(lasted.saturating_mul(receivers))
}

/// Why the sender removes a receiver that is behind, if it does: the receiver has got on all the
/// time, and takes too long. `receivers`: how many catch up.
pub fn trickles(
    member: &Member,
    options: &SendOptions,
    now: Instant,
    others: OthersDone,
    receivers: u32,
) -> Option<String> {
    let rule = options.slow_rule(&member.name);
    let is_behind = member.stage == Stage::Receiving;
    let limit = catch_up_limit(options.patience, others, receivers);
    // A late receiver has come since then.
    let since = others.at.max(member.since);
    let is_over = now.saturating_duration_since(since) > limit;
    (matches!(rule, Slow::Demote | Slow::Drop) && is_behind && is_over).then(|| {
        format!(
            "too slow: it has not caught up within {} ({STANDSTILL} times {PATIENCE}, and \
             {CATCH_UP} times as long as the others took for each receiver that catches up; \
             {SLOW} wait would wait for it)",
            spoken(limit)
        )
    })
}

/// Why the sender removes a slow receiver with [`Slow::Alive`], or one that is slow again with
/// [`Slow::Demote`], if it does: it was silent for long,
/// or it made no progress for longer. `waits`: how long the sender has waited for it.
pub fn eviction(
    member: &Member,
    options: &SendOptions,
    now: Instant,
    waits: impl Iterator<Item = Wait>,
) -> Option<String> {
    let rule = options.slow_rule(&member.name);
    let may_evict = matches!(rule, Slow::Alive | Slow::Demote);
    if !may_evict || !member.active() || !member.slow {
        return None;
    }
    let limit = options.patience.saturating_mul(SILENCE);
    if now.saturating_duration_since(member.heard) > limit {
        return Some(format!(
            "nothing was heard of it for {} ({SILENCE} times {PATIENCE}; {SLOW} wait would wait \
             for it)",
            spoken(limit)
        ));
    }
    let times = match member.stage {
        Stage::Joining => SILENCE,
        _ => STANDSTILL,
    };
    let mut waits = waits.filter(|w| w.exceeds(times));
    let wait = waits.next()?;
    let (what, bound) = (wait.what, spoken(wait.bound(times)));
    Some(format!(
        "too slow: {what} for {bound} ({times} times {PATIENCE} or more; {SLOW} wait would wait \
         for it)"
    ))
}

/// Why the sender removes a receiver with [`Slow::Drop`].
pub fn too_slow(wait: &Wait) -> String {
    let (what, limit) = (wait.what, spoken(wait.bound(1)));
    format!("too slow: {what} for {limit} ({PATIENCE} or more) and {SLOW} is drop")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::events::{Part, State};
    use crate::transfer::sender::receiver_table::testing::receiving;

    const S: Duration = Duration::from_secs(1);

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
    fn half_are_complete_when_the_middle_one_is() {
        let start = Instant::now();
        let over = |state, seconds: u32| {
            let mut member = receiving();
            member.heard = start + seconds * S;
            // So it is if the sender was stopped.
            let seconds = f64::from(seconds) + 1000.0;
            member.stage = Stage::Over {
                state,
                reason: None,
                seconds,
            };
            member
        };
        let mut members = vec![receiving(), over(State::Verified, 7), receiving()];
        assert!(half_complete(&members, start).is_none());
        assert!(half_complete(&[], start).is_none());
        members[0] = over(State::Lost, 1);
        assert!(half_complete(&members, start).is_none());
        members.push(over(State::Received, 3));
        let half = half_complete(&members, start).unwrap();
        assert_eq!((half.at, half.lasted), (start + 7 * S, 7 * S));
    }

    /// One that gets on for ever is given up, however often it says something. It has time for as
    /// many receivers as catch up.
    #[test]
    fn one_that_trickles_is_given_up() {
        let mut options = SendOptions {
            patience: 2 * S,
            slow: Slow::Demote,
            ..SendOptions::default()
        };
        let mut member = receiving();
        let streamed = OthersDone {
            at: member.since + 100 * S,
            lasted: 10 * S,
        };
        let after = |member: &Member, options: &SendOptions, seconds: u32, receivers: u32| {
            let now = streamed.at + seconds * S;
            let mut member = member.clone();
            member.heard = now;
            trickles(&member, options, now, streamed, receivers)
        };
        for part in [Part::Whole, Part::Demoted, Part::Late] {
            member.part = part;
            assert_eq!(after(&member, &options, 212, 1), None);
            let reason = after(&member, &options, 213, 1).unwrap();
            assert!(reason.contains("not caught up within 3 min"), "{reason}");
            assert_eq!(after(&member, &options, 412, 2), None);
            assert!(after(&member, &options, 413, 2).is_some());
        }
        // One that has come since then has as much time from then on.
        member.since = streamed.at + 50 * S;
        assert_eq!(after(&member, &options, 262, 1), None);
        assert!(after(&member, &options, 263, 1).is_some());
        // Those that have only compared say nothing of how long it takes to send the set.
        member.since = streamed.at;
        for (sent, seconds) in [(5, 212), (30, 612)] {
            let (at, others) = (streamed.at + seconds * S, streamed.at_least(sent * S));
            assert_eq!(trickles(&member, &options, at, others, 1), None);
            assert!(trickles(&member, &options, at + S, others, 1).is_some());
        }
        for rule in [Slow::Wait, Slow::Alive] {
            options.slow = rule;
            assert_eq!(after(&member, &options, 10_000, 1), None);
        }
    }
}
