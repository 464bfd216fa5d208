//! How far members are with comparing what they have: the sender's part (spec 5.16).

use super::announced::AnnouncedPacks;
use super::member_comparing::{ComparingPhase, MemberComparing};
use super::receiver_table::Member;
use super::session::SenderSession;
use crate::object::{EntryRanges, PackRecord};
use crate::setting::{FROM, OVERWRITE};
use crate::text::first_of;
use crate::transfer::comparing::LOOKING;
use crate::transfer::events::SendEvent;
use crate::transfer::kept_packs::called;

impl SenderSession<'_> {
    fn comparing(&self) -> impl Iterator<Item = &MemberComparing> {
        let members = self.admission.receivers.iter().filter(|m| m.compares());
        members.filter_map(|m| m.comparing.as_ref())
    }

    /// Goes on to comparing: when all pages were delivered, and all members have looked or had
    /// their time, the files that all of them may have are known.
    pub(super) fn decide_what_is_compared(&mut self) {
        if self.comparison == ComparingPhase::Delivering && self.under_way.is_empty() {
            self.comparison = ComparingPhase::Looking(self.admission.clock.now());
        }
        let ComparingPhase::Looking(since) = self.comparison else {
            return;
        };
        let looked = self.admission.clock.now().duration_since(since);
        let is_over = looked >= self.options.patience.min(LOOKING);
        if !is_over && !self.comparing().all(|member| member.has_looked) {
            return;
        }
        self.comparison = ComparingPhase::Decided(None);
        let mut all = None::<EntryRanges>;
        for member in self.admission.receivers.iter_mut() {
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
        let all = all.unwrap_or_default();
        let entries = self.set.manifest().entries();
        let is_worth = 2 * all.bytes(entries) >= self.set.manifest().len();
        if !is_worth {
            let text = why_nothing_is_compared(&self.admission.receivers);
            (self.tell)(SendEvent::Notice { text });
        }
        self.packer.compare(match is_worth {
            true => all,
            false => EntryRanges::default(),
        });
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

    /// Takes note that the members compare a pack. Others lack it, until they get it again, unless
    /// they keep it from an earlier run.
    pub(super) fn note_comparison(&mut self, number: u32, record: &PackRecord) {
        let len = u64::from(record.len - record.header);
        let pack = called(self.admission.session, &record.hash);
        if self.comparison == ComparingPhase::Decided(None) {
            self.comparison = ComparingPhase::Decided(Some(number));
        }
        for member in self.admission.receivers.in_group_mut() {
            let compares = member.compares();
            match &mut member.comparing {
                Some(comparing) if compares => comparing.announced(number, len),
                _ if member.keeps.has(pack) => {}
                _ => member.missed.add(number..number + 1),
            }
        }
    }

    /// Asks the members which have compared packs what they have of them, since all were announced.
    pub(super) fn ask_what_remains(&mut self) {
        let ComparingPhase::Decided(Some(first)) = self.comparison else {
            return;
        };
        let end = self.announced.count();
        let members = self.admission.receivers.iter_mut();
        for member in members.filter(|m| m.compares()) {
            member.missed.ask(first..end);
        }
    }

    /// Notes which headers the core has delivered: from then on a member can compare the pack.
    pub(super) fn note_delivered_headers(&mut self) {
        if self.headers.is_empty() {
            return;
        }
        let now = self.admission.clock.now();
        self.headers.retain(|(op, number)| {
            let is_delivered = !self.under_way.contains(op);
            if is_delivered {
                let members = self.admission.receivers.iter_mut();
                let comparing = members.filter_map(|member| member.comparing.as_mut());
                comparing.for_each(|comparing| comparing.delivered(*number, now));
            }
            !is_delivered
        });
    }

    /// Whether members only compare, and nothing is under way but headers.
    pub(super) fn only_compares(&self) -> bool {
        self.has_compared() && self.under_way.len() == self.headers.len()
    }

    /// Whether packs are compared in this transfer.
    pub(super) fn has_compared(&self) -> bool {
        matches!(self.comparison, ComparingPhase::Decided(Some(_)))
    }
}

/// Why everything is sent to these members, when all of them could have compared what they have.
fn why_nothing_is_compared(members: &[Member]) -> String {
    let looks = |m: &&Member| m.comparing.as_ref().is_some_and(|c| !c.has_looked);
    let slow: Vec<&Member> = members
        .iter()
        .filter(|m| m.compares())
        .filter(looks)
        .collect();
    let why = match slow.first() {
        Some(first) => format!(
            "{} has not looked in time at what it has",
            first_of(&first.name, slow.len())
        ),
        None => "the files that all receivers may have are less than half of it".into(),
    };
    format!("all of the set is sent, though receivers may have something of it: {why}")
}

/// Why everything is sent to these members, though some of them may have something of the set.
/// `report_to_each_other`: whether they do, by the scheme.
pub fn why_all_is_sent(members: &[Member], report_to_each_other: bool) -> Option<String> {
    if report_to_each_other && members.iter().any(Member::may_compare) {
        let text = "all of the set is sent, though receivers may have something of it: with this \
                    scheme they report to each other, and compare nothing";
        return Some(text.into());
    }
    let others: Vec<&Member> = members.iter().filter(|m| !m.may_compare()).collect();
    let first = others.first().filter(|_| others.len() < members.len())?;
    Some(format!(
        "all of the set is sent, though other receivers may have something of it: {} can compare \
         nothing, since it has nothing of the set, or goes on where an earlier run was, or was \
         started without {OVERWRITE} and {FROM}",
        first_of(&first.name, others.len())
    ))
}

/// Bytes of packs that a member has not compared yet, or has said that it lacks. What it has
/// compared counts as present until then.
pub fn uncompared(member: &Member, announced: &AnnouncedPacks) -> u64 {
    let comparing = member.comparing.as_ref();
    let uncompared = comparing.map_or(0, MemberComparing::uncompared);
    match member.missed.is_known() {
        true => uncompared + announced.lacking(&member.missed),
        false => uncompared,
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::transfer::events::Part;
    use crate::transfer::sender::receiver_table::Place;
    use crate::transfer::sender::receiver_table::testing::receiving;

    const S: Duration = Duration::from_secs(1);

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
