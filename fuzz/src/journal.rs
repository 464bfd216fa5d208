//! The body of the fuzz target of journals: whatever an earlier run, or somebody else, has left in
//! a destination, no wrong file gets a name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fabricast::object::Tree;
use fabricast::object::manifest::{Entry, Kind, Manifest, TOP};
use fabricast::object::pack::{Content, Header, Pack, Piece};

use crate::place::Place;

/// Length of each of the two files of the set, in bytes.
const LEN: u32 = 300_000;
/// Bytes of a file in each pack.
const PART: u32 = 100_000;

/// A directory with two files.
fn manifest() -> Manifest {
    let mut manifest = Manifest::default();
    for (parent, name, kind) in [
        (TOP, "d", Kind::Directory),
        (0, "f", Kind::File(LEN.into())),
        (0, "g", Kind::File(LEN.into())),
    ] {
        let entry = Entry {
            parent,
            name: name.as_bytes().into(),
            kind,
            mode: 0o755,
            mtime: 7,
            mtime_ns: 7,
            owner: (u32::MAX, u32::MAX),
            attributes: Default::default(),
        };
        manifest.add(entry).expect("an entry");
    }
    manifest
}

fn content(file: u32) -> Vec<u8> {
    (0..LEN).map(|i| (i / 500 + file) as u8).collect()
}

/// The packs of the set: a page of the manifest, and each file in three parts.
pub fn packs() -> Vec<Pack> {
    let mut page = Vec::new();
    manifest().put_page(0, &mut page);
    let mut packs = vec![Pack::new(Content::Page, &page)];
    for file in [1, 2] {
        let content = content(file);
        for offset in (0..LEN).step_by(PART as usize) {
            let piece = Piece::Bytes {
                file,
                offset: offset.into(),
                len: PART,
                last: offset + PART == LEN,
            };
            let part = offset as usize..(offset + PART) as usize;
            packs.push(Pack::new(Content::Pieces(vec![piece]), &content[part]));
        }
    }
    packs
}

/// Files that a run has left: names in the destination, and bytes.
pub type Left = Vec<(PathBuf, Vec<u8>)>;

/// What a run leaves that ends after some of the packs.
/// `is_there`: whether the directory is there before; otherwise it has a hidden name.
pub fn left(packs: &[Pack], is_there: bool) -> Left {
    let place = Place::new("left");
    if is_there {
        fs::create_dir(place.to().join("d")).expect("a directory");
    }
    let mut tree = place.tree();
    resume(&mut tree);
    packs.iter().for_each(|pack| put(&mut tree, pack));
    drop(tree);
    let within = |dir: &Path| {
        let entries = fs::read_dir(dir).expect("a directory");
        entries
            .map(|e| e.expect("an entry").path())
            .collect::<Vec<_>>()
    };
    let tops = within(&place.to());
    let below = tops.iter().filter(|top| top.is_dir());
    let below: Vec<PathBuf> = below.flat_map(|top| within(top)).collect();
    let files = [tops, below].concat();
    let files = files.into_iter().filter(|path| path.is_file());
    let relative = |path: &Path| path.strip_prefix(place.to()).expect("beneath").to_owned();
    files
        .map(|path| (relative(&path), fs::read(&path).expect("a file")))
        .collect()
}

/// Resumes a tree. Returns the hashes of the packs that are there.
fn resume(tree: &mut Tree) -> Vec<[u8; 32]> {
    let kept = tree.resume(&manifest().digest(), &mut || Ok(()));
    kept.expect("nothing fails but what the sender sends")
        .packs
        .into_iter()
        .collect()
}

fn put(tree: &mut Tree, pack: &Pack) {
    let header = &pack.bytes[..pack.header];
    match Header::decode(header, pack.payload().len())
        .expect("a header")
        .content
    {
        Content::Page => tree.add_page(pack.payload()).expect("a page"),
        Content::Pieces(pieces) => {
            tree.write(&pieces, pack.payload()).expect("a pack");
            tree.note_pack(header, pack.payload().len());
        }
    }
}

/// Goes on where these files are in the destination (names and bytes), and checks that the set is
/// right at the end, and that nothing else is left. Returns the number of packs that need not come
/// again. `is_there` as for [`left`].
pub fn journal<'a>(is_there: bool, files: impl Iterator<Item = (&'a Path, &'a [u8])>) -> usize {
    let place = Place::new("journal");
    if is_there {
        fs::create_dir(place.to().join("d")).expect("a directory");
    }
    for (name, bytes) in files {
        let dir = name.parent().expect("a name");
        fs::create_dir_all(place.to().join(dir)).expect("a directory");
        fs::write(place.to().join(name), bytes).expect("a file");
        // As a file is that an earlier run has ended.
        let file = fs::File::open(place.to().join(name)).expect("the file");
        let time = SystemTime::UNIX_EPOCH + Duration::new(7, 7);
        file.set_permissions(fs::Permissions::from_mode(0o755))
            .and_then(|()| file.set_modified(time))
            .expect("mode and time");
    }
    let mut tree = place.tree();
    let kept = resume(&mut tree);
    for pack in packs() {
        let hash: [u8; 32] = pack.hash().into();
        match kept.contains(&hash) {
            true => _ = tree.keep(&hash).expect("it is there"),
            false => put(&mut tree, &pack),
        }
    }
    tree.finish().expect("all is there");
    for (file, name) in [(1, "f"), (2, "g")] {
        let there = fs::read(place.to().join("d").join(name)).expect("the file");
        assert!(there == content(file), "{name} is wrong");
    }
    assert_eq!(fs::read_dir(place.to()).expect("a directory").count(), 1);
    assert_eq!(
        fs::read_dir(place.to().join("d"))
            .expect("a directory")
            .count(),
        2
    );
    place.check();
    kept.len()
}

#[cfg(test)]
mod tests {
    use fabricast_proto::rng::Rng;

    use super::*;
    use crate::tests::{Tried, spoilt};

    /// Number of inputs: each stores a set.
    const ROUNDS: u64 = 300;

    #[test]
    fn whatever_is_left_in_a_destination_no_wrong_file_gets_a_name() {
        let packs = packs();
        let lefts = [false, true].map(|is_there| -> Vec<_> {
            let counts = 1..=packs.len();
            counts.map(|n| left(&packs[..n], is_there)).collect()
        });
        let whole = |is_there: bool, left: &[(PathBuf, Vec<u8>)]| {
            let files = left.iter().map(|(name, bytes)| (&**name, &**bytes));
            journal(is_there, files)
        };
        for (is_there, lefts) in [false, true].into_iter().zip(&lefts) {
            let kept: Vec<usize> = lefts.iter().map(|left| whole(is_there, left)).collect();
            assert_eq!(kept, [0, 2, 3, 4, 5, 6, 7]);
        }
        let rounds = match std::env::var("FUZZ_SEED") {
            Ok(seed) => vec![seed.parse().expect("FUZZ_SEED is a number")],
            Err(_) => (0..ROUNDS).collect(),
        };
        let mut kept = 0;
        for seed in rounds {
            let _tried = Tried(seed);
            let mut rng = Rng::new(seed);
            let is_there = rng.below(2) == 0;
            let lefts = &lefts[usize::from(is_there)];
            let mut left = lefts[rng.below(lefts.len() as u64) as usize].clone();
            for (_, bytes) in &mut left {
                if rng.below(2) == 0 {
                    *bytes = spoilt(&mut rng, std::slice::from_ref(bytes));
                }
            }
            kept += whole(is_there, &left);
        }
        assert!(kept > 1, "nothing is ever kept");
    }
}
