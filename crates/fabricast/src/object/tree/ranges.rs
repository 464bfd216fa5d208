//! The parts of a file that have been written.

use std::collections::BTreeMap;

/// Most ranges of one file. A sender whose pieces leave more gaps than that makes no sense.
const RANGES_MAX: usize = 1 << 16;

/// Ranges of bytes that do not overlap and do not touch: where each begins, and where it ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start .. end`. Returns false, and changes nothing, if a part of it is there already or
    /// there are too many ranges.
    pub fn add(&mut self, start: u64, end: u64) -> bool {
        if start == end {
            return true;
        }
        let before = self.0.range(..=start).next_back().map(|(s, e)| (*s, *e));
        let after = self.0.range(start..).next().map(|(s, e)| (*s, *e));
        if before.is_some_and(|b| b.1 > start)
            || after.is_some_and(|a| a.0 < end)
            || self.0.len() >= RANGES_MAX
        {
            return false;
        }
        let start = match before {
            Some(before) if before.1 == start => before.0,
            _ => start,
        };
        let end = match after {
            Some(after) if after.0 == end => {
                self.0.remove(&after.0);
                after.1
            }
            _ => end,
        };
        self.0.insert(start, end);
        true
    }

    /// The ranges, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(start, end)| (*start, *end))
    }

    /// Whether everything before `len` is there.
    pub fn cover(&self, len: u64) -> bool {
        len == 0 || self.0.get(&0).is_some_and(|end| *end >= len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_never_overlap() {
        let mut ranges = Ranges::default();
        assert!(ranges.cover(0) && !ranges.cover(1));
        for (start, end) in [(10, 20), (30, 40), (0, 5), (20, 30), (7, 7)] {
            assert!(ranges.add(start, end), "{start}");
        }
        for (start, end) in [(10, 20), (19, 45), (0, 1), (4, 6), (3, 12), (39, 41)] {
            assert!(!ranges.add(start, end), "{start}");
        }
        assert_eq!(ranges.0, BTreeMap::from([(0, 5), (10, 40)]));
        assert!(ranges.cover(5) && !ranges.cover(6));
        assert!(ranges.add(5, 10) && ranges.cover(40) && !ranges.cover(41));
    }

    #[test]
    fn ranges_are_bounded() {
        let mut ranges = Ranges::default();
        let many = (0..).take_while(|n| ranges.add(2 * n, 2 * n + 1)).count();
        assert_eq!(many, RANGES_MAX);
    }
}
