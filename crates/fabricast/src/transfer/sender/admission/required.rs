//! Receivers that the sender's user requires by name: they must be there at the start.

use std::time::Duration;

use super::objections::too_few;
use crate::config::Verdict;
use crate::error::Error;
use crate::setting::{NAME, REQUIRED};
use crate::text::spoken;
use crate::transfer::events::SendEvent;
use crate::transfer::sender::admission::Admission;
use crate::transfer::sender::receiver_table::Member;

impl<'a> Admission<'a> {
    /// Whether to start: as the start rule says, but not without the receivers that are required.
    pub(super) fn decide(
        &mut self,
        elapsed: Duration,
        since_first: Duration,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Verdict {
        let options = self.options;
        let rule = &options.start;
        let verdict = rule.decide(elapsed, since_first, self.present());
        let missing = self.missing();
        if verdict != Verdict::Start || missing.is_empty() {
            return verdict;
        }
        if elapsed >= rule.timeout {
            return Verdict::GiveUp;
        }
        if !std::mem::replace(&mut self.has_told_missing, true) {
            let missing = missing.join(", ");
            let text = format!("the start waits for {missing} ({REQUIRED})");
            tell(SendEvent::Notice { text });
        }
        Verdict::Wait
    }

    /// Names of required receivers that are not there, or cannot take part with the others.
    pub(super) fn missing(&self) -> Vec<&'a str> {
        let options = self.options;
        let is_missing = |name: &&str| !self.together().any(|m| m.name == *name);
        let required = options.required.iter().map(String::as_str);
        required.filter(is_missing).collect()
    }

    /// Why a receiver would take the seat of one that is required and not there yet, if it would.
    pub(super) fn no_free_seat(&self, member: &Member) -> Option<String> {
        let reserved = self.missing().into_iter().filter(|n| *n != member.name);
        let taken = self.present() + reserved.count();
        (taken >= self.options.start.max_receivers)
            .then(|| "there are as many receivers as the sender admits".into())
    }

    /// Why the sender gives up before the start.
    pub(super) fn too_few(&self) -> Error {
        let present = self.present();
        let others = self.receivers.taking_part().count() - present;
        let port = self.rendezvous.address().port();
        let counts = (present, others, self.refusals.count());
        let missing = self.missing().join(", ");
        Error::NoReceivers(match missing.is_empty() {
            true => too_few(&self.options.start, counts, port),
            false => format!(
                "{missing} did not come within {} and must be there ({REQUIRED}); receivers name \
                 themselves ({NAME})",
                spoken(self.options.start.timeout)
            ),
        })
    }
}
