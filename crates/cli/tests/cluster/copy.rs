//! `fabricast copy` to hosts that are network namespaces, by a launcher of the testbed. Needs root.

use std::fs;
use std::path::Path;

use crate::common::FABRICAST;
use crate::common::hosts::{Hosts, host};
use crate::common::{Run, same};
use crate::in_memory::InMemory;
use crate::net::Cluster;
use rustix::process::Signal;
use serde_json::json;

const NAMES: [&str; 8] = ["h2", "h3", "h4", "h5", "h6", "h7", "h8", "h9"];
const ALL: &str = "h[2-9]:out";

/// A cluster, and the folders of its hosts; `None` where no cluster can run.
fn up(others: &[&'static str]) -> Option<(Cluster, Hosts)> {
    let cluster = Cluster::up(NAMES.len(), &["--rate", "200mbit"])?;
    let reached = cluster.exec("$host", "--");
    let words = std::iter::once(reached.get_program()).chain(reached.get_args());
    let words: Vec<_> = words.map(|word| word.to_str().unwrap()).collect();
    // The last word would be a program.
    let words = words[..words.len() - 1].join(" ");
    let names = [&NAMES, others].concat();
    Some((cluster, Hosts::reached_by(&names, &words)))
}

/// A copy that runs on h1.
fn copy(cluster: &Cluster, hosts: &Hosts, source: &Path, to: &str, args: &[&str]) -> Run {
    let launch = format!("{} {{host}}", hosts.dir.path("launch").display());
    let mut command = cluster.command("h1", &["copy"]);
    command.arg(source).arg(to).args(args);
    command.args(["--json", "--interface", "eth0", "--launch", &launch]);
    command.args(["--remote-fabricast", FABRICAST]);
    Run::spawn(command)
}

#[test]
fn eight_hosts_get_a_tree_and_bad_ones_are_told() {
    let Some((cluster, hosts)) = up(&["h99"]) else {
        return;
    };
    let tree = hosts.dir.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::rename(hosts.dir.file("large", 8_000_000), tree.join("large")).unwrap();
    for n in 0..100 {
        fs::write(tree.join(format!("sub/{n}")), n.to_string()).unwrap();
    }
    let has = |name: &str, dest: &str| {
        let copied = hosts.dir.path(name).join(dest).join("tree");
        same(&tree.join("large"), &copied.join("large"));
        for n in 0..100 {
            let file = format!("sub/{n}");
            same(&tree.join(&file), &copied.join(&file));
        }
    };
    let end = copy(&cluster, &hosts, &tree, ALL, &[]).end().expect(0);
    for name in NAMES {
        assert_eq!(end.result(name)["state"], "verified");
        assert_eq!(end.result(name)["reach"], "multicast");
        has(name, "out");
    }

    // One host does not exist, one has no space, one cannot reach the sender.
    let full = InMemory::at(hosts.dir.path("h3"), "2m");
    cluster.run(&["link", "h5", "down"]);
    let patience = ["--start-timeout", "8s", "--min-receivers", "6"];
    let to = "h[2-9],h99:again";
    let end = copy(&cluster, &hosts, &tree, to, &patience).end().expect(4);
    drop(full);
    for name in NAMES.iter().filter(|name| !["h3", "h5"].contains(name)) {
        assert_eq!(end.result(name)["state"], "verified");
        has(name, "again");
    }
    let unknown = host(&end, "h99");
    assert_eq!(unknown["absent"], true);
    assert!(unknown["lines"].to_string().contains("h99"), "{unknown}");
    assert_eq!(end.result("h3")["state"], "refused");
    assert!(end.result("h3")["reason"].to_string().contains("no space"));
    assert_eq!(host(&end, "h3")["code"], 7);
    let cut = host(&end, "h5");
    assert_eq!((&cut["absent"], &cut["code"]), (&json!(true), &json!(8)));
    assert!(cut["lines"].to_string().contains("Still trying"), "{cut}");
    let summary = end.one("summary");
    assert_eq!(
        (&summary["verified"], &summary["absent"]),
        (&json!(6), &json!(2))
    );
    hosts.expect_none_left();
}

#[test]
fn ctrl_c_leaves_nothing_running_on_eight_hosts() {
    let Some((cluster, hosts)) = up(&[]) else {
        return;
    };
    let source = hosts.dir.file("source", 40_000_000);
    // On this host something goes on when the receiver has ended.
    hosts.behave("h4", "trap '' HUP TERM; \"$@\"; sleep 1000");
    let mut run = copy(&cluster, &hosts, &source, ALL, &[]);
    run.until_share(20);
    let all = hosts.processes(Some(run.pid()));
    assert!(all.len() >= NAMES.len());
    run.signal(Signal::INT);
    let end = run.end().expect(130);
    hosts.expect_none_left();
    for name in NAMES {
        assert_eq!(end.result(name)["state"], "failed");
        hosts.has_only_what_is_kept(name, "out");
    }
}
