//! Checks that there is room for a file: on the disk, and for its hashes in memory.

use std::io::ErrorKind;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::file_name::parent;
use super::{BLOCK, HASH};
use crate::error::Error;
use crate::setting::RESERVE;

/// Longest file in bytes. Its hash list has 1 GiB, which sender and receivers keep in memory.
pub const LEN_MAX: u64 = 1 << 45;

const _: () = assert!(LEN_MAX / BLOCK as u64 * HASH as u64 == 1 << 30);

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
            "it has {} MiB; {} MiB are free there, of which {} MiB are to stay free: make room, \
             name another destination, or let less stay free with {RESERVE}",
            len.div_ceil(1 << 20),
            space.free >> 20,
            reserve.div_ceil(1 << 20)
        );
        let path = path.to_owned();
        return Err(Error::NoSpace { path, detail });
    }
    Ok(())
}

/// A vector of `len` zeros; an error if there is not enough memory.
pub fn room(len: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let got = usize::try_from(len).is_ok_and(|len| bytes.try_reserve_exact(len).is_ok());
    if !got {
        return Err(Error::io(
            format!("taking {} MiB of memory for the file's hashes", len >> 20),
            ErrorKind::OutOfMemory,
        ));
    }
    bytes.extend(std::iter::repeat_n(0, len as usize));
    Ok(bytes)
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

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert_eq!(room(3).unwrap(), [0; 3]);
        for len in [1 << 62, u64::MAX] {
            let text = room(len).unwrap_err().to_string();
            assert!(text.contains("memory for the file's hashes"), "{text}");
        }
    }
}
