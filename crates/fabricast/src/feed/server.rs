//! The feed's end of its followers' connections. One thread serves all of them, without waiting
//! for any.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::catalogue::{Catalogue, add_runs, runs};
use super::line::{Line, framed};
use super::message::{PART, Publication, RUNS_MAX, ToFeed, ToFollower};
use super::publication::AT_ONCE_MAX;
use super::refusals::Refusals;
use crate::bootstrap::frame::{self, TO_SENDER};
use crate::bootstrap::message::{Greeting, VERSION};
use crate::bootstrap::{Acceptor, Incoming, Pending};
use crate::config::NetOptions;
use crate::error::Error;
use crate::net;
use crate::setting::{FOLLOW, PER_HOST, PORT, Wording};
use crate::transfer::{host, places};
use crate::waker::Waker;

/// Most followers of a feed.
const FOLLOWERS_MAX: usize = 4096;
/// Most messages of one connection before the others have their turn.
const TURN: usize = 16;
/// A follower may say what it wants once in this time, apart from when it was answered.
const EARLY: Duration = Duration::from_secs(1);
/// How often it may do so at once, if it has not for that many times [`EARLY`].
const EARLY_MAX: u32 = 64;
/// How often it may do so for each publication that it was told of: when that has ended for it, and
/// when it wants again what has failed.
const EARLY_EACH: u32 = 2;
/// Most messages in which a follower says what it wants: as many as the runs need if it wants every
/// other entry of the largest catalogue.
const PARTS_MAX: usize = Catalogue::ENTRIES_MAX.div_ceil(2).div_ceil(RUNS_MAX);

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
    /// A client was refused. Only so many are told of in an hour, and a host once for each reason.
    Refused {
        /// Its address.
        address: SocketAddr,
        /// Why.
        reason: String,
        /// Number of refusals since the last event of this kind that were not told of.
        untold: u64,
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
    /// The transfers in which it takes part: those that it was told of on this connection, and has
    /// not left out since then.
    receiving: BTreeSet<u64>,
    /// Whether it says that it takes part in any. Those may be of an earlier connection.
    is_receiving: bool,
    /// In how many more transfers it may take part, as it says.
    places: usize,
    /// How many answers it was given.
    answers: u64,
    /// The number of the last catalogue that it was given; 0: none.
    told: u64,
    /// Messages of the last `wants` that is not complete.
    parts: usize,
    /// When it may say again what it wants, without having been answered. That may be
    /// [`EARLY_MAX`] times [`EARLY`] ahead.
    early: Instant,
    /// Whether messages are left that were read already.
    has_more: bool,
}

impl Peer {
    fn new(incoming: Incoming) -> Peer {
        Peer {
            line: Line::new(incoming.stream, TO_SENDER),
            host: host(incoming.address.ip(), incoming.local.ip()),
            address: incoming.address,
            name: String::new(),
            state: State::Pending(Instant::now()),
            receiving: BTreeSet::new(),
            is_receiving: false,
            places: 0,
            answers: 0,
            told: 0,
            parts: 0,
            early: Instant::now(),
            has_more: false,
        }
    }

    fn is_follower(&self) -> bool {
        !matches!(self.state, State::Pending(_) | State::Closing(_))
    }

    /// Gives the catalogue. The follower says then what it wants of it.
    fn give(&mut self, number: u64, frames: &[Arc<[u8]>]) {
        self.state = State::Asked;
        self.answers += 1;
        self.told = number;
        frames.iter().for_each(|frame| self.line.put(frame.clone()));
    }

    /// Tells of a transfer. The follower says then what else it wants.
    fn tell(&mut self, transfer: u64, frame: Arc<[u8]>) {
        self.state = State::Asked;
        self.answers += 1;
        self.receiving.insert(transfer);
        self.is_receiving = true;
        // A time that has passed counts like the present.
        let earned = self.early.checked_sub(EARLY * EARLY_EACH);
        self.early = earned.unwrap_or(self.early);
        self.line.put(frame);
    }

    /// Counts a message in which the follower says what it wants. Returns why its connection is to
    /// be closed, if the message is a lie or one too many.
    fn wrong(&mut self, answers: u64, more: bool) -> Option<&'static str> {
        let has_crossed = answers < self.answers;
        // Before the first answer only the feed's name may wait, which is none.
        if !has_crossed && answers > 0 && self.line.has_output() {
            return Some("it says that it has heard what was not sent yet");
        }
        self.parts = if more { self.parts + 1 } else { 0 };
        if self.parts == PARTS_MAX {
            return Some("it says what it wants in more messages than that can need");
        }
        let is_early = matches!(self.state, State::Waiting(_)) || has_crossed && !more;
        (is_early && self.is_rash()).then_some("it says too often what it wants")
    }

    /// Notes that the follower has spoken and was not asked. Returns whether it does that too
    /// often.
    fn is_rash(&mut self) -> bool {
        let now = Instant::now();
        self.early = self.early.max(now) + EARLY;
        self.early > now + EARLY * EARLY_MAX
    }
}

/// How many followers are in each state; together all followers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// They take part in transfers.
    pub receiving: usize,
    /// They take part in none, and want nothing.
    pub current: usize,
    /// They take part in none, and want something or have not said yet what.
    pub waiting: usize,
}

/// The feed's end of all connections.
pub struct FeedServer {
    address: SocketAddr,
    acceptor: Acceptor,
    waker: Waker,
    name: String,
    peers: BTreeMap<u64, Peer>,
    next: u64,
    /// Most followers of one address.
    per_host: usize,
    /// Puts messages to clients into the words of the feed's user.
    wording: Wording,
    catalogue: Catalogue,
    /// The catalogue in frames.
    frames: Vec<Arc<[u8]>>,
    refusals: Refusals,
    /// Number of the last transfer.
    transfer: u64,
}

impl FeedServer {
    /// Listens at a TCP port of the network's interface; 0: any free port. Admits at most
    /// `per_host` followers of one address. Waits end when `waker` is rung.
    pub fn open(
        net: &NetOptions,
        port: u16,
        name: &str,
        per_host: usize,
        waker: Waker,
    ) -> Result<FeedServer, Error> {
        let acceptor = Acceptor::open(&places(&net.interface, None)?, port).map_err(|e| {
            let hint = match e.kind() {
                ErrorKind::AddrInUse => format!(
                    " (another feed or sender? choose another port with {PORT}, or {PORT} 0 for \
                     any)"
                ),
                _ => String::new(),
            };
            Error::io(format!("listening at TCP port {port}{hint}"), e)
        })?;
        let address = acceptor.address();
        Ok(FeedServer {
            address: address.map_err(|e| Error::io("listening", e))?,
            acceptor,
            waker,
            name: name.into(),
            peers: BTreeMap::new(),
            next: 0,
            per_host,
            wording: net.wording,
            catalogue: Catalogue::default(),
            frames: Vec::new(),
            refusals: Refusals::default(),
            // What followers say of an earlier run of the feed means no transfer of this one.
            transfer: net::random()? << 32,
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
            peer.give(self.catalogue.number, &self.frames);
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

    /// Number of followers in each state. `receivers`: how many take part in transfers. Followers
    /// beyond that which say that they take part count as waiting.
    pub fn counts(&self, receivers: usize) -> Counts {
        let mut counts = Counts::default();
        for peer in self.peers.values().filter(|peer| peer.is_follower()) {
            let wants_nothing = matches!(&peer.state, State::Waiting(wants) if wants.is_empty());
            match (peer.is_receiving, wants_nothing) {
                (true, _) => counts.receiving += 1,
                (false, true) => counts.current += 1,
                (false, false) => counts.waiting += 1,
            }
        }
        let absent = counts.receiving.saturating_sub(receivers);
        counts.receiving -= absent;
        counts.waiting += absent;
        counts
    }

    /// The followers that were told of a transfer on the present connection, and have not said
    /// since then that they take no part in it.
    pub fn receiving(&self, transfer: u64) -> BTreeSet<FollowerKey> {
        let peers = self.peers.iter();
        let peers = peers.filter(|(_, peer)| peer.receiving.contains(&transfer));
        peers.map(|(key, _)| FollowerKey(*key)).collect()
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

    /// In how many more transfers a follower that waits may take part.
    pub fn places(&self, follower: FollowerKey) -> usize {
        self.peers.get(&follower.0).map_or(0, |peer| peer.places)
    }

    /// A number for the next transfer. [`shown_number`](super::shown_number) counts from 1.
    pub fn next_transfer(&mut self) -> u64 {
        self.transfer += 1;
        self.transfer
    }

    /// The address of a follower that is still there, and what its seat counts for: the address,
    /// or with IPv6 the prefix in which it may choose addresses.
    pub fn address_and_host(&self, follower: FollowerKey) -> Option<(IpAddr, IpAddr)> {
        let peer = self.peers.get(&follower.0);
        peer.map(|peer| (peer.address.ip(), peer.host))
    }

    /// Tells a follower that waits of a transfer of these entries at this port. No other transfer
    /// that runs has this number.
    pub fn invite(
        &mut self,
        follower: FollowerKey,
        transfer: u64,
        entries: &BTreeSet<u32>,
        port: u16,
    ) {
        let message = ToFollower::Publication(Publication {
            transfer,
            port,
            runs: runs(entries),
        });
        if let Some(peer) = self.peers.get_mut(&follower.0)
            && matches!(peer.state, State::Waiting(_))
        {
            peer.tell(transfer, framed(&message));
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
        let (listeners, most) = self.acceptor.listeners();
        fds.extend(listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        let limit = match events.is_empty() {
            true => most.map_or(timeout, |most| most.min(timeout)),
            false => Duration::ZERO,
        };
        let limit = Timespec::try_from(limit).ok();
        // If a signal interrupts `poll`, all connections are checked again.
        let _ = poll(&mut fds, limit.as_ref());
        let ready: Vec<bool> = fds.iter().map(|f| !f.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            self.waker.hush();
        }
        let has_come = ready[1 + keys.len()..].contains(&true);
        for (i, key) in keys.into_iter().enumerate() {
            if ready[1 + i] || self.peers[&key].has_more {
                self.serve(key, &mut events);
            }
        }
        if has_come {
            self.accept(&mut events);
        }
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
                    catalogue,
                    answers,
                    receiving,
                    places,
                    runs,
                    more,
                }),
                State::Asked | State::Saying(_) | State::Waiting(_),
            ) if answers <= peer.answers && receiving.len().max(places) <= AT_ONCE_MAX => {
                if let Some(reason) = peer.wrong(answers, more) {
                    return self.close(key, reason.into(), events);
                }
                // It speaks again when it hears the answer that is under way.
                if answers < peer.answers {
                    return;
                }
                if catalogue != peer.told {
                    let reason = "it does not know the catalogue that it was given";
                    return self.close(key, reason.into(), events);
                }
                peer.places = places;
                peer.is_receiving = !receiving.is_empty();
                peer.receiving
                    .retain(|transfer| receiving.contains(transfer));
                if catalogue != self.catalogue.number {
                    return peer.give(self.catalogue.number, &self.frames);
                }
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
                let reason = format!(
                    "this is a feed, and no single transfer: a receiver has to follow it ({FOLLOW})"
                );
                self.refuse(key, reason, events);
            }
            _ => {
                let reason = "what it said is no message of a follower, or came out of turn";
                self.close(key, reason.into(), events);
            }
        }
    }

    /// Tells a client that it is not served.
    fn refuse(&mut self, key: u64, reason: String, events: &mut Vec<Event>) {
        let reason = (self.wording)(&reason);
        if let Some(peer) = self.peers.get_mut(&key) {
            let refusal = self.refusals.add(peer.host, &reason, Instant::now());
            events.extend(refusal.map(|untold| Event::Refused {
                address: peer.address,
                reason: reason.clone(),
                untold,
            }));
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

    fn accept(&mut self, events: &mut Vec<Event>) {
        let accepted = self.acceptor.accept(pending(&self.peers));
        for key in accepted.surplus {
            self.close(key, String::new(), events);
        }
        for incoming in accepted.new {
            self.peers.insert(self.next, Peer::new(incoming));
            self.next += 1;
        }
    }

    /// Closes connections that have had their time.
    fn expire(&mut self, events: &mut Vec<Event>) {
        let now = Instant::now();
        let late = pending(&self.peers).filter(|pending| pending.is_overdue(now));
        let late: Vec<u64> = late.map(|pending| pending.key).collect();
        for key in late {
            self.close(key, String::new(), events);
        }
    }
}

/// The connections that do not follow, the oldest first.
fn pending(peers: &BTreeMap<u64, Peer>) -> impl Iterator<Item = Pending> + Clone {
    peers.iter().filter_map(|(key, peer)| {
        let (since, is_closing) = match peer.state {
            State::Pending(since) => (since, false),
            State::Closing(since) => (since, true),
            _ => return None,
        };
        Some(Pending {
            key: *key,
            since,
            is_closing,
            is_told: is_closing && !peer.line.has_output(),
        })
    })
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
