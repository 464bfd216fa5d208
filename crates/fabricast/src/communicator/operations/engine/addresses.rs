//! The multicast addresses of a context: by which one each group sends, and which are joined.
//!
//! The first [`ADDRESSES`] are shared: 0 by the leaders of all hosts, the others by all groups that
//! a hash leads to them. Those that follow belong to the machine of [`fabricast_proto::group`], if
//! the context has a strategy. Its hosts are the *speakers*: the lowest process of each host. A
//! group that is led by other processes stays at a shared address.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fabricast_proto::group::{Config, Host, HostId, HostSet, Refusal};
use fabricast_proto::{AddressId, GroupId, NodeId, Time};
use rustc_hash::FxHashMap;
use tracing::{debug, info, warn};

use crate::communicator::limits::{ADDRESSES, ADDRESSES_MAX};
use crate::communicator::wireup::Addressing;
use crate::communicator::wireup::mail::Mail;
use crate::driver::Join;
use crate::subnet::Subnet;
use crate::transport::GroupAddress;

/// Time between two reports of what this process has sent to groups.
pub(super) const REPORT: Duration = Duration::from_secs(1);
/// Time between two looks for answers of the subnet, soon after it was asked.
const LOOK: Duration = Duration::from_millis(1);
/// The same once it has been silent for [`SOON`].
const LOOK_LATER: Duration = Duration::from_millis(20);
/// How long answers are looked for often.
const SOON: Duration = Duration::from_millis(100);

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

/// What the subnet was asked for last, of one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// To join; it has not answered.
    Joining,
    /// To join; it has agreed, and the network is joining.
    Attaching,
    /// To join; it has agreed, and the network has joined.
    Granted,
    /// To leave; it has not answered.
    Leaving,
}

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
pub(super) struct Owned {
    pub host: Host,
    /// The processes that speak for their hosts, sorted.
    pub speakers: Vec<NodeId>,
    pub mail: Arc<Mail>,
    pub subnet: Box<dyn Subnet + Send>,
    /// What the subnet was asked for, of each address.
    pub asked: BTreeMap<AddressId, Asked>,
    /// When it was last asked.
    pub asked_at: Time,
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
    /// When the subnet was last asked for answers.
    pub looked: Time,
    /// When there is something to do again.
    pub wake: Time,
}

impl Owned {
    /// The network has joined an address that the subnet has granted, or not, or is about to.
    pub fn attaches(
        &mut self,
        now: Time,
        (id, at): (AddressId, &GroupAddress),
        joined: io::Result<Join>,
    ) {
        match joined {
            Ok(Join::UnderWay) => {}
            Ok(Join::Done) => {
                self.asked.insert(id, Asked::Granted);
                self.host.joined(now, id);
            }
            Err(error) => {
                debug!(%error, address = %at, "cannot join");
                self.asked.remove(&id);
                self.subnet.leave(now, at);
                let why = Refusal::NoAddresses;
                self.host.refused(now, id, why);
            }
        }
    }

    pub fn new(
        now: Time,
        addressing: Addressing,
        (speakers, me): (Vec<NodeId>, NodeId),
    ) -> Option<Owned> {
        let Addressing {
            strategy,
            addresses,
            subnet,
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
        Some(Owned {
            host: Host::new(now, &config),
            speakers,
            mail,
            subnet,
            asked: BTreeMap::new(),
            asked_at: now,
            proofs: BTreeMap::new(),
            groups: FxHashMap::default(),
            sent_own: 0,
            unreported: false,
            scarce: false,
            aside: Vec::new(),
            reported: now,
            looked: now,
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

    pub fn speaker(&self, host: HostId) -> NodeId {
        self.speakers[host.0 as usize]
    }

    /// When there is something to do again, if the machine has something to do at this time.
    pub fn due(&self, machine: Time) -> Time {
        let report = self.unreported.then_some(self.reported + REPORT);
        let subnet = self.subnet.due();
        // No thread sleeps on the subnet's descriptor, so its answers are looked for.
        let unanswered = self.asked.values().any(|&asked| asked != Asked::Granted);
        let pause = match self.looked.since(self.asked_at) < SOON {
            true => LOOK,
            false => LOOK_LATER,
        };
        let looks = unanswered.then_some(self.looked + pause);
        let all = [Some(machine), report, subnet, looks];
        all.into_iter().flatten().min().unwrap_or(Time::NEVER)
    }

    /// Tells which hosts the coordinator has set aside since the last call, and which are back.
    pub fn tell_aside(&mut self) {
        let aside = self.host.set_aside();
        if aside == self.aside {
            return;
        }
        let known = |all: &[(HostId, Refusal)], host| all.iter().any(|(known, _)| *known == host);
        for &(host, why) in aside.iter().filter(|(host, _)| !known(&self.aside, *host)) {
            let rank = self.speaker(host).0;
            warn!(rank, %why, "communicators with this rank's host have no address of their own");
        }
        for &(host, _) in self.aside.iter().filter(|(host, _)| !known(&aside, *host)) {
            let rank = self.speaker(host).0;
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
