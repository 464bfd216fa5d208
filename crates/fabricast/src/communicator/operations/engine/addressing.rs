//! How a process gives groups multicast addresses: it executes what the machine of
//! [`fabricast_proto::group`] wants, and tells it what has come of that.

use std::io;
use std::mem;
use std::time::Duration;

use fabricast_proto::group::{Grant, HostSet, Message, Output, Refusal};
use fabricast_proto::{AddressId, Command, GroupId, NodeId, Seq, Time};
use tracing::{debug, info, warn};

use super::Engine;
use super::addresses::{Asked, OwnGroup, Owned, REPORT};
use super::groups::PROVE;
use crate::communicator::hierarchy::topology::GroupTopology;
use crate::communicator::networks::Network;
use crate::communicator::operations::group::PROOF;
use crate::communicator::operations::statistics::AddressStatistics;
use crate::communicator::wireup::mail::FAREWELL_LETTER;
use crate::driver::Join;
use crate::net::Clock;
use crate::object::Divisible;
use crate::subnet::failed::Failed;
use crate::subnet::{self, News};
use crate::transport::GroupAddress;

/// How long a context that ends waits until the subnet has taken its addresses back.
const RETURNING: Duration = Duration::from_secs(1);

impl<O: Divisible> Engine<O> {
    /// Begins to give addresses to groups, now that multicast is proven to reach the speakers.
    pub(super) fn begin_to_address(&mut self, now: Time, speakers: Vec<NodeId>) {
        let Some(addressing) = self.addressing.take() else {
            return;
        };
        let (strategy, members) = (addressing.strategy, speakers.clone());
        self.owned = Owned::new(now, addressing, (speakers, self.rank));
        if self.owned.is_some() {
            info!(%strategy, "groups get addresses of their own");
            // Messages may have arrived already.
            self.wake = Some(now);
            self.add_proof(members);
        }
    }

    /// Adds the group of all speakers in which addresses are proven. It sends nothing else.
    fn add_proof(&mut self, members: Vec<NodeId>) {
        let add = Command::GroupAdd {
            group: PROOF,
            address: None,
            members,
            payload_size: self.payload_size[Network::InterNode as usize],
            start: Seq(0),
        };
        // Without the group no address is proven, and groups go on by the shared ones.
        let _ = self.networks.command(Network::InterNode, Time::ZERO, add);
    }

    /// The hosts of a group of these leaders, if the machine may give it an address.
    fn owners(&self, leaders: &[NodeId]) -> Option<HostSet> {
        let owned = self.owned.as_ref()?;
        // The leaders of all hosts have the context's address.
        let is_part = leaders.len() > 2 && leaders.len() < owned.speakers.len();
        owned.hosts(leaders).filter(|_| is_part)
    }

    /// Takes note of a new group of these leaders, which the machine gives an address when the
    /// group is granted one or is first used. Returns false if the group keeps a shared address.
    pub(super) fn owns_address(&mut self, group: GroupId, leaders: &[NodeId]) -> bool {
        let Some(hosts) = self.owners(leaders) else {
            self.count_unowned(leaders);
            return false;
        };
        if let Some(owned) = &mut self.owned {
            let unused = Some(hosts);
            let new = OwnGroup {
                unused,
                ..OwnGroup::default()
            };
            owned.groups.insert(group, new);
        }
        self.addresses.of.insert(group, AddressId(0));
        true
    }

    /// Counts a group that can have no address of its own, if this process is the one that does.
    fn count_unowned(&mut self, leaders: &[NodeId]) {
        let all = self.hosts.leaders(&self.all);
        let is_part = leaders.len() > 2 && leaders.len() < all.len();
        let has_begun = self.strategy.is_some() && self.addressing.is_none();
        if !has_begun || !is_part || leaders.first() != Some(&self.rank) {
            return;
        }
        let counted = &mut self.statistics.addresses;
        if leaders
            .iter()
            .any(|leader| all.binary_search(leader).is_err())
        {
            counted.unled += 1;
        } else {
            // Multicast did not reach a host at the start.
            counted.unaddressed.0[Refusal::Unproven.index()] += 1;
        }
    }

    /// An address for a group of these members, which goes to all of them with the agreement on the
    /// group. `None`: none is at hand, or another member has it.
    pub fn take_address(&mut self, now: Time, members: &[NodeId]) -> Option<Grant> {
        let topology = GroupTopology::new(&self.hosts, members, self.rank);
        let hosts = self.owners(&topology.leaders)?;
        self.owned.as_mut()?.host.take(now, &hosts)
    }

    /// Returns an address that no member has granted to a group.
    pub fn put_back_address(&mut self, now: Time, grant: Grant) {
        if let Some(owned) = &mut self.owned {
            owned.host.put_back(now, grant);
            owned.wake = now;
        }
        self.address(now);
    }

    /// The members of a group have agreed on its address.
    pub fn grant_address(&mut self, now: Time, group: GroupId, grant: Grant) {
        self.begins_to_own(now, group, Some(grant));
    }

    /// A group is about to be used.
    pub(super) fn uses_address(&mut self, now: Time, group: GroupId) {
        self.begins_to_own(now, group, None);
        let Some(owned) = &mut self.owned else {
            return;
        };
        if let Some(known) = owned.groups.get_mut(&group)
            && known.uses < 2
        {
            known.uses += 1;
            if known.uses == 2 {
                owned.host.used_again(now, group);
                owned.wake = now;
                self.wake = Some(now);
            }
        }
    }

    fn begins_to_own(&mut self, now: Time, group: GroupId, grant: Option<Grant>) {
        if let Some(owned) = &mut self.owned
            && let Some(known) = owned.groups.get_mut(&group)
            && let Some(hosts) = known.unused.take()
            && owned.host.create(now, group, hosts, grant)
        {
            known.early = true;
            owned.wake = now;
            self.address(now);
        }
    }

    /// A group that the machine may have given an address exists no more.
    pub(super) fn disowns_address(&mut self, now: Time, group: GroupId) -> bool {
        let Some(owned) = &mut self.owned else {
            return false;
        };
        if owned.groups.remove(&group).is_none() {
            return false;
        }
        owned.host.ended(now, group);
        owned.wake = now;
        self.wake = Some(now);
        self.addresses.of.remove(&group);
        true
    }

    /// Whether a group must wait for its address before it sends.
    pub(super) fn is_early(&self, group: GroupId) -> bool {
        let known = self
            .owned
            .as_ref()
            .and_then(|owned| owned.groups.get(&group));
        known.is_some_and(|known| known.early)
    }

    /// Takes note that this process broadcasts bytes to a group.
    pub(super) fn sends_to(&mut self, group: GroupId, bytes: u64) {
        if let Some(owned) = &mut self.owned {
            owned.sends(group, bytes);
        }
    }

    /// A speaker is gone.
    pub(super) fn speaker_gone(&mut self, now: Time, node: NodeId) {
        if let Some(owned) = &mut self.owned
            && let Some(host) = owned.host_of(node)
        {
            owned.host.gone(now, host);
            owned.wake = now;
        }
    }

    /// A speaker has not answered the proof of an address.
    pub(super) fn is_silent(&mut self, address: AddressId, node: NodeId) {
        if let Some(owned) = &mut self.owned
            && let Some(host) = owned.host_of(node)
            && let Some(silent) = owned.proofs.get_mut(&address)
        {
            silent.insert(host);
        }
    }

    /// The proof of an address is over.
    pub(super) fn proof_ends(&mut self, now: Time, address: AddressId) {
        let at = self.addresses.at(address);
        if let Some(owned) = &mut self.owned
            && let Some(silent) = owned.proofs.remove(&address)
        {
            let address_name = at.map(GroupAddress::to_string);
            debug!(
                address = address_name,
                silent = silent.len(),
                "address proven"
            );
            owned.host.proved(now, address, &silent);
            owned.wake = now;
        }
    }

    /// Multicast does not reach a member of a group.
    pub(super) fn path_fails(&mut self, now: Time, group: GroupId) {
        if let Some(owned) = &mut self.owned
            && let Some(status) = owned.host.status(group)
            && let Some(address) = status.address
            && address.0 > 0
        {
            owned.host.unreached(now, address);
            owned.wake = now;
        }
    }

    /// Passes on what has arrived and what is due. Returns when to do so again.
    pub(super) fn address(&mut self, now: Time) -> Option<Time> {
        let owned = self.owned.as_ref()?;
        if !owned.mail.has_arrived() && owned.wake > now {
            return Some(owned.wake).filter(|&wake| wake != Time::NEVER);
        }
        let mut owned = self.owned.take()?;
        self.address_by(now, &mut owned);
        self.owned = Some(owned);
        // The driver may have got something to do.
        Some(now)
    }

    fn address_by(&mut self, now: Time, owned: &mut Owned) {
        owned.looked = now;
        self.hear_subnet(now, owned);
        for (rank, bytes) in owned.mail.take() {
            let from = owned.host_of(NodeId(rank));
            if let Some(host) = from.filter(|_| bytes == FAREWELL_LETTER) {
                owned.host.gone(now, host);
                continue;
            }
            let message = Message::decode(&bytes, owned.speakers.len() as u32);
            if let (Some(from), Some(message)) = (from, message) {
                owned.host.message(now, from, message);
            }
        }
        if owned.unreported && now.since(owned.reported) >= REPORT {
            (owned.reported, owned.unreported) = (now, false);
            let sent = owned.groups.iter_mut().filter(|(_, known)| known.bytes > 0);
            for (&group, known) in sent {
                owned.host.sent(now, group, mem::take(&mut known.bytes));
            }
        }
        loop {
            match owned.host.poll(now) {
                Output::Join(id) => self.joins_address(now, owned, id),
                Output::JoinAnew(id) => self.joins_anew(now, owned, id),
                Output::Leave(id) => self.leaves_address(now, owned, id),
                Output::Prove { address, hosts } => {
                    self.proves_address(now, owned, address, &hosts);
                }
                Output::SendBy { group, address } => {
                    let at = address.and_then(|address| self.addresses.at(address));
                    let at = at.map(GroupAddress::to_string);
                    debug!(group = group.0, address = at, "sends by");
                    let own = owned.host.status(group).is_some_and(|status| status.own);
                    if let Some(known) = owned.groups.get_mut(&group) {
                        known.own = own;
                    }
                    match address {
                        Some(id) => _ = self.addresses.of.insert(group, id),
                        None => _ = self.addresses.of.remove(&group),
                    }
                    // The group is added in a moment, with this address, or is gone.
                    let command = Command::SendBy { group, address };
                    let _ = self.networks.command(Network::InterNode, now, command);
                }
                Output::Tell { to, message } => {
                    let mut bytes = Vec::new();
                    message.encode(&mut bytes);
                    owned.mail.send(owned.speaker(to).0, bytes);
                }
                Output::Ready(group) => {
                    if let Some(known) = owned.groups.get_mut(&group) {
                        known.early = false;
                    }
                }
                Output::Wait(at) => {
                    owned.wake = owned.due(at);
                    break;
                }
            }
        }
        if !owned.scarce
            && let Some(why) = owned.host.scarce()
        {
            owned.scarce = true;
            info!(%why, "a group has no address of its own, and shares one");
        }
        owned.tell_aside();
    }

    /// The machine asks to join an address.
    fn joins_address(&mut self, now: Time, owned: &mut Owned, id: AddressId) {
        let Some(at) = self.addresses.at(id) else {
            owned.host.refused(now, id, Refusal::NoAddresses);
            return;
        };
        match owned.asked.get(&id) {
            // Subnet and network go on by themselves.
            Some(Asked::Joining | Asked::Attaching) => {}
            // The machine gave up before the answer came.
            Some(Asked::Granted) => owned.host.joined(now, id),
            Some(Asked::Leaving) | None => {
                owned.asked.insert(id, Asked::Joining);
                owned.asked_at = now;
                owned.subnet.create(now, at);
            }
        }
        self.hear_subnet(now, owned);
    }

    /// The machine asks to join an address anew: kernel, switches and manager are told once more.
    fn joins_anew(&mut self, now: Time, owned: &mut Owned, id: AddressId) {
        if let Some(at) = self.addresses.at(id)
            && matches!(
                owned.asked.get(&id),
                Some(Asked::Attaching | Asked::Granted)
            )
        {
            self.networks.leave(Network::InterNode, id);
            owned.subnet.leave(now, at);
            owned.subnet.create(now, at);
            owned.asked.insert(id, Asked::Joining);
            owned.asked_at = now;
        }
        self.joins_address(now, owned, id);
    }

    fn leaves_address(&mut self, now: Time, owned: &mut Owned, id: AddressId) {
        self.networks.leave(Network::InterNode, id);
        match (owned.asked.get_mut(&id), self.addresses.at(id)) {
            // The subnet tries again by itself.
            (Some(Asked::Leaving), _) => {}
            (Some(asked), Some(at)) => {
                *asked = Asked::Leaving;
                owned.asked_at = now;
                owned.subnet.leave(now, at);
            }
            _ => owned.host.left(now, id),
        }
        self.hear_subnet(now, owned);
    }

    /// Takes what the subnet tells. A socket receives an address from when the subnet has granted
    /// it.
    fn hear_subnet(&mut self, now: Time, owned: &mut Owned) {
        if let Err(error) = owned.subnet.step(now) {
            warn!(%error, "the subnet gives no more addresses");
            self.subnet_fails(now, owned);
        }
        while let Some(news) = owned.subnet.news() {
            debug!(%news, "the subnet tells");
            match news {
                News::Joined(at) => self.is_granted(now, owned, &at),
                News::Refused(at, why) => {
                    let Some(id) = self.addresses.number_of(&at) else {
                        continue;
                    };
                    owned.asked.remove(&id);
                    owned.host.refused(now, id, reason(why));
                }
                News::Left(at) => {
                    // An address that is joined again is not left.
                    if let Some(id) = self.addresses.number_of(&at)
                        && owned.asked.get(&id) == Some(&Asked::Leaving)
                    {
                        owned.asked.remove(&id);
                        owned.host.left(now, id);
                    }
                }
                News::Lost(at) => {
                    if let Some(id) = self.addresses.number_of(&at) {
                        owned.asked.insert(id, Asked::Joining);
                        owned.host.lost(now, id);
                    }
                }
                news => info!(%news, "the subnet tells"),
            }
        }
    }

    /// The subnet has failed for good. It refuses everything from now on, and groups go on by the
    /// addresses that need no subnet.
    fn subnet_fails(&mut self, now: Time, owned: &mut Owned) {
        owned.subnet = Box::new(Failed::default());
        for (id, asked) in mem::take(&mut owned.asked) {
            match asked {
                Asked::Joining => {
                    let why = Refusal::Denied;
                    owned.host.refused(now, id, why);
                }
                Asked::Attaching => {
                    self.networks.leave(Network::InterNode, id);
                    owned.host.refused(now, id, Refusal::Denied);
                }
                Asked::Granted => {
                    self.networks.leave(Network::InterNode, id);
                    owned.host.lost(now, id);
                }
                Asked::Leaving => owned.host.left(now, id),
            }
        }
    }

    fn is_granted(&mut self, now: Time, owned: &mut Owned, at: &GroupAddress) {
        let Some(id) = self.addresses.number_of(at) else {
            return;
        };
        // It may have been withdrawn meanwhile.
        let Some(asked) = owned.asked.get_mut(&id).filter(|a| **a != Asked::Leaving) else {
            return;
        };
        *asked = Asked::Attaching;
        let joined = self.networks.join(Network::InterNode, id, at);
        owned.attaches(now, (id, at), joined);
    }

    /// Whether the network is joining an address that the subnet has granted.
    pub(super) fn is_attaching(&self, id: AddressId) -> bool {
        let asked = self.owned.as_ref().and_then(|owned| owned.asked.get(&id));
        asked == Some(&Asked::Attaching)
    }

    /// Takes note of how the network's join of an address has ended, if it is one that the subnet
    /// has granted.
    pub(super) fn is_attached(&mut self, now: Time, id: AddressId, joined: io::Result<Join>) {
        if self.is_attaching(id)
            && let (Some(owned), Some(at)) = (&mut self.owned, self.addresses.at(id))
        {
            owned.attaches(now, (id, at), joined);
            // The machine may ask for more.
            self.wake = Some(now);
        }
    }

    /// Begins to prove an address.
    fn proves_address(&mut self, now: Time, owned: &mut Owned, address: AddressId, of: &HostSet) {
        owned.proofs.insert(address, HostSet::default());
        let prove = Command::ProveAddress {
            group: PROOF,
            address,
            members: of.iter().map(|host| owned.speaker(host)).collect(),
            patience: PROVE,
        };
        if self
            .networks
            .command(Network::InterNode, now, prove)
            .is_err()
        {
            // There is no group of all speakers, so nothing proves the address.
            owned.proofs.remove(&address);
            owned.host.proved(now, address, of);
        }
    }

    /// Returns all addresses, since the context ends. Waits a moment until the subnet has confirmed
    /// that.
    pub fn return_addresses(&mut self, clock: &Clock) {
        let Some(mut owned) = self.owned.take() else {
            return;
        };
        let until = clock.now() + RETURNING;
        owned.host.close(clock.now());
        while !owned.host.is_closed() && clock.now() < until {
            self.address_by(clock.now(), &mut owned);
            // An error shows in the next step.
            let _ = owned.subnet.wait(Duration::from_millis(1));
        }
    }

    /// From now on, another subnet grants addresses.
    #[cfg(test)]
    pub fn put_subnet(&mut self, subnet: Box<dyn subnet::Subnet + Send>) {
        if let Some(owned) = &mut self.owned {
            owned.subnet = subnet;
        }
    }

    /// Groups with an address from the pool of which rank 0 is yet to be told.
    #[cfg(test)]
    pub fn untold(&self) -> u32 {
        let owned = self.owned.as_ref();
        owned.map_or(0, |owned| owned.host.snapshot().untold)
    }

    /// The addresses and groups at this moment.
    pub(super) fn address_statistics(&self) -> AddressStatistics {
        let addresses = self.statistics.addresses;
        let Some(owned) = &self.owned else {
            return addresses;
        };
        let (snapshot, counted) = (owned.host.snapshot(), owned.host.statistics());
        AddressStatistics {
            unaddressed: addresses.unaddressed.and(&counted.unaddressed),
            unled: addresses.unled,
            ..AddressStatistics::new(&snapshot, &counted, owned.sent_own)
        }
    }
}

/// Why the subnet has refused an address, in the machine's words.
fn reason(why: subnet::Refusal) -> Refusal {
    match why {
        subnet::Refusal::NoAddresses | subnet::Refusal::TooMany => Refusal::NoAddresses,
        subnet::Refusal::Busy | subnet::Refusal::TimedOut => Refusal::NoAnswer,
        _ => Refusal::Denied,
    }
}
