//! Hosts for `fabricast copy`: folders of this machine, and a script that stands for the launcher.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use super::{AT_ONCE, End, FABRICAST, Run, Scratch, same};

/// Hosts that are folders of this machine.
pub struct Hosts {
    pub dir: Scratch,
    pub names: Vec<&'static str>,
}

impl Hosts {
    /// Hosts on which a command runs as on this machine.
    pub fn new(names: &[&'static str]) -> Hosts {
        Hosts::reached_by(names, "")
    }

    /// Hosts on which the command behind these words of a shell runs; `$host` is the host's name.
    pub fn reached_by(names: &[&'static str], words: &str) -> Hosts {
        let dir = Scratch::new();
        for name in names {
            fs::create_dir(dir.path(name)).unwrap();
        }
        let hosts = Hosts {
            dir,
            names: names.to_vec(),
        };
        // Runs the command in the host's folder, or the host's own script with it.
        let launch = format!(
            "host=$1 && cd \"${{0%/*}}/$host\" || exit 255\nshift\n\
             [ -x ../\"$host.sh\" ] && set -- ../\"$host.sh\" \"$@\"\nexec {words} \"$@\"\n"
        );
        hosts.script("launch", &launch);
        hosts
    }

    /// Writes a program that runs this as a shell.
    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path(name);
        // Another test that forks meanwhile would have the file open for writing.
        let made = Command::new("sh")
            .args(["-c", "printf %s \"$2\" >\"$1\" && chmod +x \"$1\"", "sh"])
            .arg(&path)
            .arg(format!("#!/bin/sh\n{text}"))
            .status();
        assert!(made.unwrap().success());
        path
    }

    /// Has this script run the command on a host.
    pub fn behave(&self, host: &str, text: &str) {
        self.script(&format!("{host}.sh"), text);
    }

    /// The command that copies `source` to these hosts, with a launcher that runs our script.
    pub fn command(&self, source: &Path, to: &str, args: &[&str]) -> Command {
        let launch = format!("{} {{host}}", self.dir.path("launch").display());
        let mut command = Command::new(FABRICAST);
        command.arg("copy").arg(source).arg(to).args(args);
        command.args(["--interface", "127.0.0.1", "--launch", &launch]);
        command.args(["--remote-fabricast", FABRICAST]);
        command.env_remove("SLURM_JOB_ID");
        command
    }

    pub fn copy(&self, source: &Path, to: &str, args: &[&str]) -> Run {
        let mut command = self.command(source, to, args);
        command.arg("--json");
        Run::spawn(command)
    }

    /// The value of PATH with which programs of this test are found first.
    pub fn search_path(&self) -> String {
        let others = std::env::var("PATH").unwrap();
        format!("{}:{others}", self.dir.path("").display())
    }

    /// The processes whose arguments or folder name the folder of this test, without `but`.
    pub fn processes(&self, but: Option<Pid>) -> Vec<Pid> {
        let dir = self.dir.path("");
        let dir = dir.to_str().unwrap(); // with a slash at its end
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
                continue;
            };
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let at = fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let pid = Pid::from_raw(pid).unwrap();
            if (words.contains(dir) || at.starts_with(dir)) && Some(pid) != but {
                found.push(pid);
            }
        }
        found
    }

    /// Checks that no process of this test is left. A killed one still exists for a moment.
    #[track_caller]
    pub fn expect_none_left(&self) {
        for pid in self.processes(None) {
            let words = words(pid);
            let end = pidfd_open(pid, PidfdFlags::empty());
            assert!(
                end.as_ref().map_or(true, is_ended),
                "{pid:?} is left: {words}"
            );
        }
    }

    /// Checks that the source is on this host, in the folder `dest`.
    #[track_caller]
    pub fn has(&self, host: &str, dest: &str, source: &Path) {
        let name = source.file_name().unwrap();
        same(source, &self.dir.path(host).join(dest).join(name));
    }

    /// Checks that the folder `dest` of this host holds nothing but what a receiver keeps for its
    /// next run, under hidden names.
    #[track_caller]
    pub fn has_only_what_is_kept(&self, host: &str, dest: &str) {
        for entry in fs::read_dir(self.dir.path(host).join(dest)).unwrap() {
            let name = entry.unwrap().file_name();
            let is_kept = name.as_encoded_bytes().starts_with(b".fabricast-");
            assert!(is_kept, "{name:?}");
        }
    }
}

/// The event of a host.
pub fn host<'a>(end: &'a End, name: &str) -> &'a Value {
    let mut all = end.all("host").filter(|e| e["host"] == name);
    all.next()
        .unwrap_or_else(|| panic!("no host {name}: {end:#?}"))
}

/// The arguments of a process; empty if it has ended.
pub fn words(pid: Pid) -> String {
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Waits a moment until the process of a descriptor has ended; false if it has not.
pub fn is_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    poll(&mut ended, Some(&AT_ONCE.try_into().unwrap())) == Ok(1)
}
