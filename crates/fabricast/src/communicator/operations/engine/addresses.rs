//! The multicast addresses of a context, and by which one each group sends.
//!
//! The first `ADDRESSES` are shared: 0 by the leaders of all hosts, the others by all groups that
//! a hash leads to them. Those that follow belong to the machine of [`fabricast_proto::group`], if
//! the context has a strategy. Its hosts are the *speakers*: the lowest process of each host. A
//! group that is led by other processes stays at a shared address.

use std::collections::BTreeMap;

use fabricast_proto::{AddressId, GroupId};

use crate::transport::GroupAddress;

/// A process's view of its context's addresses.
pub(super) struct Addresses {
    pub all: Vec<Address>,
    /// By which address each group sends.
    pub of: BTreeMap<GroupId, AddressId>,
}

pub(super) struct Address {
    pub at: GroupAddress,
    /// Number of groups that share it.
    groups: usize,
}

impl Addresses {
    /// The number of an address of the network.
    pub fn number_of(&self, at: &GroupAddress) -> Option<AddressId> {
        let found = self.all.iter().position(|address| address.at == *at);
        found.map(|at| AddressId(at as u32))
    }

    pub fn new(all: impl IntoIterator<Item = GroupAddress>) -> Addresses {
        let address = |at| Address { at, groups: 0 };
        Addresses {
            all: all.into_iter().map(address).collect(),
            of: BTreeMap::new(),
        }
    }

    /// The address of this number, if the context has it.
    pub fn at(&self, id: AddressId) -> Option<&GroupAddress> {
        self.all.get(id.0 as usize).map(|address| &address.at)
    }

    /// By which address a group sends.
    pub fn of(&self, group: GroupId) -> Option<AddressId> {
        self.of.get(&group).copied()
    }

    /// Lets a group share an address from now on. Returns the address if it is to be joined.
    pub fn begin(&mut self, group: GroupId, id: AddressId) -> Option<GroupAddress> {
        self.of.insert(group, id);
        let address = &mut self.all[id.0 as usize];
        address.groups += 1;
        (address.groups == 1).then(|| address.at.clone())
    }

    /// A group shares its address no more. Returns the address if no other group shares it.
    pub fn end(&mut self, group: GroupId) -> Option<AddressId> {
        let id = self.of.remove(&group)?;
        let address = &mut self.all[id.0 as usize];
        address.groups -= 1;
        (address.groups == 0).then_some(id)
    }
}
