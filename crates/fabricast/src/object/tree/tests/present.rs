//! Tests of files that are in their places before a set comes.

use super::resuming::{check, resumed, source};
use super::*;
use crate::object::pack::{Header, Pack};
use crate::object::source_set::SourceSet;

/// The packs of a set, which is in `to` already.
fn stored(dir: &Path) -> (Arc<SourceSet>, Vec<Pack>, PathBuf) {
    let set = source(dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let (packs, _) = packs(&set);
    let (mut tree, _) = resumed(&to, &set);
    for pack in &packs {
        come(&mut tree, pack).unwrap();
    }
    check(tree, &set, &to);
    (set, packs, to)
}

fn come(tree: &mut Tree, pack: &Pack) -> Result<(), Error> {
    match pieces_of(pack) {
        None => tree.add_page(pack.payload()),
        Some(pieces) => {
            tree.write(&pieces, pack.payload())?;
            tree.note_pack(&pack.bytes[..pack.header], pack.payload().len());
            Ok(())
        }
    }
}

/// A tree that may replace files, and has looked for those of the set. Of each pack of files: its
/// header, if its files make it.
fn looked(to: &Path, set: &SourceSet, packs: &[Pack]) -> (Tree, Vec<Option<Header>>) {
    let (mut tree, _) = resumed(to, set);
    tree.destination.overwrite = true;
    if !tree.has_manifest() {
        let mut manifest = Manifest::default();
        let pages = packs.iter().filter(|pack| pieces_of(pack).is_none());
        pages.for_each(|page| manifest.add_page(page.payload()).unwrap());
        tree.take_whole(manifest);
    }
    let mut proving = tree.find_candidates(&mut || Ok(())).unwrap();
    while let Some(proving) = &mut proving
        && proving.wait()
    {}
    let headers = packs.iter().filter_map(|pack| {
        let pieces = pieces_of(pack)?;
        let found = proving.as_mut().and_then(|it| it.take(&pack.hash().into()));
        let len: u64 = pieces.iter().map(Piece::size).sum();
        assert!(found.as_ref().is_none_or(|(_, bytes)| *bytes == len));
        Some(found.map(|(header, _)| header))
    });
    let headers = headers.collect();
    tree.begin().unwrap();
    (tree, headers)
}

/// Keeps a pack that is there, or stores one that has come.
fn take(tree: &mut Tree, pack: &Pack, header: &Option<Header>) {
    match header {
        Some(header) => tree.keep_present(header).unwrap(),
        None => come(tree, pack).unwrap(),
    }
}

fn take_all(tree: &mut Tree, packs: &[Pack], headers: &[Option<Header>]) {
    let files = packs.iter().skip(packs.len() - headers.len());
    for (pack, header) in files.zip(headers) {
        take(tree, pack, header);
    }
}

/// Copies what is in the old files, and ends the set.
fn end(mut tree: Tree, set: &SourceSet, to: &Path) {
    while tree.takes_over() {
        let before = tree.unsettled();
        tree.take_over().unwrap();
        assert!(tree.unsettled() <= before);
    }
    check(tree, set, to);
}

fn lacking(headers: &[Option<Header>]) -> usize {
    headers.iter().filter(|header| header.is_none()).count()
}

fn inodes(to: &Path) -> [u64; 4] {
    let inode = |name: &str| to.join("from").join(name).symlink_metadata().unwrap().ino();
    ["b", "sparse", "sub/7", "sub/11"].map(inode)
}

/// Changes a file, which keeps its length and its time.
fn change(path: &Path, change: impl FnOnce(&File)) {
    let file = File::options().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    change(&file);
    file.set_modified(time).unwrap();
}

/// Writes to a file in its midst.
fn spoil(path: &Path, at: u64) {
    change(path, |file| file.write_all_at(b"other", at).unwrap());
}

/// All but the file with two names, which comes, is there and stays. Until the end nothing is
/// changed, and nothing counts.
#[test]
fn files_that_are_there_make_the_packs_of_the_sender() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let before = inodes(&to);
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(to.join("from/b"), mode).unwrap();
    let (mut tree, headers) = looked(&to, &set, &packs);
    assert!(lacking(&headers) < headers.len());
    take_all(&mut tree, &packs, &headers);
    let is_open = |mode: u32| mode & 0o077 != 0;
    let mode = || to.join("from/b").metadata().unwrap().mode();
    assert!(tree.is_complete() && !is_open(mode()));
    assert!(tree.unsettled() > 5_000_000);
    end(tree, &set, &to);
    assert_eq!((inodes(&to), is_open(mode())), (before, true));
    std::fs::remove_dir_all(dir).unwrap();
}

/// Looking changes nothing: no directory is made, and what is in the way stays.
#[test]
fn what_is_looked_at_stays_until_the_set_begins() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    std::fs::remove_file(to.join("from/soft")).unwrap();
    std::fs::remove_dir_all(to.join("from/sub")).unwrap();
    std::fs::write(to.join("from/sub"), "a file").unwrap();
    let before = names(&to.join("from"));
    let mut manifest = Manifest::default();
    manifest.add_page(packs[0].payload()).unwrap();
    let mut tree = tree(&to);
    tree.destination.deletes = true;
    tree.take_whole(manifest);
    assert!(tree.find_candidates(&mut || Ok(())).unwrap().is_some());
    assert!(Some(tree.taken()) < set.known_len() && tree.taken() > 0);
    drop(tree);
    assert_eq!(
        (names(&to), names(&to.join("from"))),
        (vec!["from".into()], before)
    );
    assert_eq!(std::fs::read(to.join("from/sub")).unwrap(), b"a file");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Of a file of several packs some are there. In any order, what comes goes to a new file, the rest
/// is copied, and the old file stays until the new one is complete.
#[test]
fn a_file_that_differs_is_made_anew_from_both() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let file = to.join("from/b");
    for is_reversed in [false, true] {
        spoil(&file, 4_000_000);
        let spoiled = std::fs::read(&file).unwrap();
        let (mut tree, headers) = looked(&to, &set, &packs);
        let mut all: Vec<_> = packs[packs.len() - headers.len()..]
            .iter()
            .zip(&headers)
            .collect();
        assert!(all.iter().any(|(_, header)| header.is_some()));
        if is_reversed {
            all.reverse();
        }
        for (pack, header) in all {
            take(&mut tree, pack, header);
        }
        assert!(tree.takes_over() && tree.is_complete());
        assert!(std::fs::read(&file).unwrap() == spoiled);
        end(tree, &set, &to);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A long file is copied in steps, between which packs are stored.
#[test]
fn a_long_file_is_copied_in_steps() {
    let dir = scratch();
    let (from, to) = (dir.join("from"), dir.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    let long = 36 << 20;
    std::fs::write(from.join("long"), crate::object::testing::pattern(long)).unwrap();
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(&from).arg(&to);
    assert!(copy.status().unwrap().success());
    spoil(&to.join("from/long"), 0);
    let set = set_of(std::slice::from_ref(&from));
    let (packs, _) = packs(&set);
    let (mut tree, headers) = looked(&to, &set, &packs);
    assert_eq!(lacking(&headers), 1);
    let (mut stored, mut done) = (0, 0);
    for (pack, header) in packs[1..].iter().zip(&headers) {
        take(&mut tree, pack, header);
        stored += pack.payload().len() as u64;
        let before = std::mem::replace(&mut done, stored - tree.unsettled());
        assert!(done >= before, "what has counted as stored still does");
    }
    let mut left = vec![tree.unsettled()];
    while tree.takes_over() {
        tree.take_over().unwrap();
        left.push(tree.unsettled());
    }
    assert_eq!(left, [35, 19, 3, 0, 0].map(|mib| mib << 20));
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A pack of small files comes since one has changed. The others stay.
#[test]
fn neighbours_of_a_changed_file_are_not_written_again() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let (before, sub) = (inodes(&to), to.join("from/sub"));
    spoil(&sub.join("12"), 0);
    let inode = || sub.join("12").metadata().unwrap().ino();
    let changed = inode();
    let (mut tree, headers) = looked(&to, &set, &packs);
    take_all(&mut tree, &packs, &headers);
    end(tree, &set, &to);
    assert_eq!(inodes(&to), before);
    assert_ne!(inode(), changed);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A run that is interrupted while it updates files is gone on with: what has come, and what was
/// there, need not come.
#[test]
fn an_interrupted_run_asks_for_nothing_again() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let (_, headers) = looked(&to, &set, &packs);
    let always = lacking(&headers);
    spoil(&to.join("from/b"), 4_000_000);
    spoil(&to.join("from/sub/12"), 0);
    let (mut tree, headers) = looked(&to, &set, &packs);
    assert!(lacking(&headers) > always);
    take_all(&mut tree, &packs, &headers);
    assert!(tree.takes_over());
    drop(tree);
    let (mut tree, headers) = looked(&to, &set, &packs);
    let kept: Vec<_> = packs
        .iter()
        .map(|pack| <[u8; 32]>::from(pack.hash()))
        .collect();
    let files = &kept[packs.len() - headers.len()..];
    for (hash, header) in files.iter().zip(&headers) {
        match header {
            Some(header) if !tree.kept.contains_key(hash) => tree.keep_present(header).unwrap(),
            _ => assert!(tree.keep(hash).unwrap().is_some(), "it comes again"),
        }
    }
    end(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Somebody writes to a file after its pack was declined.
#[test]
fn a_file_that_changes_after_its_proof_is_noticed() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let (mut tree, headers) = looked(&to, &set, &packs);
    take_all(&mut tree, &packs, &headers);
    spoil(&to.join("from/b"), 0);
    let error = tree.finish().unwrap_err();
    assert!(error.to_string().contains("was changed"), "{error}");
    drop(tree);
    std::fs::remove_dir_all(dir).unwrap();
}

/// What may be somebody else's, or is no file, is no candidate.
#[test]
fn only_own_files_with_one_name_are_candidates() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let from = to.join("from");
    let candidates = || looked(&to, &set, &packs).0.old.candidates.len();
    let (all, named) = (candidates(), set.manifest().entries().len());
    assert!(all > 300 && all < named);
    // File systems may keep times less exactly.
    let (b, second) = (
        File::open(from.join("b")).unwrap(),
        std::time::Duration::from_secs(1),
    );
    let time = b.metadata().unwrap().modified().unwrap();
    b.set_modified(time - second).unwrap();
    assert_eq!(candidates(), all);
    std::fs::hard_link(from.join("b"), dir.join("elsewhere")).unwrap();
    std::fs::rename(from.join("sparse"), from.join("moved")).unwrap();
    symlink("moved", from.join("sparse")).unwrap();
    std::fs::remove_file(from.join("sub/1")).unwrap();
    sys::mknodat(
        sys::CWD,
        from.join("sub/1"),
        sys::FileType::Fifo,
        Mode::RUSR,
        0,
    )
    .unwrap();
    std::fs::write(from.join("sub/2"), "longer than it was").unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH;
    File::open(from.join("sub/3"))
        .unwrap()
        .set_modified(time)
        .unwrap();
    assert_eq!(candidates(), all - 5);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(from.join("sub/4"), Some(4711), None).unwrap();
        assert_eq!(candidates(), all - 6);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The space of files that are there counts once: they need none, but new files need their own.
#[test]
fn the_space_of_files_that_are_there_counts_once() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let (b, len) = (set.known_len().unwrap(), 5_000_000);
    spoil(&to.join("from/b"), 0);
    let (mut tree, headers) = looked(&to, &set, &packs);
    let a = 9_000_000;
    assert_eq!(tree.taken(), b - a);
    tree.leave_old(set_file(&set, b"b"));
    assert_eq!(tree.taken(), b - a - len);
    tree.leave_old(set_file(&set, b"b"));
    assert_eq!(tree.taken(), b - a - len);
    take_all(&mut tree, &packs, &headers);
    while tree.takes_over() {
        tree.take_over().unwrap();
    }
    assert_eq!(tree.taken(), b);
    drop(tree);
    std::fs::remove_dir_all(dir).unwrap();
}

fn set_file(set: &SourceSet, name: &[u8]) -> u32 {
    let entries = set.manifest().entries();
    entries
        .iter()
        .position(|entry| *entry.name == *name)
        .unwrap() as u32
}
