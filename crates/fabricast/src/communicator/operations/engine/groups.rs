//! A group's life: it is added, left, or given up.

use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

use fabricast_proto::group::shared_address;
use fabricast_proto::{AddressId, Command, GroupId, NodeId, Refused, Seq, Time};
use tracing::{info, warn};

use super::{Engine, State};
use crate::collective::Ended;
use crate::communicator::error::Error;
use crate::communicator::hierarchy::schedule::usual;
use crate::communicator::hierarchy::topology::GroupTopology;
use crate::communicator::limits::ADDRESSES;
use crate::communicator::networks::Network;
use crate::communicator::operations::ending::Place;
use crate::communicator::operations::group::{Channels, EVERYBODY, Group};
use crate::communicator::operations::operation::Op;
use crate::net::Clock;
use crate::object::Divisible;
use crate::transport::GroupAddress;

/// How long a process probes by multicast, and then as long again by unicast. A host that multicast
/// reaches answers the first probe after the switch has learned of its join. The process sends at
/// least 20 probes (80 with up to 16 members) before it probes the silent hosts by unicast.
pub(super) const PROVE: Duration = Duration::from_millis(200);
/// How long a process waits for the subnet to grant the address of all hosts. It goes on without:
/// the others serve it by unicast until the grant comes.
const GRANTED: Duration = Duration::from_secs(2);

impl<O: Divisible> Engine<O> {
    /// Joins the IP group that serves the leaders of all hosts. The kernel tells the switches of
    /// the join some milliseconds later. Until then multicasts are lost and must be NACKed, so the
    /// process joins before there is any group.
    pub fn listen(&mut self, clock: &Clock) -> Result<(), Error> {
        let topology = GroupTopology::new(&self.hosts, &self.all, self.rank);
        if self.all.len() == 1 || !topology.is_far() {
            return Ok(());
        }
        self.join_far(clock.now(), EVERYBODY, &topology.leaders)?;
        let until = clock.now() + GRANTED;
        while !self.memberships.is_settled() && clock.now() < until {
            let moment = Duration::from_millis(1);
            if self.memberships.awaits_subnet() {
                self.memberships.wait(moment);
                let _ = self.address(clock.now());
            } else {
                thread::sleep(moment);
                self.step(clock.now())?;
            }
        }
        Ok(())
    }

    /// Begins to prove that multicast reaches all hosts, so that the context is ready only once the
    /// switches forward it, or have had time to. Two leaders probe all others: the second one also
    /// proves the join of the first.
    pub fn prove(&mut self, now: Time) -> Result<(), Error> {
        let topology = GroupTopology::new(&self.hosts, &self.all, self.rank);
        // Two hosts use no multicast.
        if !topology.is_far() || topology.leaders.len() == 2 {
            return Ok(());
        }
        self.proving = self.probes(&topology.leaders);
        self.add_to(Network::InterNode, EVERYBODY, topology.leaders)?;
        let command = Command::Prove {
            group: EVERYBODY,
            multicast: PROVE,
            unicast: PROVE,
        };
        match self.proving {
            true => self.networks.command(Network::InterNode, now, command),
            false => Ok(()),
        }
        .map_err(Error::from)
    }

    pub fn is_proving(&self) -> bool {
        self.proving
    }

    /// Whether this process is one of those that probe the others.
    fn probes(&self, leaders: &[NodeId]) -> bool {
        leaders.len() > 2 && leaders[..2].contains(&self.rank)
    }

    /// What this process has found out about multicast, if it has probed the others: the number of
    /// its own host, and the numbers of the hosts that its multicasts do not reach. Hosts are
    /// numbered in the order of their leaders.
    pub fn tried(&self) -> Option<(u32, Vec<u32>)> {
        let leaders = &self.leaders;
        if self.proving || !self.probes(leaders) {
            return None;
        }
        let number = |leader| leaders.binary_search(leader).ok().map(|host| host as u32);
        let unreached = self.unreached.iter().filter_map(number);
        Some((number(&self.rank)?, unreached.collect()))
    }

    /// Ends the probing. All processes have agreed that multicast does not reach the hosts with
    /// these numbers, so groups serve them by unicast from the start. This process stays in the IP
    /// group.
    pub fn proven(&mut self, now: Time, unreached: &[u32]) {
        self.proving = false;
        let leaders = &self.leaders;
        let leaders_first = leaders.first().copied();
        let unreached = unreached
            .iter()
            .filter_map(|&host| leaders.get(host as usize));
        self.unreached = unreached.copied().collect();
        if !self.unreached.is_empty() {
            info!(ranks = ?self.unreached, "multicast does not reach these hosts");
        }
        let reached = leaders
            .iter()
            .filter(|leader| !self.unreached.contains(leader));
        let speakers: Vec<NodeId> = reached.copied().collect();
        if leaders_first == Some(self.rank) {
            self.statistics.unreached += self.unreached.len() as u64;
        }
        // The group does not exist in a context of one or two hosts.
        let _ = self
            .networks
            .command(Network::InterNode, now, Command::GroupRemove(EVERYBODY));
        // Groups with a host that multicast does not reach keep a shared address. The first process
        // decides about addresses, since all have a connection to it.
        let is_first = speakers.first().copied() == leaders_first;
        if speakers.len() > 2 && is_first {
            self.begin_to_address(now, speakers);
        } else if leaders.len() > 2 && self.strategy.is_some() {
            self.unaddressed = match speakers.len() > 2 {
                _ if self.memberships.awaits_subnet() => "the subnet does not answer",
                true => "multicast does not reach rank 0's host",
                false => "multicast reaches fewer than three hosts",
            };
            warn!(
                why = self.unaddressed,
                "no group gets an address of its own"
            );
        }
    }

    /// Adds a group on the network. If multicast does not reach a host in [`EVERYBODY`], it does
    /// not reach the host here either, whichever of the host's processes leads.
    pub(super) fn add_far(&mut self, group: GroupId, leaders: &[NodeId]) -> Result<(), Error> {
        self.add_to(Network::InterNode, group, leaders.to_vec())?;
        let unreached = |m: &&NodeId| self.unreached.iter().any(|&u| self.hosts.share(**m, u));
        let members: Vec<NodeId> = leaders.iter().filter(unreached).copied().collect();
        if members.is_empty() {
            return Ok(());
        }
        let command = Command::Unreached { group, members };
        let told = self
            .networks
            .command(Network::InterNode, Time::ZERO, command);
        told.map_err(Error::from)
    }

    /// Adds a group: on the network among its leaders, which join an IP group that they share with
    /// other groups, and in memory among the members on this host.
    pub fn add(&mut self, now: Time, group: &Group) -> Result<(), Error> {
        let mut members = group.members.clone();
        members.sort_unstable();
        members.dedup();
        let known = members.iter().all(|m| self.all.binary_search(m).is_ok());
        if members.len() != group.members.len() || !known || !members.contains(&self.rank) {
            return Err(Error::GroupMembers);
        }
        if group.id.0 > self.group_max() {
            return Err(Error::GroupNumber(group.id.0));
        }
        let topology = GroupTopology::new(&self.hosts, &members, self.rank);
        if topology.is_far() {
            // Two hosts use unicast only.
            let is_pair = topology.leaders.len() == 2;
            if !is_pair && !self.owns_address(group.id, &topology.leaders) {
                self.join_far(now, group.id, &topology.leaders)?;
            }
            self.add_far(group.id, &topology.leaders)?;
        }
        if topology.is_near() {
            // The place of each local rank among all of this host's processes.
            let here = self.hosts.local_ranks(self.rank, &self.all);
            let places = topology
                .local_ranks
                .iter()
                .filter_map(|m| here.binary_search(m).ok());
            let members = GroupAddress::Members(places.map(|place| place as u32).collect());
            let address = AddressId(group.id.0);
            let joined = self.networks.join(Network::IntraNode, address, &members);
            joined.map_err(|e| Error::io("sharing memory", e))?;
            self.add_to(Network::IntraNode, group.id, topology.local_ranks.clone())?;
        }
        let state = State {
            members,
            topology,
            channels: Channels::default(),
            operations: 0,
            calls: 0,
            sent: VecDeque::new(),
        };
        self.groups.insert(group.id, state);
        self.foretold(now, group.id);
        Ok(())
    }

    /// Chooses the address by which a group of these leaders sends, and joins it.
    pub(super) fn join_far(
        &mut self,
        now: Time,
        group: GroupId,
        leaders: &[NodeId],
    ) -> Result<(), Error> {
        let id = self.shared_address(leaders);
        let Some(address) = self.addresses.begin(group, id) else {
            return Ok(());
        };
        let joined = self.join_shared(now, id);
        joined.map_err(|e| Error::io(format!("joining {address}"), e))
    }

    /// A group on the network between hosts sends no more. Leaves its address with the last group.
    pub(super) fn leave_far(&mut self, now: Time, group: GroupId) {
        if let Some(id) = self.addresses.end(group) {
            self.leave_shared(now, id);
        }
    }

    fn add_to(
        &mut self,
        network: Network,
        group: GroupId,
        members: Vec<NodeId>,
    ) -> Result<(), Error> {
        let address = match network {
            Network::InterNode => self.addresses.of(group),
            Network::IntraNode => Some(AddressId(group.0)),
        };
        let command = Command::GroupAdd {
            group,
            address,
            members,
            payload_size: self.payload_size[network as usize],
            start: Seq(0),
        };
        let added = self.networks.command(network, Time::ZERO, command);
        added.map_err(Error::from)
    }

    /// The address that serves these leaders: 0 for the leaders of all hosts, another one for any
    /// other set.
    fn shared_address(&self, members: &[NodeId]) -> AddressId {
        if members == self.leaders {
            return AddressId(0);
        }
        shared_address(members.iter().map(|m| m.0), ADDRESSES as u32 - 1)
    }

    /// Leaves a group: this process starts nothing there any more. If it never has, no member has,
    /// because all take part in everything. Then there is nothing to wait for.
    pub fn leave(&mut self, now: Time, group: GroupId) {
        if self
            .groups
            .get(&group)
            .is_some_and(|state| state.calls == 0)
        {
            return self.end(now, group);
        }
        let networks = self.networks_of(group);
        if networks.is_empty() {
            self.groups.remove(&group);
        }
        for network in networks {
            self.endings.begin(now, (group, network));
            // The next step begins with it, and must come soon: perhaps no caller comes again.
            self.wake = Some(now);
        }
    }

    /// The networks in which a group exists here.
    pub(super) fn networks_of(&self, group: GroupId) -> Vec<Network> {
        let topology = self.groups.get(&group).map(|state| &state.topology);
        let near = topology
            .is_some_and(GroupTopology::is_near)
            .then_some(Network::IntraNode);
        let far = topology
            .is_some_and(GroupTopology::is_far)
            .then_some(Network::InterNode);
        near.into_iter().chain(far).collect()
    }

    /// Continues the end of the groups that this process leaves. Returns when to look again, and
    /// whether a barrier was begun.
    pub(super) fn go_on_leaving(&mut self, now: Time) -> (Option<Time>, bool) {
        let mut begun = false;
        for (group, network) in self.endings.flushing(now) {
            let place = (group, network);
            let Some(state) = self.groups.get(&group) else {
                self.has_ended(now, place);
                continue;
            };
            if state.operations > 0 {
                self.endings.flushes_on(place);
                continue;
            }
            let members = match network {
                Network::InterNode => state.topology.leaders.len(),
                Network::IntraNode => state.topology.local_ranks.len(),
            };
            let by = usual(members);
            match self.networks.barrier(network, now, group, by, false) {
                Ok(op) => {
                    self.endings.meets(place, op);
                    begun = true;
                }
                Err(Refused::Busy) => self.endings.flushes_on(place),
                Err(_) => self.has_ended(now, place),
            }
        }
        while let Some((place, over)) = self.endings.answered(now) {
            match over || self.is_quiet(now, place) {
                true => self.has_ended(now, place),
                false => self.endings.answers_on(now, place),
            }
        }
        (self.endings.wake(now), begun)
    }

    /// Whether no member owes a group an answer.
    fn is_quiet(&mut self, now: Time, (group, network): Place) -> bool {
        // The channels go with the group on the network between hosts.
        let state = self.groups.get(&group);
        let channels = state.filter(|_| network == Network::InterNode);
        let mut all = channels.into_iter().flat_map(|s| &s.channels.groups);
        self.networks.is_quiet(network, now, group)
            && all.all(|&channel| self.networks.is_quiet(network, now, channel))
    }

    /// A group has ended on one of the networks.
    fn has_ended(&mut self, now: Time, (group, network): Place) {
        self.endings.remove((group, network));
        self.remove_from(network, now, group);
        let ends = |&network: &Network| self.endings.has((group, network));
        if !Network::BOTH.iter().any(ends) {
            self.groups.remove(&group);
            self.executor.end(group);
        }
    }

    /// Removes a group from one of the networks.
    fn remove_from(&mut self, network: Network, now: Time, group: GroupId) {
        if network == Network::InterNode {
            self.remove_channels(now, group);
        }
        // The group may be gone already.
        let _ = self
            .networks
            .command(network, now, Command::GroupRemove(group));
        match network {
            Network::InterNode if self.disowns_address(now, group) => {}
            Network::InterNode => self.leave_far(now, group),
            Network::IntraNode => self.networks.leave(network, AddressId(group.0)),
        }
    }

    /// Ends all groups of a lost process, and what is under way in them.
    pub fn give_up(&mut self, now: Time, node: NodeId) {
        if self.gone.insert(node) {
            warn!(rank = node.0, "rank lost");
            self.speaker_gone(now, node);
            let groups = self
                .groups
                .iter()
                .filter(|(_, g)| g.members.contains(&node));
            let hit: Vec<GroupId> = groups.map(|(&group, _)| group).collect();
            for group in hit {
                self.end(now, group);
                // The loss is the reason, whatever broke off before.
                self.breaking.remove(&group);
            }
        }
    }

    /// Ends a group, and what is under way in it.
    pub fn end(&mut self, now: Time, group: GroupId) {
        for network in self.networks_of(group) {
            self.endings.remove((group, network));
            self.remove_from(network, now, group);
        }
        self.groups.remove(&group);
        // Collectives must first come back from the drivers.
        self.executor.end(group);
        let hit = self.operations.iter().filter(|(_, o)| o.group == group);
        let hit: Vec<Op> = hit.map(|(&op, _)| op).collect();
        for op in hit {
            self.passed(op);
            if matches!(op, Op::Single(..)) {
                self.ends(op, Ended::Failed, None, None);
            }
        }
        self.on_news();
    }
}
