//! The ping-pong of `papers --live` between hosts that are network namespaces. Needs root; times
//! are not judged, beyond that everything ends.

mod common;

use std::process::{Child, Command, Output};

use common::{Lines, lab};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TOOL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/cluster/cluster");

/// Hosts h1 to h3 on one switch, until it is dropped, and what answers there.
struct Cluster {
    name: String,
    answering: Vec<Child>,
}

impl Cluster {
    /// `None`, with the reason, where no cluster can run.
    fn up() -> Option<Cluster> {
        let check = Command::new(TOOL).arg("check").output().unwrap();
        if !check.status.success() {
            let reason = String::from_utf8_lossy(&check.stdout);
            println!("skipped: no cluster can run here: {}", reason.trim());
            return None;
        }
        let cluster = Cluster {
            name: format!("lab{}", std::process::id()),
            answering: Vec::new(),
        };
        cluster.run(&["up", "3", "--rate", "200mbit"]);
        Some(cluster)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(TOOL);
        let output = command.args(["--name", &self.name]).args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "cluster {args:?}: {output:?}");
        output
    }

    fn address(&self, host: &str) -> String {
        let hosts: Value = serde_json::from_slice(&self.run(&["hosts", "--json"]).stdout).unwrap();
        hosts[host]["ip4"].as_str().unwrap().to_owned()
    }

    /// What runs the command on this host.
    fn on(&self, host: &str, args: &[&str]) -> Command {
        let mut command = Command::new(TOOL);
        command.args(["--name", &self.name, "exec", host, "--"]);
        command.arg(lab(&[]).get_program()).args(args);
        command
    }

    /// Lets this host answer the one at `asker`.
    fn answer(&mut self, host: &str, asker: &str) {
        let answering = self.on(host, &["papers", "--answer", asker]).spawn();
        self.answering.push(answering.unwrap());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.answering {
            let _ = child.kill();
            let _ = child.wait();
        }
        let mut down = Command::new(TOOL);
        let _ = down.args(["--name", &self.name, "down"]).status();
    }
}

#[test]
fn round_trips_of_the_network_stand_beside_the_simulated_ones() {
    let Some(mut cluster) = Cluster::up() else {
        return;
    };
    let asker = cluster.address("h1");
    let hosts = ["h2", "h3"];
    for host in hosts {
        cluster.answer(host, &asker);
    }
    let live = hosts.map(|h| cluster.address(h)).join(",");
    let args = ["papers", "p2", "--quick", "--json", "--live", &live];
    let lines = Lines::of(cluster.on("h1", &args).output().unwrap());
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
    for child in &mut cluster.answering {
        kill_process(Pid::from_child(child), Signal::INT).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}
