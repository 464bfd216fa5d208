//! How far both ends are with comparing what receivers have (spec 5.16).

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::bootstrap::message::ToSender;
use crate::object::pack::Header;
use crate::object::{Comparer, EntryRanges};

/// Packs that a member has not compared, at most.
pub const AHEAD_MAX: usize = 8;
/// How long the sender waits for members that look at what they have, at most.
pub const LOOKING: Duration = Duration::from_secs(10);
/// How long a receiver may compare a pack, at most. The others wait for it as long.
pub const COMPARING_MAX: Duration = Duration::from_secs(5);

/// How long a receiver may compare a pack. Then it gives up comparing, and says so before the
/// sender's patience ends.
pub fn time_for_a_pack(patience: Duration) -> Duration {
    COMPARING_MAX.min(patience / 2)
}

/// How far a member is.
#[derive(Clone, Debug, Default)]
pub struct MemberComparing {
    /// What it may have, as far as it has said so.
    pub(super) candidates: EntryRanges,
    /// Whether it has said all of that.
    pub(super) has_looked: bool,
    /// Packs that it has to compare, the oldest first.
    pub(super) to_compare: VecDeque<ToCompare>,
    /// Since when it could compare the oldest one, if its header was delivered.
    since: Option<Instant>,
}

/// A pack that a member has to compare.
#[derive(Clone, Debug)]
pub(super) struct ToCompare {
    number: u32,
    /// Bytes of its files.
    len: u64,
    /// Whether its header was delivered.
    is_delivered: bool,
}

impl MemberComparing {
    /// Takes what the member may have. False if it may not say that.
    pub fn looked(&mut self, candidates: &[(u32, u32)], more: bool) -> bool {
        let says = !candidates.is_empty() || !more;
        let may = says && !self.has_looked && candidates.len() <= ToSender::RUNS_MAX;
        self.has_looked |= !more;
        may && self.candidates.append(candidates)
    }

    /// Takes note of a pack that it has to compare, whose files have `len` bytes there.
    pub fn announced(&mut self, number: u32, len: u64) {
        self.to_compare.push_back(ToCompare {
            number,
            len,
            is_delivered: false,
        });
    }

    /// Takes note that the header of a pack was delivered.
    pub fn delivered(&mut self, number: u32, now: Instant) {
        let mut packs = self.to_compare.iter_mut();
        if let Some(pack) = packs.find(|pack| pack.number == number) {
            pack.is_delivered = true;
        }
        if self
            .to_compare
            .front()
            .is_some_and(|next| next.is_delivered)
        {
            self.since.get_or_insert(now);
        }
    }

    /// Takes note that it has compared a pack. False if that is not the next one.
    pub fn compared(&mut self, number: u32, now: Instant) -> bool {
        let is_next = self
            .to_compare
            .front()
            .is_some_and(|next| next.number == number);
        if is_next {
            self.to_compare.pop_front();
            let next = self.to_compare.front();
            self.since = next.and_then(|next| next.is_delivered.then_some(now));
        }
        is_next
    }

    /// Since when the sender waits for it to compare the next pack, if it does.
    pub fn waits_since(&self) -> Option<Instant> {
        self.since
    }

    /// Bytes of files in the packs that it has not compared.
    pub fn uncompared(&self) -> u64 {
        self.to_compare.iter().map(|pack| pack.len).sum()
    }

    /// Whether it has as much to compare as it may.
    pub fn is_full(&self) -> bool {
        self.to_compare.len() >= AHEAD_MAX
    }
}

/// How far a sender is with comparing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum ComparingPhase {
    /// Nothing is compared.
    None,
    /// The pages of the manifest are read.
    Pages,
    /// All pages were announced.
    Delivering,
    /// All pages were delivered. The sender waits until members have looked, since this time.
    Looking(Instant),
    /// The sender knows which files are compared. The number of the first such pack, once there is
    /// one.
    Decided(Option<u32>),
}

/// How far a receiver is with comparing what it has.
pub struct ReceiverComparing {
    /// How long a pack may be compared.
    pub(super) limit: Duration,
    /// Compares packs, once the receiver has looked.
    pub(super) comparer: Option<Comparer>,
    /// Number of the first pack that is compared, once there is one.
    pub(super) first: Option<u32>,
    /// Until when the others may look at what they have, or compare packs that this receiver has
    /// compared: nothing comes as long. `None` while this receiver looks.
    others_take: Option<Instant>,
    /// Number of packs that were announced and are not compared.
    pub(super) unanswered: usize,
    /// Bytes of files in the packs that were compared.
    pub(super) compared: u64,
    /// Number of the pack that is compared next. Headers arrive in any order.
    pub(super) next: u32,
    /// Headers that have arrived and wait for that of the next pack. `None`: what has arrived is
    /// not what was announced.
    pub(super) early: BTreeMap<u32, Option<Header>>,
}

impl ReceiverComparing {
    /// A receiver that compares each pack for so many milliseconds, as the sender says.
    pub fn new(limit_ms: u64) -> ReceiverComparing {
        ReceiverComparing {
            limit: Duration::from_millis(limit_ms).min(COMPARING_MAX),
            comparer: None,
            first: None,
            others_take: None,
            unanswered: 0,
            compared: 0,
            next: 0,
            early: BTreeMap::new(),
        }
    }

    /// Takes note that this receiver has looked: now the others may.
    pub fn looked(&mut self, now: Instant) {
        self.others_take = Some(now + LOOKING);
    }

    /// Takes note that a pack was announced that is sent as a whole. If all have looked, nobody
    /// waits for others until packs are compared.
    pub fn is_sent(&mut self, now: Instant) {
        if self.others_take.is_some() && self.first.is_none() {
            self.others_take = Some(now);
        }
    }

    /// Takes note that the pack of this number was announced, which all members compare. After the
    /// first such pack there are no others.
    pub fn is_compared(&mut self, number: u32, now: Instant) {
        let first = *self.first.get_or_insert(number);
        let packs = (number - first + 1).min(AHEAD_MAX as u32);
        self.others_take = Some(now + packs * self.limit);
    }

    /// Since when the transfer has been silent, if something came last at `last`: what others may
    /// take is no silence.
    pub fn silent_since(&self, last: Instant) -> Instant {
        match self.others_take {
            Some(until) => last.max(until),
            None => last + LOOKING,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_member_says_once_what_it_may_have() {
        let mut member = MemberComparing::default();
        assert!(member.looked(&[(1, 3), (5, 6)], true) && !member.has_looked);
        assert!(
            !member.clone().looked(&[(5, 9)], false),
            "it was said before"
        );
        assert!(!member.clone().looked(&[(9, 9)], false), "it is empty");
        assert!(!member.clone().looked(&[], true), "it says nothing");
        let many: Vec<(u32, u32)> = (9..).map(|n| (2 * n, 2 * n + 1)).take(129).collect();
        assert!(!member.clone().looked(&many, false));
        assert!(member.looked(&many[1..], false) && member.has_looked);
        assert!(!member.looked(&[], false), "it has said all");
    }

    /// The sender waits only while a member can compare something, and from the last answer on.
    #[test]
    fn packs_are_compared_in_their_order() {
        let (mut member, now) = (MemberComparing::default(), Instant::now());
        assert!(!member.compared(0, now) && member.waits_since().is_none());
        for number in 0..AHEAD_MAX as u32 {
            assert!(!member.is_full());
            member.announced(number, 10);
        }
        assert!(member.is_full() && member.uncompared() == 80);
        // Nobody can compare a pack whose header is still under way.
        assert_eq!(member.waits_since(), None);
        member.delivered(1, now);
        assert_eq!(member.waits_since(), None);
        member.delivered(0, now + S);
        member.delivered(2, now + 2 * S);
        assert_eq!(member.waits_since(), Some(now + S));
        assert!(!member.compared(1, now) && member.compared(0, now + 9 * S));
        assert!(!member.is_full() && !member.compared(0, now));
        assert_eq!(member.waits_since(), Some(now + 9 * S));
        assert!((1..3).all(|number| member.compared(number, now)));
        assert_eq!(member.waits_since(), None);
        // It may hear of a header before the sender knows that.
        assert!(member.compared(3, now));
        member.delivered(3, now);
        assert_eq!(member.waits_since(), None);
        assert!((4..8).all(|number| member.compared(number, now)));
        assert_eq!((member.waits_since(), member.uncompared()), (None, 0));
    }

    /// A receiver bears silence only while others may do something.
    #[test]
    fn what_others_may_take_is_no_silence() {
        let (mut receiver, now) = (ReceiverComparing::new(3000), Instant::now());
        assert_eq!(receiver.silent_since(now), now + LOOKING);
        receiver.is_sent(now); // a page
        assert_eq!(receiver.silent_since(now), now + LOOKING);
        receiver.looked(now + S);
        assert_eq!(receiver.silent_since(now), now + S + LOOKING);
        receiver.is_sent(now + 2 * S);
        assert_eq!(receiver.silent_since(now), now + 2 * S);
        assert_eq!(receiver.silent_since(now + 3 * S), now + 3 * S);
        for (number, packs) in (5..).zip([1, 2, 3, 4, 5, 6, 7, 8, 8, 8]) {
            receiver.is_compared(number, now + 4 * S);
            assert_eq!(receiver.silent_since(now), now + (4 + 3 * packs) * S);
        }
    }
}
