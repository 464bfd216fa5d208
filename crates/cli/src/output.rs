//! Prints results and events. For people, results go to standard output and everything else to
//! standard error. JSON lines all go to standard output. Where a received file goes to standard
//! output, everything goes to standard error.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};

use fabricast::error::{Error, exit};
use fabricast::text::{escaped, harmless};
use fabricast_console::{bar, endless_bar};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::args::Net;
use crate::settings::with_options;

/// Where and how to print.
pub struct Output {
    /// Whether results and JSON lines go to standard error.
    to_stderr: bool,
    json: bool,
    quiet: bool,
    bar: Option<ProgressBar>,
    /// The last error of writing to standard output.
    lost: Cell<Option<io::Error>>,
}

impl Output {
    /// Takes the options of the command line.
    pub fn new(net: &Net) -> Output {
        Output {
            to_stderr: false,
            json: net.json,
            quiet: net.quiet || net.json,
            bar: None,
            lost: Cell::new(None),
        }
    }

    /// Takes the options of the command line, and leaves standard output alone.
    pub fn to_stderr(net: &Net) -> Output {
        Output {
            to_stderr: true,
            ..Output::new(net)
        }
    }

    fn write(&self, text: &str) {
        self.written(match self.to_stderr {
            true => write!(io::stderr(), "{text}"),
            false => {
                let mut out = io::stdout().lock();
                write!(out, "{text}").and_then(|()| out.flush())
            }
        });
    }

    /// The exit code of a transfer that ends with `code`. A result that could not be written turns
    /// success into failure.
    pub fn code(&mut self, code: u8) -> u8 {
        match self.lost.take() {
            Some(e) if code == exit::OK => self.error(&Error::io("writing to standard output", e)),
            _ => code,
        }
    }

    fn written(&self, result: io::Result<()>) {
        match result {
            // The reader may have gone away; the transfer goes on.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => self.lost.set(Some(e)),
            _ => {}
        }
    }

    /// Prints an event as a JSON line, if `--json` is set.
    pub fn event(&self, event: &impl serde::Serialize) {
        if self.json
            && let Ok(line) = serde_json::to_string(event)
        {
            self.write(&(plain(&line) + "\n"));
        }
    }

    /// Prints a result as a JSON line: an event with the name `name` and the fields of `value`.
    pub fn result(&self, name: &str, value: &impl serde::Serialize) {
        if let Ok(Value::Object(mut fields)) = serde_json::to_value(value) {
            fields.insert("event".into(), json!(name));
            self.event(&fields);
        }
    }

    /// Prints a line for people during a transfer, to standard error.
    pub fn say(&self, line: &str) {
        if self.quiet {
            return;
        }
        let line = escaped(line);
        match &self.bar {
            Some(bar) => bar.println(line.as_ref()),
            None => drop(writeln!(std::io::stderr(), "{line}")),
        }
    }

    /// Prints a result for people, to standard output.
    pub fn print(&self, text: &str) {
        if !self.quiet {
            self.write(text);
        }
    }

    /// Shows progress towards `len`, if that is known, if standard error is a terminal.
    pub fn progress(&mut self, done: u64, len: Option<u64>, text: String) {
        if self.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let new = || len.map_or_else(endless_bar, bar);
        let bar = self.bar.get_or_insert_with(new);
        bar.set_position(done);
        bar.set_message(text);
    }

    /// Removes the progress bar.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Prints an error. Returns its exit code.
    pub fn error(&mut self, error: &Error) -> u8 {
        self.finish();
        let (code, text) = (error.exit_code(), with_options(&error.to_string()));
        if self.json {
            self.event(&json!({"event": "error", "code": code, "text": text}));
        }
        let _ = writeln!(std::io::stderr(), "fabricast: {text}");
        code
    }
}

/// Escapes characters of a JSON line that could affect a terminal. The line means the same.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match harmless(c) {
            true => out.push(c),
            // Above U+FFFF JSON needs two escapes for one character.
            false => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}

/// Whether the user can be asked at a terminal: standard input is one, and belongs to this job. The
/// kernel stops a process that was started in the background (`&`) when it reads.
pub fn reads_terminal() -> bool {
    let stdin = std::io::stdin();
    let others = rustix::termios::tcgetpgrp(&stdin).is_ok_and(|g| g != rustix::process::getpgrp());
    stdin.is_terminal() && !others
}
