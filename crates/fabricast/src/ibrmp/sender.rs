//! The sender's end: files, multicast, and the answers by reliable channels (spec 7.3, 7.8).
//!
//! This is P3's coordinator: it has the machine, multicasts, and judges what comes in. Workers read
//! the bytes of answers and write them to the connections ([`crate::bootstrap`]).
//!
//! Answers go before multicast, so that receivers that lose much do not get ever more behind.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fabricast_proto::ibrmp::{
    Body, ChannelError, Fd, FileId, Frame, Message, Name, ReceiverId, Sender, SenderConfig,
    SenderEvent, SenderOutput,
};
use fabricast_proto::{Dest, NodeId, Time};

use super::fingerprint::Sections;
use super::pace::{Pace, StandBack};
use super::peer::Peer;
use super::sent::OpenFile;
use super::{ADDRESS, CREDITS, Fingerprint, Messages, OVERHEAD, SentFiles, files};
use crate::bootstrap::message::{Channel, Digest, Lacking, Last, ToReceiver};
use crate::bootstrap::{ChannelFrame, Payload, PeerKey, Rendezvous};
use crate::error::Error;
use crate::net::Net;
use crate::object::{SourceSet, Unopened};
use crate::text::escaped;
use crate::transport::{GroupAddress, SLOTS, Transport, send_plain};

/// Multicast messages that are read and sent together.
const BURST: usize = 16;
/// Frames for channels in one step, so that they hold up neither multicast nor what comes in.
const ANSWERS: usize = 256;
/// How a sender sends.
#[derive(Clone, Copy, Debug)]
pub struct SenderPlan {
    /// Files that are open at once.
    pub slots: u16,
    /// Bytes of a file in a DATA message.
    pub block: u32,
    /// Time from the end of a file's multicast until it is closed.
    pub timeout: Duration,
    /// Bytes per second of multicast; `None`: as fast as the receivers take them.
    pub rate: Option<u64>,
}

/// What has happened at a sender.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Noticed {
    /// A file cannot be read, or has changed: the entry of the set, and why.
    FileFailed(u32, String),
    /// A file was closed before these receivers had it: its time has run out.
    Expired(u32, Vec<PeerKey>),
    /// A receiver has broken the rules of its channel, which is of no use now.
    Broken(PeerKey, &'static str),
}

/// A file that is open.
struct Open {
    fd: Fd,
    /// Its number in the set.
    entry: u32,
    source: Arc<OpenFile>,
    len: u64,
    /// Bytes of it that have been multicast.
    sent: u64,
    /// Their hashes.
    sections: Sections,
}

/// An entry of the set that could not be read as it was.
struct Unread {
    /// Its file, if that was opened.
    file: Option<FileId>,
    /// Its number in the set.
    entry: u32,
    /// The file that was to open next then.
    next: FileId,
}

/// The sender of the files of a set.
pub struct FileSender {
    machine: Sender,
    net: Net,
    set: Arc<SourceSet>,
    plan: SenderPlan,
    /// Entries that have not been opened, in their order.
    rest: VecDeque<u32>,
    open: BTreeMap<FileId, Open>,
    /// The number in the set of each file that has been opened, in their order.
    entries: Vec<u32>,
    /// What proves each file that has been multicast to its end.
    fingerprints: BTreeMap<FileId, Fingerprint>,
    /// The files that have been multicast to their ends, for the workers.
    sent: Arc<SentFiles>,
    /// Files that could not be read as they were.
    void: BTreeSet<FileId>,
    /// Entries that could not be read as they were.
    unread: Vec<Unread>,
    /// Bytes of all files that have been multicast.
    multicast: u64,
    peers: BTreeMap<PeerKey, Peer>,
    keys: BTreeMap<ReceiverId, PeerKey>,
    /// Multicast datagrams that the network did not take.
    held: VecDeque<(Vec<u8>, Vec<u8>)>,
    pace: Pace,
    stand_back: StandBack,
    noticed: VecDeque<Noticed>,
    /// Datagrams that came to the sender.
    foreign: u64,
    messages: Messages,
}

/// What a step has left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Whether there is more to do at once.
    pub is_busy: bool,
    /// When there is something to do, at the latest.
    pub wake: Option<Time>,
}

impl FileSender {
    /// A sender of the files of `set`, which multicasts to `group` and notes in `sent` what it has
    /// multicast.
    ///
    /// # Errors
    /// The set has something else than files, or the network cannot send to `group`.
    pub fn new(
        mut net: Net,
        group: &GroupAddress,
        set: Arc<SourceSet>,
        sent: Arc<SentFiles>,
        plan: SenderPlan,
    ) -> Result<FileSender, Error> {
        let rest = files(&set)?;
        net.join(ADDRESS, group, false);
        check_news(&mut net)?;
        let machine = Sender::new(SenderConfig {
            slots: plan.slots,
            block: plan.block,
            timeout: plan.timeout,
            credits: CREDITS,
        });
        Ok(FileSender {
            machine,
            net,
            set,
            plan,
            rest,
            open: BTreeMap::new(),
            entries: Vec::new(),
            fingerprints: BTreeMap::new(),
            sent,
            void: BTreeSet::new(),
            unread: Vec::new(),
            multicast: 0,
            peers: BTreeMap::new(),
            keys: BTreeMap::new(),
            held: VecDeque::new(),
            pace: Pace::new(plan.rate),
            stand_back: StandBack::default(),
            noticed: VecDeque::new(),
            foreign: 0,
            messages: Messages::default(),
        })
    }

    /// The network.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// What was sent and received.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// Datagrams that came to the sender, which expects none.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Rate of multicast in bytes per second.
    pub fn rate(&self) -> u64 {
        self.pace.rate()
    }

    /// Whether a receiver that joins now could still get a file.
    pub fn has_more(&self) -> bool {
        !self.rest.is_empty() || self.open.keys().any(|file| !self.has_ended(*file))
    }

    /// Whether all files have been sent and closed.
    pub fn is_over(&self) -> bool {
        self.rest.is_empty() && self.open.is_empty() && self.held.is_empty()
    }

    /// Admits a receiver, and opens its channel.
    pub fn join(&mut self, key: PeerKey, node: NodeId, rendezvous: &Rendezvous) {
        let joined = self.machine.join();
        let before = joined.next.0 - 1 - joined.open.len() as u64;
        let open = joined.open.iter().filter_map(|file| self.open.get(file));
        let bytes = self.multicast - open.map(|file| file.sent).sum::<u64>();
        let peer = Peer::new(joined.receiver, node, joined.next, (before, bytes));
        self.peers.insert(key, peer);
        self.keys.insert(joined.receiver, key);
        let channel = Channel {
            open: joined.open.iter().map(|file| file.0).collect(),
            next: joined.next.0,
            slots: self.plan.slots,
            messages: CREDITS.messages,
            batch: CREDITS.batch,
        };
        rendezvous.say(key, ToReceiver::Channel(channel));
    }

    /// A receiver has left, or is gone.
    pub fn leave(&mut self, key: PeerKey) {
        if let Some(peer) = self.peers.remove(&key) {
            self.keys.remove(&peer.id);
            self.machine.leave(peer.id);
        }
    }

    /// A frame has come by a receiver's channel.
    pub fn frame(&mut self, key: PeerKey, frame: &Frame, rendezvous: &Rendezvous) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        self.messages.received(peer.node.0, frame);
        let result = match frame {
            Frame::Ack(messages) => self.machine.acknowledged(peer.id, *messages),
            // What the machine refuses says nothing about losses.
            Frame::Message(message) => self.machine.channel(peer.id, message).map(|bytes| {
                self.pace.requested(peer.node.0, bytes);
                peer.requests(message.file, bytes);
            }),
        };
        if let Err(error) = result {
            let why = match error {
                ChannelError::NoCredit => "it sent a message without a credit",
                ChannelError::ExcessAck => "it acknowledged messages that were never sent",
                ChannelError::Direction => "it sent a message that only a sender sends",
            };
            self.noticed.push_back(Noticed::Broken(key, why));
            return;
        }
        if let Frame::Message(message) = frame
            && message.body == Body::TransferDone
            && message.file < self.machine.next_file()
        {
            rendezvous.say(key, ToReceiver::Digest(self.digest(message.file)));
        }
    }

    /// What proves a file that has been opened, and what it is beside its bytes.
    fn digest(&self, file: FileId) -> Digest {
        let entry = &self.set.manifest().entries()[self.entry(file) as usize];
        let is_void = self.void.contains(&file);
        let fingerprint = self.fingerprints.get(&file).filter(|_| !is_void);
        Digest {
            file: file.0,
            hash: fingerprint.map(|f| f.digest().to_hex().to_string()),
            name: String::from_utf8_lossy(&entry.name).into_owned(),
            mode: entry.mode,
            mtime: entry.mtime,
            mtime_ns: entry.mtime_ns,
            owner: entry.owner,
        }
    }

    /// Length in bytes of a file that has been opened.
    fn len_of(&self, file: FileId) -> u64 {
        self.set.file_len(self.entry(file))
    }

    /// The number in the set of a file that has been opened.
    fn entry(&self, file: FileId) -> u32 {
        self.entries[file.0 as usize - 1]
    }

    /// What a receiver is told when all files have been sent and closed.
    pub fn last_words(&self, key: PeerKey) -> Last {
        let name = |entry: u32| {
            let entry = &self.set.manifest().entries()[entry as usize];
            String::from_utf8_lossy(&entry.name).into_owned()
        };
        let Some(peer) = self.peers.get(&key) else {
            return Last::default();
        };
        // Files that failed before the receiver came are none of those that it takes part in.
        let unread = self.unread.iter().filter(|unread| unread.next >= peer.next);
        // Of those that it is not told, it knows what was opened: that is closed.
        let more = unread.clone().skip(Last::NAMES_MAX);
        let failed_more = more.filter(|unread| unread.file.is_none()).count() as u64;
        let failed = unread.map(|unread| Lacking {
            file: unread.file.map(|file| file.0),
            name: name(unread.entry),
        });
        let lacking = peer.lacks().iter().map(|file| Lacking {
            file: Some(file.0),
            name: name(self.entry(*file)),
        });
        Last {
            file: self.machine.next_file().0 - 1,
            failed: failed.take(Last::NAMES_MAX).collect(),
            failed_more,
            lacking: lacking.take(Last::NAMES_MAX).collect(),
        }
    }

    /// A receiver says that it has stored a file. Returns whether its proof is right. The file may
    /// have been closed a moment before.
    pub fn stored(&mut self, key: PeerKey, file: u64, proof: &str) -> bool {
        let file = FileId(file);
        let Some(fingerprint) = self.fingerprints.get(&file) else {
            return false;
        };
        let len = self.len_of(file);
        let Some(peer) = self.peers.get_mut(&key) else {
            return false;
        };
        peer.over(file, len, false);
        Fingerprint::is(&fingerprint.proof(peer.node), proof)
    }

    /// A receiver says that it will not have a file. Returns whether that was possible.
    pub fn unstored(&mut self, key: PeerKey, file: u64) -> bool {
        let is_known = (1..self.machine.next_file().0).contains(&file);
        if !is_known {
            return false;
        }
        let file = FileId(file);
        let (len, lacks) = (self.len_of(file), !self.void.contains(&file));
        let peer = self.peers.get_mut(&key);
        peer.map(|peer| peer.over(file, len, lacks)).is_some()
    }

    /// Whether a receiver has said of each file that it takes part in that it has stored it, or
    /// that it lacks it; and whether it lacks none.
    pub fn has_all(&self, key: PeerKey) -> (bool, bool) {
        let peer = self.peers.get(&key);
        peer.map_or((true, false), |p| {
            (p.awaited.is_empty(), p.lacks().is_empty())
        })
    }

    /// Number of files that were over before a receiver came. It gets none of them.
    pub fn before(&self, key: PeerKey) -> u64 {
        self.peers.get(&key).map_or(0, |peer| peer.before)
    }

    /// Bytes of the files that a receiver takes part in, as far as they have been multicast.
    pub fn offered(&self, key: PeerKey) -> u64 {
        self.peers
            .get(&key)
            .map_or(0, |peer| peer.offered(self.multicast))
    }

    /// Bytes that a receiver has of the files that have been multicast, as far as the sender knows.
    pub fn placed(&self, key: PeerKey) -> u64 {
        self.peers
            .get(&key)
            .map_or(0, |peer| peer.placed(self.multicast))
    }

    /// The BLAKE3 hash of the hashes of all files, in the order of their numbers; `None` if not all
    /// were read to their ends.
    pub fn root(&self) -> Option<blake3::Hash> {
        let is_whole = self.is_over() && self.unread.is_empty();
        let mut hasher = blake3::Hasher::new();
        for fingerprint in self.fingerprints.values() {
            hasher.update(fingerprint.as_bytes());
        }
        is_whole.then(|| hasher.finalize())
    }

    /// What has happened, the oldest first.
    pub fn noticed(&mut self) -> Option<Noticed> {
        self.noticed.pop_front()
    }

    /// Sends what can be sent, and takes what has arrived. Opens no file unless `may_open`.
    pub fn step(
        &mut self,
        now: Time,
        may_open: bool,
        rendezvous: &Rendezvous,
    ) -> Result<Step, Error> {
        let fails = |e| Error::io("sending and receiving", e);
        let foreign = &mut self.foreign;
        self.net.recv(now, &mut |_| *foreign += 1).map_err(fails)?;
        check_news(&mut self.net)?;
        while let Some((file, reason)) = self.sent.failed() {
            self.give_up(file, reason);
        }
        if may_open {
            self.open_files();
        }
        let (is_busy, expiry) = self.answer(now, rendezvous);
        let multicast = self.multicast(now)?;
        let wakes = [expiry, multicast.wake, self.net.due()];
        Ok(Step {
            is_busy: is_busy || multicast.is_busy,
            wake: wakes.into_iter().flatten().min(),
        })
    }

    /// Waits for the network or the waker, at most so long.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), Error> {
        let waited = self.net.wait(Some(timeout));
        waited.map_err(|e| Error::io("waiting for the network", e))
    }

    fn has_ended(&self, file: FileId) -> bool {
        self.fingerprints.contains_key(&file)
    }

    /// Opens files while there are more and a slot is free.
    fn open_files(&mut self) {
        while self.machine.open_files() < usize::from(self.plan.slots)
            && let Some(entry) = self.rest.pop_front()
        {
            if let Err(unopened) = self.open_file(entry) {
                // Files that are open now are closed later, and this one has its turn.
                if unopened.at_limit && self.machine.open_files() > 0 {
                    self.rest.push_front(entry);
                    return;
                }
                let reason = unopened.reason;
                self.unread.push(Unread {
                    file: None,
                    entry,
                    next: self.machine.next_file(),
                });
                self.noticed.push_back(Noticed::FileFailed(entry, reason));
            }
        }
    }

    fn open_file(&mut self, entry: u32) -> Result<(), Unopened> {
        let source = self.set.open(entry)?;
        let len = self.set.file_len(entry);
        let name = &self.set.manifest().entries()[entry as usize].name;
        let name =
            Name::new(name).ok_or_else(|| "its name is too long for P3's protocol".to_owned())?;
        let opened = self.machine.open(name, len);
        let (fd, id) = opened.map_err(|refused| format!("{refused:?}"))?;
        let file = Open {
            fd,
            entry,
            source: Arc::new(OpenFile::new(id, source, self.sent.clone())),
            len,
            sent: 0,
            sections: Sections::new(len),
        };
        self.open.insert(id, file);
        self.entries.push(entry);
        Ok(())
    }

    /// Sends what goes by channels. Returns whether there is more, and when a file expires.
    fn answer(&mut self, now: Time, rendezvous: &Rendezvous) -> (bool, Option<Time>) {
        let mut frames = Vec::new();
        let mut next = (true, None);
        for _ in 0..ANSWERS {
            let (to, frame) = match self.machine.poll(now) {
                SenderOutput::Send(to, message) => (to, Frame::Message(message)),
                SenderOutput::Ack(to, messages) => (to, Frame::Ack(messages)),
                SenderOutput::Event(event) => {
                    self.event(event);
                    continue;
                }
                SenderOutput::Wait(expiry) => {
                    next = (false, expiry);
                    break;
                }
            };
            let Some(&key) = self.keys.get(&to) else {
                continue;
            };
            let (len, payload) = match &frame {
                Frame::Message(message) => (message.data_len(), self.payload(message)),
                Frame::Ack(_) => (0, None),
            };
            if let Some(peer) = self.peers.get_mut(&key) {
                if let Frame::Message(message) = &frame {
                    peer.sent(message.file, len.into());
                }
                self.messages.sent(peer.node.0, &frame);
            }
            if len > 0 {
                self.stand_back.answered(now);
            }
            frames.push(ChannelFrame {
                peer: key,
                frame,
                payload,
            });
        }
        rendezvous.send(frames);
        next
    }

    /// What a worker reads the bytes of a DATA message from.
    fn payload(&self, message: &Message) -> Option<Arc<dyn Payload>> {
        match (&message.body, self.open.get(&message.file)) {
            (Body::Data { .. }, Some(file)) => Some(file.source.clone()),
            _ => None,
        }
    }

    fn event(&mut self, event: SenderEvent) {
        let SenderEvent::Closed {
            file: id,
            unfinished,
            ..
        } = event
        else {
            return;
        };
        let Some(file) = self.open.remove(&id) else {
            return;
        };
        let unfinished: Vec<PeerKey> = unfinished
            .iter()
            .filter_map(|id| self.keys.get(id).copied())
            .collect();
        let is_void = self.void.contains(&id);
        for key in &unfinished {
            if let Some(peer) = self.peers.get_mut(key) {
                peer.over(id, file.len, !is_void);
            }
        }
        if !unfinished.is_empty() && self.has_ended(id) && !is_void {
            self.noticed
                .push_back(Noticed::Expired(file.entry, unfinished));
        }
    }

    /// The bytes of a DATA message by multicast. A file that cannot be read is given up.
    fn read(&mut self, message: &Message) -> Vec<u8> {
        let Body::Data { offset, len } = message.body else {
            return Vec::new();
        };
        let mut bytes = vec![0; len as usize];
        let Some(file) = self.open.get(&message.file) else {
            return bytes;
        };
        if let Err(reason) = file.source.source().read(offset, &mut bytes) {
            self.give_up(message.file, reason);
        }
        bytes
    }

    /// Gives up a file that cannot be read as it was. A receiver that has proven it before is
    /// honest, and keeps it.
    fn give_up(&mut self, file: FileId, reason: String) {
        if !self.void.insert(file) {
            return;
        }
        let entry = self.entry(file);
        self.unread.push(Unread {
            file: Some(file),
            entry,
            next: self.machine.next_file(),
        });
        self.noticed.push_back(Noticed::FileFailed(entry, reason));
        if let Some(open) = self.open.get(&file) {
            self.machine.abandon(open.fd, file);
        }
        let len = self.len_of(file);
        for peer in self.peers.values_mut() {
            peer.over(file, len, false);
        }
    }

    /// Multicasts as much as may go now.
    fn multicast(&mut self, now: Time) -> Result<Step, Error> {
        let idle = |wake| Step {
            is_busy: false,
            wake,
        };
        if self.pace.due() > now {
            return Ok(idle(Some(self.pace.due())));
        }
        if self.held.is_empty()
            && self.machine.waiting() > 0
            && let Some(until) = self.stand_back.until(now)
        {
            return Ok(idle(Some(until)));
        }
        while self.held.len() < BURST
            && let Some(message) = self.machine.multicast(now)
        {
            let payload = self.read(&message);
            if self.void.contains(&message.file) {
                continue;
            }
            self.messages.multicast(&message);
            self.hash(&message, &payload);
            let mut head = Vec::with_capacity(OVERHEAD as usize);
            message.encode(&mut head);
            self.held.push_back((head, payload));
        }
        if self.held.is_empty() {
            return Ok(idle(None));
        }
        let batch: Vec<(Dest, &[u8], &[u8])> = self
            .held
            .iter()
            .take(SLOTS)
            .map(|(head, payload)| (Dest::Address(ADDRESS), &head[..], &payload[..]))
            .collect();
        let sent = send_plain(&mut self.net, now, &batch);
        let sent = sent.map_err(|e| Error::io("sending by multicast", e))?;
        let bytes: usize = batch[..sent]
            .iter()
            .map(|(_, h, p)| h.len() + p.len())
            .sum();
        let all = sent == batch.len();
        self.held.drain(..sent);
        self.pace.sent(now, bytes as u64);
        Ok(Step {
            is_busy: all,
            wake: None,
        })
    }

    /// Takes what is multicast into the hash of its file, and ends the hash with the file.
    fn hash(&mut self, message: &Message, payload: &[u8]) {
        let Some(file) = self.open.get_mut(&message.file) else {
            return;
        };
        file.sections.update(payload);
        let len = payload.len() as u64;
        file.sent += len;
        self.multicast += len;
        let end = match message.body {
            Body::Data { offset, .. } => offset + len,
            _ => 0,
        };
        if end == file.len {
            let sections = std::mem::replace(&mut file.sections, Sections::new(0));
            let (fingerprint, sections) = sections.finish();
            self.fingerprints.insert(message.file, fingerprint);
            self.sent.add(message.file, file.entry, file.len, sections);
            for peer in self.peers.values_mut() {
                peer.awaited.insert(message.file);
            }
        }
    }
}

/// Returns an error if the network can no longer be used.
pub(super) fn check_news(net: &mut Net) -> Result<(), Error> {
    while let Some(news) = net.news() {
        if let Some(failure) = news.failure() {
            let failure = std::io::Error::new(failure.kind(), failure.to_string());
            return Err(Error::io("using the network", failure));
        }
        if let crate::transport::News::JoinFailed(_, error) = news {
            return Err(Error::io("joining the multicast address", error));
        }
        tracing::info!(news = %escaped(&news.to_string()));
    }
    Ok(())
}
