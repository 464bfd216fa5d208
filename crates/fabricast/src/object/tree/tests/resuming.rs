//! Tests of sets that an earlier run has begun.

use super::super::journal::Record;
use super::*;
use crate::object::HASH;
use crate::object::pack::Pack;
use crate::object::source_set::SourceSet;

/// A tree with long, small, empty and sparse files, links, and directories.
pub fn source(dir: &Path) -> Arc<SourceSet> {
    let from = dir.join("from");
    std::fs::create_dir_all(from.join("sub")).unwrap();
    for i in 0..300 {
        std::fs::write(from.join(format!("sub/{i}")), "x".repeat(i * 40)).unwrap();
    }
    for (name, len) in [("a", 9_000_000), ("b", 5_000_000), ("c", 0)] {
        let bytes = crate::object::testing::pattern(len);
        std::fs::write(from.join(name), bytes).unwrap();
    }
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 10_000], 9 << 20).unwrap();
    sparse.set_len(20 << 20).unwrap();
    std::fs::hard_link(from.join("a"), from.join("sub/again")).unwrap();
    std::fs::copy(from.join("b"), from.join("same")).unwrap();
    symlink("a", from.join("soft")).unwrap();
    set_of(std::slice::from_ref(&from))
}

/// A tree beneath `root` that replaces nothing, and what an earlier run has left.
pub fn resumed(root: &Path, set: &SourceSet) -> (Tree, Kept) {
    let mut tree = tree(root);
    tree.destination.overwrite = false;
    let kept = tree.resume(&set.manifest().digest(), &mut || Ok(()));
    (tree, kept.unwrap())
}

/// Stores a pack, unless it is kept. Returns whether it was.
pub fn store(tree: &mut Tree, kept: &Kept, pack: &Pack) -> bool {
    let hash: [u8; HASH] = pack.hash().into();
    if kept.packs.contains(&hash) {
        let header = tree.keep(&hash).unwrap();
        // A page has none that is kept.
        let header = header.map(|header| blake3::hash(&header.encode()));
        assert_eq!(header, pieces_of(pack).map(|_| pack.hash()));
        return true;
    }
    match pieces_of(pack) {
        None => tree.add_page(pack.payload()).unwrap(),
        Some(pieces) => {
            tree.write(&pieces, pack.payload()).unwrap();
            tree.note_pack(&pack.bytes[..pack.header], pack.payload().len());
        }
    }
    false
}

/// Ends the set, and compares it with the source.
pub fn check(mut tree: Tree, set: &SourceSet, to: &Path) {
    let secret = tree.answer(set.challenge_key()).unwrap();
    assert_eq!(secret.proof(3), set.secret(&BTreeSet::new()).proof(3));
    tree.finish().unwrap();
    let copied = set.manifest().copied();
    assert!(Some(tree.taken()) >= set.known_len().map(|len| len + copied));
    // What an earlier run has copied is copied anew.
    assert!(copied > 0 || Some(tree.taken()) == set.known_len());
    for (number, e) in (0..).zip(set.manifest().entries()) {
        let [a, b] = [set.path(number), tree.path(number)].map(|p| {
            let meta = p.symlink_metadata().unwrap();
            let is_file = meta.is_file();
            let content = is_file.then(|| blake3::hash(&std::fs::read(&p).unwrap()));
            let times = (meta.mtime(), meta.mtime_nsec());
            (meta.mode(), content, meta.nlink(), times)
        });
        assert!(a == b, "{e:?}: {a:?}, {b:?}");
    }
    assert_eq!(names(to), ["from"], "the journal is gone");
    assert_eq!(names(&to.join("from")), names(&to.with_file_name("from")));
}

/// A run ends after any number of packs, in any order, and another one goes on: each pack comes
/// once.
#[test]
fn a_run_goes_on_where_another_has_ended() {
    let dir = scratch();
    let set = source(&dir);
    let (packs, _) = packs(&set);
    let cases = [(false, 1), (true, 2), (false, 3), (false, packs.len())];
    let cases = cases.iter().flat_map(|case| [(case, false), (case, true)]);
    for (&(is_named, ends), is_there) in cases {
        let to = place(&dir, is_there);
        let (mut tree, kept) = resumed(&to, &set);
        assert!(kept.is_empty());
        tree.may_be_nameless = !is_named;
        store(&mut tree, &kept, &packs[0]);
        // The last packs first, and then every other one.
        let order = (1..packs.len()).rev().step_by(2).take(ends);
        for at in order.clone() {
            store(&mut tree, &kept, &packs[at]);
        }
        drop(tree);
        let (mut tree, kept) = resumed(&to, &set);
        let stored: Vec<bool> = packs.iter().map(|p| store(&mut tree, &kept, p)).collect();
        let expected = |at: usize| at == 0 || order.clone().any(|n| n == at);
        let expected: Vec<bool> = (0..packs.len()).map(expected).collect();
        assert_eq!(stored, expected);
        check(tree, &set, &to);
        std::fs::remove_dir_all(&to).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Makes a directory in `dir` for what is received, with or without the one that the set begins
/// with. Where it is missing, the set is staged.
fn place(dir: &Path, is_there: bool) -> PathBuf {
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    if is_there {
        std::fs::create_dir(to.join("from")).unwrap();
    }
    to
}

/// A source, its packs, and an empty directory for what is received, all in `dir`.
pub fn prepared(dir: &Path) -> (Arc<SourceSet>, Vec<Pack>, PathBuf) {
    let set = source(dir);
    let (packs, _) = packs(&set);
    (set, packs, place(dir, false))
}

/// Stores all packs. Returns whether all were kept.
pub fn store_all(tree: &mut Tree, kept: &Kept, packs: &[Pack]) -> bool {
    let were_kept = packs.iter().map(|pack| store(tree, kept, pack));
    were_kept.fold(true, |all, was_kept| all & was_kept)
}

/// A run ends just before the end: all files are there under their names, and some links.
#[test]
fn a_run_that_ended_at_the_end_is_ended() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let (mut tree, kept) = resumed(&to, &set);
    store_all(&mut tree, &kept, &packs);
    let from = to.join(tree.relative(0));
    symlink("a", from.join("soft")).unwrap();
    std::fs::hard_link(from.join("a"), from.join("sub/again")).unwrap();
    drop(tree);
    let (mut tree, kept) = resumed(&to, &set);
    assert!(store_all(&mut tree, &kept, &packs));
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// What the sender does not announce does not count, though it matches the journal: a file that has
/// its name already loses it, and its bytes come again.
#[test]
fn what_the_sender_does_not_announce_does_not_count() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let (mut tree, kept) = resumed(&to, &set);
    store_all(&mut tree, &kept, &packs);
    drop(tree);
    let (mut tree, mut kept) = resumed(&to, &set);
    let all = std::mem::take(&mut kept.packs);
    kept.packs = all.into_iter().take(2).collect();
    kept.packs.insert(packs[0].hash().into());
    store_all(&mut tree, &kept, &packs);
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A run that has stored nothing leaves nothing, and neither does one whose error would come again.
#[test]
fn nothing_is_left_where_nothing_is_worth_it() {
    let dir = scratch();
    let set = source(&dir);
    let (packs, _) = packs(&set);
    for (is_error, is_there) in [(false, false), (true, false), (false, true), (true, true)] {
        let to = place(&dir, is_there);
        let (mut tree, kept) = resumed(&to, &set);
        store(&mut tree, &kept, &packs[0]);
        if is_error {
            store(&mut tree, &kept, &packs[1]);
            let from = to.join(tree.relative(0));
            assert!(names(&to).len() == 2 && names(&from).len() > 1);
            tree.discard();
        }
        drop(tree);
        match is_there {
            false => assert_eq!(names(&to), [""; 0]),
            true => {
                assert_eq!(names(&to), ["from"]);
                assert_eq!(names(&to.join("from")), ["sub"], "{is_error}");
            }
        }
        std::fs::remove_dir_all(&to).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that has another name by now stays as it is. What was proven in it and is announced later
/// is in the file that takes its place, too.
#[test]
fn a_file_with_another_name_is_copied_with_all_that_was_proven_in_it() {
    let dir = scratch();
    let (set, packs, to) = prepared(&dir);
    let (mut tree, kept) = resumed(&to, &set);
    packs
        .iter()
        .for_each(|pack| _ = store(&mut tree, &kept, pack));
    let (id, from) = (tree.id.clone().unwrap(), to.join(tree.relative(0)));
    drop(tree);
    // The journal of a run that stored all but the first packs of the first long file.
    let root = Arc::new(OwnedFd::from(File::open(&to).unwrap()));
    let mut journal = Journal::open(&root, id).unwrap();
    let records: Vec<Record> = std::iter::from_fn(|| journal.next()).collect();
    journal.clear().unwrap();
    let first = records
        .iter()
        .position(|r| matches!(r, Record::Pack { .. }));
    for (at, record) in records.iter().enumerate() {
        if Some(at) != first {
            journal.add(record);
        }
    }
    drop(journal);
    for name in ["a", "b"] {
        std::fs::hard_link(from.join(name), dir.join(name)).unwrap();
    }
    let (mut tree, kept) = resumed(&to, &set);
    let stored = packs.iter().filter(|pack| store(&mut tree, &kept, pack));
    assert_eq!(stored.count(), packs.len() - 1);
    for name in ["a", "b"] {
        std::fs::remove_file(dir.join(name)).unwrap();
    }
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// What a run has left within the directories of its set goes, when the leftovers are removed and
/// when another run finds that all further ones would fail. What is of another run stays.
#[test]
fn what_is_left_within_directories_is_removed() {
    let dir = scratch();
    let set = source(&dir);
    let (packs, _) = packs(&set);
    for is_discarded in [false, true] {
        let to = place(&dir, true);
        let within = to.join("from");
        let (mut tree, kept) = resumed(&to, &set);
        store(&mut tree, &kept, &packs[0]);
        store(&mut tree, &kept, &packs[1]);
        drop(tree);
        assert!(names(&within)[0].ends_with(".partial"), "a part of `a`");
        let stays = [".fabricast-other.1.partial", ".fabricast-.partial", "own"];
        for name in stays {
            std::fs::write(within.join(name), "").unwrap();
        }
        // A link has the place of another directory of the set.
        let outside = dir.join("outside");
        std::fs::create_dir(&outside).unwrap();
        let left = names(&within)[1].clone();
        std::fs::write(outside.join(&left), "").unwrap();
        if is_discarded {
            resumed(&to, &set).0.discard();
        } else {
            std::fs::remove_dir_all(within.join("sub")).unwrap();
            symlink(&outside, within.join("sub")).unwrap();
            assert_eq!(remove_leftovers(&to).unwrap(), 1);
        }
        let mut expected = [&stays[..], &["sub"]].concat();
        expected.sort();
        assert_eq!(names(&within), expected);
        assert_eq!(names(&to), ["from"]);
        assert_eq!(names(&outside), [left]);
        for path in [to, outside] {
            std::fs::remove_dir_all(path).unwrap();
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}
