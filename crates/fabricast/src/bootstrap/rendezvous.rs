//! The sender's end of all control connections: one thread, `poll`, no state of the transfer.
//!
//! It frames and checks, answers requests for damaged blocks from the source itself, and tells
//! the transfer who said what. The transfer decides. A connection costs its socket and what waits
//! to be written to it: at most one block, and the few messages that a transfer has.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::frame::{self, Kind};
use super::message::{ToReceiver, ToSender};
use super::{plain, tune};
use crate::bell::Bell;
use crate::object::Content;

/// Connections that have not said `Hello`, at most, and how long each may take.
const STRANGERS: usize = 64;
const STRANGER: Duration = Duration::from_secs(10);
/// When the sender has nothing more to say, a receiver gets this long to close.
const LINGER: Duration = Duration::from_secs(2);
/// Events that may wait for the transfer; receivers that talk more are held back by TCP.
const EVENTS: usize = 1024;
/// Bytes of messages that may wait for one receiver that does not read.
const BACKLOG: usize = 4 << 20;

/// A connection; never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerKey(u64);

/// Where damaged blocks come from again.
pub trait Blocks: Send + Sync {
    /// A block's bytes.
    fn block(&self, block: u64, into: &mut Vec<u8>) -> Result<(), String>;
    /// The hash list, if it is complete.
    fn list(&self) -> Option<Vec<u8>>;
    /// How many blocks there are.
    fn count(&self) -> u64;
}

impl Blocks for Content {
    fn block(&self, block: u64, into: &mut Vec<u8>) -> Result<(), String> {
        self.reread(block, into)
    }

    fn list(&self) -> Option<Vec<u8>> {
        Content::list(self)
    }

    fn count(&self) -> u64 {
        crate::object::blocks(self.len())
    }
}

/// What has happened at the control connections.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Somebody has connected and says who it is.
    Hello {
        /// Its connection.
        peer: PeerKey,
        /// Its address.
        address: SocketAddr,
        /// Ours, by which it came.
        local: SocketAddr,
        /// What it said.
        hello: super::message::Hello,
    },
    /// Somebody who had said `Hello` says something else.
    Said {
        /// Who.
        peer: PeerKey,
        /// What.
        message: ToSender,
    },
    /// Somebody who had said `Hello` is gone.
    Lost {
        /// Who.
        peer: PeerKey,
        /// Why, in words.
        reason: String,
    },
    /// A connection made no sense and was closed. So many so far.
    Strangers(u64),
}

enum Command {
    Say(PeerKey, ToReceiver),
    Close(PeerKey),
    End,
}

/// The place where receivers report.
pub struct Rendezvous {
    address: SocketAddr,
    /// `None` only while it is dropped.
    events: Option<Receiver<Event>>,
    commands: Sender<Command>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Listens at an address, or everywhere (IPv4 and IPv6). `bell` is rung when there is an
    /// event.
    pub fn open(
        address: Option<IpAddr>,
        port: u16,
        blocks: Arc<dyn Blocks>,
        bell: Bell,
    ) -> io::Result<Rendezvous> {
        let listener = match address {
            Some(address) => listener((address, port).into())?,
            None => listener((Ipv6Addr::UNSPECIFIED, port).into())
                .or_else(|_| listener((Ipv4Addr::UNSPECIFIED, port).into()))?,
        };
        let address = plain(listener.local_addr()?);
        let (tell, events) = sync_channel(EVENTS);
        let (commands, told) = channel();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut server = Server {
            listener,
            wake: wake.clone(),
            commands: told,
            events: tell,
            bell,
            blocks,
            peers: BTreeMap::new(),
            next: 0,
            strangers: 0,
            full: false,
            ending: None,
        };
        let thread = thread::Builder::new()
            .name("fabricast-control".into())
            .spawn(move || while server.turn() {})?;
        Ok(Rendezvous {
            address,
            events: Some(events),
            commands,
            bell: wake,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What has happened, if anything.
    pub fn event(&self) -> Option<Event> {
        self.events.as_ref()?.try_recv().ok()
    }

    /// Waits for something to happen.
    pub fn event_until(&self, deadline: Instant) -> Option<Event> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.events.as_ref()?.recv_timeout(left).ok()
    }

    /// Says something to somebody; nothing happens if it is gone.
    pub fn say(&self, peer: PeerKey, message: ToReceiver) {
        self.command(Command::Say(peer, message));
    }

    /// Closes a connection when everything said has been written. No `Lost` follows.
    pub fn close(&self, peer: PeerKey) {
        self.command(Command::Close(peer));
    }

    fn command(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for Rendezvous {
    /// What has been said is still written, for a moment.
    fn drop(&mut self) {
        // The thread may wait for room in a queue that nobody will empty any more.
        self.events = None;
        self.command(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

struct Peer {
    stream: TcpStream,
    address: SocketAddr,
    local: SocketAddr,
    /// Since when; a stranger must speak soon.
    since: Instant,
    known: bool,
    /// Nothing more is read; it closes when everything is written.
    closing: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    need: Option<Need>,
}

/// What a receiver needs again, one thing at a time.
#[derive(Clone, Copy)]
enum Need {
    Block(u64),
    /// The hash list, from this byte.
    List(usize),
}

struct Server {
    listener: TcpListener,
    wake: Arc<OwnedFd>,
    commands: Receiver<Command>,
    events: SyncSender<Event>,
    bell: Bell,
    blocks: Arc<dyn Blocks>,
    peers: BTreeMap<u64, Peer>,
    next: u64,
    strangers: u64,
    /// The system had no descriptor for the last connection: none is taken for a moment.
    full: bool,
    ending: Option<Instant>,
}

impl Server {
    fn tell(&self, event: Event) {
        if self.events.send(event).is_ok() {
            self.bell.ring();
        }
    }

    /// One round of `poll`; false when all is over.
    fn turn(&mut self) -> bool {
        if let Some(end) = self.ending
            && (self.peers.is_empty() || Instant::now() > end)
        {
            return false;
        }
        let keys: Vec<u64> = self.peers.keys().copied().collect();
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        for peer in self.peers.values() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, peer.written < peer.output.len());
            fds.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), flags));
        }
        let pause = if self.full { 100 } else { 1000 };
        let crowd = self.peers.values().filter(|p| !p.known).count() >= STRANGERS;
        if !crowd && !std::mem::take(&mut self.full) && self.ending.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let pause = Timespec {
            tv_sec: pause / 1000,
            tv_nsec: pause % 1000 * 1_000_000,
        };
        // Not answered (a signal): everything is looked at again.
        let _ = poll(&mut fds, Some(&pause));
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        for (i, key) in keys.iter().enumerate() {
            if ready[1 + i] {
                self.serve(*key);
            }
        }
        if ready.get(1 + keys.len()) == Some(&true) {
            self.accept();
        }
        self.expire();
        true
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Say(PeerKey(key), message) => {
                let Some(peer) = self.peers.get_mut(&key) else {
                    return;
                };
                frame::put_message(&mut peer.output, &message);
                if peer.output.len() - peer.written > BACKLOG {
                    self.lose(key, "it reads nothing of what it is told".into());
                } else {
                    self.serve(key);
                }
            }
            Command::Close(PeerKey(key)) => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.close();
                    self.serve(key);
                }
            }
            Command::End => {
                self.ending = Some(Instant::now() + LINGER);
                let keys: Vec<u64> = self.peers.keys().copied().collect();
                for key in keys {
                    self.obey(Command::Close(PeerKey(key)));
                }
            }
        }
    }

    fn accept(&mut self) {
        let Ok((stream, address)) = self.listener.accept() else {
            self.full = true;
            return;
        };
        let set_up = || -> io::Result<SocketAddr> {
            stream.set_nonblocking(true)?;
            tune(&stream)?;
            stream.local_addr()
        };
        let Ok(local) = set_up() else {
            return;
        };
        let key = self.next;
        self.next += 1;
        let peer = Peer {
            stream,
            address: plain(address),
            local: plain(local),
            since: Instant::now(),
            known: false,
            closing: false,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            need: None,
        };
        self.peers.insert(key, peer);
    }

    fn serve(&mut self, key: u64) {
        if let Err(reason) = self.try_serve(key) {
            self.lose(key, reason);
        }
    }

    /// Reads and writes what can be read and written; the error says why the peer is gone.
    fn try_serve(&mut self, key: u64) -> Result<(), String> {
        let Some(peer) = self.peers.get_mut(&key) else {
            return Ok(());
        };
        let ended = peer.read()?;
        while let Some(message) = peer.next_message()? {
            if let Some(event) = peer.take(PeerKey(key), message, self.blocks.count())?
                && self.events.send(event).is_ok()
            {
                self.bell.ring();
            }
            peer.read()?;
        }
        while peer.flush()? && peer.answer(&*self.blocks)? {}
        if ended {
            return Err("its connection was closed".into());
        }
        Ok(())
    }

    fn lose(&mut self, key: u64, reason: String) {
        let Some(peer) = self.peers.remove(&key) else {
            return;
        };
        if peer.closing {
            return; // we had nothing more to say to each other
        }
        if peer.known {
            let peer = PeerKey(key);
            self.tell(Event::Lost { peer, reason });
        } else {
            self.strangers += 1;
            self.tell(Event::Strangers(self.strangers));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let late: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, p)| {
                let limit = if p.closing { LINGER } else { STRANGER };
                (!p.known || p.closing) && now.duration_since(p.since) > limit
            })
            .map(|(k, _)| *k)
            .collect();
        for key in late {
            self.lose(key, "it said nothing".into());
        }
    }
}

impl Peer {
    fn close(&mut self) {
        self.closing = true;
        self.since = Instant::now();
        self.need = None;
    }

    /// Reads what is there; true at the end. A peer that floods is held back: no more is read
    /// than one message and a bit.
    fn read(&mut self) -> Result<bool, String> {
        let mut piece = [0; 4096];
        while self.input.len() < frame::HEAD + frame::REQUEST_MAX {
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(true),
                Ok(n) if !self.closing => self.input.extend_from_slice(&piece[..n]),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("its connection broke: {e}")),
            }
        }
        Ok(false)
    }

    fn next_message(&mut self) -> Result<Option<ToSender>, String> {
        let Some(head) = self.input.first_chunk() else {
            return Ok(None);
        };
        let strange = || "it does not speak our language".to_string();
        let (kind, len) = frame::head(*head, frame::REQUEST_MAX, 0).ok_or_else(strange)?;
        let end = frame::HEAD + len;
        if self.input.len() < end {
            return Ok(None);
        }
        let message = match kind {
            Kind::Message => frame::message(&self.input[frame::HEAD..end]),
            Kind::Bulk => None,
        };
        self.input.drain(..end);
        message.ok_or_else(strange).map(Some)
    }

    /// What a message means for the transfer, if anything. Messages out of turn are refused.
    fn take(
        &mut self,
        peer: PeerKey,
        message: ToSender,
        blocks: u64,
    ) -> Result<Option<Event>, String> {
        match (message, self.known) {
            (ToSender::Hello(hello), false) => {
                self.known = true;
                Ok(Some(Event::Hello {
                    peer,
                    address: self.address,
                    local: self.local,
                    hello,
                }))
            }
            (ToSender::Hello(_), true) | (_, false) => Err("it spoke out of turn".into()),
            (ToSender::Need { block }, true) => {
                if self.need.is_some() || block.is_some_and(|b| b >= blocks) {
                    return Err("it asked for what it cannot have".into());
                }
                self.need = Some(block.map_or(Need::List(0), Need::Block));
                Ok(None)
            }
            (message, true) => Ok(Some(Event::Said { peer, message })),
        }
    }

    /// Puts a piece of what was asked for into the output, which is empty; false if nothing was.
    fn answer(&mut self, blocks: &dyn Blocks) -> Result<bool, String> {
        let mut bytes = Vec::new();
        match self.need.take() {
            None => return Ok(false),
            Some(Need::Block(block)) => blocks.block(block, &mut bytes)?,
            Some(Need::List(from)) => {
                let list = blocks
                    .list()
                    .ok_or("it asked for a list that is not there")?;
                let end = list.len().min(from + frame::BULK_MAX);
                bytes.extend_from_slice(&list[from..end]);
                self.need = (end < list.len()).then_some(Need::List(end));
            }
        }
        frame::put_bulk(&mut self.output, &bytes);
        Ok(true)
    }

    /// Writes what it can; true when everything is written.
    fn flush(&mut self) -> Result<bool, String> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(format!("its connection broke: {e}")),
            }
        }
        self.output.clear();
        self.written = 0;
        if self.closing {
            // The peer sees the end, reads what it has, and closes; then we do.
            let _ = self.stream.shutdown(std::net::Shutdown::Write);
        }
        Ok(true)
    }
}
