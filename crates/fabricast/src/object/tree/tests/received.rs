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

/// Receives a set into `to`. With `kept` there is a journal, so that directories are staged.
fn receive(
    to: &Path,
    before: &Before,
    deletes: bool,
    kept: bool,
    set: &[u8],
    files: &[(u32, &[u8])],
) -> Result<(), Error> {
    let mut tree = tree(to);
    tree.destination.received = Some(Arc::new(before.clone()));
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
    let mut tree = tree(&dir);
    tree.destination.received = Some(Arc::new(before("d", &[])));
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
            let mut tree = tree(&dir);
            tree.destination.received = Some(Arc::new(known.clone()));
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
