//! What a process does in a broadcast or a barrier of a group if some of its members share a host
//! and others do not (P4.9). Of the peers, `Peer::Group` is the group of all hosts' leaders on the
//! network, and `Peer::Local` the group of the members on this host in its memory. Ranks are those
//! of the context.
//!
//! ```text
//!   root ──near──► its host's leader ──far──► other leaders ──near──► their local ranks
//!        └──near──► its other local ranks
//! ```
//! A process receives by one network and sends by the other; a root that leads sends by both. A
//! long object is cut into segments, so that the network, the memory and the copies work at the
//! same time. In a barrier each leader holds its local ranks until the leaders have met.

use arrayvec::ArrayVec;
use fabricast_proto::{Barrier, NodeId};

use super::topology::{GroupTopology, Hosts};
use crate::collective::{Action, Part, Peer, Segments, Step, pass_on};
use crate::communicator::limits::COPY_MAX;

/// Bytes of a segment. An object that roots copy by default has one segment only.
pub(crate) const SEGMENT: u64 = 128 << 10;

/// The segments of an object of `len` bytes.
fn segments(len: u64) -> Segments {
    match len <= u64::from(COPY_MAX) {
        true => Segments::whole(len),
        false => Segments::marked(len, SEGMENT),
    }
}

/// The leaders, to whom `root`, one of them, broadcasts.
fn leaders(root: NodeId) -> Peer {
    Peer::Group {
        group: 0,
        root: root.0 as usize,
    }
}

/// The members on this host, to whom `root`, one of them, broadcasts.
fn local(root: NodeId) -> Peer {
    Peer::Local {
        root: root.0 as usize,
    }
}

/// The steps of process `me` in a broadcast of `len` bytes.
pub(crate) fn broadcast(
    hosts: &Hosts,
    topology: &GroupTopology,
    (root, me): (NodeId, NodeId),
    len: u64,
) -> Vec<Step> {
    let here = hosts.share(root, me);
    let leader = topology.leaders.iter().find(|&&l| hosts.share(l, root));
    let input = match (here, topology.leads) {
        _ if root == me => None,
        (true, _) => Some(local(root)),
        (false, true) => leader.map(|&leader| leaders(leader)),
        (false, false) => topology.local_ranks.first().map(|&leader| local(leader)),
    };
    let near = topology.is_near() && (root == me || !here && topology.leads);
    let far = topology.is_far() && here;
    let near = near.then_some(local(me));
    let far = far.then_some(leaders(me));
    let outputs: Vec<Peer> = near.into_iter().chain(far).collect();
    pass_on(&segments(len), input, &outputs)
}

/// The steps of a process in a barrier. `by` is the algorithm of the leaders' barrier, or of the
/// only one; `None`: the one that suits the number of members.
pub(crate) fn barrier(topology: &GroupTopology, by: Option<Barrier>) -> ArrayVec<Step, 3> {
    let (near, far) = (topology.local_ranks.len(), topology.leaders.len());
    let root = |members: &[NodeId]| members.first().copied().unwrap_or(NodeId(0));
    let step = |action, peer, after| Step {
        action,
        peer,
        part: Part::NONE,
        after,
    };
    let leaders = leaders(root(&topology.leaders));
    let local = local(root(&topology.local_ranks));
    let only = |step| ArrayVec::from_iter([step]);
    let meet_far = Action::Meet(by.unwrap_or(usual(far)));
    match (topology.is_near(), topology.is_far()) {
        (true, true) => ArrayVec::from([
            step(Action::Hold(release(near)), local, None),
            step(meet_far, leaders, Some(0)),
            step(Action::Release, local, Some(1)),
        ]),
        (true, false) => {
            let by = match far {
                1 => by.unwrap_or(usual(near)),
                // The leader holds them with the same barrier.
                _ => release(near),
            };
            only(step(Action::Meet(by), local, None))
        }
        (false, _) => only(step(meet_far, leaders, None)),
    }
}

/// The default barrier of a group with this many members. Two members tell each other at once.
pub(crate) fn usual(members: usize) -> Barrier {
    match members {
        0..=2 => Barrier::Dissemination { ways: 1 },
        _ => release(members),
    }
}

/// A barrier in which rank 0 releases all others. With few members, rank 0 hears each itself.
fn release(members: usize) -> Barrier {
    let fanout = match members {
        0..=32 => members as u16,
        _ => 16,
    };
    Barrier::Release { fanout }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::collective::testing::carry_out_steps;

    const MEMBERS_MAX: usize = 6;

    /// Every way in which up to six processes share hosts, by the host of each.
    fn placements() -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        let mut last: Vec<Vec<usize>> = all.clone();
        for _ in 0..MEMBERS_MAX {
            let longer = last.iter().flat_map(|hosts| {
                let new = hosts.iter().max().map_or(0, |most| most + 1);
                (0..=new).map(|host| [hosts.as_slice(), &[host]].concat())
            });
            last = longer.collect();
            all.extend(last.iter().cloned());
        }
        all.retain(|hosts| hosts.len() > 1);
        all
    }

    /// The topologies of a group of all processes, by rank.
    fn topologies(placement: &[usize]) -> (Hosts, Vec<GroupTopology>) {
        let said: Vec<(u64, bool)> = placement.iter().map(|&h| (h as u64, true)).collect();
        let hosts = Hosts::new(&said);
        let members: Vec<NodeId> = (0..placement.len() as u32).map(NodeId).collect();
        let topologies = members.iter();
        let topologies = topologies.map(|&me| GroupTopology::new(&hosts, &members, me));
        let topologies = topologies.collect();
        (hosts, topologies)
    }

    fn ranks(nodes: &[NodeId]) -> Vec<usize> {
        nodes.iter().map(|node| node.0 as usize).collect()
    }

    fn members(topologies: &[GroupTopology], rank: usize, peer: Peer) -> Vec<usize> {
        match peer {
            Peer::Group { .. } => ranks(&topologies[rank].leaders),
            Peer::Local { .. } => ranks(&topologies[rank].local_ranks),
            Peer::Rank(_) => unreachable!("hosts and leaders are groups"),
        }
    }

    #[test]
    fn everybody_gets_every_byte_once_and_leaders_alone_use_the_network() {
        let segment = SEGMENT as usize;
        for placement in placements() {
            let (hosts, topologies) = topologies(&placement);
            let size = placement.len();
            let lens = if size < 5 {
                vec![0, 1, 3 * segment]
            } else {
                vec![0, 1]
            };
            for (root, len) in (0..size).flat_map(|root| lens.iter().map(move |&len| (root, len))) {
                let steps = |me: usize| {
                    let (root, node) = (NodeId(root as u32), NodeId(me as u32));
                    broadcast(&hosts, &topologies[me], (root, node), len as u64)
                };
                let all: Vec<Vec<Step>> = (0..size).map(steps).collect();
                let done = carry_out_steps(
                    &all,
                    (root, len as u64),
                    &(0..size).collect::<BTreeSet<_>>(),
                    &|rank, peer| members(&topologies, rank, peer),
                );
                assert!(!done.stuck && done.times_max <= 1, "{placement:?}");
                assert!(done.received.iter().all(|&bytes| bytes <= len as u64));
                for (rank, steps) in all.iter().enumerate() {
                    let far = |step: &Step| matches!(step.peer, Peer::Group { .. });
                    assert!(topologies[rank].leads || !steps.iter().any(far));
                    // A process receives before it passes on, segment by segment.
                    let sends = steps.iter().filter(|step| step.action == Action::Send);
                    assert!(
                        sends
                            .into_iter()
                            .all(|s| s.after.is_some() == (rank != root))
                    );
                }
            }
        }
    }

    /// Carries out the barriers of the ranks that enter. Returns those that may leave.
    fn leave(topologies: &[GroupTopology], entering: &BTreeSet<usize>) -> Vec<usize> {
        let steps = |t| barrier(t, None).to_vec();
        let all: Vec<Vec<Step>> = topologies.iter().map(steps).collect();
        // The groups that a rank has entered, by their members and the network; those in which it
        // holds the others.
        let mut entered: BTreeSet<(usize, Vec<usize>, bool)> = BTreeSet::new();
        let mut held: BTreeSet<Vec<usize>> = BTreeSet::new();
        let mut over: BTreeMap<usize, Vec<bool>> = BTreeMap::new();
        loop {
            let mut moved = false;
            for &rank in entering {
                let over = over.entry(rank).or_insert(vec![false; all[rank].len()]);
                for (i, step) in all[rank].iter().enumerate() {
                    if over[i] || step.after.is_some_and(|after| !over[after]) {
                        continue;
                    }
                    let group = members(topologies, rank, step.peer);
                    let far = matches!(step.peer, Peer::Group { .. });
                    assert!(group.contains(&rank));
                    moved |= entered.insert((rank, group.clone(), far));
                    let mut others = group.iter();
                    let here = others.all(|&other| entered.contains(&(other, group.clone(), far)));
                    let holder = group[0];
                    let holds = all[holder].iter().any(|s| {
                        matches!(s.action, Action::Hold(_))
                            && members(topologies, holder, s.peer) == group
                    });
                    over[i] = match step.action {
                        Action::Hold(_) => here,
                        Action::Meet(_) => here && (far || !holds || held.contains(&group)),
                        Action::Release => held.insert(group),
                        _ => panic!("a barrier carries no bytes: {step:?}"),
                    };
                    moved |= over[i];
                }
            }
            if !moved {
                break;
            }
        }
        let done = over.into_iter().filter(|(_, over)| over.iter().all(|&o| o));
        done.map(|(rank, _)| rank).collect()
    }

    #[test]
    fn nobody_leaves_a_barrier_while_anybody_is_missing_and_then_everybody_does() {
        for placement in placements() {
            let (_, topologies) = topologies(&placement);
            let all: BTreeSet<usize> = (0..placement.len()).collect();
            assert_eq!(leave(&topologies, &all).len(), all.len(), "{placement:?}");
            for missing in &all {
                let entering = all.iter().copied().filter(|rank| rank != missing).collect();
                assert!(leave(&topologies, &entering).is_empty(), "{placement:?}");
            }
        }
    }
}
