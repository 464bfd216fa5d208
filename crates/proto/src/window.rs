//! What a lane of the root has sent and may have to send again: a ring of slots (P1.3) and the
//! queue of repairs. Both are bounded by the window, and neither allocates after it is made.

use std::collections::VecDeque;

use crate::limits;
use crate::mutant::{self, Mutant};
use crate::seq::Seq;
use crate::time::Time;

/// After so many repairs to the group, a packet that is still missing is sent to one by one.
const MULTICASTS_MAX: u32 = 4;
/// Up to so many members a slot knows exactly who lacks its packet.
const EXACT: usize = 64;
/// In a larger group: somebody who is not known.
const SOMEBODY: u32 = u32::MAX;

/// A packet that may have to be sent again.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When it was last sent.
    at: Time,
    /// In which flight.
    flight: u32,
    /// How often it has been sent again.
    repairs: u32,
    /// In a large group: who asked first.
    first: u32,
    /// Who lacks it, a bit each; in a large group the one who asked first (1) and others (2).
    lacks: u64,
}

const EMPTY: Slot = Slot {
    at: Time::ZERO,
    flight: 0,
    repairs: 0,
    first: SOMEBODY,
    lacks: 0,
};

impl Slot {
    fn bit(&self, exact: bool, who: u32) -> u64 {
        match exact {
            true => 1 << (who % 64),
            false if self.first == who => 1,
            false => 2,
        }
    }
}

/// Who lacks a packet that is to be repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacking {
    /// One member.
    One(u32),
    /// Several, this one among them; `None`: in a large group the one that is known has gone.
    Several(Option<u32>),
    /// This member, whom multicast has not helped.
    Stubborn(u32),
}

/// Slots for `base .. base + size`, of which `base .. next` have been sent.
#[derive(Clone, Debug)]
pub struct Window {
    slots: Vec<Slot>,
    base: Seq,
    next: Seq,
    repairs: VecDeque<(Seq, Time)>,
    exact: bool,
}

impl Window {
    /// Nothing sent at or after `start`; `size` is a power of two. Members are numbered from 0.
    pub fn new(start: Seq, size: u32, members: usize) -> Window {
        assert!(size.is_power_of_two() && size <= limits::WINDOW_MAX);
        Window {
            slots: vec![EMPTY; size as usize],
            base: start,
            next: start,
            repairs: VecDeque::with_capacity(size as usize),
            exact: members <= EXACT,
        }
    }

    /// Everything before this has been placed by all that count.
    pub fn base(&self) -> Seq {
        self.base
    }

    /// The next packet to be sent for the first time.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Whether there is a slot for `next`.
    pub fn has_room(&self) -> bool {
        self.next.within(self.base, self.slots.len() as u32)
    }

    fn slot(&mut self, seq: Seq) -> &mut Slot {
        let i = seq.0 as usize & (self.slots.len() - 1);
        &mut self.slots[i]
    }

    /// Takes everything before `seq` for sent by others: it is only to be repaired from here.
    pub fn skip_to(&mut self, seq: Seq) {
        self.next = self.next.max(seq);
    }

    /// Packet `next` is sent for the first time.
    pub fn send(&mut self, now: Time, flight: u32) {
        debug_assert!(self.has_room());
        let seq = self.next;
        *self.slot(seq) = Slot {
            at: now,
            flight,
            ..EMPTY
        };
        self.next += 1;
    }

    /// Everything before `base` is placed; slots are free again.
    pub fn release(&mut self, base: Seq) {
        debug_assert!(!base.before(self.base));
        // Slots of packets that were never sent from here (see `skip_to`) must be fresh too.
        let n = (base.from(self.base) as u32).min(self.slots.len() as u32);
        for i in 0..n {
            let seq = self.base + i;
            *self.slot(seq) = EMPTY;
        }
        self.base = base;
        self.next = self.next.max(base);
        while self.repairs.front().is_some_and(|r| r.0.before(base)) {
            self.repairs.pop_front();
        }
    }

    /// Member `who` lacks packet `seq`, as it was when flight `as_of` had reached it (`None`:
    /// unknown). Queues a repair unless one is queued or under way: a report that was made before
    /// the last repair could arrive says nothing. Says whether that is news.
    pub fn lacks(
        &mut self,
        now: Time,
        seq: Seq,
        who: u32,
        as_of: Option<u32>,
        rto: core::time::Duration,
    ) -> bool {
        if !seq.within(self.base, self.slots.len() as u32) || !seq.before(self.next) {
            return false;
        }
        let exact = self.exact;
        let slot = self.slot(seq);
        if slot.lacks != 0 {
            let bit = slot.bit(exact, who);
            let news = slot.lacks & bit == 0;
            slot.lacks |= bit;
            return news;
        }
        let seen_later = as_of.is_some_and(|f| (f.wrapping_sub(slot.flight) as i32) > 0);
        let stale = slot.repairs > 0 && !seen_later && now.since(slot.at) < rto;
        if stale && !mutant::active(Mutant::StaleReportsBelieved) {
            return false;
        }
        slot.first = who;
        slot.lacks = slot.bit(exact, who);
        self.repairs.push_back((seq, now));
        true
    }

    /// The oldest report that waits for its repair.
    pub fn oldest_report(&self) -> Option<Time> {
        self.repairs.front().map(|r| r.1)
    }

    /// The repair to be sent next, without taking it.
    pub fn peek_repair(&mut self) -> Option<(Seq, Lacking)> {
        while let Some(&(seq, _)) = self.repairs.front() {
            if seq.before(self.base) {
                self.repairs.pop_front();
                continue;
            }
            let exact = self.exact;
            let slot = self.slot(seq);
            let known = match exact {
                true => Some(slot.lacks.trailing_zeros()),
                false => (slot.first != SOMEBODY).then_some(slot.first),
            };
            // If multicast has been tried in vain, who asked first is served first.
            let who = match known {
                Some(who) if slot.repairs >= MULTICASTS_MAX => Lacking::Stubborn(who),
                Some(who) if slot.lacks.is_power_of_two() => Lacking::One(who),
                known => Lacking::Several(known),
            };
            return Some((seq, who));
        }
        None
    }

    /// The repair that [`Window::peek_repair`] showed is sent, to one member or to all. If others
    /// are known to lack it, it stays the next one.
    pub fn repair(&mut self, now: Time, flight: u32, to: Option<u32>) {
        let Some(&(seq, _)) = self.repairs.front() else {
            return;
        };
        let exact = self.exact;
        let slot = self.slot(seq);
        slot.at = now;
        slot.flight = flight;
        slot.repairs = slot.repairs.saturating_add(1);
        slot.lacks &= match to {
            Some(who) if exact => !slot.bit(exact, who),
            _ => 0,
        };
        if slot.lacks == 0 {
            self.repairs.pop_front();
        }
    }

    /// Member `who` is gone: nothing is repaired for it any more.
    pub fn forget(&mut self, who: u32) {
        let mut kept = core::mem::take(&mut self.repairs);
        let exact = self.exact;
        kept.retain(|&(seq, _)| {
            let slot = self.slot(seq);
            let bit = slot.bit(exact, who);
            if exact || slot.lacks == bit {
                slot.lacks &= !bit;
            }
            if slot.first == who {
                slot.first = SOMEBODY;
            }
            slot.lacks != 0
        });
        self.repairs = kept;
    }

    /// Checked after every change in tests and soaks.
    pub fn invariants(&self) {
        assert!(!self.next.before(self.base));
        let queued = |s: Seq| self.slots[s.0 as usize & (self.slots.len() - 1)].lacks != 0;
        for &(seq, _) in &self.repairs {
            assert!(seq.before(self.base) || queued(seq), "{seq:?} queued");
        }
    }
}
