//! Finding a sender without its address: it announces itself by multicast while it waits, and
//! answers receivers that ask.
//!
//! ```text
//!   receiver                                        sender
//!            ←─ announcement, to GROUP, every 500 ms ─
//!            ── query, to ASKED ────────────────────→
//!            ←─ answer: the announcement, unicast ───
//! ```
//!
//! An announcement names where the rendezvous is and what is offered; it proves nothing, and the
//! receiver then talks to that address over TCP as it would to one typed in. Queries spare a
//! receiver the wait for the next announcement, and show it soon whether there are several
//! senders. They go to a group that only senders join, so that receivers do not hear each other.
//!
//! The source address of a query may be forged. So an answer is no longer than its query, answers
//! are limited per second, and none leaves the link or goes to a privileged port.
//!
//! Another process of the host can keep UDP port 7642 for itself (bound without `SO_REUSEADDR`).
//! The sender then announces itself and answers no queries; the receiver then goes on asking and
//! finds the senders that answer. Both say so.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_ip_multicast_if_with_ifindex;
use serde::{Deserialize, Serialize};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};

use super::PORT_MIN;
use super::message::VERSION;

/// Where announcements go, and where queries go: addresses of the organisation-local scope.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 40);
const ASKED: Ipv4Addr = Ipv4Addr::new(239, 255, 76, 41);
const PORT: u16 = 7642;
/// How often a sender announces itself.
const EVERY: Duration = Duration::from_millis(500);
/// A receiver that has heard a first sender waits so long for others, which it asks meanwhile.
const OTHERS: Duration = Duration::from_millis(40);
/// A sender that is not heard for so long is gone: three of its announcements are missing.
const GONE: Duration = Duration::from_millis(1500);
/// Pauses between the queries of one round. Several, because a switch forwards a group only some
/// time after the join, and any datagram may be lost.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(15),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];
/// Datagrams that are read in one moment.
const READ_MAX: usize = 64;
/// Senders that are kept in mind.
const SENDERS_MAX: usize = 16;

const _: () = assert!(GONE.as_millis() == 3 * EVERY.as_millis());
const _: () = assert!(PAUSES[0].as_millis() < OTHERS.as_millis());

/// Bytes of a file's name, at most.
const NAME_MAX: usize = 255;
/// Longest announcement.
const MAX: usize = 1400;
/// Length of a query, and so of the longest answer.
const QUERY: usize = 1024;
/// Answers that a sender may give at once, and the pause after which it may give one more.
const ANSWERS: u32 = 128;
const ANSWER: Duration = Duration::from_millis(4);

/// What a sender announces.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// The version of the control messages.
    pub fabricast: u32,
    /// The transfer.
    pub session: u64,
    /// Port of the rendezvous, on the address that the announcement comes from.
    pub port: u16,
    /// Name of the file, as it is.
    pub name: String,
    /// Its length in bytes.
    #[serde(default)]
    pub len: Option<u64>,
    /// The number of the query that this answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<u64>,
}

/// A receiver asks who is there; spaces follow, up to [`QUERY`] bytes.
#[derive(Serialize, Deserialize)]
struct Query {
    fabricast: u32,
    /// Drawn at random: an answer repeats it, so that only those who hear the query can answer.
    asks: u64,
}

/// What a sender that was found offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its rendezvous.
    pub address: SocketAddr,
    /// Name of the file, as it came: it is escaped where it is shown.
    pub name: String,
    /// Length of the file in bytes, if it was told.
    pub len: Option<u64>,
}

/// Announces a transfer on one interface and answers queries there, until it is dropped.
pub struct Announcer {
    deaf: Option<String>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Announcer {
    /// Announces on the interface with this address and index.
    pub fn new(address: Ipv4Addr, index: u32, what: &Announcement) -> io::Result<Announcer> {
        if what.port < PORT_MIN {
            let text = format!("receivers connect to no announced TCP port below {PORT_MIN}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        socket.set_multicast_if_v4(&address)?;
        socket.set_multicast_ttl_v4(1)?;
        socket.set_nonblocking(true)?;
        let what = what.clone();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        // A process that keeps the port from the sender does not keep announcements from receivers.
        let (asked, deaf) = match listener(ASKED, &[index]) {
            Ok(asked) => (Some(asked), None),
            Err(e) => (None, Some(e.to_string())),
        };
        let mut speaker = Speaker {
            socket: socket.into(),
            asked,
            bytes: serde_json::to_vec(&what).expect("plain data"),
            what,
            next: Instant::now(),
            allowance: Allowance::new(Instant::now()),
            stop: stop.clone(),
        };
        let thread = thread::Builder::new()
            .name("fabricast-announce".into())
            .spawn(move || while speaker.turn() {})?;
        Ok(Announcer {
            deaf,
            stop,
            thread: Some(thread),
        })
    }

    /// Why queries are not answered, if they are not.
    pub fn deaf(&self) -> Option<&str> {
        self.deaf.as_deref()
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The announcer's thread.
struct Speaker {
    socket: UdpSocket,
    /// Where queries arrive; `None`: they are not answered.
    asked: Option<UdpSocket>,
    what: Announcement,
    bytes: Vec<u8>,
    next: Instant,
    allowance: Allowance,
    stop: Arc<OwnedFd>,
}

impl Speaker {
    /// Announces if it is time to, waits, and answers what has come; false at the end.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + EVERY;
            // Nobody may be listening; a network that is down is noticed elsewhere.
            let _ = self.socket.send_to(&self.bytes, (GROUP, PORT));
        }
        let ready = wait(
            Some(self.stop.as_fd()),
            self.asked.as_ref(),
            self.next - now,
        );
        let Ok([stop, asked]) = ready else {
            // Should poll fail, announcements go on.
            thread::sleep(self.next - now);
            return true;
        };
        if asked {
            self.answer_all();
        }
        !stop
    }

    /// Answers the queries that have come.
    fn answer_all(&mut self) {
        let mut bytes = [0; MAX];
        for _ in 0..READ_MAX {
            let query = self.asked.as_ref().map(|a| a.recv_from(&mut bytes));
            let Some(Ok((n, from))) = query else {
                return;
            };
            self.answer(&bytes[..n], from, Instant::now());
        }
    }

    fn answer(&mut self, query: &[u8], from: SocketAddr, now: Instant) {
        let Some(answer) = answer(&self.what, query, from) else {
            return;
        };
        if self.allowance.take(now) {
            // The kernel refuses addresses that only a router reaches, and nothing was given.
            let socket = SockRef::from(&self.socket);
            let sent = socket.send_to_with_flags(&answer, &from.into(), libc::MSG_DONTROUTE);
            self.allowance.left += u32::from(sent.is_err());
        }
    }
}

/// What is said to a query from this address, if anything.
fn answer(what: &Announcement, query: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
    let Query { fabricast, asks } = serde_json::from_slice(query).ok()?;
    if fabricast != VERSION || from.port() < PORT_MIN {
        return None;
    }
    let answer = Announcement {
        answers: Some(asks),
        ..what.clone()
    };
    let answer = serde_json::to_vec(&answer).expect("plain data");
    (answer.len() <= query.len()).then_some(answer)
}

/// How many answers may be given: a bucket of [`ANSWERS`], filled by one each [`ANSWER`].
struct Allowance {
    left: u32,
    counted: Instant,
}

impl Allowance {
    fn new(now: Instant) -> Allowance {
        Allowance {
            left: ANSWERS,
            counted: now,
        }
    }

    /// Takes one, if there is any.
    fn take(&mut self, now: Instant) -> bool {
        let earned = (now - self.counted).as_nanos() / ANSWER.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(ANSWERS).min(ANSWERS);
        self.left = (self.left + earned).min(ANSWERS);
        self.counted = match self.left {
            ANSWERS => now,
            _ => self.counted + earned * ANSWER,
        };
        let any = self.left > 0;
        self.left -= u32::from(any);
        any
    }
}

/// A receiver's ear and voice.
pub struct Listener {
    /// Where announcements arrive, or why they do not.
    group: Result<UdpSocket, String>,
    asker: Asker,
    senders: Senders,
}

/// Asks on several interfaces, a few times in a row.
struct Asker {
    socket: UdpSocket,
    interfaces: Vec<u32>,
    asks: u64,
    /// When the next query is due, and how many of this round were sent.
    next: Option<Instant>,
    sent: usize,
    /// The pause after the last query of a round; `None`: no further query is due.
    rest: Option<Duration>,
}

impl Asker {
    fn new(interfaces: &[u32], asks: u64, rest: Option<Duration>) -> io::Result<Asker> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_multicast_ttl_v4(1)?;
        socket.set_nonblocking(true)?;
        Ok(Asker {
            socket,
            interfaces: interfaces.to_vec(),
            asks,
            next: Some(Instant::now()),
            sent: 0,
            rest,
        })
    }

    /// Asks if it is time to.
    fn tick(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let pause = PAUSES.get(self.sent).copied().or(self.rest);
        self.next = pause.map(|pause| now + pause);
        self.sent += 1;
        let query = Query {
            fabricast: VERSION,
            asks: self.asks,
        };
        let mut bytes = serde_json::to_vec(&query).expect("plain data");
        bytes.resize(QUERY, b' ');
        for &index in &self.interfaces {
            let any = &Ipv4Addr::UNSPECIFIED;
            // An interface that is down, or has no address, has nobody to ask.
            if set_ip_multicast_if_with_ifindex(&self.socket, any, any, index).is_ok() {
                let _ = self.socket.send_to(&bytes, (ASKED, PORT));
            }
        }
    }

    /// Begins another round.
    fn again(&mut self, now: Instant) {
        (self.next, self.sent) = (Some(now), 0);
    }
}

/// The senders that were heard lately, by address. The session is no key: anybody can repeat the
/// number that another sender announces, and would take that sender's place.
#[derive(Default)]
struct Senders {
    heard: BTreeMap<SocketAddr, (Offer, Instant)>,
    /// Since when there has been somebody.
    since: Option<Instant>,
}

/// What a [`Listener`] has found.
#[derive(PartialEq, Debug)]
pub enum Found {
    /// Nobody.
    Nobody,
    /// Somebody, and there may be others.
    Unsure,
    /// One sender.
    One(Offer),
    /// Several.
    Several(Vec<Offer>),
}

impl Listener {
    /// Listens on the interfaces with these indices. `asks` is a random number.
    pub fn new(interfaces: &[u32], asks: u64) -> io::Result<Listener> {
        let group = match listener(GROUP, interfaces) {
            Ok(group) => Ok(group),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(e.to_string()),
            Err(e) => return Err(e),
        };
        let rest = group.is_err().then_some(EVERY);
        Ok(Listener {
            group,
            asker: Asker::new(interfaces, asks, rest)?,
            senders: Senders::default(),
        })
    }

    /// Why announcements are not heard, if they are not.
    pub fn deaf(&self) -> Option<&str> {
        self.group.as_ref().err().map(String::as_str)
    }

    /// Forgets what the sender at this address has announced.
    pub fn forget(&mut self, address: SocketAddr) {
        self.senders.heard.remove(&address);
    }

    /// Asks, listens for a moment, or until there is something to tell, and tells who is there
    /// among those whose offer is `wanted`.
    pub fn listen(
        &mut self,
        moment: Duration,
        wanted: &dyn Fn(&Offer) -> bool,
    ) -> io::Result<Found> {
        let until = Instant::now() + moment;
        loop {
            let now = Instant::now();
            self.asker.tick(now);
            let found = self.senders.found(now);
            if now >= until || matches!(found, Found::One(_)) {
                return Ok(found);
            }
            let pause = pause(now, until, [self.asker.next, self.senders.sure()]);
            let [group, asked] = wait(self.group.as_ref().ok(), Some(&self.asker.socket), pause)?;
            let nobody = self.senders.since.is_none();
            if group {
                self.read(false, wanted)?;
            }
            if asked {
                self.read(true, wanted)?;
            }
            // One was heard: are there others?
            if nobody && self.senders.since.is_some() {
                self.asker.again(Instant::now());
            }
        }
    }

    /// Reads what has come, announcements or answers.
    fn read(&mut self, answers: bool, wanted: &dyn Fn(&Offer) -> bool) -> io::Result<()> {
        let socket = match (answers, &self.group) {
            (true, _) => &self.asker.socket,
            (false, Ok(group)) => group,
            (false, Err(_)) => return Ok(()),
        };
        let asks = answers.then_some(self.asker.asks);
        let mut bytes = [0; MAX];
        for _ in 0..READ_MAX {
            match socket.recv_from(&mut bytes) {
                Ok((n, from)) => {
                    let now = Instant::now();
                    self.senders.take(&bytes[..n], from.ip(), asks, now, wanted);
                }
                Err(e) if is_nothing(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// A socket that hears this group on the interfaces with these indices, and nothing else: without
/// IP_MULTICAST_ALL off, a group that another process has joined on another interface comes in.
fn listener(group: Ipv4Addr, interfaces: &[u32]) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_address(true)?;
    socket.set_multicast_all_v4(false)?;
    socket.bind(&SocketAddrV4::new(group, PORT).into())?;
    let mut joined = Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no interface can multicast",
    ));
    for &index in interfaces {
        let on = InterfaceIndexOrAddress::Index(index);
        let this = socket.join_multicast_v4_n(&group, &on);
        joined = joined.or(this);
    }
    joined?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Waits until one of these, as far as there are any, can be read, no longer than this; which of
/// them can.
fn wait(
    first: Option<impl AsFd>,
    second: Option<impl AsFd>,
    pause: Duration,
) -> io::Result<[bool; 2]> {
    let first = first.as_ref().map(AsFd::as_fd);
    let second = second.as_ref().map(AsFd::as_fd);
    let both = [first, second];
    let mut fds: Vec<_> = both
        .iter()
        .flatten()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let pause = Timespec {
        tv_sec: pause.as_secs() as i64,
        tv_nsec: pause.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&pause)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok([false; 2]),
        Err(e) => return Err(e.into()),
    }
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    Ok(both.map(|fd| fd.is_some() && ready.next() == Some(true)))
}

impl Senders {
    /// Takes a datagram from this address, if its offer is `wanted`; one that came to this
    /// receiver alone must answer its query, `asks`.
    fn take(
        &mut self,
        bytes: &[u8],
        from: IpAddr,
        asks: Option<u64>,
        now: Instant,
        wanted: &dyn Fn(&Offer) -> bool,
    ) {
        let Ok(a) = serde_json::from_slice::<Announcement>(bytes) else {
            return;
        };
        if a.fabricast != VERSION
            || a.port < PORT_MIN
            || a.name.len() > NAME_MAX
            || asks.is_some() && a.answers != asks
        {
            return;
        }
        self.forget(now);
        let address = SocketAddr::new(from, a.port);
        let offer = Offer {
            address,
            name: a.name,
            len: a.len,
        };
        if !wanted(&offer) {
            return;
        }
        if self.heard.len() >= SENDERS_MAX && !self.heard.contains_key(&address) {
            let oldest = self.heard.iter().min_by_key(|(_, (_, heard))| *heard);
            if let Some(oldest) = oldest.map(|(address, _)| *address) {
                self.heard.remove(&oldest);
            }
        }
        // The sender that was at this address before has ended.
        self.heard.insert(address, (offer, now));
        self.since.get_or_insert(now);
    }

    /// Who is there, once others have had time to answer. A sender that has ended, or that a
    /// single forged datagram announced, is forgotten after a while.
    fn found(&mut self, now: Instant) -> Found {
        self.forget(now);
        let sure = self.sure().is_some_and(|at| now >= at);
        let mut all: Vec<Offer> = self.heard.values().map(|(o, _)| o.clone()).collect();
        match all.len() {
            0 => Found::Nobody,
            _ if !sure => Found::Unsure,
            1 => Found::One(all.remove(0)),
            _ => Found::Several(all),
        }
    }

    /// When others have had time to answer.
    fn sure(&self) -> Option<Instant> {
        self.since.map(|since| since + OTHERS)
    }

    fn forget(&mut self, now: Instant) {
        self.heard.retain(|_, (_, heard)| now - *heard < GONE);
        if self.heard.is_empty() {
            self.since = None;
        }
    }
}

/// How long to wait at `now` for the first of what is due, and until `until` at most. What is over
/// is waited for no longer, and the shortest wait is no spin.
fn pause(now: Instant, until: Instant, due: [Option<Instant>; 2]) -> Duration {
    let due = due.into_iter().flatten().filter(|at| *at > now);
    let first = due.fold(until, Instant::min);
    first
        .saturating_duration_since(now)
        .max(Duration::from_millis(1))
}

fn is_nothing(e: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(e.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::udp::{Device, devices};

    const MS: Duration = Duration::from_millis(1);

    /// Ports are counted from [`PORT_MIN`].
    fn announcement(session: u64, port: u16) -> Announcement {
        Announcement {
            fabricast: VERSION,
            session,
            port: PORT_MIN.saturating_add(port),
            name: session.to_string(),
            len: Some(session),
            answers: None,
        }
    }

    fn offer(session: u64, port: u16) -> Offer {
        Offer {
            address: (Ipv4Addr::LOCALHOST, PORT_MIN + port).into(),
            name: session.to_string(),
            len: Some(session),
        }
    }

    /// Hears (milliseconds, session, port) in this order, and looks each 20 ms until `end`; what
    /// was found that is certain, with when it was found first.
    fn heard(all: &[(u32, u64, u16)], end: u32) -> Vec<(u32, Found)> {
        let (start, mut senders) = (Instant::now(), Senders::default());
        let mut found: Vec<(u32, Found)> = Vec::new();
        for at in (0..=end).step_by(20) {
            let now = start + at * MS;
            for &(_, session, port) in all.iter().filter(|a| a.0 == at) {
                let bytes = serde_json::to_vec(&announcement(session, port)).unwrap();
                let from = Ipv4Addr::LOCALHOST.into();
                senders.take(&bytes, from, None, now, &|o| o.name != "unwanted");
            }
            let new = senders.found(now);
            let certain = matches!(new, Found::One(_) | Found::Several(_));
            if certain && found.last().is_none_or(|(_, f)| *f != new) {
                found.push((at, new));
            }
        }
        found
    }

    fn every_500(from: u32, to: u32, session: u64, port: u16) -> Vec<(u32, u64, u16)> {
        let times = (from..=to).step_by(500);
        times.map(|at| (at, session, port)).collect()
    }

    #[test]
    fn what_is_over_is_waited_for_no_longer() {
        let now = Instant::now();
        let in_ms = |ms: u64| now + Duration::from_millis(ms);
        let over = now.checked_sub(Duration::from_secs(1));
        for (due, ms) in [
            ([None, None], 100),
            ([Some(in_ms(30)), Some(in_ms(50))], 30),
            ([Some(in_ms(30)), over], 30),
            ([over, over], 100),
        ] {
            assert_eq!(pause(now, in_ms(100), due), Duration::from_millis(ms));
        }
    }

    #[test]
    fn two_senders_are_told_until_one_remains() {
        let all = [every_500(0, 5000, 1, 1), every_500(20, 2020, 2, 2)].concat();
        let both = Found::Several(vec![offer(1, 1), offer(2, 2)]);
        let found = [(40, both), (3520, Found::One(offer(1, 1)))];
        assert_eq!(heard(&all, 5000), found);
    }

    #[test]
    fn a_sender_that_has_ended_is_forgotten() {
        // The next one comes at another port or at its port.
        for (port, since) in [(2, 2000), (1, 800)] {
            let all = [every_500(0, 500, 1, 1), every_500(800, 9000, 2, port)].concat();
            let found = heard(&all, 9000);
            let last = (since, Found::One(offer(2, port)));
            assert_eq!(found.last(), Some(&last), "{found:?}");
        }
        let all = every_500(0, 2000, 1, 1);
        assert_eq!(heard(&all, 3400), [(40, Found::One(offer(1, 1)))]);
        let mut late = every_500(0, 2000, 1, 1);
        late.push((5000, 2, 2));
        // Others are waited for again.
        let found = [
            (40, Found::One(offer(1, 1))),
            (5040, Found::One(offer(2, 2))),
        ];
        assert_eq!(heard(&late, 6400), found);
    }

    #[test]
    fn one_forged_datagram_holds_up_and_confuses_nobody() {
        let mut all = every_500(0, 5000, 1, 1);
        all.push((20, 2, 2));
        let found = heard(&all, 5000);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(matches!(found[0], (40, Found::Several(_))));
        assert_eq!(found[1], (1520, Found::One(offer(1, 1))));
    }

    #[test]
    fn who_repeats_the_session_of_another_is_a_second_sender() {
        let all = [every_500(0, 2000, 1, 1), every_500(20, 1020, 1, 2)].concat();
        let both = Found::Several(vec![offer(1, 1), offer(1, 2)]);
        let found = [(40, both), (2520, Found::One(offer(1, 1)))];
        assert_eq!(heard(&all, 3000), found);
    }

    #[test]
    fn many_senders_replace_the_oldest() {
        let mut all: Vec<_> = (2..40).map(|n| (0, n, n as u16)).collect();
        all.extend(every_500(100, 5000, 1, 1));
        let found = heard(&all, 5000);
        let last = found.last().map(|(_, found)| found);
        assert_eq!(last, Some(&Found::One(offer(1, 1))), "{found:?}");
    }

    /// Forged announcements take no more memory than this.
    #[test]
    fn so_many_senders_are_kept_and_no_more() {
        let (now, mut senders) = (Instant::now(), Senders::default());
        let from = Ipv4Addr::LOCALHOST.into();
        for port in 2000..2100 {
            let bytes = serde_json::to_vec(&announcement(1, port)).unwrap();
            senders.take(&bytes, from, None, now, &|_| true);
        }
        assert_eq!(senders.heard.len(), SENDERS_MAX);
    }

    #[test]
    fn who_is_not_wanted_or_answers_another_query_is_not_heard() {
        let (now, mut senders) = (Instant::now(), Senders::default());
        let from = Ipv4Addr::LOCALHOST.into();
        let mut take = |what: &Announcement, asks, wanted: &dyn Fn(&Offer) -> bool| {
            let bytes = serde_json::to_vec(what).unwrap();
            senders.take(&bytes, from, asks, now, wanted);
            senders.heard.len()
        };
        let mut what = announcement(1, 1);
        assert_eq!(take(&what, None, &|_| false), 0);
        assert_eq!(take(&what, Some(7), &|_| true), 0);
        what.answers = Some(8);
        assert_eq!(take(&what, Some(7), &|_| true), 0);
        what.answers = Some(7);
        what.port = PORT_MIN - 1;
        assert_eq!(take(&what, Some(7), &|_| true), 0);
        what.port = PORT_MIN;
        assert_eq!(take(&what, Some(7), &|o| o.name == "1"), 1);
    }

    #[test]
    fn an_answer_is_no_longer_than_its_query() {
        let what = announcement(u64::MAX, u16::MAX);
        let mut query = br#"{"fabricast": 2, "asks": 7}"#.to_vec();
        let from = |port| (Ipv4Addr::LOCALHOST, port).into();
        assert_eq!(answer(&what, &query, from(4000)), None);
        query.resize(QUERY, b' ');
        let said = answer(&what, &query, from(4000)).unwrap();
        let heard: Announcement = serde_json::from_slice(&said).unwrap();
        assert_eq!(heard.answers, Some(7));
        assert_eq!(answer(&what, &query[..said.len() - 1], from(4000)), None);
        assert_eq!(answer(&what, &query[..said.len()], from(4000)), Some(said));
        // Services, other versions, and what is no query.
        assert_eq!(answer(&what, &query, from(53)), None);
        for other in [r#"{"fabricast": 0, "asks": 7}"#, r#"{"fabricast": 2}"#, "x"] {
            let mut other = other.as_bytes().to_vec();
            other.resize(QUERY, b' ');
            assert_eq!(answer(&what, &other, from(4000)), None);
        }
        // Of the longest name, all of it signs that JSON writes as two.
        let longest = Announcement {
            name: "\"".repeat(255),
            ..what
        };
        assert!(answer(&longest, &query, from(4000)).is_some());
    }

    #[test]
    fn answers_are_limited_per_second() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now);
        let mut given = |now| (0..1000).filter(|_| allowance.take(now)).count();
        assert_eq!(given(now), ANSWERS as usize);
        assert_eq!(given(now), 0);
        now += ANSWER / 2;
        assert_eq!(given(now), 0);
        now += ANSWER * 3 / 2;
        assert_eq!(given(now), 2);
        now += Duration::from_secs(3600);
        assert_eq!(given(now), ANSWERS as usize);
        // Queries that come evenly, faster than answers are allowed: 250 a second.
        let evenly = (1..=1000).filter(|i| allowance.take(now + *i * MS)).count();
        assert_eq!(evenly, 250);
    }

    /// Finding 12: what came in from an interface that another process listens on was heard, too.
    #[test]
    fn a_listener_hears_its_own_interface_alone() {
        const HERE: Ipv4Addr = Ipv4Addr::new(239, 255, 77, 9); // no other test's
        let any = &Ipv4Addr::UNSPECIFIED;
        let all = devices().unwrap();
        let find = |loopback| {
            let usable = |d: &&Device| d.up && d.loopback == loopback;
            let multicasts = |d: &&Device| loopback || d.multicast;
            let has_v4 = |d: &&Device| d.addresses.iter().any(IpAddr::is_ipv4);
            let all = all.iter().filter(usable).filter(multicasts);
            all.filter(has_v4).map(|d| d.index).next()
        };
        let (Some(home), Some(wire)) = (find(true), find(false)) else {
            eprintln!("skipped: this machine has no second interface with an IPv4 address");
            return;
        };
        let [mut at_home, mut on_wire] = [home, wire].map(|i| listener(HERE, &[i]).unwrap());
        for (interface, text) in [(home, "at home"), (wire, "on the wire")] {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            set_ip_multicast_if_with_ifindex(&socket, any, any, interface).unwrap();
            // It does not leave this host.
            socket.set_multicast_ttl_v4(0).unwrap();
            socket.send_to(text.as_bytes(), (HERE, PORT)).unwrap();
        }
        let heard = |socket: &mut UdpSocket| {
            let (mut bytes, mut texts) = ([0; 100], Vec::new());
            wait(
                Some(socket.as_fd()),
                None::<UdpSocket>.as_ref(),
                Duration::from_secs(5),
            )
            .unwrap();
            while let Ok(len) = socket.recv(&mut bytes) {
                texts.push(String::from_utf8_lossy(&bytes[..len]).into_owned());
            }
            texts
        };
        assert_eq!(heard(&mut on_wire), ["on the wire"]);
        assert_eq!(heard(&mut at_home), ["at home"]);
    }
}
