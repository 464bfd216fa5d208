//! The failure detector: which processes are still there. Every process keeps one TCP connection to
//! rank 0, which tells all others when a process is lost.
//!
//! If a connection closes without a farewell, its process was killed. If the peer's kernel does not
//! answer, its host or its link is gone. A process that is stopped or computes for an hour is not
//! lost: its kernel answers for it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::mem;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast_proto::GroupId;
use rustix::event::{PollFd, PollFlags, poll};

use crate::bootstrap::tune;
use crate::communicator::error::Error;
use crate::communicator::operations::group::BreakOff;
use crate::communicator::wireup::line::{BYE, LOST, Line, Said, word, word_of};
use crate::communicator::wireup::mail::{FAREWELL_LETTER, Mail};
use crate::waker::Waker;

/// Time within which all processes must connect to rank 0; then rank 0 gives the job up.
const JOIN: Duration = Duration::from_secs(20);
/// Time within which a connection at rank 0's port must say which rank it is.
const HELLO: Duration = Duration::from_secs(2);
/// Largest number of pending connections, in addition to one for each missing rank. When there are
/// more, rank 0 closes the oldest. Rank 0 reads each connection as soon as it accepts it, so a
/// rank's connection is hardly ever the oldest.
const PENDING_MAX: usize = 64;
/// Time after which a host that answers nothing counts as gone. A job must end within 10 s of the
/// host's last answer, and its ranks need some time after the detection.
const UNREACHABLE: Duration = Duration::from_secs(6);

/// Bytes of the greeting on a connection: the session and the rank.
const HELLO_LEN: usize = 12;
/// How long the thread tries to say farewell to a peer that does not read.
const FAREWELL: Duration = Duration::from_millis(500);

/// Which processes are lost, and how that was noticed.
#[derive(Default)]
struct Record {
    any: AtomicBool,
    all: Mutex<Vec<(u32, String)>>,
    /// Groups whose members did not call the same operation.
    broken_off: Mutex<BrokenOff>,
    /// What the thread is to tell of them.
    untold: Mutex<Vec<BreakOff>>,
    /// The thread is to end.
    closing: AtomicBool,
    /// [`BrokenOff::news`] is not empty: callers read this without the lock.
    any_broken_off: AtomicBool,
    /// The process takes part no more: it ends without a farewell.
    withdrawn: AtomicBool,
}

#[derive(Default)]
struct BrokenOff {
    all: BTreeMap<GroupId, BreakOff>,
    /// What the caller was not told.
    news: Vec<BreakOff>,
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

    fn broken_off(&self) -> MutexGuard<'_, BrokenOff> {
        self.broken_off.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn untold(&self) -> MutexGuard<'_, Vec<BreakOff>> {
        self.untold.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Records where a group breaks off. Returns whether that was new: an earlier call, or the
    /// root's length in the same call.
    fn break_off(&self, at: BreakOff) -> bool {
        let mut broken_off = self.broken_off();
        let known = broken_off.all.get(&at.group);
        let is_new = known.is_none_or(|known| at.is_news_to(known));
        if is_new {
            broken_off.all.insert(at.group, at);
            broken_off.news.push(at);
            self.any_broken_off.store(true, Ordering::Release);
        }
        is_new
    }
}

/// Rank 0's port, until all ranks have connected.
pub(crate) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// This process's end of the failure detector.
pub(crate) struct Peers {
    record: Arc<Record>,
    /// All connections, closed ones too: while this value lives, nothing else gets their descriptor
    /// numbers.
    streams: Vec<Arc<TcpStream>>,
    waker: Waker,
    mail: Arc<Mail>,
    thread: Option<JoinHandle<()>>,
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

    /// Waits for all other ranks. It reads all greetings together, so that a silent connection
    /// delays no other.
    pub fn accept(self, session: u64, size: u32) -> Result<Peers, Error> {
        Peers::watch(self.greet(session, size, JOIN)?)
    }

    /// The connections to all other ranks, if all connect within `patience`.
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
                // The peer gave the connection up before it was accepted.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The lack may be of descriptors, which a pending connection holds.
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

/// What has arrived of the greeting on a pending connection.
enum Greeting {
    Incomplete,
    /// The connection is not of this job, or is closed.
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

    /// Reads what has arrived, but nothing beyond the greeting.
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

/// Whether `rank` is the number of a rank that has no connection yet.
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
        let waker = Waker::new().map_err(fails)?;
        let record = Arc::new(Record::default());
        let streams = lines.iter().map(|l| l.stream.clone()).collect();
        let mail = Arc::new(Mail::new(waker.clone()));
        let (known, rung, carried) = (record.clone(), waker.clone(), mail.clone());
        let thread = thread::Builder::new()
            .name("fabricast-peers".into())
            .spawn(move || {
                Watch {
                    lines,
                    record: known,
                    mail: carried,
                }
                .run(&rung)
            })
            .map_err(fails)?;
        Ok(Peers {
            record,
            streams,
            waker,
            mail,
            thread: Some(thread),
        })
    }

    /// Whether any process is lost. Cheap.
    pub fn any_lost(&self) -> bool {
        self.record.any.load(Ordering::Acquire)
    }

    pub fn all_lost(&self) -> Vec<(u32, String)> {
        self.record.all().clone()
    }

    pub fn lost(&self) -> Option<(u32, String)> {
        self.record.all().first().cloned()
    }

    /// Tells all processes, by way of rank 0, where a group breaks off.
    pub fn break_off(&self, at: BreakOff) {
        if self.record.break_off(at) {
            self.record.untold().push(at);
            self.waker.wake();
        }
    }

    /// The messages between processes.
    pub fn mail(&self) -> &Arc<Mail> {
        &self.mail
    }

    /// Where groups break off, as far as that was not returned before. Cheap if there is nothing.
    pub fn take_broken_off(&self) -> Vec<BreakOff> {
        match self.record.any_broken_off.load(Ordering::Acquire) {
            true => {
                let mut broken_off = self.record.broken_off();
                self.record.any_broken_off.store(false, Ordering::Release);
                mem::take(&mut broken_off.news)
            }
            false => Vec::new(),
        }
    }

    /// The connections, closed ones too.
    pub fn connections(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.streams.iter().map(|s| s.as_fd())
    }

    /// What closes the connections when this process takes part no more.
    pub fn withdrawal(&self) -> Withdrawal {
        Withdrawal {
            record: Arc::clone(&self.record),
            waker: self.waker.clone(),
        }
    }

    /// Says farewell and stops the thread.
    pub fn close(&mut self) {
        self.record.closing.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
    }
}

/// Closes the connections of a process that takes part no more.
pub(crate) struct Withdrawal {
    record: Arc<Record>,
    waker: Waker,
}

impl Withdrawal {
    /// Closes all connections without a farewell, as if the process were killed: the others need
    /// not wait for it.
    pub fn withdraw(&self) {
        self.record.withdrawn.store(true, Ordering::Release);
        self.record.closing.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// The state of the thread that watches the connections.
struct Watch {
    lines: Vec<Line>,
    record: Arc<Record>,
    mail: Arc<Mail>,
}

impl Watch {
    fn run(mut self, waker: &Waker) {
        loop {
            let mut set = vec![PollFd::new(waker, PollFlags::IN)];
            // A process whose messages nobody takes is not read until somebody does.
            let reads = |line: &Line| self.mail.has_room(line.rank);
            set.extend(self.lines.iter().map(|line| line.poll_fd(reads(line))));
            let polled = poll(&mut set, None);
            if polled.is_err_and(|e| e != rustix::io::Errno::INTR) {
                return;
            }
            let ready: Vec<bool> = set.iter().map(|p| !p.revents().is_empty()).collect();
            drop(set);
            if ready[0] {
                waker.hush();
                let untold = mem::take(&mut *self.record.untold());
                for at in untold {
                    self.tell(&word_of(at));
                }
                for (rank, bytes) in self.mail.collect() {
                    if let Some(line) = self.lines.iter_mut().find(|l| l.rank == rank) {
                        line.say_message(bytes);
                    }
                }
                if self.record.closing.load(Ordering::Acquire) {
                    return self.farewell();
                }
            }
            let ready = ready[1..].iter().enumerate().rev();
            for at in ready.filter(|(_, r)| **r).map(|(at, _)| at) {
                let rank = self.lines[at].rank;
                self.lines[at].say(&[]);
                match self.lines[at].hear() {
                    Said::Nothing => {}
                    Said::Bye => {
                        self.lines.swap_remove(at);
                        self.mail.deliver(rank, FAREWELL_LETTER.into());
                    }
                    Said::Lost(other) => self.record.add(other, "rank 0 says so".into()),
                    Said::BreaksOff(at) => {
                        if self.record.break_off(at) {
                            self.tell(&word_of(at));
                        }
                    }
                    Said::Message(bytes) => self.mail.deliver(rank, bytes),
                    Said::Closed(how) => {
                        self.lines.swap_remove(at);
                        self.record.add(rank, how);
                        self.tell(&word(LOST, rank));
                    }
                }
            }
        }
    }

    fn farewell(mut self) {
        if self.record.withdrawn.load(Ordering::Acquire) {
            for line in &self.lines {
                let _ = line.stream.shutdown(Shutdown::Both);
            }
            return;
        }
        self.tell(&word(BYE, 0));
        let until = Instant::now() + FAREWELL;
        while self.lines.iter().any(|l| !l.unsaid.is_empty()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            self.tell(&[]);
        }
        for line in &self.lines {
            let _ = line.stream.shutdown(Shutdown::Write);
        }
    }

    /// Writes a word to all connections. A peer that does not take it is noticed when its
    /// connection closes.
    fn tell(&mut self, word: &[u8]) {
        self.lines.iter_mut().for_each(|line| line.say(word));
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::communicator::wireup::line::WORD_LEN;

    const SESSION: u64 = 7;

    fn listener() -> Listener {
        Listener::open(Ipv4Addr::LOCALHOST.into()).unwrap()
    }

    /// Connections that send nothing, another session, or a byte now and then are in the backlog
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
        // Read one after the other, each silent connection would take two seconds.
        assert!(began.elapsed() < JOIN / 2);
        assert_eq!(all.connections().count(), 2);
        all.close();
        drop((silent, other, nobody, ranks, later));
    }

    /// Silent connections take few descriptors: beyond [`PENDING_MAX`], the oldest is closed.
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
        // Until then, no connection is closed because its time is over.
        let until = Instant::now() + HELLO / 2;
        while closed() < count - PENDING_MAX - 1 && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(closed(), count - PENDING_MAX - 1);
        let rank = Peers::connect(address, SESSION, 1).unwrap();
        assert_eq!(greeting.join().unwrap().unwrap().len(), 1);
        drop(rank);
    }

    /// Ranks whose bytes the test writes itself, and rank 0's failure detector.
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

    /// The lost ranks, once there are any.
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
        let at = BreakOff {
            group: GroupId(7),
            call: 1 << 40,
            len: Some(0),
        };
        ranks[0].write_all(&word_of(at)[..9]).unwrap();
        // Whether the thread has read all that was written.
        let is_read = |stream: &TcpStream| {
            let peeked = stream.peek(&mut [0]);
            peeked.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
        };
        while !is_read(&peers.streams[0]) {
            thread::yield_now();
        }
        assert!(!peers.any_lost());
        ranks[0].write_all(&word_of(at)[9..]).unwrap();
        let until = Instant::now() + JOIN;
        let heard = loop {
            assert!(Instant::now() < until, "the rest of the word is not read");
            let heard = peers.take_broken_off();
            if !heard.is_empty() {
                break heard;
            }
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(heard, [at]);
        // Rank 0 tells all ranks of the group. Bytes that no rank has read would turn the close
        // into a reset.
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
