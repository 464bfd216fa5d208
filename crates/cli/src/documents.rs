//! What shells and `man` read about the command: made from the same definition as `--help`.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use fabricast::error::exit;

use crate::args::Args;

/// Prints a shell's completion file; the exit code.
pub fn completions(shell: Shell) -> u8 {
    let mut file = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "fabricast", &mut file);
    match io::stdout().write_all(&file) {
        Ok(()) => 0,
        Err(e) => failed("cannot print the completion file", &e),
    }
}

/// Writes a manual page for the command and for each of its commands; the exit code.
pub fn manual(directory: &Path) -> u8 {
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Args::command(), directory));
    match written {
        Ok(()) => 0,
        Err(e) => failed(
            &format!("cannot write manual pages into {}", directory.display()),
            &e,
        ),
    }
}

fn failed(what: &str, why: &io::Error) -> u8 {
    eprintln!("fabricast: {what}: {why}");
    exit::IO
}
