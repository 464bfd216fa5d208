//! Carries schedules out without a network, to check them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::schedule::Schedule;
use super::step::{Action, Peer, Step};

/// The result of a schedule that was carried out.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// Number of rounds, if each rank begins at most one operation in a round.
    pub(crate) rounds: usize,
    /// Number of messages and of broadcasts to groups.
    pub(crate) operations: usize,
    /// Bytes that each rank has sent.
    pub(crate) sent: Vec<u64>,
    /// Bytes that each rank has received.
    pub(crate) received: Vec<u64>,
    /// Largest number of times that a rank got one byte.
    pub(crate) times_max: u32,
    /// Steps are left that can never be taken.
    pub(crate) stuck: bool,
}

/// Carries out a schedule to the ranks of `target`. See [`carry_out_steps`].
pub(crate) fn carry_out(s: &Schedule, target: &BTreeSet<usize>, groups: &[Vec<usize>]) -> Done {
    let ranks: Vec<Vec<Step>> = (0..s.nodes).map(|r| s.steps(r)).collect();
    let members = |_: usize, peer: Peer| match peer {
        Peer::Rank(rank) => vec![rank],
        Peer::Group { group, .. } => groups[group].clone(),
        Peer::Local { .. } => unreachable!("a schedule knows no hosts"),
    };
    carry_out_steps(&ranks, (s.root, s.segments.total()), target, &members)
}

/// Carries out steps that bring a message of `len` bytes from `root` to the ranks of `target`, in
/// rounds. `members` says which ranks are behind a peer of a rank. In each round, every rank that
/// may send its next message sends it. Panics if a rank sends what it does not have, receives what
/// it does not expect, lacks a byte at the end, or has a byte that is not for it.
pub(crate) fn carry_out_steps(
    ranks: &[Vec<Step>],
    (root, len): (usize, u64),
    target: &BTreeSet<usize>,
    members: &dyn Fn(usize, Peer) -> Vec<usize>,
) -> Done {
    let nodes = ranks.len();
    let mut times: Vec<Vec<u32>> = vec![vec![0; len as usize]; nodes];
    let mut over: Vec<Vec<bool>> = ranks.iter().map(|r| vec![false; r.len()]).collect();
    // The steps in which each rank expects messages of each peer, in its order, and those in which
    // it has still to send.
    let mut expected: BTreeMap<(usize, Peer), VecDeque<usize>> = BTreeMap::new();
    let mut to_send: Vec<VecDeque<usize>> = vec![VecDeque::new(); nodes];
    for (rank, steps) in ranks.iter().enumerate() {
        for (i, step) in steps.iter().enumerate() {
            match step.action {
                Action::Send => to_send[rank].push_back(i),
                Action::Receive => expected.entry((rank, step.peer)).or_default().push_back(i),
                _ => panic!("a broadcast has no barrier: {step:?}"),
            }
        }
    }
    let mut done = Done {
        sent: vec![0; nodes],
        received: vec![0; nodes],
        ..Done::default()
    };
    while to_send.iter().any(|q| !q.is_empty()) {
        let may = |&r: &usize| {
            let next = to_send[r].front().map(|&i| ranks[r][i].after);
            next.is_some_and(|after| after.is_none_or(|i| over[r][i]))
        };
        let senders: Vec<usize> = (0..nodes).filter(may).collect();
        if senders.is_empty() {
            done.stuck = true;
            return done;
        }
        let mut arrived = Vec::new();
        for rank in senders {
            let step = ranks[rank][to_send[rank].pop_front().unwrap()];
            let bytes = step.part.offset as usize..(step.part.offset + step.part.len) as usize;
            let here = |b: usize| rank == root || times[rank][b] > 0;
            assert!(
                bytes.clone().all(here),
                "{rank} sends what it lacks: {ranks:?}"
            );
            done.operations += 1;
            done.sent[rank] += step.part.len;
            let from = match step.peer {
                Peer::Rank(_) => Peer::Rank(rank),
                peer => peer,
            };
            let to = members(rank, step.peer);
            if let Peer::Group { root, .. } | Peer::Local { root } = step.peer {
                assert!(root == rank && to.contains(&rank), "{step:?}");
            }
            for to in to.into_iter().filter(|&to| to != rank) {
                let queue = expected.get_mut(&(to, from));
                let i = queue.and_then(VecDeque::pop_front).expect("it waits");
                assert_eq!(ranks[to][i].part, step.part, "{ranks:?}");
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
    assert!(expected.values().all(VecDeque::is_empty), "{ranks:?}");
    for (rank, times) in times.iter().enumerate() {
        let wants = rank != root && target.contains(&rank);
        let right = |&t: &u32| rank == root || (t > 0) == wants;
        assert!(times.iter().all(right), "{rank} in the end: {ranks:?}");
        done.times_max = times.iter().copied().fold(done.times_max, u32::max);
    }
    done
}
