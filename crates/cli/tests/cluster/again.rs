//! Sets that receivers may have already, between hosts. Needs root.

use std::fs;
use std::path::Path;

use crate::common::{Run, Scratch};
use crate::net::Cluster;

const RECEIVERS: usize = 8;

/// Ethernet bytes that leave the sender's port while a tree goes to receivers with these options,
/// each of which makes it in a directory of its own in `to`.
fn sent(cluster: &Cluster, top: &Path, to: &Path, options: &[&str]) -> u64 {
    let before = cluster.stat().root_bytes();
    let least = RECEIVERS.to_string();
    let send = cluster.send(top, &["--no-announce", "--min-receivers", &least]);
    let start = |n: usize| {
        let host = format!("h{}", n + 2);
        let dest = to.join(&host);
        // Something else is in the place of the set.
        fs::create_dir_all(dest.join("set")).unwrap();
        fs::write(dest.join("set/other"), "another file").unwrap();
        cluster.recv_with(&host, &dest, 4, options)
    };
    let runs: Vec<Run> = (0..RECEIVERS).map(start).collect();
    for run in runs {
        let done = run.end().expect(0);
        assert_eq!(done.one("done")["tally"]["present_bytes"], 0);
    }
    send.end().expect(0);
    cluster.stat().root_bytes() - before
}

/// Receivers that have nothing of a set cost the sender's port as much where they may replace files
/// as where they may not. Here each page of the manifest is about as long as the files.
#[test]
fn receivers_that_look_in_vain_cost_the_sender_nothing() {
    let Some(cluster) = Cluster::up(RECEIVERS, &["--rate", "100mbit"]) else {
        return;
    };
    let dir = Scratch::new();
    let top = dir.path("set");
    fs::create_dir(&top).unwrap();
    for n in 0..8000 {
        fs::write(top.join(format!("file {n:05}")), n.to_string()).unwrap();
    }
    let plain = sent(&cluster, &top, &dir.path("plain"), &[]);
    let forced = sent(&cluster, &top, &dir.path("forced"), &["--force"]);
    println!("{plain} bytes without --force, {forced} with it");
    assert!(forced < plain + plain / 10, "{plain}, {forced}");
}
