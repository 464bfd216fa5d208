//! The feedback hierarchy: every receiver of a stream reports to its *collector*, which is the
//! sender or another receiver (P1.4, P1.5).
//!
//! Receivers are numbered by their turn (their place among the members without the sender), so all
//! members compute the same hierarchy without any message. A receiver whose collector is gone
//! reports to the sender.

use crate::scheme::FeedbackTopology;

/// The hierarchy of one stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hierarchy {
    topology: FeedbackTopology,
    receivers: u32,
}

impl Hierarchy {
    /// The hierarchy of a stream with `receivers` receivers.
    pub fn new(topology: FeedbackTopology, receivers: u32) -> Hierarchy {
        let topology = match topology {
            FeedbackTopology::Coroots(k) => FeedbackTopology::Coroots(k.clamp(1, receivers.max(1))),
            FeedbackTopology::Tree(fanout) => FeedbackTopology::Tree(fanout.max(1)),
            FeedbackTopology::Direct => FeedbackTopology::Direct,
        };
        Hierarchy {
            topology,
            receivers,
        }
    }

    /// The receiver to which the receiver `turn` reports, or `None` for the sender.
    pub fn collector(&self, turn: u32) -> Option<u32> {
        match self.topology {
            FeedbackTopology::Direct => None,
            FeedbackTopology::Coroots(_) => {
                let group = self.delivery_group(turn);
                match self.coroot(group) {
                    Some(first) if first != turn => Some(first),
                    // Co-roots form a binomial tree: the parent's group is this group without its
                    // lowest bit.
                    Some(_) => self.coroot(group & (group - 1)),
                    None => None,
                }
            }
            // The tree is a heap with the sender at place 0.
            FeedbackTopology::Tree(fanout) => (turn / fanout).checked_sub(1),
        }
    }

    /// The receivers that report to the receiver `of`, or to the sender (`None`).
    pub fn reporters(&self, of: Option<u32>) -> impl Iterator<Item = u32> + '_ {
        // Every receiver calls this once. Only the few with many reporters scan all receivers.
        let candidates = match (self.topology, of) {
            (FeedbackTopology::Direct, Some(_)) => 0..0,
            (FeedbackTopology::Coroots(_), Some(turn)) if !self.is_coroot(turn) => 0..0,
            (FeedbackTopology::Direct | FeedbackTopology::Coroots(_), _) => 0..self.receivers,
            (FeedbackTopology::Tree(fanout), _) => {
                let first = of
                    .map_or(0, |turn| turn.saturating_add(1))
                    .saturating_mul(fanout);
                let end = first.saturating_add(fanout).min(self.receivers);
                first.min(end)..end
            }
        };
        candidates.filter(move |&turn| self.collector(turn) == of)
    }

    /// The receiver `turn` and, in a tree, all receivers below it.
    pub fn subtree(&self, turn: u32) -> impl Iterator<Item = u32> + use<> {
        let fanout = match self.topology {
            FeedbackTopology::Tree(fanout) => u64::from(fanout),
            // With this fan-out no place has children.
            FeedbackTopology::Direct | FeedbackTopology::Coroots(_) => u64::from(u32::MAX),
        };
        let place = u64::from(turn) + 1;
        let last = u64::from(self.receivers);
        // A sub-tree is a run of places on every level.
        let levels = core::iter::successors(Some((place, place)), move |&(from, to)| {
            let first = from.saturating_mul(fanout).saturating_add(1);
            Some((first, to.saturating_mul(fanout).saturating_add(fanout)))
        });
        levels
            .take_while(move |level| level.0 <= last)
            .flat_map(move |(from, to)| from..=to.min(last))
            .map(|place| (place - 1) as u32)
    }

    /// Whether a receiver is a co-root, which gets a copy of its own of every packet (P1.4).
    pub fn is_coroot(&self, turn: u32) -> bool {
        matches!(self.topology, FeedbackTopology::Coroots(_))
            && self.coroot(self.delivery_group(turn)) == Some(turn)
    }

    /// Index of the receiver's delivery group; the sender's group is 0.
    fn delivery_group(&self, turn: u32) -> u32 {
        let FeedbackTopology::Coroots(k) = self.topology else {
            return 0;
        };
        // Counted with the sender at place 0, the sizes of the groups differ by at most one.
        let (nodes, place) = (u64::from(self.receivers) + 1, u64::from(turn) + 1);
        (place * u64::from(k) / nodes) as u32
    }

    /// The first receiver of a delivery group, which is its co-root; the sender's group (0) has
    /// none.
    fn coroot(&self, group: u32) -> Option<u32> {
        let FeedbackTopology::Coroots(k) = self.topology else {
            return None;
        };
        let nodes = u64::from(self.receivers) + 1;
        let place = (u64::from(group) * nodes).div_ceil(u64::from(k)) as u32;
        place.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_one_way_to_the_root() {
        let all = [1, 2, 3, 7, 100].map(|k| {
            [
                FeedbackTopology::Direct,
                FeedbackTopology::Coroots(k),
                FeedbackTopology::Tree(k),
            ]
        });
        for topology in all.into_iter().flatten() {
            for receivers in 1..60 {
                let h = Hierarchy::new(topology, receivers);
                let mut reports = 0;
                for turn in 0..receivers {
                    let (mut at, mut hops) = (Some(turn), 0);
                    while let Some(t) = at {
                        at = h.collector(t);
                        assert!(
                            at.is_none_or(|c| c < t),
                            "{topology:?}: {t} reports to {at:?}"
                        );
                        hops += 1;
                    }
                    let depth = match topology {
                        FeedbackTopology::Direct => 1,
                        FeedbackTopology::Coroots(k) => 2 + k.min(receivers).ilog2(),
                        FeedbackTopology::Tree(1) => receivers,
                        FeedbackTopology::Tree(f) => 1 + receivers.ilog(f),
                    };
                    assert!(hops <= depth, "{topology:?} of {receivers}: {hops} hops");
                    reports += h.reporters(Some(turn)).count();
                }
                assert_eq!(reports + h.reporters(None).count(), receivers as usize);
            }
        }
    }

    #[test]
    fn a_sub_tree_is_who_reports_through_its_top() {
        for (fanout, receivers) in [(1, 9), (2, 31), (3, 40), (5, 12)] {
            let h = Hierarchy::new(FeedbackTopology::Tree(fanout), receivers);
            for top in 0..receivers {
                let through = |t: &u32| {
                    let mut up = core::iter::successors(Some(*t), |&t| h.collector(t));
                    up.any(|c| c == top)
                };
                let want: Vec<u32> = (0..receivers).filter(through).collect();
                assert_eq!(h.subtree(top).collect::<Vec<_>>(), want);
            }
        }
        let flat = Hierarchy::new(FeedbackTopology::Coroots(2), 9);
        assert_eq!(flat.subtree(3).collect::<Vec<_>>(), [3]);
    }

    /// The paper's Co-root2 on 8 nodes: the sender and one co-root, with three receivers each.
    #[test]
    fn delivery_groups_are_of_a_size() {
        let h = Hierarchy::new(FeedbackTopology::Coroots(2), 7);
        assert_eq!(h.reporters(None).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(h.reporters(Some(3)).collect::<Vec<_>>(), [4, 5, 6]);
        assert!(h.is_coroot(3) && !h.is_coroot(0));
        for (k, receivers) in [(4, 31), (5, 31), (128, 1023)] {
            let h = Hierarchy::new(FeedbackTopology::Coroots(k), receivers);
            let mut sizes = vec![1; k as usize];
            (0..receivers).for_each(|t| sizes[h.delivery_group(t) as usize] += 1);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{sizes:?}");
            assert_eq!(
                (0..receivers).filter(|&t| h.is_coroot(t)).count() as u32,
                k - 1
            );
        }
    }
}
