//! Tests of files that are in their places before a set comes.

use std::time::Duration;

use super::super::comparing::Comparison;
use super::received::before;
use super::*;
use crate::object::pack::{Content, Header, Pack};
use crate::object::source_set::SourceSet;
use crate::object::testing::pattern;
use crate::object::{EntryRanges, Packed, Packer};
use crate::waker::Waker;

/// A set of files of the pattern with these lengths, called by their numbers, and a copy of it.
fn copied(lens: &[usize]) -> (PathBuf, Arc<SourceSet>) {
    let dir = scratch();
    let (from, to) = (dir.join("from"), dir.join("to/from"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::create_dir_all(&to).unwrap();
    for (number, len) in lens.iter().enumerate() {
        let mut bytes = pattern(*len);
        bytes
            .iter_mut()
            .take(1)
            .for_each(|byte| *byte = number as u8); // none is a copy
        std::fs::write(from.join(format!("{number:02}")), bytes).unwrap();
        copy(&dir, number);
    }
    let set = set_of(std::slice::from_ref(&from));
    (dir, set)
}

/// The place of a file at the receiver.
fn place(dir: &Path, number: usize) -> PathBuf {
    dir.join(format!("to/from/{number:02}"))
}

fn copy(dir: &Path, number: usize) {
    let from = dir.join(format!("from/{number:02}"));
    let to = place(dir, number);
    std::fs::copy(&from, &to).unwrap();
    let time = from.metadata().unwrap().modified().unwrap();
    File::options()
        .write(true)
        .open(to)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

/// Changes a file, which keeps its length and its time.
fn spoil(path: &Path, at: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"other", at).unwrap();
    file.set_modified(time).unwrap();
}

/// The packs of a set of which these files are compared: pages, those that are sent, and those that
/// are compared.
fn packs_of(set: &Arc<SourceSet>, compared: &EntryRanges) -> [Vec<Pack>; 3] {
    let waker = Waker::new().unwrap();
    let packer = Packer::start_comparing(set.clone(), waker.clone()).unwrap();
    let (mut packs, mut is_told) = ([(); 3].map(|()| Vec::new()), 0);
    loop {
        match packer.next() {
            Some(Packed::Pack(pack)) => packs[is_told].push(pack),
            Some(Packed::Pages) => {
                packer.compare(compared.clone());
                is_told = 1;
            }
            Some(Packed::Compare(pack)) => packs[2].push(pack),
            Some(Packed::End) => return packs,
            Some(Packed::Failed(..) | Packed::Gone) => panic!("a file failed"),
            None => _ = waker.wait(Some(Duration::from_secs(60))).unwrap(),
        }
    }
}

/// A tree that has the manifest and has looked, and its candidates.
fn looked(dir: &Path, set: &SourceSet) -> (Tree, Candidates) {
    looked_at(dir, set.manifest())
}

fn looked_at(dir: &Path, manifest: &Manifest) -> (Tree, Candidates) {
    let mut tree = tree(&dir.join("to"));
    let mut page = Vec::new();
    manifest.put_page(0, &mut page);
    tree.take_page(&page).unwrap();
    let candidates = tree.find_candidates(&mut || true);
    tree.make_places().unwrap();
    (tree, candidates)
}

fn header(pack: &Pack) -> Header {
    Header::decode(&pack.bytes[..pack.header], pack.payload().len()).unwrap()
}

/// Compares packs, numbered from 0: the files that remain, and the packs that are here.
fn compare(candidates: Candidates, packs: &[Pack]) -> (Vec<Remaining>, Vec<u32>) {
    let mut comparison = Comparison::new(candidates, true);
    let (mut remaining, mut here) = (Vec::new(), Vec::new());
    for (number, pack) in (0..).zip(packs) {
        let compared = comparison.compare(number, header(pack), &|| true);
        let compared = compared.unwrap();
        assert_eq!(compared.number, number);
        remaining.extend(compared.remaining);
        for (number, kept) in compared.here {
            assert_eq!(kept.unwrap(), header(&packs[number as usize]));
            here.push(number);
        }
    }
    (remaining, here)
}

fn numbers(files: &[Remaining]) -> Vec<u32> {
    let mut numbers: Vec<u32> = files.iter().map(|file| file.0).collect();
    numbers.sort_unstable();
    numbers
}

/// Ends a set, and checks that all of it is there.
fn end(mut tree: Tree, dir: &Path, set: &SourceSet) {
    tree.settle(&mut || Ok(())).unwrap();
    assert!(tree.changed().is_empty());
    let secret = tree.answer(set.challenge_key()).unwrap();
    assert_eq!(secret.proof(3), set.secret(&BTreeSet::new()).proof(3));
    tree.finish().unwrap();
    for (number, entry) in (0..).zip(set.manifest().entries()).skip(1) {
        let [one, two] = [set.path(number), place(dir, number as usize - 1)];
        let [there, here] = [&one, &two].map(|path| path.metadata().unwrap());
        assert_eq!(there.mode(), here.mode(), "{two:?}");
        assert_eq!(
            (entry.mtime, entry.mtime_ns as i64),
            (here.mtime(), here.mtime_nsec())
        );
        assert!(
            std::fs::read(one).unwrap() == std::fs::read(two).unwrap(),
            "{number}"
        );
    }
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// Short files, one without bytes, and a long file of several packs. All that has bytes remains,
/// and gets the permissions and the time of the set. Not before the end.
#[test]
fn what_is_there_remains() {
    let (dir, set) = copied(&[5, 100_000, 0, 9_000_000, 7]);
    let before = [0, 1, 3, 4].map(|number| inode(&place(&dir, number)));
    let (mut tree, candidates) = looked(&dir, &set);
    let ranges = candidates.ranges();
    assert_eq!(ranges.as_slice(), [(1, 6)]);
    let [_, sent, compared] = packs_of(&set, &ranges);
    let empty: Vec<u32> = sent
        .iter()
        .flat_map(|pack| pieces_of(pack).unwrap())
        .map(|p| p.file())
        .collect();
    assert_eq!(empty, [3]);
    set_mode(&place(&dir, 1), 0o600);
    let (_, again) = looked(&dir, &set); // its time of change is another one
    let (remaining, here) = compare(again, &compared);
    assert_eq!(numbers(&remaining), [1, 2, 4, 5]);
    assert!(here.len() > 2 && here.len() == compared.len());
    for pack in &sent {
        tree.write(&pieces_of(pack).unwrap(), pack.payload())
            .unwrap();
    }
    tree.remain(remaining).unwrap();
    assert_eq!((tree.present(), tree.taken()), (9_100_012, 9_100_012));
    assert_eq!(place(&dir, 1).metadata().unwrap().mode() & 0o777, 0o600);
    end(tree, &dir, &set);
    assert_eq!(
        [0, 1, 3, 4].map(|number| inode(&place(&dir, number))),
        before
    );
    drop(candidates);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that nobody may read in the set is read for the proof before it gets that mode.
#[test]
fn a_file_that_nobody_may_read_remains() {
    let (dir, set) = copied(&[5]);
    let mut manifest = Manifest::default();
    for entry in set.manifest().entries() {
        let mode = match entry.kind {
            Kind::File(_) => 0,
            _ => entry.mode,
        };
        manifest
            .add(Entry {
                mode,
                ..entry.clone()
            })
            .unwrap();
    }
    let (mut tree, candidates) = looked_at(&dir, &manifest);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    tree.remain(compare(candidates, &compared).0).unwrap();
    tree.settle(&mut || Ok(())).unwrap();
    let mode = || place(&dir, 0).metadata().unwrap().mode() & 0o777;
    assert_eq!(mode(), 0o400);
    let secret = tree.answer(set.challenge_key()).unwrap();
    assert_eq!(secret.proof(3), set.secret(&BTreeSet::new()).proof(3));
    tree.finish().unwrap();
    assert_eq!((tree.changed(), mode()), (vec![], 0));
    std::fs::remove_dir_all(dir).unwrap();
}

/// Looking changes nothing, and neither do pages alone.
#[test]
fn looking_changes_nothing() {
    let (dir, set) = copied(&[5, 6]);
    std::fs::remove_file(place(&dir, 1)).unwrap();
    std::fs::create_dir(place(&dir, 1)).unwrap();
    let mut tree = tree(&dir.join("to"));
    tree.destination.deletes = true;
    let mut page = Vec::new();
    set.manifest().put_page(0, &mut page);
    tree.take_page(&page).unwrap();
    let candidates = tree.find_candidates(&mut || true);
    assert_eq!(candidates.ranges().as_slice(), [(1, 2)]);
    assert!(place(&dir, 1).is_dir() && tree.taken() == 0);
    // Where the caller says so, the rest is left out.
    assert!(tree.find_candidates(&mut || false).ranges().is_empty());
    drop(tree);
    std::fs::remove_dir_all(dir).unwrap();
}

/// What is no candidate: it differs in length, type or time, has another name, or others may write
/// to it.
#[test]
fn only_files_that_nobody_else_made_are_candidates() {
    let (dir, set) = copied(&[10; 9]);
    let at = |number| place(&dir, number);
    File::options()
        .write(true)
        .open(at(0))
        .unwrap()
        .set_len(9)
        .unwrap();
    let later = |seconds| {
        let file = File::options().write(true).open(at(seconds)).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        file.set_modified(time + Duration::from_secs(seconds as u64))
            .unwrap();
    };
    later(2);
    later(3);
    std::fs::hard_link(at(4), dir.join("to/other")).unwrap();
    set_mode(&at(5), 0o666);
    std::fs::remove_file(at(6)).unwrap();
    symlink("05", at(6)).unwrap();
    std::fs::remove_file(at(7)).unwrap();
    let fifo = sys::FileType::Fifo;
    sys::mknodat(sys::CWD, at(7), fifo, Mode::RUSR, 0).unwrap();
    let (_, candidates) = looked(&dir, &set);
    let found: Vec<u32> = candidates.found.iter().map(|found| found.0).collect();
    assert_eq!(found, [2, 3, 9]);
    assert_eq!(candidates.ranges().as_slice(), [(2, 4), (9, 10)]);
    drop(candidates);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that has more than its mode says, or attributes that the set has not, is no candidate.
#[test]
fn files_with_other_attributes_are_no_candidates() {
    let (dir, set) = copied(&[10; 3]);
    let flags = sys::XattrFlags::empty();
    let put = |number, name: &str, value: &[u8]| {
        sys::setxattr(place(&dir, number), name, value, flags).is_ok()
    };
    // An access control list that lets the user 7 read the file.
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, may, id) in [
        (1, 6, u32::MAX),
        (2, 4, 7),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 4, u32::MAX),
    ] {
        acl.extend([tag, 0, may, 0]);
        acl.extend(id.to_le_bytes());
    }
    if !put(0, "system.posix_acl_access", &acl) || !put(1, "user.colour", b"red") {
        eprintln!("skipped: no extended attributes here");
        return;
    }
    for (attributes, expected) in [(false, vec![2, 3]), (true, vec![3])] {
        let mut tree = tree(&dir.join("to"));
        tree.destination.attributes = attributes;
        let mut page = Vec::new();
        set.manifest().put_page(0, &mut page);
        tree.take_page(&page).unwrap();
        let candidates = tree.find_candidates(&mut || true);
        let found: Vec<u32> = candidates.found.iter().map(|found| found.0).collect();
        assert_eq!(found, expected);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// One file of a pack differs. Its pack comes again: the file is replaced, and the others of which
/// all blocks were equal are not written.
#[test]
fn of_a_pack_with_one_file_that_differs_the_others_remain() {
    let (dir, set) = copied(&[700_000, 700_000, 700_000, 700_000]);
    spoil(&place(&dir, 3), 500_000);
    let spoiled = std::fs::read(place(&dir, 3)).unwrap();
    let (mut tree, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    let (remaining, here) = compare(candidates, &compared);
    // The last but one has bytes in the same block.
    assert_eq!(numbers(&remaining), [1, 2]);
    assert_eq!((here, compared.len()), (vec![0], 2));
    let before = [0, 1].map(|number| inode(&place(&dir, number)));
    tree.remain(remaining).unwrap();
    assert!(std::fs::read(place(&dir, 3)).unwrap() == spoiled);
    for pack in &compared {
        tree.write(&pieces_of(pack).unwrap(), pack.payload())
            .unwrap();
    }
    end(tree, &dir, &set);
    assert_eq!([0, 1].map(|number| inode(&place(&dir, number))), before);
    std::fs::remove_dir_all(dir).unwrap();
}

/// One block of a long file differs. All of the file comes, and the old one stays until then.
#[test]
fn a_long_file_with_one_block_that_differs_is_received_whole() {
    let (dir, set) = copied(&[5, 12_000_000]);
    spoil(&place(&dir, 1), 9_000_000);
    let spoiled = std::fs::read(place(&dir, 1)).unwrap();
    let (mut tree, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    let (remaining, here) = compare(candidates, &compared);
    assert_eq!((numbers(&remaining), here), (vec![1], vec![0]));
    tree.remain(remaining).unwrap();
    let (last, rest) = compared.split_last().unwrap();
    for pack in rest {
        tree.write(&pieces_of(pack).unwrap(), pack.payload())
            .unwrap();
    }
    assert!(std::fs::read(place(&dir, 1)).unwrap() == spoiled);
    tree.write(&pieces_of(last).unwrap(), last.payload())
        .unwrap();
    end(tree, &dir, &set);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that is changed between two of its packs, or before its first, does not remain.
#[test]
fn a_file_that_changes_while_it_is_compared_does_not_remain() {
    for before in [0, 2] {
        let (dir, set) = copied(&[5, 12_000_000]);
        let (_, candidates) = looked(&dir, &set);
        let [_, _, compared] = packs_of(&set, &candidates.ranges());
        let mut comparison = Comparison::new(candidates, true);
        let mut remaining = Vec::new();
        for (number, pack) in (0..).zip(&compared) {
            if number == before {
                // Its bytes are what they were, and nobody knows that.
                set_mode(&place(&dir, 1), 0o640);
            }
            let compared = comparison.compare(number, header(pack), &|| true);
            remaining.extend(compared.unwrap().remaining);
        }
        assert_eq!(numbers(&remaining), [1], "{before}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// A file that is changed after it was compared fails by name, with its link, and the rest is
/// complete. Nothing is deleted then.
#[test]
fn a_file_that_changes_after_it_was_compared_fails_by_name() {
    let (dir, set) = copied(&[5, 6]);
    let other = dir.join("to/from/other");
    std::fs::write(&other, "not sent").unwrap();
    let (mut tree, candidates) = looked(&dir, &set);
    tree.destination.deletes = true;
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    let (remaining, _) = compare(candidates, &compared);
    tree.remain(remaining).unwrap();
    File::options()
        .write(true)
        .open(place(&dir, 0))
        .unwrap()
        .write_all_at(b"other", 0)
        .unwrap();
    std::fs::rename(place(&dir, 1), dir.join("old")).unwrap();
    copy(&dir, 1); // the same bytes, and another file
    tree.settle(&mut || Ok(())).unwrap();
    let changed = [place(&dir, 0), place(&dir, 1)];
    assert_eq!(
        (tree.changed(), tree.failed()),
        (changed.to_vec(), changed.to_vec())
    );
    assert!(tree.present() == 0 && tree.leaves_surplus());
    tree.answer(set.challenge_key()).unwrap();
    tree.finish().unwrap();
    assert!(other.exists());
    assert_eq!(std::fs::read(place(&dir, 0)).unwrap(), b"other");
    std::fs::remove_dir_all(dir).unwrap();
}

/// Another mode, another link and the set's time change no bytes. A hurried writer that keeps the
/// length of a file changes its time.
#[test]
fn a_file_of_which_only_its_state_changes_remains() {
    let (dir, set) = copied(&[5, 6, 7]);
    let time = set.path(3).metadata().unwrap().modified().unwrap();
    let there = File::options().write(true).open(place(&dir, 2)).unwrap();
    there.set_modified(time + Duration::from_secs(1)).unwrap();
    let (mut tree, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    tree.remain(compare(candidates, &compared).0).unwrap();
    set_mode(&place(&dir, 0), 0o600);
    std::fs::hard_link(place(&dir, 1), dir.join("link")).unwrap();
    there.set_modified(time).unwrap(); // another receiver has the same directory
    assert!(!tree.leaves_surplus());
    end(tree, &dir, &set);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A sender that cuts otherwise, leaves pieces out, or repeats them, finds nothing that remains.
#[test]
fn pieces_that_leave_something_out_or_overlap_keep_nothing() {
    let bytes = pattern(1000);
    let of = |offset: u64, len: u32, last| Piece::Bytes {
        file: 1,
        offset,
        len,
        last,
    };
    let hole = |offset, len, last| Piece::Hole {
        file: 1,
        offset,
        len,
        last,
    };
    let cases: [(&[Piece], bool); 8] = [
        (&[of(0, 1000, true)], true),
        (&[of(0, 400, false), of(400, 600, true)], true),
        (&[of(400, 600, true)], false),
        (&[of(0, 400, false), of(500, 500, true)], false),
        (&[of(400, 600, true), of(0, 400, false)], false),
        (&[of(0, 600, false), of(400, 600, true)], false),
        (&[of(0, 400, false), hole(400, 600, true)], false),
        (&[of(0, 1000, false)], false),
    ];
    for (pieces, remains) in cases {
        for is_split in [false, true] {
            let (dir, set) = copied(&[1000]);
            std::fs::write(place(&dir, 0), &bytes).unwrap();
            let time = set.path(1).metadata().unwrap().modified().unwrap();
            File::options()
                .write(true)
                .open(place(&dir, 0))
                .unwrap()
                .set_modified(time)
                .unwrap();
            let (_, candidates) = looked(&dir, &set);
            let packs: Vec<Pack> = pieces
                .chunks(if is_split { 1 } else { 9 })
                .map(|pieces| {
                    let payload: Vec<u8> = pieces
                        .iter()
                        .filter(|piece| matches!(piece, Piece::Bytes { .. }))
                        .flat_map(|piece| {
                            &bytes[(piece.end() - piece.size()) as usize..piece.end() as usize]
                        })
                        .copied()
                        .collect();
                    Pack::new(Content::Pieces(pieces.to_vec()), &payload)
                })
                .collect();
            let (remaining, here) = compare(candidates, &packs);
            assert_eq!(!remaining.is_empty(), remains, "{pieces:?}");
            assert_eq!(
                here.len(),
                if remains { packs.len() } else { 0 },
                "{pieces:?}"
            );
            std::fs::remove_dir_all(dir).unwrap();
        }
    }
}

/// A file of very many pieces. What it costs grows with them, and not with their square: by that
/// this test would take minutes.
#[test]
fn a_file_of_very_many_pieces_remains() {
    const PIECES: usize = 1 << 18;
    let (dir, set) = copied(&[PIECES]);
    let bytes = std::fs::read(place(&dir, 0)).unwrap();
    let (_, candidates) = looked(&dir, &set);
    let packs: Vec<Pack> = (0..PIECES as u64)
        .step_by(4096)
        .map(|from| {
            let piece = |offset| Piece::Bytes {
                file: 1,
                offset,
                len: 1,
                last: offset + 1 == PIECES as u64,
            };
            let content = Content::Pieces((from..from + 4096).map(piece).collect());
            Pack::new(content, &bytes[from as usize..][..4096])
        })
        .collect();
    let (remaining, here) = compare(candidates, &packs);
    assert_eq!((numbers(&remaining), here.len()), (vec![1], packs.len()));
    std::fs::remove_dir_all(dir).unwrap();
}

/// An interruption ends a comparison within a block.
#[test]
fn comparing_ends_when_it_is_interrupted() {
    let (dir, set) = copied(&[3_000_000]);
    let (_, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    for times in 0..2 {
        let (_, candidates) = looked(&dir, &set);
        let asked = std::cell::Cell::new(0);
        let goes_on = || asked.replace(asked.get() + 1) < times;
        let mut comparison = Comparison::new(candidates, true);
        let result = comparison.compare(0, header(&compared[0]), &goes_on);
        assert_eq!((result, asked.get()), (None, times + 1));
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A receiver that has no time left stops comparing, and answers all the same: nothing more is
/// here.
#[test]
fn comparing_that_takes_too_long_is_given_up() {
    let (dir, set) = copied(&[5, 5_000_000]);
    let (_, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    let waker = Waker::new().unwrap();
    let mut comparer = Comparer::start(candidates, Duration::ZERO, false, waker.clone()).unwrap();
    let mut answers = Vec::new();
    for (number, pack) in (0..).zip(&compared) {
        comparer.compare(number, header(pack));
    }
    while comparer.is_busy() {
        match comparer.take().unwrap() {
            Some(done) => answers.push((done.number, done.here.len(), done.gave_up)),
            None => _ = waker.wait(Some(Duration::from_secs(60))).unwrap(),
        }
    }
    let expected = (0..compared.len() as u32).map(|number| (number, 0, number == 0));
    assert_eq!(answers, expected.collect::<Vec<_>>());
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that has failed at the sender since counts as one that is lacking.
#[test]
fn a_file_that_fails_after_it_was_compared_is_lacking() {
    let (dir, set) = copied(&[5, 6]);
    let (mut tree, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    let (remaining, _) = compare(candidates, &compared);
    tree.remain(remaining).unwrap();
    tree.write(&[set.failure(1), piece(2, 0, 6, true)], b"ignore")
        .unwrap();
    assert_eq!(tree.failed(), [place(&dir, 0)]);
    tree.settle(&mut || Ok(())).unwrap();
    let secret = tree.answer(set.challenge_key()).unwrap();
    assert_eq!(secret.proof(3), set.secret(&[1].into()).proof(3));
    tree.finish().unwrap();
    assert!(std::fs::read(place(&dir, 1)).unwrap() == std::fs::read(set.path(2)).unwrap());
    std::fs::remove_dir_all(dir).unwrap();
}

/// A receiver that may replace files, or follows a feed, begins anew where an earlier run has
/// stored no pack, since what is there may be the set. What that run has left unfinished goes. One
/// that may not replace any goes on with the pages.
#[test]
fn a_journal_of_pages_alone_keeps_nobody_from_comparing() {
    let (dir, set) = copied(&[5]);
    let mut page = Vec::new();
    set.manifest().put_page(0, &mut page);
    let digest = set.manifest().digest();
    for (overwrites, follows) in [(false, false), (true, false), (false, true)] {
        let (to, may_replace) = (dir.join("to"), overwrites || follows);
        let begin = |is_first: bool| {
            let mut tree = tree(&to);
            tree.destination.overwrite = overwrites || is_first;
            if follows {
                tree.destination.received = Some(Arc::new(before("from", &["00"])));
            }
            assert_eq!(tree.may_compare(), may_replace || is_first);
            let kept = tree.resume(&digest, &mut || Ok(())).unwrap();
            (tree, kept)
        };
        let (mut first, _) = begin(true);
        first.take_page(&page).unwrap();
        let id = first.journal_id().unwrap().to_owned();
        std::mem::forget(first.journal.take()); // it is killed: nothing is removed
        let left = to
            .join("from")
            .join(super::super::journal::partial_name(&id, 1));
        let at_top = |number| to.join(super::super::journal::partial_name(&id, number));
        let all_left = [left, at_top(1), at_top(2)];
        for left in &all_left[..2] {
            std::fs::write(left, "left").unwrap();
            set_mode(left, 0o600);
        }
        std::fs::create_dir(&all_left[2]).unwrap(); // one that is staged
        std::fs::write(all_left[2].join("left"), "left").unwrap();
        assert!(
            std::fs::metadata(to.join(super::super::journal::file_name(&id)))
                .unwrap()
                .len()
                > 16
        );
        // The lock of the one that was killed goes with its process; here it stays.
        let copy = dir.join("journal");
        let journal = to.join(super::super::journal::file_name(&id));
        std::fs::copy(&journal, &copy).unwrap();
        std::fs::rename(&copy, &journal).unwrap();
        let (second, kept) = begin(false);
        assert_eq!(kept.is_empty(), may_replace);
        for left in &all_left {
            assert_eq!(left.exists(), !may_replace, "{}", left.display());
        }
        drop((first, second));
        let _ = std::fs::remove_file(&all_left[1]);
        let _ = std::fs::remove_dir_all(&all_left[2]);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// One long file differs at its begin, and its neighbours remain: they share no block with it.
#[test]
fn neighbours_of_a_long_file_that_differs_remain() {
    let (dir, set) = copied(&[9_000_001, 9_000_002, 9_000_003]);
    spoil(&place(&dir, 1), 0);
    let (_, candidates) = looked(&dir, &set);
    let [_, _, compared] = packs_of(&set, &candidates.ranges());
    let (remaining, here) = compare(candidates, &compared);
    assert_eq!(numbers(&remaining), [1, 3]);
    let has = |pack: &Pack| {
        pieces_of(pack)
            .unwrap()
            .iter()
            .any(|piece| piece.file() == 2)
    };
    let expected: Vec<u32> = (0..)
        .zip(&compared)
        .filter(|(_, pack)| !has(pack))
        .map(|it| it.0)
        .collect();
    let mut here = here;
    here.sort_unstable();
    assert_eq!(here, expected);
    std::fs::remove_dir_all(dir).unwrap();
}
