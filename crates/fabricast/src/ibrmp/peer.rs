//! What the sender knows of a receiver that has joined.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_proto::NodeId;
use fabricast_proto::ibrmp::{FileId, ReceiverId};

/// A receiver that has joined.
pub struct Peer {
    pub id: ReceiverId,
    pub node: NodeId,
    /// The first file that was opened after the receiver had joined.
    pub next: FileId,
    /// Number of files that were over then.
    pub before: u64,
    /// Bytes of these files that had been multicast.
    bytes_before: u64,
    /// Files that the receiver is to have and has not said to have stored, or not to store.
    pub awaited: BTreeSet<FileId>,
    /// Bytes of open files that it has requested and not been sent.
    requested: BTreeMap<FileId, u64>,
    /// Files that were closed before the receiver had them, or that it could not store.
    lacks: BTreeSet<FileId>,
    /// Bytes of these files.
    lacking: u64,
}

impl Peer {
    /// A receiver that has nothing yet. `before`: number of files that are over when it joins, and
    /// bytes of these that have been multicast.
    pub fn new(id: ReceiverId, node: NodeId, next: FileId, before: (u64, u64)) -> Peer {
        let (before, bytes_before) = before;
        Peer {
            id,
            node,
            next,
            before,
            bytes_before,
            awaited: BTreeSet::new(),
            requested: BTreeMap::new(),
            lacks: BTreeSet::new(),
            lacking: 0,
        }
    }

    /// Notes how much of an open file it has requested.
    pub fn requests(&mut self, file: FileId, bytes: u64) {
        if bytes > 0 {
            let requested = self.requested.entry(file).or_default();
            *requested = requested.saturating_add(bytes);
        }
    }

    /// Notes how much of a file it was sent.
    pub fn sent(&mut self, file: FileId, bytes: u64) {
        if let Some(requested) = self.requested.get_mut(&file) {
            *requested = requested.saturating_sub(bytes);
        }
    }

    /// Notes that a file of `len` bytes is over for the receiver, and whether the receiver `lacks`
    /// it.
    pub fn over(&mut self, file: FileId, len: u64, lacks: bool) {
        self.awaited.remove(&file);
        self.requested.remove(&file);
        match lacks {
            true if self.lacks.insert(file) => self.lacking += len,
            false if self.lacks.remove(&file) => self.lacking -= len,
            _ => {}
        }
    }

    /// The files that are over, and that it lacks.
    pub fn lacks(&self) -> &BTreeSet<FileId> {
        &self.lacks
    }

    /// Bytes of the files that it takes part in, if so many of all files have been `multicast`.
    pub fn offered(&self, multicast: u64) -> u64 {
        multicast.saturating_sub(self.bytes_before)
    }

    /// Bytes that it has of these files, as far as the sender knows.
    pub fn placed(&self, multicast: u64) -> u64 {
        let requested: u64 = self.requested.values().sum();
        self.offered(multicast)
            .saturating_sub(self.lacking)
            .saturating_sub(requested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What it has requested of one file comes or not, whatever becomes of another one.
    #[test]
    fn a_file_that_was_closed_without_it_is_not_placed() {
        let mut peer = Peer::new(ReceiverId(0), NodeId(1), FileId(1), (1, 50));
        let multicast = 350; // 50 of them were over before it came
        peer.requests(FileId(1), 60);
        peer.requests(FileId(2), 40);
        peer.requests(FileId(3), 0);
        assert_eq!(peer.placed(multicast), 200);
        peer.sent(FileId(2), 30);
        peer.sent(FileId(3), 50); // nobody has requested that
        assert_eq!(peer.placed(multicast), 230);
        for _ in 0..2 {
            peer.over(FileId(1), 100, true);
            assert_eq!((peer.placed(multicast), peer.lacks().len()), (190, 1));
        }
        peer.over(FileId(2), 100, false);
        assert_eq!(peer.placed(multicast), 200);
        // It has proven the first one a moment after that was closed.
        peer.over(FileId(1), 100, false);
        assert_eq!((peer.placed(multicast), peer.lacks().len()), (300, 0));
        peer.requests(FileId(4), 1000);
        assert_eq!(peer.placed(multicast), 0);
    }
}
