//! What the entries of a feed held when they were received, so that an entry which becomes a file
//! or a directory takes the place of the other.
//!
//! A file in the feed's directory lists the paths of each directory that was received: all that the
//! feed has ever put there. What is not on that list is somebody else's, and is never deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fabricast::object::Received;
use fabricast::object::manifest::{Kind, Manifest, TOP};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Most bytes of the paths that a transfer brings, and of a list that is read. What is not listed
/// counts as somebody else's.
const BYTES_MAX: usize = 64 << 20;

/// What tells one file or directory from another that takes its place. The number of the device
/// does not, since it may be another one when the host or a network file system was started again.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Identity {
    inode: u64,
    /// When it was made, where the file system knows that: inodes are used again.
    made: Option<SystemTime>,
}

impl Identity {
    /// What tells the file or directory with this metadata from others.
    pub fn of(meta: &Metadata) -> Identity {
        Identity {
            inode: meta.ino(),
            made: meta.created().ok(),
        }
    }

    /// Removes a file, or a directory with all that it holds, if it is still the one of this
    /// identity. Follows no link.
    pub fn remove(self, path: &Path) -> io::Result<()> {
        let meta = path.symlink_metadata()?;
        if Identity::of(&meta) != self {
            return Err(io::Error::other("it is not what was received"));
        }
        match meta.is_dir() {
            true => fs::remove_dir_all(path),
            false => fs::remove_file(path),
        }
    }
}

/// Opens a file of ours, which is no link.
pub fn opened(options: &mut OpenOptions, folder: &Path, name: &str) -> io::Result<File> {
    let no_link = OFlags::NOFOLLOW.bits() as i32;
    options
        .custom_flags(no_link)
        .mode(0o600)
        .open(folder.join(name))
}

/// Name of the list of a directory.
fn list_name(entry: &str) -> String {
    let hash = blake3::hash(entry.as_bytes()).to_hex();
    format!(".fabricast-feed.{}.paths", &hash[..16])
}

/// The paths that each directory at the top of a set holds, relative to it. Those that would have
/// more than [`BYTES_MAX`] together are left out: a lying feed could otherwise fill the memory.
pub fn paths(set: &Manifest) -> BTreeMap<OsString, BTreeSet<PathBuf>> {
    paths_within(set, BYTES_MAX)
}

fn paths_within(set: &Manifest, bytes_max: usize) -> BTreeMap<OsString, BTreeSet<PathBuf>> {
    let mut all = BTreeMap::<OsString, BTreeSet<PathBuf>>::new();
    // For each directory: the number of its top, and its path below that. `None`: it has no paths.
    let mut places = Vec::<Option<(usize, PathBuf)>>::new();
    let mut bytes = 0;
    let name = |number: usize| OsStr::from_bytes(&set.entries()[number].name);
    for (number, entry) in set.entries().iter().enumerate() {
        let is_directory = entry.kind == Kind::Directory;
        let place = match entry.parent {
            TOP if is_directory => {
                all.insert(name(number).to_owned(), BTreeSet::new());
                Some((number, PathBuf::new()))
            }
            TOP => None,
            parent => match &places[parent as usize] {
                Some((top, path)) => {
                    let path = path.join(name(number));
                    bytes += path.as_os_str().len() + 1;
                    if bytes > bytes_max {
                        all.remove(name(*top));
                    } else if let Some(paths) = all.get_mut(name(*top)) {
                        paths.insert(path.clone());
                    }
                    (bytes <= bytes_max && is_directory).then_some((*top, path))
                }
                None => None,
            },
        };
        places.push(place);
    }
    all
}

/// The list of a directory. `None`: there is none, or it makes no sense.
fn read(folder: &Path, entry: &str) -> Option<BTreeSet<PathBuf>> {
    let file = opened(OpenOptions::new().read(true), folder, &list_name(entry)).ok()?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
    // Each ends in a zero byte. One that is cut off counts for nothing.
    let end = bytes.iter().rposition(|byte| *byte == 0)?;
    let paths = bytes[..end].split(|byte| *byte == 0);
    Some(
        paths
            .map(|path| OsString::from_vec(path.to_owned()).into())
            .collect(),
    )
}

/// Adds the paths that a directory has received to its list. Those that were there before and have
/// gone since are left out.
pub fn add(folder: &Path, entry: &str, paths: &BTreeSet<PathBuf>) -> io::Result<()> {
    let mut all = read(folder, entry).unwrap_or_default();
    let root = folder.join(entry);
    all.retain(|path| !paths.contains(path) && root.join(path).symlink_metadata().is_ok());
    let mut bytes = Vec::new();
    for path in paths.iter().chain(&all) {
        bytes.extend(path.as_os_str().as_bytes());
        bytes.push(0);
    }
    let name = list_name(entry);
    let partial = format!("{name}.partial");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    let mut file = opened(&mut options, folder, &partial)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    fs::rename(folder.join(partial), folder.join(name))
}

/// Removes the list of an entry, which is no directory any more.
pub fn remove(folder: &Path, entry: &str) {
    // Mostly there is none. One that stays is of no use to anybody.
    let _ = fs::remove_file(folder.join(list_name(entry)));
}

/// What was received of some entries, for a transfer that may replace them.
#[derive(Debug)]
pub struct Holdings {
    /// The feed's directory.
    pub folder: PathBuf,
    /// What had each name when it was received.
    pub here: HashMap<String, Identity>,
}

impl Received for Holdings {
    fn paths(&self, name: &OsStr) -> Option<BTreeSet<PathBuf>> {
        let name = name.to_str()?;
        let here = self.here.get(name)?;
        let there = self.folder.join(name).symlink_metadata().ok()?;
        let is_it = Identity::of(&there) == *here;
        is_it.then(|| match there.is_dir() {
            true => read(&self.folder, name).unwrap_or_default(),
            false => BTreeSet::new(),
        })
    }
}

#[cfg(test)]
pub mod testing {
    use std::fs;
    use std::path::PathBuf;

    /// A directory that is removed when the test ends.
    pub struct Scratch(pub PathBuf);

    impl Scratch {
        pub fn new(name: &str) -> Scratch {
            let name = format!("fabricast-record-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use fabricast::object::manifest::Entry;

    use super::testing::Scratch;
    use super::*;

    fn set(paths: &[&str]) -> BTreeSet<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    /// However long the paths of a set are, only so many bytes of them are kept.
    #[test]
    fn the_paths_of_a_set_are_bounded() {
        let mut manifest = Manifest::default();
        let entry = |parent, name: &str, kind| Entry {
            parent,
            name: name.as_bytes().into(),
            kind,
            mode: 0o755,
            mtime: 0,
            mtime_ns: 0,
            owner: (0, 0),
            attributes: Default::default(),
        };
        for (parent, name, kind) in [
            (TOP, "d", Kind::Directory),
            (0, "deep", Kind::Directory),
            (1, "f", Kind::File(1)),
            (TOP, "file", Kind::File(1)),
            (TOP, "e", Kind::Directory),
            (4, "g", Kind::File(1)),
        ] {
            manifest.add(entry(parent, name, kind)).unwrap();
        }
        let d = (OsString::from("d"), set(&["deep", "deep/f"]));
        let e = (OsString::from("e"), set(&["g"]));
        assert_eq!(paths(&manifest), [d.clone(), e].into());
        let one = paths_within(&manifest, "deep deep/f ".len());
        assert_eq!(one, [d].into());
        assert_eq!(paths_within(&manifest, 5), BTreeMap::new());
    }

    /// What has come in earlier versions and is still there belongs to the feed, too. A list that
    /// was cut off says less, and what is not there is not what was received.
    #[test]
    fn a_list_has_what_came_and_is_there() {
        let dir = Scratch::new("holdings");
        fs::create_dir_all(dir.0.join("d/deep")).unwrap();
        for name in ["a", "b", "deep/c"] {
            fs::write(dir.0.join("d").join(name), "").unwrap();
        }
        add(&dir.0, "d", &set(&["a", "gone", "deep", "deep/c"])).unwrap();
        add(&dir.0, "d", &set(&["b"])).unwrap();
        let all = set(&["a", "b", "deep", "deep/c"]);
        assert_eq!(read(&dir.0, "d"), Some(all.clone()));
        let there = dir.0.join("d").symlink_metadata().unwrap();
        let mut holdings = Holdings {
            folder: dir.0.clone(),
            here: [("d".to_owned(), Identity::of(&there))].into(),
        };
        assert_eq!(holdings.paths("d".as_ref()), Some(all));
        assert_eq!(holdings.paths("e".as_ref()), None);
        let list = dir.0.join(list_name("d"));
        let bytes = fs::read(&list).unwrap();
        fs::write(&list, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read(&dir.0, "d").unwrap().len(), 3);
        remove(&dir.0, "d");
        assert_eq!(holdings.paths("d".as_ref()), Some(set(&[])));
        // Another one has its place.
        let other = dir.0.join("d/deep").symlink_metadata().unwrap();
        holdings.here.insert("d".into(), Identity::of(&other));
        assert_eq!(holdings.paths("d".as_ref()), None);
    }
}
