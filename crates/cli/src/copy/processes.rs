//! The launchers of a copy as processes: they start together, none outlives the copy, and what
//! becomes of each is known at the end.
//!
//! One thread watches all of them. Each launcher leads a process group of its own, so that signals
//! of the terminal do not reach it, and so that its children end with it. Receivers end when their
//! standard input ends, which this process holds: so they end even if this process is killed.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::text::escaped;
use fabricast::waker::Waker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How long a launcher may go on by itself after the transfer is over for its receiver.
const OWN_END: Duration = Duration::from_secs(10);
/// How long a launcher may take after its standard input has ended, and again after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Last lines of a launcher that are kept.
const LINES: usize = 3;
/// Most characters of a line that are kept.
const LINE_MAX: usize = 300;
/// Most bytes that are read of one launcher at a time.
const READ_MAX: usize = 16 << 10;

/// What has become of a launcher.
#[derive(Debug)]
pub struct Outcome {
    /// The host's name.
    pub host: String,
    /// How the launcher has ended; `None` if it has not, which no signal could change.
    pub status: Option<ExitStatus>,
    /// What it took to end it.
    pub end: End,
    /// The last lines that it, or the receiver, has printed, safe for a terminal.
    pub lines: Vec<String>,
}

/// The process groups of all launchers that have not been reaped.
#[derive(Clone, Default)]
pub struct Groups(Arc<Mutex<BTreeSet<i32>>>);

impl Groups {
    /// Kills all of them.
    pub fn kill(&self) {
        // Held meanwhile, so that none is reaped and no other group gets its number.
        let groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for group in groups.iter().filter_map(|group| Pid::from_raw(*group)) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    fn add(&self, group: Pid) {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        groups.insert(group.as_raw_nonzero().get());
    }

    /// Kills what is left of a launcher's group, and reaps the launcher, which has ended.
    fn reap(&self, group: Pid, child: &mut Child) -> Option<ExitStatus> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Until the launcher is reaped, no other group has this number.
        let _ = kill_process_group(group, Signal::KILL);
        groups.remove(&group.as_raw_nonzero().get());
        child.wait().ok()
    }
}

/// What it took to end a launcher.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum End {
    /// It ended before anything was done about it.
    ByItself,
    /// It ended when its standard input had ended.
    WithInput,
    /// It ended when it had got a signal.
    BySignal,
    /// It has not ended.
    Never,
}

/// The end of a launcher's output: its last lines, each of bounded length.
#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    line: Vec<u8>,
}

impl Tail {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' | b'\r' => self.end_line(),
                // A character has at most four bytes.
                byte if self.line.len() < 4 * LINE_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        let cut: String = text.chars().take(LINE_MAX).collect();
        self.lines.push_back(escaped(&cut).into_owned());
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }

    fn into_lines(mut self) -> Vec<String> {
        self.end_line();
        self.lines.into()
    }
}

/// How far the end of a launcher is.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    /// It runs as long as it will.
    Running,
    /// Its standard input ends, and what follows begins, then.
    Ending(Instant),
    /// Its standard input has ended. SIGTERM follows then.
    Ended(Instant),
    /// It got SIGTERM. SIGKILL follows then.
    Terminated(Instant),
    /// It got SIGKILL. It is given up then.
    Killed(Instant),
    /// Nothing more is expected of it.
    Over,
}

/// A running launcher.
struct Process {
    child: Child,
    pid: Pid,
    /// Becomes readable when the launcher has ended.
    end: OwnedFd,
    input: Option<ChildStdin>,
    output: Option<PipeReader>,
    tail: Tail,
    stage: Stage,
    outcome: Outcome,
}

impl Process {
    fn start(host: String, words: &[OsString], input: &str) -> io::Result<Process> {
        let (output, said) = io::pipe()?;
        rustix::io::ioctl_fionbio(&output, true)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0);
        command.stdin(Stdio::piped());
        command.stdout(said.try_clone()?).stderr(said);
        let mut child = command.spawn()?;
        // The command holds the writing ends of the pipe.
        drop(command);
        let pid = Pid::from_child(&child);
        let mut stdin = child.stdin.take();
        let prepared = pidfd_open(pid, PidfdFlags::empty());
        let written = match &mut stdin {
            // The pipe has room for it. A launcher that has ended already is noticed below.
            Some(stdin) => stdin.write_all(input.as_bytes()),
            None => Ok(()),
        };
        drop(written);
        let end = match prepared {
            Ok(end) => end,
            Err(e) => {
                let _ = kill_process_group(pid, Signal::KILL);
                let _ = child.wait();
                return Err(e.into());
            }
        };
        Ok(Process {
            child,
            pid,
            end,
            input: stdin,
            output: Some(output),
            tail: Tail::default(),
            stage: Stage::Running,
            outcome: Outcome {
                host,
                status: None,
                end: End::Never,
                lines: Vec::new(),
            },
        })
    }

    /// Reads what the launcher has printed.
    fn read(&mut self) {
        let Some(output) = &mut self.output else {
            return;
        };
        let mut piece = [0; READ_MAX];
        match output.read(&mut piece) {
            Ok(0) => self.output = None,
            Ok(n) => self.tail.add(&piece[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.output = None,
        }
    }

    /// Takes note that the launcher has ended: its children end, too.
    fn ended(&mut self, groups: &Groups) {
        self.outcome.status = groups.reap(self.pid, &mut self.child);
        self.outcome.end = match self.stage {
            Stage::Running | Stage::Ending(_) => End::ByItself,
            Stage::Ended(_) => End::WithInput,
            Stage::Terminated(_) | Stage::Killed(_) | Stage::Over => End::BySignal,
        };
        self.read();
        (self.input, self.output) = (None, None);
        self.stage = Stage::Over;
    }

    /// Takes the next step towards the launcher's end if its time has come.
    fn step(&mut self, now: Instant) {
        let signal = |signal| {
            let _ = kill_process_group(self.pid, signal);
        };
        self.stage = match self.stage {
            Stage::Ending(at) if now >= at => {
                self.input = None;
                Stage::Ended(now + GRACE)
            }
            Stage::Ended(at) if now >= at => {
                signal(Signal::TERM);
                // A stopped process would not see it.
                signal(Signal::CONT);
                Stage::Terminated(now + GRACE)
            }
            Stage::Terminated(at) if now >= at => {
                signal(Signal::KILL);
                Stage::Killed(now + GRACE)
            }
            Stage::Killed(at) if now >= at => Stage::Over,
            stage => stage,
        };
    }

    /// When [`Process::step`] has something to do.
    fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Running | Stage::Over => None,
            Stage::Ending(at) | Stage::Ended(at) | Stage::Terminated(at) | Stage::Killed(at) => {
                Some(at)
            }
        }
    }
}

/// For which hosts the launchers may end by themselves.
type Patient = Box<dyn Fn(&str) -> bool + Send>;
/// What is called with the host of a launcher that ends by itself, how it has ended, and its last
/// line.
type OnEnd = Box<dyn Fn(&str, ExitStatus, &str) + Send>;

/// All launchers of a copy.
pub struct Processes {
    finish: Sender<Patient>,
    waker: Waker,
    thread: Option<JoinHandle<Vec<Outcome>>>,
}

impl Processes {
    /// Starts a launcher for each host: its words, and what it reads first. `expected` falls by one
    /// for each that ends, after `on_end` was called.
    ///
    /// # Errors
    /// The first launcher that cannot be started. Those that run by then are ended.
    pub fn start(
        launchers: impl Iterator<Item = (String, Vec<OsString>, String)>,
        expected: Arc<AtomicUsize>,
        groups: &Groups,
        on_end: impl Fn(&str, ExitStatus, &str) + Send + 'static,
    ) -> io::Result<Processes> {
        let waker = Waker::new()?;
        let (finish, told) = channel();
        let mut all = Vec::new();
        let mut failed = None;
        for (host, words, input) in launchers {
            match Process::start(host, &words, &input) {
                Ok(process) => {
                    groups.add(process.pid);
                    all.push(process);
                }
                Err(e) => {
                    failed = Some(e);
                    break;
                }
            }
        }
        let watch = Watch {
            all,
            told,
            waker: waker.clone(),
            expected,
            groups: groups.clone(),
            on_end: Box::new(on_end),
        };
        let thread = thread::Builder::new()
            .name("fabricast-launch".into())
            .spawn(move || watch.run())?;
        let processes = Processes {
            finish,
            waker,
            thread: Some(thread),
        };
        match failed {
            Some(e) => Err(e),
            None => Ok(processes),
        }
    }

    /// Ends all launchers, at the latest by signals, and says what has become of them, in the order
    /// of their start. Those for whose host `is_patient` holds may first end by themselves.
    pub fn finish(mut self, is_patient: impl Fn(&str) -> bool + Send + 'static) -> Vec<Outcome> {
        self.end(Box::new(is_patient))
    }

    fn end(&mut self, is_patient: Patient) -> Vec<Outcome> {
        let _ = self.finish.send(is_patient);
        self.waker.wake();
        let thread = self.thread.take();
        thread.and_then(|t| t.join().ok()).unwrap_or_default()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(Box::new(|_| false));
        }
    }
}

/// The thread that watches all launchers.
struct Watch {
    all: Vec<Process>,
    told: Receiver<Patient>,
    waker: Waker,
    expected: Arc<AtomicUsize>,
    groups: Groups,
    on_end: OnEnd,
}

impl Watch {
    fn run(mut self) -> Vec<Outcome> {
        let mut is_finishing = false;
        while !is_finishing || self.all.iter().any(|p| p.stage != Stage::Over) {
            self.turn();
            if let Ok(is_patient) = self.told.try_recv() {
                is_finishing = true;
                let now = Instant::now();
                for process in self.all.iter_mut().filter(|p| p.stage != Stage::Over) {
                    process.stage = Stage::Ending(match is_patient(&process.outcome.host) {
                        true => now + OWN_END,
                        false => now,
                    });
                }
            }
            let now = Instant::now();
            for process in &mut self.all {
                process.step(now);
            }
        }
        let outcomes = self.all.into_iter().map(|process| Outcome {
            lines: process.tail.into_lines(),
            ..process.outcome
        });
        outcomes.collect()
    }

    /// Waits for whatever comes first, and takes note of it.
    fn turn(&mut self) {
        let mut fds = vec![PollFd::new(&self.waker, PollFlags::IN)];
        let mut owners = Vec::new();
        for (n, process) in self.all.iter().enumerate() {
            if process.stage == Stage::Over {
                continue;
            }
            fds.push(PollFd::new(&process.end, PollFlags::IN));
            owners.push((n, true));
            if let Some(output) = &process.output {
                fds.push(PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN));
                owners.push((n, false));
            }
        }
        let now = Instant::now();
        let due = self.all.iter().filter_map(Process::due).min();
        let wait = due.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        // A signal ends the wait without anything to note.
        let _ = poll(&mut fds, wait.as_ref());
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            let _ = self.waker.wait(Some(Duration::ZERO));
        }
        for ((n, is_end), _) in owners.into_iter().zip(&ready[1..]).filter(|(_, r)| **r) {
            let process = &mut self.all[n];
            match is_end {
                true => {
                    process.ended(&self.groups);
                    let outcome = &process.outcome;
                    if let (End::ByItself, Some(status)) = (outcome.end, outcome.status) {
                        let last = process.tail.lines.back().map_or("", String::as_str);
                        (self.on_end)(&outcome.host, status, last);
                    }
                    let one = |n: usize| Some(n.saturating_sub(1));
                    let order = Ordering::Relaxed;
                    let _ = self.expected.fetch_update(order, order, one);
                }
                false => process.read(),
            }
        }
    }
}

/// How a launcher has ended, in words.
pub fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(scripts: &[&str]) -> (Processes, Arc<AtomicUsize>) {
        let expected = Arc::new(AtomicUsize::new(scripts.len()));
        let each = scripts.iter().map(|script| {
            let words = ["sh", "-c", script].map(OsString::from);
            (script.to_string(), words.to_vec(), "first\n".to_string())
        });
        let groups = Groups::default();
        let processes = Processes::start(each, expected.clone(), &groups, |_, _, _| ()).unwrap();
        (processes, expected)
    }

    #[test]
    fn launchers_end_by_themselves_by_the_end_of_their_input_or_by_signals() {
        let scripts = [
            "exit 3",
            "read line; echo \"$line\"; cat; exit 4",
            "trap '' TERM; sleep 1000 & sleep 1000",
            "echo gone >&2; kill -9 $$",
        ];
        let (processes, _) = launch(&scripts);
        let outcomes = processes.finish(|_| false);
        let codes: Vec<_> = outcomes.iter().map(|o| o.status.unwrap().code()).collect();
        assert_eq!(codes, [Some(3), Some(4), None, None]);
        assert_eq!(outcomes[1].lines, ["first"]);
        assert_eq!(outcomes[3].lines, ["gone"]);
        assert_eq!(outcomes[1].end, End::WithInput);
        assert_eq!(outcomes[2].end, End::BySignal);
        assert!(ending(outcomes[3].status.unwrap()).contains("signal 9"));
    }

    #[test]
    fn an_ended_launcher_is_expected_no_more_and_takes_its_children_along() {
        // The child holds the output open, which is not waited for.
        let (processes, expected) = launch(&["sleep 1000 & echo $!; exit 0"]);
        while expected.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        let outcomes = processes.finish(|_| true);
        let pid = Pid::from_raw(outcomes[0].lines[0].parse().unwrap()).unwrap();
        // A killed process still exists for a moment.
        if let Ok(end) = pidfd_open(pid, PidfdFlags::empty()) {
            let minute = Timespec::try_from(Duration::from_secs(60)).unwrap();
            let mut ended = [PollFd::new(&end, PollFlags::IN)];
            assert_eq!(poll(&mut ended, Some(&minute)).unwrap(), 1);
        }
    }

    #[test]
    fn a_launcher_that_cannot_be_started_ends_the_others() {
        let good = ("a".to_string(), vec!["cat".into()], String::new());
        let bad = (
            "b".to_string(),
            vec!["/no/such/program".into()],
            String::new(),
        );
        let all = [good, bad].into_iter();
        let started = Processes::start(all, Arc::default(), &Groups::default(), |_, _, _| ());
        let error = started.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_last_lines_are_kept_and_cut() {
        let mut tail = Tail::default();
        tail.add(b"one\ntwo\r\n\nthr\xffee\n\x1b[2Jfour");
        assert_eq!(
            tail.into_lines(),
            ["two", "thr\u{fffd}ee", "\\u{1b}[2Jfour"]
        );
        let mut tail = Tail::default();
        tail.add("ü".repeat(10 * LINE_MAX).as_bytes());
        assert_eq!(tail.into_lines(), ["ü".repeat(LINE_MAX)]);
    }
}
