//! Which files a receiver can expect: what the sender has offered, and what it has named since.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_proto::ibrmp::{Body, FileId, Message};

/// What a sender has told of its files by the control connection, which nobody can forge.
#[derive(Debug)]
pub struct Offer {
    /// Number of files.
    files: u64,
    /// Bytes of all files together.
    len: u64,
    /// The files that were multicast when the channel was opened, in which the receiver takes part.
    open: BTreeSet<FileId>,
    /// The first of the later files, in all of which it takes part.
    next: u64,
    /// Lengths of the files that the channel has named, and their sum.
    lens: BTreeMap<FileId, u64>,
    sum: u64,
}

impl Offer {
    /// So many files, of so many bytes together. The receiver takes part in none yet.
    pub fn new(files: u64, len: u64) -> Offer {
        Offer {
            files,
            len,
            open: BTreeSet::new(),
            next: u64::MAX,
            lens: BTreeMap::new(),
            sum: 0,
        }
    }

    /// The receiver takes part in the files `open`, and in all files from `next` on. Returns the
    /// first of them; `None` if that makes no sense.
    pub fn take_part(&mut self, open: &[u64], next: u64) -> Option<FileId> {
        self.open = open.iter().copied().map(FileId).collect();
        self.next = next;
        let first = self.open.first().copied().unwrap_or(FileId(next));
        let is_before = self.open.last().is_none_or(|last| last.0 < next);
        (first.0 > 0 && is_before).then_some(first)
    }

    /// Whether the receiver takes part in a file.
    pub fn contains(&self, file: FileId) -> bool {
        file.0 >= self.next || self.open.contains(&file)
    }

    /// The files in which the receiver takes part, up to this number.
    pub fn up_to(&self, last: u64) -> impl Iterator<Item = FileId> + '_ {
        let last = last.min(self.files);
        let open = self.open.iter().copied();
        let open = open.filter(move |file| file.0 <= last);
        open.chain((self.next..=last).map(FileId))
    }

    /// Number of files up to this one that were over when the receiver came.
    pub fn over_before(&self, last: u64) -> u64 {
        last.min(self.files) - self.up_to(last).count() as u64
    }

    /// Whether the channel has told how long a file is.
    fn is_named(&self, file: FileId) -> bool {
        self.lens.contains_key(&file)
    }

    /// Length of a file in bytes, if the channel has told it.
    pub fn len_of(&self, file: FileId) -> Option<u64> {
        self.lens.get(&file).copied()
    }

    /// Whether a message by multicast may be one of the sender's. Other messages by multicast do
    /// not count: a forged one would make those of the sender implausible.
    pub fn is_plausible(&self, message: &Message) -> bool {
        let file = message.file;
        (1..=self.files).contains(&file.0)
            && self.contains(file)
            && match message.body {
                Body::Bof { len, .. } => {
                    len <= self.len - self.sum || self.len_of(file) == Some(len)
                }
                Body::Data { offset, len } => offset + u64::from(len) <= self.len,
                _ => false,
            }
    }

    /// Notes which file the channel names, and how long it is. Says whether the sender has offered
    /// that. A length that contradicts an earlier one ends the file elsewhere.
    pub fn name(&mut self, message: &Message) -> bool {
        let file = message.file;
        if let Body::Bof { len, .. } | Body::Eof { len } = message.body
            && !self.is_named(file)
        {
            if len > self.len - self.sum {
                return false;
            }
            self.lens.insert(file, len);
            self.sum += len;
        }
        (1..=self.files).contains(&file.0)
    }
}

/// Why a receiver (`who`) lacks so many files, which were closed before it came.
pub fn over_before(who: &str, files: u64) -> String {
    let were = match files {
        1 => "1 file was".to_owned(),
        n => format!("{n} files were"),
    };
    format!(
        "{were} over before {who} came, and P3's protocol sends none of them again: another scheme \
         does"
    )
}

#[cfg(test)]
mod tests {
    use fabricast_proto::ibrmp::{Fd, Name};

    use super::*;

    fn message(file: u64, body: Body) -> Message {
        let (fd, file) = (Fd(0), FileId(file));
        Message { fd, file, body }
    }

    fn bof(len: u64) -> Body {
        let name = Name::new(b"x").unwrap();
        Body::Bof { len, name }
    }

    #[test]
    fn a_receiver_takes_part_in_open_files_and_later_ones() {
        let mut offer = Offer::new(9, 100);
        assert!(!offer.contains(FileId(1)));
        assert_eq!(offer.take_part(&[3, 5], 7), Some(FileId(3)));
        let all: Vec<u64> = offer.up_to(20).map(|file| file.0).collect();
        assert_eq!(all, [3, 5, 7, 8, 9]);
        assert!(offer.contains(FileId(5)) && !offer.contains(FileId(6)));
        assert_eq!(offer.up_to(4).count(), 1);
        assert_eq!(offer.take_part(&[], 1), Some(FileId(1)));
        assert_eq!(offer.take_part(&[3], 3), None);
        assert_eq!(offer.take_part(&[], 0), None);
    }

    #[test]
    fn files_are_no_longer_together_than_was_offered() {
        let mut offer = Offer::new(2, 100);
        offer.take_part(&[], 1);
        assert!(offer.is_plausible(&message(1, bof(100))));
        assert!(!offer.is_plausible(&message(3, bof(1))));
        assert!(offer.name(&message(1, Body::Eof { len: 60 })));
        assert_eq!(offer.len_of(FileId(1)), Some(60));
        assert!(!offer.is_plausible(&message(2, bof(41))));
        assert!(!offer.name(&message(2, Body::Eof { len: 41 })));
        assert!(offer.name(&message(2, Body::Eof { len: 40 })));
        assert!(!offer.name(&message(3, Body::FileTimeout)));
        let (offset, len) = (90, 10);
        assert!(offer.is_plausible(&message(2, Body::Data { offset, len })));
        assert!(!offer.is_plausible(&message(2, Body::Data { offset: 91, len })));
    }
}
