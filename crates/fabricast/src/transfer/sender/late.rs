//! Receivers that come when the transfer runs already, or were demoted: the sender's part (spec
//! 5.10).

use std::time::Duration;

use fabricast_proto::{Command, NodeId};

use super::catch_up::CannotRead;
use super::receiver_table::{Member, Place};
use super::session::SenderSession;
use crate::bootstrap::message::{Announced, Join, ToReceiver};
use crate::config::ReachRule;
use crate::error::{Error, exit};
use crate::object::{Again, Memory, PackRecord};
use crate::transfer::events::{Part, SendEvent, State};
use crate::transfer::{ADDRESS, ALL};

/// How long what is sent again waits, after the stream, for members that lack nothing but are still
/// getting its end.
const AWAITS_SERVED: Duration = Duration::from_secs(1);

impl SenderSession<'_> {
    /// Admits the receivers that wait for it to the group.
    pub(super) fn admit_waiting(&mut self) {
        // A demoted one would hold up the others that catch up.
        let lacks = |m: &Member| m.in_group() && m.part != Part::Demoted && m.complete.is_none();
        let may_return = self.ended().is_some() && !self.admission.receivers.iter().any(lacks);
        let waits = |m: &Member| match m.place {
            Place::Waiting => m.active(),
            Place::Aside => m.active() && may_return,
            _ => false,
        };
        let waiting = self.admission.receivers.iter().filter(|m| waits(m));
        let waiting: Vec<NodeId> = waiting.map(|m| m.node).collect();
        for node in waiting {
            self.admit(node);
        }
    }

    /// Admits a receiver to the group, from the next pack on.
    fn admit(&mut self, node: NodeId) {
        let Some(at) = self.member(node) else {
            return;
        };
        let address = self.admission.receivers[at].datagrams();
        self.driver.transport().peer(node, &address);
        let (now, group) = (self.admission.clock.now(), ALL);
        let time = self.admission.clock.time();
        let added = self
            .driver
            .command(time, Command::MemberAdd { group, node });
        self.fresh = true;
        let admitted = self.driver.node().admission(ALL, node);
        let Some(admitted) = admitted.filter(|_| added.is_ok()) else {
            let reason = "there is no slot for it in the group".to_owned();
            return self.fail(at, State::Dropped, exit::REFUSED, reason);
        };
        if self.options.reach == ReachRule::Unicast {
            let members = vec![node];
            self.command(Command::Unreached { group, members });
        }
        let packs = self.announced.count();
        let has_ended = self.ended().is_some();
        let member = &mut self.admission.receivers[at];
        // What it waited for is not its time to catch up, and it had nothing to say.
        if member.place == Place::Aside {
            (member.since, member.heard) = (now, now);
        }
        (member.place, member.sent) = (Place::Member, 0);
        member.missed.admitted(packs, now);
        let is_told = std::mem::replace(&mut member.knows_end, has_ended);
        let peer = member.peer;
        let join = ToReceiver::Join(Join {
            slot: admitted.slot.index,
            epoch: admitted.slot.epoch,
            first: admitted.first.0,
            receivers: admitted.receivers,
            packs,
        });
        self.admission.rendezvous.say(peer, join);
        self.tell_peers(at);
        if has_ended && !is_told {
            self.admission.rendezvous.say(peer, self.end_message());
        }
        self.may_outpace(node);
    }

    /// Tells a late receiver, which has just joined the group or knows others, of receivers that
    /// serve. After the stream it is told of none: the sender has time for it. While it was told of
    /// any, nobody waits for what it says that it has. One that has said that already says it
    /// again.
    fn tell_peers(&mut self, at: usize) {
        let is_streaming = self.ended().is_none() && self.announced.count() > 0;
        let now = self.admission.clock.now();
        let member = &mut self.admission.receivers[at];
        if is_streaming
            && let Some(peers) = self.offers.tell(member.peer, !member.missed.is_known())
        {
            member.missed.ask_again(peers.is_empty().then_some(now));
            let peer = member.peer;
            self.admission
                .rendezvous
                .say(peer, ToReceiver::Peers { peers });
        }
    }

    /// Tells late receivers that lack something, or have not said yet what they have, if others
    /// serve than they know.
    pub(super) fn tell_peers_again(&mut self) {
        if !self.offers.take_change() {
            return;
        }
        for at in 0..self.admission.receivers.len() {
            let member = &self.admission.receivers[at];
            let is_late = member.in_group() && member.part == Part::Late;
            if is_late && !member.missed.is_nothing() {
                self.tell_peers(at);
            }
        }
    }

    /// Notes which packs a receiver has that were announced before it was admitted. False if it may
    /// not say that. One that has not heard yet of all receivers that serve (it was `told` of them
    /// so often) says more, whatever it has said.
    pub(super) fn has(&mut self, at: usize, runs: &[(u32, u32)], told: Option<u32>) -> bool {
        let member = &mut self.admission.receivers[at];
        if member.missed.is_known() || member.place != Place::Member {
            return false;
        }
        if !runs.iter().all(|run| member.missed.take(run.0..run.1)) {
            return false;
        }
        if told == Some(self.offers.times(member.peer)) {
            let had_said = member.missed.has_said();
            let lacking = self.announced.lacking(&member.missed);
            // One that was there from the start and has all that it compared has nothing to catch
            // up.
            let is_present = member.part == Part::Whole && lacking == 0;
            if !had_said && !is_present {
                (self.tell)(SendEvent::CatchingUp {
                    receiver: member.name.clone(),
                    part: member.part,
                    lacking,
                });
            }
        }
        self.fresh = true;
        true
    }

    /// Sends packs again that members lack: after the stream, and as far as the share allows while
    /// it runs.
    pub(super) fn send_again(&mut self) -> Result<(), Error> {
        while let Some((number, read)) = self.catch_up.next() {
            match read {
                Ok(again) => self.again(number, again)?,
                Err(why) => self.cannot_send_again(number, &why),
            }
        }
        let has_ended = self.ended().is_some();
        let is_free = has_ended || self.only_compares();
        if self.catch_up.is_reading() || self.is_full() || self.awaits_served() {
            return Ok(());
        }
        // Those that were there from the start do not wait for what others have missed. What others
        // keep comes after the stream, when these have left.
        let may_get = |m: &Member| has_ended || m.part != Part::Whole || m.compares();
        let first = |is_whole: bool| {
            let members = self.admission.receivers.in_group();
            let lacking = members.filter(|m| m.missed.is_known() && may_get(m));
            let lacking = lacking.filter(|m| (m.part == Part::Whole) == is_whole);
            lacking.filter_map(|m| m.missed.first()).min()
        };
        if let Some(next) = first(true).or_else(|| first(false))
            && self.catch_up.is_due(self.announced.len(next), is_free)
        {
            self.release_served();
            if let Err(error) = self.catch_up.read(next, self.failed.for_all()) {
                self.cannot_send_again(next, &CannotRead::Broken(error));
            }
        }
        Ok(())
    }

    fn again(&mut self, number: u32, again: Again) -> Result<(), Error> {
        let Again { pack, lost } = again;
        for (file, reason) in lost {
            let text = format!("receivers that still lack a part of it do not get it: {reason}");
            (self.tell)(SendEvent::Notice { text });
            self.failed.add_for_some(file, reason);
        }
        let failed = &pack.failed_files() - self.failed.for_all();
        // One that has not said yet what it has declines the pack, and gets it later.
        let members = self.admission.receivers.in_group_mut();
        for member in members.filter(|m| m.missed.is_known()) {
            if member.missed.take(number..number + 1) {
                member.missed.unavailable.extend(&failed);
            }
        }
        self.give_up_those_without_a_file();
        let record = PackRecord::of(&pack);
        let announced = ToReceiver::Pack(Announced::new(&record, Some(number)));
        self.catch_up.bytes += u64::from(record.len);
        self.choose_destination();
        self.announce(&announced, Memory::new(pack.bytes)).map(drop)
    }

    /// Sends by unicast after the stream while one member is left, and by multicast while there are
    /// more. A switch may go on for a while to send to hosts that have left the group's address.
    fn choose_destination(&mut self) {
        let is_alone = self.admission.receivers.in_group().count() == 1;
        let by_unicast = self.ended().is_some() && is_alone;
        if self.plan.start.group.is_none() || by_unicast == self.by_unicast {
            return;
        }
        self.by_unicast = by_unicast;
        self.command(Command::SendBy {
            group: ALL,
            address: (!by_unicast).then_some(ADDRESS),
        });
    }

    /// Gives up the receivers that can get no file at all any more.
    fn give_up_those_without_a_file(&mut self) {
        for at in 0..self.admission.receivers.len() {
            let lacks = &self.admission.receivers[at].missed.unavailable;
            if !lacks.is_empty() && self.set.is_lost(&self.failed.with(lacks)) {
                let reason = "what it has missed cannot be sent any more: it has changed";
                self.fail(at, State::Failed, exit::SOURCE_CHANGED, reason.into());
            }
        }
    }

    /// Gives up the receivers that lack a pack which cannot be read again. One that has not said
    /// yet what it has may get the pack from a receiver that serves.
    fn cannot_send_again(&mut self, number: u32, why: &CannotRead) {
        let (code, why) = match why {
            CannotRead::Changed(how) => (exit::SOURCE_CHANGED, how.clone()),
            CannotRead::Broken(error) => (error.exit_code(), error.to_string()),
        };
        for at in 0..self.admission.receivers.len() {
            let member = &self.admission.receivers[at];
            if member.in_group() && member.missed.is_known() && member.missed.contains(number) {
                let reason = format!("what it has missed cannot be sent any more: {why}");
                self.fail(at, State::Failed, code, reason);
            }
        }
    }

    /// Whether members that lack nothing of the stream are about to have all of it. Then what
    /// others lack comes a little later, and not to these.
    fn awaits_served(&self) -> bool {
        let ended = self.ended().map(|stream| stream.done.at);
        let members = || self.admission.receivers.in_group();
        ended.is_some_and(|at| self.admission.clock.now() < at + AWAITS_SERVED)
            && members().any(|m| m.missed.is_nothing() && m.complete.is_none())
    }

    /// Removes the members from the group that have everything, so that those that still lack
    /// something need not wait for their words, and what is sent again does not come to them.
    fn release_served(&mut self) {
        for at in 0..self.admission.receivers.len() {
            let member = &mut self.admission.receivers[at];
            if !member.in_group() || !member.missed.is_nothing() || member.complete.is_none() {
                continue;
            }
            member.place = Place::Done;
            member.waited = Duration::ZERO;
            let (node, peer) = (member.node, member.peer);
            if member.knows_end {
                self.admission.rendezvous.say(peer, ToReceiver::Released);
            }
            self.command(Command::MemberRemove { group: ALL, node });
        }
    }
}
