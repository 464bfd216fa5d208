//! `fabricast copy` within the jobs of a real Slurm, whose nodes are network namespaces. Needs root
//! and Slurm's packages.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::FABRICAST;
use crate::common::hosts::{Hosts, host};
use crate::common::{Run, same, ssh};
use crate::net::Cluster;
use serde_json::json;

const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/cluster/cluster");
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/slurm");
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
        Site::with(|_, _| Some(Vec::new()))
    }

    /// Like [`Site::up`], with the options that `prepare` has for Slurm. `None` if it has none.
    fn with(prepare: impl FnOnce(&Cluster, &Hosts) -> Option<Vec<PathBuf>>) -> Option<Site> {
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
        up.args(prepare(&cluster, &hosts)?);
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

    /// One of Slurm's commands, on h1.
    fn slurm(&self, program: &str) -> Command {
        let mut command = self.cluster.exec("h1", program);
        command.env("SLURM_CONF", self.slurm.join("slurm.conf"));
        command
    }

    /// A job on these nodes that runs this program on h1.
    fn job(&self, nodes: &str, program: &str) -> Command {
        let mut command = self.slurm("salloc");
        command.args(["--quiet", "--nodelist", nodes, program]);
        command
    }

    /// Runs a job with this comment to its end, whose only step is this program on all nodes.
    fn step(&self, comment: &str, program: &Path) -> Output {
        let mut command = self.slurm("srun");
        command.args(["--quiet", "--nodelist", "h[2-4]", "--comment", comment]);
        command.arg(program).output().unwrap()
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
        let output = self.slurm(args[0]).args(&args[1..]).output().unwrap();
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
    let script = format!("{PACKAGING}/bcast");
    let dest = site.hosts.dir.path("h2").join("renamed");
    let mut command = site.job("h2", &script);
    command.args(["-f", "-p"]).arg(&source).arg(&dest);
    command.args(["--interface", "eth0", "--remote-fabricast"]);
    command.arg(&site.remote);
    let path = Path::new(FABRICAST).parent().unwrap().display();
    command.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    same(&source, &dest);
}

/// The prolog that is an example, as it is and at the paths that it names, before each job. It
/// reaches the nodes by a real ssh. The hosts share one file system, so that each node has its
/// folder in the place of /var/lib/images.
fn prolog(cluster: &Cluster, hosts: &Hosts) -> Option<Vec<PathBuf>> {
    let dir = hosts.dir.path("").display().to_string();
    fs::create_dir(hosts.dir.path("images")).unwrap();
    fs::create_dir(hosts.dir.path("bin")).unwrap();
    symlink(FABRICAST, hosts.dir.path("bin/fabricast")).unwrap();
    let bin = format!("set -e\nmount --bind '{dir}bin' /usr/local/bin\n");
    let at_node = format!(
        "{bin}mount -t tmpfs none /var/lib\nmkdir /var/lib/images\n\
         mount --bind '{dir}'\"$1\" /var/lib/images\nshift\nexec \"$@\"\n"
    );
    let at_node = hosts.script("at_node", &at_node);
    let (name, at_node) = (cluster.name(), at_node.display());
    let words = format!("{CLUSTER} --name {name} exec %h -- unshare -m {at_node} %h");
    if !ssh::prepare(hosts, &NODES, &words) {
        return None;
    }
    let at_controller = format!(
        "{bin}mount --bind '{dir}ssh_config' /etc/ssh/ssh_config\n\
         mount -t tmpfs none /srv\nmkdir /srv/images\nmount --bind '{dir}images' /srv/images\n\
         mount -t tmpfs none /usr/libexec\nln -s '{PACKAGING}' /usr/libexec/fabricast\n\
         exec '{PACKAGING}/prolog'\n"
    );
    let at_controller = hosts.script("at_controller", &at_controller);
    let run = format!(
        "exec unshare -m {} >>'{dir}prolog.log' 2>&1\n",
        at_controller.display()
    );
    Some(vec!["--prolog".into(), hosts.script("prolog", &run)])
}

/// Before a job's first step its nodes have what the job's comment asks for.
#[test]
fn the_prolog_brings_what_a_job_asks_for() {
    let Some(site) = Site::with(prolog) else {
        return;
    };
    let image = site.hosts.dir.file("images/os", 8_000_000);
    let dir = site.hosts.dir.path("");
    let looks = format!(
        "cmp '{}' '{}'\"$SLURMD_NODENAME/os\" && echo has it\n",
        image.display(),
        dir.display()
    );
    let looks = site.hosts.script("looks", &looks);
    let output = site.step("bcast=os", &looks);
    let log = || fs::read_to_string(dir.join("prolog.log"));
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "has it\n".repeat(3), "{output:?} {:?}", log());
    // Other jobs run without it.
    for comment in ["", "bcast=../os", "bcast=.os", "bcast=none"] {
        let output = site.step(comment, Path::new("true"));
        assert!(output.status.success(), "{comment}: {output:?} {:?}", log());
    }
    // What cannot be brought keeps the job from running.
    site.hosts.dir.file("images/blocked", 100);
    let in_the_way = site.hosts.dir.path("h2").join("blocked");
    fs::create_dir(&in_the_way).unwrap();
    fs::write(in_the_way.join("file"), "").unwrap();
    let output = site.step("bcast=blocked", &looks);
    assert!(!output.status.success(), "{output:?} {:?}", log());
    assert!(output.stdout.is_empty(), "{output:?}");
}
