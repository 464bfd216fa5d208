//! Checks that there is room on the disk for what is received.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::file_name::parent;
use crate::error::Error;
use crate::setting::RESERVE;

/// Most bytes of all files of a set. The sender keeps the hashes of all blocks, at most 1 GiB.
pub const LEN_MAX: u64 = 1 << 45;

/// Bytes that stay free on a file system at least, by default.
const RESERVE_MIN: u64 = 64 << 20;
/// The part of a file system that stays free by default (1/100), if that is more than
/// [`RESERVE_MIN`].
const RESERVE_PART: u64 = 100;

/// What a file system says about its space, in bytes.
#[derive(Clone, Copy)]
struct Space {
    total: u64,
    free: u64,
}

impl Space {
    /// `None` if the file system does not know: some (network, FUSE) say that they have no blocks.
    fn at(dir: &Path) -> Result<Option<Space>, Error> {
        let fs = rustix::fs::statvfs(dir)
            .map_err(|e| Error::io(format!("looking at {}", dir.display()), e))?;
        let space = Space {
            total: fs.f_blocks.saturating_mul(fs.f_frsize),
            free: fs.f_bavail.saturating_mul(fs.f_frsize),
        };
        Ok((fs.f_blocks > 0).then_some(space))
    }

    /// Bytes that stay free unless the caller says otherwise.
    fn reserve(self) -> u64 {
        RESERVE_MIN.max(self.total / RESERVE_PART)
    }
}

/// Bytes that stay free on the file system of a directory by default; 0 if it does not know its
/// space.
///
/// # Errors
/// The file system does not answer.
pub fn default_reserve(dir: &Path) -> Result<u64, Error> {
    Ok(Space::at(dir)?.map_or(0, Space::reserve))
}

/// Checks whether `len` bytes may be written beside `path`, as far as that can be known before.
/// `reserve`: bytes that stay free; `None`: the default.
pub fn check_space(path: &Path, len: u64, reserve: Option<u64>) -> Result<(), Error> {
    if len > LEN_MAX {
        let limit = "no longer file can be received";
        return Err(Error::too_long(path, len, LEN_MAX, limit));
    }
    let limit = getrlimit(Resource::Fsize).current;
    if let Some(limit) = limit.filter(|limit| *limit < len) {
        return Err(Error::too_long(path, len, limit, "ulimit -f"));
    }
    let Some(space) = Space::at(parent(path))? else {
        return Ok(());
    };
    let reserve = reserve.unwrap_or(space.reserve());
    if space.free.saturating_sub(reserve) < len {
        let detail = format!(
            "it has {} MiB, and {} MiB are to stay free, but only {} MiB are free there: make \
             room, name another destination, or let less stay free with {RESERVE}",
            len.div_ceil(1 << 20),
            reserve.div_ceil(1 << 20),
            space.free >> 20
        );
        let path = path.to_owned();
        return Err(Error::NoSpace { path, detail });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_system_keeps_64_mib_and_a_large_one_a_hundredth() {
        let of = |total| Space { total, free: 0 }.reserve();
        assert_eq!(of(0), 64 << 20);
        assert_eq!(of(1 << 30), 64 << 20);
        assert_eq!(of(100 << 40), 1 << 40);
    }
}
