//! A group's life at one host: it takes an address, is created, told of and ended.

use core::time::Duration;

use super::group::Group;
use super::held::Held;
use super::{Holder, MULTICAST_MIN};
use crate::group::address::Refusal;
use crate::group::border::Output;
use crate::group::hosts::{HostId, HostSet};
use crate::group::message::{Grant, Message};
use crate::group::statistics::{GroupStatus, Times};
use crate::group::strategy::Strategy;
use crate::id::GroupId;
use crate::limits::GROUPS_MAX;
use crate::time::Time;

/// How long a group waits for an address of its own ([`Strategy::Basic`]). If a host or the manager
/// has not answered by then, the group may get one later.
const READY: Duration = Duration::from_secs(10);

/// How long the coordinator is not told of a group that has taken its address from the pool, unless
/// the group is used a second time. Hosts outside the group then leave the address, and all hosts
/// join the next one: work that would be in the way of the group's first broadcast.
const FIRST_USE: Duration = Duration::from_millis(2);

impl Holder {
    /// Whether an address of the pool is proven.
    pub(in crate::group) fn has_spare(&self) -> bool {
        let mut all = self.held.values();
        all.any(|held| held.hosts.is_none() && held.may_send())
    }

    /// The address of a new group of these hosts, of which this host is the lowest.
    pub(in crate::group) fn take(&mut self, hosts: &HostSet) -> Option<Grant> {
        if self.closed || !self.wants_address(hosts) {
            return None;
        }
        let mut all = self.held.iter();
        let same = all.find(|(_, held)| held.usable() == Some(hosts));
        if let Some((&address, held)) = same
            && let Some(term) = held.term
        {
            // All hosts of the set know this address, or have a grant of it.
            return Some(Grant { address, term });
        }
        if hosts.len() == self.hosts {
            // An address of its own is the context's.
            return None;
        }
        let held = &self.held;
        let at = self.share.iter().position(|(grant, members)| {
            let held = held.get(&grant.address);
            held.is_some_and(|held| {
                held.term == Some(grant.term) && held.may_send() && held.hosts.is_none()
            }) && members.includes(hosts)
        })?;
        let (grant, _) = self.share.remove(at)?;
        self.taken.insert(grant);
        if let Some(held) = self.held.get_mut(&grant.address) {
            held.hosts = Some(hosts.clone());
        }
        Some(grant)
    }

    /// Returns an address that no group uses after all.
    pub(in crate::group) fn put_back(&mut self, now: Time, grant: Grant) {
        // It stays if it was not taken from the share, or if another group of the hosts has it.
        if !self.taken.remove(&grant) {
            return;
        }
        self.empty(now, grant.address);
        if let Some(held) = self.held.get_mut(&grant.address) {
            held.term = None;
            held.hosts = None;
        }
        self.tell(Message::PutBack(grant));
    }

    /// A group has been created. Returns false if the host does not take part in it.
    pub(in crate::group) fn create(
        &mut self,
        now: Time,
        id: GroupId,
        hosts: HostSet,
        grant: Option<Grant>,
    ) -> bool {
        let refused = self.closed
            || !hosts.contains(self.host)
            || hosts.iter().any(|host| host.0 >= self.hosts)
            || self.groups.contains_key(&id)
            || self.groups.len() >= GROUPS_MAX;
        if refused {
            return false;
        }
        let mut from_pool = false;
        if let Some(grant) = grant {
            from_pool = self.taken.remove(&grant);
            self.accept(now, grant, &hosts);
        }
        let wants = self.wants_address(&hosts);
        let lowest = hosts.lowest() == Some(self.host);
        let basic = self.strategy == Strategy::Basic;
        let tells = hosts.len() >= MULTICAST_MIN && (lowest || basic);
        let group = Group {
            hosts,
            grant,
            by: None,
            ready: !(basic && wants),
            reason: None,
            counted: !lowest,
            bytes: 0,
            created: now,
            used: None,
        };
        let by = self.select(&group.hosts);
        let ready = group.ready;
        self.groups.insert(id, group);
        match (tells, from_pool) {
            (true, true) => _ = self.untold.insert((now + FIRST_USE, id)),
            (true, false) => self.tell_created(id),
            (false, _) => {}
        }
        if !ready {
            self.early.insert((now + READY, id));
        }
        // The driver learns the address first, so that the first packet goes by it.
        self.switch(now, id, by);
        if by.is_none() {
            self.outputs.push_back(Output::SendBy {
                group: id,
                address: None,
            });
        }
        if ready {
            self.outputs.push_back(Output::Ready(id));
        }
        true
    }

    /// Tells the coordinator of a group that has taken its address from the pool, unless it knows
    /// of the group.
    pub(in crate::group) fn tell_of(&mut self, id: GroupId) {
        let created = self.groups.get(&id).map(|group| group.created);
        if created.is_some_and(|created| self.untold.remove(&(created + FIRST_USE, id))) {
            self.tell_created(id);
        }
    }

    /// Tells the coordinator of a group.
    pub(super) fn tell_created(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get(&id) {
            let (hosts, grant) = (group.hosts.clone(), group.grant);
            self.tell(Message::Created {
                group: id,
                hosts,
                grant,
            });
        }
    }

    /// The group's last barrier is over at this host.
    pub(in crate::group) fn ended(&mut self, id: GroupId) {
        self.tell_of(id);
        let Some(group) = self.groups.remove(&id) else {
            return;
        };
        self.unreported.remove(&id);
        self.early.remove(&(group.created + READY, id));
        if let Some(address) = group.by {
            self.unused(address);
        }
        if let Some(lowest) = group.hosts.lowest()
            && group.hosts.len() >= MULTICAST_MIN
        {
            self.tell(Message::Ended { group: id, lowest });
        }
    }

    /// A group has sent bytes.
    pub(in crate::group) fn sent(&mut self, now: Time, id: GroupId, bytes: u64) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if bytes == 0 || group.hosts.len() < MULTICAST_MIN || self.gone.contains(HostId(0)) {
            return;
        }
        group.bytes = group.bytes.saturating_add(bytes);
        self.unreported.insert(id);
        self.arm_report(now);
    }

    /// What this host knows of a group.
    pub(in crate::group) fn status(&self, id: GroupId) -> Option<GroupStatus> {
        let group = self.groups.get(&id)?;
        let own = |held: &&Held| held.hosts.as_ref() == Some(&group.hosts);
        let held = self.held.values().find(own);
        let sends = group.by.and_then(|address| self.held.get(&address));
        Some(GroupStatus {
            address: group.by,
            own: sends.as_ref().is_some_and(own),
            grant: group.grant,
            reason: group.reason,
            times: Times {
                created: group.created,
                requested: held.and_then(|held| held.requested),
                joined: held.and_then(|held| held.joined),
                proven: held.and_then(|held| held.proven),
                used: group.used,
            },
        })
    }

    /// A group has no address of its own for now, and is used without.
    pub(super) fn has_none(&mut self, id: GroupId, why: Refusal) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.reason = Some(why);
            let counts = !core::mem::replace(&mut group.counted, true);
            self.statistics.unaddressed[why.index()] += u64::from(counts);
        }
        self.ready(id);
    }

    /// The group may send.
    pub(super) fn ready(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id)
            && !core::mem::replace(&mut group.ready, true)
        {
            self.early.remove(&(group.created + READY, id));
            self.outputs.push_back(Output::Ready(id));
        }
    }
}
