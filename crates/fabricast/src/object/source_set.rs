//! The files that are sent: their list, and reading them, never mapped.
//!
//! The list is made once, before any receiver comes. Each file is opened when it is read, and must
//! then be what it was when it was listed (device, inode, length, times). It is compared again
//! after each read. Otherwise a file would be sent that never existed, half old and half new.

mod identical;
mod listing;
mod source_file;
mod version;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{self as sys, Access, OFlags};
use rustix::io::Errno;

use super::manifest::{Attributes, Entry, Kind, Manifest, TOP};
use super::pack::Piece;
use super::{Challenge, Secret, poisoned};
use crate::error::Error;
use crate::text::shown;

pub use listing::Selection;
use listing::{Listing, Looking, special};
pub use source_file::SourceFile;
pub use version::Version;
use version::compare;

/// Why a file could not be opened.
#[derive(Debug)]
pub struct Unopened {
    /// Why, in words, with the file's name.
    pub reason: String,
    /// Whether this process, or the system, has as many open files as it may have.
    pub at_limit: bool,
}

impl From<String> for Unopened {
    fn from(reason: String) -> Unopened {
        let at_limit = false;
        Unopened { reason, at_limit }
    }
}

impl From<Unopened> for String {
    fn from(unopened: Unopened) -> String {
        unopened.reason
    }
}

/// Most files and directories that cannot be read whose names the user is told at once.
const UNREADABLE_TOLD: usize = 10;

/// The permissions of a file that its owner, its group and all others may read.
const READ_ALL: u16 = 0o444;

/// The files and directories that are sent, or a stream.
pub struct SourceSet {
    manifest: Manifest,
    /// The number of each entry at the top, in ascending order, and its path.
    tops: Vec<(u32, PathBuf)>,
    /// State of each regular file when it was listed; other entries have none.
    versions: Vec<Option<Version>>,
    /// Where each entry's bytes begin if all files lie one behind the other.
    starts: Vec<u64>,
    /// The copies of each file that has some.
    copies: BTreeMap<u32, Vec<u32>>,
    /// Directories that this process may not read: what they hold is not in the set.
    closed: BTreeSet<u32>,
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

impl SourceSet {
    /// Lists `sources` and what lies below them, as far as `selection` says. A symbolic link among
    /// `sources` is followed, others are sent as links. A directory that this process may not read
    /// is listed without what it holds. `tell` gets messages for the user.
    pub fn list(
        sources: &[PathBuf],
        selection: &Selection,
        tell: &mut dyn FnMut(String),
    ) -> Result<SourceSet, Error> {
        let mut listing = Listing::new(selection, tell);
        let mut tops = Vec::new();
        for source in sources {
            let error = |e| Error::io(format!("opening {}", source.display()), e);
            let there = sys::stat(source).map_err(|e| error(e.into()))?;
            if let Some(what) = special(&there) {
                return Err(Error::Usage(format!(
                    "{} is {what}, and only files and directories can be sent: send what it \
                     yields as a stream, by standard input",
                    source.display()
                )));
            }
            let name = top_name(source, listing.tell).map_err(error)?;
            tops.push((listing.manifest.entries().len() as u32, source.clone()));
            listing.add(source, name.as_bytes(), TOP, &there)?;
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
            copies: BTreeMap::new(),
            closed: listing.closed,
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
            attributes: Attributes::default(),
        };
        let named = manifest.add(entry);
        named.map_err(|_| Error::Usage(format!("{name:?} is no name for a file")))?;
        Ok(SourceSet {
            manifest,
            tops: vec![(0, PathBuf::from("standard input"))],
            versions: vec![None],
            starts: vec![0],
            copies: BTreeMap::new(),
            closed: BTreeSet::new(),
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
        let sampled = self.sampled();
        let mut samples = sampled.samples.clone(); // receivers may lack different files
        for file in failed {
            let (start, len) = (self.starts[*file as usize], self.file_len(*file));
            let zero = |place: std::ops::Range<usize>, _| samples[place].fill(0);
            sampled.challenge.each_overlap(start, len, zero);
        }
        sampled.challenge.secret(&samples)
    }

    /// Length of a regular file in bytes, when it was listed.
    pub fn file_len(&self, file: u32) -> u64 {
        match self.manifest.entries()[file as usize].kind {
            Kind::File(len) => len,
            _ => 0,
        }
    }

    /// Bytes of all files but these. `None`: a stream that has not ended.
    pub fn len_without(&self, failed: &BTreeSet<u32>) -> Option<u64> {
        let unsent: u64 = failed.iter().map(|file| self.file_len(*file)).sum();
        self.known_len().map(|len| len.saturating_sub(unsent))
    }

    /// Whether this process may not read a directory, so that what it holds is not in the set.
    pub(super) fn is_closed(&self, directory: u32) -> bool {
        self.closed.contains(&directory)
    }

    /// Paths of files and directories that this process may not read. The system is not asked about
    /// files that everybody may read by their listed modes. Such a file can still fail when it is
    /// opened: by an access control list, by a security module, at a server that believes no root,
    /// or since its mode has changed.
    pub fn unreadable(&self) -> impl Iterator<Item = PathBuf> {
        self.unreadable_entries().map(|number| self.path(number))
    }

    fn unreadable_entries(&self) -> impl Iterator<Item = u32> {
        // With the rights that count when a file is opened, capabilities among them.
        self.unreadable_by(|path: &Path| {
            sys::accessat(sys::CWD, path, Access::READ_OK, sys::AtFlags::EACCESS)
        })
    }

    /// Numbers of the entries that this process may not read. `access`: whether it may read a file.
    fn unreadable_by(
        &self,
        access: impl Fn(&Path) -> Result<(), Errno>,
    ) -> impl Iterator<Item = u32> {
        let entries = (0..).zip(self.manifest.entries());
        let unreadable = entries.filter(move |(number, entry)| match entry.kind {
            Kind::File(_) if entry.mode & READ_ALL == READ_ALL => false,
            Kind::File(_) => access(&self.path(*number)) == Err(Errno::ACCESS),
            _ => self.is_closed(*number),
        });
        unreadable.map(|(number, _)| number)
    }

    /// Tells of files and directories that this process may not read ([`SourceSet::unreadable`]).
    /// Nobody gets such a file, nor what such a directory holds.
    ///
    /// # Errors
    /// It may read none of the files; or there are none, and it may read none of the sources.
    pub fn check_readable(&self, tell: &mut dyn FnMut(String)) -> Result<(), Error> {
        let (mut count, mut files) = (0, 0);
        for number in self.unreadable_entries() {
            count += 1;
            let is_closed = self.is_closed(number);
            files += usize::from(!is_closed);
            if count <= UNREADABLE_TOLD {
                let path = self.path(number);
                let what = if is_closed { "what it holds" } else { "it" };
                tell(format!(
                    "{} cannot be read, and {what} is not sent",
                    shown(&path)
                ));
            }
        }
        if count > UNREADABLE_TOLD {
            let more = count - UNREADABLE_TOLD;
            tell(format!(
                "{more} more files and directories cannot be read, and are not sent"
            ));
        }
        let is_left = match self.manifest.files() {
            0 => self.tops.iter().any(|(top, _)| !self.is_closed(*top)),
            all => files < all,
        };
        match is_left || count == 0 {
            true => Ok(()),
            false => Err(Error::io("reading the sources", Errno::ACCESS)),
        }
    }

    /// Whether the set has files, and all of them are among the entries `failed`.
    pub fn is_lost(&self, failed: &BTreeSet<u32>) -> bool {
        let files = failed.len() - failed.intersection(&self.closed).count();
        files > 0 && files >= self.manifest.files()
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

    /// The piece that says that a file cannot be read any more, or that this process may not read a
    /// directory.
    pub fn failure(&self, file: u32) -> Piece {
        let name = String::from_utf8_lossy(&self.manifest.entries()[file as usize].name);
        let reason = match self.is_closed(file) {
            true => format!("the sender may not read the directory {name}"),
            false => format!("the sender cannot read {name} any more, or it changed"),
        };
        Piece::Failed { file, reason }
    }

    /// Opens a file as it was listed. The error says why that cannot be done, by name.
    pub fn open(&self, file: u32) -> Result<SourceFile, Unopened> {
        let path = self.path(file);
        let fails = |e: io::Error| {
            let errno = e.raw_os_error().map(Errno::from_raw_os_error);
            let at_limit = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
            let hint = match at_limit {
                true => ": raise the limit of open files (ulimit -n)",
                false => "",
            };
            Unopened {
                reason: format!("opening {}: {e}{hint}", shown(&path)),
                at_limit,
            }
        };
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
        let version = version.ok_or_else(|| "an entry without bytes has no file".to_owned())?;
        rustix::fs::fcntl_setfl(&opened, OFlags::empty()).map_err(|e| fails(e.into()))?;
        let there = sys::fstat(&opened).map_err(|e| fails(e.into()))?;
        let has_holes = there.st_blocks * 512 < there.st_size;
        compare(&path, Ok(there), &version)?;
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
        let mut looking = Looking::default();
        for (file, version) in (0..).zip(&self.versions) {
            let Some(then) = version.as_ref().filter(|_| !failed.contains(&file)) else {
                continue;
            };
            let entry = &self.manifest.entries()[file as usize];
            let now = match entry.parent {
                TOP => sys::stat(self.path(file)),
                parent => looking.at(parent, || self.path(parent), &entry.name),
            };
            if now.map(|now| Version::of(&now)).as_ref() == Ok(then) {
                continue;
            }
            if let Err(how) = compare(&self.path(file), now, then) {
                return Some(how);
            }
        }
        None
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

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

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
                "file cannot be sent: another source has this name",
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

    /// A set may have 100 000 files: only those that not everybody may read are asked about.
    #[test]
    fn the_system_is_asked_about_files_that_not_everybody_may_read() {
        let dir = scratch();
        for mode in [0o444, 0o755, 0o640, 0o604, 0o244, 0o000] {
            let path = dir.join(format!("{mode:03o}"));
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let set = set_of(std::slice::from_ref(&dir));
        let asked = Mutex::new(Vec::new());
        let refused = set.unreadable_by(|path| {
            asked.lock().unwrap().push(path.to_owned());
            Err(Errno::ACCESS)
        });
        let refused: Vec<PathBuf> = refused.map(|number| set.path(number)).collect();
        let expected = ["000", "244", "604", "640"].map(|name| dir.join(name));
        assert_eq!(refused, expected);
        assert_eq!(*asked.lock().unwrap(), expected);
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
            let error = set.open(0).err().unwrap().reason;
            assert!(error.contains(why) && error.contains("file"), "{error}");
            assert!(set.changed(&BTreeSet::new()).is_some());
            assert_eq!(set.changed(&BTreeSet::from([0])), None);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_changed_file_is_found_in_any_directory() {
        let dir = scratch();
        let paths = ["a/1", "a/b/2", "a/3", "c/4"].map(|name| dir.join("top").join(name));
        let write = |path: &Path, content: &str| std::fs::write(path, content).unwrap();
        let changed = |how: &dyn Fn(&Path), file: &Path| {
            for path in &paths {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                write(path, "bytes");
            }
            let set = set_of(&[dir.join("top")]);
            assert_eq!(set.changed(&BTreeSet::new()), None);
            how(file);
            set.changed(&BTreeSet::new()).unwrap()
        };
        for file in &paths {
            let why = changed(&|file| write(file, "other bytes"), file);
            assert!(why.contains(&*file.to_string_lossy()), "{why}");
        }
        let why = changed(&|file| std::fs::remove_file(file).unwrap(), &paths[2]);
        assert!(why.contains("a/3: No such file"), "{why}");
        let remove = |file: &Path| std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
        let why = changed(&remove, &paths[3]);
        assert!(why.contains("c/4: No such file"), "{why}");
        std::fs::remove_dir_all(dir).unwrap();
    }

    /// What a receiver lacks makes no difference to what the others have to prove.
    #[test]
    fn a_secret_without_a_file_leaves_the_others_as_they_were() {
        let dir = scratch();
        for name in ["a", "b"] {
            std::fs::write(dir.join(name), format!("bytes of {name}").repeat(1000)).unwrap();
        }
        let set = set_of(std::slice::from_ref(&dir));
        crate::object::testing::packs(&set); // the samples are taken when the files are read
        let proof = |failed: &[u32]| set.secret(&failed.iter().copied().collect()).proof(1);
        let proofs = [proof(&[]), proof(&[1]), proof(&[2])];
        assert!(proofs[0] != proofs[1] && proofs[1] != proofs[2]);
        assert_eq!([proof(&[]), proof(&[1]), proof(&[2])], proofs);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
