//! A feed between hosts that are network namespaces. Needs root.

mod common;
mod net;

use std::fs;

use common::{Run, Scratch, same};
use net::Cluster;
use rustix::process::Signal;

const FOLLOWERS: [&str; 4] = ["h2", "h3", "h4", "h5"];
const LEN: usize = 10_000_000;

/// Four hosts follow a feed on a network that loses datagrams. What they all lack is sent once, and
/// what a later one lacks goes to that one alone.
#[test]
fn a_feed_sends_once_to_all_that_lack_it() {
    let Some(cluster) = Cluster::up(FOLLOWERS.len(), &["--rate", "200mbit"]) else {
        return;
    };
    cluster.run(&["loss", "1", "--what", "udp"]);
    let dir = Scratch::new();
    let feed = dir.path("feed");
    fs::create_dir(&feed).unwrap();
    let mut serve = cluster.command("h1", &["serve"]);
    serve.arg(&feed);
    serve.args(["--json", "--settle", "200ms", "--interface", "eth0"]);
    let mut sender = Run::spawn(serve);
    sender.until("serving", |_| true);
    let from = cluster.address("h1", 4);
    let follow = |host: &str| {
        let mut command = cluster.command(host, &["recv", "--follow", "--json", "--no-sync"]);
        command.args(["--from", &from, "--as", host, "--dir"]);
        command.arg(dir.path(host));
        Run::spawn(command)
    };
    let mut runs: Vec<Run> = FOLLOWERS[..3].iter().map(|host| follow(host)).collect();
    for _ in 0..3 {
        sender.until("followed", |_| true);
    }
    for name in ["first", "second"] {
        fs::rename(dir.file(name, LEN), feed.join(name)).unwrap();
        for run in &mut runs {
            run.until("entry", |e| e["name"] == name);
        }
        let sent = sender.until("summary", |_| true);
        assert_eq!(sent["verified"], 3, "{sent}");
        // By unicast it would be three times as much.
        let wire = sent["traffic"]["wire_bytes"].as_u64().unwrap();
        assert!(wire < LEN as u64 * 3 / 2, "{sent}");
    }
    runs.push(follow(FOLLOWERS[3]));
    for name in ["first", "second"] {
        runs[3].until("entry", |e| e["name"] == name);
        let sent = sender.until("summary", |_| true);
        assert_eq!(
            (&sent["receivers"], &sent["name"]),
            (&1.into(), &name.into())
        );
    }
    for (host, run) in FOLLOWERS.iter().zip(runs) {
        for name in ["first", "second"] {
            same(&feed.join(name), &dir.path(host).join("feed").join(name));
        }
        run.signal(Signal::TERM);
        run.end().expect(0);
    }
    sender.signal(Signal::TERM);
    sender.end().expect(0);
}
