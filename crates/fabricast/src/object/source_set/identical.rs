//! Files of a set with the same bytes: the sender sends the first of them, and receivers copy it
//! (spec 5.4).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::{Challenge, Kind, Manifest, Sampled, SourceFile, SourceSet, random_key};
use crate::error::Error;
use crate::setting::COMPARES;

/// Shortest file in bytes that is compared. Reading a shorter one takes about as long as sending
/// it.
const LEN_MIN: u64 = 64 << 10;
/// Bytes that are read at once.
const READ: usize = 1 << 20;
/// Places at which files of the same length are compared before they are read as a whole: nearly
/// all files that differ do so at the first of these.
const PLACES: [u64; 2] = [1, 16];
/// Bytes that are compared at each place.
const SAMPLE: usize = 4 << 10;
/// More files of the same lengths than this, or more bytes in files that are alike, are told of
/// before they are read.
const TOLD: (usize, u64) = (10_000, 1 << 30);

/// Calls this now and then, and gives up if it returns an error.
type GoOn<'a> = &'a mut dyn FnMut() -> Result<(), Error>;

/// A hash of some bytes of a file, at so many places. `None` if it cannot be read as it was listed,
/// or has holes, which its copies would not have.
fn sampled(file: &SourceFile, len: u64, places: u64) -> Option<blake3::Hash> {
    if file.has_holes {
        return None;
    }
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), vec![0; SAMPLE]);
    for place in 1..=places {
        let offset = (len - SAMPLE as u64) / places * place;
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
    /// if it returns an error. `tell` gets messages for the user.
    pub fn find_identical(
        &mut self,
        go_on: GoOn<'_>,
        tell: &mut dyn FnMut(String),
    ) -> Result<(), Error> {
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
        let mut alike: Vec<(u64, Vec<u32>)> = by_len.into_iter().collect();
        alike.retain(|(_, files)| files.len() > 1);
        let files: usize = alike.iter().map(|(_, files)| files.len()).sum();
        if files > TOLD.0 {
            tell(format!(
                "comparing {files} files of equal lengths ({COMPARES})"
            ));
        }
        for places in PLACES {
            let mut left = Vec::new();
            for (len, files) in alike {
                let hash = |file: &SourceFile| Ok(sampled(file, len, places));
                let groups = self.grouped(&files, go_on, hash)?;
                left.extend(groups.into_iter().map(|files| (len, files)));
            }
            alike = left;
        }
        let bytes: u64 = alike
            .iter()
            .map(|(len, files)| len * files.len() as u64)
            .sum();
        if bytes > TOLD.1 {
            let mib = bytes >> 20;
            tell(format!(
                "comparing {mib} MiB of files that may be identical ({COMPARES})"
            ));
        }
        let mut copies = BTreeMap::new();
        for (len, files) in alike {
            let mut go_on_here = || Ok(());
            for same in self.grouped(&files, &mut go_on_here, |file| whole(file, len, go_on))? {
                copies.extend(same[1..].iter().map(|copy| (*copy, same[0])));
            }
        }
        match copies.is_empty() {
            true => Ok(()),
            false => self.copy(&copies),
        }
    }

    /// Groups of several of these files that have the same hash, each in ascending order.
    fn grouped(
        &self,
        files: &[u32],
        go_on: GoOn<'_>,
        mut hash: impl FnMut(&SourceFile) -> Result<Option<blake3::Hash>, Error>,
    ) -> Result<Vec<Vec<u32>>, Error> {
        let mut groups = BTreeMap::<[u8; 32], Vec<u32>>::new();
        for number in files {
            go_on()?;
            // One that cannot be read fails when it is sent.
            if let Ok(file) = self.open(*number)
                && let Some(hash) = hash(&file)?
            {
                groups.entry(hash.into()).or_default().push(*number);
            }
        }
        Ok(groups
            .into_values()
            .filter(|group| group.len() > 1)
            .collect())
    }

    /// The files that are copies of this one.
    pub fn copies_of(&self, file: u32) -> &[u32] {
        self.copies.get(&file).map_or(&[], Vec::as_slice)
    }

    /// Makes files copies of others: each number is a copy of the one that it maps to.
    fn copy(&mut self, copies: &BTreeMap<u32, u32>) -> Result<(), Error> {
        let (mut manifest, mut starts) = (Manifest::default(), Vec::new());
        for (number, entry) in (0..).zip(self.manifest.entries()) {
            let mut entry = entry.clone();
            if let Some(of) = copies.get(&number) {
                entry.kind = Kind::Copy(*of);
                self.copies.entry(*of).or_default().push(number);
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
        set.find_identical(&mut || Ok(()), &mut |_| {}).unwrap();
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
        set.find_identical(&mut || Ok(()), &mut |_| {}).unwrap();
        assert_eq!(kinds(&set)[3], Kind::File(len));
        let stops = listed().find_identical(&mut || Err(Error::Interrupted), &mut |_| {});
        assert!(matches!(stops, Err(Error::Interrupted)));
        let same = set_of(&[top.join("s1")]);
        assert_eq!(same.manifest().copied(), 0);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
