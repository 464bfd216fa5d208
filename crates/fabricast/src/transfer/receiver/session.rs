//! A receiver's transfer: from the start until the sender closes it with `Bye`.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use fabricast_proto::{Command, Event, NodeId, OpId};

use super::block_repair::BlockRepair;
use super::catching_up::CatchingUp;
use super::comparing_progress::ReceiverComparing;
use super::driver;
use super::errors::{changed, silence, strange, surprise};
use super::incoming::{self, Posted, Store};
use super::joining::Joined;
use super::pack_table::{PackTable, packs_max};
use super::peers::Peers;
use super::serving::Serving;
use super::stored_headers::StoredHeaders;
use super::storing::{Finished, Limits, Storing};
use super::unanswered::Unanswered;
use crate::bootstrap::message::{ReceiverStatistics, ToReceiver, ToSender};
use crate::bootstrap::{Control, Heard};
use crate::config::RecvOptions;
use crate::error::{Error, exit};
use crate::net::Clock;
use crate::object::manifest::Manifest;
use crate::object::{Kept, PackRecord, SetOutcome};
use crate::text::ToldPath;
use crate::transfer::events::{RecvEvent, RecvReport, State};
use crate::transfer::kept_packs;
use crate::transfer::{FAREWELL, ROOT, RecvDriver, TICK, WORKING, check, notices, rest};
use crate::transport::{GroupAddress, Transport};
use crate::waker::Waker;

/// Phase of the receiver.
enum Phase {
    /// Packs arrive, and are proven and stored.
    Receiving,
    /// All packs are stored. The receiver proves that to the sender, and ends the set.
    Storing,
    /// The set is safe. The receiver waits for the sender's `Bye`, at most until this time.
    Leaving(Instant),
}

/// A receiver, once the transfer has started.
pub struct ReceiverSession<'a> {
    pub(super) control: &'a mut Control,
    pub(super) driver: RecvDriver,
    pub(super) storing: Storing,
    pub(super) options: &'a RecvOptions,
    pub(super) tell: &'a mut dyn FnMut(RecvEvent),
    pub(super) clock: Clock,
    path: PathBuf,
    /// Bytes of all files together; `None`: a stream that has not ended.
    len: Option<u64>,
    /// Whether what is sent is a stream.
    pub(super) is_stream: bool,
    /// Packs that are announced, and so posted, and have not arrived.
    pub(super) posted: Vec<Posted>,
    /// Packs that have been copied, because other receivers may still need them from the core, and
    /// their bytes.
    pub(super) lent: Vec<(OpId, u64)>,
    pub(super) store: Rc<Store>,
    pub(super) packs: PackTable,
    /// Number of packs that are proven.
    pub(super) proven: usize,
    /// Number of proven packs of a stream that the sender knows of.
    proven_told: usize,
    /// What is here from an earlier run.
    pub(super) kept: Kept,
    /// How far it is with comparing what it has, if it does.
    pub(super) comparing: Option<ReceiverComparing>,
    /// How far this receiver has come with what was announced before it joined.
    pub(super) catching_up: CatchingUp,
    pub(super) payload_size: u32,
    /// The group's address, if there is one.
    pub(super) group: Option<GroupAddress>,
    /// Whether this receiver has left the group's address.
    pub(super) has_left: bool,
    /// The key of the challenge by which this receiver proves to the sender that the set is here,
    /// once all packs are announced.
    pub(super) end: Option<[u8; 32]>,
    /// The receivers that serve, from which this one gets packs that it lacks.
    pub(super) peers: Option<Peers>,
    /// The late receivers that this one serves, if its user wants that.
    serving: Option<Serving>,
    /// Whether the sender was found by its announcement, and may be anybody.
    pub(super) is_found: bool,
    pub(super) waker: Waker,
    /// The damaged pack that is repaired.
    pub(super) repair: Option<BlockRepair>,
    /// The pack whose header was requested again, since its files are compared. The answer comes
    /// before all others.
    pub(super) asked_header: Option<(u32, PackRecord)>,
    pub(super) unanswered: Unanswered,
    node: NodeId,
    phase: Phase,
    /// Whether everything has arrived, and the user knows.
    is_here: bool,
    /// Whether the user knows what would be deleted, and wants no more.
    is_dry_run_over: bool,
    /// What has come of the set, once it is complete.
    outcome: Option<SetOutcome>,
    pub(super) statistics: ReceiverStatistics,
    /// When the receiver last got on, by data or by what the sender said.
    pub(super) moved: Instant,
    /// How many data packets had arrived by the last look at that.
    arrived: u64,
    worked: Instant,
    /// Bytes of files that were copied from others.
    pub(super) copied: u64,
    ticked: Instant,
    seconds: f64,
    pub(super) fresh: bool,
    /// Whether the sender has said goodbye, or is gone.
    dismissed: bool,
    /// Why the connection to the sender is lost, if the receiver may finish without the sender.
    pub(super) lost: Option<Error>,
    /// Number of data packets received by the last pause.
    received: u64,
}

impl<'a> ReceiverSession<'a> {
    /// Joins the group and tells the sender that it is ready.
    pub fn new(
        control: &'a mut Control,
        joined: Joined,
        options: &'a RecvOptions,
        is_found: bool,
        waker: &Waker,
        tell: &'a mut dyn FnMut(RecvEvent),
    ) -> Result<ReceiverSession<'a>, Error> {
        let Joined {
            net,
            target,
            kept,
            path,
            welcome,
            start,
            ..
        } = joined;
        let clock = Clock(Instant::now());
        let payload_size = start.payload_size;
        let driver = driver::open(net, &welcome, &start, clock.now(), tell)?;
        for message in kept_packs::told(welcome.session, &kept)
            .iter()
            .chain([&ToSender::Ready])
        {
            control
                .say(message)
                .map_err(|e| Error::io("talking to the sender", e))?;
        }
        let now = Instant::now();
        let damage = options.inject_damage;
        let store = Rc::<Store>::default();
        let limits = Limits {
            path: path.clone(),
            max_size: options.max_size,
            reserve: options.makes_files().then_some(options.reserve),
        };
        let headers = options.serve.then(Arc::<StoredHeaders>::default);
        let storing = Storing::start(
            (target, &kept, headers.clone()),
            (&welcome, start.compares.is_some()),
            limits,
            damage,
            store.clone(),
            waker.clone(),
        )?;
        let serving = headers.map(|headers| {
            let files = storing.read_back();
            Serving::open(control, &welcome, headers, files, waker)
        });
        let serving = serving.transpose()?;
        Ok(ReceiverSession {
            control,
            driver,
            storing,
            options,
            tell,
            clock,
            path,
            len: welcome.len,
            is_stream: welcome.len.is_none(),
            posted: Vec::new(),
            lent: Vec::new(),
            store,
            packs: PackTable::new(packs_max(welcome.entries, welcome.len)),
            proven: 0,
            proven_told: 0,
            comparing: start.compares.map(ReceiverComparing::new),
            catching_up: CatchingUp::new(start.late, !kept.is_empty()),
            kept,
            payload_size,
            group: start.group,
            has_left: false,
            end: None,
            peers: None,
            serving,
            is_found,
            waker: waker.clone(),
            repair: None,
            asked_header: None,
            unanswered: Unanswered::default(),
            node: NodeId(welcome.node),
            phase: Phase::Receiving,
            is_here: false,
            is_dry_run_over: false,
            outcome: None,
            statistics: ReceiverStatistics::default(),
            moved: now,
            arrived: 0,
            worked: now,
            copied: 0,
            ticked: now,
            seconds: 0.0,
            fresh: true,
            dismissed: false,
            lost: None,
            received: 0,
        })
    }

    /// Receives, proves and stores the set.
    pub fn run(&mut self) -> Result<RecvReport, Error> {
        loop {
            let now = self.clock.now();
            self.fresh = false;
            let step = self.driver.step(now);
            let step = step.map_err(|e| Error::io("sending and receiving", e))?;
            while let Some(event) = self.driver.event() {
                self.noticed(event)?;
            }
            self.serves();
            if let Some(serving) = &mut self.serving {
                serving.turn();
            }
            // One message in each step: `heard` sets `fresh`, and the data go on in between.
            if let Some(heard) = self.control.hear()
                && self.heard(heard)?
            {
                return Ok(self.report());
            }
            check(&self.options.interrupt)?;
            if self.advance()? || self.is_dry_run_over {
                return Ok(self.report());
            }
            self.tick()?;
            if !self.fresh {
                // Datagrams are stamped on arrival, so this pause does not look like the network's.
                let received = self.driver.node().counters().received;
                if std::mem::replace(&mut self.received, received) != received && step.is_idle(now)
                {
                    let len = self.len.unwrap_or(u64::MAX);
                    let missing = len.saturating_sub(self.driver.counters().written);
                    let gather = incoming::gather(missing);
                    std::thread::sleep(gather.saturating_sub(self.clock.now().since(now)));
                }
                rest(&mut self.driver, step.wake, now)?;
            }
        }
    }

    pub(super) fn say(&mut self, message: &ToSender) -> Result<(), Error> {
        if self.lost.is_some() {
            return Ok(());
        }
        self.control.say(message).or_else(|e| {
            self.forsaken(match e.kind() {
                std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => {
                    Error::PeerLost("the sender is gone".into())
                }
                _ => Error::io("talking to the sender", e),
            })
        })
    }

    /// Ends a dry run: tells the user what would be deleted, and the sender that nothing is wanted.
    pub(super) fn end_dry_run(&mut self, paths: Vec<PathBuf>) {
        for path in paths {
            let path = ToldPath::from(&*path);
            (self.tell)(RecvEvent::Surplus(path));
        }
        let reason = "it only wanted to know what it would delete (a dry run)".into();
        let code = exit::OK;
        let _ = self.control.say(&ToSender::Failed { code, reason });
        self.is_dry_run_over = true;
    }

    /// Handles that the sender is gone, or has removed this receiver. That is an error if the
    /// receiver still needs the sender: what proves the file, or a part of the file, may be
    /// missing.
    fn forsaken(&mut self, why: Error) -> Result<(), Error> {
        match self.phase {
            Phase::Leaving(_) => return Err(why),
            _ if self.is_proven() && self.lost.is_none() => self.alone(&why),
            _ if self.is_proven() => {}
            // What was sent may still wait to be received or stored: see `tick`.
            _ if self.end.is_some() && self.repair.is_none() => {}
            _ => return Err(why),
        }
        self.lost.get_or_insert(why);
        Ok(())
    }

    /// Tells the user that the sender is no longer needed.
    pub(super) fn alone(&mut self, why: &Error) {
        let text = format!("{why}; everything is complete and proven, and is kept");
        (self.tell)(RecvEvent::Notice { text });
    }

    /// Whether every pack is proven, so that the sender is no longer needed.
    pub(super) fn is_proven(&self) -> bool {
        self.end.is_some() && self.packs.is_whole() && self.proven == self.packs.len()
    }

    /// Whether every byte of every pack has arrived, and the sender knows that none is lacking.
    fn is_whole(&self) -> bool {
        self.end.is_some() && self.is_inside() && self.posted.is_empty() && self.packs.is_whole()
    }

    fn noticed(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Complete(op) => self.arrived(op),
            Event::Failed(_) => Err(Error::Integrity(
                "more bytes came than were announced".into(),
            )),
            // The lengths came over TCP. Datagrams that contradict them are dropped, even if the
            // sender confirms them. If no others arrive, the timeout ends the transfer.
            Event::Mismatch(_) => Ok(()),
            Event::Proven(_)
            | Event::Arrived(_)
            | Event::Path { .. }
            | Event::Slow { .. }
            | Event::Outpaced { .. }
            | Event::AddressSilent { .. }
            | Event::AddressProven { .. } => Ok(()),
        }
    }

    /// Handles what the sender says; true when the transfer is over and the file is safe.
    fn heard(&mut self, heard: Heard) -> Result<bool, Error> {
        self.fresh = true;
        let safe = matches!(self.phase, Phase::Leaving(_));
        match heard {
            Heard::Message(ToReceiver::Pack(announced)) => self.announced(&announced)?,
            Heard::Message(ToReceiver::Compare(announced)) => self.compare(&announced)?,
            Heard::Message(ToReceiver::Join(join)) if self.catching_up.is_outside() => {
                self.join(join)?;
            }
            Heard::Message(ToReceiver::Peers { peers }) => self.told_peers(&peers)?,
            Heard::Message(ToReceiver::Demoted) if self.catching_up.is_inside() => {
                self.leave_group()?;
            }
            Heard::Message(ToReceiver::Released) if self.is_whole() => self.leave_address(),
            Heard::Message(ToReceiver::End { packs, key })
                if self.end.is_none() && packs as usize == self.packs.len() =>
            {
                let key = blake3::Hash::from_hex(key)
                    .map_err(|_| Error::PeerLost("the sender's challenge makes no sense".into()))?;
                self.end = Some(key.into());
            }
            Heard::Message(ToReceiver::Gone { node }) if NodeId(node) != ROOT => {
                let now = self.clock.now();
                // The core cannot refuse this.
                let _ = self.driver.command(now, Command::PeerRemove(NodeId(node)));
                self.driver.transport().forget(NodeId(node));
            }
            Heard::Message(ToReceiver::Ask { node }) => {
                self.driver.transport().ask_again(NodeId(node));
            }
            Heard::Message(ToReceiver::Bye) if safe => return Ok(self.may_leave()),
            Heard::Bulk(bytes) if self.catching_up.lists() => self.listed(&bytes)?,
            Heard::Bulk(bytes) => match self.asked_header.take() {
                Some(asked) => self.header_mended(asked, &bytes)?,
                None => self.mend(&bytes)?,
            },
            Heard::Frame(_) => return Err(strange()),
            // The set is safe, whether the sender has learned that or not. A sender that removes
            // this receiver now may have found that its proof is wrong.
            Heard::Message(ToReceiver::Aborted { .. }) | Heard::Closed(_) if safe => {
                return Ok(self.may_leave());
            }
            Heard::Message(message @ (ToReceiver::Removed { .. } | ToReceiver::Aborted { .. })) => {
                self.forsaken(surprise(message))?
            }
            Heard::Message(message) => return Err(surprise(message)),
            Heard::Closed(why) => {
                self.forsaken(Error::PeerLost(format!("the sender is gone: {why}")))?;
            }
        }
        Ok(false)
    }

    /// Whether other receivers may still need what this receiver has (spec 2.12). Drops what they
    /// do not need any more.
    fn serves(&mut self) -> bool {
        self.lent.retain(|(op, len)| {
            let taken = self.driver.take(*op).is_some();
            self.store.done(if taken { *len } else { 0 });
            !taken
        });
        !self.lent.is_empty()
    }

    /// Notes that the sender no longer needs this receiver. Returns whether it may leave at once:
    /// other receivers may still need it, for at most [`FAREWELL`].
    fn may_leave(&mut self) -> bool {
        if !std::mem::replace(&mut self.dismissed, true) {
            self.phase = Phase::Leaving(Instant::now() + FAREWELL);
        }
        !self.serves()
    }

    /// Goes on to the next phase if it is time to; true when the transfer is over.
    fn advance(&mut self) -> Result<bool, Error> {
        self.stored()?;
        match self.phase {
            Phase::Receiving => {
                self.take_compared()?;
                if self.is_whole() && !self.is_here {
                    self.is_here = true;
                    (self.tell)(RecvEvent::Storing);
                    self.worked = Instant::now();
                    let done = self.packs.bytes() + self.copied;
                    self.say(&ToSender::Working { done })?;
                }
                self.catch_up()?;
                self.tell_proven()?;
                if let Some(key) = self.end
                    && self.is_whole()
                    && self.packs.here() == self.packs.len()
                {
                    self.storing.finish(key, self.node.0);
                    self.phase = Phase::Storing;
                }
                Ok(false)
            }
            Phase::Storing => Ok(false),
            Phase::Leaving(until) => {
                Ok(Instant::now() >= until || self.dismissed && !self.serves())
            }
        }
    }

    /// Whether packs are stored in their order alone.
    pub(super) fn is_ordered(&self) -> bool {
        self.is_stream || self.options.output.is_some()
    }

    /// Tells the sender which packs of a stream it need not keep for this receiver.
    fn tell_proven(&mut self) -> Result<(), Error> {
        if !self.is_stream || self.proven == self.proven_told {
            return Ok(());
        }
        self.proven_told = self.proven;
        let packs = self.proven as u32;
        self.say(&ToSender::Proven { packs })
    }

    /// Tells the sender that the set is stored.
    pub(super) fn safe(&mut self, finished: Finished) {
        let Finished { proof, outcome } = finished;
        self.statistics.present_bytes = outcome.present;
        self.statistics.kept_bytes = self.kept.bytes;
        self.len = Some(outcome.len);
        self.phase = Phase::Leaving(Instant::now() + FAREWELL);
        self.seconds = self.clock.0.elapsed().as_secs_f64();
        self.count();
        let statistics = self.statistics;
        // The set is safe, whether the sender learns that or not.
        match self.lost {
            Some(_) => self.dismissed = true,
            // The sender's proof does not hold without these files.
            None if !outcome.changed.is_empty() => {
                let reason = changed(&outcome.changed, outcome.leaves_surplus);
                let code = exit::SOURCE_CHANGED;
                _ = self.control.say(&ToSender::Failed { code, reason });
                self.dismissed = true;
            }
            None => {
                _ = self.control.say(&match proof {
                    Some(proof) => ToSender::Verified { statistics, proof },
                    None => ToSender::Received { statistics },
                });
            }
        }
        self.outcome = Some(outcome);
    }

    fn count(&mut self) {
        let core = self.driver.node().counters();
        self.statistics.received = core.received;
        self.statistics.duplicates = core.duplicates;
        self.statistics.dropped = self.driver.net().counters().dropped_by_kernel;
    }

    /// Checks what changes only with time, once in a [`TICK`].
    fn tick(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.ticked < TICK {
            return Ok(());
        }
        self.ticked = now;
        let notices: Vec<String> = notices(&mut self.driver).collect();
        for text in notices {
            (self.tell)(RecvEvent::Notice { text });
        }
        self.ask_for_questions(now)?;
        match self.phase {
            Phase::Receiving => {
                let arrived = self.driver.node().counters().received;
                // Outside the group nothing comes until all packs have been sent.
                if arrived != self.arrived || self.catching_up.is_outside() {
                    (self.moved, self.arrived) = (now, arrived);
                } else if self.repair.is_some() || !self.storing.is_busy() && !self.is_comparing() {
                    silence(self.silent(now), self.options)?;
                    // No more data wait in the network.
                    if !self.is_whole()
                        && let Some(why) = self.lost.take()
                    {
                        return Err(why);
                    }
                }
                if self.is_here {
                    self.work(now)?;
                }
            }
            Phase::Storing => self.work(now)?,
            Phase::Leaving(_) => return Ok(()),
        }
        let got = self.driver.counters().written + self.statistics.peer_bytes;
        let present = self.present();
        let here = self.kept.bytes + got + present;
        (self.tell)(RecvEvent::Progress {
            seconds: self.clock.0.elapsed().as_secs_f64(),
            placed: here.min(self.len.unwrap_or(u64::MAX)),
            present,
            to_take: self.storing.to_take(),
            len: self.len,
        });
        Ok(())
    }

    /// Tells the sender, once in [`WORKING`], that this receiver is at work.
    fn work(&mut self, now: Instant) -> Result<(), Error> {
        if now - self.worked >= WORKING {
            self.worked = now;
            let done = self.packs.bytes() + self.copied;
            self.say(&ToSender::Working { done })?;
        }
        Ok(())
    }

    fn report(&mut self) -> RecvReport {
        let manifest = match self.phase {
            Phase::Leaving(_) => self.storing.take_manifest(),
            Phase::Receiving | Phase::Storing => Manifest::default(),
        };
        self.count();
        let outcome = self.outcome.take().unwrap_or_default();
        let told = |paths: &[PathBuf]| paths.iter().map(|path| ToldPath::from(&**path)).collect();
        RecvReport {
            messages: None,
            path: self.path.clone(),
            state: match self.options.output {
                _ if self.is_dry_run_over => State::Refused,
                Some(_) => State::Received,
                None if self.options.discard => State::Received,
                None if !outcome.changed.is_empty() => State::Failed,
                None => State::Verified,
            },
            len: self.len.unwrap_or(0),
            root: self.packs.root(),
            deleted: outcome.deleted,
            manifest,
            special: outcome.special,
            failed: told(&outcome.failed),
            failed_unnamed: 0,
            changed: told(&outcome.changed),
            leaves_surplus: outcome.leaves_surplus,
            seconds: self.seconds,
            statistics: self.statistics,
        }
    }
}
