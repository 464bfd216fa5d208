//! A sender by P3's protocol, from the start to the last receiver's result (spec 7.8).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabricast_proto::{NodeId, PathState, limits};

use super::admission::Admission;
use super::admission::late::{HEARD, Heard};
use super::admission::objections::LATE;
use super::failed_files::FailedFiles;
use super::plan::{Plan, group_address};
use super::receiver_table::{Member, Stage};
use super::telling::Sent;
use super::waits::storing_time;
use crate::bootstrap::message::{Start, ToReceiver, ToSender};
use crate::bootstrap::{self, PeerKey};
use crate::config::{FILES_AT_ONCE_MAX, Late, ReachRule, SendOptions};
use crate::error::{Error, exit};
use crate::ibrmp::{self, FileSender, Noticed, OVERHEAD, SenderPlan, SentFiles, over_before};
use crate::object::SourceSet;
use crate::setting::{FILES_AT_ONCE, PATIENCE, REACH};
use crate::text::{ToldPath, escaped, spoken};
use crate::transfer::events::{Part, SendEvent, SendReport, State, Traffic};
use crate::transfer::{TICK, check};
use crate::transport::Transport;

/// The least patience with a receiver that says nothing after the last file.
const PATIENCE_LAST: Duration = Duration::from_secs(60);

/// Whether this is the name of P3's protocol, which has no variants.
///
/// # Errors
/// The name has modifiers, or the set or another option does not fit the protocol.
pub fn is_chosen(options: &SendOptions, set: &SourceSet) -> Result<bool, Error> {
    if !ibrmp::is_meant(&options.scheme) {
        return Ok(false);
    }
    if let Some((_, modifiers)) = options.scheme.split_once('+') {
        return Err(Error::Usage(format!(
            "ibrmp is P3's protocol for files, not a scheme that {modifiers} could change"
        )));
    }
    if options.reach == ReachRule::Unicast {
        return Err(Error::Usage(format!(
            "ibrmp multicasts each file, and unicast is for what gets lost: leave out {REACH}, or \
             choose another scheme"
        )));
    }
    if options.shared_rate.is_some() {
        return Err(Error::Usage(
            "transfers by ibrmp share no rate with others: give each its own, or choose another \
             scheme"
                .into(),
        ));
    }
    if !(1..=FILES_AT_ONCE_MAX).contains(&options.files_at_once) {
        return Err(Error::Usage(format!(
            "{} files cannot be open at once: choose 1 to {FILES_AT_ONCE_MAX} ({FILES_AT_ONCE})",
            options.files_at_once
        )));
    }
    ibrmp::files(set).map(|_| true)
}

/// A sender, once the transfer has started.
pub struct IbrmpSender<'a> {
    admission: Admission<'a>,
    files: FileSender,
    set: Arc<SourceSet>,
    plan: Plan,
    options: &'a SendOptions,
    tell: &'a mut dyn FnMut(SendEvent),
    /// Whether the files are being multicast: every receiver of the start is ready, or too slow.
    is_sending: bool,
    /// When the receivers were told that there are no more files.
    over: Option<Instant>,
    failed: FailedFiles,
    /// What a receiver lacks, in words, for its line of the table.
    lacks: BTreeMap<PeerKey, String>,
    ticked: Option<Instant>,
    last: f64,
}

impl<'a> IbrmpSender<'a> {
    /// Starts the transfer with the receivers that are there. `opened`: see [`open`].
    pub fn new(
        mut admission: Admission<'a>,
        opened: (FileSender, Plan),
        set: Arc<SourceSet>,
        options: &'a SendOptions,
        tell: &'a mut dyn FnMut(SendEvent),
    ) -> IbrmpSender<'a> {
        let (mut files, plan) = opened;
        let now = admission.start(&plan, tell);
        for member in admission.receivers.iter_mut() {
            member.since = now;
            files.join(member.peer, member.node, &admission.rendezvous);
        }
        IbrmpSender {
            admission,
            files,
            failed: FailedFiles::new(set.clone()),
            set,
            plan,
            options,
            tell,
            is_sending: false,
            over: None,
            lacks: BTreeMap::new(),
            ticked: None,
            last: 0.0,
        }
    }

    /// Runs until the transfer is over for every receiver.
    pub fn run(&mut self) -> Result<(), Error> {
        self.admission.admit_unprepared(&self.plan, self.tell);
        while self.admission.receivers.taking_part().next().is_some() {
            check(&self.options.interrupt)?;
            let now = self.admission.clock.time();
            let rendezvous = &self.admission.rendezvous;
            let step = self.files.step(now, self.is_sending, rendezvous)?;
            while let Some(noticed) = self.files.noticed() {
                self.noticed(noticed)?;
            }
            let mut heard = 0;
            while heard < HEARD
                && let Some(event) = self.admission.rendezvous.event()
            {
                self.heard(event)?;
                heard += 1;
            }
            self.advance();
            self.tick();
            if heard == 0 && !step.is_busy {
                let pause = step.wake.map_or(TICK, |at| at.since(now).min(TICK));
                self.files.wait(pause)?;
            }
        }
        self.refuse_unprepared();
        self.progress();
        Ok(())
    }

    /// Tells the receivers that are still there that the transfer has failed.
    pub fn abort(&mut self, error: &Error) {
        let seconds = self.admission.clock.seconds();
        self.admission.abort(error, seconds);
    }

    /// Begins to send when the receivers of the start are ready, and ends when all files are
    /// closed.
    fn advance(&mut self) {
        let joins = |m: &Member| m.part == Part::Whole && m.stage == Stage::Joining;
        if !self.is_sending {
            self.is_sending = !self.admission.receivers.iter().any(joins);
        }
        if self.over.is_none() && self.files.is_over() {
            let now = self.admission.clock.now();
            self.over = Some(now);
            for member in self.admission.receivers.iter_mut() {
                if matches!(member.stage, Stage::Joining | Stage::Receiving) {
                    member.knows_end = true;
                    member.heard = now;
                    let last = ToReceiver::Last(self.files.last_words(member.peer));
                    self.admission.rendezvous.say(member.peer, last);
                }
            }
        }
    }

    fn noticed(&mut self, noticed: Noticed) -> Result<(), Error> {
        match noticed {
            Noticed::FileFailed(file, reason) => {
                for failure in self.failed.add(file, &reason)? {
                    (self.tell)(SendEvent::FileFailed(failure));
                }
            }
            Noticed::Expired(file, lacking) => {
                let path = self.set.path(file);
                // A receiver is told this, too, so it does not say where the file lies.
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let words = format!(
                    "{} was closed before it had all of it ({} after the end of its multicast)",
                    escaped(&name),
                    spoken(self.options.file_timeout)
                );
                let path = ToldPath::from(&*path);
                let receivers = lacking.len();
                (self.tell)(SendEvent::Expired { path, receivers });
                for peer in lacking {
                    self.lacks.entry(peer).or_insert_with(|| words.clone());
                    self.drop_silent(peer, &words);
                }
            }
            Noticed::Broken(peer, why) => {
                if let Some(at) = self.admission.receivers.by_peer(peer) {
                    self.fail(at, State::Lost, exit::PEER_LOST, why.into());
                }
            }
        }
        Ok(())
    }

    /// Drops a receiver that lacks a file which has expired now, if it has said nothing since the
    /// multicast of the file ended, and for the patience. Otherwise each later file would wait for
    /// it as long.
    fn drop_silent(&mut self, peer: PeerKey, words: &str) {
        let limit = self.options.file_timeout.max(self.options.patience);
        if let Some(at) = self.admission.receivers.by_peer(peer)
            && self.admission.clock.now() >= self.admission.receivers[at].heard + limit
        {
            let reason = format!("it said nothing for {}, and {words}", spoken(limit));
            self.fail(at, State::Dropped, exit::REFUSED, reason);
        }
    }

    /// Handles an event of a control connection.
    fn heard(&mut self, event: bootstrap::Event) -> Result<(), Error> {
        self.plan.admits_late &= self.files.has_more();
        let plan = &self.plan;
        match self.admission.hear(event, plan, self.tell)? {
            Some((at, Heard::Prepares(event))) => self.prepares(event, at)?,
            Some((at, Heard::Lost(reason))) => {
                self.fail(at, State::Lost, exit::PEER_LOST, reason);
            }
            Some((at, Heard::Frame(frame))) => {
                let now = self.admission.clock.now();
                let member = &mut self.admission.receivers[at];
                member.heard = now;
                let peer = member.peer;
                self.files.frame(peer, &frame, &self.admission.rendezvous);
            }
            Some((at, Heard::Said(message))) => self.said(at, message),
            None => {}
        }
        Ok(())
    }

    /// Handles an event of a receiver that is not prepared. Once it is, it takes part, if there are
    /// more files.
    fn prepares(&mut self, event: bootstrap::Event, at: usize) -> Result<(), Error> {
        if !self.files.has_more() {
            let late = self.admission.receivers.remove(at);
            self.admission.refuse(late, LATE.into(), self.tell);
            return Ok(());
        }
        let (node, peer) = {
            let member = &self.admission.receivers[at];
            (member.node, member.peer)
        };
        self.admission
            .prepares(event, node, &self.plan, self.tell)?;
        let mut members = self.admission.receivers.iter();
        if members.any(|m| m.node == node && m.stage == Stage::Joining) {
            self.files.join(peer, node, &self.admission.rendezvous);
        }
        Ok(())
    }

    fn said(&mut self, at: usize, message: ToSender) {
        let now = self.admission.clock.now();
        let member = &mut self.admission.receivers[at];
        member.heard = now;
        let peer = member.peer;
        match (message, &member.stage) {
            (ToSender::Ready, Stage::Joining) => member.stage = Stage::Receiving,
            // It has been heard, which is all that this is for.
            (ToSender::Working { .. }, Stage::Receiving) => {}
            (ToSender::Stored { file, proof }, Stage::Receiving) => {
                if !self.files.stored(peer, file, &proof) {
                    let reason = "it says that it has a file, and its proof is wrong: what it read \
                                  back is not what was sent";
                    self.fail(at, State::Failed, exit::INTEGRITY, reason.into());
                }
            }
            (ToSender::Unstored { file, reason, .. }, Stage::Receiving) => {
                if self.files.unstored(peer, file) {
                    self.lacks.entry(peer).or_insert(reason);
                }
            }
            (ToSender::Finished { statistics }, Stage::Receiving) if member.knows_end => {
                member.statistics = statistics;
                self.finished(at);
            }
            (ToSender::Failed { code, reason }, _) => {
                self.fail(at, State::Failed, code, reason);
            }
            (other, _) => self.fail(at, State::Lost, exit::PEER_LOST, other.out_of_turn()),
        }
    }

    /// A receiver has said of every file what has become of it.
    fn finished(&mut self, at: usize) {
        let peer = self.admission.receivers[at].peer;
        let reason = match self.files.has_all(peer) {
            (true, true) => None,
            (true, false) => Some(self.lacks.remove(&peer).unwrap_or_default()),
            (false, _) => Some("it has not said what has become of every file".into()),
        };
        if let Some(reason) = reason {
            return self.fail(at, State::Failed, exit::PARTIAL, reason);
        }
        let before = self.files.before(peer);
        if before > 0 {
            let reason = over_before("it", before);
            self.over(at, State::Failed, Some(reason.clone()));
            let event = self.admission.part_with(at, exit::PARTIAL, reason);
            return (self.tell)(event);
        }
        self.over(at, State::Verified, None);
        (self.tell)(self.admission.part(at, self.last));
    }

    fn fail(&mut self, at: usize, state: State, code: u8, reason: String) {
        let reason = (self.options.net.wording)(&reason);
        self.over(at, state, Some(reason.clone()));
        (self.tell)(self.admission.dismiss(at, code, reason));
    }

    /// Ends the transfer for a receiver: nothing waits for it any more.
    fn over(&mut self, at: usize, state: State, reason: Option<String>) {
        let seconds = self.admission.clock.seconds();
        if state == State::Verified {
            self.last = seconds;
        }
        let sent = self.failed.len_for_all();
        let member = &mut self.admission.receivers[at];
        member.placed = match state {
            // Of a file that failed a part has been offered.
            State::Verified => self
                .files
                .offered(member.peer)
                .min(sent.unwrap_or(u64::MAX)),
            _ => self.files.placed(member.peer),
        };
        member.stage = Stage::Over {
            state,
            reason,
            seconds,
        };
        let peer = member.peer;
        self.files.leave(peer);
    }

    /// Refuses receivers that came while the last files ended.
    fn refuse_unprepared(&mut self) {
        let late = |m: &Member| m.active();
        let late: Vec<Member> = self.admission.receivers.extract(late);
        for member in late {
            self.admission.refuse(member, LATE.into(), self.tell);
        }
    }

    /// Checks what changes only with time, once in a [`TICK`].
    fn tick(&mut self) {
        let now = self.admission.clock.now();
        if self.ticked.is_some_and(|t| now - t < TICK) {
            return;
        }
        self.ticked = Some(now);
        self.admission.expire(now, self.tell);
        let patience = self.options.patience;
        for at in 0..self.admission.receivers.len() {
            let member = &self.admission.receivers[at];
            let silent = now.duration_since(member.heard);
            let mut waits = match member.stage {
                Stage::Joining => vec![(silent, patience, "it was not ready to receive")],
                Stage::Receiving => {
                    let said = "all files were sent, and it said nothing";
                    let storing = "all files were sent, and it proved and stored them";
                    let most = storing_time(patience, self.files.offered(member.peer));
                    let over = self.over.filter(|_| member.knows_end);
                    over.map_or(vec![], |over| {
                        let since = now.duration_since(over);
                        vec![
                            (silent, patience.max(PATIENCE_LAST), said),
                            (since, most, storing),
                        ]
                    })
                }
                _ => continue,
            }
            .into_iter();
            if let Some((_, limit, what)) = waits.find(|(lasted, limit, _)| lasted > limit) {
                let reason = format!("{what} for {} ({PATIENCE})", spoken(limit));
                self.fail(at, State::Dropped, exit::REFUSED, reason);
            }
        }
        self.progress();
    }

    fn progress(&mut self) {
        for member in self.admission.receivers.iter_mut() {
            if member.active() {
                member.placed = self.files.placed(member.peer);
            }
        }
        (self.tell)(self.admission.progress(Sent {
            seconds: self.admission.clock.seconds(),
            len: self.set.known_len(),
            rate: Some(self.files.rate()),
            repairs: self.files.messages().sent.data,
        }));
    }

    /// What has become of every receiver, and what was sent.
    pub fn report(&mut self) -> SendReport {
        let messages = *self.files.messages();
        let net = self.files.net();
        let (sent, faults) = (net.counters(), net.fault_counters());
        let datagrams = sent.datagrams_sent + faults.send_lost;
        let dropped = faults.send_lost * u64::from(self.plan.start.payload_size);
        let overhead = net.caps().overhead;
        let multicast = sent.bytes_sent + dropped + datagrams * overhead;
        let requests = messages.received;
        SendReport {
            root: self.files.root().map(|root| root.to_hex().to_string()),
            changed: self.failed.changed(),
            failed: self.failed.report(),
            seconds: self.last,
            traffic: Traffic {
                data: messages.multicast.data,
                repairs_unicast: messages.sent.data,
                feedback: requests.bof_request + requests.data_request + requests.transfer_done,
                datagrams,
                wire_bytes: multicast + messages.channel_bytes,
                foreign: self.files.foreign(),
                injected: faults.send_lost + faults.receive_lost,
                ..Traffic::default()
            },
            messages: Some(messages),
            workers: self.admission.rendezvous.sent_by_workers(),
            ..self.admission.report()
        }
    }
}

/// Opens the network, and makes the plan for the receivers that are there.
pub fn open(
    admission: &mut Admission<'_>,
    set: &Arc<SourceSet>,
    sent: Arc<SentFiles>,
    session: u64,
    options: &SendOptions,
) -> Result<(FileSender, Plan), Error> {
    let (near, net) = admission.take_network()?;
    for member in admission.receivers.iter_mut() {
        member.path_state = PathState::Multicast;
    }
    let datagrams = admission.receivers.iter().map(|m| m.hello.datagram);
    let datagram = datagrams.fold(net.caps().datagram_max as u32, u32::min);
    let block = (datagram - OVERHEAD).min(limits::PAYLOAD_MAX);
    let group = group_address(options, near, session)?.into();
    let root = net.address().for_others();
    let interface = net.port().to_owned();
    let plan = SenderPlan {
        slots: options.files_at_once,
        block,
        timeout: options.file_timeout,
        rate: options.rate,
    };
    let files = FileSender::new(net, &group, set.clone(), sent, plan)?;
    let nodes = admission.receivers.iter().map(|m| m.node);
    let start = Start {
        group: Some(group),
        root,
        payload_size: block,
        window: limits::WINDOW_MIN,
        members: [NodeId(0)].into_iter().chain(nodes).map(|n| n.0).collect(),
        scheme: ibrmp::NAME.into(),
        addresses: Vec::new(),
        compares: None,
        late: false,
    };
    super::plan::check_length(&start)?;
    let plan = Plan {
        start,
        overhead: OVERHEAD,
        interface,
        admits_late: options.late == Late::Admit,
    };
    Ok((files, plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SharedRate;
    use crate::object::testing::{scratch, set_of};

    /// P3's protocol paces each transfer by itself, so a rate that others share cannot hold for it.
    #[test]
    fn p3s_protocol_refuses_a_shared_rate() {
        let dir = scratch();
        std::fs::write(dir.join("f"), "bytes").unwrap();
        let set = set_of(&[dir.join("f")]);
        let options = |scheme: &str, shared_rate| SendOptions {
            scheme: scheme.into(),
            shared_rate,
            ..SendOptions::default()
        };
        let chosen = |scheme, shared| is_chosen(&options(scheme, shared), &set);
        let shared = || Some(SharedRate::new(1_000_000));
        assert_eq!(chosen(ibrmp::NAME, None).ok(), Some(true));
        assert_eq!(chosen("auto", shared()).ok(), Some(false));
        let refused = chosen(ibrmp::NAME, shared()).unwrap_err();
        assert_eq!(refused.exit_code(), exit::USAGE);
        assert!(refused.to_string().contains("share no rate"), "{refused}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
