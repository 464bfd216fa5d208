//! A sender's transfer: from the start to the last receiver's result.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast_proto::{Command, Event, NodeId, OpId, PathState};

use super::admission::Admission;
use super::admission::late::{HEARD, Heard};
use super::announced::AnnouncedPacks;
use super::catch_up::CatchUp;
use super::failed_files::FailedFiles;
use super::member_comparing::{ComparingPhase, MemberComparing};
use super::offers::Offers;
use super::plan::Plan;
use super::rate_share::TransferShare;
use super::receiver_table::{Member, Place, Stage, path_name};
use super::slow::OthersDone;
use super::waits::{Wait, Work};
use crate::bootstrap;
use crate::bootstrap::message::{ToReceiver, ToSender};
use crate::config::{ReachRule, SendOptions};
use crate::error::{Error, exit};
use crate::object::{Object, PackIndex, Packer, Secret, SourceSet};
use crate::setting::DATAGRAM;
use crate::text::escaped;
use crate::transfer::events::{Part, SendEvent, State};
use crate::transfer::kept_packs::Unbroadcast;
use crate::transfer::{ALL, SendDriver, TICK, check, notices, rest};
use crate::waker::Waker;

/// How long the sender tries multicast before a receiver counts as not reached by it. The sender
/// tries unicast at least as long.
const PROVE: Duration = Duration::from_secs(1);

/// Phase of the sender.
pub(super) enum Phase {
    /// Receivers join and post, since this time.
    Joining(Instant),
    /// Probes find out how receivers are reached, since this time. `None` once the sender has told
    /// which receivers answer no probe.
    Proving(Option<Instant>),
    /// The sender announces and broadcasts packs.
    Packs,
    /// All packs have been announced.
    Ended(EndOfStream),
}

/// The end of the stream of packs.
pub(super) struct EndOfStream {
    /// The hash of the hashes of all packs, in hexadecimal digits.
    pub(super) root: String,
    /// Bytes of all packs, and of what receivers copy.
    pub(super) total: u64,
    /// When it was, and how long the stream took.
    pub(super) done: OthersDone,
}

/// A sender, once the transfer has started.
pub struct SenderSession<'a> {
    pub(super) admission: Admission<'a>,
    pub(super) driver: SendDriver,
    pub(super) set: Arc<SourceSet>,
    pub(super) index: Arc<PackIndex>,
    pub(super) packer: Packer,
    pub(super) plan: Plan,
    pub(super) options: &'a SendOptions,
    /// The transfer's share of a rate that it shares with others.
    pub(super) share: Option<TransferShare>,
    pub(super) tell: &'a mut dyn FnMut(SendEvent),
    pub(super) phase: Phase,
    /// Operations whose packs the driver has.
    pub(super) under_way: Vec<OpId>,
    /// Bytes of the packs that the driver has.
    pub(super) held: u64,
    /// How far comparing is.
    pub(super) comparison: ComparingPhase,
    /// Operations that broadcast the header of a pack alone, and the numbers of these packs.
    pub(super) headers: Vec<(OpId, u32)>,
    /// Packs that members of the group kept from an earlier run.
    pub(super) unbroadcast: Unbroadcast,
    /// Whether all packs have been read.
    pub(super) is_read: bool,
    /// Packs that have been announced.
    pub(super) announced: AnnouncedPacks,
    /// Packs that are sent again.
    pub(super) catch_up: CatchUp,
    /// Whether what is sent again goes by unicast.
    pub(super) by_unicast: bool,
    /// The receivers that serve others.
    pub(super) offers: Offers,
    /// Hashes the hashes of all packs.
    pub(super) hasher: blake3::Hasher,
    /// Files that cannot be sent.
    pub(super) failed: FailedFiles,
    /// What the sender checks a receiver's proof with that it has the files.
    pub(super) secret: Option<Secret>,
    /// Most receivers that caught up at once after the stream.
    pub(super) most_catching_up: u32,
    /// Whether the core has been told something since the last step.
    pub(super) fresh: bool,
    ticked: Option<Instant>,
    pub(super) last: f64,
}

impl<'a> SenderSession<'a> {
    /// Starts the transfer and tells the receivers.
    pub fn new(
        mut admission: Admission<'a>,
        driver: SendDriver,
        packer: Packer,
        index: Arc<PackIndex>,
        plan: Plan,
        waker: Waker,
        tell: &'a mut dyn FnMut(SendEvent),
    ) -> SenderSession<'a> {
        let now = admission.start(&plan, tell);
        let options = admission.options;
        let comparison = match plan.start.compares.is_some() {
            true => {
                let members = admission.receivers.iter_mut();
                members.for_each(|m| m.comparing = Some(MemberComparing::default()));
                ComparingPhase::Pages
            }
            false => ComparingPhase::None,
        };
        SenderSession {
            driver,
            packer,
            comparison,
            headers: Vec::new(),
            unbroadcast: Unbroadcast::default(),
            is_read: false,
            failed: FailedFiles::new(admission.set.clone()),
            set: admission.set.clone(),
            admission,
            announced: AnnouncedPacks::new(),
            catch_up: CatchUp::new(index.clone(), waker),
            by_unicast: false,
            offers: Offers::default(),
            index,
            plan,
            options,
            share: options
                .shared_rate
                .as_ref()
                .map(|rate| TransferShare::new(rate.join())),
            tell,
            phase: Phase::Joining(now),
            under_way: Vec::new(),
            held: 0,
            hasher: blake3::Hasher::new(),
            secret: None,
            most_catching_up: 0,
            fresh: true,
            ticked: None,
            last: 0.0,
        }
    }

    /// Runs until the transfer is over for every receiver.
    pub fn run(&mut self) -> Result<(), Error> {
        self.admission.admit_unprepared(&self.plan, self.tell);
        while self.admission.receivers.active().next().is_some() {
            let now = self.admission.clock.time();
            self.fresh = false;
            let step = self.driver.step(now);
            let step = step.map_err(|e| Error::io("sending and receiving", e))?;
            while let Some(event) = self.driver.event() {
                self.noticed(event)?;
            }
            self.under_way.retain(|op| match self.driver.take(*op) {
                Some(pack) => {
                    self.held -= pack.len();
                    self.packer.give_back(pack.into_bytes());
                    false
                }
                None => true,
            });
            self.note_delivered_headers();
            for heard in 0.. {
                if heard == HEARD {
                    self.fresh = true; // the data go on; the other messages follow
                    break;
                }
                let Some(event) = self.admission.rendezvous.event() else {
                    break;
                };
                self.heard(event)?;
            }
            check(&self.options.interrupt)?;
            self.advance()?;
            self.tick();
            self.take_share();
            if !self.fresh {
                rest(&mut self.driver, step.wake, now)?;
            }
        }
        self.count_receivers();
        self.progress();
        Ok(())
    }

    /// Tells the receivers that are still there that the transfer has failed.
    pub fn abort(&mut self, error: &Error) {
        self.count_receivers();
        let seconds = self.admission.clock.seconds();
        self.admission.abort(error, seconds);
    }

    pub(super) fn command(&mut self, command: Command) {
        let refused = self.driver.command(self.admission.clock.time(), command);
        debug_assert!(refused.is_ok(), "{refused:?}");
        self.fresh = true;
    }

    /// The end of the stream, once all packs have been announced.
    pub(super) fn ended(&self) -> Option<&EndOfStream> {
        match &self.phase {
            Phase::Ended(stream) => Some(stream),
            _ => None,
        }
    }

    /// Goes on to the next phase if it is time to.
    fn advance(&mut self) -> Result<(), Error> {
        match self.phase {
            Phase::Joining(_) => {
                let joining = |m: &Member| m.part == Part::Whole && m.stage == Stage::Joining;
                if !self.admission.receivers.iter().any(joining) {
                    self.phase = Phase::Proving(Some(self.admission.clock.now()));
                    let multicast = match self.options.reach {
                        ReachRule::Auto => PROVE,
                        ReachRule::Unicast => Duration::ZERO,
                    };
                    // A receiver that does not answer may be stopped, and is then only slow.
                    self.command(Command::Prove {
                        group: ALL,
                        multicast,
                        unicast: self.options.patience.max(PROVE),
                    });
                }
            }
            // `Event::Proven` ends `Proving`; `Ended` is the last phase.
            Phase::Proving(_) => {}
            Phase::Packs => {
                self.admit_waiting();
                self.tell_peers_again();
                self.send_again()?;
                self.decide_what_is_compared();
                self.feed()?;
            }
            Phase::Ended(_) => {
                self.admit_waiting();
                self.send_again()?;
            }
        }
        Ok(())
    }

    /// Handles an event of the core.
    fn noticed(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Proven(_) => self.stream(),
            Event::Path {
                node, path_state, ..
            } => self.path(node, path_state),
            Event::Slow { node, .. } => {
                if let Some(at) = self.member(node) {
                    self.slow(at, Wait::placing(self.options.patience));
                }
            }
            Event::Outpaced { node, .. } => {
                if let Some(at) = self.member(node) {
                    self.outpaced(at);
                }
            }
            // Packs lie in memory. The receivers say whether all is well. No address is proven by
            // itself.
            Event::Complete(_)
            | Event::Failed(_)
            | Event::Arrived(_)
            | Event::Mismatch(_)
            | Event::AddressSilent { .. }
            | Event::AddressProven { .. } => {}
        }
        Ok(())
    }

    fn stream(&mut self) {
        self.phase = Phase::Packs;
        let nodes: Vec<NodeId> = self.admission.receivers.iter().map(|m| m.node).collect();
        nodes.into_iter().for_each(|node| self.may_outpace(node));
        let reached = |path_state| {
            let active = self.admission.receivers.active();
            active.filter(|m| m.path_state == path_state).count()
        };
        (self.tell)(SendEvent::Streaming {
            multicast: reached(PathState::Multicast),
            unicast: reached(PathState::Unicast),
        });
    }

    fn path(&mut self, node: NodeId, path_state: PathState) {
        let Some(at) = self.member(node) else {
            return;
        };
        let member = &mut self.admission.receivers[at];
        member.path_state = path_state;
        let receiver = member.name.clone();
        if path_state == PathState::Nothing {
            let udp = member.datagrams();
            let reason = format!(
                "it answered no datagram of {} bytes, by multicast or by unicast, for {:.0} s: \
                 check that it is running, that no firewall blocks UDP to {udp}, and that every \
                 link on the way carries such packets (else choose smaller ones with {DATAGRAM})",
                self.plan.start.payload_size + self.plan.overhead,
                self.options.patience.max(PROVE).as_secs_f64()
            );
            return self.fail(at, State::Dropped, exit::PEER_LOST, reason);
        }
        if self.admission.receivers.len() == 1 {
            return; // the only receiver: multicast was not tried
        }
        (self.tell)(SendEvent::Path {
            receiver,
            reach: path_name(path_state),
        });
    }

    pub(super) fn member(&self, node: NodeId) -> Option<usize> {
        let receivers = &self.admission.receivers;
        let at = receivers.by_node(node)?;
        receivers[at].active().then_some(at)
    }

    /// Handles an event of a control connection.
    fn heard(&mut self, event: bootstrap::Event) -> Result<(), Error> {
        let plan = &self.plan;
        match self.admission.hear(event, plan, self.tell)? {
            Some((at, Heard::Prepares(event))) => {
                let node = self.admission.receivers[at].node;
                self.admission.prepares(event, node, plan, self.tell)?;
            }
            Some((at, Heard::Lost(reason))) => {
                self.fail(at, State::Lost, exit::PEER_LOST, reason);
            }
            Some((at, Heard::Said(message))) => self.said(at, message),
            // No receiver has a reliable channel here.
            Some((_, Heard::Frame(_))) | None => {}
        }
        Ok(())
    }

    fn said(&mut self, at: usize, message: ToSender) {
        let total = self.ended().map(|stream| stream.total);
        let told = total.is_some();
        let total = total.unwrap_or(0);
        let now = self.admission.clock.now();
        let member = &mut self.admission.receivers[at];
        member.heard = now;
        match (message, &mut member.stage) {
            (ToSender::Keeps { packs }, Stage::Joining) if member.keeps.add(&packs) => {}
            (ToSender::Ready, Stage::Joining) => {
                member.stage = Stage::Receiving;
                member.keeps.said_all();
                if member.part == Part::Late {
                    member.place = Place::Waiting;
                }
                self.fresh = true;
            }
            (ToSender::Looked { candidates, more }, Stage::Receiving)
                if member
                    .comparing
                    .as_mut()
                    .is_some_and(|comparing| comparing.looked(&candidates, more)) =>
            {
                self.fresh = true;
            }
            (ToSender::Compared { number }, Stage::Receiving)
                if member
                    .comparing
                    .as_mut()
                    .is_some_and(|comparing| comparing.compared(number, now)) =>
            {
                self.fresh = true;
            }
            (ToSender::Serves { port, ticket }, Stage::Receiving)
                if self.offers.add(
                    member.peer,
                    (member.address, port, ticket),
                    member.part == Part::Whole,
                ) => {}
            (ToSender::Has { runs, more, told }, Stage::Receiving) => {
                if !self.has(at, &runs, (!more).then_some(told)) {
                    let reason = ToSender::Has { runs, more, told }.out_of_turn();
                    self.fail(at, State::Lost, exit::PEER_LOST, reason);
                }
            }
            (ToSender::Unanswered { node }, stage)
                if *stage != Stage::Preparing && !self.plan.start.reports_to_sender() =>
            {
                let peer = member.peer;
                if self.member(NodeId(node)).is_some() {
                    self.admission
                        .rendezvous
                        .say(peer, ToReceiver::Ask { node });
                }
            }
            (ToSender::Proven { packs }, Stage::Receiving | Stage::Storing(_))
                if self.set.is_stream()
                    && packs > member.proven
                    && packs <= self.announced.count() =>
            {
                (member.proven, member.unproven) = (packs, None);
                self.release_proven();
            }
            (ToSender::Working { done }, Stage::Receiving) if told => {
                member.stage = Stage::Storing(Work::begun(now, done.min(total)));
            }
            (ToSender::Working { done }, Stage::Storing(work)) if told => {
                work.said(now, done.min(total));
            }
            (ToSender::Received { statistics }, Stage::Receiving | Stage::Storing(_))
                if told && !member.hello.verifies() =>
            {
                member.statistics = statistics;
                self.complete(at, State::Received);
            }
            (ToSender::Verified { statistics, proof }, Stage::Receiving | Stage::Storing(_))
                if told && member.hello.verifies() =>
            {
                member.statistics = statistics;
                let right = self.right_proof(at);
                if blake3::Hash::from_hex(&proof).ok() != Some(right) {
                    let reason = "it says that it has the file, and its proof is wrong: what it \
                                  read back from its file is not what was sent";
                    return self.fail(at, State::Failed, exit::INTEGRITY, reason.into());
                }
                match self.admission.receivers[at].missed.unavailable.is_empty() {
                    true => self.complete(at, State::Verified),
                    false => self.complete_but_for(at),
                }
            }
            (ToSender::Failed { code, reason }, _) => {
                self.fail(at, State::Failed, code, reason);
            }
            (other, _) => self.fail(at, State::Lost, exit::PEER_LOST, other.out_of_turn()),
        }
    }

    /// The proof that shows that a receiver has all files that it could get.
    fn right_proof(&mut self, at: usize) -> blake3::Hash {
        let member = &self.admission.receivers[at];
        let lacks = &member.missed.unavailable;
        match lacks.is_empty() {
            true => {
                let whole = || self.set.secret(self.failed.for_all());
                self.secret.get_or_insert_with(whole).proof(member.node.0)
            }
            false => self
                .set
                .secret(&self.failed.with(lacks))
                .proof(member.node.0),
        }
    }

    /// Ends the transfer for a receiver that has proven all but files that it could not get.
    fn complete_but_for(&mut self, at: usize) {
        let lacks = &self.admission.receivers[at].missed.unavailable;
        let first = lacks.first().map(|file| self.set.path(*file));
        let name = first.as_deref().and_then(Path::file_name);
        let reason = format!(
            "it lacks {} files that had changed when they were to be sent to it, such as {}",
            self.failed.count(lacks),
            name.unwrap_or_default().display()
        );
        let reason = (self.options.net.wording)(&escaped(&reason));
        self.over(at, State::Failed, Some(reason.clone()));
        let event = self.admission.part_with(at, exit::SOURCE_CHANGED, reason);
        (self.tell)(event);
    }

    /// Ends the transfer for a receiver that has everything.
    fn complete(&mut self, at: usize, state: State) {
        let seconds = self.admission.clock.seconds();
        self.over(at, state, None);
        (self.tell)(self.admission.part(at, seconds));
    }

    pub(super) fn fail(&mut self, at: usize, state: State, code: u8, reason: String) {
        if !self.admission.receivers[at].active() {
            return;
        }
        let reason = (self.options.net.wording)(&reason);
        self.over(at, state, Some(reason.clone()));
        (self.tell)(self.admission.dismiss(at, code, reason));
    }

    /// Ends the transfer for a receiver: nothing waits for it any more.
    pub(super) fn over(&mut self, at: usize, state: State, reason: Option<String>) {
        self.count_receivers();
        let seconds = self.admission.clock.seconds();
        let member = &mut self.admission.receivers[at];
        if state.is_complete() {
            self.last = seconds;
            let sent = self.failed.len_for_all();
            member.placed = sent.unwrap_or(member.placed);
        }
        self.offers.remove(member.peer);
        member.stage = Stage::Over {
            state,
            reason,
            seconds,
        };
        let node = member.node;
        if !self.plan.start.reports_to_sender() {
            let gone = ToReceiver::Gone { node: node.0 };
            self.admission.say_active(&gone);
        }
        self.command(Command::PeerRemove(node));
        self.driver.transport().forget(node);
        if self.set.is_stream() {
            self.release_proven();
        }
    }

    /// Checks what changes only with time, once in a [`TICK`].
    fn tick(&mut self) {
        let now = self.admission.clock.now();
        if self.ticked.is_some_and(|t| now - t < TICK) {
            return;
        }
        let ticked = self.ticked.replace(now);
        self.admission.expire(now, self.tell);
        self.count_receivers();
        self.watch_proofs(now);
        self.look_for_slow(now);
        // No receiver is to blame for a slow step of the sender.
        let passed = ticked.map_or(TICK, |t| (now - t).min(10 * TICK));
        self.leave_far_behind(passed);
        self.leave_holding(passed);
        self.leave_trickling(now);
        self.look_at_share();
        self.tell_unanswered(now);
        let notices: Vec<String> = notices(&mut self.driver).collect();
        for text in notices {
            (self.tell)(SendEvent::Notice { text });
        }
        self.progress();
    }
}
