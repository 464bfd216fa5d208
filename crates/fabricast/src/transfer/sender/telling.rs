//! What a sender tells its user and its receivers, whatever protocol the files go by.

use std::time::Instant;

use super::admission::Admission;
use super::plan::Plan;
use super::receiver_table::Stage;
use crate::bootstrap::message::ToReceiver;
use crate::setting::SLOW;
use crate::transfer::events::{SendEvent, State};

/// How far a sender is, beside what its receivers have.
pub struct Sent {
    /// Seconds since the start.
    pub seconds: f64,
    /// Length of all files in bytes; `None`: a stream that has not ended.
    pub len: Option<u64>,
    /// The rate in bytes per second, if there is one.
    pub rate: Option<u64>,
    /// Data packets sent again.
    pub repairs: u64,
}

impl Admission<'_> {
    /// Tells everybody that the transfer starts. Returns the time of that.
    pub fn start(&mut self, plan: &Plan, tell: &mut dyn FnMut(SendEvent)) -> Instant {
        let start = &plan.start;
        tell(SendEvent::Starting {
            receivers: self.receivers.len(),
            group: start.group.clone(),
            root: start.root,
            interface: plan.interface.clone(),
            payload_size: start.payload_size,
            window: start.window,
        });
        let named = self.options.slow_by_name.keys();
        for name in named.filter(|name| !self.receivers.iter().any(|m| m.name == **name)) {
            let text = format!("no receiver is called {name}, for which there is a rule ({SLOW})");
            tell(SendEvent::Notice { text });
        }
        let now = self.clock.begin();
        for member in self.receivers.iter_mut() {
            member.heard = now; // until now the receiver had nothing to say
        }
        self.say_active(&ToReceiver::Start(start.clone()));
        now
    }

    /// How far the transfer is.
    pub fn progress(&self, sent: Sent) -> SendEvent {
        let members = &self.receivers;
        let counted = members
            .iter()
            .filter(|m| m.active() && m.stage != Stage::Preparing || m.is_complete());
        let mut placed: Vec<u64> = counted.map(|m| m.placed).collect();
        placed.sort_unstable();
        let at = |i: usize| placed.get(i).copied().unwrap_or(0);
        let count = |state| members.iter().filter(|m| m.ended(state)).count();
        let failed = members.iter().filter(|m| !m.active() && !m.is_complete());
        SendEvent::Progress {
            seconds: sent.seconds,
            slowest: at(0),
            median: at(placed.len() / 2),
            fastest: at(placed.len().saturating_sub(1)),
            len: sent.len,
            rate: sent.rate,
            repairs: sent.repairs,
            verified: count(State::Verified),
            received: count(State::Received),
            failed: failed.count(),
        }
    }

    fn say_bye(&self, at: usize) {
        let peer = self.receivers[at].peer;
        self.rendezvous.say(peer, ToReceiver::Bye);
        self.rendezvous.close(peer);
    }

    /// Says goodbye to a receiver that has everything, since `seconds` after the start. Returns the
    /// event that tells so.
    pub fn part(&mut self, at: usize, seconds: f64) -> SendEvent {
        self.say_bye(at);
        let member = &self.receivers[at];
        let receiver = member.name.clone();
        match member.ended(State::Received) {
            true => SendEvent::Received { receiver, seconds },
            false => SendEvent::Verified { receiver, seconds },
        }
    }

    /// Says goodbye to a receiver that has everything but files that it could not get, and knows
    /// that. Returns the event that tells so.
    pub fn part_with(&mut self, at: usize, code: u8, reason: String) -> SendEvent {
        self.say_bye(at);
        SendEvent::Failed {
            receiver: self.receivers[at].name.clone(),
            code,
            reason,
        }
    }

    /// Tells a receiver why the sender waits for it no more. Returns the event that tells so.
    pub fn dismiss(&mut self, at: usize, code: u8, reason: String) -> SendEvent {
        let member = &self.receivers[at];
        let removed = ToReceiver::Removed {
            code,
            reason: reason.clone(),
        };
        self.rendezvous.say(member.peer, removed);
        self.rendezvous.close(member.peer);
        SendEvent::Failed {
            receiver: member.name.clone(),
            code,
            reason,
        }
    }
}
