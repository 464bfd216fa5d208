//! Where entries lie.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::object::manifest::Manifest;

/// The path of an entry relative to the destination, whose user may have named the top.
pub fn relative(manifest: &Manifest, name: Option<&OsStr>, entry: u32) -> PathBuf {
    let path = manifest.path(entry);
    let path = Path::new(OsStr::from_bytes(&path));
    match name {
        Some(name) => {
            let names = path.components().skip(1);
            Path::new(name).components().chain(names).collect()
        }
        None => path.to_owned(),
    }
}
