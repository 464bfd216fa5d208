//! `fabricast serve`: a feed.
//!
//! One thread serves followers and decides what is sent next. `listing` is the thread that looks
//! what there is to send. A third one runs the transfer that is under way, as `fabricast send`
//! does.

mod listing;
mod pauses;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::config::{PER_HOST, SendOptions, Slow, StartRule};
use fabricast::error::{Error, exit};
use fabricast::feed::{Event, FeedServer, FollowerKey, is_name, next_publication};
use fabricast::text::{escaped, shown};
use fabricast::transfer::{self, SendEvent, SendFailure, SendReport, Source};
use fabricast::waker::Waker;
use fabricast_console::units;
use serde_json::json;

use self::listing::{Found, Listing, candidates, left_out, listed, readable};
use self::pauses::Pauses;
use crate::args;
use crate::conclusion::conclude;
use crate::metrics::{FeedMetrics, MetricsServer};
use crate::output::Output;
use crate::sending;
use crate::settings::with_options;

/// How often the feed looks whether it has to end.
const TICK: Duration = Duration::from_millis(100);
/// How long followers that have not said what they want can hold a publication back, after the
/// first one wants something.
const GATHER: Duration = Duration::from_secs(1);
/// How long a transfer waits for the others after the first receiver has come. Those that come then
/// are late, and get everything, too.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// How long a transfer waits for its first receiver, while other followers wait for something else.
const NOBODY: Duration = Duration::from_secs(15);
/// How long a transfer waits for its first receiver at most, which may prove what it has.
const START: Duration = Duration::from_secs(600);

/// Runs `fabricast serve`. Returns the exit code.
pub fn run(args: &args::Serve, interrupt: Arc<AtomicBool>) -> u8 {
    let mut out = Output::new(&args.how.net);
    let result = sending::check_scheme(&args.how)
        .and_then(|()| feed_name(args))
        .and_then(|name| match args.how.dry_run {
            true => dry_run(args, &mut out),
            false => Feed::open(args, &name, &mut out)?.run(&interrupt, &mut out),
        });
    match result {
        Ok(code) => out.code(code),
        Err(error) => out.error(&error),
    }
}

/// The feed's name, if it and the directory can be used.
fn feed_name(args: &args::Serve) -> Result<String, Error> {
    let usage = |text: String| Err(Error::Usage(text));
    if sending::is_ibrmp(&args.how) {
        return usage(
            "a feed cannot be sent by --scheme ibrmp, which keeps nothing for receivers that come \
             again: leave it out"
                .into(),
        );
    }
    if args.data_port == args.port && args.port != 0 {
        return usage(format!(
            "followers connect to port {0} already: give --data-port another one, or leave it out",
            args.port
        ));
    }
    let dir = args.dir.canonicalize();
    let dir = dir.map_err(|e| Error::io(format!("opening {}", shown(&args.dir)), e))?;
    if !dir.is_dir() {
        return usage(format!(
            "{} is no directory: a feed publishes what is in a directory; `fabricast send` sends \
             a file once",
            shown(&args.dir)
        ));
    }
    let own = dir.file_name().and_then(|name| name.to_str());
    match args.name.as_deref().or(own) {
        Some(name) if is_name(name) => Ok(name.to_owned()),
        _ => usage(
            "the feed needs a name that a directory can have, and that is not hidden: --name NAME"
                .into(),
        ),
    }
}

/// Prints what would be published, and names what cannot be. Returns the exit code.
fn dry_run(args: &args::Serve, out: &mut Output) -> Result<u8, Error> {
    let selection = options(args).selection;
    let (paths, mut notices) = candidates(&args.dir, &selection.exclude)
        .map_err(|e| Error::io(format!("reading {}", shown(&args.dir)), e))?;
    let mut published = Vec::new();
    for path in paths.into_values() {
        // What it tells beside, it tells again below.
        let set = listed(&path, &selection, &mut |_| {});
        match set.and_then(|set| readable(&path, &set)) {
            Ok(()) => published.push(path),
            Err(text) => notices.push(text),
        }
    }
    for text in notices {
        sending::notice(text, out);
    }
    Ok(match published.is_empty() {
        true => exit::OK,
        false => sending::dry_run(&published, None, &args.how, &selection, out),
    })
}

fn excluded(args: &args::Serve) -> impl Iterator<Item = fabricast::pattern::Pattern> + '_ {
    args.how.exclude.iter().cloned().chain(left_out())
}

/// What the thread of a transfer tells.
enum Told {
    Event(SendEvent),
    End(Box<Result<SendReport, SendFailure>>),
}

/// The transfer that is under way.
struct Running {
    told: Receiver<Told>,
    thread: JoinHandle<()>,
    /// Set to end it.
    interrupt: Arc<AtomicBool>,
    began: Instant,
    /// Numbers of its entries in the catalogue of its time.
    entries: BTreeSet<u32>,
    /// The catalogue of its time, by its number.
    catalogue: u64,
    /// Followers that are told of it, as soon as it listens.
    followers: BTreeSet<FollowerKey>,
    /// The addresses of those that are told first, and the hosts that they count for.
    hosts: BTreeMap<IpAddr, IpAddr>,
    /// Where its sender listens, once it does.
    port: Option<u16>,
    /// When the first receiver came.
    first: Option<Instant>,
    /// How many receivers its sender waits for.
    expected: Arc<AtomicUsize>,
}

struct Feed<'a> {
    args: &'a args::Serve,
    server: FeedServer,
    listing: Listing,
    waker: Waker,
    metrics: FeedMetrics,
    /// Serves the metrics as long as it is there.
    _metrics_server: Option<MetricsServer>,
    running: Option<Running>,
    /// Since when followers want something and nothing is sent.
    wanted_since: Option<Instant>,
    pauses: Pauses,
    /// The options of each transfer.
    options: SendOptions,
}

impl<'a> Feed<'a> {
    fn open(args: &'a args::Serve, name: &str, out: &mut Output) -> Result<Feed<'a>, Error> {
        let waker = Waker::new().map_err(|e| Error::io("making a waker", e))?;
        let metrics = FeedMetrics::default();
        let server = FeedServer::open(
            &sending::net_options(&args.how.net),
            args.port,
            name,
            args.per_host as usize,
            waker.clone(),
        )?;
        let serve = |address| MetricsServer::open(address, metrics.registry());
        let metrics_server = args.metrics.map(serve).transpose()?;
        let options = options(args);
        let (settle, rescan) = (args.settle, args.rescan);
        let selection = options.selection.clone();
        let listing = Listing::start(&args.dir, selection, settle, rescan, waker.clone())?;
        let address = server.address();
        let metrics_address = metrics_server.as_ref().map(|server| server.address);
        out.event(&json!({
            "event": "serving",
            "feed": name,
            "address": address.to_string(),
            "metrics": metrics_address.map(|address| address.to_string()),
        }));
        out.say(&format!(
            "Serving {} as the feed {}. On each host run",
            shown(&args.dir),
            escaped(name)
        ));
        out.say(&format!(
            "    fabricast recv --dir DEST --from {} --follow",
            sending::address(address, &args.how.net.interface)
        ));
        if let Some(address) = metrics_address {
            crate::metrics::say_where(out, address);
        }
        // Only a service manager that has asked for it is told.
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        Ok(Feed {
            args,
            server,
            listing,
            waker,
            metrics,
            _metrics_server: metrics_server,
            running: None,
            wanted_since: None,
            pauses: Pauses::default(),
            options,
        })
    }

    /// Serves until `interrupt`. Returns the exit code.
    fn run(mut self, interrupt: &AtomicBool, out: &mut Output) -> Result<u8, Error> {
        while !interrupt.load(Ordering::Relaxed) {
            for event in self.server.turn(TICK) {
                follower_event(&event, out);
            }
            while let Some(found) = self.listing.found() {
                self.found(found, out);
            }
            self.hear(out);
            self.attend();
            self.choose(out);
            self.count();
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        if let Some(running) = self.running.take() {
            running.interrupt.store(true, Ordering::Relaxed);
            let _ = running.thread.join();
        }
        out.finish();
        out.say("The feed has ended");
        Ok(exit::OK)
    }

    fn found(&mut self, found: Found, out: &mut Output) {
        let catalogue = match found {
            Found::Notice(text) => return sending::notice(text, out),
            Found::Catalogue(catalogue) => catalogue,
        };
        let (entries, bytes) = (catalogue.entries.len(), catalogue.bytes());
        out.event(&json!({
            "event": "catalogue", "number": catalogue.number, "entries": entries, "len": bytes,
        }));
        out.say(&format!(
            "{entries} files and directories are published ({})",
            units::bytes(bytes)
        ));
        self.metrics.offers(entries, bytes);
        self.server.publish(catalogue);
    }

    /// Takes what the thread of the transfer tells.
    fn hear(&mut self, out: &mut Output) {
        let mut end = None;
        if let Some(running) = &mut self.running {
            loop {
                let event = match running.told.try_recv() {
                    Ok(Told::Event(event)) => sending::worded(event),
                    Ok(Told::End(result)) => {
                        end = Some(Ok(result));
                        break;
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        end = Some(Err(()));
                        break;
                    }
                };
                match &event {
                    SendEvent::Listening { address, .. } => {
                        running.port = Some(address.port());
                        // Listing may take long. Where the catalogue is another one now, its
                        // numbers mean other entries, and nobody is told.
                        let is_same = self.server.catalogue().number == running.catalogue;
                        if !is_same {
                            running.hosts.clear();
                            running.followers.clear();
                        }
                        for follower in &running.followers {
                            self.server
                                .invite(*follower, &running.entries, address.port());
                        }
                    }
                    SendEvent::Connected { .. } => {
                        _ = running.first.get_or_insert_with(Instant::now)
                    }
                    _ => {}
                }
                out.event(&event);
                sending::say(out, &event, &self.args.how, &self.options);
            }
        }
        if let Some(result) = end
            && let Some(running) = self.running.take()
        {
            let joined = running.thread.join();
            let Ok(result) = result else {
                // The thread has told nothing at its end, so it has panicked: so do we.
                return joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            };
            let whole = match &*result {
                Ok(report) => Some(report),
                Err(failure) => failure.report.as_deref(),
            };
            let report = (*result).as_ref().ok();
            self.metrics.ended(running.entries.len(), report);
            let is_reached = report.is_some_and(|report| report.complete() > 0);
            // One that has come and failed knows by itself when it wants the entries again.
            let came = |report: &SendReport| {
                let all = report.receivers.iter().chain(&report.refused);
                all.map(|r| r.address.ip().to_canonical()).collect()
            };
            let came: BTreeSet<IpAddr> = whole.map(came).unwrap_or_default();
            let absent = running.hosts.iter().filter(|(at, _)| !came.contains(at));
            let absent = absent.map(|(_, host)| *host).collect();
            self.pauses.after(&absent, is_reached);
            conclude(out, *result, &[]);
            // A source that has changed is found so at once.
            self.listing.look();
        }
    }

    /// Tells followers of the transfer under way that want all of it and have come since. Tells its
    /// sender for how many receivers it has to wait.
    fn attend(&mut self) {
        let Some(running) = &mut self.running else {
            return;
        };
        let Some(port) = running.port else {
            return;
        };
        let is_same = self.server.catalogue().number == running.catalogue;
        let may_join = is_same && self.options.admits_late();
        let waiting = self.server.waiting();
        let (late, others): (Vec<_>, Vec<_>) = waiting
            .into_iter()
            .filter(|(_, wants)| !wants.is_empty())
            .partition(|(_, wants)| may_join && wants.is_superset(&running.entries));
        let has_others = !others.is_empty();
        let late: Vec<FollowerKey> = late.into_iter().map(|(key, _)| key).collect();
        for follower in late {
            self.server.invite(follower, &running.entries, port);
            running.followers.insert(follower);
        }
        let expected = match running.first {
            None if has_others && running.began.elapsed() > NOBODY => 0,
            Some(first) if first.elapsed() > MAX_WAIT => 1,
            // It waits no longer for those that are gone, or have said that they want it later.
            _ => {
                let receiving = self.server.receiving();
                receiving
                    .filter(|key| running.followers.contains(key))
                    .count()
            }
        };
        running.expected.store(expected, Ordering::Relaxed);
    }

    /// Starts the next transfer, if followers want something.
    fn choose(&mut self, out: &mut Output) {
        if self.running.is_some() || self.pauses.is_pause() {
            return;
        }
        let lens: Vec<u64> = self
            .server
            .catalogue()
            .entries
            .iter()
            .map(|e| e.len)
            .collect();
        let waiting = self.server.waiting();
        let may_come = |(key, _): &(FollowerKey, _)| {
            let found = self.server.address_and_host(*key);
            found.is_none_or(|(_, host)| !self.pauses.is_paused(host))
        };
        let able: Vec<_> = waiting.into_iter().filter(may_come).collect();
        let Some(choice) = next_publication(&lens, &able) else {
            self.wanted_since = None;
            return;
        };
        let since = *self.wanted_since.get_or_insert_with(Instant::now);
        // The others know of the catalogue, or have just received, and say at once what they want.
        let is_undecided = self.server.followers() > self.server.waiting().len();
        if is_undecided && since.elapsed() < GATHER {
            return;
        }
        self.wanted_since = None;
        let entries = &self.server.catalogue().entries;
        let entries: Vec<_> = choice
            .entries
            .iter()
            .map(|e| &entries[*e as usize])
            .collect();
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
        let len: u64 = entries.iter().map(|entry| entry.len).sum();
        let followers = choice.followers.len();
        out.event(&json!({
            "event": "publishing", "entries": names, "len": len, "followers": followers,
        }));
        let first = escaped(names.first().copied().unwrap_or_default());
        let more = match names.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let len = units::bytes(len);
        out.say(&format!("Sending {first}{more} ({len}) to {followers}"));
        let paths: Vec<PathBuf> = names.iter().map(|name| self.args.dir.join(name)).collect();
        match self.start(paths, choice.entries, choice.followers) {
            Ok(running) => self.running = Some(running),
            Err(e) => {
                self.pauses.after(&BTreeSet::new(), false);
                sending::notice(format!("a thread cannot be started: {e}"), out);
            }
        }
    }

    fn start(
        &self,
        paths: Vec<PathBuf>,
        entries: BTreeSet<u32>,
        followers: Vec<FollowerKey>,
    ) -> std::io::Result<Running> {
        let interrupt = Arc::new(AtomicBool::new(false));
        let mut options = self.options.clone();
        options.interrupt = interrupt.clone();
        let expected = Arc::new(AtomicUsize::new(followers.len()));
        options.start.expected = Some(expected.clone());
        // The feed has admitted these followers, however many have one address.
        options.per_host = followers.len() + PER_HOST;
        let (tell, told) = channel();
        let waker = self.waker.clone();
        let thread = thread::Builder::new().name("fabricast-send".into());
        let thread = thread.spawn(move || {
            let send = |told| {
                let _ = tell.send(told);
                waker.wake();
            };
            let result = transfer::send(Source::Paths(&paths), &options, &mut |event| {
                send(Told::Event(event));
            });
            send(Told::End(Box::new(result)));
        })?;
        Ok(Running {
            told,
            thread,
            interrupt,
            began: Instant::now(),
            entries,
            catalogue: self.server.catalogue().number,
            hosts: followers
                .iter()
                .filter_map(|key| self.server.address_and_host(*key))
                .collect(),
            followers: followers.into_iter().collect(),
            port: None,
            first: None,
            expected,
        })
    }

    fn count(&self) {
        let waiting = self.server.waiting();
        let current = waiting.iter().filter(|(_, wants)| wants.is_empty()).count();
        let (all, receiving) = (self.server.followers(), self.server.receiving().count());
        self.metrics
            .follow(current, all - receiving - current, receiving);
    }
}

/// The options of each transfer.
fn options(args: &args::Serve) -> SendOptions {
    let start = StartRule {
        timeout: START,
        ..StartRule::default()
    };
    let mut selection = sending::selection(&args.how);
    selection.exclude = excluded(args).collect();
    let mut options = SendOptions {
        port: args.data_port,
        // Followers are told where the sender is.
        announce: false,
        selection,
        ..sending::options(&args.how, start, Arc::default())
    };
    if !args.how.slow.iter().any(|(name, _)| name.is_none()) {
        options.slow = Slow::Demote;
    }
    options
}

/// Tells of followers that come and go.
fn follower_event(event: &Event, out: &mut Output) {
    match event {
        Event::Followed { name, address, .. } => {
            out.event(&json!({
                "event": "followed", "follower": name, "address": address.to_string(),
            }));
            out.say(&format!("+ {name} ({}) follows", address.ip()));
        }
        Event::Refused { address, reason } => refused(*address, &with_options(reason), out),
        Event::Gone { name, reason, .. } => {
            out.event(&json!({"event": "unfollowed", "follower": name, "reason": reason}));
            out.say(&format!("- {name} is gone: {reason}"));
        }
    }
}

fn refused(address: SocketAddr, reason: &str, out: &mut Output) {
    out.event(&json!({
        "event": "refused", "receiver": address.ip().to_string(),
        "address": address.to_string(), "by": "sender", "reason": reason,
    }));
    out.say(&format!("! {} was refused: {reason}", address.ip()));
}
