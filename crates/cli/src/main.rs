//! The `fabricast` command: options in, one transfer, words and an exit code out.
//!
//! `args` reads the command line, `send` and `recv` run one transfer each and tell it through
//! `output` (words for people, JSON lines for programs), `demo` runs both many times as processes
//! of their own. `run` becomes an MPI launcher.
#![forbid(unsafe_code)]

mod args;
mod demo;
mod output;
mod recv;
mod run;
mod send;

use std::process::ExitCode;

use clap::Parser;
use fabricast::error::exit;
use fabricast_console::watch_signals;

fn main() -> ExitCode {
    let args = args::Args::parse();
    // A launcher is to find this process as it was started.
    if let args::Command::Run(a) = &args.command {
        return run::run(a).into();
    }
    let interrupt = match watch_signals(true) {
        Ok(interrupt) => interrupt,
        Err(e) => {
            eprintln!("fabricast: cannot watch for signals: {e}");
            return ExitCode::from(exit::IO);
        }
    };
    raise_descriptor_limit();
    ExitCode::from(match args.command {
        args::Command::Send(a) => send::run(&a, interrupt),
        args::Command::Recv(a) => recv::run(&a, interrupt),
        args::Command::Run(a) => run::run(&a),
        args::Command::Demo(a) => demo::run(&a, interrupt),
    })
}

/// Each receiver is one connection at the sender; many systems allow 1024 unless asked.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
