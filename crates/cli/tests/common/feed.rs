//! Feeds on the loopback, and receivers that follow them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::tree::described;
use super::{End, Run, Scratch};

/// A feed on the loopback that looks often, and its address.
pub fn serve(dir: &Path, port: &str, args: &[&str]) -> (Run, String) {
    let command = Command::new(env!("CARGO_BIN_EXE_fabricast"));
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
