//! What is told, to people or to programs, and where: results go to standard output, everything
//! that happens on the way to standard error, and JSON lines all to standard output.

use std::cell::Cell;
use std::io::{self, IsTerminal, Write};

use fabricast::error::{Error, exit};
use fabricast::text::{escaped, harmless};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::args::Net;

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
        let (code, text) = (error.exit_code(), error.to_string());
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
            // All of them have numbers of four digits.
            false => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out
}

/// The exit code of a command that was to end with `code`, once what it says has been written. A
/// reader that has gone away (a closed pipe) has read enough.
pub fn written(result: io::Result<()>, code: u8) -> u8 {
    match result {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("fabricast: writing to standard output: {e}");
            exit::IO
        }
        _ => code,
    }
}

/// Whether somebody at a terminal can be asked: standard input is one, and is not another job's.
/// The kernel stops a process that was started in the background (`&`) when it reads.
pub fn reads_terminal() -> bool {
    let stdin = std::io::stdin();
    let others = rustix::termios::tcgetpgrp(&stdin).is_ok_and(|g| g != rustix::process::getpgrp());
    stdin.is_terminal() && !others
}

/// The one bar that there is.
pub fn bar(len: u64) -> ProgressBar {
    let bar =
        ProgressBar::with_draw_target(Some(len.max(1)), ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{bar:24} {percent:>3}%  {msg}")
        .expect("the template is sound")
        .progress_chars("=> ");
    bar.set_style(style);
    bar
}

/// A table: columns as wide as they need, the first two to the left, numbers to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |c: usize| {
        let cells = rows.iter().map(|r| r[c].chars().count());
        cells.chain([head[c].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let head: Vec<String> = head.iter().map(|h| h.to_string()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let cells = row.iter().zip(&widths).enumerate();
        let line: Vec<String> = cells
            .map(|(c, (cell, &w))| match c {
                0 | 1 => format!("{cell:<w$}"),
                _ => format!("{cell:>w$}"),
            })
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The same table as Markdown.
pub fn markdown(head: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|h| h.to_string()).collect();
    let sides: Vec<String> = (0..head.len())
        .map(|c| if c < 2 { "---" } else { "---:" }.to_string())
        .collect();
    let rows: String = rows.iter().map(|row| line(row)).collect();
    format!("{}{}{rows}", line(&head), line(&sides))
}
