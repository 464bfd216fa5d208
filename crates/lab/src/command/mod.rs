//! The output of each command, and its exit code.

mod compare;
pub mod model;
pub mod papers;
pub mod sim;
pub mod subnet;

use std::io::{self, Write};

use fabricast::error::{Error, exit};

/// Prints what went wrong and returns the exit code.
pub fn fail(error: &Error) -> u8 {
    eprintln!("fabricast-lab: {error}");
    error.exit_code()
}

/// The exit code of a command that ends with `code` once its output has been written. A reader that
/// has gone away (a closed pipe) is no error.
fn written(result: io::Result<()>, code: u8) -> u8 {
    match result {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            fail(&Error::io("writing to standard output", e))
        }
        _ => code,
    }
}

/// Prints the whole output of a command and returns the exit code.
fn print(text: &str) -> u8 {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written(result, exit::OK)
}

/// The number of threads; 0 stands for as many as there are processors.
fn at_once(threads: u16) -> usize {
    match threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n.into(),
    }
}
