//! The sender's end of discovery: announces a transfer and answers queries, within limits.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::announcement::{ASKED, Announcement, EVERY, GROUP, MAX, PORT, Query, READ_MAX};
use super::sockets::{listener, wait};
use crate::bootstrap::PORT_MIN;
use crate::bootstrap::message::VERSION;
use crate::waker::Waker;

/// Answers that a sender may give at once.
const ANSWERS: u32 = 128;
/// The pause after which a sender may give one more answer.
const ANSWER: Duration = Duration::from_millis(4);

/// Announces a transfer on one interface and answers queries there, until it is dropped.
pub struct Announcer {
    deaf: Option<String>,
    stop: Waker,
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
        let stop = Waker::new()?;
        // If another process holds the port, the sender still announces itself.
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
        self.stop.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The announcer's thread.
struct Speaker {
    socket: UdpSocket,
    /// Socket that queries arrive at; `None` if they are not answered.
    asked: Option<UdpSocket>,
    what: Announcement,
    bytes: Vec<u8>,
    next: Instant,
    allowance: Allowance,
    stop: Waker,
}

impl Speaker {
    /// Announces if it is time to, waits, and answers the queries that have come. False at the end.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + EVERY;
            // Errors are ignored: perhaps there is no listener, and a network that is down is
            // noticed elsewhere.
            let _ = self.socket.send_to(&self.bytes, (GROUP, PORT));
        }
        let ready = wait(
            Some(self.stop.as_fd()),
            self.asked.as_ref(),
            self.next - now,
        );
        let Ok([stop, asked]) = ready else {
            // If poll fails, announcements continue.
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
            // The kernel refuses addresses that only a router reaches. Then no answer was used up.
            let socket = SockRef::from(&self.socket);
            let sent = socket.send_to_with_flags(&answer, &from.into(), libc::MSG_DONTROUTE);
            self.allowance.left += u32::from(sent.is_err());
        }
    }
}

/// The answer to a query from this address, if there is one.
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

    /// Takes one answer from the bucket, if there is any.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::announce::announcement::QUERY;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_is_no_longer_than_its_query() {
        let what = Announcement {
            fabricast: VERSION,
            session: u64::MAX,
            port: u16::MAX,
            name: u64::MAX.to_string(),
            len: Some(u64::MAX),
            answers: None,
        };
        let mut query = format!(r#"{{"fabricast": {VERSION}, "asks": 7}}"#).into_bytes();
        let from = |port| (Ipv4Addr::LOCALHOST, port).into();
        assert_eq!(answer(&what, &query, from(4000)), None);
        query.resize(QUERY, b' ');
        let said = answer(&what, &query, from(4000)).unwrap();
        let heard: Announcement = serde_json::from_slice(&said).unwrap();
        assert_eq!(heard.answers, Some(7));
        assert_eq!(answer(&what, &query[..said.len() - 1], from(4000)), None);
        assert_eq!(answer(&what, &query[..said.len()], from(4000)), Some(said));
        // Ports of services, other versions, and what is no query get no answer.
        assert_eq!(answer(&what, &query, from(53)), None);
        for other in [r#"{"fabricast": 0, "asks": 7}"#, r#"{"fabricast": 3}"#, "x"] {
            let mut other = other.as_bytes().to_vec();
            other.resize(QUERY, b' ');
            assert_eq!(answer(&what, &other, from(4000)), None);
        }
        // The longest name, of characters that JSON writes as two each, still gets an answer.
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
        // Queries come evenly, faster than answers are allowed: 250 answers a second.
        let evenly = (1..=1000).filter(|i| allowance.take(now + *i * MS)).count();
        assert_eq!(evenly, 250);
    }
}
