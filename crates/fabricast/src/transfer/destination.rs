//! The destination of a received file, as the receiver's user has named it.

use std::path::{Path, PathBuf};

use super::receiver_errors::strange;
use crate::bootstrap::message::{VERSION, Welcome};
use crate::config::RecvOptions;
use crate::error::Error;
use crate::object::{BLOCK, PartialFile, safe_name};
use crate::setting::MAX_SIZE;

/// Reports what is wrong with the destination before the receiver looks for a sender.
pub fn check(options: &RecvOptions) -> Result<(), Error> {
    let dest = &options.dest;
    match std::fs::metadata(dest) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(meta) if !meta.is_file() => Err(Error::Usage(format!(
            "{} is neither a file nor a directory; only files can be received yet",
            dest.display()
        ))),
        Ok(_) if !options.overwrite => Err(Error::Exists(dest.clone())),
        Ok(_) => Ok(()),
        Err(_) => {
            let parent = match dest.parent() {
                Some(p) if !p.as_os_str().is_empty() => p,
                _ => Path::new("."),
            };
            let slash = dest.as_os_str().as_encoded_bytes().ends_with(b"/");
            if slash || !parent.is_dir() {
                let missing = if slash { dest } else { parent };
                let what = missing.display();
                return Err(Error::Usage(match missing.exists() {
                    true => format!("{what} is a file, not a directory"),
                    false => format!("there is no directory {what}; make it first"),
                }));
            }
            Ok(())
        }
    }
}

/// Checks the sender's welcome and creates the partial file, if the receiver's options allow it. A
/// sender that was `found` by its announcement may be anybody: its file loses its execute
/// permissions, so that it cannot run before the user allows that.
pub fn prepare(
    options: &RecvOptions,
    welcome: &Welcome,
    found: bool,
) -> Result<PartialFile, Error> {
    if welcome.version != VERSION || welcome.block as usize != BLOCK {
        return Err(strange());
    }
    let mut path: PathBuf = options.dest.clone();
    if path.is_dir() {
        let name = safe_name(&welcome.name).ok_or_else(|| {
            Error::Usage(format!(
                "the sender calls the file {:?}, which is no name for a file here; name the \
                 destination file yourself",
                welcome.name
            ))
        })?;
        path.push(name);
    }
    let len = welcome.len;
    if let Some(most) = options.max_size.filter(|most| len > *most) {
        return Err(Error::too_long(&path, len, most, MAX_SIZE));
    }
    PartialFile::new(
        path,
        len,
        if found {
            welcome.mode & !0o111
        } else {
            welcome.mode
        },
        options.overwrite,
        options.reserve,
        options.inject_damage,
    )
}
