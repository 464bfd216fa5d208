//! A receiver's transfer: from the start until the sender closes it with `Bye`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabricast_proto::{Command, Event, Node, NodeId, OpId, Seq};

use super::block_repair::BlockRepair;
use super::events::{RecvEvent, RecvReport};
use super::receiver_errors::{copy, strange, surprise};
use super::start_check::{is_shared, scheme_of};
use super::{ADDRESS, ALL, FileDriver, ROOT, TICK, check, notices, rest};
use crate::bootstrap::message::{ReceiverStatistics, Start, ToReceiver, ToSender, Welcome};
use crate::bootstrap::{Control, Heard};
use crate::config::RecvOptions;
use crate::driver::Driver;
use crate::error::Error;
use crate::net::{self, Clock, Net, random};
use crate::object::{Challenge, FileObject, FileWriter, HASH, Memory, PartialFile, blocks, room};
use crate::setting::RECEIVE_TIMEOUT;
use crate::text::spoken;
use crate::transport::Transport;
use crate::waker::Waker;

/// How often the receiver tells the sender that it is at work.
const WORKING: Duration = Duration::from_secs(1);
/// How long the receiver waits for the sender's `Bye` after the file is stored.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the receiver lets datagrams gather before it reads them, while data come. Many at one
/// wake-up cost far less than one by one.
const GATHER: Duration = Duration::from_micros(500);
/// The pause as in [`GATHER`], while more than [`AMID_BYTES`] are still to come. Nothing waits for
/// any one of these datagrams, so the pause may be longer.
const GATHER_AMID: Duration = Duration::from_millis(1);
/// The number of missing bytes above which [`GATHER_AMID`] applies.
const AMID_BYTES: u64 = 16 << 20;

/// How long another receiver may not answer before this one first reports it to the sender. The
/// pause doubles with each report.
const AGAIN_MIN: Duration = Duration::from_millis(100);
/// The longest pause between two reports that another receiver does not answer.
const AGAIN_MAX: Duration = Duration::from_secs(3);
/// The number of receivers that do not answer and are reported in one tick, at most.
const UNANSWERED: usize = 16;

/// Phase of the receiver.
enum Phase {
    /// Bytes of the file and its hash list arrive.
    Receiving,
    /// All bytes are here. The receiver compares the blocks with the list, and requests damaged
    /// ones again over TCP.
    Proving(BlockRepair),
    /// A thread stores the file; its result is the proof for the sender.
    Storing(Receiver<Result<String, Error>>),
    /// The file is safe. The receiver waits for the sender's `Bye`, at most until this time.
    Leaving(Instant),
}

/// What the sender says after it has read every block.
#[derive(Clone)]
struct Root {
    /// The BLAKE3 hash of the hash list, in hexadecimal.
    hash: String,
    /// How to prove to the sender that the file is here.
    challenge: Challenge,
}

/// A receiver, once the transfer has started.
pub struct ReceiverSession<'a> {
    control: &'a mut Control,
    driver: FileDriver,
    partial: Arc<PartialFile>,
    options: &'a RecvOptions,
    waker: Waker,
    tell: &'a mut dyn FnMut(RecvEvent),
    clock: Clock,
    /// Operations that are not complete yet: those of the file and the list.
    pending: Vec<OpId>,
    /// Operation of the file, until it has been received.
    file: Option<OpId>,
    list: Option<OpId>,
    root: Option<Root>,
    /// Receivers that do not answer at the address that the sender told: when to report each next,
    /// and the pause after that.
    unanswered: BTreeMap<NodeId, (Instant, Duration)>,
    node: NodeId,
    phase: Phase,
    statistics: ReceiverStatistics,
    /// When data last arrived, and how many packets had arrived by then.
    progress: (Instant, u64),
    worked: Instant,
    ticked: Instant,
    seconds: f64,
    fresh: bool,
    /// Whether the sender has said goodbye, or is gone.
    dismissed: bool,
    /// Why the connection to the sender is lost, if the receiver may finish without the sender.
    lost: Option<Error>,
    /// Number of data packets received by the last pause.
    received: u64,
}

impl<'a> ReceiverSession<'a> {
    /// Joins the group, posts the file and its hash list, and tells the sender that it is ready.
    #[expect(
        clippy::too_many_arguments,
        reason = "called once; each has its own origin"
    )]
    pub fn new(
        control: &'a mut Control,
        net: Net,
        partial: Arc<PartialFile>,
        welcome: Welcome,
        start: Start,
        options: &'a RecvOptions,
        waker: &Waker,
        tell: &'a mut dyn FnMut(RecvEvent),
    ) -> Result<ReceiverSession<'a>, Error> {
        let (session, payload_size) = (welcome.session, start.payload_size);
        let scheme = scheme_of(&start)?;
        // The first member is the sender. What the sender says about the others' addresses may be
        // false.
        let others = match is_shared(&scheme) {
            true => &start.addresses[..],
            false => &[],
        };
        let window = u64::from(start.window) * u64::from(payload_size);
        let node = NodeId(welcome.node);
        let node = net::node_config(node, session, scheme, payload_size, &net);
        let mut driver: FileDriver = Driver::new(Node::new(node, random()?), net);
        driver.transport().peer(ROOT, &start.root);
        if let Some(group) = &start.group
            && let Err(e) = driver.join(ADDRESS, group, true)
        {
            // This is no error: the sender will find out and use unicast.
            let text = format!("no multicast here ({e})");
            tell(RecvEvent::Notice { text });
        }
        for (&node, address) in start.members.iter().skip(1).zip(others) {
            if node != welcome.node {
                driver.transport().hearsay(NodeId(node), address);
            }
        }
        let clock = Clock(Instant::now());
        let mut pending = Vec::new();
        let (mut file, mut list) = (None, None);
        let refused = |r| Error::PeerLost(format!("the sender's plan makes no sense: {r}"));
        let group_add = Command::GroupAdd {
            group: ALL,
            address: start.group.is_some().then_some(ADDRESS),
            members: start.members.into_iter().map(NodeId).collect(),
            payload_size,
            start: Seq(session as u32),
        };
        driver.command(clock.now(), group_add).map_err(refused)?;
        if !partial.is_empty() {
            let room = Memory::new(room(blocks(partial.len()) * HASH as u64)?);
            let sink = FileWriter::new(partial.clone(), window, waker.clone());
            let sink = FileObject::FileWriter(sink);
            for object in [sink, FileObject::Memory(room)] {
                let posted = driver.post(clock.now(), ALL, ROOT, object);
                pending.push(posted.map_err(|(r, _)| refused(r))?);
            }
            (file, list) = (pending.first().copied(), pending.last().copied());
        }
        control
            .say(&ToSender::Ready)
            .map_err(|e| Error::io("talking to the sender", e))?;
        let now = Instant::now();
        Ok(ReceiverSession {
            control,
            driver,
            partial,
            options,
            waker: waker.clone(),
            tell,
            clock,
            pending,
            file,
            list,
            root: None,
            unanswered: BTreeMap::new(),
            node: NodeId(welcome.node),
            phase: Phase::Receiving,
            statistics: ReceiverStatistics::default(),
            progress: (now, 0),
            worked: now,
            ticked: now,
            seconds: 0.0,
            fresh: true,
            dismissed: false,
            lost: None,
            received: 0,
        })
    }

    /// Receives, proves and stores the file.
    pub fn run(&mut self) -> Result<RecvReport, Error> {
        loop {
            let now = self.clock.now();
            self.fresh = false;
            let step = self.driver.step(now);
            let step = step.map_err(|e| Error::io("sending and receiving", e))?;
            while let Some(event) = self.driver.event() {
                self.noticed(event)?;
            }
            // Drops the file's object once it is complete: a sink has a thread, and many blocks in
            // memory.
            self.file.take_if(|op| self.driver.take(*op).is_some());
            // One message in each step: `heard` sets `fresh`, and the data go on in between.
            if let Some(heard) = self.control.hear()
                && self.heard(heard)?
            {
                return Ok(self.report());
            }
            check(&self.options.interrupt)?;
            if self.advance()? {
                return Ok(self.report());
            }
            self.tick()?;
            if !self.fresh {
                // Datagrams are stamped on arrival, so this pause does not look like the network's.
                let received = self.driver.node().counters().received;
                if std::mem::replace(&mut self.received, received) != received && step.is_idle(now)
                {
                    let amid =
                        self.partial.len().saturating_sub(self.partial.written()) > AMID_BYTES;
                    let gather = if amid { GATHER_AMID } else { GATHER };
                    std::thread::sleep(gather.saturating_sub(self.clock.now().since(now)));
                }
                rest(&mut self.driver, step.wake, now)?;
            }
        }
    }

    fn say(&mut self, message: &ToSender) -> Result<(), Error> {
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

    /// Handles that the sender is gone, or has removed this receiver. That is an error if the
    /// receiver still needs the sender: what proves the file, or a part of the file, may be
    /// missing.
    fn forsaken(&mut self, why: Error) -> Result<(), Error> {
        match self.phase {
            Phase::Storing(_) if self.lost.is_none() => self.alone(&why),
            Phase::Storing(_) => {}
            // What was sent may still wait to be received or placed: see `tick`.
            Phase::Receiving if self.root.is_some() => {}
            _ => return Err(why),
        }
        self.lost.get_or_insert(why);
        Ok(())
    }

    /// Tells the user that the sender is no longer needed.
    fn alone(&mut self, why: &Error) {
        let text = format!("{why}; the file is complete and proven, and is kept");
        (self.tell)(RecvEvent::Notice { text });
    }

    /// Whether every byte of the file and its list has arrived, placed or not.
    fn is_whole(&self) -> bool {
        let len = self.partial.len();
        self.driver.counters().written >= len + blocks(len) * HASH as u64
    }

    fn noticed(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Complete(op) => {
                self.pending.retain(|p| *p != op);
                self.fresh = true;
                Ok(())
            }
            Event::Failed(_) => Err(match self.partial.failure() {
                Some(error) => copy(error, self.partial.path()),
                None => Error::Integrity("more bytes came than were announced".into()),
            }),
            // The lengths came over TCP. Datagrams that contradict them are dropped, even if the
            // sender confirms them. If no others arrive, the timeout ends the transfer.
            Event::Mismatch(_) => Ok(()),
            Event::Proven(_)
            | Event::Arrived(_)
            | Event::Path { .. }
            | Event::Slow { .. }
            | Event::AddressSilent { .. }
            | Event::AddressProven { .. } => Ok(()),
        }
    }

    /// Handles what the sender says; true when the transfer is over and the file is safe.
    fn heard(&mut self, heard: Heard) -> Result<bool, Error> {
        self.fresh = true;
        let safe = matches!(self.phase, Phase::Leaving(_));
        match heard {
            Heard::Message(ToReceiver::Root { hash, key }) if self.root.is_none() => {
                let key = blake3::Hash::from_hex(key)
                    .map_err(|_| Error::PeerLost("the sender's challenge makes no sense".into()))?;
                let challenge = Challenge::new(key.into(), self.partial.len());
                self.root = Some(Root { hash, challenge });
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
            Heard::Bulk(bytes) => self.mend(&bytes)?,
            _ if safe => return Ok(self.may_leave()),
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

    /// Whether other receivers may still need what this receiver has (spec 2.12).
    fn serves(&mut self) -> bool {
        let ops = [self.file, self.list];
        ops.into_iter()
            .flatten()
            .any(|op| self.driver.object(op).is_some())
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
        match &mut self.phase {
            Phase::Receiving => {
                if self.pending.is_empty() && self.root.is_some() {
                    self.prove()?;
                }
            }
            Phase::Proving(_) => {}
            Phase::Storing(result) => match result.try_recv() {
                Ok(result) => {
                    let proof = result?;
                    self.stored(proof);
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => unreachable!("storing does not panic"),
            },
            Phase::Leaving(until) => {
                let over = Instant::now() >= *until;
                return Ok(over || self.dismissed && !self.serves());
            }
        }
        Ok(false)
    }

    /// Begins to prove the file, once all bytes have arrived.
    fn prove(&mut self) -> Result<(), Error> {
        (self.tell)(RecvEvent::Storing);
        let list = match self.list.and_then(|op| self.driver.take(op)) {
            Some(FileObject::Memory(memory)) => memory.into_bytes(),
            Some(_) => Vec::new(),
            // Other receivers may still need a co-root's list, so it is copied.
            None => match self.list.and_then(|op| self.driver.object(op)) {
                Some(FileObject::Memory(memory)) => memory.as_slice().to_vec(),
                _ => Vec::new(),
            },
        };
        self.say(&ToSender::Working { done: 0 })?;
        self.worked = Instant::now();
        let root = self.root.as_ref().map_or("", |r| &r.hash);
        self.phase = Phase::Proving(BlockRepair::new(self.partial.clone(), list, root));
        self.ask()
    }

    /// Requests what does not match the hash list, or stores the file if everything matches.
    fn ask(&mut self) -> Result<(), Error> {
        while let Phase::Proving(repair) = &mut self.phase {
            if repair.is_done() {
                self.statistics.mended = repair.mended;
                self.statistics.mended_bytes = repair.bytes;
                self.store();
                return Ok(());
            }
            // Only the sender has what is missing.
            if let Some(why) = self.lost.take() {
                return Err(why);
            }
            match repair.ask() {
                Some(need) => self.say(&need)?,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Takes bytes that this receiver has requested.
    fn mend(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.progress.0 = Instant::now();
        let Phase::Proving(repair) = &mut self.phase else {
            return Err(strange());
        };
        repair.take(bytes).unwrap_or_else(|| Err(strange()))?;
        self.ask()
    }

    fn store(&mut self) {
        if let Some(why) = self.lost.take() {
            self.alone(&why);
            self.lost = Some(why);
        }
        let (partial, sync) = (self.partial.clone(), self.options.sync);
        let (tell, result) = channel();
        let waker = self.waker.clone();
        let (root, node) = (self.root.clone(), self.node);
        thread::spawn(move || {
            let root = root.expect("nothing is proven without it");
            let proof = partial
                .answer(&root.challenge)
                .map(|s| s.proof(node.0).to_string());
            let _ = tell.send(proof.and_then(|proof| partial.finish(sync).map(|()| proof)));
            waker.wake();
        });
        self.phase = Phase::Storing(result);
    }

    fn stored(&mut self, proof: String) {
        self.phase = Phase::Leaving(Instant::now() + FAREWELL);
        self.seconds = self.clock.0.elapsed().as_secs_f64();
        self.count();
        let statistics = self.statistics;
        // The file is safe, whether the sender learns that or not.
        match self.lost {
            Some(_) => self.dismissed = true,
            None => _ = self.control.say(&ToSender::Verified { statistics, proof }),
        }
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
                if arrived != self.progress.1 {
                    self.progress = (now, arrived);
                } else {
                    self.silence(now)?;
                    // No more data wait in the network.
                    if !self.is_whole()
                        && let Some(why) = self.lost.take()
                    {
                        return Err(why);
                    }
                }
                (self.tell)(RecvEvent::Progress {
                    seconds: self.clock.0.elapsed().as_secs_f64(),
                    placed: self.partial.written(),
                    len: self.partial.len(),
                });
            }
            Phase::Proving(_) => {
                self.silence(now)?;
                self.work(now)?;
            }
            Phase::Storing(_) => self.work(now)?,
            Phase::Leaving(_) => {}
        }
        Ok(())
    }

    /// Reports receivers that do not answer at the address that the sender told. For each `Ask` of
    /// the sender, such a receiver may be asked once more.
    fn ask_for_questions(&mut self, now: Instant) -> Result<(), Error> {
        let silent = self.driver.net().unanswered();
        self.unanswered.retain(|node, _| silent.contains(node));
        for node in silent.into_iter().take(UNANSWERED) {
            let next = self.unanswered.entry(node);
            let (due, pause) = next.or_insert((now + AGAIN_MIN, AGAIN_MIN));
            if now < *due || self.lost.is_some() {
                continue;
            }
            *pause = (*pause * 2).min(AGAIN_MAX);
            *due = now + *pause;
            self.say(&ToSender::Unanswered { node: node.0 })?;
        }
        Ok(())
    }

    /// Gives up if nothing has arrived for too long.
    fn silence(&self, now: Instant) -> Result<(), Error> {
        match self.options.receive_timeout {
            Some(limit) if now - self.progress.0 > limit => {
                let limit = spoken(limit);
                Err(Error::Timeout(format!(
                    "nothing has arrived for {limit} ({RECEIVE_TIMEOUT})"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Tells the sender, once in [`WORKING`], that this receiver is at work.
    fn work(&mut self, now: Instant) -> Result<(), Error> {
        if now - self.worked >= WORKING {
            self.worked = now;
            let done = self.done();
            self.say(&ToSender::Working { done })?;
        }
        Ok(())
    }

    /// Bytes of the list and the file that are proven.
    fn done(&self) -> u64 {
        let len = self.partial.len();
        let whole = blocks(len) * HASH as u64;
        match &self.phase {
            Phase::Receiving => 0,
            Phase::Proving(repair) => repair.done(),
            Phase::Storing(_) | Phase::Leaving(_) => whole + len,
        }
    }

    fn report(&mut self) -> RecvReport {
        self.count();
        RecvReport {
            path: self.partial.path().to_owned(),
            len: self.partial.len(),
            root: self.root.take().map(|r| r.hash).unwrap_or_default(),
            seconds: self.seconds,
            statistics: self.statistics,
        }
    }
}
