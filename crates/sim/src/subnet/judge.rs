//! What must hold while hosts change addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::group::{HostId, HostSet};
use fabricast::proto::wire::{self, Frame};
use fabricast::proto::{AddressId, GroupId};

use crate::fabric::Fabric;
use crate::object::World;

/// A communicator as all hosts together know it.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) hosts: HostSet,
    /// Hosts at which it is over.
    pub(crate) ended: HostSet,
}

/// Datagrams by multicast that hosts received, and those with a frame for a group that the host is
/// not in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Received {
    /// For a group of the host.
    pub own: u64,
    /// For another group, by the context's address.
    pub foreign_by_context: u64,
    /// For another group, by another address that this host has joined.
    pub foreign_by_address: u64,
    /// For another group, after this host had asked the manager to leave the address.
    pub foreign_after_leave: u64,
    /// Longest time from the manager's answer to a leave until such a datagram.
    pub after_leave_max: Duration,
}

/// What the judge knows.
#[derive(Debug)]
pub(crate) struct Judge {
    world: Rc<World>,
    pub(crate) groups: BTreeMap<GroupId, Members>,
    /// By which address each host sends to each of its groups.
    pub(crate) by: BTreeMap<(HostId, GroupId), AddressId>,
    /// Hosts that probes have shown to be reached by an address since its tables lead there.
    proven: BTreeSet<(AddressId, HostId)>,
    /// Memberships that the network has forgotten: until when hosts may not know that.
    excused: BTreeMap<(AddressId, HostId), u64>,
    pub(crate) crashed: HostSet,
    pub(crate) received: Received,
    /// Datagrams by multicast that were sent to a group.
    pub(crate) sent: u64,
    /// Those that the tables led to fewer hosts of the group than they should have.
    pub(crate) unreached: u64,
    /// When the manager answered a host's leave.
    left_at: BTreeMap<(AddressId, HostId), u64>,
}

impl Judge {
    pub(crate) fn new(world: Rc<World>) -> Judge {
        Judge {
            world,
            groups: BTreeMap::new(),
            by: BTreeMap::new(),
            proven: BTreeSet::new(),
            excused: BTreeMap::new(),
            crashed: HostSet::new(),
            received: Received::default(),
            sent: 0,
            unreached: 0,
            left_at: BTreeMap::new(),
        }
    }

    /// Probes, or the start of the run, have shown that an address reaches a host.
    pub(crate) fn proved(&mut self, address: AddressId, host: HostId) {
        self.proven.insert((address, host));
    }

    /// A table of an address has changed: a proof ends for a host that datagrams no longer reach.
    /// `members` are those of the manager's database.
    ///
    /// So a host that has left and joined again must not have been proven by tables from before,
    /// which the manager then takes away for a while: senders would go on.
    pub(crate) fn tables_changed(
        &mut self,
        fabric: &Fabric,
        address: AddressId,
        members: &HostSet,
    ) {
        let hosts = (address, HostId(0))..=(address, HostId(u32::MAX));
        let hosts = self.proven.range(hosts).map(|&(_, host)| host);
        let (hosts, left): (Vec<HostId>, Vec<HostId>) = hosts.partition(|h| members.contains(*h));
        for host in left {
            self.proven.remove(&(address, host));
        }
        // Hosts between which datagrams pass in both directions. If the tables cut the hosts into
        // parts, the proof holds for the largest.
        let reached: Vec<_> = (hosts.iter())
            .map(|host| fabric.reached(address.0, host.0))
            .collect();
        let mutual = |a: usize, b: usize| {
            reached[a].contains(&hosts[b].0) && reached[b].contains(&hosts[a].0)
        };
        let with = |&a: &usize| (0..hosts.len()).filter(|&b| mutual(a, b)).count();
        let first = (0..hosts.len()).max_by_key(with);
        let stays = |b: usize| match first {
            Some(a) if a == b => with(&a) > 0 || fabric.is_attached(address.0, hosts[b].0),
            Some(a) => mutual(a, b),
            None => true,
        };
        for b in (0..hosts.len()).filter(|&b| !stays(b)) {
            self.proven.remove(&(address, hosts[b]));
        }
    }

    /// The network has forgotten a membership, whose proof ends. Senders learn that before `until`.
    pub(crate) fn forgotten(&mut self, address: AddressId, host: HostId, until: u64) {
        self.proven.remove(&(address, host));
        let excused = self.excused.entry((address, host)).or_default();
        *excused = until.max(*excused);
    }

    /// A host says nothing for a while, so what is not known at `now` may not be before `until`.
    pub(crate) fn excuse_longer(&mut self, now: u64, until: u64) {
        for excused in self.excused.values_mut().filter(|excused| **excused >= now) {
            *excused = until.max(*excused);
        }
    }

    /// Nobody tells the hosts any more what the network forgets.
    pub(crate) fn coordinator_crashed(&mut self) {
        for until in self.excused.values_mut() {
            *until = u64::MAX;
        }
    }

    /// Checks that `sender` may send to a group by an address.
    pub(crate) fn sends(&self, sender: HostId, id: GroupId, address: AddressId) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        let now = self.world.now_ns.get();
        for member in group.hosts.iter() {
            let over = group.ended.contains(member) || self.crashed.contains(member);
            let key = (address, member);
            let excused = self.excused.get(&key).is_some_and(|until| now <= *until);
            if member != sender && !over && !self.proven.contains(&key) && !excused {
                self.world.complain(|| {
                    format!("{sender:?} sends to {id:?} by {address:?}, not proven for {member:?}")
                });
            }
        }
    }

    /// A host sends a datagram to an address.
    pub(crate) fn departs(
        &mut self,
        fabric: &Fabric,
        host: HostId,
        address: AddressId,
        bytes: &[u8],
    ) {
        for id in groups_of(bytes) {
            let Some(group) = self.groups.get(&id) else {
                continue;
            };
            self.sent += 1;
            self.sends(host, id, address);
            let reached = fabric.reached(address.0, host.0);
            let over = |m: HostId| group.ended.contains(m) || self.crashed.contains(m);
            let reaches = |m: HostId| m == host || over(m) || reached.contains(&m.0);
            self.unreached += u64::from(!group.hosts.iter().all(reaches));
        }
    }

    /// The manager has answered a host's leave.
    pub(crate) fn left(&mut self, address: AddressId, host: HostId) {
        self.left_at
            .insert((address, host), self.world.now_ns.get());
    }

    /// A host asks the manager to leave an address, by which nobody may send to its groups.
    pub(crate) fn leaves(&self, host: HostId, address: AddressId) {
        for (&(sender, id), &by) in &self.by {
            let group = &self.groups[&id];
            let member = group.hosts.contains(host) && !group.ended.contains(host);
            if by == address && sender != host && member && !self.crashed.contains(sender) {
                self.world.complain(|| {
                    format!("{host:?} leaves {address:?}, by which {sender:?} sends to {id:?}")
                });
            }
        }
    }

    /// A datagram to an address reaches a host, which has it attached or not.
    pub(crate) fn arrives(&mut self, host: HostId, address: AddressId, attached: bool, b: &[u8]) {
        for id in groups_of(b) {
            let Some(group) = self.groups.get(&id) else {
                continue;
            };
            let counter = match (group.hosts.contains(host), attached) {
                (true, _) => &mut self.received.own,
                (false, false) => &mut self.received.foreign_after_leave,
                (false, true) if address == AddressId(0) => &mut self.received.foreign_by_context,
                (false, true) => &mut self.received.foreign_by_address,
            };
            *counter += 1;
            let left_at = self.left_at.get(&(address, host));
            if let Some(at) = left_at.filter(|_| !attached && !group.hosts.contains(host)) {
                let late = Duration::from_nanos(self.world.now_ns.get() - at);
                let max = &mut self.received.after_leave_max;
                *max = late.max(*max);
            }
        }
    }
}

/// The groups that a datagram's frames name.
fn groups_of(bytes: &[u8]) -> BTreeSet<GroupId> {
    let datagram = wire::decode(bytes);
    let groups = datagram.iter().flat_map(|datagram| datagram.frames());
    groups
        .map(|frame| match frame {
            Frame::Data(f) => f.group,
            Frame::Xor(f) => f.group,
            Frame::Parity(f) => f.group,
            Frame::Feedback(f) => f.group,
            Frame::Sync(f) => f.group,
            Frame::Probe(f) | Frame::ProbeAck(f) => f.group,
            Frame::Word(f) => f.group,
            Frame::Query(f) => f.group,
            Frame::Reply(f) => f.group,
        })
        .collect()
}
