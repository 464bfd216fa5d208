//! Candidates: files in the places of a set's files that may be these files (spec 5.16).

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as sys, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::Gid;

use super::{Tree, WRITE_OTHERS, beneath, relative};
use crate::object::manifest::{Entry, Kind, Manifest};
use crate::object::{CANDIDATE_RANGES_MAX, EntryRanges, Version};

/// Times of files are that exact at least, in seconds: the coarsest are those of FAT.
pub const TIME_STEP: u64 = 2;
/// Files that are looked at before the caller is asked again whether to go on.
const LOOKED: u32 = 256;
/// Bytes of the names of a file's extended attributes, at most. A file with more is no candidate.
const NAMES_MAX: usize = 4096;
/// Extended attributes that no candidate has: they let others do something with the file that its
/// mode does not let them.
const FORBIDDEN: [&[u8]; 2] = [b"system.posix_acl_access", b"security.capability"];

/// The candidates of a set, none of which is open.
pub struct Candidates {
    root: Arc<OwnedFd>,
    /// The name at the top, if the user has chosen one.
    name: Option<OsString>,
    pub(super) manifest: Arc<Manifest>,
    /// The numbers of the files, in ascending order, and their states.
    pub(super) found: Vec<(u32, Version)>,
}

impl Tree {
    /// Whether what is in the place of the set may be replaced, and so may be compared with it. A
    /// sender that may be anybody could offer sets to find out which files a receiver has.
    pub fn may_compare(&self) -> bool {
        let destination = &self.destination;
        (destination.overwrite || destination.received.is_some()) && !destination.is_tame
    }

    /// Looks at what is in the places of the files, and changes nothing there. The manifest is
    /// complete. Leaves the rest out when `go_on` returns false.
    pub fn find_candidates(&self, go_on: &mut dyn FnMut() -> bool) -> Candidates {
        let mut candidates = Candidates {
            root: self.root.clone(),
            name: self.destination.name.clone(),
            manifest: self.manifest.clone(),
            found: Vec::new(),
        };
        for (number, entry) in (0..).zip(self.manifest.entries()) {
            if number % LOOKED == 0 && !go_on() {
                break;
            }
            let (owner, group) = self.owner(number).unwrap_or_default();
            let owner = owner.unwrap_or_else(rustix::process::geteuid).as_raw();
            let is_it = |there: &Stat| {
                is_candidate(entry, owner, there)
                    && (there.st_mode & Mode::WGRP.bits() == 0
                        || there.st_gid == self.group_of(number, group))
            };
            if let Some((file, there)) = candidates.open_if(number, is_it)
                && self.has_no_other_attributes(entry, &file)
            {
                candidates.found.push((number, Version::of(&there)));
            }
        }
        candidates
    }

    /// The group that a new file would have: that which the set gives it, that of a directory which
    /// hands its group on, or the receiver's. To a file of another group others could write.
    fn group_of(&self, file: u32, given: Option<Gid>) -> u32 {
        let given = given.map(Gid::as_raw);
        given.unwrap_or_else(|| {
            let path = relative(&self.manifest, self.destination.name.as_deref(), file);
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = beneath::open(&*self.root, parent, flags, Mode::empty());
            let there = opened.and_then(sys::fstat).ok();
            let hands_on = there.filter(|there| there.st_mode & Mode::SGID.bits() != 0);
            let own = || rustix::process::getegid().as_raw();
            hands_on.map_or_else(own, |there| there.st_gid)
        })
    }

    /// Whether a file has no extended attribute that the set would not give it: no access control
    /// list, no capabilities, and, where attributes are taken, no name that the entry has not. What
    /// remains keeps all that it has.
    fn has_no_other_attributes(&self, entry: &Entry, file: &File) -> bool {
        let mut names = [0; NAMES_MAX];
        let listed = match sys::flistxattr(file, &mut names[..]) {
            Ok(len) => &names[..len],
            Err(e) => return e == Errno::NOTSUP,
        };
        let mut listed = listed
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty());
        listed.all(|name| {
            let is_alien = FORBIDDEN.contains(&name);
            let is_taken = self.destination.attributes && name.starts_with(b"user.");
            let is_known = || entry.attributes.iter().any(|(known, _)| *known == *name);
            !is_alien && (!is_taken || is_known())
        })
    }
}

impl Candidates {
    /// The numbers of the files.
    pub fn ranges(&self) -> EntryRanges {
        let mut found = self.found.iter().peekable();
        EntryRanges::of(self.manifest.entries(), CANDIDATE_RANGES_MAX, |file| {
            found.next_if(|next| next.0 == file).is_some()
        })
    }

    /// Opens a candidate, if its state is this one.
    pub fn open(&self, file: u32, version: &Version) -> Option<File> {
        let is_it = |there: &Stat| Version::of(there) == *version;
        self.open_if(file, is_it).map(|opened| opened.0)
    }

    /// Opens what is in the place of a file, if it is a regular file that `is_it`. Anything else is
    /// not opened, since that may do something to a device.
    fn open_if(&self, file: u32, is_it: impl Fn(&Stat) -> bool) -> Option<(File, Stat)> {
        let entry = &self.manifest.entries()[file as usize];
        matches!(entry.kind, Kind::File(1..)).then_some(())?;
        let path = relative(&self.manifest, self.name.as_deref(), file);
        let open = |flags| {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = beneath::open(&*self.root, &path, flags, Mode::empty()).ok()?;
            let there = sys::fstat(&opened).ok()?;
            let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
            (is_file && is_it(&there)).then_some((opened, there))
        };
        open(OFlags::PATH)?;
        let (opened, there) = open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        Some((opened.into(), there))
    }
}

/// Whether a regular file that is there may be that of an entry: it has the length and the time of
/// the set, as exactly as file systems keep times. It has no other name, since what is done to one
/// would be done to the other. Nobody else could have prepared it: it belongs to `owner`, and
/// others write to it only where they may in the set.
fn is_candidate(entry: &Entry, owner: u32, there: &Stat) -> bool {
    matches!(entry.kind, Kind::File(len) if there.st_size as u64 == len)
        && there.st_nlink == 1
        && there.st_mtime.abs_diff(entry.mtime) <= TIME_STEP
        && there.st_uid == owner
        && there.st_mode & WRITE_OTHERS & !u32::from(entry.mode) == 0
}
