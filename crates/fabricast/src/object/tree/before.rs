//! What is known of a sender's earlier sets while a set comes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;

use crate::object::manifest::{Manifest, TOP};

/// What a sender's earlier sets have put into the destination, as far as that was looked at.
#[derive(Default)]
pub(super) struct Before {
    /// Entries in whose places they have put what is there.
    pub(super) entries: BTreeSet<u32>,
    /// For entries at the top: the paths that they have put there, as the caller knows them.
    pub(super) paths: BTreeMap<u32, Option<BTreeSet<PathBuf>>>,
    /// Sets of earlier runs that have not come to their end, and of runs under way.
    pub(super) begun: Option<Vec<Begun>>,
}

/// A set that a run has begun.
pub(super) struct Begun {
    pub(super) set: Manifest,
    /// The entries by directory and name.
    places: HashMap<(u32, Box<[u8]>), u32>,
}

impl Begun {
    pub(super) fn new(set: Manifest) -> Begun {
        let entries = (0..).zip(set.entries());
        let places = entries.map(|(number, entry)| ((entry.parent, entry.name.clone()), number));
        Begun {
            places: places.collect(),
            set,
        }
    }

    /// The entry at this path.
    pub(super) fn find(&self, path: &[u8]) -> Option<u32> {
        let mut names = path.split(|byte| *byte == b'/');
        names.try_fold(TOP, |at, name| self.places.get(&(at, name.into())).copied())
    }
}

impl Before {
    /// Whether what is in an entry's place was found to be of an earlier set of this sender.
    pub(super) fn has(&self, entry: u32) -> bool {
        self.entries.contains(&entry)
    }
}
