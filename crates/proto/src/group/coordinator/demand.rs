//! Groups and sets of hosts: which set gains most by an address of its own.

use core::time::Duration;

use super::Coordinator;
use super::entry::{Entry, Owner, Phase};
use super::sets::{Group, GroupKey};
use crate::group::address::Refusal;
use crate::group::holder::CONTEXT;
use crate::group::hosts::{HostId, HostSet};
use crate::group::message::{Grant, Message};
use crate::id::{AddressId, GroupId};
use crate::limits::GROUPS_MAX;
use crate::mutant::{self, Mutant};
use crate::time::Time;

/// Time for which an address stays with a set that has no more groups: the next group of the same
/// hosts, as a program's loop makes it, sends by it at once.
const LINGER: Duration = Duration::from_secs(1);
/// Least time for which a set keeps an address that another set gains more by.
const HOLD: Duration = Duration::from_secs(1);
/// Time after which an address that was not used is taken back.
const IDLE: Duration = Duration::from_secs(10);
/// Most addresses that are taken back at the same time, without those of hosts that do not answer.
const TAKEN_BACK_MAX: usize = 2;

impl Coordinator {
    /// A host tells of a new group.
    pub(super) fn created(
        &mut self,
        now: Time,
        from: HostId,
        id: GroupId,
        hosts: HostSet,
        grant: Option<Grant>,
    ) {
        let Some(lowest) = hosts.lowest().filter(|_| hosts.contains(from)) else {
            return;
        };
        // Only the lowest host has given an address of its share.
        let grant = grant.filter(|_| from == lowest);
        let key = (id, lowest);
        let known = self.groups.get(&key).and_then(|group| group.hosts.as_ref());
        if known.is_some_and(|known| *known != hosts) {
            return grant.map_or((), |grant| self.put_back(now, from, grant));
        }
        let Some(group) = self.group(key) else {
            // The context has too many groups; this one uses what it finds.
            let none = Message::NoAddress(id, Refusal::NoAddresses);
            self.orders.push_back((from, none));
            return grant.map_or((), |grant| self.put_back(now, from, grant));
        };
        group.told.insert(from);
        let first = group.hosts.is_none();
        if first {
            group.hosts = Some(hosts.clone());
        }
        if hosts == HostSet::first_hosts(self.count) {
            let context = self.addresses.get(&CONTEXT);
            if context.is_none_or(|entry| entry.phase != Phase::Proven) {
                let none = Message::NoAddress(id, self.why_none(&hosts));
                self.orders.push_back((from, none));
            }
        } else if !self.live.includes(&hosts) {
            let none = Message::NoAddress(id, Refusal::Gone);
            self.orders.push_back((from, none));
        } else {
            if first {
                let set = self.sets.entry(hosts.clone()).or_default();
                set.users.insert(key);
                self.address_for(now, lowest, &hosts, grant);
            }
            if self
                .sets
                .get(&hosts)
                .is_some_and(|set| set.address.is_none())
            {
                let none = Message::NoAddress(id, self.why_none(&hosts));
                self.orders.push_back((from, none));
            }
        }
        // An address that the lowest host gave to a group which is to have none is free again.
        if let Some(grant) = grant {
            self.put_back(now, from, grant);
        }
        self.finish(now, key);
    }

    /// The group's last barrier is over at a host.
    pub(super) fn ended(&mut self, now: Time, from: HostId, id: GroupId, lowest: HostId) {
        let key = (id, lowest);
        // A connection may be faster than that of the lowest host, which tells of the creation.
        if !self.groups.contains_key(&key) && (!self.live.contains(lowest) || from < lowest) {
            return;
        }
        let known = self.groups.get(&key).and_then(|group| group.hosts.as_ref());
        if known.is_some_and(|hosts| !hosts.contains(from)) {
            return;
        }
        if let Some(group) = self.group(key) {
            group.ended.insert(from);
            self.finish(now, key);
        }
    }

    /// Groups of a host have sent bytes.
    pub(super) fn sent(&mut self, now: Time, from: HostId, counts: &[(GroupId, u64)]) {
        for (id, bytes) in counts {
            let mut of_number = self.groups.range((*id, HostId(0))..=(*id, from));
            let hosts = of_number.find_map(|(_, group)| {
                let hosts = group.hosts.as_ref();
                hosts.filter(|hosts| hosts.contains(from))
            });
            if let Some(set) = hosts.and_then(|hosts| self.sets.get_mut(hosts)) {
                set.add(now, *bytes);
            }
        }
        self.replan |= !self.waiting.is_empty();
    }

    /// A host is gone: groups do not wait for it.
    pub(super) fn forget_user(&mut self, now: Time, host: HostId) {
        self.waiting.retain(|hosts| !hosts.contains(host));
        self.groups
            .retain(|(_, lowest), group| group.hosts.is_some() || *lowest != host);
        let all: Vec<_> = self.groups.keys().copied().collect();
        for key in all {
            self.finish(now, key);
        }
    }

    /// The address of a set's first group, or of a set that has none.
    fn address_for(&mut self, now: Time, lowest: HostId, hosts: &HostSet, grant: Option<Grant>) {
        let taken = grant.is_some_and(|grant| self.adopt(now, lowest, hosts, grant));
        let set = self.sets.entry(hosts.clone()).or_default();
        if let Some(address) = set.address {
            if let Some(entry) = self.addresses.get_mut(&address) {
                entry.idle = None;
            }
            if taken {
                self.pool.created(now, lowest, false);
            }
            return;
        }
        // More addresses of the pool would not help a host that is set aside.
        let able = self.able(now).includes(hosts);
        self.pool.created(now, lowest, able);
        self.replan = true;
        let mut spares = self.addresses.iter();
        let spare = |entry: &Entry| {
            entry.owner == Owner::Spare && entry.is_live() && entry.hosts.includes(hosts)
        };
        let proven = spares.find(|(_, entry)| spare(entry) && entry.phase == Phase::Proven);
        let address = proven.map(|(&address, _)| address);
        match address {
            Some(address) => self.retarget(now, address, hosts.clone(), Owner::Set),
            None => match able.then(|| self.allocate(now, hosts)).flatten() {
                Some(address) => self.begin(now, address, hosts.clone(), Owner::Set),
                None => drop(self.waiting.insert(hosts.clone())),
            },
        }
    }

    /// A group has an address from the share of its lowest host. False if it is not to have it.
    fn adopt(&mut self, now: Time, lowest: HostId, hosts: &HostSet, grant: Grant) -> bool {
        let Some(entry) = self.addresses.get(&grant.address) else {
            return false;
        };
        let dealt = entry.owner == Owner::Dealt(lowest) && entry.hosts.includes(hosts);
        if entry.term != grant.term || !entry.is_live() || !dealt {
            return false;
        }
        let has_one = self
            .sets
            .get(hosts)
            .is_some_and(|set| set.address.is_some());
        match has_one {
            true => self.withdraw(now, grant.address),
            false => self.narrow(now, grant.address, hosts),
        }
        self.replan = true;
        true
    }

    /// The address of a host's share is not used after all.
    pub(super) fn put_back(&mut self, now: Time, from: HostId, grant: Grant) {
        if let Some(entry) = self.addresses.get(&grant.address)
            && entry.term == grant.term
            && entry.owner == Owner::Dealt(from)
        {
            self.withdraw(now, grant.address);
        }
    }

    /// A group, which begins here if a message about it comes before that of its creation.
    fn group(&mut self, key: GroupKey) -> Option<&mut Group> {
        if !self.groups.contains_key(&key) && self.groups.len() >= GROUPS_MAX {
            return None;
        }
        let group = Group {
            hosts: None,
            ended: HostSet::new(),
            told: HostSet::new(),
        };
        Some(self.groups.entry(key).or_insert(group))
    }

    /// Removes a group that is over at all members that are left.
    fn finish(&mut self, now: Time, key: GroupKey) {
        let Some(group) = self.groups.get(&key) else {
            return;
        };
        let Some(hosts) = &group.hosts else { return };
        if !group.ended.includes(&hosts.common(&self.live)) {
            return;
        }
        let hosts = hosts.clone();
        self.groups.remove(&key);
        let Some(set) = self.sets.get_mut(&hosts) else {
            return;
        };
        set.users.remove(&key);
        if !set.users.is_empty() {
            return;
        }
        match set.address {
            Some(_) if mutant::active(Mutant::AddressLeaked) => {}
            Some(address) => {
                if let Some(entry) = self.addresses.get_mut(&address) {
                    entry.idle = Some(now);
                }
                self.replan |= !self.waiting.is_empty();
            }
            None => {
                self.sets.remove(&hosts);
                self.waiting.remove(&hosts);
            }
        }
    }

    /// A set has no address any more.
    pub(super) fn set_without_address(&mut self, hosts: &HostSet, why: Refusal) {
        let Some(set) = self.sets.get_mut(hosts) else {
            return;
        };
        set.address = None;
        self.tell_no_address(hosts, why);
        let Some(set) = self.sets.get(hosts) else {
            return;
        };
        if set.users.is_empty() {
            self.sets.remove(hosts);
        } else if self.live.includes(hosts) {
            self.waiting.insert(hosts.clone());
        }
    }

    /// Tells the hosts that want to know it that the groups of a set have no address.
    fn tell_no_address(&mut self, hosts: &HostSet, why: Refusal) {
        let Some(set) = self.sets.get(hosts) else {
            return;
        };
        for key in &set.users {
            let told = self.groups.get(key).map(|group| &group.told);
            for host in told.into_iter().flat_map(HostSet::iter) {
                self.orders
                    .push_back((host, Message::NoAddress(key.0, why)));
            }
        }
    }

    /// What a set gains by an address of its own: bytes that hosts outside need not receive.
    fn gain(&self, now: Time, hosts: &HostSet) -> u64 {
        let outside = u64::from(self.count - hosts.len());
        let set = self.sets.get(hosts);
        set.map_or(0, |set| set.bytes(now).saturating_mul(outside))
    }

    /// The set without an address that gains most, of those whose hosts can all join.
    pub(super) fn neediest(&self, now: Time) -> Option<HostSet> {
        if self.waiting.is_empty() {
            return None;
        }
        let able = self.able(now);
        let all = self.waiting.iter().filter(|hosts| able.includes(hosts));
        let best = all.max_by_key(|hosts| (self.gain(now, hosts), core::cmp::Reverse(*hosts)));
        best.cloned()
    }

    /// Takes an address back from where it is of less use.
    pub(super) fn make_room(&mut self, now: Time) {
        // Hosts that do not say that they send no more. Addresses that they have joined would only
        // wait for them, too.
        let (mut back, mut silent) = (0, HostSet::new());
        for entry in self.addresses.values() {
            match entry.phase {
                Phase::Withdrawing if entry.answers <= now => silent.extend(entry.awaited.iter()),
                Phase::Withdrawing => {
                    back += 1;
                    self.again = self.again.min(entry.answers);
                }
                _ => {}
            }
        }
        if back >= TAKEN_BACK_MAX {
            return;
        }
        let Some(needy) = self.neediest(now) else {
            return;
        };
        let gain = self.gain(now, &needy);
        let mut victim: Option<(u64, AddressId)> = None;
        for (&address, entry) in &self.addresses {
            let age = now.since(entry.since);
            let cost = match entry.owner {
                _ if !entry.is_live() || entry.has_any(&silent) => continue,
                Owner::Context => continue,
                Owner::Set if entry.idle.is_some() => 0,
                Owner::Set => match self.gain(now, &entry.hosts) {
                    0 if age >= IDLE => 1,
                    cost if age >= HOLD && cost < gain / 2 => cost + 1,
                    _ => continue,
                },
                // Addresses of the pool go to a set that has shown what it gains.
                Owner::Spare if gain > 0 => 0,
                Owner::Dealt(_) if gain > 0 && age >= IDLE => 0,
                _ => continue,
            };
            if victim.is_none_or(|least| (cost, address) < least) {
                victim = Some((cost, address));
            }
        }
        if let Some((_, address)) = victim {
            self.statistics.taken_back += 1;
            self.withdraw(now, address);
        }
    }

    /// Takes addresses back that have been without groups for a while. Returns when the next is
    /// due.
    pub(super) fn end_lingering(&mut self, now: Time) -> Time {
        let mut next = Time::NEVER;
        let mut over = Vec::new();
        for (&address, entry) in &self.addresses {
            if let Some(idle) = entry.idle {
                match idle + LINGER <= now {
                    true => over.push(address),
                    false => next = next.min(idle + LINGER),
                }
            }
        }
        for address in over {
            self.withdraw(now, address);
        }
        next
    }
}
