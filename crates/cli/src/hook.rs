//! The user's command that runs for what was received: one after another, on a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fabricast::error::Error;
use fabricast::feed::Entry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// Hooks that wait at the thread; further ones wait in memory of the follower, as their entries are
/// in its record.
const QUEUE: usize = 16;
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
            Outcome::NotStarted(e) => format!("it cannot be started: {e}"),
        })
    }
}

/// Runs hooks until it is dropped.
pub struct Hooks {
    /// Jobs that the thread has no room for yet.
    waiting: VecDeque<Job>,
    /// `None` only during `drop`.
    jobs: Option<SyncSender<Job>>,
    ended: Receiver<(Job, Outcome)>,
    stop: Arc<AtomicBool>,
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
        let (jobs, queue) = sync_channel::<Job>(QUEUE);
        let (tell, ended) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::Builder::new().name("fabricast-hook".into());
        let thread = thread.spawn(move || work(&words, timeout, &queue, &tell, &stopped));
        Ok(Hooks {
            waiting: VecDeque::new(),
            jobs: Some(jobs),
            ended,
            stop,
            thread: Some(thread.map_err(|e| Error::io("starting a thread", e))?),
        })
    }

    /// Runs the command for this, after what waits already.
    pub fn run(&mut self, job: Job) {
        self.waiting.push_back(job);
        self.feed();
    }

    /// A hook that has ended since the last call, if one has.
    pub fn ended(&mut self) -> Option<(Job, Outcome)> {
        self.feed();
        self.ended.try_recv().ok()
    }

    fn feed(&mut self) {
        while let (Some(jobs), Some(job)) = (&self.jobs, self.waiting.pop_front()) {
            if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
                jobs.try_send(job)
            {
                self.waiting.push_front(job);
                return;
            }
        }
    }
}

impl Drop for Hooks {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn work(
    words: &[String],
    timeout: Duration,
    queue: &Receiver<Job>,
    tell: &Sender<(Job, Outcome)>,
    stop: &AtomicBool,
) {
    while let Ok(job) = queue.recv() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let outcome = match spawn(words, &job) {
            Ok(child) => end(child, timeout, stop),
            Err(e) => Outcome::NotStarted(e),
        };
        if tell.send((job, outcome)).is_err() {
            return;
        }
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
