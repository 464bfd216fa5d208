//! Owners, permissions and times of what a receiver makes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{self as sys, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;

use super::partial::Had;
use super::{Tree, WRITE_OTHERS, disk};
use crate::error::Error;
use crate::object::manifest::{Kind, TOP};

/// All execute permissions.
const EXECUTE: u32 = 0o111;

impl Tree {
    /// The permissions that an entry gets.
    pub(super) fn mode(&self, entry: u32) -> Mode {
        let e = self.entry(entry);
        let mut mode = u32::from(e.mode);
        // A sender that was found may be anybody.
        if !self.destination.is_privileged || self.destination.is_tame {
            mode &= 0o777;
        }
        if self.destination.is_tame {
            mode &= !(self.umask | WRITE_OTHERS);
            let is_top = e.parent == TOP || self.exposed.contains(&entry);
            if is_top && e.kind != Kind::Directory {
                mode &= !EXECUTE;
            }
        }
        Mode::from_raw_mode(mode)
    }

    /// Whether its own owner may not read an entry.
    pub(super) fn is_unreadable(&self, entry: u32) -> bool {
        !self.mode(entry).contains(Mode::RUSR)
    }

    /// The permissions of a file until the end. What was written is read back for the proof.
    pub(super) fn readable_mode(&self, entry: u32) -> Mode {
        match self.is_unreadable(entry) {
            true => self.mode(entry) | Mode::RUSR,
            false => self.mode(entry),
        }
    }

    pub(super) fn times(&self, entry: u32) -> Timestamps {
        let e = self.entry(entry);
        let time = Timespec {
            tv_sec: e.mtime,
            tv_nsec: e.mtime_ns.into(),
        };
        Timestamps {
            last_access: time,
            last_modification: time,
        }
    }

    /// The owner, if this process may give files away, and its user has named the sender: a sender
    /// that anybody can be gives them to nobody. A directory keeps its own owner while it is
    /// staged: another run goes on with its own directories alone, because nobody else can enter
    /// these.
    pub(super) fn owner(&self, entry: u32) -> Option<(Option<Uid>, Option<Gid>)> {
        let (user, group) = self.entry(entry).owner;
        // All ones would mean that the owner stays.
        let is_one = user != u32::MAX && group != u32::MAX;
        let is_staged = self.staged.contains(&entry);
        let may = self.is_root && is_one && !is_staged && !self.destination.is_tame;
        may.then(|| (Some(Uid::from_raw(user)), Some(Gid::from_raw(group))))
    }

    /// Sets the extended attributes that this receiver wants and may set: those of the user, and,
    /// if it is privileged, those that only root may set.
    fn set_attributes(&self, entry: u32, file: BorrowedFd<'_>) -> Result<(), Error> {
        if !self.destination.attributes {
            return Ok(());
        }
        let is_root = self.is_root && self.makes_special();
        for (name, value) in self.entry(entry).attributes.iter() {
            if !name.starts_with(b"user.") && !is_root {
                continue;
            }
            disk::set_attribute(file, name, value).map_err(|e| {
                let name = String::from_utf8_lossy(name);
                self.error(
                    entry,
                    &format!("setting the extended attribute {name} of"),
                    e,
                )
            })?;
        }
        Ok(())
    }

    /// Sets owner, extended attributes, permissions and times. To look at what a file has costs
    /// much less than to set it again.
    pub(super) fn set_metadata(
        &self,
        entry: u32,
        mode: Mode,
        file: impl AsFd,
    ) -> Result<(), Error> {
        let there = self.look(entry, file.as_fd())?;
        self.change(entry, mode, file.as_fd(), there)
    }

    /// Sets what [`Tree::set_metadata`] does at a file that was made under its own name in a staged
    /// directory. All such files have the same owner at first, and those for which the same
    /// permissions were asked have the same, so one of them is looked at.
    pub(super) fn set_metadata_in_place(
        &mut self,
        entry: u32,
        file: impl AsFd,
    ) -> Result<(), Error> {
        let key = (self.entry(entry).parent, self.first_mode(entry));
        let there = match self.fresh {
            Some((last, there)) if last == key => there,
            _ => self.look(entry, file.as_fd())?,
        };
        self.fresh = Some((key, there));
        self.change(entry, self.readable_mode(entry), file.as_fd(), there)
    }

    fn look(&self, entry: u32, file: BorrowedFd<'_>) -> Result<Had, Error> {
        let there = sys::fstat(file).map_err(|e| self.error(entry, "looking at", e))?;
        Ok(Had {
            owner: (there.st_uid, there.st_gid),
            mode: Mode::from_raw_mode(there.st_mode),
        })
    }

    /// Gives a directory that was staged to its owner, now that it has its own name. Returns the
    /// open directory if it was another user's or group's.
    pub(super) fn give_placed(&self, entry: u32) -> Result<Option<File>, Error> {
        if self.owner(entry).is_none() {
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = File::from(self.beneath(entry, flags)?);
        let there = self.look(entry, opened.as_fd())?;
        if there.owner == self.entry(entry).owner {
            return Ok(None);
        }
        self.change(entry, self.mode(entry), opened.as_fd(), there)?;
        Ok(Some(opened))
    }

    /// Sets what differs from what a file has.
    fn change(
        &self,
        entry: u32,
        mut mode: Mode,
        file: BorrowedFd<'_>,
        mut there: Had,
    ) -> Result<(), Error> {
        let user_and_group = self.entry(entry).owner;
        if let Some(owner) = self.owner(entry)
            && there.owner != user_and_group
        {
            match disk::give(file, owner) {
                // A user namespace may not know that owner.
                Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
                Err(e) => return Err(self.error(entry, "giving away", e)),
            }
            there = self.look(entry, file)?; // it may have lost permissions by that
        }
        // What runs as its owner at the sender must not run as another user here.
        let changes_user = mode.intersects(Mode::SUID | Mode::SGID);
        if changes_user
            && self.entry(entry).kind != Kind::Directory
            && there.owner != user_and_group
        {
            mode.remove(Mode::SUID | Mode::SGID);
        }
        self.set_attributes(entry, file)?;
        let set_mode = || match there.mode == mode {
            true => Ok(()),
            false => disk::set_mode(file, mode),
        };
        set_mode()
            .and_then(|()| disk::set_times(file, &self.times(entry)))
            .map_err(|e| self.error(entry, "setting mode and time of", e))
    }
}
