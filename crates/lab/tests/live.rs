//! The ping-pong of `papers --live` between hosts that are network namespaces. It needs root. The
//! test judges no times; it only checks that everything ends.

#[path = "../../cli/tests/cluster/net/cluster.rs"]
#[allow(dead_code, reason = "the command's tests use more of it")]
mod cluster;
mod common;

use std::process::{Child, Command};

use cluster::Cluster;
use common::{Lines, lab};
use rustix::process::{Pid, Signal, kill_process};

/// A host that answers another host until the value is dropped.
struct Answering(Child);

impl Answering {
    fn start(cluster: &Cluster, host: &str, asker: &str) -> Answering {
        let mut command = on(cluster, host, &["papers", "--answer", asker]);
        Answering(command.spawn().unwrap())
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The command that runs `fabricast-lab` on a host.
fn on(cluster: &Cluster, host: &str, args: &[&str]) -> Command {
    let mut command = cluster.exec(host, lab(&[]).get_program().to_str().unwrap());
    command.args(args);
    command
}

#[test]
fn round_trips_of_the_network_stand_beside_the_simulated_ones() {
    let Some(cluster) = Cluster::up(2, &["--rate", "200mbit"]) else {
        return;
    };
    let asker = cluster.address("h1", 4);
    let hosts = ["h2", "h3"];
    let answering = hosts.map(|host| Answering::start(&cluster, host, &asker));
    let live = hosts.map(|h| cluster.address(h, 4)).join(",");
    let args = ["papers", "p2", "--quick", "--json", "--live", &live];
    let lines = Lines::of(on(&cluster, "h1", &args).output().unwrap());
    let mut tables = lines.all("table").filter(|t| {
        let title = t["title"].as_str().unwrap();
        title.starts_with("live") || title == "LoP, live"
    });
    let trips = tables.next().unwrap()["rows"].clone();
    for (row, peers) in [(&trips[0], "1"), (&trips[1], "2")] {
        let us = |column: usize| -> f64 { row[column].as_str().unwrap().parse().unwrap() };
        assert_eq!(row[0], peers);
        assert!(0.0 < us(1) && us(1) <= us(2) && us(4) < us(3), "{row}");
    }
    assert_eq!(tables.next().unwrap()["rows"].as_array().unwrap().len(), 2);
    for mut host in answering {
        kill_process(Pid::from_child(&host.0), Signal::INT).unwrap();
        assert_eq!(host.0.wait().unwrap().code(), Some(0));
    }
}
