//! The destination of what is received, as the receiver's user has named it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;

use super::errors::strange;
use crate::bootstrap::message::{VERSION, Welcome};
use crate::config::RecvOptions;
use crate::error::Error;
use crate::object::{
    BLOCK, Destination, Discard, DryRun, Kept, StreamWriter, Target, Tree, any_name, check_space,
    is_kept, parent, safe_name,
};
use crate::setting::{FROM, MAX_SIZE, SERVE};

/// What stands for the path of a file that goes to a stream.
const STREAM: &str = "-";
/// Paths that stand for open files of a process.
const OPEN_FILES: [&str; 5] = [
    "/dev/stdin",
    "/dev/stdout",
    "/dev/stderr",
    "/dev/fd",
    "/proc",
];
/// What stands for the path of a set that is not stored.
const NOWHERE: &str = "/dev/null";

/// Reports what is wrong with the destination before the receiver looks for a sender.
pub fn check(options: &RecvOptions) -> Result<(), Error> {
    check_place(options)?;
    match options.makes_files() {
        true => check_permissions(place(options).0),
        false => Ok(()),
    }
}

/// Whether files can be made in a directory, as far as its permissions say.
fn check_permissions(directory: &Path) -> Result<(), Error> {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    match accessat(CWD, directory, access, AtFlags::EACCESS) {
        Err(e @ (Errno::ACCESS | Errno::ROFS)) => {
            let what = format!("this user cannot make files in {}", directory.display());
            Err(Error::io(what, io::Error::from(e)))
        }
        // Whatever else it is will show.
        _ => Ok(()),
    }
}

fn check_place(options: &RecvOptions) -> Result<(), Error> {
    let dest = &options.dest;
    if options.serve && !options.makes_files() {
        return Err(Error::Usage(format!(
            "a receiver that serves others ({SERVE}) reads its files again, and this one is to \
             keep none: name a file or a directory as the destination"
        )));
    }
    if options.output.is_some() || options.discard {
        return Ok(());
    }
    if options.into_directory && options.dry_run {
        return match dest.is_dir() {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "there is no directory {}",
                dest.display()
            ))),
        };
    }
    if options.into_directory {
        return match std::fs::create_dir(dest) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && dest.is_dir() => Ok(()),
            made => made.map_err(|e| Error::io(format!("making {}", dest.display()), e)),
        }
        .map(|()| {
            // A power failure must not take the directory away. What cannot be flushed may go.
            if options.sync {
                let _ = File::open(parent(dest)).and_then(|parent| parent.sync_all());
            }
        });
    }
    // Such a link leads to whatever is open there, and a file that comes would take its place.
    if OPEN_FILES.iter().any(|open| dest.starts_with(open)) {
        return Err(Error::Usage(format!(
            "{} stands for an open file: name a file, or `-` for standard output",
            dest.display()
        )));
    }
    match std::fs::metadata(dest) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(meta) if !meta.is_file() => Err(Error::Usage(format!(
            "{} is neither a file nor a directory: name one, or `-` for standard output",
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

/// The directory in which a receiver that was cut off has kept something of the set whose manifest
/// has this digest; `None` if nothing is kept.
pub fn kept(options: &RecvOptions, set: &str) -> Option<PathBuf> {
    let (root, name) = place(options);
    let set = blake3::Hash::from_hex(set).ok()?;
    let is_kept = options.makes_files() && is_kept(root, &set, name);
    is_kept.then(|| root.to_owned())
}

/// The directory that everything goes to, and the name there, if the user has chosen one.
fn place(options: &RecvOptions) -> (&Path, Option<&OsStr>) {
    let dest = &options.dest;
    match options.into_directory || dest.is_dir() {
        true => (dest, None),
        false => (parent(dest), dest.file_name()),
    }
}

/// Where things go and what may happen there, as the options say. `found`: see [`prepare`].
pub fn destination(options: &RecvOptions, found: bool) -> Destination {
    let (root, name) = place(options);
    Destination {
        root: root.to_owned(),
        name: name.map(ToOwned::to_owned),
        any_names: options.any_names,
        overwrite: options.overwrite,
        sync: options.sync,
        is_tame: found,
        is_privileged: options.privileged,
        attributes: options.attributes,
        deletes: options.delete,
        received: options.received.clone(),
    }
}

/// Checks the sender's welcome and opens the destination, if the receiver's options allow it. Also
/// returns the path of what is received: its directory, if it is more than one file or directory. A
/// sender that was `found` by its announcement may be anybody: a file at the top loses its execute
/// permissions, so that it cannot run before the user allows that. Calls `go_on` now and then while
/// it proves what an earlier run has left, and gives up if that returns an error.
///
/// The file of a receiver that writes to a stream has the path `-`, as its user has called it. What
/// is not stored has the path `/dev/null`.
pub fn prepare(
    options: &RecvOptions,
    welcome: &Welcome,
    found: bool,
    go_on: &mut dyn FnMut() -> Result<(), Error>,
) -> Result<(Target, Kept, PathBuf), Error> {
    let absurd = welcome.tops == 0 || welcome.tops > welcome.entries;
    let is_stream = welcome.len.is_none();
    if welcome.version != VERSION
        || welcome.block as usize != BLOCK
        || absurd
        || is_stream && welcome.entries != 1
    {
        return Err(strange());
    }
    if found && options.delete {
        return Err(Error::Usage(format!(
            "only a sender that is named ({FROM}) may have anything deleted"
        )));
    }
    if let Some(output) = &options.output {
        return match (welcome.entries, welcome.len, options.max_size) {
            (1, Some(len), Some(most)) if len > most => {
                Err(Error::too_long(STREAM.as_ref(), len, most, MAX_SIZE))
            }
            (1, ..) => {
                let target = Target::Stream(StreamWriter::new(output.clone()));
                Ok((target, Kept::default(), STREAM.into()))
            }
            (entries, ..) => Err(Error::Usage(format!(
                "the sender sends {entries} files and directories, and only one file can go to \
                 standard output: name a directory"
            ))),
        };
    }
    let len = welcome.len.unwrap_or(0);
    let is_too_long = options.max_size.filter(|most| len > *most);
    if options.discard {
        return match is_too_long {
            Some(most) => Err(Error::too_long(NOWHERE.as_ref(), len, most, MAX_SIZE)),
            None => {
                let target = Target::Discard(Discard::default());
                Ok((target, Kept::default(), NOWHERE.into()))
            }
        };
    }
    let dest = &options.dest;
    let destination = destination(options, found);
    let to_directory = destination.name.is_none();
    let path = match (to_directory, welcome.tops) {
        (true, 1) => {
            let allowed = if options.any_names {
                any_name
            } else {
                safe_name
            };
            let name = allowed(&welcome.name).ok_or_else(|| {
                Error::Usage(format!(
                    "the sender calls the file {:?}, which is no name for a file here; name the \
                     destination file yourself",
                    welcome.name
                ))
            })?;
            dest.join(name)
        }
        (false, 2..) => {
            return Err(Error::Usage(format!(
                "the sender sends {} files and directories, and {} is no directory: make it first",
                welcome.tops,
                dest.display()
            )));
        }
        _ => dest.clone(),
    };
    if let Some(most) = is_too_long {
        return Err(Error::too_long(&path, len, most, MAX_SIZE));
    }
    if options.dry_run {
        let target = Target::DryRun(DryRun::new(destination)?);
        return Ok((target, Kept::default(), path));
    }
    let mut tree = Tree::new(destination)?;
    let kept = match blake3::Hash::from_hex(&welcome.manifest) {
        Ok(set) => tree.resume(&set, go_on)?,
        Err(_) => Kept::default(),
    };
    let is_there = path.symlink_metadata().is_ok_and(|there| !there.is_dir());
    let is_told_later = options.overwrite || options.received.is_some();
    if is_there && kept.is_empty() && !is_told_later {
        return Err(Error::Exists(path));
    }
    let target = Target::Tree(Box::new(tree));
    check_space(&path, target.to_take(len), options.reserve)?;
    Ok((target, kept, path))
}

/// Whether something of the set may be in its place at `path`, and may be compared. A receiver that
/// goes on with what an earlier run has `kept` has that instead.
pub fn may_have(target: &Target, kept: &Kept, path: &Path) -> bool {
    let holds_something = || match path.read_dir() {
        Ok(mut names) => names.next().is_some(),
        Err(_) => path.symlink_metadata().is_ok(),
    };
    let Target::Tree(tree) = target else {
        return false;
    };
    tree.may_compare() && kept.is_empty() && holds_something()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a sender may do that the user has named, and one that was found may not, hangs on this.
    #[test]
    fn a_sender_that_was_found_is_not_trusted() {
        let options = RecvOptions {
            privileged: true,
            ..RecvOptions::new("to")
        };
        assert!(destination(&options, true).is_tame);
        assert!(!destination(&options, false).is_tame);
    }
}
