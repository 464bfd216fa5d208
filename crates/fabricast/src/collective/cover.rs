//! A path for a message to a set of ranks that is no group itself, over the groups that exist.
//!
//! P4 (4.2) divides such a set into disjoint sets that its hardware can address, and the sender
//! broadcasts to one set after another. A [`Cover`] does the same with groups, the largest first:
//! it broadcasts once to each, and no rank gets the message twice. Two things differ from P4,
//! because only a member broadcasts to a group here. First, a group that shares a member with those
//! before it gets the message from that member. If no member of a group has the message, the lowest
//! member is sent the message first. Second, the rank that is free first sends these messages and
//! those to ranks that no group covers (P4 names a tree as the alternative to its chain). Without
//! groups, a cover is a binomial tree.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::step::Peer;

/// Smallest number of members with which a group is worth a broadcast. A broadcast to fewer is a
/// message to one rank.
const MEMBERS_MIN: usize = 3;

/// How a message gets from one rank to a set of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cover {
    root: usize,
    hops: Vec<Hop>,
}

/// One operation of a cover: a broadcast to a group by one of its members, or a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hop {
    /// The rank that sends. It has the message by then.
    pub from: usize,
    /// The ranks that receive and lack the message: all other members of the group, or one rank.
    pub to: Vec<usize>,
    /// The group to which it goes, as an index into the list of groups; `None`: it is a message.
    pub group: Option<usize>,
}

impl Cover {
    /// The cover from `root`, which may be in the target or not, to all other ranks of `target`.
    ///
    /// A group serves if it has at least three members, at most one member has the message, and all
    /// others are targets that lack it. The largest serving group comes next; among equals, a group
    /// in which a member has the message; among these, the first in the list. The list is the same
    /// on every rank, and so is the cover.
    pub fn new(target: &BTreeSet<usize>, root: usize, groups: &[Vec<usize>]) -> Cover {
        let mut lacking = target.clone();
        lacking.remove(&root);
        let mut front = Front {
            hops: Vec::new(),
            lacking,
            free: BTreeMap::from([(root, 0)]),
        };
        while front.next_group(groups) {}
        while let Some(&rank) = front.lacking.first() {
            front.message(rank);
        }
        let hops = front.hops;
        Cover { root, hops }
    }

    /// The rank that has the message at the start.
    pub fn root(&self) -> usize {
        self.root
    }

    /// The operations, in order. A rank receives the message in an earlier hop than it sends it,
    /// and sends in this order.
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }

    /// The peer from which a rank gets the message, and the peers to which it sends it, in its
    /// order.
    pub(super) fn peers(&self, rank: usize) -> (Option<Peer>, Vec<Peer>) {
        let (mut parent, mut children) = (None, Vec::new());
        for hop in &self.hops {
            let root = hop.from;
            let group = hop.group.map(|group| Peer::Group { group, root });
            if hop.from == rank {
                children.push(group.unwrap_or(Peer::Rank(hop.to[0])));
            } else if hop.to.contains(&rank) {
                parent = Some(group.unwrap_or(Peer::Rank(hop.from)));
            }
        }
        (parent, children)
    }
}

/// A cover that is being built.
struct Front {
    hops: Vec<Hop>,
    lacking: BTreeSet<usize>,
    /// The ranks that have the message, and the round in which each may send next, if an operation
    /// takes one round.
    free: BTreeMap<usize, usize>,
}

impl Front {
    /// Covers one more group. Returns false if no group serves.
    fn next_group(&mut self, groups: &[Vec<usize>]) -> bool {
        let serving = groups.iter().enumerate().filter(|(_, g)| self.serves(g));
        let best = |(_, g): &(usize, &Vec<usize>)| Reverse((g.len(), self.has(g).is_some()));
        let Some((group, members)) = serving.min_by_key(best) else {
            return false;
        };
        let from = self.has(members).unwrap_or_else(|| {
            let lowest = *members.iter().min().expect("three members at least");
            self.message(lowest);
            lowest
        });
        let to = members.iter().copied().filter(|&m| m != from).collect();
        self.hop(from, to, Some(group));
        true
    }

    /// Whether a broadcast to the group is worth it, and reaches only ranks that lack the message.
    fn serves(&self, members: &[usize]) -> bool {
        let has = members.iter().filter(|m| self.free.contains_key(m)).count();
        let lack = members.iter().filter(|m| self.lacking.contains(m)).count();
        members.len() >= MEMBERS_MIN && has <= 1 && has + lack == members.len()
    }

    /// A member that has the message.
    fn has(&self, members: &[usize]) -> Option<usize> {
        let mut members = members.iter().copied();
        members.find(|m| self.free.contains_key(m))
    }

    /// Adds a message to `to` from the rank that is free first; among several, from the lowest.
    fn message(&mut self, to: usize) {
        let first = self.free.iter().min_by_key(|&(_, round)| round);
        let (&from, _) = first.expect("the root has it");
        self.hop(from, vec![to], None);
    }

    fn hop(&mut self, from: usize, to: Vec<usize>, group: Option<usize>) {
        let over = self.free[&from] + 1;
        self.free.insert(from, over);
        for &rank in &to {
            self.lacking.remove(&rank);
            self.free.insert(rank, over);
        }
        self.hops.push(Hop { from, to, group });
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::super::schedule::{Algorithm, Schedule};
    use super::super::segments::Segments;
    use super::super::testing::{Done, carry_out};
    use super::*;

    type Set = BTreeSet<usize>;

    /// All subsets of the first `nodes` ranks whose size is in `sizes`. Each is in order.
    fn sets(nodes: usize, sizes: RangeInclusive<usize>) -> Vec<Vec<usize>> {
        let set = |bits: usize| (0..nodes).filter(move |n| bits >> n & 1 == 1).collect();
        let all = (0..1 << nodes).map(set);
        all.filter(|set: &Vec<usize>| sizes.contains(&set.len()))
            .collect()
    }

    /// All lists of at most `most` of these groups.
    fn lists(of: &[Vec<usize>], most: usize) -> Vec<Vec<Vec<usize>>> {
        let mut lists = vec![Vec::new()];
        for group in of {
            let mut longer = lists.clone();
            longer.retain(|list| list.len() < most);
            longer.iter_mut().for_each(|list| list.push(group.clone()));
            lists.extend(longer);
        }
        lists
    }

    /// Carries out a message of two segments along the cover. No rank sends what it lacks, none
    /// gets the message twice, and only targets get it.
    fn carried_out(cover: &Cover, nodes: usize, target: &Set, groups: &[Vec<usize>]) -> Done {
        let schedule = Schedule {
            algorithm: Algorithm::Cover(cover.clone()),
            nodes,
            root: cover.root(),
            segments: Segments::equal(3, 2),
        };
        let done = carry_out(&schedule, target, groups);
        assert!(!done.stuck && done.times_max <= 1, "{schedule:?}");
        done
    }

    /// Checks every root, every target, and every list of at most `most` of these groups.
    fn each(nodes: usize, of: &[Vec<usize>], most: usize) {
        for groups in lists(of, most) {
            for target in sets(nodes, 0..=nodes) {
                let target: Set = target.into_iter().collect();
                for root in 0..nodes {
                    let cover = Cover::new(&target, root, &groups);
                    let done = carried_out(&cover, nodes, &target, &groups);
                    assert_eq!(done.operations, 2 * cover.hops().len());
                    let lacking = target.iter().filter(|&&rank| rank != root).count();
                    let inside = |m: &usize| *m == root || target.contains(m);
                    let serves = |g: &Vec<usize>| g.len() >= 3 && g.iter().all(inside);
                    let saves = cover.hops().len() < lacking;
                    assert_eq!(saves, groups.iter().any(serves), "{cover:?} of {groups:?}");
                }
            }
        }
    }

    #[test]
    fn whoever_is_meant_gets_it_once_and_nobody_else() {
        each(4, &sets(4, 2..=4), usize::MAX);
        each(5, &sets(5, 2..=5), 2);
        each(5, &sets(5, 3..=5), 3);
    }

    fn hop(from: usize, to: &[usize], group: Option<usize>) -> Hop {
        let to = to.to_vec();
        Hop { from, to, group }
    }

    #[test]
    fn sets_are_chained_the_largest_first() {
        let groups = [
            vec![6, 5, 7],
            vec![0, 1, 2],
            vec![4, 3, 2],
            vec![1, 3, 8],
            vec![1, 2, 13, 14, 15],
            vec![9, 10, 11, 12],
        ];
        let cover = Cover::new(&(0..13).collect(), 0, &groups);
        let wanted = [
            hop(0, &[9], None),
            hop(9, &[10, 11, 12], Some(5)),
            hop(0, &[1, 2], Some(1)),
            hop(2, &[4, 3], Some(2)),
            hop(0, &[5], None),
            hop(5, &[6, 7], Some(0)),
            hop(1, &[8], None), // 0 would be free a round later
        ];
        assert_eq!(cover.hops(), wanted);
    }

    #[test]
    fn without_groups_it_is_as_quick_as_a_binomial_tree() {
        for nodes in 1..=40 {
            let target = (0..nodes).collect();
            let cover = Cover::new(&target, nodes / 2, &[]);
            let schedule = Schedule {
                algorithm: Algorithm::Cover(cover),
                nodes,
                root: nodes / 2,
                segments: Segments::whole(1),
            };
            let rounds = carry_out(&schedule, &target, &[]).rounds;
            assert_eq!(rounds, nodes.next_power_of_two().ilog2() as usize);
        }
    }
}
