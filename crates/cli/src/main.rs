//! The `fabricast` command: options in, one transfer, words and an exit code out.
//!
//! `args` reads the command line, `send` and `recv` run one transfer each and tell it through
//! `output` (words for people, JSON lines for programs), `demo` runs both many times as processes
//! of their own. `settings` names the options in the library's messages. `run` becomes an MPI
//! launcher.
#![forbid(unsafe_code)]

mod args;
mod demo;
mod output;
mod recv;
mod run;
mod send;
mod settings;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use fabricast::error::exit;
use fabricast_console::watch_signals;

fn main() -> ExitCode {
    ExitCode::from(match args::Args::parse().command {
        args::Command::Send(a) => prepared(|interrupt| send::run(&a, interrupt)),
        args::Command::Recv(a) => prepared(|interrupt| recv::run(&a, interrupt)),
        args::Command::Demo(a) => prepared(|interrupt| demo::run(&a, interrupt)),
        // A launcher is to find this process as it was started.
        args::Command::Run(a) => run::run(&a),
    })
}

/// Runs what a signal ends in order and what needs many descriptors; the exit code.
fn prepared(run: impl FnOnce(Arc<AtomicBool>) -> u8) -> u8 {
    let interrupt = match watch_signals(true) {
        Ok(interrupt) => interrupt,
        Err(e) => {
            eprintln!("fabricast: cannot watch for signals: {e}");
            return exit::IO;
        }
    };
    raise_descriptor_limit();
    run(interrupt)
}

/// Each receiver is one connection at the sender; many systems allow 1024 unless asked.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
