//! What a feed offers.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::object::any_name;
use crate::object::manifest::Manifest;

/// One file or directory at the top of a feed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its name, exactly as it came: see [`is_name`].
    pub name: String,
    /// Bytes of its files together.
    pub len: u64,
    /// BLAKE3 of its manifest: of names, lengths, permissions, times and links of all that it
    /// holds. Another digest means that it has changed.
    pub digest: String,
}

impl Entry {
    /// The entries of a set that was received, each as a catalogue would name it. One whose name no
    /// entry of a feed can have is left out.
    pub fn received(set: &Manifest) -> Vec<Entry> {
        let tops = set.tops_alone().into_iter();
        let entries = tops.filter_map(|top| {
            let name = &set.entries()[top.number as usize].name;
            Some(Entry {
                name: any_name(std::str::from_utf8(name).ok()?)?.to_owned(),
                len: top.len,
                digest: top.digest.to_hex().to_string(),
            })
        });
        entries.collect()
    }
}

/// Everything that a feed offers, the oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Catalogue {
    /// A number that is greater for each catalogue of a feed; 0 for none.
    pub number: u64,
    /// The entries; each name is there once.
    pub entries: Vec<Entry>,
}

impl Catalogue {
    /// Most entries of a catalogue.
    pub const ENTRIES_MAX: usize = 65_536;

    /// Bytes of all entries together.
    pub fn bytes(&self) -> u64 {
        let lens = self.entries.iter().map(|entry| entry.len);
        lens.fold(0, u64::saturating_add)
    }

    /// Checks what came from the network: names that a follower can use, each once, and digests.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let mut names = BTreeSet::new();
        for entry in &self.entries {
            if !is_name(&entry.name) || blake3::Hash::from_hex(&entry.digest).is_err() {
                return Err("its catalogue has an entry that makes no sense");
            }
            if !names.insert(&*entry.name) {
                return Err("its catalogue has a name twice");
            }
        }
        Ok(())
    }
}

/// Whether an entry of a feed may have this name. Each feed has a directory of its own at its
/// followers, so a name may hold any characters. But hidden files there are the receiver's.
pub fn is_name(name: &str) -> bool {
    any_name(name).is_some()
}

/// A set of numbers as runs, each from a number to the one behind its last.
pub(super) fn runs(numbers: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut runs = Vec::<(u32, u32)>::new();
    for &number in numbers {
        match runs.last_mut() {
            Some(run) if run.1 == number => run.1 += 1,
            _ => runs.push((number, number + 1)),
        }
    }
    runs
}

/// Adds runs to a set of numbers below `end`; false if they are not in ascending order behind those
/// that are there, or not below `end`.
pub(super) fn add_runs(numbers: &mut BTreeSet<u32>, runs: &[(u32, u32)], end: u32) -> bool {
    for &(from, to) in runs {
        let is_behind = numbers.last().is_none_or(|last| *last < from);
        if from >= to || to > end || !is_behind {
            return false;
        }
        numbers.extend(from..to);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_set() {
        for numbers in [vec![], vec![0], vec![0, 1, 2, 7, 9, 10]] {
            let set: BTreeSet<u32> = numbers.into_iter().collect();
            let mut again = BTreeSet::new();
            assert!(add_runs(&mut again, &runs(&set), 11));
            assert_eq!(again, set);
        }
        for bad in [
            [(3, 3), (4, 5)],
            [(0, 2), (1, 3)],
            [(2, 3), (0, 1)],
            [(0, 1), (3, 12)],
        ] {
            assert!(!add_runs(&mut BTreeSet::new(), &bad, 11), "{bad:?}");
        }
        assert!(!add_runs(&mut BTreeSet::new(), &[(0, u32::MAX)], 11));
    }

    #[test]
    fn a_catalogue_that_leads_elsewhere_is_refused() {
        let catalogue = |names: &[&str], digest: &str| Catalogue {
            number: 1,
            entries: names
                .iter()
                .map(|name| Entry {
                    name: name.to_string(),
                    len: 1,
                    digest: digest.into(),
                })
                .collect(),
        };
        let hash = blake3::hash(b"").to_hex().to_string();
        assert_eq!(catalogue(&["a", "-b\n$(c)'"], &hash).check(), Ok(()));
        for bad in ["", ".", "..", "a/b", "/a", ".hidden", "a\0b"] {
            assert!(catalogue(&[bad], &hash).check().is_err(), "{bad:?}");
        }
        assert!(catalogue(&["a", "a"], &hash).check().is_err());
        assert!(catalogue(&["a"], "x").check().is_err());
    }
}
