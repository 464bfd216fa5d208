//! A process that speaks for its host: its part in giving groups multicast addresses of their own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fabricast_proto::group::{Config, Host, HostId, HostSet, Refusal};
use fabricast_proto::{AddressId, GroupId, NodeId, Time};
use rustc_hash::FxHashMap;
use tracing::{info, warn};

use crate::communicator::limits::{ADDRESSES, ADDRESSES_MAX};
use crate::communicator::wireup::Addressing;
use crate::communicator::wireup::mail::Mail;

/// Time between two reports of what this process has sent to groups.
pub(super) const REPORT: Duration = Duration::from_secs(1);

/// A group that may get an address of its own.
#[derive(Default)]
pub(super) struct OwnGroup {
    /// Its hosts, until a member uses it.
    pub unused: Option<HostSet>,
    /// Whether it may not send yet.
    pub early: bool,
    /// Operations that this process has begun, counted up to 2.
    pub uses: u8,
    /// Whether it sends by an address that no other set of hosts has.
    pub own: bool,
    /// Bytes that this process has sent to it since the last report.
    pub bytes: u64,
}

/// This process's part in giving addresses to groups.
pub(super) struct Speaker {
    pub host: Host,
    /// The processes that speak for their hosts, sorted.
    pub speakers: Vec<NodeId>,
    pub mail: Arc<Mail>,
    /// Addresses that are being proven, and the hosts that are silent.
    pub proofs: BTreeMap<AddressId, HostSet>,
    /// The groups that may get an address of their own.
    pub groups: FxHashMap<GroupId, OwnGroup>,
    /// Broadcasts that this process has sent by addresses that no other set of hosts has.
    pub sent_own: u64,
    /// Whether this process has sent bytes to a group since its last report.
    pub unreported: bool,
    /// Whether a group has had no address of its own.
    pub scarce: bool,
    /// At rank 0: the hosts that are set aside, and why.
    pub aside: Vec<(HostId, Refusal)>,
    pub reported: Time,
    /// When there is something to do again.
    pub wake: Time,
}

impl Speaker {
    pub fn new(
        now: Time,
        addressing: Addressing,
        (speakers, me): (Vec<NodeId>, NodeId),
    ) -> Option<Speaker> {
        let Addressing {
            strategy,
            addresses,
            mail,
        } = addressing;
        let place = speakers.binary_search(&me).ok()?;
        let config = Config {
            host: HostId(place as u32),
            hosts: speakers.len() as u32,
            strategy,
            addresses: addresses.min((ADDRESSES_MAX - ADDRESSES) as u32),
            first: ADDRESSES as u32,
            context_address: true,
        };
        Some(Speaker {
            host: Host::new(now, &config),
            speakers,
            mail,
            proofs: BTreeMap::new(),
            groups: FxHashMap::default(),
            sent_own: 0,
            unreported: false,
            scarce: false,
            aside: Vec::new(),
            reported: now,
            wake: now,
        })
    }

    /// The hosts of these leaders; `None` if a leader does not speak for its host.
    pub fn hosts(&self, leaders: &[NodeId]) -> Option<HostSet> {
        leaders.iter().map(|&leader| self.host_of(leader)).collect()
    }

    /// The host for which a process speaks.
    pub fn host_of(&self, node: NodeId) -> Option<HostId> {
        let at = self.speakers.binary_search(&node).ok()?;
        Some(HostId(at as u32))
    }

    pub fn node_of(&self, host: HostId) -> NodeId {
        self.speakers[host.0 as usize]
    }

    /// When there is something to do again, if the machine has something to do at this time.
    pub fn due(&self, machine: Time) -> Time {
        let report = self.unreported.then_some(self.reported + REPORT);
        report.map_or(machine, |report| report.min(machine))
    }

    /// Tells which hosts the coordinator has set aside since the last call, and which are back.
    pub fn tell_aside(&mut self) {
        let aside = self.host.set_aside();
        if aside == self.aside {
            return;
        }
        let known = |all: &[(HostId, Refusal)], host| all.iter().any(|(known, _)| *known == host);
        for &(host, why) in aside.iter().filter(|(host, _)| !known(&self.aside, *host)) {
            let rank = self.node_of(host).0;
            warn!(rank, %why, "communicators with this rank's host have no address of their own");
        }
        for &(host, _) in self.aside.iter().filter(|(host, _)| !known(&aside, *host)) {
            let rank = self.node_of(host).0;
            info!(
                rank,
                "communicators with this rank's host have addresses again"
            );
        }
        self.aside = aside;
    }

    /// Takes note that this process has sent bytes to a group.
    pub fn sends(&mut self, group: GroupId, bytes: u64) {
        if let Some(known) = self.groups.get_mut(&group) {
            self.sent_own += u64::from(known.own);
            known.bytes += bytes;
            self.unreported = true;
            self.wake = self.wake.min(self.reported + REPORT);
        }
    }
}
