//! How a message is cut into segments.

use super::step::Part;

/// Step by which the lengths of marked first segments differ, in bytes.
const MARK: u64 = 8;

/// The segments of a message. All but the first and the last have equal lengths, and the last may
/// be shorter. A message without bytes is one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segments {
    len: u64,
    first: u64,
    rest: u64,
}

impl Segments {
    /// Segments of `segment` bytes each (0: the whole message is one).
    pub fn equal(len: u64, segment: u64) -> Segments {
        let segment = if segment == 0 { len.max(1) } else { segment };
        Segments {
            len,
            first: segment,
            rest: segment,
        }
    }

    /// The message as one segment.
    pub fn whole(len: u64) -> Segments {
        Segments::equal(len, 0)
    }

    /// Segments of `segment` bytes each. If there are several, the first one is shorter. Its
    /// length, at least half of `segment`, depends on their number. Otherwise ranks that pass
    /// different lengths would agree on all segments that both have, and none would notice. Ranks
    /// notice differences of up to `segment` / 16 segments.
    pub fn marked(len: u64, segment: u64) -> Segments {
        let least = segment / 2;
        let marks = (segment - least) / MARK;
        let first = match len <= segment {
            true => segment,
            false => least + MARK * (len.div_ceil(segment) % marks),
        };
        Segments {
            len,
            first,
            rest: segment,
        }
    }

    /// Length of the message, in bytes.
    pub fn total(&self) -> u64 {
        self.len
    }

    /// Number of segments, at least one.
    pub fn count(&self) -> u64 {
        1 + self.len.saturating_sub(self.first).div_ceil(self.rest)
    }

    /// The segments, in order.
    pub fn iter(&self) -> impl Iterator<Item = Part> + use<> {
        let Segments { len, first, rest } = *self;
        (0..self.count()).map(move |i| {
            let offset = if i == 0 { 0 } else { first + (i - 1) * rest };
            let segment = if i == 0 { first } else { rest };
            let len = segment.min(len - offset);
            Part { offset, len }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 128 << 10;

    #[test]
    fn segments_follow_each_other_and_are_the_message() {
        let lens = [0, 1, 7, 8, 9, 64, 65, 1000];
        for (len, segment) in lens.iter().flat_map(|&l| [0, 8, 64].map(|s| (l, s))) {
            let mut all = vec![Segments::equal(len, segment)];
            if segment > 8 {
                all.push(Segments::marked(len, segment));
            }
            for s in all {
                let parts: Vec<Part> = s.iter().collect();
                assert_eq!(parts.len() as u64, s.count(), "{s:?}");
                let end = parts.iter().fold(0, |at, part| {
                    assert_eq!(part.offset, at, "{s:?}");
                    part.end()
                });
                assert_eq!((end, s.total()), (len, len));
                assert!(parts.iter().all(|p| p.len > 0 || len == 0), "{s:?}");
            }
        }
    }

    /// The first segments or the only ones differ, so the first packet shows it.
    #[test]
    fn different_numbers_of_segments_differ_in_the_first_one() {
        let first = |len| Segments::marked(len, SEGMENT).iter().next().unwrap().len;
        let lens = (1..200).map(|n| n * SEGMENT);
        for (a, b) in lens.clone().flat_map(|a| lens.clone().map(move |b| (a, b))) {
            assert_eq!(first(a) == first(b), a == b, "{a} and {b}");
        }
    }
}
