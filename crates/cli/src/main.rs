//! The `fabricast` command: options in, one transfer, words and an exit code out.
//!
//! `args` reads the command line, `send` and `recv` run one transfer each and tell it through
//! `output` (words for people, JSON lines for programs), `demo` runs both many times as processes
//! of their own. `run` becomes an MPI launcher. `sim`, `model` and `papers` need no network: what
//! runs, what is reckoned, and both beside what the papers measured.
#![forbid(unsafe_code)]

mod args;
mod compare;
mod demo;
mod model;
mod output;
mod papers;
mod pingpong;
mod recv;
mod run;
mod send;
mod sim;
mod units;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

use fabricast::error::exit;

fn main() -> ExitCode {
    let args = args::Args::parse();
    // A launcher is to find this process as it was started.
    let launches = matches!(args.command, args::Command::Run(_));
    let watched = match launches {
        true => Ok(Arc::default()),
        false => watch_signals(ends_in_order(&args.command)),
    };
    let interrupt = match watched {
        Ok(interrupt) => interrupt,
        Err(e) => {
            eprintln!("fabricast: cannot watch for signals: {e}");
            return ExitCode::from(exit::IO);
        }
    };
    if !launches {
        raise_descriptor_limit();
    }
    ExitCode::from(match args.command {
        args::Command::Send(a) => send::run(&a, interrupt),
        args::Command::Recv(a) => recv::run(&a, interrupt),
        args::Command::Run(a) => run::run(&a),
        args::Command::Demo(a) => demo::run(&a, interrupt),
        args::Command::Sim(a) => sim::run(&a, interrupt),
        args::Command::Model(a) => model::run(&a),
        args::Command::Papers(a) => papers::run(&a, interrupt),
    })
}

/// Whether a command that is interrupted has something to tell or to tidy up.
fn ends_in_order(command: &args::Command) -> bool {
    use args::{Command, SimCommand};
    match command {
        Command::Send(_) | Command::Recv(_) | Command::Demo(_) | Command::Papers(_) => true,
        Command::Sim(sim) => matches!(
            sim.command,
            SimCommand::Soak { .. } | SimCommand::Compare(_)
        ),
        Command::Model(_) | Command::Run(_) => false,
    }
}

/// The first signal asks for an orderly end, if there is one; the next one ends the process.
fn watch_signals(in_order: bool) -> std::io::Result<Arc<AtomicBool>> {
    let interrupt = Arc::new(AtomicBool::new(!in_order));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), interrupt.clone())?;
        flag::register(signal, interrupt.clone())?;
    }
    // A limit on file sizes is an error like a full disk, not the death of the process.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(interrupt)
}

/// Each receiver is one connection at the sender; many systems allow 1024 unless asked.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
