//! Who is still there. Every process keeps one TCP connection to rank 0, which tells all when one is
//! lost.
//!
//! A connection that closes without a farewell is a process that was killed; one whose peer's kernel
//! does not answer is a host or a link that is gone. A process that is stopped or computes for an
//! hour is not lost: its kernel answers for it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::bootstrap::tune;
use crate::error::Error;

/// All have connected to rank 0 after so long, or the job is given up.
const JOIN: Duration = Duration::from_secs(20);
/// A stranger at rank 0's port has so long to say who it is.
const HELLO: Duration = Duration::from_secs(2);
/// A host that answers nothing for so long is gone. A job must end within 10 s of that; its ranks need some time
/// after it.
const UNREACHABLE: Duration = Duration::from_secs(6);
/// A peer that does not take five bytes for so long is as good as gone.
const WRITE: Duration = Duration::from_secs(2);

/// Session and rank: the first bytes on a connection.
const HELLO_LEN: usize = 12;
/// A word on a connection: what, and of whom.
const WORD_LEN: usize = 5;
const BYE: u8 = b'B';
const LOST: u8 = b'L';

/// Who is lost, and how that was noticed.
#[derive(Default)]
struct Record {
    any: AtomicBool,
    all: Mutex<Vec<(u32, String)>>,
    #[cfg(test)]
    killed: AtomicBool,
}

impl Record {
    fn all(&self) -> MutexGuard<'_, Vec<(u32, String)>> {
        self.all.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn add(&self, rank: u32, how: String) {
        self.all().push((rank, how));
        self.any.store(true, Ordering::Release);
    }
}

/// Rank 0's port, until all have come.
pub(super) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// This process's end of the watch.
pub(super) struct Peers {
    record: Arc<Record>,
    /// All connections, those that are over too: while this lives their descriptors are nothing else.
    streams: Vec<Arc<TcpStream>>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A connection to a peer.
struct Line {
    rank: u32,
    stream: Arc<TcpStream>,
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

    /// Waits for all others.
    pub fn accept(self, session: u64, size: u32) -> Result<Peers, Error> {
        let deadline = Instant::now() + JOIN;
        let mut lines: Vec<Line> = Vec::new();
        while lines.len() + 1 < size as usize {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let line = greeted(stream, session)
                        .filter(|l| (1..size).contains(&l.rank))
                        .filter(|l| lines.iter().all(|known| known.rank != l.rank));
                    lines.extend(line);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let missing = (1..size).find(|r| lines.iter().all(|l| l.rank != *r));
                        return Err(Error::Timeout(format!(
                            "rank {} has not connected to rank 0 at {} within {} s: is TCP between \
                             the hosts blocked?",
                            missing.unwrap_or(0),
                            self.address,
                            JOIN.as_secs()
                        )));
                    }
                    let timeout = left.try_into().ok();
                    let mut set = [PollFd::new(&self.listener, PollFlags::IN)];
                    let _ = poll(&mut set, timeout.as_ref());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(format!("listening at {}", self.address), e)),
            }
        }
        Peers::watch(lines)
    }
}

/// A connection whose first bytes are those of this job.
fn greeted(stream: TcpStream, session: u64) -> Option<Line> {
    let mut hello = [0; HELLO_LEN];
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(HELLO)).ok()?;
    (&stream).read_exact(&mut hello).ok()?;
    let (theirs, rank) = hello.split_at(8);
    let rank = u32::from_be_bytes(rank.try_into().ok()?);
    let stream = Arc::new(stream);
    (theirs == session.to_be_bytes()).then_some(Line { rank, stream })
}

impl Peers {
    /// Connects to rank 0.
    pub fn connect(address: SocketAddr, session: u64, rank: u32) -> Result<Peers, Error> {
        let connect = || -> io::Result<Line> {
            let mut stream = TcpStream::connect_timeout(&address, JOIN)?;
            let hello = [&session.to_be_bytes()[..], &rank.to_be_bytes()].concat();
            stream.write_all(&hello)?;
            let stream = Arc::new(stream);
            Ok(Line { rank: 0, stream })
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
                line.stream.set_write_timeout(Some(WRITE))?;
                line.stream.set_nonblocking(true)
            };
            set_up().map_err(fails)?;
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|e| fails(e.into()))?);
        let record = Arc::new(Record::default());
        let streams = lines.iter().map(|l| l.stream.clone()).collect();
        let (known, rung) = (record.clone(), bell.clone());
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
            bell,
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
        let _ = rustix::io::write(&*self.bell, &1u64.to_ne_bytes());
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
    /// It is closed, and why.
    Closed(String),
}

impl Watch {
    fn run(mut self, bell: &OwnedFd) {
        loop {
            let mut set = vec![PollFd::new(bell, PollFlags::IN)];
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
        let mut word = [what; WORD_LEN];
        word[1..].copy_from_slice(&whom.to_be_bytes());
        for line in &self.lines {
            let _ = (&*line.stream).write_all(&word);
        }
    }
}

impl Line {
    fn hear(&mut self) -> Said {
        let mut word = [0; WORD_LEN];
        match self.stream.peek(&mut word) {
            Ok(0) => Said::Closed("its connection was closed: the process has ended".into()),
            Ok(WORD_LEN) => match (&*self.stream).read_exact(&mut word) {
                Err(e) => Said::Closed(e.to_string()),
                Ok(()) => {
                    let [what, whom @ ..] = word;
                    match what {
                        BYE => Said::Bye,
                        LOST => Said::Lost(u32::from_be_bytes(whom)),
                        _ => Said::Closed("it talks nonsense".into()),
                    }
                }
            },
            Ok(_) => Said::Nothing,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Said::Nothing,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Said::Nothing,
            Err(e) if e.kind() == io::ErrorKind::TimedOut => {
                Said::Closed("its host does not answer: the host or its link is down".into())
            }
            Err(e) => Said::Closed(e.to_string()),
        }
    }
}
