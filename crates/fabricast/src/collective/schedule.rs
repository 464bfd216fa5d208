//! Which rank sends which part of a message to which peer, and when it may.
//!
//! A rank takes its steps in the order of their list. The messages from one rank to another, or to
//! a group, are in the same order at all of them. Most algorithms number the ranks from the root:
//! *place* = rank - root, modulo the number of ranks.

use super::cover::Cover;
use super::segments::Segments;
use super::step::{Action, Part, Peer, Step};

/// How a message gets from one rank to all by messages between two, or to some by groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// Each rank that has the message sends it on, to the largest sub-tree first. It takes
    /// ceil(log2 n) rounds, and the root sends the message as many times.
    Binomial,
    /// Each rank sends the message to its neighbour, segment by segment. It takes n - 1 hops, and
    /// no rank sends the message more than once.
    Chain,
    /// The root scatters the message in n blocks along a binomial tree, and the blocks go once
    /// round a ring. No rank sends much more than twice the message. A rank is sent a block again
    /// that it got from the scatter, as in MPI libraries. A message without bytes goes along the
    /// tree.
    ScatterAllgather,
    /// To a set of ranks, by broadcasts to groups and messages (P4.7). Other ranks do nothing.
    Cover(Cover),
}

impl Algorithm {
    /// All algorithms that use no groups.
    pub const MESSAGES: [Algorithm; 3] = [
        Algorithm::Binomial,
        Algorithm::Chain,
        Algorithm::ScatterAllgather,
    ];
}

/// Everything about one message from one rank to others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// The algorithm that distributes the message.
    pub algorithm: Algorithm,
    /// Number of ranks, at least one.
    pub nodes: usize,
    /// The rank that has the message.
    pub root: usize,
    /// The message, and the segments in which binomial tree, chain and cover pass it on.
    pub segments: Segments,
}

impl Schedule {
    /// The steps of `rank`, in its order.
    pub fn steps(&self, rank: usize) -> Vec<Step> {
        assert!(self.root < self.nodes && rank < self.nodes, "{self:?}");
        let place = (rank + self.nodes - self.root) % self.nodes;
        let mut steps = Steps {
            schedule: self,
            list: Vec::new(),
        };
        let at = |place| self.at(place);
        let along_tree = || {
            let (parent, children) = self.tree(place);
            let children: Vec<Peer> = children.into_iter().map(at).collect();
            pass_on(&self.segments, parent.map(at), &children)
        };
        match &self.algorithm {
            Algorithm::Binomial => return along_tree(),
            Algorithm::Chain => {
                let next = (place + 1 < self.nodes).then_some(place + 1);
                let parent = place.checked_sub(1).map(at);
                return pass_on(&self.segments, parent, next.map(at).as_slice());
            }
            Algorithm::ScatterAllgather if self.segments.total() == 0 => return along_tree(),
            Algorithm::ScatterAllgather => {
                steps.scatter(place);
                steps.allgather(place);
            }
            Algorithm::Cover(cover) => {
                assert_eq!(cover.root(), self.root, "{self:?}");
                let (parent, children) = cover.peers(rank);
                return pass_on(&self.segments, parent, &children);
            }
        }
        steps.list
    }

    /// The rank at a place.
    fn at(&self, place: usize) -> Peer {
        Peer::Rank((place + self.root) % self.nodes)
    }

    /// Parent and children of a place in the binomial tree, the largest sub-tree first.
    fn tree(&self, place: usize) -> (Option<usize>, Vec<usize>) {
        let mut span = match place {
            0 => self.nodes.next_power_of_two(),
            _ => 1 << place.trailing_zeros(),
        };
        let parent = (place > 0).then(|| place - span);
        let mut children = Vec::new();
        while span > 1 {
            span /= 2;
            if place + span < self.nodes {
                children.push(place + span);
            }
        }
        (parent, children)
    }

    /// Number of places in the sub-tree of `place`, itself included.
    fn below(&self, place: usize) -> usize {
        match place {
            0 => self.nodes,
            _ => (1 << place.trailing_zeros()).min(self.nodes - place),
        }
    }

    /// The part that consists of the blocks of `count` places from `place` on.
    fn blocks(&self, place: usize, count: usize) -> Part {
        let len = self.segments.total();
        let block = len.div_ceil(self.nodes as u64);
        let start = (block * place as u64).min(len);
        let end = (block * (place + count) as u64).min(len);
        Part {
            offset: start,
            len: end - start,
        }
    }
}

/// The steps of a rank that passes a message on: each segment comes from the parent (`None`: it is
/// here) and goes to all children before the next segment does.
pub fn pass_on(segments: &Segments, parent: Option<Peer>, children: &[Peer]) -> Vec<Step> {
    let mut steps = Vec::new();
    for part in segments.iter() {
        let after = parent.map(|peer| {
            steps.push(Step {
                action: Action::Receive,
                peer,
                part,
                after: None,
            });
            steps.len() - 1
        });
        steps.extend(children.iter().map(|&peer| Step {
            action: Action::Send,
            peer,
            part,
            after,
        }));
    }
    steps
}

/// The list of one rank's steps, while it is built.
struct Steps<'a> {
    schedule: &'a Schedule,
    list: Vec<Step>,
}

impl Steps<'_> {
    /// Adds a step and returns its index.
    fn add(
        &mut self,
        action: Action,
        peer: Peer,
        part: Part,
        after: Option<usize>,
    ) -> Option<usize> {
        self.list.push(Step {
            action,
            peer,
            part,
            after,
        });
        Some(self.list.len() - 1)
    }

    /// Adds the steps of the scatter: each place gets its own block and those of its sub-tree. A
    /// sub-tree whose blocks have no bytes is sent nothing.
    fn scatter(&mut self, place: usize) {
        let s = self.schedule;
        let (parent, children) = s.tree(place);
        let mine = s.blocks(place, s.below(place));
        let came = parent
            .filter(|_| mine.len > 0)
            .and_then(|p| self.add(Action::Receive, s.at(p), mine, None));
        for child in children {
            let part = s.blocks(child, s.below(child));
            if part.len > 0 {
                self.add(Action::Send, s.at(child), part, came);
            }
        }
    }

    /// Adds the steps round the ring. In each round a rank passes on the block that it got in the
    /// round before, and in the first round its own block.
    fn allgather(&mut self, place: usize) {
        let s = self.schedule;
        let n = s.nodes;
        let (left, right) = (s.at(place + n - 1), s.at(place + 1));
        // The scatter has brought the rank's own block in its first step, if that block has any
        // bytes.
        let first = self.list.first().filter(|s| s.action == Action::Receive);
        let mut came = first.map(|_| 0);
        for i in 0..n - 1 {
            let (out, back) = ((place + n - i) % n, (place + n - 1 - i) % n);
            let part = s.blocks(out, 1);
            if part.len > 0 {
                self.add(Action::Send, right, part, came);
            }
            let part = s.blocks(back, 1);
            came = match part.len {
                0 => None,
                _ => self.add(Action::Receive, left, part, None),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Done, carry_out};
    use super::*;

    const NODES_MAX: usize = 40;

    fn each(algorithm: Algorithm, mut test: impl FnMut(&Schedule, &Done)) {
        for nodes in 1..=NODES_MAX {
            for root in 0..nodes {
                let n = nodes as u64;
                for (len, segment) in [(0, 0), (1, 7), (n / 2 + 1, 0), (3 * n + 1, 5)] {
                    let s = Schedule {
                        algorithm: algorithm.clone(),
                        nodes,
                        root,
                        segments: Segments::equal(len, segment),
                    };
                    let done = carry_out(&s, &(0..nodes).collect(), &[]);
                    assert!(!done.stuck, "{s:?}");
                    test(&s, &done);
                }
            }
        }
    }

    fn segments(s: &Schedule) -> usize {
        s.segments.count() as usize
    }

    #[test]
    fn binomial_takes_as_many_rounds_as_the_number_has_bits() {
        each(Algorithm::Binomial, |s, done| {
            let depth = s.nodes.next_power_of_two().ilog2() as usize;
            if segments(s) == 1 {
                assert_eq!(done.rounds, depth, "{s:?}");
            }
            assert_eq!(done.operations, segments(s) * (s.nodes - 1), "{s:?}");
            assert_eq!(
                done.sent[s.root],
                s.segments.total() * depth as u64,
                "{s:?}"
            );
            assert!(done.times_max <= 1, "{s:?}");
        });
    }

    #[test]
    fn a_chain_has_as_many_hops_as_receivers_and_a_pipeline() {
        each(Algorithm::Chain, |s, done| {
            let hops = s.nodes - 1;
            let rounds = if hops == 0 { 0 } else { hops + segments(s) - 1 };
            assert_eq!(done.rounds, rounds, "{s:?}");
            assert_eq!(done.operations, segments(s) * hops, "{s:?}");
            assert!(done.sent.iter().all(|&b| b <= s.segments.total()), "{s:?}");
            assert!(done.times_max <= 1, "{s:?}");
        });
    }

    #[test]
    fn scatter_and_allgather_cost_nobody_much_more_than_twice_the_message() {
        each(Algorithm::ScatterAllgather, |s, done| {
            let n = s.nodes as u64;
            let block = s.segments.total().div_ceil(n);
            for rank in 0..s.nodes {
                // All blocks but one go round the ring; the scatter adds the rank's sub-tree.
                let place = (rank + s.nodes - s.root) % s.nodes;
                let others = |place| s.segments.total() - s.blocks(place, 1).len;
                let tree = s.blocks(place, s.below(place)).len;
                let came = if rank == s.root { 0 } else { tree };
                assert_eq!(done.received[rank], others(place) + came, "{s:?}");
                let passed = tree - s.blocks(place, 1).len;
                let right = (place + 1) % s.nodes;
                assert_eq!(done.sent[rank], others(right) + passed, "{s:?}");
            }
            assert!(
                done.sent.iter().all(|&b| b <= 2 * s.segments.total()),
                "{s:?}"
            );
            if s.segments.total() >= n {
                let blocks = s.segments.total().div_ceil(block) as usize;
                assert_eq!(
                    done.operations,
                    blocks - 1 + blocks * (s.nodes - 1),
                    "{s:?}"
                );
            }
            assert!(done.times_max <= 2, "{s:?}");
        });
    }

    #[test]
    fn a_send_waits_for_what_it_carries() {
        let s = Schedule {
            algorithm: Algorithm::Chain,
            nodes: 3,
            root: 0,
            segments: Segments::whole(1),
        };
        let after = |rank: usize| s.steps(rank).last().and_then(|step| step.after);
        assert_eq!([after(0), after(1)], [None, Some(0)]);
    }
}
