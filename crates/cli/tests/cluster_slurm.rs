//! `fabricast copy` within the jobs of a real Slurm, whose nodes are network namespaces. Needs root
//! and Slurm's packages.

mod common;
mod net;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::hosts::{FABRICAST, Hosts, host};
use common::{Run, same};
use net::Cluster;
use serde_json::json;

const SLURM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/slurm/slurm");
const NODES: [&str; 3] = ["h2", "h3", "h4"];

/// A cluster with Slurm on it, and a folder for each node.
struct Site {
    // Goes down first, before the folders.
    cluster: Cluster,
    hosts: Hosts,
    /// Slurm's configuration, state and logs.
    slurm: PathBuf,
    /// What a node runs as `fabricast`: the command, in the node's folder.
    remote: PathBuf,
}

impl Site {
    /// `None`, with a printed reason, where Slurm or a cluster cannot run.
    fn up() -> Option<Site> {
        let check = Command::new(SLURM).arg("check").output().unwrap();
        if !check.status.success() {
            let reason = String::from_utf8_lossy(&check.stdout);
            println!("skipped: no Slurm can run here: {}", reason.trim());
            return None;
        }
        let cluster = Cluster::up(NODES.len(), &["--rate", "200mbit"])?;
        let hosts = Hosts::new(&NODES);
        let slurm = hosts.dir.path("slurm");
        let mut up = Command::new(SLURM);
        up.args(["up", "--name", cluster.name()]).arg(&slurm);
        let output = up.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let folder = hosts.dir.path("");
        let text = format!(
            "cd \"{}$SLURMD_NODENAME\" && exec {FABRICAST} \"$@\"\n",
            folder.display()
        );
        Some(Site {
            remote: hosts.script("remote", &text),
            cluster,
            hosts,
            slurm,
        })
    }

    /// A job on all nodes that runs this program on h1.
    fn job(&self, nodes: &str, program: &str) -> Command {
        let mut command = self.cluster.exec("h1", "salloc");
        command.args(["--quiet", "--nodelist", nodes, program]);
        command.env("SLURM_CONF", self.slurm.join("slurm.conf"));
        command
    }

    fn copy(&self, source: &Path, dest: &str, args: &[&str]) -> Run {
        let mut command = self.job("h[2-4]", FABRICAST);
        command.arg("copy").arg(source).args(args).arg(dest);
        command.args(["--json", "--interface", "eth0", "--remote-fabricast"]);
        command.arg(&self.remote);
        Run::spawn(command)
    }

    /// Runs one of Slurm's commands on h1. Returns its output.
    fn ask(&self, args: &[&str]) -> String {
        let mut command = self.cluster.exec("h1", args[0]);
        command.args(&args[1..]);
        command.env("SLURM_CONF", self.slurm.join("slurm.conf"));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

/// All nodes of the job get the set, and `srun` starts the receivers. A node whose daemon is dead
/// is named, with what `srun` says; the others have everything.
#[test]
fn the_nodes_of_a_job_get_what_is_copied() {
    let Some(site) = Site::up() else { return };
    let source = site.hosts.dir.file("source", 8_000_000);
    let end = site.copy(&source, ":out", &[]).end().expect(0);
    for node in NODES {
        assert_eq!(end.result(node)["state"], "verified");
        assert_eq!(end.result(node)["reach"], "multicast");
        site.hosts.has(node, "out", &source);
    }

    let pid = fs::read_to_string(site.slurm.join("h4.pid")).unwrap();
    site.cluster.program("h4", &["kill", "-KILL", pid.trim()]);
    let patience = ["--start-timeout", "8s", "--min-receivers", "2"];
    let end = site.copy(&source, ":again", &patience).end().expect(4);
    for node in ["h2", "h3"] {
        assert_eq!(end.result(node)["state"], "verified");
        site.hosts.has(node, "again", &source);
    }
    let dead = host(&end, "h4");
    assert_eq!(dead["absent"], json!(true), "{dead}");
    assert!(dead["lines"].to_string().contains("srun"), "{dead}");
}

/// A job that is cancelled leaves no receiver behind.
#[test]
fn a_cancelled_job_leaves_nothing_running() {
    let Some(site) = Site::up() else { return };
    let source = site.hosts.dir.file("source", 40_000_000);
    let mut run = site.copy(&source, ":out", &[]);
    run.until_share(20);
    assert!(site.hosts.processes(Some(run.pid())).len() >= NODES.len());
    let job = site.ask(&["squeue", "--noheader", "--format=%A"]);
    site.ask(&["scancel", job.trim()]);
    run.end();
    site.hosts.expect_none_left();
}

/// The script that spells as `sbcast` does, within a job.
#[test]
fn the_script_for_slurm_copies_to_the_node_of_its_job() {
    let Some(site) = Site::up() else { return };
    let source = site.hosts.dir.file("source", 100_000);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/slurm/bcast");
    let dest = site.hosts.dir.path("h2").join("renamed");
    let mut command = site.job("h2", script);
    command.args(["-f", "-p"]).arg(&source).arg(&dest);
    command.args(["--interface", "eth0", "--remote-fabricast"]);
    command.arg(&site.remote);
    let path = Path::new(FABRICAST).parent().unwrap().display();
    command.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    same(&source, &dest);
}
