//! The files and directories that a receiver makes of a set (spec 5.4).
//!
//! Only proven bytes come here. The kernel resolves every path beneath the destination, and follows
//! no symbolic link (`openat2`). A file has no name while it is written, where the file system has
//! such files (`O_TMPFILE`); it gets its name when it is complete and on the disk. Links, and the
//! modes and times of directories, come at the end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self as sys, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags,
    ResolveFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::file_name::{partial_name, with_partial_name};
use super::manifest::{Entry, Kind, Manifest, TOP};
use super::pack::Piece;
use super::{Challenge, Secret, safe_name};
use crate::error::Error;
use crate::text::shown;

/// Complete files that wait for the disk together; each has an open descriptor.
const BATCH: usize = 256;
/// Files of at least this many bytes get their disk space before they are written.
const ALLOCATED: u64 = 1 << 20;
/// More directories than this are flushed by flushing their file system.
const FLUSHED: usize = 16;

/// Where a set goes and what may happen there.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The directory that everything lies in.
    pub root: PathBuf,
    /// The name of the only entry at the top, if its user has chosen one.
    pub name: Option<std::ffi::OsString>,
    /// Whether existing files may be replaced.
    pub overwrite: bool,
    /// Whether to wait for the disk.
    pub sync: bool,
    /// Whether a file at the top loses its execute permissions.
    pub is_tame: bool,
    /// Whether set-user-ID and set-group-ID bits are kept.
    pub is_privileged: bool,
}

/// A file that is being written.
struct Partial {
    entry: u32,
    file: File,
    /// Name of the file until it is complete; `None` if it has no name.
    name: Option<PathBuf>,
    directory: OwnedFd,
    /// Bytes written.
    len: u64,
}

/// The files and directories of a set that is received.
pub struct Tree {
    destination: Destination,
    root: OwnedFd,
    manifest: Manifest,
    /// Where each entry's bytes begin if all files lie one behind the other.
    starts: Vec<u64>,
    /// Files that are complete, or that the sender could not read.
    done: Vec<bool>,
    /// Files that the sender could not read.
    failed: Vec<u32>,
    /// The file that is being written; a sender sends one after the other.
    open: Option<Partial>,
    /// Complete files that have no name yet.
    batch: Vec<Partial>,
    /// The directory that was opened last.
    last_directory: Option<(u32, OwnedFd)>,
    /// Directories that got names.
    touched: BTreeSet<u32>,
    remaining: usize,
}

/// The error for a sender that contradicts itself.
fn absurd(what: &str) -> Error {
    Error::Integrity(format!("what the sender sends makes no sense: {what}"))
}

impl Tree {
    /// Opens the destination; the manifest comes by [`Tree::add_page`].
    pub fn new(destination: Destination) -> Result<Tree, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = sys::open(&destination.root, flags, Mode::empty())
            .map_err(|e| Error::io(format!("opening {}", destination.root.display()), e))?;
        Ok(Tree {
            destination,
            root,
            manifest: Manifest::default(),
            starts: Vec::new(),
            done: Vec::new(),
            failed: Vec::new(),
            open: None,
            batch: Vec::new(),
            last_directory: None,
            touched: BTreeSet::new(),
            remaining: 0,
        })
    }

    /// The entries so far.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Names of the files that the sender could not read.
    pub fn failed(&self) -> Vec<PathBuf> {
        self.failed.iter().map(|file| self.path(*file)).collect()
    }

    /// Whether every file of the manifest is complete or known to have failed.
    pub fn is_complete(&self) -> bool {
        self.remaining == 0
    }

    /// The path of an entry, relative to the destination.
    fn relative(&self, entry: u32) -> PathBuf {
        let path = self.manifest.path(entry);
        let path = Path::new(OsStr::from_bytes(&path));
        match &self.destination.name {
            Some(name) => {
                let names = path.components().skip(1);
                Path::new(name).components().chain(names).collect()
            }
            None => path.to_owned(),
        }
    }

    /// The path of an entry, for people.
    fn path(&self, entry: u32) -> PathBuf {
        let relative = self.relative(entry);
        self.destination.root.join(relative)
    }

    /// The name of an entry in its directory.
    fn name(&self, entry: u32) -> PathBuf {
        let path = self.relative(entry);
        PathBuf::from(path.file_name().unwrap_or_default())
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
    fn directory_of(&mut self, entry: u32) -> Result<OwnedFd, Error> {
        let parent = self.entry(entry).parent;
        let copy = |fd: &OwnedFd| {
            fd.try_clone()
                .map_err(|e| Error::io("opening a directory", e))
        };
        if parent == TOP {
            return copy(&self.root);
        }
        if let Some((last, fd)) = &self.last_directory
            && *last == parent
        {
            return copy(fd);
        }
        let opened = self.beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let result = copy(&opened);
        self.last_directory = Some((parent, opened));
        result
    }

    /// Opens an entry beneath the destination. No symbolic link is followed.
    fn beneath(&self, entry: u32, flags: OFlags) -> Result<OwnedFd, Error> {
        let path = self.relative(entry);
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        sys::openat2(
            &self.root,
            &path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            inside,
        )
        .map_err(|e| self.error(entry, "opening", e))
    }

    /// Adds a page of the manifest and makes its directories. An entry that is there already is an
    /// error, unless it may be replaced; a directory may always be there.
    pub fn add_page(&mut self, page: &[u8]) -> Result<(), Error> {
        let first = self.manifest.entries().len() as u32;
        let added = self.manifest.add_page(page);
        added.map_err(|e| Error::Integrity(e.to_string()))?;
        let count = self.manifest.entries().len() as u32;
        let mut start = match first.checked_sub(1) {
            Some(last) => self.starts[last as usize] + self.len(last),
            None => 0,
        };
        for entry in first..count {
            let is_file = matches!(self.entry(entry).kind, Kind::File(_));
            self.starts.push(start);
            self.done.push(!is_file);
            self.remaining += usize::from(is_file);
            start += self.len(entry);
            if self.entry(entry).parent == TOP {
                self.check_top(entry)?;
            }
            self.make_place(entry)?;
        }
        Ok(())
    }

    /// Length of a file in bytes; 0 for other entries.
    fn len(&self, entry: u32) -> u64 {
        match self.entry(entry).kind {
            Kind::File(len) => len,
            _ => 0,
        }
    }

    fn check_top(&self, entry: u32) -> Result<(), Error> {
        if self.destination.name.is_some() {
            return match self.manifest.tops() {
                1 => Ok(()),
                _ => Err(absurd("it has several files for one name")),
            };
        }
        let name = std::str::from_utf8(&self.entry(entry).name);
        match name.ok().and_then(safe_name) {
            Some(_) => Ok(()),
            None => Err(Error::Usage(format!(
                "the sender sends {:?}, which is no name for a file here",
                String::from_utf8_lossy(&self.entry(entry).name)
            ))),
        }
    }

    /// Makes a directory, or checks that the place of another entry is free.
    fn make_place(&mut self, entry: u32) -> Result<(), Error> {
        let is_directory = self.entry(entry).kind == Kind::Directory;
        let directory = self.directory_of(entry)?;
        let name = self.name(entry);
        if is_directory {
            match sys::mkdirat(&directory, &name, Mode::from_raw_mode(0o700)) {
                Ok(()) => {
                    self.touched.insert(self.entry(entry).parent);
                    return Ok(());
                }
                Err(Errno::EXIST) => {}
                Err(e) => return Err(self.error(entry, "making", e)),
            }
        }
        match sys::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.error(entry, "looking at", e)),
            Ok(there) => match (is_directory, FileType::from_raw_mode(there.st_mode)) {
                (true, FileType::Directory) => Ok(()),
                (false, FileType::Directory) => Err(Error::Usage(format!(
                    "{} is a directory; name another destination",
                    self.path(entry).display()
                ))),
                (false, _) if self.destination.overwrite => Ok(()),
                _ => Err(Error::Exists(self.path(entry))),
            },
        }
    }

    /// Writes the pieces of a pack, and gives names to the files that are complete.
    pub fn write(&mut self, pieces: &[Piece], mut bytes: &[u8]) -> Result<(), Error> {
        for piece in pieces {
            match piece {
                Piece::Bytes {
                    file,
                    offset,
                    len,
                    last,
                } => {
                    let here;
                    (here, bytes) = bytes.split_at(*len as usize);
                    self.write_piece(*file, *offset, here)?;
                    if *last {
                        self.complete(*file)?;
                    }
                }
                Piece::Failed { file, .. } => self.give_up(*file)?,
            }
        }
        self.name_batch()
    }

    fn check_pending(&self, file: u32) -> Result<(), Error> {
        match self.done.get(file as usize) {
            Some(false) => Ok(()),
            _ => Err(absurd(
                "bytes of a file that it has not announced, or has sent",
            )),
        }
    }

    fn write_piece(&mut self, file: u32, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check_pending(file)?;
        if self.open.as_ref().is_none_or(|open| open.entry != file) {
            if self.open.is_some() || offset != 0 {
                return Err(absurd("pieces of files out of their order"));
            }
            self.open = Some(self.create(file)?);
        }
        let len = self.len(file);
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        if open.len != offset || len - offset < bytes.len() as u64 {
            return Err(absurd("pieces of a file that overlap or are too long"));
        }
        open.len += bytes.len() as u64;
        let written = open.file.write_all_at(bytes, offset);
        written.map_err(|e| self.error(file, "writing", e))
    }

    /// Creates the file of an entry: without a name, or with a partial one.
    fn create(&mut self, entry: u32) -> Result<Partial, Error> {
        let directory = self.directory_of(entry)?;
        let mode = Mode::from_raw_mode(0o600);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let nameless = sys::openat(&directory, ".", flags | OFlags::TMPFILE, mode);
        // Without /proc the file could never get a name.
        let nameless = nameless.ok().map(File::from);
        let nameless = nameless.filter(|file| sys::stat(descriptor(file)).is_ok());
        let (file, name) = match nameless {
            Some(file) => (file, None),
            None => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL;
                let (file, name) = with_partial_name(&self.name(entry), partial_name, |name| {
                    Ok(sys::openat(&directory, name, flags, mode)?)
                })?;
                (file.into(), Some(name))
            }
        };
        let partial = Partial {
            entry,
            file,
            name,
            directory,
            len: 0,
        };
        let len = self.len(entry);
        if len >= ALLOCATED && !in_memory(&partial.file) {
            match sys::fallocate(&partial.file, FallocateFlags::empty(), 0, len) {
                // Not every file system can allocate.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
                Err(e) => return Err(self.error(entry, "writing", e)),
            }
        }
        Ok(partial)
    }

    /// Completes a file: its owner, mode and time. It gets its name with its batch.
    fn complete(&mut self, file: u32) -> Result<(), Error> {
        let len = self.len(file);
        let Some(open) = self
            .open
            .take_if(|open| open.entry == file && open.len == len)
        else {
            return Err(absurd("a file that ends too early"));
        };
        // What was written is read back for the proof.
        let readable = match self.is_unreadable(file) {
            true => Mode::RUSR,
            false => Mode::empty(),
        };
        self.set_metadata(file, self.mode(file) | readable, &open.file)?;
        self.done[file as usize] = true;
        self.remaining -= 1;
        self.batch.push(open);
        match self.batch.len() >= BATCH {
            true => self.name_batch(),
            false => Ok(()),
        }
    }

    fn give_up(&mut self, file: u32) -> Result<(), Error> {
        self.check_pending(file)?;
        self.done[file as usize] = true;
        self.remaining -= 1;
        self.failed.push(file);
        self.open.take_if(|open| open.entry == file);
        Ok(())
    }

    /// The permissions that an entry gets.
    fn mode(&self, entry: u32) -> Mode {
        let e = self.entry(entry);
        let kept = match self.destination.is_privileged {
            true => 0o7777,
            false => 0o777,
        };
        let is_tame = self.destination.is_tame && e.parent == TOP && e.kind != Kind::Directory;
        let kept = if is_tame { kept & !0o111 } else { kept };
        Mode::from_raw_mode(u32::from(e.mode) & kept)
    }

    /// Whether its own owner may not read an entry.
    fn is_unreadable(&self, entry: u32) -> bool {
        !self.mode(entry).contains(Mode::RUSR)
    }

    fn times(&self, entry: u32) -> Timestamps {
        let e = self.entry(entry);
        let time = Timespec {
            tv_sec: e.mtime,
            tv_nsec: e.mtime_ns.into(),
        };
        Timestamps {
            last_access: time,
            last_modification: time,
        }
    }

    /// The owner, if this process may give files away.
    fn owner(&self, entry: u32) -> Option<(Option<Uid>, Option<Gid>)> {
        let (user, group) = self.entry(entry).owner;
        // All ones would mean that the owner stays.
        let is_one = user != u32::MAX && group != u32::MAX;
        let may = rustix::process::geteuid().is_root() && is_one;
        may.then(|| (Some(Uid::from_raw(user)), Some(Gid::from_raw(group))))
    }

    fn set_metadata(&self, entry: u32, mode: Mode, file: impl AsFd) -> Result<(), Error> {
        let file = file.as_fd();
        if let Some((user, group)) = self.owner(entry) {
            match sys::fchown(file, user, group) {
                // A user namespace may not know that owner.
                Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
                Err(e) => return Err(self.error(entry, "giving away", e)),
            }
        }
        sys::fchmod(file, mode)
            .and_then(|()| sys::futimens(file, &self.times(entry)))
            .map_err(|e| self.error(entry, "setting mode and time of", e))
    }

    /// Flushes the complete files and gives them their names.
    fn name_batch(&mut self) -> Result<(), Error> {
        let batch = std::mem::take(&mut self.batch);
        if self.destination.sync {
            match &batch[..] {
                [] => {}
                [one] => one
                    .file
                    .sync_all()
                    .map_err(|e| self.error(one.entry, "writing", e))?,
                [one, ..] => {
                    sys::syncfs(&self.root).map_err(|e| self.error(one.entry, "flushing", e))?;
                }
            }
        }
        for mut partial in batch {
            self.give_name(&mut partial)?;
            self.touched.insert(self.entry(partial.entry).parent);
        }
        Ok(())
    }

    fn give_name(&self, partial: &mut Partial) -> Result<(), Error> {
        let name = self.name(partial.entry);
        let directory = &partial.directory;
        let fails = |e: Errno| match (e, self.destination.overwrite) {
            (Errno::EXIST, false) => Error::Exists(self.path(partial.entry)),
            _ => self.error(partial.entry, "renaming to", e),
        };
        let link = |name: &Path| {
            let nameless = descriptor(&partial.file);
            sys::linkat(CWD, nameless, directory, name, AtFlags::SYMLINK_FOLLOW)
        };
        match (&partial.name, self.destination.overwrite) {
            (None, false) => link(&name).map_err(fails),
            // A link replaces nothing, so the file has a partial name for an instant.
            (None, true) => {
                let linked = with_partial_name(&name, partial_name, |n| Ok(link(n)?));
                let ((), between) = linked?;
                sys::renameat(directory, &between, directory, &name).map_err(|e| {
                    let _ = sys::unlinkat(directory, &between, AtFlags::empty());
                    fails(e)
                })
            }
            (Some(between), overwrite) => {
                let flags = match overwrite {
                    true => RenameFlags::empty(),
                    false => RenameFlags::NOREPLACE,
                };
                let renamed = sys::renameat_with(directory, between, directory, &name, flags);
                match renamed {
                    // The file system does not have that flag. A link never replaces anything.
                    Err(Errno::INVAL | Errno::NOSYS) if !overwrite => {
                        let linked =
                            sys::linkat(directory, between, directory, &name, AtFlags::empty());
                        linked.map_err(fails)?;
                        let _ = sys::unlinkat(directory, between, AtFlags::empty());
                        Ok(())
                    }
                    result => result.map_err(fails),
                }
            }
        }?;
        partial.name = None;
        Ok(())
    }

    /// Ends the set, after [`Tree::answer`]: links, the flush of names, then owners, modes and
    /// times of directories.
    pub fn finish(&mut self) -> Result<(), Error> {
        if !self.is_complete() {
            return Err(absurd("it ends before all files are there"));
        }
        let count = self.manifest.entries().len() as u32;
        for entry in 0..count {
            match self.entry(entry).kind.clone() {
                Kind::Symlink(target) => self.make_symlink(entry, &target)?,
                Kind::HardLink(to) if !self.failed.contains(&to) => self.make_link(entry, to)?,
                _ => {}
            }
        }
        self.flush_names()?;
        for entry in (0..count).rev() {
            let late = match self.entry(entry).kind {
                Kind::Directory => true,
                Kind::File(_) => self.is_unreadable(entry) && !self.failed.contains(&entry),
                _ => false,
            };
            if late {
                let opened = self.beneath(entry, OFlags::RDONLY)?;
                self.set_metadata(entry, self.mode(entry), &opened)?;
            }
        }
        Ok(())
    }

    fn make_symlink(&mut self, entry: u32, target: &[u8]) -> Result<(), Error> {
        let directory = self.directory_of(entry)?;
        let target = OsStr::from_bytes(target);
        self.place_link(entry, &directory, |name| {
            sys::symlinkat(target, &directory, name)
        })?;
        let (name, times) = (self.name(entry), self.times(entry));
        if let Some((user, group)) = self.owner(entry) {
            let _ = sys::chownat(&directory, &name, user, group, AtFlags::SYMLINK_NOFOLLOW);
        }
        // Not every file system keeps times of links.
        let _ = sys::utimensat(&directory, &name, &times, AtFlags::SYMLINK_NOFOLLOW);
        Ok(())
    }

    fn make_link(&mut self, entry: u32, to: u32) -> Result<(), Error> {
        let from = self.directory_of(to)?;
        let old = self.name(to);
        let directory = self.directory_of(entry)?;
        self.place_link(entry, &directory, |name| {
            sys::linkat(&from, &old, &directory, name, AtFlags::empty())
        })
    }

    /// Makes a link by `make`, in place of what is there if that may be replaced.
    fn place_link(
        &mut self,
        entry: u32,
        directory: &OwnedFd,
        make: impl Fn(&Path) -> Result<(), Errno>,
    ) -> Result<(), Error> {
        let name = self.name(entry);
        self.touched.insert(self.entry(entry).parent);
        match make(&name) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) if self.destination.overwrite => {
                let ((), between) = with_partial_name(&name, partial_name, |n| Ok(make(n)?))?;
                let placed = sys::renameat(directory, &between, directory, &name);
                // Renaming one name of a file to another of its names does nothing.
                let _ = sys::unlinkat(directory, &between, AtFlags::empty());
                placed.map_err(|e| self.error(entry, "linking", e))
            }
            Err(Errno::EXIST) => Err(Error::Exists(self.path(entry))),
            Err(e) => Err(self.error(entry, "linking", e)),
        }
    }

    /// Flushes the directories that got names, so that these survive a power failure.
    fn flush_names(&mut self) -> Result<(), Error> {
        let touched = std::mem::take(&mut self.touched);
        if !self.destination.sync {
            return Ok(());
        }
        if touched.len() > FLUSHED {
            return sys::syncfs(&self.root).map_err(|e| {
                Error::io(format!("flushing {}", self.destination.root.display()), e)
            });
        }
        for directory in touched {
            let (opened, path) = match directory {
                TOP => (self.root.try_clone().ok(), self.destination.root.clone()),
                entry => {
                    let opened = self.beneath(entry, OFlags::RDONLY | OFlags::DIRECTORY)?;
                    (Some(opened), self.path(entry))
                }
            };
            match opened.map(File::from).map_or(Ok(()), |d| d.sync_all()) {
                // Some file systems cannot flush a directory, and need not.
                Err(e) if e.kind() == ErrorKind::InvalidInput => {}
                Err(e) => {
                    let what = shown(&self.path(0));
                    return Err(Error::io(
                        format!(
                            "{what} is complete, proven and under its name, but a power failure \
                             may still undo that: flushing the directory {}",
                            path.display()
                        ),
                        e,
                    ));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Reads back the samples of `challenge`, and computes the secret from them. Files that the
    /// sender could not read count as zeros.
    pub fn answer(&mut self, challenge: &Challenge) -> Result<Secret, Error> {
        let mut samples = vec![0; challenge.bytes()];
        let mut filled = 0;
        for &(offset, len) in challenge.samples() {
            let end = offset + len as u64;
            let mut file = self.starts.partition_point(|start| *start <= offset) as u32 - 1;
            while (file as usize) < self.starts.len() && self.starts[file as usize] < end {
                let start = self.starts[file as usize];
                let stop = start + self.len(file);
                let (from, to) = (offset.max(start), end.min(stop));
                if from < to && !self.failed.contains(&file) {
                    let opened = File::from(self.beneath(file, OFlags::RDONLY)?);
                    let at = filled + (from - offset) as usize;
                    let place = &mut samples[at..at + (to - from) as usize];
                    opened
                        .read_exact_at(place, from - start)
                        .map_err(|e| self.error(file, "reading back", e))?;
                }
                file += 1;
            }
            filled += len;
        }
        Ok(challenge.secret(&samples))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            let _ = sys::unlinkat(&self.directory, &name, AtFlags::empty());
        }
    }
}

/// Whether a file lies in memory (tmpfs): allocating first would only do the work twice.
fn in_memory(file: &File) -> bool {
    const TMPFS_MAGIC: i128 = 0x0102_1994;
    sys::fstatfs(file).is_ok_and(|fs| i128::from(fs.f_type) == TMPFS_MAGIC)
}

/// The path by which an open file can be linked.
fn descriptor(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}
