//! What is told, to people or to programs, and where: results go to standard output, everything
//! that happens on the way to standard error, and JSON lines all to standard output.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};

use fabricast::error::{Error, exit};
use fabricast::text::{escaped, harmless};
use fabricast_console::bar;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::args::Net;
use crate::settings::with_options;

/// How to tell.
pub struct Output {
    json: bool,
    quiet: bool,
    bar: Option<ProgressBar>,
    /// Why standard output does not take everything.
    lost: Cell<Option<io::Error>>,
}

impl Output {
    /// As the options say.
    pub fn new(net: &Net) -> Output {
        Output {
            json: net.json,
            quiet: net.quiet || net.json,
            bar: None,
            lost: Cell::new(None),
        }
    }

    /// The exit code of a transfer that ends with `code`: what could not be told is a failure too.
    pub fn code(&mut self, code: u8) -> u8 {
        match self.lost.take() {
            Some(e) if code == exit::OK => self.error(&Error::io("writing to standard output", e)),
            _ => code,
        }
    }

    fn written(&self, result: io::Result<()>) {
        match result {
            // Whoever reads may have gone away; the transfer goes on.
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => self.lost.set(Some(e)),
            _ => {}
        }
    }

    /// A JSON line, if those are wanted.
    pub fn event(&self, event: &impl serde::Serialize) {
        if self.json
            && let Ok(line) = serde_json::to_string(event)
        {
            let line = plain(&line);
            let mut out = std::io::stdout().lock();
            self.written(writeln!(out, "{line}").and_then(|()| out.flush()));
        }
    }

    /// A result as a JSON line: an event of this name with the fields of `value`.
    pub fn result(&self, name: &str, value: &impl serde::Serialize) {
        if let Ok(Value::Object(mut fields)) = serde_json::to_value(value) {
            fields.insert("event".into(), json!(name));
            self.event(&fields);
        }
    }

    /// A line for people, on the way.
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

    /// A result for people.
    pub fn print(&self, text: &str) {
        if !self.quiet {
            let mut out = std::io::stdout().lock();
            self.written(write!(out, "{text}").and_then(|()| out.flush()));
        }
    }

    /// Progress, on a terminal.
    pub fn progress(&mut self, done: u64, len: u64, text: String) {
        if self.quiet || !std::io::stderr().is_terminal() {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(len));
        bar.set_position(done);
        bar.set_message(text);
    }

    /// No more progress.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Says what went wrong; returns the exit code.
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

/// A JSON line in which escapes stand for what could do something to a terminal: it says the same.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match harmless(c) {
            true => out.push(c),
            // Beyond U+FFFF JSON has two escapes for a character.
            false => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    out
}

/// Whether somebody at a terminal can be asked: standard input is one, and is not another job's.
/// The kernel stops a process that was started in the background (`&`) when it reads.
pub fn reads_terminal() -> bool {
    let stdin = std::io::stdin();
    let others = rustix::termios::tcgetpgrp(&stdin).is_ok_and(|g| g != rustix::process::getpgrp());
    stdin.is_terminal() && !others
}
