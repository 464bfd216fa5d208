//! The sender's slots, and the judgement of a request (P3.6, spec 7.5).
//!
//! A slot is P3's tuple ⟨fd, file id, last file id⟩. A file opens in the lowest free slot, as
//! POSIX's `open` chooses its descriptors: ⟨3, 5, x⟩. When it closes, its id becomes the last one:
//! ⟨3, −1, 5⟩. The next file makes that ⟨3, 6, 5⟩.

use std::collections::BTreeSet;

use super::message::{Fd, FileId};
use crate::mutant::{self, Mutant};

/// What a sender does about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// The file is open.
    Open,
    /// The file was the last one of a slot that is free now. Only FILE_TIMEOUT tells the receiver
    /// that it is closed.
    Closed,
    /// The sender ignores the request: a later file has had the slot, and its messages tell the
    /// receiver that the file is closed; or there has never been such a file.
    Ignored,
}

#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    file: Option<FileId>,
    last: Option<FileId>,
}

/// The slots of a sender.
#[derive(Clone, Debug)]
pub struct Slots {
    slots: Vec<Slot>,
    free: BTreeSet<Fd>,
    next: FileId,
}

impl Slots {
    /// Slots 0 to `count - 1`, all free.
    pub fn new(count: u16) -> Slots {
        Slots {
            slots: vec![Slot::default(); usize::from(count)],
            free: (0..count).map(Fd).collect(),
            next: FileId(1),
        }
    }

    /// The id of the file that opens next.
    pub fn next_file(&self) -> FileId {
        self.next
    }

    /// Opens the next file in the lowest free slot; `None`: no slot is free.
    pub fn open(&mut self) -> Option<(Fd, FileId)> {
        let fd = self.free.pop_first()?;
        let file = self.next;
        self.next = FileId(file.0 + 1);
        self.slots[usize::from(fd.0)].file = Some(file);
        Some((fd, file))
    }

    /// Closes the file of a slot, which is free then. Panics if the slot is free already.
    pub fn close(&mut self, fd: Fd) {
        let slot = &mut self.slots[usize::from(fd.0)];
        assert!(slot.file.is_some(), "{fd:?} is free");
        slot.last = slot.file.take();
        self.free.insert(fd);
    }

    /// P3's tuple of a slot: the file that is open, and the last one before it.
    pub fn tuple(&self, fd: Fd) -> (Option<FileId>, Option<FileId>) {
        let slot = self.slots.get(usize::from(fd.0));
        slot.map_or((None, None), |slot| (slot.file, slot.last))
    }

    /// Judges a request in constant time.
    pub fn judge(&self, fd: Fd, file: FileId) -> Judgement {
        match self.tuple(fd) {
            (Some(open), _) if open == file => Judgement::Open,
            (None, Some(last)) if last == file => Judgement::Closed,
            (Some(_), Some(last)) if last == file && mutant::active(Mutant::ReusedSlotAnswers) => {
                Judgement::Closed
            }
            _ => Judgement::Ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_judged_by_the_tuples_of_the_paper() {
        let mut slots = Slots::new(4);
        for fd in [0, 1, 2, 3] {
            assert_eq!(slots.open(), Some((Fd(fd), FileId(u64::from(fd) + 1))));
        }
        assert_eq!(slots.open(), None);
        let fd = Fd(3);
        slots.close(fd);
        // ⟨3, 5, x⟩: file A.
        assert_eq!(slots.open(), Some((fd, FileId(5))));
        assert_eq!(slots.judge(fd, FileId(5)), Judgement::Open);
        // ⟨3, −1, 5⟩: file A has expired.
        slots.close(fd);
        assert_eq!(slots.tuple(fd), (None, Some(FileId(5))));
        assert_eq!(slots.judge(fd, FileId(5)), Judgement::Closed);
        assert_eq!(slots.judge(fd, FileId(4)), Judgement::Ignored);
        // ⟨3, 6, 5⟩: file B.
        assert_eq!(slots.open(), Some((fd, FileId(6))));
        assert_eq!(slots.tuple(fd), (Some(FileId(6)), Some(FileId(5))));
        assert_eq!(slots.judge(fd, FileId(6)), Judgement::Open);
        assert_eq!(slots.judge(fd, FileId(5)), Judgement::Ignored);
        // A slot that does not exist, and a file that does not exist yet.
        assert_eq!(slots.judge(Fd(9), FileId(6)), Judgement::Ignored);
        assert_eq!(slots.judge(fd, FileId(7)), Judgement::Ignored);
    }
}
