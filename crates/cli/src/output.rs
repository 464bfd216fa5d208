//! Prints results and events. For people, results go to standard output and everything else to
//! standard error. JSON lines all go to standard output. Where a received file goes to standard
//! output, everything goes to standard error.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

use fabricast::error::{Error, exit};
use fabricast::feed::shown_number;
use fabricast::text::{escaped, harmless};
use fabricast_console::{bar, endless_bar};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use crate::args::Net;
use crate::settings::with_options;

/// Where and how to print.
pub struct Output {
    /// Whether results and JSON lines go to standard error.
    to_stderr: bool,
    json: bool,
    quiet: bool,
    /// Whether people read errors and nothing else.
    errors_alone: bool,
    /// The transfer that is told of, if there are several.
    about: Option<u64>,
    /// The progress bar of each transfer.
    bars: BTreeMap<Option<u64>, ProgressBar>,
    /// Draws the bars below each other.
    screen: MultiProgress,
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
            errors_alone: net.quiet && !net.json,
            about: None,
            bars: BTreeMap::new(),
            screen: MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)),
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

    /// Has `print` tell of this transfer, one of several: its number goes with events and lines.
    pub fn about<T>(&mut self, transfer: u64, print: impl FnOnce(&mut Output) -> T) -> T {
        let before = self.about.replace(transfer);
        let result = print(self);
        self.about = before;
        result
    }

    /// What stands before a line.
    fn prefix(&self) -> String {
        let shown = |transfer| format!("[{}] ", shown_number(transfer));
        self.about.map_or(String::new(), shown)
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
        if !self.json {
            return;
        }
        let line = match self.about {
            None => serde_json::to_string(event),
            Some(transfer) => serde_json::to_value(event).map(|mut event| {
                if let Value::Object(fields) = &mut event {
                    fields.insert("transfer".into(), json!(shown_number(transfer)));
                }
                event.to_string()
            }),
        };
        if let Ok(line) = line {
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
        self.to_terminal(&format!("{}{}", self.prefix(), escaped(line)));
    }

    /// Writes to standard error, above the bars.
    fn to_terminal(&self, text: &str) {
        self.screen
            .suspend(|| drop(writeln!(std::io::stderr(), "{text}")));
    }

    /// Prints for people what is wrong, to standard error, also if they want to read nothing else.
    pub fn complain(&self, text: &str) {
        self.to_terminal(&format!("fabricast: {}{text}", self.prefix()));
    }

    /// Prints for people what is wrong with a part of the result, if they read errors and nothing
    /// else. Otherwise the result says so.
    pub fn complain_alone(&self, text: &str) {
        if self.errors_alone {
            self.complain(text);
        }
    }

    /// Prints a result for people, to standard output.
    pub fn print(&self, text: &str) {
        if !self.quiet {
            self.screen.suspend(|| self.write(text));
        }
    }

    /// Shows progress towards `len`, if that is known, if standard error is a terminal.
    pub fn progress(&mut self, done: u64, len: Option<u64>, text: String) {
        if self.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let new = || len.map_or_else(endless_bar, bar);
        let new = || self.screen.add(new());
        let text = self.prefix() + &text;
        let bar = self.bars.entry(self.about).or_insert_with(new);
        bar.set_position(done);
        bar.set_message(text);
    }

    /// Removes the progress bar of the transfer that is told of.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bars.remove(&self.about) {
            bar.finish_and_clear();
            self.screen.remove(&bar);
        }
    }

    /// Prints an error. Returns its exit code.
    pub fn error(&mut self, error: &Error) -> u8 {
        self.finish();
        let (code, text) = (error.exit_code(), with_options(&error.to_string()));
        if self.json {
            self.event(&json!({"event": "error", "code": code, "text": text}));
        }
        self.complain(&text);
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
