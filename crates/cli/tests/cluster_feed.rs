//! Feeds between hosts that are network namespaces. Needs root.

mod common;
mod net;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Run, Scratch, same};
use net::Cluster;
use rustix::process::Signal;

const LEN: usize = 10_000_000;
/// Bytes of an entry that takes seconds.
const LONG: usize = 60_000_000;

/// A feed on h1, with its directory.
fn serve(cluster: &Cluster, dir: &Scratch, args: &[&str]) -> (Run, PathBuf) {
    let feed = dir.path("feed");
    fs::create_dir(&feed).unwrap();
    let mut serve = cluster.command("h1", &["serve"]);
    serve.arg(&feed);
    serve.args(["--json", "--settle", "200ms", "--interface", "eth0"]);
    serve.args(args);
    let mut sender = Run::spawn(serve);
    sender.until("serving", |_| true);
    (sender, feed)
}

/// A receiver on a host that follows the feed of h1.
fn follow(cluster: &Cluster, dir: &Scratch, host: &str) -> Run {
    let mut command = cluster.command(host, &["recv", "--follow", "--json", "--no-sync"]);
    let from = cluster.address("h1", 4);
    command.args(["--from", &from, "--as", host, "--dir"]);
    command.arg(dir.path(host));
    Run::spawn(command)
}

/// Ends everything. Each host must have these entries.
fn end(sender: Run, runs: Vec<(String, Run)>, feed: &Path, dir: &Scratch, names: &[&str]) {
    for (host, run) in runs {
        for name in names {
            same(&feed.join(name), &dir.path(&host).join("feed").join(name));
        }
        run.signal(Signal::TERM);
        run.end().expect(0);
    }
    sender.signal(Signal::TERM);
    sender.end().expect(0);
}

/// Four hosts follow a feed on a network that loses datagrams. The feed sends what all of them lack
/// once, and what only a later follower lacks to that follower alone.
#[test]
fn a_feed_sends_once_to_all_that_lack_it() {
    let Some(cluster) = Cluster::up(4, &["--rate", "200mbit"]) else {
        return;
    };
    cluster.run(&["loss", "1", "--what", "udp"]);
    let dir = Scratch::new();
    let (mut sender, feed) = serve(&cluster, &dir, &[]);
    let run = |n: usize| (format!("h{n}"), follow(&cluster, &dir, &format!("h{n}")));
    let mut runs: Vec<(String, Run)> = (2..=4).map(run).collect();
    for _ in 0..3 {
        sender.until("followed", |_| true);
    }
    for name in ["first", "second"] {
        fs::rename(dir.file(name, LEN), feed.join(name)).unwrap();
        for (_, run) in &mut runs {
            run.until("entry", |e| e["name"] == name);
        }
        let sent = sender.until("summary", |_| true);
        assert_eq!(sent["verified"], 3, "{sent}");
        // By unicast it would be three times as much.
        let wire = sent["traffic"]["wire_bytes"].as_u64().unwrap();
        assert!(wire < LEN as u64 * 3 / 2, "{sent}");
    }
    runs.push(run(5));
    for name in ["first", "second"] {
        runs[3].1.until("entry", |e| e["name"] == name);
        let sent = sender.until("summary", |_| true);
        assert_eq!(
            (&sent["receivers"], &sent["name"]),
            (&1.into(), &name.into())
        );
    }
    end(sender, runs, &feed, &dir, &["first", "second"]);
}

/// Eight hosts get a long entry. Short ones that are published meanwhile arrive before it
/// everywhere, and each is sent once.
#[test]
fn short_entries_overtake_a_long_one_on_all_hosts() {
    let Some(cluster) = Cluster::up(8, &["--rate", "100mbit"]) else {
        return;
    };
    cluster.run(&["loss", "1", "--what", "udp"]);
    let dir = Scratch::new();
    let (mut sender, feed) = serve(&cluster, &dir, &[]);
    let run = |n: usize| (format!("h{n}"), follow(&cluster, &dir, &format!("h{n}")));
    let mut runs: Vec<(String, Run)> = (2..=9).map(run).collect();
    for _ in &runs {
        sender.until("followed", |_| true);
    }
    fs::rename(dir.file("long", LONG), feed.join("long")).unwrap();
    sender.until("progress", |e| {
        e["slowest"].as_u64() > Some(LONG as u64 / 20)
    });
    for name in ["short", "other"] {
        fs::rename(dir.file(name, 2048), feed.join(name)).unwrap();
        for (_, run) in &mut runs {
            run.until("entry", |e| e["name"] == name);
        }
        let sent = sender.until("summary", |e| e["name"] == name);
        assert_eq!(sent["verified"], 8, "{sent}");
    }
    for (_, run) in &mut runs {
        run.until("entry", |e| e["name"] == "long");
    }
    let sent = sender.until("summary", |e| e["name"] == "long");
    assert_eq!(sent["verified"], 8, "{sent}");
    let wire = sent["traffic"]["wire_bytes"].as_u64().unwrap();
    assert!(wire < LONG as u64 * 3 / 2, "{sent}");
    end(sender, runs, &feed, &dir, &["short", "other", "long"]);
}
