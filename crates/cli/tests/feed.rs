//! Feeds: `fabricast serve` and receivers that follow it, as processes on the loopback.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::tree::{described, tree};
use common::{End, Run, Scratch};
use rustix::process::Signal;
use serde_json::Value;

/// A feed on the loopback that looks often, and its address.
fn serve(dir: &Path, port: &str, args: &[&str]) -> (Run, String) {
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
    let mut run = Run::start(fixed.iter().chain(args));
    let serving = run.until("serving", |_| true);
    let address = serving["address"].as_str().unwrap().to_owned();
    (run, address)
}

/// A receiver that follows the feed at this address.
fn follow(address: &str, dest: &Path, args: &[&str]) -> Run {
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
    Run::start(fixed.iter().chain(args))
}

/// Writes under a hidden name, and renames.
fn publish(dir: &Path, name: &str, bytes: &[u8]) {
    let hidden = dir.join(".new");
    fs::write(&hidden, bytes).unwrap();
    fs::rename(hidden, dir.join(name)).unwrap();
}

/// Waits until a follower has received this entry.
fn until_entry(run: &mut Run, name: &str) -> Value {
    run.until("entry", |e| e["name"] == name)
}

/// Waits until a follower has everything of a feed with this many entries.
fn until_all(run: &mut Run, entries: u64) {
    run.until("catalogue", |e| e["wanted"] == 0 && e["entries"] == entries);
}

/// Ends a process in order: SIGTERM, exit code 0, nothing on standard error that is an error.
fn ends(run: Run) -> End {
    run.signal(Signal::TERM);
    let end = run.end().expect(0);
    assert!(end.all("error").next().is_none(), "{end:#?}");
    end
}

/// What a follower has of a feed: all but its own record and the folder's own times.
fn contents(folder: &Path) -> Vec<String> {
    let mut lines = described(folder);
    lines.retain(|line| !line.starts_with("\"\":") && !line.contains(".fabricast-"));
    lines
}

/// The feed's folder in a new scratch directory.
fn feed_in(dir: &Scratch) -> PathBuf {
    let feed = dir.path("feed");
    fs::create_dir(&feed).unwrap();
    feed
}

/// Three publications reach two followers. One of them is killed in the midst of the second and
/// started again; another one comes after everything.
#[test]
fn all_followers_have_the_same_in_the_end() {
    let dir = Scratch::new();
    let feed = feed_in(&dir);
    let [a, b, late] = ["one", "two", "late"].map(|name| dir.path(name));
    let (sender, address) = serve(&feed, "0", &["--rate", "20MB/s"]);
    let mut runs = [&a, &b].map(|dest| follow(&address, dest, &[]));
    fs::rename(tree(&dir), feed.join("tree")).unwrap();
    runs.iter_mut()
        .for_each(|run| drop(until_entry(run, "tree")));
    fs::rename(dir.file("big", 20_000_000), feed.join("big")).unwrap();
    let [mut stays, mut killed] = runs;
    killed.until("publication", |_| true);
    killed.until_share_of("placed", 40);
    killed.signal(Signal::KILL);
    let mut again = follow(&address, &b, &[]);
    publish(&feed, "last", b"of three");
    let mut after = follow(&address, &late, &[]);
    for run in [&mut stays, &mut again, &mut after] {
        until_all(run, 3);
    }
    for dest in [&a, &b, &late] {
        assert_eq!(contents(&dest.join("feed")), contents(&feed));
    }
    let end = ends(stays);
    assert_eq!(end.all("entry").count(), 3, "{end:#?}");
    let end = ends(again);
    assert!(end.all("resumed").next().is_some(), "{end:#?}");
    ends(after);
    ends(sender);
}
