//! Deadlines of numbered items, with the earliest at hand.
//!
//! A binary tree holds in each node the earliest deadlines below it. So the earliest of all is
//! found in one step. A changed deadline and the next item that is due take as many steps as the
//! tree has levels, and none if the change does not reach a level.

use core::array;

use crate::time::Time;

/// For each of the items `0 ..` a deadline of each of `N` kinds. A missing deadline is
/// [`Time::NEVER`].
#[derive(Clone, Debug)]
pub struct Deadlines<const N: usize> {
    /// Node `k` has the children `2 k` and `2 k + 1`, and node 1 is the root. The second half are
    /// the items' own deadlines.
    tree: Vec<[Time; N]>,
}

impl<const N: usize> Deadlines<N> {
    /// No item has a deadline.
    pub fn new() -> Deadlines<N> {
        Deadlines {
            tree: vec![[Time::NEVER; N]; 2],
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
        let mut tree = vec![[Time::NEVER; N]; 2 * room];
        tree[room..room + old].copy_from_slice(&self.tree[old..]);
        self.tree = tree;
        for k in (1..room).rev() {
            self.tree[k] = self.earlier_child(k);
        }
    }

    /// The earlier deadlines of the two children of node `k`.
    fn earlier_child(&self, k: usize) -> [Time; N] {
        let (left, right) = (&self.tree[2 * k], &self.tree[2 * k + 1]);
        array::from_fn(|kind| left[kind].min(right[kind]))
    }

    /// Sets the deadlines of an item that there is room for.
    #[inline]
    pub fn set(&mut self, item: usize, deadlines: [Option<Time>; N]) {
        let deadlines = deadlines.map(|t| t.unwrap_or(Time::NEVER));
        let k = self.room() + item;
        if self.tree[k] != deadlines {
            self.tree[k] = deadlines;
            self.pass_up(k);
        }
    }

    /// Brings the nodes above node `k`, which has changed, up to date.
    fn pass_up(&mut self, mut k: usize) {
        while k > 1 {
            k /= 2;
            let earlier = self.earlier_child(k);
            if self.tree[k] == earlier {
                return;
            }
            self.tree[k] = earlier;
        }
    }

    /// The earliest deadline of all items, of any kind.
    pub fn first(&self) -> Option<Time> {
        let first = self.tree[1].iter().min().copied();
        first.filter(|t| *t < Time::NEVER)
    }

    /// The first item from item `from` on that has a deadline of this kind not after `until`.
    #[inline]
    pub fn due(&self, kind: usize, from: usize, until: Time) -> Option<usize> {
        match self.is_due(1, kind, until) {
            true => self.find_due(kind, from, until),
            false => None,
        }
    }

    /// Whether an item below node `k` has a deadline of this kind not after `until`.
    fn is_due(&self, k: usize, kind: usize, until: Time) -> bool {
        self.tree[k][kind] <= until && self.tree[k][kind] < Time::NEVER
    }

    /// As [`Deadlines::due`], if any item is due.
    fn find_due(&self, kind: usize, from: usize, until: Time) -> Option<usize> {
        let is_due = |k: usize| self.is_due(k, kind, until);
        let room = self.room();
        if from >= room {
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
    /// each inner node holds the earliest deadlines below it.
    pub fn invariants(&self, expected: impl Iterator<Item = [Option<Time>; N]>) {
        let mut own = self.tree[self.room()..].iter();
        for (item, deadlines) in expected.enumerate() {
            let deadlines = deadlines.map(|t| t.unwrap_or(Time::NEVER));
            assert_eq!(own.next(), Some(&deadlines), "the deadlines of item {item}");
        }
        assert!(own.flatten().all(|t| *t == Time::NEVER));
        for k in 1..self.room() {
            assert_eq!(self.tree[k], self.earlier_child(k), "node {k}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Deadlines of two kinds, of which the second is the hundredfold of the first.
    fn both(at: Option<Time>) -> [Option<Time>; 2] {
        [at, at.map(|t| Time(t.0 * 100))]
    }

    /// Compares with a list: the earliest deadline, and for each item and time the next item that
    /// is due.
    fn compare(deadlines: &Deadlines<2>, list: &[Option<Time>], times: u64) {
        deadlines.invariants(list.iter().copied().map(both));
        assert_eq!(deadlines.first(), list.iter().flatten().min().copied());
        for until in (0..=times).map(Time).chain([Time::NEVER]) {
            for from in 0..=list.len() + 1 {
                let mut rest = list.iter().enumerate().skip(from);
                let due = rest.find(|d| d.1.is_some_and(|t| t <= until));
                let due = due.map(|d| d.0);
                let hundredfold = Time(until.0.saturating_mul(100));
                for (kind, until) in [(0, until), (1, hundredfold)] {
                    let found = deadlines.due(kind, from, until);
                    assert_eq!(found, due, "{list:?} from {from} to {until:?}");
                }
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
                        deadlines.set(item, both(Some(Time(7))));
                        deadlines.set(item, both(list[item]));
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
                deadlines.set(item, both(list[item]));
            }
            if step % 10 == 0 {
                compare(&deadlines, &list, 8);
            }
        }
        assert!(list.len() == 70, "{}", list.len());
    }
}
