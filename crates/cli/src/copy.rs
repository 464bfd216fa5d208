//! `fabricast copy`: a sender that starts its receivers itself, on the hosts of a list.
//!
//! Each receiver gets a key by its standard input, and only receivers that show a key are admitted.
//! A receiver ends when its standard input ends, so none outlives this process.

mod hosts;
mod launcher;
mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fabricast::bootstrap::PreSharedKey;
use fabricast::config::{SendOptions, StartRule};
use fabricast::error::Error;
use fabricast::text::spoken;
use fabricast::transfer::{self, SendEvent, SendFailure, SendReport, State};

use self::hosts::Target;
use self::launcher::Launcher;
pub use self::processes::Groups;
use self::processes::{End, Outcome, Processes, ending};
use crate::args;
use crate::conclusion::{Host, conclude};
use crate::output::Output;
use crate::sending;

/// How much longer receivers wait for the start than the sender does.
const MARGIN: Duration = Duration::from_secs(60);
/// Most hosts that a line names.
const NAMED: usize = 10;
/// Descriptors for each host: its connection, and its launcher's input, output and end.
const DESCRIPTORS: u64 = 4;
/// Descriptors for everything else: pending connections, files, sockets.
const DESCRIPTORS_OWN: u64 = 192;
/// Exit code of a shell that finds no command of a name.
const NO_COMMAND: i32 = 127;

/// Runs `fabricast copy`. Returns the exit code. `groups` are those of its launchers while they
/// run.
pub fn run(args: &args::Copy, groups: &Groups, interrupt: Arc<AtomicBool>) -> u8 {
    let mut out = Output::new(&args.how.net);
    let copy = match Copy::new(args, groups) {
        Ok(copy) => copy,
        Err(error) => return out.error(&error),
    };
    if args.how.dry_run {
        for host in &copy.target.hosts {
            out.print(&format!("{host}\n"));
        }
        let (name, selection) = (args.name.as_deref(), sending::selection(&args.how));
        return sending::dry_run(copy.sources, name, &args.how, &selection, &mut out);
    }
    let (result, hosts) = copy.run(&mut out, interrupt);
    conclude(&mut out, result, &hosts)
}

/// A copy, as the command line describes it.
struct Copy<'a> {
    args: &'a args::Copy,
    sources: &'a [PathBuf],
    target: Target<'a>,
    launcher: Launcher,
    keys: BTreeMap<String, PreSharedKey>,
    groups: &'a Groups,
}

impl<'a> Copy<'a> {
    fn new(args: &'a args::Copy, groups: &'a Groups) -> Result<Copy<'a>, Error> {
        sending::check_scheme(&args.how)?;
        if args.how.dry_run && args.delete {
            return Err(Error::Usage(
                "`copy --dry-run` does not look at the hosts, so it cannot say what --delete \
                 would delete there: run `fabricast recv --delete --dry-run` on one of them"
                    .into(),
            ));
        }
        let (sources, target) = match args.paths.split_last() {
            Some((target, sources)) if !sources.is_empty() => (sources, target),
            _ => {
                return Err(Error::Usage(
                    "what is copied goes before HOSTS:DEST, such as `fabricast copy image.iso \
                     node[1-8]:/scratch`"
                        .into(),
                ));
            }
        };
        sending::check_names(sources, "")?;
        let target = Target::parse(target.as_os_str(), |name| env::var(name).ok())?;
        let is_slurm = env::var_os("SLURM_JOB_ID").is_some();
        let launcher = Launcher::new(args.launch.as_deref(), is_slurm)?;
        let (least, all) = (args.min_receivers as usize, target.hosts.len());
        if least > all {
            return Err(Error::Usage(format!(
                "--min-receivers {least} cannot be: the list names {all} hosts"
            )));
        }
        check_descriptors(all)?;
        let key = |host: &String| Ok((host.clone(), PreSharedKey::random()?));
        let keys = target.hosts.iter().map(key).collect::<Result<_, Error>>()?;
        Ok(Copy {
            args,
            sources,
            target,
            launcher,
            keys,
            groups,
        })
    }

    /// Sends, starts the receivers as soon as they can connect, and ends all launchers. Returns the
    /// sender's result, and what has become of the hosts.
    fn run(
        &self,
        out: &mut Output,
        interrupt: Arc<AtomicBool>,
    ) -> (Result<SendReport, SendFailure>, Vec<Host>) {
        let how = &self.args.how;
        let expected = Arc::new(AtomicUsize::new(self.target.hosts.len()));
        let options = self.options(expected.clone(), interrupt.clone());
        let (mut processes, mut began) = (None, Instant::now());
        let mut here = BTreeSet::new();
        let has_started = Arc::new(AtomicBool::new(false));
        let source = match sending::source(self.sources, self.args.name.as_deref()) {
            Ok(source) => source,
            Err(error) => return (Err(error.into()), Vec::new()),
        };
        let result = transfer::send(source, &options, &mut |event| {
            let event = sending::worded(event);
            out.event(&event);
            sending::say(out, &event, how, &options);
            self.say_absent(out, &event, &mut here);
            if let SendEvent::Starting { .. } = event {
                has_started.store(true, Ordering::Relaxed);
            }
            if let SendEvent::Listening { address, .. } = event {
                let hosts = match self.target.hosts.len() {
                    1 => "1 host".into(),
                    n => format!("{n} hosts"),
                };
                let wait = spoken(self.args.start_timeout);
                out.say(&format!(
                    "Starting the receivers on {hosts}; waiting for them at most {wait}"
                ));
                began = Instant::now();
                let address = sending::address(address, &how.net.interface);
                let started = self.start(&address, expected.clone(), has_started.clone());
                // Without launchers there is nothing to wait for.
                interrupt.fetch_or(started.is_err(), Ordering::Relaxed);
                processes = Some(started);
            }
        });
        let processes = match processes {
            Some(Ok(processes)) => processes,
            Some(Err(error)) => return (Err(error.into()), Vec::new()),
            None => return (result, Vec::new()),
        };
        let gave_up = began.elapsed() < self.args.start_timeout;
        // A receiver that took part ends by itself; after an error it ends as it is told to.
        let took_part: BTreeSet<String> = match &result {
            Ok(report) => report
                .receivers
                .iter()
                .map(|r| r.receiver.clone())
                .collect(),
            Err(_) => BTreeSet::new(),
        };
        let outcomes = processes.finish(move |host| took_part.contains(host));
        let report = match &result {
            Ok(report) => Some(report),
            Err(failure) => failure.report.as_deref(),
        };
        let is_in_vain = gave_up && !has_started.load(Ordering::Relaxed);
        let hosts = outcomes
            .into_iter()
            .map(|outcome| host(outcome, report, is_in_vain));
        let hosts = hosts.collect();
        (result, hosts)
    }

    /// Tells people at the start from which hosts no receiver is there. `here`: from which one is,
    /// or was refused, which they know already.
    fn say_absent(&self, out: &mut Output, event: &SendEvent, here: &mut BTreeSet<String>) {
        match event {
            SendEvent::Connected { receiver, .. } | SendEvent::Refused { receiver, .. } => {
                here.insert(receiver.clone());
            }
            SendEvent::Left { receiver, .. } => {
                here.remove(receiver);
            }
            SendEvent::Starting { .. } => {
                let hosts = self.target.hosts.iter();
                let absent: Vec<&str> = hosts
                    .filter(|host| !here.contains(*host))
                    .map(String::as_str)
                    .collect();
                let some = absent[..absent.len().min(NAMED)].join(", ");
                match absent.len() {
                    0 => {}
                    1 => out.say(&format!("! no receiver came from {some}")),
                    n if n <= NAMED => {
                        out.say(&format!("! no receiver came from {n} hosts: {some}"));
                    }
                    n => out.say(&format!("! no receiver came from {n} hosts: {some}, …")),
                }
            }
            _ => {}
        }
    }

    fn options(&self, expected: Arc<AtomicUsize>, interrupt: Arc<AtomicBool>) -> SendOptions {
        let all = self.target.hosts.len();
        let start = StartRule {
            min_receivers: self.args.min_receivers as usize,
            max_receivers: all,
            timeout: self.args.start_timeout,
            expected: Some(expected),
            ..StartRule::default()
        };
        SendOptions {
            port: self.args.port,
            per_host: all,
            announce: false,
            keys: Some(self.keys.clone()),
            ..sending::options(&self.args.how, start, interrupt)
        }
    }

    /// Tells people at once of a launcher that ends before the transfer has started: nothing else
    /// is told while the sender waits for receivers.
    fn on_end(
        &self,
        has_started: Arc<AtomicBool>,
    ) -> impl Fn(&str, ExitStatus, &str) + Send + 'static {
        let talks = !self.args.how.net.quiet && !self.args.how.net.json;
        move |host, status, last| {
            if talks && !has_started.load(Ordering::Relaxed) {
                let ending = ending(status);
                // Standard error may be closed.
                let _ = writeln!(io::stderr(), "! {host}: its launcher {ending}: {last}");
            }
        }
    }

    /// Starts the receivers, which find the sender at this address.
    fn start(
        &self,
        address: &str,
        expected: Arc<AtomicUsize>,
        has_started: Arc<AtomicBool>,
    ) -> Result<Processes, Error> {
        let each = self.target.hosts.iter().map(|host| {
            let words = self.launcher.command(host, &self.receiver(host, address));
            (
                host.clone(),
                words,
                format!("{}\n", self.keys[host].to_hex()),
            )
        });
        let failed = |e| Error::io(format!("starting {}", self.launcher.program()), e);
        let on_end = self.on_end(has_started);
        Processes::start(each, expected, self.groups, on_end).map_err(failed)
    }

    /// The words of the receiver's command on a host.
    fn receiver(&self, host: &str, address: &str) -> Vec<OsString> {
        let args = self.args;
        let mut dir = OsString::from("--dir=");
        dir.push(self.target.dest);
        let mut words = vec![
            args.remote_fabricast.clone(),
            "recv".into(),
            "--launched".into(),
            dir,
            format!("--from={address}").into(),
            format!("--as={host}").into(),
            // It waits as long as the sender does, and the sender says when the wait is over.
            format!(
                "--start-timeout={}s",
                (args.start_timeout + MARGIN).as_secs()
            )
            .into(),
            format!("--receive-timeout={}ms", args.receive_timeout.as_millis()).into(),
        ];
        let flags = [
            (args.force, "--force"),
            (args.how.privileged, "--privileged"),
            (args.how.xattrs, "--xattrs"),
            (args.delete, "--delete"),
            (args.no_sync, "--no-sync"),
            (args.serve, "--serve"),
        ];
        words.extend(flags.iter().filter(|f| f.0).map(|f| f.1.into()));
        if let Some(reserve) = args.reserve {
            words.push(format!("--reserve={reserve}").into());
        }
        if args.how.net.inject_loss > 0.0 {
            let percent = args.how.net.inject_loss * 100.0;
            words.push(format!("--inject-loss={percent}%").into());
        }
        words
    }
}

/// Checks that this process may have a file descriptor for each thing that this number of hosts
/// needs.
fn check_descriptors(hosts: usize) -> Result<(), Error> {
    use rustix::process::{Resource, getrlimit};
    let needed = hosts as u64 * DESCRIPTORS + DESCRIPTORS_OWN;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < needed => Err(Error::Usage(format!(
            "{hosts} hosts need {needed} file descriptors, and this process may have {limit}: \
             raise its limit (ulimit -n), or copy to fewer hosts at a time"
        ))),
        _ => Ok(()),
    }
}

/// What has become of a host, by its launcher and by the sender's report. `is_in_vain`: the sender
/// stopped waiting before its time was over, because others had failed.
fn host(outcome: Outcome, report: Option<&SendReport>, is_in_vain: bool) -> Host {
    let all = report.map_or(&[][..], |report| &report.receivers);
    let refused = report.map_or(&[][..], |report| &report.refused);
    let is_here = |r: &&transfer::ReceiverReport| r.receiver == outcome.host;
    let state = all.iter().chain(refused).find(is_here).map(|r| r.state);
    let is_verified = state == Some(State::Verified);
    let code = outcome.status.and_then(|status| status.code());
    let signal = outcome.status.and_then(|status| status.signal());
    let hint = match code {
        Some(NO_COMMAND) => {
            " (is fabricast installed there? --remote-fabricast names a command that is not in \
             the PATH)"
        }
        _ => "",
    };
    let reason = match (outcome.end, outcome.status) {
        (End::ByItself, Some(status)) if is_verified && status.success() => None,
        (End::ByItself, Some(status)) => Some(format!("its launcher {}{hint}", ending(status))),
        (End::WithInput, _) if state.is_none() && is_in_vain => Some(
            "no receiver had come from it when too few hosts were left (--min-receivers)".into(),
        ),
        (End::WithInput, _) if state.is_none() => {
            Some("no receiver came from it in time (--start-timeout)".into())
        }
        (End::WithInput, _) if is_verified => None,
        (End::WithInput, Some(status)) => Some(format!("its launcher {}", ending(status))),
        (End::BySignal, _) => Some("its launcher did not end by itself and was killed".into()),
        _ => Some("its launcher did not end, not even by a signal".into()),
    };
    Host {
        is_absent: state.is_none(),
        host: outcome.host,
        code,
        signal,
        reason,
        lines: outcome.lines,
    }
}
