//! The `fabricast` command. It reads options, runs one transfer, prints messages, and returns an
//! exit code.
//!
//! `args` reads the command line. `send`, `recv` and `copy` run one transfer each and report it
//! through `output`: text for people, JSON lines for programs. `copy` starts the receivers, too;
//! `sending` and `conclusion` hold what it shares with `send`. `launched` is the end of a receiver
//! that it has started. `serve` is a feed, and `follow` a receiver that follows one, with `hook`
//! and `metrics`; both run their transfers in the `background`. `demo` runs `send` and `recv` as
//! processes of their own. `settings` puts options into the library's messages. `run` becomes an
//! MPI launcher. `documents` writes manual pages and files for shells.
#![forbid(unsafe_code)]

mod args;
mod background;
mod conclusion;
mod copy;
mod demo;
mod documents;
mod follow;
mod hook;
mod launched;
mod metrics;
mod output;
mod recv;
mod run;
mod send;
mod sending;
mod serve;
mod settings;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fabricast::error::exit;
use fabricast_console::{watch_signals, watch_signals_then};

/// The variable with a filter of events, which goes before `--verbose`.
const LOG: &str = "FABRICAST_LOG";

fn main() -> ExitCode {
    ExitCode::from(match args::parsed().command {
        args::Command::Send(a) => logged(a.how.net.verbose, watch_signals(true), |interrupt| {
            send::run(&a, interrupt)
        }),
        args::Command::Recv(a) => logged(a.net.verbose, watch_signals(true), |interrupt| {
            match a.feed.follow {
                true => follow::run(&a, interrupt),
                false => recv::run(&a, interrupt),
            }
        }),
        args::Command::Copy(a) => {
            let groups = copy::Groups::default();
            let all = groups.clone();
            let watched = watch_signals_then(move || all.kill());
            logged(a.how.net.verbose, watched, |interrupt| {
                copy::run(&a, &groups, interrupt)
            })
        }
        args::Command::Serve(a) => logged(a.how.net.verbose, watch_signals(true), |interrupt| {
            serve::run(&a, interrupt)
        }),
        args::Command::Demo(a) => {
            prepared(watch_signals(true), |interrupt| demo::run(&a, interrupt))
        }
        // Not prepared: the launcher must inherit this process's signal handling and limits
        // unchanged.
        args::Command::Run(a) => run::run(&a),
        args::Command::Completions { shell } => documents::completions(shell),
        args::Command::Manual { directory } => documents::manual(&directory),
    })
}

/// Runs a transfer whose events go to standard error, as far as they are wanted; the exit code.
fn logged(
    verbose: u8,
    interrupt: io::Result<Arc<AtomicBool>>,
    run: impl FnOnce(Arc<AtomicBool>) -> u8,
) -> u8 {
    let chosen = match verbose {
        0 => None,
        1 => Some("info"),
        2 => Some("debug"),
        _ => Some("debug,fabricast::ibrmp=trace"),
    };
    let filter = std::env::var(LOG).ok().filter(|filter| !filter.is_empty());
    if let Some(filter) = filter.as_deref().or(chosen)
        && let Err(error) = fabricast::log::to_stderr(filter)
    {
        eprintln!("fabricast: {LOG}: {error}");
        return exit::USAGE;
    }
    prepared(interrupt, run)
}

/// Runs a command that ends in order on a signal, by this flag, and that needs many descriptors.
/// Returns its exit code.
fn prepared(interrupt: io::Result<Arc<AtomicBool>>, run: impl FnOnce(Arc<AtomicBool>) -> u8) -> u8 {
    let interrupt = match interrupt {
        Ok(interrupt) => interrupt,
        Err(e) => {
            eprintln!("fabricast: cannot watch for signals: {e}");
            return exit::IO;
        }
    };
    raise_descriptor_limit();
    run(interrupt)
}

/// Raises the limit of open files: each receiver is one connection at the sender, and many systems
/// allow only 1024 by default.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
