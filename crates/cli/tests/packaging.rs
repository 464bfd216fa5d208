//! What packages install beside the command: systemd's units, and scripts for Slurm.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::hosts::{FABRICAST, Hosts};
use common::{Run, Scratch};
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

/// `bcast` takes what `sbcast` takes, and the nodes of the job get the file by its new name.
#[test]
fn the_script_for_slurm_spells_as_sbcast_does() {
    let hosts = Hosts::new(&["n1", "n2"]);
    let source = hosts.dir.file("a source", 100_000);
    let launch = hosts.dir.path("launch");
    let launch = format!("{} {{host}}", launch.display());
    let path = Path::new(FABRICAST).parent().unwrap().to_str().unwrap();
    let bcast = |args: &[&str], dest: &Path| {
        let mut command = Command::new(packaging().join("slurm/bcast"));
        command.args(args).arg(&source).arg(dest);
        command.args(["--launch", &launch, "--remote-fabricast", FABRICAST]);
        command.args(["--interface", "127.0.0.1", "--quiet"]);
        command.env("PATH", format!("{path}:{}", std::env::var("PATH").unwrap()));
        command.env("SLURM_JOB_NODELIST", "n[1-2]");
        command.output().unwrap()
    };
    // Both hosts are this machine, so they get it under the same path, one after the other.
    let to = hosts.dir.path("the place");
    fs::create_dir(&to).unwrap();
    let all = ["-f", "-p", "-C", "-F", "8", "-s", "8m", "-t", "60"];
    let done = bcast(&all, &to.join("new name"));
    assert!(done.status.success(), "{done:?}");
    assert_eq!(
        fs::read(to.join("new name")).unwrap(),
        fs::read(&source).unwrap()
    );
    let done = bcast(&[], &to.join("new name"));
    assert!(
        !done.status.success(),
        "it replaces a file without -f: {done:?}"
    );
    let done = bcast(&["-x"], &to);
    assert_eq!(done.status.code(), Some(2), "{done:?}");
}
