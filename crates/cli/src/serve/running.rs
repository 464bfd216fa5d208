//! A transfer that is under way.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use fabricast::config::SendOptions;
use fabricast::feed::{Catalogue, Entry, FollowerKey};
use fabricast::text::first_of;
use fabricast::transfer::{self, ReceiverReport, SendEvent, SendFailure, SendReport, Source};
use fabricast::waker::Waker;

use crate::background::Background;

/// How long followers that have not said what they want can hold a publication back, after the
/// first one wants something, and a transfer that was chosen for them, after its sender listens.
/// A transfer also holds their places for so long, after its begin and after its sender listens.
pub const GATHER: Duration = Duration::from_secs(1);

/// How a transfer has ended.
pub type Ended = Box<Result<SendReport, SendFailure>>;

/// A transfer that is under way.
pub struct Running {
    /// Its number.
    pub number: u64,
    pub transfer: Background<SendEvent, Ended>,
    pub began: Instant,
    /// What is sent.
    pub entries: Vec<Entry>,
    /// Numbers of its entries in the present catalogue; `None`: that has others in their place.
    pub numbers: Option<BTreeSet<u32>>,
    /// The followers that it was chosen for.
    pub chosen: Vec<FollowerKey>,
    /// The addresses of the followers that are told first, and the hosts that they count for.
    pub hosts: BTreeMap<IpAddr, IpAddr>,
    /// The port at which its sender was to listen; 0: any.
    pub asked_port: u16,
    /// The port at which its sender listens, and since when; `None`: it does not yet.
    pub listens: Option<(u16, Instant)>,
    /// When the first receiver came.
    pub first: Option<Instant>,
    /// How many receivers its sender waits for.
    pub expected: Arc<AtomicUsize>,
    /// The names of the receivers that take part.
    receivers: BTreeSet<String>,
}

impl Running {
    /// Starts to send these files and directories to so many followers.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(
        number: u64,
        paths: Vec<PathBuf>,
        mut options: SendOptions,
        followers: usize,
        waker: &Waker,
    ) -> std::io::Result<Running> {
        let interrupt = Arc::new(AtomicBool::new(false));
        options.interrupt = interrupt.clone();
        let expected = Arc::new(AtomicUsize::new(followers));
        options.start.expected = Some(expected.clone());
        let asked_port = options.port;
        let send = move |tell: &mut dyn FnMut(SendEvent)| {
            Box::new(transfer::send(Source::Paths(&paths), &options, tell))
        };
        let transfer = Background::start("fabricast-send", waker.clone(), interrupt, send)?;
        Ok(Running {
            asked_port,
            expected,
            ..Running::of(number, transfer)
        })
    }

    /// A transfer of nothing yet.
    pub fn of(number: u64, transfer: Background<SendEvent, Ended>) -> Running {
        Running {
            number,
            transfer,
            began: Instant::now(),
            entries: Vec::new(),
            numbers: None,
            chosen: Vec::new(),
            hosts: BTreeMap::new(),
            asked_port: 0,
            listens: None,
            first: None,
            expected: Arc::default(),
            receivers: BTreeSet::new(),
        }
    }

    /// Notes what its sender tells of receivers that come and go.
    pub fn note(&mut self, event: &SendEvent) {
        match event {
            SendEvent::Connected { receiver, .. } => {
                self.receivers.insert(receiver.clone());
            }
            SendEvent::Left { receiver, .. }
            | SendEvent::Verified { receiver, .. }
            | SendEvent::Received { receiver, .. }
            | SendEvent::Failed { receiver, .. } => _ = self.receivers.remove(receiver),
            _ => {}
        }
    }

    /// The names of the receivers that take part.
    pub fn receivers(&self) -> impl Iterator<Item = &str> {
        self.receivers.iter().map(String::as_str)
    }

    /// Whether it waits for the followers that it was chosen for, also if they were told of another
    /// one first. While its sender lists a large directory, followers take part in others.
    pub fn is_early(&self) -> bool {
        let since = self.listens.map_or(self.began, |(_, since)| since);
        since.elapsed() < GATHER
    }

    /// Whether it was chosen for this follower, and still waits for it.
    pub fn is_promised(&self, follower: FollowerKey) -> bool {
        self.is_early() && self.chosen.contains(&follower)
    }

    /// What is sent, in words.
    pub fn what(&self) -> String {
        let first = self.entries.first().map_or("", |entry| &entry.name);
        first_of(first, self.entries.len())
    }

    /// Finds its entries in another catalogue.
    pub fn look_up(&mut self, catalogue: &Catalogue) {
        let of = |entry: &Entry| (entry.name.clone(), entry.digest.clone());
        let own: BTreeSet<_> = self.entries.iter().map(of).collect();
        let numbers = (0..).zip(&catalogue.entries);
        let numbers = numbers.filter(|(_, entry)| own.contains(&of(entry)));
        let numbers: BTreeSet<u32> = numbers.map(|(number, _)| number).collect();
        self.numbers = (numbers.len() == self.entries.len()).then_some(numbers);
    }

    /// Of the hosts that were told of it first, those that have completed it, and those that have
    /// not come. One that has come and failed knows by itself when it wants the entries again.
    pub fn hosts_after(
        &self,
        result: &Result<SendReport, SendFailure>,
    ) -> (BTreeSet<IpAddr>, BTreeSet<IpAddr>) {
        let whole = match result {
            Ok(report) => Some(report),
            Err(failure) => failure.report.as_deref(),
        };
        let receivers = || whole.iter().flat_map(|report| &report.receivers);
        let refused = whole.iter().flat_map(|report| &report.refused);
        let address = |report: &ReceiverReport| report.address.ip().to_canonical();
        let complete = receivers().filter(|report| report.state.is_complete());
        let complete: BTreeSet<IpAddr> = complete.map(address).collect();
        let came: BTreeSet<IpAddr> = receivers().chain(refused).map(address).collect();
        let hosts = |is_so: &dyn Fn(&IpAddr) -> bool| {
            let hosts = self.hosts.iter().filter(|(at, _)| is_so(at));
            hosts.map(|(_, host)| *host).collect()
        };
        (
            hosts(&|at| complete.contains(at)),
            hosts(&|at| !came.contains(at)),
        )
    }
}
