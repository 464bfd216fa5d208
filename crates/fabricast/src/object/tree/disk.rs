//! The file operations by which a receiver changes the disk, and no others do. Tests record them,
//! to find out what a power cut leaves (`tests/power_cut`), except those that change owners,
//! extended attributes, and entries that are neither files nor directories.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    self as sys, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::beneath;
use crate::object::manifest::Special;

#[cfg(test)]
use super::tests::recorder::{Op, note, number};

/// The permissions of what is this user's alone.
pub const OWN: Mode = Mode::RUSR.union(Mode::WUSR);

/// Creates a file with these permissions, as far as the umask lets it have them: with a new name in
/// a directory, or without one.
pub fn create(directory: &OwnedFd, name: Option<&Path>, mode: Mode) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = match name {
        Some(name) => {
            let flags = flags | OFlags::CREATE | OFlags::EXCL;
            sys::openat(directory, name, flags, mode)
        }
        None => sys::openat(directory, ".", flags | OFlags::TMPFILE, mode),
    };
    let file = File::from(file?);
    #[cfg(test)]
    note(|| Op::create(&file, name.map(|name| (directory, name))));
    Ok(file)
}

/// Opens a file of this name in a directory, or creates it. No link is followed.
pub fn open_or_create(directory: &OwnedFd, name: &Path) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |flags, mode| beneath::open(directory, name, flags, mode);
    match open(flags | OFlags::CREATE | OFlags::EXCL, OWN) {
        Err(Errno::EXIST) => Ok(open(flags, Mode::empty())?.into()),
        created => {
            let file = File::from(created?);
            #[cfg(test)]
            note(|| Op::create(&file, Some((directory, name))));
            Ok(file)
        }
    }
}

/// Writes bytes to a file.
pub fn write(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    file.write_all_at(bytes, at)?;
    #[cfg(test)]
    note(|| Op::Write(number(file), at, bytes.to_vec()));
    Ok(())
}

/// Bytes that are copied at a time.
const COPIED: u64 = 8 << 20;

/// Copies the bytes of one file to another, which is empty. File systems that can share them do.
/// Calls `moved` with the number of bytes after each part.
pub fn copy<E: From<io::Error>>(
    from: &File,
    to: &File,
    mut moved: impl FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    if sys::ioctl_ficlone(to, from).is_ok() {
        moved(from.metadata()?.len())?;
    } else {
        // By the kernel, if the two lie on one file system.
        loop {
            let count = io::copy(&mut from.take(COPIED), &mut &*to)?;
            if count == 0 {
                break;
            }
            moved(count)?;
        }
    }
    #[cfg(test)]
    note(|| Op::Write(number(to), 0, contents(from)));
    Ok(())
}

/// Copies bytes of one file to the same place of another: by the kernel, which may share them, if
/// both lie on one file system.
pub fn copy_range(from: &File, to: &File, start: u64, len: u64) -> io::Result<()> {
    let (mut at, end) = (start, start + len);
    while at < end {
        let (mut here, mut there) = (at, at);
        let most = (end - at) as usize;
        let copied = sys::copy_file_range(from, Some(&mut here), to, Some(&mut there), most);
        at += match copied {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count as u64,
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                let mut bytes = vec![0; most.min(COPIED as usize)];
                from.read_exact_at(&mut bytes, at)?;
                to.write_all_at(&bytes, at)?;
                bytes.len() as u64
            }
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
    }
    #[cfg(test)]
    note(|| {
        Op::Write(
            number(to),
            start,
            contents(from)[start as usize..end as usize].to_vec(),
        )
    });
    Ok(())
}

#[cfg(test)]
fn contents(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("an open file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    bytes
}

/// Sets the length of a file.
pub fn set_len(file: &File, len: u64) -> Result<(), Errno> {
    sys::ftruncate(file, len)?;
    #[cfg(test)]
    note(|| Op::SetLen(number(file), len));
    Ok(())
}

/// Takes the space of a file of `len` bytes, which is so long then.
pub fn allocate(file: &File, len: u64) -> Result<(), Errno> {
    sys::fallocate(file, FallocateFlags::empty(), 0, len)?;
    #[cfg(test)]
    note(|| Op::SetLen(number(file), len));
    Ok(())
}

/// Makes a hole in a file, whose length stays.
pub fn punch(file: &File, at: u64, len: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    sys::fallocate(file, flags, at, len)?;
    #[cfg(test)]
    note(|| Op::Punch(number(file), at, len));
    Ok(())
}

/// Sets the permissions of a file or directory.
pub fn set_mode(file: impl AsFd, mode: Mode) -> Result<(), Errno> {
    sys::fchmod(&file, mode)?;
    #[cfg(test)]
    note(|| Op::Mode(number(&file), mode));
    Ok(())
}

/// Sets the times of a file or directory.
pub fn set_times(file: impl AsFd, times: &Timestamps) -> Result<(), Errno> {
    sys::futimens(&file, times)?;
    #[cfg(test)]
    note(|| Op::Time(number(&file), times.last_modification));
    Ok(())
}

/// Makes a directory that only this user may enter.
pub fn make_directory(directory: &OwnedFd, name: &Path) -> Result<(), Errno> {
    sys::mkdirat(directory, name, Mode::RWXU)?;
    #[cfg(test)]
    note(|| Op::directory(directory, name));
    Ok(())
}

/// Makes a symbolic link, where nothing is.
pub fn link_to(target: &Path, directory: &OwnedFd, name: &Path) -> Result<(), Errno> {
    sys::symlinkat(target, directory, name)?;
    #[cfg(test)]
    note(|| Op::Symlink(number(directory), name.into(), target.into()));
    Ok(())
}

/// The type and the device number of what is neither a file nor a directory nor a link.
pub fn special(what: Special) -> (FileType, sys::Dev) {
    match what {
        Special::Fifo => (FileType::Fifo, 0),
        Special::Character(major, minor) => (FileType::CharacterDevice, sys::makedev(major, minor)),
        Special::Block(major, minor) => (FileType::BlockDevice, sys::makedev(major, minor)),
    }
}

/// Makes a device or a FIFO, where nothing is.
pub fn make_special(what: Special, directory: &OwnedFd, name: &Path) -> Result<(), Errno> {
    let (kind, device) = special(what);
    sys::mknodat(directory, name, kind, OWN, device)
}

/// Gives a file or directory to a user and a group.
pub fn give(file: impl AsFd, (user, group): (Option<Uid>, Option<Gid>)) -> Result<(), Errno> {
    sys::fchown(file, user, group)
}

/// Gives an entry of a directory to a user and a group. A link is not followed.
pub fn give_entry(
    directory: &OwnedFd,
    name: &Path,
    (user, group): (Option<Uid>, Option<Gid>),
) -> Result<(), Errno> {
    sys::chownat(directory, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
}

/// Sets the times of an entry of a directory. A link is not followed.
pub fn set_entry_times(directory: &OwnedFd, name: &Path, times: &Timestamps) -> Result<(), Errno> {
    sys::utimensat(directory, name, times, AtFlags::SYMLINK_NOFOLLOW)
}

/// Sets the permissions of an entry that is no link and that is open by its path alone.
pub fn set_path_mode(opened: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    // Such a descriptor can be changed by its own path.
    sys::chmod(format!("/proc/self/fd/{}", opened.as_raw_fd()), mode)
}

/// Sets an extended attribute of a file or directory, unless it has this value.
pub fn set_attribute(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    let mut there = vec![0; value.len() + 1];
    match sys::fgetxattr(&file, name, &mut there[..]) {
        Ok(len) if there[..len] == *value => Ok(()),
        _ => sys::fsetxattr(file, name, value, XattrFlags::empty()),
    }
}

/// Gives a file without a name one, where nothing is.
pub fn name(file: &File, directory: &OwnedFd, name: &Path) -> Result<(), Errno> {
    match sys::linkat(file, "", directory, name, AtFlags::EMPTY_PATH) {
        // Older systems let only a privileged process do that. This costs more: it is a path by
        // which an open file can be linked.
        Err(Errno::NOENT) => {
            let nameless = format!("/proc/self/fd/{}", file.as_raw_fd());
            sys::linkat(CWD, nameless, directory, name, AtFlags::SYMLINK_FOLLOW)?;
        }
        linked => linked?,
    }
    #[cfg(test)]
    note(|| Op::Link(number(file), number(directory), name.into()));
    Ok(())
}

/// Gives a file another name, where nothing is.
pub fn link((from, old): (&OwnedFd, &Path), directory: &OwnedFd, name: &Path) -> Result<(), Errno> {
    sys::linkat(from, old, directory, name, AtFlags::empty())?;
    #[cfg(test)]
    note(|| Op::link(directory, name));
    Ok(())
}

/// Gives an entry of a directory another name there, in place of what has that name.
pub fn rename(directory: &OwnedFd, from: &Path, to: &Path) -> Result<(), Errno> {
    sys::renameat(directory, from, directory, to)?;
    #[cfg(test)]
    note(|| Op::Rename(number(directory), from.into(), to.into()));
    Ok(())
}

/// Gives an entry of a directory another name there, where nothing is.
pub fn rename_new(directory: &OwnedFd, from: &Path, to: &Path) -> Result<(), Errno> {
    sys::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE)?;
    #[cfg(test)]
    note(|| Op::Rename(number(directory), from.into(), to.into()));
    Ok(())
}

/// Takes a name away, that of an empty directory or of anything else.
pub fn unlink(directory: &OwnedFd, name: &Path, is_directory: bool) -> Result<(), Errno> {
    let flags = match is_directory {
        true => AtFlags::REMOVEDIR,
        false => AtFlags::empty(),
    };
    sys::unlinkat(directory, name, flags)?;
    #[cfg(test)]
    note(|| Op::Remove(number(directory), name.into()));
    Ok(())
}

/// Takes a name away. What cannot be removed stays.
pub fn remove(directory: &OwnedFd, name: &Path) {
    let _ = unlink(directory, name, false);
}

/// Waits until a file's bytes, or a directory's names, are on the disk.
pub fn flush(file: &File) -> io::Result<()> {
    file.sync_all()?;
    #[cfg(test)]
    note(|| Op::Flush(number(file)));
    Ok(())
}

/// Waits until everything on a file system is on the disk.
pub fn flush_all(root: &OwnedFd) -> Result<(), Errno> {
    sys::syncfs(root)?;
    #[cfg(test)]
    note(|| Op::FlushAll);
    Ok(())
}
