//! Receivers that serve, on hosts of their own. Needs root.

use crate::net::{Cluster, Transfer};

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
    let joined = transfer.recv.last_mut().unwrap().until("joined", |_| true);
    let done = transfer.end(&[]);
    let late = done.sent.result("h4");
    assert_eq!(late["part"], "late");
    let from_peers = late["tally"]["peer_bytes"].as_u64().unwrap();
    assert!(from_peers > 8 * MB as u64, "{late}"); // of some 36
    // What came from others is not lacking any more, as both ends say.
    let caught_up = done.sent.one("catching_up");
    let lacking = caught_up["lacking"].as_u64().unwrap();
    let told = format!("{caught_up}, {joined}; {}", done.describe());
    assert_eq!(lacking == 0, joined["lacking"] == 0, "{told}");
    // It has missed somewhat more than half.
    let part = |bytes: u64| bytes as f64 / (64 * MB) as f64;
    assert!(part(lacking + from_peers) < 0.8, "{told}");
    // The sender sends again what is lacking, and no more. A packet has some 5 % beside its data.
    let expected = 1.0 + part(lacking);
    assert!(done.multiple <= 1.05 * expected + 0.1, "{told}");
}

/// A late receiver whose link the stream fills gets little from others: the stream would have to
/// wait for that.
#[test]
fn a_late_receiver_fetches_little_on_a_link_that_the_stream_fills() {
    let Some(cluster) = Cluster::up(4, &["--rate", "200mbit"]) else {
        return;
    };
    let mut transfer = Transfer::serving(&cluster, 2, 128 * MB, &[]);
    transfer.send.until_share_of("fastest", 50);
    transfer.add("h4");
    let done = transfer.end(&[]);
    let from_peers = done.sent.result("h4")["tally"]["peer_bytes"]
        .as_u64()
        .unwrap();
    println!("from peers: {from_peers}");
    // While it was late, half of the file came by the stream.
    assert!(from_peers < 16 * MB as u64, "{}", done.describe());
}
