//! What packages install beside the command: systemd's units, and scripts for Slurm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::FABRICAST;
use crate::common::hosts::Hosts;
use crate::common::{Run, Scratch};
use rustix::process::Signal;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

/// The units, with the command that was built in place of the installed one.
fn units(dir: &Scratch) -> Vec<PathBuf> {
    let units = fs::read_dir(packaging().join("systemd")).unwrap();
    let copy = |unit: std::io::Result<fs::DirEntry>| {
        let unit = unit.unwrap();
        let text = fs::read_to_string(unit.path()).unwrap();
        assert!(text.contains("/usr/bin/fabricast "), "{unit:?}");
        let path = dir.path(unit.file_name().to_str().unwrap());
        fs::write(&path, text.replace("/usr/bin/fabricast", FABRICAST)).unwrap();
        path
    };
    let units: Vec<PathBuf> = units.map(copy).collect();
    assert_eq!(units.len(), 2);
    units
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let dir = Scratch::new();
    for unit in units(&dir) {
        let instance = unit.to_str().unwrap().replace('@', "@images");
        let verify = Command::new("systemd-analyze")
            .args(["verify", "--man=no", &instance])
            .output();
        let Ok(verified) = verify else {
            println!("skipped: there is no systemd-analyze here");
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr);
        let name = unit.file_name().unwrap().to_str().unwrap();
        assert!(verified.status.success() && !said.contains(name), "{said}");
    }
}

/// The commands of the units start, with what an administrator may set, and SIGTERM ends them.
#[test]
fn the_commands_of_the_units_are_understood() {
    let dir = Scratch::new();
    fs::create_dir(dir.path("images")).unwrap();
    let (path, to) = (dir.path("images"), dir.path("to"));
    for unit in units(&dir) {
        let text = fs::read_to_string(unit).unwrap();
        let command = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let words = command
            .unwrap()
            .split(' ')
            .skip(1)
            .flat_map(|word| match word {
                "${DIR}" => vec![path.to_str().unwrap()],
                "${DEST}" => vec![to.to_str().unwrap()],
                "${FROM}" => vec!["127.0.0.1:9"],
                "$OPTIONS" if text.contains("fabricast serve") => {
                    vec!["--json", "--port", "0", "--interface", "127.0.0.1"]
                }
                "$OPTIONS" => vec!["--json"],
                "%i" => vec!["images"],
                word => vec![word],
            });
        let mut run = Run::start(words);
        run.until_any(&["serving", "waiting"]);
        run.signal(Signal::TERM);
        run.end().expect(0);
    }
}

/// The script for Slurm, in a job whose nodes are these hosts. It copies `source` to `dest`.
fn bcast(hosts: &Hosts, args: &[&str], source: &Path, dest: &Path) -> Command {
    let launch = format!("{} {{host}}", hosts.dir.path("launch").display());
    let path = Path::new(FABRICAST).parent().unwrap().to_str().unwrap();
    let mut command = Command::new(packaging().join("slurm/bcast"));
    command.args(args).arg(source).arg(dest);
    command.args(["--launch", &launch, "--remote-fabricast", FABRICAST]);
    command.args(["--interface", "127.0.0.1"]);
    command.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()));
    command.env("SLURM_JOB_NODELIST", hosts.names.join(","));
    command.env("SLURM_JOB_ID", "7");
    // The temporary files of the script and of nothing else.
    let temporary = hosts.dir.path("temporary");
    fs::create_dir_all(&temporary).unwrap();
    command.env("TMPDIR", temporary);
    command
}

#[track_caller]
fn expect_no_temporary_files(hosts: &Hosts) {
    let left = fs::read_dir(hosts.dir.path("temporary")).unwrap();
    assert_eq!(left.count(), 0);
}

/// `bcast` takes what `sbcast` takes, and the nodes of the job get the file by its new name.
#[test]
fn the_script_for_slurm_spells_as_sbcast_does() {
    // Both hosts are this machine, so they get it under the same path, one after the other.
    let hosts = Hosts::new(&["n1", "n2"]);
    let source = hosts.dir.file("a source", 100_000);
    let to = hosts.dir.path("the place");
    fs::create_dir(&to).unwrap();
    let run = |args: &[&str], dest: &Path| {
        let mut command = bcast(&hosts, args, &source, dest);
        command.arg("--quiet").output().unwrap()
    };
    let short = "-f -p -C -F 8 -s 8m -t 60 -j 7 -v";
    let joined = "-fpvs8m -Clz4 -t60 -j7 --";
    let long = "--force --preserve --compress=lz4 --fanout=8 --size 8m --timeout=60 --jobid 7 \
                --verbose --treewidth=9";
    for (i, args) in [short, joined, long].iter().enumerate() {
        let args: Vec<&str> = args.split_whitespace().collect();
        let done = run(&args, &to.join(format!("new name {i}")));
        assert!(done.status.success(), "{args:?}: {done:?}");
        assert_eq!(
            fs::read(to.join(format!("new name {i}"))).unwrap(),
            fs::read(&source).unwrap()
        );
    }
    let done = run(&[], &to.join("new name 0"));
    assert!(
        !done.status.success(),
        "it replaces a file without -f: {done:?}"
    );
    for (args, why) in [
        (&["-x"][..], "-x is no option"),
        (&["-fx"], "-x is no option"),
        (&["--send-libs"], "--send-libs is no option"),
        (&["--force=yes"], "--force takes no value"),
        (&["--jobid=8"], "does not run in job 8"),
    ] {
        let done = run(args, &to.join("not there"));
        assert_eq!(done.status.code(), Some(2), "{done:?}");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains(why), "{said}");
    }
    expect_no_temporary_files(&hosts);
}

/// SIGTERM to the script alone ends the copy, and nothing of it is left.
#[test]
fn a_signal_to_the_script_for_slurm_ends_the_copy() {
    let hosts = Hosts::new(&["n1"]);
    hosts.behave("n1", "exec sleep 1000");
    let source = hosts.dir.file("source", 5);
    let mut command = bcast(&hosts, &[], &source, &hosts.dir.path("dest"));
    command.arg("--json");
    let mut run = Run::spawn(command);
    run.until("listening", |_| true);
    run.signal(Signal::TERM);
    let end = run.end();
    assert!(end.code.is_some_and(|code| code != 0), "{end:#?}");
    hosts.expect_none_left();
    expect_no_temporary_files(&hosts);
}
