//! The multicast addresses of a run: one for each group, and some that all hosts join.

use fabricast::proto::{AddressId, Command, Time};
use fabricast::transport::GroupAddress;

use super::{Cluster, group_id};
use crate::scenario::SendsBy;

impl Cluster<'_> {
    /// The number of the address that a scenario's group has for itself. Shared addresses follow.
    pub(super) fn address(group: usize) -> AddressId {
        AddressId(group_id(group).0)
    }

    /// All hosts join the addresses that follow those of this many groups.
    pub(super) fn join_shared(&mut self, groups: usize) {
        for shared in groups..groups + self.scenario.shared_addresses {
            let address = GroupAddress::Number(shared as u32);
            for (h, host) in self.hosts.iter_mut().enumerate() {
                if host
                    .driver
                    .join(Self::address(shared), &address, true)
                    .is_err()
                {
                    self.world
                        .complain(|| format!("host {h}: address {shared} refused"));
                }
            }
        }
    }

    /// Hosts that will join a group listen to its address from the start.
    pub(super) fn join_later(&mut self) {
        for change in &self.scenario.changes {
            let group = self.scenario.streams[change.stream].group;
            let address = GroupAddress::Number(group as u32);
            let driver = &mut self.hosts[change.host].driver;
            if driver.join(Self::address(group), &address, true).is_err() {
                let refused = || format!("host {}: address refused", change.host);
                self.world.complain(refused);
            }
        }
    }

    /// A host begins to send by another address.
    pub(super) fn readdress(&mut self, i: usize) {
        let now = Time(self.now());
        let r = &self.scenario.readdressed[i];
        let host = &mut self.hosts[r.host];
        if host.dead {
            return;
        }
        let address = match r.by {
            SendsBy::Own => Some(Self::address(r.group)),
            SendsBy::Shared(k) => Some(Self::address(self.scenario.groups.len() + k)),
            SendsBy::Nothing => None,
        };
        let group = group_id(r.group);
        if let Err(refused) = host.driver.command(now, Command::SendBy { group, address }) {
            self.world
                .complain(|| format!("host {}: {refused}", r.host));
        }
    }
}
