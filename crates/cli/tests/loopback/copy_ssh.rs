//! `fabricast copy` by a real ssh and a real sshd with keys of their own.

use std::path::Path;
use std::process::Command;

use crate::common::FABRICAST;
use crate::common::hosts::{Hosts, host, is_ended, words};
use crate::common::{self, Run, same, ssh};
use rustix::process::{PidfdFlags, Signal, pidfd_open};

/// A host that ssh reaches by the name `good`. `None`, with a printed reason, without sshd.
fn up() -> Option<Hosts> {
    let hosts = Hosts::new(&[]);
    if !ssh::prepare(&hosts, &["good"], "") {
        return None;
    }
    let config = hosts.dir.path("ssh_config");
    let real = format!("exec /usr/bin/ssh -F '{}' \"$@\"\n", config.display());
    hosts.script("ssh", &real);
    Some(hosts)
}

/// A copy by the ssh that is found by the PATH.
fn copy(hosts: &Hosts, source: &Path, to: &str, args: &[&str]) -> Run {
    let mut command = Command::new(FABRICAST);
    command.arg("copy").arg(source).arg(to).args(args);
    command.args(["--json", "--interface", "127.0.0.1"]);
    command.args(["--remote-fabricast", FABRICAST]);
    command.env("PATH", hosts.search_path());
    command.env_remove("SLURM_JOB_ID");
    Run::spawn(command)
}

#[test]
fn ssh_starts_the_receiver() {
    let Some(hosts) = up() else { return };
    let source = hosts.dir.file("source", 1_000_000);
    let dest = hosts.dir.path("it's $(touch oops) \"here\"; exit");
    let to = format!("good,unknown:{}", dest.display());
    let end = copy(&hosts, &source, &to, &[]).end().expect(4);
    same(&source, &dest.join("source"));
    assert_eq!(end.result("good")["state"], "verified");
    assert_eq!(host(&end, "good")["code"], 0);
    // Nothing vouches for this host's key.
    let unknown = host(&end, "unknown");
    assert_eq!(
        (&unknown["absent"] == true, &unknown["code"] == 255),
        (true, true)
    );
    assert!(
        unknown["lines"].to_string().contains("verification failed"),
        "{unknown}"
    );
    hosts.expect_none_left();
    // A receiver that cannot take part is told with its exit code.
    let end = copy(&hosts, &source, &to, &[]).end().expect(3);
    assert_eq!(host(&end, "good")["code"], 1);
    assert!(
        host(&end, "good")["lines"]
            .to_string()
            .contains("exists already")
    );
}

#[test]
fn receivers_end_with_their_ssh_and_with_the_copy() {
    let Some(hosts) = up() else { return };
    let source = hosts.dir.file("source", common::SIZE);
    let to = format!("good:{}", hosts.dir.path("out").display());
    for signal in [Signal::INT, Signal::KILL] {
        let mut run = copy(&hosts, &source, &to, &["--rate", "20MB/s"]);
        run.until_share(10);
        let all = hosts.processes(Some(run.pid()));
        assert!(all.iter().any(|pid| words(*pid).contains("recv")));
        let ends: Vec<_> = all
            .iter()
            .filter_map(|pid| pidfd_open(*pid, PidfdFlags::empty()).ok())
            .collect();
        run.signal(signal);
        let end = run.end();
        assert_eq!(end.code, (signal == Signal::INT).then_some(130), "{end:#?}");
        assert!(ends.iter().all(is_ended));
        hosts.expect_none_left();
    }
}
