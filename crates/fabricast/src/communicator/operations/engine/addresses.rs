//! The multicast addresses of a context: which group sends by which, and which are joined.

use std::collections::BTreeMap;

use fabricast_proto::{AddressId, GroupId};

use crate::transport::GroupAddress;

/// A process's view of its context's addresses.
pub(super) struct Addresses {
    all: Vec<Address>,
    /// By which address each group sends.
    of: BTreeMap<GroupId, AddressId>,
}

struct Address {
    at: GroupAddress,
    /// Number of groups that send by it.
    groups: usize,
}

impl Addresses {
    pub fn new(all: impl IntoIterator<Item = GroupAddress>) -> Addresses {
        let address = |at| Address { at, groups: 0 };
        Addresses {
            all: all.into_iter().map(address).collect(),
            of: BTreeMap::new(),
        }
    }

    /// By which address a group sends.
    pub fn of(&self, group: GroupId) -> Option<AddressId> {
        self.of.get(&group).copied()
    }

    /// Lets a group send by an address from now on. Returns the address if it is to be joined.
    pub fn begin(&mut self, group: GroupId, id: AddressId) -> Option<GroupAddress> {
        self.of.insert(group, id);
        let address = &mut self.all[id.0 as usize];
        address.groups += 1;
        (address.groups == 1).then(|| address.at.clone())
    }

    /// A group sends no more. Returns its address if no other group sends by it.
    pub fn end(&mut self, group: GroupId) -> Option<AddressId> {
        let id = self.of.remove(&group)?;
        let address = &mut self.all[id.0 as usize];
        address.groups -= 1;
        (address.groups == 0).then_some(id)
    }
}
