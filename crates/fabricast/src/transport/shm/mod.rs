//! Datagrams between the processes of one host, through memory that they share.
//!
//! Each process writes everything that it sends, to groups and to nodes alike, once into a `ring`
//! of its own. All others read the ring, and each takes what is for it. A process that falls a
//! whole ring behind has lost datagrams. The writer wakes a process that sleeps (`fd_channel`).
//! Only processes of the job have the memory. A datagram in it can be wrong, which harms no
//! reader's memory, but not forged by outsiders.
//!
//! ```text
//!   ring 0  ▓▓▓▓▓▓▓▓▓▓─►  written by process 0, read by 1, 2, ...        one `segment`
//!   ring 1  ▓▓▓▓─►
//! ```

mod fd_channel;
mod ring;
mod segment;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabricast_proto::limits::HEAD_MAX;
use fabricast_proto::{AddressId, Dest, NodeId, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::fd_channel::{Sleepers, Wakers, wants_ring};
use self::ring::{Found, Reader, Ring, Writer};
use self::segment::{PROCESSES_MAX, Segment};
use super::wait::sharpen_timers;
use super::{
    Arrival, Caps, Counters, DatagramId, GroupAddress, News, NodeAddress, Outgoing, Ready, Sleeper,
    Slots, Transport, Watch,
};

pub use self::fd_channel::FdChannel;

/// Length of a ring, in words: a megabyte, which most processors keep in a cache.
const RING: usize = 1 << 17;
/// Largest number of datagrams that one call hands up.
const RECEIVE_MAX: usize = 64;
/// Largest number of datagrams taken from one ring before the next ring has its turn.
const TURN_MAX: usize = 16;
/// Time that the first process has to hand the memory over, and that the others have to take it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a process shares with those of its own threads that sleep.
struct Place {
    segment: Segment,
    me: usize,
    wakers: Wakers,
    sleepers: Sleepers,
    /// How far each ring has been read, in words.
    read: Vec<AtomicU64>,
}

impl Place {
    fn state(&self) -> &AtomicU64 {
        self.segment.state(self.me)
    }

    /// Whether a datagram was written that no thread of this process has looked at.
    fn has_news(&self) -> bool {
        let mut others = (0..).zip(&self.read).filter(|(i, _)| *i != self.me);
        others.any(|(i, read)| {
            let head = self.segment.ring(i).head.load(Ordering::Relaxed);
            head != read.load(Ordering::Relaxed)
        })
    }
}

/// One process's end of the memory that a host's processes share.
pub struct Shm {
    place: Arc<Place>,
    writer: Writer,
    /// The reader of each process's ring; this process's own is not used.
    readers: Vec<Reader>,
    turn: usize,
    nodes: BTreeMap<NodeId, usize>,
    /// The node of each process.
    sources: Vec<Option<NodeId>>,
    groups: BTreeMap<AddressId, Group>,
    slots: Slots,
    /// Datagrams that were written and not named as completed.
    sent: Vec<DatagramId>,
    /// What has happened and was not read yet.
    news: VecDeque<News>,
    /// Processes for which this call has written something.
    told: Vec<bool>,
    /// The waker has ended a thread's sleep, and its rings must be cleared.
    rung: bool,
    drained: bool,
    counters: Counters,
}

struct Group {
    processes: Vec<usize>,
    receive: bool,
}

/// How the processes of a host get their shared memory: the first makes it and hands it to the
/// others.
pub struct Meeting<'a> {
    /// The names of all channels, in the order of the processes.
    pub wakers: &'a [u64],
    /// Index of this process in that order.
    pub me: usize,
    /// A number that only these processes know.
    pub key: u64,
}

impl Meeting<'_> {
    /// Makes the memory and hands it over. The first process calls this, the others
    /// [`Meeting::join`].
    pub fn create(&self, channel: FdChannel) -> io::Result<Shm> {
        let (others, until) = (&self.wakers[1..], Instant::now() + PATIENCE);
        let (segment, fd, wakers) = self.make().inspect_err(|_| {
            let none = |&name| _ = channel.hand(name, &[], until);
            others.iter().for_each(none);
        })?;
        let fds: Vec<_> = [fd.as_fd()].into_iter().chain(wakers.all()).collect();
        for &name in others {
            channel.hand(name, &fds, until)?;
        }
        Ok(self.end(segment, wakers))
    }

    fn make(&self) -> io::Result<(Segment, OwnedFd, Wakers)> {
        let processes = self.wakers.len();
        if processes > PROCESSES_MAX {
            return Err(io::Error::other("too many processes on one host"));
        }
        let (segment, fd) = Segment::create(self.key, processes, RING)?;
        Ok((segment, fd, Wakers::new(processes)?))
    }

    /// Takes the memory that the first process makes.
    pub fn join(&self, channel: FdChannel) -> io::Result<Shm> {
        let processes = self.wakers.len();
        let until = Instant::now() + PATIENCE;
        let mut fds = channel.take(self.wakers[0], 1 + processes, until)?;
        let wakers = Wakers::taken(fds.split_off(1));
        let segment = Segment::open(fds[0].as_fd(), self.key, processes, RING)?;
        Ok(self.end(segment, wakers))
    }

    fn end(&self, segment: Segment, wakers: Wakers) -> Shm {
        let processes = segment.processes();
        Shm {
            place: Arc::new(Place {
                segment,
                me: self.me,
                wakers,
                sleepers: Sleepers::default(),
                read: (0..processes).map(|_| AtomicU64::new(0)).collect(),
            }),
            writer: Writer::new(),
            readers: (0..processes).map(|_| Reader::new()).collect(),
            turn: 0,
            nodes: BTreeMap::new(),
            sources: vec![None; processes],
            groups: BTreeMap::new(),
            slots: Slots::new(Ring::datagram_max(RING)),
            sent: Vec::new(),
            news: VecDeque::new(),
            told: vec![false; processes],
            rung: false,
            drained: false,
            counters: Counters::default(),
        }
    }
}

impl Shm {
    /// What a thread needs to sleep while another one may use the transport.
    fn waiter(&self) -> ShmWaiter {
        ShmWaiter(self.place.clone())
    }

    /// Wakes those processes that sleep and for which something was written.
    fn ring(&mut self) {
        let Place {
            segment,
            me,
            wakers,
            ..
        } = &*self.place;
        for (process, told) in self.told.iter_mut().enumerate() {
            if std::mem::take(told) && process != *me && wants_ring(segment.state(process)) {
                wakers.ring(process);
                self.counters.wakes += 1;
            }
        }
    }
}

impl Transport for Shm {
    fn caps(&self) -> Caps {
        Caps::datagrams(Ring::datagram_max(RING))
    }

    /// Half a ring: a reader that is a whole ring behind has lost datagrams.
    fn backlog(&self, payload_size: u32) -> u32 {
        (RING * size_of::<u64>() / 2 / (payload_size as usize + HEAD_MAX)) as u32
    }

    fn address(&self) -> NodeAddress {
        NodeAddress::Number(self.place.me as u32)
    }

    fn peer(&mut self, node: NodeId, address: &NodeAddress) {
        let process = address.number().map(|process| process as usize);
        match process.filter(|&process| process < self.sources.len()) {
            Some(process) => {
                self.forget(node);
                self.nodes.insert(node, process);
                self.sources[process] = Some(node);
            }
            None => {
                let text = format!("{address} is no process of this host: nothing is sent to it");
                self.news.push_back(News::Notice(text));
            }
        }
    }

    fn forget(&mut self, node: NodeId) {
        if let Some(process) = self.nodes.remove(&node) {
            self.sources[process].take_if(|known| *known == node);
        }
    }

    /// The address of a group is the list of its members.
    fn join(&mut self, id: AddressId, address: &GroupAddress, receive: bool) {
        let news = match address {
            GroupAddress::Members(members) => {
                let processes = members.iter().map(|&member| member as usize).collect();
                self.groups.insert(id, Group { processes, receive });
                News::Joined(id)
            }
            _ => {
                let text = format!("{address} is no list of processes");
                let error = io::Error::new(io::ErrorKind::InvalidInput, text);
                News::JoinFailed(id, error)
            }
        };
        self.news.push_back(news);
    }

    fn leave(&mut self, id: AddressId) {
        self.groups.remove(&id);
    }

    fn slots(&mut self) -> &mut Slots {
        &mut self.slots
    }

    fn send(&mut self, _now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let ring = self.place.segment.ring(self.place.me);
        for datagram in batch {
            let one;
            let to = match datagram.to {
                Dest::Address(id) => match self.groups.get(&id) {
                    Some(group) => &group.processes[..],
                    None => continue,
                },
                Dest::Node(node) => match self.nodes.get(&node) {
                    Some(&process) => {
                        one = [process];
                        &one
                    }
                    None => continue,
                },
            };
            for &process in to {
                if let Some(told) = self.told.get_mut(process) {
                    *told = true;
                }
            }
            let pieces = self.slots.pieces(datagram);
            self.writer.write(ring, datagram.to, pieces);
            self.counters.datagrams_sent += 1;
            self.counters.bytes_sent += datagram.len() as u64;
        }
        self.ring();
        self.sent.extend(batch.iter().map(|datagram| datagram.id));
        Ok(batch.len())
    }

    /// The ring has a copy of everything when `send` returns.
    fn completions(&mut self, _now: Time, done: &mut dyn FnMut(DatagramId)) {
        self.sent.drain(..).for_each(done);
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(&mut Arrival<'_>)) -> io::Result<usize> {
        let place = &*self.place;
        // This comes first: the next ring may be for what is written after this look.
        if std::mem::take(&mut self.rung) {
            place.wakers.hush(place.me);
        }
        place.sleepers.look(place.state());
        let (groups, nodes) = (&self.groups, &self.nodes);
        let wanted = |to| match to {
            Dest::Address(id) => groups.get(&id).is_some_and(|g| g.receive),
            Dest::Node(node) => nodes.get(&node) == Some(&place.me),
        };
        let processes = self.readers.len();
        let mut given = 0;
        self.drained = true;
        for step in 0..processes {
            let at = (self.turn + step) % processes;
            if at == place.me {
                continue;
            }
            let ring = place.segment.ring(at);
            let mut taken = 0;
            loop {
                if taken == TURN_MAX {
                    self.drained = false;
                    break;
                }
                match self.readers[at].read(ring, wanted) {
                    Found::Datagram(bytes) => {
                        self.counters.bytes_received += bytes.len() as u64;
                        sink(&mut Arrival::borrowed(self.sources[at], now, bytes));
                    }
                    Found::Lost => {
                        self.counters.overruns += 1;
                        self.drained = false;
                        break;
                    }
                    Found::Nothing => break,
                }
                taken += 1;
            }
            place.read[at].store(self.readers[at].at(), Ordering::Relaxed);
            given += taken;
            if given >= RECEIVE_MAX {
                // The process that had to wait comes first next time.
                self.turn = (at + 1) % processes;
                self.drained = false;
                break;
            }
        }
        self.counters.datagrams_received += given as u64;
        Ok(given)
    }

    fn is_drained(&self) -> bool {
        self.drained
    }

    fn news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn attach(&mut self, sleeper: &Sleeper) -> io::Result<Box<dyn Watch>> {
        let waiter = self.waiter();
        sleeper.descriptors().read(waiter.as_fd())?;
        Ok(Box::new(waiter))
    }

    /// The waker keeps ringing until a thread has received what it rang for, because a thread that
    /// something else has woken may not look.
    fn woken(&mut self, ready: &Ready) {
        self.rung |= ready.may_have(self.place.wakers.of(self.place.me));
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        sharpen_timers();
        let waiter = self.waiter();
        waiter.0.sleepers.begin(waiter.0.state());
        let limit = timeout.and_then(|t| Timespec::try_from(t).ok());
        let mut set = [PollFd::new(&waiter, PollFlags::IN)];
        let polled = match waiter.has_news() {
            true => Ok(0),
            false => poll(&mut set, limit.as_ref()),
        };
        self.rung |= !set[0].revents().is_empty();
        waiter.end();
        match polled {
            Err(e) if e != rustix::io::Errno::INTR => Err(e.into()),
            _ => Ok(()),
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// What a thread needs to sleep. Its descriptor is readable when the waker was rung.
struct ShmWaiter(Arc<Place>);

impl Watch for ShmWaiter {
    fn has_news(&self) -> bool {
        self.0.has_news()
    }

    /// Marks the thread as asleep, so that writers ring the waker.
    fn begin(&self, _full: bool) -> io::Result<bool> {
        self.0.sleepers.begin(self.0.state());
        Ok(!self.0.has_news())
    }

    fn end(&self) {
        self.0.sleepers.end();
    }
}

impl AsFd for ShmWaiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wakers.of(self.0.me)
    }
}
