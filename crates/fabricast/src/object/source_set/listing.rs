//! Lists the files and directories that are sent.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::version::Version;
use crate::error::Error;
use crate::object::LEN_MAX;
use crate::object::manifest::{Attributes, Entry, Kind, Manifest, Special, TOP};
use crate::pattern::Pattern;
use crate::setting::EXCLUDE;
use crate::text::shown;

/// What a file is that cannot be sent, if it cannot.
pub fn special(found: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => None,
        FileType::Fifo => Some("a FIFO (named pipe)"),
        FileType::Socket => Some("a socket"),
        FileType::BlockDevice | FileType::CharacterDevice => Some("a device"),
        FileType::Unknown => Some("no regular file"),
    }
}

/// Looks at what directories hold, one directory after the other. A path that is resolved once for
/// a directory costs less than one for each name.
#[derive(Default)]
pub struct Looking {
    /// The last directory, if it could be opened: its number, and the open directory.
    last: Option<(u32, Result<OwnedFd, Errno>)>,
}

impl Looking {
    /// What lies under a name in a directory with this number and path. A symbolic link is not
    /// followed.
    pub fn at(
        &mut self,
        directory: u32,
        path: impl FnOnce() -> PathBuf,
        name: &[u8],
    ) -> Result<Stat, Errno> {
        self.last.take_if(|(last, _)| *last != directory);
        let (_, opened) = self
            .last
            .get_or_insert_with(|| (directory, open_directory(&path())));
        let opened = opened.as_ref().map_err(|e| *e)?;
        sys::statat(opened, name, AtFlags::SYMLINK_NOFOLLOW)
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    sys::open(path, flags, Mode::empty())
}

/// What is sent of the sources, and what of it.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Names that are not sent from within directories.
    pub exclude: Vec<Pattern>,
    /// Whether extended attributes are sent, but those of the system (access control lists).
    pub attributes: bool,
    /// Whether devices and FIFOs in directories are sent.
    pub special: bool,
}

/// The extended attributes of an entry that is no symbolic link.
fn attributes(path: &Path) -> Result<Attributes, Errno> {
    let mut found = Vec::new();
    let list = |size| {
        let mut names = vec![0; size];
        let len = sys::llistxattr(path, &mut names[..])?;
        names.truncate(len);
        Ok(names)
    };
    let names: Vec<u8> = match list(1 << 16) {
        Err(Errno::OPNOTSUPP) => return Ok(Attributes::default()),
        names => names?,
    };
    for name in names.split(|b| *b == 0) {
        if name.is_empty() || name.starts_with(b"system.") {
            continue;
        }
        let mut value = vec![0; 1 << 16];
        match sys::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => found.push((name.into(), value[..len].into())),
            Err(Errno::NODATA) => {} // removed just now
            // Then the entry cannot be read either, and fails as a whole.
            Err(Errno::ACCESS) if name.starts_with(b"user.") => {}
            Err(e) => return Err(e),
        }
    }
    Ok(found.into_iter().collect())
}

/// Lists what is sent.
pub struct Listing<'a> {
    /// The entries so far.
    pub manifest: Manifest,
    /// State of each regular file; other entries have none.
    pub versions: Vec<Option<Version>>,
    /// Where each entry's bytes begin if all files lie one behind the other.
    pub starts: Vec<u64>,
    /// Directories that this process may not read, or in which it may not look at what they hold.
    pub closed: BTreeSet<u32>,
    /// Files with several names: device and inode, and the entry that came first.
    links: HashMap<(u64, u64), u32>,
    selection: &'a Selection,
    /// Gets messages for the user.
    pub tell: &'a mut dyn FnMut(String),
    looking: Looking,
}

impl<'a> Listing<'a> {
    /// Nothing is listed yet.
    pub fn new(selection: &'a Selection, tell: &'a mut dyn FnMut(String)) -> Listing<'a> {
        Listing {
            manifest: Manifest::default(),
            versions: Vec::new(),
            starts: Vec::new(),
            closed: BTreeSet::new(),
            links: HashMap::new(),
            selection,
            tell,
            looking: Looking::default(),
        }
    }

    /// Adds one entry, and below a directory all that it holds.
    pub fn add(
        &mut self,
        path: &Path,
        name: &[u8],
        parent: u32,
        there: &Stat,
    ) -> Result<(), Error> {
        let inode = (there.st_dev, there.st_ino);
        let kind = match FileType::from_raw_mode(there.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => {
                let target = std::fs::read_link(path);
                let target =
                    target.map_err(|e| Error::io(format!("reading {}", shown(path)), e))?;
                Kind::Symlink(target.into_os_string().into_vec().into())
            }
            FileType::RegularFile => match self.links.get(&inode) {
                Some(first) if there.st_nlink > 1 => Kind::HardLink(*first),
                _ => Kind::File(there.st_size as u64),
            },
            t if self.selection.special && t != FileType::Socket => {
                let device = there.st_rdev;
                let (major, minor) = (sys::major(device), sys::minor(device));
                Kind::Special(match t {
                    FileType::Fifo => Special::Fifo,
                    FileType::CharacterDevice => Special::Character(major, minor),
                    _ => Special::Block(major, minor),
                })
            }
            _ => {
                let what = special(there).unwrap_or("nothing that can be sent");
                (self.tell)(format!("{} is {what}: it is not sent", shown(path)));
                return Ok(());
            }
        };
        let number = self.manifest.entries().len() as u32;
        let has_some = matches!(kind, Kind::File(_) | Kind::Directory);
        let attributes = match self.selection.attributes && has_some {
            true => attributes(path).map_err(|e| {
                Error::io(
                    format!("reading the extended attributes of {}", shown(path)),
                    e,
                )
            })?,
            false => Attributes::default(),
        };
        let is_file = matches!(kind, Kind::File(_));
        let is_directory = kind == Kind::Directory;
        if is_file && there.st_nlink > 1 {
            self.links.insert(inode, number);
        }
        self.starts.push(self.manifest.len());
        self.versions.push(is_file.then(|| Version::of(there)));
        let entry = Entry {
            parent,
            name: name.into(),
            kind,
            mode: (there.st_mode & 0o7777) as u16,
            mtime: there.st_mtime,
            mtime_ns: there.st_mtime_nsec.min(999_999_999) as u32,
            owner: (there.st_uid, there.st_gid),
            attributes,
        };
        self.manifest.add(entry).map_err(|why| {
            let why = match why.0 {
                "its files are too long" => format!(
                    "with {} the set has more than {LEN_MAX} bytes (32 TiB), the most that can be \
                     sent",
                    shown(path)
                ),
                "a name is taken twice" => format!(
                    "{} cannot be sent: another source has this name, too; send the directory in \
                     which they lie, or one after the other",
                    shown(path)
                ),
                why => format!("{} cannot be sent: {why}", shown(path)),
            };
            Error::Usage(why)
        })?;
        match is_directory {
            true => self.add_all(path, number),
            false => Ok(()),
        }
    }

    /// Adds what a directory holds, in the order of the names. A directory that this process may
    /// not read is noted, and the listing goes on.
    fn add_all(&mut self, path: &Path, number: u32) -> Result<(), Error> {
        let is_source = self.manifest.entries()[number as usize].parent == TOP;
        let error = |below: &Path, e| {
            // A source is named by the user, so nothing leaves it out.
            let hint = match is_source && below == path {
                true => String::new(),
                false => format!(" (to leave it out: {EXCLUDE})"),
            };
            Error::io(format!("reading {}{hint}", shown(below)), e)
        };
        let entries = match std::fs::read_dir(path) {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                self.closed.insert(number);
                return Ok(());
            }
            entries => entries.map_err(|e| error(path, e))?,
        };
        let names: io::Result<Vec<_>> = entries.map(|e| Ok(e?.file_name())).collect();
        let mut names = names.map_err(|e| error(path, e))?;
        names.sort_unstable();
        for name in names {
            let below = path.join(&name);
            let text = name.to_string_lossy();
            if self
                .selection
                .exclude
                .iter()
                .any(|pattern| pattern.matches(&text))
            {
                continue;
            }
            let there = self.looking.at(number, || path.to_owned(), name.as_bytes());
            match there {
                Ok(there) => self.add(&below, name.as_bytes(), number, &there)?,
                Err(Errno::NOENT) => {} // deleted just now
                Err(Errno::ACCESS) => _ = self.closed.insert(number),
                Err(e) => return Err(error(&below, e.into())),
            }
        }
        Ok(())
    }
}
