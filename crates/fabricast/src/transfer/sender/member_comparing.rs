//! How far members are with comparing what they have, as the sender knows it (spec 5.16).

use std::collections::VecDeque;
use std::time::Instant;

use crate::bootstrap::message::ToSender;
use crate::object::EntryRanges;
use crate::transfer::comparing::AHEAD_MAX;

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
}
