//! What the sender does with receivers that keep the others waiting.

use std::time::Instant;

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
