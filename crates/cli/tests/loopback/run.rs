//! `fabricast run` with a launcher that prints its arguments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::{FABRICAST, Scratch, set_mode};

/// A script that prints its process ID and arguments, and exits with 7.
fn launcher(dir: &Scratch, name: &str) -> PathBuf {
    let script = "#!/bin/sh\n\
                  [ \"$1\" = --version ] && { echo 'mpirun (Open MPI) 4.1.4'; exit 0; }\n\
                  echo \"$$ $*\"\n\
                  exit 7\n";
    let path = dir.path(name);
    fs::write(&path, script).unwrap();
    set_mode(&path, 0o755);
    path
}

fn fabricast(lib: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(FABRICAST);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FABRICAST") {
            command.env_remove(name);
        }
    }
    command.env_remove("LD_PRELOAD").env("FABRICAST_LIB", lib);
    command.arg("run").args(words);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_string()
}

fn out(output: &Output) -> String {
    text(&output.stdout)
}

#[test]
fn it_becomes_the_launcher() {
    let dir = Scratch::new();
    let mpirun = launcher(&dir, "mpirun");
    let library = dir.path("libfabricast-mpi-openmpi.so");
    fs::write(&library, "").unwrap();
    let library = library.canonicalize().unwrap();
    let lib = library.parent().unwrap();
    let mpirun = mpirun.to_str().unwrap();
    let words = [
        "--stats",
        "--",
        mpirun,
        "-n",
        "2",
        "./program",
        "--stats",
        "a b",
    ];
    let child = fabricast(lib, &words)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        out(&output),
        format!(
            "{process} -x FABRICAST_LIB={} -x FABRICAST_STATS=1 -x LD_PRELOAD={} -n 2 ./program \
             --stats a b",
            lib.display(),
            library.display()
        )
    );
    // --dry-run prints the same command and does not start it.
    let mut dry = vec!["--dry-run"];
    dry.extend(words);
    let output = fabricast(lib, &dry).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(out(&output).starts_with(mpirun), "{}", out(&output));
    assert!(
        out(&output).ends_with("./program --stats 'a b'"),
        "{}",
        out(&output)
    );
}

#[test]
fn an_option_that_there_is_not_is_no_launcher() {
    let dir = Scratch::new();
    let output = fabricast(&dir.path("."), &["--nosuch", "--", "mpirun", "./program"])
        .output()
        .unwrap();
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        why.contains("no option --nosuch") && why.contains("--help"),
        "{why}"
    );
}

#[test]
fn without_a_library_it_says_how_to_build_one() {
    let dir = Scratch::new();
    let mpirun = launcher(&dir, "mpirun");
    let mpirun = mpirun.to_str().unwrap();
    let nowhere = dir.path("nowhere");
    let output = fabricast(&nowhere, &["--", mpirun, "./program"])
        .output()
        .unwrap();
    let why = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        why.contains("mpi/build") && why.contains("nowhere"),
        "{why}"
    );
    // With --off it needs no library.
    let output = fabricast(&nowhere, &["--off", "--", mpirun, "./program"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(
        out(&output).contains("FABRICAST=off") && !out(&output).contains("LD_PRELOAD"),
        "{}",
        out(&output)
    );
}

#[test]
fn a_launcher_that_is_not_there_is_named() {
    let dir = Scratch::new();
    let output = fabricast(&dir.path("."), &["--", "no-such-launcher", "x"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = text(&output.stderr);
    assert!(why.contains("no-such-launcher"), "{why}");
}
