//! A set that is received and not stored: a receiver that measures a network, or warms it up.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::absurd;
use super::manifest::{Kind, Manifest};
use super::pack::Piece;
use crate::error::Error;

/// Counts the bytes of each file of a set, and stores none. Its caller has proven them.
///
/// Every byte of a file comes in one piece, so a file is complete when as many bytes have come as
/// it has.
#[derive(Default)]
pub struct Discard {
    manifest: Manifest,
    /// Bytes that have come of each entry.
    arrived: Vec<u64>,
    /// Whether the last byte of a stream has come.
    has_ended: bool,
    /// Files that the sender could not read.
    failed: BTreeSet<u32>,
}

impl Discard {
    /// The entries so far.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Adds a page of the manifest.
    pub fn add_page(&mut self, page: &[u8]) -> Result<(), Error> {
        self.manifest.add_page(page)?;
        self.arrived.resize(self.manifest.entries().len(), 0);
        Ok(())
    }

    /// Takes the pieces of a pack.
    pub fn take(&mut self, pieces: &[Piece]) -> Result<(), Error> {
        for piece in pieces {
            let file = piece.file();
            let entry = self.manifest.entries().get(file as usize);
            let most = match entry.map(|entry| &entry.kind) {
                Some(Kind::File(len)) => *len,
                Some(Kind::Stream) => u64::MAX,
                Some(Kind::Directory) if matches!(piece, Piece::Failed { .. }) => 0,
                _ => return Err(absurd("bytes of a file that it has not announced")),
            };
            if matches!(piece, Piece::Failed { .. }) {
                self.failed.insert(file);
                continue;
            }
            let arrived = &mut self.arrived[file as usize];
            let sum = arrived.checked_add(piece.size());
            *arrived = sum
                .filter(|sum| *sum <= most && piece.end() <= most)
                .ok_or_else(|| absurd("a file that is longer than announced"))?;
            self.has_ended |= piece.is_last();
        }
        Ok(())
    }

    /// Bytes of all files that have come.
    pub fn len_here(&self) -> u64 {
        self.arrived.iter().sum()
    }

    /// Paths of the files that the sender could not read, within the set.
    pub fn failed(&self) -> Vec<PathBuf> {
        let path = |file: &u32| OsString::from_vec(self.manifest.path(*file)).into();
        self.failed.iter().map(path).collect()
    }

    /// Checks that every file has come, or is known to have failed.
    pub fn finish(&self) -> Result<(), Error> {
        let mut entries = (0..).zip(self.manifest.entries()).zip(&self.arrived);
        let is_whole = entries.all(|((number, entry), arrived)| match entry.kind {
            _ if self.failed.contains(&number) => true,
            Kind::File(len) => *arrived == len,
            Kind::Stream => self.has_ended,
            _ => true,
        });
        match is_whole {
            true => Ok(()),
            false => Err(absurd("it ends before all files are there")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::testing::{packs, pattern, pieces_of, scratch, set_of};

    /// The pieces of a set of two files, in the order in which they are sent.
    fn two_files() -> (Discard, Vec<Piece>) {
        let dir = scratch();
        for (name, len) in [("a", 9_000_000), ("b", 10), ("empty", 0)] {
            std::fs::write(dir.join(name), pattern(len)).unwrap();
        }
        let (mut discard, mut pieces) = (Discard::default(), Vec::new());
        for pack in packs(&set_of(std::slice::from_ref(&dir))).0 {
            match pieces_of(&pack) {
                None => discard.add_page(pack.payload()).unwrap(),
                Some(some) => pieces.extend(some),
            }
        }
        std::fs::remove_dir_all(dir).unwrap();
        (discard, pieces)
    }

    #[test]
    fn a_set_is_complete_when_all_has_come_in_any_order() {
        let (mut discard, pieces) = two_files();
        for piece in pieces.iter().rev() {
            discard.take(std::slice::from_ref(piece)).unwrap();
        }
        discard.finish().unwrap();
        assert_eq!(discard.len_here(), 9_000_010);
    }

    #[test]
    fn what_lacks_or_does_not_fit_is_an_error() {
        let (mut discard, pieces) = two_files();
        discard.take(&pieces[1..]).unwrap();
        assert!(discard.finish().is_err());
        // The same piece again would make the file longer than it is, or hide that another lacks.
        let again = discard.take(&pieces).and_then(|()| discard.take(&pieces));
        assert!(matches!(again, Err(Error::Integrity(_))));
        let directory = Piece::Bytes {
            file: 0,
            offset: 0,
            len: 0,
            last: true,
        };
        assert!(discard.take(&[directory]).is_err());
    }

    #[test]
    fn a_file_that_failed_is_not_awaited() {
        let (mut discard, pieces) = two_files();
        let file = pieces[0].file();
        let reason = "it fails".to_owned();
        discard.take(&pieces[1..]).unwrap();
        discard.take(&[Piece::Failed { file, reason }]).unwrap();
        discard.finish().unwrap();
        assert_eq!(discard.failed().len(), 1);
    }
}
