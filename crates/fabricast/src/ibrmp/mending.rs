//! Files that are complete and not what the sender has sent, because datagrams were damaged or
//! forged on the way. The receiver asks which sections are wrong, and gets their blocks again by
//! the control connection (spec 7.8). Answers come in the order of the requests.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

use fabricast_proto::ibrmp::FileId;

use super::fingerprint::{section_len, told};
use super::storing::Complete;
use crate::bootstrap::Control;
use crate::bootstrap::message::{Need, ToSender};
use crate::error::Error;
use crate::object::{BLOCK, HASH};
use crate::text::shown;

/// A file that is mended.
struct Wrong {
    id: FileId,
    path: PathBuf,
    again: Complete,
    /// The hash of each section of what is here.
    sections: Vec<blake3::Hash>,
    /// Blocks that are to come again; `None`: it is not known yet which sections are wrong.
    blocks: Option<VecDeque<u64>>,
}

/// What came again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mended {
    /// Blocks.
    pub blocks: u64,
    /// Bytes, hashes included.
    pub bytes: u64,
}

/// What an answer means to a file.
pub struct Answered {
    /// Number of the file.
    pub id: FileId,
    /// Path of the file.
    pub path: PathBuf,
    /// The file once all of it has come again, or why it cannot be mended.
    pub result: Result<Option<Complete>, Error>,
}

/// The files that are mended, one after the other.
#[derive(Default)]
pub struct Mending {
    files: VecDeque<Wrong>,
    /// Whether an answer is under way.
    is_asked: bool,
    /// Files that were mended before.
    mended_files: BTreeSet<FileId>,
    mended: Mended,
}

impl Mending {
    /// Whether there is nothing to mend.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Number of files that are mended or wait for that.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// What came again.
    pub fn mended(&self) -> Mended {
        self.mended
    }

    /// Takes a file with these hashes of its sections. Says false if it was mended before: then it
    /// is wrong for another reason.
    pub fn begin(
        &mut self,
        id: FileId,
        path: PathBuf,
        again: Complete,
        sections: Vec<blake3::Hash>,
    ) -> bool {
        if !self.mended_files.insert(id) {
            return false;
        }
        self.files.push_back(Wrong {
            id,
            path,
            again,
            sections,
            blocks: None,
        });
        true
    }

    /// Forgets all files, and returns their numbers and paths.
    pub fn give_up(&mut self) -> Vec<(FileId, PathBuf)> {
        let files = self.files.drain(..);
        files.map(|wrong| (wrong.id, wrong.path)).collect()
    }

    /// Sends the next request, unless one is under way.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn ask(&mut self, control: &mut Control) -> Result<(), Error> {
        let Some(first) = self.files.front().filter(|_| !self.is_asked) else {
            return Ok(());
        };
        let block = first.blocks.as_ref().and_then(|blocks| blocks.front());
        let need = Need {
            pack: first.id.0 as u32,
            block: block.copied(),
            ..Need::default()
        };
        self.is_asked = true;
        let said = control.say(&ToSender::Need(need));
        said.map_err(|e| Error::PeerLost(format!("the sender is gone: {e}")))
    }

    /// Takes an answer, and asks on.
    ///
    /// # Errors
    /// Nothing was asked, or the connection is lost.
    pub fn take(&mut self, bytes: &[u8], control: &mut Control) -> Result<Answered, Error> {
        let is_asked = std::mem::take(&mut self.is_asked);
        let Some(wrong) = self.files.front_mut().filter(|_| is_asked) else {
            return Err(Error::PeerLost(
                "the sender sends bytes that nobody has asked for".into(),
            ));
        };
        self.mended.bytes += bytes.len() as u64;
        let (id, path) = (wrong.id, wrong.path.clone());
        let result = wrong.answered(bytes).map(|is_block| {
            self.mended.blocks += u64::from(is_block);
            wrong.blocks.as_ref().is_some_and(VecDeque::is_empty)
        });
        let result = match result {
            Ok(false) => Ok(None),
            Ok(true) => Ok(self.files.pop_front().map(|wrong| wrong.again)),
            Err(error) => {
                self.files.pop_front();
                Err(error)
            }
        };
        self.ask(control)?;
        Ok(Answered { id, path, result })
    }
}

impl Wrong {
    /// Takes an answer. Says whether it was a block.
    fn answered(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let len = self.again.1.metadata.len;
        let Some(blocks) = &mut self.blocks else {
            self.blocks = Some(self.wrong_blocks(bytes)?);
            return Ok(false);
        };
        let block = blocks.pop_front().unwrap_or_default();
        let offset = block * BLOCK as u64;
        if bytes.is_empty() || bytes.len() as u64 != (len - offset).min(BLOCK as u64) {
            return Err(Error::SourceChanged(format!(
                "what is here of {} is not what the sender sent, and the sender cannot read it \
                 again as it was; it was not stored",
                shown(&self.path)
            )));
        }
        self.again.0.write(offset, bytes)?;
        Ok(true)
    }

    /// The blocks of the sections that differ from what the sender says of them.
    fn wrong_blocks(&self, theirs: &[u8]) -> Result<VecDeque<u64>, Error> {
        let ours = told(&self.sections);
        let pairs = ours.chunks(HASH).zip(theirs.chunks(HASH));
        let wrong = (0u64..)
            .zip(pairs)
            .filter(|(_, (ours, theirs))| ours != theirs);
        let len = self.again.1.metadata.len;
        let blocks_of = |section: u64| {
            let size = section_len(len);
            let end = ((section + 1) * size).min(len).div_ceil(BLOCK as u64);
            section * size / BLOCK as u64..end
        };
        let blocks: VecDeque<u64> = wrong.flat_map(|(section, _)| blocks_of(section)).collect();
        if theirs.len() != ours.len() || blocks.is_empty() {
            return Err(Error::Integrity(format!(
                "what the sender says proves {} contradicts itself; it was not stored",
                shown(&self.path)
            )));
        }
        Ok(blocks)
    }
}
