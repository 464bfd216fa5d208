//! What a caller knows of a destination that belongs to one sender.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::path::PathBuf;

/// What a caller knows of the entries at the top of a destination.
pub trait Received: Debug + Send + Sync {
    /// What a file or directory held when it was received: paths relative to it, none for a file.
    /// `None` if what has this name is not what was received.
    fn paths(&self, name: &OsStr) -> Option<BTreeSet<PathBuf>>;
}
