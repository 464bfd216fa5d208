//! Groups, and sets of hosts that groups have.

use std::collections::BTreeSet;

use core::time::Duration;

use crate::group::hosts::{HostId, HostSet};
use crate::id::{AddressId, GroupId};
use crate::time::Time;

/// Time in which the bytes that a set has sent count half.
const HALF_LIFE: Duration = Duration::from_secs(2);

/// A group's number and its lowest host. Groups without a common process may have the same number.
/// At most one of those on a host has the host's speaker, and so takes part.
pub(super) type GroupKey = (GroupId, HostId);

/// All groups of the same hosts.
#[derive(Default)]
pub(super) struct Set {
    pub(super) users: BTreeSet<GroupKey>,
    pub(super) address: Option<AddressId>,
    /// Bytes sent, which count less and less.
    bytes: u64,
    /// When `bytes` last became half.
    at: Time,
}

impl Set {
    /// Bytes sent lately.
    pub(super) fn bytes(&self, now: Time) -> u64 {
        self.bytes.checked_shr(self.halvings(now)).unwrap_or(0)
    }

    /// How often `bytes` became half since `at`.
    fn halvings(&self, now: Time) -> u32 {
        (now.since(self.at).as_nanos() / HALF_LIFE.as_nanos()).min(64) as u32
    }

    /// The groups have sent bytes.
    pub(super) fn add(&mut self, now: Time, bytes: u64) {
        let rest = self.bytes(now);
        self.at = match rest {
            0 => now,
            _ => self.at + HALF_LIFE * self.halvings(now),
        };
        self.bytes = rest.saturating_add(bytes);
    }
}

/// A group that not all of its members have ended.
pub(super) struct Group {
    /// Its hosts, once a host has told of its creation.
    pub(super) hosts: Option<HostSet>,
    /// Hosts at which it is over.
    pub(super) ended: HostSet,
    /// Hosts that are told if it has no address.
    pub(super) told: HostSet,
}
