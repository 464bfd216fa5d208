//! A file while it is written.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::Mode;

use super::disk;
use super::ranges::Ranges;

/// A file that is being written.
pub struct Partial {
    pub entry: u32,
    pub file: File,
    /// Name of the file until it is complete; `None` if it has no name, or its own.
    pub name: Option<PathBuf>,
    /// Whether it has its own name already, in a staged directory.
    pub is_in_place: bool,
    pub directory: Arc<OwnedFd>,
    /// Whether it stays for a later run.
    pub is_kept: bool,
    /// What of it is written.
    pub ranges: Ranges,
    /// Bytes of it whose space on the disk is taken.
    pub taken: u64,
}

/// What a file has before it gets what its entry says.
#[derive(Clone, Copy)]
pub struct Had {
    /// Its user and its group.
    pub owner: (u32, u32),
    /// Its permissions.
    pub mode: Mode,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(name) = self.name.take().filter(|_| !self.is_kept) {
            disk::remove(&self.directory, &name);
        }
    }
}
