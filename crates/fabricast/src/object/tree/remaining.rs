//! Files that remain: they were compared, and are what the sender has (spec 5.16).
//!
//! Until the end of the set nothing is changed there. Then each file gets what its entry says
//! beside its bytes, if it is still what was compared.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::fs::{self as sys, Mode, OFlags};

use super::Tree;
use super::comparing::Remaining;
use crate::error::Error;
use crate::object::manifest::Kind;
use crate::object::{Version, absurd};

/// Files that get their metadata before the caller is asked again whether to go on.
const SETTLED: usize = 256;

impl Tree {
    /// Notes that files remain where they are, and counts them as complete.
    pub fn remain(&mut self, files: Vec<Remaining>) -> Result<(), Error> {
        self.check_folding()?;
        for (file, version) in files {
            if self.done[file as usize] || self.incomplete.contains_key(&file) {
                return Err(absurd("a file of which it has sent a part as compared"));
            }
            self.note_done(file);
            self.taken += self.len(file);
            self.present += self.len(file);
            self.remaining_files.insert(file, version);
        }
        Ok(())
    }

    /// Bytes of files that remain.
    pub fn present(&self) -> u64 {
        self.present
    }

    /// Gives the files that remain their owners, permissions and times, and those attributes that
    /// the user wants. A file that was changed since it was compared, or that refuses this, fails.
    /// Calls `go_on` now and then, and gives up if it returns an error.
    pub fn settle(&mut self, go_on: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let files: Vec<Remaining> = self
            .remaining_files
            .iter()
            .map(|(f, v)| (*f, v.clone()))
            .collect();
        for (at, (file, version)) in files.into_iter().enumerate() {
            if at % SETTLED == 0 {
                go_on()?;
            }
            // Nobody knows whether it was flushed.
            self.flushes_all = true;
            if self.settle_one(file, &version).is_none() {
                self.forget_remaining(file);
                self.failed.insert(file);
                self.changed.insert(file);
            }
        }
        Ok(())
    }

    /// Sets what a file that remains lacks; `None` if it cannot be kept.
    fn settle_one(&self, file: u32, version: &Version) -> Option<()> {
        let opened = File::from(self.beneath(file, OFlags::RDONLY).ok()?);
        let there = sys::fstat(&opened).ok()?;
        let (entry, mode) = (self.entry(file), self.readable_mode(file));
        let is_owned = self
            .owner(file)
            .is_none_or(|_| (there.st_uid, there.st_gid) == entry.owner);
        let is_timed = there.st_mtime == entry.mtime
            && i128::from(there.st_mtime_nsec) == i128::from(entry.mtime_ns);
        // Another receiver may have the same directory, and give the file its time first.
        let time = (entry.mtime, entry.mtime_ns.into());
        Version::of(&there)
            .has_bytes_of(version, time)
            .then_some(())?;
        let is_moded = Mode::from_raw_mode(there.st_mode) == mode;
        // Such bits need another look at the owner.
        let is_plain = !mode.intersects(Mode::SUID | Mode::SGID) && !self.destination.attributes;
        // To write again what is there would take longer than all else.
        let is_settled = is_owned && is_timed && is_moded && is_plain;
        match is_settled {
            true => Some(()),
            false => self.set_metadata(file, mode, opened.as_fd()).ok(),
        }
    }

    /// Takes back that a file remains: it has failed at the sender since, or was changed here.
    pub(super) fn forget_remaining(&mut self, file: u32) {
        if self.remaining_files.remove(&file).is_some() {
            self.present -= self.len(file);
        }
    }

    /// Paths of the files that were to remain and cannot be kept, and of what was to be made of
    /// them.
    pub fn changed(&self) -> Vec<PathBuf> {
        let is_changed = |entry: &&u32| match self.entry(**entry).kind {
            Kind::HardLink(to) | Kind::Copy(to) => self.changed.contains(&to),
            _ => self.changed.contains(entry),
        };
        let changed = self.failed.iter().filter(is_changed);
        changed.map(|entry| self.path(*entry)).collect()
    }

    /// Whether entries that are not in the set were to be deleted and were left, since a file that
    /// was to remain cannot be kept.
    pub fn leaves_surplus(&self) -> bool {
        self.destination.deletes && !self.changed.is_empty()
    }
}
