//! Receivers that serve, on hosts of their own. Needs root.

mod common;
mod net;

use net::{Cluster, Transfer};

const MB: usize = 1_000_000;

/// A late receiver gets a part of what it has missed from hosts that serve, and the sender sends so
/// much less.
#[test]
fn a_late_receiver_gets_what_it_has_missed_from_hosts_that_serve() {
    let Some(cluster) = Cluster::up(4, &["--rate", "200mbit"]) else {
        return;
    };
    let options = ["--rate", "8MB/s"];
    let mut transfer = Transfer::serving(&cluster, 2, 64 * MB, &options);
    transfer.send.until_share_of("fastest", 50);
    transfer.add("h4");
    let done = transfer.end(&[]);
    let late = done.sent.result("h4");
    assert_eq!(late["part"], "late");
    let from_peers = late["tally"]["peer_bytes"].as_u64().unwrap();
    assert!(from_peers > 0, "{late}");
    // It has missed somewhat more than half. What came from others did not come again.
    let spared = from_peers as f64 / (64 * MB) as f64;
    assert!(done.multiple + spared < 1.8, "{}", done.describe());
}
