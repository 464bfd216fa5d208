//! Checks every step of a world against what its switches really forward.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_proto::group::{HostId, HostSet};
use fabricast_proto::{AddressId, GroupId, Time};

use super::manager::Manager;

/// A group as all of its members know it.
pub struct Group {
    pub hosts: HostSet,
    pub created: HostSet,
    pub ended: HostSet,
    /// Hosts for which its creation may return.
    pub ready: HostSet,
}

/// What the judge knows.
#[derive(Default)]
pub struct Judge {
    pub groups: BTreeMap<GroupId, Group>,
    /// By which address each host sends to each of its groups.
    pub by: BTreeMap<(HostId, GroupId), Option<AddressId>>,
    /// Table entries that a probe has shown to work, since they were made.
    pub proven: BTreeSet<(AddressId, HostId)>,
    /// Table entries that the network has forgotten: until when senders may not know it.
    pub excused: BTreeMap<(AddressId, HostId), Time>,
    pub crashed: HostSet,
}

impl Judge {
    /// No host sends by an address that does not, as a probe has shown, reach every member.
    pub fn senders(&self, now: Time, manager: &Manager) -> Result<(), String> {
        for (&(sender, id), &by) in &self.by {
            let Some(address) = by else { continue };
            let group = &self.groups[&id];
            for member in group.hosts.iter() {
                let over = group.ended.contains(member) || self.crashed.contains(member);
                if member == sender || over {
                    continue;
                }
                let key = (address, member);
                let forwards = manager.forwards(address, member) && self.proven.contains(&key);
                let excused = self.excused.get(&key).is_some_and(|until| now <= *until);
                if !forwards && !excused {
                    return Err(format!(
                        "{now:?}: {sender:?} sends to {id:?} by {address:?}, which does not reach \
                         {member:?} (forwards: {}, proven: {})",
                        manager.forwards(address, member),
                        self.proven.contains(&key),
                    ));
                }
            }
        }
        Ok(())
    }

    /// A host leaves an address: no other host sends by it to a group of this host.
    pub fn leaves(&self, host: HostId, address: AddressId) -> Result<(), String> {
        for (&(sender, id), &by) in &self.by {
            let group = &self.groups[&id];
            let member = group.hosts.contains(host) && !group.ended.contains(host);
            if by == Some(address) && sender != host && member {
                return Err(format!(
                    "{host:?} leaves {address:?}, by which {sender:?} sends to {id:?}"
                ));
            }
        }
        Ok(())
    }

    /// The network has forgotten an entry. Senders learn it before `until`.
    pub fn forgotten(&mut self, address: AddressId, host: HostId, until: Time) {
        self.proven.remove(&(address, host));
        self.excused.insert((address, host), until);
    }

    /// A probe has shown that an entry works.
    pub fn proved(&mut self, address: AddressId, host: HostId) {
        self.proven.insert((address, host));
    }
}
