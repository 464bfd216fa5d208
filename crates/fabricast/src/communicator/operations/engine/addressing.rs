//! How a process gives groups multicast addresses: it executes what the machine of
//! [`fabricast_proto::group`] wants, and tells it what has come of that.

use std::io;
use std::mem;
use std::time::Duration;

use fabricast_proto::group::{Grant, HostSet, Message, Output, Refusal, Strategy};
use fabricast_proto::{AddressId, Command, GroupId, NodeId, Seq, Time};
use tracing::{debug, info, warn};

use super::Engine;
use super::groups::PROVE;
use super::memberships::Became;
use super::speaker::{OwnGroup, REPORT, Speaker};
use crate::communicator::hierarchy::topology::GroupTopology;
use crate::communicator::limits::ADDRESSES;
use crate::communicator::networks::Network;
use crate::communicator::operations::group::PROOF;
use crate::communicator::operations::statistics::AddressStatistics;
use crate::communicator::wireup::mail::FAREWELL_LETTER;
use crate::driver::Join;
use crate::net::Clock;
use crate::object::Divisible;
#[cfg(test)]
use crate::subnet::Subnet;
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
        self.speaker = Speaker::new(now, addressing, (speakers, self.rank));
        self.unaddressed = "another process speaks for this host";
        if self.speaker.is_some() {
            info!(%strategy, "groups get addresses of their own");
            // Messages may have arrived already.
            self.wake = Some(now);
            self.add_proof(members);
        }
    }

    /// Whether this process waits for the first address of a pool.
    pub fn awaits_pool(&self) -> bool {
        let has_pool = self.strategy.is_some_and(Strategy::has_pool);
        let speaker = self.speaker.as_ref().filter(|_| has_pool);
        speaker.is_some_and(|speaker| !speaker.host.has_spare())
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
        let speaker = self.speaker.as_ref()?;
        // The leaders of all hosts have the context's address.
        let is_part = leaders.len() > 2 && leaders.len() < speaker.speakers.len();
        is_part.then(|| speaker.hosts(leaders)).flatten()
    }

    /// Takes note of a new group of these leaders, which the machine gives an address when the
    /// group is granted one or is first used. Returns false if the group keeps a shared address.
    pub(super) fn owns_address(&mut self, group: GroupId, leaders: &[NodeId]) -> bool {
        let Some(hosts) = self.owners(leaders) else {
            self.count_unowned(leaders);
            return false;
        };
        if let Some(speaker) = &mut self.speaker {
            let unused = Some(hosts);
            let new = OwnGroup {
                unused,
                ..OwnGroup::default()
            };
            speaker.groups.insert(group, new);
        }
        self.addresses.of.insert(group, AddressId(0));
        true
    }

    /// Counts a group that can have no address of its own, if this process is the one that does.
    fn count_unowned(&mut self, leaders: &[NodeId]) {
        let all = &self.leaders;
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
        self.speaker.as_mut()?.host.take(now, &hosts)
    }

    /// Returns an address that no member has granted to a group.
    pub fn put_back_address(&mut self, now: Time, grant: Grant) {
        if let Some(speaker) = &mut self.speaker {
            speaker.host.put_back(now, grant);
            speaker.wake = now;
        }
        self.address(now);
    }

    /// The members of a group have agreed on its address.
    pub fn grant_address(&mut self, now: Time, group: GroupId, grant: Grant) {
        self.begins_to_own(now, group, Some(grant));
    }

    /// A group is about to be used.
    pub(super) fn uses_address(&mut self, now: Time, group: GroupId) {
        if let Some(speaker) = &mut self.speaker
            && let Some(known) = speaker.groups.get_mut(&group)
            && known.uses < 2
        {
            known.uses += 1;
            if known.uses == 1 {
                return self.begins_to_own(now, group, None);
            }
            speaker.host.used_again(now, group);
            speaker.wake = now;
            self.wake = Some(now);
        }
    }

    fn begins_to_own(&mut self, now: Time, group: GroupId, grant: Option<Grant>) {
        if let Some(speaker) = &mut self.speaker
            && let Some(known) = speaker.groups.get_mut(&group)
            && let Some(hosts) = known.unused.take()
            && speaker.host.create(now, group, hosts, grant)
        {
            known.early = true;
            speaker.wake = now;
            self.address(now);
        }
    }

    /// A group that the machine may have given an address exists no more.
    pub(super) fn disowns_address(&mut self, now: Time, group: GroupId) -> bool {
        let Some(speaker) = &mut self.speaker else {
            return false;
        };
        if speaker.groups.remove(&group).is_none() {
            return false;
        }
        speaker.host.ended(now, group);
        speaker.wake = now;
        self.wake = Some(now);
        self.addresses.of.remove(&group);
        true
    }

    /// Whether a group must wait for its address before it sends.
    pub(super) fn is_early(&self, group: GroupId) -> bool {
        let known = self
            .speaker
            .as_ref()
            .and_then(|speaker| speaker.groups.get(&group));
        known.is_some_and(|known| known.early)
    }

    /// Takes note that this process broadcasts bytes to a group.
    pub(super) fn sends_to(&mut self, group: GroupId, bytes: u64) {
        if let Some(speaker) = &mut self.speaker {
            speaker.sends(group, bytes);
        }
    }

    /// A speaker is gone.
    pub(super) fn speaker_gone(&mut self, now: Time, node: NodeId) {
        if let Some(speaker) = &mut self.speaker
            && let Some(host) = speaker.host_of(node)
        {
            speaker.host.gone(now, host);
            speaker.wake = now;
        }
    }

    /// A speaker has not answered the proof of an address.
    pub(super) fn is_silent(&mut self, address: AddressId, node: NodeId) {
        if let Some(speaker) = &mut self.speaker
            && let Some(host) = speaker.host_of(node)
            && let Some(silent) = speaker.proofs.get_mut(&address)
        {
            silent.insert(host);
        }
    }

    /// The proof of an address is over.
    pub(super) fn proof_ends(&mut self, now: Time, address: AddressId) {
        let at = self.addresses.at(address);
        if let Some(speaker) = &mut self.speaker
            && let Some(silent) = speaker.proofs.remove(&address)
        {
            let address_name = at.map(GroupAddress::to_string);
            debug!(
                address = address_name,
                silent = silent.len(),
                "address proven"
            );
            speaker.host.proved(now, address, &silent);
            speaker.wake = now;
        }
    }

    /// Multicast does not reach a member of a group.
    pub(super) fn path_fails(&mut self, now: Time, group: GroupId) {
        if let Some(speaker) = &mut self.speaker
            && let Some(status) = speaker.host.status(group)
            && let Some(address) = status.address
            && address.0 > 0
        {
            speaker.host.unreached(now, address);
            speaker.wake = now;
        }
    }

    /// Passes on what has arrived and what is due. Returns when to do so again.
    pub(super) fn address(&mut self, now: Time) -> Option<Time> {
        let due = |speaker: &Speaker| speaker.mail.has_arrived() || speaker.wake <= now;
        let is_due = self.speaker.as_ref().is_some_and(due);
        let granted = self.memberships.due();
        if !is_due && granted > now {
            let speaker = self
                .speaker
                .as_ref()
                .map_or(Time::NEVER, |speaker| speaker.wake);
            return Some(speaker.min(granted)).filter(|&wake| wake != Time::NEVER);
        }
        let mut speaker = self.speaker.take();
        self.tell_machine(now, speaker.as_mut());
        if let Some(speaker) = &mut speaker {
            self.address_by(now, speaker);
        }
        self.speaker = speaker;
        // The driver may have got something to do.
        Some(now)
    }

    fn address_by(&mut self, now: Time, speaker: &mut Speaker) {
        for (rank, bytes) in speaker.mail.take() {
            let from = speaker.host_of(NodeId(rank));
            if let Some(host) = from.filter(|_| bytes == FAREWELL_LETTER) {
                speaker.host.gone(now, host);
                continue;
            }
            let message = Message::decode(&bytes, speaker.speakers.len() as u32);
            if let (Some(from), Some(message)) = (from, message) {
                speaker.host.message(now, from, message);
            }
        }
        if speaker.unreported && now.since(speaker.reported) >= REPORT {
            (speaker.reported, speaker.unreported) = (now, false);
            let sent = speaker
                .groups
                .iter_mut()
                .filter(|(_, known)| known.bytes > 0);
            for (&group, known) in sent {
                speaker.host.sent(now, group, mem::take(&mut known.bytes));
            }
        }
        loop {
            match speaker.host.poll(now) {
                Output::Join(id) => self.joins_address(now, speaker, id, false),
                Output::JoinAnew(id) => self.joins_address(now, speaker, id, true),
                Output::Leave(id) => self.leaves_address(now, speaker, id),
                Output::Prove { address, hosts } => {
                    self.proves_address(now, speaker, address, &hosts);
                }
                Output::SendBy { group, address } => {
                    let at = address.and_then(|address| self.addresses.at(address));
                    let at = at.map(GroupAddress::to_string);
                    debug!(group = group.0, address = at, "sends by");
                    let own = speaker.host.status(group).is_some_and(|status| status.own);
                    if let Some(known) = speaker.groups.get_mut(&group) {
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
                    speaker.mail.send(speaker.node_of(to).0, bytes);
                }
                Output::Ready(group) => {
                    if let Some(known) = speaker.groups.get_mut(&group) {
                        known.early = false;
                    }
                }
                Output::Wait(at) => {
                    speaker.wake = speaker.due(at);
                    break;
                }
            }
        }
        if !speaker.scarce
            && let Some(why) = speaker.host.scarce()
        {
            speaker.scarce = true;
            info!(%why, "a group has no address of its own, and shares one");
        }
        speaker.tell_aside();
    }

    /// The machine asks to join an address, or to join it anew.
    fn joins_address(&mut self, now: Time, speaker: &mut Speaker, id: AddressId, anew: bool) {
        let Some(at) = self.addresses.at(id) else {
            speaker.host.refused(now, id, Refusal::NoAddresses);
            return;
        };
        match anew {
            true => self
                .memberships
                .join_anew(now, (id, at), &mut self.networks),
            false => self.memberships.join(now, (id, at)),
        }
        self.tell_machine(now, Some(speaker));
    }

    fn leaves_address(&mut self, now: Time, speaker: &mut Speaker, id: AddressId) {
        match self.addresses.at(id) {
            Some(at) => self.memberships.leave(now, (id, at), &mut self.networks),
            None => speaker.host.left(now, id),
        }
        self.tell_machine(now, Some(speaker));
    }

    /// Tells the machine, if there is one, what has become of memberships.
    fn tell_machine(&mut self, now: Time, speaker: Option<&mut Speaker>) {
        if let Err(error) = self.hear_subnet(now, speaker) {
            warn!(%error, "groups of an address that cannot be joined are served by unicast");
        }
    }

    /// Takes what has become of memberships, and tells the machine of those that are its own.
    ///
    /// # Errors
    /// The network could not join a shared address that the subnet has granted.
    fn hear_subnet(&mut self, now: Time, mut speaker: Option<&mut Speaker>) -> io::Result<()> {
        let mut shared = Ok(());
        self.memberships
            .step(now, &self.addresses, &mut self.networks);
        while let Some((id, became)) = self.memberships.news() {
            let is_shared = (id.0 as usize) < ADDRESSES;
            // What is lost, the subnet joins again by itself.
            if let Some(speaker) = &mut speaker {
                speaker.wake = now;
                match &became {
                    Became::Joined => speaker.host.joined(now, id),
                    Became::Refused(why) => speaker.host.refused(now, id, *why),
                    Became::Failed(_) => speaker.host.refused(now, id, Refusal::NoAddresses),
                    Became::Lost => speaker.host.lost(now, id),
                    Became::Left => speaker.host.left(now, id),
                }
            }
            match became {
                Became::Failed(error) if is_shared => shared = Err(error),
                Became::Refused(why) if is_shared => {
                    let at = self.addresses.at(id).map(GroupAddress::to_string);
                    warn!(address = at, %why, "groups that share it are served by unicast");
                }
                _ => {}
            }
        }
        shared
    }

    /// Begins to join a shared address. If the subnet does not answer at once, multicasts reach
    /// this process when it has; until then, or if it refuses, unicast serves this process.
    ///
    /// # Errors
    /// It is known at once that the network cannot join the address.
    pub(super) fn join_shared(&mut self, now: Time, id: AddressId) -> io::Result<()> {
        let Some(at) = self.addresses.at(id) else {
            return Ok(());
        };
        self.memberships.join(now, (id, at));
        let mut speaker = self.speaker.take();
        let heard = self.hear_subnet(now, speaker.as_mut());
        self.speaker = speaker;
        heard
    }

    /// Leaves a shared address.
    pub(super) fn leave_shared(&mut self, now: Time, id: AddressId) {
        if let Some(at) = self.addresses.at(id) {
            self.memberships.leave(now, (id, at), &mut self.networks);
            // The next step takes the answer.
            self.wake = Some(now);
        }
    }

    /// Takes note of how the network's join of an address has ended.
    pub(super) fn is_attached(&mut self, now: Time, id: AddressId, joined: io::Result<Join>) {
        if self.memberships.is_attaching(id)
            && let Some(at) = self.addresses.at(id)
        {
            self.memberships.attached(now, (id, at), joined);
            // The machine may ask for more.
            self.wake = Some(now);
        }
    }

    /// Begins to prove an address.
    fn proves_address(
        &mut self,
        now: Time,
        speaker: &mut Speaker,
        address: AddressId,
        of: &HostSet,
    ) {
        speaker.proofs.insert(address, HostSet::default());
        let prove = Command::ProveAddress {
            group: PROOF,
            address,
            members: of.iter().map(|host| speaker.node_of(host)).collect(),
            patience: PROVE,
        };
        if self
            .networks
            .command(Network::InterNode, now, prove)
            .is_err()
        {
            // There is no group of all speakers, so nothing proves the address.
            speaker.proofs.remove(&address);
            speaker.host.proved(now, address, of);
        }
    }

    /// Returns all addresses, since the context ends. Waits a moment until the subnet has confirmed
    /// that.
    pub fn return_addresses(&mut self, clock: &Clock) {
        let mut speaker = self.speaker.take();
        let until = clock.now() + RETURNING;
        if let Some(speaker) = &mut speaker {
            speaker.host.close(clock.now());
        }
        self.memberships
            .leave_shared(clock.now(), &self.addresses, &mut self.networks);
        loop {
            let _ = self.hear_subnet(clock.now(), speaker.as_mut());
            if let Some(speaker) = &mut speaker {
                self.address_by(clock.now(), speaker);
            }
            let closed = |speaker: &Speaker| speaker.host.is_closed();
            let returned = self.memberships.is_empty() && speaker.as_ref().is_none_or(closed);
            if returned || clock.now() >= until {
                break;
            }
            self.memberships.wait(Duration::from_millis(1));
        }
    }

    /// From now on, another subnet grants addresses.
    #[cfg(test)]
    pub fn put_subnet(&mut self, subnet: Box<dyn Subnet + Send>) {
        self.memberships.put_subnet(subnet);
    }

    /// Groups with an address from the pool of which rank 0 is yet to be told.
    #[cfg(test)]
    pub fn untold(&self) -> u32 {
        let speaker = self.speaker.as_ref();
        speaker.map_or(0, |speaker| speaker.host.snapshot().untold)
    }

    /// The addresses and groups at this moment.
    pub(super) fn address_statistics(&self) -> AddressStatistics {
        let addresses = self.statistics.addresses;
        let Some(speaker) = &self.speaker else {
            return addresses;
        };
        let (snapshot, counted) = (speaker.host.snapshot(), speaker.host.statistics());
        AddressStatistics {
            unaddressed: addresses.unaddressed.and(&counted.unaddressed),
            unled: addresses.unled,
            ..AddressStatistics::new(&snapshot, &counted, speaker.sent_own)
        }
    }
}
