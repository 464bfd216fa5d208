//! The operations of a node, and the stream that each belongs to.

use crate::id::OpId;
use crate::seq::Seq;

/// Number of slots before the first operation; a power of two.
const SLOTS_MIN: usize = 64;

/// The stream that an operation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// The node's own: the operation is a broadcast that the node sends.
    Own,
    /// The one at this place among those that the node receives in the group.
    At(usize),
}

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its number.
    pub op: OpId,
    /// The index of its group in the node.
    pub group: usize,
    /// Its stream in the group.
    pub stream: Stream,
    /// Number of its first packet in the stream.
    pub base: Seq,
}

/// The operations whose objects a node may still read or write, found by their numbers: a hash
/// table with linear probing. At least half of its slots are free, so a look-up is one step as a
/// rule.
///
/// It has at most four times as many slots as there were operations at once, or 64. Each stream
/// bounds its operations ([`crate::limits::OPS_MAX`]).
pub struct OpTable {
    /// An operation lies in the first slot from its own on that was free.
    slots: Vec<Option<Entry>>,
    len: usize,
    /// The number of operations of each group, by the group's index.
    of_group: Vec<u32>,
    /// The last number that was given away.
    last: OpId,
}

impl OpTable {
    /// There are no operations yet; the first number is 1.
    pub fn new() -> OpTable {
        OpTable {
            slots: vec![None; SLOTS_MIN],
            len: 0,
            of_group: Vec::new(),
            last: OpId(0),
        }
    }

    /// The number that the next operation gets, if it is not refused.
    pub fn next(&self) -> OpId {
        OpId(self.last.0.wrapping_add(1))
    }

    /// Gives the next number away, to an operation of no stream.
    pub fn give_away(&mut self, op: OpId) {
        self.last = op;
    }

    /// Adds an operation, which has the next number.
    pub fn add(&mut self, entry: Entry) {
        self.last = entry.op;
        self.len += 1;
        if self.of_group.len() <= entry.group {
            self.of_group.resize(entry.group + 1, 0);
        }
        self.of_group[entry.group] += 1;
        if 2 * self.len > self.slots.len() {
            let wider = vec![None; 2 * self.slots.len()];
            let old = core::mem::replace(&mut self.slots, wider);
            old.into_iter().flatten().for_each(|e| self.put(e));
        }
        self.put(entry);
    }

    fn put(&mut self, entry: Entry) {
        let (Ok(slot) | Err(slot)) = self.find(entry.op);
        self.slots[slot] = Some(entry);
    }

    /// An operation's own slot. Numbers that follow one another lie far apart, so that operations
    /// that stay for long are in nobody's way.
    fn own_slot(&self, op: OpId) -> usize {
        // Multiplication by 2^32 / phi (Fibonacci hashing).
        let spread = op.0.wrapping_mul(0x9e37_79b9);
        (spread >> (u32::BITS - self.slots.len().ilog2())) as usize
    }

    /// The slot after `slot`.
    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot that an operation lies in, or else the free slot that it would lie in.
    fn find(&self, op: OpId) -> Result<usize, usize> {
        let mut slot = self.own_slot(op);
        loop {
            match &self.slots[slot] {
                Some(entry) if entry.op == op => return Ok(slot),
                Some(_) => slot = self.after(slot),
                None => return Err(slot),
            }
        }
    }

    /// The operation with this number.
    pub fn get(&self, op: OpId) -> Option<&Entry> {
        self.slots[self.find(op).ok()?].as_ref()
    }

    /// Removes an operation, if it is there.
    pub fn remove(&mut self, op: OpId) {
        let Ok(mut free) = self.find(op) else { return };
        if let Some(entry) = self.slots[free].take() {
            self.of_group[entry.group] -= 1;
        }
        self.len -= 1;
        // Operations that this one was in the way of move up.
        let mut slot = self.after(free);
        let steps = |from: usize, to: usize, slots: usize| to.wrapping_sub(from) & (slots - 1);
        while let Some(entry) = self.slots[slot] {
            let own = self.own_slot(entry.op);
            let slots = self.slots.len();
            if steps(own, slot, slots) >= steps(free, slot, slots) {
                self.slots[free] = self.slots[slot].take();
                free = slot;
            }
            slot = self.after(slot);
        }
    }

    /// Removes all operations of a group. Returns them in the order of their numbers. As a rule a
    /// group that is removed has none, and then the slots are not searched.
    pub fn remove_group(&mut self, group: usize) -> Vec<OpId> {
        if self.of_group.get(group).is_none_or(|&count| count == 0) {
            return Vec::new();
        }
        let entries = self.slots.iter().flatten();
        let of_group = entries.filter(|e| e.group == group);
        let mut ops: Vec<_> = of_group.map(|e| e.op).collect();
        ops.sort_unstable();
        ops.iter().for_each(|&op| self.remove(op));
        ops
    }

    /// Panics if the state contradicts itself.
    pub fn invariants(&self) {
        assert!(self.slots.len().is_power_of_two() && 2 * self.len <= self.slots.len());
        assert_eq!(self.slots.iter().flatten().count(), self.len);
        for (group, &count) in self.of_group.iter().enumerate() {
            let entries = self.slots.iter().flatten();
            let found = entries.filter(|e| e.group == group).count();
            assert_eq!(found, count as usize);
        }
        for (slot, entry) in self.slots.iter().enumerate() {
            assert!(entry.is_none_or(|e| self.find(e.op) == Ok(slot)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::rng::Rng;

    fn entry(op: OpId, group: usize) -> Entry {
        Entry {
            op,
            group,
            stream: Stream::At(op.0 as usize % 7),
            base: Seq(op.0.wrapping_mul(3)),
        }
    }

    /// Operations come and go in any order, some stay for long, and the numbers wrap: the table
    /// does what a map does.
    #[test]
    fn it_is_a_map() {
        for seed in 0..20 {
            let (mut rng, mut table, mut map) = (Rng::new(seed), OpTable::new(), BTreeMap::new());
            table.last = OpId(u32::MAX - 500);
            for _ in 0..3000 {
                match rng.below(100) {
                    0..45 if map.len() < 300 => {
                        let op = table.next();
                        let entry = entry(op, rng.below(3) as usize);
                        table.add(entry);
                        assert_eq!(map.insert(op, entry), None);
                    }
                    45..50 => table.give_away(table.next()),
                    50..99 if !map.is_empty() => {
                        let nth = rng.below(map.len() as u64) as usize;
                        // The least number stays for longer than the others.
                        let op = *map.keys().nth(nth.max(1).min(map.len() - 1)).unwrap();
                        table.remove(op);
                        map.remove(&op);
                        table.remove(op);
                    }
                    99 if rng.below(20) == 0 => {
                        let ops: Vec<_> = map.extract_if(.., |_, e| e.group == 1).collect();
                        let ops: Vec<_> = ops.into_iter().map(|e| e.0).collect();
                        assert_eq!(table.remove_group(1), ops);
                    }
                    _ => {}
                }
                table.invariants();
                assert_eq!(table.len, map.len());
                for (op, entry) in &map {
                    assert_eq!(table.get(*op), Some(entry));
                    let other = OpId(op.0.wrapping_add(5000));
                    assert_eq!(table.get(other), None);
                }
            }
        }
    }
}
