//! Runs the command to its end.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// The command with these arguments, not yet started.
pub fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fabricast-lab"));
    command.args(args);
    command
}

/// Runs the command.
pub fn run(args: &[&str]) -> Output {
    lab(args).output().unwrap()
}

/// Runs the command for programs. It must succeed. Returns its JSON lines.
#[track_caller]
pub fn lines(args: &[&str]) -> Lines {
    Lines::of(run(&[args, &["--json"]].concat()))
}

/// JSON lines that a command printed.
pub struct Lines(Vec<Value>);

impl Lines {
    /// Parses the output of a run that succeeded.
    #[track_caller]
    pub fn of(out: Output) -> Lines {
        assert!(out.status.success(), "{out:?}");
        let text = String::from_utf8(out.stdout).unwrap();
        let line = |l: &str| serde_json::from_str(l).unwrap();
        Lines(text.lines().map(line).collect())
    }

    /// All events of a kind.
    pub fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |e| e["event"] == kind)
    }
}

/// An empty directory for the test of this name.
pub fn scratch(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}
