//! What is in the places of a set before it comes, and may be the set's (spec 5.16).

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{self as sys, AtFlags, OFlags};

use super::kept::Kept;
use super::proving::{Files, Proving};
use super::ranges::Ranges;
use super::resuming::is_like;
use super::{Tree, disk};
use crate::error::Error;
use crate::object::manifest::Kind;
use crate::object::pack::{Content, Pack};
use crate::object::{BLOCK, Version};
use crate::text::shown;

impl Tree {
    /// Whether the manifest is here.
    pub fn has_manifest(&self) -> bool {
        !self.manifest.entries().is_empty()
    }

    /// Takes the next page of the manifest before the set begins. From now on, what is in the place
    /// of an entry may be what the set has there.
    pub fn take_page(&mut self, page: &[u8], kept: &mut Kept) -> Result<(), Error> {
        self.present.is_looked_for = true;
        self.add_page(page)?;
        let hash = Pack::new(Content::Page, page).hash();
        kept.packs.insert(hash.into());
        Ok(())
    }

    /// Starts to prove the files that are in their places. `None`: there are none.
    pub fn prove_present(&mut self) -> Option<Proving> {
        // Of a set that an earlier run has begun, some were in their places before that run.
        for entry in self.ours.clone() {
            let is_other = self.named.contains_key(&entry) || self.staged_top(entry).is_some();
            if !is_other && self.is_file(entry) && self.partial(entry).is_none() {
                let opened = self.beneath(entry, OFlags::RDONLY);
                let there = opened.ok().and_then(|opened| sys::fstat(&opened).ok());
                if let Some(there) = there {
                    let counted = self.kept_space.contains_key(&entry);
                    let len = if counted { 0 } else { self.len(entry) };
                    self.add_present(entry, &there, len);
                }
            }
        }
        let mut files = self.present.files.clone();
        files.retain(|file, _| self.is_file(*file));
        (!files.is_empty()).then(|| {
            let root = self.root.clone();
            let name = self.destination.name.clone();
            Proving::start(Files::new(root, name, self.manifest.clone(), files))
        })
    }

    /// Notes what is in an entry's place, if it may be what the set has there. `name`: that of the
    /// entry in its directory.
    pub(super) fn note_present(
        &mut self,
        entry: u32,
        there: &sys::Stat,
        directory: &OwnedFd,
        name: &Path,
    ) -> bool {
        if !self.present.is_looked_for || self.staged_top(entry).is_some() {
            return false;
        }
        if let Kind::HardLink(to) = self.entry(entry).kind {
            let target = self.directory_of(to).ok();
            let target = target.and_then(|directory| {
                let name = self.name(to);
                sys::statat(&*directory, &name, AtFlags::SYMLINK_NOFOLLOW).ok()
            });
            return target.is_some_and(|target| {
                (target.st_dev, target.st_ino) == (there.st_dev, there.st_ino)
            });
        }
        let target = || sys::readlinkat(directory, name, Vec::new()).ok();
        if !is_like(&self.manifest, entry, there, target) {
            return false;
        }
        let len = match self.entry(entry).kind {
            Kind::File(len) => len,
            Kind::Copy(of) => self.len(of),
            // Nothing takes their places.
            _ => {
                self.ours.insert(entry);
                return true;
            }
        };
        // This process could not give another user's file what the set says.
        if !self.is_root && there.st_uid != rustix::process::geteuid().as_raw() {
            return false;
        }
        self.add_present(entry, there, len);
        true
    }

    /// Notes a file that was in its place. `len`: its bytes that need no more space.
    fn add_present(&mut self, entry: u32, there: &sys::Stat, len: u64) {
        self.present.files.insert(entry, Version::of(there));
        self.present.taken.insert(entry, len);
        self.taken += len;
    }

    /// Whether the file of an entry was in its place before the set came, with its length and time.
    pub(super) fn is_present(&self, entry: u32) -> bool {
        self.present.files.contains_key(&entry)
    }

    /// Checks that a file may be made anew in an entry's place. It needs space of its own then.
    pub(super) fn replace_present(&mut self, entry: u32) -> Result<(), Error> {
        if self.is_present(entry) && !self.may_replace(entry) {
            return Err(self.exists(entry));
        }
        if let Some(taken) = self.present.taken.remove(&entry) {
            self.taken -= taken;
        }
        Ok(())
    }

    /// Checks that a file which was in its place is as it was then.
    pub(super) fn check_present(&self, file: u32, opened: &OwnedFd) -> Result<(), Error> {
        let Some(version) = self.present.files.get(&file) else {
            return Ok(());
        };
        match sys::fstat(opened).is_ok_and(|there| Version::of(&there) == *version) {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "{} was changed while the set was received: receive the set again",
                shown(&self.path(file))
            ))),
        }
    }

    /// Makes bytes of a file that was in its place a part of the file of the set. If something of
    /// it has come already, they are copied; otherwise the file stays as it is.
    pub(super) fn begin_present(
        &mut self,
        file: u32,
        (start, end): (u64, u64),
    ) -> Result<(), Error> {
        let Some(partial) = self.incomplete.get(&file) else {
            self.named.entry(file).or_default();
            return Ok(());
        };
        let there = self.beneath(file, OFlags::RDONLY)?;
        copy_range(
            &File::from(
                there
                    .try_clone()
                    .map_err(|e| self.error(file, "opening", e))?,
            ),
            &partial.file,
            (start, end),
        )
        .map_err(|e| self.error(file, "copying", e))?;
        self.check_present(file, &there)
    }

    /// Makes anew a file that was in its place, with these ranges of it. The old one stays until
    /// the new one is complete.
    pub(super) fn copy_present(&mut self, file: u32, ranges: Ranges) -> Result<(), Error> {
        let there = self.beneath(file, OFlags::RDONLY)?;
        let mut partial = self.create(file, false)?;
        let from = there
            .try_clone()
            .map_err(|e| self.error(file, "opening", e))?;
        let from = File::from(from);
        for range in ranges.iter() {
            let copied = copy_range(&from, &partial.file, range);
            copied.map_err(|e| self.error(file, "copying", e))?;
            let more = (range.1 - range.0).min(self.len(file).saturating_sub(partial.taken));
            partial.taken += more;
            self.taken += more;
        }
        self.check_present(file, &there)?;
        partial.ranges = ranges;
        self.add_incomplete(partial)
    }

    /// Whether a copy of a file is in its place already, with the bytes of `from`. Then it gets its
    /// owner, permissions and time. Calls `go_on` with the number of bytes that were compared.
    pub(super) fn keep_copy(
        &mut self,
        entry: u32,
        from: &File,
        go_on: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let Kind::Copy(of) = self.entry(entry).kind else {
            return Ok(false);
        };
        let there = self
            .is_present(entry)
            .then(|| self.beneath(entry, OFlags::RDONLY));
        let Some(Ok(there)) = there else {
            return Ok(false);
        };
        let opened = there
            .try_clone()
            .map_err(|e| self.error(entry, "opening", e))?;
        let opened = File::from(opened);
        let (len, mut at) = (self.len(of), 0);
        let (mut one, mut other) = (vec![0; BLOCK], vec![0; BLOCK]);
        while at < len {
            let some = (len - at).min(BLOCK as u64) as usize;
            let (one, other) = (&mut one[..some], &mut other[..some]);
            let is_read = from.read_exact_at(one, at).is_ok();
            if !is_read || opened.read_exact_at(other, at).is_err() || one != other {
                return Ok(false);
            }
            at += some as u64;
        }
        if self.check_present(entry, &there).is_err() {
            return Ok(false);
        }
        go_on(len)?;
        self.set_metadata(entry, self.readable_mode(entry), &there)?;
        self.flushes_all = true;
        Ok(true)
    }
}

/// Copies a range of bytes to the same place of another file.
fn copy_range(from: &File, to: &File, (start, end): (u64, u64)) -> std::io::Result<()> {
    let mut bytes = vec![0; BLOCK.min((end - start) as usize)];
    let mut at = start;
    while at < end {
        let some = (end - at).min(BLOCK as u64) as usize;
        from.read_exact_at(&mut bytes[..some], at)?;
        disk::write(to, &bytes[..some], at)?;
        at += some as u64;
    }
    Ok(())
}
