//! Which processes share the memory of a host, and how that shapes a group.

use std::collections::BTreeSet;

use fabricast_proto::NodeId;

/// The host of each process.
pub(crate) struct Hosts {
    /// The lowest rank with which a rank shares memory, indexed by rank.
    first: Vec<u32>,
}

impl Hosts {
    /// From what each process says: its host's number, and whether it can map the host's memory. If
    /// any process of a host cannot, each process there counts as a host of its own.
    pub fn new(said: &[(u64, bool)]) -> Hosts {
        let first = (0..).zip(said).map(|(rank, &(host, _))| {
            let mut local_ranks = (0..).zip(said).filter(|(_, s)| s.0 == host);
            match local_ranks.clone().all(|(_, s)| s.1) {
                true => local_ranks.next().map_or(rank, |(first, _)| first),
                false => rank,
            }
        });
        Hosts {
            first: first.collect(),
        }
    }

    /// Whether two processes share memory.
    pub fn share(&self, a: NodeId, b: NodeId) -> bool {
        self.first[a.0 as usize] == self.first[b.0 as usize]
    }

    /// Those of the sorted `members` that share memory with `of`, itself among them.
    pub fn local_ranks(&self, of: NodeId, members: &[NodeId]) -> Vec<NodeId> {
        let local_ranks = members.iter().filter(|&&m| self.share(of, m));
        local_ranks.copied().collect()
    }

    /// The leader of each host: its first process among the sorted `members`.
    pub fn leaders(&self, members: &[NodeId]) -> Vec<NodeId> {
        let mut hosts = BTreeSet::new();
        let first = |m: &NodeId| hosts.insert(self.first[m.0 as usize]);
        members.iter().copied().filter(first).collect()
    }
}

/// How a group is served, as one of its members sees it.
#[derive(Clone, Debug)]
pub(crate) struct GroupTopology {
    /// The members that use the network, one for each host.
    pub leaders: Vec<NodeId>,
    /// The members on this process's host.
    pub local_ranks: Vec<NodeId>,
    /// Whether some members share memory and others do not. Broadcasts then go through two groups.
    pub mixed: bool,
    /// Whether this process is its host's leader.
    pub leads: bool,
}

impl GroupTopology {
    /// The topology of the sorted `members`, as seen by `me`, one of them.
    pub fn new(hosts: &Hosts, members: &[NodeId], me: NodeId) -> GroupTopology {
        let (leaders, local_ranks) = (hosts.leaders(members), hosts.local_ranks(me, members));
        GroupTopology {
            mixed: leaders.len() > 1 && leaders.len() < members.len(),
            leads: local_ranks.first() == Some(&me),
            leaders,
            local_ranks,
        }
    }

    /// Whether this process is in a group on the network.
    pub fn is_far(&self) -> bool {
        self.leads && self.leaders.len() > 1
    }

    /// Whether this process is in a group that shares memory.
    pub fn is_near(&self) -> bool {
        self.local_ranks.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(ranks: &[u32]) -> Vec<NodeId> {
        ranks.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn a_host_whose_memory_one_process_cannot_reach_is_none() {
        let hosts = Hosts::new(&[(7, true), (8, true), (7, true), (8, false), (9, true)]);
        assert_eq!(hosts.first, [0, 1, 0, 3, 4]);
    }

    #[test]
    fn groups_have_the_shape_of_their_members() {
        let hosts = Hosts::new(&[(1, true), (1, true), (2, true), (1, true), (2, true)]);
        let topology =
            |members: &[u32], me| GroupTopology::new(&hosts, &nodes(members), NodeId(me));
        let all = topology(&[0, 1, 2, 3, 4], 3);
        assert_eq!(
            (all.leaders, all.local_ranks),
            (nodes(&[0, 2]), nodes(&[0, 1, 3]))
        );
        assert!(all.mixed && !all.leads);
        let some = topology(&[1, 3, 4], 1);
        assert_eq!(some.leaders, nodes(&[1, 4]));
        assert!(some.mixed && some.leads && some.is_far() && some.is_near());
        let lonely = topology(&[1, 3, 4], 4);
        assert!(lonely.mixed && lonely.is_far() && !lonely.is_near());
        let near = topology(&[0, 3], 0);
        assert!(!near.mixed && !near.is_far() && near.is_near());
        let far = topology(&[1, 2], 2);
        assert!(!far.mixed && far.is_far() && !far.is_near());
    }
}
