//! What receivers have left that were interrupted, and do not go on.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};

use super::beneath::open_directory;
use super::journal::{self, Journal, is_own, journal_id};
use super::surplus::{delete, names};
use super::{disk, relative};
use crate::object::manifest::{Kind, Manifest, TOP};

/// Whether a file has the name of a partial file of the journal `id`.
fn is_partial(name: &OsStr, id: &str) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(format!(".fabricast-{id}.").as_bytes()) && name.ends_with(b".partial")
}

/// Removes the partial files of the journal `id` from the directories of its set beneath `root`. A
/// directory that is not there, and one that a link leads to, are left alone, and so is what is
/// another user's. `top`: the name of the only entry at the top, if its user has chosen one.
fn remove_partials(root: &OwnedFd, id: &str, set: &Manifest, top: Option<&OsStr>) {
    for (number, entry) in (0..).zip(set.entries()) {
        if entry.kind != Kind::Directory {
            continue;
        }
        let Ok(directory) = open_directory(root, &relative(set, top, number)) else {
            continue;
        };
        let listed = names(&directory).unwrap_or_default();
        for name in listed.iter().filter(|name| is_partial(name, id)) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = sys::openat(&directory, &**name, flags, Mode::empty());
            if opened.is_ok_and(|file| is_own(&file.into())) {
                disk::remove(&directory, name.as_ref());
            }
        }
    }
}

/// The IDs of the journals among these names.
fn ids(listed: &[OsString]) -> impl Iterator<Item = &str> {
    listed.iter().filter_map(|name| {
        let name = name.to_str()?;
        name.strip_prefix(".fabricast-")?.strip_suffix(".journal")
    })
}

/// Removes the partial files and the staged directories of the journal `id`, those of this user.
/// `listed`: the names in the directory `root`. `top`: as in [`remove_partials`].
fn remove_unfinished(
    (id, set): (&str, &Manifest),
    (root, listed): (&OwnedFd, &[OsString]),
    top: Option<&OsStr>,
) -> io::Result<()> {
    remove_partials(root, id, set, top);
    let mut result = Ok(());
    for name in listed.iter().filter(|name| is_partial(name, id)) {
        let there = sys::statat(root, &**name, AtFlags::SYMLINK_NOFOLLOW);
        let is_ours = there.is_ok_and(|it| it.st_uid == rustix::process::geteuid().as_raw());
        if is_ours && let Err((_, e)) = delete(root, name.as_ref()) {
            result = Err(e.into());
        }
    }
    result
}

/// Removes the partial files and the staged directories of this receiver's own journal, as far as
/// that can be done. `top`: as in [`remove_partials`].
pub(super) fn remove_own(root: &OwnedFd, journal: (&str, &Manifest), top: Option<&OsStr>) {
    let listed = names(root).unwrap_or_default();
    let _ = remove_unfinished(journal, (root, &listed), top);
}

/// Removes what [`remove_unfinished`] does of a journal whose receiver runs no more, and then the
/// journal.
fn remove(
    mut journal: Journal,
    root: &OwnedFd,
    listed: &[OsString],
    top: Option<&OsStr>,
) -> io::Result<()> {
    let set = journal.set();
    remove_unfinished((journal.id(), &set), (root, listed), top)?;
    journal.remove();
    Ok(())
}

/// The sets that receivers of this user have begun in the directory `root`.
pub(super) fn begun(root: &Arc<OwnedFd>) -> Vec<Manifest> {
    let listed = names(root).unwrap_or_default();
    ids(&listed)
        .filter_map(|id| Journal::peek(root, id))
        .collect()
}

/// Removes what interrupted receivers have left in the directory `root` of sets that `set` has
/// replaced: all that they have at the top has the name of something that `set` has there. What a
/// running receiver has there stays, and so does what is another user's. What cannot be removed
/// stays, too. `top`: as in [`remove_partials`].
pub(super) fn remove_replaced(root: &Arc<OwnedFd>, set: &Manifest, top: Option<&OsStr>) {
    let tops = |set: &Manifest| -> BTreeSet<Box<[u8]>> {
        let tops = set.entries().iter().filter(|entry| entry.parent == TOP);
        tops.map(|entry| entry.name.clone()).collect()
    };
    let listed = names(root).unwrap_or_default();
    for id in ids(&listed) {
        let Some(old) = Journal::peek(root, id) else {
            continue;
        };
        // Another ID: the set was to get another name, or its pages are not all there.
        let is_in_place = journal_id(&old.digest(), top) == id;
        let is_replaced = top.is_some() || tops(&old).is_subset(&tops(set));
        if is_in_place
            && is_replaced
            && let Some(journal) = Journal::open(root, id.to_owned())
        {
            let _ = remove(journal, root, &listed, top);
        }
    }
}

/// Whether a receiver that was interrupted has kept something of a set in a directory. `set`: the
/// digest of its manifest. `name`: that of the only entry at the top, if its user has chosen one.
pub fn is_kept(directory: &Path, set: &blake3::Hash, name: Option<&OsStr>) -> bool {
    let journal = directory.join(journal::file_name(&journal_id(set, name)));
    journal.symlink_metadata().is_ok()
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
    let listed = names(&root)?;
    let (mut removed, mut failed) = (0, None);
    for id in ids(&listed) {
        let Some(journal) = Journal::open(&root, id.to_owned()) else {
            continue;
        };
        match remove(journal, &root, &listed, None) {
            Ok(()) => removed += 1,
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(removed), Err)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::super::journal::Record;
    use super::*;
    use crate::object::manifest::Entry;
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

    /// What is left of a set goes when another set is complete that has the same place. It stays if
    /// somebody receives it, if it has another place, or if the other set does not have all of it.
    #[test]
    fn what_a_complete_set_has_replaced_is_removed() {
        let set = |names: &[&str], time| {
            let mut set = Manifest::default();
            for name in names {
                let entry = Entry {
                    parent: TOP,
                    name: name.as_bytes().into(),
                    kind: Kind::File(5),
                    mode: 0o644,
                    mtime: time,
                    mtime_ns: 0,
                    owner: (0, 0),
                    attributes: Default::default(),
                };
                set.add(entry).unwrap();
            }
            set
        };
        let begin = |dir: &Path, root: &Arc<OwnedFd>, set: &Manifest, name: Option<&OsStr>| {
            let id = journal_id(&set.digest(), name);
            let mut journal = Journal::open(root, id.clone()).unwrap();
            let mut page = Vec::new();
            set.put_page(0, &mut page);
            journal.add(&Record::Page(page));
            fs::write(dir.join(format!(".fabricast-{id}.0.partial")), "left").unwrap();
            journal
        };
        let (new, named) = (set(&["a", "b"], 2), Some("a".as_ref()));
        for (old, runs, place, complete, is_removed) in [
            (set(&["a"], 1), false, None, None, true),
            (set(&["a", "b"], 1), false, None, None, true),
            (set(&["a", "c"], 1), false, None, None, false),
            (set(&["a"], 1), true, None, None, false),
            (set(&["a"], 1), false, named, None, false),
            (set(&["a"], 1), false, None, named, false),
            (set(&["c"], 1), false, named, named, true),
        ] {
            let dir = scratch();
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let root = Arc::new(sys::open(&dir, flags, Mode::empty()).unwrap());
            let journal = begin(&dir, &root, &old, place);
            let journal = runs.then_some(journal);
            remove_replaced(&root, &new, complete);
            let count = fs::read_dir(&dir).unwrap().count();
            let told = format!("{old:?}, {runs}, {place:?}, {complete:?}");
            assert_eq!(count, if is_removed { 0 } else { 2 }, "{told}");
            drop(journal);
            fs::remove_dir_all(dir).unwrap();
        }
    }
}
