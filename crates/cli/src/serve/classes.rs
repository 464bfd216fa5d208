//! Classes of entries: short ones do not wait for long ones.

use std::ops::RangeInclusive;
use std::time::Instant;

use fabricast::feed::SHORT_MAX;

use super::pauses::Pauses;
use super::running::Running;

/// What is sent of a class of entries, whatever is sent of the others.
pub struct Class {
    /// Bytes of its entries.
    lens: RangeInclusive<u64>,
    /// Most transfers at the same time.
    pub places: usize,
    /// The transfers under way.
    pub running: Vec<Running>,
    /// Since when followers want something that has a place.
    pub wanted_since: Option<Instant>,
    pub pauses: Pauses,
}

impl Class {
    fn new(lens: RangeInclusive<u64>, places: usize) -> Class {
        Class {
            lens,
            places,
            running: Vec::new(),
            wanted_since: None,
            pauses: Pauses::default(),
        }
    }

    /// The classes of a feed that sends so much at once. One place is for short entries and the
    /// others are for long ones. A single place is for all.
    pub fn all(at_once: usize) -> Vec<Class> {
        match at_once {
            0 | 1 => vec![Class::new(0..=u64::MAX, 1)],
            n => vec![
                Class::new(0..=SHORT_MAX, 1),
                Class::new(SHORT_MAX + 1..=u64::MAX, n - 1),
            ],
        }
    }

    /// Whether an entry of so many bytes belongs to it.
    pub fn has(&self, len: u64) -> bool {
        self.lens.contains(&len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_place_is_for_short_entries() {
        let places = |at_once, len| {
            let classes = Class::all(at_once).into_iter();
            let places = classes.filter(|c| c.has(len)).map(|c| c.places);
            places.collect::<Vec<_>>()
        };
        for (at_once, short, long) in [(1, 1, 1), (2, 1, 1), (5, 1, 4)] {
            assert_eq!(places(at_once, 0), [short]);
            assert_eq!(places(at_once, SHORT_MAX), [short]);
            assert_eq!(places(at_once, SHORT_MAX + 1), [long]);
            assert_eq!(places(at_once, u64::MAX), [long]);
        }
        assert_eq!((Class::all(1).len(), Class::all(2).len()), (1, 2));
    }
}
