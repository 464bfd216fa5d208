//! What the sender does with receivers that keep the others waiting.

use std::time::{Duration, Instant};

use super::events::Part;
use super::receiver_table::{Member, Stage, Wait};
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

/// When all packs of the stream had been announced.
#[derive(Clone, Copy, Debug)]
pub struct Streamed {
    /// That time.
    pub at: Instant,
    /// How long the stream took.
    pub lasted: Duration,
}

/// How long a receiver may catch up after the stream, if `receivers` do so.
fn catch_up_limit(patience: Duration, streamed: Streamed, receivers: u32) -> Duration {
    let standstill = patience.saturating_mul(STANDSTILL);
    let stream = streamed.lasted.saturating_mul(CATCH_UP);
    standstill.saturating_add(stream.saturating_mul(receivers))
}

/// Why the sender removes a receiver that catches up, if it does: the receiver has got on all the
/// time, and takes too long. `receivers`: how many catch up.
pub fn trickles(
    member: &Member,
    options: &SendOptions,
    now: Instant,
    streamed: Streamed,
    receivers: u32,
) -> Option<String> {
    let rule = options.slow_rule(&member.name);
    let catches_up = member.part != Part::Whole && member.stage == Stage::Receiving;
    let limit = catch_up_limit(options.patience, streamed, receivers);
    // A late receiver has come since then.
    let since = streamed.at.max(member.since);
    let is_over = now.saturating_duration_since(since) > limit;
    (matches!(rule, Slow::Demote | Slow::Drop) && catches_up && is_over).then(|| {
        format!(
            "too slow: it has not caught up within {} (six times {PATIENCE}, and twenty times as \
             long as the others took for each receiver that catches up; {SLOW} wait would wait \
             for it)",
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
            "nothing was heard of it for {} (three times {PATIENCE}; {SLOW} wait would wait for \
             it)",
            spoken(limit)
        ));
    }
    let times = match member.stage {
        Stage::Joining => SILENCE,
        _ => STANDSTILL,
    };
    let mut waits = waits.filter(|w| w.exceeds(times));
    let Wait { what, limit, .. } = waits.next()?;
    Some(format!(
        "too slow: {what} for {}, {times} times as long as it may ({SLOW} wait would wait for it)",
        spoken(limit.saturating_mul(times))
    ))
}

/// Why the sender removes a receiver with [`Slow::Drop`].
pub fn too_slow(wait: &Wait) -> String {
    let (what, limit) = (wait.what, spoken(wait.limit));
    format!("too slow: {what} for {limit} ({PATIENCE}) and {SLOW} is drop")
}

#[cfg(test)]
mod tests {
    use super::super::receiver_table::testing::receiving;
    use super::*;

    const S: Duration = Duration::from_secs(1);

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
        let streamed = Streamed {
            at: member.since + 100 * S,
            lasted: 10 * S,
        };
        let after = |member: &Member, options: &SendOptions, seconds: u32, receivers: u32| {
            let now = streamed.at + seconds * S;
            let mut member = member.clone();
            member.heard = now;
            trickles(&member, options, now, streamed, receivers)
        };
        assert_eq!(after(&member, &options, 10_000, 1), None, "it is whole");
        for part in [Part::Demoted, Part::Late] {
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
        for rule in [Slow::Wait, Slow::Alive] {
            options.slow = rule;
            assert_eq!(after(&member, &options, 10_000, 1), None);
        }
    }
}
