//! Objects whose bytes are a function of seed, stream and operation. They check how the driver uses
//! them.
//!
//! All content is a window onto one table of random bytes whose period is a prime. So an object
//! costs no memory, and bytes at a wrong place or of a wrong operation differ from the expected
//! ones.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::OnceLock;

use fabricast::object::{Fetch, Object, Written};
use fabricast::proto::Outcome;
use fabricast::proto::limits::PAYLOAD_MAX;
use fabricast::proto::rng::Rng;

/// Length of the table before it repeats: a prime, so that no power of two hides a shift.
const PERIOD: usize = 262_139;

fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut rng = Rng::new(0xfab);
        let mut bytes: Vec<u8> = (0..PERIOD.div_ceil(8))
            .flat_map(|_| rng.bits().to_le_bytes())
            .collect();
        bytes.truncate(PERIOD);
        bytes.extend_from_within(..PAYLOAD_MAX as usize);
        bytes
    })
}

/// What the object of a stream's operation consists of, as a number.
pub(crate) fn content_of(seed: u64, stream: usize, number: usize) -> u64 {
    seed ^ (stream as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (number as u64) << 24
}

/// Where the content of this number begins in the table.
pub(crate) fn shift(content: u64) -> usize {
    Rng::new(content).below(PERIOD as u64) as usize
}

/// `len` bytes from `offset` of the content that begins at this place of the table.
pub(crate) fn window(shift: usize, offset: u64, len: usize) -> &'static [u8] {
    let start = (shift + (offset % PERIOD as u64) as usize) % PERIOD;
    &table()[start..start + len]
}

/// What all objects of a run share: the time, and a place for complaints.
#[derive(Debug, Default)]
pub struct World {
    /// The simulated time in nanoseconds.
    pub(crate) now_ns: Cell<u64>,
    /// The first complaint.
    pub(crate) wrong: RefCell<Option<String>>,
    /// Whether there has been a complaint.
    pub(crate) broken: Cell<bool>,
    /// Memory that callers have back.
    pub(crate) returned: RefCell<Vec<Vec<u8>>>,
}

impl World {
    /// Notes something that must not happen; only the first complaint is kept.
    pub(crate) fn complain(&self, what: impl FnOnce() -> String) {
        if !self.broken.replace(true) {
            *self.wrong.borrow_mut() = Some(what());
        }
    }
}

/// How far an object has come, as its owner (the driver) and the checkers see it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Packets whose bytes are placed.
    pub(crate) placed: Cell<u64>,
    /// Packets before the first one that is not placed.
    pub(crate) prefix: Cell<u64>,
    /// All packets of the object.
    pub(crate) packets: Cell<u64>,
    /// The object has refused bytes and will never be whole.
    pub(crate) failed: Cell<bool>,
}

impl Progress {
    /// An object of this many packets that its receiver declines: it counts as whole.
    pub(crate) fn declined(packets: u64) -> Progress {
        Progress {
            placed: Cell::new(packets),
            prefix: Cell::new(packets),
            packets: Cell::new(packets),
            ..Progress::default()
        }
    }

    pub(crate) fn whole(&self) -> bool {
        self.placed.get() == self.packets.get()
    }
}

/// Properties of a disk that make an object slow or bad.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Disk {
    /// Longest delay until requested bytes are ready or written bytes are placed, in nanoseconds.
    pub delay_max_ns: u64,
    /// Chance that placed bytes turn out to be corrupt and must be sent again.
    pub corrupt: f64,
    /// Packet from which on writing fails.
    pub full_after: Option<u64>,
    /// Size in bytes of the blocks in which bytes are placed and reported; zero: packet by packet.
    pub block: u32,
}

/// An object's place in a run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The world in which the object lives.
    pub(crate) world: Rc<World>,
    /// The host's alarm clock: when an object of this host next wants to be polled.
    pub(crate) bell: Rc<Cell<u64>>,
    /// Name of the object in complaints: host, stream and operation.
    pub(crate) name: (u32, u32, u32),
}

/// An object that is sent or received.
#[derive(Debug)]
pub struct PatternObject {
    place: Place,
    shift: usize,
    len: u64,
    payload_size: u32,
    disk: Disk,
    rng: Rng,
    progress: Rc<Progress>,
    receives: bool,
    /// Sender whose bytes are read late: the bytes, in memory that the caller gets back.
    own: Option<Vec<u8>>,
    /// Receiver: one bit per packet, set when the packet is written.
    written: Vec<u64>,
    /// Receiver: one bit per packet, set when the packet is placed.
    placed: Vec<u64>,
    /// Receiver: writes under way: when each ends, offset and length, and its outcome.
    under_way: VecDeque<(u64, u64, u64, Outcome)>,
    /// Receiver that places in blocks: the packets that each incomplete block has.
    gathered: BTreeMap<u64, BTreeSet<u64>>,
    /// Receiver that places in blocks: whole blocks, and whether each is placed (or on its way).
    blocks: BTreeMap<u64, bool>,
    /// Sender on a slow disk: per 64 packets, when they will have been read, in nanoseconds;
    /// `u64::MAX` until reading begins.
    ready: Vec<u64>,
}

/// Number of packets that an object takes, at least one: an empty object takes one, too.
pub fn packets_of(len: u64, payload_size: u32) -> u64 {
    len.div_ceil(u64::from(payload_size)).max(1)
}

impl PatternObject {
    /// The object that `content` stands for, as the sender has it.
    pub fn source(
        place: Place,
        content: u64,
        len: u64,
        payload_size: u32,
        disk: Disk,
    ) -> PatternObject {
        let mut o = PatternObject::new(place, content, len, payload_size, disk);
        if disk.delay_max_ns > 0 {
            o.ready = vec![u64::MAX; packets_of(len, payload_size).div_ceil(64) as usize];
        }
        o
    }

    /// The object that `content` stands for, empty, to be received into.
    pub fn room(
        place: Place,
        content: u64,
        len: u64,
        payload_size: u32,
        disk: Disk,
        progress: Rc<Progress>,
    ) -> PatternObject {
        let mut o = PatternObject::new(place, content, len, payload_size, disk);
        let packets = packets_of(len, payload_size);
        progress.packets.set(packets);
        o.progress = progress;
        o.receives = true;
        o.written = vec![0; packets.div_ceil(64) as usize];
        o.placed = o.written.clone();
        o
    }

    fn new(place: Place, content: u64, len: u64, payload_size: u32, disk: Disk) -> PatternObject {
        let seed = content ^ u64::from(place.name.0) << 40;
        PatternObject {
            shift: shift(content),
            rng: Rng::new(seed),
            place,
            len,
            payload_size,
            disk,
            progress: Rc::default(),
            receives: false,
            own: None,
            written: Vec::new(),
            placed: Vec::new(),
            under_way: VecDeque::new(),
            gathered: BTreeMap::new(),
            blocks: BTreeMap::new(),
            ready: Vec::new(),
        }
    }

    /// Gives a sender's object memory of its own, so that the network may read it late.
    pub fn in_memory(mut self) -> PatternObject {
        let mut own = Vec::with_capacity(self.len as usize);
        for offset in (0..self.len).step_by(PAYLOAD_MAX as usize) {
            let len = (self.len - offset).min(u64::from(PAYLOAD_MAX));
            own.extend_from_slice(self.content(offset, len as usize));
        }
        self.own = Some(own);
        self
    }

    /// Does what a caller may do who has the object back: overwrites its memory. The memory stays
    /// where it is until the end of the run, so that late readers find other bytes there.
    pub(crate) fn overwrite(mut self) {
        if let Some(mut own) = self.own.take() {
            own.fill(0xff);
            self.place.world.returned.borrow_mut().push(own);
        }
    }

    /// Makes the object a part of a larger whole, which begins `offset` bytes before the part.
    pub fn at(mut self, offset: u64) -> PatternObject {
        self.shift = (self.shift + (offset % PERIOD as u64) as usize) % PERIOD;
        self
    }

    /// Whether every byte is placed.
    pub fn whole(&self) -> bool {
        self.progress.whole()
    }

    fn content(&self, offset: u64, len: usize) -> &'static [u8] {
        window(self.shift, offset, len)
    }

    fn length_of(&self, packet: u64) -> u64 {
        (self.len - packet * u64::from(self.payload_size)).min(u64::from(self.payload_size))
    }

    fn complain(&self, what: &str, offset: u64, len: u64) {
        let (host, stream, op) = self.place.name;
        self.place.world.complain(|| {
            format!(
                "{what}: host {host}, stream {stream}, operation {op}, bytes {offset}+{len} of {}",
                self.len
            )
        });
    }

    fn ring_at(&self, at: u64) {
        self.place.bell.set(self.place.bell.get().min(at));
    }

    /// Starts to place bytes, as a write to a disk.
    fn place_later(&mut self, offset: u64, len: u64) {
        let now = self.place.world.now_ns.get();
        let due = now + 1 + self.rng.below(self.disk.delay_max_ns);
        let outcome = if self.rng.chance(self.disk.corrupt) {
            Outcome::Corrupt
        } else {
            Outcome::Ok
        };
        let at = self.under_way.partition_point(|w| w.0 <= due);
        self.under_way.insert(at, (due, offset, len, outcome));
        self.ring_at(due);
    }

    /// The blocks that a packet's bytes touch.
    fn blocks_of(&self, packet: u64) -> std::ops::RangeInclusive<u64> {
        let offset = packet * u64::from(self.payload_size);
        let last = offset + self.length_of(packet).max(1) - 1;
        let block = u64::from(self.disk.block);
        offset / block..=last / block
    }

    fn blocks_placed(&self, packet: u64) -> bool {
        self.disk.block == 0
            || self
                .blocks_of(packet)
                .all(|b| self.blocks.get(&b) == Some(&true))
    }

    /// Adds a packet to the blocks that it touches; whole blocks go to the disk.
    fn gather(&mut self, packet: u64, offset: u64, len: u64) {
        let (block, payload_size) = (u64::from(self.disk.block), u64::from(self.payload_size));
        for b in self.blocks_of(packet) {
            if self.blocks.contains_key(&b) {
                continue; // the packet came again because a neighbouring block needs it
            }
            let start = b * block;
            let end = (start + block).min(self.len);
            let first = start / payload_size;
            let count = if len == 0 {
                1
            } else {
                (end - 1) / payload_size - first + 1
            };
            let has = self.gathered.entry(b).or_default();
            has.insert(packet);
            if has.len() as u64 == count {
                self.gathered.remove(&b);
                self.blocks.insert(b, false);
                let start = if len == 0 { offset } else { start };
                self.place_later(start, end.max(start) - start);
            }
        }
    }

    fn mark_placed(&mut self, packet: u64) {
        let (word, bit) = ((packet / 64) as usize, 1u64 << (packet % 64));
        self.placed[word] |= bit;
        let p = &self.progress;
        p.placed.set(p.placed.get() + 1);
        let mut prefix = p.prefix.get();
        while prefix < p.packets.get() {
            let rest = !self.placed[(prefix / 64) as usize] >> (prefix % 64);
            if rest & 1 == 1 {
                break;
            }
            let run = u64::from(rest.trailing_zeros()).min(64 - prefix % 64);
            prefix = (prefix + run).min(p.packets.get());
        }
        p.prefix.set(prefix);
    }
}

// SAFETY: bytes without memory of their own are of one table, which never changes. Memory of its
// own changes only when the object is overwritten, which takes the object.
#[allow(unsafe_code)]
unsafe impl Object for PatternObject {
    fn len(&self) -> u64 {
        self.len
    }

    fn fetch(&mut self, offset: u64, len: u32) -> Fetch {
        if offset + u64::from(len) > self.len {
            self.complain("read beyond the end", offset, u64::from(len));
            return Fetch::Failed;
        }
        if self.ready.is_empty() || len == 0 {
            return Fetch::Ready;
        }
        let now = self.place.world.now_ns.get();
        let first = offset / u64::from(self.payload_size) / 64;
        let last = (offset + u64::from(len) - 1) / u64::from(self.payload_size) / 64;
        let mut answer = Fetch::Ready;
        for block in first..=last {
            let block = block as usize;
            if self.ready[block] == u64::MAX {
                self.ready[block] = now + self.rng.below(self.disk.delay_max_ns);
            }
            if self.ready[block] > now {
                self.ring_at(self.ready[block]);
                answer = Fetch::Later;
            }
        }
        answer
    }

    fn bytes(&self, offset: u64, len: u32) -> &[u8] {
        if self.receives {
            // A co-root repairs only with packets that it has placed.
            let packet = offset / u64::from(self.payload_size);
            if self.placed[(packet / 64) as usize] >> (packet % 64) & 1 == 0 {
                self.complain("read before it was placed", offset, u64::from(len));
            }
        }
        match &self.own {
            Some(own) => &own[offset as usize..][..len as usize],
            None => self.content(offset, len as usize),
        }
    }

    fn is_stable(&self) -> bool {
        true
    }

    fn add(&mut self, offset: u64, len: u32, sum: &mut [u8]) -> bool {
        let packet = offset / u64::from(self.payload_size);
        if self.receives && self.written[(packet / 64) as usize] >> (packet % 64) & 1 == 0 {
            self.complain("added before it was written", offset, u64::from(len));
        }
        let bytes = self.content(offset, len as usize);
        sum.iter_mut().zip(bytes).for_each(|(s, b)| *s ^= b);
        true
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Written {
        let len = bytes.len() as u64;
        let packet = offset / u64::from(self.payload_size);
        if !self.receives {
            self.complain("a source was written to", offset, len);
            return Written::Failed;
        }
        if !offset.is_multiple_of(u64::from(self.payload_size))
            || offset > self.len
            || packet >= self.progress.packets.get()
            || len != self.length_of(packet)
        {
            self.complain("written beside the packets' bounds", offset, len);
            return Written::Failed;
        }
        if self.progress.failed.get() {
            return Written::Failed; // the driver had taken the packet before the failure
        }
        let (word, bit) = ((packet / 64) as usize, 1u64 << (packet % 64));
        if self.written[word] & bit != 0 {
            self.complain("written twice", offset, len);
        }
        self.written[word] |= bit;
        if bytes != self.content(offset, bytes.len()) {
            self.complain("wrong bytes", offset, len);
        }
        if self.disk.full_after.is_some_and(|n| packet >= n) {
            self.progress.failed.set(true);
            return Written::Failed;
        }
        if self.disk.delay_max_ns == 0 {
            self.mark_placed(packet);
            return Written::Placed;
        }
        if self.disk.block == 0 {
            self.place_later(offset, len);
        } else {
            self.gather(packet, offset, len);
        }
        Written::Later
    }

    fn progress(&mut self, report: &mut dyn FnMut(u64, u32, Outcome)) {
        let now = self.place.world.now_ns.get();
        while let Some(&(due, offset, len, outcome)) = self.under_way.front() {
            if due > now {
                self.ring_at(due);
                break;
            }
            self.under_way.pop_front();
            let payload_size = u64::from(self.payload_size);
            if self.disk.block > 0 {
                let block = offset / u64::from(self.disk.block);
                match outcome {
                    Outcome::Ok => self.blocks.insert(block, true),
                    _ => self.blocks.remove(&block),
                };
            }
            for packet in offset / payload_size..=(offset + len.max(1) - 1) / payload_size {
                if outcome == Outcome::Corrupt {
                    self.written[(packet / 64) as usize] &= !(1 << (packet % 64));
                } else if self.blocks_placed(packet) {
                    self.mark_placed(packet);
                }
            }
            report(offset, len as u32, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            world: Rc::default(),
            bell: Rc::new(Cell::new(u64::MAX)),
            name: (1, 2, 3),
        }
    }

    fn pair(len: u64, disk: Disk) -> (PatternObject, PatternObject, Place) {
        let p = place();
        let from = PatternObject::source(p.clone(), 7, len, 100, Disk::default());
        let to = PatternObject::room(p.clone(), 7, len, 100, disk, Rc::default());
        (from, to, p)
    }

    #[test]
    fn what_is_sent_can_be_placed_once() {
        let (from, mut to, p) = pair(100 * 200 + 1, Disk::default());
        for i in (0..201u64).rev() {
            let len = if i == 200 { 1 } else { 100 };
            assert!(!to.whole());
            assert_eq!(to.write(i * 100, from.bytes(i * 100, len)), Written::Placed);
            assert_eq!(to.progress.prefix.get(), if i == 0 { 201 } else { 0 });
        }
        assert!(to.whole() && !p.world.broken.get());
        to.write(0, from.bytes(0, 100));
        let wrong = p.world.wrong.borrow().clone();
        assert!(wrong.is_some_and(|w| w.starts_with("written twice")));
    }

    #[test]
    fn wrong_bytes_are_noticed() {
        let (from, mut to, p) = pair(1000, Disk::default());
        to.write(100, from.bytes(200, 100));
        assert!(p.world.broken.get());
    }

    #[test]
    fn a_slow_disk_places_later() {
        let disk = Disk {
            delay_max_ns: 1000,
            ..Disk::default()
        };
        let (from, mut to, p) = pair(1000, disk);
        for i in 0..10 {
            assert_eq!(to.write(i * 100, from.bytes(i * 100, 100)), Written::Later);
        }
        assert!(!to.whole() && p.bell.get() <= 1000);
        p.world.now_ns.set(1000);
        let mut told = 0;
        to.progress(&mut |_, len, outcome| {
            assert_eq!(outcome, Outcome::Ok);
            told += len;
        });
        assert!(to.whole() && told == 1000 && !p.world.broken.get());
    }

    #[test]
    fn a_corrupt_block_opens_the_packets_that_it_touches() {
        let disk = Disk {
            delay_max_ns: 10,
            block: 250,
            corrupt: 1.0,
            ..Disk::default()
        };
        let (from, mut to, p) = pair(1000, disk);
        let write = |to: &mut PatternObject, i: u64| to.write(i * 100, from.bytes(i * 100, 100));
        let mut told = Vec::new();
        for round in 0..2 {
            (0..3).for_each(|i| _ = write(&mut to, i));
            p.world.now_ns.set((round + 1) * 10);
            to.progress(&mut |offset, len, outcome| told.push((offset, len, outcome)));
            to.disk.corrupt = 0.0;
        }
        assert_eq!(told, [(0, 250, Outcome::Corrupt), (0, 250, Outcome::Ok)]);
        assert_eq!(to.progress.prefix.get(), 2, "packet 2 reaches into block 1");
        (3..10).for_each(|i| _ = write(&mut to, i));
        p.world.now_ns.set(30);
        to.progress(&mut |_, _, _| {});
        assert!(to.whole() && !p.world.broken.get());
    }

    #[test]
    fn an_empty_object_has_one_packet() {
        let (from, mut to, _) = pair(0, Disk::default());
        assert_eq!(to.write(0, from.bytes(0, 0)), Written::Placed);
        assert!(to.whole());
    }
}
