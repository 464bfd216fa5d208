//! A file of a set while it is read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{self as sys, SeekFrom};
use rustix::io::Errno;

use super::version::{Version, compare};
use crate::text::shown;

/// A file that is read.
pub struct SourceFile {
    pub(super) file: File,
    /// Whether it takes less space than it has bytes.
    pub(super) has_holes: bool,
    pub(super) path: PathBuf,
    pub(super) version: Version,
}

impl SourceFile {
    /// What begins at `offset`, before the end of the file: whether it is a hole, and its length in
    /// bytes. A file system that knows no holes has none.
    pub fn extent(&self, offset: u64) -> (bool, u64) {
        let rest = self.version.len - offset;
        if !self.has_holes {
            return (false, rest);
        }
        let seek = |from| rustix::fs::seek(&self.file, from);
        match seek(SeekFrom::Data(offset)) {
            Ok(data) if data > offset => (true, (data - offset).min(rest)),
            Err(Errno::NXIO) => (true, rest),
            Ok(_) => match seek(SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => (false, (hole - offset).min(rest)),
                _ => (false, rest),
            },
            Err(_) => (false, rest),
        }
    }

    /// Reads bytes, which must be those of the file as it was listed.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        self.file.read_exact_at(into, offset).map_err(|e| {
            let path = shown(&self.path);
            if e.kind() == io::ErrorKind::UnexpectedEof {
                let len = self.version.len;
                format!("{path} became shorter while it was being sent ({len} bytes at the start)")
            } else {
                format!("reading {path} at byte {offset}: {e}")
            }
        })?;
        self.check_version()
    }

    /// Checks that the file is as it was when it was listed; the error says what changed.
    pub fn check_version(&self) -> Result<(), String> {
        compare(&self.path, sys::fstat(&self.file), &self.version)
    }
}
