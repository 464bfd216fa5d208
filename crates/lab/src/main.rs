//! The `fabricast-lab` command: simulations (`sim`), the papers' models (`model`), and both beside
//! the papers' measurements (`papers`). Only `papers --live` and `subnet` use a network.
#![forbid(unsafe_code)]

mod agent;
mod args;
mod command;
mod live;
mod measure;

use std::process::ExitCode;

use clap::Parser;
use fabricast::error::Error;
use fabricast_console::watch_signals;

use args::{Args, Command, SimCommand};

fn main() -> ExitCode {
    let args = Args::parse();
    let interrupt = match watch_signals(ends_in_order(&args.command)) {
        Ok(interrupt) => interrupt,
        Err(e) => return command::fail(&Error::io("watching for signals", e)).into(),
    };
    ExitCode::from(match args.command {
        Command::Sim(a) => command::sim::run(&a, &interrupt),
        Command::Model(a) => command::model::run(&a),
        Command::Papers(a) => command::papers::run(&a, &interrupt),
        Command::Subnet(a) => command::subnet::run(&a),
    })
}

/// Whether a command that is interrupted still prints or cleans up something.
fn ends_in_order(command: &Command) -> bool {
    match command {
        Command::Papers(_) => true,
        Command::Sim(sim) => matches!(
            sim.command,
            SimCommand::Soak { .. } | SimCommand::Compare(_)
        ),
        Command::Model(_) | Command::Subnet(_) => false,
    }
}
