//! `fabricast send`.

use std::io::IsTerminal;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fabricast::bootstrap::PORT;
use fabricast::config::{Late, NetOptions, ReachRule, SendOptions, Slow, StartRule};
use fabricast::error::{Error, exit};
use fabricast::interface::{self, Interface};
use fabricast::object::manifest::Kind;
use fabricast::object::{SourceSet, safe_name};
use fabricast::text::{ToldPath, escaped};
use fabricast::transfer::{self, By, Part, SendEvent, SendFailure, SendReport, State};
use fabricast_console::{table, units};

use crate::args;
use crate::output::{Output, reads_terminal};
use crate::settings::with_options;

/// Runs `fabricast send`. Returns the exit code.
pub fn run(args: &args::Send, interrupt: Arc<AtomicBool>) -> u8 {
    let mut out = Output::new(&args.net);
    if args.sources.iter().any(|source| source.as_os_str() == "-") {
        let text = "sending standard input is not supported yet: name a file";
        return out.error(&Error::Usage(text.into()));
    }
    if args.dry_run {
        return dry_run(args, &mut out);
    }
    let options = options(args, interrupt);
    let by_hand = options.start.by_hand.clone();
    let mut tell = |mut event: SendEvent| {
        if let SendEvent::Refused { reason: text, .. }
        | SendEvent::Failed { reason: text, .. }
        | SendEvent::Notice { text } = &mut event
        {
            *text = with_options(text);
        }
        out.event(&event);
        say(&mut out, &event, args, &options);
        if let (SendEvent::Listening { .. }, Some(pressed)) = (&event, &by_hand) {
            await_enter(pressed.clone());
        }
    };
    let result = transfer::send(&args.sources, &options, &mut tell);
    match result {
        Ok(mut report) => {
            let code = report.exit_code();
            results(&mut out, &mut report, code);
            match report.exit_code() {
                exit::OK => out.code(exit::OK),
                code => {
                    if let Some(how) = &report.changed {
                        eprintln!(
                            "fabricast: {how}; {} of {} receivers have the file as it was before",
                            report.verified(),
                            report.receivers.len()
                        );
                        return code;
                    }
                    if !report.failed.is_empty() {
                        let files = report.failed.len();
                        eprintln!("fabricast: {files} files could not be sent; the others were");
                    }
                    if report.verified() == report.receivers.len() {
                        return code;
                    }
                    let (failed, all) = (
                        report.receivers.len() - report.verified(),
                        report.receivers.len(),
                    );
                    eprintln!("fabricast: {failed} of {all} receivers do not have the file");
                    code
                }
            }
        }
        Err(SendFailure { error, report }) => {
            if let Some(mut report) = report {
                results(&mut out, &mut report, error.exit_code());
            }
            out.error(&error)
        }
    }
}

/// An entry of the set, as `--dry-run` prints it.
#[derive(serde::Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    path: &'a ToldPath,
    kind: &'static str,
    /// Length of a file in bytes.
    len: u64,
}

/// Prints what would be sent. Returns the exit code.
fn dry_run(args: &args::Send, out: &mut Output) -> u8 {
    let mut notices = Vec::new();
    let set = SourceSet::list(&args.sources, &args.exclude, &mut |text| notices.push(text));
    let set = match set {
        Ok(set) => set,
        Err(error) => return out.error(&error),
    };
    for text in notices {
        out.say(&format!("note: {text}"));
    }
    for (number, entry) in set.manifest().entries().iter().enumerate() {
        let path = set.path(number as u32);
        let (kind, len) = match &entry.kind {
            Kind::File(len) => ("file", *len),
            Kind::Directory => ("directory", 0),
            Kind::Symlink(_) => ("symlink", 0),
            Kind::HardLink(_) => ("hard link", 0),
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
        out.print(&format!(
            "{:>10}  {}\n",
            units::bytes(len),
            escaped(&path.path)
        ));
    }
    out.code(exit::OK)
}

/// Prints the state of each receiver, and the summary.
fn results(out: &mut Output, report: &mut SendReport, code: u8) {
    out.finish();
    for receiver in report.receivers.iter_mut().chain(&mut report.refused) {
        receiver.reason = receiver.reason.as_deref().map(with_options);
    }
    for receiver in report.receivers.iter().chain(&report.refused) {
        out.result("result", receiver);
    }
    out.result("summary", &summary(report, code));
    out.print(&describe(report));
}

fn options(args: &args::Send, interrupt: Arc<AtomicBool>) -> SendOptions {
    let chosen = args.min_receivers.is_some()
        || args.max_receivers.is_some()
        || args.min_wait.is_some()
        || args.max_wait.is_some();
    let talks = !args.net.json && !args.net.quiet;
    let by_hand = !chosen && talks && reads_terminal();
    let start = StartRule::default();
    let defaults = SendOptions::default();
    SendOptions {
        net: net_options(&args.net),
        port: args.port,
        group: args.group.map(|g| g.0),
        group_port: args.group.and_then(|g| g.1).unwrap_or(defaults.group_port),
        ttl: args.ttl,
        reach: match args.reach {
            args::Reach::Auto => ReachRule::Auto,
            args::Reach::Unicast => ReachRule::Unicast,
        },
        start: StartRule {
            min_receivers: args
                .min_receivers
                .map_or(start.min_receivers, |n| n as usize),
            max_receivers: args
                .max_receivers
                .map_or(start.max_receivers, |n| n as usize),
            min_wait: args.min_wait.unwrap_or(start.min_wait),
            max_wait: args.max_wait,
            timeout: args.start_timeout,
            by_hand: by_hand.then(Arc::default),
        },
        exclude: args.exclude.clone(),
        scheme: match args.checksum {
            args::Checksum::None => args.scheme.clone(),
            args::Checksum::Additive => format!("{}+additive", args.scheme),
            args::Checksum::Crc32c => format!("{}+crc32c", args.scheme),
        },
        rate: args.rate,
        slow: match args.slow {
            Some(args::Slow::Wait) => Slow::Wait,
            Some(args::Slow::Alive) => Slow::Alive,
            Some(args::Slow::Demote) => Slow::Demote,
            Some(args::Slow::Drop) => Slow::Drop,
            // A user at a terminal can watch and decide.
            None if std::io::stderr().is_terminal() && !args.net.quiet => Slow::Wait,
            None => Slow::Alive,
        },
        late: match args.late {
            args::Late::Admit => Late::Admit,
            args::Late::Refuse => Late::Refuse,
        },
        per_host: args.per_host as usize,
        datagram_min: args
            .datagram_min
            .map_or(defaults.datagram_min, |d| d as usize),
        patience: args.patience.max(Duration::from_millis(1)),
        announce: !args.no_announce,
        interrupt,
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

/// Waits for the user to press Enter, on a thread of its own.
fn await_enter(pressed: Arc<AtomicBool>) {
    thread::spawn(move || {
        let mut line = String::new();
        // Reads on, because Enter before the start may come too early.
        while std::io::stdin().read_line(&mut line).is_ok_and(|n| n > 0) {
            pressed.store(true, Ordering::Relaxed);
        }
    });
}

fn say(out: &mut Output, event: &SendEvent, args: &args::Send, options: &SendOptions) {
    match event {
        SendEvent::Listening {
            address,
            name,
            len,
            announced,
        } => {
            let by_hand = options.start.by_hand.is_some();
            say_offer(out, args, (*address, name, *len, *announced), by_hand);
        }
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
            if !matches!(args.reach, args::Reach::Unicast) {
                out.say(&format!(
                    "! multicast does not reach {receiver}: it is served by unicast (is there a \
                     firewall, or a switch without an IGMP querier?)"
                ));
            }
        }
        SendEvent::Path { receiver, .. } => out.say(&format!("multicast reaches {receiver} now")),
        SendEvent::Streaming { .. } => {}
        SendEvent::Progress { .. } => show_progress(out, event),
        SendEvent::CatchingUp { receiver, lacking } => out.say(&format!(
            "{receiver} takes part from now on, and lacks {}",
            units::bytes(*lacking)
        )),
        SendEvent::Demoted {
            receiver,
            placed,
            len,
        } => out.say(&format!(
            "! {receiver} is too slow for the others, and has {}: it catches up after them",
            share(*placed, *len)
        )),
        SendEvent::Slow { receiver } => {
            let what = match options.slow {
                Slow::Wait => "with --slow drop the transfer would go on without it",
                Slow::Alive | Slow::Demote => {
                    "it is dropped if this goes on; with --slow wait it would not be"
                }
                Slow::Drop => "it is dropped",
            };
            out.say(&format!("! {receiver} keeps the others waiting ({what})"));
        }
        SendEvent::Verified { .. } => {}
        SendEvent::FileFailed(failure) => {
            out.say(&format!("! not sent: {}", escaped(&failure.reason)));
        }
        SendEvent::Failed {
            receiver, reason, ..
        } => out.say(&format!("! {receiver}: {reason}")),
        SendEvent::Notice { text } => out.say(&format!("note: {text}")),
    }
}

/// Prints what is offered and how a receiver takes it. The tuple holds the sender's address, the
/// file's name and length, and whether the sender announces it.
fn say_offer(
    out: &mut Output,
    args: &args::Send,
    (address, name, len, announced): (SocketAddr, &str, u64, bool),
    by_hand: bool,
) {
    out.say(&format!(
        "Offering {} ({}). On each receiver run",
        escaped(name),
        units::bytes(len)
    ));
    // A receiver refuses an unsafe name in a directory (`safe_name`), so the user must choose one.
    let dest = match safe_name(name) {
        Some(_) => ".",
        None => "FILE",
    };
    out.say(&format!(
        "    fabricast recv {dest}{}",
        from(address, &args.net.interface)
    ));
    if announced {
        out.say(&format!(
            "or, on the same network, `fabricast recv {dest}`, which asks first (in \
             scripts: `fabricast recv {dest} --any`)."
        ));
    }
    out.say(match dest {
        "." => "'.' is the destination: a directory, or a name for what is sent.",
        _ => "Replace FILE by a file name: receivers do not use this file's own name.",
    });
    if by_hand {
        out.say("Press Enter to start when all are connected.");
    }
}

/// A part of `len` bytes in percent.
fn share(part: u64, len: u64) -> String {
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
        ..
    } = event
    else {
        return;
    };
    let text = format!(
        "{} of {}  slowest {} median {} fastest {}  {}  {repairs} repairs  {verified} done",
        units::bytes(*slowest),
        units::bytes(*len),
        share(*slowest, *len),
        share(*median, *len),
        share(*fastest, *len),
        units::bits(rate.unwrap_or(0) as f64),
    );
    out.progress(*slowest, *len, text);
}

/// The `--from` option with which receivers reach this sender.
fn from(address: SocketAddr, interface: &Interface) -> String {
    let mut ip = address.ip();
    if ip.is_unspecified() {
        let best = interface::choose(interface, None).map(|(_, ip)| ip);
        match best {
            Ok(best) => ip = best,
            Err(_) => {
                let host = rustix::system::uname();
                let host = host.nodename().to_string_lossy().into_owned();
                return format!(" --from {host}{}", port(address.port(), ":"));
            }
        }
    }
    match ip {
        IpAddr::V4(ip) => format!(" --from {ip}{}", port(address.port(), ":")),
        IpAddr::V6(ip) => match address.port() {
            PORT => format!(" --from {ip}"),
            other => format!(" --from [{ip}]:{other}"),
        },
    }
}

fn port(port: u16, colon: &str) -> String {
    match port {
        PORT => String::new(),
        other => format!("{colon}{other}"),
    }
}

fn summary(report: &SendReport, code: u8) -> serde_json::Value {
    let t = &report.traffic;
    serde_json::json!({
        "name": report.name,
        "len": report.len,
        "root": report.root,
        "changed": report.changed,
        "failed": report.failed,
        "seconds": report.seconds,
        "receivers": report.receivers.len(),
        "verified": report.verified(),
        "code": code,
        "traffic": t,
        "strangers": report.pending,
        "refused": report.refused.len() as u64 + report.refused_more,
    })
}

fn describe(report: &SendReport) -> String {
    let refused = report.refused.len() as u64 + report.refused_more;
    if report.receivers.is_empty() && refused == 0 {
        return String::new(); // no receiver came
    }
    let rows: Vec<Vec<String>> = report
        .receivers
        .iter()
        .chain(&report.refused)
        .map(|r| {
            let state = match r.state {
                State::Verified => "verified",
                State::Failed => "FAILED",
                State::Lost => "LOST",
                State::Dropped => "DROPPED",
                State::Refused => "REFUSED",
            };
            vec![
                r.receiver.clone(),
                state.into(),
                match r.part {
                    Part::Whole => r.reach.into(),
                    Part::Late => format!("{}, late", r.reach),
                    Part::Demoted => format!("{}, demoted", r.reach),
                },
                share(r.placed, report.len),
                format!("{:.2} s", r.seconds),
                r.repairs.to_string(),
                r.statistics.mended.to_string(),
            ]
        })
        .collect();
    let head = [
        "receiver", "state", "reach", "has", "time", "resent", "mended",
    ];
    let mut text = table(&head, &rows);
    for r in report.receivers.iter().chain(&report.refused) {
        if let Some(reason) = &r.reason {
            text.push_str(&format!("{}: {reason}\n", r.receiver));
        }
    }
    if report.refused_more > 0 {
        text.push_str(&format!("{} more were refused\n", report.refused_more));
    }
    let t = &report.traffic;
    if report.verified() > 0 {
        let refused = match refused {
            0 => String::new(),
            n => format!("; {n} refused;"),
        };
        let multiple = match report.len {
            0 => String::new(),
            len => format!(" ({:.3} x)", t.wire_bytes as f64 / len as f64),
        };
        let goodput = report.len as f64 / report.seconds.max(1e-9);
        text.push_str(&format!(
            "{} to {} of {}{refused} in {:.2} s ({}); sent {} on the wire{multiple}, {} repairs\n",
            units::bytes(report.len),
            report.verified(),
            report.receivers.len(),
            report.seconds,
            units::bits(goodput),
            units::bytes(t.wire_bytes),
            t.repairs_multicast + t.repairs_unicast,
        ));
    }
    text
}
