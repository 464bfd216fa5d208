//! The sender's side, from the start rule's yes to the last receiver's word.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast_proto::{Command, Event, NodeId, OpId, Reach, Time};

use super::events::{SendEvent, SendFailure, SendReport, State, Traffic};
use super::gather::{Gathering, LATE};
use super::plan::{Plan, open};
use super::roster::{Member, Stage, Wait, Work, reach_name};
use super::{ALL, FileDriver, ROOT, TICK, check, notices, rest};
use crate::bell::Bell;
use crate::bootstrap::message::{ToReceiver, ToSender};
use crate::bootstrap::{self, PeerKey};
use crate::config::{ReachRule, SendOptions, Slow};
use crate::error::{Error, exit, spoken};
use crate::net::{Clock, Net, random};
use crate::object::{Content, FileObject, Memory, Secret, Source};
use crate::text::shown;
use crate::transport::Transport;
use crate::transport::udp::WIRE_OVERHEAD;

/// How long multicast, and then unicast, is tried before a receiver counts as not reached by it.
const PROVE: Duration = Duration::from_secs(1);
/// Who answers no probe for so long is named, for all wait.
const TELL_UNANSWERED: Duration = Duration::from_secs(2);
/// A slow receiver that is silent for so many times the patience is gone for [`Slow::Alive`], and
/// so is one that has not joined by then, whatever it sends.
const SILENCE: u32 = 3;
/// And so is one that speaks and does not get on for so many times what [`Slow::Drop`] grants: who
/// only speaks would keep all others for ever.
const STANDSTILL: u32 = 6;

/// Sends `source` and returns when it is over for every receiver. An error means that it was over
/// for all of them at once; it comes with what had become of each.
pub fn send(
    source: &Path,
    options: &SendOptions,
    tell: &mut dyn FnMut(SendEvent),
) -> Result<SendReport, SendFailure> {
    options.net.check()?;
    options.start.check()?;
    let content = Content::open(source)?;
    let name = match source.file_name().and_then(|n| n.to_str()) {
        Some(name) => name.to_owned(),
        None => {
            let text = format!(
                "{}'s name is not UTF-8: it is offered as 'file'",
                shown(source)
            );
            tell(SendEvent::Notice { text });
            "file".to_owned()
        }
    };
    let session = random()?;
    let bell = Bell::new();
    let (c, b) = (content.clone(), bell.clone());
    let mut gathering = Gathering::open(c, name, session, options, b, tell)?;
    let result = gathering
        .gather(tell)
        .and_then(|()| open(&mut gathering, &content, session, options, &bell));
    let mut sending = match result {
        Ok((driver, plan)) => Sending::new(gathering, driver, content, plan, options, bell, tell),
        Err(error) => {
            gathering.abort(&error, 0.0);
            let report = Some(Box::new(gathering.report()));
            return Err(SendFailure { error, report });
        }
    };
    match sending.run() {
        Ok(()) => Ok(sending.report()),
        Err(error) => {
            sending.survey();
            let seconds = sending.clock.0.elapsed().as_secs_f64();
            sending.gathering.abort(&error, seconds);
            let report = Some(Box::new(sending.report()));
            Err(SendFailure { error, report })
        }
    }
}

/// Control messages that are heard in one step, so that no talk holds up the data.
const HEARD: usize = 256;

/// What the sender does now.
#[derive(PartialEq)]
enum Phase {
    /// Receivers join and post; since when.
    Joining(Instant),
    /// Probes find out how they are reached; since when, until it was told who answers none.
    Proving(Option<Instant>),
    /// The file flows; the hash list follows when it is complete.
    File,
    /// Both have been handed to the core.
    List,
}

struct Sending<'a> {
    gathering: Gathering<'a>,
    driver: FileDriver,
    content: Arc<Content>,
    plan: Plan,
    options: &'a SendOptions,
    bell: Bell,
    tell: &'a mut dyn FnMut(SendEvent),
    clock: Clock,
    phase: Phase,
    /// Operations whose objects the driver has.
    under_way: Vec<OpId>,
    root: Option<String>,
    /// What a receiver must know to be believed that it has the file.
    secret: Option<Secret>,
    /// Bytes of the file and its list together, once the list is there.
    total: Option<u64>,
    /// The core has been told something since the last step.
    fresh: bool,
    ticked: Option<Instant>,
    last: f64,
}

impl<'a> Sending<'a> {
    fn new(
        mut gathering: Gathering<'a>,
        driver: FileDriver,
        content: Arc<Content>,
        plan: Plan,
        options: &'a SendOptions,
        bell: Bell,
        tell: &'a mut dyn FnMut(SendEvent),
    ) -> Sending<'a> {
        tell(SendEvent::Starting {
            receivers: gathering.members.len(),
            group: plan.start.group,
            root: plan.start.root,
            interface: plan.interface.clone(),
            chunk: plan.start.chunk,
            window: plan.start.window,
        });
        let now = Instant::now();
        for member in &mut gathering.members {
            member.heard = now; // until now it had nothing to say
        }
        let start = ToReceiver::Start(plan.start.clone());
        gathering.say_active(&start);
        Sending {
            gathering,
            driver,
            content,
            plan,
            options,
            bell,
            tell,
            clock: Clock(now),
            phase: Phase::Joining(now),
            under_way: Vec::new(),
            root: None,
            secret: None,
            total: None,
            fresh: true,
            ticked: None,
            last: 0.0,
        }
    }

    fn run(&mut self) -> Result<(), Error> {
        while self.gathering.members.iter().any(|m| m.active()) {
            let now = self.clock.now();
            self.fresh = false;
            let step = self.driver.step(now);
            let step = step.map_err(|e| Error::io("sending and receiving", e))?;
            while let Some(event) = self.driver.event() {
                self.noticed(event)?;
            }
            // What is over is dropped: a source has a thread, and many blocks in memory.
            self.under_way.retain(|op| self.driver.take(*op).is_none());
            for heard in 0.. {
                if heard == HEARD {
                    self.fresh = true; // the data go on, and the rest is heard after them
                    break;
                }
                let Some(event) = self.gathering.rendezvous.event() else {
                    break;
                };
                self.heard(event);
            }
            check(&self.options.interrupt)?;
            if self.content.failure().is_some() {
                return Err(self.content.error());
            }
            self.advance(now)?;
            self.tick();
            if !self.fresh {
                rest(&mut self.driver, step.wake, now)?;
            }
        }
        self.progress();
        Ok(())
    }

    fn command(&mut self, command: Command) {
        let refused = self.driver.command(self.clock.now(), command);
        debug_assert!(refused.is_ok(), "{refused:?}");
        self.fresh = true;
    }

    /// Goes on to the next phase when the time has come.
    fn advance(&mut self, now: Time) -> Result<(), Error> {
        match self.phase {
            Phase::Joining(_) => {
                let joining = |s: &Stage| matches!(s, Stage::Joining);
                if !self.gathering.members.iter().any(|m| joining(&m.stage)) {
                    self.phase = Phase::Proving(Some(Instant::now()));
                    let multicast = match self.options.reach {
                        ReachRule::Auto => PROVE,
                        ReachRule::Unicast => Duration::ZERO,
                    };
                    // One that does not answer may be stopped, and is then only slow.
                    self.command(Command::Prove {
                        group: ALL,
                        multicast,
                        unicast: self.options.patience.max(PROVE),
                    });
                }
            }
            // `Event::Proven` ends it.
            Phase::Proving(_) | Phase::List => {}
            Phase::File => {
                if let Some(list) = self.content.list() {
                    // What the list proves must be one state of the file.
                    self.content.check_version().map_err(Error::SourceChanged)?;
                    self.phase = Phase::List;
                    let hash = blake3::hash(&list).to_hex().to_string();
                    let root = ToReceiver::Root {
                        hash: hash.clone(),
                        key: self.content.challenge().key(),
                    };
                    self.gathering.say_active(&root);
                    self.root = Some(hash);
                    self.total = Some(self.plan.len + list.len() as u64);
                    if !list.is_empty() {
                        self.bcast(now, FileObject::Memory(Memory::new(list)))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn bcast(&mut self, now: Time, object: FileObject) -> Result<(), Error> {
        self.fresh = true;
        match self.driver.bcast(now, ALL, object) {
            Ok(op) => {
                self.under_way.push(op);
                Ok(())
            }
            Err((refused, _)) => Err(Error::Usage(format!("this cannot be sent: {refused}"))),
        }
    }

    /// Something that the core has noticed.
    fn noticed(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Proven(_) => self.stream(),
            Event::Path { node, reach, .. } => self.path(node, reach),
            Event::Slow { node, .. } => {
                if let Some(at) = self.member(node) {
                    self.slow(at, Wait::placing(self.options.patience));
                }
            }
            // An object that cannot be read: nobody will have the file.
            Event::Failed(_) => return Err(self.content.error()),
            // Whether all is well is for the receivers to say.
            Event::Complete(_) | Event::Gathered(_) | Event::Mismatch(_) => {}
        }
        Ok(())
    }

    fn stream(&mut self) {
        self.phase = Phase::File;
        let reached = |reach| {
            let members = self.gathering.members.iter();
            members.filter(|m| m.active() && m.reach == reach).count()
        };
        (self.tell)(SendEvent::Streaming {
            multicast: reached(Reach::Multicast),
            unicast: reached(Reach::Unicast),
        });
        if self.plan.len > 0 {
            let (content, bell) = (self.content.clone(), self.bell.clone());
            let source = Source::new(content, self.plan.start.chunk, bell);
            // Refused only if it is too long, and then the sender's `GroupAdd` would be, too.
            if let Err(error) = self.bcast(self.clock.now(), FileObject::Source(source)) {
                for at in 0..self.gathering.members.len() {
                    self.fail(at, State::Failed, exit::USAGE, error.to_string());
                }
            }
        }
    }

    fn path(&mut self, node: NodeId, reach: Reach) {
        let Some(at) = self.member(node) else {
            return;
        };
        let member = &mut self.gathering.members[at];
        member.reach = reach;
        let receiver = member.name();
        if reach == Reach::Nothing {
            let udp = member.udp();
            let reason = format!(
                "it answered no datagram of {} bytes, by multicast or by unicast, for {:.0} s: \
                 check that it is running, that no firewall blocks UDP to {udp}, and that every \
                 link on the way carries such packets (else choose smaller ones with --datagram)",
                self.plan.start.chunk + self.plan.overhead,
                self.options.patience.max(PROVE).as_secs_f64()
            );
            return self.fail(at, State::Dropped, exit::PEER_LOST, reason);
        }
        if self.plan.start.members.len() == 2 {
            return; // the only receiver: multicast was not tried
        }
        (self.tell)(SendEvent::Path {
            receiver,
            reach: reach_name(reach),
        });
    }

    /// With [`Slow::Alive`], a slow receiver gives up its seat when nothing was heard of it for
    /// long, and when it did not get on for longer; `waits`: how long the sender has waited for it.
    fn evict(&mut self, at: usize, now: Instant, waits: impl Iterator<Item = Wait>) {
        let member = &self.gathering.members[at];
        if self.options.slow != Slow::Alive || !member.active() || !member.slow {
            return;
        }
        let limit = self.options.patience.saturating_mul(SILENCE);
        let reason = if now.saturating_duration_since(member.heard) > limit {
            format!(
                "nothing was heard of it for {} (three times --patience; --slow wait would wait \
                 for it)",
                spoken(limit)
            )
        } else {
            let times = match member.stage {
                Stage::Joining => SILENCE,
                _ => STANDSTILL,
            };
            let mut waits = waits.filter(|w| w.exceeds(times));
            let Some(Wait { what, limit, .. }) = waits.next() else {
                return;
            };
            format!(
                "too slow: {what} for {}, {times} times as long as it may (--slow wait would wait \
                 for it)",
                spoken(limit.saturating_mul(times))
            )
        };
        self.fail(at, State::Dropped, exit::REFUSED, reason);
    }

    /// A receiver keeps the others waiting.
    fn slow(&mut self, at: usize, wait: Wait) {
        let member = &mut self.gathering.members[at];
        if !member.active() || member.slow {
            return;
        }
        match self.options.slow {
            Slow::Wait | Slow::Alive => {
                member.slow = true;
                let receiver = member.name();
                (self.tell)(SendEvent::Slow { receiver });
            }
            Slow::Drop => {
                let (what, limit) = (wait.what, spoken(wait.limit));
                let reason =
                    format!("too slow: {what} for {limit} (--patience) and --slow is drop");
                self.fail(at, State::Dropped, exit::REFUSED, reason);
            }
        }
    }

    fn member(&self, node: NodeId) -> Option<usize> {
        let members = &self.gathering.members;
        let at = members.binary_search_by_key(&node, |m| m.node).ok()?;
        members[at].active().then_some(at)
    }

    fn peer(&self, peer: PeerKey) -> Option<usize> {
        let members = &self.gathering.members;
        members.iter().position(|m| m.peer == peer && m.active())
    }

    /// Something that came over a control connection.
    fn heard(&mut self, event: bootstrap::Event) {
        match event {
            bootstrap::Event::Hello {
                peer,
                address,
                local,
                hello,
            } => {
                let late = Member::new(peer, ROOT, address, local, hello);
                self.gathering.refuse(late, LATE.into(), self.tell);
            }
            bootstrap::Event::Strangers(n) => self.gathering.strangers = n,
            bootstrap::Event::Lost { peer, reason } => {
                if let Some(at) = self.peer(peer) {
                    self.fail(at, State::Lost, exit::PEER_LOST, reason);
                }
            }
            bootstrap::Event::Said { peer, message } => {
                if let Some(at) = self.peer(peer) {
                    self.said(at, message);
                }
            }
        }
    }

    fn said(&mut self, at: usize, message: ToSender) {
        let told = self.root.is_some();
        let total = self.total.unwrap_or(0); // there is one when it is told
        let member = &mut self.gathering.members[at];
        member.heard = Instant::now();
        match (message, &mut member.stage) {
            (ToSender::Ready, Stage::Joining) => member.stage = Stage::Receiving,
            (ToSender::Unanswered { node }, stage)
                if *stage != Stage::Preparing && !self.plan.start.addresses.is_empty() =>
            {
                let peer = member.peer;
                if self.member(NodeId(node)).is_some() {
                    self.gathering
                        .rendezvous
                        .say(peer, ToReceiver::Ask { node });
                }
            }
            (ToSender::Working { done }, Stage::Receiving) if told => {
                member.stage = Stage::Storing(Work::begun(Instant::now(), done.min(total)));
            }
            (ToSender::Working { done }, Stage::Storing(work)) if told => {
                work.said(Instant::now(), done.min(total));
            }
            (ToSender::Verified { tally, proof }, Stage::Receiving | Stage::Storing(_)) if told => {
                member.tally = tally;
                let secret = self.secret.get_or_insert_with(|| self.content.secret());
                let right = secret.proof(member.node.0);
                if blake3::Hash::from_hex(&proof).ok() != Some(right) {
                    let reason = "it says that it has the file, and its proof is wrong: what it \
                                  read back from its file is not what was sent";
                    return self.fail(at, State::Failed, exit::INTEGRITY, reason.into());
                }
                let seconds = self.clock.0.elapsed().as_secs_f64();
                self.over(at, State::Verified, None);
                let member = &self.gathering.members[at];
                self.gathering.rendezvous.say(member.peer, ToReceiver::Bye);
                self.gathering.rendezvous.close(member.peer);
                (self.tell)(SendEvent::Verified {
                    receiver: member.name(),
                    seconds,
                });
            }
            (ToSender::Failed { code, reason }, _) => {
                self.fail(at, State::Failed, code, reason);
            }
            (other, _) => self.fail(at, State::Lost, exit::PEER_LOST, other.out_of_turn()),
        }
    }

    fn fail(&mut self, at: usize, state: State, code: u8, reason: String) {
        if !self.gathering.members[at].active() {
            return;
        }
        self.over(at, state, Some(reason.clone()));
        let member = &self.gathering.members[at];
        let removed = ToReceiver::Removed {
            reason: reason.clone(),
        };
        self.gathering.rendezvous.say(member.peer, removed);
        self.gathering.rendezvous.close(member.peer);
        (self.tell)(SendEvent::Failed {
            receiver: member.name(),
            code,
            reason,
        });
    }

    /// It is over for a receiver: nobody waits for it any more.
    fn over(&mut self, at: usize, state: State, reason: Option<String>) {
        self.survey();
        let seconds = self.clock.0.elapsed().as_secs_f64();
        if state == State::Verified {
            self.last = seconds;
        }
        let member = &mut self.gathering.members[at];
        if state == State::Verified {
            member.placed = self.plan.len;
        }
        member.stage = Stage::Over {
            state,
            reason,
            seconds,
        };
        let node = member.node;
        if !self.plan.start.addresses.is_empty() {
            let gone = ToReceiver::Gone { node: node.0 };
            self.gathering.say_active(&gone);
        }
        self.command(Command::PeerRemove(node));
        self.driver.transport().forget(node);
    }

    /// What only time changes.
    fn tick(&mut self) {
        let now = Instant::now();
        if self.ticked.is_some_and(|t| now - t < TICK) {
            return;
        }
        self.ticked = Some(now);
        self.survey();
        let joining = match self.phase {
            Phase::Joining(since) => Some(since),
            _ => None,
        };
        for at in 0..self.gathering.members.len() {
            let member = &self.gathering.members[at];
            let mut waits = member.waits(now, self.options.patience, joining, self.total);
            let all = waits.clone();
            if let Some(wait) = waits.find(|w| w.exceeds(1)) {
                self.slow(at, wait);
            }
            self.evict(at, now, all);
        }
        self.tell_unanswered(now);
        let notices: Vec<String> = notices(&mut self.driver).collect();
        for text in notices {
            (self.tell)(SendEvent::Notice { text });
        }
        self.progress();
    }

    /// All wait for receivers that answer no probe: says so, once.
    fn tell_unanswered(&mut self, now: Instant) {
        let late = |since: &mut Instant| now.duration_since(*since) > TELL_UNANSWERED;
        let Phase::Proving(since) = &mut self.phase else {
            return;
        };
        if since.take_if(late).is_none() {
            return;
        }
        let silent: Vec<NodeId> = self.driver.node().unanswered(ALL).collect();
        let members = silent.into_iter().filter_map(|node| self.member(node));
        let members = members.map(|at| self.gathering.members[at].name());
        match &members.collect::<Vec<_>>()[..] {
            [] => {}
            [first, rest @ ..] => {
                let who = match rest.len() {
                    0 => format!("{first}, which has"),
                    n => format!("{first} and {n} more, which have"),
                };
                let text = format!("waiting for {who} answered no datagram yet (--patience)");
                (self.tell)(SendEvent::Notice { text });
            }
        }
    }

    /// Asks the core how far everybody is.
    fn survey(&mut self) {
        if self.total == Some(0) {
            // Nothing is broadcast, and the core knows of nobody.
            for member in &mut self.gathering.members {
                member.complete.get_or_insert_with(Instant::now);
            }
        }
        for status in self.driver.node().members(ALL) {
            let members = &mut self.gathering.members;
            if let Ok(at) = members.binary_search_by_key(&status.node, |m| m.node) {
                let m = &mut members[at];
                m.repairs = status.repairs;
                if let Some(heard) = status.heard {
                    let heard = self.clock.0 + Duration::from_nanos(heard.0);
                    m.heard = m.heard.max(heard);
                }
                if !status.gone {
                    m.placed = status.placed.min(self.plan.len);
                    m.waited = status.waited;
                    if self.total.is_some_and(|total| status.placed >= total) {
                        m.complete.get_or_insert_with(Instant::now);
                    }
                }
            }
        }
    }

    fn progress(&mut self) {
        self.survey();
        let members = &self.gathering.members;
        let mut placed: Vec<u64> = members
            .iter()
            .filter(|m| m.active() || m.verified())
            .map(|m| m.placed)
            .collect();
        placed.sort_unstable();
        let counters = self.driver.node().counters();
        let at = |i: usize| placed.get(i).copied().unwrap_or(0);
        (self.tell)(SendEvent::Progress {
            seconds: self.clock.0.elapsed().as_secs_f64(),
            slowest: at(0),
            median: at(placed.len() / 2),
            fastest: at(placed.len().saturating_sub(1)),
            len: self.plan.len,
            rate: self.driver.node().rate(ALL),
            repairs: counters.repairs_multicast + counters.repairs_unicast,
            verified: members.iter().filter(|m| m.verified()).count(),
            failed: members
                .iter()
                .filter(|m| !m.active() && !m.verified())
                .count(),
        });
    }

    fn report(&mut self) -> SendReport {
        let core = self.driver.node().counters();
        let driver = self.driver.counters();
        let net: &mut Net = self.driver.transport();
        let (udp, faults) = (net.inner().counters(), net.counters());
        let datagrams = udp.datagrams_sent + faults.send_lost;
        let extra = 20 * u64::from(self.plan.start.root.is_ipv6());
        // What was dropped on purpose would have been on the wire; it was nearly all data.
        let dropped = faults.send_lost * u64::from(self.plan.start.chunk);
        let changed = self.content.check_version().err();
        SendReport {
            root: self.root.take(),
            changed,
            seconds: self.last,
            traffic: Traffic {
                data: core.data,
                data_unicast: core.data_unicast,
                repairs_multicast: core.repairs_multicast,
                repairs_coded: core.repairs_coded,
                repairs_unicast: core.repairs_unicast,
                feedback: core.feedback_received,
                datagrams,
                wire_bytes: udp.bytes_sent + dropped + datagrams * (WIRE_OVERHEAD + extra),
                foreign: core.foreign + driver.malformed,
                corrupt: driver.corrupt,
                injected: faults.send_lost + faults.receive_lost,
            },
            ..self.gathering.report()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::object::testing::scratch;
    use crate::transport::udp::Interface;

    #[test]
    fn a_source_that_fails_without_a_word_ends_the_transfer() {
        let dir = scratch();
        let path = dir.join("f");
        std::fs::write(&path, "bytes").unwrap();
        let mut options = SendOptions {
            announce: false,
            port: 0,
            ..SendOptions::default()
        };
        options.net.interface = Interface::Address(Ipv4Addr::LOCALHOST.into());
        let content = Content::open(&path).unwrap();
        let (bell, mut tell) = (Bell::new(), |_| ());
        let (c, b) = (content.clone(), bell.clone());
        let mut gathering = Gathering::open(c, "f".into(), 7, &options, b, &mut tell).unwrap();
        let (driver, plan) = open(&mut gathering, &content, 7, &options, &bell).unwrap();
        let mut sending = Sending::new(gathering, driver, content, plan, &options, bell, &mut tell);
        // The content knows of no failure: it is the reader that has ended.
        let end = sending.noticed(Event::Failed(OpId(0)));
        assert!(matches!(end, Err(Error::Io { .. })), "{end:?}");
        drop(sending);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
