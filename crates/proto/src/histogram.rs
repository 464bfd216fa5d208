//! A histogram of durations, of fixed size.

use core::time::Duration;

/// Buckets of an octave.
const PARTS: u32 = 8;
/// Octaves from 1 µs: the last bucket holds everything from 2^23 µs (8 s) on.
const OCTAVES: u32 = 24;

/// Counts of times, in buckets an eighth of an octave wide, and their sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    buckets: [u32; (PARTS * OCTAVES) as usize],
    total: Duration,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: [0; (PARTS * OCTAVES) as usize],
            total: Duration::ZERO,
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn note(&mut self, wait: Duration) {
        let us = wait.as_micros().clamp(1, u128::from(u32::MAX)) as u32;
        let octave = us.ilog2();
        // The three bits after the highest one.
        let part = match octave {
            0..3 => (us << (3 - octave)) & 7,
            _ => us >> (octave - 3) & 7,
        };
        let at = (octave * PARTS + part).min(PARTS * OCTAVES - 1);
        self.buckets[at as usize] = self.buckets[at as usize].saturating_add(1);
        self.total = self.total.saturating_add(wait);
    }

    /// Number of durations that were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|&n| u64::from(n)).sum()
    }

    /// Sum of the durations.
    pub fn total(&self) -> Duration {
        self.total
    }

    /// A duration that this share of all did not exceed. It is the upper end of its bucket, at most
    /// an eighth too long (below 8 µs: 1 µs). `None` if nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let wanted = (share.clamp(0.0, 1.0) * self.count() as f64)
            .ceil()
            .max(1.0) as u64;
        let mut seen = 0;
        for (at, &n) in (0u32..).zip(&self.buckets) {
            seen += u64::from(n);
            if seen >= wanted {
                let (octave, part) = (at / PARTS, at % PARTS);
                let us = ((u64::from(PARTS + part + 1)) << octave).div_ceil(u64::from(PARTS));
                return Some(Duration::from_micros(us));
            }
        }
        None
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Histogram) {
        for (n, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *n = n.saturating_add(*more);
        }
        self.total = self.total.saturating_add(other.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_quantile_is_just_above_the_true_one(
            mut us in proptest::collection::vec(1u64..8_000_000, 1..200),
            share in 0.0f64..1.0,
        ) {
            let mut waits = Histogram::default();
            us.iter().for_each(|&n| waits.note(Duration::from_micros(n)));
            us.sort_unstable();
            let at = ((share * us.len() as f64).ceil() as usize).max(1) - 1;
            let (true_us, said) = (us[at], waits.quantile(share).unwrap().as_micros() as u64);
            prop_assert!(said >= true_us && said <= true_us * 9 / 8 + 1, "{true_us} {said}");
            prop_assert_eq!(waits.count(), us.len() as u64);
        }
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        let mut both = Histogram::default();
        both.note(Duration::from_secs(3600));
        both.add(&both.clone());
        assert_eq!(both.count(), 2);
    }
}
