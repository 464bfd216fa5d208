//! Real processes of the command, watched through their JSON lines. A test waits for events, and
//! every wait has a time limit.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod attacks;
pub mod control;
pub mod feed;
pub mod hosts;
pub mod ibrmp;
pub mod place;
pub mod ssh;
pub mod tree;

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use fabricast::proto::rng::Rng;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};
use socket2::SockRef;

use place::{Loopback, Place};

/// The command under test: the one that is built with the test, or the one at `FABRICAST_PROGRAM`,
/// an absolute path that counts when the test is built.
pub const FABRICAST: &str = match option_env!("FABRICAST_PROGRAM") {
    Some(program) => program,
    None => env!("CARGO_BIN_EXE_fabricast"),
};
/// Longest time that a test waits for anything.
pub const BOUND: Duration = Duration::from_secs(60);

/// At this rate 32 MB take about 1.6 s: time to interfere.
const STEADY: [&str; 3] = ["--no-announce", "--rate", "20MB/s"];
pub const SIZE: usize = 32_000_000;
/// Time limit for what a process notices by a closed connection: at once, but the machine may be
/// busy.
pub const AT_ONCE: Duration = Duration::from_secs(10);

/// The arguments of a sender with a steady rate that starts with this many receivers.
pub fn steady(count: &'static str) -> Vec<&'static str> {
    let mut args = STEADY.to_vec();
    args.extend(["--min-receivers", count]);
    args
}

/// Whether this user can make a mount namespace. If not, says that the test is skipped.
pub fn may_mount() -> bool {
    let trial = Command::new("unshare").args(["-m", "true"]).status();
    let may = trial.is_ok_and(|status| status.success());
    if !may {
        eprintln!("skipped: this user cannot make a mount namespace");
    }
    may
}

/// The command, started so that the permissions of files bind it also where this user is root.
pub fn bound_by_permissions() -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(FABRICAST);
    }
    let mut command = Command::new("setpriv");
    let less = "--bounding-set=-dac_override,-dac_read_search";
    command.args(["--inh-caps=-all", less, FABRICAST]);
    command
}

/// A directory that is removed when the test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fabricast-test-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file of random bytes.
    pub fn file(&self, name: &str, len: usize) -> PathBuf {
        // Files of the same length must not be equal: they would be sent once.
        let name_sum: u64 = name.bytes().map(u64::from).sum();
        let mut rng = Rng::new(((len as u64) << 16) + name_sum);
        let mut bytes = vec![0; len];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&rng.bits().to_le_bytes()[..word.len()]);
        }
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The names in the directory, sorted, without hidden ones.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let name = |e: std::io::Result<std::fs::DirEntry>| e.unwrap().file_name();
        let mut names: Vec<String> = entries
            .map(|e| name(e).to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

enum Said {
    Event(Value),
    End(ExitStatus, String),
}

/// The end of a process, and everything it printed.
#[derive(Debug)]
pub struct End {
    /// The exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// Every JSON line, in order.
    pub events: Vec<Value>,
    /// Everything on standard error.
    pub stderr: String,
}

impl End {
    /// All events of this name.
    pub fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.events.iter().filter(move |e| e["event"] == kind)
    }

    /// The only event of this name.
    pub fn one(&self, kind: &str) -> &Value {
        let all: Vec<&Value> = self.events.iter().filter(|e| e["event"] == kind).collect();
        match all[..] {
            [one] => one,
            _ => panic!("not one event {kind}: {self:#?}"),
        }
    }

    /// The result event of a receiver.
    pub fn result(&self, receiver: &str) -> &Value {
        let mut all = self.all("result").filter(|e| e["receiver"] == receiver);
        all.next()
            .unwrap_or_else(|| panic!("no result of {receiver}: {self:#?}"))
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> End {
        // The last event says why, and a summary of many tests shows the first lines.
        let last = self.events.last();
        assert_eq!(self.code, Some(code), "{last:?}\n{self:#?}");
        self
    }
}

/// A running process of the command.
pub struct Run {
    pid: Pid,
    told: Receiver<Said>,
    events: Vec<Value>,
    end: Option<(ExitStatus, String)>,
}

impl Run {
    pub fn start<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) -> Run {
        let mut command = Command::new(FABRICAST);
        command.args(args);
        Run::spawn(command)
    }

    /// Starts a program that becomes the command.
    pub fn spawn(mut command: Command) -> Run {
        command.stdin(Stdio::null());
        Run::fed(command)
    }

    /// Starts a program that becomes the command, whose standard input is set.
    pub fn fed(mut command: Command) -> Run {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        Run::watched(child, out, err)
    }

    /// Starts the command with its standard output to `output`. Its events are on standard error.
    pub fn piped<S: AsRef<std::ffi::OsStr>>(
        args: impl IntoIterator<Item = S>,
        output: impl Into<Stdio>,
    ) -> Run {
        let mut command = Command::new(FABRICAST);
        command.args(args).stdin(Stdio::null());
        command.stdout(output).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let err = child.stderr.take().unwrap();
        Run::watched(child, err, std::io::empty())
    }

    /// Watches a process that prints events to `out` and words to `err`.
    fn watched(
        mut child: Child,
        out: impl Read + Send + 'static,
        mut err: impl Read + Send + 'static,
    ) -> Run {
        let pid = Pid::from_child(&child);
        let (tell, told) = channel();
        thread::spawn(move || {
            let words = thread::spawn(move || {
                let mut words = String::new();
                let _ = err.read_to_string(&mut words);
                words
            });
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str(&line) {
                    let _ = tell.send(Said::Event(event));
                }
            }
            let status = child.wait().unwrap();
            let _ = tell.send(Said::End(status, words.join().unwrap()));
        });
        Run {
            pid,
            told,
            events: Vec::new(),
            end: None,
        }
    }

    /// Reads the next event. Returns false at the end of the output.
    fn turn(&mut self, until: Instant, what: &str) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        match self.told.recv_timeout(left) {
            Ok(Said::Event(event)) => {
                self.events.push(event);
                true
            }
            Ok(Said::End(status, words)) => {
                self.end = Some((status, words));
                false
            }
            Err(_) => panic!("waited too long for {what}: {:#?}", self.events),
        }
    }

    /// Waits for an event for which `right` is true.
    pub fn until(&mut self, kind: &str, right: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + BOUND;
        while self.end.is_none() && self.turn(until, kind) {
            let event = self.events.last().unwrap();
            if event["event"] == kind && right(event) {
                return event.clone();
            }
        }
        panic!("it ended before {kind}: {:#?} {:?}", self.events, self.end);
    }

    /// Waits for an event for which `right` is true, unless there was one already.
    pub fn until_ever(&mut self, kind: &str, right: impl Fn(&Value) -> bool) -> Value {
        let is_right = |event: &&Value| event["event"] == kind && right(event);
        match self.events.iter().find(is_right) {
            Some(event) => event.clone(),
            None => self.until(kind, right),
        }
    }

    /// Waits for the next event with one of these names.
    pub fn until_any(&mut self, kinds: &[&str]) -> Value {
        let until = Instant::now() + BOUND;
        while self.end.is_none() && self.turn(until, kinds[0]) {
            let event = self.events.last().unwrap();
            if kinds.iter().any(|kind| event["event"] == *kind) {
                return event.clone();
            }
        }
        panic!(
            "it ended before {kinds:?}: {:#?} {:?}",
            self.events, self.end
        );
    }

    /// Waits until the slowest receiver, or this receiver, has this share of the file, in percent.
    pub fn until_share(&mut self, percent: u64) {
        self.until("progress", |e| {
            let key = if e["slowest"].is_u64() {
                "slowest"
            } else {
                "placed"
            };
            has_share(e, key, percent)
        });
    }

    /// Waits until the progress that is called `key` has this share of the file, in percent.
    pub fn until_share_of(&mut self, key: &str, percent: u64) {
        self.until("progress", |e| has_share(e, key, percent));
    }

    /// The last event of this name so far.
    #[track_caller]
    pub fn last(&self, kind: &str) -> &Value {
        let mut all = self.events.iter().rev();
        all.find(|e| e["event"] == kind).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Largest memory that the process has had so far, in bytes.
    pub fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid.as_raw_nonzero());
        let status = std::fs::read_to_string(path).unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = most.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() * 1024
    }

    /// Waits for the process to end.
    pub fn end(self) -> End {
        self.end_within(BOUND)
    }

    /// Waits for the process to end, at most this long.
    pub fn end_within(mut self, bound: Duration) -> End {
        let until = Instant::now() + bound;
        while self.end.is_none() {
            self.turn(until, "its end");
        }
        let (status, stderr) = self.end.clone().unwrap();
        End {
            code: status.code(),
            events: std::mem::take(&mut self.events),
            stderr,
        }
    }
}

fn has_share(progress: &Value, key: &str, percent: u64) -> bool {
    let len = progress["len"].as_u64();
    progress[key].as_u64() >= len.map(|len| len * percent / 100)
}

impl Drop for Run {
    fn drop(&mut self) {
        while self.end.is_none() {
            // The process is not reaped yet, so its number is still its own.
            let _ = kill_process(self.pid, Signal::KILL);
            match self.told.recv() {
                Ok(Said::End(status, words)) => self.end = Some((status, words)),
                Ok(Said::Event(_)) => {}
                Err(_) => return,
            }
        }
    }
}

/// Builds a library that is to be loaded before the C library, from its source in C.
pub fn built(dir: &Scratch, name: &str, code: &str) -> PathBuf {
    let (source, library) = (
        dir.path(&format!(".{name}.c")),
        dir.path(&format!(".{name}.so")),
    );
    std::fs::write(&source, code).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source);
    assert!(cc.status().unwrap().success());
    std::fs::remove_file(source).unwrap();
    library
}

/// A library loaded before the C library. It holds a process back when the process flushes its
/// file (not its journal), or makes flushing a directory fail.
pub struct Flush {
    library: PathBuf,
    gate: PathBuf,
}

const FLUSH: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_journal(int fd)
{
    static const char end[] = ".journal";
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < (ssize_t)sizeof end)
        return 0;
    path[len] = 0;
    return strcmp(path + len - (sizeof end - 1), end) == 0;
}

int fsync(int fd)
{
    const char *gate = getenv("TEST_FLUSH_GATE");
    struct stat status;
    char byte;
    if (fstat(fd, &status) < 0)
        return -1;
    if (S_ISDIR(status.st_mode) && !gate) {
        errno = EIO;
        return -1;
    }
    if (S_ISREG(status.st_mode) && gate && !is_journal(fd)) {
        int fifo = open(gate, O_RDONLY | O_CLOEXEC);
        while (read(fifo, &byte, 1) > 0)
            ;
        close(fifo);
    }
    return syscall(SYS_fsync, fd);
}
"#;

impl Flush {
    pub fn new(dir: &Scratch) -> Flush {
        let library = built(dir, "flush", FLUSH);
        let gate = dir.path(".flush.gate");
        let made = Command::new("mkfifo").arg(&gate).status();
        assert!(made.unwrap().success());
        Flush { library, gate }
    }

    /// A receiver on host 2. When it flushes the file, it waits until the test lets it go on.
    pub fn held(&self, place: &impl Place, from: &str, name: &str, dest: &Path) -> Run {
        let gate = format!("TEST_FLUSH_GATE={}", self.gate.display());
        self.start(place, &[&gate], from, name, dest)
    }

    /// A receiver that fails to flush the directory.
    pub fn failing(&self, from: &str, name: &str, dest: &Path) -> Run {
        self.start(&Loopback, &[], from, name, dest)
    }

    fn start(&self, place: &impl Place, env: &[&str], from: &str, name: &str, dest: &Path) -> Run {
        let mut command = place.launch(2, "env");
        let preload = format!("LD_PRELOAD={}", self.library.display());
        command.arg(preload).args(env);
        command.arg(FABRICAST);
        command.arg("recv").arg(dest);
        command.args(["--json", "--from", from, "--as", name]);
        Run::spawn(command)
    }

    /// Waits until the receiver flushes its file. The receiver goes on when the returned value is
    /// dropped.
    pub fn reached(&self) -> std::fs::File {
        let (tell, told) = channel();
        let gate = self.gate.clone();
        thread::spawn(move || tell.send(std::fs::File::options().write(true).open(gate)));
        told.recv_timeout(BOUND).unwrap().unwrap()
    }
}

/// A process with a terminal of its own.
pub struct Terminal {
    child: Child,
    side: File,
    told: Receiver<String>,
    said: String,
}

impl Terminal {
    pub fn start(mut command: Command) -> Terminal {
        use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
        let side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&side).unwrap();
        unlockpt(&side).unwrap();
        let name = ptsname(&side, Vec::new()).unwrap();
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let its = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).unwrap();
        let its = File::from(its);
        command.stdin(its.try_clone().unwrap());
        command.stdout(its.try_clone().unwrap()).stderr(its);
        let child = command.spawn().unwrap();
        let side = File::from(side);
        let mut reader = side.try_clone().unwrap();
        let (tell, told) = channel();
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Reading fails when the last process with the terminal has gone.
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                let _ = tell.send(String::from_utf8_lossy(&bytes[..n]).into_owned());
            }
        });
        let said = String::new();
        Terminal {
            child,
            side,
            told,
            said,
        }
    }

    /// Waits for these words, and returns everything printed so far.
    #[track_caller]
    pub fn until(&mut self, words: &str) -> &str {
        while !self.said.contains(words) {
            match self.told.recv_timeout(BOUND) {
                Ok(more) => self.said.push_str(&more),
                Err(_) => panic!("it did not say {words:?}: {}", self.said),
            }
        }
        &self.said
    }

    /// Types this text.
    pub fn input(&mut self, text: &str) {
        self.side.write_all(text.as_bytes()).unwrap();
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Signals the process group, as Ctrl-C at its terminal does. The process must lead the group.
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the process to end. Returns its exit code.
    pub fn end(mut self) -> Option<i32> {
        let until = Instant::now() + BOUND;
        // The terminal closes when the process has ended.
        while let Ok(more) = self
            .told
            .recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            self.said.push_str(&more);
        }
        assert!(Instant::now() < until, "it did not end: {}", self.said);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A shell that becomes the command.
pub fn shell(script: &str) -> Run {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Run::spawn(command)
}

/// A listening sender on the loopback, and its address for `--from`.
pub fn sender(source: &Path, args: &[&str]) -> (Run, String) {
    Loopback.sender(source, args)
}

/// A receiver on the loopback called `name` that writes to `dest`.
pub fn receiver(from: &str, name: &str, dest: &Path, args: &[&str]) -> Run {
    Loopback.receiver(from, name, dest, args)
}

/// The group and port where senders announce themselves.
pub const ANNOUNCED: (Ipv4Addr, u16) = (Ipv4Addr::new(239, 255, 76, 40), 7642);

/// Repeats an announcement until dropped, as a false sender would.
pub struct Announcing {
    stop: Arc<AtomicBool>,
    said: Receiver<()>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Announcing {
    /// Announces `from` this address, on the interface with the address `by`.
    pub fn start(from: IpAddr, by: Ipv4Addr, port: u16, name: &str, len: u64) -> Announcing {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        SockRef::from(&socket).set_multicast_if_v4(&by).unwrap();
        let what = json!({
            "fabricast": 11, "session": 5, "port": port, "name": name, "len": len,
        });
        Announcing::saying(vec![socket], what.to_string().into_bytes())
    }

    /// Announces with these bytes, by all sockets at the same time.
    pub fn saying(sockets: Vec<UdpSocket>, bytes: Vec<u8>) -> Announcing {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (tell, said) = channel();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for socket in &sockets {
                    let _ = socket.send_to(&bytes, ANNOUNCED);
                }
                let _ = tell.send(());
                thread::sleep(Duration::from_millis(10));
            }
        });
        let thread = Some(thread);
        Announcing { stop, said, thread }
    }

    /// Waits until this many announcements have been sent since the start, or since the last wait.
    pub fn until(&self, count: usize) {
        for _ in 0..count {
            self.said.recv_timeout(BOUND).unwrap();
        }
    }
}

impl Drop for Announcing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sets the permissions of a file or directory.
#[track_caller]
pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[track_caller]
pub fn same(a: &Path, b: &Path) {
    let (x, y) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    assert!(x == y, "{} and {} differ", a.display(), b.display());
}
