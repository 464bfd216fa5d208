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
    /// Messages about the file contradict each other: its length differs between BOF and EOF, or
    /// there are bytes behind its end.
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

/// A file that is not complete yet.
#[derive(Clone, Debug)]
struct File {
    holes: Holes,
    /// Length by BOF or EOF, whichever came first.
    len: Option<u64>,
    bof: bool,
    eof: bool,
}

#[derive(Clone, Debug)]
struct Slot {
    /// The newest file of which the receiver has heard in this slot.
    newest: FileId,
    /// The newest file, if it is under way.
    file: Option<File>,
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
        match message.body {
            Body::Bof { .. } => {
                self.open(fd, file);
            }
            Body::Data { .. } => self.open_without_bof(fd, file),
            _ => return None,
        }
        self.take(message)
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
            Body::Bof { .. } | Body::Data { .. } => Ok(self.take(message)),
            Body::Eof { len } => {
                self.open_without_bof(fd, file);
                self.end(fd, file, len);
                Ok(None)
            }
            Body::FileTimeout => {
                self.note(fd, file);
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
        self.close(fd, file);
    }

    /// The reliable channel has ended: no file that is under way will be complete.
    pub fn disconnected(&mut self) {
        let open = self.slots.iter().filter(|(_, slot)| slot.file.is_some());
        let open: Vec<(Fd, FileId)> = open.map(|(&fd, slot)| (fd, slot.newest)).collect();
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
            let open = slots.get(&fd).and_then(|slot| slot.file.as_ref());
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

    /// Files that are under way.
    pub fn open_files(&self) -> usize {
        self.slots
            .values()
            .filter(|slot| slot.file.is_some())
            .count()
    }

    /// Panics if an invariant is broken; tests call it after every step.
    pub fn invariants(&self) {
        self.channel.invariants();
        let slots = usize::from(self.config.slots);
        assert!(self.slots.len() <= slots);
        // The EOF makes one hole more, and one request more, for each file.
        assert!(self.holes <= self.config.holes_max + slots);
        assert!(self.waiting() <= self.config.holes_max + 3 * slots);
        let files = self.slots.values().filter_map(|slot| slot.file.as_ref());
        let mut holes = 0;
        for file in files {
            file.holes.invariants();
            holes += file.holes.count();
            assert!(!is_complete(file), "a complete file is open");
        }
        assert_eq!(holes, self.holes);
        for request in self.channel.waiting() {
            assert_eq!(self.slots[&request.fd].newest, request.file);
        }
    }

    /// Notes that a slot has a newer file, if it has. The older one is closed then.
    fn note(&mut self, fd: Fd, file: FileId) -> bool {
        let newest = self.slots.get(&fd).map(|slot| slot.newest);
        let falls = newest.is_some_and(|newest| file <= newest);
        let is_old = falls && !(mutant::active(Mutant::FileIdsFall) && newest != Some(file));
        if is_old || file < self.config.first || fd.0 >= self.config.slots {
            return false;
        }
        if let Some(newest) = newest {
            self.fail(fd, newest, Failure::Replaced);
        }
        // What is still said about the older file would be ignored by the sender.
        self.channel.retain(|request| request.fd != fd);
        let slot = Slot {
            newest: file,
            file: None,
        };
        self.slots.insert(fd, slot);
        true
    }

    /// Opens a file if it is newer than all that the receiver has heard of in the slot. Says
    /// whether it is.
    fn open(&mut self, fd: Fd, file: FileId) -> bool {
        if !self.note(fd, file) {
            return false;
        }
        if let Some(slot) = self.slots.get_mut(&fd) {
            slot.file = Some(File {
                holes: Holes::default(),
                len: None,
                bof: false,
                eof: false,
            });
        }
        true
    }

    /// Opens a file by a message that follows the BOF, which is lost if the file is new (Table I).
    fn open_without_bof(&mut self, fd: Fd, file: FileId) {
        if self.open(fd, file) {
            self.request(fd, file, RequestKind::Bof);
        }
    }

    /// The file, if it is under way.
    fn file(&mut self, fd: Fd, file: FileId) -> Option<&mut File> {
        let slot = self.slots.get_mut(&fd)?;
        slot.file.as_mut().filter(|_| slot.newest == file)
    }

    fn request(&mut self, fd: Fd, file: FileId, kind: RequestKind) {
        self.channel.add(Request { fd, file, kind });
    }

    /// Takes in a BOF or a DATA message of a file that is under way.
    fn take(&mut self, message: &Message) -> Option<Extent> {
        let (fd, file) = (message.fd, message.file);
        match &message.body {
            Body::Bof { len, name } => {
                self.bof(fd, file, *len, name);
                None
            }
            Body::Data { offset, len } => {
                let range = *offset..*offset + u64::from(*len);
                let range = self.data(fd, file, range)?;
                Some(Extent { fd, file, range })
            }
            _ => None,
        }
    }

    fn bof(&mut self, fd: Fd, file: FileId, len: u64, name: &Name) {
        let Some(open) = self.file(fd, file).filter(|open| !open.bof) else {
            return;
        };
        open.bof = true;
        if !self.is_len(fd, file, len) {
            return;
        }
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

    fn data(&mut self, fd: Fd, file: FileId, range: Range<u64>) -> Option<Range<u64>> {
        let limit = self.config.holes_max;
        let has_room = self.holes < limit && self.waiting() < limit;
        let open = self.file(fd, file)?;
        if open.len.is_some_and(|len| range.end > len) {
            self.fail(fd, file, Failure::Contradiction);
            return None;
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

    fn end(&mut self, fd: Fd, file: FileId, len: u64) {
        let Some(open) = self.file(fd, file).filter(|open| !open.eof) else {
            return;
        };
        open.eof = true;
        if !self.is_len(fd, file, len) {
            return;
        }
        let Some(open) = self.file(fd, file) else {
            return;
        };
        let forgets = mutant::active(Mutant::EndMakesNoHole);
        let hole = if forgets { None } else { open.holes.end(len) };
        self.holes += usize::from(hole.is_some());
        if let Some(hole) = hole {
            self.request(fd, file, RequestKind::Data(hole));
        }
        self.finish(fd, file);
    }

    /// Notes the length that a BOF or an EOF states. If it contradicts the file, the file fails.
    fn is_len(&mut self, fd: Fd, file: FileId, len: u64) -> bool {
        let Some(open) = self.file(fd, file) else {
            return false;
        };
        let known = *open.len.get_or_insert(len);
        let agrees = known == len && open.holes.high() <= len;
        if !agrees {
            self.fail(fd, file, Failure::Contradiction);
        }
        agrees
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
            slot.file = None;
        }
        self.channel.retain(|request| request.fd != fd);
        true
    }
}

/// Whether the BOF, all bytes and the EOF are here.
fn is_complete(file: &File) -> bool {
    let is_told = file.eof || mutant::active(Mutant::DoneBeforeEof);
    is_told && file.bof && file.holes.count() == 0 && file.len == Some(file.holes.high())
}
