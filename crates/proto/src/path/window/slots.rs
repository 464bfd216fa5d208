//! The slots of a window, in pages that take memory when they are first written: many paths have
//! large windows and send little.

use core::ops::{Index, IndexMut};

use crate::time::Time;

/// Number of slots in a page.
const PAGE: usize = 64;
/// A member that is not known, in [`Slot::first`].
pub const SOMEBODY: u32 = u32::MAX;

/// The state of a packet that may have to be sent again.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// When the packet was last sent.
    pub at: Time,
    /// The burst in which it was last sent.
    pub burst: u32,
    /// How often it has been sent again.
    pub repairs: u32,
    /// Whether it has been sent again, and each time to one member alone.
    pub alone: bool,
    /// Number of members in the set of those that lack it.
    pub lacking: u32,
    /// Where members are not told apart: the member that asked first.
    pub first: u32,
}

impl Slot {
    /// The slot of a packet that was not sent.
    pub const EMPTY: Slot = Slot {
        at: Time::ZERO,
        burst: 0,
        repairs: 0,
        alone: false,
        lacking: 0,
        first: SOMEBODY,
    };

    /// Notes that the packet is sent again, to one member `alone` or to all.
    pub fn departs(&mut self, now: Time, burst: u32, alone: bool) {
        self.at = now;
        self.burst = burst;
        self.alone = alone && (self.alone || self.repairs == 0);
        self.repairs = self.repairs.saturating_add(1);
    }
}

/// A row of slots that are [`Slot::EMPTY`] until they are written.
#[derive(Clone, Debug)]
pub struct Slots {
    pages: Vec<Option<Box<[Slot; PAGE]>>>,
    len: usize,
}

impl Slots {
    /// A row of `len` empty slots.
    pub fn new(len: usize) -> Slots {
        Slots {
            pages: vec![None; len.div_ceil(PAGE)],
            len,
        }
    }

    /// Takes the slot at `at`, which is empty from now on.
    pub fn take(&mut self, at: usize) -> Slot {
        let page = self.pages[at / PAGE].as_mut();
        page.map_or(Slot::EMPTY, |page| {
            core::mem::replace(&mut page[at % PAGE], Slot::EMPTY)
        })
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

impl Index<usize> for Slots {
    type Output = Slot;

    fn index(&self, at: usize) -> &Slot {
        self.pages[at / PAGE]
            .as_ref()
            .map_or(&Slot::EMPTY, |page| &page[at % PAGE])
    }
}

impl IndexMut<usize> for Slots {
    fn index_mut(&mut self, at: usize) -> &mut Slot {
        let page = &mut self.pages[at / PAGE];
        &mut page.get_or_insert_with(|| Box::new([Slot::EMPTY; PAGE]))[at % PAGE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_memory_when_it_is_written_first() {
        let mut slots = Slots::new(130);
        let used = |slots: &Slots| slots.pages.iter().flatten().count();
        assert_eq!((slots.pages.len(), used(&slots)), (3, 0));
        assert_eq!((slots[129].repairs, slots.take(129).repairs), (0, 0));
        assert_eq!(used(&slots), 0);
        slots[129].repairs = 7;
        assert_eq!((slots[129].repairs, slots[128].repairs), (7, 0));
        assert_eq!(used(&slots), 1);
        assert_eq!((slots.take(129).repairs, slots[129].repairs), (7, 0));
    }
}
