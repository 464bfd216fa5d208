//! What a late receiver fetches must not slow the stream, for which all receivers would pay: their
//! sender goes as fast as the slowest takes it (spec 5.15).
//!
//! So the receiver compares how fast the stream arrives while something is fetched with how fast it
//! arrives while nothing is. Where fetching is in the way, it pauses.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the stream is watched, at least, before it is judged.
const WATCH: Duration = Duration::from_millis(100);
/// How long what arrives says nothing after fetching has begun.
const SETTLE: Duration = Duration::from_millis(50);
/// How long things are fetched, at most, until the stream is watched without that.
const TURN: Duration = Duration::from_secs(2);
/// The shortest time after which the state is looked at again.
const STEP: Duration = Duration::from_millis(10);
/// Of a stream that is not slowed at least this share arrives while things are fetched.
const SHARE: f64 = 0.8;
/// A pause is so many times as long as things were fetched before it, and twice as long as the
/// pause before.
const PAUSE: u32 = 50;
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// What is left of the speed of a stream when it was watched again and was slower.
const FADE: f64 = 0.9;

/// What is going on. When fetching begins or ends, a queue on the way fills or empties: for a
/// moment what arrives says nothing about the speed of the stream.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Nothing is fetched for so long.
    Pause(Duration),
    /// Nothing is fetched, and the stream is watched.
    Quiet,
    /// Things begin to be fetched.
    Begun,
    /// Things are fetched, since this time, and the stream is watched.
    Busy(Instant),
}

/// The state, as a function of time and of what has arrived.
#[derive(Debug)]
struct State {
    phase: Phase,
    /// Since when the phase lasts or the stream is watched, and what had arrived by then.
    since: Option<(Instant, u64)>,
    /// The speed of the stream while nothing was fetched, in packets per second.
    quiet: f64,
    /// The last pause because fetching was in the way.
    pause: Duration,
}

impl State {
    /// Whether something may be fetched now, when `packets` of the stream have arrived; else how
    /// long to wait before this is asked again.
    fn step(&mut self, now: Instant, packets: u64) -> Option<Duration> {
        let (since, before) = *self.since.get_or_insert((now, packets));
        let lasted = now - since;
        let least = match self.phase {
            Phase::Pause(pause) => pause,
            Phase::Begun => SETTLE,
            Phase::Quiet | Phase::Busy(_) => WATCH,
        };
        if lasted >= least {
            let speed = (packets - before) as f64 / lasted.as_secs_f64().max(1e-9);
            self.since = Some((now, packets));
            self.phase = self.next(now, lasted, speed);
        }
        match self.phase {
            Phase::Pause(_) | Phase::Quiet => Some(least.saturating_sub(lasted).max(STEP)),
            Phase::Begun | Phase::Busy(_) => None,
        }
    }

    /// The phase after the present one, which has `lasted` so long while the stream had this
    /// `speed`.
    fn next(&mut self, now: Instant, lasted: Duration, speed: f64) -> Phase {
        match self.phase {
            Phase::Pause(_) => Phase::Quiet,
            Phase::Quiet => {
                self.quiet = speed.max(self.quiet * FADE);
                Phase::Begun
            }
            Phase::Begun => Phase::Busy(now),
            Phase::Busy(_) if speed < SHARE * self.quiet => {
                self.pause = (self.pause * 2).max(lasted * PAUSE).min(PAUSE_MAX);
                Phase::Pause(self.pause)
            }
            Phase::Busy(begun) => {
                self.pause = Duration::ZERO;
                match now - begun < TURN {
                    true => Phase::Busy(begun),
                    false => Phase::Pause(WATCH),
                }
            }
        }
    }
}

/// Says when something may be fetched. All connections of a receiver share it.
#[derive(Debug)]
pub struct Throttle {
    packets: AtomicU64,
    state: Mutex<State>,
}

impl Default for Throttle {
    fn default() -> Throttle {
        Throttle {
            packets: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Quiet,
                since: None,
                quiet: 0.0,
                pause: Duration::ZERO,
            }),
        }
    }
}

impl Throttle {
    /// Notes how many packets of the stream have arrived.
    pub fn arrived(&self, packets: u64) {
        self.packets.store(packets, Ordering::Relaxed);
    }

    /// Whether something may be fetched now; else how long to wait before this is asked again.
    pub fn wait(&self) -> Option<Duration> {
        let packets = self.packets.load(Ordering::Relaxed);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.step(Instant::now(), packets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Fetches as often as the throttle lets it, for so many milliseconds, while `speed` packets of
    /// the stream arrive in a millisecond when nothing is fetched, and `busy` of them otherwise.
    /// Returns the share of the time in which something is fetched.
    fn share(milliseconds: u32, speed: u64, busy: u64) -> f64 {
        let throttle = Throttle::default();
        let mut state = throttle.state.into_inner().unwrap();
        let begin = Instant::now();
        let (mut packets, mut fetched) = (0, 0);
        for ms in 0..milliseconds {
            let may = state.step(begin + ms * MS, packets).is_none();
            packets += if may { busy } else { speed };
            fetched += u32::from(may);
        }
        f64::from(fetched) / f64::from(milliseconds)
    }

    #[test]
    fn what_is_not_in_the_way_goes_on() {
        // It is watched without anything for a tenth of the time.
        assert!(share(20_000, 10, 10) > 0.85);
        assert!(share(20_000, 100, 95) > 0.85);
        // Nothing comes.
        assert!(share(20_000, 0, 0) > 0.85);
    }

    #[test]
    fn what_is_in_the_way_costs_the_stream_little() {
        let fetched = share(60_000, 10, 5);
        assert!((0.01..0.05).contains(&fetched), "{fetched}");
    }

    /// Whatever made the stream slower, it is not taken for the fetching for ever.
    #[test]
    fn a_stream_that_becomes_slower_is_noticed() {
        let throttle = Throttle::default();
        let mut state = throttle.state.into_inner().unwrap();
        let begin = Instant::now();
        let (mut packets, mut fetched) = (0, 0);
        for ms in 0..120_000 {
            let may = state.step(begin + ms * MS, packets).is_none();
            packets += if ms < 5000 { 10 } else { 5 };
            fetched += u32::from(may && ms >= 100_000);
        }
        assert!(fetched > 17_000, "{fetched}");
    }
}
