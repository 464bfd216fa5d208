//! A follower's end of its connection to the feed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::catalogue::{Catalogue, add_runs, is_name, runs};
use super::line::{Line, framed};
use super::message::{Publication, RUNS_MAX, ToFeed, ToFollower};
use crate::bootstrap::frame::{self, TO_RECEIVER};
use crate::bootstrap::message::VERSION;
use crate::bootstrap::{connect_to, set_up};
use crate::error::Error;
use crate::transfer::resolve;
use crate::waker::Waker;

/// The longest time for one attempt to connect, and for the feed's first answer.
const ATTEMPT: Duration = Duration::from_secs(3);
/// How often a caller that waits for that answer is asked whether it still wants it.
const TICK: Duration = Duration::from_millis(100);

/// What a follower hears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// Another catalogue: the follower has to say what it wants of it.
    Catalogue(Catalogue),
    /// A transfer of entries that the follower wants: it takes part, and says at once what else it
    /// wants.
    Publication {
        /// The number of the transfer, which no other of this feed's has as long as it runs.
        transfer: u64,
        /// The sender's address.
        sender: SocketAddr,
        /// The entries, by their numbers in the catalogue.
        entries: BTreeSet<u32>,
    },
}

/// The connection to a feed.
pub struct Follower {
    line: Line,
    peer: SocketAddr,
    feed: String,
    /// Number of the catalogue that is here as a whole, and of its entries.
    known: (u64, u32),
    /// How many answers the feed has given on this connection.
    answers: u64,
    /// All entries that were wanted since the last answer. The feed may answer any of these wants.
    wanted: BTreeSet<u32>,
    waker: Waker,
    /// The catalogue that comes.
    coming: Catalogue,
}

impl Follower {
    /// Connects to the feed at `from`, a host with or without a port. `name` is the follower's name
    /// in the feed's messages. [`Follower::hear`] ends when `waker` is rung. This function asks
    /// `is_over` every 100 ms or more often whether the caller wants no connection any more.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `is_over` has become true, [`Error::Usage`] if `from` makes no
    /// sense or the feed's name cannot be used here, [`Error::Refused`] if the feed does not serve
    /// this follower, [`Error::PeerLost`] if there is no feed now. The last two may be otherwise
    /// later.
    pub fn connect(
        from: &str,
        name: &str,
        waker: &Waker,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Follower, Error> {
        let mut last = Error::PeerLost(format!("{from} has no address"));
        for address in resolve(from)? {
            let connected = connect_to(address, ATTEMPT, is_over);
            if is_over() {
                return Err(Error::Interrupted);
            }
            match connected.and_then(|stream| set_up(&stream).map(|()| stream)) {
                Ok(stream) => {
                    return Follower::greet(Line::new(stream, TO_RECEIVER), name, waker, is_over);
                }
                Err(e) => last = Error::PeerLost(format!("cannot connect to {address}: {e}")),
            }
        }
        Err(last)
    }

    fn greet(
        line: Line,
        name: &str,
        waker: &Waker,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Follower, Error> {
        let peer = line.peer();
        let mut follower = Follower {
            peer: peer.map_err(|e| Error::PeerLost(format!("the feed is gone: {e}")))?,
            line,
            feed: String::new(),
            known: (0, 0),
            answers: 0,
            wanted: BTreeSet::new(),
            waker: waker.clone(),
            coming: Catalogue::default(),
        };
        follower.say(&ToFeed::Follow {
            version: VERSION,
            name: name.into(),
        })?;
        let until = Instant::now() + ATTEMPT;
        while Instant::now() < until {
            if is_over() {
                return Err(Error::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            let answer = follower.next(left.min(TICK));
            let answer = answer.map_err(|error| match error {
                Error::PeerLost(why) => Error::PeerLost(format!(
                    "{why}, before it has answered: is there a feed at {}, of this version?",
                    follower.peer
                )),
                error => error,
            });
            match answer? {
                None => {}
                Some(ToFollower::Feed { version, name }) if version == VERSION => {
                    if !is_name(&name) {
                        return Err(Error::Usage(format!(
                            "the feed calls itself {name:?}, which is no name for a directory here"
                        )));
                    }
                    follower.feed = name;
                    return Ok(follower);
                }
                Some(_) => return Err(strange()),
            }
        }
        Err(Error::PeerLost(format!(
            "{} does not answer",
            follower.peer
        )))
    }

    /// The feed's name, which can be that of a directory.
    pub fn feed(&self) -> &str {
        &self.feed
    }

    /// The feed's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Says which entries of the last catalogue are wanted, by their numbers, in place of what was
    /// said before. Before the first catalogue: none. `receiving`: the numbers of the transfers
    /// that the follower takes part in. `places`: in how many more it may take part; together at
    /// most [`AT_ONCE_MAX`](super::AT_ONCE_MAX).
    pub fn want(
        &mut self,
        wants: &BTreeSet<u32>,
        receiving: &[u64],
        places: usize,
    ) -> Result<(), Error> {
        self.wanted.extend(wants);
        let runs = runs(wants);
        let count = runs.len().div_ceil(RUNS_MAX).max(1);
        for n in 0..count {
            let some = runs.iter().skip(n * RUNS_MAX).take(RUNS_MAX);
            self.say(&ToFeed::Wants {
                catalogue: self.known.0,
                answers: self.answers,
                receiving: receiving.to_vec(),
                places,
                runs: some.copied().collect(),
                more: n + 1 < count,
            })?;
        }
        Ok(())
    }

    /// Waits for the feed to say something, until the waker is rung, at most this long.
    ///
    /// # Errors
    /// [`Error::Refused`] if the feed does not serve this follower, [`Error::PeerLost`] if the feed
    /// is gone, makes no sense, or sends entries that were not wanted since its last answer.
    pub fn hear(&mut self, timeout: Duration) -> Result<Option<Heard>, Error> {
        match self.next(timeout)? {
            None => Ok(None),
            Some(ToFollower::Catalogue {
                number,
                entries,
                more,
            }) if number > self.known.0 => {
                if self.coming.number != number {
                    self.coming = Catalogue::default();
                    self.coming.number = number;
                }
                self.coming.entries.extend(entries);
                if self.coming.entries.len() > Catalogue::ENTRIES_MAX {
                    return Err(strange());
                }
                if more {
                    return Ok(None);
                }
                let catalogue = std::mem::take(&mut self.coming);
                let refused = |why| Error::Refused(format!("the feed is not followed: {why}"));
                catalogue.check().map_err(refused)?;
                self.known = (number, catalogue.entries.len() as u32);
                self.answered();
                Ok(Some(Heard::Catalogue(catalogue)))
            }
            Some(ToFollower::Publication(Publication {
                transfer,
                port,
                runs,
            })) => {
                let mut entries = BTreeSet::new();
                if !add_runs(&mut entries, &runs, self.known.1) || entries.is_empty() {
                    return Err(strange());
                }
                if !entries.is_subset(&self.wanted) {
                    return Err(Error::PeerLost(
                        "the feed sends what this follower does not want".into(),
                    ));
                }
                self.answered();
                let mut sender = self.peer;
                sender.set_port(port);
                Ok(Some(Heard::Publication {
                    transfer,
                    sender,
                    entries,
                }))
            }
            Some(_) => Err(strange()),
        }
    }

    /// Notes that the feed has answered.
    fn answered(&mut self) {
        self.answers += 1;
        self.wanted.clear();
    }

    fn say(&mut self, message: &ToFeed) -> Result<(), Error> {
        self.line.put(framed(message));
        self.line.flush().map_err(gone)
    }

    fn next(&mut self, timeout: Duration) -> Result<Option<ToFollower>, Error> {
        let mut message = self.line.take();
        if let Ok(None) = message {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, self.line.has_output());
            let mut fds = [
                PollFd::new(&self.line.stream, flags),
                PollFd::new(&self.waker, PollFlags::IN),
            ];
            let limit = Timespec::try_from(timeout).ok();
            // A signal ends the wait like a time-out.
            let _ = poll(&mut fds, limit.as_ref());
            self.waker.hush();
            self.line.flush().map_err(gone)?;
            message = self.line.take();
        }
        match message.map_err(gone)?.map(|bytes| frame::message(&bytes)) {
            None => Ok(None),
            Some(Some(ToFollower::Refused { reason })) => {
                Err(Error::Refused(format!("the feed says: {reason}")))
            }
            Some(Some(message)) => Ok(Some(message)),
            Some(None) => Err(strange()),
        }
    }
}

fn gone(why: impl std::fmt::Display) -> Error {
    Error::PeerLost(format!("the feed is gone: {why}"))
}

fn strange() -> Error {
    Error::PeerLost("what answers there is no feed, or speaks another version".into())
}
