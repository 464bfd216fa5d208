//! Transfers to hosts of their own that lose much of the multicast. Needs root. The tests judge
//! what is sent, not times.

use crate::net::{Cluster, Transfer};

const MB: usize = 1_000_000;

/// With losses of datagrams (P3.9) five receivers have everything, by the default scheme and by
/// P3's protocol. There more of it comes by the reliable channels the more is lost.
#[test]
fn multicast_losses_of_any_size_are_made_up_for() {
    let Some(cluster) = Cluster::up(5, &["--rate", "200mbit"]) else {
        return;
    };
    let mut before = 0;
    for loss in ["0", "10", "50", "90"] {
        cluster.run(&["loss", loss, "--what", "udp"]);
        Transfer::start(&cluster, 5, 8 * MB, &[]).end(&[]);
        let options = ["--scheme", "ibrmp"];
        let done = Transfer::start(&cluster, 5, 8 * MB, &options).end(&[]);
        let messages = &done.sent.one("summary")["messages"];
        let (multicast, again) = (&messages["multicast_bytes"], &messages["channel_bytes"]);
        assert_eq!(multicast.as_u64(), Some(8 * MB as u64));
        let again = again.as_u64().unwrap();
        let seconds = &done.sent.one("summary")["seconds"];
        println!("{loss} %: {seconds} s, {again} bytes by channels");
        assert!(again >= before, "{loss} %: {again} bytes after {before}");
        before = again;
    }
    // Nine tenths of each receiver's file, but for what chance has spared.
    assert!(before > 5 * 8 * MB as u64 * 8 / 10, "{before}");
}

/// With 90 % of multicast lost and unicast whole, the sender sends at most a tenth more than
/// multicast and unicast take together without loss (P3.10): it repairs by the cheaper way. On a
/// busy machine it may take three tries.
#[test]
fn where_multicast_alone_is_lost_repairs_go_by_unicast() {
    let Some(cluster) = Cluster::up(5, &["--rate", "200mbit"]) else {
        return;
    };
    cluster.run(&["loss", "90", "--where", "input", "--what", "mcast"]);
    let transfer = |_| {
        let done = Transfer::start(&cluster, 5, 8 * MB, &[]).end(&[]);
        println!("{}", done.describe());
        done.multiple
    };
    let found: Vec<f64> = (0..3)
        .map(transfer)
        .take_while(|sum| *sum > 1.1 * 6.0)
        .collect();
    assert!(found.len() < 3, "{found:?}");
}
