//! Names of one directory that its file system takes for one name, since it does not tell upper
//! from lower case (spec 5.4).
//!
//! Without this check, one of two such files would replace the other. The file system itself is
//! asked, in an empty directory beside the names: the numbers of inodes do not tell, because some
//! FUSE file systems give each spelling of a name a number of its own, and hard links share one.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::beneath::open_directory;
use super::surplus::delete;
use super::{Destination, Tree, disk};
use crate::error::Error;
use crate::object::file_name::{folded_hash, partial_name, with_partial_name};
use crate::object::manifest::{Entry, Kind, TOP};
use crate::text::shown;

/// The numbers of names that differ from names of the same directory in case alone, one group after
/// the other. `names`: each with the number of its directory. A group may also come of two equal
/// hashes: the file system decides.
fn twins<'a>(names: impl Iterator<Item = (u32, &'a [u8])>) -> Vec<Vec<u32>> {
    let hashes = names.map(|(parent, name)| folded_hash(parent, name));
    let mut hashes: Vec<(u64, u32)> = hashes.zip(0..).collect();
    hashes.sort_unstable();
    let groups = hashes.chunk_by(|one, next| one.0 == next.0);
    let groups = groups.filter(|group| group.len() > 1);
    groups
        .map(|group| group.iter().map(|(_, entry)| *entry).collect())
        .collect()
}

fn twins_of(entries: &[Entry]) -> Vec<Vec<u32>> {
    twins(entries.iter().map(|entry| (entry.parent, &*entry.name)))
}

/// Finds the names that a directory's file system takes for other names of this list, since it does
/// not tell upper from lower case. Returns their numbers in the list, one group after the other.
/// For most lists there are no names that could be, and the file system is not asked. Where nobody
/// may write in the directory, there are none.
///
/// # Errors
/// The directory cannot be used, or its file system is full.
pub fn folded_names(directory: &Path, names: &[&str]) -> Result<Vec<Vec<u32>>, Error> {
    let mut folded = Vec::new();
    let groups = twins(names.iter().map(|name| (TOP, name.as_bytes())));
    if groups.is_empty() {
        return Ok(folded);
    }
    let within = Destination::new(directory.to_owned()).open()?;
    let Some(probe) = Probe::new(Arc::new(within), TOP, None)? else {
        return Ok(folded);
    };
    for group in groups {
        let names = group.iter().map(|n| Path::new(names[*n as usize]));
        let one = probe.one_name(&names.collect::<Vec<_>>()).map_err(|e| {
            let what = format!("looking for names in {}", shown(directory));
            Error::io(what, e)
        })?;
        if one.is_some() {
            folded.push(group);
        }
    }
    Ok(folded)
}

/// An empty directory, which is deleted when this value is dropped.
struct Probe {
    /// The number of the directory that it lies in.
    parent: u32,
    within: Arc<OwnedFd>,
    name: PathBuf,
    opened: OwnedFd,
}

impl Probe {
    /// Makes one in the directory `within`, which has the number `parent`. `id`: that of the
    /// journal, which tells what to remove if this process is killed. `None`: nobody may make
    /// directories there, so that nothing can get a name there either.
    fn new(within: Arc<OwnedFd>, parent: u32, id: Option<&str>) -> Result<Option<Probe>, Error> {
        let name = match id {
            Some(id) => format!(".fabricast-{id}.names"),
            None => ".fabricast-names".to_owned(),
        };
        let made = with_partial_name(name.as_ref(), partial_name, |name| {
            Ok(disk::make_directory(&within, name)?)
        });
        let name = match made {
            Ok(((), name)) => name,
            Err(Error::Io { source, .. })
                if matches!(
                    source.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let opened = open_directory(&within, &name).map_err(|e| {
            let _ = disk::unlink(&within, &name, true);
            Error::io(format!("opening {}", shown(&name)), e)
        })?;
        Ok(Some(Probe {
            parent,
            within,
            name,
            opened,
        }))
    }

    /// The first two of these names that are one name to the file system.
    fn one_name<'a>(&self, names: &[&'a Path]) -> Result<Option<(&'a Path, &'a Path)>, Errno> {
        let remove = |name: &Path| disk::unlink(&self.opened, name, false);
        let mut made = Vec::new();
        for &name in names {
            match disk::create(&self.opened, Some(name), disk::OWN) {
                Ok(_) => made.push(name),
                Err(Errno::EXIST) => {
                    // The other name goes with this one. Only the file system itself tells that:
                    // names are cached.
                    remove(name)?;
                    let other = made.into_iter().find(|other| remove(other).is_err());
                    return Ok(other.map(|other| (other, name)));
                }
                // The file system takes no such name: the entry itself fails, and says why.
                Err(_) => {}
            }
        }
        made.into_iter().try_for_each(remove)?;
        Ok(None)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = delete(&self.within, &self.name);
    }
}

impl Tree {
    /// Checks that no two entries have names that are one name here. For most sets there are no
    /// names that could be, and the file system is not asked. To be called before anything of the
    /// entries so far gets its name.
    pub(super) fn check_folding(&mut self) -> Result<(), Error> {
        let count = self.manifest.entries().len();
        if self.folding_checked == count {
            return Ok(());
        }
        let mut last = None::<Probe>;
        for twins in twins_of(self.manifest.entries()) {
            let Some(&first) = twins.first() else {
                continue;
            };
            let parent = self.there_before(self.entry(first).parent);
            let probe = match last.take().filter(|probe| probe.parent == parent) {
                Some(probe) => probe,
                None => match self.probe(parent)? {
                    Some(probe) => probe,
                    None => continue,
                },
            };
            let names = twins.iter().filter(|twin| self.is_made(**twin));
            let names = names.map(|twin| Path::new(OsStr::from_bytes(&self.entry(*twin).name)));
            let one = probe.one_name(&names.collect::<Vec<_>>());
            let one = one.map_err(|e| self.error(first, "looking for names like", e))?;
            if let Some((one, other)) = one {
                let place = match self.entry(first).parent {
                    TOP => self.destination.root.clone(),
                    directory => self.path(directory),
                };
                return Err(Error::Usage(format!(
                    "{} and {} are two names at the sender and one here: the file system at {} \
                     does not tell upper from lower case. Rename one of them at the sender, or \
                     receive into a directory on another file system",
                    shown(one),
                    shown(other),
                    shown(&place)
                )));
            }
            last = Some(probe);
        }
        self.folding_checked = count;
        Ok(())
    }

    /// Whether this receiver makes an entry.
    fn is_made(&self, entry: u32) -> bool {
        !matches!(self.entry(entry).kind, Kind::Special(_)) || self.makes_special()
    }

    /// The directory that a directory of the set lies in, or is, which was there before the set.
    /// What a receiver makes takes after that.
    fn there_before(&self, directory: u32) -> u32 {
        let mut at = directory;
        while at != TOP {
            let is_new = self.made.contains(&at) || self.staged_top(at).is_some();
            if !is_new && open_directory(&*self.root, &self.relative(at)).is_ok() {
                break;
            }
            at = self.entry(at).parent;
        }
        at
    }

    /// Makes an empty directory in a directory of the set, as [`Probe::new`] does.
    fn probe(&self, parent: u32) -> Result<Option<Probe>, Error> {
        let within = match parent {
            TOP => self.root.clone(),
            parent => Arc::new(self.beneath(parent, OFlags::RDONLY | OFlags::DIRECTORY)?),
        };
        Probe::new(within, parent, self.id.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_equal_but_for_case_are_found_among_siblings() {
        let entry = |parent, name: &[u8], kind| Entry {
            parent,
            name: name.into(),
            kind,
            mode: 0,
            mtime: 0,
            mtime_ns: 0,
            owner: (0, 0),
            attributes: Default::default(),
        };
        let names: [&[u8]; 9] = [
            b"A",
            b"b",
            "STRASSE Ä".as_bytes(),
            b"\xffX",
            b"a",
            b"\xffx",
            "straße ä".as_bytes(),
            b"\xffy",
            "ä".as_bytes(),
        ];
        let mut entries = vec![entry(TOP, b"a", Kind::Directory)];
        entries.extend(names.map(|name| entry(0, name, Kind::File(1))));
        let mut found = twins_of(&entries);
        found.sort();
        assert_eq!(found, [[1, 5], [3, 7], [4, 6]]);
        entries.truncate(4);
        assert_eq!(twins_of(&entries), Vec::<Vec<u32>>::new());
    }
}
