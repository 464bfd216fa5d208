//! Where a receiver puts the set that it receives.

use super::manifest::Manifest;
use super::pack::{Header, Piece, Span};
use super::stream_writer::StreamWriter;
use super::{Candidates, Discard, DryRun, HASH, Remaining, Secret, Tree};
use crate::error::Error;
use std::path::PathBuf;

/// Where the set goes.
pub enum Target {
    /// Files and directories.
    Tree(Box<Tree>),
    /// A stream, which takes the packs in their order.
    Stream(StreamWriter),
    /// Nowhere: the user wants to know what would be deleted.
    DryRun(DryRun),
    /// Nowhere: what is proven is dropped.
    Discard(Discard),
}

/// What has come of a set that is complete.
#[derive(Clone, Debug, Default)]
pub struct SetOutcome {
    /// Paths of files that the sender could not read, or that were to remain and were changed, and
    /// of links to them.
    pub failed: Vec<PathBuf>,
    /// Paths of files that were to remain and were changed, and of what was to be made of them. The
    /// sender's proof does not hold without them.
    pub changed: Vec<PathBuf>,
    /// Whether entries that are not in the set were to be deleted, and were left because of
    /// `changed`.
    pub leaves_surplus: bool,
    /// Bytes of files that remain.
    pub present: u64,
    /// Bytes of the files that are here. Files that failed do not count.
    pub len: u64,
    /// Number of entries that were deleted.
    pub deleted: u64,
    /// Number of devices and FIFOs that were not made.
    pub special: u64,
}

impl Target {
    /// The entries so far.
    pub fn manifest(&self) -> &Manifest {
        match self {
            Target::Tree(tree) => tree.manifest(),
            Target::Stream(stream) => stream.manifest(),
            Target::DryRun(dry) => dry.manifest(),
            Target::Discard(discard) => discard.manifest(),
        }
    }

    /// The entries that files and directories were made of, once that is over; elsewhere none.
    pub fn take_manifest(&mut self) -> Manifest {
        match self {
            Target::Tree(tree) => tree.take_manifest(),
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => Manifest::default(),
        }
    }

    /// Adds a page of the manifest.
    pub fn add_page(&mut self, page: &[u8]) -> Result<(), Error> {
        match self {
            Target::Tree(tree) => tree.add_page(page),
            Target::Stream(stream) => stream.add_page(page),
            Target::DryRun(dry) => dry.add_page(page),
            Target::Discard(discard) => discard.add_page(page),
        }
    }

    /// Adds a page of the manifest, and makes nothing yet.
    pub fn take_page(&mut self, page: &[u8]) -> Result<(), Error> {
        match self {
            Target::Tree(tree) => tree.take_page(page),
            other => other.add_page(page),
        }
    }

    /// Finds the candidates among what is there, as far as `go_on` returns true. Where nothing is
    /// kept there are none.
    pub fn find_candidates(&self, go_on: &mut dyn FnMut() -> bool) -> Option<Candidates> {
        match self {
            Target::Tree(tree) => Some(tree.find_candidates(go_on)),
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => None,
        }
    }

    /// Makes the places of the entries that have come by [`Target::take_page`].
    pub fn make_places(&mut self) -> Result<(), Error> {
        match self {
            Target::Tree(tree) => tree.make_places(),
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => Ok(()),
        }
    }

    /// Counts files as stored that remain where they are.
    pub fn remain(&mut self, files: Vec<Remaining>) -> Result<(), Error> {
        match self {
            Target::Tree(tree) => tree.remain(files),
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => Ok(()),
        }
    }

    /// Writes the pieces of a pack with this header, and notes it for a later run.
    pub fn write(&mut self, header: &[u8], pieces: &[Piece], bytes: &[u8]) -> Result<(), Error> {
        let tree = match self {
            Target::Tree(tree) => tree,
            Target::Stream(stream) => return stream.write(pieces, bytes),
            Target::DryRun(_) => return Ok(()),
            Target::Discard(discard) => return discard.take(pieces),
        };
        tree.write(pieces, bytes)?;
        if !pieces.iter().any(|p| matches!(p, Piece::Failed { .. })) {
            tree.note_pack(header, bytes.len());
        }
        Ok(())
    }

    /// Counts a pack as stored that is here from an earlier run. Returns its header, if it has
    /// files.
    pub fn keep(&mut self, hash: &[u8; HASH]) -> Result<Option<Header>, Error> {
        match self {
            Target::Tree(tree) => tree.keep(hash),
            // Nothing is kept, so nothing is here.
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => Ok(None),
        }
    }

    /// Reads stored bytes of files back, one behind the other; `None` where that cannot be done.
    /// Nobody knows what has been written to the files since.
    pub fn read_back(&self, spans: &[Span]) -> Option<Vec<u8>> {
        let Target::Tree(tree) = self else {
            return None;
        };
        let mut bytes = vec![0; spans.iter().map(|span| span.len).sum()];
        let mut rest = &mut bytes[..];
        for span in spans {
            let (here, behind) = rest.split_at_mut(span.len);
            tree.read_back(span.file, span.offset, here).ok()?;
            rest = behind;
        }
        Some(bytes)
    }

    /// Ends the set. Returns the secret that shows that the files can be read, by the challenge
    /// with this key; `None` where nothing can be read again.
    /// Calls `go_on` with the number of bytes of files that were copied from others since the last
    /// call, and gives up if it returns an error.
    pub fn finish(
        &mut self,
        key: [u8; 32],
        go_on: &mut dyn FnMut(u64) -> Result<(), Error>,
    ) -> Result<Option<Secret>, Error> {
        match self {
            Target::Tree(tree) => {
                tree.settle(&mut || go_on(0))?;
                let secret = tree.answer(key)?;
                tree.make_copies(go_on)?;
                tree.finish()?;
                Ok(Some(secret))
            }
            Target::Stream(stream) => stream.finish().map(|()| None),
            Target::DryRun(_) => Ok(None),
            Target::Discard(discard) => discard.finish().map(|()| None),
        }
    }

    /// Bytes that a set whose files have `len` bytes will yet take of the disk. Copies of files
    /// count as far as the manifest is here.
    pub fn to_take(&self, len: u64) -> u64 {
        match self {
            Target::Tree(tree) => (len + tree.manifest().copied()).saturating_sub(tree.taken()),
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => 0,
        }
    }

    /// What has come of the set, once it is complete.
    pub fn outcome(&self) -> SetOutcome {
        match self {
            Target::Tree(tree) => SetOutcome {
                failed: tree.failed(),
                changed: tree.changed(),
                leaves_surplus: tree.leaves_surplus(),
                present: tree.present(),
                len: tree.len_here(),
                deleted: tree.deleted(),
                special: tree.special(),
            },
            Target::Stream(stream) => SetOutcome {
                len: stream.written(),
                ..SetOutcome::default()
            },
            Target::DryRun(_) => SetOutcome::default(),
            Target::Discard(discard) => SetOutcome {
                failed: discard.failed(),
                len: discard.len_here(),
                ..SetOutcome::default()
            },
        }
    }

    /// Bytes of files that remain.
    pub fn present(&self) -> u64 {
        match self {
            Target::Tree(tree) => tree.present(),
            Target::Stream(_) | Target::DryRun(_) | Target::Discard(_) => 0,
        }
    }

    /// The paths that would be deleted, in a dry run whose manifest is complete.
    pub fn surplus(&self) -> Result<Option<Vec<PathBuf>>, Error> {
        match self {
            Target::DryRun(dry) => dry.surplus().map(Some),
            Target::Tree(_) | Target::Stream(_) | Target::Discard(_) => Ok(None),
        }
    }

    /// Removes what is kept for a later run: another run would fail, too.
    pub fn discard(&mut self) {
        if let Target::Tree(tree) = self {
            tree.discard();
        }
    }
}
