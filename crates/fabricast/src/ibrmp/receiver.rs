//! A receiver's end: what arrives, the files that it makes, and its requests (spec 7.4, 7.8).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use fabricast_proto::ibrmp::{
    Body, Credits, Extent, Failure, Fd, FileId, Frame, Message, Name, Receiver, ReceiverConfig,
    ReceiverEvent, ReceiverOutput, SLOTS_MAX, decode,
};
use fabricast_proto::{NodeId, Time};

use super::sender::check_news;
use super::storing::Storing;
use super::{ADDRESS, Fingerprint, Messages, SENDER};
use crate::bootstrap::Control;
use crate::bootstrap::message::{Channel, ToSender};
use crate::error::{Error, exit};
use crate::net::Net;
use crate::object::{Destination, UnprovenFile, check_space, safe_name};
use crate::text::shown;
use crate::transport::{Counters, GroupAddress, NodeAddress, Transport};
use crate::waker::Waker;

/// Bytes of files that arrive before their BOF, which wait for it together. DATA messages beyond
/// count as lost.
const EARLY_MAX: usize = 4 << 20;
/// Holes of all files together, at most.
const HOLES_MAX: usize = 1 << 16;
/// How long DATA of a file must have stayed away until its EOF counts: by another way, it may
/// overtake what a queue still holds.
const SETTLED: Duration = Duration::from_millis(10);
/// Files that may wait for the storing thread; each has two descriptors.
const STORING_MAX: usize = 64;
/// Most credits that a receiver grants.
const CREDITS_MAX: u32 = 1024;

/// What a receiver knows before it takes part.
#[derive(Clone, Debug)]
pub struct ReceiverPlan {
    /// Number of this receiver.
    pub node: NodeId,
    /// Where files go.
    pub destination: Destination,
    /// The only name that a file may have; `None`: any that is a name here.
    pub name: Option<String>,
    /// Number of files that the sender has offered.
    pub files: u64,
    /// Bytes of all these files together.
    pub len: u64,
    /// Bytes that stay free on the file system; `None`: the default.
    pub reserve: Option<u64>,
}

/// What has become of a file.
#[derive(Debug)]
pub enum FileOutcome {
    /// It is proven, and has its name: its path and its length in bytes.
    Stored(PathBuf, u64),
    /// It will not be here: its path, if its name is known, and why.
    Failed(Option<PathBuf>, Error),
}

/// A file that is coming.
#[derive(Default)]
struct Coming {
    /// The file; `None`: the BOF is not here.
    file: Option<UnprovenFile>,
    /// What has come before the BOF: positions and bytes.
    early: Vec<(u64, Vec<u8>)>,
    /// Whether all of it is here, and the sender is to say what proves it.
    is_complete: bool,
    /// Bytes that are here.
    placed: u64,
    /// When DATA last came by multicast.
    last: Option<Time>,
    /// The EOF, if it has overtaken multicast.
    eof: Option<Message>,
}

impl Coming {
    /// Whether a message is the EOF of this file and what it lacks may still come by multicast.
    fn is_arriving(&self, now: Time, message: &Message) -> bool {
        let Body::Eof { len } = message.body else {
            return false;
        };
        let comes = self.last.is_some_and(|last| now.since(last) < SETTLED);
        comes && self.placed < len
    }
}

/// The receiver of a sender's files.
pub struct FileReceiver {
    net: Net,
    plan: ReceiverPlan,
    /// The machine, once the channel is open.
    machine: Option<Receiver>,
    coming: BTreeMap<FileId, Coming>,
    /// Bytes that wait for BOFs.
    early: usize,
    storing: Storing,
    /// Files in the storing thread: paths and lengths.
    being_stored: BTreeMap<FileId, (PathBuf, u64)>,
    /// The slot of each file of which the receiver has heard.
    slots: BTreeMap<FileId, Fd>,
    /// Lengths of the files that the sender has announced, and their sum.
    announced: (BTreeMap<FileId, u64>, u64),
    /// Bytes that have been written.
    placed: u64,
    /// DATA messages that have arrived, and how many brought nothing new.
    data: (u64, u64),
    outcomes: Vec<(FileId, FileOutcome)>,
    /// Fingerprints of the files that were stored.
    fingerprints: BTreeMap<FileId, Fingerprint>,
    messages: Messages,
}

/// The error for a sender that breaks the rules.
fn absurd(what: &str) -> Error {
    Error::PeerLost(format!("what the sender sends makes no sense: {what}"))
}

/// The error for a connection that takes nothing.
fn lost(e: std::io::Error) -> Error {
    Error::PeerLost(format!("the sender is gone: {e}"))
}

impl FileReceiver {
    /// Joins the group. Only datagrams that come from `sender` count.
    ///
    /// # Errors
    /// The network or a thread cannot be used.
    pub fn new(
        mut net: Net,
        sender: &NodeAddress,
        group: Option<&GroupAddress>,
        plan: ReceiverPlan,
        waker: &Waker,
    ) -> Result<FileReceiver, Error> {
        net.peer(SENDER, sender);
        if let Some(group) = group {
            net.join(ADDRESS, group, true);
        }
        Ok(FileReceiver {
            net,
            plan,
            machine: None,
            coming: BTreeMap::new(),
            early: 0,
            storing: Storing::start(waker.clone())?,
            being_stored: BTreeMap::new(),
            slots: BTreeMap::new(),
            announced: (BTreeMap::new(), 0),
            placed: 0,
            data: (0, 0),
            outcomes: Vec::new(),
            fingerprints: BTreeMap::new(),
            messages: Messages::default(),
        })
    }

    /// The sender has opened the channel.
    ///
    /// # Errors
    /// It was open, or its numbers make no sense.
    pub fn open(&mut self, channel: &Channel) -> Result<(), Error> {
        let Channel {
            first,
            slots,
            messages,
            batch,
        } = *channel;
        let is_sound = first > 0
            && (1..=SLOTS_MAX).contains(&slots)
            && (1..=CREDITS_MAX).contains(&messages)
            && (1..=messages).contains(&batch);
        if !is_sound || self.machine.is_some() {
            return Err(absurd("the numbers of its channel"));
        }
        self.machine = Some(Receiver::new(ReceiverConfig {
            slots,
            first: FileId(first),
            credits: Credits { messages, batch },
            holes_max: HOLES_MAX,
        }));
        Ok(())
    }

    /// What was received and sent.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// DATA messages that have arrived, and how many of them brought nothing new.
    pub fn data(&self) -> (u64, u64) {
        self.data
    }

    /// Counters of the network.
    pub fn counters(&self) -> Counters {
        self.net.counters()
    }

    /// Bytes of files that are here.
    pub fn placed(&self) -> u64 {
        self.placed
    }

    /// The BLAKE3 hash of the hashes of all files that were stored, in the order of their numbers.
    pub fn root(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for fingerprint in self.fingerprints.values() {
            hasher.update(fingerprint.as_bytes());
        }
        hasher.finalize()
    }

    /// Whether no file is under way.
    pub fn is_idle(&self) -> bool {
        let machine = self.machine.as_ref();
        self.coming.is_empty()
            && self.being_stored.is_empty()
            && machine.is_none_or(|m| m.open_files() == 0 && m.waiting() == 0)
    }

    /// Whether so many files wait to be stored that the sender should be heard later. It opens no
    /// more files meanwhile.
    pub fn is_full(&self) -> bool {
        self.being_stored.len() >= STORING_MAX
    }

    /// What has become of files since the last call.
    pub fn outcomes(&mut self) -> Vec<(FileId, FileOutcome)> {
        std::mem::take(&mut self.outcomes)
    }

    /// Takes what has arrived by multicast, and what was stored. Returns whether there was any.
    ///
    /// # Errors
    /// A file cannot be stored, the network cannot be used, or the sender breaks the rules.
    pub fn step(&mut self, now: Time, control: &mut Control) -> Result<bool, Error> {
        let mut arrived = Vec::new();
        let count = self
            .net
            .recv(now, &mut |arrival| {
                if arrival.from == Some(SENDER) {
                    arrived.push(arrival.bytes().to_vec());
                }
            })
            .map_err(|e| Error::io("receiving", e))?;
        check_news(&mut self.net)?;
        for datagram in arrived {
            // What makes no sense as a message is as good as lost.
            if let Ok((Frame::Message(message), payload)) = decode(&datagram)
                && self.machine.is_some()
                && self.is_plausible(&message)
                && self.is_in_slot(&message)
            {
                self.messages.multicast(&message);
                self.take(&message, payload, true)?;
                if let Some(coming) = self.coming.get_mut(&message.file) {
                    coming.last = Some(now);
                }
                self.poll(control)?;
            }
        }
        self.settle(now, control)?;
        let mut is_busy = count > 0;
        while let Some((id, stored)) = self.storing.done() {
            is_busy = true;
            self.stored(id, stored, control)?;
        }
        Ok(is_busy)
    }

    /// Passes on the EOFs of files of which no more comes by multicast.
    fn settle(&mut self, now: Time, control: &mut Control) -> Result<(), Error> {
        let mut settled = Vec::new();
        for coming in self.coming.values_mut() {
            if let Some(eof) = &coming.eof
                && !coming.is_arriving(now, eof)
            {
                settled.extend(coming.eof.take());
            }
        }
        for eof in settled {
            self.take(&eof, &[], false)?;
            self.poll(control)?;
        }
        Ok(())
    }

    /// Waits for the network or the waker, at most so long.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let holds = self.coming.values().any(|coming| coming.eof.is_some());
        let timeout = if holds { timeout.min(SETTLED) } else { timeout };
        let waited = self.net.wait(Some(timeout));
        waited.map_err(|e| Error::io("waiting for the network", e))
    }

    /// A frame has come by the channel.
    ///
    /// # Errors
    /// As [`FileReceiver::step`].
    pub fn frame(&mut self, now: Time, bytes: &[u8], control: &mut Control) -> Result<(), Error> {
        let strange = |_| absurd("a frame of its channel");
        let (frame, payload) = decode(bytes).map_err(strange)?;
        self.messages.received(SENDER.0, &frame);
        let Some(machine) = &mut self.machine else {
            return Err(absurd("a frame before its channel is open"));
        };
        match &frame {
            Frame::Ack(messages) => machine
                .acknowledged(*messages)
                .map_err(|_| absurd("an ACK for messages that were never sent"))?,
            Frame::Message(message) => {
                if !self.is_plausible(message) {
                    return Err(absurd("more files, or longer ones, than it has offered"));
                }
                if !self.is_in_slot(message) {
                    self.move_to(message);
                }
                if let Some(coming) = self.coming.get_mut(&message.file)
                    && coming.eof.is_none()
                    && coming.is_arriving(now, message)
                {
                    coming.eof = Some(message.clone());
                    return Ok(());
                }
                self.take(message, payload, false)?;
            }
        }
        self.poll(control)
    }

    /// Whether a message is about files as the sender has offered them. Multicast can be forged.
    fn is_plausible(&self, message: &Message) -> bool {
        let (lens, sum) = &self.announced;
        let known = lens.get(&message.file).copied();
        let most = self.plan.len;
        (1..=self.plan.files).contains(&message.file.0)
            && match message.body {
                Body::Bof { len, .. } => {
                    known == Some(len) || known.is_none() && len <= most.saturating_sub(*sum)
                }
                Body::Data { offset, len } => offset + u64::from(len) <= most,
                _ => true,
            }
    }

    /// Whether the file of a message is in the slot that the message says, as far as that is known.
    /// The first message of a file says it.
    fn is_in_slot(&mut self, message: &Message) -> bool {
        *self.slots.entry(message.file).or_insert(message.fd) == message.fd
    }

    /// The channel says that a file is in another slot than a datagram had said, which was damaged
    /// or forged. What came for that slot is void.
    fn move_to(&mut self, message: &Message) {
        self.slots.insert(message.file, message.fd);
        self.forget(message.file);
    }

    /// Gives up the files that are under way: the sender has closed all files, and says nothing
    /// more about these.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn give_up(&mut self, control: &mut Control) -> Result<(), Error> {
        if let Some(machine) = &mut self.machine {
            machine.disconnected();
        }
        let complete = self.coming.keys().copied().collect::<Vec<_>>();
        self.poll(control)?;
        for id in complete {
            if self.forget(id).is_some_and(|coming| coming.is_complete) {
                let why = format!("the sender does not say what proves file {}", id.0);
                self.failed(id, None, Error::PeerLost(why), control)?;
            }
        }
        Ok(())
    }

    /// Forgets what has come of a file.
    fn forget(&mut self, id: FileId) -> Option<Coming> {
        let coming = self.coming.remove(&id)?;
        let early: usize = coming.early.iter().map(|(_, bytes)| bytes.len()).sum();
        self.early -= early;
        if let (Some(eof), Some(machine)) = (&coming.eof, &mut self.machine) {
            // It has used a credit, which its ACK returns.
            let _ = machine.channel(eof);
        }
        Some(coming)
    }

    /// The sender says what proves a file; `None`: it could not read the file.
    ///
    /// # Errors
    /// Nothing was asked.
    pub fn digest(
        &mut self,
        file: u64,
        hash: Option<String>,
        control: &mut Control,
    ) -> Result<(), Error> {
        let id = FileId(file);
        let is_asked = self.coming.get(&id).is_some_and(|c| c.is_complete);
        let file = self.coming.remove(&id).filter(|_| is_asked);
        let Some(file) = file.and_then(|coming| coming.file) else {
            return Err(absurd("the hash of a file that is not complete here"));
        };
        match hash {
            Some(hash) => {
                let len = self.announced.0.get(&id).copied().unwrap_or(0);
                self.being_stored.insert(id, (file.path(), len));
                self.storing.store(id, file, hash);
                Ok(())
            }
            None => {
                let text = format!(
                    "the sender could not read {} to its end",
                    shown(&file.path())
                );
                self.failed(id, Some(file.path()), Error::SourceChanged(text), control)
            }
        }
    }

    /// Takes in a message. Only the bytes that the machine wants are written.
    fn take(&mut self, message: &Message, payload: &[u8], is_multicast: bool) -> Result<(), Error> {
        let Some(machine) = &mut self.machine else {
            return Ok(());
        };
        let coming = self.coming.get(&message.file);
        if let Body::Data { .. } = message.body {
            self.data.0 += 1;
            let has_bof = coming.is_some_and(|c| c.file.is_some());
            if !has_bof && self.early + payload.len() > EARLY_MAX {
                return match is_multicast {
                    true => Ok(()), // as good as lost
                    false => Err(absurd("bytes of a file whose name it does not tell")),
                };
            }
        }
        let extent = match is_multicast {
            true => machine.multicast(message),
            false => machine
                .channel(message)
                .map_err(|_| absurd("a message that it may not send, or not yet"))?,
        };
        let Body::Data { offset, .. } = message.body else {
            return Ok(());
        };
        let Some(Extent { file, range, .. }) = extent else {
            self.data.1 += 1;
            return Ok(());
        };
        let bytes = &payload[(range.start - offset) as usize..(range.end - offset) as usize];
        self.write(file, range.start, bytes)
    }

    fn write(&mut self, id: FileId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.placed += bytes.len() as u64;
        let coming = self.coming.entry(id).or_default();
        coming.placed += bytes.len() as u64;
        match &mut coming.file {
            Some(file) => file.write(offset, bytes),
            None => {
                self.early += bytes.len();
                coming.early.push((offset, bytes.to_vec()));
                Ok(())
            }
        }
    }

    fn event(&mut self, event: ReceiverEvent, control: &mut Control) -> Result<(), Error> {
        match event {
            ReceiverEvent::Announced {
                fd,
                file,
                len,
                name,
            } if self.slots.get(&file) == Some(&fd) => self.announced(file, len, &name),
            ReceiverEvent::Announced { .. } => Ok(()),
            ReceiverEvent::Complete(fd, file) => {
                if self.slots.get(&file) == Some(&fd)
                    && let Some(coming) = self.coming.get_mut(&file)
                {
                    coming.is_complete = true;
                }
                Ok(())
            }
            // A file of this number may be another one: the slot of this one was forged.
            ReceiverEvent::Failed(fd, file, _)
                if self.slots.get(&file) != Some(&fd) || self.fingerprints.contains_key(&file) =>
            {
                Ok(())
            }
            ReceiverEvent::Failed(_, file, why) => {
                let (path, error) = self.lost(file, why);
                self.failed(file, path, error, control)
            }
        }
    }

    /// Makes a file, of which some bytes may be here.
    fn announced(&mut self, id: FileId, len: u64, name: &Name) -> Result<(), Error> {
        let (lens, sum) = &mut self.announced;
        *sum += len;
        *sum -= lens.insert(id, len).unwrap_or(0);
        let destination = &self.plan.destination;
        let text = String::from_utf8_lossy(name.bytes());
        if destination.name.is_none() && safe_name(&text).is_none() {
            return Err(Error::Usage(format!(
                "the sender sends {text:?}, which is no name for a file here"
            )));
        }
        if self.plan.name.as_ref().is_some_and(|only| *only != text) {
            return Err(absurd("a file of another name than it has announced"));
        }
        let mut file = UnprovenFile::new(destination.clone(), name.bytes(), len)?;
        check_space(&file.path(), len, self.plan.reserve)?;
        let coming = self.coming.entry(id).or_default();
        for (offset, bytes) in std::mem::take(&mut coming.early) {
            self.early -= bytes.len();
            file.write(offset, &bytes)?;
        }
        coming.file = Some(file);
        Ok(())
    }

    /// Forgets a file that will not be complete. Returns its path, if that is known, and the error.
    fn lost(&mut self, id: FileId, why: Failure) -> (Option<PathBuf>, Error) {
        let coming = self.forget(id).unwrap_or_default();
        let path = coming.file.map(|file| file.path());
        let name = match &path {
            Some(path) => shown(path).to_string(),
            None => format!("file {}", id.0),
        };
        let error = match why {
            Failure::Timeout | Failure::Replaced => Error::Timeout(format!(
                "the sender closed {name} before all of it was here: its time had run out, or the \
                 sender could not read it"
            )),
            Failure::Contradiction => Error::Integrity(format!(
                "what the sender says of the length of {name} contradicts itself"
            )),
            Failure::Disconnected => Error::Timeout(format!(
                "the sender has closed all files, and {name} is not complete: a datagram was \
                 damaged or forged on the way"
            )),
        };
        (path, error)
    }

    /// Notes that a file has failed, and tells the sender.
    fn failed(
        &mut self,
        id: FileId,
        path: Option<PathBuf>,
        error: Error,
        control: &mut Control,
    ) -> Result<(), Error> {
        let unstored = ToSender::Unstored {
            file: id.0,
            code: error.exit_code(),
            reason: error.to_string(),
        };
        self.outcomes.push((id, FileOutcome::Failed(path, error)));
        control.say(&unstored).map_err(lost)
    }

    /// Takes note of what the thread has done with a file. Damage fails the file alone; a disk that
    /// takes no more ends the receiver.
    fn stored(
        &mut self,
        id: FileId,
        stored: Result<Fingerprint, Error>,
        control: &mut Control,
    ) -> Result<(), Error> {
        let (path, len) = self.being_stored.remove(&id).unwrap_or_default();
        match stored {
            Ok(fingerprint) => {
                self.fingerprints.insert(id, fingerprint);
                let proof = fingerprint.proof(self.plan.node).to_hex().to_string();
                let stored = ToSender::Stored { file: id.0, proof };
                control.say(&stored).map_err(lost)?;
                self.outcomes.push((id, FileOutcome::Stored(path, len)));
                Ok(())
            }
            Err(error) if error.exit_code() == exit::INTEGRITY => {
                self.failed(id, Some(path), error, control)
            }
            Err(error) => Err(error),
        }
    }

    /// Handles what the machine tells, and sends what it wants to send.
    fn poll(&mut self, control: &mut Control) -> Result<(), Error> {
        while let Some(machine) = &mut self.machine {
            let frame = match machine.poll() {
                ReceiverOutput::Send(message) => Frame::Message(message),
                ReceiverOutput::Ack(messages) => Frame::Ack(messages),
                ReceiverOutput::Event(event) => {
                    self.event(event, control)?;
                    continue;
                }
                ReceiverOutput::Wait => break,
            };
            self.messages.sent(SENDER.0, &frame);
            control.send(&frame).map_err(lost)?;
        }
        Ok(())
    }
}
