//! Candidates: files in the places of a set's files that may be these files (spec 5.16).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{self as sys, FileType, Mode, OFlags, Stat};

use super::beneath;
use super::kept::is_hole;
use super::paths::relative;
use crate::object::holes::has_holes;
use crate::object::manifest::{Entry, Kind, Manifest, TOP};
use crate::object::pack::Piece;
use crate::object::{BLOCK, HASH, Version};

/// Times of files are that exact at least, in seconds: the coarsest are those of FAT.
pub const TIME_STEP: u64 = 2;

/// Where the files of a set lie, for a thread that looks for candidates.
pub struct Places {
    pub root: Arc<OwnedFd>,
    /// The name at the top, if the user has chosen one.
    pub name: Option<OsString>,
    pub manifest: Arc<Manifest>,
    /// The directories at the top that are staged: nothing is in their places.
    pub staged: BTreeSet<u32>,
    /// Whether this process is root's.
    pub is_root: bool,
}

/// A candidate that is open.
pub struct Candidate {
    pub file: File,
    pub has_holes: bool,
    /// Its state when it was opened.
    version: Version,
}

/// What proves a piece that is in its file's place.
#[derive(Clone)]
pub struct PieceProof {
    /// The state of the file before and after its bytes were hashed.
    pub version: Version,
    /// The hash of the piece's bytes; of a hole nothing.
    pub hash: [u8; HASH],
}

impl Places {
    /// Opens what is in the place of a file, if it is a candidate. Nothing but a regular file is
    /// opened, since that may do something to a device.
    pub fn open(&self, file: u32) -> Option<Candidate> {
        let entries = self.manifest.entries();
        let entry = &entries[file as usize];
        let Kind::File(len) = entry.kind else {
            return None;
        };
        if !self.staged.is_empty() {
            let mut top = file;
            while entries[top as usize].parent != TOP {
                top = entries[top as usize].parent;
            }
            if self.staged.contains(&top) {
                return None;
            }
        }
        let path = relative(&self.manifest, self.name.as_deref(), file);
        let open = |flags| {
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = beneath::open(&*self.root, &path, flags, Mode::empty()).ok()?;
            let there = sys::fstat(&opened).ok()?;
            let is_it = is_candidate(entry, len, self.is_root, &there);
            is_it.then_some((opened, there))
        };
        open(OFlags::PATH)?;
        let (opened, there) = open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        Some(Candidate {
            file: opened.into(),
            has_holes: has_holes(&there),
            version: Version::of(&there),
        })
    }
}

/// Whether what is there may be the file of an entry, which has `len` bytes. It has the length and
/// the time of the set, as exactly as file systems keep times. It has no other name, since what is
/// done to one would be done to the other. Nobody else could have prepared it: it belongs to this
/// user, or where that `is_root` to the owner that the set says, and others write to it only as in
/// the set.
pub fn is_candidate(entry: &Entry, len: u64, is_root: bool, there: &Stat) -> bool {
    let user = rustix::process::geteuid().as_raw();
    let others = (Mode::WGRP | Mode::WOTH).bits();
    FileType::from_raw_mode(there.st_mode) == FileType::RegularFile
        && there.st_nlink == 1
        && there.st_size as u64 == len
        && there.st_mtime.abs_diff(entry.mtime) <= TIME_STEP
        && (there.st_uid == user || is_root && there.st_uid == entry.owner.0)
        && there.st_mode & others & !u32::from(entry.mode) == 0
}

impl Candidate {
    /// The state of the file, if nobody has changed it since it was opened.
    pub fn unchanged(&self) -> Option<&Version> {
        is_at(&self.file, &self.version).then_some(&self.version)
    }
}

/// Whether an open file has this state.
pub fn is_at(file: impl AsFd, version: &Version) -> bool {
    sys::fstat(file).is_ok_and(|there| Version::of(&there) == *version)
}

/// Whether an open file has a piece with this proof now, whatever its state is.
pub fn has_piece(file: &File, piece: &Piece, proof: &PieceProof) -> bool {
    let (mut at, end) = (piece.start(), piece.end());
    let Piece::Bytes { .. } = piece else {
        return is_hole(file, at, end);
    };
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), vec![0; BLOCK]);
    while at < end {
        let some = (end - at).min(BLOCK as u64) as usize;
        if file.read_exact_at(&mut bytes[..some], at).is_err() {
            return false;
        }
        hasher.update(&bytes[..some]);
        at += some as u64;
    }
    *hasher.finalize().as_bytes() == proof.hash
}
