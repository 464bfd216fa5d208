//! What a host holds at one moment, as numbers.

use super::Holder;
use crate::group::statistics::Snapshot;

impl Holder {
    /// Counts this host's addresses and groups.
    pub(in crate::group) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            addresses: self.held.len() as u32,
            groups: self.groups.len() as u32,
            share: self.share.len() as u32,
            untold: self.untold.len() as u32,
            entries: self.entries() as u32,
            ..Snapshot::default()
        };
        for held in self.held.values() {
            snapshot.in_use += u32::from(held.users > 0);
            snapshot.shared += u32::from(held.users > 1);
        }
        for group in self.groups.values() {
            let held = group.by.and_then(|address| self.held.get(&address));
            match held {
                None => snapshot.unicast += 1,
                Some(held) if held.hosts.as_ref() == Some(&group.hosts) => snapshot.own += 1,
                Some(_) => snapshot.wider += 1,
            }
        }
        snapshot
    }

    fn entries(&self) -> usize {
        let addresses = self.held.len() + self.share.len() + self.taken.len() + self.proving.len();
        let groups = self.groups.len() + self.early.len() + self.untold.len();
        addresses + groups + self.unreported.len() + self.outputs.len()
    }
}
