//! Proves and stores complete files, on a thread of its own.

use fabricast_proto::ibrmp::FileId;

use super::Fingerprint;
use super::fingerprint::Sections;
use crate::error::Error;
use crate::job_thread::{Desk, JobThread};
use crate::object::{FileMetadata, UnprovenFile};
use crate::waker::Waker;

/// What the sender says of a file that is complete here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Told {
    /// What proves its bytes, in hexadecimal ([`Fingerprint::digest`]).
    pub hash: String,
    /// What it is beside its bytes.
    pub metadata: FileMetadata,
}

/// A complete file, and what the sender says of it.
pub type Complete = (UnprovenFile, Told);

/// What has become of a file.
pub enum Stored {
    /// It is proven, and has its name.
    Named(Fingerprint),
    /// It is not what the sender has sent. The hash of each of its sections.
    Wrong(Complete, Vec<blake3::Hash>),
    /// It cannot be stored.
    Failed(Error),
}

/// The protocol's end of the thread. Dropping it ends the thread after the present file, and waits
/// for that.
pub struct Storing(JobThread<(FileId, Complete), (FileId, Stored)>);

impl Storing {
    /// Starts the thread, which wakes `waker` after each file.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(waker: Waker) -> Result<Storing, Error> {
        let body = |desk: &Desk<(FileId, Complete), _>| {
            while let Some((id, (file, told))) = desk.next() {
                desk.tell((id, store(file, told).unwrap_or_else(Stored::Failed)));
            }
        };
        let thread = JobThread::start("fabricast-write", waker, body)?;
        Ok(Storing(thread.awaited(true)))
    }

    /// Has a complete file proven, and stored.
    pub fn store(&self, id: FileId, file: UnprovenFile, told: Told) {
        self.0.give((id, (file, told)));
    }

    /// The next file that was handled, if there is one; does not block.
    ///
    /// # Errors
    /// The thread has panicked.
    pub fn done(&self) -> Result<Option<(FileId, Stored)>, Error> {
        self.0.next()
    }
}

/// Proves and stores one file.
fn store(mut file: UnprovenFile, told: Told) -> Result<Stored, Error> {
    let mut sections = Sections::new(told.metadata.len);
    file.read_back(told.metadata.len, &mut |bytes| sections.update(bytes))?;
    let (fingerprint, sections) = sections.finish();
    if !Fingerprint::is(&fingerprint.digest(), &told.hash) {
        return Ok(Stored::Wrong((file, told), sections));
    }
    file.finish(&told.metadata)?;
    Ok(Stored::Named(fingerprint))
}
