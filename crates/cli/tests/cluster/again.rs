//! Sets that receivers have already, between hosts. Needs root.

use std::fs;
use std::path::Path;

use crate::common::tree::described;
use crate::common::{Run, Scratch};
use crate::net::Cluster;

const RECEIVERS: usize = 3;

/// Ethernet bytes that leave the sender's port while a tree goes to receivers that may replace
/// files, each of which has a directory of its own in `to`.
fn sent(cluster: &Cluster, top: &Path, to: &Path) -> u64 {
    let before = cluster.stat().root_bytes();
    let least = RECEIVERS.to_string();
    let send = cluster.send(top, &["--no-announce", "--min-receivers", &least]);
    let start = |n: usize| {
        let host = format!("h{}", n + 2);
        let dest = to.join(&host);
        fs::create_dir_all(&dest).unwrap();
        cluster.recv_with(&host, &dest, 4, &["--force"])
    };
    let runs: Vec<Run> = (0..RECEIVERS).map(start).collect();
    for (run, host) in runs.into_iter().zip(2..) {
        run.end().expect(0);
        let there = to.join(format!("h{host}/set"));
        assert_eq!(described(top), described(&there));
    }
    let sent = send.end().expect(0);
    println!("{}", sent.one("summary"));
    cluster.stat().root_bytes() - before
}

/// What all hosts have costs the sender's port next to nothing.
#[test]
fn what_all_hosts_have_is_not_sent() {
    let Some(cluster) = Cluster::up(RECEIVERS, &["--rate", "1gbit"]) else {
        return;
    };
    let dir = Scratch::new();
    let top = dir.path("set");
    fs::create_dir(&top).unwrap();
    fs::rename(dir.file("long", 30_000_000), top.join("long")).unwrap();
    for n in 0..3000 {
        fs::write(top.join(format!("short {n:04}")), vec![n as u8; n]).unwrap();
    }
    let fresh = sent(&cluster, &top, &dir.path("to"));
    let again = sent(&cluster, &top, &dir.path("to"));
    println!("{fresh} bytes at first, {again} then");
    assert!(again < fresh / 20, "{fresh}, {again}");
}
