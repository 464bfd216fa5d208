//! The user's command that runs for what was received: one after another, on a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::error::Error;
use fabricast::feed::Entry;
use fabricast::text::shown;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How often the thread looks whether it has to end.
const TICK: Duration = Duration::from_millis(100);
/// How long a hook may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// What a hook runs for.
#[derive(Clone, Debug)]
pub struct Job {
    /// Name of the feed.
    pub feed: String,
    /// What is new, or has changed.
    pub entry: Entry,
    /// Absolute path of the file or directory.
    pub path: PathBuf,
}

/// How a hook ended.
#[derive(Debug)]
pub enum Outcome {
    /// By itself.
    Ended(ExitStatus),
    /// It was killed, because it took too long.
    TooLong,
    /// It was killed, because the command ends.
    Stopped,
    /// It could not be started.
    NotStarted(io::Error),
}

impl Outcome {
    /// One word for metrics and events.
    pub fn word(&self) -> &'static str {
        match self {
            Outcome::Ended(status) if status.success() => "success",
            Outcome::Ended(_) => "failure",
            Outcome::TooLong => "timeout",
            Outcome::Stopped => "stopped",
            Outcome::NotStarted(_) => "not_started",
        }
    }

    /// What went wrong, in words; `None` if nothing did.
    pub fn trouble(&self) -> Option<String> {
        Some(match self {
            Outcome::Ended(status) if status.success() => return None,
            Outcome::Ended(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("it ended with exit code {code}"),
                (None, signal) => format!("signal {} ended it", signal.unwrap_or(0)),
            },
            Outcome::TooLong => "it took too long, and was killed (--hook-timeout)".into(),
            Outcome::Stopped => "it was ended, and runs again at the next start".into(),
            Outcome::NotStarted(e) => {
                format!("it cannot be started, and runs at the next start of the receiver: {e}")
            }
        })
    }
}

/// What waits for the thread. It holds each path once, so it has no more than the feed has entries.
#[derive(Default)]
struct Queue {
    jobs: Mutex<VecDeque<Job>>,
    /// Rung for a new job, and at the end.
    bell: Condvar,
    stop: AtomicBool,
}

impl Queue {
    fn jobs(&self) -> MutexGuard<'_, VecDeque<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next job; `None` at the end.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            match jobs.pop_front() {
                Some(job) => return Some(job),
                None => jobs = self.bell.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// What is wrong with a program, at this path or by this name in the search path; `None` if it can
/// run.
fn trouble(program: &str) -> Option<String> {
    let can_run = |path: &PathBuf| access(path, Access::EXEC_OK).is_ok();
    let mut files: Vec<PathBuf> = match program.contains('/') {
        true => vec![program.into()],
        false => {
            let places = std::env::var_os("PATH").unwrap_or_default();
            let places = std::env::split_paths(&places);
            places.map(|place| place.join(program)).collect()
        }
    };
    files.retain(|path| path.is_file());
    match files.first() {
        _ if files.iter().any(can_run) => None,
        Some(path) => Some(format!("{} is not executable (chmod +x)", shown(path))),
        None => Some(format!("{program:?} is no program here")),
    }
}

/// Runs hooks until it is stopped or dropped.
pub struct Hooks {
    queue: Arc<Queue>,
    ended: Receiver<(Job, Outcome)>,
    thread: Option<JoinHandle<()>>,
}

impl Hooks {
    /// Starts the thread. `command` is split into words as a shell does.
    pub fn start(command: &str, timeout: Duration) -> Result<Hooks, Error> {
        let usage = |text: &str| Error::Usage(format!("--hook {command:?}: {text}"));
        let words = shlex::split(command).ok_or_else(|| usage("a quote is not closed"))?;
        if words.is_empty() {
            return Err(usage("it has no words"));
        }
        if let Some(trouble) = trouble(&words[0]) {
            return Err(usage(&trouble));
        }
        let queue = Arc::new(Queue::default());
        let (tell, ended) = channel();
        let jobs = queue.clone();
        let thread = thread::Builder::new().name("fabricast-hook".into());
        let thread = thread.spawn(move || {
            while let Some(job) = jobs.next() {
                let outcome = match spawn(&words, &job) {
                    Ok(child) => end(child, timeout, &jobs.stop),
                    Err(e) => Outcome::NotStarted(e),
                };
                if tell.send((job, outcome)).is_err() {
                    return;
                }
            }
        });
        Ok(Hooks {
            queue,
            ended,
            thread: Some(thread.map_err(|e| Error::io("starting a thread", e))?),
        })
    }

    /// Runs the command for this, after what waits already: once, if an older version waits.
    pub fn run(&self, job: Job) {
        let mut jobs = self.queue.jobs();
        jobs.retain(|waits| waits.path != job.path);
        jobs.push_back(job);
        self.queue.bell.notify_one();
    }

    /// A hook that has ended since the last call, if one has.
    pub fn ended(&self) -> Option<(Job, Outcome)> {
        self.ended.try_recv().ok()
    }

    /// Ends the hook that runs, and starts no other one.
    pub fn stop(&mut self) {
        // Under the lock, so that the thread does not miss the bell.
        let jobs = self.queue.jobs();
        self.queue.stop.store(true, Ordering::Relaxed);
        self.queue.bell.notify_one();
        drop(jobs);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts the command, without a shell, in a process group of its own. What it prints goes to
/// standard error, since standard output is ours.
fn spawn(words: &[String], job: &Job) -> io::Result<Child> {
    let output = io::stderr().as_fd().try_clone_to_owned()?;
    Command::new(&words[0])
        .args(&words[1..])
        .arg(&job.path)
        .env("FABRICAST_FEED", &job.feed)
        .env("FABRICAST_NAME", &job.entry.name)
        .env("FABRICAST_PATH", &job.path)
        .env("FABRICAST_LEN", job.entry.len.to_string())
        .env("FABRICAST_DIGEST", &job.entry.digest)
        .stdin(Stdio::null())
        .stdout(output)
        .process_group(0)
        .spawn()
}

/// Waits for a hook to end, and ends it if it takes too long.
fn end(mut child: Child, timeout: Duration, stop: &AtomicBool) -> Outcome {
    let began = Instant::now();
    let why = loop {
        await_end(&child, TICK);
        if let Ok(Some(status)) = child.try_wait() {
            return Outcome::Ended(status);
        }
        match stop.load(Ordering::Relaxed) {
            true => break Outcome::Stopped,
            false if began.elapsed() >= timeout => break Outcome::TooLong,
            false => {}
        }
    };
    let group = Pid::from_child(&child);
    let _ = kill_process_group(group, Signal::TERM);
    await_end(&child, GRACE);
    // What the hook has started itself may live on. Until the hook is reaped, no other group has
    // its number.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    why
}

/// Waits for the process to end, at most this long. Does not reap it.
fn await_end(child: &Child, within: Duration) {
    let limit = Timespec::try_from(within).ok();
    match pidfd_open(Pid::from_child(child), PidfdFlags::empty()) {
        Ok(pidfd) => drop(poll(
            &mut [PollFd::new(&pidfd, PollFlags::IN)],
            limit.as_ref(),
        )),
        Err(_) => thread::sleep(TICK.min(within)),
    }
}
