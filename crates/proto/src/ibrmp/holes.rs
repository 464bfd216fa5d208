//! The bytes of a file that a receiver lacks (P3.3, spec 7.4).
//!
//! ```text
//!   here   hole   here   hole   here | high      nobody has said that there is more
//! ```
//! All bytes before `high` are here or in a hole. A message beyond `high` makes a hole of what it
//! skips, and the EOF makes one of what follows `high`.

use std::collections::BTreeMap;
use std::ops::Range;

/// The holes of one file, as ranges of bytes.
#[derive(Clone, Default, Debug)]
pub struct Holes {
    /// First byte and end of each hole. Holes do not touch each other.
    holes: BTreeMap<u64, u64>,
    high: u64,
}

/// What bytes that arrive mean to a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The smallest range that contains all bytes of the message that were missing. It may contain
    /// bytes that are here already.
    pub write: Range<u64>,
    /// The hole that the message has skipped, if any.
    pub skipped: Option<Range<u64>>,
}

impl Holes {
    /// Number of holes.
    pub fn count(&self) -> usize {
        self.holes.len()
    }

    /// The end of what is known to have been sent.
    pub fn high(&self) -> u64 {
        self.high
    }

    /// The smallest range that contains all missing bytes of `range` before `high`; `None` if all
    /// of them are here.
    pub fn missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let first = self.touching(range).next()?;
        let last = self.touching(range).next_back()?;
        Some(first.start.max(range.start)..last.end.min(range.end))
    }

    /// The holes that have bytes in `range`, in rising order.
    fn touching(&self, range: &Range<u64>) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        let before = self.holes.range(..range.start).next_back();
        let before = before.filter(|&(_, &end)| end > range.start);
        let from = before.map_or(range.start, |(&start, _)| start);
        let holes = self.holes.range(from..range.end.max(from));
        holes.map(|(&start, &end)| start..end)
    }

    /// Bytes arrive. Returns `None` and changes nothing if all of them are here, or if that would
    /// make one hole more while `has_room` is false. So the bytes count as lost then.
    pub fn arrive(&mut self, range: Range<u64>, has_room: bool) -> Option<Arrival> {
        let skipped = (self.high < range.start).then_some(self.high..range.start);
        let missing = self.missing(&range);
        let splits = |hole: &Range<u64>| hole.start < range.start && range.end < hole.end;
        let is_split = self
            .touching(&range)
            .next()
            .is_some_and(|hole| splits(&hole));
        if (skipped.is_some() || is_split) && !has_room {
            return None;
        }
        let beyond = range.end > self.high;
        let write = match (missing, beyond) {
            (None, false) => return None,
            (None, true) => self.high.max(range.start)..range.end,
            (Some(hole), false) => hole,
            (Some(hole), true) => hole.start..range.end,
        };
        let touched: Vec<Range<u64>> = self.touching(&range).collect();
        for hole in touched {
            self.holes.remove(&hole.start);
            if hole.start < range.start {
                self.holes.insert(hole.start, range.start);
            }
            if range.end < hole.end {
                self.holes.insert(range.end, hole.end);
            }
        }
        if let Some(skipped) = &skipped {
            self.holes.insert(skipped.start, skipped.end);
        }
        self.high = self.high.max(range.end);
        Some(Arrival { write, skipped })
    }

    /// The holes, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.holes.iter().map(|(&start, &end)| start..end)
    }

    /// Forgets all that lies behind `len`, which is the end from then on.
    pub fn truncate(&mut self, len: u64) {
        self.holes.split_off(&len);
        if let Some(mut last) = self.holes.last_entry() {
            *last.get_mut() = len.min(*last.get());
        }
        self.high = self.high.min(len);
    }

    /// Everything before `len` has been sent: what follows `high` becomes a hole. Returns it.
    pub fn end(&mut self, len: u64) -> Option<Range<u64>> {
        let hole = self.high..len;
        if hole.is_empty() {
            return None;
        }
        // A hole never reaches `high`: a message that has arrived lies behind each.
        self.holes.insert(hole.start, hole.end);
        self.high = len;
        Some(hole)
    }

    /// Panics if an invariant is broken; tests call it after every change.
    pub fn invariants(&self) {
        let mut before = None;
        for (&start, &end) in &self.holes {
            assert!(start < end && end <= self.high);
            assert!(before.is_none_or(|before| before < start), "holes touch");
            before = Some(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_example_of_the_paper() {
        // DATA 500 with 100 bytes, then DATA 1000: 400 bytes are missing from 600 on.
        let mut holes = Holes::default();
        holes.arrive(0..500, true);
        assert_eq!(holes.arrive(500..600, true).expect("new").skipped, None);
        let next = holes.arrive(1000..1100, true).expect("new");
        assert_eq!(next.skipped, Some(600..1000));
        assert_eq!(holes.end(1600), Some(1100..1600));
    }

    proptest! {
        /// Compares the holes with one flag for each byte.
        #[test]
        fn agrees_with_flags(
            arrivals in proptest::collection::vec((0u64..60, 1u64..20, any::<bool>()), 0..40),
            len in 80u64..100,
            cut in 0u64..100,
        ) {
            let mut holes = Holes::default();
            let (mut here, mut high) = ([false; 100], 0);
            for (start, count, has_room) in arrivals {
                let range = start..start + count;
                let new: Vec<u64> = range.clone().filter(|&at| !here[at as usize]).collect();
                let before = holes.count();
                let arrival = holes.arrive(range.clone(), has_room);
                holes.invariants();
                if let Some(Arrival { write, skipped }) = arrival {
                    let (first, last) = (*new.first().expect("new"), *new.last().expect("new"));
                    prop_assert_eq!(write, first..last + 1);
                    prop_assert_eq!(skipped, (high < start).then_some(high..start));
                    prop_assert!(has_room || holes.count() <= before);
                    range.for_each(|at| here[at as usize] = true);
                    high = high.max(start + count);
                } else {
                    prop_assert!(new.is_empty() || !has_room);
                }
                let lacks = (0..high).filter(|&at| !here[at as usize]).count() as u64;
                let sum: u64 = holes.touching(&(0..100)).map(|hole| hole.end - hole.start).sum();
                prop_assert_eq!(sum, lacks);
                prop_assert_eq!(holes.high(), high);
                for at in 0..high {
                    prop_assert_eq!(holes.missing(&(at..at + 1)).is_none(), here[at as usize]);
                }
            }
            let lacks = |holes: &Holes, at| holes.iter().any(|hole| hole.contains(&at));
            let mut shorter = holes.clone();
            shorter.truncate(cut);
            shorter.invariants();
            for at in 0..100 {
                prop_assert_eq!(lacks(&shorter, at), at < cut && lacks(&holes, at));
            }
            prop_assert_eq!(shorter.end(cut), (high < cut).then_some(high..cut));
            prop_assert_eq!(holes.end(len), Some(high..len));
            holes.invariants();
        }
    }
}
