//! What is in a feed's directory: a thread that looks when the kernel tells of changes, and now and
//! then without.
//!
//! An entry is settled when two looks, at least `settle` apart, find the same: names, lengths,
//! permissions and times of all that it holds. So one entry that is written all the time does not
//! hold others back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::error::Error;
use fabricast::feed::{Catalogue, Entry, is_name};
use fabricast::object::{Selection, SourceSet};
use fabricast::pattern::Pattern;
use fabricast::text::shown;
use fabricast::waker::Waker;

use super::watched::Watched;

/// Names that are left out everywhere: hidden ones, such as rsync's temporary files and our own,
/// and those of files that are not complete.
const LEFT_OUT: [&str; 3] = [".*", "*.part", "*.partial"];
/// The shortest time between two looks.
const SHORTEST: Duration = Duration::from_millis(10);
/// Share of the time, as a divisor, that the looks may take.
const PAUSE: u32 = 4;
/// Most messages for the user that are remembered, so that each is told once.
const TOLD_MAX: usize = 1000;

/// What the thread tells.
pub enum Found {
    /// The settled entries, when they are others than before.
    Catalogue(Catalogue),
    /// A message for the user.
    Notice(String),
}

/// The thread, which ends when this is dropped.
pub struct Listing {
    found: Receiver<Found>,
    wake: SyncSender<()>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listing {
    /// Begins to look at what `selection` takes of `dir`. Rings `waker` when it has found
    /// something.
    pub fn start(
        dir: &Path,
        selection: Selection,
        settle: Duration,
        rescan: Duration,
        waker: Waker,
    ) -> Result<Listing, Error> {
        let (tell, found) = channel();
        // One ring that waits is as good as many.
        let (wake, woken) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let lister = Lister {
            dir: dir.to_owned(),
            stop: stop.clone(),
            selection,
            settle: settle.max(SHORTEST),
            rescan: rescan.max(Duration::from_secs(1)),
            tell,
            waker,
            watched: None,
            told: BTreeSet::new(),
            seen: BTreeMap::new(),
            settled: BTreeMap::new(),
            next: 0,
            number: 0,
        };
        let rings = wake.clone();
        let thread = thread::Builder::new().name("fabricast-listing".into());
        let thread = thread.spawn(move || lister.run(&woken, rings));
        Ok(Listing {
            found,
            wake,
            stop,
            thread: Some(thread.map_err(|e| Error::io("starting a thread", e))?),
        })
    }

    /// What has been found since the last call, if anything.
    pub fn found(&self) -> Option<Found> {
        self.found.try_recv().ok()
    }

    /// Has it look soon, whatever the kernel tells.
    pub fn look(&self) {
        // A ring that waits is as good.
        let _ = self.wake.try_send(());
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.look();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The patterns of what is left out, for within directories.
pub fn left_out() -> impl Iterator<Item = Pattern> {
    let parse = |text: &str| text.parse().expect("the patterns are sound");
    LEFT_OUT.into_iter().map(parse)
}

/// An entry as a look has found it.
#[derive(Clone, PartialEq, Debug)]
struct Look {
    len: u64,
    digest: String,
    /// Time of modification, in seconds and nanoseconds: the order of entries that are found
    /// together.
    mtime: (i64, u32),
}

struct Lister {
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    selection: Selection,
    settle: Duration,
    rescan: Duration,
    tell: Sender<Found>,
    waker: Waker,
    /// What the kernel watches; `None`: nothing.
    watched: Option<Watched>,
    /// Messages that the user has been told.
    told: BTreeSet<String>,
    /// What the last look has found.
    seen: BTreeMap<String, Look>,
    /// The settled entries, each with its place in the order of the catalogue.
    settled: BTreeMap<String, (u64, Look)>,
    next: u64,
    /// Number of the last catalogue.
    number: u64,
}

impl Lister {
    fn run(mut self, woken: &Receiver<()>, rings: SyncSender<()>) {
        match Watched::start(&self.dir, left_out().collect(), rings) {
            Ok(watched) => self.watched = Some(watched),
            Err(e) => self.not_told(&self.dir.clone(), &e),
        }
        loop {
            let began = Instant::now();
            let is_settled = self.look();
            let pause = self.settle.max(began.elapsed() * PAUSE);
            if self.rest(woken, pause, is_settled) {
                return;
            }
        }
    }

    /// Waits for the time of the next look: `pause` at least, and then until the kernel tells of a
    /// change, if all is settled. True when the thread has to end.
    fn rest(&self, woken: &Receiver<()>, pause: Duration, is_settled: bool) -> bool {
        let began = Instant::now();
        let longest = match is_settled {
            true => self.rescan.max(pause),
            false => pause,
        };
        let mut is_woken = false;
        while !self.stop.load(Ordering::Relaxed) {
            let whole = if is_woken { pause } else { longest };
            match woken.recv_timeout(whole.saturating_sub(began.elapsed())) {
                Ok(()) => is_woken = true,
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        true
    }

    /// Looks once, and tells the catalogue if it is another one. Returns whether all is settled.
    fn look(&mut self) -> bool {
        let now = match self.entries() {
            Ok(now) => now,
            Err(e) => {
                let dir = shown(&self.dir);
                self.notice(format!(
                    "{dir} cannot be read, and nothing new is published: {e}"
                ));
                return true;
            }
        };
        let seen = std::mem::replace(&mut self.seen, now);
        let settled = |entry: &(&String, &Look)| seen.get(entry.0) == Some(entry.1);
        let is_settled = self.seen.iter().all(|entry| settled(&entry));
        let before = self.settled.len();
        let mut is_other = self.number == 0 && is_settled;
        // What is gone, or changes now, cannot be sent as it was.
        self.settled
            .retain(|name, (_, look)| self.seen.get(name) == Some(look));
        is_other |= self.settled.len() < before;
        let new = self.seen.iter().filter(settled);
        let mut new: Vec<(String, Look)> = new
            .filter(|(name, _)| !self.settled.contains_key(*name))
            .map(|(name, look)| (name.clone(), look.clone()))
            .collect();
        new.sort_by(|a, b| (a.1.mtime, &a.0).cmp(&(b.1.mtime, &b.0)));
        is_other |= !new.is_empty();
        for (name, look) in new {
            self.settled.insert(name, (self.next, look));
            self.next += 1;
        }
        if is_other {
            self.number += 1;
            let catalogue = self.catalogue();
            self.tell(Found::Catalogue(catalogue));
        }
        is_settled
    }

    /// The settled entries, the oldest first.
    fn catalogue(&mut self) -> Catalogue {
        let mut entries: Vec<(u64, Entry)> = self
            .settled
            .iter()
            .map(|(name, (place, look))| {
                let entry = Entry {
                    name: name.clone(),
                    len: look.len,
                    digest: look.digest.clone(),
                };
                (*place, entry)
            })
            .collect();
        entries.sort_by_key(|(place, _)| *place);
        let more = entries.len().saturating_sub(Catalogue::ENTRIES_MAX);
        if more > 0 {
            self.notice(format!(
                "{} holds more than {} files and directories, the most that a feed has: the \
                 oldest are left out; publish directories with many files instead",
                shown(&self.dir),
                Catalogue::ENTRIES_MAX
            ));
        }
        Catalogue {
            number: self.number,
            entries: entries.into_iter().skip(more).map(|(_, e)| e).collect(),
        }
    }

    /// What is in the directory now.
    fn entries(&mut self) -> std::io::Result<BTreeMap<String, Look>> {
        let mut now = BTreeMap::new();
        let (paths, notices) = candidates(&self.dir, &self.selection.exclude)?;
        notices.into_iter().for_each(|text| self.notice(text));
        // Before the entries are listed: a change behind the list rings.
        let watched = self.watched.as_mut();
        for (path, e) in watched.map_or(Vec::new(), |w| w.renew(paths.values())) {
            self.not_told(&path, &e);
        }
        for (name, path) in paths {
            let mut notices = Vec::new();
            let set = listed(&path, &self.selection, &mut |text| notices.push(text));
            notices.into_iter().for_each(|text| self.notice(text));
            let set = match set {
                Ok(set) => set,
                // It has gone this moment.
                Err(_) if path.symlink_metadata().is_err() => continue,
                Err(_) if !path.exists() => {
                    self.notice(leads_nowhere(&path));
                    continue;
                }
                Err(text) => {
                    self.notice(text);
                    continue;
                }
            };
            let top = &set.manifest().entries()[0];
            let look = Look {
                len: set.known_len().unwrap_or(0),
                digest: set.digest(),
                mtime: (top.mtime, top.mtime_ns),
            };
            // Otherwise all of it would go again and again for the sake of one file.
            let is_known = self.seen.get(&name) == Some(&look);
            let readable = match is_known {
                true => Ok(()),
                false => readable(&path, &set),
            };
            match readable {
                Err(text) => self.notice(text),
                Ok(()) => _ = now.insert(name, look),
            }
        }
        Ok(now)
    }

    /// Notes that the kernel will not tell of changes beneath this directory.
    fn not_told(&mut self, path: &Path, e: &notify::Error) {
        self.notice(format!(
            "the kernel does not tell of changes in {} ({e}): they are found once in {:?}",
            shown(path),
            self.rescan
        ));
    }

    fn notice(&mut self, text: String) {
        if self.told.len() < TOLD_MAX && self.told.insert(text.clone()) {
            self.tell(Found::Notice(text));
        }
    }

    fn tell(&self, found: Found) {
        let _ = self.tell.send(found);
        self.waker.wake();
    }
}

/// What is directly in a feed's directory that may be an entry, by its name and path, in the order
/// of the names; and what cannot be one.
pub fn candidates(
    dir: &Path,
    exclude: &[Pattern],
) -> std::io::Result<(BTreeMap<String, PathBuf>, Vec<String>)> {
    let (mut paths, mut notices) = (BTreeMap::new(), Vec::new());
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        match path.file_name().unwrap_or_default().to_str() {
            None => notices.push(format!(
                "{} is not sent: its name is not UTF-8",
                shown(&path)
            )),
            Some(name) => {
                if is_name(name) && !exclude.iter().any(|pattern| pattern.matches(name)) {
                    paths.insert(name.to_owned(), path);
                }
            }
        }
    }
    Ok((paths, notices))
}

/// An entry as a set of its own; the error says why it cannot be sent.
pub fn listed(
    path: &PathBuf,
    selection: &Selection,
    tell: &mut dyn FnMut(String),
) -> Result<SourceSet, String> {
    let set = SourceSet::list(std::slice::from_ref(path), selection, tell);
    set.map_err(|e| format!("{} is not sent: {e}", shown(path)))
}

/// Checks that this process may read all files of an entry; the error names one that it may not.
pub fn readable(path: &Path, set: &SourceSet) -> Result<(), String> {
    match set.unreadable().next() {
        None => Ok(()),
        Some(file) => Err(format!(
            "{} is not sent: {} cannot be read",
            shown(path),
            shown(&file)
        )),
    }
}

/// The words for a link to something that is not there.
fn leads_nowhere(path: &Path) -> String {
    let to = path.read_link().unwrap_or_default();
    let (path, to) = (shown(path), shown(&to).to_string());
    format!("{path} is a link to {to}, which is not there: it is not published until it is")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One entry that is written all the time holds no other one back.
    #[test]
    fn an_entry_is_settled_when_two_looks_find_the_same() {
        let name = format!("fabricast-listing-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(dir.join("d")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.join(name), text).unwrap();
        let (tell, found) = channel();
        let mut lister = Lister {
            dir: dir.clone(),
            stop: Arc::default(),
            selection: Selection::default(),
            settle: Duration::ZERO,
            rescan: Duration::ZERO,
            tell,
            waker: Waker::new().unwrap(),
            watched: None,
            told: BTreeSet::new(),
            seen: BTreeMap::new(),
            settled: BTreeMap::new(),
            next: 0,
            number: 0,
        };
        // Whether all is settled, and the names of the catalogue, if there is another one.
        let mut look = || {
            let is_settled = lister.look();
            let catalogue = match found.try_recv() {
                Ok(Found::Catalogue(catalogue)) => catalogue.entries,
                Ok(Found::Notice(text)) => panic!("{text}"),
                Err(_) => return (is_settled, None),
            };
            let names: Vec<String> = catalogue.into_iter().map(|e| e.name).collect();
            (is_settled, Some(names.join(" ")))
        };
        write("a", "");
        write("d/b", "");
        write(".hidden", "");
        assert_eq!(look(), (false, None));
        write("d/b", "more");
        assert_eq!(look(), (false, Some("a".into())));
        assert_eq!(look(), (true, Some("a d".into())));
        assert_eq!(look(), (true, None));
        // What changes cannot be sent as it was, and is the newest when it is quiet.
        write("a", "changed");
        write("c", "");
        assert_eq!(look(), (false, Some("d".into())));
        write("a", "changed again");
        assert_eq!(look(), (false, Some("d c".into())));
        assert_eq!(look(), (true, Some("d c a".into())));
        std::fs::remove_file(dir.join("c")).unwrap();
        write(".hidden", "more");
        assert_eq!(look(), (true, Some("d a".into())));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
