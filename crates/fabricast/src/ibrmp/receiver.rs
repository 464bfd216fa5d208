//! A receiver's end: what arrives, the files that it makes, and its requests (spec 7.4, 7.8).
//!
//! ```text
//!   multicast ─┐
//!              ├→ machine ─→ coming ─ TRANSFER_DONE → complete ─ digest → storing ─→ ended
//!   channel ───┘                                                            ↓  ↑
//!                                                                  mending: wrong sections
//! ```
//! Anybody on the network can send to the multicast address. So nothing that comes from there ends
//! anything: the length, the name and the proof of a file come from the sender itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabricast_proto::ibrmp::{
    Body, Credits, Extent, Failure, Fd, FileId, Frame, Message, Receiver, ReceiverConfig,
    ReceiverEvent, ReceiverOutput, SLOTS_MAX, decode,
};
use fabricast_proto::{NodeId, Time};

use super::coming::{ComingFiles, Key, Lacking, SETTLED};
use super::mending::{Answered, Mended, Mending};
use super::offer::{Offer, over_before};
use super::sender::check_news;
use super::storing::{Stored, Storing, Told};
use super::{ADDRESS, Fingerprint, Messages, SENDER};
use crate::bootstrap::Control;
use crate::bootstrap::message::{Channel, Digest, ToSender};
use crate::error::{Error, exit};
use crate::net::Net;
use crate::object::{Destination, FileMetadata, UnprovenFile, check_space};
use crate::text::shown;
use crate::transport::{Counters, GroupAddress, NodeAddress, Transport};
use crate::waker::Waker;

/// Holes of all files together, at most.
const HOLES_MAX: usize = 1 << 16;
/// Files that may be complete and not stored; each has two descriptors.
const UNSTORED_MAX: usize = 64;
/// Most credits that a receiver grants.
pub const CREDITS_MAX: u32 = 1024;

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
    /// It will not be here: its path, and why.
    Failed(PathBuf, Error),
    /// So many files whose names are not known will not be here, and why.
    Unnamed(u64, Error),
}

/// The receiver of a sender's files.
pub struct FileReceiver {
    net: Net,
    plan: ReceiverPlan,
    /// The machine, once the channel is open.
    machine: Option<Receiver>,
    offer: Offer,
    coming: ComingFiles,
    lacking: Lacking,
    /// Files that are complete, of which the sender is to say what proves them.
    complete: BTreeMap<FileId, UnprovenFile>,
    storing: Storing,
    /// Files in the storing thread: paths and lengths.
    being_stored: BTreeMap<FileId, (PathBuf, u64)>,
    mending: Mending,
    /// Files that were stored, or will not be here.
    ended: BTreeSet<FileId>,
    /// Bytes that have been written.
    placed: u64,
    /// Bytes of files that were stored.
    stored: u64,
    /// DATA messages that have arrived, and how many brought nothing new.
    data: (u64, u64),
    outcomes: Vec<FileOutcome>,
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

/// The error for a file that the sender could not read as it was.
fn unread(path: &Path) -> Error {
    let path = shown(path);
    Error::SourceChanged(format!(
        "the sender could not read {path} to its end as it was"
    ))
}

/// Whether an error concerns one file alone. Others, such as a full disk, concern all.
fn is_of_one_file(error: &Error) -> bool {
    matches!(error, Error::Exists(_)) || [exit::INTEGRITY, exit::USAGE].contains(&error.exit_code())
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
            offer: Offer::new(plan.files, plan.len),
            plan,
            machine: None,
            coming: ComingFiles::default(),
            lacking: Lacking::default(),
            complete: BTreeMap::new(),
            storing: Storing::start(waker.clone())?,
            being_stored: BTreeMap::new(),
            mending: Mending::default(),
            ended: BTreeSet::new(),
            placed: 0,
            stored: 0,
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
        let &Channel {
            next,
            slots,
            messages,
            batch,
            ..
        } = channel;
        let first = self.offer.take_part(&channel.open, next);
        let is_sound = (1..=SLOTS_MAX).contains(&slots)
            && (1..=CREDITS_MAX).contains(&messages)
            && (1..=messages).contains(&batch);
        let first = first.filter(|_| is_sound && self.machine.is_none());
        self.machine = Some(Receiver::new(ReceiverConfig {
            slots,
            first: first.ok_or_else(|| absurd("the numbers of its channel"))?,
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

    /// Bytes of files that were stored.
    pub fn stored_bytes(&self) -> u64 {
        self.stored
    }

    /// Blocks and bytes that came again because they had been damaged or forged on the way.
    pub fn mended(&self) -> Mended {
        self.mending.mended()
    }

    /// The BLAKE3 hash of the fingerprints of all files that were stored, in the order of their
    /// numbers.
    pub fn root(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for fingerprint in self.fingerprints.values() {
            hasher.update(fingerprint.as_bytes());
        }
        hasher.finalize()
    }

    /// Whether the machine has said all that it has to say.
    pub fn is_silent(&self) -> bool {
        self.machine.as_ref().is_none_or(|m| m.waiting() == 0)
    }

    /// Whether it is known what has become of each file up to the last one.
    pub fn has_all(&self, last: u64) -> bool {
        let mut files = self.offer.up_to(last);
        files.all(|file| self.ended.contains(&file))
    }

    /// Whether files are proven or stored, for which nothing has to come from the sender.
    pub fn is_storing(&self) -> bool {
        !self.being_stored.is_empty()
    }

    /// Whether files are proven, stored, or mended.
    pub fn is_working(&self) -> bool {
        self.is_storing() || !self.mending.is_empty()
    }

    /// Whether no file is complete that is not stored.
    pub fn is_idle(&self) -> bool {
        self.complete.is_empty() && !self.is_working()
    }

    /// Whether so many files wait to be proven, stored or mended that messages of the channel
    /// should wait, too. The sender then runs out of credits, and opens no more files. A file whose
    /// TRANSFER_DONE waits for a credit does not count: the credit comes only when messages are
    /// taken in. Such files keep their slots, so these bound their number.
    pub fn is_full(&self) -> bool {
        let waiting = self.machine.as_ref().map_or(0, Receiver::waiting_done);
        let complete = self.complete.len().saturating_sub(waiting);
        complete + self.being_stored.len() + self.mending.len() >= UNSTORED_MAX
    }

    /// What has become of files since the last call.
    pub fn outcomes(&mut self) -> Vec<FileOutcome> {
        std::mem::take(&mut self.outcomes)
    }

    /// Takes what has arrived by multicast, and what was stored. Returns whether there was any.
    ///
    /// # Errors
    /// Nothing can be stored, or the network or the connection cannot be used.
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
                && self.is_plausible(&message, payload)
            {
                self.messages.multicast(&message);
                self.take_multicast(&message, payload)?;
                self.coming.heard((message.fd, message.file), now);
                self.poll(control)?;
            }
        }
        self.settle(now, control)?;
        self.repeat(now, control)?;
        let mut is_busy = count > 0;
        while let Some((id, stored)) = self.storing.done()? {
            is_busy = true;
            self.stored(id, stored, control)?;
        }
        Ok(is_busy)
    }

    /// Passes on the EOFs of files of which no more comes by multicast.
    fn settle(&mut self, now: Time, control: &mut Control) -> Result<(), Error> {
        for eof in self.coming.settled(now) {
            self.take_channel(now, &eof, &[])?;
            self.poll(control)?;
        }
        Ok(())
    }

    /// Requests again what files lack of which the channel has brought nothing for long, although
    /// it was listened to.
    fn repeat(&mut self, now: Time, control: &mut Control) -> Result<(), Error> {
        if self.is_full() {
            self.lacking.postpone(now);
        }
        for (fd, file) in self.lacking.overdue(now) {
            if let Some(machine) = &mut self.machine {
                machine.repeat(fd, file);
            }
            self.poll(control)?;
        }
        Ok(())
    }

    /// Waits for the network or the waker, at most so long.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let timeout = match self.coming.holds() {
            true => timeout.min(SETTLED),
            false => timeout,
        };
        let waited = self.net.wait(Some(timeout));
        waited.map_err(|e| Error::io("waiting for the network", e))
    }

    /// A frame has come by the channel.
    ///
    /// # Errors
    /// As [`FileReceiver::step`]; or the sender breaks the rules of the channel.
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
                if !self.offer.name(message) {
                    return Err(absurd("more files, or longer ones, than it has offered"));
                }
                if self.coming.hold(now, message) {
                    return Ok(());
                }
                self.take_channel(now, message, payload)?;
            }
        }
        self.poll(control)
    }

    /// Whether a message by multicast may be one of the sender's, and does not make the files that
    /// are coming longer together than all that was offered.
    fn is_plausible(&self, message: &Message, payload: &[u8]) -> bool {
        let placed = self.coming.placed() + payload.len() as u64;
        let has_room = matches!(message.body, Body::Bof { .. }) || placed <= self.plan.len;
        self.offer.is_plausible(message) && has_room
    }

    /// Gives up the files that are under way: the sender has closed all files.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn give_up(&mut self, control: &mut Control) -> Result<(), Error> {
        if let Some(machine) = &mut self.machine {
            machine.disconnected();
        }
        self.poll(control)?;
        self.coming.clear();
        Ok(())
    }

    /// The sender does not say what proves the files that are complete, or does not send again what
    /// is wrong in them.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn give_up_complete(&mut self, control: &mut Control) -> Result<(), Error> {
        for id in std::mem::take(&mut self.complete).into_keys() {
            let why = format!("the sender does not say what proves file {}", id.0);
            self.failed(id, None, Error::PeerLost(why), control)?;
        }
        for (id, path) in self.mending.give_up() {
            let why = format!(
                "the sender does not send again what is wrong in {}",
                shown(&path)
            );
            self.failed(id, Some(path), Error::PeerLost(why), control)?;
        }
        Ok(())
    }

    /// Counts the files up to `last` that are not here as failed: the sender has closed them.
    /// `unread`: number of further files that the sender could not read, and has not opened.
    /// `names`: what the sender has said of the files that are closed.
    ///
    /// # Errors
    /// The connection is lost.
    pub fn close(
        &mut self,
        (last, unread): (u64, u64),
        names: &BTreeMap<u64, String>,
        control: &mut Control,
    ) -> Result<(), Error> {
        if unread > 0 {
            let text = format!("the sender could not read {unread} further files");
            let why = Error::SourceChanged(text);
            self.outcomes.push(FileOutcome::Unnamed(unread, why));
        }
        let over = self.offer.over_before(last);
        if over > 0 {
            let why = Error::Refused(over_before("this receiver", over));
            self.outcomes.push(FileOutcome::Unnamed(over, why));
        }
        let closed = self.offer.up_to(last);
        let missing: Vec<FileId> = closed.filter(|id| !self.ended.contains(id)).collect();
        for id in missing {
            let path = names.get(&id.0).map(|name| self.path(name));
            let name = match &path {
                Some(path) => shown(path).to_string(),
                None => format!("file {}", id.0),
            };
            let error = Error::Timeout(format!(
                "the sender closed {name} before all of it was here: its time had run out, or the \
                 sender could not read it"
            ));
            self.failed(id, path, error, control)?;
        }
        Ok(())
    }

    /// A file that the sender could not read: its number, if it was opened, and its name.
    pub fn failed_at_sender(&mut self, file: Option<u64>, name: &str) {
        let is_new = |id| self.offer.contains(id) && self.ended.insert(id);
        if file.map(FileId).is_none_or(is_new) {
            let path = self.path(name);
            let error = unread(&path);
            self.outcomes.push(FileOutcome::Failed(path, error));
        }
    }

    /// The path of a file of this name.
    fn path(&self, name: &str) -> PathBuf {
        UnprovenFile::path(&self.plan.destination, name)
    }

    /// Takes away what has come of a file.
    fn remove(&mut self, fd: Fd, id: FileId) -> Option<UnprovenFile> {
        self.lacking.remove((fd, id));
        let (file, eof) = self.coming.remove((fd, id));
        if let (Some(eof), Some(machine)) = (eof, &mut self.machine) {
            // It has used a credit, which its ACK returns.
            let _ = machine.channel(&eof);
        }
        file
    }

    /// The sender says what proves a file, and what it is beside its bytes.
    ///
    /// # Errors
    /// Nothing was asked.
    pub fn digest(&mut self, digest: Digest, control: &mut Control) -> Result<(), Error> {
        let id = FileId(digest.file);
        let Some(file) = self.complete.remove(&id) else {
            return Err(absurd("the hash of a file that is not complete here"));
        };
        let path = self.path(&digest.name);
        let Some(hash) = digest.hash else {
            let error = unread(&path);
            return self.failed(id, Some(path), error, control);
        };
        if self
            .plan
            .name
            .as_ref()
            .is_some_and(|only| *only != digest.name)
        {
            let text = "the sender has announced another name than this file has";
            return self.failed(id, Some(path), Error::Integrity(text.into()), control);
        }
        let len = self.offer.len_of(id).unwrap_or(0);
        let told = Told {
            hash,
            metadata: FileMetadata {
                name: digest.name,
                len,
                mode: digest.mode,
                mtime: (digest.mtime, digest.mtime_ns),
                owner: digest.owner,
            },
        };
        self.being_stored.insert(id, (path, len));
        self.storing.store(id, file, told);
        Ok(())
    }

    /// Bytes that were asked for to mend a file.
    ///
    /// # Errors
    /// Nothing was asked, or nothing can be stored.
    pub fn bulk(&mut self, bytes: &[u8], control: &mut Control) -> Result<(), Error> {
        let Answered { id, path, result } = self.mending.take(bytes, control)?;
        match result {
            Ok(None) => Ok(()),
            Ok(Some((file, told))) => {
                self.being_stored.insert(id, (path, told.metadata.len));
                self.storing.store(id, file, told);
                Ok(())
            }
            Err(error) if is_of_one_file(&error) || matches!(error, Error::SourceChanged(_)) => {
                self.failed(id, Some(path), error, control)
            }
            Err(error) => Err(error),
        }
    }

    /// Takes in a message by multicast, which is plausible.
    fn take_multicast(&mut self, message: &Message, payload: &[u8]) -> Result<(), Error> {
        let Some(machine) = &mut self.machine else {
            return Ok(());
        };
        let extent = machine.multicast(message);
        self.place(message, payload, extent)
    }

    /// Takes in a message by the channel.
    fn take_channel(&mut self, now: Time, message: &Message, payload: &[u8]) -> Result<(), Error> {
        let Some(machine) = &mut self.machine else {
            return Ok(());
        };
        let extent = machine
            .channel(message)
            .map_err(|_| absurd("a message that it may not send, or not yet"))?;
        let key = (message.fd, message.file);
        match message.body {
            Body::Eof { .. } if machine.under_way().any(|open| open == key) => {
                self.lacking.add(key, now);
            }
            Body::Eof { .. } => {}
            _ => self.lacking.answered(key, now),
        }
        self.place(message, payload, extent)
    }

    /// Writes the bytes of a message that the machine wants.
    fn place(
        &mut self,
        message: &Message,
        payload: &[u8],
        extent: Option<Extent>,
    ) -> Result<(), Error> {
        let Body::Data { offset, .. } = message.body else {
            return Ok(());
        };
        self.data.0 += 1;
        let Some(extent) = extent else {
            self.data.1 += 1;
            return Ok(());
        };
        self.begin((extent.fd, extent.file))?;
        let range = &extent.range;
        let bytes = &payload[(range.start - offset) as usize..(range.end - offset) as usize];
        self.placed += bytes.len() as u64;
        self.coming.place(&extent, bytes)
    }

    fn event(&mut self, event: ReceiverEvent, control: &mut Control) -> Result<(), Error> {
        match event {
            ReceiverEvent::Announced { fd, file, .. } => self.begin((fd, file)),
            ReceiverEvent::Complete(fd, file) => {
                let unproven = self.remove(fd, file);
                self.complete
                    .extend(unproven.map(|unproven| (file, unproven)));
                Ok(())
            }
            ReceiverEvent::Failed(fd, file, why) => {
                self.remove(fd, file);
                if why != Failure::Contradiction {
                    // At the end the sender says which files there were, and how they are called.
                    return Ok(());
                }
                let error = Error::Integrity(format!(
                    "what the sender says of the length of file {} contradicts itself",
                    file.0
                ));
                self.failed(file, None, error, control)
            }
        }
    }

    /// Makes a file when its first message is here, whatever that is. The disk must have room for
    /// what is still to come of the offer: a length by multicast may be forged.
    fn begin(&mut self, key: Key) -> Result<(), Error> {
        if self.coming.contains(key) {
            return Ok(());
        }
        let destination = &self.plan.destination;
        let rest = self.plan.len.saturating_sub(self.placed);
        check_space(&destination.root.join("x"), rest, self.plan.reserve)?;
        let file = UnprovenFile::new(destination.clone())?;
        self.coming.begin(key, file);
        Ok(())
    }

    /// Notes that a file has failed, and tells the sender. Does nothing if it has ended already.
    fn failed(
        &mut self,
        id: FileId,
        path: Option<PathBuf>,
        error: Error,
        control: &mut Control,
    ) -> Result<(), Error> {
        if !self.ended.insert(id) {
            return Ok(());
        }
        let unstored = ToSender::Unstored {
            file: id.0,
            code: error.exit_code(),
            reason: error.to_string(),
        };
        self.outcomes.push(match path {
            Some(path) => FileOutcome::Failed(path, error),
            None => FileOutcome::Unnamed(1, error),
        });
        control.say(&unstored).map_err(lost)
    }

    /// Takes note of what the thread has done with a file. What concerns one file fails it alone; a
    /// disk that takes no more ends the receiver.
    fn stored(&mut self, id: FileId, stored: Stored, control: &mut Control) -> Result<(), Error> {
        let (path, len) = self.being_stored.remove(&id).unwrap_or_default();
        match stored {
            Stored::Named(fingerprint) => {
                self.ended.insert(id);
                self.stored += len;
                self.fingerprints.insert(id, fingerprint);
                let proof = fingerprint.proof(self.plan.node).to_hex().to_string();
                let stored = ToSender::Stored { file: id.0, proof };
                control.say(&stored).map_err(lost)?;
                self.outcomes.push(FileOutcome::Stored(path, len));
                Ok(())
            }
            Stored::Wrong(again, sections) => {
                match self.mending.begin(id, path.clone(), again, sections) {
                    true => self.mending.ask(control),
                    false => {
                        let error = Error::Integrity(format!(
                            "what is here of {} is not what the sender sent, although the sender \
                             has sent it again: check this host's disk and memory; it was not \
                             stored",
                            shown(&path)
                        ));
                        self.failed(id, Some(path), error, control)
                    }
                }
            }
            Stored::Failed(error) if is_of_one_file(&error) => {
                self.failed(id, Some(path), error, control)
            }
            Stored::Failed(error) => Err(error),
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
