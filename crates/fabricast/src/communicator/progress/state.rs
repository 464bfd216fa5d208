//! What the progress thread does, as callers see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabricast_proto::Time;

use crate::communicator::operations::operation::Left;

/// Callers do the work while they come and go. When no caller has come for this long, the progress
/// thread works as soon as it looks. It looks this often while copies are left.
pub(crate) const TURN: Duration = Duration::from_millis(1);
/// Longest time between two looks of the thread while callers keep coming and no copies are left.
/// Acknowledgements and repeated words of a barrier can be late by this.
pub(crate) const BUSY_MAX: Duration = Duration::from_millis(4);

/// What the thread does, as callers see it: for how long it sleeps, and whether what arrives ends
/// that.
#[derive(Default)]
pub(crate) struct ProgressState(AtomicU64);

/// In a [`ProgressState`] of which the rest is the time at which it looks again, in ns of the
/// clock. All zeros: it is at work.
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

    /// Whether a caller that leaves this behind must ring, for the thread would look too late. Only
    /// the first one must.
    pub fn is_late(&self, now: Time, left: Left) -> bool {
        let doing = self.0.load(Ordering::SeqCst);
        let (hears, looks_at) = (doing & HEARS != 0, Time(doing & NEVER));
        let at_last = match left {
            Left::Copies => now + TURN,
            Left::Due(due) if hears => due.max(now) + BUSY_MAX,
            Left::Nothing if hears => return false,
            // Others may ask for something.
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
