//! The feed's end of its followers' connections. One thread serves all of them, without waiting
//! for any.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::catalogue::{Catalogue, add_runs, runs};
use super::line::{Line, framed};
use super::message::{PART, Publication, ToFeed, ToFollower};
use crate::bootstrap::frame::{self, TO_SENDER};
use crate::bootstrap::message::{Greeting, VERSION};
use crate::bootstrap::{listen, pending_max, plain};
use crate::error::Error;
use crate::interface::Interface;
use crate::setting::{PER_HOST, PORT};
use crate::transfer::{host, places};
use crate::waker::Waker;

/// How long a connection may be silent before it follows.
const PENDING: Duration = Duration::from_secs(10);
/// Most followers of a feed.
const FOLLOWERS_MAX: usize = 4096;
/// How long a closing connection may take to read why.
const CLOSING: Duration = Duration::from_secs(1);
/// Most messages of one connection before the others have their turn.
const TURN: usize = 16;

/// Names a follower as long as its connection lasts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FollowerKey(u64);

/// What happens at a feed.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A host follows the feed.
    Followed {
        /// The follower.
        key: FollowerKey,
        /// Its name.
        name: String,
        /// Its address.
        address: SocketAddr,
    },
    /// A client was refused.
    Refused {
        /// Its address.
        address: SocketAddr,
        /// Why.
        reason: String,
    },
    /// A follower's connection is over.
    Gone {
        /// The follower.
        key: FollowerKey,
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
}

/// How far a connection is.
enum State {
    /// It has said nothing yet, since then.
    Pending(Instant),
    /// The follower has been answered, and is to say what it wants.
    Asked,
    /// It says what it wants of the present catalogue, and more comes.
    Saying(BTreeSet<u32>),
    /// It waits for a publication of these entries of the present catalogue, or for another one.
    Waiting(BTreeSet<u32>),
    /// It has been told of a publication.
    Receiving,
    /// It is read no more, and closed then.
    Closing(Instant),
}

struct Peer {
    line: Line,
    address: SocketAddr,
    /// What its seat counts for.
    host: IpAddr,
    /// The follower's name, once it has told it.
    name: String,
    state: State,
    /// Whether messages are left that were read already.
    has_more: bool,
}

impl Peer {
    fn is_follower(&self) -> bool {
        !matches!(self.state, State::Pending(_) | State::Closing(_))
    }
}

/// The feed's end of all connections.
pub struct FeedServer {
    address: SocketAddr,
    listeners: Vec<TcpListener>,
    waker: Waker,
    name: String,
    peers: BTreeMap<u64, Peer>,
    next: u64,
    /// Most followers of one address.
    per_host: usize,
    /// Whether the system refused the last connection. Then none is accepted for a moment.
    is_full: bool,
    catalogue: Catalogue,
    /// The catalogue in frames.
    frames: Vec<Arc<[u8]>>,
}

impl FeedServer {
    /// Listens at a TCP port of the interface; 0: any free port. Admits at most `per_host`
    /// followers of one address. Waits end when `waker` is rung.
    pub fn open(
        interface: &Interface,
        port: u16,
        name: &str,
        per_host: usize,
        waker: Waker,
    ) -> Result<FeedServer, Error> {
        let listeners = listen(&places(interface, None)?, port).map_err(|e| {
            let hint = match e.kind() {
                ErrorKind::AddrInUse => format!(
                    " (another feed or sender? choose another port with {PORT}, or {PORT} 0 for \
                     any)"
                ),
                _ => String::new(),
            };
            Error::io(format!("listening at TCP port {port}{hint}"), e)
        })?;
        let address = listeners[0].local_addr();
        let address = address.map_err(|e| Error::io("listening", e))?;
        Ok(FeedServer {
            address: plain(address),
            listeners,
            waker,
            name: name.into(),
            peers: BTreeMap::new(),
            next: 0,
            per_host,
            is_full: false,
            catalogue: Catalogue::default(),
            frames: Vec::new(),
        })
    }

    /// The address at which followers connect; the first one if there are several.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The present catalogue.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Takes another catalogue, whose number is greater, and tells it to followers that wait.
    pub fn publish(&mut self, catalogue: Catalogue) {
        self.frames = in_frames(&catalogue);
        self.catalogue = catalogue;
        let waiting = |peer: &&mut Peer| matches!(peer.state, State::Waiting(_) | State::Saying(_));
        for peer in self.peers.values_mut().filter(waiting) {
            match peer.state {
                // What it says next is of the catalogue before, and is answered by this one.
                State::Saying(_) => peer.state = State::Asked,
                _ => answer(peer, &self.frames),
            }
        }
    }

    /// Number of followers.
    pub fn followers(&self) -> usize {
        self.peers
            .values()
            .filter(|peer| peer.is_follower())
            .count()
    }

    /// Number of connections of all kinds.
    #[cfg(test)]
    pub(super) fn connections(&self) -> usize {
        self.peers.len()
    }

    /// The followers that have been told of a publication, and have not said since then what they
    /// want.
    pub fn receiving(&self) -> impl Iterator<Item = FollowerKey> + '_ {
        let peers = self.peers.iter();
        let peers = peers.filter(|(_, peer)| matches!(peer.state, State::Receiving));
        peers.map(|(key, _)| FollowerKey(*key))
    }

    /// The followers that wait, and what they want.
    pub fn waiting(&self) -> Vec<(FollowerKey, &BTreeSet<u32>)> {
        let peers = self.peers.iter();
        peers
            .filter_map(|(key, peer)| match &peer.state {
                State::Waiting(wants) => Some((FollowerKey(*key), wants)),
                _ => None,
            })
            .collect()
    }

    /// The address of a follower that is still there, and what its seat counts for: the address,
    /// or with IPv6 the prefix in which it may choose addresses.
    pub fn address_and_host(&self, follower: FollowerKey) -> Option<(IpAddr, IpAddr)> {
        let peer = self.peers.get(&follower.0);
        peer.map(|peer| (peer.address.ip(), peer.host))
    }

    /// Tells a follower that waits of a transfer of these entries at this port.
    pub fn invite(&mut self, follower: FollowerKey, entries: &BTreeSet<u32>, port: u16) {
        let message = ToFollower::Publication(Publication {
            port,
            runs: runs(entries),
        });
        if let Some(peer) = self.peers.get_mut(&follower.0)
            && matches!(peer.state, State::Waiting(_))
        {
            peer.state = State::Receiving;
            peer.line.put(framed(&message));
        }
    }

    /// Serves all connections until something happens, the waker is rung, or `timeout` has passed.
    pub fn turn(&mut self, timeout: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        for key in self.keys() {
            self.flush(key, &mut events);
        }
        let keys = self.keys();
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        for peer in self.peers.values() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, peer.line.has_output());
            fds.push(PollFd::from_borrowed_fd(peer.line.stream.as_fd(), flags));
        }
        if !self.is_full {
            for listener in &self.listeners {
                fds.push(PollFd::new(listener, PollFlags::IN));
            }
        }
        let limit = match events.is_empty() {
            true => Timespec::try_from(timeout).ok(),
            false => Some(Timespec::default()),
        };
        // If a signal interrupts `poll`, all connections are checked again.
        let _ = poll(&mut fds, limit.as_ref());
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            self.waker.hush();
        }
        for (i, key) in keys.into_iter().enumerate() {
            if ready[1 + i] || self.peers[&key].has_more {
                self.serve(key, &mut events);
            }
        }
        self.accept();
        self.expire(&mut events);
        events
    }

    fn keys(&self) -> Vec<u64> {
        self.peers.keys().copied().collect()
    }

    fn flush(&mut self, key: u64, events: &mut Vec<Event>) {
        if let Some(peer) = self.peers.get_mut(&key)
            && let Err(e) = peer.line.flush()
        {
            self.close(key, e.to_string(), events);
        }
    }

    /// Takes what one connection has said.
    fn serve(&mut self, key: u64, events: &mut Vec<Event>) {
        for _ in 0..TURN {
            let Some(peer) = self.peers.get_mut(&key) else {
                return;
            };
            peer.has_more = false;
            match peer.line.take() {
                Ok(Some(_)) if matches!(peer.state, State::Closing(_)) => {}
                Ok(Some(message)) => self.said(key, &message, events),
                Ok(None) => return,
                Err(reason) => return self.close(key, reason, events),
            }
        }
        // The rest has its turn when the others have had theirs.
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.has_more = true;
            self.waker.wake();
        }
    }

    fn said(&mut self, key: u64, message: &[u8], events: &mut Vec<Event>) {
        let Some(host) = self.peers.get(&key).map(|peer| peer.host) else {
            return;
        };
        let followers = self.followers();
        let of_host = self.peers.values().filter(|peer| peer.is_follower());
        let of_host = of_host.filter(|peer| peer.host == host).count();
        let Some(peer) = self.peers.get_mut(&key) else {
            return;
        };
        let end = self.catalogue.entries.len() as u32;
        match (frame::message(message), &mut peer.state) {
            (Some(ToFeed::Follow { version, .. }), State::Pending(_)) if version != VERSION => {
                let reason = format!(
                    "this feed speaks version {VERSION} of the protocol, and not {version}: use \
                     the same version of Fabricast at both ends"
                );
                self.refuse(key, reason, events);
            }
            (Some(ToFeed::Follow { .. }), State::Pending(_)) if followers >= FOLLOWERS_MAX => {
                let reason = format!("this feed has {FOLLOWERS_MAX} followers, the most it serves");
                self.refuse(key, reason, events);
            }
            (Some(ToFeed::Follow { .. }), State::Pending(_)) if of_host >= self.per_host => {
                let reason = format!("{of_host} followers of its address are there ({PER_HOST})");
                self.refuse(key, reason, events);
            }
            (Some(ToFeed::Follow { name, .. }), State::Pending(_)) => {
                peer.state = State::Asked;
                peer.name = name.clone();
                peer.line.put(framed(&ToFollower::Feed {
                    version: VERSION,
                    name: self.name.clone(),
                }));
                events.push(Event::Followed {
                    key: FollowerKey(key),
                    name,
                    address: peer.address,
                });
            }
            (
                Some(ToFeed::Wants {
                    catalogue, more, ..
                }),
                State::Asked | State::Receiving,
            ) if catalogue != self.catalogue.number && !peer.line.has_output() => match more {
                true => peer.state = State::Asked,
                false => answer(peer, &self.frames),
            },
            (
                Some(ToFeed::Wants {
                    catalogue,
                    runs,
                    more,
                }),
                State::Asked | State::Receiving | State::Saying(_),
            ) if catalogue == self.catalogue.number => {
                let mut wants = match &mut peer.state {
                    State::Saying(wants) => std::mem::take(wants),
                    _ => BTreeSet::new(),
                };
                if !add_runs(&mut wants, &runs, end) {
                    let reason = "it wants what the catalogue does not have";
                    return self.close(key, reason.into(), events);
                }
                peer.state = match more {
                    true => State::Saying(wants),
                    false => State::Waiting(wants),
                };
            }
            (None, State::Pending(_)) if frame::message::<Greeting>(message).is_some() => {
                let reason = "this is a feed, and no single transfer: a receiver has to follow it";
                self.refuse(key, reason.into(), events);
            }
            _ => {
                let reason = "what it said is no message of a follower, or came out of turn";
                self.close(key, reason.into(), events);
            }
        }
    }

    /// Tells a client that it is not served.
    fn refuse(&mut self, key: u64, reason: String, events: &mut Vec<Event>) {
        if let Some(peer) = self.peers.get_mut(&key) {
            events.push(Event::Refused {
                address: peer.address,
                reason: reason.clone(),
            });
            peer.line.put(framed(&ToFollower::Refused { reason }));
            peer.state = State::Closing(Instant::now());
        }
    }

    fn close(&mut self, key: u64, reason: String, events: &mut Vec<Event>) {
        if let Some(peer) = self.peers.remove(&key)
            && peer.is_follower()
        {
            events.push(Event::Gone {
                key: FollowerKey(key),
                name: peer.name,
                reason,
            });
        }
    }

    fn accept(&mut self) {
        self.is_full = false;
        for listener in &self.listeners {
            loop {
                match listener.accept() {
                    Ok((stream, address)) => {
                        // What fails here is gone already.
                        let local = stream.local_addr();
                        if let (Ok(line), Ok(local)) = (Line::new(stream, TO_SENDER), local) {
                            let address = plain(address);
                            let peer = Peer {
                                line,
                                host: host(address.ip(), local.ip()),
                                address,
                                name: String::new(),
                                state: State::Pending(Instant::now()),
                                has_more: false,
                            };
                            self.peers.insert(self.next, peer);
                            self.next += 1;
                        }
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(e) if e.kind() == ErrorKind::ConnectionAborted => {}
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    // Perhaps there are too few descriptors, until a connection closes.
                    Err(_) => {
                        self.is_full = true;
                        break;
                    }
                }
            }
        }
    }

    /// Closes connections that have had their time, and the oldest of too many.
    fn expire(&mut self, events: &mut Vec<Event>) {
        let mut pending = 0;
        for key in self.keys().into_iter().rev() {
            let is_over = match self.peers[&key].state {
                State::Pending(since) => {
                    pending += 1;
                    since.elapsed() > PENDING || pending > pending_max()
                }
                State::Closing(since) => since.elapsed() > CLOSING,
                _ => false,
            };
            if is_over {
                self.close(key, String::new(), events);
            }
        }
    }
}

/// Gives a follower the catalogue. The follower says then what it wants of it.
fn answer(peer: &mut Peer, frames: &[Arc<[u8]>]) {
    peer.state = State::Asked;
    frames.iter().for_each(|frame| peer.line.put(frame.clone()));
}

/// A catalogue in messages that are not too long.
fn in_frames(catalogue: &Catalogue) -> Vec<Arc<[u8]>> {
    let mut parts = vec![Vec::new()];
    let mut len = 0;
    for entry in &catalogue.entries {
        let bytes = serde_json::to_vec(entry).map_or(0, |json| json.len() + 1);
        if len + bytes > PART {
            parts.push(Vec::new());
            len = 0;
        }
        len += bytes;
        parts.last_mut().expect("one is there").push(entry.clone());
    }
    let last = parts.len() - 1;
    let parts = parts.into_iter().enumerate();
    parts
        .map(|(i, entries)| {
            framed(&ToFollower::Catalogue {
                number: catalogue.number,
                entries,
                more: i < last,
            })
        })
        .collect()
}
