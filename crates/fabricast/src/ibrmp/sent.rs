//! What workers read for receivers (spec 7.8): answers from files that are open, and parts of files
//! that have been multicast, where a receiver's sections do not match the sender's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabricast_proto::ibrmp::FileId;

use super::fingerprint::told;
use crate::bootstrap::message::Need;
use crate::bootstrap::{Blocks, Payload};
use crate::object::{BLOCK, SourceFile, SourceSet};

/// A file that has been multicast to its end.
struct Sent {
    /// Its number in the set.
    entry: u32,
    /// Its length in bytes.
    len: u64,
    /// The hash of each section.
    sections: Vec<blake3::Hash>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u32, Sent>,
    /// Number of files and of their blocks.
    parts: u64,
    /// Files that can no longer be read as they were, and why, until the sender has noticed.
    failed: Vec<(FileId, String)>,
}

/// The files that have been multicast, which the workers share with the sender.
pub struct SentFiles {
    set: Arc<SourceSet>,
    state: Mutex<State>,
}

impl SentFiles {
    /// No files of this set.
    pub fn new(set: Arc<SourceSet>) -> SentFiles {
        SentFiles {
            set,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a file has been multicast: its number in the set, its length in bytes, and the
    /// hash of each section.
    pub fn add(&self, file: FileId, entry: u32, len: u64, sections: Vec<blake3::Hash>) {
        let sent = Sent {
            entry,
            len,
            sections,
        };
        let mut state = self.state();
        state.parts += 1 + len.div_ceil(BLOCK as u64);
        state.files.insert(file.0 as u32, sent);
    }

    fn fail(&self, file: FileId, why: String) {
        self.state().failed.push((file, why));
    }

    /// A file that was found not to be as it was when it was multicast, and why, if there is one.
    pub fn failed(&self) -> Option<(FileId, String)> {
        self.state().failed.pop()
    }

    /// Reads a block of a file, of which there is one.
    fn read(&self, file: u32, block: u64) -> Result<Vec<u8>, String> {
        let (entry, len) = match self.state().files.get(&file) {
            Some(sent) => (sent.entry, sent.len),
            None => return Ok(Vec::new()),
        };
        let offset = block * BLOCK as u64;
        let mut bytes = vec![0; len.saturating_sub(offset).min(BLOCK as u64) as usize];
        self.set.open(entry)?.read(offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// A file that is open. Answers that have not been read yet hold it, so it stays open for them when
/// its slot is free.
pub struct OpenFile {
    file: FileId,
    source: SourceFile,
    sent: Arc<SentFiles>,
}

impl OpenFile {
    /// The file of this number, whose failures `sent` keeps for the sender.
    pub fn new(file: FileId, source: SourceFile, sent: Arc<SentFiles>) -> OpenFile {
        OpenFile { file, source, sent }
    }

    /// The file itself.
    pub fn source(&self) -> &SourceFile {
        &self.source
    }
}

impl Payload for OpenFile {
    /// Reads bytes. If that fails, the sender gives the file up; no receiver takes other bytes for
    /// those of the file.
    fn read(&self, offset: u64, into: &mut [u8]) {
        if let Err(why) = self.source.read(offset, into) {
            self.sent.fail(self.file, why);
        }
    }
}

impl Blocks for SentFiles {
    /// Answers with the hashes of the sections, or with a block. The answer is empty for
    /// a file that is no longer as it was. The sender notices that: the receiver is not to blame.
    fn answer(&self, need: &Need, into: &mut Vec<u8>) -> Result<(), String> {
        match need.block {
            None => {
                let state = self.state();
                let sections = state.files.get(&need.pack).map(|sent| told(&sent.sections));
                into.extend(sections.unwrap_or_default());
            }
            Some(block) => match self.read(need.pack, block) {
                Ok(bytes) => into.extend(bytes),
                Err(why) => self.fail(FileId(need.pack.into()), why),
            },
        }
        Ok(())
    }

    fn payload_len(&self, need: &Need) -> Option<u64> {
        self.state().files.get(&need.pack).map(|sent| sent.len)
    }

    fn parts(&self) -> u64 {
        self.state().parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ibrmp::fingerprint::Sections;
    use crate::object::Selection;
    use crate::object::testing::scratch;

    #[test]
    fn sections_and_blocks_are_told_and_a_file_that_has_changed_is_found() {
        let dir = scratch();
        let path = dir.join("file");
        let bytes: Vec<u8> = (0..BLOCK + 7).map(|n| (n % 249) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let set = SourceSet::list(
            std::slice::from_ref(&path),
            &Selection::default(),
            &mut |_| (),
        )
        .unwrap();
        let sent = SentFiles::new(Arc::new(set));
        let of_file = Need {
            pack: 1,
            ..Need::default()
        };
        assert_eq!((sent.parts(), sent.payload_len(&of_file)), (0, None));
        let mut sections = Sections::new(bytes.len() as u64);
        sections.update(&bytes);
        let (_, hashes) = sections.finish();
        sent.add(FileId(1), 0, bytes.len() as u64, hashes.clone());
        assert_eq!(
            (sent.parts(), sent.payload_len(&of_file)),
            (3, Some(bytes.len() as u64))
        );
        let answer = |block| {
            let mut into = Vec::new();
            let need = Need {
                pack: 1,
                block,
                ..Need::default()
            };
            sent.answer(&need, &mut into).unwrap();
            into
        };
        assert_eq!(answer(None), told(&hashes));
        assert_eq!(answer(Some(0)), &bytes[..BLOCK]);
        assert_eq!(answer(Some(1)), &bytes[BLOCK..]);
        assert_eq!(sent.failed(), None);
        std::fs::write(&path, "other").unwrap();
        assert!(answer(Some(1)).is_empty());
        let (file, why) = sent.failed().unwrap();
        assert_eq!(file, FileId(1));
        assert!(why.contains("became shorter"), "{why}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
