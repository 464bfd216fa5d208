//! Opens what lies beneath a directory, without following a link.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{self as sys, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens a path beneath a directory. No component of it may be a symbolic link, or lead out.
pub fn open(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    resolve(directory, path.as_ref(), (flags, mode), false)
}

/// Opens a directory beneath another one as [`open`] does, if it lies on the same file system.
pub fn open_directory(directory: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    resolve(directory, path, (flags, Mode::empty()), true)
}

fn resolve(
    directory: impl AsFd,
    path: &Path,
    (flags, mode): (OFlags, Mode),
    on_one_file_system: bool,
) -> Result<OwnedFd, Errno> {
    let mut inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    inside.set(ResolveFlags::NO_XDEV, on_one_file_system);
    match sys::openat2(&directory, path, flags, mode, inside) {
        // An old kernel, or a filter of system calls: systemd's RestrictSUIDSGID lets no openat2
        // pass, since it cannot see the mode.
        Err(Errno::NOSYS) => walk(directory, path, (flags, mode), on_one_file_system),
        opened => opened,
    }
}

/// Opens one component after the other.
fn walk(
    directory: impl AsFd,
    path: &Path,
    (flags, mode): (OFlags, Mode),
    on_one_file_system: bool,
) -> Result<OwnedFd, Errno> {
    let device = match on_one_file_system {
        true => Some(sys::fstat(&directory)?.st_dev),
        false => None,
    };
    let mut at: Option<OwnedFd> = None;
    let mut names = path.components().peekable();
    while let Some(name) = names.next() {
        let Component::Normal(name) = name else {
            return Err(Errno::XDEV);
        };
        let flags = match names.peek() {
            Some(_) => OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            None => flags,
        };
        let from = at.as_ref().map_or(directory.as_fd(), AsFd::as_fd);
        let opened = sys::openat(from, name, flags | OFlags::NOFOLLOW, mode)?;
        if let Some(device) = device
            && sys::fstat(&opened)?.st_dev != device
        {
            return Err(Errno::XDEV);
        }
        at = Some(opened);
    }
    at.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::object::testing::scratch;

    /// Both ways open the same, and refuse the same.
    #[test]
    fn a_walk_opens_what_the_kernel_opens() {
        let dir = scratch();
        fs::create_dir_all(dir.join("d/e")).unwrap();
        fs::write(dir.join("d/e/f"), "x").unwrap();
        fs::write(dir.join("g"), "x").unwrap();
        symlink("d", dir.join("link")).unwrap();
        symlink("g", dir.join("d/to")).unwrap();
        symlink(&dir, dir.join("d/out")).unwrap();
        let root = File::open(&dir).unwrap();
        for path in [
            "d", "d/e", "d/e/f", "g", "link", "link/e", "d/to", "d/out/g", "..", "../d", "/",
            "d/none", "none", "g/f", "",
        ] {
            for flags in [OFlags::RDONLY, OFlags::RDONLY | OFlags::DIRECTORY] {
                let how = (flags | OFlags::CLOEXEC, Mode::empty());
                let file = |opened: Result<OwnedFd, Errno>| {
                    opened.map(|fd| sys::fstat(fd).unwrap().st_ino).ok()
                };
                let kernel = file(open(&root, path, how.0, how.1));
                let walked = file(walk(&root, Path::new(path), how, false));
                assert_eq!(kernel.is_some(), walked.is_some(), "{path} {flags:?}");
                assert_eq!(kernel, walked, "{path} {flags:?}");
            }
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_walk_stays_on_its_file_system() {
        let root = File::open("/").unwrap();
        let proc = Path::new("proc/self");
        let how = (OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        assert_eq!(
            walk(&root, Path::new("proc"), how, true).err(),
            Some(Errno::XDEV)
        );
        assert!(walk(&root, Path::new("proc"), how, false).is_ok());
        // What /proc/self leads to is a link.
        assert!(walk(&root, proc, how, false).is_err());
    }
}
