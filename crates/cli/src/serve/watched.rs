//! What the kernel tells of changes in a feed's directory: each rings.
//!
//! The kernel watches the directory and each entry by itself. So one entry that it cannot watch,
//! such as a directory that the feed may not read, takes no other one with it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

use fabricast::pattern::Pattern;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

/// The watches of one feed's directory.
pub struct Watched {
    watcher: RecommendedWatcher,
    /// The entries that are watched, each with the device and inode of its directory: another one
    /// may have taken its place.
    entries: BTreeMap<PathBuf, (u64, u64)>,
}

impl Watched {
    /// Watches what is directly in `dir`. `rings` gets a ring for each change but those of names
    /// that `left_out` matches.
    pub fn start(
        dir: &Path,
        left_out: Vec<Pattern>,
        rings: SyncSender<()>,
    ) -> notify::Result<Watched> {
        let top = dir.to_owned();
        let tell = move |event: notify::Result<notify::Event>| {
            // After an error the kernel may have told less than there was.
            if event.is_ok_and(|event| !matters(&event, &top, &left_out)) {
                return;
            }
            let _ = rings.try_send(());
        };
        // Links within an entry are not followed, as they are not when the files are sent.
        let config = notify::Config::default().with_follow_symlinks(false);
        let mut watcher = RecommendedWatcher::new(tell, config)?;
        watcher.watch(dir, RecursiveMode::NonRecursive)?;
        Ok(Watched {
            watcher,
            entries: BTreeMap::new(),
        })
    }

    /// Watches all that is beneath the entries that there are now, and what links lead to that are
    /// entries, since they stand for it. Returns the entries that the kernel does not watch, or not
    /// all of, each with the reason. The next call tries again what failed.
    pub fn renew<'a>(
        &mut self,
        paths: impl Iterator<Item = &'a PathBuf>,
    ) -> Vec<(PathBuf, notify::Error)> {
        let now = paths.filter_map(|path| Some((path.clone(), watchable(path)?)));
        let now: BTreeMap<_, _> = now.collect();
        for (path, _) in self.entries.iter().filter(|e| now.get(e.0) != Some(e.1)) {
            let _ = self.watcher.unwatch(path);
        }
        self.entries.retain(|path, is| now.get(path) == Some(is));
        let mut failed = Vec::new();
        for (path, is) in now {
            if self.entries.contains_key(&path) {
                continue;
            }
            match self.watcher.watch(&path, RecursiveMode::Recursive) {
                Ok(()) => _ = self.entries.insert(path, is),
                Err(e) => failed.push((path, e)),
            }
        }
        failed
    }
}

/// The device and inode of what has to be watched by itself: directories, and what links lead to.
fn watchable(path: &Path) -> Option<(u64, u64)> {
    // A link that leads nowhere has nothing to watch.
    let of = path.metadata().ok()?;
    (of.is_dir() || path.is_symlink()).then(|| (of.dev(), of.ino()))
}

/// Whether something may have changed that is sent.
fn matters(event: &notify::Event, dir: &Path, left_out: &[Pattern]) -> bool {
    let is_read = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    let is_left_out = |path: &PathBuf| {
        let below = path.strip_prefix(dir).unwrap_or(path);
        let mut names = below.iter().map(|name| name.to_string_lossy());
        names.any(|name| left_out.iter().any(|pattern| pattern.matches(&name)))
    };
    !is_read && (event.paths.is_empty() || !event.paths.iter().all(is_left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_and_hidden_names_wake_nobody() {
        let dir = Path::new("/srv/.feed");
        let left_out = [".*", "*.part", "*.partial"].map(|text| text.parse().unwrap());
        let event = |kind, name: &str| notify::Event::new(kind).add_path(dir.join(name));
        let write = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        assert!(matters(&event(write, "a"), dir, &left_out));
        assert!(!matters(&event(read, "a"), dir, &left_out));
        for name in [
            ".a.x7Gq2k",
            "a.part",
            "d/.hidden/b",
            ".fabricast-1.2.partial",
        ] {
            assert!(!matters(&event(write, name), dir, &left_out), "{name}");
        }
        // A hidden file gets its name.
        assert!(matters(
            &event(write, ".new").add_path(dir.join("a")),
            dir,
            &left_out
        ));
        assert!(matters(&notify::Event::new(EventKind::Any), dir, &left_out));
    }
}
