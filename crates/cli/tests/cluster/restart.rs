//! Receivers and senders that are killed in the midst and started again, on hosts of their own:
//! what enters the receiver's port, and the memory of both ends. Needs root.

use std::path::Path;

use crate::common::tree::{check, long_tree};
use crate::common::{End, Run, Scratch};
use crate::net::Cluster;
use rustix::process::Signal;

/// Both ends stay below this memory, in bytes.
const MEMORY: u64 = 300 << 20;

fn send(cluster: &Cluster, top: &Path, receivers: usize) -> Run {
    let receivers = receivers.to_string();
    let mut run = cluster.send(top, &["--min-receivers", &receivers, "--no-announce"]);
    run.until("listening", |_| true);
    run
}

fn recv(cluster: &Cluster, dest: &Path) -> Run {
    cluster.recv_with("h2", dest, 4, &[])
}

/// One end is killed when the receiver has so many percent, the other one ends with `code`, and
/// both are started again. Both lives of the receiver take hardly more than the set.
fn one_end_is_killed(cluster: &Cluster, percent: u64, is_receiver: bool) {
    let dir = Scratch::new();
    let (top, dest) = (long_tree(&dir), dir.path("to"));
    std::fs::create_dir(&dest).unwrap();
    let before = cluster.stat().entered("h2");
    let (sender, mut receiver) = (send(cluster, &top, 1), recv(cluster, &dest));
    receiver.until_share(percent);
    let (killed, other, code) = match is_receiver {
        true => (receiver, sender, 4),
        false => (sender, receiver, 8),
    };
    killed.signal(Signal::KILL);
    assert_eq!(killed.end().code, None);
    other.end().expect(code);

    let (sender, mut receiver) = (send(cluster, &top, 1), recv(cluster, &dest));
    receiver.until_share(95);
    let memory = [&sender, &receiver].map(Run::memory);
    sender.end().expect(0);
    let end = receiver.end().expect(0);
    let entered = cluster.stat().entered("h2") - before;
    let len = end.one("done")["len"].as_u64().unwrap();
    let told = format!(
        "at {percent} %: {:.3} of the set entered, memory {memory:?}",
        entered as f64 / len as f64
    );
    println!("{told}");
    assert!(entered <= len * 11 / 10, "{told}");
    assert!(memory.iter().all(|&bytes| bytes < MEMORY), "{told}");
    check(&top, &dest);
}

fn all(is_receiver: bool) {
    let Some(cluster) = Cluster::up(1, &["--rate", "400mbit"]) else {
        return;
    };
    for percent in [30, 60, 90] {
        one_end_is_killed(&cluster, percent, is_receiver);
    }
}

#[test]
fn a_killed_receiver_takes_hardly_more_than_the_set() {
    all(true);
}

#[test]
fn receivers_of_a_killed_sender_take_hardly_more_than_the_set() {
    all(false);
}

/// One receiver of several is killed and comes back, and the sender goes on: what it has missed
/// enters its own port alone, also where the switch does not notice at once that hosts have left.
#[test]
fn a_killed_receiver_costs_the_others_nothing() {
    let Some(cluster) = Cluster::up(3, &["--rate", "400mbit"]) else {
        return;
    };
    let dir = Scratch::new();
    let top = long_tree(&dir);
    let (killed, others) = ("h2", ["h3", "h4"]);
    let dest = |host: &str| {
        let dest = dir.path(host);
        std::fs::create_dir_all(&dest).unwrap();
        dest
    };
    let start = |host: &str| cluster.recv_with(host, &dest(host), 4, &[]);
    let before = cluster.stat();
    let sender = send(&cluster, &top, 3);
    let others_run: Vec<Run> = others.iter().map(|host| start(host)).collect();
    let mut receiver = start(killed);
    receiver.until_share(60);
    receiver.signal(Signal::KILL);
    assert_eq!(receiver.end().code, None);
    let receiver = start(killed);
    let len = receiver.end().expect(0).one("done")["len"]
        .as_u64()
        .unwrap();
    others_run
        .into_iter()
        .for_each(|run| _ = run.end().expect(0));
    sender.end().expect(0);
    let after = cluster.stat();
    let share = |host: &str| (after.entered(host) - before.entered(host)) as f64 / len as f64;
    let told = ["h2", "h3", "h4"].map(|host| format!("{host} {:.3}", share(host)));
    println!("of the set entered: {told:?}");
    assert!(others.iter().all(|host| share(host) <= 1.1), "{told:?}");
    for host in ["h2", "h3", "h4"] {
        check(&top, &dest(host));
    }
}

/// The sender is killed and started again, and one of the receivers then is new: what the others
/// keep comes to it after these have left, and not to their ports.
#[test]
fn a_new_receiver_costs_those_of_a_killed_sender_nothing() {
    let Some(cluster) = Cluster::up(4, &["--rate", "400mbit"]) else {
        return;
    };
    let dir = Scratch::new();
    let top = long_tree(&dir);
    let hosts = ["h2", "h3", "h4", "h5"];
    let (old, new) = (&hosts[..3], hosts[3]);
    let dest = |host: &str| {
        let dest = dir.path(host);
        std::fs::create_dir_all(&dest).unwrap();
        dest
    };
    let start = |host: &str| cluster.recv_with(host, &dest(host), 4, &[]);
    let before = cluster.stat();
    let sender = send(&cluster, &top, 3);
    let mut receivers: Vec<Run> = old.iter().map(|host| start(host)).collect();
    receivers.iter_mut().for_each(|run| run.until_share(70));
    sender.signal(Signal::KILL);
    assert_eq!(sender.end().code, None);
    for receiver in receivers {
        receiver.end().expect(8);
    }

    let sender = send(&cluster, &top, 4);
    let receivers: Vec<Run> = hosts.iter().map(|host| start(host)).collect();
    let sent = sender.end().expect(0);
    let ends: Vec<End> = receivers.into_iter().map(|r| r.end().expect(0)).collect();
    let after = cluster.stat();
    let len = ends[0].one("done")["len"].as_u64().unwrap();
    let share = |host: &str| (after.entered(host) - before.entered(host)) as f64 / len as f64;
    let told: Vec<String> = hosts
        .iter()
        .map(|h| format!("{h} {:.3}", share(h)))
        .collect();
    println!("of the set entered: {told:?}");
    assert!(hosts.iter().all(|host| share(host) <= 1.1), "{told:?}");
    let lacking = sent.one("catching_up");
    assert!(
        lacking["receiver"].as_str().unwrap().contains(new),
        "{lacking}"
    );
    hosts.iter().for_each(|host| check(&top, &dest(host)));
}
