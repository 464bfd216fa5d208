//! Tests of entries that take the place of what the same sender has sent before.

use std::ffi::{OsStr, OsString};

use super::*;

/// What came before: names at the top, and what they held.
#[derive(Clone, Debug, Default)]
pub struct Before(BTreeMap<OsString, BTreeSet<PathBuf>>);

impl Received for Before {
    fn paths(&self, name: &OsStr) -> Option<BTreeSet<PathBuf>> {
        self.0.get(name).cloned()
    }
}

pub fn before(name: &str, paths: &[&str]) -> Before {
    let paths = paths.iter().map(PathBuf::from).collect();
    Before([(name.into(), paths)].into())
}

/// A tree in `to`, which belongs to one sender.
fn tree_of_one_sender(to: &Path, before: &Before) -> Tree {
    let mut tree = Tree::new(Destination::new(to.to_owned())).unwrap();
    tree.destination.received = Some(Arc::new(before.clone()));
    tree
}

/// Receives a set into `to`. With `kept` there is a journal, so that directories are staged.
fn receive(
    to: &Path,
    before: &Before,
    deletes: bool,
    kept: bool,
    set: &[u8],
    files: &[(u32, &[u8])],
) -> Result<(), Error> {
    let mut tree = tree_of_one_sender(to, before);
    tree.destination.deletes = deletes;
    if kept {
        tree.resume(&blake3::hash(set), &mut || Ok(()))?;
    }
    super::store(&mut tree, set, files)
}

fn a_file() -> Vec<u8> {
    page(&[entry(TOP, "d", Kind::File(3), 0o644)])
}

/// A directory that was received becomes a file, and goes when the file is here.
#[test]
fn a_file_takes_the_place_of_a_directory_that_was_received() {
    let dir = scratch();
    let (place, link) = (dir.join("d"), dir.join("elsewhere"));
    let paths = ["deep", "deep/f", "soft"];
    for (case, deletes) in [(0, false), (1, false), (1, true), (2, false)] {
        std::fs::create_dir_all(place.join("deep")).unwrap();
        std::fs::write(place.join("deep/f"), "old").unwrap();
        std::fs::create_dir_all(&link).unwrap();
        symlink(&link, place.join("soft")).unwrap();
        std::fs::write(place.join(".fabricast-0.1.partial"), "left").unwrap();
        let mut known = before("d", &paths);
        match case {
            0 => {}
            1 => std::fs::write(place.join("deep/mine"), "mine").unwrap(),
            _ => known.0.clear(),
        }
        let received = receive(&dir, &known, deletes, true, &a_file(), &[(0, b"new")]);
        if case == 0 || deletes {
            received.unwrap();
            assert_eq!(std::fs::read(&place).unwrap(), b"new");
            std::fs::remove_file(&place).unwrap();
        } else {
            let text = received.unwrap_err().to_string();
            assert!(text.contains("is a directory here"), "{text}");
            assert_eq!(
                text.contains("d/deep/mine did not come"),
                case == 1,
                "{text}"
            );
            assert_eq!(std::fs::read(place.join("deep/f")).unwrap(), b"old");
            std::fs::remove_dir_all(&place).unwrap();
        }
        assert!(link.is_dir());
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// What somebody puts there while the set comes is looked at again before anything goes.
#[test]
fn what_comes_to_a_directory_meanwhile_keeps_it() {
    let dir = scratch();
    std::fs::create_dir(dir.join("d")).unwrap();
    let mut tree = tree_of_one_sender(&dir, &before("d", &[]));
    tree.add_page(&a_file()).unwrap();
    std::fs::write(dir.join("d/mine"), "mine").unwrap();
    tree.write(&[piece(0, 0, 3, true)], b"new").unwrap();
    let text = tree.finish().unwrap_err().to_string();
    assert!(text.contains("d/mine did not come"), "{text}");
    assert!(dir.join("d/mine").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that was received becomes a directory, and goes when all of the directory is here. One
/// that was not received stays.
#[test]
fn a_directory_takes_the_place_of_a_file_that_was_received() {
    let dir = scratch();
    let place = dir.join("d");
    let files: [(u32, &[u8]); 2] = [(1, &[1; 100]), (2, &[2; 10])];
    for kept in [true, false] {
        std::fs::write(&place, "old").unwrap();
        let none = Before::default();
        let refused = receive(&dir, &none, false, kept, &two_files(), &files);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("none here: move it away"), "{text}");
        // A run that has begun changes nothing, and another one goes on with it.
        let known = before("d", &[]);
        if kept {
            let mut tree = tree_of_one_sender(&dir, &known);
            let set = blake3::hash(&two_files());
            tree.resume(&set, &mut || Ok(())).unwrap();
            tree.add_page(&two_files()).unwrap();
            assert_eq!(std::fs::read(&place).unwrap(), b"old");
        }
        let received = receive(&dir, &known, false, kept, &two_files(), &files);
        // Where the directory cannot be staged, the file would have to go before that is complete.
        if !kept {
            let text = received.unwrap_err().to_string();
            assert!(text.contains("move it away"), "{text}");
            assert_eq!(std::fs::read(&place).unwrap(), b"old");
            continue;
        }
        received.unwrap();
        assert_eq!(names(&place), ["f", "g"]);
        assert_eq!(names(&dir), ["d"]);
        std::fs::remove_dir_all(&place).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Whether something is replaced.
fn is_replaced(received: Result<(), Error>, path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    match received {
        Ok(()) => assert_ne!(bytes, b"mine"),
        Err(error) => {
            let text = error.to_string();
            let told = format!("{} is there, and this receiver has not", path.display());
            assert!(text.contains(&told), "{text}");
            assert_eq!(bytes, b"mine");
            return false;
        }
    }
    true
}

/// In a directory that belongs to one sender a file gives way if it was received from there, if it
/// looks like the one that comes, or if the user wants it.
#[test]
fn only_what_was_received_is_replaced() {
    let (none, listed) = (Before::default(), before("d", &["g", "f"]));
    let files: [(u32, &[u8]); 2] = [(1, &[1; 100]), (2, &[2; 10])];
    let in_directory = |known: &Before, deletes, overwrite| {
        let dir = scratch();
        std::fs::create_dir(dir.join("d")).unwrap();
        let place = dir.join("d/f");
        std::fs::write(&place, "mine").unwrap();
        let mut tree = tree_of_one_sender(&dir, known);
        (tree.destination.deletes, tree.destination.overwrite) = (deletes, overwrite);
        let received = super::store(&mut tree, &two_files(), &files);
        let is_replaced = is_replaced(received, &place);
        assert_eq!(dir.join("d/g").exists(), is_replaced);
        std::fs::remove_dir_all(dir).unwrap();
        is_replaced
    };
    assert!(!in_directory(&none, false, false));
    assert!(!in_directory(&before("d", &["g", "f/f"]), false, false));
    assert!(in_directory(&listed, false, false));
    assert!(in_directory(&none, false, true));
    // All that the sender does not have goes there.
    assert!(in_directory(&none, true, false));
    let at_top = |known: &Before, deletes, time| {
        let dir = scratch();
        let place = dir.join("d");
        std::fs::write(&place, "mine").unwrap();
        let file = File::options().write(true).open(&place).unwrap();
        file.set_modified(time).unwrap();
        let set = page(&[entry(TOP, "d", Kind::File(4), 0o644)]);
        let received = receive(&dir, known, deletes, true, &set, &[(0, b"new!")]);
        let is_replaced = is_replaced(received, &place);
        assert_eq!(names(&dir), ["d"]);
        std::fs::remove_dir_all(dir).unwrap();
        is_replaced
    };
    let now = std::time::SystemTime::now();
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 5);
    assert!(!at_top(&none, false, now));
    assert!(!at_top(&none, true, now));
    assert!(at_top(&listed, false, now));
    assert!(at_top(&none, false, then));
}

/// What a run has put there that was interrupted, or has failed for good, is replaced by a later
/// version of the set, though nobody has noted it.
#[test]
fn what_an_interrupted_run_has_put_there_is_replaced() {
    for fails in [false, true] {
        let dir = scratch();
        std::fs::create_dir(dir.join("d")).unwrap();
        std::fs::write(dir.join("d/g"), "mine").unwrap();
        let none = Before::default();
        let earlier = page(&[
            entry(TOP, "d", Kind::Directory, 0o750),
            entry(0, "f", Kind::File(3), 0o640),
            entry(0, "h", Kind::File(10), 0o604),
        ]);
        let mut tree = tree_of_one_sender(&dir, &none);
        tree.resume(&blake3::hash(&earlier), &mut || Ok(()))
            .unwrap();
        tree.add_page(&earlier).unwrap();
        tree.write(&[piece(1, 0, 3, true)], b"old").unwrap();
        tree.note_pack(b"any", 3);
        if fails {
            tree.discard();
        }
        drop(tree);
        let files: [(u32, &[u8]); 2] = [(1, &[1; 100]), (2, &[2; 10])];
        let received = receive(&dir, &none, false, true, &two_files(), &files);
        assert!(!is_replaced(received, &dir.join("d/g")));
        std::fs::remove_file(dir.join("d/g")).unwrap();
        receive(&dir, &none, false, true, &two_files(), &files).unwrap();
        assert_eq!(names(&dir.join("d")), ["f", "g"]);
        // Nothing of the earlier run is left.
        assert_eq!(names(&dir), ["d"]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// What a run has put there that was interrupted gives way to an entry of another type, too: a file
/// or a link to a directory, and a directory with what that run has added to a file or a link.
#[test]
fn what_an_interrupted_run_has_put_there_changes_its_type() {
    let file = |name, parent| entry(parent, name, Kind::File(3), 0o644);
    let link = |to: &[u8]| entry(TOP, "d", Kind::Symlink(to.into()), 0o777);
    let directory = entry(TOP, "d", Kind::Directory, 0o755);
    let grown = page(&[
        directory.clone(),
        entry(0, "new", Kind::Directory, 0o755),
        file("f", 1),
    ]);
    let files = [page(&[file("d", TOP), file("z", TOP)]), grown];
    for (from, to_link) in [
        ("file", false),
        ("link", false),
        ("dir", false),
        ("dir", true),
    ] {
        for is_foreign in [false, true] {
            let dir = scratch();
            // Of the directory the caller knows what came before: nothing in it.
            let known = match from {
                "dir" => before("d", &[]),
                _ => Before::default(),
            };
            let earlier = match from {
                "file" => files[0].clone(),
                "link" => page(&[link(b"nowhere"), file("z", TOP)]),
                _ => files[1].clone(),
            };
            if from == "dir" {
                std::fs::create_dir(dir.join("d")).unwrap();
            }
            let mut tree = tree_of_one_sender(&dir, &known);
            tree.resume(&blake3::hash(&earlier), &mut || Ok(()))
                .unwrap();
            tree.add_page(&earlier).unwrap();
            match from {
                "file" => tree.write(&[piece(0, 0, 3, true)], b"old").unwrap(),
                // Links are made at the end, before the journal goes.
                "link" => symlink("nowhere", dir.join("d")).unwrap(),
                _ => tree.write(&[piece(2, 0, 3, true)], b"old").unwrap(),
            }
            tree.note_pack(b"any", 3);
            drop(tree);
            let mine = match from {
                "dir" => dir.join("d/new/mine"),
                _ => dir.join("d"),
            };
            if is_foreign {
                let _ = std::fs::remove_file(&mine);
                std::fs::write(&mine, "mine").unwrap();
            }
            let (set, pieces): (_, &[(u32, &[u8])]) = match (from, to_link) {
                (_, true) => (page(&[link(b"there")]), &[]),
                ("dir", _) => (page(&[file("d", TOP)]), &[(0, b"new")]),
                _ => (page(&[directory.clone(), file("f", 0)]), &[(1, b"new")]),
            };
            let received = receive(&dir, &known, false, true, &set, pieces);
            assert_eq!(received.is_err(), is_foreign, "{from}: {received:?}");
            if is_foreign {
                assert_eq!(std::fs::read(&mine).unwrap(), b"mine");
            } else if to_link {
                assert_eq!(dir.join("d").read_link().unwrap(), Path::new("there"));
            } else {
                let place = if from == "dir" { "d" } else { "d/f" };
                assert_eq!(std::fs::read(dir.join(place)).unwrap(), b"new");
            }
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
}
