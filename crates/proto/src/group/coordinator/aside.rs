//! A host that is set aside, and when it is tried again.

use core::time::Duration;

use super::backoff::Backoff;
use crate::group::address::Refusal;
use crate::id::AddressId;
use crate::time::Time;

/// Pause before a host that was set aside is tried for the first time.
const PAUSE: Duration = Duration::from_secs(1);
/// Time after which a trial without an outcome is over: its address was wanted no more.
const TRIAL: Duration = Duration::from_secs(20);

/// A host that is set aside.
pub(super) struct Aside {
    pub(super) why: Refusal,
    pause: Backoff,
    /// Until when no new address is for the host.
    pub(super) until: Time,
    /// The address by which the host is tried.
    pub(super) trial: Option<AddressId>,
}

impl Aside {
    pub(super) fn new(now: Time, why: Refusal) -> Aside {
        Aside {
            why,
            pause: Backoff::new(PAUSE),
            until: now + PAUSE,
            trial: None,
        }
    }

    /// The host is tried by an address.
    pub(super) fn begin_trial(&mut self, now: Time, address: AddressId) {
        self.trial = Some(address);
        self.until = now + TRIAL;
    }

    /// The trial has failed.
    pub(super) fn fail(&mut self, now: Time, why: Refusal) {
        self.pause.double();
        self.until = now + self.pause.wait();
        self.trial = None;
        self.why = why;
    }
}
