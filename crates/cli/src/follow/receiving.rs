//! A transfer that a follower takes part in.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fabricast::config::RecvOptions;
use fabricast::error::Error;
use fabricast::feed::Entry;
use fabricast::transfer::{self, RecvEvent, RecvReport};
use fabricast::waker::Waker;

use crate::background::{Background, Told};

/// Bytes of a block, in which a file's space is counted.
const BLOCK: u64 = 512;

/// How a transfer has ended.
type Ended = Box<Result<RecvReport, Error>>;

/// A transfer that a follower takes part in.
pub struct Receiving {
    /// The feed's number of it.
    pub number: u64,
    /// What comes.
    pub entries: Vec<Entry>,
    transfer: Background<RecvEvent, Ended>,
    /// Bytes of the set, as the sender says; 0 before it has.
    len: u64,
    /// Bytes that have arrived.
    placed: u64,
}

impl Receiving {
    /// Starts to receive these entries.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        number: u64,
        entries: Vec<Entry>,
        options: RecvOptions,
        waker: &Waker,
    ) -> io::Result<Receiving> {
        let interrupt = options.interrupt.clone();
        let receive =
            move |tell: &mut dyn FnMut(RecvEvent)| Box::new(transfer::recv(&options, tell));
        let transfer = Background::start("fabricast-recv", waker.clone(), interrupt, receive)?;
        Ok(Receiving::of(number, entries, transfer))
    }

    /// A transfer that has told nothing yet.
    fn of(number: u64, entries: Vec<Entry>, transfer: Background<RecvEvent, Ended>) -> Receiving {
        Receiving {
            number,
            entries,
            transfer,
            len: 0,
            placed: 0,
        }
    }

    /// What the transfer has told next; `None` if it has told nothing more yet.
    pub fn told(&mut self) -> Option<Told<RecvEvent, Ended>> {
        let told = self.transfer.told();
        match &told {
            Some(Told::Event(RecvEvent::Connected { len, .. })) => self.len = len.unwrap_or(0),
            Some(Told::Event(RecvEvent::Progress { placed, .. })) => self.placed = *placed,
            _ => {}
        }
        told
    }

    /// Bytes that it will take of the disk in `folder`, beside those that count as taken there
    /// already: what has not arrived, by the catalogue or the sender, whichever says more. A single
    /// file whose space is taken as a whole claims nothing.
    ///
    /// It may be too much: the space of long files in a directory is taken when they begin, and
    /// counts twice until their bytes are here. Another entry that finds no space for that reason
    /// is wanted again. It may also be too little: what the file system needs beside the bytes, and
    /// bytes that have arrived and that it has not allocated yet, do not count.
    pub fn claimed(&self, folder: &Path) -> u64 {
        let lens = self.entries.iter().map(|entry| entry.len);
        let len = lens.fold(0, u64::saturating_add).max(self.len);
        match self.entries.len() == 1 && has_space(folder, len) {
            true => 0,
            false => len.saturating_sub(self.placed),
        }
    }

    /// Has it end soon.
    pub fn interrupt(&self) {
        self.transfer.interrupt();
    }
}

/// Whether a partial file of this length is in a directory and has all of its space.
fn has_space(folder: &Path, len: u64) -> bool {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut partial = found.filter(|file| file.file_name().as_bytes().ends_with(b".partial"));
    partial.any(|file| {
        let meta = file.metadata();
        meta.is_ok_and(|m| m.is_file() && m.len() == len && m.blocks() * BLOCK >= len)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;
    use crate::follow::holdings::testing::Scratch;

    /// A transfer claims what has not arrived, whichever of the catalogue and the sender says more.
    /// A single file claims nothing once it has its space.
    #[test]
    fn what_has_not_arrived_is_claimed() {
        let dir = Scratch::new("claims");
        let (tell, told) = channel();
        let entry = |name: &str| Entry {
            name: name.into(),
            len: 70_000,
            digest: String::new(),
        };
        let mut two = Receiving::of(1, vec![entry("a"), entry("b")], Background::made_up(told));
        assert_eq!(two.claimed(&dir.0), 140_000);
        let connected = |len| RecvEvent::Connected {
            sender: ([127, 0, 0, 1], 9).into(),
            name: "a".into(),
            len: Some(len),
            path: "a".into(),
        };
        let progress = |placed| RecvEvent::Progress {
            seconds: 1.0,
            placed,
            len: None,
        };
        for (event, claimed) in [
            (connected(100_000), 140_000),
            (progress(1), 139_999),
            (connected(200_000), 199_999),
            (progress(150_000), 50_000),
            (progress(200_000), 0),
        ] {
            tell.send(Told::Event(event)).unwrap();
            assert!(two.told().is_some());
            assert_eq!(two.claimed(&dir.0), claimed);
        }
        let (_tell, told) = channel();
        let one = Receiving::of(2, vec![entry("a")], Background::made_up(told));
        let file = fs::File::create(dir.0.join(".fabricast-x.0.partial")).unwrap();
        file.set_len(70_000).unwrap();
        assert_eq!(one.claimed(&dir.0), 70_000, "it has a hole");
        if fallocate(&file, FallocateFlags::empty(), 0, 70_000).is_ok() {
            assert_eq!(one.claimed(&dir.0), 0);
        }
    }
}
