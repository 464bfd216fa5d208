//! Receivers that get on all the time, only more slowly than the others: which the sender leaves
//! behind (spec 5.5).

use std::time::{Duration, Instant};

use fabricast_proto::{Command, NodeId};

use super::admission::PROVING_SPEED_MIN;
use super::receiver_table::{Member, Place, Stage};
use super::session::{Phase, SenderSession};
use super::slow::{eviction, half_complete, too_slow, trickles};
use super::waits::Wait;
use crate::bootstrap::message::ToReceiver;
use crate::config::Slow;
use crate::error::exit;
use crate::transfer::ALL;
use crate::transfer::events::{Part, SendEvent, State};

/// With [`Slow::Demote`] a receiver that gets on may hold the others at less than half of their
/// speed for so long, at most. That it is demoted costs it little, and to wait for it costs all
/// others much.
const DEMOTED_AFTER: Duration = Duration::from_millis(300);
/// With [`Slow::Demote`] a receiver that gets on may be far behind, or hold the others up, for so
/// long, at most: longer than a pause of its process or its disk may look like that.
const HOLDS_UP_MAX: Duration = Duration::from_secs(1);

impl SenderSession<'_> {
    /// Finds out which receivers keep the sender waiting for longer than they may.
    pub(super) fn look_for_slow(&mut self, now: Instant) {
        let joining = match self.phase {
            Phase::Joining(since) => Some(since),
            _ => None,
        };
        let total = self.ended().map(|stream| stream.total);
        for at in 0..self.admission.receivers.len() {
            let member = &self.admission.receivers[at];
            let joining = match member.part {
                Part::Whole | Part::Demoted => joining,
                Part::Late => Some(member.since),
            };
            let mut waits = member.waits(now, self.options.patience, joining, total);
            let all = waits.clone();
            // One that stores is not demoted.
            let rule = self.options.slow_rule(&member.name);
            let only_tells = rule != Slow::Drop && matches!(member.stage, Stage::Storing(_));
            let is_slow = |wait: &Wait| match only_tells {
                true => wait.is_to_tell(),
                false => wait.exceeds(1),
            };
            if let Some(wait) = waits.find(is_slow) {
                self.slow(at, wait);
            }
            self.evict(at, now, all);
        }
    }

    /// Removes a slow receiver that the sender has waited for too long. `waits`: how long the
    /// sender has waited for it.
    fn evict(&mut self, at: usize, now: Instant, waits: impl Iterator<Item = Wait>) {
        let member = &self.admission.receivers[at];
        if let Some(reason) = eviction(member, self.options, now, waits) {
            self.fail(at, State::Dropped, exit::REFUSED, reason);
        }
    }

    /// Handles a receiver that keeps the others waiting: reports it, or removes it.
    pub(super) fn slow(&mut self, at: usize, wait: Wait) {
        let member = &self.admission.receivers[at];
        // The core may have said so before the sender demoted it.
        if !member.active() || member.place == Place::Aside {
            return;
        }
        let is_told = member.slow;
        match self.options.slow_rule(&member.name) {
            Slow::Demote if self.demote(at) => {}
            _ if is_told => {}
            Slow::Wait | Slow::Alive | Slow::Demote => {
                let member = &mut self.admission.receivers[at];
                member.slow = true;
                let (receiver, part) = (member.name.clone(), member.part);
                (self.tell)(SendEvent::Slow { receiver, part });
            }
            Slow::Drop => {
                self.fail(at, State::Dropped, exit::REFUSED, too_slow(&wait));
            }
        }
    }

    /// Demotes a slow receiver, unless that helps nobody or cannot be done. Returns whether it is
    /// demoted.
    fn demote(&mut self, at: usize) -> bool {
        let member = &self.admission.receivers[at];
        let may = member.place == Place::Member
            && self.may_leave(member)
            && member.stage == Stage::Receiving
            && member.missed.is_known()
            && !member.hello.stream
            && self.keeps_waiting(at);
        if !may {
            return false;
        }
        let member = &mut self.admission.receivers[at];
        (member.part, member.place) = (Part::Demoted, Place::Aside);
        (member.complete, member.waited) = (None, Duration::ZERO);
        // It has nothing to say while it waits for its turn.
        member.slow = false;
        let node = member.node;
        self.offers.remove(member.peer);
        self.admission
            .rendezvous
            .say(member.peer, ToReceiver::Demoted);
        (self.tell)(SendEvent::Demoted {
            receiver: member.name.clone(),
            placed: member.placed,
            len: self.set.known_len().unwrap_or_default(),
        });
        self.command(Command::MemberRemove { group: ALL, node });
        true
    }

    /// Whether the sender may leave a receiver behind because it is slower than the others: if the
    /// rule for it says so, and it has not been demoted.
    fn may_leave(&self, member: &Member) -> bool {
        let rule = self.options.slow_rule(&member.name);
        matches!(rule, Slow::Demote | Slow::Drop)
            && member.part != Part::Demoted
            && self.plan.start.reports_to_sender()
    }

    /// Tells the core whether the group may outpace a receiver.
    pub(super) fn may_outpace(&mut self, node: NodeId) {
        let members = &self.admission.receivers;
        let member = self.member(node).map(|at| &members[at]);
        let member = member.filter(|member| member.in_group() && self.may_leave(member));
        let may_hold = member.map(|member| self.bears(member, DEMOTED_AFTER));
        if may_hold.is_some() {
            self.command(Command::MayOutpace {
                group: ALL,
                node,
                may_hold,
            });
        }
    }

    /// How long the sender bears that a receiver keeps the others back: the patience, or less by
    /// [`Slow::Demote`].
    fn bears(&self, member: &Member, demoted_after: Duration) -> Duration {
        let patience = self.options.patience;
        match self.options.slow_rule(&member.name) {
            Slow::Demote => patience.min(demoted_after),
            _ => patience,
        }
    }

    /// Whether another member of the group still needs something.
    pub(super) fn keeps_waiting(&self, at: usize) -> bool {
        let node = self.admission.receivers[at].node;
        let needs = |m: &Member| m.in_group() && m.node != node && m.complete.is_none();
        self.admission.receivers.iter().any(needs)
    }

    /// Leaves a receiver behind that is slower than the others, as the rule says, unless half of
    /// the receivers were left behind before. Returns whether it is out of the group.
    fn leave_behind(&mut self, at: usize, wait: Wait) -> bool {
        let members = &self.admission.receivers;
        let left = members.iter().filter(|m| m.left_behind).count();
        if 2 * (left + 1) > members.len() || !self.keeps_waiting(at) {
            return false;
        }
        self.slow(at, wait);
        let member = &mut self.admission.receivers[at];
        member.left_behind = !member.active() || member.place == Place::Aside;
        member.left_behind
    }

    /// Handles a receiver that holds the others at less than half of what they could take.
    pub(super) fn outpaced(&mut self, at: usize) {
        let node = self.admission.receivers[at].node;
        if !self.leave_behind(at, Wait::holding(self.options.patience)) {
            self.command(Command::MayOutpace {
                group: ALL,
                node,
                may_hold: None,
            });
        }
    }

    /// Leaves members behind that have been far behind the fastest one most of the time, by more
    /// than they may. `passed`: the time since this was done last.
    pub(super) fn leave_far_behind(&mut self, passed: Duration) {
        let far = self.plan.start.window_bytes() / 2;
        // What a member has not compared, or has missed, says nothing of how fast it is.
        let sent = self.announced.bytes();
        let placed = |member: &Member| sent.saturating_sub(member.due);
        let fastest = self.admission.receivers.in_group().map(placed).max();
        for at in 0..self.admission.receivers.len() {
            let member = &self.admission.receivers[at];
            let is_behind = member.in_group()
                && fastest.is_some_and(|f| placed(member) + far < f)
                && self.may_leave(member);
            let bears = self.bears(member, HOLDS_UP_MAX);
            let behind = &mut self.admission.receivers[at].behind;
            if behind.count(passed, is_behind) > bears {
                self.leave_behind(at, Wait::behind(bears));
            }
        }
    }

    /// Leaves members behind that hold the others up most of the time, by more than they may:
    /// half of the others have what they can have, and the sender could go on. So a member that
    /// gets on in bursts is known, and one that has half of the others' speed is not. `passed`: the
    /// time since this was done last.
    pub(super) fn leave_holding(&mut self, passed: Duration) {
        let (sends, compares) = (
            self.sends_but_for_members(),
            self.compares_but_for_members(),
        );
        let group = || self.admission.receivers.in_group();
        let most = |idle: usize, all: usize| idle > 0 && 2 * idle + 1 >= all;
        let others_have = most(group().filter(|m| !m.lacks_sent).count(), group().count());
        let comparing = || group().filter(|m| m.compares());
        let idle = comparing().filter(|m| !m.has_to_compare()).count();
        let others_compared = most(idle, comparing().count());
        // A stream is kept until all have proven it.
        let proves = self.keeps_all() && self.packer.waits();
        let packs = self.announced.count();
        let proved = group().filter(|m| m.proven >= packs).count();
        let others_proved = most(proved, group().count());
        for at in 0..self.admission.receivers.len() {
            let member = &self.admission.receivers[at];
            let holds = sends && others_have && member.in_group() && member.lacks_sent
                || compares && others_compared && member.compares() && member.has_to_compare()
                || proves && others_proved && member.in_group() && member.proven < packs;
            let may = member.in_group() && self.may_leave(member);
            let bears = self.bears(member, HOLDS_UP_MAX);
            let balance = &mut self.admission.receivers[at].holds;
            if balance.count(passed, holds) > bears && may {
                self.leave_behind(at, Wait::holding(bears));
            }
        }
    }

    /// Whether the sender would send something new, were it not for members: it has unsent packets,
    /// or the next pack has been read and must wait.
    fn sends_but_for_members(&self) -> bool {
        let node = self.driver.node();
        let has_more =
            || matches!(self.phase, Phase::Packs) && self.is_full() && self.packer.waits();
        node.is_stopped(ALL) && (node.unsent(ALL) > 0 || has_more())
    }

    /// Whether the sender would have another pack compared, were it not for members.
    fn compares_but_for_members(&self) -> bool {
        self.has_compared() && (self.is_read || self.packer.waits()) && !self.is_full()
    }

    /// Removes receivers that take too long when the others have everything, so that the sender
    /// does not stay for ever for one that trickles.
    pub(super) fn leave_trickling(&mut self, now: Instant) {
        let Some(streamed) = self.ended().map(|stream| stream.done) else {
            return;
        };
        let members = &self.admission.receivers;
        let catches_up = |m: &&Member| m.part != Part::Whole && m.active();
        let count = members.iter().filter(catches_up).count() as u32;
        // It never shrinks: those that have gone have taken their time.
        let catch_up = self.most_catching_up.max(count);
        self.most_catching_up = catch_up;
        let waits = |m: &Member| m.part == Part::Whole && m.stage == Stage::Receiving;
        let half = match members.iter().any(waits) {
            true => half_complete(members, self.admission.clock.start()),
            false => None,
        };
        for at in 0..members.len() {
            let member = &self.admission.receivers[at];
            if member.place == Place::Aside {
                continue; // it waits for others
            }
            let (others, receivers) = match member.part {
                Part::Whole => (half, 1),
                _ => (Some(streamed), catch_up),
            };
            // Others that had what was not broadcast took no time for what comes again.
            let others = match self.has_spared() {
                true => others.map(|others| others.at_least(self.set_takes())),
                false => others,
            };
            let reason = |others| trickles(member, self.options, now, others, receivers);
            if let Some(reason) = others.and_then(reason) {
                self.fail(at, State::Dropped, exit::REFUSED, reason);
            }
        }
    }

    /// Whether packs were not broadcast, since members may have them or keep them, or there were no
    /// members.
    fn has_spared(&self) -> bool {
        self.has_compared() || self.unbroadcast.any
    }

    /// How long the set takes at [`PROVING_SPEED_MIN`], or at the user's rate if that is less.
    fn set_takes(&self) -> Duration {
        let rate = match &self.options.shared_rate {
            Some(shared) => Some(shared.rate()),
            None => self.options.rate,
        };
        let speed = rate.map_or(PROVING_SPEED_MIN, |rate| rate.clamp(1, PROVING_SPEED_MIN));
        Duration::from_secs(self.set.known_len().unwrap_or(0) / speed)
    }

    /// Notes since when receivers hold a stream back because they have not proven what they got.
    pub(super) fn watch_proofs(&mut self, now: Instant) {
        let keeps_all = self.keeps_all();
        let active = self.admission.receivers.active();
        let least = active.map(|m| m.proven).min();
        for member in self.admission.receivers.iter_mut() {
            match keeps_all && Some(member.proven) == least {
                true => _ = member.unproven.get_or_insert(now),
                false => member.unproven = None,
            }
        }
    }
}
