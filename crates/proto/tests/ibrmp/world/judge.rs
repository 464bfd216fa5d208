//! What no sender and no receiver may do.

use std::collections::{BTreeMap, BTreeSet};

use fabricast_proto::Time;
use fabricast_proto::ibrmp::{
    Body, Credits, Extent, Failure, Fd, FileId, Message, ReceiverEvent, ReceiverId, Type,
};

use super::{End, TIMEOUT};

/// A file, as the test knows it.
struct File {
    fd: Fd,
    len: u64,
    /// Bytes that have been multicast.
    multicast: u64,
    /// When the multicast has ended, and the receivers that were there.
    ended: Option<(Time, Vec<ReceiverId>)>,
    is_abandoned: bool,
}

/// What the judge knows of one receiver.
#[derive(Default)]
struct Known {
    /// Messages that are not acknowledged: from the sender, and to it.
    under_way: [u32; 2],
    files: BTreeMap<FileId, FileAtReceiver>,
    /// The newest file that has been heard of in each slot.
    newest: BTreeMap<Fd, FileId>,
}

/// One file at one receiver.
#[derive(Default)]
struct FileAtReceiver {
    here: Vec<bool>,
    requested: Vec<bool>,
    has_eof: bool,
    is_announced: bool,
    is_complete: bool,
    timeouts: u32,
    bof_requests: u32,
    dones: u32,
    /// Whether the receiver has forgotten all of it once, and may request it again.
    is_forgotten: bool,
}

/// Watches a world.
pub struct Judge {
    credits: Credits,
    files: BTreeMap<FileId, File>,
    known: BTreeMap<ReceiverId, Known>,
    gone: BTreeSet<ReceiverId>,
    /// Whether somebody forges multicast. Then receivers may request again.
    pub is_forged: bool,
    /// Files of which receivers have heard before they were opened.
    foretold: BTreeSet<FileId>,
}

impl Judge {
    /// A judge who knows nothing yet.
    pub fn new(credits: Credits) -> Judge {
        Judge {
            credits,
            files: BTreeMap::new(),
            known: BTreeMap::new(),
            gone: BTreeSet::new(),
            is_forged: false,
            foretold: BTreeSet::new(),
        }
    }

    /// A file opens in a slot. Ids rise, and the slot was free.
    pub fn open(&mut self, fd: Fd, file: FileId, len: u64) {
        let last = self.files.last_key_value();
        assert!(last.is_none_or(|(&last, _)| last < file), "file ids fall");
        let file_of = File {
            fd,
            len,
            multicast: 0,
            ended: None,
            is_abandoned: false,
        };
        self.files.insert(file, file_of);
    }

    /// The sender gives a file up.
    pub fn abandon(&mut self, file: FileId) {
        self.files.get_mut(&file).expect("a file").is_abandoned = true;
    }

    /// A message is multicast: a BOF, then all DATA in order, each once.
    pub fn multicast(&mut self, now: Time, message: &Message, receivers: Vec<ReceiverId>) {
        let file = self.files.get_mut(&message.file).expect("a file");
        assert_eq!(message.fd, file.fd);
        match message.body {
            Body::Bof { .. } => assert_eq!(file.multicast, 0),
            Body::Data { offset, len } => {
                assert_eq!(offset, file.multicast);
                file.multicast += u64::from(len);
            }
            _ => panic!("{message:?} is multicast"),
        }
        if file.multicast == file.len {
            assert!(file.ended.is_none(), "{message:?} is multicast again");
            file.ended = Some((now, receivers));
        }
    }

    /// Whether the sender has opened this file, in this slot.
    fn is_true(&self, fd: Fd, file: FileId) -> bool {
        self.files.get(&file).is_some_and(|open| open.fd == fd)
    }

    fn file_at(&mut self, receiver: ReceiverId, file: FileId) -> &mut FileAtReceiver {
        let len = self.files[&file].len as usize;
        let known = self.known.entry(receiver).or_default();
        let state = known.files.entry(file).or_default();
        state.here.resize(len, false);
        state.requested.resize(len, false);
        state
    }

    /// A message leaves by a channel: it costs a credit.
    fn spend(&mut self, receiver: ReceiverId, up: bool) {
        let known = self.known.entry(receiver).or_default();
        let under_way = &mut known.under_way[usize::from(up)];
        *under_way += 1;
        assert!(*under_way <= self.credits.messages, "sent without a credit");
    }

    /// A message of a receiver that a test has made up, and which may break the rules.
    pub fn made_up(&mut self, receiver: ReceiverId, message: &Message) {
        self.spend(receiver, true);
        let state = self.file_at(receiver, message.file);
        match message.body {
            Body::BofRequest => state.bof_requests = 1,
            Body::DataRequest { offset, len } => {
                let bytes = state.requested.iter_mut().skip(offset as usize);
                bytes.take(len as usize).for_each(|byte| *byte = true);
            }
            _ => {}
        }
    }

    /// An accumulated ACK leaves. It stands for a batch at least.
    pub fn ack(&mut self, receiver: ReceiverId, from_sender: bool, messages: u32) {
        assert!(messages >= self.credits.batch, "an ACK for {messages}");
        let known = self.known.entry(receiver).or_default();
        let under_way = &mut known.under_way[usize::from(from_sender)];
        *under_way = under_way.checked_sub(messages).expect("an excess ACK");
    }

    /// The sender sends by a channel.
    pub fn sender_sends(&mut self, receiver: ReceiverId, message: &Message) {
        self.spend(receiver, false);
        let file = &self.files[&message.file];
        let ended = file.ended.as_ref();
        let is_noted = ended.is_some_and(|(_, noted)| noted.contains(&receiver));
        let multicast = file.multicast;
        let is_foretold = self.foretold.contains(&message.file);
        let state = self.file_at(receiver, message.file);
        match message.body {
            Body::FileTimeout => {
                state.timeouts += 1;
                assert_eq!(state.timeouts, 1, "FILE_TIMEOUT again");
            }
            Body::Eof { .. } => assert!(is_noted, "EOF to a receiver that is not noted"),
            Body::Bof { .. } => assert!(
                state.bof_requests > 0 || is_foretold,
                "nobody has requested {message:?}"
            ),
            Body::Data { offset, len } => {
                let range = offset as usize..offset as usize + len as usize;
                assert!(
                    range.end as u64 <= multicast,
                    "{message:?} is not multicast yet"
                );
                let all = state.requested[range].iter().all(|&requested| requested);
                assert!(all || is_foretold, "nobody has requested {message:?}");
            }
            _ => panic!("the sender sends {message:?}"),
        }
    }

    /// A receiver sends by its channel.
    pub fn receiver_sends(&mut self, receiver: ReceiverId, message: &Message) {
        self.spend(receiver, true);
        if !self.is_true(message.fd, message.file) {
            assert!(self.is_forged, "there is no such file: {message:?}");
            self.foretold.insert(message.file);
            return;
        }
        let is_forged = self.is_forged;
        let state = self.file_at(receiver, message.file);
        let may_repeat = is_forged || state.is_forgotten;
        match message.body {
            Body::BofRequest => {
                state.bof_requests += 1;
                let most = 1 + u32::from(state.has_eof); // again at the EOF
                assert!(
                    state.bof_requests <= most || may_repeat,
                    "BOF_REQUEST again"
                );
                assert!(!state.is_announced, "the BOF is here");
            }
            Body::DataRequest { offset, len } => {
                for at in offset as usize..(offset + len) as usize {
                    let Some(requested) = state.requested.get_mut(at) else {
                        assert!(is_forged, "byte {at} lies behind the end");
                        break;
                    };
                    let is_again = std::mem::replace(requested, true);
                    assert!(!is_again || may_repeat, "byte {at} is requested again");
                }
            }
            Body::TransferDone => {
                state.dones += 1;
                assert!(
                    state.is_complete && state.dones == 1,
                    "TRANSFER_DONE too early"
                );
            }
            _ => panic!("a receiver sends {message:?}"),
        }
    }

    /// A message arrives by a channel.
    pub fn arrives(&mut self, receiver: ReceiverId, message: &Message) {
        if message.kind() == Type::Eof {
            self.file_at(receiver, message.file).has_eof = true;
        }
    }

    /// A receiver writes bytes of a message.
    pub fn write(&mut self, receiver: ReceiverId, message: &Message, extent: &Extent) {
        let Body::Data { offset, len } = message.body else {
            panic!("bytes of {message:?}");
        };
        let range = &extent.range;
        assert_eq!((extent.fd, extent.file), (message.fd, message.file));
        assert!(offset <= range.start && range.start < range.end);
        assert!(range.end <= offset + u64::from(len));
        if !self.is_true(message.fd, message.file) {
            assert!(self.is_forged, "there is no such file: {message:?}");
            self.foretold.insert(message.file);
            return;
        }
        let is_foretold = self.foretold.contains(&message.file);
        let end = range.end.min(self.files[&message.file].len);
        if range.start >= end {
            assert!(self.is_forged, "bytes behind the end");
            return;
        }
        let state = self.file_at(receiver, message.file);
        assert!(!state.is_complete, "bytes of a complete file");
        // A range that reaches behind the end ends with a byte of which nothing is noted.
        let last = if end == range.end {
            end - 1
        } else {
            range.start
        };
        let ends = [range.start, last].map(|at| state.here[at as usize]);
        assert!(
            ends == [false, false] || is_foretold,
            "bytes that are here already"
        );
        state.here[range.start as usize..end as usize].fill(true);
    }

    /// Something happens at a receiver.
    pub fn event(&mut self, receiver: ReceiverId, event: &ReceiverEvent) {
        let (ReceiverEvent::Announced { fd, file, .. }
        | ReceiverEvent::Complete(fd, file)
        | ReceiverEvent::Failed(fd, file, _)) = event;
        if !self.is_true(*fd, *file) {
            assert!(self.is_forged, "there is no such file: {event:?}");
            self.foretold.insert(*file);
            return;
        }
        let (is_forged, is_foretold) = (self.is_forged, self.foretold.contains(file));
        match event {
            ReceiverEvent::Announced { len, .. } => {
                assert!(*len == self.files[file].len || is_forged);
                let state = self.file_at(receiver, *file);
                assert!(!state.is_announced, "announced again");
                state.is_announced = true;
                let known = self.known.entry(receiver).or_default();
                let newest = known.newest.insert(*fd, *file);
                assert!(newest.is_none_or(|newest| newest < *file), "file ids fall");
            }
            ReceiverEvent::Complete(..) => {
                let state = self.file_at(receiver, *file);
                assert!(state.is_announced || is_foretold, "complete without BOF");
                assert!(state.has_eof, "complete without EOF");
                let is_whole = state.here.iter().all(|&here| here);
                assert!(is_whole || is_foretold, "bytes are missing");
                state.is_complete = true;
            }
            ReceiverEvent::Failed(.., why) => {
                let state = self.file_at(receiver, *file);
                assert!(!state.is_complete);
                if *why == Failure::Forged {
                    // All of it was forgotten, for it may have been forged. If it was not, and the
                    // channel was late, it comes again.
                    state.here.fill(false);
                    (state.is_announced, state.is_forgotten) = (false, true);
                    let known = self.known.entry(receiver).or_default();
                    known.newest.remove(fd);
                }
            }
        }
    }

    /// The sender says that a receiver has a file.
    pub fn done(&mut self, file: FileId, receiver: ReceiverId) {
        assert_eq!(self.file_at(receiver, file).dones, 1, "it has not said so");
    }

    /// A receiver goes.
    pub fn leave(&mut self, receiver: ReceiverId) {
        self.gone.insert(receiver);
    }

    /// The sender closes a file: it is complete, given up, or expired to the moment.
    pub fn closed(&mut self, now: Time, id: FileId, noted: usize, unfinished: &[ReceiverId]) {
        let file = &self.files[&id];
        if file.is_abandoned {
            return;
        }
        let (ended, receivers) = file.ended.as_ref().expect("multicast");
        assert_eq!(noted, receivers.len(), "receivers noted");
        let is_waited_for = |receiver: &ReceiverId| !self.gone.contains(receiver);
        if unfinished.iter().any(is_waited_for) {
            assert_eq!(now, *ended + TIMEOUT, "closed too early or too late");
        }
        let noted: Vec<ReceiverId> = receivers.clone();
        for receiver in noted {
            let is_done = self.file_at(receiver, id).dones == 1;
            assert!(is_done || unfinished.contains(&receiver));
        }
    }

    /// All is over: a receiver knows how each file has ended for which it was noted. It is here,
    /// or it has failed because the sender has closed it.
    pub fn knows(&self, receiver: ReceiverId, ends: &BTreeMap<FileId, End>) {
        for (id, file) in &self.files {
            let ended = file.ended.as_ref();
            if ended.is_some_and(|(_, noted)| noted.contains(&receiver)) {
                let state = self
                    .known
                    .get(&receiver)
                    .and_then(|known| known.files.get(id));
                let Some(state) = state else { continue };
                let has_begun = state.is_announced || state.here.contains(&true);
                let end = ends.get(id);
                assert!(
                    end.is_some() || !has_begun,
                    "{receiver:?} does not know of {id:?}"
                );
                assert_eq!(end == Some(&End::Complete), state.is_complete);
            }
        }
    }

    /// All is over: every file is closed. Where none has expired or was given up, each receiver
    /// that has stayed has it.
    pub fn over(&self, closed: &BTreeMap<FileId, (usize, Vec<ReceiverId>)>) {
        for (id, file) in &self.files {
            assert!(closed.contains_key(id), "{id:?} is open");
            let Some((_, noted)) = &file.ended else {
                assert!(file.is_abandoned);
                continue;
            };
            let (_, unfinished) = &closed[id];
            for receiver in noted {
                let state = self
                    .known
                    .get(receiver)
                    .and_then(|known| known.files.get(id));
                let is_complete = state.is_some_and(|state| state.is_complete);
                assert!(is_complete || unfinished.contains(receiver));
            }
        }
    }
}
