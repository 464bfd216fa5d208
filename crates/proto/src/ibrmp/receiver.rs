//! The receiver's half of P3's protocol (P3.2, P3.3, spec 7.4).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::credits::{Channel, ChannelError, Credits, Cut};
use super::holes::Holes;
use super::message::{Body, Fd, FileId, Message, Name};
use crate::mutant::{self, Mutant};

/// The configuration of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReceiverConfig {
    /// Number of the sender's slots, at most [`super::SLOTS_MAX`].
    pub slots: u16,
    /// The first file that the receiver takes part in, as the sender said when it admitted the
    /// receiver ([`super::Joined::first`]).
    pub first: FileId,
    /// Credits of the reliable channel, equal at its other end.
    pub credits: Credits,
    /// Most holes of all files together, and most requests that wait for credits. A DATA message
    /// that would make one more counts as lost.
    pub holes_max: usize,
}

/// Bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The slot of the file.
    pub fd: Fd,
    /// The file.
    pub file: FileId,
    /// The bytes, as positions in the file.
    pub range: Range<u64>,
}

/// What a receiver tells its driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceiverEvent {
    /// The BOF is here: a new file is coming, or its first bytes are here already.
    Announced {
        /// The slot.
        fd: Fd,
        /// The file.
        file: FileId,
        /// Length of the file in bytes.
        len: u64,
        /// Name of the file.
        name: Name,
    },
    /// The BOF, all bytes and the EOF are here. TRANSFER_DONE is the next message for this file.
    Complete(Fd, FileId),
    /// The file will not be complete.
    Failed(Fd, FileId, Failure),
}

/// Why a file will not be complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// FILE_TIMEOUT: the sender has closed the file.
    Timeout,
    /// The sender has opened another file in the slot, so it has closed this one.
    Replaced,
    /// The reliable channel has named an older file in the slot. So what multicast has told of this
    /// one counts as forged. If the channel was late, the file's EOF opens it again.
    Forged,
    /// What came by the reliable channel contradicts itself: the file's length differs between BOF
    /// and EOF, or there are bytes behind its end.
    Contradiction,
    /// The reliable channel has ended.
    Disconnected,
}

/// What a receiver wants next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceiverOutput {
    /// Send a message to the sender by the reliable channel.
    Send(Message),
    /// Send an accumulated ACK for this number of messages by the reliable channel.
    Ack(u32),
    /// Something has happened.
    Event(ReceiverEvent),
    /// Nothing to do until a message arrives. A receiver has no timers.
    Wait,
}

/// The way by which a message has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Anybody on the network may have sent it.
    Multicast,
    /// The sender has sent it.
    Channel,
}

/// A file that is not complete yet.
#[derive(Clone, Default, Debug)]
struct File {
    holes: Holes,
    /// Length by the channel.
    len: Option<u64>,
    /// Length by a BOF that came by multicast.
    heard_len: Option<u64>,
    bof: bool,
    eof: bool,
}

#[derive(Clone, Default, Debug)]
struct Slot {
    /// The newest file that the channel has named, or that was under way here and could not be
    /// stored. The slot has no older file any more.
    named: Option<FileId>,
    /// The file that is under way. Unless it is the one that is named, only multicast has told of
    /// it.
    open: Option<(FileId, File)>,
}

/// A request in the wait-list of the channel.
#[derive(Clone, Debug)]
struct Request {
    fd: Fd,
    file: FileId,
    kind: RequestKind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum RequestKind {
    Bof,
    Data(Range<u64>),
    Done,
}

/// A receiver of one sender's files.
///
/// The driver passes in every message, then executes the outputs of [`Receiver::poll`] up to
/// [`ReceiverOutput::Wait`]. Every hole is requested once: the reliable channel loses neither the
/// request nor the answer.
///
/// Multicast proves nothing, since anybody on the network can send it. What contradicts the channel
/// counts as lost. Forged messages may make the receiver request what the sender ignores, such as
/// bytes of a file that is not open yet. Then [`Receiver::repeat`] requests again what is missing.
/// Only a proof of the whole file shows that its bytes are right; the driver has that.
#[derive(Clone, Debug)]
pub struct Receiver {
    config: ReceiverConfig,
    slots: BTreeMap<Fd, Slot>,
    /// Holes of all files.
    holes: usize,
    channel: Channel<Request>,
    events: VecDeque<ReceiverEvent>,
}

impl Receiver {
    /// A receiver that has heard of no file.
    pub fn new(config: ReceiverConfig) -> Receiver {
        Receiver {
            config,
            slots: BTreeMap::new(),
            holes: 0,
            channel: Channel::new(config.credits),
            events: VecDeque::new(),
        }
    }

    /// A message has arrived by multicast. Only BOF and DATA go this way; others are ignored.
    /// Returns the bytes that the driver writes, out of those that the message carries.
    pub fn multicast(&mut self, message: &Message) -> Option<Extent> {
        let (fd, file) = (message.fd, message.file);
        let is_bof = match message.body {
            Body::Bof { .. } => true,
            Body::Data { .. } => false,
            _ => return None,
        };
        if self.may_open(fd, file) {
            self.open(fd, file, is_bof);
        }
        self.take(message, Way::Multicast)
    }

    /// A message has arrived by the reliable channel. Returns the bytes that the driver writes, out
    /// of those that the message carries.
    ///
    /// # Errors
    /// [`ChannelError::NoCredit`] or [`ChannelError::Direction`]: the driver closes the channel.
    pub fn channel(&mut self, message: &Message) -> Result<Option<Extent>, ChannelError> {
        let (fd, file) = (message.fd, message.file);
        self.channel.received()?;
        self.channel.processed(1);
        match message.body {
            Body::Bof { .. } | Body::Data { .. } => {
                if self.file(fd, file).is_some() {
                    self.name(fd, file);
                }
                Ok(self.take(message, Way::Channel))
            }
            Body::Eof { len } => {
                if self.name(fd, file) && self.file(fd, file).is_none() {
                    self.open(fd, file, false);
                }
                self.end(fd, file, len);
                Ok(None)
            }
            Body::FileTimeout => {
                self.name(fd, file);
                self.fail(fd, file, Failure::Timeout);
                Ok(None)
            }
            _ => Err(ChannelError::Direction),
        }
    }

    /// An accumulated ACK has arrived by the reliable channel.
    ///
    /// # Errors
    /// [`ChannelError::ExcessAck`]: the driver closes the channel.
    pub fn acknowledged(&mut self, messages: u32) -> Result<(), ChannelError> {
        self.channel.acknowledged(messages)
    }

    /// The driver cannot store the file. The receiver ignores it from now on, and the sender's
    /// timeout counts it as unfinished here.
    pub fn abandon(&mut self, fd: Fd, file: FileId) {
        if self.close(fd, file)
            && let Some(slot) = self.slots.get_mut(&fd)
        {
            slot.named = slot.named.max(Some(file));
        }
    }

    /// Requests again what a file lacks whose multicast has ended, unless requests for it still
    /// wait. The driver calls this when the channel has brought nothing of the file for so long
    /// that the sender must have ignored requests.
    pub fn repeat(&mut self, fd: Fd, file: FileId) {
        let slot = self.slots.get(&fd);
        let open = slot.and_then(|slot| slot.file(file));
        let Some(open) = open.filter(|open| open.eof) else {
            return;
        };
        let mut waiting = self.channel.waiting();
        if waiting.any(|request| (request.fd, request.file) == (fd, file)) {
            return;
        }
        drop(waiting);
        let bof = (!open.bof).then_some(RequestKind::Bof);
        let holes = open.holes.iter().map(RequestKind::Data);
        let lacking: Vec<RequestKind> = bof.into_iter().chain(holes).collect();
        for kind in lacking {
            self.request(fd, file, kind);
        }
    }

    /// The reliable channel has ended: no file that is under way will be complete.
    pub fn disconnected(&mut self) {
        let open: Vec<(Fd, FileId)> = self.under_way().collect();
        for (fd, file) in open {
            self.fail(fd, file, Failure::Disconnected);
        }
        self.channel.retain(|_| false);
    }

    /// What the driver does next: events first, then what goes to the sender.
    pub fn poll(&mut self) -> ReceiverOutput {
        if let Some(event) = self.events.pop_front() {
            return ReceiverOutput::Event(event);
        }
        if let Some(messages) = self.channel.ack() {
            return ReceiverOutput::Ack(messages);
        }
        let slots = &self.slots;
        let message = self.channel.next(|request| {
            let (fd, file) = (request.fd, request.file);
            let open = slots.get(&fd).and_then(|slot| slot.file(file));
            let body = match &request.kind {
                RequestKind::Done => Body::TransferDone,
                // What the request is for may have arrived while the request waited.
                RequestKind::Bof if open.is_none_or(|open| open.bof) => return Cut::Nothing,
                RequestKind::Bof => Body::BofRequest,
                RequestKind::Data(range) => {
                    let Some(hole) = open.and_then(|open| open.holes.missing(range)) else {
                        return Cut::Nothing;
                    };
                    let (offset, len) = (hole.start, hole.end - hole.start);
                    Body::DataRequest { offset, len }
                }
            };
            Cut::Last(Message { fd, file, body })
        });
        message.map_or(ReceiverOutput::Wait, ReceiverOutput::Send)
    }

    /// Holes of all files together.
    pub fn holes(&self) -> usize {
        self.holes
    }

    /// Requests that wait for credits.
    pub fn waiting(&self) -> usize {
        self.channel.waiting().len()
    }

    /// Files that are complete whose TRANSFER_DONE waits for a credit.
    pub fn waiting_done(&self) -> usize {
        let waiting = self.channel.waiting();
        waiting.filter(|r| r.kind == RequestKind::Done).count()
    }

    /// Files that are under way.
    pub fn open_files(&self) -> usize {
        self.under_way().count()
    }

    /// The files that are under way, and their slots.
    pub fn under_way(&self) -> impl Iterator<Item = (Fd, FileId)> + '_ {
        self.slots.iter().filter_map(|(&fd, slot)| {
            let (file, _) = slot.open.as_ref()?;
            Some((fd, *file))
        })
    }

    /// Panics if an invariant is broken; tests call it after every step.
    pub fn invariants(&self) {
        self.channel.invariants();
        let slots = usize::from(self.config.slots);
        assert!(self.slots.len() <= slots);
        // The EOF makes one hole more, and one request more, for each file.
        assert!(self.holes <= self.config.holes_max + slots);
        assert!(self.waiting() <= self.config.holes_max + 3 * slots);
        let files = self.slots.values().filter_map(|slot| slot.open.as_ref());
        let mut holes = 0;
        for (_, file) in files {
            file.holes.invariants();
            holes += file.holes.count();
            assert!(!is_complete(file), "a complete file is open");
        }
        assert_eq!(holes, self.holes);
        for request in self.channel.waiting() {
            let is_open = self.slots[&request.fd].file(request.file).is_some();
            assert_eq!(is_open, request.kind != RequestKind::Done);
        }
    }

    /// Whether the receiver takes part in a file of this slot.
    fn is_mine(&self, fd: Fd, file: FileId) -> bool {
        file >= self.config.first && fd.0 < self.config.slots
    }

    /// Whether a file is newer than all that the channel has named in its slot.
    fn is_newer(&self, fd: Fd, file: FileId) -> bool {
        let named = self.slots.get(&fd).and_then(|slot| slot.named);
        let is_believed = mutant::active(Mutant::FileIdsFall) && named != Some(file);
        named < Some(file) || is_believed
    }

    /// Whether a message by multicast opens its file. It ends no other file of the slot: if the
    /// file is one of the sender's, its EOF will do that.
    fn may_open(&self, fd: Fd, file: FileId) -> bool {
        let slot = self.slots.get(&fd);
        let is_free = slot.is_none_or(|slot| slot.open.is_none());
        let ends_others = mutant::active(Mutant::MulticastReplaces)
            && slot.is_some_and(|slot| slot.open.as_ref().is_some_and(|(open, _)| *open < file));
        self.is_mine(fd, file) && self.is_newer(fd, file) && (is_free || ends_others)
    }

    /// The channel has named a file of a slot. If it is newer than what the channel has named
    /// before, another one that is under way in the slot ends, and with it what is to be said of
    /// it, which the sender would ignore. Says whether it is newer.
    fn name(&mut self, fd: Fd, file: FileId) -> bool {
        if !self.is_mine(fd, file) || !self.is_newer(fd, file) {
            return false;
        }
        let slot = self.slots.entry(fd).or_default();
        slot.named = Some(file);
        let other = slot.open.as_ref().map(|(other, _)| *other);
        if let Some(other) = other.filter(|&other| other != file) {
            let is_older = other < file;
            let why = if is_older {
                Failure::Replaced
            } else {
                Failure::Forged
            };
            self.fail(fd, other, why);
        }
        self.channel
            .retain(|request| request.fd != fd || request.file == file);
        true
    }

    /// Opens a file. Unless its first message is the BOF, that is lost (Table I).
    fn open(&mut self, fd: Fd, file: FileId, is_bof: bool) {
        let slot = self.slots.entry(fd).or_default();
        let other = slot.open.as_ref().map(|(other, _)| *other);
        if let Some(other) = other {
            self.fail(fd, other, Failure::Replaced);
        }
        if let Some(slot) = self.slots.get_mut(&fd) {
            slot.open = Some((file, File::default()));
        }
        if !is_bof {
            self.request(fd, file, RequestKind::Bof);
        }
    }

    /// The file, if it is under way.
    fn file(&mut self, fd: Fd, file: FileId) -> Option<&mut File> {
        let slot = self.slots.get_mut(&fd)?;
        let (_, open) = slot.open.as_mut().filter(|(open, _)| *open == file)?;
        Some(open)
    }

    fn request(&mut self, fd: Fd, file: FileId, kind: RequestKind) {
        self.channel.add(Request { fd, file, kind });
    }

    /// Takes in a BOF or a DATA message of a file that is under way.
    fn take(&mut self, message: &Message, way: Way) -> Option<Extent> {
        let (fd, file) = (message.fd, message.file);
        match &message.body {
            Body::Bof { len, name } => {
                self.bof(fd, file, (*len, name), way);
                None
            }
            Body::Data { offset, len } => {
                let range = *offset..*offset + u64::from(*len);
                let range = self.data(fd, file, range, way)?;
                Some(Extent { fd, file, range })
            }
            _ => None,
        }
    }

    fn bof(&mut self, fd: Fd, file: FileId, (len, name): (u64, &Name), way: Way) {
        let Some(open) = self.file(fd, file).filter(|open| !open.bof) else {
            return;
        };
        match (way, open.len) {
            (Way::Multicast, Some(known)) if known != len => return,
            (Way::Multicast, _) => open.heard_len = Some(len),
            (Way::Channel, Some(known)) if known != len => {
                return self.fail(fd, file, Failure::Contradiction);
            }
            (Way::Channel, _) => open.len = Some(len),
        }
        open.bof = true;
        let name = name.clone();
        let event = ReceiverEvent::Announced {
            fd,
            file,
            len,
            name,
        };
        self.events.push_back(event);
        self.finish(fd, file);
    }

    fn data(&mut self, fd: Fd, file: FileId, range: Range<u64>, way: Way) -> Option<Range<u64>> {
        let limit = self.config.holes_max;
        let has_room = self.holes < limit && self.waiting() < limit;
        let open = self.file(fd, file)?;
        match way {
            Way::Multicast => {
                let len = open.len.or(open.heard_len);
                if len.is_some_and(|len| range.end > len) {
                    return None;
                }
            }
            Way::Channel => {
                if open.len.is_some_and(|len| range.end > len) {
                    self.fail(fd, file, Failure::Contradiction);
                    return None;
                }
            }
        }
        let before = open.holes.count();
        let arrival = open.holes.arrive(range, has_room)?;
        let after = open.holes.count();
        self.holes = self.holes + after - before;
        if let Some(skipped) = arrival.skipped {
            self.request(fd, file, RequestKind::Data(skipped));
        }
        self.finish(fd, file);
        Some(arrival.write)
    }

    /// The EOF states the file's length. What multicast has told beyond it was forged. A BOF that
    /// is not here is requested again: forged DATA may have had it requested before it was
    /// multicast, which the sender ignores.
    fn end(&mut self, fd: Fd, file: FileId, len: u64) {
        let Some(open) = self.file(fd, file).filter(|open| !open.eof) else {
            return;
        };
        open.eof = true;
        if *open.len.get_or_insert(len) != len {
            return self.fail(fd, file, Failure::Contradiction);
        }
        let before = open.holes.count();
        open.holes.truncate(len);
        let forgets = mutant::active(Mutant::EndMakesNoHole);
        let hole = if forgets { None } else { open.holes.end(len) };
        let after = open.holes.count();
        let has_bof = open.bof;
        self.holes = self.holes + after - before;
        if let Some(hole) = hole {
            self.request(fd, file, RequestKind::Data(hole));
        }
        let is_bof = |request: &Request| {
            (request.fd, request.file) == (fd, file) && request.kind == RequestKind::Bof
        };
        let waits = self.channel.waiting().any(is_bof);
        if !has_bof && !waits {
            self.request(fd, file, RequestKind::Bof);
        }
        self.finish(fd, file);
    }

    /// Sends TRANSFER_DONE if the file is complete.
    fn finish(&mut self, fd: Fd, file: FileId) {
        if self.file(fd, file).is_some_and(|open| is_complete(open)) {
            self.close(fd, file);
            self.events.push_back(ReceiverEvent::Complete(fd, file));
            self.request(fd, file, RequestKind::Done);
        }
    }

    fn fail(&mut self, fd: Fd, file: FileId, why: Failure) {
        if self.close(fd, file) {
            self.events.push_back(ReceiverEvent::Failed(fd, file, why));
        }
    }

    /// Ends a file, with the requests for it. Says whether it was under way.
    fn close(&mut self, fd: Fd, file: FileId) -> bool {
        let Some(open) = self.file(fd, file) else {
            return false;
        };
        let holes = open.holes.count();
        self.holes -= holes;
        if let Some(slot) = self.slots.get_mut(&fd) {
            slot.open = None;
        }
        self.channel
            .retain(|request| (request.fd, request.file) != (fd, file));
        true
    }
}

impl Slot {
    /// The file, if it is under way.
    fn file(&self, file: FileId) -> Option<&File> {
        let (open, state) = self.open.as_ref()?;
        (*open == file).then_some(state)
    }
}

/// Whether the BOF, all bytes and the EOF are here.
fn is_complete(file: &File) -> bool {
    let is_early = mutant::active(Mutant::DoneBeforeEof);
    let len = match is_early {
        true => file.len.or(file.heard_len),
        false => file.len,
    };
    let is_told = file.eof || is_early;
    is_told && file.bof && file.holes.count() == 0 && len == Some(file.holes.high())
}
