//! The packs that the sender reads again for receivers that lack them (spec 5.10).

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::Error;
use crate::object::{Again, PackIndex, Repacker};
use crate::waker::Waker;

/// While the stream runs, packs that are sent again have at most this share of its bytes: one in so
/// many.
const SHARE: u64 = 100;

/// The packs that are sent again.
pub struct CatchUp {
    index: Arc<PackIndex>,
    waker: Waker,
    /// Runs from the first pack that is sent again.
    repacker: Option<Repacker>,
    /// The pack that is being read.
    reading: Option<u32>,
    /// Bytes of the packs of the stream that were broadcast.
    broadcast: u64,
    /// Bytes of the packs that were sent again.
    pub bytes: u64,
}

impl CatchUp {
    /// Nothing is sent again yet.
    pub fn new(index: Arc<PackIndex>, waker: Waker) -> CatchUp {
        CatchUp {
            index,
            waker,
            repacker: None,
            reading: None,
            broadcast: 0,
            bytes: 0,
        }
    }

    /// Notes that `len` bytes of the stream are broadcast.
    pub fn broadcast(&mut self, len: u64) {
        self.broadcast += len;
    }

    /// Whether a pack of `len` bytes may be read again: one at a time, and within the share unless
    /// the network `is_free`, since all of the stream was sent.
    pub fn is_due(&self, len: u64, is_free: bool) -> bool {
        !self.is_reading() && (is_free || (self.bytes + len) * SHARE <= self.broadcast)
    }

    /// Whether a pack is being read.
    pub fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Has a pack read, without what came of the files `failed`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn read(&mut self, pack: u32, failed: &BTreeSet<u32>) -> Result<(), Error> {
        let repacker = match self.repacker.take() {
            Some(repacker) => repacker,
            None => Repacker::start(self.index.clone(), self.waker.clone())?,
        };
        repacker.read(pack, failed.clone());
        self.repacker = Some(repacker);
        self.reading = Some(pack);
        Ok(())
    }

    /// The pack that has been read, or why that cannot be done; does not block. An error of the
    /// thread is that of the pack that it was to read.
    pub fn next(&mut self) -> Option<(u32, Result<Again, CannotRead>)> {
        let read = match self.repacker.as_ref()?.next() {
            Ok(read) => {
                let (number, read) = read?;
                (number, read.map_err(CannotRead::Changed))
            }
            Err(error) => {
                self.repacker = None;
                (self.reading?, Err(CannotRead::Broken(error)))
            }
        };
        self.reading = None;
        Some(read)
    }
}

/// Why a pack cannot be read again.
pub enum CannotRead {
    /// Its files have changed, and how.
    Changed(String),
    /// The thread that reads has ended, or there is none.
    Broken(Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While the stream runs, what is sent again has one percent of its bytes at most. When the
    /// stream has ended, nothing bounds it.
    #[test]
    fn packs_are_sent_again_within_their_share_while_the_stream_runs() {
        let dir = crate::object::testing::scratch();
        let set = crate::object::testing::set_of(std::slice::from_ref(&dir));
        let index = Arc::new(PackIndex::new(set));
        let mut catch_up = CatchUp::new(index, Waker::new().unwrap());
        for (again, broadcast, of_two, of_three) in [
            (0, 0, false, false),
            (0, 199, false, false),
            (0, 200, true, false),
            (0, 300, true, true),
            (2, 399, false, false),
            (2, 500, true, true),
        ] {
            (catch_up.bytes, catch_up.broadcast) = (again, broadcast);
            let is_due = [2, 3].map(|len| catch_up.is_due(len, false));
            assert_eq!(is_due, [of_two, of_three], "{again} of {broadcast} bytes");
            assert!(catch_up.is_due(2, true), "{again} bytes after the stream");
        }
        // One pack is read at a time, whatever is left of the share.
        catch_up.reading = Some(0);
        assert!(!catch_up.is_due(2, true));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
