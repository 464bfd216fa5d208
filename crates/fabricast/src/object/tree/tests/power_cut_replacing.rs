//! A power cut at any time while a set takes the place of what was there: the old file or the new
//! one is whole under its name, and nothing else goes but what is to be deleted.

use super::power_cut::{NONE, content, each_cut, lost, small_packs, source, wrong};
use super::received::before;
use super::recorder::{Op, Recording};
use super::resuming::store_all;
use super::*;
use crate::object::pack::Pack;
use crate::object::source_set::SourceSet;

/// What lies at the top of the source.
const NAMES: [&str; 9] = ["a", "b", "c", "e", "long", "same", "soft", "sparse", "sub"];

/// Receives a set to its end into a destination that `how` describes.
fn receive(
    set: &SourceSet,
    packs: &[Pack],
    to: &Path,
    how: &dyn Fn(&mut Destination),
    (named, sync): (bool, bool),
) {
    let mut tree = tree(to);
    how(&mut tree.destination);
    tree.destination.sync = sync;
    tree.may_be_nameless = !named;
    let digest = set.manifest().digest();
    let kept = tree.resume(&digest, &mut || Ok(())).unwrap();
    store_all(&mut tree, &kept, packs);
    tree.answer(set.challenge_key()).unwrap();
    tree.finish().unwrap();
}

/// The recording without its flushes. A test that cannot tell it from the whole one is none.
fn unflushed(mut recording: Recording) -> Recording {
    let is_flush = |op: &Op| matches!(op, Op::Flush(_) | Op::FlushAll);
    recording.ops.retain(|op| !is_flush(op));
    recording
}

/// The files of a set, by their paths at the sender, and the numbers of their entries.
fn files(set: &SourceSet) -> Vec<(PathBuf, u32)> {
    let entries = (0..).zip(set.manifest().entries());
    let files = entries.filter(|(_, entry)| {
        matches!(
            entry.kind,
            Kind::File(_) | Kind::HardLink(_) | Kind::Copy(_)
        )
    });
    files
        .map(|(number, _)| {
            let path = set.manifest().path(number);
            (PathBuf::from(OsStr::from_bytes(&path)), number)
        })
        .collect()
}

/// What has a file's place before: as many bytes as the new file has, or fewer, or more.
fn old(set: &SourceSet, number: u32) -> Vec<u8> {
    let len = content(set, number).len();
    vec![0x55; [len, len / 2 + 1, len + 5000][number as usize % 3]]
}

/// Puts an old file in the place of each file and link of the set, and others beside them.
fn put_old(set: &SourceSet, to: &Path) {
    for directory in ["from/sub/empty", "from/more"] {
        std::fs::create_dir_all(to.join(directory)).unwrap();
    }
    for (path, number) in files(set) {
        std::fs::write(to.join(path), old(set, number)).unwrap();
    }
    for path in ["from/soft", "from/other", "from/more/other", "beside"] {
        std::fs::write(to.join(path), "other").unwrap();
    }
}

/// What is missing of what was beside the files of the set, or has changed.
fn lost_beside(to: &Path, deletes: bool) -> Vec<PathBuf> {
    let surplus = ["from/other", "from/more/other"];
    let paths = ["beside"]
        .into_iter()
        .chain(surplus.into_iter().filter(|_| !deletes));
    let paths = paths.map(|path| to.join(path));
    paths
        .filter(|path| std::fs::read(path).ok().as_deref() != Some(b"other"))
        .collect()
}

/// The files of the set that are neither the old ones nor the new ones.
fn broken(set: &SourceSet, to: &Path) -> Vec<PathBuf> {
    let files = files(set).into_iter();
    let is_broken = |(path, number): (PathBuf, u32)| {
        let there = std::fs::read(to.join(&path)).ok();
        let is_whole =
            there.is_some_and(|there| there == content(set, number) || there == old(set, number));
        (!is_whole).then_some(path)
    };
    files.filter_map(is_broken).collect()
}

#[test]
fn a_power_cut_leaves_the_old_file_or_the_new_one_and_deletes_surplus_alone() {
    let dir = scratch();
    let set = source(&dir);
    assert!(set.manifest().copied() > 0, "there are copies");
    let packs = small_packs(&set);
    for (named, deletes) in [(false, false), (true, true)] {
        let to = dir.join(format!("to-{named}-{deletes}"));
        std::fs::create_dir(&to).unwrap();
        put_old(&set, &to);
        let how = |to: &mut Destination| to.deletes = deletes;
        let recording = Recording::of(&to, || {
            receive(&set, &packs, &to, &how, (named, true));
        });
        let mut cuts = 0;
        each_cut(&recording, 0, |left, is_over| {
            assert_eq!(broken(&set, left), NONE);
            assert_eq!(lost_beside(left, deletes), NONE);
            // Every few cuts a later run ends the set.
            cuts += 1;
            if !is_over && cuts % 5 != 0 {
                return;
            }
            if !is_over {
                receive(&set, &packs, left, &how, (named, false));
                // The journal goes last, and that need not be on the disk.
                assert_eq!(names(left), ["beside", "from"]);
            }
            assert_eq!((wrong(&set, left), lost(&set, left)), (vec![], vec![]));
            assert_eq!(left.join("from/more").exists(), !deletes);
            let mut all = names(&left.join("from"));
            all.retain(|name| !["more", "other"].contains(&&**name));
            assert_eq!(all, NAMES, "no partial file is left");
        });
        let (mut broken_files, mut lost_entries) = (0, 0);
        each_cut(&unflushed(recording), 0, |left, is_over| {
            broken_files += broken(&set, left).len();
            lost_entries += if is_over { wrong(&set, left).len() } else { 0 };
        });
        assert!(broken_files > 0 && lost_entries > 0, "without flushes");
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// The bytes of all files beneath a path by their paths, which are relative to it; of a file, those
/// alone.
fn contents(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => {
            for name in names(path) {
                let below = contents(&path.join(&name)).into_iter();
                all.extend(below.map(|(path, bytes)| (Path::new(&name).join(path), bytes)));
            }
        }
        Ok(_) => _ = all.insert(PathBuf::new(), std::fs::read(path).unwrap()),
        Err(_) => {}
    }
    all
}

/// An entry of a feed becomes a directory and a file again. What was there goes when the new one is
/// on the disk, and until then is whole.
#[test]
fn what_a_feed_replaces_goes_when_the_new_entry_is_on_the_disk() {
    let dir = scratch();
    let (file, directory) = (dir.join("file/d"), dir.join("directory/d"));
    for (path, len) in [
        (file.clone(), 50_000),
        (directory.join("f"), 50_000),
        (directory.join("deep/g"), 300),
    ] {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, crate::object::testing::pattern(len)).unwrap();
    }
    let small = dir.join("small/d");
    std::fs::create_dir(dir.join("small")).unwrap();
    std::fs::write(&small, "a file of one pack").unwrap();
    for (number, (was, is)) in [
        (&file, &directory),
        (&directory, &file),
        (&directory, &small),
    ]
    .into_iter()
    .enumerate()
    {
        let set = set_of(std::slice::from_ref(is));
        let packs = small_packs(&set);
        let (was, is) = (contents(was), contents(is));
        for named in [false, true] {
            let to = dir.join(format!("to-{number}-{named}"));
            std::fs::create_dir(&to).unwrap();
            for (path, bytes) in &was {
                let path = to.join("d").join(path);
                let path: PathBuf = path.components().collect();
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, bytes).unwrap();
            }
            let known = Arc::new(before("d", &["f", "deep", "deep/g"]));
            let how = |to: &mut Destination| to.received = Some(known.clone());
            let recording = Recording::of(&to, || {
                receive(&set, &packs, &to, &how, (named, true));
            });
            let is_whole = |left: &Path| {
                let there = contents(&left.join("d"));
                let is_hidden = || {
                    let mut hidden = names(left).into_iter();
                    hidden
                        .any(|name| name.ends_with(".partial") && contents(&left.join(name)) == is)
                };
                there == is || there == was || is_hidden()
            };
            each_cut(&recording, 2, |left, is_over| {
                assert!(is_whole(left), "{:?}", contents(left).keys());
                if !is_over {
                    receive(&set, &packs, left, &how, (named, false));
                }
                assert!(contents(&left.join("d")) == is);
                assert!(is_over || names(left) == ["d"], "{:?}", names(left));
            });
            let mut broken = 0;
            each_cut(&unflushed(recording), 0, |left, is_over| {
                let is_there = contents(&left.join("d")) == is;
                broken += usize::from(!is_whole(left) || is_over && !is_there);
            });
            assert!(broken > 0, "without flushes");
        }
    }
    std::fs::remove_dir_all(dir).unwrap();
}

/// A file of P3's protocol.
#[test]
fn a_file_that_is_proven_as_a_whole_replaces_the_old_one_as_a_whole() {
    let dir = scratch();
    let new = crate::object::testing::pattern(70_000);
    let metadata = FileMetadata {
        name: "f".into(),
        len: new.len() as u64,
        mode: 0o640,
        mtime: (1_000_000_000, 7),
        owner: (0, 0),
    };
    for (number, old_len) in [None, Some(70_000), Some(100), Some(90_000)]
        .into_iter()
        .enumerate()
    {
        let to = dir.join(format!("to-{number}"));
        std::fs::create_dir(&to).unwrap();
        let old = old_len.map(|len| vec![0x55; len]);
        if let Some(old) = &old {
            std::fs::write(to.join("f"), old).unwrap();
        }
        let recording = Recording::of(&to, || {
            let mut file = UnprovenFile::new(Destination {
                overwrite: true,
                sync: true,
                ..Destination::new(to.clone())
            })
            .unwrap();
            file.write(40_000, &new[40_000..]).unwrap();
            file.write(0, &new[..40_000]).unwrap();
            file.read_back(metadata.len, &mut |_| ()).unwrap();
            file.finish(&metadata).unwrap();
        });
        let is_whole = |left: &Path, is_over: bool| {
            let there = std::fs::read(left.join("f")).ok();
            let is_new = there.as_ref() == Some(&new);
            is_new || !is_over && there == old
        };
        each_cut(&recording, 3, |left, is_over| {
            assert!(is_whole(left, is_over));
            if is_over {
                let there = left.join("f").metadata().unwrap();
                let time = (there.mtime(), there.mtime_nsec() as u32);
                assert_eq!((there.mode() & 0o7777, time), (0o640, metadata.mtime));
                assert_eq!(names(left), ["f"], "no partial file is left");
            }
        });
        let mut broken = 0;
        each_cut(&unflushed(recording), 0, |left, is_over| {
            broken += usize::from(!is_whole(left, is_over));
        });
        assert!(broken > 0, "without flushes");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
