//! `fabricast serve`: a feed.
//!
//! One thread serves followers and decides what is sent next. `listing` is the thread that looks
//! what there is to send. Each transfer that is under way has a thread of its own (`running`), and
//! goes as that of `fabricast send`.

mod classes;
mod listing;
mod pauses;
mod running;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast::config::{PER_HOST, SendOptions, SharedRate, Slow, StartRule};
use fabricast::error::{Error, exit};
use fabricast::feed::{Choice, Entry, Event, FeedServer, FollowerKey, is_name, next_publication};
use fabricast::text::{escaped, shown};
use fabricast::transfer::{SendEvent, SendFailure, SendReport};
use fabricast::waker::Waker;
use fabricast_console::units;
use serde_json::json;

use self::classes::Class;
use self::listing::{Found, Listing, candidates, left_out, listed, readable};
use self::running::{Ended, GATHER, Running};
use crate::args;
use crate::background::Told;
use crate::conclusion::conclude;
use crate::metrics::{FeedMetrics, MetricsServer};
use crate::output::Output;
use crate::sending;
use crate::settings::with_options;

/// How often the feed looks whether it has to end.
const TICK: Duration = Duration::from_millis(100);
/// How long a transfer waits for the others after the first receiver has come. Those that come then
/// are late, and get everything, too.
const MAX_WAIT: Duration = Duration::from_secs(3);
/// How long a transfer waits for its first receiver, while other followers wait for something else.
const NOBODY: Duration = Duration::from_secs(15);
/// Weight of a transfer of entries that go before others, where transfers share a rate. The others
/// have weight 1.
const FIRST_WEIGHT: u32 = 4;
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
    let first = u32::from(args.data_port);
    let ports = first..first + u32::from(args.at_once);
    if first != 0 && ports.end > 1 << 16 {
        return usage(format!(
            "the transfers take {} ports from --data-port on (--at-once), and the last port is \
             65535: give it a lower one, or leave it out",
            args.at_once
        ));
    }
    if first != 0 && ports.contains(&u32::from(args.port)) {
        return usage(format!(
            "followers connect to port {} already, and the transfers take {} ports from \
             --data-port on (--at-once): give it another one, or leave it out",
            args.port, args.at_once
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

/// Followers, and how many transfers they are yet to be told of that were chosen for them.
type Promised = BTreeMap<FollowerKey, usize>;

struct Feed<'a> {
    args: &'a args::Serve,
    server: FeedServer,
    listing: Listing,
    waker: Waker,
    metrics: FeedMetrics,
    /// Serves the metrics as long as it is there.
    _metrics_server: Option<MetricsServer>,
    /// What is sent, by classes of entries.
    classes: Vec<Class>,
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
            classes: Class::all(args.at_once.into()),
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
            self.call_receivers();
            self.choose(out);
            self.count();
        }
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let running = || self.classes.iter().flat_map(|class| &class.running);
        running().for_each(|running| running.transfer.interrupt());
        running().for_each(|running| out.about(running.number, Output::finish));
        self.classes.clear();
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
        let running = self.classes.iter_mut().flat_map(|class| &mut class.running);
        running.for_each(|running| running.look_up(&catalogue));
        self.server.publish(catalogue);
    }

    /// Takes what the threads of the transfers tell.
    fn hear(&mut self, out: &mut Output) {
        let mut classes = std::mem::take(&mut self.classes);
        let promised = self.promised(classes.iter().flat_map(|class| &class.running));
        for class in &mut classes {
            let mut ended = Vec::new();
            for running in &mut class.running {
                out.about(running.number, |out| {
                    if let Some(result) = self.hear_one(running, &promised, out) {
                        ended.push(running.number);
                        let (completed, absent) = running.hosts_after(&result);
                        class.pauses.after(&completed, &absent);
                        if !is_reached(&result) {
                            class.pauses.pause();
                        }
                        self.metrics
                            .ended(running.entries.len(), result.as_ref().as_ref().ok());
                        out.finish();
                        out.say(&format!("{} has ended", running.what()));
                        conclude(out, *result, &[]);
                        // A source that has changed is found so at once.
                        self.listing.look();
                    }
                });
            }
            class
                .running
                .retain(|running| !ended.contains(&running.number));
        }
        self.classes = classes;
    }

    /// Takes what the thread of a transfer tells. Returns how the transfer has ended, if it has.
    fn hear_one(
        &mut self,
        running: &mut Running,
        promised: &Promised,
        out: &mut Output,
    ) -> Option<Ended> {
        loop {
            let event = match running.transfer.told()? {
                Told::Event(event) => sending::worded(event),
                Told::End(result) => return Some(result),
            };
            running.note(&event);
            match &event {
                SendEvent::Listening { address, .. } => {
                    running.listens = Some((address.port(), Instant::now()));
                    let told = self.invite(running, promised, |_| true);
                    running.hosts = told.into_iter().collect();
                }
                SendEvent::Connected { .. } => {
                    _ = running.first.get_or_insert_with(Instant::now);
                }
                _ => {}
            }
            out.event(&event);
            sending::say(out, &event, &self.args.how, &self.options);
        }
    }

    /// How many transfers under way were chosen for each follower that is yet to be told of them.
    fn promised<'r>(&self, under_way: impl Iterator<Item = &'r Running>) -> Promised {
        let mut promised = Promised::new();
        for running in under_way.filter(|running| running.is_early()) {
            let told = self.server.receiving(running.number);
            for key in running.chosen.iter().filter(|key| !told.contains(key)) {
                *promised.entry(*key).or_default() += 1;
            }
        }
        promised
    }

    /// Whether a follower may take part in another transfer than those that it is yet to be told
    /// of.
    fn has_place(&self, key: FollowerKey, promised: &Promised) -> bool {
        self.server.places(key) > promised.get(&key).copied().unwrap_or(0)
    }

    /// Tells followers of a transfer that listens, if they wait and want all of it, have a place
    /// for it, and `may_come`. Returns their addresses, and the hosts that these count for.
    fn invite(
        &mut self,
        running: &Running,
        promised: &Promised,
        may_come: impl Fn(&FollowerKey) -> bool,
    ) -> Vec<(IpAddr, IpAddr)> {
        let (Some((port, _)), Some(numbers)) = (running.listens, &running.numbers) else {
            return Vec::new();
        };
        let waiting = self.server.waiting().into_iter();
        let willing = waiting.filter(|(key, wants)| may_come(key) && wants.is_superset(numbers));
        let willing = willing.map(|(key, _)| key);
        let able =
            willing.filter(|key| running.is_promised(*key) || self.has_place(*key, promised));
        let willing: Vec<FollowerKey> = able.collect();
        for key in &willing {
            self.server.invite(*key, running.number, numbers, port);
        }
        let hosts = willing.iter();
        hosts
            .filter_map(|key| self.server.address_and_host(*key))
            .collect()
    }

    /// Tells followers of the transfers under way that have come since, if they want all that is
    /// sent. Tells each sender for how many receivers it has to wait.
    fn call_receivers(&mut self) {
        let mut classes = std::mem::take(&mut self.classes);
        let promised = self.promised(classes.iter().flat_map(|class| &class.running));
        for class in &mut classes {
            for n in 0..class.running.len() {
                let running = &class.running[n];
                if running.listens.is_none() {
                    continue;
                }
                // Followers that it was chosen for may have been told of another one first.
                let is_early = running.is_early();
                let admits_late = self.options.admits_late();
                let may_come = |key: &FollowerKey| admits_late || running.is_promised(*key);
                let told = self.invite(running, &promised, may_come);
                let awaited = match is_early {
                    true => self.awaited(class, running),
                    false => 0,
                };
                let receiving = self.server.receiving(running.number);
                let expected = match running.first {
                    None if running.began.elapsed() > NOBODY
                        && self.is_wanted(class, &receiving) =>
                    {
                        0
                    }
                    Some(first) if first.elapsed() > MAX_WAIT => 1,
                    // It waits no longer for those that are gone, or do not take part any more.
                    _ => receiving.len(),
                };
                let expected = expected.max(awaited);
                running.expected.store(expected, Ordering::Relaxed);
                if is_early {
                    class.running[n].hosts.extend(told);
                }
            }
        }
        self.classes = classes;
    }

    /// How many of the followers that a transfer was chosen for are there and not paused.
    fn awaited(&self, class: &Class, running: &Running) -> usize {
        let hosts = running.chosen.iter();
        let hosts = hosts.filter_map(|key| self.server.address_and_host(*key));
        hosts
            .filter(|(_, host)| !class.pauses.is_paused(*host))
            .count()
    }

    /// Whether followers, apart from these, want something of a class.
    fn is_wanted(&self, class: &Class, but: &BTreeSet<FollowerKey>) -> bool {
        let entries = &self.server.catalogue().entries;
        let is_of_class = |entry: &u32| class.has(entries[*entry as usize].len);
        let waiting = self.server.waiting();
        let mut others = waiting.iter().filter(|(key, _)| !but.contains(key));
        others.any(|(_, wants)| wants.iter().any(is_of_class))
    }

    /// Starts what is to be sent next of each class that has a place, if followers want it.
    fn choose(&mut self, out: &mut Output) {
        let mut classes = std::mem::take(&mut self.classes);
        for n in 0..classes.len() {
            let under_way: Vec<&Running> = classes.iter().flat_map(|c| &c.running).collect();
            let Some(choice) = self.next(&classes[n], &under_way) else {
                classes[n].wanted_since = None;
                continue;
            };
            let port = self.free_port(&under_way);
            let class = &mut classes[n];
            let since = *class.wanted_since.get_or_insert_with(Instant::now);
            // The others know of the catalogue, or have just received, and say at once what they
            // want.
            let is_undecided = self.server.followers() > self.server.waiting().len();
            if is_undecided && since.elapsed() < GATHER {
                continue;
            }
            class.wanted_since = None;
            let number = self.server.next_transfer();
            let result = out.about(number, |out| self.start(number, port, choice, out));
            match result {
                Ok(running) => class.running.push(running),
                Err(e) => {
                    class.pauses.pause();
                    sending::notice(format!("a thread cannot be started: {e}"), out);
                }
            }
        }
        self.classes = classes;
    }

    /// What is to be sent next of a class, if it has a place.
    fn next(&self, class: &Class, under_way: &[&Running]) -> Option<Choice<FollowerKey>> {
        if class.running.len() >= class.places || class.pauses.is_pause() {
            return None;
        }
        let sent = under_way.iter().flat_map(|running| &running.entries);
        let sent: BTreeSet<&str> = sent.map(|entry| &*entry.name).collect();
        let may_go = |entry: &Entry| class.has(entry.len) && !sent.contains(&*entry.name);
        let entries = &self.server.catalogue().entries;
        let lens = |may_go: &dyn Fn(&Entry) -> bool| -> Vec<Option<u64>> {
            let lens = entries
                .iter()
                .map(|entry| may_go(entry).then_some(entry.len));
            lens.collect()
        };
        let may_come = |(key, _): &(FollowerKey, _)| {
            let found = self.server.address_and_host(*key);
            found.is_none_or(|(_, host)| !class.pauses.is_paused(host))
        };
        let promised = self.promised(under_way.iter().copied());
        let able = self.server.waiting().into_iter().filter(may_come);
        let able: Vec<_> = able
            .filter(|(key, _)| self.has_place(*key, &promised))
            .collect();
        let first = lens(&|entry| may_go(entry) && self.is_first(entry));
        next_publication(&first, &able).or_else(|| next_publication(&lens(&may_go), &able))
    }

    /// Whether an entry goes before the others of its class.
    fn is_first(&self, entry: &Entry) -> bool {
        self.args.first.iter().any(|p| p.matches(&entry.name))
    }

    /// The port of the next transfer; 0: any.
    fn free_port(&self, under_way: &[&Running]) -> u16 {
        let first = self.args.data_port;
        let mut ports = first..=first.saturating_add(u16::from(self.args.at_once) - 1);
        let is_free = |port: &u16| under_way.iter().all(|running| running.asked_port != *port);
        match first {
            0 => 0,
            first => ports.find(is_free).unwrap_or(first),
        }
    }

    fn start(
        &self,
        number: u64,
        port: u16,
        choice: Choice<FollowerKey>,
        out: &mut Output,
    ) -> std::io::Result<Running> {
        let entries = &self.server.catalogue().entries;
        let entries = choice.entries.iter().map(|e| &entries[*e as usize]);
        let entries: Vec<Entry> = entries.cloned().collect();
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
        let len: u64 = entries.iter().map(|entry| entry.len).sum();
        let followers = choice.followers.len();
        out.event(&json!({
            "event": "publishing", "entries": names, "len": len, "followers": followers,
        }));
        let paths = names.iter().map(|name| self.args.dir.join(name)).collect();
        let mut options = self.options.clone();
        options.port = port;
        if entries.iter().any(|entry| self.is_first(entry)) {
            let rate = options.shared_rate.take();
            options.shared_rate = rate.map(|rate| rate.with_weight(FIRST_WEIGHT));
        }
        // The feed has admitted these followers, however many have one address.
        options.per_host = followers + PER_HOST;
        let mut running = Running::start(number, paths, options, followers, &self.waker)?;
        running.chosen = choice.followers;
        running.entries = entries;
        running.numbers = Some(choice.entries);
        let (what, len) = (running.what(), units::bytes(len));
        out.say(&format!("Sending {what} ({len}) to {followers}"));
        Ok(running)
    }

    fn count(&self) {
        let running = self.classes.iter().flat_map(|class| &class.running);
        let here: BTreeSet<&str> = running.flat_map(Running::receivers).collect();
        self.metrics.follow(self.server.counts(here.len()));
    }
}

/// Whether a transfer was complete for anybody.
fn is_reached(result: &Result<SendReport, SendFailure>) -> bool {
    result.as_ref().is_ok_and(|report| report.complete() > 0)
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
        // Followers are told where the sender is.
        announce: false,
        selection,
        ..sending::options(&args.how, start, Arc::default())
    };
    if !args.how.slow.iter().any(|(name, _)| name.is_none()) {
        options.slow = Slow::Demote;
    }
    // All transfers together are not faster than the user says.
    options.shared_rate = options.rate.take().map(SharedRate::new);
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
        Event::Refused {
            address,
            reason,
            untold,
        } => {
            let (host, reason) = (address.ip().to_string(), with_options(reason));
            out.event(&json!({
                "event": "refused", "receiver": host, "address": address.to_string(),
                "by": "sender", "reason": reason, "untold": untold,
            }));
            let more = match untold {
                0 => String::new(),
                n => format!(" ({n} more were refused before)"),
            };
            out.say(&format!("! {host} was refused: {reason}{more}"));
        }
        Event::Gone { name, reason, .. } => {
            out.event(&json!({"event": "unfollowed", "follower": name, "reason": reason}));
            out.say(&format!("- {name} is gone: {reason}"));
        }
    }
}
