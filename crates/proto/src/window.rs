//! What a lane of the root has sent and may have to send again: a ring of slots (P1.3) and the
//! queue of repairs. Both are bounded by the window, and neither allocates after it is made.

use std::collections::VecDeque;

use crate::limits;
use crate::mutant::{self, Mutant};
use crate::seq::Seq;
use crate::sum::Sources;
use crate::time::Time;

/// After so many repairs to the group, a packet that is still missing is sent to one by one.
const MULTICASTS_MAX: u32 = 4;
/// How many of the oldest repairs are looked at to find some that go together.
const COMBINE: usize = 64;
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
    /// To whom it has been sent again, likewise.
    served: u64,
}

const EMPTY: Slot = Slot {
    at: Time::ZERO,
    flight: 0,
    repairs: 0,
    first: SOMEBODY,
    lacks: 0,
    served: 0,
};

impl Slot {
    fn bit(&self, exact: bool, who: u32) -> u64 {
        match exact {
            true => 1 << (who % 64),
            false if self.first == who => 1,
            false => 2,
        }
    }

    /// Whether it has been sent again to `who`, and a report as of flight `as_of` says nothing of it.
    fn is_mended(
        &self,
        exact: bool,
        now: Time,
        who: u32,
        as_of: Option<u32>,
        rto: core::time::Duration,
    ) -> bool {
        let seen_later = as_of.is_some_and(|f| (f.wrapping_sub(self.flight) as i32) > 0);
        let served = self.served & self.bit(exact, who) != 0;
        let mended = served && !seen_later && now.since(self.at) < rto;
        mended && !mutant::active(Mutant::StaleReportsBelieved)
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
    /// Up to so many members a slot knows exactly who lacks its packet.
    pub const EXACT: usize = 64;

    /// Nothing sent at or after `start`; `size` is a power of two. `exact`: who lacks what is noted of each
    /// member; there are at most [`Window::EXACT`], numbered from 0.
    pub fn new(start: Seq, size: u32, exact: bool) -> Window {
        assert!(size.is_power_of_two() && size <= limits::WINDOW_MAX);
        Window {
            slots: vec![EMPTY; size as usize],
            base: start,
            next: start,
            repairs: VecDeque::with_capacity(size as usize),
            exact,
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

    /// When packet `seq`, which has been sent, was last sent.
    pub fn sent_at(&self, seq: Seq) -> Time {
        self.slots[seq.0 as usize & (self.slots.len() - 1)].at
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
        if slot.is_mended(exact, now, who, as_of, rto) {
            return false;
        }
        let bit = slot.bit(exact, who);
        if slot.lacks != 0 {
            let news = slot.lacks & bit == 0;
            slot.lacks |= bit;
            return news;
        }
        if slot.first != who && slot.served != u64::MAX && !exact {
            slot.served = 0;
        }
        slot.first = who;
        slot.lacks = slot.bit(exact, who);
        self.repairs.push_back((seq, now));
        true
    }

    /// Whether packet `seq` waits to be sent again.
    pub fn is_queued(&self, seq: Seq) -> bool {
        self.slots[seq.0 as usize & (self.slots.len() - 1)].lacks != 0
    }

    /// Whether packet `seq`, reported by `who` as of flight `as_of`, is under way again.
    pub fn is_mended(
        &self,
        now: Time,
        seq: Seq,
        who: u32,
        as_of: Option<u32>,
        rto: core::time::Duration,
    ) -> bool {
        let slot = &self.slots[seq.0 as usize & (self.slots.len() - 1)];
        slot.is_mended(self.exact, now, who, as_of, rto)
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
            // If multicast has been tried in vain, who asked first is served first; where the others are
            // not known, they get every other one.
            let others = !exact && slot.lacks & 2 != 0 && slot.repairs.is_multiple_of(2);
            let who = match known {
                Some(who) if slot.repairs >= MULTICASTS_MAX && !others => {
                    Lacking::Stubborn(match exact {
                        true => turn_of(slot.lacks, slot.repairs),
                        false => who,
                    })
                }
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
        let bits = to.map_or(u64::MAX, |who| slot.bit(exact, who));
        slot.served |= bits;
        // In a large group the others are not known one by one: they ask again.
        slot.lacks &= if exact { !bits } else { 0 };
        if slot.lacks == 0 {
            self.repairs.pop_front();
        }
    }

    /// Packets of `base .. end` that one sum mends: the one to be repaired next, and of those that wait behind it
    /// such as nobody lacks who lacks another one of them. Only the one, if it is not known who
    /// lacks what.
    pub fn combine(&mut self, base: Seq, end: Seq) -> Option<Sources> {
        let &(front, _) = self.repairs.front()?;
        let mut sources = Sources::new(front);
        if !self.exact {
            return Some(sources);
        }
        let mut lacks = self.slot(front).lacks;
        for k in 1..self.repairs.len().min(COMBINE) {
            let (seq, _) = self.repairs[k];
            if seq.before(self.base) || seq.before(base) || !seq.before(end) {
                continue;
            }
            let slot = *self.slot(seq);
            if slot.lacks & lacks == 0
                && slot.repairs < MULTICASTS_MAX
                && let Some(more) = with(&sources, seq)
            {
                sources = more;
                lacks |= slot.lacks;
            }
        }
        Some(sources)
    }

    /// The repairs that [`Window::combine`] showed are sent as one.
    pub fn repair_all(&mut self, now: Time, flight: u32, sources: &Sources) {
        for seq in sources.iter() {
            let slot = self.slot(seq);
            slot.at = now;
            slot.flight = flight;
            slot.repairs = slot.repairs.saturating_add(1);
            slot.served |= slot.lacks;
            slot.lacks = 0;
        }
        for k in (0..self.repairs.len().min(COMBINE)).rev() {
            let (seq, _) = self.repairs[k];
            if self.slot(seq).lacks == 0 {
                self.repairs.remove(k);
            }
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

/// One of those in a set, not the same each time: a queue on the way may be too short for all.
fn turn_of(set: u64, turn: u32) -> u32 {
    let rotated = set.rotate_right(turn % 64);
    (rotated.trailing_zeros() + turn) % 64
}

/// These packets and one more, if they can be named together.
fn with(sources: &Sources, seq: Seq) -> Option<Sources> {
    if sources.last().before(seq) {
        let mut more = *sources;
        return more.push(seq).then_some(more);
    }
    let mut all = sources.iter().filter(|s| s.before(seq)).chain([seq]);
    let mut more = Sources::new(all.next()?);
    let rest = sources.iter().filter(|s| seq.before(*s));
    all.chain(rest).all(|s| more.push(s)).then_some(more)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Debug)]
    enum Act {
        Send,
        /// A packet, who lacks it, and as of which flight it says so.
        Lacks(u32, u32, Option<u32>),
        Repair(bool),
        Release(u32),
        Forget(u32),
    }

    fn acts(members: u32) -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            6 => Just(Act::Send),
            4 => (0u32..80, 0..members, proptest::option::of(0u32..400))
                .prop_map(|(n, who, as_of)| Act::Lacks(n, who, as_of)),
            3 => any::<bool>().prop_map(Act::Repair),
            1 => (0u32..20).prop_map(Act::Release),
            1 => (0..members).prop_map(Act::Forget),
        ];
        proptest::collection::vec(act, 0..400)
    }

    fn who(packet: &BTreeMap<u32, BTreeSet<u32>>, n: u32) -> usize {
        packet.get(&n).map_or(0, BTreeSet::len)
    }

    proptest! {
        /// The window against a queue and a set of members for each packet, across the wrap.
        #[test]
        fn agrees_with_sets(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 70), any::<u32>()],
            acts in acts(5),
        ) {
            let (size, rto) = (64u32, Duration::from_nanos(40));
            let mut w = Window::new(Seq(start), size, true);
            let (mut base, mut next) = (0u32, 0u32);
            let mut queue: Vec<u32> = Vec::new();
            let mut lacks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            // Per packet: when it was last sent, and to whom again since it was first sent.
            let mut last: BTreeMap<u32, (usize, BTreeSet<u32>)> = BTreeMap::new();
            for (i, act) in acts.into_iter().enumerate() {
                let now = Time(i as u64 + 1);
                prop_assert_eq!(w.has_room(), next - base < size);
                match act {
                    Act::Send if w.has_room() => {
                        w.send(now, i as u32);
                        last.insert(next, (i, BTreeSet::new()));
                        next += 1;
                    }
                    Act::Send => {}
                    Act::Lacks(n, m, as_of) => {
                        let n = base + n;
                        // Sent again to this member, in a flight that it cannot know, just now.
                        let stale = last.get(&n).is_some_and(|(at, served)| {
                            let later = as_of.is_some_and(|f| f > *at as u32);
                            served.contains(&m) && !later && i - at < 40
                        });
                        let taken = n < next && !stale;
                        let news = taken && lacks.entry(n).or_default().insert(m);
                        if taken && !queue.contains(&n) {
                            queue.push(n);
                        }
                        prop_assert_eq!(w.lacks(now, Seq(start) + n, m, as_of, rto), news);
                    }
                    Act::Repair(alone) => {
                        let got = w.peek_repair();
                        let want = queue.first().map(|n| Seq(start) + *n);
                        prop_assert_eq!(got.map(|g| g.0), want);
                        if let (Some((_, lacking)), Some(&n)) = (got, queue.first()) {
                            let first = lacks.get(&n).and_then(|l| l.first()).copied();
                            match lacking {
                                Lacking::One(m) => {
                                    prop_assert_eq!((Some(m), who(&lacks, n)), (first, 1));
                                }
                                Lacking::Several(m) => {
                                    prop_assert_eq!(m, first);
                                    prop_assert!(who(&lacks, n) > 1);
                                }
                                Lacking::Stubborn(m) => prop_assert!(lacks[&n].contains(&m)),
                            }
                            let chosen = match lacking {
                                Lacking::Stubborn(m) => Some(m),
                                _ => first,
                            };
                            let to = chosen.filter(|_| alone);
                            w.repair(now, i as u32, to);
                            if let Some((at, served)) = last.get_mut(&n) {
                                *at = i;
                                served.extend(to.map_or(0..5, |m| m..m + 1));
                            }
                            if let (Some(m), Some(l)) = (to, lacks.get_mut(&n)) {
                                l.remove(&m);
                            } else {
                                lacks.remove(&n);
                            }
                        }
                    }
                    Act::Release(n) => {
                        base = (base + n).min(next);
                        w.release(Seq(start) + base);
                    }
                    Act::Forget(m) => {
                        w.forget(m);
                        lacks.values_mut().for_each(|l| {
                            l.remove(&m);
                        });
                    }
                }
                queue.retain(|n| *n >= base && who(&lacks, *n) > 0);
                lacks.retain(|n, l| *n >= base && !l.is_empty());
                w.invariants();
                prop_assert_eq!((w.base(), w.next()), (Seq(start) + base, Seq(start) + next));
            }
        }

        /// In a group too large to know everybody: whoever lacks a packet that is queued has a
        /// repair to the group, or one of its own.
        #[test]
        fn a_large_group_forgets_nobody(acts in acts(100)) {
            let mut w = Window::new(Seq(0), 64, false);
            let mut lacks: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
            let mut next = 0;
            for (i, act) in acts.into_iter().enumerate() {
                let now = Time(i as u64 + 1);
                match act {
                    Act::Send if w.has_room() => {
                        w.send(now, i as u32);
                        next += 1;
                    }
                    Act::Lacks(n, m, _) if n < next => {
                        w.lacks(now, Seq(n), m, Some(u32::MAX / 2), Duration::ZERO);
                        lacks.entry(n).or_default().insert(m);
                    }
                    Act::Repair(_) => {
                        if let Some((seq, Lacking::One(m) | Lacking::Stubborn(m))) = w.peek_repair() {
                            w.repair(now, i as u32, Some(m));
                            // The others ask again.
                            lacks.remove(&seq.0);
                        } else if let Some((seq, _)) = w.peek_repair() {
                            w.repair(now, i as u32, None);
                            lacks.remove(&seq.0);
                        }
                    }
                    Act::Forget(m) => {
                        w.forget(m);
                        lacks.values_mut().for_each(|l| { l.remove(&m); });
                    }
                    _ => {}
                }
                w.invariants();
                let queued: BTreeSet<u32> = w.repairs.iter().map(|r| r.0.0).collect();
                for (n, l) in &lacks {
                    prop_assert!(l.is_empty() || queued.contains(n), "packet {n}, {l:?}");
                }
            }
        }
    }

    /// Who has been sent nothing is believed at once, in a large group too.
    #[test]
    fn a_repair_to_one_is_no_repair_to_another() {
        for exact in [true, false] {
            let (rto, now) = (Duration::from_secs(1), Time(1));
            let mut w = Window::new(Seq(0), 64, exact);
            w.send(now, 1);
            assert!(w.lacks(now, Seq(0), 0, None, rto));
            w.repair(now, 2, Some(0));
            assert!(
                !w.lacks(now, Seq(0), 0, Some(1), rto),
                "old news, exact: {exact}"
            );
            assert!(
                w.lacks(now, Seq(0), 1, Some(1), rto),
                "news, exact: {exact}"
            );
            assert_eq!(w.peek_repair(), Some((Seq(0), Lacking::One(1))));
            w.repair(now, 3, None);
            assert!(
                !w.lacks(now, Seq(0), 0, Some(2), rto) && !w.lacks(now, Seq(0), 1, Some(2), rto)
            );
        }
    }
}
