//! `fabricast demo`: a sender and several receivers as real processes on the loopback, first by
//! multicast, then by unicast. The demo does not trust their reports: it compares the files itself.
//!
//! The loopback has no link whose capacity copies would share, so the sender emulates one
//! ([`fabricast::transport::link`]). So time and bytes both show what a network would.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabricast::error::{Error, exit};
use fabricast::proto::rng::Rng;
use fabricast_console::{bar, table, units};
use indicatif::ProgressBar;
use serde_json::Value;

use crate::args;
use crate::settings::with_options;

/// Length of the file in bytes, if there is space. A copy takes about a second on the default link,
/// as long as two cores can serve seven receivers at that rate.
const SIZE: u64 = 64 << 20;
/// Time limit of one round, to which is added four times the time that the link needs for a copy
/// to each receiver.
const ROUND_MAX: Duration = Duration::from_secs(60);

/// Runs `fabricast demo`. Returns the exit code.
pub fn run(args: &args::Demo, interrupt: Arc<AtomicBool>) -> u8 {
    match demo(args, &interrupt) {
        Ok(()) => exit::OK,
        // The reader has gone away, so nobody needs the rest.
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => exit::OK,
        Err(error) => {
            eprintln!("fabricast: {}", with_options(&error.to_string()));
            error.exit_code()
        }
    }
}

/// Results of one round.
struct Round {
    way: &'static str,
    seconds: f64,
    wire_bytes: u64,
    repairs: u64,
    injected: u64,
}

fn demo(args: &args::Demo, interrupt: &AtomicBool) -> Result<(), Error> {
    let n = args.receivers as usize;
    let place = Place::new(args.dir.as_deref())?;
    let size = match args.size {
        Some(size) => size,
        None => fitting(&place.0, n)?,
    };
    let link = match args.link.0 {
        Some(rate) => format!(
            "The sender's packets pass an emulated link of {}: a token bucket, because the \
             loopback has no link.\nA multicast packet is charged to it once, since a switch \
             would make the copies; by unicast each receiver's copy is charged.",
            units::bits(rate as f64)
        ),
        None => {
            "No link is emulated: a copy costs only this machine's memory and processor.".into()
        }
    };
    say(&format!(
        "One sender and {n} receivers on this machine, as processes of their own, with a file of \
         {}.\n{link}\nEach process drops {} % of all packets on purpose; they are repaired.\n",
        units::bytes(size),
        args.loss * 100.0,
    ))?;
    let needed = args.link.0.map_or(0, |rate| 4 * n as u64 * size / rate);
    let limit = ROUND_MAX + Duration::from_secs(needed);
    let source = place.0.join("source");
    let hash = make(&source, size)?;
    let mut rounds = Vec::new();
    for (way, reach) in [("multicast", "auto"), ("unicast", "unicast")] {
        let round =
            Transfer::new(args, &place.0, &source, (way, reach), limit, interrupt)?.run()?;
        compare(&place.0, n, &hash)?;
        say(&format!(
            "{way:9}: all {n} files compared here with the source: identical (BLAKE3 {}…)",
            &hash.to_hex()[..16]
        ))?;
        rounds.push(round);
    }
    say("")?;
    let rows: Vec<Vec<String>> = rounds
        .iter()
        .map(|r| {
            vec![
                r.way.into(),
                format!("{:.2} s", r.seconds),
                match size {
                    0 => units::bytes(r.wire_bytes),
                    _ => format!(
                        "{} ({:.2} x the file)",
                        units::bytes(r.wire_bytes),
                        r.wire_bytes as f64 / size as f64
                    ),
                },
                r.repairs.to_string(),
                r.injected.to_string(),
            ]
        })
        .collect();
    let head = [
        "",
        "time",
        "sent by the sender",
        "packets repaired",
        "dropped at the sender",
    ];
    say(&format!("{}{}", table(&head, &rows), verdict(&rounds, n)))
}

/// Compares the two rounds in words.
fn verdict(rounds: &[Round], receivers: usize) -> String {
    let [multicast, unicast] = rounds else {
        return String::new();
    };
    let times = |unicast: f64, multicast: f64| unicast / multicast.max(1e-9);
    let (bytes, seconds) = (
        times(unicast.wire_bytes as f64, multicast.wire_bytes as f64),
        times(unicast.seconds, multicast.seconds),
    );
    format!(
        "\nTo {receivers} receivers, unicast takes {seconds:.1} times as long as multicast, and \
         sends {bytes:.1} times as many bytes."
    )
}

fn say(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "{text}").and_then(|()| out.flush());
    said.map_err(|e| Error::io("writing to standard output", e))
}

/// A directory that is removed when the demo ends, also after an error.
struct Place(PathBuf);

impl Place {
    fn new(parent: Option<&Path>) -> Result<Place, Error> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("fabricast-demo-{}", std::process::id()));
        std::fs::create_dir(&path)
            .map_err(|e| Error::io(format!("making {}", path.display()), e))?;
        Ok(Place(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A length for which the file system can hold the source, a copy for each receiver, and the same
/// again.
fn fitting(dir: &Path, receivers: usize) -> Result<u64, Error> {
    let fs = rustix::fs::statvfs(dir)
        .map_err(|e| Error::io(format!("looking at {}", dir.display()), e))?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let size = SIZE.min(free / (receivers as u64 + 1) / 2);
    match size {
        0..0x10_0000 => Err(Error::NoSpace {
            path: dir.to_owned(),
            detail: "less than a megabyte for each copy; choose another place with --dir".into(),
        }),
        size => Ok(size),
    }
}

fn make(path: &Path, size: u64) -> Result<blake3::Hash, Error> {
    let writing = |e| Error::writing(path, e);
    let mut file = File::create(path).map_err(writing)?;
    let mut rng = Rng::new(size);
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        for word in block.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.bits().to_le_bytes());
        }
        let piece = &block[..left.min(block.len() as u64) as usize];
        hasher.update(piece);
        file.write_all(piece).map_err(writing)?;
        left -= piece.len() as u64;
    }
    Ok(hasher.finalize())
}

fn copy_of(dir: &Path, i: usize) -> PathBuf {
    dir.join(format!("copy-{i}"))
}

/// Compares the hash of each copy with the source's, and removes the copy.
fn compare(dir: &Path, receivers: usize, hash: &blake3::Hash) -> Result<(), Error> {
    let mut block = vec![0; 1 << 20];
    for i in 1..=receivers {
        let path = copy_of(dir, i);
        let reading = |e| Error::io(format!("reading {}", path.display()), e);
        let mut file = File::open(&path).map_err(reading)?;
        let mut hasher = blake3::Hasher::new();
        loop {
            match file.read(&mut block).map_err(reading)? {
                0 => break,
                n => hasher.update(&block[..n]),
            };
        }
        if hasher.finalize() != *hash {
            let text = format!("receiver {i} reports success, but its file differs");
            return Err(Error::Integrity(text));
        }
        std::fs::remove_file(&path).map_err(reading)?;
    }
    Ok(())
}

/// A child process that ends with the demo.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A progress bar that is removed when the round ends, also after an error.
struct Bar(ProgressBar);

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The processes of one round, and the sender's events.
struct Transfer<'a> {
    way: &'static str,
    interrupt: &'a AtomicBool,
    sender: Process,
    events: Receiver<Value>,
    receivers: Vec<Process>,
    limit: Duration,
    until: Instant,
}

impl<'a> Transfer<'a> {
    fn new(
        args: &args::Demo,
        dir: &Path,
        source: &Path,
        (way, reach): (&'static str, &str),
        limit: Duration,
        interrupt: &'a AtomicBool,
    ) -> Result<Transfer<'a>, Error> {
        let exe = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        let starting = |e| Error::io(format!("starting {}", exe.display()), e);
        let loss = (args.loss * 100.0).to_string();
        let n = args.receivers.to_string();
        let mut command = Command::new(&exe);
        command.arg("send").arg(source);
        command.args([
            "--port",
            "0",
            "--interface",
            "127.0.0.1",
            "--no-announce",
            "--json",
        ]);
        command.args([
            "--min-receivers",
            &n,
            "--per-host",
            &n,
            "--start-timeout",
            "20s",
        ]);
        command.args(["--reach", reach, "--inject-loss", &loss]);
        if let Some(rate) = args.link.0 {
            command.args(["--emulate-link", &format!("{rate}B/s")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        // Ctrl-C goes to the demo alone, which ends the others and reports it once.
        command.process_group(0);
        let mut child = command.spawn().map_err(starting)?;
        let output = child.stdout.take().expect("it was asked for");
        let (tell, events) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if serde_json::from_str(&line).is_ok_and(|event| tell.send(event).is_err()) {
                    return;
                }
            }
        });
        let mut transfer = Transfer {
            way,
            interrupt,
            sender: Process(child),
            events,
            receivers: Vec::new(),
            limit,
            until: Instant::now() + limit,
        };
        let address = loop {
            let event = transfer.next()?;
            if event["event"] == "listening" {
                break event["address"].as_str().unwrap_or_default().to_owned();
            }
        };
        for i in 1..=args.receivers as usize {
            let mut command = Command::new(&exe);
            command.arg("recv").arg(copy_of(dir, i));
            command.args(["--from", &address, "--as", &format!("receiver {i}")]);
            command.args([
                "--inject-loss",
                &loss,
                "--no-sync",
                "--quiet",
                "--reserve",
                "0",
            ]);
            command.stdin(Stdio::null()).process_group(0);
            transfer
                .receivers
                .push(Process(command.spawn().map_err(starting)?));
        }
        Ok(transfer)
    }

    /// Waits for the sender's next event.
    fn next(&mut self) -> Result<Value, Error> {
        loop {
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            match self.events.recv_timeout(Duration::from_millis(100)) {
                Ok(event) => return Ok(event),
                Err(RecvTimeoutError::Timeout) if Instant::now() < self.until => {}
                Err(RecvTimeoutError::Timeout) => {
                    let limit = self.limit.as_secs();
                    let text = format!("the {} round took more than {limit} s", self.way);
                    return Err(Error::Timeout(text));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::PeerLost("the sender ended too early".into()));
                }
            }
        }
    }

    fn run(mut self) -> Result<Round, Error> {
        let terminal = std::io::stderr().is_terminal();
        let progress = terminal.then(|| Bar(bar(0)));
        let mut told = Instant::now();
        let summary = loop {
            let event = self.next()?;
            match event["event"].as_str() {
                Some("progress") => {
                    let number = |key: &str| event[key].as_u64().unwrap_or(0);
                    let len = number("len").max(1);
                    let share = |key: &str| number(key) * 100 / len;
                    let text = format!(
                        "{}: slowest {}% median {}% fastest {}%, {} repairs",
                        self.way,
                        share("slowest"),
                        share("median"),
                        share("fastest"),
                        number("repairs")
                    );
                    if let Some(Bar(bar)) = &progress {
                        bar.set_length(len);
                        bar.set_position(number("slowest"));
                        bar.set_message(text);
                    } else if told.elapsed() > Duration::from_secs(1) {
                        told = Instant::now();
                        say(&text)?;
                    }
                }
                Some("failed" | "error") => {
                    let text = event["reason"].as_str().or(event["text"].as_str());
                    let text = text.unwrap_or("failed");
                    match event["receiver"].as_str() {
                        Some(receiver) => eprintln!("{receiver}: {text}"),
                        None => eprintln!("the sender: {text}"),
                    }
                }
                Some("summary") => break event,
                _ => {}
            }
        };
        drop(progress);
        for process in self.receivers.iter_mut().chain([&mut self.sender]) {
            let status = process
                .0
                .wait()
                .map_err(|e| Error::io("waiting for a process", e))?;
            if !status.success() {
                return Err(Error::PeerLost(format!(
                    "a process of the demo failed: {status}"
                )));
            }
        }
        let traffic = |key: &str| summary["traffic"][key].as_u64().unwrap_or(0);
        Ok(Round {
            way: self.way,
            seconds: summary["seconds"].as_f64().unwrap_or(0.0),
            wire_bytes: traffic("wire_bytes"),
            repairs: traffic("repairs_multicast") + traffic("repairs_unicast"),
            injected: traffic("injected"),
        })
    }
}
