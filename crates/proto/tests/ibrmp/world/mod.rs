//! A toy world: a sender, receivers, lossy multicast, reliable channels, and a judge.
//!
//! Nothing happens by itself: a test decides what is multicast, lost and delivered, and when. The
//! judge watches every message that leaves and every byte that is written, and panics.

mod judge;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fabricast_proto::Time;
use fabricast_proto::ibrmp::{
    Body, Credits, Failure, Fd, FileId, Frame, Message, Name, Receiver, ReceiverConfig,
    ReceiverEvent, ReceiverId, ReceiverOutput, Sender, SenderConfig, SenderEvent, SenderOutput,
    Type,
};

pub use judge::Judge;

/// Time from the end of a file's multicast until it expires.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes in a DATA message.
pub const BLOCK: u32 = 100;

/// What a world is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The sender's slots.
    pub slots: u16,
    /// Credits of each channel.
    pub credits: Credits,
    /// Most holes of a receiver.
    pub holes_max: usize,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            slots: 8,
            credits: Credits {
                messages: 8,
                batch: 4,
            },
            holes_max: 64,
        }
    }
}

/// How a file has ended at a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All of it is here.
    Complete,
    /// It will not be complete.
    Failed(Failure),
}

/// A receiver and what is under way between it and the sender.
pub struct Station {
    /// The machine.
    pub machine: Receiver,
    /// Multicast messages that have not arrived yet.
    pub multicast: VecDeque<Message>,
    /// What the channel carries from the sender.
    pub down: VecDeque<Frame>,
    /// What the channel carries to the sender.
    pub up: VecDeque<Frame>,
    /// How files have ended.
    pub ends: BTreeMap<FileId, End>,
    /// Names and lengths that BOFs have announced.
    pub announced: BTreeMap<FileId, (String, u64)>,
    /// Everything that this receiver has sent.
    pub sent: Vec<Message>,
    /// Everything that the channel has brought.
    pub received: Vec<Message>,
}

/// The world.
pub struct World {
    /// The time that the machines see.
    pub now: Time,
    /// The sender's machine.
    pub sender: Sender,
    /// The receivers that have joined and not left.
    pub stations: BTreeMap<ReceiverId, Station>,
    /// How files have ended at the sender: receivers noted, and those that are unfinished.
    pub closed: BTreeMap<FileId, (usize, Vec<ReceiverId>)>,
    /// Receivers that have said TRANSFER_DONE, by file.
    pub done: Vec<(FileId, ReceiverId)>,
    /// When the first open file expires.
    pub deadline: Option<Time>,
    /// Whether messages are printed.
    pub trace: bool,
    shape: Shape,
    judge: Judge,
}

impl World {
    /// A world with this number of receivers.
    pub fn new(shape: Shape, receivers: usize) -> World {
        let sender = Sender::new(SenderConfig {
            slots: shape.slots,
            block: BLOCK,
            timeout: TIMEOUT,
            credits: shape.credits,
        });
        let mut world = World {
            now: Time(1),
            sender,
            stations: BTreeMap::new(),
            closed: BTreeMap::new(),
            done: Vec::new(),
            deadline: None,
            trace: false,
            shape,
            judge: Judge::new(shape.credits),
        };
        for _ in 0..receivers {
            world.join();
        }
        world
    }

    /// A receiver comes.
    pub fn join(&mut self) -> ReceiverId {
        let joined = self.sender.join();
        let machine = Receiver::new(ReceiverConfig {
            slots: self.shape.slots,
            first: joined.first,
            credits: self.shape.credits,
            holes_max: self.shape.holes_max,
        });
        let station = Station {
            machine,
            multicast: VecDeque::new(),
            down: VecDeque::new(),
            up: VecDeque::new(),
            ends: BTreeMap::new(),
            announced: BTreeMap::new(),
            sent: Vec::new(),
            received: Vec::new(),
        };
        self.stations.insert(joined.receiver, station);
        self.poll_sender();
        joined.receiver
    }

    /// A receiver goes.
    pub fn leave(&mut self, receiver: ReceiverId) {
        let station = self.stations.remove(&receiver);
        let mut station = station.expect("a receiver");
        station.machine.disconnected();
        assert_eq!(station.machine.open_files(), 0);
        self.judge.leave(receiver);
        self.sender.leave(receiver);
        self.poll_sender();
    }

    /// A file opens.
    pub fn open(&mut self, len: u64) -> Option<(Fd, FileId)> {
        let name = Name::new(b"file").expect("a name");
        let opened = self.sender.open(name, len).ok();
        if let Some((fd, file)) = opened {
            self.judge.open(fd, file, len);
        }
        opened
    }

    /// The sender gives a file up.
    pub fn abandon(&mut self, fd: Fd, file: FileId) {
        self.judge.abandon(file);
        self.sender.abandon(fd, file);
        self.poll_sender();
    }

    /// The next message is multicast. It is on its way to the receivers for which `reaches` is
    /// true. Says whether there was one.
    pub fn multicast(&mut self, mut reaches: impl FnMut(ReceiverId, &Message) -> bool) -> bool {
        let Some(message) = self.sender.multicast(self.now) else {
            return false;
        };
        self.print("multicast", None, &message);
        let receivers = self.stations.keys().copied().collect();
        self.judge.multicast(self.now, &message, receivers);
        for (&receiver, station) in &mut self.stations {
            if reaches(receiver, &message) {
                station.multicast.push_back(message.clone());
            }
        }
        self.poll_sender();
        true
    }

    /// All open files are multicast, and the messages for which `reaches` is true arrive at once.
    pub fn multicast_all(&mut self, mut reaches: impl FnMut(ReceiverId, &Message) -> bool) {
        while self.multicast(&mut reaches) {
            for receiver in self.receivers() {
                while self.deliver_multicast(receiver, 0) {}
            }
        }
    }

    /// Somebody on the network forges a multicast message to a receiver, which arrives after what
    /// is under way.
    pub fn forge(&mut self, receiver: ReceiverId, fd: u16, file: u64, body: Body) {
        self.judge.is_forged = true;
        let (fd, file) = (Fd(fd), FileId(file));
        let station = self.stations.get_mut(&receiver).expect("a receiver");
        station.multicast.push_back(Message { fd, file, body });
    }

    /// Receivers request again what they lack, and everything that is under way arrives, until
    /// there is nothing.
    pub fn repeat(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "receivers request for ever");
            self.settle();
            for receiver in self.receivers() {
                let station = self.stations.get_mut(&receiver).expect("a receiver");
                let open: Vec<_> = station.machine.under_way().collect();
                for (fd, file) in open {
                    station.machine.repeat(fd, file);
                }
                self.poll_receiver(receiver);
            }
            if self.stations.values().all(|station| station.up.is_empty()) {
                return;
            }
        }
    }

    /// The names of the receivers.
    pub fn receivers(&self) -> Vec<ReceiverId> {
        self.stations.keys().copied().collect()
    }

    /// A multicast message arrives; those before `at` come later. Says whether there was one.
    pub fn deliver_multicast(&mut self, receiver: ReceiverId, at: usize) -> bool {
        let station = self.stations.get_mut(&receiver).expect("a receiver");
        let Some(message) = station.multicast.remove(at) else {
            return false;
        };
        if let Some(extent) = station.machine.multicast(&message) {
            self.judge.write(receiver, &message, &extent);
        }
        self.poll_receiver(receiver);
        true
    }

    /// What the sender has sent first by the channel arrives. Says whether there was something.
    pub fn deliver_down(&mut self, receiver: ReceiverId) -> bool {
        let station = self.stations.get_mut(&receiver).expect("a receiver");
        match station.down.pop_front() {
            None => return false,
            Some(Frame::Ack(messages)) => {
                station.machine.acknowledged(messages).expect("no excess");
            }
            Some(Frame::Message(message)) => {
                station.received.push(message.clone());
                let extent = station.machine.channel(&message).expect("a credit");
                self.judge.arrives(receiver, &message);
                if let Some(extent) = extent {
                    self.judge.write(receiver, &message, &extent);
                }
            }
        }
        self.poll_receiver(receiver);
        true
    }

    /// What a receiver has sent first by the channel arrives. Says whether there was something.
    pub fn deliver_up(&mut self, receiver: ReceiverId) -> bool {
        let station = self.stations.get_mut(&receiver).expect("a receiver");
        match station.up.pop_front() {
            None => return false,
            Some(Frame::Ack(messages)) => {
                let sender = &mut self.sender;
                sender.acknowledged(receiver, messages).expect("no excess");
            }
            Some(Frame::Message(message)) => {
                self.sender.channel(receiver, &message).expect("a credit");
            }
        }
        self.poll_sender();
        true
    }

    /// A message that a test makes up arrives at the sender.
    pub fn say(&mut self, receiver: ReceiverId, fd: u16, file: u64, body: Body) {
        let (fd, file) = (Fd(fd), FileId(file));
        let message = Message { fd, file, body };
        self.judge.made_up(receiver, &message);
        self.sender.channel(receiver, &message).expect("a credit");
        self.poll_sender();
    }

    /// Everything that is under way arrives, in rounds, until there is nothing.
    pub fn settle(&mut self) {
        let mut moves = true;
        while moves {
            moves = false;
            for receiver in self.receivers() {
                moves |= self.deliver_multicast(receiver, 0);
                moves |= self.deliver_down(receiver);
                moves |= self.deliver_up(receiver);
            }
        }
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.poll_sender();
    }

    /// Messages that a receiver has sent, by type.
    pub fn sent(&self, receiver: ReceiverId, kind: Type) -> usize {
        let sent = &self.stations[&receiver].sent;
        sent.iter().filter(|message| message.kind() == kind).count()
    }

    /// Messages that a receiver got by the channel, by type.
    pub fn received(&self, receiver: ReceiverId, kind: Type) -> usize {
        let received = &self.stations[&receiver].received;
        let same = |message: &&Message| message.kind() == kind;
        received.iter().filter(same).count()
    }

    /// The end of the world: everything is multicast, arrives, and expires. Then there is silence,
    /// and every receiver that was noted knows how its files have ended.
    pub fn end(&mut self) {
        while self.multicast(|_, _| true) {}
        self.settle();
        if self.judge.is_forged {
            self.repeat();
        }
        while let Some(deadline) = self.deadline {
            self.now = self.now.max(deadline);
            self.poll_sender();
            self.settle();
        }
        self.pass(10 * TIMEOUT);
        if self.judge.is_forged {
            // The sender says that there are no more files. Those that are open were forged.
            for receiver in self.receivers() {
                let station = self.stations.get_mut(&receiver).expect("a receiver");
                station.machine.disconnected();
                self.poll_receiver(receiver);
            }
        }
        for (receiver, station) in &self.stations {
            let quiet = station.up.is_empty() && station.down.is_empty();
            assert!(quiet, "{receiver:?} is not silent");
            assert_eq!(station.machine.waiting(), 0, "{receiver:?} waits");
            assert_eq!(station.machine.holes(), 0);
            assert_eq!(
                station.machine.open_files(),
                0,
                "{receiver:?} waits for a file"
            );
            self.judge.knows(*receiver, &station.ends);
        }
        assert_eq!(self.sender.open_files(), 0);
        assert_eq!(self.sender.waiting(), 0);
        self.judge.over(&self.closed);
    }

    /// The sender does what it wants.
    fn poll_sender(&mut self) {
        loop {
            self.sender.invariants();
            match self.sender.poll(self.now) {
                SenderOutput::Send(to, message) => {
                    self.print("to", Some(to), &message);
                    self.judge.sender_sends(to, &message);
                    if let Some(station) = self.stations.get_mut(&to) {
                        station.down.push_back(Frame::Message(message));
                    }
                }
                SenderOutput::Ack(to, messages) => {
                    self.judge.ack(to, true, messages);
                    if let Some(station) = self.stations.get_mut(&to) {
                        station.down.push_back(Frame::Ack(messages));
                    }
                }
                SenderOutput::Event(SenderEvent::Done(_, file, receiver)) => {
                    self.judge.done(file, receiver);
                    self.done.push((file, receiver));
                }
                SenderOutput::Event(SenderEvent::Closed {
                    file,
                    noted,
                    unfinished,
                    ..
                }) => {
                    self.judge.closed(self.now, file, noted, &unfinished);
                    self.closed.insert(file, (noted, unfinished));
                }
                SenderOutput::Wait(until) => {
                    assert!(until.is_none_or(|until| until > self.now));
                    self.deadline = until;
                    return;
                }
            }
        }
    }

    /// A receiver does what it wants.
    fn poll_receiver(&mut self, receiver: ReceiverId) {
        let station = self.stations.get_mut(&receiver).expect("a receiver");
        let mut sent = Vec::new();
        loop {
            station.machine.invariants();
            match station.machine.poll() {
                ReceiverOutput::Send(message) => {
                    self.judge.receiver_sends(receiver, &message);
                    station.sent.push(message.clone());
                    sent.push(message.clone());
                    station.up.push_back(Frame::Message(message));
                }
                ReceiverOutput::Ack(messages) => {
                    self.judge.ack(receiver, false, messages);
                    station.up.push_back(Frame::Ack(messages));
                }
                ReceiverOutput::Event(event) => {
                    self.judge.event(receiver, &event);
                    match event {
                        ReceiverEvent::Announced {
                            file, len, name, ..
                        } => {
                            let name = String::from_utf8_lossy(name.bytes()).into_owned();
                            station.announced.insert(file, (name, len));
                        }
                        ReceiverEvent::Complete(_, file) => {
                            station.ends.insert(file, End::Complete);
                        }
                        // A file that is complete may have been forged in another slot, too.
                        ReceiverEvent::Failed(_, file, why) => {
                            let is_complete = station.ends.get(&file) == Some(&End::Complete);
                            if !is_complete {
                                station.ends.insert(file, End::Failed(why));
                            }
                        }
                    }
                }
                ReceiverOutput::Wait => break,
            }
        }
        for message in sent {
            self.print("from", Some(receiver), &message);
        }
    }

    fn print(&self, way: &str, receiver: Option<ReceiverId>, message: &Message) {
        if self.trace {
            println!("{:?} {way} {receiver:?} {message:?}", self.now);
        }
    }
}
