//! What is true of a receiver most of the time, however often it is not.

use std::time::Duration;

/// How much longer something was true than not.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug, Default)]
pub struct Balance(Duration);

impl Balance {
    /// Counts a time that has passed, in which it was true or not. Returns how much longer it was
    /// true than not. What is true for half of the time is forgiven.
    pub fn count(&mut self, passed: Duration, is_true: bool) -> Duration {
        self.0 = match is_true {
            true => self.0 + passed,
            false => self.0.saturating_sub(passed),
        };
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    /// A receiver that holds the others up for less than half of the time may go on for ever.
    #[test]
    fn what_is_true_most_of_the_time_is_known_by_the_time() {
        let mut balance = Balance::default();
        for _ in 0..1000 {
            assert!(balance.count(S, true) <= S && balance.count(S, false).is_zero());
        }
        balance.count(S, false);
        for second in 1..10 {
            assert_eq!(balance.count(2 * S, true), (second + 1) * S);
            assert_eq!(balance.count(S, false), second * S);
        }
    }
}
