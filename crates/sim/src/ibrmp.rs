//! P3's protocol for files on the simulated network: one sender, receivers that come late, lossy
//! multicast, and a reliable channel to each receiver (spec 7). `connections` has P3's baseline.
//!
//! A message of a channel is a unicast datagram. Links lose multicast only, and their queues are
//! deep enough for all credits, so that a channel loses and reorders nothing, as InfiniBand's RC.

mod connections;
mod judge;
mod random;

pub use connections::{Connections, Shape};

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use fabricast::proto::Time;
use fabricast::proto::ibrmp::{
    Body, Credits, Extent, FileId, Frame, Message, Name, Receiver, ReceiverConfig, ReceiverEvent,
    ReceiverId, ReceiverOutput, Sender, SenderConfig, SenderEvent, SenderOutput, Type, decode,
};

use self::judge::Judge;
use crate::cluster::Tried;
use crate::fabric::{Fabric, Happening, Packet, Target, transfer_time};
use crate::fault::LinkFaults;
use crate::object::{content_of, shift, window};
use crate::topology::{LinkSpec, Topology};
use crate::workload::Kind;

/// The sender's host.
const SENDER: u32 = 0;
/// Alarms: the next multicast message may leave; a file expires; a receiver joins.
const MULTICAST: u32 = 0;
const EXPIRY: u32 = 1;
const JOIN: u32 = 2;
/// Alarm: a receiver leaves.
const LEAVE: u32 = 3;

/// An experiment with P3's protocol.
#[derive(Clone, PartialEq, Debug)]
pub struct FileExperiment {
    /// Receivers that are there at the start.
    pub receivers: u32,
    /// When more receivers join.
    pub late: Vec<Duration>,
    /// Receivers that leave, and when. Those of the start are 1, 2 and so on; late ones follow.
    pub leaves: Vec<(u32, Duration)>,
    /// Lengths of the files in bytes, in the order in which they open.
    pub files: Vec<u64>,
    /// Files that are open at once.
    pub slots: u16,
    /// Bytes in a DATA message.
    pub block: u32,
    /// Credits of each channel.
    pub credits: Credits,
    /// Time from the end of a file's multicast until it expires.
    pub timeout: Duration,
    /// Rate of each link in bytes per second.
    pub rate: u64,
    /// Delay of each link.
    pub delay: Duration,
    /// Bytes of headers below each datagram.
    pub overhead: u64,
    /// Bytes of headers by which a multicast datagram has more.
    pub multicast_overhead: u64,
    /// Whether bytes are compared and invariants are checked. Otherwise files are zeros.
    pub is_checked: bool,
    /// What goes wrong with multicast on the link to each receiver.
    pub faults: LinkFaults,
    /// Seed of all that is random.
    pub seed: u64,
}

impl Default for FileExperiment {
    fn default() -> FileExperiment {
        FileExperiment {
            receivers: 5,
            late: Vec::new(),
            leaves: Vec::new(),
            files: vec![1 << 20],
            slots: 128,
            block: 1400,
            credits: Credits::PAPER,
            timeout: Duration::from_secs(60),
            rate: LinkSpec::GIGABIT.rate,
            delay: LinkSpec::GIGABIT.delay,
            overhead: 42, // Ethernet, IP and UDP
            multicast_overhead: 0,
            is_checked: true,
            faults: LinkFaults::NONE,
            seed: 0,
        }
    }
}

/// What an experiment has shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileResult {
    /// When the last file closed.
    pub time: Duration,
    /// Messages by their types, [`fabricast::proto::ibrmp::Type`]; multicast ones count once.
    pub messages: [u64; 8],
    /// Bytes of files that were multicast.
    pub multicast: u64,
    /// Bytes of files that the sender sent by channels.
    pub by_channel: u64,
    /// Files that have arrived, over all receivers, each with the right bytes.
    pub complete: u64,
    /// Files that were noted for a receiver and did not arrive there.
    pub unfinished: u64,
    /// When the first byte of a file reached the last receiver.
    pub latency: Duration,
    /// What receivers have tried.
    pub tried: Tried,
    /// Messages that arrived, and alarms.
    pub events: u64,
    /// Hash over every message that was sent, and when.
    pub hash: u64,
}

/// A receiver's machine and the files that it writes.
struct Station {
    id: ReceiverId,
    machine: Receiver,
    stored: BTreeMap<FileId, Vec<u8>>,
    /// Whether a byte of a file has arrived.
    has_data: bool,
}

struct Run<'a> {
    experiment: &'a FileExperiment,
    fabric: Fabric,
    group: u32,
    sender: Sender,
    stations: BTreeMap<u32, Station>,
    hosts: BTreeMap<ReceiverId, u32>,
    result: FileResult,
    /// Whether a multicast message is leaving the sender.
    is_busy: bool,
    /// The expiry for which an alarm is set.
    expiry: Option<Time>,
    judge: Judge,
}

/// Runs an experiment until nothing happens any more.
///
/// # Errors
/// Text that says what is wrong: bytes that differ, a file that is still open, a lost message of a
/// channel.
pub fn transfer_files(experiment: &FileExperiment) -> Result<FileResult, String> {
    let hosts = 1 + experiment.receivers + experiment.late.len() as u32;
    let link = LinkSpec {
        rate: experiment.rate,
        delay: experiment.delay,
        queue: 1 << 40,
    };
    let mut fabric = Fabric::new(
        &Topology::single(link),
        hosts as usize,
        experiment.overhead,
        experiment.seed,
    );
    let faults = LinkFaults {
        multicast_only: true,
        ..experiment.faults
    };
    for host in 1..hosts {
        let link = fabric.downlink(host);
        fabric.set_faults(link, faults);
    }
    let group = fabric.group();
    let sender = Sender::new(SenderConfig {
        slots: experiment.slots,
        block: experiment.block,
        timeout: experiment.timeout,
        credits: experiment.credits,
    });
    let mut run = Run {
        experiment,
        fabric,
        group,
        sender,
        stations: BTreeMap::new(),
        hosts: BTreeMap::new(),
        result: FileResult::default(),
        is_busy: false,
        expiry: None,
        judge: Judge::default(),
    };
    for host in 1..=experiment.receivers {
        run.join(host);
    }
    for (host, &at) in (experiment.receivers + 1..).zip(&experiment.late) {
        run.fabric.alarm(Time::ZERO + at, JOIN, host);
    }
    for &(host, at) in &experiment.leaves {
        run.fabric.alarm(Time::ZERO + at, LEAVE, host);
    }
    run.open_files();
    run.multicast()?;
    while let Some(happening) = run.fabric.next_happening() {
        run.result.events += 1;
        match happening {
            Happening::Arrive { host, packet } => run.arrives(host, &packet)?,
            Happening::Alarm { a: JOIN, b } => {
                run.result.tried.joins += 1;
                run.join(b);
            }
            Happening::Alarm { a: LEAVE, b } => run.leave(b),
            Happening::Alarm { a: EXPIRY, .. } => run.expiry = None,
            Happening::Alarm { .. } => run.is_busy = false,
        }
        run.poll_sender()?;
        run.open_files();
        run.multicast()?;
        run.check_invariants();
    }
    run.finish()
}

impl Run<'_> {
    fn now(&self) -> Time {
        self.fabric.now()
    }

    fn join(&mut self, host: u32) {
        let joined = self.sender.join();
        let machine = Receiver::new(ReceiverConfig {
            slots: self.experiment.slots,
            first: joined.first,
            credits: self.experiment.credits,
            holes_max: 1 << 16,
        });
        let station = Station {
            id: joined.receiver,
            machine,
            stored: BTreeMap::new(),
            has_data: false,
        };
        self.stations.insert(host, station);
        self.hosts.insert(joined.receiver, host);
        self.fabric.join(self.group, host);
    }

    /// A receiver has gone, if it was there.
    fn leave(&mut self, host: u32) {
        if let Some(station) = self.stations.remove(&host) {
            self.result.tried.leaves += 1;
            self.hosts.remove(&station.id);
            self.sender.leave(station.id);
            self.fabric.leave(self.group, host);
        }
    }

    fn check_invariants(&self) {
        if self.experiment.is_checked {
            self.sender.invariants();
            let stations = self.stations.values();
            stations.for_each(|station| station.machine.invariants());
        }
    }

    /// The seed of a file's bytes.
    fn place(&self, file: FileId) -> usize {
        shift(content_of(self.experiment.seed, 0, file.0 as usize))
    }

    /// Opens files while there are more and a slot is free.
    fn open_files(&mut self) {
        while let Some(&len) = self.experiment.files.get(self.opened()) {
            let name = Name::new(b"file").expect("a name");
            if self.sender.open(name, len).is_err() {
                return;
            }
        }
    }

    /// Files that have been opened so far.
    fn opened(&self) -> usize {
        self.sender.next_file().0 as usize - 1
    }

    /// Multicasts the next message if the one before has left the sender.
    fn multicast(&mut self) -> Result<(), String> {
        if self.is_busy {
            return Ok(());
        }
        let Some(message) = self.sender.multicast(self.now()) else {
            return Ok(());
        };
        if let Body::Data { len, .. } = message.body {
            self.result.multicast += u64::from(len);
        }
        let end = match message.body {
            Body::Data { offset, len } => offset + u64::from(len),
            _ => 0,
        };
        if end == self.experiment.files[message.file.0 as usize - 1] {
            let (now, there) = (self.now(), self.stations.len());
            self.judge.multicast_ended(now, message.file, there);
        }
        let bytes = self.send(SENDER, Target::Group(self.group), &Frame::Message(message));
        let gone =
            self.now() + transfer_time(bytes + self.experiment.overhead, self.experiment.rate);
        self.is_busy = true;
        self.fabric.alarm(gone, MULTICAST, 0);
        self.poll_sender()
    }

    /// Sends a frame with the bytes of its file. Returns the length of the datagram.
    fn send(&mut self, from: u32, to: Target, frame: &Frame) -> u64 {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let mut kind = 0;
        if let Frame::Message(message) = frame {
            kind = message.kind() as usize;
            if let Body::Data { offset, len } = message.body {
                match self.experiment.is_checked {
                    true => {
                        let place = self.place(message.file);
                        bytes.extend(window(place, offset, len as usize));
                    }
                    false => bytes.resize(bytes.len() + len as usize, 0),
                }
            }
        }
        self.result.messages[kind] += 1;
        self.result.tried.expired += u64::from(kind == Type::FileTimeout as usize);
        if let Target::Group(_) = to {
            let more = self.experiment.multicast_overhead as usize;
            bytes.resize(bytes.len() + more, 0);
        }
        let len = bytes.len() as u64;
        for word in [u64::from(from), kind as u64, len, self.now().0] {
            self.result.hash = (self.result.hash ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        let packet = Packet {
            from,
            to,
            kind: Kind::Message,
            way_ns: 0,
            bytes,
        };
        self.fabric.send(self.now(), Rc::new(packet));
        len
    }

    fn poll_sender(&mut self) -> Result<(), String> {
        loop {
            let (to, frame) = match self.sender.poll(self.now()) {
                SenderOutput::Send(to, message) => {
                    if let Body::Data { len, .. } = message.body {
                        self.result.by_channel += u64::from(len);
                    }
                    (to, Frame::Message(message))
                }
                SenderOutput::Ack(to, messages) => (to, Frame::Ack(messages)),
                SenderOutput::Event(SenderEvent::Closed {
                    file,
                    noted,
                    unfinished,
                    ..
                }) => {
                    let timeout = self.experiment.timeout;
                    self.judge.closed(self.now(), file, noted, timeout)?;
                    self.result.unfinished += unfinished.len() as u64;
                    self.result.time = self.now().since(Time::ZERO);
                    continue;
                }
                SenderOutput::Event(SenderEvent::Done(..)) => continue,
                SenderOutput::Wait(until) => {
                    if let Some(at) = until.filter(|&at| self.expiry.is_none_or(|set| at < set)) {
                        self.expiry = Some(at);
                        self.fabric.alarm(at, EXPIRY, 0);
                    }
                    return Ok(());
                }
            };
            let host = self.hosts[&to];
            self.judge.sent(&self.sender, host, &frame)?;
            self.send(SENDER, Target::Host(host), &frame);
        }
    }

    fn arrives(&mut self, host: u32, packet: &Packet) -> Result<(), String> {
        let more = match packet.to {
            Target::Group(_) => self.experiment.multicast_overhead as usize,
            Target::Host(_) => 0,
        };
        let bytes = &packet.bytes[..packet.bytes.len() - more];
        let (frame, payload) = decode(bytes).map_err(|error| format!("{error:?}"))?;
        let wrong = |error| format!("host {host}: {error:?}");
        if host == SENDER {
            let Some(station) = self.stations.get(&packet.from) else {
                return Ok(()); // it has left
            };
            let from = station.id;
            return match frame {
                Frame::Ack(messages) => self.sender.acknowledged(from, messages),
                Frame::Message(message) => self.sender.channel(from, &message).map(drop),
            }
            .map_err(wrong);
        }
        let Some(station) = self.stations.get_mut(&host) else {
            return Ok(());
        };
        if !payload.is_empty() && !std::mem::replace(&mut station.has_data, true) {
            self.result.latency = self.fabric.now().since(Time::ZERO);
        }
        if let Target::Host(_) = packet.to {
            self.judge.received(host, &frame);
        }
        let is_checked = self.experiment.is_checked;
        match (packet.to, frame) {
            (Target::Group(_), Frame::Message(message)) => {
                let extent = station.machine.multicast(&message);
                station.write(extent.filter(|_| is_checked), &message, payload);
            }
            (Target::Host(_), Frame::Message(message)) => {
                let extent = station.machine.channel(&message).map_err(wrong)?;
                station.write(extent.filter(|_| is_checked), &message, payload);
            }
            (_, Frame::Ack(messages)) => {
                station.machine.acknowledged(messages).map_err(wrong)?;
            }
        }
        self.poll_receiver(host)
    }

    fn poll_receiver(&mut self, host: u32) -> Result<(), String> {
        loop {
            let Some(station) = self.stations.get_mut(&host) else {
                return Ok(());
            };
            let frame = match station.machine.poll() {
                ReceiverOutput::Send(message) => Frame::Message(message),
                ReceiverOutput::Ack(messages) => Frame::Ack(messages),
                ReceiverOutput::Event(ReceiverEvent::Complete(_, file)) => {
                    let stored = station.stored.remove(&file).unwrap_or_default();
                    if self.experiment.is_checked {
                        self.check(host, file, &stored)?;
                    }
                    self.judge.complete(host, file);
                    self.result.complete += 1;
                    continue;
                }
                ReceiverOutput::Event(ReceiverEvent::Failed(_, file, _)) => {
                    station.stored.remove(&file);
                    continue;
                }
                ReceiverOutput::Event(ReceiverEvent::Announced { .. }) => continue,
                ReceiverOutput::Wait => return Ok(()),
            };
            self.judge
                .requested(host, &frame, self.experiment.credits.batch)?;
            self.send(host, Target::Host(SENDER), &frame);
        }
    }

    /// Whether a complete file is the one that was sent.
    fn check(&self, host: u32, file: FileId, stored: &[u8]) -> Result<(), String> {
        let len = self.experiment.files[file.0 as usize - 1];
        let place = self.place(file);
        let block = self.experiment.block as usize;
        let mut parts = stored.chunks(block).zip((0..).step_by(block));
        let is_equal = parts.all(|(part, offset)| part == window(place, offset, part.len()));
        if stored.len() as u64 != len || !is_equal {
            return Err(format!("host {host}: the bytes of {file:?} differ"));
        }
        Ok(())
    }

    /// Nothing happens any more: nothing may be open.
    fn finish(self) -> Result<FileResult, String> {
        if self.fabric.stats_total().overflowed > 0 {
            return Err("a message of a channel is lost".to_string());
        }
        if self.opened() < self.experiment.files.len() || self.sender.open_files() > 0 {
            return Err("the sender has not finished".to_string());
        }
        for (host, station) in &self.stations {
            if station.machine.open_files() > 0 || station.machine.waiting() > 0 {
                return Err(format!("host {host} waits for ever"));
            }
        }
        Ok(self.result)
    }
}

impl Station {
    fn write(&mut self, extent: Option<Extent>, message: &Message, payload: &[u8]) {
        let (Some(Extent { file, range, .. }), Body::Data { offset, .. }) = (extent, &message.body)
        else {
            return;
        };
        let stored = self.stored.entry(file).or_default();
        if stored.len() < range.end as usize {
            stored.resize(range.end as usize, 0);
        }
        let from = (range.start - offset) as usize;
        let to = (range.end - offset) as usize;
        stored[range.start as usize..range.end as usize].copy_from_slice(&payload[from..to]);
    }
}
