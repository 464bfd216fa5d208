//! What the progress thread is doing, as callers see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabricast_proto::Time;

use crate::communicator::operations::operation::Left;

/// Time without a call after which the progress thread takes over the work from the callers. It is
/// also the longest time between two looks of the thread while copies are left.
pub(crate) const TURN: Duration = Duration::from_millis(1);
/// Longest time between two looks of the thread while callers keep coming and no copies are left.
/// Acknowledgements and repeated words of a barrier can be late by this.
pub(crate) const BUSY_MAX: Duration = Duration::from_millis(4);

/// What the progress thread is doing: how long it sleeps, and whether an arrival ends the sleep.
#[derive(Default)]
pub(crate) struct ProgressState(AtomicU64);

/// Flag of a [`ProgressState`]: an arrival ends the sleep. The other bits are the time at which the
/// thread looks again, in ns of the clock. If all bits are zero, the thread is at work.
const HEARS: u64 = 1 << 63;
const NEVER: u64 = HEARS - 1;

impl ProgressState {
    pub fn works(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    pub fn rests(&self, until: Time) {
        self.0.store(until.0 & NEVER, Ordering::SeqCst);
    }

    pub fn sleeps(&self, until: Option<Time>) {
        let until = until.map_or(NEVER, |at| at.0.min(NEVER));
        self.0.store(HEARS | until, Ordering::SeqCst);
    }

    /// Whether a caller that leaves `left` behind must wake the thread, because the thread would
    /// look too late. Only the first such caller must.
    pub fn is_late(&self, now: Time, left: Left) -> bool {
        let doing = self.0.load(Ordering::SeqCst);
        let (hears, looks_at) = (doing & HEARS != 0, Time(doing & NEVER));
        let at_last = match left {
            Left::Copies => now + TURN,
            Left::Due(due) if hears => due.max(now) + BUSY_MAX,
            Left::Nothing if hears => return false,
            // Other nodes may NACK or probe.
            Left::Due(_) | Left::Nothing => now + BUSY_MAX,
        };
        let late = at_last < looks_at;
        if late {
            self.works();
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    #[test]
    fn who_leaves_something_rings_unless_the_thread_looks_in_time() {
        let due = |at| Left::Due(ms(at));
        type Set = fn(&ProgressState);
        let cases: [(Set, Left, bool); 13] = [
            (|d| d.works(), Left::Copies, false),
            (|d| d.rests(ms(101)), Left::Copies, false),
            (|d| d.rests(ms(102)), Left::Copies, true),
            (|d| d.rests(ms(104)), due(101), false),
            (|d| d.rests(ms(105)), due(101), true),
            (|d| d.rests(ms(104)), Left::Nothing, false),
            (|d| d.rests(ms(150)), Left::Nothing, true),
            (|d| d.sleeps(Some(ms(102))), Left::Copies, true),
            (|d| d.sleeps(Some(ms(105))), due(101), false),
            (|d| d.sleeps(Some(ms(106))), due(101), true),
            (|d| d.sleeps(None), due(1_000), true),
            (|d| d.sleeps(Some(ms(150))), due(200), false),
            (|d| d.sleeps(None), Left::Nothing, false),
        ];
        for (i, (set, left, late)) in cases.into_iter().enumerate() {
            let doing = ProgressState::default();
            set(&doing);
            assert_eq!(doing.is_late(ms(100), left), late, "case {i}");
            assert!(!late || !doing.is_late(ms(100), left), "it was rung for");
        }
    }
}
