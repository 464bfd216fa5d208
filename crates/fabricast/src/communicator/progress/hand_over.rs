//! The hand-over of work between callers and the progress thread, and when a caller wakes the
//! thread.
//!
//! ```text
//!   caller   blocks ──► steps the engine ──► returns, and leaves work ─┐
//!                                                                      │ wakes it, if it
//!   thread   works ──► looks ──► rests (callers work) ─────────────────┤ would look too late
//!                          └───► sleeps (no caller; arrivals wake it) ─┘
//! ```
//! A caller that returns says what it leaves, and then looks what the thread is doing. The thread
//! says what it is going to do, and then looks whether a caller has returned, or takes its last
//! step under the lock under which callers return. So at least one of them sees the other.

use std::time::Duration;

use fabricast_proto::Time;

use super::Left;
use super::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

/// Time without a call after which the progress thread takes over the work from the callers. It is
/// also the longest time between two looks of the thread while copies are left.
pub(crate) const TURN: Duration = Duration::from_millis(1);
/// Longest time between two looks of the thread while callers keep coming and no copies are left.
/// Acknowledgements and repeated words of a barrier can be late by this.
pub(crate) const BUSY_MAX: Duration = Duration::from_millis(4);

/// What callers and the progress thread know of each other.
#[derive(Default)]
pub(crate) struct HandOver {
    /// Number of callers that block.
    inside: AtomicUsize,
    /// When a caller last returned, in ns of the clock.
    returned: AtomicU64,
    /// That caller left copies behind, which receivers may NACK at any time.
    copies: AtomicBool,
    /// A caller has left a broadcast that waits to be coalesced with the next ones.
    hurry: AtomicBool,
    /// What the thread is doing ([`Doing`]).
    doing: AtomicU64,
}

/// What the progress thread is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    /// It looks, or will at once.
    Works,
    /// It looks again at this time, whatever arrives.
    Rests(Time),
    /// It looks again when something arrives, or at this time.
    Sleeps(Time),
}

/// Flag of [`Doing::Sleeps`]. The other bits are the time, in ns of the clock. [`Doing::Works`] is
/// zero.
const HEARS: u64 = 1 << 63;
/// A time that never comes.
const NEVER: u64 = HEARS - 1;

impl Doing {
    fn bits(self) -> u64 {
        match self {
            Doing::Works => 0,
            Doing::Rests(until) => until.0 & NEVER,
            Doing::Sleeps(until) => HEARS | until.0 & NEVER,
        }
    }

    fn of(bits: u64) -> Doing {
        match bits {
            0 => Doing::Works,
            _ if bits & HEARS == 0 => Doing::Rests(Time(bits)),
            _ => Doing::Sleeps(Time(bits & NEVER)),
        }
    }

    /// Whether the thread looks too late for a caller that leaves `left` behind.
    fn is_late(self, now: Time, left: Left) -> bool {
        let (looks_at, hears) = match self {
            Doing::Works => return false,
            Doing::Rests(until) => (until, false),
            Doing::Sleeps(until) => (until, true),
        };
        let at_last = match left {
            Left::Copies => now + TURN,
            Left::Due(due) if hears => due.max(now) + BUSY_MAX,
            Left::Nothing if hears => return false,
            // Other nodes may NACK or probe.
            Left::Due(_) | Left::Nothing => now + BUSY_MAX,
        };
        at_last < looks_at
    }
}

/// What the progress thread has seen of the callers when it looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// A caller blocks.
    pub inside: bool,
    /// When a caller last returned.
    pub returned: Time,
    /// The caller that returned last left copies behind.
    pub copies: bool,
}

/// The callers' side.
impl HandOver {
    /// Takes note that a caller begins to block.
    pub fn enters(&self) {
        self.inside.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes note that a caller blocks no more.
    pub fn leaves(&self) {
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes note that a caller returns and leaves `left` behind, and with `gathers` a broadcast
    /// that waits to be coalesced. Returns whether the caller must wake the thread, because the
    /// thread would look too late. Only the first such caller must.
    pub fn returns(&self, now: Time, left: Left, gathers: bool) -> bool {
        self.copies.store(left == Left::Copies, Ordering::Release);
        self.returned.store(now.0, Ordering::Release);
        let hurry = gathers && !self.hurry.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let doing = Doing::of(self.doing.load(Ordering::Acquire));
        let late = doing.is_late(now, left);
        if late {
            self.does(Doing::Works);
        }
        hurry || late
    }
}

/// The progress thread's side.
impl HandOver {
    /// Takes note that the thread looks.
    pub fn works(&self) {
        self.does(Doing::Works);
    }

    /// What the callers do.
    pub fn look(&self) -> Seen {
        let inside = self.inside.load(Ordering::Acquire) > 0;
        let returned = Time(self.returned.load(Ordering::Acquire));
        let copies = self.copies.load(Ordering::Acquire);
        Seen {
            inside,
            returned,
            copies,
        }
    }

    /// Takes note that the thread is going to rest until then, whatever arrives. Returns whether a
    /// caller has returned since the thread has `seen` the callers: that caller may not know how
    /// long the thread rests.
    pub fn rests(&self, until: Time, seen: Seen) -> bool {
        self.does(Doing::Rests(until));
        fence(Ordering::SeqCst);
        self.returned.load(Ordering::Acquire) != seen.returned.0
    }

    /// Takes a step under the callers' lock, and takes note that the thread is going to sleep until
    /// something arrives, or until the time that `wake` finds in what the step returns. A caller
    /// that returns before that time is known wakes the thread: the step may not have seen what it
    /// leaves.
    pub fn sleeps<T>(&self, step: impl FnOnce() -> T, wake: impl FnOnce(&T) -> Option<Time>) -> T {
        self.does(Doing::Sleeps(Time(NEVER)));
        let stepped = step();
        let until = wake(&stepped).map_or(NEVER, |at| at.0.min(NEVER));
        self.does(Doing::Sleeps(Time(until)));
        stepped
    }

    /// Whether a broadcast waits to be coalesced.
    pub fn is_hurried(&self) -> bool {
        self.hurry.load(Ordering::Acquire)
    }

    /// Takes note that no broadcast waits, if no caller has returned for a while.
    pub fn calms_down(&self, now: Time) {
        if now.since(self.look().returned) >= TURN {
            self.hurry.store(false, Ordering::Release);
        }
    }

    fn does(&self, doing: Doing) {
        self.doing.store(doing.bits(), Ordering::Release);
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
        let (rests, sleeps) = (|n| Doing::Rests(ms(n)), |n| Doing::Sleeps(ms(n)));
        let for_ever = Doing::Sleeps(Time(NEVER));
        let cases = [
            (Doing::Works, Left::Copies, false),
            (rests(101), Left::Copies, false),
            (rests(102), Left::Copies, true),
            (rests(104), due(101), false),
            (rests(105), due(101), true),
            (rests(104), Left::Nothing, false),
            (rests(150), Left::Nothing, true),
            (sleeps(102), Left::Copies, true),
            (sleeps(105), due(101), false),
            (sleeps(106), due(101), true),
            (for_ever, due(1_000), true),
            (sleeps(150), due(200), false),
            (for_ever, Left::Nothing, false),
        ];
        for (doing, left, late) in cases {
            assert_eq!(doing.is_late(ms(100), left), late, "{doing:?}, {left:?}");
            assert_eq!(Doing::of(doing.bits()), doing);
        }
    }
}
