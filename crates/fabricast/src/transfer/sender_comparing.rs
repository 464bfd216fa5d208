//! How far members are with comparing what they have: the sender's part (spec 5.16).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::catch_up::CatchUp;
use super::receiver_table::Member;
use super::sender_session::SenderSession;
use crate::bootstrap::message::ToSender;
use crate::object::EntryRanges;

/// How long the sender waits for members that look at what they have, at most.
const LOOKING: Duration = Duration::from_secs(10);
/// Packs that a member has not compared, at most.
pub const AHEAD_MAX: usize = 8;
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
    candidates: EntryRanges,
    /// Whether it has said all of that.
    has_looked: bool,
    /// Packs that it has to compare, the oldest first.
    to_compare: VecDeque<ToCompare>,
    /// Since when it could compare the oldest one, if its header was delivered.
    since: Option<Instant>,
}

/// A pack that a member has to compare.
#[derive(Clone, Debug)]
struct ToCompare {
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
    fn announced(&mut self, number: u32, len: u64) {
        self.to_compare.push_back(ToCompare {
            number,
            len,
            is_delivered: false,
        });
    }

    /// Takes note that the header of a pack was delivered.
    fn delivered(&mut self, number: u32, now: Instant) {
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
    fn is_full(&self) -> bool {
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

impl SenderSession<'_> {
    fn comparing(&self) -> impl Iterator<Item = &MemberComparing> {
        let members = self.admission.members.iter().filter(|m| m.compares());
        members.filter_map(|m| m.comparing.as_ref())
    }

    /// Goes on to comparing: when all pages were delivered, and all members have looked or had
    /// their time, the files that all of them may have are known.
    pub(super) fn decide_what_is_compared(&mut self) {
        if self.comparison == ComparingPhase::Delivering && self.under_way.is_empty() {
            self.comparison = ComparingPhase::Looking(Instant::now());
        }
        let ComparingPhase::Looking(since) = self.comparison else {
            return;
        };
        let is_over = since.elapsed() >= self.options.patience.min(LOOKING);
        if !is_over && !self.comparing().all(|member| member.has_looked) {
            return;
        }
        self.comparison = ComparingPhase::Decided(None);
        let mut all = None::<EntryRanges>;
        for member in self.admission.members.iter_mut() {
            let compares = member.compares();
            // Nobody needs them after this.
            let Some(comparing) = &mut member.comparing else {
                continue;
            };
            let found = std::mem::take(&mut comparing.candidates);
            all = match all {
                all if !compares => all,
                _ if !comparing.has_looked => Some(EntryRanges::default()),
                Some(all) => Some(all.and(&found)),
                None => Some(found),
            };
        }
        self.packer.compare(all.unwrap_or_default());
        self.fresh = true;
    }

    /// Whether a member has as much to compare as it may.
    pub(super) fn compares_enough(&self) -> bool {
        self.comparing().any(MemberComparing::is_full)
    }

    /// Whether a member has still to compare a pack.
    pub(super) fn awaits_comparison(&self) -> bool {
        self.comparing().any(|member| !member.to_compare.is_empty())
    }

    /// Takes note that the members compare a pack whose files have `len` bytes there. Others lack
    /// it, until they get it again.
    pub(super) fn note_comparison(&mut self, number: u32, len: u64) {
        if self.comparison == ComparingPhase::Decided(None) {
            self.comparison = ComparingPhase::Decided(Some(number));
        }
        for member in self.admission.members.iter_mut().filter(|m| m.in_group()) {
            let compares = member.compares();
            match &mut member.comparing {
                Some(comparing) if compares => comparing.announced(number, len),
                _ => member.lacks.add(number, number + 1),
            }
        }
    }

    /// Asks the members which have compared packs what they have of them, since all were announced.
    pub(super) fn ask_what_remains(&mut self) {
        let ComparingPhase::Decided(Some(first)) = self.comparison else {
            return;
        };
        let end = self.packs.0;
        let members = self.admission.members.iter_mut();
        for member in members.filter(|m| m.compares()) {
            member.lacks.add(first, end);
            member.has_said = false;
        }
    }

    /// Notes which headers the core has delivered: from then on a member can compare the pack.
    pub(super) fn note_delivered_headers(&mut self) {
        if self.headers.is_empty() {
            return;
        }
        let now = Instant::now();
        self.headers.retain(|(op, number)| {
            let is_delivered = !self.under_way.contains(op);
            if is_delivered {
                let members = self.admission.members.iter_mut();
                let comparing = members.filter_map(|member| member.comparing.as_mut());
                comparing.for_each(|comparing| comparing.delivered(*number, now));
            }
            !is_delivered
        });
    }

    /// Whether packs are compared in this transfer.
    pub(super) fn has_compared(&self) -> bool {
        matches!(self.comparison, ComparingPhase::Decided(Some(_)))
    }
}

/// Bytes of packs that a member has not compared yet, or has said that it lacks. What it has
/// compared counts as present until then.
pub fn uncompared(member: &Member, catch_up: &CatchUp) -> u64 {
    let comparing = member.comparing.as_ref();
    let uncompared = comparing.map_or(0, MemberComparing::uncompared);
    match member.has_said {
        true => uncompared + catch_up.lacking(&member.lacks),
        false => uncompared,
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::Part;
    use super::super::receiver_table::Place;
    use super::super::receiver_table::testing::receiving;
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

    /// The rule for slow receivers holds for a member that does not compare, while it takes part.
    #[test]
    fn a_member_that_does_not_compare_is_slow() {
        let (mut member, now) = (receiving(), Instant::now());
        let is_slow = |member: &Member, seconds: u32| {
            let mut waits = member.waits(now + seconds * S, 10 * S, None, None);
            waits.any(|wait| wait.exceeds(1))
        };
        let mut comparing = MemberComparing::default();
        comparing.announced(0, 10);
        comparing.delivered(0, now);
        member.comparing = Some(comparing);
        assert!(member.compares() && !is_slow(&member, 10) && is_slow(&member, 11));
        for (part, place) in [(Part::Demoted, Place::Aside), (Part::Late, Place::Member)] {
            (member.part, member.place) = (part, place);
            assert!(!member.compares() && !is_slow(&member, 100));
        }
    }
}
