//! The packets that a path of the sender has sent and may have to send again: a ring of slots
//! (P1.3) and the queue of repairs. Both are bounded by the window.
//!
//! Beside the slots are sets of members: those that lack a packet, and those that it has been sent
//! to again. The window touches the sets only when a packet is reported. Where the sets would be
//! too large, they have two numbers for all members: the member that asked first, and the others.

mod sets;
mod slots;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;

use crate::limits;
use crate::mutant::{self, Mutant};
use crate::repair::XorSources;
use crate::seq::Seq;
use crate::time::Time;
use sets::Sets;
use slots::{SOMEBODY, Slot, Slots};

/// Number of repairs to the group, times the tries, after which a packet that is still missing is
/// sent to one member at a time.
const MULTICASTS_MAX: u32 = 4;
/// Number of the oldest repairs that are searched for some that go together.
const COMBINE: usize = 64;
/// Number, in the sets, of the member that asked first, where members are not told apart.
const FIRST: u32 = 0;
/// Number, in the sets, of all other members, where members are not told apart.
const OTHERS: u32 = 1;

/// The members that lack a packet that is to be repaired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lacking {
    /// One member.
    One(u32),
    /// Several members, this one among them. `None`: members are not told apart, and the one that
    /// is known has gone.
    Several(Option<u32>),
    /// This member, which multicast has not helped.
    Stubborn(u32),
}

/// The window of a path: slots for `base .. base + size`. The packets `base .. next` have been
/// sent.
#[derive(Clone, Debug)]
pub struct Window {
    slots: Slots,
    /// For each slot, the members that lack its packet.
    lacks: Sets,
    /// For each slot, the members that its packet has been sent to again.
    served: Sets,
    /// A single set: the members that an XOR repair packet helps.
    helped: Sets,
    base: Seq,
    next: Seq,
    repairs: VecDeque<(Seq, Time)>,
    /// The tries: how often a packet is sent until it arrives, on average.
    tries: u32,
    /// The members that it serves; `None`: they are not told apart.
    members: Option<Range<u32>>,
}

impl Window {
    /// A window with nothing sent at or after `start`. It tells `members` apart if these are given
    /// and the sets take no more than [`limits::SETS_BYTES`]. Panics unless `size` is a power of
    /// two and at most [`limits::WINDOW_MAX`].
    pub fn new(start: Seq, size: u32, members: Option<Range<u32>>) -> Window {
        assert!(size.is_power_of_two() && size <= limits::WINDOW_MAX);
        let size = size as usize;
        let members = members.filter(|m| Sets::bytes(2 * size, m.len()) <= limits::SETS_BYTES);
        let bits = members.as_ref().map_or(2, Range::len);
        Window {
            slots: Slots::new(size),
            lacks: Sets::new(size, bits),
            served: Sets::new(size, bits),
            helped: Sets::new(1, bits),
            base: start,
            next: start,
            repairs: VecDeque::new(),
            tries: 1,
            members,
        }
    }

    /// Sets the tries: how often a packet is sent until it arrives, on average.
    pub fn expect(&mut self, tries: u32) {
        self.tries = tries;
    }

    /// The number before which all members that count have placed everything.
    pub fn base(&self) -> Seq {
        self.base
    }

    /// Number of the next packet to be sent for the first time.
    pub fn next(&self) -> Seq {
        self.next
    }

    /// Whether there is a slot for `next`.
    pub fn has_room(&self) -> bool {
        self.next.within(self.base, self.slots.len() as u32)
    }

    /// Index of packet `seq`'s slot.
    fn at(&self, seq: Seq) -> usize {
        seq.0 as usize & (self.slots.len() - 1)
    }

    /// The number of member `who` in the sets of slot `at`.
    fn number(&self, at: usize, who: u32) -> u32 {
        match &self.members {
            Some(members) => who - members.start,
            None if self.slots[at].first == who => FIRST,
            None => OTHERS,
        }
    }

    /// When packet `seq`, which has been sent, was last sent.
    pub fn sent_at(&self, seq: Seq) -> Time {
        self.slots[self.at(seq)].at
    }

    /// Takes everything before `seq` for sent by others: this path is only to repair it.
    pub fn skip_to(&mut self, seq: Seq) {
        self.next = self.next.max(seq);
    }

    /// Notes that packet `next` is sent for the first time, in burst `burst`. There must be room.
    pub fn send(&mut self, now: Time, burst: u32) {
        debug_assert!(self.has_room());
        let at = self.at(self.next);
        self.slots[at] = Slot {
            at: now,
            burst,
            ..Slot::EMPTY
        };
        self.next += 1;
    }

    /// Notes that everything before `base` is placed, and frees its slots.
    pub fn release(&mut self, base: Seq) {
        debug_assert!(!base.before(self.base));
        // Slots of packets that were never sent from here (see `skip_to`) must be fresh too.
        let n = (base.from(self.base) as u32).min(self.slots.len() as u32);
        for k in 0..n {
            let at = self.at(self.base + k);
            let slot = self.slots.take(at);
            if slot.lacking > 0 || slot.repairs > 0 {
                self.lacks.clear(at);
                self.served.clear(at);
            }
        }
        self.base = base;
        self.next = self.next.max(base);
        while self.repairs.front().is_some_and(|r| r.0.before(base)) {
            self.repairs.pop_front();
        }
    }

    /// Notes that member `who` lacks packet `seq`, as it was when burst `as_of` had reached it
    /// (`None`: unknown). Queues a repair unless one is queued or under way: a report that was made
    /// before the last repair could arrive says nothing. Says whether that is news.
    pub fn lacks(
        &mut self,
        now: Time,
        seq: Seq,
        who: u32,
        as_of: Option<u32>,
        rto: Duration,
    ) -> bool {
        if !seq.within(self.base, self.slots.len() as u32)
            || !seq.before(self.next)
            || self.is_mended(now, seq, who, as_of, rto)
        {
            return false;
        }
        let at = self.at(seq);
        if self.slots[at].lacking == 0 {
            self.repairs.push_back((seq, now));
            if self.members.is_none() && self.slots[at].first != who {
                // The member that asked first before is one of the others now, and these may not
                // have been served.
                self.slots[at].first = who;
                if !self.served.has(at, OTHERS) {
                    self.served.clear(at);
                }
            }
        }
        let news = self.lacks.insert(at, self.number(at, who));
        self.slots[at].lacking += u32::from(news);
        news
    }

    /// Whether packet `seq` waits to be sent again.
    pub fn is_queued(&self, seq: Seq) -> bool {
        self.slots[self.at(seq)].lacking > 0
    }

    /// Whether packet `seq` was sent for the first time so late that a report as of burst `as_of`
    /// can say nothing of it: less than a round trip ago, and in a later burst.
    pub fn is_on_its_way(&self, now: Time, seq: Seq, as_of: Option<u32>, rtt: Duration) -> bool {
        let slot = &self.slots[self.at(seq)];
        let later = as_of.is_some_and(|f| (slot.burst.wrapping_sub(f) as i32) > 0);
        slot.repairs == 0 && later && now.since(slot.at) < rtt
    }

    /// Whether packet `seq`, reported by `who` as of burst `as_of`, is under way again.
    pub fn is_mended(
        &self,
        now: Time,
        seq: Seq,
        who: u32,
        as_of: Option<u32>,
        rto: Duration,
    ) -> bool {
        let at = self.at(seq);
        let slot = &self.slots[at];
        let seen_later = as_of.is_some_and(|f| (f.wrapping_sub(slot.burst) as i32) > 0);
        let recent = slot.repairs > 0 && !seen_later && now.since(slot.at) < rto;
        let mended = recent && self.served.has(at, self.number(at, who));
        mended && !mutant::active(Mutant::StaleReportsBelieved)
    }

    /// Whether packet `seq` has been sent again to `who`, and each time to one member alone.
    pub fn was_sent_alone(&self, seq: Seq, who: u32) -> bool {
        let at = self.at(seq);
        self.slots[at].alone && self.served.has(at, self.number(at, who))
    }

    /// When the oldest report came that waits for its repair.
    pub fn oldest_report(&self) -> Option<Time> {
        self.repairs.front().map(|r| r.1)
    }

    /// The repair to be sent next, without taking it.
    pub fn peek_repair(&mut self) -> Option<(Seq, Lacking)> {
        while self.repairs.front().is_some_and(|r| r.0.before(self.base)) {
            self.repairs.pop_front();
        }
        let &(seq, _) = self.repairs.front()?;
        let at = self.at(seq);
        let slot = self.slots[at];
        let known = |rank| match &self.members {
            Some(members) => self.lacks.nth(at, rank).map(|m| members.start + m),
            None => Some(slot.first).filter(|first| *first != SOMEBODY),
        };
        // If multicast repairs have been in vain, members are served one by one. Where the others
        // are not known, every other repair is for all of them.
        let others = self.members.is_none() && slot.lacking > 1 && slot.repairs.is_multiple_of(2);
        let stubborn = match slot.repairs >= MULTICASTS_MAX * self.tries && !others {
            true => known(turn_of(slot.lacking, slot.repairs)),
            false => None,
        };
        let who = match (stubborn, known(0)) {
            (Some(who), _) => Lacking::Stubborn(who),
            (None, Some(who)) if slot.lacking == 1 => Lacking::One(who),
            (None, first) => Lacking::Several(first),
        };
        Some((seq, who))
    }

    /// The members that lack the packet that [`Window::peek_repair`] showed. `None`: they are not
    /// told apart.
    pub fn lacking(&self) -> Option<impl Iterator<Item = u32> + '_> {
        let start = self.members.as_ref()?.start;
        let &(seq, _) = self.repairs.front()?;
        let numbers = self.lacks.members(self.at(seq));
        Some(numbers.map(move |number| start + number))
    }

    /// Notes that the repair that [`Window::peek_repair`] showed is sent, to one member or to all.
    /// If other members are known to lack the packet, it stays the next one.
    pub fn repair(&mut self, now: Time, burst: u32, to: Option<u32>) {
        let Some(&(seq, _)) = self.repairs.front() else {
            return;
        };
        let at = self.at(seq);
        match to.map(|who| self.number(at, who)) {
            Some(who) => {
                self.served.insert(at, who);
                self.slots[at].lacking -= u32::from(self.lacks.remove(at, who));
            }
            None => self.served.fill(at),
        }
        // Members that are not known one by one ask again.
        if to.is_none() || self.members.is_none() {
            self.lacks.clear(at);
            self.slots[at].lacking = 0;
        }
        self.slots[at].departs(now, burst, to.is_some());
        if self.slots[at].lacking == 0 {
            self.repairs.pop_front();
        }
    }

    /// Packets of `base .. end` that one XOR repair packet mends: the next repair, and queued
    /// repairs behind it, so that no member lacks two of these packets. Only the next repair, if
    /// members are not told apart.
    pub fn combine(&mut self, base: Seq, end: Seq) -> Option<XorSources> {
        let &(front, _) = self.repairs.front()?;
        let mut sources = XorSources::new(front);
        if self.members.is_none() {
            return Some(sources);
        }
        self.helped.clear(0);
        self.helped.add(0, self.lacks.get(self.at(front)));
        for k in 1..self.repairs.len().min(COMBINE) {
            let (seq, _) = self.repairs[k];
            if seq.before(self.base) || seq.before(base) || !seq.before(end) {
                continue;
            }
            let at = self.at(seq);
            let lacks = self.lacks.get(at);
            if !self.helped.meets(0, lacks)
                && self.slots[at].repairs < MULTICASTS_MAX
                && let Some(more) = with(&sources, seq)
            {
                sources = more;
                self.helped.add(0, lacks);
            }
        }
        Some(sources)
    }

    /// Notes that the repairs that [`Window::combine`] showed are sent as one XOR repair packet.
    pub fn repair_all(&mut self, now: Time, burst: u32, sources: &XorSources) {
        for seq in sources.iter() {
            let at = self.at(seq);
            self.served.add(at, self.lacks.get(at));
            self.lacks.clear(at);
            self.slots[at].lacking = 0;
            self.slots[at].departs(now, burst, false);
        }
        for k in (0..self.repairs.len().min(COMBINE)).rev() {
            if !self.is_queued(self.repairs[k].0) {
                self.repairs.remove(k);
            }
        }
    }

    /// Forgets member `who`, which is gone: nothing is repaired for it any more.
    pub fn forget(&mut self, who: u32) {
        let mut kept = core::mem::take(&mut self.repairs);
        kept.retain(|&(seq, _)| {
            let at = self.at(seq);
            let number = self.number(at, who);
            let slot = &mut self.slots[at];
            // Where members are not told apart, a member that goes cannot be subtracted from
            // several: the packet stays queued for the others.
            if self.members.is_some() || slot.lacking == 1 {
                slot.lacking -= u32::from(self.lacks.remove(at, number));
            }
            if slot.first == who {
                slot.first = SOMEBODY;
            }
            slot.lacking > 0
        });
        self.repairs = kept;
    }

    /// Tells members before number `end` apart from now on, no fewer than before, if the sets then
    /// take no more than [`limits::SETS_BYTES`]. `None`, or larger sets: members are not told apart
    /// any more. Then what is queued is forgotten, and the receivers ask again.
    pub fn grow(&mut self, end: Option<u32>) {
        let Some(members) = self.members.take() else {
            return;
        };
        let size = self.slots.len();
        let wider = end.map(|end| members.start..end);
        self.members = wider.filter(|m| Sets::bytes(2 * size, m.len()) <= limits::SETS_BYTES);
        if let Some(members) = &self.members {
            for sets in [&mut self.lacks, &mut self.served, &mut self.helped] {
                sets.grow(members.len());
            }
            return;
        }
        (self.lacks, self.served) = (Sets::new(size, 2), Sets::new(size, 2));
        self.helped = Sets::new(1, 2);
        for (seq, _) in self.repairs.drain(..) {
            let at = seq.0 as usize & (size - 1);
            self.slots[at].lacking = 0;
        }
    }

    /// Panics if an invariant is broken; tests and soaks call it after every change.
    pub fn invariants(&self) {
        assert!(!self.next.before(self.base));
        for &(seq, _) in self.repairs.iter().filter(|r| !r.0.before(self.base)) {
            let at = self.at(seq);
            let lacking: u32 = self.lacks.get(at).iter().map(|w| w.count_ones()).sum();
            assert_eq!(self.slots[at].lacking, lacking, "{seq:?}");
            assert!(lacking > 0, "{seq:?} queued");
        }
    }
}

/// The index, below `lacking`, of the member that is served at turn `turn`. The order changes,
/// because a queue on the way may be too short for all.
fn turn_of(lacking: u32, turn: u32) -> u32 {
    // Multiples of the golden ratio are spread evenly over any range.
    let spread = turn.wrapping_mul(0x9e37_79b9);
    ((u64::from(spread) * u64::from(lacking)) >> 32) as u32
}

/// Adds packet `seq` to `sources`; `None`: one frame cannot name them together.
fn with(sources: &XorSources, seq: Seq) -> Option<XorSources> {
    if sources.last().before(seq) {
        let mut more = *sources;
        return more.push(seq).then_some(more);
    }
    let mut all = sources.iter().filter(|s| s.before(seq)).chain([seq]);
    let mut more = XorSources::new(all.next()?);
    let rest = sources.iter().filter(|s| seq.before(*s));
    all.chain(rest).all(|s| more.push(s)).then_some(more)
}
