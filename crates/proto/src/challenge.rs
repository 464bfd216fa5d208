//! A contradiction is confirmed by a question before it becomes an error.
//!
//! A host that forges a source address can contradict what a node expects. So a contradiction is
//! only a challenge. The node asks the speaker by unicast at its known address,
//! with a nonce that a forger does not see, and believes the reply alone (spec 2.13).

use core::time::Duration;

use crate::nonce::Nonces;
use crate::time::Time;

/// A question without a reply is repeated after this time, which doubles with each repetition.
const RTO_MIN: Duration = Duration::from_millis(5);
/// Questions that are asked in vain before the challenge is dropped. A contradiction that is real
/// comes again, because what contradicts is never acknowledged.
const ASKED_MAX: u32 = 9;

/// The state of one challenge: its nonce and when to ask next.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// Drawn with the first question.
    nonce: Option<u64>,
    due: Time,
    asked: u32,
}

impl Challenge {
    /// A challenge that has just arisen: ask at once.
    pub fn new(now: Time) -> Challenge {
        Challenge {
            nonce: None,
            due: now,
            asked: 0,
        }
    }

    /// When [`Challenge::poll`] has something new.
    pub fn wake(&self) -> Time {
        self.due
    }

    /// Whether it was asked about in vain for too long.
    pub fn is_over(&self, now: Time) -> bool {
        self.asked == ASKED_MAX && now >= self.due
    }

    /// The nonce of a question to be asked now, if one is due.
    pub fn poll(&mut self, now: Time, nonces: &mut Nonces) -> Option<u64> {
        if now < self.due || self.asked == ASKED_MAX {
            return None;
        }
        self.due = now + RTO_MIN * (1 << self.asked);
        self.asked += 1;
        Some(*self.nonce.get_or_insert_with(|| nonces.secret()))
    }

    /// Whether a reply with this nonce answers it.
    pub fn is_answered(&self, nonce: u64) -> bool {
        self.nonce == Some(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_about_with_one_nonce_ever_more_rarely_and_then_dropped() {
        let (mut source, mut challenge) = (Nonces::new(1), Challenge::new(Time(7)));
        assert!(!challenge.is_answered(0));
        let (mut now, mut nonces) = (Time(7), Vec::new());
        while !challenge.is_over(now) {
            let nonce = challenge.poll(now, &mut source);
            nonces.push(nonce.expect("a question is due"));
            assert_eq!(challenge.poll(now, &mut source), None);
            now = challenge.wake();
        }
        assert_eq!(nonces.len(), ASKED_MAX as usize);
        assert!(nonces.iter().all(|&n| challenge.is_answered(n)));
        assert!(!challenge.is_answered(nonces[0] ^ 1));
        assert_eq!(now, Time(7) + RTO_MIN * ((1 << ASKED_MAX) - 1));
    }
}
