//! `fabricast recv --follow`: a receiver that follows a feed until it is stopped.
//!
//! One thread talks to the feed. Each transfer that this receiver takes part in has a thread of its
//! own (`receiving`), and so have hooks (`crate::hook`). What is here stands in `record`, in the
//! feed's directory.

mod failures;
mod holdings;
mod receiving;
mod record;
mod record_clock;
mod twins;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fabricast::config::RecvOptions;
use fabricast::error::{Error, exit};
use fabricast::feed::{Catalogue, Entry, Follower, Heard, SHORT_MAX};
use fabricast::object::{default_reserve, remove_leftovers};
use fabricast::text::{ToldPath, escaped, shown};
use fabricast::transfer::{RecvEvent, RecvReport};
use fabricast::waker::Waker;
use fabricast_console::units;
use serde_json::json;

use self::failures::Failures;
use self::receiving::Receiving;
use self::record::{Record, Retention, Wants};
use self::twins::Twins;
use crate::args;
use crate::background::Told;
use crate::hook::{Hooks, Job, Outcome};
use crate::metrics::{FollowMetrics, MetricsServer};
use crate::output::Output;
use crate::recv;
use crate::sending::notice;

/// How long after a failure the record is saved again.
const SAVE_AGAIN: Duration = Duration::from_secs(5);
/// How often the receiver looks whether it has to end, and what is too old.
const TICK: Duration = Duration::from_millis(100);
/// The pause before the feed is called again, at first and at most. It doubles.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Runs `fabricast recv --follow`. Returns the exit code.
pub fn run(args: &args::Recv, interrupt: Arc<AtomicBool>) -> u8 {
    let mut out = Output::new(&args.net);
    match follow(args, interrupt, &mut out) {
        Ok(()) => out.code(exit::OK),
        Err(error) => out.error(&error),
    }
}

fn follow(args: &args::Recv, interrupt: Arc<AtomicBool>, out: &mut Output) -> Result<(), Error> {
    let dest = destination(args)?;
    let hooks = args.feed.hook.as_deref();
    let hooks = hooks.map(|command| Hooks::start(command, args.feed.hook_timeout));
    let metrics = FollowMetrics::default();
    let serve = |address| MetricsServer::open(address, metrics.registry());
    let metrics_server = args.feed.metrics.map(serve).transpose()?;
    let mut following = Following {
        options: recv::options(args, PathBuf::new(), Arc::default()),
        waker: Waker::new().map_err(|e| Error::io("making a waker", e))?,
        name: args.called.clone().unwrap_or_else(|| own_name(&dest)),
        from: args.from.clone().unwrap_or_default(), // clap requires it
        dest,
        retention: Retention {
            longest: args.max_size,
            keep: args.feed.keep.map(|n| n as usize),
            keep_for: args.feed.keep_for,
        },
        interrupt,
        hooks: hooks.transpose()?,
        metrics,
        look: args.feed.look,
        at_once: args.feed.at_once.into(),
        has_followed: false,
        is_away: false,
        failures: Failures::default(),
        too_long: BTreeSet::new(),
        twins: Twins::default(),
    };
    if let Some(server) = &metrics_server {
        out.event(&json!({"event": "metrics", "address": server.address.to_string()}));
        crate::metrics::say_where(out, server.address);
    }
    // Only a service manager that has asked for it is told.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let result = following.run(out);
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    out.finish();
    result
}

/// The directory in which the feed's directory lies, made if the user wants that.
fn destination(args: &args::Recv) -> Result<PathBuf, Error> {
    let dest = args.dir.as_ref().or(args.dest.as_ref()).cloned();
    let dest = dest.unwrap_or_default(); // clap requires one of them
    if dest.as_os_str() == "-" {
        return Err(Error::Usage(
            "a feed does not go to standard output: name a directory for --follow".into(),
        ));
    }
    if args.dir.is_some() {
        let made = fs::create_dir_all(&dest);
        made.map_err(|e| Error::io(format!("making {}", shown(&dest)), e))?;
    }
    // Hooks get absolute paths, wherever they go.
    match dest.canonicalize() {
        Ok(dest) if dest.is_dir() => Ok(dest),
        _ => Err(Error::Usage(format!(
            "there is no directory {}: a feed goes to a directory; --dir makes it",
            shown(&dest)
        ))),
    }
}

fn own_name(dest: &Path) -> String {
    let host = rustix::system::uname();
    format!("{}:{}", host.nodename().to_string_lossy(), shown(dest))
}

struct Following {
    /// The options of each transfer, but for the sender, the destination and its interrupt.
    options: RecvOptions,
    /// Rung when a transfer tells something.
    waker: Waker,
    name: String,
    from: String,
    dest: PathBuf,
    retention: Retention,
    interrupt: Arc<AtomicBool>,
    hooks: Option<Hooks>,
    metrics: FollowMetrics,
    /// How often this receiver looks whether what it has received is still there.
    look: Duration,
    /// Most transfers that this receiver takes part in at the same time.
    at_once: usize,
    /// Whether there has been a feed. What is wrong before that is the user's mistake.
    has_followed: bool,
    /// Whether the user knows that the feed is away.
    is_away: bool,
    failures: Failures,
    /// Digests of the entries that are longer than the user allows. The user was told of these.
    too_long: BTreeSet<String>,
    twins: Twins,
}

impl Following {
    /// Follows until it is interrupted. Ends the hook that runs then, and notes which have ended.
    fn run(&mut self, out: &mut Output) -> Result<(), Error> {
        // The record outlives connections, since hooks may run meanwhile.
        let mut record = None;
        let result = self.follow_all(&mut record, out);
        self.end_transfers(&mut record, out);
        self.hooks.iter_mut().for_each(Hooks::stop);
        if let Some(mut open) = record {
            open.retry = None;
            self.tidy(&mut open, out);
        }
        result
    }

    /// Follows until it is interrupted. Waits for a feed that is away.
    fn follow_all(&mut self, record: &mut Option<Open>, out: &mut Output) -> Result<(), Error> {
        let mut pause = PAUSE.0;
        loop {
            let is_over = || self.is_interrupted();
            let error = match Follower::connect(&self.from, &self.name, &self.waker, &is_over) {
                Ok(mut feed) => {
                    pause = PAUSE.0;
                    self.has_followed = true;
                    self.follow(&mut feed, record, out)
                }
                // Names of hosts cannot always be looked up.
                Err(Error::Usage(why)) if self.has_followed => Err(Error::PeerLost(why)),
                Err(error) => Err(error),
            };
            self.metrics.connected(false);
            match error {
                // It is connected again at once, to say anew what it wants.
                Ok(()) => continue,
                Err(Error::Interrupted) => return Ok(()),
                Err(error @ (Error::PeerLost(_) | Error::Refused(_))) => self.away(&error, out),
                Err(error) => return Err(error),
            }
            let until = Instant::now() + pause;
            while Instant::now() < until {
                if self.is_interrupted() {
                    return Ok(());
                }
                if let Some(open) = record {
                    self.hear_transfers(open, out);
                    self.tidy(open, out);
                }
                // An error would only make this loop spin.
                let _ = self.waker.wait(Some(TICK));
            }
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    fn is_interrupted(&self) -> bool {
        self.interrupt.load(Ordering::Relaxed)
    }

    /// Says once that the feed is away.
    fn away(&mut self, error: &Error, out: &mut Output) {
        if !std::mem::replace(&mut self.is_away, true) {
            let reason = crate::settings::with_options(&error.to_string());
            out.event(&json!({"event": "waiting", "from": self.from, "reason": reason}));
            out.say(&format!("Waiting for the feed at {}: {reason}", self.from));
        }
    }

    /// Follows as long as the connection lasts. `Ok`: connect again.
    fn follow(
        &mut self,
        feed: &mut Follower,
        kept: &mut Option<Open>,
        out: &mut Output,
    ) -> Result<(), Error> {
        self.is_away = false;
        self.metrics.connected(true);
        let folder = self.dest.join(feed.feed());
        let address = feed.peer();
        out.event(&json!({
            "event": "following", "feed": feed.feed(), "address": address.to_string(),
            "path": ToldPath::from(&*folder).path,
        }));
        let name = escaped(feed.feed()).into_owned();
        out.say(&format!(
            "Following the feed {name} at {address}, into {}",
            shown(&folder)
        ));
        let open = match kept {
            Some(open) if open.folder == folder && folder.is_dir() => open,
            _ => {
                self.end_transfers(kept, out);
                *kept = None;
                kept.insert(self.open(feed.feed(), folder, out)?)
            }
        };
        let (mut catalogue, mut lacking) = (Catalogue::default(), BTreeSet::new());
        let mut looked = Instant::now();
        self.say(feed, open, &catalogue, &lacking)?;
        loop {
            if self.is_interrupted() {
                return Err(Error::Interrupted);
            }
            if !open.folder.is_dir() {
                notice(
                    format!("{} is gone, and is made anew", shown(&open.folder)),
                    out,
                );
                self.end_transfers(kept, out);
                *kept = None;
                return Ok(());
            }
            let has_ended = self.hear_transfers(open, out);
            self.tidy(open, out);
            let is_other = looked.elapsed() > self.look && {
                looked = Instant::now();
                // Somebody may have removed an entry.
                self.wants(open, &catalogue).wanted != lacking
            };
            if has_ended || is_other {
                lacking = self.look(open, &catalogue, out);
                self.say(feed, open, &catalogue, &lacking)?;
            } else if self.failures.is_due(Instant::now()) {
                self.say(feed, open, &catalogue, &lacking)?;
            }
            match feed.hear(TICK)? {
                None => {}
                Some(Heard::Catalogue(another)) => {
                    catalogue = another;
                    match self.twins.find(&open.folder, &catalogue) {
                        Ok(told) => told.into_iter().for_each(|text| notice(text, out)),
                        Err(e) => notice(e.to_string(), out),
                    }
                    open.record.forget(&catalogue, &open.coming());
                    lacking = self.look(open, &catalogue, out);
                    self.say(feed, open, &catalogue, &lacking)?;
                }
                Some(Heard::Publication {
                    transfer,
                    sender,
                    entries,
                }) => {
                    let entries = entries.iter().map(|n| &catalogue.entries[*n as usize]);
                    let entries: Vec<Entry> = entries.cloned().collect();
                    self.receive(transfer, &sender.to_string(), entries, open, out);
                    self.say(feed, open, &catalogue, &lacking)?;
                }
            }
        }
    }

    /// Opens the record of the feed, and has hooks run that are due since an earlier run.
    fn open(&mut self, feed: &str, folder: PathBuf, out: &mut Output) -> Result<Open, Error> {
        let (mut record, wrong) = Record::open(&folder)?;
        if self.hooks.is_none() {
            record.drop_hooks();
        }
        if let Some(text) = wrong {
            notice(text, out);
        }
        let open = Open {
            feed: feed.to_owned(),
            folder,
            record,
            transfers: Vec::new(),
            retry: None,
        };
        for entry in open.record.hooks() {
            self.hook(&open, &entry);
        }
        Ok(open)
    }

    /// What has to come of the catalogue, but for what has one name here.
    fn wants(&self, open: &mut Open, catalogue: &Catalogue) -> Wants {
        let mut wants = open.record.wants(catalogue, self.retention);
        self.twins.remove_from(&mut wants.wanted);
        wants
    }

    /// Finds out what of the catalogue is not here, by numbers, and tells that.
    fn look(&mut self, open: &mut Open, catalogue: &Catalogue, out: &mut Output) -> BTreeSet<u32> {
        let entry = |number: &u32| &catalogue.entries[*number as usize];
        let digest = |number: &u32| &entry(number).digest;
        let Wants {
            wanted: lacking,
            too_long,
        } = self.wants(open, catalogue);
        for entry in too_long.iter().map(entry) {
            if !self.too_long.contains(&entry.digest) {
                let text = format!(
                    "{} ({}) does not come: it is longer than --max-size",
                    escaped(&entry.name),
                    units::bytes(entry.len)
                );
                notice(text, out);
            }
        }
        self.too_long = too_long.iter().map(digest).cloned().collect();
        // Versions that were interrupted, and have changed since, are never completed.
        if lacking.is_empty()
            && open.transfers.is_empty()
            && let Err(e) = remove_leftovers(&open.folder)
        {
            let folder = shown(&open.folder);
            notice(
                format!("what was left in {folder} is not removed: {e}"),
                out,
            );
        }
        open.save(out);
        let all = catalogue.bytes();
        let entries = catalogue.entries.len();
        self.metrics.offered(entries, all, lacking.len());
        out.event(&json!({
            "event": "catalogue", "number": catalogue.number, "entries": entries, "len": all,
            "wanted": lacking.len(),
        }));
        self.failures.retain(&lacking.iter().map(digest).collect());
        lacking
    }

    /// Says what is wanted of what is lacking: neither what comes already, nor what has failed and
    /// has to wait. Nothing is wanted while as many transfers run as the user allows.
    fn say(
        &mut self,
        feed: &mut Follower,
        open: &Open,
        catalogue: &Catalogue,
        lacking: &BTreeSet<u32>,
    ) -> Result<(), Error> {
        self.failures.want_due(Instant::now());
        let coming = open.coming();
        let mut wants = lacking.clone();
        let places = self.at_once.saturating_sub(open.transfers.len());
        wants.retain(|number| {
            let entry = &catalogue.entries[*number as usize];
            places > 0 && !self.failures.waits(&entry.digest) && !coming.contains(&*entry.name)
        });
        let receiving: Vec<u64> = open.transfers.iter().map(|t| t.number).collect();
        feed.want(&wants, &receiving, places)
    }

    /// Takes part in a transfer of these entries, which were wanted: so there is a place for it,
    /// and no other transfer brings them.
    fn receive(
        &mut self,
        number: u64,
        sender: &str,
        entries: Vec<Entry>,
        open: &mut Open,
        out: &mut Output,
    ) {
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
        if open.record.begins(&names) {
            open.save(out);
        }
        let options = RecvOptions {
            from: Some(sender.to_owned()),
            is_there: true,
            dest: open.folder.clone(),
            into_directory: true,
            any_names: true,
            received: Some(Arc::new(open.record.holdings(&names))),
            name: Some(self.name.clone()),
            reserve: self.reserve(open),
            interrupt: Arc::default(),
            ..self.options.clone()
        };
        out.about(number, |out| {
            out.event(&json!({"event": "publication", "entries": names}));
            match Receiving::start(number, entries.clone(), options, &self.waker) {
                Ok(receiving) => open.transfers.push(receiving),
                Err(e) => {
                    let error = Error::io("starting a thread", e);
                    self.failed(&entries.iter().collect::<Vec<_>>(), &error, out);
                }
            }
        });
    }

    /// Bytes that the next transfer leaves free: what the user has said, and what other transfers
    /// will take.
    fn reserve(&self, open: &Open) -> Option<u64> {
        let claims = open.transfers.iter().map(|t| t.claimed());
        match claims.fold(0, u64::saturating_add) {
            0 => self.options.reserve,
            claimed => {
                let reserve = self.options.reserve;
                let reserve = reserve.or_else(|| default_reserve(&open.folder).ok());
                Some(reserve.unwrap_or(0).saturating_add(claimed))
            }
        }
    }

    /// Takes what the transfers tell. Returns whether one has ended.
    fn hear_transfers(&mut self, open: &mut Open, out: &mut Output) -> bool {
        let (mut has_ended, mut at) = (false, 0);
        while let Some(receiving) = open.transfers.get_mut(at) {
            let number = receiving.number;
            match receiving.told() {
                None => at += 1,
                // The feed has said where the sender is.
                Some(Told::Event(RecvEvent::Searching { .. })) => {}
                Some(Told::Event(event)) => out.about(number, |out| recv::tell(out, event)),
                Some(Told::End(result)) => {
                    let entries = open.transfers.remove(at).entries;
                    out.about(number, |out| self.ended(&entries, *result, open, out));
                    has_ended = true;
                }
            }
        }
        has_ended
    }

    /// Ends all transfers.
    fn end_transfers(&mut self, kept: &mut Option<Open>, out: &mut Output) {
        let Some(open) = kept else { return };
        open.transfers.iter().for_each(Receiving::interrupt);
        while !open.transfers.is_empty() {
            self.hear_transfers(open, out);
            // An error would only make this loop spin.
            let _ = self.waker.wait(Some(TICK));
        }
    }

    /// Notes how a transfer of these entries has ended.
    fn ended(
        &mut self,
        entries: &[Entry],
        result: Result<RecvReport, Error>,
        open: &mut Open,
        out: &mut Output,
    ) {
        out.finish();
        let report = match result {
            Ok(report) => report,
            Err(Error::Interrupted) => return,
            Err(error) => {
                self.metrics.ended(0, None);
                return self.failed(&entries.iter().collect::<Vec<_>>(), &error, out);
            }
        };
        out.result("done", &report);
        let names: BTreeSet<&str> = entries.iter().map(|entry| &*entry.name).collect();
        let failed = failed_tops(&report, &open.folder);
        // What has come, which need not be what the catalogue names.
        let mut here = Entry::received(&report.manifest);
        here.retain(|entry| names.contains(&*entry.name));
        // An entry may lack a file that has not come; its other files are here all the same.
        let noted = open.record.note_paths(&here, &report.manifest);
        here.retain(|entry| {
            !failed.contains(&entry.name) && open.record.received(entry, self.hooks.is_some())
        });
        for entry in &here {
            self.failures.remove(&entry.digest, Instant::now());
        }
        if let Err(e) = noted {
            let text = format!("{e}: if it becomes a file at the feed, it is not replaced here");
            notice(text, out);
        }
        // First the record: what is here must not come again, and its hooks must run.
        open.save(out);
        for entry in &here {
            let path = open.record.path(&entry.name);
            let told = ToldPath::from(&*path).path;
            out.event(&json!({
                "event": "entry", "name": entry.name, "path": told, "len": entry.len,
                "digest": entry.digest,
            }));
            out.say(&format!("+ {} ({})", shown(&path), units::bytes(entry.len)));
            self.hook(open, entry);
        }
        self.metrics.ended(here.len(), Some(&report));
        let names: BTreeSet<&str> = here.iter().map(|entry| &*entry.name).collect();
        let lacking = entries.iter().filter(|entry| !here.contains(entry));
        let (other, absent): (Vec<&Entry>, Vec<&Entry>) =
            lacking.partition(|entry| names.contains(&*entry.name));
        for (entries, text) in [
            (
                absent,
                "not all of it has come: the feed could not read it, or it has changed",
            ),
            (
                other,
                "another version has come than the catalogue names, and is here: it has changed at \
                 the feed",
            ),
        ] {
            if !entries.is_empty() {
                self.failed(&entries, &Error::SourceChanged(text.into()), out);
            }
        }
    }

    /// Notes that entries have not come, and wants them again later.
    fn failed(&mut self, entries: &[&Entry], error: &Error, out: &mut Output) {
        let digests: Vec<&str> = entries.iter().map(|entry| &*entry.digest).collect();
        let shares = !matches!(entries, [alone] if alone.len > SHORT_MAX);
        let longest = self.failures.add(&digests, shares, Instant::now());
        let names: Vec<&str> = entries.iter().map(|entry| &*entry.name).collect();
        let (code, reason) = (
            error.exit_code(),
            crate::settings::with_options(&error.to_string()),
        );
        out.event(&json!({
            "event": "publication_failed", "entries": names, "code": code, "reason": reason,
            "again": longest.as_secs_f64(),
        }));
        out.say(&format!(
            "! {} is wanted again within {:.1} s: {reason}",
            escaped(&names.join(", ")),
            longest.as_secs_f64()
        ));
    }

    fn hook(&self, open: &Open, entry: &Entry) {
        if let Some(hooks) = &self.hooks {
            hooks.run(Job {
                feed: open.feed.clone(),
                path: open.record.path(&entry.name),
                entry: entry.clone(),
            });
        }
    }

    /// Tells of hooks that have ended, and notes that.
    fn tell_hooks(&self, open: &mut Open, out: &mut Output) {
        while let Some((job, outcome)) = self.hooks.as_ref().and_then(Hooks::ended) {
            self.metrics.hook(outcome.word());
            let trouble = outcome.trouble();
            out.event(&json!({
                "event": "hook", "name": job.entry.name, "path": ToldPath::from(&*job.path).path,
                "result": outcome.word(), "reason": trouble,
            }));
            if let Some(trouble) = trouble {
                out.say(&format!("! the hook for {}: {trouble}", shown(&job.path)));
            }
            if !matches!(outcome, Outcome::Stopped | Outcome::NotStarted(_)) {
                open.record.hook_has_run(&job.entry);
            }
        }
    }

    /// Tells of hooks that have ended, removes what is too old, and saves the record if it has
    /// changed.
    fn tidy(&self, open: &mut Open, out: &mut Output) {
        self.tell_hooks(open, out);
        let coming = open.coming();
        let (removed, failed) = open.record.remove_old(self.retention, &coming);
        for path in removed {
            self.metrics.removed();
            out.event(&json!({"event": "removed", "path": ToldPath::from(&*path).path}));
            out.say(&format!("- {}", shown(&path)));
        }
        for text in failed {
            notice(text, out);
        }
        if open.record.is_unsaved() && open.retry.is_none_or(|at| Instant::now() >= at) {
            open.save(out);
        }
    }
}

/// A feed's directory.
struct Open {
    feed: String,
    folder: PathBuf,
    record: Record,
    /// The transfers that this receiver takes part in.
    transfers: Vec<Receiving>,
    /// When the record is to be saved again, if it could not be saved.
    retry: Option<Instant>,
}

impl Open {
    /// The names of entries that come by transfers under way.
    fn coming(&self) -> BTreeSet<String> {
        let entries = self.transfers.iter().flat_map(|t| &t.entries);
        entries.map(|entry| entry.name.clone()).collect()
    }

    /// Saves the record. If that cannot be done, for example for want of space, the user is told
    /// once, and it is tried again.
    fn save(&mut self, out: &mut Output) {
        match self.record.save() {
            Ok(()) => self.retry = None,
            Err(e) => {
                if self.retry.is_none() {
                    let text = format!("{e}: until that is mended, a new start knows less");
                    notice(text, out);
                }
                self.retry = Some(Instant::now() + SAVE_AGAIN);
            }
        }
    }
}

/// The names of entries that are not here as a whole.
fn failed_tops(report: &RecvReport, folder: &Path) -> BTreeSet<String> {
    let tops = report.failed.iter().filter_map(|told| {
        let path = Path::new(&told.path);
        let below = path.strip_prefix(folder).unwrap_or(path);
        let top = below.components().next()?;
        Some(top.as_os_str().to_string_lossy().into_owned())
    });
    tops.collect()
}
