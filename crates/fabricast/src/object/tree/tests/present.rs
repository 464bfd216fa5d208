//! Tests of files that are in their places before a set comes.

use std::time::Duration;

use super::super::present_pieces::TAKING_OVER;
use super::resuming::{check, resumed, source};
use super::*;
use crate::object::pack::Pack;
use crate::object::source_set::SourceSet;
use crate::waker::Waker;

/// The packs of a set, which is in `to` already.
fn stored(dir: &Path) -> (Arc<SourceSet>, Vec<Pack>, PathBuf) {
    let set = source(dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let (packs, _) = packs(&set);
    let (mut tree, _) = resumed(&to, &set);
    for pack in &packs {
        come(&mut tree, pack);
    }
    check(tree, &set, &to);
    (set, packs, to)
}

fn come(tree: &mut Tree, pack: &Pack) {
    match pieces_of(pack) {
        None => tree.add_page(pack.payload()).unwrap(),
        Some(pieces) => {
            tree.write(&pieces, pack.payload()).unwrap();
            tree.note_pack(&pack.bytes[..pack.header], pack.payload().len());
        }
    }
}

/// Lets the thread look at everything.
fn all_of(tree: &Tree) -> Proving {
    let waker = Waker::new().unwrap();
    let mut proving = tree.prove_present(waker.clone());
    while !proving.is_done() {
        waker.wait(Some(Duration::from_millis(100))).unwrap();
    }
    proving
}

/// A tree that may replace files, and has the manifest. Of each pack of files: what is present, if
/// it is.
fn looked(to: &Path, set: &SourceSet, packs: &[Pack]) -> (Tree, Vec<Option<PresentPack>>) {
    let (mut tree, kept) = resumed(to, set);
    tree.destination.overwrite = true;
    let is_page = |pack: &&Pack| pack.is_page();
    if kept.is_empty() {
        packs
            .iter()
            .filter(is_page)
            .for_each(|page| come(&mut tree, page));
    }
    let mut proving = all_of(&tree);
    let files = packs.iter().filter(|pack| !pack.is_page());
    let present = files.map(|pack| proving.take(&pack.hash().into()));
    let present: Vec<_> = present.collect();
    let is_any = present.iter().any(Option::is_some);
    assert!(proving.has_candidates() || !is_any);
    (tree, present)
}

/// Keeps a pack that is present, or stores one that has come.
fn take(tree: &mut Tree, pack: &Pack, present: Option<PresentPack>) {
    let Some(present) = present else {
        return come(tree, pack);
    };
    let len: u64 = pieces_of(pack).unwrap().iter().map(Piece::size).sum();
    assert_eq!(present.bytes(), len);
    let header = tree.keep_present(present).unwrap();
    assert_eq!(blake3::hash(&header.encode()), pack.hash());
}

fn take_all(tree: &mut Tree, packs: &[Pack], present: Vec<Option<PresentPack>>) {
    let files = packs.iter().filter(|pack| !pack.is_page());
    for (pack, present) in files.zip(present) {
        take(tree, pack, present);
    }
}

/// Copies what is in the old files, and ends the set.
fn end(mut tree: Tree, set: &SourceSet, to: &Path) {
    let mut before = tree.unsettled();
    while tree.take_over().unwrap() {
        assert!(tree.unsettled() < before);
        before = tree.unsettled();
    }
    assert_eq!(tree.unsettled(), 0);
    check(tree, set, to);
}

fn lacking(present: &[Option<PresentPack>]) -> usize {
    present.iter().filter(|pack| pack.is_none()).count()
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

/// Changes a file, which keeps its length and its time.
fn spoil(path: &Path, at: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"other", at).unwrap();
    file.set_modified(time).unwrap();
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// All but the file with two names, which comes, is there and stays, and gets the permissions of
/// the set.
#[test]
fn files_that_are_there_make_the_packs_of_the_sender() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let kept = ["b", "sparse"].map(|name| to.join("from").join(name));
    let before = kept.each_ref().map(|path| inode(path));
    set_mode(&kept[0], 0o600);
    let (mut tree, present) = looked(&to, &set, &packs);
    assert!(lacking(&present) < present.len());
    take_all(&mut tree, &packs, present);
    assert!(tree.is_complete() && !tree.has_lost());
    end(tree, &set, &to);
    assert_eq!(kept.each_ref().map(|path| inode(path)), before);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Looking changes nothing, and pages alone do not either.
#[test]
fn what_is_looked_at_stays_as_it_is() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    set_mode(&to.join("from/b"), 0o600);
    std::fs::remove_dir_all(to.join("from/sub")).unwrap();
    std::fs::write(to.join("from/sub"), "a file").unwrap();
    let before = names(&to.join("from"));
    let mut tree = tree(&to);
    tree.destination.deletes = true;
    tree.take_page(packs[0].payload()).unwrap();
    assert!(all_of(&tree).has_candidates());
    assert_eq!(tree.taken(), 0);
    drop(tree);
    assert_eq!(names(&to), ["from"]);
    assert_eq!(names(&to.join("from")), before);
    assert_eq!(std::fs::read(to.join("from/sub")).unwrap(), b"a file");
    let mode = to.join("from/b").metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(set.known_len() > Some(0));
    std::fs::remove_dir_all(dir).unwrap();
}

/// Of a file of several packs some are present. In any order, what comes goes to a new file, the
/// rest is copied, and the old file stays until the new one is complete.
#[test]
fn a_file_that_differs_is_made_anew_from_both() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let file = to.join("from/b");
    for is_reversed in [false, true] {
        spoil(&file, 4_500_000);
        let spoiled = std::fs::read(&file).unwrap();
        let (mut tree, present) = looked(&to, &set, &packs);
        let files = packs.iter().filter(|pack| !pack.is_page());
        let mut all: Vec<_> = files.zip(present).collect();
        if is_reversed {
            all.reverse();
        }
        let of_b = |pack: &Pack| pieces_of(pack).unwrap()[0].file() == number(&set, b"b");
        let kept = all
            .iter()
            .filter(|(pack, present)| present.is_some() && of_b(pack));
        assert!(kept.count() > 0);
        for (pack, present) in all {
            assert!(!of_b(pack) || std::fs::read(&file).unwrap() == spoiled);
            take(&mut tree, pack, present);
        }
        end(tree, &set, &to);
        assert!(std::fs::read(&file).unwrap() != spoiled);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

fn number(set: &SourceSet, name: &[u8]) -> u32 {
    let mut entries = set.manifest().entries().iter();
    entries.position(|entry| *entry.name == *name).unwrap() as u32
}

/// A set of files of the pattern with these lengths, of which there is a copy.
fn copied(dir: &Path, lens: &[usize]) -> (Arc<SourceSet>, Vec<Pack>, PathBuf) {
    let (from, to) = (dir.join("from"), dir.join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    for (number, len) in lens.iter().enumerate() {
        let bytes = crate::object::testing::pattern(*len);
        std::fs::write(from.join(format!("{number:03}")), bytes).unwrap();
    }
    let mut copy = std::process::Command::new("cp");
    copy.arg("-a").arg(&from).arg(&to);
    assert!(copy.status().unwrap().success());
    let set = set_of(std::slice::from_ref(&from));
    let (packs, _) = packs(&set);
    (set, packs, to)
}

/// A long file is copied in steps, between which packs are stored. What has counted as stored still
/// does. Until a piece is copied it is read back from the old file.
#[test]
fn a_long_file_is_copied_in_steps() {
    let dir = scratch();
    let (set, packs, to) = copied(&dir, &[36 << 20]);
    spoil(&to.join("from/000"), 0);
    let (mut tree, present) = looked(&to, &set, &packs);
    assert_eq!(lacking(&present), 1);
    let file = number(&set, b"000");
    let (mut stored, mut done) = (0, 0);
    let all = packs.iter().filter(|pack| !pack.is_page()).zip(present);
    let expected = crate::object::testing::pattern(36 << 20);
    for (pack, present) in all {
        take(&mut tree, pack, present);
        stored += pack.payload().len() as u64;
        let before = std::mem::replace(&mut done, stored - tree.unsettled());
        assert!(done >= before);
        for piece in pieces_of(pack).unwrap() {
            let mut there = vec![0; piece.size() as usize];
            tree.read_back(file, piece.start(), &mut there).unwrap();
            assert!(there == expected[piece.start() as usize..piece.end() as usize]);
        }
    }
    let mut left = vec![tree.unsettled()];
    while tree.take_over().unwrap() {
        left.push(tree.unsettled());
    }
    assert_eq!(left, [21, 5].map(|mib| mib << 20));
    check(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Many long files of which a part comes need few descriptors at once.
#[test]
fn few_files_wait_to_be_copied() {
    let dir = scratch();
    let lens: [usize; TAKING_OVER + 2] = std::array::from_fn(|n| (26 << 20) + n);
    let (set, packs, to) = copied(&dir, &lens);
    (0..TAKING_OVER + 2).for_each(|number| spoil(&to.join(format!("from/{number:03}")), 0));
    let (mut tree, present) = looked(&to, &set, &packs);
    let files = packs.iter().filter(|pack| !pack.is_page());
    let mut most = 0;
    for (pack, present) in files.zip(present) {
        take(&mut tree, pack, present);
        most = most.max(tree.present.partials().count());
    }
    assert_eq!(most, TAKING_OVER - 1);
    end(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A run that is interrupted while it updates files is gone on with: what has come, and what is
/// present, need not come.
#[test]
fn an_interrupted_run_asks_for_nothing_again() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    spoil(&to.join("from/b"), 4_500_000);
    spoil(&to.join("from/sub/12"), 0);
    for ends in 1..packs.len() {
        let (mut tree, present) = looked(&to, &set, &packs);
        let files = packs.iter().filter(|pack| !pack.is_page()).zip(present);
        for (pack, present) in files.take(ends) {
            let hash = pack.hash().into();
            match tree.kept.contains_key(&hash) {
                true => _ = tree.keep(&hash).unwrap(),
                false => take(&mut tree, pack, present),
            }
        }
        drop(tree);
        let (tree, present) = looked(&to, &set, &packs);
        let files = packs.iter().filter(|pack| !pack.is_page()).zip(&present);
        for (pack, present) in files.take(ends) {
            let is_kept = tree.kept.contains_key(&<[u8; 32]>::from(pack.hash()));
            assert!(is_kept || present.is_some(), "it comes again after {ends}");
        }
    }
    let (mut tree, present) = looked(&to, &set, &packs);
    let files = packs.iter().filter(|pack| !pack.is_page()).zip(present);
    for (pack, present) in files {
        let hash = pack.hash().into();
        match tree.kept.contains_key(&hash) {
            true => assert!(tree.keep(&hash).unwrap().is_some()),
            false => take(&mut tree, pack, present),
        }
    }
    end(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that has the name from an earlier run, and of which a piece comes after all, goes on from
/// what it was, also with pieces that were found in it before.
#[test]
fn a_named_file_that_goes_on_keeps_what_is_present() {
    let dir = scratch();
    let (set, packs, to) = copied(&dir, &[12 << 20]);
    let (mut tree, present) = looked(&to, &set, &packs);
    let files: Vec<_> = packs.iter().filter(|pack| !pack.is_page()).collect();
    assert!(present.len() > 2 && lacking(&present) == 0);
    // An earlier run has left a partial file with all of it.
    tree.resumes = true;
    let file = number(&set, b"000");
    let name = tree.id.as_ref().map(|id| journal::partial_name(id, file));
    let partial = to.join("from").join(name.unwrap());
    std::fs::rename(to.join("from/000"), &partial).unwrap();
    come(&mut tree, files[0]);
    for (pack, present) in files.iter().zip(present).skip(1) {
        take(&mut tree, pack, present);
    }
    assert_eq!(tree.unsettled(), 0);
    end(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Somebody changes files after they were proven. One that has the same bytes stays; another one is
/// lost, and the rest is completed.
#[test]
fn files_that_change_after_their_proof_are_proven_again() {
    let dir = scratch();
    let (set, packs, to) = copied(&dir, &[5_000_000, 6_000_000, 7_000_000, 100]);
    let path = |name: &str| to.join("from").join(name);
    let (mut tree, present) = looked(&to, &set, &packs);
    set_mode(&path("000"), 0o600);
    spoil(&path("001"), 5_000_000);
    // With another name the file is copied, so that the other name keeps what it has.
    std::fs::hard_link(path("002"), dir.join("elsewhere")).unwrap();
    set_mode(&path("002"), 0o600);
    take_all(&mut tree, &packs, present);
    assert!(tree.is_complete() && tree.has_lost());
    let elsewhere = dir.join("elsewhere").metadata().unwrap();
    assert_eq!((elsewhere.mode() & 0o777, elsewhere.nlink()), (0o600, 1));
    assert_eq!(tree.failed(), [path("001")]);
    tree.finish().unwrap();
    let error = tree.check_lost().unwrap_err();
    assert!(error.to_string().contains("001: somebody"), "{error}");
    assert!(matches!(error, Error::Io { .. }));
    let mode = |path: PathBuf| path.metadata().unwrap().mode();
    assert_eq!(mode(path("000")), mode(dir.join("from/000")));
    drop(tree);
    std::fs::remove_dir_all(dir).unwrap();
}

/// The same while a file gets a new one.
#[test]
fn what_changes_while_it_is_copied_is_proven_again() {
    let dir = scratch();
    let (set, packs, to) = copied(&dir, &[30 << 20, 31 << 20, 32 << 20]);
    let path = |name: &str| to.join("from").join(name);
    for name in ["000", "001", "002"] {
        spoil(&path(name), 0);
    }
    let (mut tree, present) = looked(&to, &set, &packs);
    take_all(&mut tree, &packs, present);
    set_mode(&path("000"), 0o600);
    // The first of the bytes that are still to be copied, and the last ones.
    spoil(&path("001"), (31 << 20) - 9);
    File::options()
        .write(true)
        .open(path("002"))
        .unwrap()
        .set_len(0)
        .unwrap();
    while tree.take_over().unwrap() {}
    assert_eq!(tree.unsettled(), 0);
    tree.finish().unwrap();
    assert_eq!(tree.failed(), [path("001"), path("002")]);
    let error = tree.check_lost().unwrap_err();
    assert!(error.to_string().contains("and 1 more"), "{error}");
    let whole = std::fs::read(dir.join("from/000")).unwrap();
    assert!(std::fs::read(path("000")).unwrap() == whole);
    assert_eq!(
        names(&to.join("from")),
        ["000", "001", "002"],
        "partial files are gone"
    );
    drop(tree);
    std::fs::remove_dir_all(dir).unwrap();
}

/// What may be somebody else's, or is no file, is no candidate.
#[test]
fn only_own_files_with_one_name_are_candidates() {
    let dir = scratch();
    let (set, packs, to) = stored(&dir);
    let from = to.join("from");
    let mut tree = tree(&to);
    tree.take_page(packs[0].payload()).unwrap();
    let is_candidate = |name: &str| {
        let name = name.rsplit('/').next().unwrap();
        tree.places().open(number(&set, name.as_bytes())).is_some()
    };
    let own = ["b", "sparse", "c", "1", "2", "3", "4", "5"];
    assert_eq!(own.map(is_candidate), [true; 8]);
    assert!(
        !is_candidate("a") && !is_candidate("soft"),
        "two names; a link"
    );
    // File systems may keep times less exactly.
    let b = File::open(from.join("b")).unwrap();
    let time = b.metadata().unwrap().modified().unwrap();
    b.set_modified(time - Duration::from_secs(1)).unwrap();
    assert!(is_candidate("b"));
    std::fs::hard_link(from.join("b"), dir.join("elsewhere")).unwrap();
    std::fs::rename(from.join("sparse"), from.join("moved")).unwrap();
    symlink("moved", from.join("sparse")).unwrap();
    std::fs::remove_file(from.join("sub/1")).unwrap();
    let fifo = sys::FileType::Fifo;
    sys::mknodat(sys::CWD, from.join("sub/1"), fifo, Mode::RUSR, 0).unwrap();
    std::fs::write(from.join("sub/2"), "longer than it was").unwrap();
    let time = std::time::SystemTime::UNIX_EPOCH;
    let there = File::open(from.join("sub/3")).unwrap();
    there.set_modified(time).unwrap();
    set_mode(&from.join("sub/4"), 0o666);
    let changed = ["b", "sparse", "1", "2", "3", "4"];
    assert_eq!(changed.map(is_candidate), [false; 6]);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(from.join("sub/5"), Some(4711), None).unwrap();
        assert!(!is_candidate("5"));
    }
    std::fs::rename(from.join("sub"), from.join("other")).unwrap();
    symlink("other", from.join("sub")).unwrap();
    assert!(!is_candidate("6"), "a link leads there");
    std::fs::remove_dir_all(dir).unwrap();
}

/// A pack counts as taken of the disk when its files remain, and not before.
#[test]
fn a_file_needs_no_space_once_it_remains() {
    let dir = scratch();
    let (set, packs, to) = copied(&dir, &[9 << 20, 8 << 20]);
    spoil(&to.join("from/001"), 0);
    let (mut tree, present) = looked(&to, &set, &packs);
    assert_eq!(tree.taken(), 0);
    let files = packs.iter().filter(|pack| !pack.is_page());
    for (pack, present) in files.zip(present) {
        take(&mut tree, pack, present);
        let is_first = pieces_of(pack).unwrap()[0].file() == number(&set, b"000");
        assert!(!is_first || tree.taken() % (9 << 20) == 0);
    }
    assert_eq!(Some(tree.taken()), set.known_len());
    end(tree, &set, &to);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Packs that the stream has reached are left out with some behind them; those that were announced
/// before are not.
#[test]
fn a_thread_that_was_overtaken_leaves_packs_out() {
    let dir = scratch();
    let (set, packs, to) = copied(&dir, &[64 << 20]);
    let mut tree = tree(&to);
    tree.take_page(packs[0].payload()).unwrap();
    let found = |streamed: &[u32]| {
        let hashes = proving::found_after(tree.places(), streamed);
        let hash = |pack: &Pack| <[u8; 32]>::from(pack.hash());
        let packs = packs.iter().filter(|pack| !pack.is_page());
        packs
            .map(|pack| hashes.contains(&hash(pack)))
            .collect::<Vec<_>>()
    };
    assert!(found(&[]).iter().all(|is_found| *is_found));
    let from_start = found(&[0, 1, 2]);
    assert_eq!(from_start[..6], [false, false, false, false, false, true]);
    let late = found(&[3]);
    assert_eq!(late[..7], [true, true, false, false, false, false, true]);
    assert!(set.known_len() > Some(0));
    std::fs::remove_dir_all(dir).unwrap();
}
