//! A set whose names differ in case alone, received into a file system that takes such names for
//! one: exFAT, by FUSE. It also has neither hard links, nor files without a name, nor renames that
//! replace nothing.
//!
//! There is one test here. A process that is started shares the locks of journals for an instant,
//! and so tests beside this one would find them in use.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use fabricast::error::Error;
use fabricast::object::manifest::{Entry, Kind, Manifest, TOP};
use fabricast::object::pack::Piece;
use fabricast::object::{Destination, Tree, folded_names};

/// An exFAT file system in a file, mounted on a directory until this value is dropped.
struct Exfat {
    scratch: PathBuf,
    device: String,
    root: PathBuf,
}

impl Exfat {
    /// Mounts a new one; the error says why that cannot be done here.
    fn mount() -> Result<Exfat, String> {
        let scratch = std::env::temp_dir().join(format!("fabricast-exfat-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).unwrap();
        let (image, root) = (scratch.join("image"), scratch.join("root"));
        File::create(&image).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir(&root).unwrap();
        let mut exfat = Exfat {
            scratch,
            device: String::new(),
            root,
        };
        run(Command::new("mkfs.exfat").arg(&image))?;
        let device = run(Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&image))?;
        exfat.device = device.trim().to_owned();
        let mut mount = Command::new("mount.exfat-fuse");
        run(mount.arg(&exfat.device).arg(&exfat.root))?;
        Ok(exfat)
    }
}

/// Runs a command of the system. Returns what it writes, or why it has failed.
fn run(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let output = command.env("PATH", path).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{program}: {}", said.trim()))
        }
    }
}

impl Drop for Exfat {
    fn drop(&mut self) {
        if !self.device.is_empty() {
            // What a test that failed has open must not keep it.
            let _ = run(Command::new("umount").arg("--lazy").arg(&self.root));
            let _ = run(Command::new("losetup").arg("--detach").arg(&self.device));
        }
        let _ = std::fs::remove_dir_all(&self.scratch);
    }
}

fn entry(parent: u32, name: &str, kind: Kind) -> Entry {
    Entry {
        parent,
        name: name.as_bytes().into(),
        kind,
        mode: 0o755,
        mtime: 1_000_000_000,
        mtime_ns: 0,
        owner: (u32::MAX, u32::MAX),
        attributes: Default::default(),
    }
}

fn page(entries: &[Entry]) -> Vec<u8> {
    let (mut manifest, mut page) = (Manifest::default(), Vec::new());
    for entry in entries {
        manifest.add(entry.clone()).unwrap();
    }
    manifest.put_page(0, &mut page);
    page
}

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// A directory "d" that holds what differs in case alone: two entries of these kinds.
fn pair(one: Kind, other: Kind) -> Vec<u8> {
    page(&[
        entry(TOP, "d", Kind::Directory),
        entry(0, "first", Kind::File(3)),
        entry(0, "Ab", one),
        entry(0, "aB", other),
    ])
}

/// Receives a set whose files all have these bytes.
fn receive(
    to: &Path,
    set: &[u8],
    bytes: &[u8],
    (overwrite, deletes, kept): (bool, bool, bool),
) -> Result<(), Error> {
    let mut tree = Tree::new(Destination {
        overwrite,
        deletes,
        ..Destination::new(to.to_owned())
    })?;
    if kept {
        tree.resume(&blake3::hash(set), &mut || Ok(()))?;
    }
    tree.add_page(set)?;
    for file in 0..tree.manifest().entries().len() as u32 {
        if matches!(tree.manifest().entries()[file as usize].kind, Kind::File(_)) {
            let piece = Piece::Bytes {
                file,
                offset: 0,
                len: bytes.len() as u32,
                last: true,
            };
            tree.write(&[piece], bytes)?;
        }
    }
    tree.finish()
}

/// All paths beneath a directory.
fn paths(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for name in names(dir) {
        let path = dir.join(&name);
        if path.is_dir() && !path.is_symlink() {
            let below = paths(&path).into_iter();
            all.extend(below.map(|path| format!("{name}/{path}")));
        }
        all.push(name);
    }
    all.sort();
    all
}

#[test]
fn names_that_are_one_here_are_refused_and_other_spellings_are_not_surplus() {
    let exfat = match Exfat::mount() {
        Ok(exfat) => exfat,
        Err(why) => {
            println!("skipped: no file system here takes A for a: {why}");
            return;
        }
    };
    two_names_that_are_one_here_are_refused_before_anything_is_replaced(&exfat.root.join("to"));
    another_spelling_of_what_is_there_is_replaced_and_not_deleted(&exfat.root.join("replaced"));
    a_set_without_such_names_is_received(&exfat.root.join("new"));
    names_of_a_list_that_are_one_here_are_found(&exfat.root);
}

fn names_of_a_list_that_are_one_here_are_found(root: &Path) {
    let before = names(root);
    let names_of = |names: &[&str]| folded_names(root, names).unwrap();
    let mut found = names_of(&["A", "b", "c", "B", "a", "ä"]);
    found.sort();
    assert_eq!(found, [[0, 4], [1, 3]]);
    assert!(names_of(&["A", "b", "c"]).is_empty());
    assert_eq!(names(root), before);
    // Where they are two, nothing is found.
    let two = folded_names(&std::env::temp_dir(), &["A", "a"]).unwrap();
    assert!(two.is_empty(), "{two:?}");
}

fn two_names_that_are_one_here_are_refused_before_anything_is_replaced(to: &Path) {
    let file = || Kind::File(3);
    let tops = page(&[entry(TOP, "Ab", file()), entry(TOP, "aB", file())]);
    let directories = page(&[
        entry(TOP, "d", Kind::Directory),
        entry(0, "Ab", Kind::Directory),
        entry(0, "aB", Kind::Directory),
        entry(1, "f", file()),
        entry(2, "f", file()),
    ]);
    let sets = [
        pair(file(), file()),
        pair(Kind::Directory, file()),
        pair(file(), Kind::Symlink((*b"first").into())),
        pair(file(), Kind::HardLink(1)),
        pair(file(), Kind::Copy(1)),
        pair(Kind::Copy(1), Kind::Copy(1)),
        directories,
        tops,
    ];
    for (number, set) in sets.iter().enumerate() {
        // Nothing, a file and a directory have the place.
        for (place, how) in [
            (0, (false, false, false)),
            (0, (true, false, true)),
            (1, (true, false, false)),
            (1, (true, true, true)),
            (2, (true, true, false)),
        ] {
            std::fs::create_dir(to).unwrap();
            let old = |name: &str| match place {
                0 => {}
                1 => std::fs::write(to.join(name), "old").unwrap(),
                _ => {
                    std::fs::create_dir(to.join(name)).unwrap();
                    std::fs::write(to.join(name).join("f"), "old").unwrap();
                }
            };
            if place > 0 {
                std::fs::create_dir(to.join("d")).unwrap();
                old("d/ab");
                old("ab");
            }
            let before = paths(to);
            for _ in 0..2 {
                let error = receive(to, set, b"new", how).unwrap_err();
                let case = format!("set {number}, {place}, {how:?}: {error}");
                assert_eq!(error.exit_code(), 2, "{case}");
                // What has another type is in the way by itself.
                let is_named = case.contains("Ab and aB are two names");
                assert!(
                    is_named || place > 0 && case.contains("none at the sender"),
                    "{case}"
                );
                let mut after = paths(to);
                // Directories of the set may have been made, and nothing else.
                after.retain(|path| before.contains(path) || !to.join(path).is_dir());
                assert_eq!(after, before, "{case}");
                for path in before.iter().filter(|path| to.join(path).is_file()) {
                    assert_eq!(std::fs::read(to.join(path)).unwrap(), b"old", "{case}");
                }
            }
            std::fs::remove_dir_all(to).unwrap();
        }
    }
}

/// One name in another spelling is that entry, and not surplus.
fn another_spelling_of_what_is_there_is_replaced_and_not_deleted(to: &Path) {
    let set = page(&[
        entry(TOP, "d", Kind::Directory),
        entry(0, "sub", Kind::Directory),
        entry(1, "f", Kind::File(3)),
        entry(0, "g", Kind::File(3)),
    ]);
    std::fs::create_dir_all(to.join("D/SUB")).unwrap();
    std::fs::write(to.join("D/SUB/F"), "old").unwrap();
    std::fs::write(to.join("D/other"), "old").unwrap();
    receive(to, &set, b"new", (true, true, true)).unwrap();
    assert_eq!(paths(&to.join("d")).len(), 3, "{:?}", paths(to));
    for name in ["d/sub/f", "d/g"] {
        assert_eq!(std::fs::read(to.join(name)).unwrap(), b"new");
    }
}

/// Nothing is replaced where that was not asked for.
fn a_set_without_such_names_is_received(to: &Path) {
    std::fs::create_dir_all(to.join("d")).unwrap();
    let set = page(&[
        entry(TOP, "d", Kind::Directory),
        entry(0, "f", Kind::File(3)),
        entry(TOP, "g", Kind::File(3)),
    ]);
    receive(to, &set, b"new", (false, false, true)).unwrap();
    assert_eq!(paths(to), ["d", "d/f", "g"]);
    let error = receive(to, &set, b"old", (false, false, false)).unwrap_err();
    assert!(matches!(error, Error::Exists(_)), "{error}");
    assert_eq!(std::fs::read(to.join("g")).unwrap(), b"new");
}
