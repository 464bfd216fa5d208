//! Files that a sender finds out it cannot send.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::Error;
use crate::object::SourceSet;
use crate::text::{ToldPath, shown};
use crate::transfer::events::FileFailure;

/// The files of a set that cannot be sent.
pub struct FailedFiles {
    set: Arc<SourceSet>,
    /// Files that no receiver gets, since they could not be read, or had changed.
    for_all: BTreeSet<u32>,
    /// Files that had changed when they were to be sent again, and how. Some receivers have them.
    for_some: BTreeMap<u32, String>,
    /// What the user was told of those that no receiver gets.
    told: Vec<FileFailure>,
}

impl FailedFiles {
    /// None of the set's files has failed yet.
    pub fn new(set: Arc<SourceSet>) -> FailedFiles {
        FailedFiles {
            set,
            for_all: BTreeSet::new(),
            for_some: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    /// Notes that no receiver gets a file, and why. Returns what the user is told of it and of its
    /// copies; nothing if it has failed before.
    ///
    /// # Errors
    /// All files of the set have failed.
    pub fn add(&mut self, file: u32, reason: &str) -> Result<Vec<FileFailure>, Error> {
        if !self.for_all.insert(file) {
            return Ok(Vec::new());
        }
        if self.set.is_lost(&self.for_all) {
            let text = format!("{reason}; nobody has received it");
            return Err(Error::SourceChanged(text));
        }
        let failures = self.failures(file, reason);
        self.told.extend_from_slice(&failures);
        Ok(failures)
    }

    /// Notes that receivers which still lack a part of this file cannot get it, and why.
    pub fn add_for_some(&mut self, file: u32, reason: String) {
        self.for_some.insert(file, reason);
    }

    /// The files that no receiver gets.
    pub fn for_all(&self) -> &BTreeSet<u32> {
        &self.for_all
    }

    /// The files that one receiver does not get. It has missed `unavailable`, and no receiver gets
    /// the others.
    pub fn with(&self, unavailable: &BTreeSet<u32>) -> BTreeSet<u32> {
        unavailable | &self.for_all
    }

    /// How many files are meant by these, with their copies.
    pub fn count(&self, files: &BTreeSet<u32>) -> usize {
        let with_copies = |file: &u32| 1 + self.set.copies_of(*file).len();
        files.iter().map(with_copies).sum()
    }

    /// Bytes of the files that all receivers can get; `None`: a stream that has not ended.
    pub fn len_for_all(&self) -> Option<u64> {
        self.set.len_without(&self.for_all)
    }

    /// What changed in the other files since they were listed, if anything did.
    pub fn changed(&self) -> Option<String> {
        let for_some: BTreeSet<u32> = self.for_some.keys().copied().collect();
        self.set.changed(&self.with(&for_some))
    }

    /// All failures, for the report.
    pub fn report(&self) -> Vec<FileFailure> {
        let for_some = self.for_some.iter();
        let for_some = for_some.filter(|(file, _)| !self.for_all.contains(file));
        let for_some = for_some.flat_map(|(file, reason)| {
            let lack = "receivers that still lacked a part of it do not have it";
            self.failures(*file, &format!("{reason}; {lack}"))
        });
        self.told.iter().cloned().chain(for_some).collect()
    }

    /// What is said of a file that cannot be sent, and of its copies.
    fn failures(&self, file: u32, reason: &str) -> Vec<FileFailure> {
        let failure = |file, reason| {
            let path = ToldPath::from(&*self.set.path(file));
            FileFailure { path, reason }
        };
        let first = shown(&self.set.path(file));
        let copies = self.set.copies_of(file).iter().copied();
        let copies =
            copies.map(|copy| failure(copy, format!("it was to be a copy of {first}: {reason}")));
        [failure(file, reason.to_owned())]
            .into_iter()
            .chain(copies)
            .collect()
    }
}
