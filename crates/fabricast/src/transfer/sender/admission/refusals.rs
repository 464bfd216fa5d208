//! Receivers that came and did not take part, for the sender's table.

use std::net::SocketAddr;

use crate::bootstrap::message::ReceiverStatistics;
use crate::transfer::events::{By, Part, ReceiverReport, SendEvent, State};

/// Number of refused receivers that are kept and told of; the others are only counted.
const KEPT: usize = 64;

/// The receivers that were refused, and why.
#[derive(Default)]
pub struct Refusals {
    kept: Vec<ReceiverReport>,
    told: usize,
    more: u64,
}

impl Refusals {
    /// Notes a refused receiver. Returns the event that tells so, unless there were too many or the
    /// receiver was refused for this reason before.
    pub fn add(
        &mut self,
        receiver: String,
        address: SocketAddr,
        by: By,
        reason: String,
    ) -> Option<SendEvent> {
        let same = |r: &&mut ReceiverReport| {
            r.receiver == receiver && r.address.ip() == address.ip() // a port per attempt
        };
        let known = self.kept.iter_mut().find(same);
        if let Some(known) = known {
            if known.reason.as_ref() == Some(&reason) {
                return None; // the receiver tries again and again
            }
            (known.address, known.reason) = (address, Some(reason.clone()));
        } else if self.kept.len() < KEPT {
            self.kept.push(ReceiverReport {
                receiver: receiver.clone(),
                address,
                state: State::Refused,
                reason: Some(reason.clone()),
                reach: "nothing",
                seconds: 0.0,
                repairs: 0,
                part: Part::Whole,
                placed: 0,
                statistics: ReceiverStatistics::default(),
            });
        } else {
            self.more += 1;
            return None;
        }
        self.told += 1;
        (self.told <= KEPT).then_some(SendEvent::Refused {
            receiver,
            address,
            by,
            reason,
        })
    }

    /// Removes a receiver that is admitted after all.
    pub fn forget(&mut self, receiver: &str, address: SocketAddr) {
        self.kept
            .retain(|r| r.receiver != receiver || r.address.ip() != address.ip());
    }

    /// Number of refused receivers.
    pub fn count(&self) -> u64 {
        self.kept.len() as u64 + self.more
    }

    /// The refused receivers that are kept, and how many more there were.
    pub fn report(&self) -> (Vec<ReceiverReport>, u64) {
        (self.kept.clone(), self.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_often_takes_no_room() {
        let mut refusals = Refusals::default();
        let from = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let told = |e: Option<SendEvent>| e.is_some();
        assert!(told(refusals.add(
            "a".into(),
            from(1),
            By::Sender,
            "no".into()
        )));
        assert!(!told(refusals.add(
            "a".into(),
            from(2),
            By::Sender,
            "no".into()
        )));
        assert!(told(refusals.add(
            "a".into(),
            from(3),
            By::Sender,
            "no space".into()
        )));
        let (kept, more) = refusals.report();
        assert_eq!((kept.len(), more), (1, 0));
        assert_eq!(kept[0].reason.as_deref(), Some("no space"));
        refusals.forget("a", from(4));
        assert!(refusals.report().0.is_empty());
        let many = (0..1000).map(|n| refusals.add(n.to_string(), from(1), By::Sender, "no".into()));
        assert_eq!(many.filter(|e| e.is_some()).count(), KEPT - 2);
        let (kept, more) = refusals.report();
        assert_eq!((kept.len(), more), (KEPT, 1000 - KEPT as u64));
    }
}
