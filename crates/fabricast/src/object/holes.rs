//! Holes of files: where they are, as their file system says.

use std::fs::File;

use rustix::fs::{SeekFrom, Stat};
use rustix::io::Errno;

/// Whether a file takes less space than it has bytes, so that it may have holes.
pub fn has_holes(there: &Stat) -> bool {
    there.st_blocks * 512 < there.st_size
}

/// What begins at `offset` of a file that has `len` bytes, before its end: whether it is a hole,
/// and its length in bytes. A file system that knows no holes has none.
pub fn extent(file: &File, has_holes: bool, offset: u64, len: u64) -> (bool, u64) {
    let rest = len - offset;
    if !has_holes {
        return (false, rest);
    }
    let seek = |from| rustix::fs::seek(file, from);
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
