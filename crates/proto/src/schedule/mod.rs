//! Barrier algorithms as values.
//!
//! An algorithm ([`Barrier`]) is nothing but a [`Schedule`]: a number of rounds, the same for every
//! rank. Each round of a rank lists the ranks to which it sends words and the ranks whose words it
//! waits for. One state machine, in the module `barrier`, runs every schedule.

mod rounds;

use core::fmt;
use core::str::FromStr;

pub use rounds::Schedule;

use crate::seq::Seq;

/// A barrier algorithm. A number of ways less than 1 counts as 1, a fan-out less than 2 as 2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Barrier {
    /// Dissemination (P2.1): in round r every rank sends words to the ranks that are
    /// `i * (ways + 1)^r` further, for i from 1 to `ways`. With one way it is the dissemination
    /// barrier of Hensgen, Finkel and Manber.
    Dissemination {
        /// Partners of a rank in a round (P2's n).
        ways: u16,
    },
    /// Central counter: every rank reports to rank 0, which counts and then releases every rank.
    Central,
    /// Combining tree: up a tree and down the same tree (Yew, Tzeng, Lawrie).
    CombiningTree {
        /// Children of a rank.
        fanout: u16,
    },
    /// MCS: up a tree of fan-out 4, down a tree of fan-out 2 (Mellor-Crummey, Scott).
    Mcs,
    /// Tournament: pairs, then pairs of winners; the champion, rank 0, releases every rank
    /// (Hensgen, Finkel, Manber).
    Tournament,
    /// Up a binomial spanning tree and down again (Tzeng, Kongmunvattana).
    Bst,
    /// Butterfly: every rank exchanges words with the rank whose number differs in one bit, for
    /// each bit in turn (Brooks). A rank below the largest power of two represents each rank beyond
    /// it.
    Butterfly,
    /// Fabricast's own: up a tree, then one multicast to the group releases every rank.
    Release {
        /// Children of a rank. With one less than the group's size, every rank reports to rank 0
        /// directly.
        fanout: u16,
    },
}

/// The progress of a node through the barriers of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reached {
    /// Barriers that the node has entered, counted from the group's start.
    pub count: Seq,
    /// Rounds of the last entered barrier that the node has done.
    pub round: u16,
}

impl Reached {
    /// The progress of a node that has entered no barrier, in a group whose counts begin at
    /// `start`.
    pub fn none(start: Seq) -> Reached {
        Reached {
            count: start,
            round: 0,
        }
    }

    /// Whether this progress is less than `other`.
    pub fn before(self, other: Reached) -> bool {
        match self.count == other.count {
            true => self.round < other.round,
            false => self.count.before(other.count),
        }
    }
}

impl Barrier {
    /// All algorithms without a parameter (number of ways or children).
    pub const UNNUMBERED: [Barrier; 5] = [
        Barrier::Central,
        Barrier::Mcs,
        Barrier::Tournament,
        Barrier::Bst,
        Barrier::Butterfly,
    ];
    /// Largest number of ways or children.
    pub const MOST: u16 = u16::MAX;

    /// The algorithm with its parameter clamped to its bounds.
    pub fn bounded(self) -> Barrier {
        match self {
            Barrier::Dissemination { ways } => Barrier::Dissemination { ways: ways.max(1) },
            Barrier::CombiningTree { fanout } => Barrier::CombiningTree {
                fanout: fanout.max(2),
            },
            Barrier::Release { fanout } => Barrier::Release {
                fanout: fanout.max(2),
            },
            other => other,
        }
    }

    /// The wire format: the algorithm's code, and its parameter or zero.
    pub fn code(self) -> (u8, u16) {
        match self {
            Barrier::Dissemination { ways } => (1, ways),
            Barrier::Central => (2, 0),
            Barrier::CombiningTree { fanout } => (3, fanout),
            Barrier::Mcs => (4, 0),
            Barrier::Tournament => (5, 0),
            Barrier::Bst => (6, 0),
            Barrier::Butterfly => (7, 0),
            Barrier::Release { fanout } => (8, fanout),
        }
    }

    /// The algorithm that [`Barrier::code`] encodes as `code`. `None` if no algorithm within its
    /// bounds has this code.
    pub fn from_code(code: (u8, u16)) -> Option<Barrier> {
        let number = code.1;
        let barrier = match code.0 {
            1 => Barrier::Dissemination { ways: number },
            2 => Barrier::Central,
            3 => Barrier::CombiningTree { fanout: number },
            4 => Barrier::Mcs,
            5 => Barrier::Tournament,
            6 => Barrier::Bst,
            7 => Barrier::Butterfly,
            8 => Barrier::Release { fanout: number },
            _ => return None,
        };
        (barrier.bounded().code() == code).then_some(barrier)
    }
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Barrier::Dissemination { ways } => write!(f, "dissemination({ways})"),
            Barrier::Central => f.write_str("central"),
            Barrier::CombiningTree { fanout } => write!(f, "combining({fanout})"),
            Barrier::Mcs => f.write_str("mcs"),
            Barrier::Tournament => f.write_str("tournament"),
            Barrier::Bst => f.write_str("bst"),
            Barrier::Butterfly => f.write_str("butterfly"),
            Barrier::Release { fanout } => write!(f, "release({fanout})"),
        }
    }
}

/// The error of a name that stands for no barrier algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownBarrier(pub String);

impl fmt::Display for UnknownBarrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown barrier \"{}\"; there are dissemination(N), central, combining(N), \
             mcs, tournament, bst, butterfly and release(N)",
            self.0
        )
    }
}

impl std::error::Error for UnknownBarrier {}

impl FromStr for Barrier {
    type Err = UnknownBarrier;

    fn from_str(name: &str) -> Result<Barrier, UnknownBarrier> {
        let unknown = || UnknownBarrier(name.to_string());
        let (word, number) = match name.split_once('(') {
            Some((word, rest)) => {
                let number = rest.strip_suffix(')').and_then(|n| n.parse::<u16>().ok());
                (word, Some(number.ok_or_else(unknown)?))
            }
            None => (name, None),
        };
        let barrier = match (word, number) {
            ("dissemination", Some(ways)) => Barrier::Dissemination { ways },
            ("central", None) => Barrier::Central,
            ("combining", Some(fanout)) => Barrier::CombiningTree { fanout },
            ("mcs", None) => Barrier::Mcs,
            ("tournament", None) => Barrier::Tournament,
            ("bst", None) => Barrier::Bst,
            ("butterfly", None) => Barrier::Butterfly,
            ("release", Some(fanout)) => Barrier::Release { fanout },
            _ => return Err(unknown()),
        };
        (barrier.bounded() == barrier)
            .then_some(barrier)
            .ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_come_back() {
        for kind in 0..=u8::MAX {
            for number in [0, 1, 2, 7, Barrier::MOST] {
                let Some(barrier) = Barrier::from_code((kind, number)) else {
                    continue;
                };
                assert_eq!(barrier.code(), (kind, number));
                assert_eq!(barrier.to_string().parse(), Ok(barrier));
            }
        }
        for wrong in [
            "",
            "mcs(4)",
            "release",
            "release(1)",
            "dissemination(0)",
            "bst ",
        ] {
            assert!(wrong.parse::<Barrier>().is_err(), "{wrong}");
        }
        let none = Barrier::Dissemination { ways: 0 };
        assert_eq!(none.bounded(), Barrier::Dissemination { ways: 1 });
        assert_eq!(Barrier::from_code(none.code()), None);
    }

    #[test]
    fn reached_is_ordered_by_barriers_then_rounds_across_the_wrap() {
        let at = |count, round| Reached {
            count: Seq(count),
            round,
        };
        assert!(at(u32::MAX, 9).before(at(0, 0)));
        assert!(at(0, 0).before(at(0, 1)));
        assert!(!at(0, 1).before(at(0, 1)));
        assert!(!at(0, 0).before(at(u32::MAX, 9)));
    }
}
