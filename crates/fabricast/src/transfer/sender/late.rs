//! Receivers that come when the transfer runs already, or were demoted: the sender's part (spec
//! 5.10).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use fabricast_proto::{Command, NodeId};

use super::admission::Admission;
use super::admission::authentication::Step;
use super::admission::objections::{
    LATE, LATE_STREAM, contradiction, small_datagrams, unverified, wrong_family,
};
use super::admission::seats::{host, no_seat, seats};
use super::catch_up::Lacks;
use super::plan::Plan;
use super::receiver_table::{Member, Place, Stage};
use super::session::SenderSession;
use crate::bootstrap::Event;
use crate::bootstrap::message::{Announced, Join, Start, ToReceiver};
use crate::config::{ReachRule, SendOptions};
use crate::error::{Error, exit};
use crate::interface::Family;
use crate::object::{Again, Memory, PackRecord};
use crate::text::escaped;
use crate::transfer::events::{FileFailure, Part, SendEvent, State};
use crate::transfer::{ADDRESS, ALL};

/// Late receivers of one host that are admitted in one transfer, at most. Otherwise a host that
/// comes again and again would keep the sender for ever.
const PER_HOST: usize = 64;

/// How long what is sent again waits, after the stream, for members that lack nothing but are still
/// getting its end.
const AWAITS_SERVED: Duration = Duration::from_secs(1);

fn host_of(member: &Member) -> IpAddr {
    host(member.address.ip(), member.local.ip())
}

/// Why a receiver cannot join the transfer, if it cannot.
fn objection(
    member: &Member,
    admission: &Admission<'_>,
    plan: &Plan,
    options: &SendOptions,
) -> Option<String> {
    let start = &plan.start;
    // When only receivers are left that are not prepared, the sender waits for these, and for no
    // others.
    let is_over = !admission
        .members
        .iter()
        .any(|m| m.active() && m.stage != Stage::Preparing);
    if is_over || !plan.admits_late || member.hello.stream {
        let is_stream = member.hello.stream || admission.set.is_stream();
        return Some(if is_stream { LATE_STREAM } else { LATE }.into());
    }
    let family = start.root.ip().map(|at| Family::of(at.ip()));
    let its = Family::of(member.address.ip());
    if let Some(family) = family.filter(|family| *family != its) {
        return Some(wrong_family(its, family));
    }
    let members = &admission.members;
    let active = members.iter().filter(|m| m.active()).count();
    let came = admission.came_late.get(&host_of(member)).copied();
    let window = u64::from(start.window) * u64::from(start.payload_size);
    let datagram = start.payload_size + plan.overhead;
    contradiction(member.address, &member.hello, family)
        .or_else(|| no_seat(member, members, options.per_host, seats()))
        .or_else(|| {
            (active >= options.start.max_receivers)
                .then(|| "there are as many receivers as the sender admits".into())
        })
        .or_else(|| {
            (came.unwrap_or(0) >= PER_HOST).then(|| "too many late receivers of its host".into())
        })
        .or_else(|| unverified(&member.hello, options.verified_only))
        .or_else(|| small_datagrams(member.hello.datagram, datagram as usize))
        .or_else(|| {
            (member.hello.window_bytes < window).then(|| {
                let its = member.hello.window_bytes;
                format!("the window of the transfer has {window} bytes, and it can hold {its}")
            })
        })
}

impl Admission<'_> {
    /// Handles a receiver that says hello when the transfer runs already.
    pub(super) fn comes_late(
        &mut self,
        member: Member,
        plan: &Plan,
        options: &SendOptions,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<(), Error> {
        // A key is good for one admission, and none follows here.
        let step = match plan.admits_late {
            true => self.greet(member)?,
            false => Step::Consider(member, None),
        };
        self.step_late(step, plan, options, tell);
        Ok(())
    }

    /// Handles an event of a client that has to show its key when the transfer runs already, and
    /// gives back that of any other.
    pub(super) fn shows_key(
        &mut self,
        event: Event,
        plan: &Plan,
        options: &SendOptions,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Option<Event> {
        match self.authenticator.hear(event, &self.rendezvous) {
            ControlFlow::Break(step) => {
                self.step_late(step, plan, options, tell);
                None
            }
            ControlFlow::Continue(event) => Some(event),
        }
    }

    /// Takes the next step with a client that shows its key, or needs none, when the transfer runs
    /// already.
    fn step_late(
        &mut self,
        step: Step,
        plan: &Plan,
        options: &SendOptions,
        tell: &mut dyn FnMut(SendEvent),
    ) {
        match step {
            Step::Wait => {}
            Step::Refuse(member, reason) => self.refuse(member, reason, tell),
            Step::Consider(member, mac) => match objection(&member, self, plan, options) {
                Some(reason) => self.refuse(member, reason, tell),
                None => {
                    let late = self.count_late(member);
                    self.admit(late, mac, tell);
                }
            },
        }
    }

    /// Counts a late receiver at its host.
    fn count_late(&mut self, member: Member) -> Member {
        *self.came_late.entry(host_of(&member)).or_default() += 1;
        member.late()
    }

    /// Takes the receivers for late that were not prepared at the start.
    pub(super) fn admit_unprepared(
        &mut self,
        plan: &Plan,
        options: &SendOptions,
        tell: &mut dyn FnMut(SendEvent),
    ) {
        for member in std::mem::take(&mut self.unprepared) {
            match objection(&member, self, plan, options) {
                Some(reason) => self.refuse(member, reason, tell),
                None => {
                    let late = self.count_late(member);
                    self.members.push(late);
                }
            }
        }
        self.members.sort_by_key(|m| m.node);
    }

    /// Handles an event of the receiver `node`, which is not prepared. Once it is, it may join the
    /// group's address.
    pub(super) fn prepares(
        &mut self,
        event: Event,
        node: NodeId,
        plan: &Plan,
        tell: &mut dyn FnMut(SendEvent),
    ) -> Result<(), Error> {
        self.take(event, tell)?;
        let mut members = self.members.iter_mut();
        let joins = |m: &&mut Member| m.node == node && m.stage == Stage::Joining;
        let Some(member) = members.find(joins) else {
            return Ok(());
        };
        let now = Instant::now();
        (member.since, member.heard) = (now, now);
        let start = Start {
            members: vec![0, node.0],
            compares: None,
            late: true,
            ..plan.start.clone()
        };
        // One that has come back is one receiver, with one line in the table.
        let came = member.clone();
        self.rendezvous.say(came.peer, ToReceiver::Start(start));
        self.members.retain(|m| !came.replaces(m));
        Ok(())
    }
}

impl SenderSession<'_> {
    /// Demotes a slow receiver, unless that helps nobody or cannot be done. Returns whether it is
    /// demoted.
    pub(super) fn demote(&mut self, at: usize) -> bool {
        let member = &self.admission.members[at];
        let may = member.place == Place::Member
            && member.part != Part::Demoted
            && member.stage == Stage::Receiving
            && member.has_said
            && !member.hello.stream
            && self.plan.start.addresses.is_empty()
            && self.keeps_waiting(at);
        if !may {
            return false;
        }
        let member = &mut self.admission.members[at];
        (member.part, member.place) = (Part::Demoted, Place::Aside);
        (member.complete, member.waited, member.asked) = (None, Duration::ZERO, None);
        let node = member.node;
        self.offers.remove(member.peer);
        self.admission
            .rendezvous
            .say(member.peer, ToReceiver::Demoted);
        (self.tell)(SendEvent::Demoted {
            receiver: member.name(),
            placed: member.placed,
            len: self.set.known_len().unwrap_or_default(),
        });
        self.command(Command::MemberRemove { group: ALL, node });
        true
    }

    /// Admits the receivers that wait for it to the group.
    pub(super) fn admit_waiting(&mut self) {
        let may_return = self.root.is_some() && !self.others_lack();
        let waits = |m: &Member| match m.place {
            Place::Waiting => m.active(),
            Place::Aside => m.active() && may_return,
            _ => false,
        };
        let waiting = self.admission.members.iter().filter(|m| waits(m));
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
        let address = self.admission.members[at].datagrams();
        self.driver.transport().peer(node, &address);
        let (now, group) = (self.clock.now(), ALL);
        let added = self.driver.command(now, Command::MemberAdd { group, node });
        self.fresh = true;
        let admission = self.driver.node().admission(ALL, node);
        let Some(admission) = admission.filter(|_| added.is_ok()) else {
            let reason = "there is no slot for it in the group".to_owned();
            return self.fail(at, State::Dropped, exit::REFUSED, reason);
        };
        if self.options.reach == ReachRule::Unicast {
            let members = vec![node];
            self.command(Command::Unreached { group, members });
        }
        let packs = self.packs.0;
        let member = &mut self.admission.members[at];
        (member.place, member.has_said) = (Place::Member, false);
        (member.lacks, member.sent) = (Lacks::before(packs), 0);
        let is_told = std::mem::replace(&mut member.knows_end, self.root.is_some());
        let peer = member.peer;
        let join = ToReceiver::Join(Join {
            slot: admission.slot.index,
            epoch: admission.slot.epoch,
            first: admission.first.0,
            receivers: admission.receivers,
            packs,
        });
        self.admission.rendezvous.say(peer, join);
        self.admission.members[at].asked = Some(Instant::now());
        self.tell_peers(at);
        if self.root.is_some() && !is_told {
            self.admission.rendezvous.say(peer, self.end_message());
        }
        self.may_outpace(node);
    }

    /// Tells a late receiver, which has just joined the group or knows others, of receivers that
    /// serve. After the stream it is told of none: the sender has time for it. While it was told of
    /// any, nobody waits for what it says that it has. One that has said that already says it
    /// again.
    fn tell_peers(&mut self, at: usize) {
        let member = &mut self.admission.members[at];
        if self.root.is_none()
            && self.packs.0 > 0
            && let Some(peers) = self.offers.tell(member.peer, !member.has_said)
        {
            member.asks_again |= std::mem::take(&mut member.has_said);
            member.asked = peers.is_empty().then(Instant::now);
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
        for at in 0..self.admission.members.len() {
            let member = &self.admission.members[at];
            if member.in_group() && !member.is_served() {
                self.tell_peers(at);
            }
        }
    }

    /// Notes which packs a receiver has that were announced before it was admitted. False if it may
    /// not say that. One that has not heard yet of all receivers that serve (it was `told` of them
    /// so often) says more, whatever it has said.
    pub(super) fn has(&mut self, at: usize, runs: &[(u32, u32)], told: Option<u32>) -> bool {
        let member = &mut self.admission.members[at];
        if member.has_said || member.place != Place::Member {
            return false;
        }
        if !runs.iter().all(|run| member.lacks.remove(run.0, run.1)) {
            return false;
        }
        if told == Some(self.offers.times(member.peer)) {
            (member.has_said, member.asked) = (true, None);
            let lacking = self.catch_up.lacking(&member.lacks);
            // One that was there from the start and has all that it compared has nothing to catch
            // up.
            let is_present = member.part == Part::Whole && lacking == 0;
            if !std::mem::take(&mut member.asks_again) && !is_present {
                (self.tell)(SendEvent::CatchingUp {
                    receiver: member.name(),
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
                Err(reason) => self.cannot_send_again(number, &reason),
            }
        }
        let is_free = self.root.is_some() || self.only_compares();
        if !self.catch_up.is_due(is_free) || self.is_full() || self.awaits_served() {
            return Ok(());
        }
        // Those that were there from the start do not wait for what others have missed. What others
        // keep comes after the stream, when these have left.
        let may_get = |m: &Member| self.root.is_some() || m.part != Part::Whole || m.compares();
        let first = |is_whole: bool| {
            let members = self.admission.members.iter();
            let lacking = members.filter(|m| m.in_group() && m.has_said && may_get(m));
            let lacking = lacking.filter(|m| (m.part == Part::Whole) == is_whole);
            lacking.filter_map(|m| m.lacks.first()).min()
        };
        if let Some(next) = first(true).or_else(|| first(false)) {
            self.release_served();
            self.catch_up.read(next, &self.failed_files);
        }
        Ok(())
    }

    fn again(&mut self, number: u32, again: Again) -> Result<(), Error> {
        let Again { pack, lost } = again;
        for (file, reason) in lost {
            let text = format!("receivers that still lack a part of it do not get it: {reason}");
            (self.tell)(SendEvent::Notice { text });
            self.lost_files.insert(file, reason);
        }
        let failed = &pack.failed_files() - &self.failed_files;
        // One that has not said yet what it has declines the pack, and gets it later.
        let members = self.admission.members.iter_mut();
        for member in members.filter(|m| m.in_group() && m.has_said) {
            if member.lacks.remove(number, number + 1) {
                member.lost.extend(&failed);
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
        let members = self.admission.members.iter().filter(|m| m.in_group());
        let by_unicast = self.root.is_some() && members.count() == 1;
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
        for at in 0..self.admission.members.len() {
            let lost = &self.admission.members[at].lost;
            if !lost.is_empty() && self.set.is_lost(&(lost | &self.failed_files)) {
                let reason = "what it has missed cannot be sent any more: it has changed";
                self.fail(at, State::Failed, exit::SOURCE_CHANGED, reason.into());
            }
        }
    }

    /// Ends the transfer for a receiver that has proven all but files that it could not get.
    pub(super) fn complete_but_for(&mut self, at: usize) {
        let lost = &self.admission.members[at].lost;
        let first = lost.first().map(|file| self.set.path(*file));
        let name = first.as_deref().and_then(Path::file_name);
        let with_copies = lost.iter().map(|file| self.failures(*file, "").len());
        let reason = format!(
            "it lacks {} files that had changed when they were to be sent to it, such as {}",
            with_copies.sum::<usize>(),
            name.unwrap_or_default().display()
        );
        let reason = (self.options.net.wording)(&escaped(&reason));
        self.over(at, State::Failed, Some(reason.clone()));
        let event = self.admission.part_with(at, exit::SOURCE_CHANGED, reason);
        (self.tell)(event);
    }

    /// The failures of files that could not be read again for the receivers that still lacked a
    /// part of them, and of the copies of these files. The other receivers have them.
    pub(super) fn failed_late(&self) -> Vec<FileFailure> {
        let late = self.lost_files.iter();
        let late = late.filter(|(file, _)| !self.failed_files.contains(file));
        late.flat_map(|(file, reason)| {
            let lack = "receivers that still lacked a part of it do not have it";
            self.failures(*file, &format!("{reason}; {lack}"))
        })
        .collect()
    }

    /// The proof that shows that a receiver has all files that it could get.
    pub(super) fn right_proof(&mut self, at: usize) -> blake3::Hash {
        let member = &self.admission.members[at];
        let secret_without = |failed: &BTreeSet<u32>| self.set.secret(failed);
        match member.lost.is_empty() {
            true => {
                let whole = || secret_without(&self.failed_files);
                self.secret.get_or_insert_with(whole).proof(member.node.0)
            }
            false => secret_without(&(&member.lost | &self.failed_files)).proof(member.node.0),
        }
    }

    /// Gives up the receivers that lack a pack which cannot be read again. One that has not said
    /// yet what it has may get the pack from a receiver that serves.
    fn cannot_send_again(&mut self, number: u32, reason: &str) {
        for at in 0..self.admission.members.len() {
            let member = &self.admission.members[at];
            if member.in_group() && member.has_said && member.lacks.contains(number) {
                let reason = format!("what it has missed cannot be sent any more: {reason}");
                self.fail(at, State::Failed, exit::SOURCE_CHANGED, reason);
            }
        }
    }

    /// Whether members that lack nothing of the stream are about to have all of it. Then what
    /// others lack comes a little later, and not to these.
    fn awaits_served(&self) -> bool {
        let ended = self.streamed.map(|streamed| streamed.at);
        let members = || self.admission.members.iter().filter(|m| m.in_group());
        ended.is_some_and(|at| at.elapsed() < AWAITS_SERVED)
            && members().any(|m| m.is_served() && m.complete.is_none())
    }

    /// Removes the members from the group that have everything, so that those that still lack
    /// something need not wait for their words, and what is sent again does not come to them.
    fn release_served(&mut self) {
        for at in 0..self.admission.members.len() {
            let member = &mut self.admission.members[at];
            if !member.in_group() || !member.is_served() || member.complete.is_none() {
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
