//! What is known of a destination that belongs to one sender: by the caller, and by journals.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::PathBuf;

use crate::object::manifest::{Manifest, TOP};

/// What a caller knows of the entries at the top of a destination.
pub trait Received: Debug + Send + Sync {
    /// What a file or directory held when it was received: paths relative to it, none for a file.
    /// `None` if what has this name is not what was received.
    fn paths(&self, name: &OsStr) -> Option<BTreeSet<PathBuf>>;
}

/// What a sender's earlier sets have put into the destination, as far as that was looked at.
#[derive(Default)]
pub struct Before {
    /// Entries in whose places they have put what is there.
    pub entries: BTreeSet<u32>,
    /// For entries at the top: the paths that they have put there, as the caller knows them.
    pub paths: BTreeMap<u32, Option<BTreeSet<PathBuf>>>,
    /// Sets of earlier runs that have not come to their end, and of runs under way.
    pub begun: Option<Vec<Begun>>,
}

/// A set that a run has begun.
pub struct Begun {
    pub set: Manifest,
    /// The entries by directory and name.
    places: HashMap<(u32, Box<[u8]>), u32>,
}

impl Begun {
    /// A set that a run has begun.
    pub fn new(set: Manifest) -> Begun {
        let entries = (0..).zip(set.entries());
        let places = entries.map(|(number, entry)| ((entry.parent, entry.name.clone()), number));
        Begun {
            places: places.collect(),
            set,
        }
    }

    /// The entry at this path.
    pub fn find(&self, path: &[u8]) -> Option<u32> {
        let mut names = path.split(|byte| *byte == b'/');
        names.try_fold(TOP, |at, name| self.places.get(&(at, name.into())).copied())
    }
}

impl Before {
    /// Whether what is in an entry's place was found to be of an earlier set of this sender.
    pub fn has(&self, entry: u32) -> bool {
        self.entries.contains(&entry)
    }
}
