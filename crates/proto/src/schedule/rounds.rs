//! Schedules: the ranks to which each rank sends words, and those it waits for, round by round.
//! Barrier algorithms differ in nothing else.
//!
//! All ranks number the rounds alike, and the receiver of a word waits for it in the round in which
//! it was sent. A rank that has nothing to do in a round passes through it. In each round a rank
//! first sends, then waits.

use super::Barrier;
use crate::limits;

/// The schedule of one rank: its sends and waits, round by round. It is computed once (P2.3).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    rounds: Vec<Round>,
    sends: Vec<u32>,
    waits: Vec<u32>,
}

/// The ends of a round's lists; they begin where the lists of the round before end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Round {
    sends: u32,
    waits: u32,
    /// Whether the rank sends one word to the whole group.
    to_all: bool,
}

impl Schedule {
    /// The schedule of rank `me` of `size`. `me` is less than `size`, and `size` is at most
    /// [`limits::MEMBERS_MAX`].
    pub fn new(barrier: Barrier, size: u32, me: u32) -> Schedule {
        debug_assert!(me < size && size as usize <= limits::MEMBERS_MAX);
        let mut schedule = Schedule {
            rounds: Vec::new(),
            sends: Vec::new(),
            waits: Vec::new(),
        };
        let up_down = |up, down| (up, Some(down));
        let (up, down) = match barrier.bounded() {
            Barrier::Dissemination { ways } => {
                schedule.disseminate(u32::from(ways), size, me);
                return schedule;
            }
            Barrier::Butterfly => {
                schedule.butterfly(size, me);
                return schedule;
            }
            Barrier::Central => up_down(Tree::star(size), Tree::star(size)),
            Barrier::CombiningTree { fanout } => up_down(Tree::of(fanout), Tree::of(fanout)),
            Barrier::Mcs => up_down(Tree::of(4), Tree::of(2)),
            Barrier::Tournament => up_down(Tree::Binomial, Tree::star(size)),
            Barrier::Bst => up_down(Tree::Binomial, Tree::Binomial),
            Barrier::Release { fanout } => (Tree::of(fanout), None),
        };
        schedule.gather(up, size, me);
        match down {
            Some(tree) => schedule.release(tree, size, me),
            None if size > 1 => schedule.round(|s| match me {
                0 => true,
                _ => {
                    s.waits.push(0);
                    false
                }
            }),
            None => {}
        }
        schedule
    }

    /// Number of rounds, the same for every rank.
    pub fn rounds(&self) -> u16 {
        self.rounds.len() as u16
    }

    /// The ranks to which this rank sends a word of its own in a round.
    pub fn sends(&self, round: u16) -> &[u32] {
        let i = usize::from(round);
        let first = i.checked_sub(1).map_or(0, |i| self.rounds[i].sends);
        &self.sends[first as usize..self.rounds[i].sends as usize]
    }

    /// The ranks whose words this rank waits for in a round.
    pub fn waits(&self, round: u16) -> &[u32] {
        let i = usize::from(round);
        let first = i.checked_sub(1).map_or(0, |i| self.rounds[i].waits);
        &self.waits[first as usize..self.rounds[i].waits as usize]
    }

    /// Whether this rank sends one word to the whole group in a round. All others wait for it.
    pub fn is_to_all(&self, round: u16) -> bool {
        self.rounds[usize::from(round)].to_all
    }

    /// Adds a round with the ranks that `fill` pushes. `fill` returns whether the rank sends to the
    /// whole group.
    fn round(&mut self, fill: impl FnOnce(&mut Schedule) -> bool) {
        let to_all = fill(self);
        self.rounds.push(Round {
            sends: self.sends.len() as u32,
            waits: self.waits.len() as u32,
            to_all,
        });
    }

    /// Adds the rounds of dissemination (P2.1). It omits partners at a distance of `size` or more:
    /// they would learn nothing new, or be the rank itself.
    fn disseminate(&mut self, ways: u32, size: u32, me: u32) {
        let mut reach = 1u64;
        while reach < u64::from(size) {
            self.round(|s| {
                let distances = (1..=u64::from(ways)).map(|i| i * reach);
                for d in distances.take_while(|&d| d < u64::from(size)) {
                    let d = d as u32;
                    s.sends.push((me + d) % size);
                    s.waits.push((me + size - d) % size);
                }
                false
            });
            reach *= u64::from(ways) + 1;
        }
    }

    fn butterfly(&mut self, size: u32, me: u32) {
        let whole = 1 << size.ilog2();
        let beyond = size - whole;
        let represented = |s: &mut Schedule, back: bool| {
            let (tells, hears) = match (me >= whole, me < beyond) {
                (true, _) => (Some(me - whole), None),
                (false, true) => (None, Some(me + whole)),
                (false, false) => (None, None),
            };
            let (tells, hears) = if back { (hears, tells) } else { (tells, hears) };
            s.sends.extend(tells);
            s.waits.extend(hears);
            false
        };
        if beyond > 0 {
            self.round(|s| represented(s, false));
        }
        for bit in 0..whole.ilog2() {
            self.round(|s| {
                if me < whole {
                    s.sends.push(me ^ 1 << bit);
                    s.waits.push(me ^ 1 << bit);
                }
                false
            });
        }
        if beyond > 0 {
            self.round(|s| represented(s, true));
        }
    }

    /// Adds the rounds up a tree: each rank reports to its parent when all ranks below it have
    /// reported.
    fn gather(&mut self, tree: Tree, size: u32, me: u32) {
        for level in 0..tree.levels(size) {
            self.round(|s| {
                s.waits.extend(tree.children(size, me, level));
                if me > 0 && tree.level(size, me) == level {
                    s.sends.push(tree.parent(me));
                }
                false
            });
        }
    }

    /// Adds the rounds down a tree: each rank releases its children when its parent has released
    /// it.
    fn release(&mut self, tree: Tree, size: u32, me: u32) {
        for level in (0..tree.levels(size)).rev() {
            self.round(|s| {
                s.sends.extend(tree.children(size, me, level));
                if me > 0 && tree.level(size, me) == level {
                    s.waits.push(tree.parent(me));
                }
                false
            });
        }
    }
}

/// A tree of ranks with rank 0 at its root. A rank's level is the round in which it reports to its
/// parent; the parent's level is higher.
#[derive(Clone, Copy)]
enum Tree {
    /// Rank r has the children `r * fanout + 1` to `(r + 1) * fanout`.
    Even(u32),
    /// The parent of a rank is the rank without its lowest bit.
    Binomial,
}

impl Tree {
    fn of(fanout: u16) -> Tree {
        Tree::Even(u32::from(fanout))
    }

    /// A tree in which all other ranks are children of rank 0.
    fn star(size: u32) -> Tree {
        Tree::Even(size.max(2))
    }

    fn parent(self, rank: u32) -> u32 {
        match self {
            Tree::Even(fanout) => (rank - 1) / fanout,
            Tree::Binomial => rank & (rank - 1),
        }
    }

    /// Number of levels of the ranks that have parents.
    fn levels(self, size: u32) -> u32 {
        match self {
            Tree::Even(_) => self.depth(size - 1),
            Tree::Binomial => size.next_power_of_two().ilog2(),
        }
    }

    fn level(self, size: u32, rank: u32) -> u32 {
        match self {
            Tree::Even(_) => self.levels(size) - self.depth(rank),
            Tree::Binomial => rank.trailing_zeros(),
        }
    }

    /// Number of steps from a rank to the root.
    fn depth(self, rank: u32) -> u32 {
        let mut depth = 0;
        let mut at = rank;
        while at > 0 {
            at = self.parent(at);
            depth += 1;
        }
        depth
    }

    /// A rank's children on one level.
    fn children(self, size: u32, rank: u32, level: u32) -> core::ops::Range<u32> {
        let none = 0..0;
        match self {
            Tree::Even(fanout) => {
                let first = u64::from(rank) * u64::from(fanout) + 1;
                let end = (first + u64::from(fanout)).min(u64::from(size));
                let here = self.levels(size).checked_sub(level + 1) == Some(self.depth(rank));
                if here && first < end {
                    first as u32..end as u32
                } else {
                    none
                }
            }
            Tree::Binomial => {
                let child = rank + (1 << level);
                let mine = rank == 0 || level < rank.trailing_zeros();
                if mine && child < size {
                    child..child + 1
                } else {
                    none
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every algorithm with every parameter that makes a difference for `size` ranks.
    fn all(size: u32) -> Vec<Barrier> {
        let most = size.max(3) as u16 - 1;
        let mut all = Barrier::UNNUMBERED.to_vec();
        all.extend((1..=most).map(|ways| Barrier::Dissemination { ways }));
        all.extend((2..=most).map(|fanout| Barrier::CombiningTree { fanout }));
        all.extend((2..=most).map(|fanout| Barrier::Release { fanout }));
        all
    }

    fn schedules(barrier: Barrier, size: u32) -> Vec<Schedule> {
        let one = |me| Schedule::new(barrier, size, me);
        (0..size).map(one).collect()
    }

    /// The ranks that send a word to rank `me` in a round, by the schedules of the others.
    fn sent_to(all: &[Schedule], me: u32, round: u16) -> Vec<u32> {
        let sends = |(_, s): &(u32, &Schedule)| s.sends(round).contains(&me) || s.is_to_all(round);
        let senders = (0..).zip(all).filter(sends).map(|(rank, _)| rank);
        senders.filter(|&rank| rank != me).collect()
    }

    #[test]
    fn everybody_hears_of_everybody_and_waits_for_just_what_is_sent() {
        for size in 1..=64 {
            let everybody = u64::MAX >> (64 - size);
            for barrier in all(size) {
                let all = schedules(barrier, size);
                let mut known: Vec<u64> = (0..size).map(|rank| 1 << rank).collect();
                for round in 0..all[0].rounds() {
                    let before = known.clone();
                    for (me, schedule) in (0..).zip(&all) {
                        assert_eq!(schedule.rounds(), all[0].rounds());
                        let mut waits = schedule.waits(round).to_vec();
                        waits.sort_unstable();
                        let sent = sent_to(&all, me, round);
                        assert_eq!(waits, sent, "{barrier}, {size} ranks, {me}, round {round}");
                        assert!(!schedule.sends(round).contains(&me));
                        for rank in waits {
                            known[me as usize] |= before[rank as usize];
                        }
                    }
                }
                let deaf = known.iter().position(|&k| k != everybody);
                assert_eq!(deaf, None, "{barrier}, {size} ranks");
                assert!(usize::from(all[0].rounds()) <= limits::ROUNDS_MAX);
            }
        }
    }

    #[test]
    fn as_the_papers_have_it() {
        let of = |barrier, size, me| Schedule::new(barrier, size, me);
        // P2.1's own example: of P = 6, n = 2, r = 1 the second partner would be the rank itself.
        let s = of(Barrier::Dissemination { ways: 2 }, 6, 0);
        assert_eq!(
            (s.rounds(), s.sends(0), s.sends(1)),
            (2, &[1, 2][..], &[3][..])
        );
        assert_eq!((s.waits(0), s.waits(1)), (&[5, 4][..], &[3][..]));
        let s = of(Barrier::Dissemination { ways: 1 }, 64, 5);
        assert_eq!((s.rounds(), s.sends(5)), (6, &[37][..]));
        // With more ways than other ranks, one round suffices.
        let s = of(
            Barrier::Dissemination {
                ways: Barrier::MOST,
            },
            5,
            0,
        );
        assert_eq!((s.rounds(), s.sends(0)), (1, &[1, 2, 3, 4][..]));
        // The champion of eight ranks beats three and releases seven.
        let s = of(Barrier::Tournament, 8, 0);
        let waits: Vec<_> = (0..4).map(|r| s.waits(r).to_vec()).collect();
        assert_eq!(waits, [vec![1], vec![2], vec![4], vec![]]);
        assert_eq!(s.sends(3), [1, 2, 3, 4, 5, 6, 7]);
        // Four ranks report to a rank, and it releases two.
        let s = of(Barrier::Mcs, 32, 1);
        assert_eq!(s.waits(1), [5, 6, 7, 8]);
        assert!((0..s.rounds()).any(|r| s.sends(r) == [3, 4]));
        // One word releases all ranks.
        let s = of(Barrier::Release { fanout: 63 }, 64, 0);
        assert_eq!((s.rounds(), s.waits(0).len()), (2, 63));
        assert!(s.is_to_all(1) && !s.is_to_all(0));
    }

    #[test]
    fn the_largest_groups_have_few_rounds() {
        let size = limits::MEMBERS_MAX as u32;
        for barrier in [
            Barrier::Dissemination { ways: 1 },
            Barrier::Dissemination {
                ways: Barrier::MOST,
            },
            Barrier::CombiningTree { fanout: 2 },
            Barrier::Mcs,
            Barrier::Bst,
            Barrier::Release {
                fanout: Barrier::MOST,
            },
        ] {
            for me in [0, 1, size - 1] {
                let rounds = Schedule::new(barrier, size, me).rounds();
                assert!(usize::from(rounds) <= limits::ROUNDS_MAX, "{barrier}");
            }
        }
    }
}
