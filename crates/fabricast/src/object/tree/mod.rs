//! The files and directories that a receiver makes of a set (spec 5.4).
//!
//! Only proven bytes come here. The kernel resolves every path beneath the destination, and follows
//! no symbolic link (`openat2`). A file has no name while it is written, where the file system has
//! such files (`O_TMPFILE`); it gets its name when it is complete and on the disk. Links, and the
//! modes and times of directories, come at the end. A directory at the top that was not there
//! before is staged: it has a hidden name until everything in it is complete and on the disk.

mod beneath;
mod candidate;
mod comparing;
mod disk;
mod ending;
mod file_systems;
mod folding;
mod journal;
mod kept;
mod leftovers;
mod metadata;
mod naming;
mod partial;
mod places;
mod ranges;
mod read_back;
mod received;
mod remaining;
mod replacing;
mod resuming;
mod staging;
mod surplus;
#[cfg(test)]
mod tests;
mod unproven;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self as sys, Mode, OFlags};

pub use self::candidate::Candidates;
pub use self::comparing::{Compared, Comparer, Remaining};
use self::file_systems::FileSystems;
pub use self::folding::folded_names;
use self::journal::Journal;
pub use self::kept::Kept;
use self::kept::{KeptPacks, is_hole};
pub use self::leftovers::{is_kept, remove_leftovers};
use self::partial::{Had, Partial};
use self::ranges::Ranges;
use self::received::Before;
pub use self::received::Received;
pub use self::surplus::DryRun;
pub use self::unproven::{Metadata as FileMetadata, UnprovenFile};
use super::manifest::{Entry, Kind, Manifest, TOP};
use super::pack::Piece;
use super::{LEN_MAX, Version, absurd, give_way};
use crate::error::Error;
use crate::text::shown;

/// Complete files that wait for the disk together; each has an open descriptor.
const BATCH: usize = 256;
/// Bytes that are written before other threads may run: a part of a long file, or small files.
const WRITTEN: usize = 256 << 10;
/// Most files that are incomplete at once; each has an open descriptor. Packs may come in any
/// order, but a receiver lacks runs of them, and a run leaves two files incomplete at most.
pub const INCOMPLETE_MAX: usize = 256;
/// Bytes of zeros that are written at once.
const ZEROS: usize = 1 << 20;
/// Write permissions of the group and of others.
const WRITE_OTHERS: u32 = 0o022;

/// Where a set goes and what may happen there.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The directory that everything lies in.
    pub root: PathBuf,
    /// The name of the only entry at the top, if its user has chosen one.
    pub name: Option<std::ffi::OsString>,
    /// Whether the sender alone writes into this directory, so that what it sends may have any
    /// names that are not hidden.
    pub any_names: bool,
    /// Whether existing files may be replaced.
    pub overwrite: bool,
    /// Whether to wait for the disk.
    pub sync: bool,
    /// Whether the sender may be anybody. Then nobody but the owner may write what it sends, the
    /// umask holds, and no file at the top is executable.
    pub is_tame: bool,
    /// Whether set-user-ID and set-group-ID bits are kept, devices and FIFOs are made, and extended
    /// attributes are set that only root may set.
    pub is_privileged: bool,
    /// Whether extended attributes are set.
    pub attributes: bool,
    /// Whether what is in directories of the set and not in the set is deleted at the end.
    pub deletes: bool,
    /// What the same sender has put there before. That may be replaced without `overwrite`, at the
    /// top also by an entry of another type.
    pub received: Option<Arc<dyn Received>>,
}

impl Destination {
    /// A destination in the directory `root` where nothing is replaced, deleted or made that has to
    /// be asked for, and where nobody waits for the disk.
    pub fn new(root: PathBuf) -> Destination {
        Destination {
            root,
            name: None,
            overwrite: false,
            sync: false,
            any_names: false,
            is_tame: false,
            is_privileged: false,
            attributes: false,
            deletes: false,
            received: None,
        }
    }

    /// Whether what has another type than an entry of the set is deleted to make way for it.
    fn replaces_all(&self) -> bool {
        (self.overwrite || self.received.is_some()) && self.deletes
    }

    fn open(&self) -> Result<OwnedFd, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        sys::open(&self.root, flags, Mode::empty())
            .map_err(|e| Error::io(format!("opening {}", self.root.display()), e))
    }
}

/// The files and directories of a set that is received.
pub struct Tree {
    destination: Destination,
    root: Arc<OwnedFd>,
    manifest: Arc<Manifest>,
    /// Where each entry's bytes begin if all files lie one behind the other.
    starts: Vec<u64>,
    /// Number of entries whose names were checked to differ by more than case, where that matters.
    folding_checked: usize,
    /// Length of a stream in bytes, once it is known.
    stream_len: Option<u64>,
    /// Files that are complete, or that the sender could not read.
    done: Vec<bool>,
    /// Directories at the top that have a hidden name until the end.
    staged: BTreeSet<u32>,
    /// Directories that this run has made.
    made: BTreeSet<u32>,
    /// Staged directories whose places something of another type has, which was received before.
    replaced: BTreeSet<u32>,
    /// Files that the sender could not read, and hard links to them.
    failed: BTreeSet<u32>,
    /// Files that have another name at the top.
    exposed: BTreeSet<u32>,
    /// Files that are not complete.
    incomplete: BTreeMap<u32, Partial>,
    /// What is stored, for a later run; `None`: nothing is kept.
    journal: Option<Journal>,
    /// The journal's name.
    id: Option<String>,
    /// Whether the journal had a part of the set.
    resumes: bool,
    /// Entries that are there already and may be of an earlier run, so that they may be replaced.
    ours: BTreeSet<u32>,
    /// What this sender's earlier sets have put there, as far as that was looked at.
    before: Before,
    /// Packs that are on the disk and that the sender has not announced yet.
    kept: KeptPacks,
    /// Files of an earlier run that have their names, and what of them the sender has announced.
    named: BTreeMap<u32, Ranges>,
    /// Files that remain, and their states when they were compared.
    remaining_files: BTreeMap<u32, Version>,
    /// Bytes of the files that remain.
    present: u64,
    /// Files that were to remain and were changed since.
    changed: BTreeSet<u32>,
    /// Whether files have their names that may not be on the disk.
    flushes_all: bool,
    /// Complete files that are not flushed yet.
    batch: Vec<Partial>,
    /// Whether others are closed already, in staged directories.
    has_unflushed: bool,
    /// Complete files whose places directories have that are to be deleted when everything is here.
    held: Vec<Partial>,
    /// Whether the files are made that have the bytes of others.
    has_copies: bool,
    /// Bytes of the set for which no more of the disk is taken: they are there, or have their
    /// space, or never come.
    taken: u64,
    /// Bytes that files of an earlier run have already, holes included, by the file.
    kept_space: BTreeMap<u32, u64>,
    file_systems: FileSystems,
    /// The directory that was opened last.
    last_directory: Option<(u32, Arc<OwnedFd>)>,
    /// What the last file had that was made in a staged directory: the directory, the permissions
    /// that were asked for, and what it had.
    fresh: Option<((u32, Mode), Had)>,
    /// Directories that got names.
    touched: BTreeSet<u32>,
    /// Number of entries that were deleted at the end.
    deleted: u64,
    /// Number of devices and FIFOs that are not made.
    special: u64,
    remaining: usize,
    /// Permissions that a file gets from no sender that may be anybody.
    umask: u32,
    /// Whether files may do without a name: without /proc they could never get one.
    may_be_nameless: bool,
    /// Whether this process may give files away.
    is_root: bool,
}

/// The path of an entry relative to the destination, whose user may have named the top.
fn relative(manifest: &Manifest, name: Option<&OsStr>, entry: u32) -> PathBuf {
    let path = manifest.path(entry);
    let path = Path::new(OsStr::from_bytes(&path));
    match name {
        Some(name) => {
            let names = path.components().skip(1);
            Path::new(name).components().chain(names).collect()
        }
        None => path.to_owned(),
    }
}

impl Tree {
    /// Opens the destination; the manifest comes by [`Tree::add_page`].
    pub fn new(destination: Destination) -> Result<Tree, Error> {
        let root = Arc::new(destination.open()?);
        let mut file_systems = FileSystems::default();
        file_systems
            .add(&root)
            .map_err(|e| Error::io(format!("looking at {}", shown(&destination.root)), e))?;
        Ok(Tree {
            destination,
            root,
            manifest: Arc::default(),
            starts: Vec::new(),
            folding_checked: 0,
            stream_len: None,
            done: Vec::new(),
            staged: BTreeSet::new(),
            made: BTreeSet::new(),
            replaced: BTreeSet::new(),
            failed: BTreeSet::new(),
            exposed: BTreeSet::new(),
            incomplete: BTreeMap::new(),
            journal: None,
            id: None,
            resumes: false,
            ours: BTreeSet::new(),
            before: Before::default(),
            kept: KeptPacks::new(),
            named: BTreeMap::new(),
            remaining_files: BTreeMap::new(),
            present: 0,
            changed: BTreeSet::new(),
            flushes_all: false,
            batch: Vec::new(),
            has_unflushed: false,
            held: Vec::new(),
            has_copies: false,
            taken: 0,
            kept_space: BTreeMap::new(),
            file_systems,
            last_directory: None,
            fresh: None,
            touched: BTreeSet::new(),
            deleted: 0,
            special: 0,
            remaining: 0,
            umask: umask(),
            may_be_nameless: sys::stat("/proc/self/fd").is_ok(),
            is_root: rustix::process::geteuid().is_root(),
        })
    }

    /// The entries so far.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The entries, once the set has ended.
    pub fn take_manifest(&mut self) -> Manifest {
        Arc::unwrap_or_clone(std::mem::take(&mut self.manifest))
    }

    /// Paths of the files that the sender could not read, and of hard links to them.
    pub fn failed(&self) -> Vec<PathBuf> {
        self.failed.iter().map(|file| self.path(*file)).collect()
    }

    /// Number of entries that were deleted at the end.
    pub fn deleted(&self) -> u64 {
        self.deleted
    }

    /// Bytes of the set for which no more of the disk is taken, copies included: they are there, or
    /// have their space, or never come.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Number of devices and FIFOs that were not made.
    pub fn special(&self) -> u64 {
        self.special
    }

    /// Whether devices and FIFOs are made: a sender that may be anybody gets none.
    fn makes_special(&self) -> bool {
        self.destination.is_privileged && !self.destination.is_tame
    }

    /// Whether every file of the manifest is complete or known to have failed.
    pub fn is_complete(&self) -> bool {
        self.remaining == 0
    }

    /// Where an entry lies now, relative to the destination.
    fn relative(&self, entry: u32) -> PathBuf {
        let own = self.destination.name.as_deref();
        match self.staged_top(entry) {
            Some(top) => relative(&self.manifest, Some(self.name(top).as_os_str()), entry),
            None => relative(&self.manifest, own, entry),
        }
    }

    /// The path that an entry has at the end, for people.
    fn path(&self, entry: u32) -> PathBuf {
        let name = self.destination.name.as_deref();
        let relative = relative(&self.manifest, name, entry);
        self.destination.root.join(relative)
    }

    /// The name that an entry has in its directory now.
    fn name(&self, entry: u32) -> PathBuf {
        match self.staged_name(entry) {
            Some(name) => name,
            None => self.own_name(entry),
        }
    }

    /// The name that an entry has in its directory at the end.
    fn own_name(&self, entry: u32) -> PathBuf {
        let e = self.entry(entry);
        match &self.destination.name {
            Some(name) if e.parent == TOP => PathBuf::from(name),
            _ => PathBuf::from(OsStr::from_bytes(&e.name)),
        }
    }

    fn entry(&self, entry: u32) -> &Entry {
        &self.manifest.entries()[entry as usize]
    }

    fn error(&self, entry: u32, what: &str, e: impl Into<io::Error>) -> Error {
        let e = e.into();
        match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Error::writing(&self.path(entry), e)
            }
            _ => Error::io(format!("{what} {}", self.path(entry).display()), e),
        }
    }

    /// Opens the directory that an entry lies in.
    fn directory_of(&mut self, entry: u32) -> Result<Arc<OwnedFd>, Error> {
        let parent = self.entry(entry).parent;
        if parent == TOP {
            return Ok(self.root.clone());
        }
        if let Some((last, fd)) = &self.last_directory
            && *last == parent
        {
            return Ok(fd.clone());
        }
        let opened = self.beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let opened = Arc::new(opened);
        self.file_systems
            .add(&opened)
            .map_err(|e| self.error(parent, "looking at", e))?;
        self.last_directory = Some((parent, opened.clone()));
        Ok(opened)
    }

    /// Length of a file in bytes; 0 for other entries. A stream is as long as it may be until its
    /// end has come.
    fn len(&self, entry: u32) -> u64 {
        match self.entry(entry).kind {
            Kind::File(len) => len,
            Kind::Stream => self.stream_len.unwrap_or(LEN_MAX),
            _ => 0,
        }
    }

    /// Bytes of all files together. Those of a stream are known at its end.
    fn whole_len(&self) -> u64 {
        let len = self.manifest.known_len();
        len.or(self.stream_len).unwrap_or_default()
    }

    /// Bytes of the files that have not failed.
    pub fn len_here(&self) -> u64 {
        let failed = self.failed.iter().map(|file| self.len(*file));
        self.whole_len().saturating_sub(failed.sum())
    }

    /// Whether what is in an entry's place may be replaced.
    fn may_replace(&self, entry: u32) -> bool {
        self.destination.overwrite
            || self.replaces_all(entry)
            || self.ours.contains(&entry)
            || self.before.has(entry)
    }

    /// The entry at the top that an entry lies in, or is.
    fn top_of(&self, entry: u32) -> u32 {
        let mut top = entry;
        while self.entry(top).parent != TOP {
            top = self.entry(top).parent;
        }
        top
    }

    /// Length of a file in bytes; 0 for a number that no entry has.
    fn len_if_any(&self, file: u32) -> u64 {
        match (file as usize) < self.manifest.entries().len() {
            true => self.len(file),
            false => 0,
        }
    }

    /// Writes the pieces of a pack, and gives names to the files that are complete. Packs may come
    /// in any order, each once.
    pub fn write(&mut self, mut pieces: &[Piece], mut bytes: &[u8]) -> Result<(), Error> {
        self.check_folding()?;
        let mut left = bytes.len();
        while let Some(first) = pieces.first() {
            if left - bytes.len() >= WRITTEN {
                left = bytes.len();
                give_way();
            }
            let file = first.file();
            let run = pieces.iter().take_while(|p| p.file() == file).count();
            let here;
            (here, pieces) = pieces.split_at(run);
            self.write_pieces(file, here, &mut bytes)?;
        }
        self.name_batch()
    }

    /// Writes the pieces of one file, whose bytes are the first of `bytes`.
    fn write_pieces(
        &mut self,
        file: u32,
        pieces: &[Piece],
        bytes: &mut &[u8],
    ) -> Result<(), Error> {
        if self.remaining_files.contains_key(&file) {
            let lens = pieces.iter().map(|piece| match piece {
                Piece::Bytes { len, .. } => *len as usize,
                Piece::Hole { .. } | Piece::Failed { .. } => 0,
            });
            *bytes = &bytes[lens.sum()..];
            // The sender takes it for a file that this receiver lacks.
            if pieces
                .iter()
                .any(|piece| matches!(piece, Piece::Failed { .. }))
            {
                self.forget_remaining(file);
                self.failed.insert(file);
            }
            return Ok(());
        }
        let given: u64 = pieces.iter().map(Piece::size).sum();
        let is_whole = given == self.len_if_any(file);
        if let [
            Piece::Bytes {
                offset: 0,
                len,
                last: true,
                ..
            },
        ] = pieces
            && is_whole
            && !self.is_begun(file)
        {
            self.check_announced(&pieces[0])?;
            let here;
            (here, *bytes) = bytes.split_at(*len as usize);
            return self.write_whole(file, here);
        }
        for piece in pieces {
            self.check_announced(piece)?;
            match piece {
                Piece::Bytes { offset, len, .. } => {
                    let here;
                    (here, *bytes) = bytes.split_at(*len as usize);
                    // What comes of a file that the sender could not read to its end is void.
                    if !self.failed.contains(&file) {
                        let partial = self.extend(piece, *offset, is_whole)?;
                        let written = write_parts(&partial.file, here, *offset);
                        written.map_err(|e| self.error(file, "writing", e))?;
                        self.complete(file)?;
                    }
                }
                Piece::Hole { offset, len, .. } => {
                    if !self.failed.contains(&file) {
                        self.extend(piece, *offset, is_whole)?;
                        self.leave_hole(file, *offset, *len)?;
                        self.complete(file)?;
                    }
                }
                Piece::Failed { .. } => self.give_up(file)?,
            }
        }
        Ok(())
    }

    /// Whether something of a file is here, or it has failed.
    fn is_begun(&self, file: u32) -> bool {
        self.resumes || self.incomplete.contains_key(&file) || self.failed.contains(&file)
    }

    /// Writes a file that comes in one piece. Of small files this is most of what a set costs.
    fn write_whole(&mut self, file: u32, bytes: &[u8]) -> Result<(), Error> {
        let partial = self.create(file, true)?;
        let written = write_parts(&partial.file, bytes, 0);
        written.map_err(|e| self.error(file, "writing", e))?;
        self.taken += bytes.len() as u64 - partial.taken;
        self.completed(partial)
    }

    /// Checks that this piece may come.
    fn check_announced(&self, piece: &Piece) -> Result<(), Error> {
        let (file, fails) = (piece.file(), matches!(piece, Piece::Failed { .. }));
        match self.done.get(file as usize) {
            Some(is_done) if !is_done || self.failed.contains(&file) => Ok(()),
            Some(_) if fails && self.entry(file).kind == Kind::Directory => Ok(()),
            _ => Err(absurd(
                "bytes of a file that it has not announced, or has sent",
            )),
        }
    }

    /// Notes that a piece of a file comes, which begins at `offset`, and returns the file. It is
    /// created with its first piece, and needs no partial name if the pack is all of it.
    fn extend(
        &mut self,
        piece: &Piece,
        offset: u64,
        is_whole: bool,
    ) -> Result<&mut Partial, Error> {
        let file = piece.file();
        let end = offset + piece.size();
        if self.manifest.is_stream() && piece.is_last() {
            self.stream_len.get_or_insert(end);
        }
        let len = self.len(file);
        let overlap = || absurd("pieces of a file that overlap or are too long");
        if end > len {
            return Err(overlap());
        }
        if piece.is_last() != (end == len) {
            return Err(absurd("a file that ends too early"));
        }
        if !self.incomplete.contains_key(&file) {
            if let Some(ranges) = self.named.remove(&file) {
                self.unname(file, ranges)?;
            } else if let Some(left) = self.resumes.then(|| self.partial(file)).flatten() {
                self.take_partial(file, left, Ranges::default())?;
            } else {
                let created = self.create(file, is_whole)?;
                self.add_incomplete(created)?;
            }
        }
        let partial = self.incomplete.get_mut(&file).ok_or_else(overlap)?;
        // What an earlier run has left may have a part of its space.
        let more = piece.size().min(len.saturating_sub(partial.taken));
        partial.taken += more;
        self.taken += more;
        match partial.ranges.add(offset..end) {
            true => Ok(partial),
            false => Err(overlap()),
        }
    }

    /// Notes a file that is not complete.
    fn add_incomplete(&mut self, partial: Partial) -> Result<(), Error> {
        if self.incomplete.len() >= INCOMPLETE_MAX {
            return Err(absurd("too many files that are not complete"));
        }
        self.incomplete.insert(partial.entry, partial);
        Ok(())
    }

    /// Leaves a hole, where the file system can. The space may be allocated already.
    fn leave_hole(&self, file: u32, offset: u64, count: u64) -> Result<(), Error> {
        let Some(partial) = self.incomplete.get(&file) else {
            return Ok(());
        };
        if count > 0 {
            let punched = disk::punch(&partial.file, offset, count);
            // What an earlier run has left there must go.
            if punched.is_err()
                && partial.is_kept
                && !is_hole(&partial.file, offset, offset + count)
            {
                let zeros = vec![0; ZEROS];
                for at in (offset..offset + count).step_by(ZEROS) {
                    let some = (offset + count - at).min(ZEROS as u64) as usize;
                    let written = disk::write(&partial.file, &zeros[..some], at);
                    written.map_err(|e| self.error(file, "writing", e))?;
                }
            }
        }
        // What follows a hole makes the file longer, unless nothing does.
        match self.len(file) {
            len if offset + count == len => {
                disk::set_len(&partial.file, len).map_err(|e| self.error(file, "writing", e))
            }
            _ => Ok(()),
        }
    }

    /// Completes a file if all of it is there.
    fn complete(&mut self, file: u32) -> Result<(), Error> {
        let len = self.len(file);
        let is_there = |partial: &Partial| partial.ranges.cover(len);
        if !self.incomplete.get(&file).is_some_and(is_there) {
            return Ok(());
        }
        match self.incomplete.remove(&file) {
            Some(partial) => self.completed(partial),
            None => Ok(()),
        }
    }

    /// Sets owner, mode and time of a file that is all there. It gets its name with its batch.
    fn completed(&mut self, partial: Partial) -> Result<(), Error> {
        let file = partial.entry;
        match partial.is_in_place {
            true => self.set_metadata_in_place(file, &partial.file)?,
            false => self.set_metadata(file, self.readable_mode(file), &partial.file)?,
        }
        self.note_done(file);
        self.add_to_batch(partial)
    }

    /// Counts a file as one of which nothing more is to come.
    fn note_done(&mut self, file: u32) {
        self.done[file as usize] = true;
        self.remaining -= 1;
    }

    fn give_up(&mut self, file: u32) -> Result<(), Error> {
        if self.failed.insert(file) && !self.done[file as usize] {
            self.note_done(file);
            self.named.remove(&file);
            let mut taken = self.kept_space.remove(&file).unwrap_or(0);
            if let Some(mut partial) = self.incomplete.remove(&file) {
                partial.is_kept = false;
                taken = partial.taken;
            }
            self.taken += self.len(file).saturating_sub(taken);
        }
        Ok(())
    }
}

/// The process's umask; where it cannot be read, what is usual.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("Umask:"));
    let mask = line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
    mask.unwrap_or(WRITE_OTHERS)
}

/// Writes bytes to a file, so that other threads run between parts of them.
fn write_parts(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut parts = bytes.chunks(WRITTEN).zip((offset..).step_by(WRITTEN));
    parts.try_for_each(|(part, at)| {
        if bytes.len() >= WRITTEN {
            give_way();
        }
        disk::write(file, part, at)
    })
}
