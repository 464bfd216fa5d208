//! Challenges: a node checks a contradiction before it becomes an error.
//!
//! A host that can send datagrams with a false source address can contradict what a node expects. A
//! contradiction is therefore only a challenge. The node sends a query by unicast to the node that
//! the datagram names as its source, at its known address, with a nonce that a forger does not see.
//! It believes only the reply (spec 2.13).

use core::time::Duration;

use crate::nonce::Nonces;
use crate::time::Time;

/// RTO of the first query. It doubles with each repetition.
const RTO_MIN: Duration = Duration::from_millis(5);
/// Queries without a reply after which the node drops the challenge. A contradiction that is real
/// comes again, because what contradicts is never acknowledged.
const ASKED_MAX: u32 = 9;

/// The state of one challenge: its nonce and the time of the next query.
#[derive(Clone, Debug)]
pub struct Challenge {
    /// The nonce of all queries of this challenge, drawn with the first.
    nonce: Option<u64>,
    due: Time,
    asked: u32,
}

impl Challenge {
    /// Creates a challenge that has just arisen: the first query is due at once.
    pub fn new(now: Time) -> Challenge {
        Challenge {
            nonce: None,
            due: now,
            asked: 0,
        }
    }

    /// When [`Challenge::poll`] or [`Challenge::is_over`] has something new.
    pub fn wake(&self) -> Time {
        self.due
    }

    /// Whether all queries went without a reply, and the time for the last has passed.
    pub fn is_over(&self, now: Time) -> bool {
        self.asked == ASKED_MAX && now >= self.due
    }

    /// The nonce of the query that the node sends now, if one is due.
    pub fn poll(&mut self, now: Time, nonces: &mut Nonces) -> Option<u64> {
        if now < self.due || self.asked == ASKED_MAX {
            return None;
        }
        self.due = now + RTO_MIN * (1 << self.asked);
        self.asked += 1;
        Some(*self.nonce.get_or_insert_with(|| nonces.secret()))
    }

    /// Whether a reply with this nonce answers the challenge.
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
