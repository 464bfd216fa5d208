//! Tests of trees: what a sender says, and what is on the disk after it.

mod folding;
mod power_cut;
mod power_cut_replacing;
mod present;
mod received;
pub mod recorder;
mod resuming;
mod staging;

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use super::*;
use crate::object::Challenge;
use crate::object::manifest::Special;
use crate::object::testing::{packs, pieces_of, scratch, set_of};

/// A tree beneath `root`, which may replace files and waits for no disk.
fn tree(root: &Path) -> Tree {
    Tree::new(Destination {
        overwrite: true,
        ..Destination::new(root.to_owned())
    })
    .unwrap()
}

/// The files that an empty tree names and the sender has, stored and finished.
fn store(tree: &mut Tree, manifest: &[u8], files: &[(u32, &[u8])]) -> Result<(), Error> {
    tree.add_page(manifest)?;
    for (file, bytes) in files {
        tree.write(&[piece(*file, 0, bytes.len() as u32, true)], bytes)?;
    }
    tree.finish()
}

fn entry(parent: u32, name: &str, kind: Kind, mode: u16) -> Entry {
    Entry {
        parent,
        name: name.as_bytes().into(),
        kind,
        mode,
        mtime: 1_000_000_000,
        mtime_ns: 5,
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

fn piece(file: u32, offset: u64, len: u32, last: bool) -> Piece {
    Piece::Bytes {
        file,
        offset,
        len,
        last,
    }
}

fn failed(file: u32) -> Piece {
    let reason = "it is gone".to_owned();
    Piece::Failed { file, reason }
}

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A directory "d" with the files "f" (100 bytes) and "g" (10 bytes).
fn two_files() -> Vec<u8> {
    page(&[
        entry(TOP, "d", Kind::Directory, 0o750),
        entry(0, "f", Kind::File(100), 0o640),
        entry(0, "g", Kind::File(10), 0o604),
    ])
}

#[test]
fn a_set_is_stored_and_proven_as_it_was_read() {
    let dir = scratch();
    let (from, to) = (dir.join("from"), dir.join("to"));
    std::fs::create_dir_all(from.join("sub/empty")).unwrap();
    std::fs::create_dir(&to).unwrap();
    for i in 0..300 {
        std::fs::write(from.join(format!("sub/{i}")), "x".repeat(i * 100)).unwrap();
    }
    std::fs::write(from.join("long"), vec![5; 3_000_000]).unwrap();
    std::fs::hard_link(from.join("long"), from.join("sub/again")).unwrap();
    // A hole, bytes and a hole; a hole alone.
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 10_000], 9 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    let hole = File::create(from.join("hole")).unwrap();
    hole.set_len(20 << 20).unwrap();
    symlink("/nowhere", from.join("soft")).unwrap();
    let secretive = std::fs::Permissions::from_mode(0o500);
    std::fs::set_permissions(from.join("sub/empty"), secretive).unwrap();
    let set = set_of(std::slice::from_ref(&from));
    let (packs, _) = packs(&set);
    // The second time, everything is there already.
    for is_named in [false, true] {
        let mut tree = tree(&to);
        tree.may_be_nameless = !is_named;
        for pack in &packs {
            match pieces_of(pack) {
                None => tree.add_page(pack.payload()).unwrap(),
                Some(pieces) => tree.write(&pieces, pack.payload()).unwrap(),
            }
        }
        let none = BTreeSet::new();
        let secret = tree.answer(set.challenge_key()).unwrap();
        assert_eq!(secret.proof(3), set.secret(&none).proof(3));
        tree.finish().unwrap();
        assert_eq!(tree.taken(), set.known_len().unwrap());
        for (number, e) in (0..).zip(set.manifest().entries()) {
            let [a, b] = [set.path(number), tree.path(number)].map(|p| {
                let meta = p.symlink_metadata().unwrap();
                let times = (meta.mtime(), meta.mtime_nsec());
                (meta.mode(), meta.len(), meta.nlink(), times)
            });
            assert_eq!(a.0, b.0, "{e:?}");
            assert!(e.kind == Kind::Directory || a == b, "{e:?}: {a:?}, {b:?}");
            assert_eq!(a.3, b.3, "{e:?}");
        }
        assert_eq!(names(&to.join("from")), names(&from));
        assert_eq!(names(&to.join("from/sub")), names(&from.join("sub")));
        for name in ["sparse", "hole"] {
            let meta = to.join("from").join(name).metadata().unwrap();
            assert!(meta.blocks() * 512 < 1 << 20, "{name}: {meta:?}");
        }
        let copy = std::fs::read(to.join("from/sparse")).unwrap();
        assert!(copy == std::fs::read(from.join("sparse")).unwrap());
        let copy = std::fs::read(to.join("from/sub/again")).unwrap();
        assert!(copy == std::fs::read(from.join("long")).unwrap());
    }
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn pieces_that_contradict_the_manifest_are_refused() {
    let hole = |offset, len, last| Piece::Hole {
        file: 1,
        offset,
        len,
        last,
    };
    let cases: [(&[Piece], &str); 11] = [
        (&[piece(1, 5, 100, true)], "too long"),
        (&[hole(0, 101, false)], "too long"),
        (&[hole(0, 9, false), piece(1, 8, 5, false)], "overlap"),
        (&[hole(0, 99, true)], "too early"),
        (&[piece(0, 0, 0, true)], "not announced"),
        (&[piece(3, 0, 0, true)], "not announced"),
        (&[failed(7)], "not announced"),
        (&[piece(1, 0, 101, false)], "too long"),
        (&[piece(1, 0, 5, false), piece(1, 4, 5, false)], "overlap"),
        (&[piece(1, 0, 99, true)], "too early"),
        (
            &[piece(1, 0, 100, true), piece(1, 0, 100, true)],
            "has sent",
        ),
    ];
    for (pieces, why) in cases {
        let dir = scratch();
        let mut tree = tree(&dir);
        tree.add_page(&two_files()).unwrap();
        let error = tree.write(pieces, &[1; 300]).unwrap_err();
        assert!(error.to_string().contains(why), "{pieces:?}: {error}");
        assert!(matches!(error, Error::Integrity(_)));
        drop(tree);
        assert_eq!(names(&dir), ["d"]);
        assert_eq!(names(&dir.join("d")), [""; 0]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// A receiver that came late gets the last packs first.
#[test]
fn packs_may_come_in_any_order() {
    let dir = scratch();
    let mut tree = tree(&dir);
    tree.add_page(&two_files()).unwrap();
    let whole: Vec<u8> = (0..110).collect();
    tree.write(
        &[piece(1, 60, 40, true), piece(2, 0, 10, true)],
        &whole[60..],
    )
    .unwrap();
    assert!(dir.join("d/g").exists() && !dir.join("d/f").exists());
    tree.write(&[piece(1, 0, 20, false)], &whole[..20]).unwrap();
    tree.write(&[piece(1, 20, 40, false)], &whole[20..60])
        .unwrap();
    assert_eq!(std::fs::read(dir.join("d/f")).unwrap(), &whole[..100]);
    assert_eq!(std::fs::read(dir.join("d/g")).unwrap(), &whole[100..]);
    tree.finish().unwrap();
    // What comes of a file that failed is void, in whatever order.
    let mut tree = self::tree(&dir.join("d"));
    tree.add_page(&two_files()).unwrap();
    tree.write(&[failed(1)], &[]).unwrap();
    tree.write(&[piece(1, 0, 100, true), piece(2, 0, 10, true)], &whole)
        .unwrap();
    tree.finish().unwrap();
    assert_eq!(names(&dir.join("d/d")), ["g"]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Wherever a file lies, what is stored of it can be read back.
#[test]
fn what_is_stored_is_read_back() {
    for staged in [false, true] {
        let dir = scratch();
        let mut tree = tree(&dir);
        if staged {
            tree.resume(&blake3::hash(b"set"), &mut || Ok(())).unwrap();
        }
        tree.add_page(&two_files()).unwrap();
        let whole: Vec<u8> = (0..110).collect();
        let read = |tree: &Tree, file, offset: u64, len| {
            let mut bytes = vec![0; len];
            let read = tree.read_back(file, offset, &mut bytes);
            read.map(|()| bytes).map_err(|e| e.to_string())
        };
        assert!(read(&tree, 1, 0, 1).is_err(), "nothing is there");
        tree.write(&[piece(1, 60, 40, true)], &whole[60..100])
            .unwrap();
        assert!(tree.incomplete.contains_key(&1));
        assert_eq!(read(&tree, 1, 70, 30).unwrap(), &whole[70..100]);
        tree.write(&[piece(1, 0, 60, false), piece(2, 0, 10, true)], &{
            let mut both = whole[..60].to_vec();
            both.extend(&whole[100..]);
            both
        })
        .unwrap();
        assert_eq!(dir.join("d").exists(), !staged);
        for is_over in [false, true] {
            assert_eq!(read(&tree, 1, 0, 100).unwrap(), &whole[..100], "{is_over}");
            assert_eq!(read(&tree, 2, 3, 7).unwrap(), &whole[103..]);
            for (file, offset) in [(0, 0), (2, 5), (3, 0), (u32::MAX, 0)] {
                assert!(read(&tree, file, offset, 7).is_err(), "{file} {offset}");
            }
            if !is_over {
                tree.finish().unwrap();
            }
        }
        std::fs::remove_file(dir.join("d/g")).unwrap();
        assert!(read(&tree, 2, 0, 1).unwrap_err().contains("d/g"));
        drop(tree);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn an_unfinished_file_leaves_nothing_with_a_name_or_without() {
    for is_named in [false, true] {
        let dir = scratch();
        let mut tree = tree(&dir);
        tree.may_be_nameless = !is_named;
        tree.add_page(&two_files()).unwrap();
        tree.write(&[piece(1, 0, 50, false)], &[1; 50]).unwrap();
        assert_eq!(names(&dir.join("d")).len(), usize::from(is_named));
        assert!(tree.finish().is_err(), "it is not complete");
        drop(tree);
        assert_eq!(names(&dir.join("d")), [""; 0]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn a_file_that_the_sender_cannot_read_is_left_out_and_told() {
    let dir = scratch();
    let mut tree = tree(&dir);
    let mut entries = vec![
        entry(TOP, "d", Kind::Directory, 0o750),
        entry(0, "f", Kind::File(100), 0o640),
        entry(0, "g", Kind::File(10), 0o640),
        entry(0, "h", Kind::HardLink(1), 0o640),
    ];
    entries[3].mtime = 0;
    tree.add_page(&page(&entries)).unwrap();
    tree.write(&[piece(1, 0, 50, false)], &[1; 50]).unwrap();
    tree.write(&[failed(1), piece(2, 0, 10, true)], &[2; 10])
        .unwrap();
    let challenge = Challenge::new([9; 32], 110);
    let zeros = [[0; 100].as_slice(), &[2; 10]].concat();
    let secret = tree.answer(challenge.key()).unwrap();
    assert_eq!(secret.proof(1), challenge.secret(&zeros).proof(1));
    tree.finish().unwrap();
    assert_eq!(names(&dir.join("d")), ["g"]);
    assert_eq!(tree.failed(), [dir.join("d/f"), dir.join("d/h")]);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A sender that was found by its announcement may be anybody.
#[test]
fn a_sender_that_may_be_anybody_gets_no_wide_permissions() {
    let entries = [
        entry(TOP, "d", Kind::Directory, 0o1777),
        entry(0, "run", Kind::File(0), 0o6777),
        entry(0, "too", Kind::File(0), 0o755),
        entry(TOP, "top", Kind::File(0), 0o777),
        entry(TOP, "name", Kind::HardLink(2), 0o755),
    ];
    let user = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let modes_of = |owner, is_tame, is_privileged, umask| {
        let mut entries = entries.clone();
        entries[1].owner = owner;
        let dir = scratch();
        let mut tree = tree(&dir);
        tree.destination.is_tame = is_tame;
        tree.destination.is_privileged = is_privileged;
        tree.umask = umask;
        tree.add_page(&page(&entries)).unwrap();
        let all = [1, 2, 3].map(|file| piece(file, 0, 0, true));
        tree.write(&all, &[]).unwrap();
        tree.finish().unwrap();
        let modes = ["d", "d/run", "d/too", "top"].map(|name| {
            let meta = dir.join(name).metadata().unwrap();
            meta.mode() & 0o7777
        });
        std::fs::remove_dir_all(dir).unwrap();
        modes
    };
    let modes = |is_tame, is_privileged, umask| modes_of(user, is_tame, is_privileged, umask);
    assert_eq!(modes(true, false, 0), [0o755, 0o755, 0o644, 0o644]);
    assert_eq!(modes(true, false, 0o077), [0o700, 0o700, 0o600, 0o600]);
    assert_eq!(modes(true, true, 0), [0o755, 0o755, 0o644, 0o644]);
    assert_eq!(modes(false, false, 0o077), [0o777, 0o777, 0o755, 0o777]);
    assert_eq!(modes(false, true, 0o077), [0o1777, 0o6777, 0o755, 0o777]);
    // What would run as its owner does not run as another user.
    let nobody = (u32::MAX, u32::MAX);
    let of_nobody = modes_of(nobody, false, true, 0o077);
    assert_eq!(of_nobody, [0o1777, 0o777, 0o755, 0o777]);
}

/// A sender that was found by its announcement may be anybody, and gives files to nobody. A sender
/// that the user has named gives each entry its owner.
#[test]
fn owners_come_from_senders_that_were_named() {
    let own = rustix::process::geteuid().as_raw();
    if own != 0 {
        println!("skipped: only root can give files away");
        return;
    }
    let owner = (12_345, 23_456);
    let kinds = [
        ("d", Kind::Directory),
        ("f", Kind::File(2)),
        ("link", Kind::Symlink((*b"f").into())),
        ("fifo", Kind::Special(Special::Fifo)),
        ("long", Kind::File(1)),
    ];
    let names = kinds.each_ref().map(|(name, _)| *name);
    let mut entries = kinds.map(|(name, kind)| entry(TOP, name, kind, 0o644));
    entries[0].mode = 0o755;
    for entry in &mut entries {
        entry.owner = owner;
    }
    for (is_tame, is_whole) in [(false, true), (false, false), (true, true), (true, false)] {
        let dir = scratch();
        let mut tree = tree(&dir);
        (tree.destination.is_tame, tree.destination.is_privileged) = (is_tame, true);
        tree.add_page(&page(&entries)).unwrap();
        match is_whole {
            true => tree.write(&[piece(1, 0, 2, true)], b"hi").unwrap(),
            false => {
                tree.write(&[piece(1, 0, 1, false)], b"h").unwrap();
                tree.write(&[piece(1, 1, 1, true)], b"i").unwrap();
            }
        }
        tree.write(&[piece(4, 0, 1, true)], b"x").unwrap();
        tree.finish().unwrap();
        for name in names {
            let Ok(there) = dir.join(name).symlink_metadata() else {
                assert!(is_tame && name == "fifo");
                continue;
            };
            let expected = if is_tame { own } else { owner.0 };
            assert_eq!(there.uid(), expected, "{name}, found: {is_tame}");
            assert_eq!(there.gid() == owner.1, !is_tame, "{name}, found: {is_tame}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn no_link_leads_out_of_the_destination() {
    let dir = scratch();
    let (to, outside) = (dir.join("to"), dir.join("outside"));
    std::fs::create_dir_all(&to).unwrap();
    std::fs::create_dir(&outside).unwrap();
    // The link is there before.
    symlink(&outside, to.join("d")).unwrap();
    let error = tree(&to).add_page(&two_files()).unwrap_err();
    assert!(error.to_string().contains("none here"), "{error}");
    std::fs::remove_file(to.join("d")).unwrap();
    // Somebody puts it there in the midst.
    let mut tree = tree(&to);
    tree.add_page(&two_files()).unwrap();
    tree.last_directory = None;
    std::fs::remove_dir(to.join("d")).unwrap();
    symlink(&outside, to.join("d")).unwrap();
    tree.write(&[piece(1, 0, 100, true)], &[1; 100])
        .unwrap_err();
    assert_eq!(names(&outside), [""; 0]);
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn names_at_the_top_are_plain_unless_the_user_chose_one() {
    let dir = scratch();
    for name in [".profile", "-rf", "a\u{202e}b"] {
        let one = page(&[entry(TOP, name, Kind::File(0), 0o644)]);
        let error = tree(&dir).add_page(&one).unwrap_err();
        assert!(error.to_string().contains("no name for a file"), "{error}");
        let mut chosen = tree(&dir);
        chosen.destination.name = Some("mine".into());
        chosen.add_page(&one).unwrap();
        chosen.write(&[piece(0, 0, 0, true)], &[]).unwrap();
        assert_eq!(names(&dir), ["mine"]);
    }
    let mut chosen = tree(&dir);
    chosen.destination.name = Some("mine".into());
    let two = page(&[
        entry(TOP, "a", Kind::File(0), 0o644),
        entry(TOP, "b", Kind::File(0), 0o644),
    ]);
    assert!(chosen.add_page(&two).is_err());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_is_there_stays_unless_it_may_be_replaced() {
    for (is_named, overwrite) in [(false, false), (false, true), (true, false), (true, true)] {
        let dir = scratch();
        let mut tree = tree(&dir);
        tree.may_be_nameless = !is_named;
        tree.destination.overwrite = overwrite;
        tree.add_page(&two_files()).unwrap();
        // It comes after the receiver has looked.
        std::fs::write(dir.join("d/g"), "mine").unwrap();
        let written = tree.write(&[piece(1, 0, 100, true), piece(2, 0, 10, true)], &[1; 110]);
        assert_eq!(written.is_ok(), overwrite);
        let kept = std::fs::read(dir.join("d/g")).unwrap();
        assert_eq!(kept == b"mine", !overwrite);
        drop(tree);
        assert_eq!(names(&dir.join("d")), ["f", "g"]);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn what_has_another_type_goes_only_if_its_user_lets_it_be_deleted_and_replaced() {
    let set = page(&[
        entry(TOP, "d", Kind::Directory, 0o750),
        entry(0, "file", Kind::File(1), 0o640),
        entry(0, "link", Kind::Symlink(b"file".as_slice().into()), 0o777),
        entry(0, "sub", Kind::Directory, 0o750),
    ]);
    let begin = |replaced: &[&str]| {
        let dir = scratch();
        std::fs::create_dir(dir.join("d")).unwrap();
        for name in ["file", "link"]
            .iter()
            .filter(|name| replaced.contains(name))
        {
            std::fs::create_dir_all(dir.join("d").join(name).join("deep")).unwrap();
            std::fs::write(dir.join("d").join(name).join("deep/old"), "o").unwrap();
        }
        if replaced.contains(&"sub") {
            std::fs::write(dir.join("d/sub"), "o").unwrap();
        }
        dir
    };
    for replaced in ["file", "link", "sub"] {
        for (overwrite, deletes) in [(false, false), (true, false), (false, true)] {
            let dir = begin(&[replaced]);
            let mut tree = tree(&dir);
            (tree.destination.overwrite, tree.destination.deletes) = (overwrite, deletes);
            let error = store(&mut tree, &set, &[(1, b"n")])
                .unwrap_err()
                .to_string();
            assert!(error.contains(replaced), "{error}");
            assert!(dir.join("d").join(replaced).exists(), "{replaced}");
        }
    }
    let dir = begin(&["file", "link", "sub"]);
    let mut tree = tree(&dir);
    tree.destination.deletes = true;
    // A directory stays until everything is there.
    tree.add_page(&set).unwrap();
    tree.write(&[piece(1, 0, 1, true)], b"n").unwrap();
    assert!(dir.join("d/file/deep/old").exists() && dir.join("d/link/deep/old").exists());
    tree.finish().unwrap();
    assert_eq!(std::fs::read(dir.join("d/file")).unwrap(), b"n");
    assert!(dir.join("d/link").is_symlink() && dir.join("d/sub").is_dir());
}

#[test]
fn a_directory_that_has_the_place_of_the_set_itself_is_never_deleted() {
    let dir = scratch();
    std::fs::create_dir(dir.join("f")).unwrap();
    let mut tree = tree(&dir);
    tree.destination.deletes = true;
    let set = page(&[entry(TOP, "f", Kind::File(1), 0o640)]);
    assert!(matches!(
        store(&mut tree, &set, &[(0, b"n")]),
        Err(Error::Usage(_))
    ));
    assert!(dir.join("f").is_dir());
}

#[test]
fn copies_are_files_of_their_own_and_fail_with_their_file() {
    let set = page(&[
        entry(TOP, "d", Kind::Directory, 0o750),
        entry(0, "f", Kind::File(100), 0o640),
        entry(0, "g", Kind::Copy(1), 0o600),
        entry(0, "h", Kind::File(10), 0o640),
        entry(0, "i", Kind::Copy(3), 0o640),
        entry(0, "secret", Kind::Copy(1), 0o000),
    ]);
    for sync in [false, true] {
        let dir = scratch();
        let mut tree = tree(&dir);
        tree.destination.sync = sync;
        tree.add_page(&set).unwrap();
        tree.write(&[piece(1, 0, 100, true)], &[7; 100]).unwrap();
        tree.write(&[failed(3)], &[]).unwrap();
        tree.finish().unwrap();
        assert_eq!(names(&dir.join("d")), ["f", "g", "secret"]);
        assert_eq!(tree.failed(), [dir.join("d/h"), dir.join("d/i")]);
        assert_eq!(std::fs::read(dir.join("d/g")).unwrap(), [7; 100]);
        let [f, g, secret] = ["d/f", "d/g", "d/secret"].map(|n| dir.join(n).metadata().unwrap());
        assert!(f.ino() != g.ino() && g.nlink() == 1);
        assert_eq!([g.mode() & 0o7777, secret.mode() & 0o7777], [0o600, 0]);
        assert_eq!((g.mtime(), g.mtime_nsec()), (1_000_000_000, 5));
    }
}

#[test]
fn a_file_that_somebody_changes_is_not_copied() {
    for how in ["written", "gone", "fifo"] {
        let dir = scratch();
        let mut tree = tree(&dir);
        let set = page(&[
            entry(TOP, "d", Kind::Directory, 0o750),
            entry(0, "f", Kind::File(100), 0o640),
            entry(0, "g", Kind::Copy(1), 0o600),
        ]);
        tree.add_page(&set).unwrap();
        tree.write(&[piece(1, 0, 100, true)], &[7; 100]).unwrap();
        let file = dir.join("d/f");
        match how {
            "written" => std::fs::write(&file, [8; 100]).unwrap(),
            _ => std::fs::remove_file(&file).unwrap(),
        }
        if how == "fifo" {
            let mode = Mode::RUSR;
            sys::mknodat(sys::CWD, &file, sys::FileType::Fifo, mode, 0).unwrap();
        }
        tree.finish().unwrap();
        assert_eq!(tree.failed(), [dir.join("d/g")], "{how}");
        assert!(!dir.join("d/g").exists());
        assert_eq!(tree.taken(), 200, "what does not come takes nothing more");
    }
}

/// A long file has its space when it begins, where the file system can do that, and all others
/// when their bytes are there. What does not come takes none.
#[test]
fn space_counts_when_it_is_taken() {
    const LONG: u64 = 3 << 20;
    let dir = scratch();
    let mut tree = tree(&dir);
    let set = page(&[
        entry(TOP, "d", Kind::Directory, 0o750),
        entry(0, "long", Kind::File(LONG), 0o640),
        entry(0, "short", Kind::File(100), 0o640),
        entry(0, "lost", Kind::File(LONG), 0o640),
        entry(0, "copy", Kind::Copy(1), 0o640),
    ]);
    tree.add_page(&set).unwrap();
    assert_eq!(tree.taken(), 0);
    tree.write(&[piece(2, 0, 60, false)], &[7; 60]).unwrap();
    assert_eq!(tree.taken(), 60);
    tree.write(&[piece(1, 0, 1000, false)], &[7; 1000]).unwrap();
    let space = dir.join("space");
    let can_allocate = File::create(&space).is_ok_and(|file| disk::allocate(&file, LONG).is_ok());
    std::fs::remove_file(space).unwrap();
    let taken = if can_allocate { LONG } else { 1000 };
    assert_eq!(tree.taken(), 60 + taken);
    tree.write(&[piece(3, 0, 1000, false)], &[7; 1000]).unwrap();
    tree.write(&[failed(3)], &[]).unwrap();
    assert_eq!(tree.taken(), 60 + taken + LONG);
    let rest = vec![7; LONG as usize - 1000];
    let len = rest.len() as u32;
    tree.write(&[piece(1, 1000, len, true)], &rest).unwrap();
    tree.write(&[piece(2, 60, 40, true)], &[7; 40]).unwrap();
    assert_eq!(tree.taken(), 100 + 2 * LONG);
    tree.finish().unwrap();
    assert_eq!(tree.taken(), 100 + 3 * LONG);
}
