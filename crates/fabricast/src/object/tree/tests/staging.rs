//! Tests of directories that have a hidden name until the end.

use super::resuming::{check, prepared, resumed, source, store_all};
use super::*;
use crate::object::pack::Pack;
use crate::object::source_set::SourceSet;

/// Stores a set, and does not end it. Returns the directory that it is staged in.
fn begun(to: &Path, set: &SourceSet, packs: &[Pack]) -> PathBuf {
    let (mut tree, kept) = resumed(to, set);
    store_all(&mut tree, &kept, packs);
    to.join(tree.relative(0))
}

/// Ends a set. Returns the error and its exit code.
fn failing(mut tree: Tree, set: &SourceSet) -> (String, u8) {
    tree.answer(set.challenge_key()).unwrap();
    let error = tree.finish().unwrap_err();
    (error.to_string(), error.exit_code())
}

#[test]
fn a_directory_that_is_new_appears_at_the_end() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let (mut tree, kept) = resumed(&to, &set);
    store_all(&mut tree, &kept, &packs);
    let staged = to.join(tree.relative(0));
    assert!(!to.join("from").exists());
    assert_eq!(staged.metadata().unwrap().mode() & 0o777, 0o700);
    // A small file has its own name there, and a path for people is that of the end.
    assert_eq!(std::fs::read(staged.join("sub/7")).unwrap().len(), 280);
    assert_eq!(tree.path(0), to.join("from"));
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_name_that_the_user_chose_and_several_at_the_top_are_staged_as_well() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let mut tree = tree(&to);
    tree.destination.name = Some("chosen".into());
    let kept = tree.resume(&set.manifest().digest(), &mut || Ok(()));
    store_all(&mut tree, &kept.unwrap(), &packs);
    assert!(!to.join("chosen").exists());
    tree.finish().unwrap();
    assert_eq!(names(&to), ["chosen"]);
    assert_eq!(names(&to.join("chosen")), names(&dir.join("from")));
    for name in ["one", "two"] {
        std::fs::create_dir(dir.join(name)).unwrap();
        std::fs::write(dir.join(name).join("f"), name).unwrap();
    }
    std::fs::write(dir.join("file"), "file").unwrap();
    let set = set_of(&["one", "file", "two"].map(|name| dir.join(name)));
    let (mut tree, kept) = resumed(&to, &set);
    store_all(&mut tree, &kept, &self::packs(&set).0);
    let names_before = names(&to);
    assert!(!names_before.contains(&"one".into()) && names_before.contains(&"file".into()));
    tree.finish().unwrap();
    assert_eq!(names(&to), ["chosen", "file", "one", "two"]);
    assert_eq!(std::fs::read(to.join("two/f")).unwrap(), b"two");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Files of one directory that nobody looked at have what their entries say, each its own.
#[test]
fn files_of_a_staged_directory_get_their_own_permissions_and_owners() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let dir = scratch();
    let (from, to) = (dir.join("from"), dir.join("to"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for (n, mode) in (0..).zip([0o644, 0o644, 0o600, 0o200, 0o755, 0o4755, 0o666, 0o600]) {
        let file = from.join(n.to_string());
        std::fs::write(&file, "bytes").unwrap();
        if is_root && n % 2 == 1 {
            chown(&file, Some(1), Some(2)).unwrap();
        }
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    }
    let set = set_of(std::slice::from_ref(&from));
    let mut tree = tree(&to);
    tree.destination.is_privileged = true;
    let kept = tree.resume(&set.manifest().digest(), &mut || Ok(()));
    store_all(&mut tree, &kept.unwrap(), &packs(&set).0);
    tree.finish().unwrap();
    for name in names(&from) {
        let [was, is] = [&from, &to.join("from")].map(|at| at.join(&name).metadata().unwrap());
        let of = |meta: &std::fs::Metadata| (meta.mode(), meta.uid(), meta.gid(), meta.mtime());
        assert_eq!(of(&is), of(&was), "{name}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Both stay, and nothing has to come again.
#[test]
fn what_comes_to_the_place_of_a_staged_directory_stays() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    for is_file in [false, true] {
        let (mut tree, kept) = resumed(&to, &set);
        store_all(&mut tree, &kept, &packs);
        let from = to.join("from");
        match is_file {
            true => std::fs::write(&from, "other").unwrap(),
            false => std::fs::create_dir(&from).unwrap(),
        }
        let staged = to.join(tree.relative(0));
        let (error, code) = failing(tree, &set);
        let is_told = error.contains("move one of them away") && error.contains(".partial");
        assert!(is_told && code == 2, "{error}");
        // The next run says so at once, if it may not replace what is there.
        let mut tree = tree_that_replaces_nothing(&to);
        let again = tree.resume(&set.manifest().digest(), &mut || Ok(()));
        match is_file {
            true => assert_eq!(again.unwrap_err().exit_code(), 2),
            false => assert_eq!(again.unwrap_err().to_string(), error),
        }
        drop(tree);
        assert!(staged.join("sub/7").exists() && from.exists());
        match is_file {
            true => std::fs::remove_file(&from).unwrap(),
            false => std::fs::remove_dir(&from).unwrap(),
        }
        let (mut tree, kept) = resumed(&to, &set);
        assert!(store_all(&mut tree, &kept, &packs));
        check(tree, &set, &to);
        std::fs::remove_dir_all(from).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

fn tree_that_replaces_nothing(root: &Path) -> Tree {
    Tree::new(Destination::new(root.to_owned())).unwrap()
}

/// A kill leaves files under their own names in the staged directory that are not whole, or that
/// have the length and the time of the sender's and other bytes.
#[test]
fn half_files_of_another_run_are_replaced() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let staged = begun(&to, &set, &packs);
    let journal = names(&to)
        .into_iter()
        .find(|name| name.ends_with(".journal"));
    let journal = to.join(journal.unwrap());
    // As if no pack had been noted.
    let id = journal.to_str().unwrap().rsplit('.').nth(1).unwrap();
    let id = id.strip_prefix("fabricast-").unwrap().to_owned();
    let root = Arc::new(OwnedFd::from(File::open(&to).unwrap()));
    let mut opened = Journal::open(&root, id).unwrap();
    let page = opened.next().unwrap();
    opened.clear().unwrap();
    opened.add(&page);
    drop(opened);
    std::fs::write(staged.join("sub/7"), "half").unwrap();
    let like = File::options()
        .write(true)
        .open(staged.join("sub/9"))
        .unwrap();
    let time = like.metadata().unwrap().modified().unwrap();
    like.write_all_at(&[9; 9], 0).unwrap();
    like.set_modified(time).unwrap();
    std::fs::remove_file(staged.join("sub/11")).unwrap();
    symlink("/etc/passwd", staged.join("sub/11")).unwrap();
    let (mut tree, kept) = resumed(&to, &set);
    assert_eq!(kept.packs.len(), 1, "the page");
    store_all(&mut tree, &kept, &packs);
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Without its journal nobody knows what a staged directory holds.
#[test]
fn a_staged_directory_without_a_journal_is_made_anew() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let staged = begun(&to, &set, &packs);
    std::fs::write(staged.join("sub/foreign"), "other").unwrap();
    for name in names(&to).iter().filter(|name| name.ends_with(".journal")) {
        std::fs::remove_file(to.join(name)).unwrap();
    }
    let (mut tree, kept) = resumed(&to, &set);
    assert!(kept.is_empty());
    store_all(&mut tree, &kept, &packs);
    check(tree, &set, &to);
    assert!(!to.join("from/sub/foreign").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

/// The hidden name leads nowhere else, and is no other user's directory. Then the set is made in
/// its place.
#[test]
fn what_is_no_directory_of_this_user_is_not_used() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    // Only root can give a directory away.
    let may_give = rustix::process::geteuid().is_root();
    for (with_journal, is_link) in [(true, true), (false, true), (true, false)] {
        if !is_link && !may_give {
            continue;
        }
        let staged = begun(&to, &set, &packs);
        let outside = dir.join(format!("outside-{with_journal}-{is_link}"));
        std::fs::rename(&staged, &outside).unwrap();
        if !with_journal {
            std::fs::remove_dir_all(&to).unwrap();
            std::fs::create_dir(&to).unwrap();
        }
        match is_link {
            true => symlink(&outside, &staged).unwrap(),
            false => {
                std::fs::create_dir(&staged).unwrap();
                std::os::unix::fs::chown(&staged, Some(1), Some(1)).unwrap();
            }
        }
        let before = names(&outside.join("sub"));
        let (mut tree, kept) = resumed(&to, &set);
        store_all(&mut tree, &kept, &packs);
        assert_eq!(tree.relative(0), Path::new("from"));
        tree.finish().unwrap();
        assert_eq!(names(&outside.join("sub")), before);
        assert!(is_link || names(&staged).is_empty());
        assert_eq!(names(&to.join("from")), names(&dir.join("from")));
        std::fs::remove_dir_all(&to).unwrap();
        std::fs::create_dir(&to).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The last permissions of a staged directory may keep its own user out.
#[test]
fn a_directory_that_was_about_to_appear_is_entered_again() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let staged = begun(&to, &set, &packs);
    std::fs::set_permissions(&staged, std::fs::Permissions::from_mode(0o000)).unwrap();
    let (mut tree, kept) = resumed(&to, &set);
    assert_eq!(staged.metadata().unwrap().mode() & 0o777, 0o700);
    store_all(&mut tree, &kept, &packs);
    tree.finish().unwrap();
    assert_eq!(names(&to), ["from"]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A run of root that is killed when it is about to show a directory, which is another user's at
/// the sender: the next one goes on with it, and the directory is that user's in the end.
#[test]
fn a_directory_of_another_user_is_gone_on_with() {
    use std::os::unix::fs::chown;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give a directory away");
        return;
    }
    let dir = scratch();
    source(&dir);
    let (from, owner) = (dir.join("from"), (Some(1), Some(2)));
    for path in ["", "sub", "a"] {
        chown(from.join(path), owner.0, owner.1).unwrap();
    }
    let set = set_of(std::slice::from_ref(&from));
    let (packs, to) = (self::packs(&set).0, dir.join("to"));
    std::fs::create_dir(&to).unwrap();
    let (mut tree, kept) = resumed(&to, &set);
    store_all(&mut tree, &kept, &packs);
    // What comes to its place is found when all is flushed, and the directory is renamed.
    std::fs::create_dir(to.join("from")).unwrap();
    let staged = to.join(tree.relative(0));
    failing(tree, &set);
    std::fs::remove_dir(to.join("from")).unwrap();
    let (mut tree, kept) = resumed(&to, &set);
    assert_eq!(to.join(tree.relative(0)), staged);
    assert!(store_all(&mut tree, &kept, &packs), "something comes again");
    tree.finish().unwrap();
    assert_eq!(names(&to), ["from"]);
    for path in ["", "sub", "a"] {
        let [was, is] = [&from, &to.join("from")].map(|at| at.join(path).metadata().unwrap());
        let of = |meta: &std::fs::Metadata| (meta.mode(), meta.uid(), meta.gid(), meta.mtime());
        assert_eq!((of(&is), is.uid()), (of(&was), 1), "{path}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A user who interrupts a receiver that copies files goes on later.
#[test]
fn an_interruption_while_files_are_copied_costs_nothing() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let (mut tree, kept) = resumed(&to, &set);
    store_all(&mut tree, &kept, &packs);
    let stopped = tree.make_copies(&mut |_| Err(Error::Interrupted));
    assert!(matches!(stopped, Err(Error::Interrupted)));
    drop(tree);
    assert!(!to.join("from").exists());
    let (mut tree, kept) = resumed(&to, &set);
    assert!(store_all(&mut tree, &kept, &packs));
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}
