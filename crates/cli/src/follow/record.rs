//! What a receiver knows of a feed that it follows: what it has received, and what it has removed.
//!
//! A file in the feed's directory keeps that for the next run. It says what is here, so that it
//! does not come again, and what may be removed: only what this receiver has received itself.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fabricast::error::Error;
use fabricast::feed::{Catalogue, Entry, is_name};
use fabricast::object::manifest::Manifest;
use fabricast::text::shown;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use super::holdings::{self, Holdings, Identity, opened};
use super::record_clock::RecordClock;

/// Name of the file in the feed's directory.
const FILE: &str = ".fabricast-feed.json";
/// Name of the file while it is written.
const PARTIAL: &str = ".fabricast-feed.json.partial";
/// Most bytes of the file. It has what the catalogue names and what is here: some hundred bytes for
/// each entry.
const BYTES_MAX: u64 = 1 << 30;

/// One entry of a feed as this receiver knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    entry: Entry,
    /// When it was received or given up, in seconds since 1970 by the record's clock.
    time: u64,
    /// What had its name when it was received; `None`: it was removed, or never received, because
    /// newer ones fill the places.
    here: Option<Identity>,
    /// The version for which a hook has to run: what is here, which may be older than `entry`.
    #[serde(default)]
    hook: Option<Entry>,
}

impl Known {
    fn new(entry: &Entry, time: u64, here: Option<Identity>, hook: Option<Entry>) -> Known {
        Known {
            entry: entry.clone(),
            time,
            here,
            hook,
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Content {
    /// The oldest first.
    entries: Vec<Known>,
}

impl Content {
    fn times(&mut self) -> impl Iterator<Item = &mut u64> {
        self.entries.iter_mut().map(|known| &mut known.time)
    }
}

/// The record of a feed in its directory.
pub struct Record {
    folder: PathBuf,
    content: Content,
    clock: RecordClock,
    /// Whether hooks have run, entries were removed, or the clock was set, since the record was
    /// saved, or it could not be saved.
    is_unsaved: bool,
    /// The directory, locked as long as this receiver follows.
    _lock: File,
}

/// How much of a feed is received and kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retention {
    /// Bytes of the longest entry that is received.
    pub longest: Option<u64>,
    /// Most entries, the newest.
    pub keep: Option<usize>,
    /// The longest time that an entry is kept.
    pub keep_for: Option<Duration>,
}

/// What a receiver wants of a catalogue, and what it does not take, by their numbers.
#[derive(PartialEq, Debug)]
pub struct Wants {
    pub wanted: BTreeSet<u32>,
    pub too_long: BTreeSet<u32>,
}

impl Record {
    /// Opens the record of the feed whose directory is `folder`, and makes the directory if it does
    /// not exist. The text says what is wrong with the file, if it cannot be used.
    ///
    /// # Errors
    /// The directory cannot be made or used, or another receiver follows there.
    pub fn open(folder: &Path) -> Result<(Record, Option<String>), Error> {
        let failed = |what: &str, e| Error::io(format!("{what} {}", shown(folder)), e);
        match fs::create_dir(folder) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed("making", e)),
            _ => {}
        }
        let no_link = (OFlags::NOFOLLOW | OFlags::DIRECTORY).bits() as i32;
        let lock = OpenOptions::new()
            .read(true)
            .custom_flags(no_link)
            .open(folder);
        let lock = lock.map_err(|e| match e.kind() {
            ErrorKind::NotADirectory => Error::Usage(format!(
                "{} is no directory, and the feed's files go there: move it away",
                shown(folder)
            )),
            _ => failed("opening", e),
        })?;
        // Where anybody may make directories, another user's is no place for what hooks read.
        let at = lock.metadata().map_err(|e| failed("opening", e))?;
        let is_ours = [0, geteuid().as_raw()].contains(&at.uid());
        let parent = folder.parent().and_then(|parent| parent.metadata().ok());
        if !is_ours && parent.is_none_or(|parent| parent.mode() & 0o002 != 0) {
            return Err(Error::Usage(format!(
                "{} belongs to another user, in a directory that every user may write: choose \
                 another destination",
                shown(folder)
            )));
        }
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::Usage(format!(
                "another receiver follows into {}: choose another destination",
                shown(folder)
            )));
        }
        let (mut content, wrong) = match read(folder) {
            Ok(content) => (content, None),
            Err(why) => {
                let file = folder.join(FILE);
                let text = format!(
                    "{} makes no sense ({why}): everything is received again, and what is here is \
                     not removed",
                    shown(&file)
                );
                (Content::default(), Some(text))
            }
        };
        let clock = RecordClock::new();
        let is_unsaved = clock.correct(content.times());
        let record = Record {
            folder: folder.to_owned(),
            content,
            clock,
            is_unsaved,
            _lock: lock,
        };
        Ok((record, wrong))
    }

    /// Notes what those of these entries hold that are directories. `set`: the transfer that they
    /// have come by.
    pub fn note_paths(&self, entries: &[Entry], set: &Manifest) -> Result<(), Error> {
        let mut paths = holdings::paths(set);
        for name in entries.iter().map(|entry| &*entry.name) {
            let Some(paths) = paths.remove(OsStr::new(name)) else {
                continue;
            };
            holdings::add(&self.folder, name, &paths).map_err(|e| {
                Error::io(format!("noting what {} holds", shown(&self.path(name))), e)
            })?;
        }
        Ok(())
    }

    /// The time now, by the record's clock.
    fn now(&mut self) -> u64 {
        let now = self.clock.now(self.content.times());
        self.is_unsaved |= now.was_set;
        now.seconds
    }

    /// The path of an entry.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The entries of the catalogue that have to come, by their numbers: what is not here as it is
    /// there, was not removed to make way for newer ones, and is not too long. Notes which of them
    /// are too old to come at all.
    pub fn wants(&mut self, catalogue: &Catalogue, retention: Retention) -> Wants {
        let now = self.now();
        let known = self.content.entries.iter();
        let known: HashMap<&str, &Known> = known.map(|k| (&*k.entry.name, k)).collect();
        let has = |entry: &Entry| match known.get(&*entry.name) {
            Some(known) if known.entry != *entry => false,
            Some(known) if known.here.is_some() => {
                self.path(&entry.name).symlink_metadata().is_ok()
            }
            Some(_) => true,
            None => false,
        };
        let longest = retention.longest.unwrap_or(u64::MAX);
        let entries = (0..).zip(&catalogue.entries);
        let is_too_long = |entry: &Entry| entry.len > longest && !has(entry);
        let (too_long, entries): (Vec<(u32, &Entry)>, Vec<_>) =
            entries.partition(|(_, entry)| is_too_long(entry));
        // The newest of the catalogue, and not of what is lacking: otherwise older ones would come
        // in the place of newer ones that are here.
        let keep = retention.keep.unwrap_or(usize::MAX);
        let (old, new) = entries.split_at(entries.len().saturating_sub(keep));
        let lacking = |entries: &[(u32, &Entry)]| -> BTreeSet<u32> {
            let lacking = entries.iter().filter(|(_, entry)| !has(entry));
            lacking.map(|(number, _)| *number).collect()
        };
        let (too_old, wanted) = (lacking(old), lacking(new));
        for entry in too_old
            .iter()
            .map(|number| &catalogue.entries[*number as usize])
        {
            // An older version that is here is the first to go, when its hook has run.
            let known = self.take(&entry.name);
            let (here, hook) = known.map_or((None, None), |known| (known.here, known.hook));
            let known = Known::new(entry, now, here, hook);
            self.content.entries.insert(0, known);
        }
        Wants {
            wanted,
            too_long: too_long.into_iter().map(|(number, _)| number).collect(),
        }
    }

    /// Notes that a transfer begins that may replace these entries. Until it has ended well, nobody
    /// knows what they are, and they are wanted. From now on they count as the newest, however long
    /// the transfer takes. Returns whether the record has changed.
    pub fn begins(&mut self, names: &[&str]) -> bool {
        let now = self.now();
        let mut has_changed = false;
        for name in names {
            let nothing = Entry {
                name: (*name).to_owned(),
                len: 0,
                digest: String::new(),
            };
            let known = self.take(name);
            let mut known = known.unwrap_or_else(|| Known::new(&nothing, now, None, None));
            has_changed |= known.here.is_some();
            known.entry.digest.clear();
            self.content.entries.push(known);
        }
        has_changed
    }

    /// What was received of these entries, for a transfer that may replace them.
    pub fn holdings(&self, names: &[&str]) -> Holdings {
        let known = self.content.entries.iter();
        let known = known.filter(|known| names.contains(&&*known.entry.name));
        let here = known.filter_map(|known| Some((known.entry.name.clone(), known.here?)));
        Holdings {
            folder: self.folder.clone(),
            here: here.collect(),
        }
    }

    /// Notes that an entry was received: as the transfer has proven it, whatever the catalogue
    /// says. `hook`: whether a hook has to run for it. Returns false, and notes nothing, if it is
    /// not there any more.
    pub fn received(&mut self, entry: &Entry, hook: bool) -> bool {
        let Ok(meta) = self.path(&entry.name).symlink_metadata() else {
            return false;
        };
        if !meta.is_dir() {
            holdings::remove(&self.folder, &entry.name);
        }
        let hook = hook.then(|| entry.clone());
        let known = Known::new(entry, self.now(), Some(Identity::of(&meta)), hook);
        let mut entries = self.content.entries.iter_mut();
        match entries.find(|known| known.entry.name == entry.name) {
            Some(there) => *there = known,
            None => self.content.entries.push(known),
        }
        true
    }

    fn take(&mut self, name: &str) -> Option<Known> {
        let entries = &mut self.content.entries;
        let at = entries.iter().position(|known| known.entry.name == name)?;
        Some(entries.remove(at))
    }

    /// Notes that the hook of this version of an entry has run.
    pub fn hook_has_run(&mut self, entry: &Entry) {
        let mut entries = self.content.entries.iter_mut();
        if let Some(known) = entries.find(|known| known.hook.as_ref() == Some(entry)) {
            known.hook = None;
            self.is_unsaved = true;
        }
    }

    /// Forgets that hooks have to run.
    pub fn drop_hooks(&mut self) {
        self.content
            .entries
            .iter_mut()
            .for_each(|known| known.hook = None);
    }

    /// Entries whose hooks have to run yet.
    pub fn hooks(&self) -> Vec<Entry> {
        let here = |known: &&Known| known.here.is_some();
        let entries = self.content.entries.iter().filter(here);
        entries.filter_map(|known| known.hook.clone()).collect()
    }

    /// Removes what is kept no longer, the oldest first: entries that this receiver has received,
    /// and whose hooks have run, but for those that are `coming`. Returns their paths, and what
    /// cannot be removed with the reason.
    pub fn remove_old(
        &mut self,
        retention: Retention,
        coming: &BTreeSet<String>,
    ) -> (Vec<PathBuf>, Vec<String>) {
        let now = self.now();
        let here = |known: &&Known| known.here.is_some();
        let count = self.content.entries.iter().filter(here).count();
        let mut too_many = count.saturating_sub(retention.keep.unwrap_or(usize::MAX));
        let (mut removed, mut failed) = (Vec::new(), Vec::new());
        for known in self.content.entries.iter_mut() {
            let Some(here) = known.here else { continue };
            let is_surplus = too_many > 0;
            too_many = too_many.saturating_sub(1);
            let age = Duration::from_secs(now.saturating_sub(known.time));
            let is_old = retention.keep_for.is_some_and(|longest| age >= longest);
            // One whose hook is due, or that a transfer may be writing, goes later. No newer one
            // goes in its place.
            let is_in_use = known.hook.is_some() || coming.contains(&known.entry.name);
            if is_in_use || !is_surplus && !is_old {
                continue;
            }
            let path = self.folder.join(&known.entry.name);
            match here.remove(&path) {
                Ok(()) => {
                    holdings::remove(&self.folder, &known.entry.name);
                    removed.push(path);
                }
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => failed.push(format!("{} is not removed: {e}", shown(&path))),
            }
            // It is not tried again, and does not come again.
            known.here = None;
            self.is_unsaved = true;
        }
        (removed, failed)
    }

    /// Forgets entries that are not here, not in the catalogue and not `coming`.
    pub fn forget(&mut self, catalogue: &Catalogue, coming: &BTreeSet<String>) {
        let names: BTreeSet<&str> = catalogue.entries.iter().map(|e| &*e.name).collect();
        let mut entries = std::mem::take(&mut self.content.entries);
        entries.retain(|known| {
            let name = &known.entry.name;
            known.here.is_some() || names.contains(&**name) || coming.contains(name)
        });
        self.content.entries = entries;
    }

    /// Whether the record is still to be saved.
    pub fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// Writes the record to the disk.
    pub fn save(&mut self) -> Result<(), Error> {
        let save = || {
            let mut options = OpenOptions::new();
            let partial = opened(
                options.write(true).create(true).truncate(true),
                &self.folder,
                PARTIAL,
            );
            let mut file = partial?;
            let bytes = serde_json::to_vec(&self.content)?;
            if bytes.len() as u64 > BYTES_MAX {
                let text = "it would be longer than 1 GiB, and could not be read again";
                return Err(io::Error::other(text));
            }
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(self.folder.join(PARTIAL), self.folder.join(FILE))
        };
        let saved = save();
        self.is_unsaved = saved.is_err();
        saved.map_err(|e| Error::io(format!("writing {}", shown(&self.folder.join(FILE))), e))
    }
}

/// Reads what an earlier run has written; nothing if there was none.
fn read(folder: &Path) -> Result<Content, String> {
    let mut options = OpenOptions::new();
    let file = match opened(options.read(true), folder, FILE) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Content::default()),
        Err(e) => return Err(e.to_string()),
    };
    // Without a buffer each byte would be read by a system call of its own.
    let file = io::BufReader::new(io::Read::take(file, BYTES_MAX));
    let content: Content = serde_json::from_reader(file).map_err(|e| e.to_string())?;
    // What is removed must lie in the folder, whatever the file says.
    match content
        .entries
        .iter()
        .find(|known| !is_name(&known.entry.name))
    {
        Some(known) => Err(format!("{:?} is no name of an entry", known.entry.name)),
        None => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::follow::holdings::testing::Scratch;

    const ALL: Retention = Retention {
        longest: None,
        keep: None,
        keep_for: None,
    };

    fn catalogue(versions: &[(&str, &str)]) -> Catalogue {
        let entry = |(name, version): &(&str, &str)| Entry {
            name: name.to_string(),
            len: 1,
            digest: blake3::hash(version.as_bytes()).to_hex().to_string(),
        };
        Catalogue {
            number: 1,
            entries: versions.iter().map(entry).collect(),
        }
    }

    fn receive(record: &mut Record, entry: &Entry) {
        fs::write(record.path(&entry.name), "1").unwrap();
        assert!(record.received(entry, false));
    }

    fn set(numbers: &[u32]) -> Wants {
        Wants {
            wanted: numbers.iter().copied().collect(),
            too_long: BTreeSet::new(),
        }
    }

    #[test]
    fn what_is_here_is_not_wanted() {
        let dir = Scratch::new("wants");
        let (mut record, wrong) = Record::open(&dir.0.join("feed")).unwrap();
        assert_eq!(wrong, None);
        let first = catalogue(&[("a", "1"), ("b", "1")]);
        assert_eq!(record.wants(&first, ALL), set(&[0, 1]));
        receive(&mut record, &first.entries[0]);
        receive(&mut record, &first.entries[1]);
        assert_eq!(record.wants(&first, ALL), set(&[]));
        // One has changed, and one was removed by somebody else.
        fs::remove_file(record.path("a")).unwrap();
        let next = catalogue(&[("a", "1"), ("b", "2")]);
        assert_eq!(record.wants(&next, ALL), set(&[0, 1]));
        record.save().unwrap();
        assert!(Record::open(&dir.0.join("feed")).is_err(), "it is locked");
        drop(record);
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        assert_eq!(record.wants(&first, ALL), set(&[0]));
    }

    #[test]
    fn what_was_removed_does_not_come_again() {
        let dir = Scratch::new("keep");
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        let keep = Retention {
            keep: Some(2),
            ..ALL
        };
        let three = catalogue(&[("a", "1"), ("b", "1"), ("c", "1")]);
        // Of three that are new the oldest does not come at all.
        assert_eq!(record.wants(&three, keep), set(&[1, 2]));
        receive(&mut record, &three.entries[1]);
        receive(&mut record, &three.entries[2]);
        let four = catalogue(&[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]);
        assert_eq!(record.wants(&four, keep), set(&[3]));
        receive(&mut record, &four.entries[3]);
        assert_eq!(
            record.remove_old(keep, &BTreeSet::new()),
            (vec![record.path("b")], vec![])
        );
        assert_eq!(record.wants(&four, keep), set(&[]));
        // A changed one is new.
        let changed = catalogue(&[("c", "1"), ("d", "1"), ("a", "2")]);
        assert_eq!(record.wants(&changed, keep), set(&[2]));
        // If the feed has nothing for a moment, older ones do not come in the place of newer ones.
        record.forget(&catalogue(&[]), &BTreeSet::new());
        assert_eq!(record.wants(&four, keep), set(&[]));
    }

    /// What is too long takes no place among the newest.
    #[test]
    fn what_is_too_long_makes_nothing_too_old() {
        let dir = Scratch::new("long");
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        let mut three = catalogue(&[("a", "1"), ("b", "1"), ("c", "1")]);
        three.entries[2].len = 11;
        let one = Retention {
            longest: Some(10),
            keep: Some(1),
            ..ALL
        };
        let expected = |wanted: &[u32]| Wants {
            too_long: BTreeSet::from([2]),
            ..set(wanted)
        };
        assert_eq!(record.wants(&three, one), expected(&[1]));
        receive(&mut record, &three.entries[1]);
        assert_eq!(record.wants(&three, one), expected(&[]));
    }

    /// What is here stays until its hook has run, also when a newer version is too old to come.
    #[test]
    fn what_a_hook_waits_for_is_not_removed() {
        let dir = Scratch::new("hook");
        let folder = dir.0.join("feed");
        let (mut record, _) = Record::open(&folder).unwrap();
        let first = catalogue(&[("a", "1")]).entries.remove(0);
        fs::write(record.path("a"), "1").unwrap();
        assert!(record.received(&first, true));
        let keep = Retention {
            keep: Some(1),
            ..ALL
        };
        let newer = catalogue(&[("a", "2"), ("b", "1")]);
        assert_eq!(record.wants(&newer, keep), set(&[1]));
        receive(&mut record, &newer.entries[1]);
        assert_eq!(record.remove_old(keep, &BTreeSet::new()), (vec![], vec![]));
        record.save().unwrap();
        drop(record);
        let (mut record, wrong) = Record::open(&folder).unwrap();
        assert_eq!((wrong, record.hooks()), (None, vec![first.clone()]));
        record.hook_has_run(&newer.entries[0]);
        assert_eq!(record.hooks().len(), 1, "it has run for another version");
        record.hook_has_run(&first);
        assert_eq!(
            record.remove_old(keep, &BTreeSet::new()),
            (vec![record.path("a")], vec![])
        );
        assert_eq!(record.wants(&newer, keep), set(&[]));
    }

    /// What has not come stays wanted, and what has come is what the record says, not what the
    /// catalogue has said.
    #[test]
    fn what_is_not_there_was_not_received() {
        let dir = Scratch::new("absent");
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        let two = catalogue(&[("a", "1"), ("b", "1")]);
        assert!(!record.received(&two.entries[0], true));
        let other = &catalogue(&[("b", "2")]).entries[0];
        fs::write(record.path("b"), "2").unwrap();
        assert!(record.received(other, false));
        assert_eq!(record.wants(&two, ALL), set(&[0, 1]));
        assert_eq!(record.hooks(), []);
    }

    /// A transfer that did not end well may have replaced what it was of, also when the receiver
    /// was killed in its midst.
    #[test]
    fn what_a_transfer_has_begun_with_is_wanted_again() {
        let dir = Scratch::new("begins");
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        let two = catalogue(&[("a", "1"), ("b", "1")]);
        receive(&mut record, &two.entries[0]);
        receive(&mut record, &two.entries[1]);
        assert!(!record.begins(&["new"]));
        assert!(record.begins(&["new", "a"]));
        record.save().unwrap();
        drop(record);
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        // The feed has again what it had before that transfer.
        assert_eq!(record.wants(&two, ALL), set(&[0]));
        // It is still what this receiver may remove.
        let none = Retention {
            keep: Some(0),
            ..ALL
        };
        let all = vec![record.path("b"), record.path("a")];
        assert_eq!(record.remove_old(none, &BTreeSet::new()), (all, vec![]));
    }

    /// Of two transfers at once the one that began first counts as the older one, whichever ends
    /// first. What is coming is not removed, and no newer one in its place.
    #[test]
    fn what_has_begun_later_is_newer() {
        let dir = Scratch::new("order");
        let (mut record, _) = Record::open(&dir.0.join("feed")).unwrap();
        let one = Retention {
            keep: Some(1),
            ..ALL
        };
        let nothing = BTreeSet::new();
        let all = catalogue(&[("old", "1"), ("long", "1"), ("short", "1")]);
        receive(&mut record, &all.entries[0]);
        record.begins(&["long"]);
        record.begins(&["short"]);
        // What has not come counts for nothing.
        assert_eq!(record.remove_old(one, &nothing), (vec![], vec![]));
        assert_eq!(record.wants(&all, ALL), set(&[1, 2]));
        receive(&mut record, &all.entries[2]);
        let old = record.path("old");
        assert_eq!(record.remove_old(one, &nothing), (vec![old], vec![]));
        // The catalogue has a newer one by now than the one that comes.
        assert_eq!(record.wants(&all, one), set(&[]));
        // The feed has nothing for a moment, while the long one comes.
        let coming = BTreeSet::from(["long".to_owned()]);
        record.forget(&catalogue(&[]), &coming);
        receive(&mut record, &all.entries[1]);
        // It comes again, because somebody has removed it.
        assert_eq!(record.remove_old(one, &coming), (vec![], vec![]));
        let long = record.path("long");
        assert_eq!(record.remove_old(one, &nothing), (vec![long], vec![]));
        assert_eq!(record.wants(&all, one), set(&[]));
        assert!(record.path("short").exists());
    }

    /// Where every user may make directories, another user's is not used. As root alone a test can
    /// give one away.
    #[test]
    fn another_users_directory_is_not_used_where_anybody_could_make_it() {
        let dir = Scratch::new("owner");
        let folder = dir.0.join("feed");
        fs::create_dir(&folder).unwrap();
        if std::os::unix::fs::chown(&folder, Some(12_345), None).is_err() {
            return;
        }
        assert!(Record::open(&folder).is_ok());
        fs::set_permissions(&dir.0, fs::Permissions::from_mode(0o1777)).unwrap();
        let refused = Record::open(&folder).err().map(|e| e.to_string());
        assert!(refused.is_some_and(|text| text.contains("another user")));
    }

    #[test]
    fn a_record_that_leads_elsewhere_removes_nothing() {
        let dir = Scratch::new("bent");
        let folder = dir.0.join("feed");
        fs::create_dir(&folder).unwrap();
        fs::write(dir.0.join("beside"), "mine").unwrap();
        let here = Identity::of(&dir.0.join("beside").symlink_metadata().unwrap());
        let mut content = Content::default();
        let mut entry = catalogue(&[("a", "1")]).entries.remove(0);
        entry.name = "../beside".into();
        content
            .entries
            .push(Known::new(&entry, 0, Some(here), None));
        let bent = serde_json::to_vec(&content).unwrap();
        for text in [
            &bent[..],
            b"",
            b"{",
            b"[]",
            b"{\"entries\": [{\"name\": 7}]}",
        ] {
            fs::write(folder.join(FILE), text).unwrap();
            let (mut record, wrong) = Record::open(&folder).unwrap();
            assert!(wrong.is_some());
            let none = Retention {
                keep: Some(0),
                ..ALL
            };
            assert_eq!(record.remove_old(none, &BTreeSet::new()), (vec![], vec![]));
        }
        assert!(dir.0.join("beside").exists());
        // A link in place of the record, or of the folder, is not followed.
        fs::rename(folder.join(FILE), dir.0.join("moved")).unwrap();
        fs::write(dir.0.join("moved"), r#"{"entries": []}"#).unwrap();
        std::os::unix::fs::symlink(dir.0.join("moved"), folder.join(FILE)).unwrap();
        assert!(Record::open(&folder).unwrap().1.is_some());
        std::os::unix::fs::symlink(&folder, dir.0.join("link")).unwrap();
        assert!(Record::open(&dir.0.join("link")).is_err());
    }
}
