//! The sender's end of all control connections: one thread, `poll`, no state of the transfer.
//!
//! The thread parses and checks frames and tells the transfer what receivers say. The transfer
//! decides. Other threads ([`super::workers`]) read what receivers may request, and write to their
//! connections. A connection costs its socket and what waits to be written to it: at most one
//! block, and the few messages of a transfer.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast_proto::ibrmp::Frame;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::acceptor::{Acceptor, LINGER, Pending};
use super::blocks::{Blocks, Payload};
use super::event::{Event, PeerKey};
use super::frame;
use super::message::ToReceiver;
use super::output::{Gone, Item};
use super::peer::{GUEST_IDLE, Peer, Writer};
use super::psk::Ticket;
use super::workers::{Order, Report, WorkerCounts, WorkerPlan, Workers};
use crate::text::spoken;
use crate::waker::Waker;

/// How long one turn waits at most.
const TURN: Duration = Duration::from_secs(1);
/// Events that may wait for the transfer; TCP holds back receivers that talk more.
const EVENTS: usize = 1024;

/// What a receiver may do once it has been told something.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grant {
    /// Nothing more than before.
    Nothing,
    /// It may request damaged parts.
    Proving,
    /// It may use its reliable channel.
    Channel,
}

enum Command {
    Say {
        to: Vec<PeerKey>,
        /// Shared by all receivers: a `Start` grows with their number.
        frame: Arc<[u8]>,
        /// What these receivers may do from now on.
        grant: Grant,
    },
    /// Frames of reliable channels.
    Send(Vec<ChannelFrame>),
    Close(PeerKey),
    End,
}

/// A frame for the reliable channel of a peer.
pub struct ChannelFrame {
    /// The peer.
    pub peer: PeerKey,
    /// The frame.
    pub frame: Frame,
    /// Where its bytes come from, if it is a DATA message.
    pub payload: Option<Arc<dyn Payload>>,
}

/// The sender's end of all control connections.
pub struct Rendezvous {
    address: SocketAddr,
    worker_counts: WorkerCounts,
    /// `None` only during `drop`.
    events: Option<Receiver<Event>>,
    commands: Sender<Command>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Rendezvous {
    /// Listens on one port at these addresses, or at all addresses (IPv4 and IPv6) if there are
    /// none. `plan` says which workers serve the receivers. Wakes `waker` when there is an event.
    pub fn open(
        addresses: &[SocketAddr],
        port: u16,
        blocks: Arc<dyn Blocks>,
        plan: WorkerPlan,
        waker: Waker,
    ) -> io::Result<Rendezvous> {
        Rendezvous::start(Acceptor::open(addresses, port)?, None, blocks, plan, waker)
    }

    /// Listens at a free port of this address for guests: late receivers that show `ticket`, in
    /// place of receivers that say hello. A client that says something else first is told nothing.
    pub fn open_for_guests(
        at: SocketAddr,
        ticket: Ticket,
        blocks: Arc<dyn Blocks>,
        plan: WorkerPlan,
        waker: Waker,
    ) -> io::Result<Rendezvous> {
        let acceptor = Acceptor::open(&[at], 0)?;
        Rendezvous::start(acceptor, Some(ticket), blocks, plan, waker)
    }

    fn start(
        acceptor: Acceptor,
        ticket: Option<Ticket>,
        blocks: Arc<dyn Blocks>,
        plan: WorkerPlan,
        waker: Waker,
    ) -> io::Result<Rendezvous> {
        let address = acceptor.address()?;
        let (tell, events) = sync_channel(EVENTS);
        let (commands, told) = channel();
        let wake = Waker::new()?;
        let workers = Workers::start(plan, blocks.clone(), wake.clone())?;
        let worker_counts = workers.counts();
        let mut server = Server {
            workers,
            acceptor,
            ticket,
            wake: wake.clone(),
            commands: told,
            events: tell,
            waker,
            blocks,
            peers: BTreeMap::new(),
            next: 0,
            pending: 0,
            ending: None,
        };
        let thread = thread::Builder::new()
            .name("fabricast-control".into())
            .spawn(move || while server.turn() {})?;
        Ok(Rendezvous {
            address,
            worker_counts,
            events: Some(events),
            commands,
            waker: wake,
            thread: Some(thread),
        })
    }

    /// The address that it listens at; the first one if there are several.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next event, if there is one; does not block.
    pub fn event(&self) -> Option<Event> {
        self.events.as_ref()?.try_recv().ok()
    }

    /// Waits for the next event, until `deadline`.
    pub fn event_until(&self, deadline: Instant) -> Option<Event> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.events.as_ref()?.recv_timeout(left).ok()
    }

    /// Sends a message to a peer; does nothing if the peer is gone.
    pub fn say(&self, peer: PeerKey, message: ToReceiver) {
        self.say_all([peer], &message);
    }

    /// Sends the same message to several peers.
    pub fn say_all(&self, peers: impl IntoIterator<Item = PeerKey>, message: &ToReceiver) {
        self.command(Command::Say {
            to: peers.into_iter().collect(),
            frame: framed(message),
            grant: match message {
                ToReceiver::Pack(_)
                | ToReceiver::Join(_)
                | ToReceiver::Digest(_)
                | ToReceiver::Admitted => Grant::Proving,
                ToReceiver::Channel(_) => Grant::Channel,
                _ => Grant::Nothing,
            },
        });
    }

    /// Sends frames by the reliable channels of peers; does nothing for a peer that is gone.
    pub fn send(&self, frames: Vec<ChannelFrame>) {
        if !frames.is_empty() {
            self.command(Command::Send(frames));
        }
    }

    /// The number of frames of reliable channels that each worker has sent.
    pub fn sent_by_workers(&self) -> Vec<u64> {
        self.worker_counts.values()
    }

    /// Closes a connection when everything queued has been written. No `Lost` event follows.
    pub fn close(&self, peer: PeerKey) {
        self.command(Command::Close(peer));
    }

    fn command(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }
}

impl Drop for Rendezvous {
    /// Still writes what is queued, within a bounded time.
    fn drop(&mut self) {
        // The thread may wait for room in a queue that is not emptied any more.
        self.events = None;
        self.command(Command::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn framed(message: &ToReceiver) -> Arc<[u8]> {
    let mut frame = Vec::new();
    frame::put_message(&mut frame, message);
    frame.into()
}

struct Server {
    acceptor: Acceptor,
    /// What guests have to show, if only guests are admitted.
    ticket: Option<Ticket>,
    wake: Waker,
    commands: Receiver<Command>,
    events: SyncSender<Event>,
    waker: Waker,
    blocks: Arc<dyn Blocks>,
    workers: Workers,
    peers: BTreeMap<u64, Peer>,
    next: u64,
    pending: u64,
    ending: Option<Instant>,
}

impl Server {
    fn tell(&self, event: Event) {
        if self.events.send(event).is_ok() {
            self.waker.wake();
        }
    }

    /// Runs one round of `poll`; false when the server has ended.
    fn turn(&mut self) -> bool {
        if let Some(end) = self.ending
            && (self.peers.is_empty() || Instant::now() > end)
        {
            return false;
        }
        let keys: Vec<u64> = self.peers.keys().copied().collect();
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        for peer in self.peers.values() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, peer.has_output());
            fds.push(PollFd::from_borrowed_fd(peer.stream.as_fd(), flags));
        }
        let mut pause = TURN;
        if self.ending.is_none() {
            let (listeners, most) = self.acceptor.listeners();
            fds.extend(listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
            pause = most.unwrap_or(TURN);
        }
        if self.peers.values().any(Peer::is_waiting) {
            pause = Duration::ZERO;
        }
        let pause = Timespec::try_from(pause).ok();
        // If a signal interrupts `poll`, all connections are checked again.
        let _ = poll(&mut fds, pause.as_ref());
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            self.wake.hush();
        }
        while let Ok(command) = self.commands.try_recv() {
            self.obey(command);
        }
        self.workers.ring();
        for (i, key) in keys.iter().enumerate() {
            if ready[1 + i] || self.peers.get(key).is_some_and(Peer::is_waiting) {
                self.serve(*key);
            }
        }
        // After what receivers say: one that closes has said why before.
        while let Some((key, report)) = self.workers.report() {
            self.reported(key, report);
        }
        if ready[1 + keys.len()..].contains(&true) {
            self.accept();
        }
        self.expire();
        self.workers.ring();
        true
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Say { to, frame, grant } => {
                for PeerKey(key) in to {
                    self.grant(key, grant);
                    self.put(key, Item::Frame(frame.clone()));
                }
            }
            Command::Send(frames) => {
                for frame in frames {
                    let PeerKey(key) = frame.peer;
                    self.put(key, Item::Channel(frame.frame, frame.payload));
                }
            }
            Command::Close(PeerKey(key)) => {
                if let Some(peer) = self.peers.get_mut(&key) {
                    peer.close();
                    if let Writer::Worker(worker) = peer.writer {
                        self.workers.order(worker, key, Order::Close);
                    }
                    self.serve(key);
                }
            }
            Command::End => {
                self.refuse_unanswered();
                self.ending = Some(Instant::now() + LINGER);
                let keys: Vec<u64> = self.peers.keys().copied().collect();
                for key in keys {
                    self.obey(Command::Close(PeerKey(key)));
                }
            }
        }
    }

    /// Tells those who have just come, and were not answered yet, that the sender ends. One that
    /// has to show a ticket is told nothing.
    fn refuse_unanswered(&mut self) {
        if self.ticket.is_some() {
            return;
        }
        self.accept();
        let reason = "it came when the sender ended".to_owned();
        let refused = framed(&ToReceiver::Refused { reason });
        let unanswered = self.peers.iter().filter(|(_, peer)| !peer.answered);
        let unanswered: Vec<u64> = unanswered.map(|(key, _)| *key).collect();
        for key in unanswered {
            self.put(key, Item::Frame(refused.clone()));
        }
    }

    /// Lets a peer do more. Before it can request bytes, a worker takes over what is written to it.
    fn grant(&mut self, key: u64, grant: Grant) {
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| !peer.closing) else {
            return;
        };
        peer.proving |= grant == Grant::Proving;
        peer.has_channel |= grant == Grant::Channel;
        if grant != Grant::Nothing && matches!(peer.writer, Writer::Control(_)) {
            let worker = self.workers.assign();
            let writer = std::mem::replace(&mut peer.writer, Writer::Worker(worker));
            if let Writer::Control(output) = writer {
                self.workers.order(worker, key, Order::Begin(output));
            }
        }
    }

    /// Writes something to a peer, behind what waits already.
    fn put(&mut self, key: u64, item: Item) {
        let queued = self.queue(key, item);
        let peer = self.peers.get_mut(&key);
        let written = queued.and_then(|()| peer.map_or(Ok(()), |peer| peer.flush(&*self.blocks)));
        if let Err(gone) = written {
            self.gone(key, gone);
        }
    }

    /// Queues something that is written to a peer.
    fn queue(&mut self, key: u64, item: Item) -> Result<(), Gone> {
        // To a peer that was told why it is closed, more would break what it still reads.
        let Some(peer) = self.peers.get_mut(&key).filter(|peer| !peer.closing) else {
            return Ok(());
        };
        peer.answered = true;
        match &mut peer.writer {
            Writer::Control(output) => output.put(item),
            Writer::Worker(worker) => {
                self.workers.order(*worker, key, Order::Put(item));
                Ok(())
            }
        }
    }

    fn accept(&mut self) {
        let accepted = self.acceptor.accept(pending(&self.peers));
        for key in accepted.surplus {
            self.lose(key, "others came, and it said nothing".into());
        }
        for incoming in accepted.new {
            let peer = Peer::new(incoming, self.ticket);
            self.peers.insert(self.next, peer);
            self.next += 1;
        }
    }

    /// Reads and writes what one connection can.
    fn serve(&mut self, key: u64) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let (events, waker) = (&self.events, &self.waker);
        let mut tell = |event| {
            if events.send(event).is_ok() {
                waker.wake();
            }
        };
        match peer.serve(PeerKey(key), &*self.blocks, &mut tell) {
            Ok(()) => self.feed(key),
            Err(gone) => self.gone(key, gone),
        }
    }

    /// Passes a receiver's requests on to its worker.
    fn feed(&mut self, key: u64) {
        if let Some(peer) = self.peers.get_mut(&key)
            && let Writer::Worker(worker) = peer.writer
        {
            for need in std::mem::take(&mut peer.needs) {
                self.workers.order(worker, key, Order::Need(need));
            }
        }
    }

    /// Handles what a worker tells of a connection.
    fn reported(&mut self, key: u64, report: Report) {
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        match report {
            // It has been told of another rule that it broke.
            Report::Gone(Gone::Wrong(_)) if peer.closing => {}
            Report::Gone(gone) => self.gone(key, gone),
            Report::Done(output) => {
                if let Writer::Worker(worker) = peer.writer {
                    self.workers.release(worker);
                }
                peer.writer = Writer::Control(output);
            }
        }
    }

    /// Ends a connection; a peer that broke a rule is told so if it has said hello.
    fn gone(&mut self, key: u64, gone: Gone) {
        let told = self.peers.get_mut(&key).filter(|peer| !peer.closing);
        let (reason, event) = match (gone, told) {
            (Gone::Wrong(reason), Some(peer)) if peer.known => {
                let lost = Event::Lost {
                    peer: PeerKey(key),
                    reason: reason.clone(),
                };
                (reason, lost)
            }
            (Gone::Unreadable { name, reason }, Some(peer)) => {
                let refused = Event::Refused {
                    name: match name.is_empty() {
                        true => peer.address.ip().to_string(),
                        false => name,
                    },
                    address: peer.address,
                    reason: reason.clone(),
                };
                (reason, refused)
            }
            (Gone::Unreadable { reason, .. } | Gone::Broken(reason) | Gone::Wrong(reason), _) => {
                return self.lose(key, reason);
            }
        };
        let refused = framed(&ToReceiver::Refused { reason });
        // If that fails, the connection closes without it.
        let _ = self.queue(key, Item::Frame(refused));
        self.tell(event);
        self.obey(Command::Close(PeerKey(key)));
    }

    fn lose(&mut self, key: u64, reason: String) {
        let Some(peer) = self.peers.remove(&key) else {
            return;
        };
        if let Writer::Worker(worker) = peer.writer {
            self.workers.order(worker, key, Order::Drop);
            self.workers.release(worker);
            // The worker may be reading, and keep the connection for so long.
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
        if peer.closing {
            return; // neither end had anything more to say
        }
        if peer.known {
            let peer = PeerKey(key);
            self.tell(Event::Lost { peer, reason });
        } else {
            self.pending += 1;
            self.tell(Event::Pending(self.pending));
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        let late = pending(&self.peers).filter(|pending| pending.is_overdue(now));
        let late: Vec<u64> = late.map(|pending| pending.key).collect();
        for key in late {
            self.lose(key, "it said nothing".into());
        }
        let idle = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.is_idle_guest(now));
        let idle: Vec<u64> = idle.map(|(key, _)| *key).collect();
        for key in idle {
            let reason = format!("it requested nothing for {}", spoken(GUEST_IDLE));
            self.gone(key, Gone::Wrong(reason));
        }
    }
}

/// The connections without a place in the transfer, the oldest first.
fn pending(peers: &BTreeMap<u64, Peer>) -> impl Iterator<Item = Pending> + Clone {
    let pending = peers.iter().filter(|(_, peer)| peer.has_no_place());
    pending.map(|(key, peer)| Pending {
        key: *key,
        since: peer.since,
        is_closing: peer.closing,
        is_told: peer.is_told(),
    })
}
