//! The files that are sent: their list, and reading them, never mapped.
//!
//! The list is made once, before any receiver comes. Each file is opened when it is read, and must
//! then be what it was when it was listed (device, inode, length, times). It is compared again
//! after each read. Otherwise a file would be sent that never existed, half old and half new.

mod identical;

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{self as sys, OFlags, SeekFrom};
use rustix::io::Errno;

use super::manifest::{Attributes, Entry, Kind, Manifest, Special, TOP};
use super::{Challenge, LEN_MAX, Secret, poisoned};
use crate::error::Error;
use crate::pattern::Pattern;
use crate::text::shown;

/// The files and directories that are sent, or a stream.
pub struct SourceSet {
    manifest: Manifest,
    /// The number of each entry at the top, in ascending order, and its path.
    tops: Vec<(u32, PathBuf)>,
    /// State of each regular file when it was listed; other entries have none.
    versions: Vec<Option<Version>>,
    /// Where each entry's bytes begin if all files lie one behind the other.
    starts: Vec<u64>,
    sampled: Mutex<Sampled>,
    stream: Option<Stream>,
}

/// What receivers have to prove, and the samples of the files that prove it, copied when the files
/// were read.
struct Sampled {
    challenge: Challenge,
    samples: Vec<u8>,
}

impl Sampled {
    /// Makes room for the samples that begin before byte `len`.
    fn reach(&mut self, len: u64) {
        self.challenge.reach(len);
        self.samples.resize(self.challenge.bytes(), 0);
    }

    /// Drops what lies behind the end of a stream of `len` bytes.
    fn end(&mut self, len: u64) {
        self.challenge.end(len);
        self.samples.truncate(self.challenge.bytes());
    }
}

/// What is sent as it comes, and cannot be read again.
struct Stream {
    /// Where it comes from, until it is read.
    input: Mutex<Option<File>>,
    /// Its length in bytes, once it has ended.
    len: OnceLock<u64>,
}

/// A random key for a challenge.
fn random_key() -> Result<[u8; 32], Error> {
    let mut key = [0; 32];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Error::io("drawing a random number", e))?;
    Ok(key)
}

/// The state of a file: at least one field differs after a change. The times are in seconds and
/// nanoseconds.
#[derive(Clone, PartialEq)]
struct Version {
    inode: (u64, u64),
    len: u64,
    /// When the file's bytes were changed. Anybody that may write to the file can set this time.
    mtime: (i64, i64),
    /// When anything of the file was changed. Nobody can set this time.
    ctime: (i64, i64),
}

impl Version {
    fn of(meta: &Metadata) -> Version {
        Version {
            inode: (meta.dev(), meta.ino()),
            len: meta.len(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// What a file is that cannot be sent, if it cannot.
fn special(found: FileType) -> Option<&'static str> {
    match found {
        t if t.is_file() || t.is_dir() || t.is_symlink() => None,
        t if t.is_fifo() => Some("a FIFO (named pipe)"),
        t if t.is_socket() => Some("a socket"),
        t if t.is_block_device() || t.is_char_device() => Some("a device"),
        _ => Some("no regular file"),
    }
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
    let mut found = Attributes::new();
    let list = |size| {
        let mut names = vec![0; size];
        let len = sys::llistxattr(path, &mut names[..])?;
        names.truncate(len);
        Ok(names)
    };
    let names: Vec<u8> = match list(1 << 16) {
        Err(Errno::OPNOTSUPP) => return Ok(found),
        names => names?,
    };
    for name in names.split(|b| *b == 0) {
        if name.is_empty() || name.starts_with(b"system.") {
            continue;
        }
        let mut value = vec![0; 1 << 16];
        match sys::lgetxattr(path, name, &mut value[..]) {
            Ok(len) => _ = found.insert(name.into(), value[..len].into()),
            Err(Errno::NODATA) => {} // removed just now
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// Lists what is sent.
struct Listing<'a> {
    manifest: Manifest,
    versions: Vec<Option<Version>>,
    starts: Vec<u64>,
    /// Files with several names: device and inode, and the entry that came first.
    links: HashMap<(u64, u64), u32>,
    selection: &'a Selection,
    tell: &'a mut dyn FnMut(String),
}

impl Listing<'_> {
    /// Adds one entry, and below a directory all that it holds.
    fn add(&mut self, path: &Path, name: &[u8], parent: u32, meta: &Metadata) -> Result<(), Error> {
        let kind = match meta.file_type() {
            t if t.is_dir() => Kind::Directory,
            t if t.is_symlink() => {
                let target = std::fs::read_link(path);
                let target =
                    target.map_err(|e| Error::io(format!("reading {}", shown(path)), e))?;
                Kind::Symlink(target.into_os_string().into_vec().into())
            }
            t if t.is_file() => match self.links.get(&(meta.dev(), meta.ino())) {
                Some(first) if meta.nlink() > 1 => Kind::HardLink(*first),
                _ => Kind::File(meta.len()),
            },
            t if self.selection.special && !t.is_socket() => {
                let device = meta.rdev();
                let (major, minor) = (sys::major(device), sys::minor(device));
                Kind::Special(match t {
                    t if t.is_fifo() => Special::Fifo,
                    t if t.is_char_device() => Special::Character(major, minor),
                    _ => Special::Block(major, minor),
                })
            }
            t => {
                let what = special(t).unwrap_or("nothing that can be sent");
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
            false => Attributes::new(),
        };
        let is_file = matches!(kind, Kind::File(_));
        let is_directory = kind == Kind::Directory;
        if is_file && meta.nlink() > 1 {
            self.links.insert((meta.dev(), meta.ino()), number);
        }
        self.starts.push(self.manifest.len());
        self.versions.push(is_file.then(|| Version::of(meta)));
        let entry = Entry {
            parent,
            name: name.into(),
            kind,
            mode: (meta.mode() & 0o7777) as u16,
            mtime: meta.mtime(),
            mtime_ns: meta.mtime_nsec().clamp(0, 999_999_999) as u32,
            owner: (meta.uid(), meta.gid()),
            attributes,
        };
        self.manifest.add(entry).map_err(|why| {
            let why = match why.0 {
                "its files are too long" => format!(
                    "with {} the set has more than {LEN_MAX} bytes (32 TiB), the most that can be \
                     sent",
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

    /// Adds what a directory holds, in the order of the names.
    fn add_all(&mut self, path: &Path, number: u32) -> Result<(), Error> {
        let error = |path: &Path, e| Error::io(format!("reading {}", shown(path)), e);
        let entries = std::fs::read_dir(path).map_err(|e| error(path, e))?;
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
            match below.symlink_metadata() {
                Ok(meta) => self.add(&below, name.as_bytes(), number, &meta)?,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {} // deleted just now
                Err(e) => return Err(error(&below, e)),
            }
        }
        Ok(())
    }
}

impl SourceSet {
    /// Lists `sources` and what lies below them, as far as `selection` says. A
    /// symbolic link among `sources` is followed, others are sent as links. `tell` gets messages
    /// for the user.
    pub fn list(
        sources: &[PathBuf],
        selection: &Selection,
        tell: &mut dyn FnMut(String),
    ) -> Result<SourceSet, Error> {
        let mut listing = Listing {
            manifest: Manifest::default(),
            versions: Vec::new(),
            starts: Vec::new(),
            links: HashMap::new(),
            selection,
            tell,
        };
        let mut tops = Vec::new();
        for source in sources {
            let error = |e| Error::io(format!("opening {}", source.display()), e);
            let meta = std::fs::metadata(source).map_err(error)?;
            if let Some(what) = special(meta.file_type()) {
                return Err(Error::Usage(format!(
                    "{} is {what}, and only files and directories can be sent: send what it \
                     yields as a stream, by standard input",
                    source.display()
                )));
            }
            let name = top_name(source, listing.tell).map_err(error)?;
            tops.push((listing.manifest.entries().len() as u32, source.clone()));
            listing.add(source, name.as_bytes(), TOP, &meta)?;
        }
        let challenge = Challenge::new(random_key()?, listing.manifest.len());
        Ok(SourceSet {
            sampled: Mutex::new(Sampled {
                samples: vec![0; challenge.bytes()],
                challenge,
            }),
            manifest: listing.manifest,
            tops,
            versions: listing.versions,
            starts: listing.starts,
            stream: None,
        })
    }

    /// A set of one file with this name, of the bytes that `input` yields from now on.
    pub fn stream(input: File, name: &str) -> Result<SourceSet, Error> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let mut manifest = Manifest::default();
        let entry = Entry {
            parent: TOP,
            name: name.as_bytes().into(),
            kind: Kind::Stream,
            mode: 0o644,
            mtime: now.as_secs() as i64,
            mtime_ns: now.subsec_nanos(),
            owner: (user.as_raw(), group.as_raw()),
            attributes: Attributes::new(),
        };
        let named = manifest.add(entry);
        named.map_err(|_| Error::Usage(format!("{name:?} is no name for a file")))?;
        Ok(SourceSet {
            manifest,
            tops: vec![(0, PathBuf::from("standard input"))],
            versions: vec![None],
            starts: vec![0],
            sampled: Mutex::new(Sampled {
                challenge: Challenge::of_stream(random_key()?),
                samples: Vec::new(),
            }),
            stream: Some(Stream {
                input: Mutex::new(Some(input)),
                len: OnceLock::new(),
            }),
        })
    }

    /// Whether it is a stream, which is read once, as it comes.
    pub fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Bytes of all files together; `None`: a stream that has not ended.
    pub fn known_len(&self) -> Option<u64> {
        match &self.stream {
            Some(stream) => stream.len.get().copied(),
            None => Some(self.manifest.len()),
        }
    }

    /// The digest of the manifest in hexadecimal, by which a receiver knows the set when it comes
    /// again; empty for a stream, which does not.
    pub fn digest(&self) -> String {
        match self.stream {
            Some(_) => String::new(),
            None => self.manifest.digest().to_hex().to_string(),
        }
    }

    /// Where a stream comes from: once, for its reader.
    pub(super) fn take_input(&self) -> Option<File> {
        let stream = self.stream.as_ref()?;
        stream.input.lock().unwrap_or_else(poisoned).take()
    }

    /// Notes that the stream has ended, with this length in bytes.
    pub(super) fn end_stream(&self, len: u64) {
        if let Some(stream) = &self.stream {
            self.sampled().end(len);
            let _ = stream.len.set(len);
        }
    }

    fn sampled(&self) -> MutexGuard<'_, Sampled> {
        self.sampled.lock().unwrap_or_else(poisoned)
    }

    /// The entries.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What receivers are offered: the name of the first entry at the top.
    pub fn name(&self) -> String {
        let name = self.manifest.entries().first().map(|e| &e.name[..]);
        String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
    }

    /// The key of the challenge by which receivers prove that they have the files. The sender tells
    /// it only when every file has been read.
    pub fn challenge_key(&self) -> [u8; 32] {
        self.sampled().challenge.key()
    }

    /// The secret that only a node with all files but those `failed` knows; valid once every file
    /// has been read.
    pub fn secret(&self, failed: &BTreeSet<u32>) -> Secret {
        let mut sampled = self.sampled();
        let Sampled { challenge, samples } = &mut *sampled;
        for file in failed {
            let (start, len) = (self.starts[*file as usize], self.file_len(*file));
            challenge.each_overlap(start, len, |place, _| samples[place].fill(0));
        }
        challenge.secret(samples)
    }

    /// Length of a regular file in bytes, when it was listed.
    pub fn file_len(&self, file: u32) -> u64 {
        match self.manifest.entries()[file as usize].kind {
            Kind::File(len) => len,
            _ => 0,
        }
    }

    /// The path of an entry.
    pub fn path(&self, mut entry: u32) -> PathBuf {
        let mut names = Vec::new();
        loop {
            let e = &self.manifest.entries()[entry as usize];
            if e.parent == TOP {
                break;
            }
            names.push(OsStr::from_bytes(&e.name));
            entry = e.parent;
        }
        let top = self
            .tops
            .binary_search_by_key(&entry, |(number, _)| *number);
        let mut path = top.map(|at| self.tops[at].1.clone()).unwrap_or_default();
        path.extend(names.into_iter().rev());
        path
    }

    /// Opens a file as it was listed. The error says why that cannot be done, by name.
    pub fn open(&self, file: u32) -> Result<SourceFile, String> {
        let path = self.path(file);
        let fails = |e: io::Error| format!("opening {}: {e}", shown(&path));
        let open = |flags: OFlags| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(flags.bits() as i32);
            options.open(&path)
        };
        // By now the path may lead to a device or a FIFO.
        let opened = open(OFlags::NONBLOCK | OFlags::NOCTTY)
            .or_else(|e| match e.kind() {
                // Another process holds a lease. It has to give the lease up first, and has some
                // seconds to do so.
                io::ErrorKind::WouldBlock => open(OFlags::NOCTTY),
                _ => Err(e),
            })
            .map_err(fails)?;
        let version = self.versions[file as usize].clone();
        let version = version.ok_or("an entry without bytes has no file")?;
        rustix::fs::fcntl_setfl(&opened, OFlags::empty()).map_err(|e| fails(e.into()))?;
        let meta = opened.metadata().map_err(fails)?;
        let has_holes = meta.blocks() * 512 < meta.len();
        compare(&path, Ok(meta), &version)?;
        Ok(SourceFile {
            has_holes,
            file: opened,
            version,
            path,
        })
    }

    /// Keeps the samples that lie in these bytes of a file.
    pub fn sample(&self, file: u32, offset: u64, bytes: &[u8]) {
        let start = self.starts[file as usize] + offset;
        let mut sampled = self.sampled();
        sampled.reach(start + bytes.len() as u64);
        let Sampled { challenge, samples } = &mut *sampled;
        challenge.each_overlap(start, bytes.len() as u64, |place, from| {
            let from = from as usize;
            let len = place.len();
            samples[place].copy_from_slice(&bytes[from..from + len]);
        });
    }

    /// How files were changed since they were listed, for the first one that was; `failed` files
    /// are known and do not count.
    pub fn changed(&self, failed: &BTreeSet<u32>) -> Option<String> {
        let files = self.versions.iter().enumerate();
        let files = files.filter_map(|(i, v)| v.as_ref().map(|v| (i as u32, v)));
        let mut files = files.filter(|(file, _)| !failed.contains(file));
        files.find_map(|(file, then)| {
            let path = self.path(file);
            compare(&path, std::fs::metadata(&path), then).err()
        })
    }
}

/// The name that receivers are offered for a source.
fn top_name(source: &Path, tell: &mut dyn FnMut(String)) -> io::Result<String> {
    let whole = match source.file_name() {
        Some(_) => source.to_owned(),
        None => source.canonicalize()?, // it ends in `..`, or is `.` or `/`
    };
    Ok(match whole.file_name() {
        None => "root".to_owned(),
        Some(name) => name.to_str().map(str::to_owned).unwrap_or_else(|| {
            let path = shown(source);
            tell(format!(
                "{path}'s name is not UTF-8: it is offered as 'file'"
            ));
            "file".to_owned()
        }),
    })
}

/// A file that is read.
pub struct SourceFile {
    file: File,
    /// Whether it takes less space than it has bytes.
    has_holes: bool,
    path: PathBuf,
    version: Version,
}

impl SourceFile {
    /// What begins at `offset`, before the end of the file: whether it is a hole, and its length in
    /// bytes. A file system that knows no holes has none.
    pub fn extent(&self, offset: u64) -> (bool, u64) {
        let rest = self.version.len - offset;
        if !self.has_holes {
            return (false, rest);
        }
        let seek = |from| rustix::fs::seek(&self.file, from);
        match seek(SeekFrom::Data(offset)) {
            Ok(data) if data > offset => (true, (data - offset).min(rest)),
            Err(Errno::NXIO) => (true, rest),
            Ok(_) => match seek(SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => (false, (hole - offset).min(rest)),
                _ => (false, rest),
            },
            Err(_) => (false, rest),
        }
    }

    /// Reads bytes, which must be those of the file as it was listed.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        self.file.read_exact_at(into, offset).map_err(|e| {
            let path = shown(&self.path);
            if e.kind() == io::ErrorKind::UnexpectedEof {
                let len = self.version.len;
                format!("{path} became shorter while it was being sent ({len} bytes at the start)")
            } else {
                format!("reading {path} at byte {offset}: {e}")
            }
        })?;
        self.check_version()
    }

    /// Checks that the file is as it was when it was listed; the error says what changed.
    pub fn check_version(&self) -> Result<(), String> {
        compare(&self.path, self.file.metadata(), &self.version)
    }
}

/// Compares a file with its state when it was listed.
fn compare(path: &Path, meta: io::Result<Metadata>, then: &Version) -> Result<(), String> {
    let now = Version::of(&meta.map_err(|e| format!("reading {}: {e}", shown(path)))?);
    if now == *then {
        return Ok(());
    }
    let how = match now.len {
        _ if now.inode != then.inode => "was replaced by another file",
        len if len < then.len => "became shorter",
        len if len > then.len => "became longer",
        _ if now.mtime != then.mtime => "was written to",
        // Its bytes may have changed as well, if somebody has set `mtime` back.
        _ => "was changed (written to, renamed, deleted, or its permissions)",
    };
    let lengths = match now.len == then.len {
        true => String::new(),
        false => format!(" ({} bytes at the start, {} now)", then.len, now.len),
    };
    let path = shown(path);
    Err(format!("{path} {how} while it was being sent{lengths}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::object::testing::{scratch, set_of};

    fn fifo(path: &Path) {
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }

    #[test]
    fn a_tree_is_listed_in_order_with_its_links() {
        let dir = scratch();
        let (top, odd) = (dir.join("top"), OsStr::from_bytes(b"odd\xff"));
        std::fs::create_dir_all(top.join("sub")).unwrap();
        std::fs::write(top.join("b"), "bytes").unwrap();
        std::fs::write(top.join("sub").join(odd), "").unwrap();
        std::fs::hard_link(top.join("b"), top.join("sub/again")).unwrap();
        symlink("../b", top.join("sub/soft")).unwrap();
        std::fs::write(top.join("no.tmp"), "").unwrap();
        fifo(&top.join("fifo"));
        let alone = dir.join("alone");
        std::fs::write(&alone, "1").unwrap();
        let mut told = Vec::new();
        let sources = [top.clone(), alone.clone()];
        let selection = Selection {
            exclude: vec!["*.tmp".parse().unwrap()],
            ..Selection::default()
        };
        let set = SourceSet::list(&sources, &selection, &mut |text| told.push(text)).unwrap();
        assert!(told[0].contains("fifo is a FIFO"), "{told:?}");
        let listed: Vec<(PathBuf, Kind)> = (0..)
            .zip(set.manifest().entries())
            .map(|(number, entry)| (set.path(number), entry.kind.clone()))
            .collect();
        let expected = [
            (top.clone(), Kind::Directory),
            (top.join("b"), Kind::File(5)),
            (top.join("sub"), Kind::Directory),
            (top.join("sub/again"), Kind::HardLink(1)),
            (top.join("sub").join(odd), Kind::File(0)),
            (top.join("sub/soft"), Kind::Symlink((*b"../b").into())),
            (alone, Kind::File(1)),
        ];
        assert_eq!(listed, expected);
        assert_eq!((set.name().as_str(), set.manifest().tops()), ("top", 2));
        assert_eq!((set.file_len(1), set.file_len(3)), (5, 0));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_cannot_be_sent_is_said_by_name() {
        let dir = scratch();
        let (file, special) = (dir.join("file"), dir.join("special"));
        std::fs::write(&file, "").unwrap();
        fifo(&special);
        let cases = [
            (vec![dir.join("none")], "none"),
            (vec![special], "special is a FIFO"),
            (
                vec![file.clone(), file],
                "file cannot be sent: a name is taken twice",
            ),
        ];
        for (sources, why) in cases {
            let error = SourceSet::list(&sources, &Selection::default(), &mut |_| {})
                .err()
                .unwrap();
            assert!(error.to_string().contains(why), "{error}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_file_is_opened_only_as_it_was_listed() {
        let dir = scratch();
        let (file, other) = (dir.join("file"), dir.join("other"));
        let write = |path: &Path, content: &str| std::fs::write(path, content).unwrap();
        type Change<'a> = &'a dyn Fn();
        let cases: [(&str, Change); 5] = [
            ("became shorter", &|| write(&file, "b")),
            ("became longer", &|| write(&file, "more bytes")),
            ("was replaced", &|| {
                write(&other, "bytes");
                std::fs::rename(&other, &file).unwrap();
            }),
            ("No such file", &|| std::fs::remove_file(&file).unwrap()),
            // Nobody writes to it: an open that waits would never end.
            ("was replaced", &|| {
                std::fs::remove_file(&file).unwrap();
                fifo(&file);
            }),
        ];
        for (why, change) in cases {
            let _ = std::fs::remove_file(&file);
            write(&file, "bytes");
            let set = set_of(std::slice::from_ref(&file));
            let opened = set.open(0).unwrap();
            let mut bytes = [0; 5];
            opened.read(0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"bytes");
            assert_eq!(set.changed(&BTreeSet::new()), None);
            change();
            let error = set.open(0).err().unwrap();
            assert!(error.contains(why) && error.contains("file"), "{error}");
            assert!(set.changed(&BTreeSet::new()).is_some());
            assert_eq!(set.changed(&BTreeSet::from([0])), None);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
