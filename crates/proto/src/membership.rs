//! The receivers of a stream as numbered slots. A slot is free, or a node holds it.
//!
//! A slot keeps its number, so what is recorded by number stays true when other nodes join and
//! leave. A slot that is given to another node gets a higher epoch. Feedback names the slot and the
//! epoch of its author, so feedback of an earlier holder never counts for the present one.

use crate::id::NodeId;
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::seq::Seq;

/// A slot, as one holder has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Slot {
    /// The slot's number: the holder's position among the receivers, which is its turn to give
    /// feedback.
    pub index: u16,
    /// How often the slot has been given to a node that joined. The nodes that the group was added
    /// with hold their slots in epoch 0.
    pub epoch: u16,
}

/// What a node that joins must know to take part in a stream. The sender's node tells it
/// ([`crate::Node::admission`]), and the caller takes it to the joining node
/// ([`crate::Command::GroupJoin`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Admission {
    /// The slot that the node holds.
    pub slot: Slot,
    /// Number of the first packet that the node gets: the first packet of the sender's next
    /// broadcast at the time of the join.
    pub first: Seq,
    /// Number of slots of the stream, held or free.
    pub receivers: u32,
}

/// One slot's present holder and epoch.
#[derive(Clone, Copy, Debug)]
struct State {
    epoch: u16,
    holder: Option<NodeId>,
}

/// The slots of a stream.
#[derive(Clone, Debug)]
pub struct Membership {
    slots: Vec<State>,
    /// The slot of each node that holds one, sorted by node.
    by_node: Vec<(NodeId, u16)>,
}

impl Membership {
    /// Gives each of `nodes`, which are sorted and at most [`limits::MEMBERS_MAX`], the slot of its
    /// position, in epoch 0.
    pub fn new(nodes: impl Iterator<Item = NodeId>) -> Membership {
        let by_node: Vec<_> = nodes.zip(0..).collect();
        debug_assert!(by_node.is_sorted_by(|a, b| a.0 < b.0));
        let held = |&(node, _): &(NodeId, u16)| State {
            epoch: 0,
            holder: Some(node),
        };
        Membership {
            slots: by_node.iter().map(held).collect(),
            by_node,
        }
    }

    /// Number of slots, held or free.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Number of the slot that a node holds.
    pub fn index_of(&self, node: NodeId) -> Option<usize> {
        let at = self.by_node.binary_search_by_key(&node, |n| n.0).ok()?;
        Some(usize::from(self.by_node[at].1))
    }

    /// The slot that a node holds.
    pub fn slot_of(&self, node: NodeId) -> Option<Slot> {
        let index = self.index_of(node)?;
        Some(Slot {
            index: index as u16,
            epoch: self.slots[index].epoch,
        })
    }

    /// Whether feedback that names this slot comes from the present holder of slot `index`. `None`:
    /// its author is one of the nodes that the group was added with.
    pub fn is_current(&self, index: usize, slot: Option<Slot>) -> bool {
        if mutant::active(Mutant::EpochsIgnored) {
            return true;
        }
        let epoch = self.slots[index].epoch;
        match slot {
            None => epoch == 0,
            Some(slot) => usize::from(slot.index) == index && slot.epoch == epoch,
        }
    }

    /// Gives a node that holds no slot the lowest free one, or a new one, in a higher epoch than
    /// before. `None`: there are [`limits::MEMBERS_MAX`] slots, and none is free. A slot whose
    /// epochs are used up is not given again.
    pub fn join(&mut self, node: NodeId) -> Option<Slot> {
        let at = match self.by_node.binary_search_by_key(&node, |n| n.0) {
            Ok(_) => return self.slot_of(node),
            Err(at) => at,
        };
        let free = |s: &State| s.holder.is_none() && s.epoch < u16::MAX;
        let index = match self.slots.iter().position(free) {
            Some(index) => index,
            None if self.slots.len() == limits::MEMBERS_MAX => return None,
            None => {
                self.slots.push(State {
                    epoch: 0,
                    holder: None,
                });
                self.slots.len() - 1
            }
        };
        let state = &mut self.slots[index];
        (state.epoch, state.holder) = (state.epoch + 1, Some(node));
        self.by_node.insert(at, (node, index as u16));
        self.slot_of(node)
    }

    /// Frees the slot that a node holds. Returns the slot's number.
    pub fn leave(&mut self, node: NodeId) -> Option<usize> {
        let at = self.by_node.binary_search_by_key(&node, |n| n.0).ok()?;
        let index = usize::from(self.by_node.remove(at).1);
        self.slots[index].holder = None;
        Some(index)
    }

    /// The nodes that hold a slot, in rising order.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + '_ {
        self.by_node.iter().map(|n| n.0)
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.by_node.is_sorted_by(|a, b| a.0 < b.0));
        for &(node, index) in &self.by_node {
            assert_eq!(self.slots[usize::from(index)].holder, Some(node));
        }
        let held = self.slots.iter().filter(|s| s.holder.is_some()).count();
        assert_eq!(held, self.by_node.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    proptest! {
        /// Nodes join and leave in any order: a node has one slot, a slot one holder, a holder's
        /// slot does not change, and no slot is held twice in one epoch.
        #[test]
        fn a_slot_has_one_holder_in_an_epoch(
            founders in 0u32..6,
            acts in proptest::collection::vec((0u32..10, any::<bool>()), 0..200),
        ) {
            let mut m = Membership::new((0..founders).map(NodeId));
            let mut model: BTreeMap<u32, Slot> = (0..founders).map(|n| {
                (n, Slot { index: n as u16, epoch: 0 })
            }).collect();
            let mut given: BTreeSet<Slot> = model.values().copied().collect();
            for (n, joins) in acts {
                match (joins, model.get(&n).copied()) {
                    (true, Some(slot)) => prop_assert_eq!(m.join(NodeId(n)), Some(slot)),
                    (true, None) => {
                        let slot = m.join(NodeId(n)).unwrap();
                        prop_assert!(slot.epoch > 0 && given.insert(slot), "{:?} again", slot);
                        model.insert(n, slot);
                    }
                    (false, _) => {
                        let left = m.leave(NodeId(n));
                        let held = model.remove(&n).map(|s| usize::from(s.index));
                        prop_assert_eq!(left, held);
                    }
                }
                m.invariants();
                // No more slots than there were ever holders at once, or founders.
                prop_assert!(m.len() <= 10.max(founders as usize));
                for n in 0..10 {
                    prop_assert_eq!(m.slot_of(NodeId(n)), model.get(&n).copied());
                }
                for (n, &slot) in &model {
                    let named = (slot.epoch > 0).then_some(slot);
                    let index = m.index_of(NodeId(*n)).unwrap();
                    prop_assert!(m.is_current(index, named));
                    for &other in given.iter().filter(|o| **o != slot) {
                        let named = (other.epoch > 0).then_some(other);
                        prop_assert!(slot.epoch == 0 && named.is_none()
                            || !m.is_current(index, named));
                    }
                }
            }
        }
    }

    #[test]
    fn a_slot_without_further_epochs_is_not_given_again() {
        let mut m = Membership::new([NodeId(7)].into_iter());
        for epoch in 1..=u16::MAX {
            assert_eq!(m.leave(NodeId(7)), Some(0));
            assert_eq!(m.join(NodeId(7)), Some(Slot { index: 0, epoch }));
        }
        assert_eq!(m.leave(NodeId(7)), Some(0));
        assert_eq!(m.join(NodeId(7)), Some(Slot { index: 1, epoch: 1 }));
    }
}
