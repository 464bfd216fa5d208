//! Receivers and senders that are killed in the midst and started again, on hosts of their own:
//! what enters the receiver's port, and the memory of both ends. Needs root.

use std::path::{Path, PathBuf};

use crate::common::tree::{check, long_tree};
use crate::common::{End, Run, Scratch};
use crate::in_memory::InMemory;
use crate::net::{Cluster, Stat};
use rustix::process::Signal;

/// Both ends stay below this memory, in bytes.
const MEMORY: u64 = 300 << 20;
/// Length of a small file.
const SMALL: usize = 8192;

fn send(cluster: &Cluster, top: &Path, receivers: usize) -> Run {
    let receivers = receivers.to_string();
    let mut run = cluster.send(top, &["--min-receivers", &receivers, "--no-announce"]);
    run.until("listening", |_| true);
    run
}

fn recv(cluster: &Cluster, dest: &Path) -> Run {
    cluster.recv_with("h2", dest, 4, &[])
}

/// Length of the set, as a receiver says at its end.
fn len(end: &End) -> u64 {
    end.one("done")["len"].as_u64().unwrap()
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
    let len = len(&end);
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

/// Several receivers on hosts of their own, and what has entered their ports.
struct Receivers {
    cluster: Cluster,
    dir: Scratch,
    top: PathBuf,
    before: Stat,
}

impl Receivers {
    /// A cluster with so many hosts that may receive the tree, made with these options. The tree
    /// has so many small files more than others.
    fn up(count: usize, options: &[&str], small: usize) -> Option<Receivers> {
        let cluster = Cluster::up(count, &[&["--rate", "400mbit"], options].concat())?;
        let dir = Scratch::new();
        let top = long_tree(&dir);
        for n in 0..small {
            let directory = top.join(format!("small{}", n / 1000));
            if n % 1000 == 0 {
                std::fs::create_dir(&directory).unwrap();
            }
            let bytes = n.to_le_bytes().repeat(SMALL / 8);
            std::fs::write(directory.join(n.to_string()), bytes).unwrap();
        }
        let before = cluster.stat();
        Some(Receivers {
            cluster,
            dir,
            top,
            before,
        })
    }

    fn dest(&self, host: &str) -> PathBuf {
        let dest = self.dir.path(host);
        std::fs::create_dir_all(&dest).unwrap();
        dest
    }

    fn start(&self, host: &str) -> Run {
        self.cluster.recv_with(host, &self.dest(host), 4, &[])
    }

    /// What has entered the ports of these hosts, as a multiple of the set's `len` bytes. Prints
    /// it, and checks that each has the tree.
    fn shares(&self, hosts: &[&str], len: u64) -> Vec<f64> {
        let after = self.cluster.stat();
        let entered = |host: &&str| after.entered(host) - self.before.entered(host);
        let shares: Vec<f64> = hosts
            .iter()
            .map(|h| entered(h) as f64 / len as f64)
            .collect();
        println!("of the set entered {hosts:?}: {shares:.3?}");
        hosts
            .iter()
            .for_each(|host| check(&self.top, &self.dest(host)));
        shares
    }
}

/// One receiver of several is killed and comes back, and the sender goes on. Returns what has
/// entered their ports, that of the killed one first.
fn one_of_several_is_killed(options: &[&str], small: usize) -> Option<Vec<f64>> {
    let hosts = ["h2", "h3", "h4"];
    let (killed, others) = (hosts[0], &hosts[1..]);
    let receivers = Receivers::up(hosts.len(), options, small)?;
    // What waits for a slow disk is lost with the receiver, and this is about the rest.
    let _in_memory = InMemory::at(receivers.dest(killed), "1g");
    let sender = send(&receivers.cluster, &receivers.top, hosts.len());
    let going_on: Vec<Run> = others.iter().map(|host| receivers.start(host)).collect();
    let mut receiver = receivers.start(killed);
    receiver.until_share(60);
    receiver.signal(Signal::KILL);
    assert_eq!(receiver.end().code, None);
    let end = receivers.start(killed).end().expect(0);
    for run in going_on {
        run.end().expect(0);
    }
    sender.end().expect(0);
    Some(receivers.shares(&hosts, len(&end)))
}

/// What a killed receiver has missed enters its own port alone, also where the switch does not
/// notice at once that hosts have left.
#[test]
fn a_killed_receiver_costs_the_others_nothing() {
    if let Some(shares) = one_of_several_is_killed(&[], 0) {
        assert!(shares[1..].iter().all(|&share| share <= 1.1), "{shares:?}");
    }
}

/// Where the switch notices at once that hosts have left, little comes twice to the killed one:
/// some packs that it had in part or not stored yet, and those under way when it came back.
#[test]
fn a_killed_receiver_of_several_takes_hardly_more_than_the_set() {
    if let Some(shares) = one_of_several_is_killed(&["--fast-leave"], 32_000) {
        assert!(shares.iter().all(|&share| share <= 1.1), "{shares:?}");
    }
}

/// The sender is killed and started again, and one of the receivers then is new: what the others
/// keep comes to it after these have left, and not to their ports.
#[test]
fn a_new_receiver_costs_those_of_a_killed_sender_nothing() {
    let hosts = ["h2", "h3", "h4", "h5"];
    let (old, new) = (&hosts[..3], hosts[3]);
    let Some(receivers) = Receivers::up(hosts.len(), &[], 0) else {
        return;
    };
    let sender = send(&receivers.cluster, &receivers.top, old.len());
    let mut runs: Vec<Run> = old.iter().map(|host| receivers.start(host)).collect();
    runs.iter_mut().for_each(|run| run.until_share(70));
    sender.signal(Signal::KILL);
    assert_eq!(sender.end().code, None);
    for run in runs {
        run.end().expect(8);
    }

    let sender = send(&receivers.cluster, &receivers.top, hosts.len());
    let runs: Vec<Run> = hosts.iter().map(|host| receivers.start(host)).collect();
    let sent = sender.end().expect(0);
    let ends: Vec<End> = runs.into_iter().map(|run| run.end().expect(0)).collect();
    let shares = receivers.shares(&hosts, len(&ends[0]));
    assert!(shares.iter().all(|&share| share <= 1.1), "{shares:?}");
    let lacking = sent.one("catching_up");
    assert!(
        lacking["receiver"].as_str().unwrap().contains(new),
        "{lacking}"
    );
}
