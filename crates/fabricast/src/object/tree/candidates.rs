//! What is known of the files that were in their places before the set came (spec 5.16).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs as sys;

use super::partial::Partial;
use super::ranges::Ranges;
use crate::object::Version;

/// The files that were in their places before the set came, and may be the set's.
#[derive(Default)]
pub struct OldFiles {
    /// All of them.
    pub candidates: BTreeMap<u32, Candidate>,
    /// Those that are the set's, and remain.
    pub remain: Vec<u32>,
    /// New files in place of others.
    pub taking_over: Vec<TakingOver>,
    /// Bytes of candidates that are proven, and do not count as stored yet.
    pub unsettled: u64,
}

/// A file that was in its place before the set came, and may be the set's.
pub struct Candidate {
    version: Version,
    /// Whether what an earlier run has noted of it was proven in its place, not in a partial file.
    pub was_named: bool,
    /// What of it is proven: all, and of that the bytes and the holes.
    pub all: Ranges,
    pub bytes: Ranges,
    pub holes: Ranges,
    /// Number of the bytes.
    pub data: u64,
}

impl Candidate {
    /// A file of which nothing is proven yet.
    pub fn new(version: Version, was_named: bool) -> Candidate {
        Candidate {
            version,
            was_named,
            all: Ranges::default(),
            bytes: Ranges::default(),
            holes: Ranges::default(),
            data: 0,
        }
    }

    /// Whether the open file is as it was when it was found.
    pub fn is_unchanged(&self, opened: impl AsFd) -> bool {
        sys::fstat(opened).is_ok_and(|there| Version::of(&there) == self.version)
    }
}

/// A new file that lacks only what is in the old one.
pub struct TakingOver {
    pub partial: Partial,
    pub old: File,
    /// What is to be copied.
    pub rest: Vec<(u64, u64)>,
}
