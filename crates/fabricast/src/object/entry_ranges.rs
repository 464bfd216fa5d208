//! Numbers of files of a set, as ranges.

use super::manifest::{Entry, Kind};

/// Most ranges that a receiver tells the sender.
pub const CANDIDATE_RANGES_MAX: usize = 4096;

/// Numbers of entries as ranges, in ascending order: where each begins, and where it ends. Only
/// files with bytes count: what lies between two of them belongs to the range, whatever it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryRanges(Vec<(u32, u32)>);

impl EntryRanges {
    /// The ranges of the files for which `is_in` returns true, at most `most` ranges: those with
    /// the most bytes.
    pub fn of(entries: &[Entry], most: usize, mut is_in: impl FnMut(u32) -> bool) -> EntryRanges {
        // Where a range begins and ends, and its bytes.
        let (mut ranges, mut is_open) = (Vec::<(u32, u32, u64)>::new(), false);
        for (number, entry) in (0..).zip(entries) {
            let Kind::File(len @ 1..) = entry.kind else {
                continue;
            };
            let was_open = std::mem::replace(&mut is_open, is_in(number));
            match ranges.last_mut() {
                _ if !is_open => {}
                Some(last) if was_open => (last.1, last.2) = (number + 1, last.2 + len),
                _ => ranges.push((number, number + 1, len)),
            }
        }
        if ranges.len() > most {
            ranges.sort_unstable_by_key(|range| std::cmp::Reverse(range.2));
            ranges.truncate(most);
            ranges.sort_unstable();
        }
        EntryRanges(ranges.into_iter().map(|range| (range.0, range.1)).collect())
    }

    /// Adds ranges behind those that are there. False if that makes no sense, or these are too
    /// many: then nothing is added.
    pub fn append(&mut self, more: &[(u32, u32)]) -> bool {
        let mut end = self.0.last().map_or(0, |last| last.1);
        let follows = |(from, to): &(u32, u32)| {
            let is_sound = end <= *from && from < to;
            end = *to;
            is_sound
        };
        let is_sound =
            self.0.len() + more.len() <= CANDIDATE_RANGES_MAX && more.iter().all(follows);
        if is_sound {
            self.0.extend(more);
        }
        is_sound
    }

    /// What both have.
    pub fn and(&self, other: &EntryRanges) -> EntryRanges {
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some(a), Some(b)) = (one.peek(), two.peek()) {
            let (from, to) = (a.0.max(b.0), a.1.min(b.1));
            if from < to {
                both.push((from, to));
            }
            match a.1 < b.1 {
                true => _ = one.next(),
                false => _ = two.next(),
            }
        }
        EntryRanges(both)
    }

    /// Whether a file is in one of the ranges.
    pub fn has(&self, file: u32) -> bool {
        let after = self.0.partition_point(|range| range.0 <= file);
        after > 0 && file < self.0[after - 1].1
    }

    /// Bytes of the files.
    pub fn bytes(&self, entries: &[Entry]) -> u64 {
        let ranges = self
            .0
            .iter()
            .map(|&(from, to)| (from as usize, to as usize));
        let files = ranges.flat_map(|(from, to)| entries.get(from..to).unwrap_or_default());
        let lens = files.map(|entry| match entry.kind {
            Kind::File(len) => len,
            _ => 0,
        });
        lens.sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::manifest::TOP;

    fn entries(lens: &[Option<u64>]) -> Vec<Entry> {
        let entry = |len: &Option<u64>| Entry {
            parent: TOP,
            name: (*b"x").into(),
            kind: len.map_or(Kind::Directory, Kind::File),
            mode: 0,
            mtime: 0,
            mtime_ns: 0,
            owner: (0, 0),
            attributes: Default::default(),
        };
        lens.iter().map(entry).collect()
    }

    fn ranges(of: &[(u32, u32)]) -> EntryRanges {
        let mut ranges = EntryRanges::default();
        assert!(ranges.append(of));
        ranges
    }

    /// A directory and an empty file cut no range. With too many ranges the shorter ones go.
    #[test]
    fn ranges_are_of_files_and_bounded_by_bytes() {
        let lens = [Some(5), None, Some(7), Some(0), Some(9), Some(1), Some(30)];
        let entries = entries(&lens);
        let of = |most, out: &[u32]| {
            let ranges = EntryRanges::of(&entries, most, |file| !out.contains(&file));
            ranges.as_slice().to_vec()
        };
        assert_eq!(of(9, &[]), [(0, 7)]);
        assert_eq!(of(9, &[4]), [(0, 3), (5, 7)]);
        assert_eq!(of(9, &[2, 5]), [(0, 1), (4, 5), (6, 7)]);
        assert_eq!(of(2, &[2, 5]), [(4, 5), (6, 7)]);
        assert_eq!(of(1, &[2, 5]), [(6, 7)]);
        assert_eq!(of(9, &[0, 2, 4, 5, 6]), []);
        assert_eq!(ranges(&[(0, 3), (5, 7)]).bytes(&entries), 43);
        assert_eq!(ranges(&[(0, 8)]).bytes(&entries), 0, "no such entries");
    }

    #[test]
    fn what_both_have_is_in_both() {
        let (one, two) = (
            ranges(&[(0, 5), (7, 20)]),
            ranges(&[(1, 2), (3, 9), (19, 30)]),
        );
        let both = one.and(&two);
        assert_eq!(both.as_slice(), [(1, 2), (3, 5), (7, 9), (19, 20)]);
        assert_eq!(two.and(&one), both);
        for file in 0..40 {
            assert_eq!(both.has(file), one.has(file) && two.has(file), "{file}");
        }
        assert!(one.and(&EntryRanges::default()).is_empty());
    }

    #[test]
    fn ranges_that_make_no_sense_are_not_added() {
        let mut all = ranges(&[(3, 5)]);
        for bad in [&[(4, 6)][..], &[(5, 5)], &[(6, 5)], &[(9, 10), (9, 12)]] {
            assert!(!all.append(bad), "{bad:?}");
        }
        assert!(all.append(&[(5, 6), (8, 9)]));
        let many: Vec<(u32, u32)> = (5..)
            .map(|n| (2 * n, 2 * n + 1))
            .take(CANDIDATE_RANGES_MAX)
            .collect();
        assert!(!all.append(&many) && all.append(&many[3..]));
        assert_eq!(all.as_slice().len(), CANDIDATE_RANGES_MAX);
    }
}
