//! Deadlines of numbered items, with the earliest at hand.
//!
//! A binary tree holds in each node the earliest deadline below it. So the earliest of all is found
//! in one step. A changed deadline and the next item that is due take as many steps as the tree has
//! levels, and none if the change does not reach a level.

use crate::time::Time;

/// The deadline of each of the items `0 ..`; an item may have none.
#[derive(Clone, Debug)]
pub struct Deadlines {
    /// Node `k` has the children `2 k` and `2 k + 1`, and node 1 is the root. The second half are
    /// the items' own deadlines.
    tree: Vec<Option<Time>>,
}

impl Deadlines {
    /// No item has a deadline.
    pub fn new() -> Deadlines {
        Deadlines {
            tree: vec![None; 2],
        }
    }

    /// Number of items that there is room for, a power of two.
    fn room(&self) -> usize {
        self.tree.len() / 2
    }

    /// Makes room for items `0 .. items`.
    pub fn grow(&mut self, items: usize) {
        let old = self.room();
        if items <= old {
            return;
        }
        let room = items.next_power_of_two();
        let mut tree = vec![None; 2 * room];
        tree[room..room + old].copy_from_slice(&self.tree[old..]);
        self.tree = tree;
        for k in (1..room).rev() {
            self.tree[k] = self.earlier_child(k);
        }
    }

    /// The earlier deadline of the two children of node `k`.
    fn earlier_child(&self, k: usize) -> Option<Time> {
        earlier(self.tree[2 * k], self.tree[2 * k + 1])
    }

    /// Sets the deadline of an item that there is room for.
    pub fn set(&mut self, item: usize, at: Option<Time>) {
        let mut k = self.room() + item;
        if self.tree[k] == at {
            return;
        }
        self.tree[k] = at;
        while k > 1 {
            k /= 2;
            let first = self.earlier_child(k);
            if self.tree[k] == first {
                return;
            }
            self.tree[k] = first;
        }
    }

    /// The earliest deadline of all items.
    pub fn first(&self) -> Option<Time> {
        self.tree[1]
    }

    /// The first item from item `from` on whose deadline is not after `until`.
    pub fn due(&self, from: usize, until: Time) -> Option<usize> {
        let is_due = |k: usize| self.tree[k].is_some_and(|t| t <= until);
        let room = self.room();
        if from >= room || !is_due(1) {
            return None;
        }
        let mut k = room + from;
        while !is_due(k) {
            // Go on with the next sub-tree to the right; there is none right of the root.
            while k % 2 == 1 {
                k /= 2;
            }
            if k == 0 {
                return None;
            }
            k += 1;
        }
        while k < room {
            k *= 2;
            k += usize::from(!is_due(k));
        }
        Some(k - room)
    }

    /// Panics unless `expected` are the deadlines of the first items, the others have none, and
    /// each inner node holds the earliest deadline below it.
    pub fn invariants(&self, expected: impl Iterator<Item = Option<Time>>) {
        let mut own = self.tree[self.room()..].iter();
        for (item, at) in expected.enumerate() {
            assert_eq!(own.next(), Some(&at), "the deadline of item {item}");
        }
        assert!(own.all(Option::is_none));
        for k in 1..self.room() {
            assert_eq!(self.tree[k], self.earlier_child(k), "node {k}");
        }
    }
}

/// The earlier of two deadlines, each of which may be missing.
fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Compares with a list: the earliest deadline, and for each item and time the next item that
    /// is due.
    fn compare(deadlines: &Deadlines, list: &[Option<Time>], times: u64) {
        deadlines.invariants(list.iter().copied());
        assert_eq!(deadlines.first(), list.iter().flatten().min().copied());
        for until in (0..=times).map(Time).chain([Time::NEVER]) {
            for from in 0..=list.len() + 1 {
                let mut rest = list.iter().enumerate().skip(from);
                let due = rest.find(|d| d.1.is_some_and(|t| t <= until));
                let found = deadlines.due(from, until);
                assert_eq!(found, due.map(|d| d.0), "{list:?} from {from} to {until:?}");
            }
        }
    }

    /// All deadlines out of none, 0, 1 and 2 for up to five items, set in either order.
    #[test]
    fn few_items_are_found_in_every_case() {
        for items in 0..=5u32 {
            for case in 0..4u32.pow(items) {
                let at = |i: u32| (case / 4u32.pow(i) % 4).checked_sub(1);
                let list: Vec<_> = (0..items).map(|i| at(i).map(|t| Time(t.into()))).collect();
                for backwards in [false, true] {
                    let mut deadlines = Deadlines::new();
                    for k in 0..list.len() {
                        let item = if backwards { list.len() - 1 - k } else { k };
                        deadlines.grow(item + 1);
                        deadlines.set(item, Some(Time(7)));
                        deadlines.set(item, list[item]);
                    }
                    compare(&deadlines, &list, 2);
                }
            }
        }
    }

    #[test]
    fn changes_of_many_items_are_found() {
        let mut rng = Rng::new(1);
        let (mut deadlines, mut list) = (Deadlines::new(), Vec::new());
        for step in 0..2000 {
            if list.len() < 70 && rng.below(20) == 0 {
                list.push(None);
                deadlines.grow(list.len());
            }
            if !list.is_empty() {
                let item = rng.below(list.len() as u64) as usize;
                list[item] = rng.below(9).checked_sub(1).map(Time);
                deadlines.set(item, list[item]);
            }
            if step % 10 == 0 {
                compare(&deadlines, &list, 8);
            }
        }
        assert!(list.len() == 70, "{}", list.len());
    }
}
