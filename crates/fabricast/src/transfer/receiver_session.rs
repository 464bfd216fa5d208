//! A receiver's transfer: from the start until the sender closes it with `Bye`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use fabricast_proto::{Command, Event, Node, NodeId, OpId, Seq};

use super::block_repair::BlockRepair;
use super::events::{RecvEvent, RecvReport};
use super::incoming::{Incoming, Store};
use super::joining::Joined;
use super::receiver_errors::{strange, surprise};
use super::start_check::{is_shared, scheme_of};
use super::storing::{Stored, Storing};
use super::{ADDRESS, ALL, ROOT, RecvDriver, TICK, check, notices, rest};
use crate::bootstrap::message::{Announced, ReceiverStatistics, ToReceiver, ToSender};
use crate::bootstrap::{Control, Heard};
use crate::config::RecvOptions;
use crate::driver::Driver;
use crate::error::Error;
use crate::net::{self, Clock, random};
use crate::object::Challenge;
use crate::object::pack::{HEADER_MAX, PACK_MAX, Pack};
use crate::setting::RECEIVE_TIMEOUT;
use crate::text::{ToldPath, spoken};
use crate::transport::Transport;
use crate::waker::Waker;

/// Packs that are posted and have not arrived, at most. A sender announces little more than its
/// window (spec 5.3), and only packs of files without bytes are much smaller than 1 MiB.
const POSTED_MAX: usize = 4096;

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
    /// Packs arrive, and are proven and stored.
    Receiving,
    /// All packs are stored. The receiver proves that to the sender, and ends the set.
    Storing,
    /// The set is safe. The receiver waits for the sender's `Bye`, at most until this time.
    Leaving(Instant),
}

/// A pack that is posted.
struct Posted {
    number: u32,
    op: OpId,
    announced: Announced,
}

/// A receiver, once the transfer has started.
pub struct ReceiverSession<'a> {
    control: &'a mut Control,
    driver: RecvDriver,
    storing: Storing,
    options: &'a RecvOptions,
    tell: &'a mut dyn FnMut(RecvEvent),
    clock: Clock,
    path: PathBuf,
    /// Bytes of all files together.
    len: u64,
    /// Packs that are announced, and so posted, and have not arrived.
    posted: Vec<Posted>,
    /// Packs that have been copied, because other receivers may still need them from the core, and
    /// their bytes.
    lent: Vec<(OpId, u64)>,
    store: Rc<Store>,
    /// Number of announced packs, of those that are proven, and of those that are stored.
    packs: u32,
    proven: u32,
    packs_stored: u32,
    /// Bytes of announced packs, and of stored ones.
    total: u64,
    stored: u64,
    /// Hashes the hashes of all packs.
    root: blake3::Hasher,
    /// How to prove to the sender that the set is here, once all packs are announced.
    end: Option<Challenge>,
    /// The damaged pack that is repaired.
    repair: Option<BlockRepair>,
    /// Receivers that do not answer at the address that the sender told: when to report each next,
    /// and the pause after that.
    unanswered: BTreeMap<NodeId, (Instant, Duration)>,
    node: NodeId,
    phase: Phase,
    /// Whether everything has arrived, and the user knows.
    is_here: bool,
    /// Files that the sender could not read.
    failed: Vec<PathBuf>,
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
    /// Joins the group and tells the sender that it is ready.
    pub fn new(
        control: &'a mut Control,
        joined: Joined,
        options: &'a RecvOptions,
        waker: &Waker,
        tell: &'a mut dyn FnMut(RecvEvent),
    ) -> Result<ReceiverSession<'a>, Error> {
        let Joined {
            net,
            tree,
            path,
            welcome,
            start,
            ..
        } = joined;
        let (session, payload_size) = (welcome.session, start.payload_size);
        let scheme = scheme_of(&start)?;
        // The first member is the sender. What the sender says about the others' addresses may be
        // false.
        let others = match is_shared(&scheme) {
            true => &start.addresses[..],
            false => &[],
        };
        let node = NodeId(welcome.node);
        let node = net::node_config(node, session, scheme, payload_size, &net);
        let mut driver: RecvDriver = Driver::new(Node::new(node, random()?), net);
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
        let group_add = Command::GroupAdd {
            group: ALL,
            address: start.group.is_some().then_some(ADDRESS),
            members: start.members.into_iter().map(NodeId).collect(),
            payload_size,
            start: Seq(session as u32),
        };
        driver.command(clock.now(), group_add).map_err(refused)?;
        control
            .say(&ToSender::Ready)
            .map_err(|e| Error::io("talking to the sender", e))?;
        let now = Instant::now();
        let damage = options.inject_damage;
        let storing = Storing::start(tree, &welcome, damage, waker.clone());
        Ok(ReceiverSession {
            control,
            driver,
            storing,
            options,
            tell,
            clock,
            path,
            len: welcome.len,
            posted: Vec::new(),
            lent: Vec::new(),
            store: Rc::default(),
            packs: 0,
            proven: 0,
            packs_stored: 0,
            total: 0,
            stored: 0,
            root: blake3::Hasher::new(),
            end: None,
            repair: None,
            unanswered: BTreeMap::new(),
            node: NodeId(welcome.node),
            phase: Phase::Receiving,
            is_here: false,
            failed: Vec::new(),
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
                    let amid = self.len.saturating_sub(self.driver.counters().written) > AMID_BYTES;
                    let gather = if amid { GATHER_AMID } else { GATHER };
                    std::thread::sleep(gather.saturating_sub(self.clock.now().since(now)));
                }
                rest(&mut self.driver, step.wake, now)?;
            }
        }
    }

    /// Posts a pack that the sender will broadcast.
    fn announced(&mut self, announced: Announced) -> Result<(), Error> {
        let (len, header) = (announced.len as usize, announced.header as usize);
        let hash = blake3::Hash::from_hex(&announced.hash).ok();
        let hash = hash.filter(|_| {
            self.end.is_none()
                && self.posted.len() < POSTED_MAX
                && (1..=HEADER_MAX).contains(&header)
                && (header..=header + PACK_MAX).contains(&len)
        });
        let Some(hash) = hash else {
            return Err(Error::PeerLost("the sender's pack makes no sense".into()));
        };
        self.root.update(hash.as_bytes());
        self.total += u64::from(announced.len);
        let pack = Incoming::new(len, &self.store);
        let posted = self.driver.post(self.clock.now(), ALL, ROOT, pack);
        let op = posted.map_err(|(r, _)| refused(r))?;
        self.posted.push(Posted {
            number: self.packs,
            op,
            announced,
        });
        self.packs += 1;
        Ok(())
    }

    /// Gives a pack that has arrived to the thread that stores it.
    fn arrived(&mut self, op: OpId) {
        let Some(at) = self.posted.iter().position(|p| p.op == op) else {
            return;
        };
        let posted = self.posted.remove(at);
        let bytes = match self.driver.take(op) {
            Some(memory) => memory.into_bytes(),
            // Other receivers may still need a co-root's pack, so it is copied.
            None => {
                self.lent.push((op, posted.announced.len.into()));
                self.store.wait(posted.announced.len.into());
                let memory = self.driver.object(op);
                memory.map(|m| m.as_slice().to_vec()).unwrap_or_default()
            }
        };
        self.store.wait(bytes.len() as u64);
        let header = posted.announced.header as usize;
        let pack = Pack { bytes, header };
        let hash = posted.announced.hash;
        self.storing.arrived(posted.number, pack, hash);
        self.fresh = true;
    }

    /// Takes what the thread that stores has done.
    fn stored(&mut self) -> Result<(), Error> {
        while let Some(stored) = self.storing.done() {
            self.fresh = true;
            self.progress.0 = Instant::now();
            match stored {
                Stored::Proven => {
                    self.proven += 1;
                    if self.is_proven()
                        && let Some(why) = self.lost.take()
                    {
                        self.alone(&why);
                        self.lost = Some(why);
                    }
                }
                Stored::Pack(memory) => {
                    self.store.done(memory.len() as u64);
                    self.stored += memory.len() as u64;
                    self.packs_stored += 1;
                    self.store.keep(memory);
                }
                Stored::Damaged(repair) => {
                    self.repair = Some(repair);
                    self.ask()?;
                }
                Stored::Finished(proof, failed) => {
                    self.failed = failed;
                    self.safe(proof);
                }
                Stored::Failed(error) => return Err(error),
            }
        }
        Ok(())
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
    fn alone(&mut self, why: &Error) {
        let text = format!("{why}; everything is complete and proven, and is kept");
        (self.tell)(RecvEvent::Notice { text });
    }

    /// Whether every pack is proven, so that the sender is no longer needed.
    fn is_proven(&self) -> bool {
        self.end.is_some() && self.proven == self.packs
    }

    /// Whether every byte of every pack has arrived.
    fn is_whole(&self) -> bool {
        self.end.is_some() && self.posted.is_empty()
    }

    fn noticed(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Complete(op) => {
                self.arrived(op);
                Ok(())
            }
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
            | Event::AddressSilent { .. }
            | Event::AddressProven { .. } => Ok(()),
        }
    }

    /// Handles what the sender says; true when the transfer is over and the file is safe.
    fn heard(&mut self, heard: Heard) -> Result<bool, Error> {
        self.fresh = true;
        let safe = matches!(self.phase, Phase::Leaving(_));
        match heard {
            Heard::Message(ToReceiver::Pack(announced)) => self.announced(announced)?,
            Heard::Message(ToReceiver::End { packs, key })
                if self.end.is_none() && packs == self.packs =>
            {
                let key = blake3::Hash::from_hex(key)
                    .map_err(|_| Error::PeerLost("the sender's challenge makes no sense".into()))?;
                self.end = Some(Challenge::new(key.into(), self.len));
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
                if self.is_whole() && !self.is_here {
                    self.is_here = true;
                    (self.tell)(RecvEvent::Storing);
                    self.worked = Instant::now();
                    let done = self.stored;
                    self.say(&ToSender::Working { done })?;
                }
                if let Some(challenge) = &self.end
                    && self.packs == self.packs_stored
                {
                    self.storing.finish(challenge.clone(), self.node.0);
                    self.phase = Phase::Storing;
                }
                Ok(false)
            }
            Phase::Storing => Ok(false),
            Phase::Leaving(until) => {
                let over = Instant::now() >= until;
                Ok(over || self.dismissed && !self.serves())
            }
        }
    }

    /// Requests what is damaged, or stores the pack if everything is proven.
    fn ask(&mut self) -> Result<(), Error> {
        while let Some(repair) = &mut self.repair {
            if repair.is_done() {
                self.statistics.mended += repair.mended;
                self.statistics.mended_bytes += repair.bytes;
                let done = self.repair.take().and_then(BlockRepair::into_pack);
                if let Some((pack, header)) = done {
                    self.storing.mended(pack, header);
                }
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
        let Some(repair) = &mut self.repair else {
            return Err(strange());
        };
        repair.take(bytes).unwrap_or_else(|| Err(strange()))?;
        self.ask()
    }

    /// Tells the sender that the set is stored.
    fn safe(&mut self, proof: String) {
        self.phase = Phase::Leaving(Instant::now() + FAREWELL);
        self.seconds = self.clock.0.elapsed().as_secs_f64();
        self.count();
        let statistics = self.statistics;
        // The set is safe, whether the sender learns that or not.
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
                } else if self.repair.is_some() || !self.storing.is_busy() {
                    self.silence(now)?;
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
                (self.tell)(RecvEvent::Progress {
                    seconds: self.clock.0.elapsed().as_secs_f64(),
                    placed: self.driver.counters().written.min(self.len),
                    len: self.len,
                });
            }
            Phase::Storing => self.work(now)?,
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
            let done = self.stored;
            self.say(&ToSender::Working { done })?;
        }
        Ok(())
    }

    fn report(&mut self) -> RecvReport {
        self.count();
        RecvReport {
            path: self.path.clone(),
            len: self.len,
            root: self.root.finalize().to_hex().to_string(),
            failed: self
                .failed
                .iter()
                .map(|path| ToldPath::from(&**path))
                .collect(),
            seconds: self.seconds,
            statistics: self.statistics,
        }
    }
}

/// The error for a plan of the sender that the core refuses.
fn refused(refused: fabricast_proto::Refused) -> Error {
    Error::PeerLost(format!("the sender's plan makes no sense: {refused}"))
}
