//! Who is still there. Every process keeps one TCP connection to rank 0, which tells all when one
//! is lost.
//!
//! A connection that closes without a farewell is a process that was killed; one whose peer's
//! kernel does not answer is a host or a link that is gone. A process that is stopped or computes
//! for an hour is not lost: its kernel answers for it.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io::{self, Read, Write};
use std::mem;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::bootstrap::tune;
use crate::communicator::error::Error;

/// All have connected to rank 0 after so long, or the job is given up.
const JOIN: Duration = Duration::from_secs(20);
/// A connection at rank 0's port has so long to say which rank it is.
const HELLO: Duration = Duration::from_secs(2);
/// Connections that have not said so, beyond those that missing ranks may have: the oldest is
/// closed when there are more. Each connection is read as soon as it is accepted, so a rank's is
/// hardly ever among them.
const PENDING_MAX: usize = 64;
/// A host that answers nothing for so long is gone. A job must end within 10 s of that; its ranks
/// need some time after it.
const UNREACHABLE: Duration = Duration::from_secs(6);

/// A group in which an operation did not match ends this long after that is known here, at whoever
/// noticed it, too: what was called before may still be under way, here or at those who have it
/// from here, and comes to its end.
const GRACE: Duration = Duration::from_millis(100);

/// Session and rank: the first bytes on a connection.
const HELLO_LEN: usize = 12;
/// A word on a connection: what, and of whom.
const WORD_LEN: usize = 5;
const BYE: u8 = b'B';
const LOST: u8 = b'L';
/// The word names a group instead of a process.
const ENDED: u8 = b'E';
/// A peer that ends more groups than this talks nonsense.
const ENDED_MAX: u32 = 1 << 16;

/// Who is lost, and how that was noticed.
#[derive(Default)]
struct Record {
    any: AtomicBool,
    all: Mutex<Vec<(u32, String)>>,
    /// Groups whose members did not call the same operation, since when that is known, and whether
    /// there are any that the caller has not been told of.
    ended: Mutex<BTreeMap<u32, Instant>>,
    any_ended: AtomicBool,
    #[cfg(test)]
    killed: AtomicBool,
}

impl Record {
    fn all(&self) -> MutexGuard<'_, Vec<(u32, String)>> {
        self.all.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn add(&self, rank: u32, how: String) {
        let mut all = self.all();
        if all.iter().all(|(known, _)| *known != rank) {
            all.push((rank, how));
        }
        self.any.store(true, Ordering::Release);
    }

    fn ended(&self) -> MutexGuard<'_, BTreeMap<u32, Instant>> {
        self.ended.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Says whether that was not known yet.
    fn end(&self, group: u32) -> bool {
        let is_new = match self.ended().entry(group) {
            Entry::Vacant(new) => {
                new.insert(Instant::now());
                true
            }
            Entry::Occupied(_) => false,
        };
        if is_new {
            self.any_ended.store(true, Ordering::Release);
        }
        is_new
    }
}

/// Rank 0's port, until all have come.
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// This process's end of the watch.
pub(crate) struct Peers {
    record: Arc<Record>,
    /// All connections, those that are over too: while this lives their descriptors are nothing
    /// else.
    streams: Vec<Arc<TcpStream>>,
    waker: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A connection to a peer.
struct Line {
    rank: u32,
    stream: Arc<TcpStream>,
    /// The word that is coming, and how much of it is here.
    word: [u8; WORD_LEN],
    len: usize,
    /// How many groups it has ended.
    ended: u32,
}

impl Listener {
    pub fn open(near: IpAddr) -> Result<Listener, Error> {
        let open = || -> io::Result<Listener> {
            let listener = TcpListener::bind((near, 0))?;
            let address = listener.local_addr()?;
            listener.set_nonblocking(true)?;
            Ok(Listener { listener, address })
        };
        open().map_err(|e| Error::io(format!("listening at {near}"), e))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits for all others. Reads all greetings together, so that a silent connection delays
    /// nobody.
    pub fn accept(self, session: u64, size: u32) -> Result<Peers, Error> {
        Peers::watch(self.greet(session, size, JOIN)?)
    }

    /// The lines to all other ranks, if they all connect within `patience`.
    fn greet(&self, session: u64, size: u32, patience: Duration) -> Result<Vec<Line>, Error> {
        let deadline = Instant::now() + patience;
        let mut lines: Vec<Line> = Vec::new();
        let mut pending: VecDeque<PendingConnection> = VecDeque::new();
        loop {
            let now = Instant::now();
            for mut connection in mem::take(&mut pending) {
                match connection.hear(session) {
                    Greeting::Incomplete if now < connection.until => pending.push_back(connection),
                    Greeting::Rank(rank) if is_missing(rank, &lines, size) => {
                        lines.push(Line::new(rank, connection.stream));
                    }
                    _ => {}
                }
            }
            let missing = size as usize - 1 - lines.len();
            if missing == 0 {
                return Ok(lines);
            }
            if now >= deadline {
                return Err(self.timed_out(&lines, size, patience));
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if pending.len() >= PENDING_MAX + missing {
                        pending.pop_front();
                    }
                    pending.extend(PendingConnection::new(stream, now + HELLO));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let next = pending.front().map_or(deadline, |s| s.until.min(deadline));
                    let timeout = next.saturating_duration_since(now).try_into().ok();
                    let mut set = vec![PollFd::new(&self.listener, PollFlags::IN)];
                    let silent = pending.iter();
                    set.extend(silent.map(|s| PollFd::new(&s.stream, PollFlags::IN)));
                    let _ = poll(&mut set, timeout.as_ref());
                }
                // The connection was given up before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A descriptor of one that is pending may be what is lacking.
                Err(_) if pending.pop_front().is_some() => {}
                Err(e) => return Err(Error::io(format!("listening at {}", self.address), e)),
            }
        }
    }

    fn timed_out(&self, lines: &[Line], size: u32, patience: Duration) -> Error {
        let missing = (1..size).find(|&rank| is_missing(rank, lines, size));
        Error::NotConnected {
            rank: missing.unwrap_or(0),
            address: self.address,
            within: patience,
        }
    }
}

/// A connection that has not said yet which rank it is.
struct PendingConnection {
    stream: TcpStream,
    said: [u8; HELLO_LEN],
    len: usize,
    until: Instant,
}

/// What has come of the first bytes of a pending connection.
enum Greeting {
    Incomplete,
    /// It is not of this job, or is closed.
    Wrong,
    Rank(u32),
}

impl PendingConnection {
    fn new(stream: TcpStream, until: Instant) -> io::Result<PendingConnection> {
        stream.set_nonblocking(true)?;
        Ok(PendingConnection {
            stream,
            said: [0; HELLO_LEN],
            len: 0,
            until,
        })
    }

    /// Reads what has come, but nothing beyond the greeting.
    fn hear(&mut self, session: u64) -> Greeting {
        while self.len < HELLO_LEN {
            match (&self.stream).read(&mut self.said[self.len..]) {
                Ok(0) => return Greeting::Wrong,
                Ok(some) => self.len += some,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Greeting::Incomplete,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Greeting::Wrong,
            }
        }
        let (theirs, rank) = self.said.split_at(8);
        match rank.try_into().map(u32::from_be_bytes) {
            Ok(rank) if theirs == session.to_be_bytes() => Greeting::Rank(rank),
            _ => Greeting::Wrong,
        }
    }
}

/// Whether this is the number of a rank that has no line yet.
fn is_missing(rank: u32, lines: &[Line], size: u32) -> bool {
    (1..size).contains(&rank) && lines.iter().all(|line| line.rank != rank)
}

impl Peers {
    /// Connects to rank 0.
    pub fn connect(address: SocketAddr, session: u64, rank: u32) -> Result<Peers, Error> {
        let connect = || -> io::Result<Line> {
            let mut stream = TcpStream::connect_timeout(&address, JOIN)?;
            let hello = [&session.to_be_bytes()[..], &rank.to_be_bytes()].concat();
            stream.write_all(&hello)?;
            Ok(Line::new(0, stream))
        };
        let line =
            connect().map_err(|e| Error::io(format!("connecting to rank 0 at {address}"), e))?;
        Peers::watch(vec![line])
    }

    fn watch(lines: Vec<Line>) -> Result<Peers, Error> {
        let fails = |e: io::Error| Error::io("watching the other processes", e);
        for line in &lines {
            let set_up = || {
                tune(&line.stream, UNREACHABLE)?;
                line.stream.set_nonblocking(true)
            };
            set_up().map_err(fails)?;
        }
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let waker = Arc::new(waker.map_err(|e| fails(e.into()))?);
        let record = Arc::new(Record::default());
        let streams = lines.iter().map(|l| l.stream.clone()).collect();
        let (known, rung) = (record.clone(), waker.clone());
        let thread = thread::Builder::new()
            .name("fabricast-peers".into())
            .spawn(move || {
                Watch {
                    lines,
                    record: known,
                }
                .run(&rung)
            })
            .map_err(fails)?;
        Ok(Peers {
            record,
            streams,
            waker,
            thread: Some(thread),
        })
    }

    /// Whether anybody is lost. Cheap.
    pub fn any_lost(&self) -> bool {
        self.record.any.load(Ordering::Acquire)
    }

    pub fn all_lost(&self) -> Vec<(u32, String)> {
        self.record.all().clone()
    }

    pub fn lost(&self) -> Option<(u32, String)> {
        self.record.all().first().cloned()
    }

    /// The members of a group did not call the same operation: tells all processes, by rank 0,
    /// that nothing more becomes of the group.
    pub fn end(&self, group: u32) {
        if self.record.end(group) {
            // Five bytes go as a whole. A peer that takes no more is noticed by the thread.
            let word = word(ENDED, group);
            for stream in &self.streams {
                let _ = (&**stream).write_all(&word);
            }
        }
    }

    /// Whether [`Peers::all_ended`] will have something new, now or soon. Cheap.
    pub fn any_ended(&self) -> bool {
        self.record.any_ended.load(Ordering::Acquire)
    }

    /// All groups that have ended, a while after another process has said so.
    pub fn all_ended(&self) -> Vec<u32> {
        let ended = self.record.ended();
        let is_over = |known: &(&u32, &Instant)| known.1.elapsed() >= GRACE;
        let over: Vec<u32> = ended.iter().filter(is_over).map(|known| *known.0).collect();
        let waits = over.len() < ended.len();
        self.record.any_ended.store(waits, Ordering::Release);
        over
    }

    /// Whether the group was ended, which this process may not have yet.
    pub fn has_ended(&self, group: u32) -> bool {
        self.record.ended().contains_key(&group)
    }

    /// The connections.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.streams.iter().map(|s| s.as_fd())
    }

    /// Ends as a killed process does: without a farewell.
    #[cfg(test)]
    pub fn abandon(&self) {
        self.record.killed.store(true, Ordering::Release);
    }

    /// Says farewell and ends the watch.
    pub fn close(&mut self) {
        let _ = rustix::io::write(&*self.waker, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It has said so itself if it panicked.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Watch {
    lines: Vec<Line>,
    record: Arc<Record>,
}

/// What has come on a line.
enum Said {
    Nothing,
    Bye,
    Lost(u32),
    Ended(u32),
    /// It is closed, and why.
    Closed(String),
}

impl Watch {
    fn run(mut self, waker: &OwnedFd) {
        loop {
            let mut set = vec![PollFd::new(waker, PollFlags::IN)];
            let lines = self.lines.iter();
            set.extend(lines.map(|l| PollFd::new(&*l.stream, PollFlags::IN)));
            let polled = poll(&mut set, None);
            if polled.is_err_and(|e| e != rustix::io::Errno::INTR) {
                return;
            }
            let ready: Vec<bool> = set.iter().map(|p| !p.revents().is_empty()).collect();
            drop(set);
            if ready[0] {
                return self.farewell();
            }
            let ready = ready[1..].iter().enumerate().rev();
            for at in ready.filter(|(_, r)| **r).map(|(at, _)| at) {
                let rank = self.lines[at].rank;
                match self.lines[at].hear() {
                    Said::Nothing => {}
                    Said::Bye => _ = self.lines.swap_remove(at),
                    Said::Lost(other) => self.record.add(other, "rank 0 says so".into()),
                    Said::Ended(group) => {
                        if self.record.end(group) {
                            self.tell(ENDED, group);
                        }
                    }
                    Said::Closed(how) => {
                        self.lines.swap_remove(at);
                        self.record.add(rank, how);
                        self.tell(LOST, rank);
                    }
                }
            }
        }
    }

    fn farewell(mut self) {
        #[cfg(test)]
        if self.record.killed.load(Ordering::Acquire) {
            return;
        }
        self.tell(BYE, 0);
        for line in &self.lines {
            let _ = line.stream.shutdown(Shutdown::Write);
        }
    }

    /// Says something on all lines. Who does not take it is noticed when its line closes.
    fn tell(&mut self, what: u8, whom: u32) {
        let word = word(what, whom);
        for line in &self.lines {
            let _ = (&*line.stream).write_all(&word);
        }
    }
}

fn word(what: u8, whom: u32) -> [u8; WORD_LEN] {
    let mut word = [what; WORD_LEN];
    word[1..].copy_from_slice(&whom.to_be_bytes());
    word
}

impl Line {
    fn new(rank: u32, stream: TcpStream) -> Line {
        Line {
            rank,
            stream: Arc::new(stream),
            word: [0; WORD_LEN],
            len: 0,
            ended: 0,
        }
    }

    /// Reads what has come of one word.
    fn hear(&mut self) -> Said {
        match (&*self.stream).read(&mut self.word[self.len..]) {
            Ok(0) => Said::Closed("its connection was closed: the process has ended".into()),
            Ok(some) if self.len + some < WORD_LEN => {
                self.len += some;
                Said::Nothing
            }
            Ok(_) => {
                self.len = 0;
                let [what, whom @ ..] = self.word;
                match what {
                    BYE => Said::Bye,
                    // Rank 0 alone has lines to all, and knows who is lost.
                    LOST if self.rank == 0 => Said::Lost(u32::from_be_bytes(whom)),
                    ENDED if self.ended < ENDED_MAX => {
                        self.ended += 1;
                        Said::Ended(u32::from_be_bytes(whom))
                    }
                    _ => Said::Closed("it talks nonsense".into()),
                }
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Said::Nothing,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Said::Nothing,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                Said::Closed("its host does not answer: the host or its link is down".into())
            }
            Err(e) => Said::Closed(e.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SESSION: u64 = 7;

    fn listener() -> Listener {
        Listener::open(Ipv4Addr::LOCALHOST.into()).unwrap()
    }

    /// Connections that say nothing, another session, or a byte now and then, are in the backlog
    /// before the ranks are, and more come all the time.
    #[test]
    fn silent_connections_delay_no_rank() {
        let listener = listener();
        let address = listener.address();
        let connect = || TcpStream::connect(address).unwrap();
        let silent: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
        let other: Vec<Peers> = (1..3)
            .map(|rank| Peers::connect(address, SESSION + 1, rank).unwrap())
            .collect();
        let nobody = Peers::connect(address, SESSION, 99).unwrap();
        let ranks: Vec<Peers> = [2, 1, 2]
            .map(|rank| Peers::connect(address, SESSION, rank).unwrap())
            .into();
        let later: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
        let began = Instant::now();
        let mut all = listener.accept(SESSION, 3).unwrap();
        // One after the other they took two seconds each.
        assert!(began.elapsed() < JOIN / 2);
        assert_eq!(all.connections().count(), 2);
        all.close();
        drop((silent, other, nobody, ranks, later));
    }

    /// Connections that say nothing take few descriptors: beyond so many the oldest is closed.
    #[test]
    fn the_oldest_of_many_silent_connections_is_closed() {
        let listener = listener();
        let address = listener.address();
        let count = PENDING_MAX + 20;
        let silent: Vec<_> = (0..count)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let greeting = thread::spawn(move || listener.greet(SESSION, 2, JOIN));
        let closed = || {
            let is_closed = |stream: &&TcpStream| {
                stream.set_nonblocking(true).unwrap();
                let peeked = stream.peek(&mut [0]);
                !peeked.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
            };
            silent.iter().filter(is_closed).count()
        };
        // Before any of them has been waited for so long that it is closed for that.
        let until = Instant::now() + HELLO / 2;
        while closed() < count - PENDING_MAX - 1 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(closed(), count - PENDING_MAX - 1);
        let rank = Peers::connect(address, SESSION, 1).unwrap();
        assert_eq!(greeting.join().unwrap().unwrap().len(), 1);
        drop(rank);
    }

    /// A rank by hand, and rank 0's watch.
    fn by_hand(size: u32) -> (Vec<TcpStream>, Peers) {
        let listener = listener();
        let ranks = (1..size).map(|rank| {
            let mut stream = TcpStream::connect(listener.address()).unwrap();
            let hello = [&SESSION.to_be_bytes()[..], &rank.to_be_bytes()].concat();
            stream.write_all(&hello).unwrap();
            stream
        });
        let ranks = ranks.collect();
        (ranks, listener.accept(SESSION, size).unwrap())
    }

    /// Who is lost, once somebody is.
    fn lost(peers: &Peers) -> Vec<u32> {
        let until = Instant::now() + JOIN;
        while !peers.any_lost() {
            assert!(Instant::now() < until, "nobody is lost");
            thread::sleep(Duration::from_millis(1));
        }
        peers.all_lost().iter().map(|(rank, _)| *rank).collect()
    }

    #[test]
    fn a_rank_that_is_lost_in_the_midst_of_a_word_is_noticed() {
        let (mut ranks, mut peers) = by_hand(2);
        ranks[0].write_all(&word(ENDED, 7)[..3]).unwrap();
        // It has read the half word.
        let is_read = |stream: &TcpStream| {
            let peeked = stream.peek(&mut [0]);
            peeked.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        };
        while !is_read(&peers.streams[0]) {
            thread::yield_now();
        }
        assert!(!peers.any_lost());
        ranks[0].write_all(&word(ENDED, 7)[3..]).unwrap();
        let until = Instant::now() + JOIN;
        while !peers.has_ended(7) {
            assert!(Instant::now() < until, "the rest of the word is not read");
            thread::sleep(Duration::from_millis(1));
        }
        // All are told of the group. What nobody has read would be a reset at the end.
        ranks[0].read_exact(&mut [0; WORD_LEN]).unwrap();
        ranks[0].write_all(&[BYE]).unwrap();
        drop(ranks);
        assert_eq!(lost(&peers), [1]);
        peers.close();
    }

    #[test]
    fn a_rank_cannot_say_that_another_is_lost() {
        let (mut ranks, mut peers) = by_hand(3);
        ranks[0].write_all(&word(LOST, 2)).unwrap();
        assert_eq!(lost(&peers), [1]);
        peers.close();
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_however_many_others_do() {
        let listener = listener();
        let address = listener.address();
        let (ends, end) = std::sync::mpsc::channel::<()>();
        let dripping = thread::spawn(move || {
            let mut streams = VecDeque::new();
            while end.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                streams.extend(TcpStream::connect(address));
                for mut stream in &streams {
                    let _ = stream.write_all(&SESSION.to_be_bytes()[..1]);
                }
                streams.drain(..streams.len().saturating_sub(2 * PENDING_MAX));
            }
        });
        let _here = Peers::connect(address, SESSION, 1).unwrap();
        let error = listener.greet(SESSION, 3, HELLO / 10).err().unwrap();
        assert!(error.to_string().contains("rank 2 has not"), "{error}");
        drop(ends);
        dripping.join().unwrap();
    }
}
