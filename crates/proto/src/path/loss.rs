//! The packet loss of late on the way to a receiver, counted in new packets: by the receiver
//! itself, and by its sender from the receiver's feedback.
//!
//! Only the number of *tries* follows from it, the mean number of transmissions until one arrives.
//! A receiver that loses half of the packets needs two. Below a loss of a third the number is one,
//! and nothing changes: receivers NACK occasional losses as they are. Above a third each side
//! repeats what it says, because questions and answers are lost like data.

/// Number of packets sent at which both counts are halved, so that old packets are forgotten.
const MEMORY: u32 = 128;
/// Least number of packets sent from which a loss is known.
const LEAST: u32 = 32;
/// Largest number of packets that one report, or one hole, counts for: a queue that overflows once
/// does not make a lossy path.
const STEP: u32 = 32;
/// Largest number of tries.
const TRIES_MAX: u32 = 16;

/// The packets that were sent of late, and those of them that have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    sent: u32,
    arrived: u32,
}

impl Losses {
    /// Notes that `sent` more packets were sent, and that `arrived` of them, or of those before,
    /// have arrived.
    pub fn note(&mut self, sent: u32, arrived: u32) {
        let (sent, arrived) = match sent > STEP {
            true => {
                let share = u64::from(arrived) * u64::from(STEP);
                (STEP, share.div_ceil(u64::from(sent)) as u32)
            }
            false => (sent, arrived),
        };
        self.sent += sent;
        self.arrived = (self.arrived + arrived).min(self.sent);
        if self.sent >= MEMORY {
            (self.sent, self.arrived) = (self.sent / 2, self.arrived.div_ceil(2));
        }
    }

    /// Notes that a packet that was counted as arrived has not.
    pub fn lost(&mut self) {
        self.arrived = self.arrived.saturating_sub(1);
    }

    /// Whether enough has been sent to tell.
    pub fn is_known(&self) -> bool {
        self.sent >= LEAST
    }

    /// The number of tries: how often a packet is sent, on average, until it arrives.
    pub fn tries(&self) -> u32 {
        // As a rule all, or nearly all, packets arrive. Where nothing arrives, more tries do not
        // help.
        let arrived = self.arrived;
        if !self.is_known() || arrived * 3 >= self.sent * 2 || arrived == 0 {
            return 1;
        }
        ((self.sent + arrived / 2) / arrived).min(TRIES_MAX)
    }

    /// How often a packet is sent, on average, until it arrives: 1.0 as long as nobody knows, and
    /// infinite if nothing arrives.
    pub fn transmissions(&self) -> f64 {
        match self.is_known() {
            true => f64::from(self.sent) / f64::from(self.arrived),
            false => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn after(loss: f64, packets: u32) -> Losses {
        let (mut losses, mut rng) = (Losses::default(), Rng::new(1));
        for _ in 0..packets {
            losses.note(1, u32::from(!rng.chance(loss)));
        }
        losses
    }

    #[test]
    fn tries_follow_from_what_is_lost() {
        for (loss, tries) in [
            (0.0, 1..=1),
            (0.05, 1..=1),
            (0.2, 1..=1),
            (0.5, 2..=2),
            (0.7, 2..=5),
            (0.8, 4..=8),
            (0.9, 6..=16),
            (1.0, 1..=1),
        ] {
            for packets in [500, 1000, 5000] {
                let found = after(loss, packets).tries();
                assert!(tries.contains(&found), "{loss}: {found}");
            }
        }
    }

    #[test]
    fn transmissions_are_those_that_were_made() {
        assert_eq!(after(0.0, 10).transmissions(), 1.0);
        assert_eq!(after(1.0, 1000).transmissions(), f64::INFINITY);
        let found = after(0.75, 5000).transmissions();
        assert!((2.5..6.5).contains(&found), "{found}");
        let mut losses = after(0.0, 100);
        (0..50).for_each(|_| losses.lost());
        assert_eq!(losses.transmissions(), 2.0);
    }

    #[test]
    fn little_says_nothing_and_one_burst_not_much() {
        let mut losses = Losses::default();
        losses.note(LEAST - 1, 0);
        assert_eq!((losses.is_known(), losses.tries()), (false, 1));
        let mut losses = after(0.0, 1000);
        losses.note(5000, 1);
        assert_eq!(losses.tries(), 1);
        losses.note(5000, 1);
        assert!(losses.tries() > 1);
        // Packets that come late after all are not lost.
        losses.note(0, 64);
        assert_eq!(losses.tries(), 1);
    }
}
