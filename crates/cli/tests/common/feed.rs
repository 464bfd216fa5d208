//! Feeds on the loopback, and receivers that follow them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fabricast::config::NetOptions;
use fabricast::feed::{Catalogue, Entry, FeedServer};
use fabricast::object::{Selection, SourceSet};
use fabricast::waker::Waker;
use rustix::process::Signal;
use serde_json::Value;

use super::tree::described;
use super::{BOUND, End, FABRICAST, Run, Scratch};

/// A feed on the loopback that looks often, and its address.
pub fn serve(dir: &Path, port: &str, args: &[&str]) -> (Run, String) {
    let command = Command::new(FABRICAST);
    serve_by(command, dir, port, args)
}

/// Like [`serve`], by a command to which the arguments are added.
pub fn serve_by(mut command: Command, dir: &Path, port: &str, args: &[&str]) -> (Run, String) {
    let fixed = [
        "serve",
        dir.to_str().unwrap(),
        "--json",
        "--interface",
        "127.0.0.1",
        "--settle",
        "100ms",
        "--port",
        port,
    ];
    command.args(fixed.iter().chain(args));
    let mut run = Run::spawn(command);
    let serving = run.until("serving", |_| true);
    let address = serving["address"].as_str().unwrap().to_owned();
    (run, address)
}

/// A receiver that follows the feed at this address.
pub fn follow(address: &str, dest: &Path, args: &[&str]) -> Run {
    follow_by(Command::new(FABRICAST), address, dest, args)
}

/// Like [`follow`], by a command that starts the program with these arguments.
pub fn follow_by(mut command: Command, address: &str, dest: &Path, args: &[&str]) -> Run {
    let fixed = [
        "recv",
        "--json",
        "--follow",
        "--no-sync",
        "--from",
        address,
        "--dir",
        dest.to_str().unwrap(),
    ];
    command.args(fixed.iter().chain(args));
    Run::spawn(command)
}

/// Writes under a hidden name, and renames.
pub fn publish(dir: &Path, name: &str, bytes: &[u8]) {
    let hidden = dir.join(".new");
    fs::write(&hidden, bytes).unwrap();
    fs::rename(hidden, dir.join(name)).unwrap();
}

/// Waits until a follower has received this entry.
pub fn until_entry(run: &mut Run, name: &str) -> Value {
    run.until("entry", |e| e["name"] == name)
}

/// Waits until a follower has everything of a feed with this many entries.
pub fn until_all(run: &mut Run, entries: u64) {
    run.until("catalogue", |e| e["wanted"] == 0 && e["entries"] == entries);
}

/// Waits for what no event tells.
pub fn wait_until(is_so: impl Fn() -> bool) {
    let until = Instant::now() + BOUND;
    while !is_so() {
        assert!(Instant::now() < until, "waited too long");
        std::thread::yield_now();
    }
}

/// Ends a process in order: SIGTERM, exit code 0, nothing on standard error that is an error.
pub fn ends(run: Run) -> End {
    run.signal(Signal::TERM);
    let end = run.end().expect(0);
    assert!(end.all("error").next().is_none(), "{end:#?}");
    end
}

/// What a follower has of a feed: all but its own record and the folder's own times.
pub fn contents(folder: &Path) -> Vec<String> {
    let mut lines = described(folder);
    lines.retain(|line| !line.starts_with("\"\":") && !line.contains(".fabricast-"));
    lines
}

/// The feed's folder in a new scratch directory.
pub fn feed_in(dir: &Scratch) -> PathBuf {
    let feed = dir.path("feed");
    fs::create_dir(&feed).unwrap();
    feed
}

/// A feed whose test says what it offers and what it sends.
pub struct HandMade(FeedServer);

impl HandMade {
    pub fn new() -> HandMade {
        let net = NetOptions {
            interface: "127.0.0.1".parse().unwrap(),
            ..NetOptions::default()
        };
        HandMade(FeedServer::open(&net, 0, "feed", 4, Waker::new().unwrap()).unwrap())
    }

    pub fn address(&self) -> String {
        self.0.address().to_string()
    }

    /// Offers these entries.
    pub fn offer(&mut self, number: u64, entries: &[Entry]) {
        let entries = entries.to_vec();
        self.0.publish(Catalogue { number, entries });
    }

    /// Serves until a follower wants something, and tells it of the transfer at `address`.
    pub fn invite(&mut self, address: &str) {
        let until = Instant::now() + BOUND;
        loop {
            self.0.turn(Duration::from_millis(10));
            let waiting = self.0.waiting();
            let wants = waiting.iter().find(|(_, wants)| !wants.is_empty());
            if let Some((follower, wants)) = wants.map(|(key, wants)| (*key, (*wants).clone())) {
                let (_, port) = address.rsplit_once(':').unwrap();
                let port: u16 = port.parse().unwrap();
                self.0.invite(follower, port.into(), &wants, port);
                self.0.turn(Duration::ZERO);
                return;
            }
            assert!(Instant::now() < until, "waited too long");
        }
    }

    /// Serves until a follower waits and wants nothing.
    pub fn until_content(&mut self) {
        let until = Instant::now() + BOUND;
        while !self.0.waiting().iter().any(|(_, wants)| wants.is_empty()) {
            self.0.turn(Duration::from_millis(10));
            assert!(Instant::now() < until, "waited too long");
        }
    }
}

/// What a catalogue says of a file or directory.
pub fn described_entry(path: &Path) -> Entry {
    let sources = [path.to_owned()];
    let set = SourceSet::list(&sources, &Selection::default(), &mut |_| {}).unwrap();
    Entry {
        name: set.name(),
        len: set.known_len().unwrap(),
        digest: set.digest(),
    }
}
