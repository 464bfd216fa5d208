//! Who sends which part of a message to whom, and when it may.
//!
//! Ranks are turned so that the root is 0 (*place* = rank - root, modulo the number of ranks). A
//! rank's steps stand in the order in which it takes them; the messages of one rank to another stand
//! in the same order at both.

/// How a message gets from one to all by messages between two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Algorithm {
    /// Who has it sends it on, the largest sub-tree first: ceil(log2 n) rounds, and the root sends
    /// as many times the message.
    Binomial,
    /// Everybody sends it to its neighbour, segment by segment: n - 1 hops, and nobody sends it
    /// more than once.
    Chain,
    /// The message is scattered in n blocks along a binomial tree, and the blocks go once round a
    /// ring: nobody sends much more than twice the message. Who has had a block from the scatter
    /// already is sent it all the same, as MPI libraries do.
    ScatterAllgather,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Algorithm; 3] = [
        Algorithm::Binomial,
        Algorithm::Chain,
        Algorithm::ScatterAllgather,
    ];
}

/// One message from one rank to all, told completely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// How.
    pub algorithm: Algorithm,
    /// Ranks, at least one.
    pub nodes: usize,
    /// Who has the message.
    pub root: usize,
    /// Its bytes.
    pub len: u64,
    /// Binomial tree and chain pass it on in segments of so many bytes (zero: as a whole).
    pub segment: u64,
}

/// Some bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where they begin.
    pub offset: u64,
    /// How many they are.
    pub len: u64,
}

/// Which way a part goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Way {
    /// From the peer.
    Receive,
    /// To the peer.
    Send,
}

/// One message between two, as one of them sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which way it goes.
    pub way: Way,
    /// The rank at the other end.
    pub peer: usize,
    /// What it carries.
    pub part: Part,
    /// A send begins when this step of the same rank has received what it carries. `None`: the
    /// rank has it from the start.
    pub after: Option<usize>,
}

impl Schedule {
    /// What `rank` does, in its order.
    pub fn steps(&self, rank: usize) -> Vec<Step> {
        assert!(self.root < self.nodes && rank < self.nodes, "{self:?}");
        let place = (rank + self.nodes - self.root) % self.nodes;
        let mut steps = Steps {
            schedule: *self,
            list: Vec::new(),
        };
        match self.algorithm {
            Algorithm::Binomial => {
                let (parent, children) = self.tree(place);
                steps.pass_on(parent, &children);
            }
            Algorithm::Chain => {
                let next = (place + 1 < self.nodes).then_some(place + 1);
                steps.pass_on(place.checked_sub(1), next.as_slice());
            }
            Algorithm::ScatterAllgather => {
                steps.scatter(place);
                steps.allgather(place);
            }
        }
        steps.list
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

    /// Places in the sub-tree of `place`.
    fn below(&self, place: usize) -> usize {
        match place {
            0 => self.nodes,
            _ => (1 << place.trailing_zeros()).min(self.nodes - place),
        }
    }

    /// The blocks of `count` places from `place` on.
    fn blocks(&self, place: usize, count: usize) -> Part {
        let block = self.len.div_ceil(self.nodes as u64);
        let start = (block * place as u64).min(self.len);
        let end = (block * (place + count) as u64).min(self.len);
        Part {
            offset: start,
            len: end - start,
        }
    }

    /// The message in segments; one without bytes is one segment.
    fn segments(&self) -> impl Iterator<Item = Part> + use<> {
        let Schedule { len, segment, .. } = *self;
        let segment = match segment {
            0 => len.max(1),
            n => n,
        };
        (0..len.div_ceil(segment).max(1)).map(move |i| {
            let offset = i * segment;
            let len = segment.min(len - offset);
            Part { offset, len }
        })
    }
}

/// The steps of one rank, as they are found.
struct Steps {
    schedule: Schedule,
    list: Vec<Step>,
}

impl Steps {
    /// Adds a step with the rank at `place` and says which it is.
    fn add(&mut self, way: Way, place: usize, part: Part, after: Option<usize>) -> Option<usize> {
        let Schedule { nodes, root, .. } = self.schedule;
        self.list.push(Step {
            way,
            peer: (place + root) % nodes,
            part,
            after,
        });
        Some(self.list.len() - 1)
    }

    /// Every segment comes from the parent and goes to all children before the next one does.
    fn pass_on(&mut self, parent: Option<usize>, children: &[usize]) {
        for part in self.schedule.segments() {
            let came = parent.and_then(|p| self.add(Way::Receive, p, part, None));
            for &child in children {
                self.add(Way::Send, child, part, came);
            }
        }
    }

    /// Down the tree, to each its own block and those of its sub-tree. A sub-tree whose blocks
    /// have no bytes is sent nothing.
    fn scatter(&mut self, place: usize) {
        let s = self.schedule;
        let (parent, children) = s.tree(place);
        let mine = s.blocks(place, s.below(place));
        let came = parent
            .filter(|_| mine.len > 0)
            .and_then(|p| self.add(Way::Receive, p, mine, None));
        for child in children {
            let part = s.blocks(child, s.below(child));
            if part.len > 0 {
                self.add(Way::Send, child, part, came);
            }
        }
    }

    /// Round the ring: in round `i` everybody passes on the block that it got in the round before,
    /// in the first its own.
    fn allgather(&mut self, place: usize) {
        let s = self.schedule;
        let n = s.nodes;
        let (left, right) = ((place + n - 1) % n, (place + 1) % n);
        // The scatter has brought the own block in its first step, if anything.
        let first = self.list.first().filter(|s| s.way == Way::Receive);
        let mut came = first.map(|_| 0);
        for i in 0..n - 1 {
            let (out, back) = ((place + n - i) % n, (place + n - 1 - i) % n);
            let part = s.blocks(out, 1);
            if part.len > 0 {
                self.add(Way::Send, right, part, came);
            }
            let part = s.blocks(back, 1);
            came = match part.len {
                0 => None,
                _ => self.add(Way::Receive, left, part, None),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, VecDeque};

    use super::*;

    const NODES_MAX: usize = 40;

    /// What has become of a schedule that was carried out.
    #[derive(Debug, Default)]
    struct Done {
        /// Rounds, if in a round everybody sends one message at most.
        rounds: usize,
        messages: usize,
        /// Bytes that each has sent and received, and times that a byte came at most.
        sent: Vec<u64>,
        received: Vec<u64>,
        times_max: u32,
        /// Steps are left that can never be taken.
        stuck: bool,
    }

    /// Carries a schedule out, in rounds: who may send its next message does. Panics if somebody
    /// sends what it does not have, receives what it does not expect, or lacks a byte at the end.
    fn carry_out(s: &Schedule) -> Done {
        let ranks: Vec<Vec<Step>> = (0..s.nodes).map(|r| s.steps(r)).collect();
        let mut times: Vec<Vec<u32>> = vec![vec![0; s.len as usize]; s.nodes];
        let mut over: Vec<Vec<bool>> = ranks.iter().map(|r| vec![false; r.len()]).collect();
        // What each expects from each, in its order, and what it has still to send.
        let mut expected: BTreeMap<(usize, usize), VecDeque<usize>> = BTreeMap::new();
        let mut to_send: Vec<VecDeque<usize>> = vec![VecDeque::new(); s.nodes];
        for (rank, steps) in ranks.iter().enumerate() {
            for (i, step) in steps.iter().enumerate() {
                assert!(step.peer != rank && step.peer < s.nodes);
                match step.way {
                    Way::Send => to_send[rank].push_back(i),
                    Way::Receive => expected.entry((step.peer, rank)).or_default().push_back(i),
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
                let queue = expected.get_mut(&(rank, step.peer));
                let i = queue.and_then(VecDeque::pop_front).expect("somebody waits");
                assert_eq!(ranks[step.peer][i].part, step.part, "{s:?}");
                done.messages += 1;
                done.sent[rank] += step.part.len;
                done.received[step.peer] += step.part.len;
                arrived.push((step.peer, i, bytes));
            }
            for (rank, i, bytes) in arrived {
                over[rank][i] = true;
                bytes.for_each(|b| times[rank][b] += 1);
            }
            done.rounds += 1;
        }
        assert!(expected.values().all(VecDeque::is_empty), "{s:?}");
        for (rank, times) in times.iter().enumerate() {
            assert!(rank == s.root || times.iter().all(|&t| t > 0), "{s:?}");
            done.times_max = times.iter().copied().fold(done.times_max, u32::max);
        }
        done
    }

    fn each(algorithm: Algorithm, mut test: impl FnMut(&Schedule, &Done)) {
        for nodes in 1..=NODES_MAX {
            for root in 0..nodes {
                let n = nodes as u64;
                for (len, segment) in [(0, 0), (1, 7), (n / 2 + 1, 0), (3 * n + 1, 5)] {
                    let s = Schedule {
                        algorithm,
                        nodes,
                        root,
                        len,
                        segment,
                    };
                    let done = carry_out(&s);
                    assert!(!done.stuck, "{s:?}");
                    test(&s, &done);
                }
            }
        }
    }

    fn segments(s: &Schedule) -> usize {
        match s.segment {
            0 => 1,
            n => s.len.div_ceil(n).max(1) as usize,
        }
    }

    #[test]
    fn binomial_takes_as_many_rounds_as_the_number_has_bits() {
        each(Algorithm::Binomial, |s, done| {
            let depth = s.nodes.next_power_of_two().ilog2() as usize;
            if segments(s) == 1 {
                assert_eq!(done.rounds, depth, "{s:?}");
            }
            assert_eq!(done.messages, segments(s) * (s.nodes - 1), "{s:?}");
            assert_eq!(done.sent[s.root], s.len * depth as u64, "{s:?}");
            assert!(done.times_max <= 1, "{s:?}");
        });
    }

    #[test]
    fn a_chain_has_as_many_hops_as_receivers_and_a_pipeline() {
        each(Algorithm::Chain, |s, done| {
            let hops = s.nodes - 1;
            let rounds = if hops == 0 { 0 } else { hops + segments(s) - 1 };
            assert_eq!(done.rounds, rounds, "{s:?}");
            assert_eq!(done.messages, segments(s) * hops, "{s:?}");
            assert!(done.sent.iter().all(|&b| b <= s.len), "{s:?}");
            assert!(done.times_max <= 1, "{s:?}");
        });
    }

    #[test]
    fn scatter_and_allgather_cost_nobody_much_more_than_twice_the_message() {
        each(Algorithm::ScatterAllgather, |s, done| {
            let n = s.nodes as u64;
            let block = s.len.div_ceil(n);
            for rank in 0..s.nodes {
                // All but one block round the ring; and from the scatter, or into it, its sub-tree.
                let place = (rank + s.nodes - s.root) % s.nodes;
                let others = |place| s.len - s.blocks(place, 1).len;
                let tree = s.blocks(place, s.below(place)).len;
                let came = if rank == s.root { 0 } else { tree };
                assert_eq!(done.received[rank], others(place) + came, "{s:?}");
                let passed = tree - s.blocks(place, 1).len;
                let right = (place + 1) % s.nodes;
                assert_eq!(done.sent[rank], others(right) + passed, "{s:?}");
            }
            assert!(done.sent.iter().all(|&b| b <= 2 * s.len), "{s:?}");
            if s.len >= n {
                let blocks = s.len.div_ceil(block) as usize;
                assert_eq!(done.messages, blocks - 1 + blocks * (s.nodes - 1), "{s:?}");
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
            len: 1,
            segment: 0,
        };
        let after = |rank: usize| s.steps(rank).last().and_then(|step| step.after);
        assert_eq!([after(0), after(1)], [None, Some(0)]);
    }
}
