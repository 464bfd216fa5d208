//! What receivers have left that were interrupted, and do not go on.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as sys, Mode, OFlags};

use super::beneath::open_directory;
use super::journal::{Journal, Record, is_own};
use super::surplus::names;
use super::{disk, relative};
use crate::object::manifest::{Kind, Manifest};

/// Removes the partial files of the journal `id` from the directories of its set beneath `root`. A
/// directory that is not there, and one that a link leads to, are left alone, and so is what is
/// another user's. `top`: the name of the only entry at the top, if its user has chosen one.
pub(super) fn remove_partials(root: &OwnedFd, id: &str, set: &Manifest, top: Option<&OsStr>) {
    let is_partial = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        name.starts_with(format!(".fabricast-{id}.").as_bytes()) && name.ends_with(b".partial")
    };
    for (number, entry) in (0..).zip(set.entries()) {
        if entry.kind != Kind::Directory {
            continue;
        }
        let Ok(directory) = open_directory(root, &relative(set, top, number)) else {
            continue;
        };
        let listed = names(&directory).unwrap_or_default();
        for name in listed.iter().filter(|name| is_partial(name)) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = sys::openat(&directory, &**name, flags, Mode::empty());
            if opened.is_ok_and(|file| is_own(&file.into())) {
                disk::remove(&directory, name.as_ref());
            }
        }
    }
}

/// Removes what receivers have left in a directory that were interrupted: their journals, the files
/// and directories that have hidden names until they are complete, and such files within the
/// directories of their sets. What a receiver that runs has there stays, and so does what is
/// another user's. Returns the number of journals.
///
/// # Errors
/// The directory cannot be read, or something in it cannot be removed. Everything else is removed
/// then; the journal of what is left stays.
pub fn remove_leftovers(directory: &Path) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = Arc::new(sys::open(directory, flags, Mode::empty())?);
    let names = fs::read_dir(directory)?.flatten().map(|e| e.file_name());
    let names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
    let id = |name: &String| {
        let id = name.strip_prefix(".fabricast-")?.strip_suffix(".journal")?;
        Some(id.to_owned())
    };
    let (mut removed, mut failed) = (0, None);
    for id in names.iter().filter_map(id) {
        let Some(mut journal) = Journal::open(&root, id.clone()) else {
            continue;
        };
        let mut set = Manifest::default();
        while let Some(Record::Page(page)) = journal.next() {
            if set.add_page(&page).is_err() {
                break;
            }
        }
        remove_partials(&root, &id, &set, None);
        let partial = format!(".fabricast-{id}.");
        let is_partial = |name: &&String| name.starts_with(&partial) && name.ends_with(".partial");
        let remove = |name: &String| {
            let path = directory.join(name);
            match path.symlink_metadata() {
                Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
                _ => fs::remove_file(path),
            }
        };
        let mut is_clean = true;
        for name in names.iter().filter(is_partial) {
            if let Err(error) = remove(name) {
                (is_clean, failed) = (false, Some(error));
            }
        }
        if is_clean {
            journal.remove();
            removed += 1;
        }
    }
    failed.map_or(Ok(removed), Err)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::object::testing::scratch;

    #[test]
    fn what_receivers_have_left_is_removed_unless_one_runs() {
        let dir = scratch();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let root = Arc::new(sys::open(&dir, flags, Mode::empty()).unwrap());
        let runs = Journal::open(&root, "x".into()).unwrap();
        fs::write(dir.join(".fabricast-y.journal"), "").unwrap();
        fs::create_dir_all(dir.join(".fabricast-y.0.partial/deep")).unwrap();
        fs::create_dir(dir.join("outside")).unwrap();
        symlink("../outside", dir.join(".fabricast-y.0.partial/link")).unwrap();
        let stays = [
            ".fabricast-x.1.partial",
            ".fabricast-yy.1.partial",
            ".fabricast-feed.json",
            "file",
        ];
        for name in stays.iter().chain(&[".fabricast-y.1.partial"]) {
            fs::write(dir.join(name), "").unwrap();
        }
        fs::set_permissions(
            dir.join(".fabricast-y.journal"),
            fs::Permissions::from_mode(0o600),
        )
        .unwrap();
        assert_eq!(remove_leftovers(&dir).unwrap(), 1);
        let mut there: Vec<_> = fs::read_dir(&dir).unwrap().flatten().collect();
        there.sort_by_key(|e| e.file_name());
        let there: Vec<String> = there
            .iter()
            .map(|e| e.file_name().into_string().unwrap())
            .collect();
        let mut expected = [&stays[..], &[".fabricast-x.journal", "outside"]].concat();
        expected.sort();
        assert_eq!(there, expected);
        drop(runs);
        fs::remove_dir_all(dir).unwrap();
    }
}
