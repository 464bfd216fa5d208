//! The files of which a receiver has something, before they are complete. A file is known by the
//! slot that a message has told, too: one that was forged in another slot spoils nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use fabricast_proto::Time;
use fabricast_proto::ibrmp::{Body, Extent, Fd, FileId, Message};

use crate::error::Error;
use crate::object::UnprovenFile;

/// Bytes of files that arrive before their BOF, which wait for it together.
const EARLY_MAX: usize = 4 << 20;
/// How long DATA of a file must have stayed away until its EOF counts: by another way, it may
/// overtake what a queue still holds.
pub const SETTLED: Duration = Duration::from_millis(10);
/// How long an EOF waits at most: forged DATA could come for ever.
const SETTLED_MAX: Duration = Duration::from_millis(200);

/// A file, and the slot that a message has told of it.
pub type Key = (Fd, FileId);

/// A file that is coming.
#[derive(Default)]
struct Coming {
    /// The file; `None`: the BOF is not here.
    file: Option<UnprovenFile>,
    /// What has come before the BOF: positions and bytes.
    early: Vec<(u64, Vec<u8>)>,
    /// Its length in bytes, by BOF or EOF; 0 if it is not known.
    len: u64,
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
    /// Bytes that wait for BOFs.
    early: usize,
}

impl ComingFiles {
    /// Whether so many more bytes of a file can be kept.
    pub fn has_room(&self, key: Key, count: usize) -> bool {
        let has_bof = self.files.get(&key).is_some_and(|c| c.file.is_some());
        has_bof || self.early + count <= EARLY_MAX
    }

    /// Bytes of the files that are coming, as far as BOFs tell, but of those that `is_left_out`.
    pub fn heard_len(&self, is_left_out: impl Fn(FileId) -> bool) -> u64 {
        let files = self.files.iter().filter(|((_, id), _)| !is_left_out(*id));
        files.map(|(_, coming)| coming.len).sum()
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

    /// The EOF tells how long a file is.
    pub fn ends(&mut self, key: Key, len: u64) {
        if let Some(coming) = self.files.get_mut(&key) {
            coming.len = len;
        }
    }

    /// Writes bytes of a file, or keeps them for its BOF.
    pub fn place(&mut self, extent: &Extent, bytes: &[u8]) -> Result<(), Error> {
        let coming = self.files.entry((extent.fd, extent.file)).or_default();
        coming.placed += bytes.len() as u64;
        match &mut coming.file {
            Some(file) => file.write(extent.range.start, bytes),
            None => {
                self.early += bytes.len();
                coming.early.push((extent.range.start, bytes.to_vec()));
                Ok(())
            }
        }
    }

    /// The BOF of a file is here, of which some bytes may be here.
    pub fn begin(&mut self, key: Key, len: u64, mut file: UnprovenFile) -> Result<(), Error> {
        let coming = self.files.entry(key).or_default();
        for (offset, bytes) in std::mem::take(&mut coming.early) {
            self.early -= bytes.len();
            file.write(offset, &bytes)?;
        }
        coming.len = len;
        coming.file = Some(file);
        Ok(())
    }

    /// Takes a file away: what has been written of it, and its EOF if that is held.
    pub fn remove(&mut self, key: Key) -> (Option<UnprovenFile>, Option<Message>) {
        let Some(coming) = self.files.remove(&key) else {
            return (None, None);
        };
        let early: usize = coming.early.iter().map(|(_, bytes)| bytes.len()).sum();
        self.early -= early;
        (coming.file, coming.eof.map(|(eof, _)| eof))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        *self = ComingFiles::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (Fd(0), FileId(1));

    fn data(files: &mut ComingFiles, len: u64) {
        let extent = Extent {
            fd: KEY.0,
            file: KEY.1,
            range: 0..len,
        };
        files.place(&extent, &vec![0; len as usize]).unwrap();
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
        let mut files = ComingFiles::default();
        assert!(!files.hold(at(0), &eof), "nothing has come by multicast");
        data(&mut files, 10);
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
    fn bytes_that_wait_for_bofs_are_bounded() {
        let mut files = ComingFiles::default();
        assert!(files.has_room(KEY, EARLY_MAX));
        data(&mut files, 10);
        assert!(!files.has_room(KEY, EARLY_MAX));
        files.remove(KEY);
        assert!(files.has_room(KEY, EARLY_MAX));
    }
}
