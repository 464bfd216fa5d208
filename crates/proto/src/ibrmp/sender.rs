//! The sender's half of P3's protocol (P3.2, P3.5, P3.6, spec 7.3).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::credits::{Channel, ChannelError, Credits, Cut};
use super::message::{Body, DATA_MAX, FILE_LEN_MAX, Fd, FileId, Message, Name, SLOTS_MAX};
use super::slots::{Judgement, Slots};
use crate::mutant::{self, Mutant};
use crate::time::Time;

/// The configuration of a sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SenderConfig {
    /// Files that may be open at once, 1 to [`SLOTS_MAX`].
    pub slots: u16,
    /// Bytes of a file in each DATA message but the last, 1 to [`DATA_MAX`].
    pub block: u32,
    /// Time from the end of a file's multicast until the file is closed.
    pub timeout: Duration,
    /// Credits of each reliable channel, equal at the other end.
    pub credits: Credits,
}

/// A receiver, as its sender names it. The sender never uses a number again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReceiverId(pub u64);

/// The admission of a receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The receiver's name.
    pub receiver: ReceiverId,
    /// The first file that the receiver takes part in. The driver tells the receiver before it
    /// sends anything else by the reliable channel ([`super::ReceiverConfig::first`]).
    pub first: FileId,
    /// The files that are multicast now. Beside them, the receiver takes part in all files from
    /// `next` on; all others are closed to it.
    pub open: Vec<FileId>,
    /// The file that opens next.
    pub next: FileId,
}

/// Why a file cannot be opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// All slots have open files. A slot is free when a file is closed.
    NoSlot,
    /// The file is longer than [`FILE_LEN_MAX`].
    Length,
}

/// What a sender tells its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SenderEvent {
    /// A receiver has said TRANSFER_DONE.
    Done(Fd, FileId, ReceiverId),
    /// The file is closed: the driver needs its bytes no more.
    Closed {
        /// The slot, which is free.
        fd: Fd,
        /// The file.
        file: FileId,
        /// Number of receivers that the sender has noted before the EOF.
        noted: usize,
        /// Those of them that have not said TRANSFER_DONE: they have left, or the file was closed
        /// by its timeout or by the driver.
        unfinished: Vec<ReceiverId>,
    },
}

/// What a sender wants next, beside multicast.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SenderOutput {
    /// Send a message by the reliable channel of a receiver.
    Send(ReceiverId, Message),
    /// Send an accumulated ACK for this number of messages by the reliable channel of a receiver.
    Ack(ReceiverId, u32),
    /// Something has happened.
    Event(SenderEvent),
    /// Nothing to do before this time, which lies in the future, unless a message arrives; `None`:
    /// no file has a timeout.
    Wait(Option<Time>),
}

/// How far a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The BOF is to be multicast.
    Bof,
    /// The DATA message at this offset is to be multicast.
    Data(u64),
    /// The multicast has ended, and the receivers are noted. The file expires at this time.
    Ended(Time),
}

#[derive(Clone, Debug)]
struct File {
    id: FileId,
    name: Name,
    len: u64,
    phase: Phase,
    noted: usize,
    /// Noted receivers that are still to say TRANSFER_DONE.
    awaited: usize,
    /// Noted receivers that have left before.
    gone: Vec<ReceiverId>,
}

/// What one receiver has to do with the newest file of a slot.
#[derive(Clone, Copy, Debug)]
struct FileAtReceiver {
    file: FileId,
    is_noted: bool,
    is_done: bool,
    /// FILE_TIMEOUT has been put in the wait-list, once and for all.
    is_timeout_sent: bool,
    /// How often the sender has answered BOF_REQUEST.
    bofs: u64,
    /// Bytes that the sender has answered or is to answer.
    requested: u64,
}

/// How often a receiver gets each byte and the BOF by the channel, on average. One that keeps the
/// rules requests nothing twice, unless forged multicast has made it request what was ignored.
const ANSWERS_MAX: u64 = 2;

/// A response in the wait-list of a channel.
#[derive(Clone, Debug)]
struct Response {
    fd: Fd,
    file: FileId,
    kind: ResponseKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum ResponseKind {
    Bof,
    Data { offset: u64, end: u64 },
    Eof,
    FileTimeout,
}

#[derive(Clone, Debug)]
struct Peer {
    channel: Channel<Response>,
    /// What it has to do with the newest file of each slot.
    files: Vec<Option<FileAtReceiver>>,
}

impl Peer {
    fn file(&mut self, fd: Fd, file: FileId) -> &mut FileAtReceiver {
        let at = usize::from(fd.0);
        if self.files.len() <= at {
            self.files.resize(at + 1, None);
        }
        let state = &mut self.files[at];
        if state.is_none_or(|state| state.file != file) {
            *state = None;
        }
        state.get_or_insert(FileAtReceiver {
            file,
            is_noted: false,
            is_done: false,
            is_timeout_sent: false,
            bofs: 0,
            requested: 0,
        })
    }

    fn respond(&mut self, fd: Fd, file: FileId, kind: ResponseKind) {
        self.channel.add(Response { fd, file, kind });
    }

    /// Puts FILE_TIMEOUT in the wait-list, if that has not been done for this file.
    fn time_out(&mut self, fd: Fd, file: FileId) {
        let state = self.file(fd, file);
        let repeats = mutant::active(Mutant::TimeoutForEach);
        if !state.is_timeout_sent || repeats {
            state.is_timeout_sent = true;
            self.respond(fd, file, ResponseKind::FileTimeout);
        }
    }

    /// Removes what waits for this receiver about a slot, except FILE_TIMEOUT. Says whether there
    /// was something. A request is processed when nothing of its answer waits any more.
    fn drop_responses(&mut self, fd: Fd) -> bool {
        let mut requests = 0;
        let dropped = self.channel.retain(|response| match response.kind {
            _ if response.fd != fd => true,
            ResponseKind::FileTimeout => true,
            ResponseKind::Eof => false,
            ResponseKind::Bof | ResponseKind::Data { .. } => {
                requests += 1;
                false
            }
        });
        self.channel.processed(requests);
        dropped > 0
    }

    fn is_ready(&self) -> bool {
        self.channel.can_send() || self.channel.is_ack_due()
    }
}

/// The sender of files to receivers that come and go.
///
/// The driver asks [`Sender::multicast`] as often as its pace allows, passes in what arrives by the
/// reliable channels, and executes the outputs of [`Sender::poll`] up to [`SenderOutput::Wait`].
#[derive(Clone, Debug)]
pub struct Sender {
    config: SenderConfig,
    slots: Slots,
    files: BTreeMap<Fd, File>,
    /// Files that are multicast, in the order of their next turns.
    turns: VecDeque<Fd>,
    deadlines: BTreeSet<(Time, Fd)>,
    peers: BTreeMap<ReceiverId, Peer>,
    next_receiver: ReceiverId,
    /// Receivers to which something may go now.
    ready: BTreeSet<ReceiverId>,
    /// The receiver that was served last.
    served: ReceiverId,
    events: VecDeque<SenderEvent>,
}

impl Sender {
    /// A sender without files and receivers. Panics if a number of `config` is out of its range.
    pub fn new(config: SenderConfig) -> Sender {
        assert!((1..=SLOTS_MAX).contains(&config.slots));
        assert!((1..=DATA_MAX).contains(&config.block));
        Sender {
            config,
            slots: Slots::new(config.slots),
            files: BTreeMap::new(),
            turns: VecDeque::new(),
            deadlines: BTreeSet::new(),
            peers: BTreeMap::new(),
            next_receiver: ReceiverId(0),
            ready: BTreeSet::new(),
            served: ReceiverId(0),
            events: VecDeque::new(),
        }
    }

    /// Opens a file of `len` bytes, which is multicast from now on, in turn with the others.
    ///
    /// # Errors
    /// See [`Refusal`]; nothing has changed then.
    pub fn open(&mut self, name: Name, len: u64) -> Result<(Fd, FileId), Refusal> {
        if len > FILE_LEN_MAX {
            return Err(Refusal::Length);
        }
        let (fd, id) = self.slots.open().ok_or(Refusal::NoSlot)?;
        // A FILE_TIMEOUT that still waits says less than the messages of the new file.
        for peer in self.peers.values_mut() {
            peer.channel.retain(|response| response.fd != fd);
        }
        let file = File {
            id,
            name,
            len,
            phase: Phase::Bof,
            noted: 0,
            awaited: 0,
            gone: Vec::new(),
        };
        self.files.insert(fd, file);
        self.turns.push_back(fd);
        Ok((fd, id))
    }

    /// The driver cannot read the file, or gives it up. The file is closed, and every receiver
    /// that cannot know this otherwise gets FILE_TIMEOUT. Ignored if the file is not open.
    pub fn abandon(&mut self, fd: Fd, file: FileId) {
        if self.slots.judge(fd, file) == Judgement::Open {
            self.close(fd);
        }
    }

    /// Admits a receiver. It takes part in the files whose multicast has not ended, and in later
    /// ones.
    pub fn join(&mut self) -> Joined {
        let receiver = self.next_receiver;
        self.next_receiver = ReceiverId(receiver.0 + 1);
        let mut peer = Peer {
            channel: Channel::new(self.config.credits),
            files: Vec::new(),
        };
        let mut open: Vec<FileId> = self.turns.iter().map(|fd| self.files[fd].id).collect();
        open.sort_unstable();
        let next = self.slots.next_file();
        let first = open.first().copied().unwrap_or(next);
        // Multicast messages of these files may still arrive. The receiver must not wait for an
        // EOF, which was sent before it came.
        for fd in (0..self.config.slots).map(Fd) {
            let (open, last) = self.slots.tuple(fd);
            let newest = open.or(last).filter(|&file| file >= first);
            let Some(file) = newest.filter(|_| !self.turns.contains(&fd)) else {
                continue;
            };
            peer.time_out(fd, file);
            self.ready.insert(receiver);
        }
        if mutant::active(Mutant::GhostsAwaited) {
            for (&fd, file) in &mut self.files {
                if matches!(file.phase, Phase::Ended(_)) {
                    peer.file(fd, file.id).is_noted = true;
                    file.noted += 1;
                    file.awaited += 1;
                }
            }
        }
        self.peers.insert(receiver, peer);
        Joined {
            receiver,
            first,
            open,
            next,
        }
    }

    /// A receiver has left, or its channel has failed. No file waits for it any more.
    pub fn leave(&mut self, receiver: ReceiverId) {
        let Some(mut peer) = self.peers.remove(&receiver) else {
            return;
        };
        self.ready.remove(&receiver);
        let mut complete = Vec::new();
        for (&fd, file) in &mut self.files {
            let state = peer.file(fd, file.id);
            if state.is_noted && !state.is_done {
                file.gone.push(receiver);
                file.awaited -= 1;
                complete.extend((file.awaited == 0).then_some(fd));
            }
        }
        complete.into_iter().for_each(|fd| self.close(fd));
    }

    /// The next message to multicast; `None` if all open files have been multicast. Files take
    /// turns, a message each.
    pub fn multicast(&mut self, now: Time) -> Option<Message> {
        let fd = self.turns.pop_front()?;
        let file = self.files.get_mut(&fd)?;
        let (body, next) = match file.phase {
            Phase::Data(offset) => {
                let len = (file.len - offset).min(u64::from(self.config.block));
                let len = len as u32;
                (Body::Data { offset, len }, offset + u64::from(len))
            }
            Phase::Bof | Phase::Ended(_) => {
                let (len, name) = (file.len, file.name.clone());
                (Body::Bof { len, name }, 0)
            }
        };
        file.phase = Phase::Data(next);
        let message = Message {
            fd,
            file: file.id,
            body,
        };
        if next < file.len {
            self.turns.push_back(fd);
        } else {
            self.end(now, fd);
        }
        Some(message)
    }

    /// A message has arrived by the reliable channel of a receiver. Returns the number of bytes
    /// that the sender is going to send for it: what the rules forbid is ignored.
    ///
    /// # Errors
    /// [`ChannelError::NoCredit`] or [`ChannelError::Direction`]: the driver closes the channel and
    /// calls [`Sender::leave`].
    pub fn channel(
        &mut self,
        receiver: ReceiverId,
        message: &Message,
    ) -> Result<u64, ChannelError> {
        let Some(peer) = self.peers.get_mut(&receiver) else {
            return Ok(0);
        };
        let (fd, file) = (message.fd, message.file);
        peer.channel.received()?;
        let answer = match message.body {
            Body::BofRequest => Some(ResponseKind::Bof),
            Body::DataRequest { offset, len } => {
                let end = offset.saturating_add(len);
                Some(ResponseKind::Data { offset, end })
            }
            Body::TransferDone => None,
            _ => return Err(ChannelError::Direction),
        };
        let judgement = self.slots.judge(fd, file);
        let answered = match (judgement, answer) {
            (Judgement::Open, Some(kind)) => self.answer(receiver, fd, file, kind),
            (Judgement::Open, None) => {
                self.done(receiver, fd, file);
                None
            }
            (Judgement::Closed, Some(_)) => {
                peer.time_out(fd, file);
                None
            }
            (Judgement::Closed, None) | (Judgement::Ignored, _) => None,
        };
        if let Some(peer) = self.peers.get_mut(&receiver) {
            peer.channel.processed(u32::from(answered.is_none()));
            if peer.is_ready() {
                self.ready.insert(receiver);
            }
        }
        Ok(answered.unwrap_or(0))
    }

    /// An accumulated ACK has arrived by the reliable channel of a receiver.
    ///
    /// # Errors
    /// [`ChannelError::ExcessAck`]: the driver closes the channel and calls [`Sender::leave`].
    pub fn acknowledged(
        &mut self,
        receiver: ReceiverId,
        messages: u32,
    ) -> Result<(), ChannelError> {
        let Some(peer) = self.peers.get_mut(&receiver) else {
            return Ok(());
        };
        peer.channel.acknowledged(messages)?;
        if peer.is_ready() {
            self.ready.insert(receiver);
        }
        Ok(())
    }

    /// What the driver does next: events, then what goes to the receivers, one after another.
    pub fn poll(&mut self, now: Time) -> SenderOutput {
        while let Some(&(_, fd)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.close(fd);
        }
        if let Some(event) = self.events.pop_front() {
            return SenderOutput::Event(event);
        }
        loop {
            let after = ReceiverId(self.served.0 + 1);
            let next = self.ready.range(after..).next().or(self.ready.first());
            let Some(&receiver) = next else {
                return SenderOutput::Wait(self.deadlines.first().map(|&(at, _)| at));
            };
            self.served = receiver;
            let output = self.serve(receiver);
            if self
                .peers
                .get(&receiver)
                .is_none_or(|peer| !peer.is_ready())
            {
                self.ready.remove(&receiver);
            }
            if let Some(output) = output {
                return output;
            }
        }
    }

    /// The id of the file that opens next.
    pub fn next_file(&self) -> FileId {
        self.slots.next_file()
    }

    /// P3's tuple of a slot: the file that is open, and the last one before it.
    pub fn tuple(&self, fd: Fd) -> (Option<FileId>, Option<FileId>) {
        self.slots.tuple(fd)
    }

    /// Files that are open.
    pub fn open_files(&self) -> usize {
        self.files.len()
    }

    /// Responses that wait for credits, of all receivers.
    pub fn waiting(&self) -> usize {
        self.peers
            .values()
            .map(|peer| peer.channel.waiting().len())
            .sum()
    }

    /// Panics if an invariant is broken; tests call it after every step.
    pub fn invariants(&self) {
        let slots = usize::from(self.config.slots);
        let requests = self.config.credits.messages as usize;
        assert!(self.files.len() <= slots && self.turns.len() <= slots);
        assert!(self.deadlines.len() + self.turns.len() == self.files.len());
        for (receiver, peer) in &self.peers {
            peer.channel.invariants();
            // Requests cost their sender credits; beside them there is one EOF or FILE_TIMEOUT
            // for each slot.
            assert!(peer.channel.waiting().len() <= requests + slots);
            assert!(peer.files.len() <= slots);
            assert!(!peer.is_ready() || self.ready.contains(receiver));
        }
        for (&fd, file) in &self.files {
            assert!(file.awaited + file.gone.len() <= file.noted);
            assert_eq!(self.slots.tuple(fd).0, Some(file.id));
        }
    }

    /// One message or ACK for a receiver.
    fn serve(&mut self, receiver: ReceiverId) -> Option<SenderOutput> {
        let peer = self.peers.get_mut(&receiver)?;
        if let Some(messages) = peer.channel.ack() {
            return Some(SenderOutput::Ack(receiver, messages));
        }
        let (files, block) = (&self.files, u64::from(self.config.block));
        let mut processed = 0;
        let message = peer.channel.next(|response| {
            let (fd, file) = (response.fd, response.file);
            let message = |body| Message { fd, file, body };
            if response.kind == ResponseKind::FileTimeout {
                return Cut::Last(message(Body::FileTimeout));
            }
            // What waits for a file is removed when the file closes.
            let Some(open) = files.get(&fd) else {
                return Cut::Nothing;
            };
            match &mut response.kind {
                ResponseKind::Bof => {
                    processed += 1;
                    let (len, name) = (open.len, open.name.clone());
                    Cut::Last(message(Body::Bof { len, name }))
                }
                ResponseKind::Data { offset, end } => {
                    let len = (*end - *offset).min(block);
                    let body = Body::Data {
                        offset: *offset,
                        len: len as u32,
                    };
                    *offset += len;
                    if offset < end {
                        return Cut::First(message(body));
                    }
                    processed += 1;
                    Cut::Last(message(body))
                }
                _ => Cut::Last(message(Body::Eof { len: open.len })),
            }
        });
        peer.channel.processed(processed);
        message.map(|message| SenderOutput::Send(receiver, message))
    }

    /// Ends the multicast of a file: notes the receivers, sends each the EOF, starts the timeout.
    fn end(&mut self, now: Time, fd: Fd) {
        let Some(file) = self.files.get_mut(&fd) else {
            return;
        };
        let deadline = now + self.config.timeout;
        file.phase = Phase::Ended(deadline);
        self.deadlines.insert((deadline, fd));
        file.noted = self.peers.len();
        file.awaited = file.noted;
        for (&receiver, peer) in &mut self.peers {
            peer.file(fd, file.id).is_noted = true;
            peer.respond(fd, file.id, ResponseKind::Eof);
            self.ready.insert(receiver);
        }
        if file.noted == 0 {
            self.close(fd);
        }
    }

    /// Puts the answer to a request for an open file in the wait-list. Returns the number of bytes
    /// that it has; `None`: the rules forbid an answer.
    fn answer(
        &mut self,
        receiver: ReceiverId,
        fd: Fd,
        file: FileId,
        kind: ResponseKind,
    ) -> Option<u64> {
        let (peer, open) = (self.peers.get_mut(&receiver)?, self.files.get_mut(&fd)?);
        let state = *peer.file(fd, file);
        if matches!(open.phase, Phase::Ended(_)) && !state.is_noted {
            // The receiver came after the EOF. For it, the file is closed.
            peer.time_out(fd, file);
            return None;
        }
        if let Phase::Ended(deadline) = open.phase
            && mutant::active(Mutant::TimeoutRenewed)
        {
            self.deadlines.remove(&(deadline, fd));
            let deadline = deadline + self.config.timeout;
            self.deadlines.insert((deadline, fd));
            open.phase = Phase::Ended(deadline);
        }
        let ahead = mutant::active(Mutant::AnswersAhead);
        // What has not been multicast yet is not lost.
        let (has_bof, multicast) = match open.phase {
            _ if ahead => (true, open.len),
            Phase::Bof => (false, 0),
            Phase::Data(next) => (true, next),
            Phase::Ended(_) => (true, open.len),
        };
        if state.is_done || !has_bof {
            return None;
        }
        let state = peer.file(fd, file);
        let (kind, bytes) = match kind {
            ResponseKind::Data { offset, end } => {
                let end = end.min(multicast);
                let bytes = end.checked_sub(offset).filter(|&bytes| bytes > 0)?;
                let requested = state.requested.saturating_add(bytes);
                if requested > open.len.saturating_mul(ANSWERS_MAX) {
                    return None;
                }
                state.requested = requested;
                (ResponseKind::Data { offset, end }, bytes)
            }
            other => {
                if state.bofs == ANSWERS_MAX {
                    return None;
                }
                state.bofs += 1;
                (other, 0)
            }
        };
        peer.respond(fd, file, kind);
        Some(bytes)
    }

    /// A receiver has all of an open file.
    fn done(&mut self, receiver: ReceiverId, fd: Fd, file: FileId) {
        let (Some(peer), Some(open)) = (self.peers.get_mut(&receiver), self.files.get_mut(&fd))
        else {
            return;
        };
        let state = peer.file(fd, file);
        if !state.is_noted || state.is_done {
            return;
        }
        state.is_done = true;
        // It has by multicast what it had requested.
        peer.drop_responses(fd);
        open.awaited -= 1;
        self.events.push_back(SenderEvent::Done(fd, file, receiver));
        if open.awaited == 0 {
            self.close(fd);
        }
    }

    /// Closes a file: complete, expired, or given up. A receiver for which something about it still
    /// waits gets FILE_TIMEOUT instead. The other receivers send a request, which is judged then,
    /// or need nothing more. If no EOF has been sent, nothing makes a receiver send a request, and
    /// all receivers get FILE_TIMEOUT.
    fn close(&mut self, fd: Fd) {
        let Some(file) = self.files.remove(&fd) else {
            return;
        };
        self.slots.close(fd);
        let has_ended = match file.phase {
            Phase::Ended(deadline) => self.deadlines.remove(&(deadline, fd)),
            Phase::Bof | Phase::Data(_) => {
                self.turns.retain(|&other| other != fd);
                false
            }
        };
        let mut unfinished = file.gone;
        for (&receiver, peer) in &mut self.peers {
            let state = *peer.file(fd, file.id);
            let lacks = state.is_noted && !state.is_done;
            unfinished.extend(lacks.then_some(receiver));
            let dropped = peer.drop_responses(fd) && lacks;
            let keeps_silent = mutant::active(Mutant::ExpiryUntold);
            if (dropped || !has_ended) && !keeps_silent {
                peer.time_out(fd, file.id);
            }
            if peer.is_ready() {
                self.ready.insert(receiver);
            }
        }
        self.events.push_back(SenderEvent::Closed {
            fd,
            file: file.id,
            noted: file.noted,
            unfinished,
        });
    }
}
