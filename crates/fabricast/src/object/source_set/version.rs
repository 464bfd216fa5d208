//! The state of a file, to find out whether it has changed.

use std::io;
use std::path::Path;

use rustix::fs::Stat;
use rustix::io::Errno;

use crate::text::shown;

/// The state of a file: at least one field differs after a change. The times are in seconds and
/// nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Version {
    inode: (u64, u64),
    /// Length in bytes.
    pub len: u64,
    /// When the file's bytes were changed. Anybody that may write to the file can set this time.
    mtime: (i64, i64),
    /// When anything of the file was changed. Nobody can set this time.
    ctime: (i64, i64),
}

impl Version {
    /// The state that the system tells.
    pub fn of(there: &Stat) -> Version {
        Version {
            inode: (there.st_dev, there.st_ino),
            len: there.st_size as u64,
            mtime: (there.st_mtime, there.st_mtime_nsec as i64),
            ctime: (there.st_ctime, there.st_ctime_nsec as i64),
        }
    }

    /// Whether this is a later state of the same file, with the same length, that was modified at
    /// the same time or at the time `or`. Its permissions and its links may be others.
    pub fn has_bytes_of(&self, earlier: &Version, or: (i64, i64)) -> bool {
        let is_timed = self.mtime == earlier.mtime || self.mtime == or;
        self.inode == earlier.inode && self.len == earlier.len && is_timed
    }
}

/// Compares a file with its state when it was listed.
pub fn compare(path: &Path, now: Result<Stat, Errno>, then: &Version) -> Result<(), String> {
    let reading = |e| format!("reading {}: {}", shown(path), io::Error::from(e));
    let now = Version::of(&now.map_err(reading)?);
    if now == *then {
        return Ok(());
    }
    let how = match now.len {
        _ if now.inode != then.inode => "was replaced by another file",
        len if len < then.len => "became shorter",
        len if len > then.len => "became longer",
        _ if now.mtime != then.mtime => "was written to",
        // Its bytes may have changed as well, if somebody has set `mtime` back.
        _ => "was changed (written to, renamed, deleted, or its permissions)",
    };
    let lengths = match now.len == then.len {
        true => String::new(),
        false => format!(" ({} bytes at the start, {} now)", then.len, now.len),
    };
    let path = shown(path);
    Err(format!("{path} {how} while it was being sent{lengths}"))
}
