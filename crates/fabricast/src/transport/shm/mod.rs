//! Datagrams between the processes of one host, through memory that they share.
//!
//! Each process writes all that it sends, to groups and to nodes alike, once, into a `ring` of its
//! own, which all others read; each takes what is for it. A process that falls a whole ring behind
//! has lost datagrams. A process that sleeps is woken (`fd_channel`). Only processes of the job
//! have the memory: what stands in it can be wrong, which harms nobody's memory, but not forged.
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

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabricast_proto::{Dest, GroupId, NodeId, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::fd_channel::{Sleepers, Wakers, wants_ring};
use self::ring::{Found, Reader, Ring, Writer};
use self::segment::{PROCESSES_MAX, Segment};
use super::{Caps, Outgoing, Transport};

pub use self::fd_channel::FdChannel;

/// Words of a ring: a megabyte, which most processors keep in a cache.
const RING: usize = 1 << 17;
/// Datagrams that one call hands up at most, and that are taken from one ring before the next has
/// its turn.
const RECEIVE_MAX: usize = 64;
const TURN_MAX: usize = 16;
/// The process that makes the memory has so long to hand it over, and the others to take it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counters of a [`Shm`], all since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShmCounters {
    /// Datagrams written; each counts once, however many processes it was for.
    pub datagrams_sent: u64,
    /// Bytes of the datagrams written.
    pub bytes_sent: u64,
    /// Datagrams taken.
    pub datagrams_received: u64,
    /// Processes that had to be woken.
    pub rings: u64,
    /// How often this process had fallen a whole ring behind another one.
    pub overruns: u64,
}

/// What a process shares with its own threads that sleep.
struct Place {
    segment: Segment,
    me: usize,
    wakers: Wakers,
    sleepers: Sleepers,
    /// How far each ring has been read.
    read: Vec<AtomicU64>,
}

impl Place {
    fn state(&self) -> &AtomicU64 {
        self.segment.state(self.me)
    }

    /// Whether something was written that nobody here has looked at.
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
    /// By process; this one's own is not used.
    readers: Vec<Reader>,
    turn: usize,
    nodes: BTreeMap<NodeId, usize>,
    groups: BTreeMap<GroupId, Group>,
    /// Processes for which something was written in this call.
    told: Vec<bool>,
    /// The waker was heard.
    rung: bool,
    drained: bool,
    counters: ShmCounters,
}

struct Group {
    processes: Vec<usize>,
    receive: bool,
}

/// How the processes of a host come by their memory: the first makes it and hands it to the others.
pub struct Meeting<'a> {
    /// The names of all wakers, in the order of processes.
    pub wakers: &'a [u64],
    /// Which of them is this process.
    pub me: usize,
    /// A number that only they know.
    pub key: u64,
}

impl Meeting<'_> {
    /// Makes the memory and hands it over: the first process does this, and the others
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
            groups: BTreeMap::new(),
            told: vec![false; processes],
            rung: false,
            drained: false,
            counters: ShmCounters::default(),
        }
    }
}

impl Shm {
    /// For a thread that sleeps while another one may use the transport.
    pub fn waiter(&self) -> ShmWaiter {
        ShmWaiter(self.place.clone())
    }

    /// A thread's sleep was ended by the waker, which rings on until somebody has received what it
    /// rang for: another one may have been woken by something else, and not look.
    pub fn rung(&mut self) {
        self.rung = true;
    }

    /// Counters since the start.
    pub fn counters(&self) -> ShmCounters {
        self.counters
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
                self.counters.rings += 1;
            }
        }
    }
}

impl Transport for Shm {
    /// Which of the host's processes: of a node one, of a group its members.
    type Address = Vec<usize>;

    fn caps(&self) -> Caps {
        Caps {
            datagram_max: Ring::datagram_max(RING),
            receive_buffer: RING * size_of::<u64>(),
        }
    }

    fn peer(&mut self, node: NodeId, address: Vec<usize>) {
        if let [process] = address[..] {
            self.nodes.insert(node, process);
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    fn join(&mut self, group: GroupId, processes: Vec<usize>, receive: bool) -> io::Result<()> {
        self.groups.insert(group, Group { processes, receive });
        Ok(())
    }

    fn leave(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }

    fn send(&mut self, _now: Time, batch: &[Outgoing<'_>]) -> io::Result<usize> {
        let ring = self.place.segment.ring(self.place.me);
        for datagram in batch {
            let one;
            let to = match datagram.to {
                Dest::Group(group) => match self.groups.get(&group) {
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
            self.writer
                .write(ring, datagram.to, datagram.head, datagram.body);
            self.counters.datagrams_sent += 1;
            self.counters.bytes_sent += datagram.len() as u64;
        }
        self.ring();
        Ok(batch.len())
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FnMut(Time, &[u8])) -> io::Result<usize> {
        let place = &*self.place;
        // First: the next one may be for what comes after this look.
        if std::mem::take(&mut self.rung) {
            place.wakers.hush(place.me);
        }
        place.sleepers.look(place.state());
        let (groups, nodes) = (&self.groups, &self.nodes);
        let wanted = |to| match to {
            Dest::Group(group) => groups.get(&group).is_some_and(|g| g.receive),
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
                    Found::Datagram(bytes) => sink(now, bytes),
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
                // Whoever had to wait is the first one next time.
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

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let waiter = self.waiter();
        let Some(_asleep) = waiter.begin() else {
            return Ok(());
        };
        let timeout = timeout.map(|t| {
            Timespec::try_from(t).unwrap_or(Timespec {
                tv_sec: i64::MAX,
                tv_nsec: 0,
            })
        });
        let mut set = [PollFd::new(&waiter, PollFlags::IN)];
        let polled = poll(&mut set, timeout.as_ref());
        self.rung |= !set[0].revents().is_empty();
        match polled {
            Err(e) if e != rustix::io::Errno::INTR => Err(e.into()),
            _ => Ok(()),
        }
    }
}

/// What a thread needs in order to sleep: its descriptor is readable when the waker was rung.
pub struct ShmWaiter(Arc<Place>);

impl ShmWaiter {
    /// Whether there is something to look at.
    pub fn has_news(&self) -> bool {
        self.0.has_news()
    }

    /// The thread may sleep, until the waker rings or for other reasons; `None`: there is something
    /// to look at.
    pub fn begin(&self) -> Option<Sleeping<'_>> {
        self.0.sleepers.begin(self.0.state());
        let asleep = Sleeping(&self.0);
        (!self.0.has_news()).then_some(asleep)
    }
}

impl AsFd for ShmWaiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.wakers.of(self.0.me)
    }
}

/// A thread that sleeps, for as long as this lives.
pub struct Sleeping<'a>(&'a Place);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.sleepers.end();
    }
}
