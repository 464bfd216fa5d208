//! Files of a set with the same bytes: the sender sends the first of them, and receivers copy it
//! (spec 5.4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::{Challenge, Kind, Manifest, Sampled, SourceFile, SourceSet, random_key};
use crate::error::Error;

/// Shortest file in bytes that is compared. Reading a shorter one takes about as long as sending
/// it.
const LEN_MIN: u64 = 64 << 10;
/// Bytes that are read at once.
const READ: usize = 1 << 20;
/// Places at which files of the same length are compared before they are read as a whole: nearly
/// all files that differ do so at one of these.
const PLACES: u64 = 16;
/// Bytes that are compared at each place.
const SAMPLE: usize = 4 << 10;

/// Calls this now and then, and gives up if it returns an error.
type GoOn<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// A hash of some bytes of a file, spread over it. `None` if it cannot be read as it was listed, or
/// has holes, which its copies would not have.
fn sampled(file: &SourceFile, len: u64) -> Option<blake3::Hash> {
    if file.has_holes {
        return None;
    }
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), vec![0; SAMPLE]);
    for place in 0..PLACES {
        let offset = (len - SAMPLE as u64) / (PLACES - 1) * place;
        file.read(offset, &mut bytes).ok()?;
        hasher.update(&bytes);
    }
    Some(hasher.finalize())
}

/// The hash of a file; `None` if it cannot be read as it was listed.
fn whole(file: &SourceFile, len: u64, go_on: GoOn<'_>) -> Result<Option<blake3::Hash>, Error> {
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), vec![0; READ]);
    for offset in (0..len).step_by(READ) {
        go_on()?;
        let part = &mut bytes[..(len - offset).min(READ as u64) as usize];
        if file.read(offset, part).is_err() {
            return Ok(None);
        }
        hasher.update(part);
    }
    Ok(Some(hasher.finalize()))
}

impl SourceSet {
    /// Finds files with the same bytes, by their hashes. All but the first of them become copies of
    /// it, except those that have other names in the set. Calls `go_on` now and then, and gives up
    /// if it returns an error.
    pub fn find_identical(&mut self, go_on: GoOn<'_>) -> Result<(), Error> {
        let entries = self.manifest.entries();
        let links = entries.iter().filter_map(|entry| match entry.kind {
            Kind::HardLink(to) => Some(to),
            _ => None,
        });
        let links: BTreeSet<u32> = links.collect();
        let mut by_len = BTreeMap::<u64, Vec<u32>>::new();
        for (number, entry) in (0..).zip(entries) {
            match entry.kind {
                Kind::File(len) if len >= LEN_MIN && !links.contains(&number) => {
                    by_len.entry(len).or_default().push(number);
                }
                _ => {}
            }
        }
        let mut copies = BTreeMap::new();
        for (len, files) in by_len.into_iter().filter(|(_, files)| files.len() > 1) {
            let mut alike = BTreeMap::<[u8; 32], Vec<u32>>::new();
            for number in files {
                go_on()?;
                let hash = self.open(number).ok().and_then(|file| sampled(&file, len));
                if let Some(hash) = hash {
                    alike.entry(hash.into()).or_default().push(number);
                }
            }
            for files in alike.into_values().filter(|files| files.len() > 1) {
                let mut first = BTreeMap::<[u8; 32], u32>::new();
                for number in files {
                    let Ok(file) = self.open(number) else {
                        continue;
                    };
                    if let Some(hash) = whole(&file, len, go_on)? {
                        let of = *first.entry(hash.into()).or_insert(number);
                        if of != number {
                            copies.insert(number, of);
                        }
                    }
                }
            }
        }
        match copies.is_empty() {
            true => Ok(()),
            false => self.copy(&copies),
        }
    }

    /// Makes files copies of others: each number is a copy of the one that it maps to.
    fn copy(&mut self, copies: &BTreeMap<u32, u32>) -> Result<(), Error> {
        let (mut manifest, mut starts) = (Manifest::default(), Vec::new());
        for (number, entry) in (0..).zip(self.manifest.entries()) {
            let mut entry = entry.clone();
            if let Some(of) = copies.get(&number) {
                entry.kind = Kind::Copy(*of);
            }
            starts.push(manifest.len());
            let added = manifest.add(entry);
            added.map_err(|why| Error::Usage(format!("this set cannot be sent: {}", why.0)))?;
        }
        let challenge = Challenge::new(random_key()?, manifest.len());
        self.sampled = Mutex::new(Sampled {
            samples: vec![0; challenge.bytes()],
            challenge,
        });
        (self.manifest, self.starts) = (manifest, starts);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::testing::{pattern, scratch, set_of};

    fn kinds(set: &SourceSet) -> Vec<Kind> {
        let entries = set.manifest().entries().iter();
        entries.map(|entry| entry.kind.clone()).collect()
    }

    #[test]
    fn files_with_the_same_bytes_are_copies_of_the_first() {
        let dir = scratch();
        let top = dir.join("top");
        std::fs::create_dir(&top).unwrap();
        let (bytes, len) = (pattern(200_000), 200_000);
        // It differs where no sample lies.
        let mut other = bytes.clone();
        other[5_000] ^= 1;
        for (name, bytes) in [
            ("a", &bytes),
            ("b", &other),
            ("c", &bytes),
            ("d", &other),
            ("e", &bytes),
            ("linked", &bytes),
        ] {
            std::fs::write(top.join(name), bytes).unwrap();
        }
        std::fs::hard_link(top.join("linked"), top.join("other name")).unwrap();
        for name in ["s1", "s2"] {
            std::fs::write(top.join(name), "short").unwrap();
        }
        let sources = std::slice::from_ref(&top);
        let listed = || SourceSet::list(sources, &Default::default(), &mut |_| {}).unwrap();
        let mut set = listed();
        set.find_identical(&mut || Ok(())).unwrap();
        let file = Kind::File(len);
        let expected = [
            Kind::Directory,
            file.clone(),
            file.clone(),
            Kind::Copy(1),
            Kind::Copy(2),
            Kind::Copy(1),
            file,
            Kind::HardLink(6),
            Kind::File(5),
            Kind::File(5),
        ];
        assert_eq!(kinds(&set), expected);
        assert_eq!(set.manifest().len(), 3 * len + 10);
        assert_eq!(set.manifest().copied(), 3 * len);
        // A file that is changed after it was listed is no copy: it fails when it is read.
        let mut set = listed();
        std::fs::write(top.join("c"), "changed").unwrap();
        set.find_identical(&mut || Ok(())).unwrap();
        assert_eq!(kinds(&set)[3], Kind::File(len));
        let stops = listed().find_identical(&mut || Err(Error::Interrupted));
        assert!(matches!(stops, Err(Error::Interrupted)));
        let same = set_of(&[top.join("s1")]);
        assert_eq!(same.manifest().copied(), 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
