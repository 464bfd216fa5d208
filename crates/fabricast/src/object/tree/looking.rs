//! What is in the places of a set's files before it comes (spec 5.16). A receiver looks at that
//! before the start, and changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::{self as sys, FileType, Mode, OFlags, Stat};

use super::candidates::Candidate;
use super::naming::TIME_STEP;
use super::paths::relative;
use super::proving::Proving;
use super::{Tree, beneath};
use crate::error::Error;
use crate::object::Version;
use crate::object::manifest::{Entry, Kind, Manifest};

impl Tree {
    /// Takes the manifest before the set begins. Nothing is made until [`Tree::begin`].
    pub fn take_whole(&mut self, manifest: Manifest) {
        self.manifest = Arc::new(manifest);
    }

    /// Looks for files that may be the set's, and starts to prove them. `None`: there are none.
    /// Calls `go_on` for each entry, and gives up if it returns an error.
    pub fn find_candidates(
        &mut self,
        go_on: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Option<Proving>, Error> {
        let (root, manifest) = (self.root.clone(), self.manifest.clone());
        let name = self.destination.name.clone();
        let mut versions = BTreeMap::new();
        for (file, entry) in (0..).zip(manifest.entries()) {
            go_on()?;
            let Kind::File(len) = entry.kind else {
                continue;
            };
            let path = relative(&manifest, name.as_deref(), file);
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = beneath::open(&*root, &path, flags, Mode::empty());
            let there = opened.and_then(sys::fstat);
            if let Ok(there) = there
                && self.is_candidate(entry, len, &there)
            {
                versions.insert(file, Version::of(&there));
                self.add_candidate(file, len, Version::of(&there));
            }
        }
        let is_any = !versions.is_empty();
        Ok(is_any.then(|| Proving::start(root, name, manifest, versions)))
    }

    /// Whether what is there may be the file of an entry: nobody else's, by no other name, and with
    /// the length and the time that it has in the set, as exactly as file systems keep times.
    fn is_candidate(&self, entry: &Entry, len: u64, there: &Stat) -> bool {
        let user = rustix::process::geteuid().as_raw();
        FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
            && there.st_nlink == 1
            && there.st_size as u64 == len
            && there.st_mtime.abs_diff(entry.mtime) <= TIME_STEP
            && (there.st_uid == user || self.is_root && there.st_uid == entry.owner.0)
    }

    /// Notes a candidate. If it stays, it needs no more space.
    fn add_candidate(&mut self, file: u32, len: u64, version: Version) {
        // A run that was interrupted may have put it there.
        let was_named = self.named.remove(&file).is_some();
        if !self.kept_space.contains_key(&file) {
            self.keep_space(file, len);
        }
        let candidate = Candidate::new(version, was_named);
        self.old.candidates.insert(file, candidate);
    }
}
