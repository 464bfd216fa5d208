//! The files of which a receiver has something, before they are complete. A file is known by the
//! slot that a message has told, too: one that was forged in another slot spoils nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_proto::Time;
use fabricast_proto::ibrmp::{Body, Extent, Fd, FileId, Message};

use crate::error::Error;
use crate::object::UnprovenFile;

/// How long DATA of a file must have stayed away until its EOF counts: by another way, it may
/// overtake what a queue still holds.
pub const SETTLED: Duration = Duration::from_millis(10);
/// How long an EOF waits at most: forged DATA could come for ever.
const SETTLED_MAX: Duration = Duration::from_millis(200);

/// After so long without an answer about a file whose EOF is here, a receiver requests again what
/// the file lacks.
const REPEATED: Duration = Duration::from_secs(1);

/// A file, and the slot that a message has told of it.
pub type Key = (Fd, FileId);

/// A file that is coming.
struct Coming {
    file: UnprovenFile,
    /// Bytes that are here.
    placed: u64,
    /// When DATA last came by multicast.
    last: Option<Time>,
    /// The EOF, if it has overtaken multicast, and when it came.
    eof: Option<(Message, Time)>,
}

impl Coming {
    /// Whether a message is the EOF of this file and what it lacks may still come by multicast.
    fn is_arriving(&self, now: Time, message: &Message) -> bool {
        let Body::Eof { len } = message.body else {
            return false;
        };
        let comes = self.last.is_some_and(|last| now.since(last) < SETTLED);
        comes && self.placed < len
    }
}

/// The files that are coming.
#[derive(Default)]
pub struct ComingFiles {
    files: BTreeMap<Key, Coming>,
    /// Bytes of all these files that are here.
    placed: u64,
}

impl ComingFiles {
    /// Whether something of a file is here.
    pub fn contains(&self, key: Key) -> bool {
        self.files.contains_key(&key)
    }

    /// Bytes of all files that are here.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// Something of a file has come by multicast.
    pub fn heard(&mut self, key: Key, now: Time) {
        if let Some(coming) = self.files.get_mut(&key) {
            coming.last = Some(now);
        }
    }

    /// Keeps an EOF that has overtaken multicast. Says whether it is one.
    pub fn hold(&mut self, now: Time, message: &Message) -> bool {
        let coming = self.files.get_mut(&(message.fd, message.file));
        let coming = coming.filter(|c| c.eof.is_none() && c.is_arriving(now, message));
        let is_held = coming.is_some();
        if let Some(coming) = coming {
            coming.eof = Some((message.clone(), now));
        }
        is_held
    }

    /// Whether EOFs are held.
    pub fn holds(&self) -> bool {
        self.files.values().any(|coming| coming.eof.is_some())
    }

    /// The EOFs of files of which no more comes by multicast.
    pub fn settled(&mut self, now: Time) -> Vec<Message> {
        let mut settled = Vec::new();
        for coming in self.files.values_mut() {
            if let Some((eof, came)) = &coming.eof
                && (!coming.is_arriving(now, eof) || now.since(*came) > SETTLED_MAX)
            {
                settled.extend(coming.eof.take().map(|(eof, _)| eof));
            }
        }
        settled
    }

    /// The first message of a file is here.
    pub fn begin(&mut self, key: Key, file: UnprovenFile) {
        let coming = Coming {
            file,
            placed: 0,
            last: None,
            eof: None,
        };
        self.files.insert(key, coming);
    }

    /// Writes bytes of a file that has begun.
    pub fn place(&mut self, extent: &Extent, bytes: &[u8]) -> Result<(), Error> {
        let Some(coming) = self.files.get_mut(&(extent.fd, extent.file)) else {
            return Ok(());
        };
        coming.placed += bytes.len() as u64;
        self.placed += bytes.len() as u64;
        coming.file.write(extent.range.start, bytes)
    }

    /// Takes a file away: what has been written of it, and its EOF if that is held.
    pub fn remove(&mut self, key: Key) -> (Option<UnprovenFile>, Option<Message>) {
        let Some(coming) = self.files.remove(&key) else {
            return (None, None);
        };
        self.placed -= coming.placed;
        (Some(coming.file), coming.eof.map(|(eof, _)| eof))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = ComingFiles::default();
    }
}

/// The files whose EOFs are here and which lack something.
#[derive(Default)]
pub struct Lacking {
    /// The files in the order of their EOFs, and when the last answer came that counts for each.
    files: Vec<(Key, Time)>,
}

impl Lacking {
    /// The EOF of a file has been taken in.
    pub fn add(&mut self, key: Key, now: Time) {
        if !self.files.iter().any(|(other, _)| *other == key) {
            self.files.push((key, now));
        }
    }

    /// The channel has brought something of a file. The sender answers requests in their order, so
    /// the files whose EOFs came later have to wait.
    pub fn answered(&mut self, key: Key, now: Time) {
        let is_it = |(other, _): &(Key, Time)| *other == key;
        let from = self.files.iter().position(is_it);
        let from = from.unwrap_or(self.files.len());
        for (_, last) in &mut self.files[from..] {
            *last = now;
        }
    }

    /// The channel was not listened to until now.
    pub fn postpone(&mut self, now: Time) {
        self.files.iter_mut().for_each(|(_, last)| *last = now);
    }

    /// A file is complete, or has ended otherwise.
    pub fn remove(&mut self, key: Key) {
        self.files.retain(|(other, _)| *other != key);
    }

    /// Files whose requests the sender must have ignored. They have as much time again.
    pub fn overdue(&mut self, now: Time) -> Vec<Key> {
        let mut overdue = Vec::new();
        for (key, last) in &mut self.files {
            if now.since(*last) >= REPEATED {
                *last = now;
                overdue.push(*key);
            }
        }
        overdue
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Destination;
    use crate::object::testing::scratch;

    const KEY: Key = (Fd(0), FileId(1));

    /// A file of which so many bytes are here.
    fn begun(len: u64) -> ComingFiles {
        let mut files = ComingFiles::default();
        let destination = Destination::new(scratch());
        files.begin(KEY, UnprovenFile::new(destination).unwrap());
        let extent = Extent {
            fd: KEY.0,
            file: KEY.1,
            range: 0..len,
        };
        files.place(&extent, &vec![0; len as usize]).unwrap();
        files
    }

    #[test]
    fn an_eof_waits_while_data_come_but_not_for_ever() {
        let (fd, file) = KEY;
        let eof = Message {
            fd,
            file,
            body: Body::Eof { len: 100 },
        };
        let at = |ms: u64| Time(ms * 1_000_000);
        let mut files = begun(10);
        assert!(!files.hold(at(0), &eof), "nothing has come by multicast");
        files.heard(KEY, at(1));
        assert!(files.hold(at(2), &eof) && files.holds());
        assert!(files.settled(at(10)).is_empty());
        assert_eq!(files.settled(at(12)), std::slice::from_ref(&eof));
        // Somebody forges DATA again and again.
        files.heard(KEY, at(20));
        assert!(files.hold(at(21), &eof));
        let settled = (22..1000).find(|&ms| {
            files.heard(KEY, at(ms));
            !files.settled(at(ms)).is_empty()
        });
        assert_eq!(settled, Some(222));
    }

    #[test]
    fn a_file_that_gets_no_answers_is_overdue_by_itself() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let [one, two, three] = [1, 2, 3].map(|file| (Fd(file as u16), FileId(file)));
        let mut lacking = Lacking::default();
        lacking.add(one, at(0));
        lacking.add(two, at(0));
        // Answers about another file change nothing, and those about the second not the first.
        lacking.answered(three, at(500));
        lacking.answered(two, at(600));
        assert!(lacking.overdue(at(999)).is_empty());
        assert_eq!(lacking.overdue(at(1000)), [one]);
        // Answers about the first keep the second waiting.
        lacking.answered(one, at(1500));
        assert!(lacking.overdue(at(2400)).is_empty());
        assert_eq!(lacking.overdue(at(2500)), [one, two]);
        lacking.postpone(at(3000));
        lacking.add(one, at(3500));
        lacking.remove(two);
        assert!(lacking.overdue(at(3999)).is_empty());
        assert_eq!(lacking.overdue(at(4000)), [one]);
    }

    #[test]
    fn bytes_count_until_their_file_is_taken_away() {
        let mut files = begun(10);
        assert_eq!(files.placed(), 10);
        files.remove(KEY);
        assert_eq!(files.placed(), 0);
    }
}
