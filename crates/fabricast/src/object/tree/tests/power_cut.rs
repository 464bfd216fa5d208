//! A power cut at any time: no file is wrong under its name, and a later run ends the set. Once the
//! set is complete, nothing of it is lost.

use super::recorder::{Luck, Op, Recording};
use super::*;
use crate::object::pack::{Content, Pack};
use crate::object::source_set::SourceSet;

/// No entries of a set.
pub const NONE: [PathBuf; 0] = [];

/// Bytes of a piece: a long file needs several packs.
const PIECE: u64 = 20_000;

/// A tree with files of several packs and of one, holes, links and directories.
pub fn source(dir: &Path) -> Arc<SourceSet> {
    let from = dir.join("from");
    std::fs::create_dir_all(from.join("sub/empty")).unwrap();
    for (name, len) in [
        ("a", 90_000),
        ("b", 300),
        ("c", 0),
        ("e", 300),
        ("long", 70_000),
        ("sub/d", 35_000),
    ] {
        let bytes = crate::object::testing::pattern(len);
        std::fs::write(from.join(name), bytes).unwrap();
    }
    let sparse = File::create(from.join("sparse")).unwrap();
    sparse.write_all_at(&[7; 10_000], 0).unwrap();
    sparse.write_all_at(&[8; 10_000], 100_000).unwrap();
    std::fs::hard_link(from.join("a"), from.join("sub/again")).unwrap();
    std::fs::copy(from.join("long"), from.join("same")).unwrap();
    symlink("a", from.join("soft")).unwrap();
    set_of(std::slice::from_ref(&from))
}

/// The packs of a set, smaller than a sender cuts them: a page, then two pieces in each.
pub fn small_packs(set: &SourceSet) -> Vec<Pack> {
    let mut page = Vec::new();
    set.manifest().put_page(0, &mut page);
    let mut pieces = Vec::new();
    for (file, entry) in (0..).zip(set.manifest().entries()) {
        let Kind::File(len) = entry.kind else {
            continue;
        };
        let content = std::fs::read(set.path(file)).unwrap();
        let mut offset = 0;
        loop {
            let end = (offset + PIECE).min(len);
            let last = end == len;
            let bytes = content[offset as usize..end as usize].to_vec();
            pieces.push(match bytes.iter().all(|b| *b == 0) && !bytes.is_empty() {
                true => (
                    Piece::Hole {
                        file,
                        offset,
                        len: end - offset,
                        last,
                    },
                    Vec::new(),
                ),
                false => (piece(file, offset, (end - offset) as u32, last), bytes),
            });
            // The sender keeps samples of what it reads.
            set.sample(file, offset, &content[offset as usize..end as usize]);
            offset = end;
            if last {
                break;
            }
        }
    }
    let packs = pieces.chunks(2).map(|some| {
        let (pieces, bytes): (Vec<Piece>, Vec<Vec<u8>>) = some.iter().cloned().unzip();
        Pack::new(Content::Pieces(pieces), &bytes.concat())
    });
    std::iter::once(Pack::new(Content::Page, &page))
        .chain(packs)
        .collect()
}

/// Receives the set into `to`, where an earlier run may have begun, up to `count` packs, and to its
/// end if there are no more. The packs come from number `from` on.
fn receive(
    set: &SourceSet,
    packs: &[Pack],
    to: &Path,
    (from, count): (usize, usize),
    (named, sync): (bool, bool),
) {
    let (mut tree, kept) = super::resuming::resumed(to, set);
    tree.destination.sync = sync;
    tree.may_be_nameless = !named;
    super::resuming::store(&mut tree, &kept, &packs[0]);
    let files = &packs[1..];
    for at in 0..count.min(files.len()) {
        let pack = &files[(from + at) % files.len()];
        super::resuming::store(&mut tree, &kept, pack);
    }
    if count >= files.len() {
        let secret = tree.answer(set.challenge_key()).unwrap();
        let none = BTreeSet::new();
        assert_eq!(secret.proof(3), set.secret(&none).proof(3));
        tree.finish().unwrap();
    }
}

/// The files of the set that are under their names beneath `to`, and are not those of the source.
pub fn wrong(set: &SourceSet, to: &Path) -> Vec<PathBuf> {
    let mut wrong = Vec::new();
    for (number, entry) in (0..).zip(set.manifest().entries()) {
        let path = to.join(OsStr::from_bytes(&set.manifest().path(number)));
        let is_wrong = match &entry.kind {
            Kind::File(_) | Kind::HardLink(_) | Kind::Copy(_) => {
                path.exists() && std::fs::read(&path).unwrap() != content(set, number)
            }
            _ => false,
        };
        wrong.extend(is_wrong.then_some(path));
    }
    wrong
}

pub fn content(set: &SourceSet, number: u32) -> Vec<u8> {
    std::fs::read(set.path(number)).unwrap()
}

/// The entries of the set that are missing beneath `to`, or have another mode or time.
pub fn lost(set: &SourceSet, to: &Path) -> Vec<PathBuf> {
    let mut lost = Vec::new();
    for (number, entry) in (0..).zip(set.manifest().entries()) {
        let path = to.join(OsStr::from_bytes(&set.manifest().path(number)));
        let is_here = path.symlink_metadata().is_ok_and(|there| {
            let time = (there.mtime(), there.mtime_nsec());
            let is_same = (there.mode() & 0o7777, time)
                == (entry.mode.into(), (entry.mtime, entry.mtime_ns.into()));
            is_same || there.is_symlink()
        });
        if !is_here {
            lost.push(path);
        }
    }
    lost
}

/// Cuts a recording after each operation, in several ways, and calls `check` with the directory
/// that is left, and with whether the recording had ended.
pub fn each_cut(recording: &Recording, seeds: u64, mut check: impl FnMut(&Path, bool)) {
    let left = scratch();
    for count in 0..=recording.ops.len() {
        let lucks = [Luck::Nothing, Luck::Names, Luck::Bytes];
        let some = (0..seeds).map(|seed| Luck::some(seed * 10_000 + count as u64));
        for mut luck in lucks.into_iter().chain(some) {
            let to = left.join("to");
            std::fs::create_dir(&to).unwrap();
            recording.cut(count, &mut luck, &to);
            check(&to, count == recording.ops.len());
            std::fs::remove_dir_all(&to).unwrap();
        }
    }
    std::fs::remove_dir_all(left).unwrap();
}

fn recorded(set: &SourceSet, packs: &[Pack], to: &Path, named: bool) -> Recording {
    Recording::of(to, || {
        receive(set, packs, to, (3, usize::MAX), (named, true))
    })
}

/// Ends what a power cut has left, and checks that it is the source.
fn ends(set: &SourceSet, packs: &[Pack], to: &Path, named: bool) {
    receive(set, packs, to, (0, usize::MAX), (named, false));
    assert_eq!((wrong(set, to), lost(set, to)), (Vec::new(), Vec::new()));
    assert_eq!(names(to), ["from"], "the journal is gone");
}

#[test]
fn a_power_cut_leaves_no_wrong_file_and_a_later_run_ends_the_set() {
    let dir = scratch();
    let set = source(&dir);
    let packs = small_packs(&set);
    // A directory that is there is not staged.
    for (named, is_there) in [(false, false), (true, false), (false, true), (true, true)] {
        let to = dir.join(format!("to-{named}-{is_there}"));
        std::fs::create_dir(&to).unwrap();
        if is_there {
            std::fs::create_dir(to.join("from")).unwrap();
        }
        let recording = recorded(&set, &packs, &to, named);
        assert!(recording.ops.len() > 40);
        each_cut(&recording, 2, |left, is_over| {
            assert_eq!(wrong(&set, left), NONE);
            // A staged directory has its name only with all that it holds.
            if is_over || !is_there && left.join("from").exists() {
                assert_eq!(lost(&set, left), NONE);
            }
            if !is_over {
                ends(&set, &packs, left, named);
            }
        });
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The run that goes on is cut, too: files that the first one has named, and the second one cannot
/// know whether they were flushed.
#[test]
fn a_second_power_cut_is_like_the_first() {
    let dir = scratch();
    let set = source(&dir);
    let packs = small_packs(&set);
    for (count, seed) in [(2, 1), (4, 2), (6, 3)] {
        let (first, second) = (dir.join("first"), dir.join("second"));
        std::fs::create_dir(&first).unwrap();
        std::fs::create_dir(&second).unwrap();
        let recording = Recording::of(&first, || {
            receive(&set, &packs, &first, (2, count), (true, true));
        });
        recording.cut(recording.ops.len(), &mut Luck::some(seed), &second);
        let recording = recorded(&set, &packs, &second, true);
        each_cut(&recording, 1, |left, is_over| {
            assert_eq!(wrong(&set, left), NONE);
            match is_over {
                true => assert_eq!(lost(&set, left), NONE),
                false => ends(&set, &packs, left, true),
            }
        });
        std::fs::remove_dir_all(first).unwrap();
        std::fs::remove_dir_all(second).unwrap();
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The tests above notice if a flush is left out: of files, files are wrong under their names; of
/// directories, complete ones are lost.
#[test]
fn without_flushes_files_would_be_wrong_or_lost() {
    let dir = scratch();
    let set = source(&dir);
    let packs = small_packs(&set);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let mut recording = recorded(&set, &packs, &to, false);
    let whole = std::mem::take(&mut recording.ops);
    let is_flush = |op: &Op| matches!(op, Op::Flush(_) | Op::FlushAll);
    let links = whole.iter().position(|op| matches!(op, Op::Symlink(..)));
    let links = links.unwrap();
    // Before the links, flushes are for files, and after them for names.
    for is_for_files in [true, false] {
        let ops = whole.iter().enumerate();
        let kept = ops.filter(|(at, op)| !is_flush(op) || (*at < links) != is_for_files);
        recording.ops = kept.map(|(_, op)| op.clone()).collect();
        let (mut wrong_files, mut lost_entries) = (0, 0);
        each_cut(&recording, 0, |left, is_over| {
            wrong_files += wrong(&set, left).len();
            lost_entries += if is_over { lost(&set, left).len() } else { 0 };
        });
        assert_eq!(wrong_files > 0, is_for_files);
        assert!(is_for_files || lost_entries > 0);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// However many files a pack has, they are flushed once.
#[test]
fn small_files_of_a_pack_are_flushed_together() {
    for count in [2 * BATCH, 2 * BATCH + 1, 2 * BATCH + 9] {
        let dir = scratch();
        let from = dir.join("from");
        std::fs::create_dir(&from).unwrap();
        for number in 0..count {
            std::fs::write(from.join(number.to_string()), number.to_string()).unwrap();
        }
        let set = set_of(std::slice::from_ref(&from));
        let (packs, _) = packs(&set);
        let to = dir.join("to");
        std::fs::create_dir(&to).unwrap();
        let recording = Recording::of(&to, || {
            receive(&set, &packs, &to, (0, usize::MAX), (false, true));
        });
        let flushes = recording.ops.iter();
        assert_eq!(flushes.filter(|op| matches!(op, Op::FlushAll)).count(), 1);
        let left = dir.join("left");
        std::fs::create_dir(&left).unwrap();
        recording.cut(recording.ops.len(), &mut Luck::Nothing, &left);
        assert_eq!((wrong(&set, &left), lost(&set, &left)), (vec![], vec![]));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
