//! Carries schedules out without a network, to check them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::schedule::Schedule;
use super::step::{Direction, Peer, Step};

/// The result of a schedule that was carried out.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Number of rounds, if each rank begins at most one operation in a round.
    pub(super) rounds: usize,
    /// Number of messages and of broadcasts to groups.
    pub(super) operations: usize,
    /// Bytes that each rank has sent.
    pub(super) sent: Vec<u64>,
    /// Bytes that each rank has received.
    pub(super) received: Vec<u64>,
    /// Largest number of times that a rank got one byte.
    pub(super) times_max: u32,
    /// Steps are left that can never be taken.
    pub(super) stuck: bool,
}

/// Carries out a schedule to the ranks of `target`, in rounds. In each round, every rank that may
/// send its next message sends it. Panics if a rank sends what it does not have, receives what it
/// does not expect, lacks a byte at the end, or has a byte that is not for it.
pub(super) fn carry_out(s: &Schedule, target: &BTreeSet<usize>, groups: &[Vec<usize>]) -> Done {
    let ranks: Vec<Vec<Step>> = (0..s.nodes).map(|r| s.steps(r)).collect();
    let mut times: Vec<Vec<u32>> = vec![vec![0; s.len as usize]; s.nodes];
    let mut over: Vec<Vec<bool>> = ranks.iter().map(|r| vec![false; r.len()]).collect();
    // The steps in which each rank expects messages of each peer, in its order, and those in which
    // it has still to send.
    let mut expected: BTreeMap<(usize, Peer), VecDeque<usize>> = BTreeMap::new();
    let mut to_send: Vec<VecDeque<usize>> = vec![VecDeque::new(); s.nodes];
    for (rank, steps) in ranks.iter().enumerate() {
        for (i, step) in steps.iter().enumerate() {
            match step.way {
                Direction::Send => to_send[rank].push_back(i),
                Direction::Receive => expected.entry((rank, step.peer)).or_default().push_back(i),
            }
        }
    }
    let mut done = Done {
        sent: vec![0; s.nodes],
        received: vec![0; s.nodes],
        ..Done::default()
    };
    while to_send.iter().any(|q| !q.is_empty()) {
        let may = |&r: &usize| {
            let next = to_send[r].front().map(|&i| ranks[r][i].after);
            next.is_some_and(|after| after.is_none_or(|i| over[r][i]))
        };
        let senders: Vec<usize> = (0..s.nodes).filter(may).collect();
        if senders.is_empty() {
            done.stuck = true;
            return done;
        }
        let mut arrived = Vec::new();
        for rank in senders {
            let step = ranks[rank][to_send[rank].pop_front().unwrap()];
            let bytes = step.part.offset as usize..(step.part.offset + step.part.len) as usize;
            let here = |b: usize| rank == s.root || times[rank][b] > 0;
            assert!(bytes.clone().all(here), "{rank} sends what it lacks: {s:?}");
            done.operations += 1;
            done.sent[rank] += step.part.len;
            let (to, from) = match step.peer {
                Peer::Rank(other) => (vec![other], Peer::Rank(rank)),
                Peer::Group { group, root } => {
                    assert!(root == rank && groups[group].contains(&rank), "{s:?}");
                    (groups[group].clone(), step.peer)
                }
            };
            for to in to.into_iter().filter(|&to| to != rank) {
                let queue = expected.get_mut(&(to, from));
                let i = queue.and_then(VecDeque::pop_front).expect("it waits");
                assert_eq!(ranks[to][i].part, step.part, "{s:?}");
                done.received[to] += step.part.len;
                arrived.push((to, i, bytes.clone()));
            }
        }
        for (rank, i, bytes) in arrived {
            over[rank][i] = true;
            bytes.for_each(|b| times[rank][b] += 1);
        }
        done.rounds += 1;
    }
    assert!(expected.values().all(VecDeque::is_empty), "{s:?}");
    for (rank, times) in times.iter().enumerate() {
        let wants = rank != s.root && target.contains(&rank);
        let right = |&t: &u32| rank == s.root || (t > 0) == wants;
        assert!(times.iter().all(right), "{rank} in the end: {s:?}");
        done.times_max = times.iter().copied().fold(done.times_max, u32::max);
    }
    done
}
