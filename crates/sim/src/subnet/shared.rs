//! A few addresses that all communicators share, as those of a context without a strategy do.

use std::collections::BTreeMap;

use fabricast::proto::group::{HostSet, shared_address};
use fabricast::proto::{AddressId, GroupId};

use super::Subnet;
use super::manager::CONTEXT;

impl Subnet<'_> {
    /// All communicators exist from the start, and their hosts have joined the addresses that a
    /// hash leads them to. The switches' tables have followed.
    pub(super) fn share_out(&mut self) {
        let mut members: BTreeMap<AddressId, HostSet> = BTreeMap::new();
        for plan in &self.scenario.plans {
            let address = self.shared_address(&plan.hosts);
            members
                .entry(address)
                .or_default()
                .extend(plan.hosts.iter());
        }
        members.remove(&CONTEXT);
        for (address, hosts) in members {
            self.manager.grant(&mut self.fabric, address, &hosts);
            for host in hosts.iter() {
                self.attach(host.0, address);
                self.judge.proved(address, host);
            }
        }
    }

    /// A new communicator sends by its shared address at once.
    pub(super) fn create_shared(&mut self, h: u32, group: GroupId, hosts: &HostSet) {
        let address = self.shared_address(hosts);
        self.send_by(h, group, Some(address));
        self.ready(h, group);
    }

    /// The address that serves these hosts: the context's for all hosts, another one for any other
    /// set.
    fn shared_address(&self, hosts: &HostSet) -> AddressId {
        if hosts.len() == self.scenario.hosts {
            return CONTEXT;
        }
        shared_address(hosts.iter().map(|host| host.0), self.scenario.addresses)
    }
}
