//! Broadcasts by messages between two members, and by groups of members that together cover the
//! group. Each of these ways is a group of the core with a number of its own:
//!
//! ```text
//!   RESERVED + group * stride + (a + b) mod size     the channel of processes a and b
//!   RESERVED + group * stride + size + k             set k of the group's cover
//! ```
//! So both ends of a channel know its number without asking each other, and no process has two
//! channels of one number: a sum names the other process. Both ends add a channel when they start
//! the first operation that needs it.

use std::collections::BTreeSet;
#[cfg(test)]
use std::time::Duration;

use fabricast_proto::{Command, GroupId, NodeId, Refused, Seq, Time};

use super::{Engine, State};
use crate::collective::{Algorithm, Channel, Cover, Peer, Schedule, Segments, Step};
use crate::communicator::error::{CoverError, Error};
use crate::communicator::limits::COVER_SETS_MAX;
use crate::communicator::networks::Network;
use crate::communicator::operations::group::{EVERYBODY, Group, PROOF};
use crate::communicator::options::BroadcastAlgorithm;
use crate::object::Divisible;

/// Bytes of a segment.
const SEGMENT: u64 = 64 << 10;
/// First number of the channels' groups. No caller's group has a number as high.
const RESERVED: u32 = 1 << 31;

/// Where the peers of a group's members are.
#[derive(Clone)]
pub(super) struct Ways {
    group: GroupId,
    me: NodeId,
    members: Vec<NodeId>,
    size: u32,
}

impl Ways {
    /// The members' indices, in order, of set `at` of a cover, which has these ranks.
    fn indices(&self, at: usize, ranks: &[u32]) -> Result<Vec<usize>, CoverError> {
        let mut indices = BTreeSet::new();
        for &rank in ranks {
            let Ok(index) = self.members.binary_search(&NodeId(rank)) else {
                return Err(CoverError::NoMember { set: at, rank });
            };
            if !indices.insert(index) {
                return Err(CoverError::Twice { set: at, rank });
            }
        }
        Ok(indices.into_iter().collect())
    }

    /// The number of a group of the core that belongs to a group.
    fn number(&self, i: u32) -> GroupId {
        let stride = self.size + COVER_SETS_MAX as u32;
        GroupId(RESERVED + self.group.0 * stride + i)
    }

    /// Where a peer is.
    pub fn channel(&self, peer: Peer) -> Channel<Network> {
        let (i, root) = match peer {
            Peer::Rank(rank) | Peer::Local { root: rank } => {
                let (a, b) = (self.me.0, self.members[rank].0);
                (
                    ((u64::from(a) + u64::from(b)) % u64::from(self.size)) as u32,
                    rank,
                )
            }
            Peer::Group { group, root } => (self.size + group as u32, root),
        };
        Channel {
            network: Network::InterNode,
            group: self.number(i),
            node: self.members[root],
        }
    }
}

impl<O: Divisible> Engine<O> {
    /// The largest number that a group may have, so that the numbers of all its channels exist.
    pub fn group_max(&self) -> u32 {
        let stride = self.all.len() as u32 + COVER_SETS_MAX as u32;
        match self.algorithm {
            BroadcastAlgorithm::Multicast => PROOF.0 - 1,
            _ => (EVERYBODY.0 - RESERVED) / stride - 1,
        }
    }

    /// Where the peers of a group's members are.
    pub(super) fn ways(&self, group: GroupId) -> Option<Ways> {
        let members = self.groups.get(&group)?.members.clone();
        Some(Ways {
            group,
            me: self.rank,
            members,
            size: self.all.len() as u32,
        })
    }

    /// The steps of this process in a broadcast by messages. `None`: it goes by one operation of
    /// the group itself.
    pub(super) fn messages(&self, group: &State, root: NodeId, len: u64) -> Option<Vec<Step>> {
        let members = &group.members;
        // A group of two is a channel itself.
        if members.len() < 3 {
            return None;
        }
        let rank = |node: NodeId| members.binary_search(&node).ok();
        let algorithm = match self.algorithm {
            BroadcastAlgorithm::Multicast => return None,
            BroadcastAlgorithm::Tree => Algorithm::Binomial,
            BroadcastAlgorithm::Chain => Algorithm::Chain,
            BroadcastAlgorithm::ScatterAllgather => Algorithm::ScatterAllgather,
            BroadcastAlgorithm::Cover => {
                let target = (0..members.len()).collect();
                Algorithm::Cover(Cover::new(&target, rank(root)?, &group.channels.sets))
            }
        };
        let schedule = Schedule {
            algorithm,
            nodes: members.len(),
            root: rank(root)?,
            segments: Segments::marked(len, SEGMENT),
        };
        Some(schedule.steps(rank(self.rank)?))
    }

    /// Adds the channels that the steps need and that do not exist yet.
    pub(super) fn open_channels(&mut self, ways: &Ways, steps: &[Step]) -> Result<(), Refused> {
        let state = self.groups.get_mut(&ways.group).ok_or(Refused::NoGroup)?;
        let to_ranks = steps.iter().filter(|s| matches!(s.peer, Peer::Rank(_)));
        for Channel { group, node, .. } in to_ranks.map(|step| ways.channel(step.peer)) {
            if state.channels.groups.contains(&group) {
                continue;
            }
            let mut members = vec![self.rank, node];
            members.sort_unstable();
            let command = Command::GroupAdd {
                group,
                address: None,
                members,
                payload_size: self.payload_size[Network::InterNode as usize],
                start: Seq(0),
            };
            self.networks
                .command(Network::InterNode, Time::ZERO, command)?;
            state.channels.groups.insert(group);
        }
        Ok(())
    }

    /// Names the sets that broadcasts of a group go to. Each is a group of its own, whose members
    /// join the IP group that serves them. After an error none of these groups exists.
    pub fn cover(&mut self, now: Time, group: &Group, sets: &[Vec<u32>]) -> Result<(), Error> {
        if self.algorithm != BroadcastAlgorithm::Cover {
            return Ok(());
        }
        let (Some(ways), Some(state)) = (self.ways(group.id), self.groups.get(&group.id)) else {
            return Err(Error::GroupEnded);
        };
        if state.channels.named {
            return Err(CoverError::Named.into());
        }
        if state.calls > 0 {
            return Err(CoverError::Started.into());
        }
        if sets.len() > COVER_SETS_MAX {
            return Err(CoverError::TooMany(sets.len()).into());
        }
        let sets = sets.iter().enumerate();
        let indices: Vec<Vec<usize>> = sets
            .map(|(at, set)| ways.indices(at, set))
            .collect::<Result<_, _>>()?;
        let added = self.add_sets(now, &ways, &indices);
        if added.is_err() {
            // Nothing was started, so the group has no other channels.
            self.remove_channels(now, group.id);
            return added;
        }
        if let Some(state) = self.groups.get_mut(&group.id) {
            (state.channels.sets, state.channels.named) = (indices, true);
        }
        Ok(())
    }

    /// Adds a group for each set that has this process.
    fn add_sets(&mut self, now: Time, ways: &Ways, indices: &[Vec<usize>]) -> Result<(), Error> {
        for (k, set) in indices.iter().enumerate() {
            let nodes: Vec<NodeId> = set.iter().map(|&i| ways.members[i]).collect();
            if nodes.len() < 2 || !nodes.contains(&self.rank) {
                continue;
            }
            let number = ways.channel(Peer::Group { group: k, root: 0 }).group;
            if let Some(state) = self.groups.get_mut(&ways.group) {
                // Also if it is added only in part.
                state.channels.groups.insert(number);
            }
            self.join_far(now, number, &nodes)?;
            self.add_far(number, &nodes)?;
        }
        Ok(())
    }

    /// Removes the channels of a group.
    pub(super) fn remove_channels(&mut self, now: Time, group: GroupId) {
        let Some(state) = self.groups.get_mut(&group) else {
            return;
        };
        for channel in std::mem::take(&mut state.channels.groups) {
            // The group may be gone already.
            let command = Command::GroupRemove(channel);
            let _ = self.networks.command(Network::InterNode, now, command);
            self.leave_far(now, channel);
        }
    }
}

#[cfg(test)]
impl<O: Divisible> Engine<O> {
    /// Whether this process leads in the group, and the groups of the core that exist for it.
    pub fn seen(&self, group: GroupId) -> Option<(bool, BTreeSet<GroupId>)> {
        let state = self.groups.get(&group)?;
        Some((state.topology.is_far(), state.channels.groups.clone()))
    }

    /// The number of a set of the group's cover.
    pub fn set(&self, group: GroupId, set: usize) -> GroupId {
        let peer = Peer::Group {
            group: set,
            root: 0,
        };
        self.ways(group).unwrap().channel(peer).group
    }

    /// Adds a group to the core, so that no other of its number can be added.
    pub fn occupies(&mut self, group: GroupId) {
        let all = self.all.clone();
        self.add_far(group, &all).unwrap();
    }

    /// Adds a channel on which this process waits as long for answers, because no other has it.
    /// Returns its number.
    pub fn waits_on_channel(&mut self, now: Time, group: GroupId, long: Duration) -> GroupId {
        let number = self.set(group, COVER_SETS_MAX - 1);
        self.occupies(number);
        let state = self.groups.get_mut(&group).unwrap();
        state.channels.groups.insert(number);
        let command = Command::Prove {
            group: number,
            multicast: long / 2,
            unicast: long / 2,
        };
        self.networks
            .command(Network::InterNode, now, command)
            .unwrap();
        number
    }

    /// Whether the core has this group on the network between hosts.
    pub fn in_core(&self, group: GroupId) -> bool {
        // A broadcast of no bytes is copied in any group that the core has.
        self.networks.far.node().copies(group, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Every process finds its own channels different, and both ends the same number.
    #[test]
    fn both_ends_know_a_channels_number_and_no_process_has_it_twice() {
        let size = 9;
        let mut seen: BTreeMap<(u32, GroupId), (u32, usize)> = BTreeMap::new();
        for (group, me) in (0..3).flat_map(|group| (0..size).map(move |me| (group, me))) {
            // Some members only, so that index and rank differ.
            let members: Vec<NodeId> = (0..size).filter(|r| r % 4 != 1).map(NodeId).collect();
            let ways = |me| Ways {
                group: GroupId(group),
                me: NodeId(me),
                members: members.clone(),
                size,
            };
            let Ok(index) = members.binary_search(&NodeId(me)) else {
                continue;
            };
            for other in (0..members.len()).filter(|&other| other != index) {
                let here = ways(me).channel(Peer::Rank(other));
                let there = ways(members[other].0).channel(Peer::Rank(index));
                assert_eq!(here.group, there.group);
                assert_eq!((here.node, there.node), (members[other], NodeId(me)));
                assert_eq!(seen.insert((me, here.group), (group, other)), None);
            }
            for k in 0..COVER_SETS_MAX {
                let set = ways(me).channel(Peer::Group { group: k, root: 0 });
                assert_eq!(seen.insert((me, set.group), (group, 100 + k)), None);
            }
        }
    }
}
