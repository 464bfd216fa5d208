//! What the entries at the top of a set would be as sets of their own.
//!
//! A sender may put several entries into one set. There they have other numbers, a file may be a
//! copy of one in another entry, and hard links may lead from one entry to another. None of that
//! changes what an entry is. So each of them has the digest that it has alone.

use std::collections::BTreeMap;

use super::{Entry, Kind, Manifest, TOP, encode};

/// An entry at the top of a set, with all that it holds, as if it were alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alone {
    /// Its number in the set.
    pub number: u32,
    /// Bytes of its files together.
    pub len: u64,
    /// The digest of its manifest.
    pub digest: blake3::Hash,
}

/// The manifest of one entry at the top, as it grows.
#[derive(Default)]
struct Top {
    number: u32,
    /// Number of its entries so far.
    count: u32,
    len: u64,
    hasher: blake3::Hasher,
    /// Files of other entries at the top that have a name here, too, and the first such name.
    linked: BTreeMap<u32, u32>,
}

impl Manifest {
    /// The entries at the top, each as if it were a set of its own, in their order.
    pub fn tops_alone(&self) -> Vec<Alone> {
        let mut tops = Vec::<Top>::new();
        // For each entry: in which of the tops it lies, and its number there.
        let mut places = Vec::<(usize, u32)>::with_capacity(self.entries.len());
        let mut bytes = Vec::new();
        for (number, entry) in (0..).zip(&self.entries) {
            let at = match entry.parent {
                TOP => {
                    tops.push(Top {
                        number,
                        ..Top::default()
                    });
                    tops.len() - 1
                }
                parent => places[parent as usize].0,
            };
            let top = &mut tops[at];
            let (mut kind, mut attributes) = (entry.kind.clone(), entry.attributes.clone());
            match kind {
                Kind::Copy(of) => kind = Kind::File(self.file_len(of)),
                Kind::HardLink(to) if places[to as usize].0 == at => {
                    kind = Kind::HardLink(places[to as usize].1);
                }
                Kind::HardLink(to) => match top.linked.get(&to) {
                    Some(first) => kind = Kind::HardLink(*first),
                    None => {
                        top.linked.insert(to, top.count);
                        kind = Kind::File(self.file_len(to));
                        attributes = self.entries[to as usize].attributes.clone();
                    }
                },
                _ => {}
            }
            if let Kind::File(len) = kind {
                top.len += len;
            }
            let alone = Entry {
                parent: match entry.parent {
                    TOP => TOP,
                    parent => places[parent as usize].1,
                },
                name: entry.name.clone(),
                kind,
                attributes,
                ..*entry
            };
            bytes.clear();
            encode(&alone, &mut bytes);
            top.hasher.update(&bytes);
            places.push((at, top.count));
            top.count += 1;
        }
        let alone = |top: Top| Alone {
            number: top.number,
            len: top.len,
            digest: top.hasher.finalize(),
        };
        tops.into_iter().map(alone).collect()
    }

    /// Length in bytes of a regular file; 0 for other entries.
    fn file_len(&self, file: u32) -> u64 {
        match self.entries[file as usize].kind {
            Kind::File(len) => len,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use crate::object::testing::{pattern, scratch};
    use crate::object::{Selection, SourceSet};

    /// Whatever an entry shares with others of its set: it is what it is alone.
    #[test]
    fn an_entry_among_others_is_what_it_is_alone() {
        let dir = scratch();
        let [a, b, c, d]: [PathBuf; 4] = ["a", "b", "c", "d"].map(|name| dir.join(name));
        std::fs::create_dir_all(a.join("deep")).unwrap();
        std::fs::create_dir_all(b.join("deep/er")).unwrap();
        let bytes = pattern(100_000);
        for path in [a.join("deep/x"), b.join("y"), b.join("z"), c.clone()] {
            std::fs::write(path, &bytes).unwrap();
        }
        // One file has two names in the first entry, two in the second, and is the fourth.
        std::fs::write(a.join("file"), "linked").unwrap();
        for path in [
            a.join("again"),
            b.join("deep/er/1"),
            b.join("deep/er/2"),
            d.clone(),
        ] {
            std::fs::hard_link(a.join("file"), path).unwrap();
        }
        std::os::unix::fs::symlink("y", b.join("soft")).unwrap();
        let sources = [a, b, c, d];
        let listed = |sources: &[PathBuf]| {
            let set = SourceSet::list(sources, &Selection::default(), &mut |_| {});
            set.unwrap()
        };
        let mut set = listed(&sources);
        set.find_identical(&mut || Ok(()), &mut |_| {}).unwrap();
        let manifest = set.manifest();
        assert_eq!(manifest.copied(), 300_000, "it shares them");
        let tops = manifest.tops_alone();
        for (top, source) in tops.iter().zip(&sources) {
            let alone = listed(std::slice::from_ref(source));
            assert_eq!(top.digest, alone.manifest().digest(), "{source:?}");
            assert_eq!(top.len, alone.manifest().len());
            assert_eq!(set.path(top.number), *source);
        }
        assert_eq!(tops.len(), 4);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
