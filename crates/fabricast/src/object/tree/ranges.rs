//! The parts of a file that have been written.

use std::ops::Range;

use rangemap::RangeSet;

/// Most ranges of one file. A sender whose pieces leave more gaps than that makes no sense.
const RANGES_MAX: usize = 1 << 16;

/// Ranges of bytes that do not overlap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranges(RangeSet<u64>);

impl Ranges {
    /// Adds a range. Returns false, and changes nothing, if a part of it is there already or there
    /// are too many ranges.
    pub fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let may = !self.0.overlaps(&range) && self.0.len() < RANGES_MAX;
        if may {
            self.0.insert(range);
        }
        may
    }

    /// Whether everything before `len` is there.
    pub fn cover(&self, len: u64) -> bool {
        len == 0 || self.0.get(&0).is_some_and(|first| first.end >= len)
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
            assert!(ranges.add(start..end), "{start}");
        }
        for (start, end) in [(10, 20), (19, 45), (0, 1), (4, 6), (3, 12), (39, 41)] {
            assert!(!ranges.add(start..end), "{start}");
        }
        assert_eq!(ranges.0, RangeSet::from([0..5, 10..40]));
        assert!(ranges.cover(5) && !ranges.cover(6));
        assert!(ranges.add(5..10) && ranges.cover(40) && !ranges.cover(41));
    }

    #[test]
    fn ranges_are_bounded() {
        let mut ranges = Ranges::default();
        let many = (0..).take_while(|n| ranges.add(2 * n..2 * n + 1)).count();
        assert_eq!(many, RANGES_MAX);
    }
}
