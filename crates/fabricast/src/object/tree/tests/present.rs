//! Tests of files that are in their places before a set comes.

use super::resuming::{check, resumed, source};
use super::*;
use crate::object::HASH;
use crate::object::pack::{Header, Pack};
use crate::object::source_set::SourceSet;

/// Stores a set, and returns its packs.
fn stored(set: &Arc<SourceSet>, to: &Path) -> Vec<Pack> {
    let (packs, _) = packs(set);
    let (mut tree, _) = resumed(to, set);
    for pack in &packs {
        come(&mut tree, pack).unwrap();
    }
    check(tree, set, to);
    packs
}

fn come(tree: &mut Tree, pack: &Pack) -> Result<(), Error> {
    match pieces_of(pack) {
        None => tree.add_page(pack.payload()),
        Some(pieces) => tree.write(&pieces, pack.payload()),
    }
}

/// A tree where the set is looked for, and what is found of each pack.
fn found(
    to: &Path,
    set: &SourceSet,
    packs: &[Pack],
    overwrite: bool,
) -> (Tree, Vec<Option<Header>>) {
    let (mut tree, mut kept) = resumed(to, set);
    tree.destination.overwrite = overwrite;
    let pages = packs.iter().filter(|pack| pieces_of(pack).is_none());
    let pages: Vec<&Pack> = pages.collect();
    for page in &pages {
        tree.take_page(page.payload(), &mut kept).unwrap();
    }
    assert_eq!(kept.packs.len(), pages.len());
    let mut proving = tree.prove_present().unwrap();
    while proving.wait() {}
    let mut take = |pack: &Pack| {
        let (header, bytes) = proving.take(&pack.hash().into())?;
        let pieces = pieces_of(pack).unwrap();
        assert_eq!(bytes, pieces.iter().map(Piece::size).sum::<u64>());
        Some(header)
    };
    let files = packs.iter().skip(pages.len());
    let headers = files.map(&mut take).collect();
    (tree, headers)
}

fn keep(tree: &mut Tree, pack: &Pack, header: Header) -> Result<(), Error> {
    let hash: [u8; HASH] = pack.hash().into();
    tree.keep(&hash, Some(header)).map(drop)
}

/// Writes to a file in its midst, which keeps its length and time.
fn spoil(path: &Path, at: u64) {
    let file = File::options().write(true).open(path).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"other", at).unwrap();
    file.set_modified(time).unwrap();
}

/// A set that is there as it is at the sender is complete without a pack, and nothing is replaced.
#[test]
fn a_set_that_is_there_makes_the_packs_of_the_sender() {
    let dir = scratch();
    let set = source(&dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let packs = stored(&set, &to);
    let inode = |name: &str| to.join("from").join(name).symlink_metadata().unwrap().ino();
    let before = ["a", "same", "sub/7", "soft"].map(inode);
    let (mut tree, headers) = found(&to, &set, &packs, false);
    assert_eq!(headers.len(), packs.len() - 1);
    for (pack, header) in packs[1..].iter().zip(headers) {
        keep(&mut tree, pack, header.unwrap()).unwrap();
    }
    check(tree, &set, &to);
    assert_eq!(["a", "same", "sub/7", "soft"].map(inode), before);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Of a file of several packs some are there. In any order, the rest comes to a new file, and the
/// old one stays until that is complete.
#[test]
fn a_file_that_differs_is_made_anew_from_both() {
    let dir = scratch();
    let set = source(&dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let packs = stored(&set, &to);
    let file = to.join("from/a");
    for is_reversed in [false, true] {
        spoil(&file, 4_000_000);
        let spoiled = std::fs::read(&file).unwrap();
        let (mut tree, headers) = found(&to, &set, &packs, true);
        let lacking = headers.iter().filter(|header| header.is_none()).count();
        assert_eq!(lacking, 1);
        let mut all: Vec<_> = packs[1..].iter().zip(headers).collect();
        if is_reversed {
            all.reverse();
        }
        let last = |pack: &Pack| pieces_of(pack).unwrap().iter().any(|p| p.file() == 1);
        let mut of_file = all.iter().filter(|(pack, _)| last(pack)).count();
        for (pack, header) in all {
            assert!(of_file == 0 || std::fs::read(&file).unwrap() == spoiled);
            of_file -= usize::from(last(pack));
            match header {
                Some(header) => keep(&mut tree, pack, header).unwrap(),
                None => come(&mut tree, pack).unwrap(),
            }
        }
        check(tree, &set, &to);
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// Length and time prove nothing: without leave to replace it, a file with other bytes stays.
#[test]
fn a_file_with_other_bytes_is_kept_without_leave() {
    let dir = scratch();
    let set = source(&dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let packs = stored(&set, &to);
    let file = to.join("from/a");
    spoil(&file, 0);
    let spoiled = std::fs::read(&file).unwrap();
    let (mut tree, headers) = found(&to, &set, &packs, false);
    assert!(headers[0].is_none());
    let refused = come(&mut tree, &packs[1]).unwrap_err();
    assert!(matches!(refused, Error::Exists(_)), "{refused}");
    drop(tree);
    assert!(std::fs::read(&file).unwrap() == spoiled);
    std::fs::remove_dir_all(dir).unwrap();
}

/// Somebody writes to a file between its proof and the announcement of its pack.
#[test]
fn a_file_that_changes_after_its_proof_is_noticed() {
    let dir = scratch();
    let set = source(&dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let packs = stored(&set, &to);
    let (mut tree, headers) = found(&to, &set, &packs, true);
    spoil(&to.join("from/b"), 0);
    let kept = packs[1..].iter().zip(headers);
    let mut kept = kept.map(|(pack, header)| keep(&mut tree, pack, header.unwrap()));
    let error = kept.find_map(Result::err).unwrap();
    assert!(error.to_string().contains("was changed"), "{error}");
    drop(kept);
    drop(tree);
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file that has another name outside of the set would change there, too.
#[test]
fn a_file_with_a_name_elsewhere_comes() {
    let dir = scratch();
    let set = source(&dir);
    let to = dir.join("to");
    std::fs::create_dir(&to).unwrap();
    let packs = stored(&set, &to);
    std::fs::hard_link(to.join("from/sparse"), dir.join("elsewhere")).unwrap();
    let (_, headers) = found(&to, &set, &packs, true);
    let lacking = headers.iter().filter(|header| header.is_none()).count();
    assert!(lacking > 0 && lacking < headers.len());
    std::fs::remove_dir_all(dir).unwrap();
}
