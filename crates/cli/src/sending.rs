//! What `send`, `copy` and `serve` share: options, the list of `--dry-run`, progress, the table at
//! the end.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fabricast::bootstrap::{PORT, WorkerPlan};
use fabricast::config::{Late, NetOptions, ReachRule, SendOptions, Slow, StartRule};
use fabricast::error::{Error, exit};
use fabricast::ibrmp;
use fabricast::interface::{self, Interface};
use fabricast::object::manifest::{Kind, Special};
use fabricast::object::{Selection, SourceSet, safe_name};
use fabricast::text::{ToldPath, escaped, shown};
use fabricast::transfer::{self, By, Part, SendEvent};
use fabricast_console::units;

use crate::args;
use crate::output::Output;
use crate::settings::with_options;

/// The source that stands for standard input.
const STDIN: &str = "-";
/// The name that receivers are offered for standard input.
const STDIN_NAME: &str = "stdin";

/// Whether the source is standard input.
pub fn is_stdin(sources: &[PathBuf]) -> bool {
    matches!(sources, [one] if one.as_os_str() == STDIN)
}

/// What is sent, if it can be.
pub fn source<'a>(
    sources: &'a [PathBuf],
    name: Option<&'a str>,
) -> Result<transfer::Source<'a>, Error> {
    if !is_stdin(sources) {
        if sources.iter().any(|source| source.as_os_str() == STDIN) {
            let text = "standard input (-) is sent alone; a file with this name is ./-";
            return Err(Error::Usage(text.into()));
        }
        if name.is_some() {
            let text = "--name names standard input (-), and files have names already";
            return Err(Error::Usage(text.into()));
        }
        return Ok(transfer::Source::Paths(sources));
    }
    let input = std::io::stdin().as_fd().try_clone_to_owned();
    let input = input.map_err(|e| Error::io("opening standard input", e))?;
    Ok(transfer::Source::Stream {
        input: input.into(),
        name: name.unwrap_or(STDIN_NAME),
    })
}

/// Refuses what no receiver takes into a directory, because of its name there. `or`: what else its
/// user can do.
pub fn check_names(sources: &[PathBuf], or: &str) -> Result<(), Error> {
    let is_unsafe = |source: &&PathBuf| {
        let name = source.file_name().filter(|_| source.as_os_str() != STDIN);
        name.is_some_and(|name| safe_name(&name.to_string_lossy()).is_none())
    };
    match sources.iter().find(is_unsafe) {
        None => Ok(()),
        Some(source) => Err(Error::Usage(format!(
            "receivers take {} into no directory: a name at the top of what is sent does not \
             begin with . or -, and has no control characters; send the directory that it lies \
             in{or}",
            shown(source)
        ))),
    }
}

/// Whether the files go by P3's protocol.
pub fn is_ibrmp(how: &args::Sending) -> bool {
    ibrmp::is_meant(&how.scheme)
}

/// Refuses options that do not fit the scheme.
pub fn check_scheme(how: &args::Sending) -> Result<(), Error> {
    let is_ibrmp = is_ibrmp(how);
    let options = [
        ("--file-timeout", how.file_timeout.is_some()),
        ("--files-at-once", how.files_at_once.is_some()),
        ("--receivers-per-worker", how.receivers_per_worker.is_some()),
        ("--workers", how.workers.is_some()),
        ("--worker-cpus", how.worker_cpus.is_some()),
    ];
    let text = match is_ibrmp {
        false => options
            .iter()
            .find(|(_, is_given)| *is_given)
            .map(|(option, _)| format!("{option} is for --scheme ibrmp alone: leave it out")),
        true if !how.slow.is_empty() => Some(
            "--slow does not fit --scheme ibrmp, where a file is closed when its time is over, and \
             a receiver that says nothing for that time is dropped (--file-timeout)"
                .to_string(),
        ),
        true if !matches!(how.checksum, args::Checksum::None) => Some(
            "--checksum does not fit --scheme ibrmp, whose messages have none: each file is proven \
             as a whole by its hash"
                .to_string(),
        ),
        true => None,
    };
    text.map_or(Ok(()), |text| Err(Error::Usage(text)))
}

/// An entry of the set, as `--dry-run` prints it.
#[derive(serde::Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    path: &'a ToldPath,
    kind: &'static str,
    /// Length of a file in bytes; `None`: it is a stream.
    len: Option<u64>,
}

/// Prints what would be sent. Returns the exit code.
pub fn dry_run(
    sources: &[PathBuf],
    name: Option<&str>,
    how: &args::Sending,
    selection: &Selection,
    out: &mut Output,
) -> u8 {
    let mut notices = Vec::new();
    let set = match source(sources, name) {
        Ok(transfer::Source::Paths(paths)) => {
            let mut notice = |text| notices.push(text);
            let listed = SourceSet::list(paths, selection, &mut notice);
            listed.and_then(|mut set| {
                set.check_readable(&mut notice)?;
                if !how.no_compare && !is_ibrmp(how) {
                    set.find_identical(&mut || Ok(()), &mut notice)?;
                }
                Ok(set)
            })
        }
        Ok(transfer::Source::Stream { input, name }) => SourceSet::stream(input, name),
        Err(error) => Err(error),
    };
    for text in notices {
        out.say(&format!("note: {text}"));
    }
    let set = match set {
        Ok(set) => set,
        Err(error) => return out.error(&error),
    };
    for (number, entry) in set.manifest().entries().iter().enumerate() {
        let path = set.path(number as u32);
        let (kind, len) = match &entry.kind {
            Kind::File(len) => ("file", Some(*len)),
            Kind::Directory => ("directory", Some(0)),
            Kind::Symlink(_) => ("symlink", Some(0)),
            Kind::HardLink(_) => ("hard link", Some(0)),
            Kind::Copy(_) => ("copy", Some(0)),
            Kind::Stream => ("stream", None),
            Kind::Special(Special::Fifo) => ("fifo", Some(0)),
            Kind::Special(_) => ("device", Some(0)),
        };
        let path = ToldPath::from(&*path);
        out.result(
            "entry",
            &Listed {
                path: &path,
                kind,
                len,
            },
        );
        out.print(&format!("{:>10}  {}\n", length(len), escaped(&path.path)));
    }
    out.code(exit::OK)
}

pub fn selection(how: &args::Sending) -> Selection {
    Selection {
        exclude: how.exclude.clone(),
        attributes: how.xattrs,
        special: how.privileged,
    }
}

/// The options of a sender, but for those that each command chooses in its own way.
pub fn options(how: &args::Sending, start: StartRule, interrupt: Arc<AtomicBool>) -> SendOptions {
    let defaults = SendOptions::default();
    SendOptions {
        net: net_options(&how.net),
        group: how.group.map(|g| g.0),
        group_port: how.group.and_then(|g| g.1).unwrap_or(defaults.group_port),
        ttl: how.ttl,
        reach: match how.reach {
            args::Reach::Auto => ReachRule::Auto,
            args::Reach::Unicast => ReachRule::Unicast,
        },
        start,
        late: match how.late {
            args::Late::Admit => Late::Admit,
            args::Late::Refuse => Late::Refuse,
        },
        selection: selection(how),
        scheme: match how.checksum {
            args::Checksum::None => how.scheme.clone(),
            args::Checksum::Additive => format!("{}+additive", how.scheme),
            args::Checksum::Crc32c => format!("{}+crc32c", how.scheme),
        },
        rate: how.rate,
        file_timeout: how.file_timeout.unwrap_or(defaults.file_timeout),
        files_at_once: how.files_at_once.unwrap_or(defaults.files_at_once),
        workers: WorkerPlan {
            receivers_per_worker: how
                .receivers_per_worker
                .map_or(defaults.workers.receivers_per_worker, usize::from),
            workers_max: how.workers.map(usize::from),
            cpus: how.worker_cpus.clone(),
        },
        slow: match how.slow.iter().rfind(|(name, _)| name.is_none()) {
            Some((_, rule)) => *rule,
            // A user at a terminal can watch and decide.
            None if std::io::stderr().is_terminal() && !how.net.quiet => Slow::Wait,
            None => Slow::Alive,
        },
        slow_by_name: how
            .slow
            .iter()
            .filter_map(|(name, rule)| Some((name.clone()?, *rule)))
            .collect(),
        datagram_min: how
            .datagram_min
            .map_or(defaults.datagram_min, |d| d as usize),
        patience: how.patience.max(Duration::from_millis(1)),
        compares: !how.no_compare,
        interrupt,
        ..defaults
    }
}

/// Converts the options that `send` and `recv` share.
pub fn net_options(net: &args::Net) -> NetOptions {
    NetOptions {
        interface: net.interface.clone(),
        datagram: net.datagram.map(|d| d as usize),
        offload: !net.no_offload,
        inject_loss: net.inject_loss,
        inject_corruption: net.inject_corruption,
        inject_delay: net.inject_delay,
        emulate_link: net.emulate_link,
        wording: with_options,
    }
}

/// An event of the sender, whose texts name options.
pub fn worded(mut event: SendEvent) -> SendEvent {
    if let SendEvent::Refused { reason: text, .. }
    | SendEvent::Failed { reason: text, .. }
    | SendEvent::Notice { text } = &mut event
    {
        *text = with_options(text);
    }
    event
}

/// Tells of something that the user should know, and that ends nothing.
pub fn notice(text: String, out: &Output) {
    let text = with_options(&text);
    out.say(&format!("note: {text}"));
    out.event(&SendEvent::Notice { text });
}

/// Tells people of an event of the sender. The command itself tells what it offers.
pub fn say(out: &mut Output, event: &SendEvent, how: &args::Sending, options: &SendOptions) {
    match event {
        SendEvent::Listening { .. } => {}
        SendEvent::Connected {
            receiver,
            address,
            receivers,
        } => out.say(&format!(
            "+ {receiver} ({}); {receivers} connected",
            address.ip()
        )),
        SendEvent::Refused {
            receiver,
            address,
            by,
            reason,
        } => {
            let what = match by {
                By::Sender => "was refused",
                By::Receiver => "cannot take part",
            };
            out.say(&format!("! {receiver} ({}) {what}: {reason}", address.ip()));
        }
        SendEvent::Left {
            receiver,
            receivers,
        } => out.say(&format!("- {receiver} has left; {receivers} connected")),
        SendEvent::Starting {
            receivers,
            group,
            interface,
            payload_size,
            ..
        } => {
            let group = group.as_ref().map_or("unicast".into(), ToString::to_string);
            out.say(&format!(
                "Starting: {receivers} connected, {group} on {interface}, {payload_size} B a packet"
            ));
        }
        SendEvent::Path { receiver, reach } if *reach == "unicast" => {
            if !matches!(how.reach, args::Reach::Unicast) {
                out.say(&format!(
                    "! multicast does not reach {receiver} now: unicast serves it (if that stays \
                     so: is there a firewall, or a switch without an IGMP querier?)"
                ));
            }
        }
        SendEvent::Path { receiver, .. } => out.say(&format!("multicast reaches {receiver} now")),
        SendEvent::Streaming { .. } => {}
        SendEvent::Progress { .. } => show_progress(out, event),
        SendEvent::CatchingUp {
            receiver,
            part,
            lacking,
        } => {
            let what = match part {
                Part::Whole => "does not have all that others have, and gets after them",
                Part::Late | Part::Demoted => "takes part from now on, and lacks",
            };
            out.say(&format!("{receiver} {what} {}", units::bytes(*lacking)));
        }
        SendEvent::Expired { path, receivers } => out.say(&format!(
            "! {} was closed, and {receivers} receivers do not have all of it",
            escaped(&path.path)
        )),
        SendEvent::Demoted {
            receiver,
            placed,
            len,
        } => out.say(&format!(
            "! {receiver} is too slow for the others, and has {}: it catches up after them",
            share(*placed, *len)
        )),
        SendEvent::Slow { receiver, part } => {
            let what = match options.slow_rule(receiver) {
                Slow::Wait => "with --slow drop the transfer would go on without it",
                Slow::Demote if *part != Part::Demoted => {
                    "if this goes on, it leaves the others and catches up after them"
                }
                Slow::Alive | Slow::Demote => {
                    "it is dropped if this goes on; with --slow wait it would not be"
                }
                Slow::Drop => "it is dropped",
            };
            out.say(&format!("! {receiver} keeps the others waiting ({what})"));
        }
        SendEvent::Verified { .. } | SendEvent::Received { .. } => {}
        SendEvent::FileFailed(failure) => {
            out.say(&format!("! not sent: {}", escaped(&failure.reason)));
        }
        SendEvent::Failed {
            receiver, reason, ..
        } => out.say(&format!("! {receiver}: {reason}")),
        SendEvent::Notice { text } => out.say(&format!("note: {text}")),
    }
}

/// A length in words.
pub fn length(len: Option<u64>) -> String {
    len.map_or("unknown length".into(), units::bytes)
}

/// A part of `len` bytes in percent.
pub fn share(part: u64, len: u64) -> String {
    match len {
        0 => "100%".into(),
        len => format!("{}%", part * 100 / len),
    }
}

/// Shows the receivers' progress in the progress bar.
fn show_progress(out: &mut Output, event: &SendEvent) {
    let SendEvent::Progress {
        slowest,
        median,
        fastest,
        len,
        rate,
        repairs,
        verified,
        received,
        ..
    } = event
    else {
        return;
    };
    let rate = units::bits(rate.unwrap_or(0) as f64);
    let done = verified + received;
    let text = match len {
        Some(len) => format!(
            "{} of {}  slowest {} median {} fastest {}  {rate}  {repairs} repairs  {done} done",
            units::bytes(*slowest),
            units::bytes(*len),
            share(*slowest, *len),
            share(*median, *len),
            share(*fastest, *len),
        ),
        None => format!(
            "slowest {} median {} fastest {}  {rate}  {repairs} repairs",
            units::bytes(*slowest),
            units::bytes(*median),
            units::bytes(*fastest),
        ),
    };
    out.progress(*slowest, *len, text);
}

/// The sender's address for receivers, as `--from` takes it.
pub fn address(listening: SocketAddr, interface: &Interface) -> String {
    let mut ip = listening.ip();
    let port = listening.port();
    if ip.is_unspecified() {
        match interface::choose(interface, None) {
            Ok((_, best)) => ip = best,
            Err(_) => {
                let host = rustix::system::uname();
                let host = host.nodename().to_string_lossy().into_owned();
                return match port {
                    PORT => host,
                    other => format!("{host}:{other}"),
                };
            }
        }
    }
    match port {
        PORT => ip.to_string(),
        other => SocketAddr::new(ip, other).to_string(),
    }
}
