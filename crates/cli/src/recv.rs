//! `fabricast recv`.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use fabricast::config::{Accept, Offer, Question, RecvOptions};
use fabricast::error::{Error, exit};
use fabricast::object::safe_name;
use fabricast::text::{ToldPath, escaped, first_of, shown};
use fabricast::transfer::{self, RecvEvent, State};
use fabricast_console::units;

use crate::args;
use crate::conclusion::{before, rate};
use crate::launched::Launched;
use crate::output::{Output, reads_terminal};
use crate::sending::{length, net_options};
use crate::settings::with_options;

/// Runs `fabricast recv`. Returns the exit code.
pub fn run(args: &args::Recv, interrupt: Arc<AtomicBool>) -> u8 {
    let is_stdout = args.dest.as_ref().is_some_and(|d| d.as_os_str() == "-");
    let mut out = match is_stdout {
        true => Output::to_stderr(&args.net),
        false => Output::new(&args.net),
    };
    let dest = args.dir.as_ref().or(args.dest.as_ref()).cloned();
    let dest = dest.unwrap_or_default(); // clap requires one of them
    if is_stdout && args.delete {
        let text = "with --delete name a directory: nothing is deleted on standard output";
        return out.error(&Error::Usage(text.into()));
    }
    let output = match is_stdout.then(stdout).transpose() {
        Ok(output) => output,
        Err(error) => return out.error(&error),
    };
    let accept = match accept(args, args.dir.is_some() || dest.is_dir()) {
        Ok(accept) => accept,
        Err(error) => return out.error(&error),
    };
    let launched = args.launched.then(|| Launched::open(&interrupt));
    let launched = match launched.transpose() {
        Ok(launched) => launched,
        Err(error) => return out.error(&error),
    };
    let key = launched.as_ref().map(|launched| launched.key.clone());
    let options = RecvOptions {
        accept,
        output,
        key,
        ..options(args, dest, interrupt)
    };
    let result = transfer::recv(&options, &mut |event| tell(&mut out, event));
    match result {
        Ok(report) => {
            out.finish();
            out.result("done", &report);
            if args.dry_run {
                return out.code(exit::OK);
            }
            let counts = &report.statistics;
            let how = match report.state {
                State::Received => "received",
                _ => "verified",
            };
            let what = goes_to(&report.path);
            out.say(&format!(
                "{what}: {} in {:.2} s{}, {how}{}",
                units::bytes(report.len),
                report.seconds,
                rate(report.len, counts.bytes_before(), report.seconds),
                before(counts),
            ));
            if report.special > 0 {
                out.say(&format!(
                    "{} devices and FIFOs are not made without --privileged and --from",
                    report.special
                ));
            }
            if report.deleted > 0 {
                out.say(&format!("{} files and directories deleted", report.deleted));
            }
            let is_sent = |failed: &&ToldPath| !report.changed.contains(failed);
            let unsent: Vec<&ToldPath> = report.failed.iter().filter(is_sent).collect();
            let count = report.failed_unnamed.saturating_add(unsent.len() as u64);
            if count > 0 {
                let first = unsent.first();
                let such_as = first.map(|first| format!(", such as {}", escaped(&first.path)));
                out.complain(&format!(
                    "{count} of the sender's files and directories are not here as a whole{}",
                    such_as.unwrap_or_default()
                ));
            }
            if let Some(first) = report.changed.first() {
                let what = "were changed here while the set came, or refused owner, permissions \
                            or time";
                let left = match report.leaves_surplus {
                    true => "; nothing was deleted",
                    false => "",
                };
                out.complain(&format!(
                    "{} files that were here already {what}, such as {}{left}",
                    report.changed.len(),
                    escaped(&first.path)
                ));
            }
            out.code(report.exit_code())
        }
        Err(error) => out.error(&match &launched {
            Some(launched) => launched.error(error),
            None => error,
        }),
    }
}

/// The options of a receiver, but for what is not the same for a single transfer and a feed.
pub fn options(args: &args::Recv, dest: PathBuf, interrupt: Arc<AtomicBool>) -> RecvOptions {
    RecvOptions {
        net: net_options(&args.net),
        from: args.from.clone(),
        scheme: args.scheme.clone(),
        into_directory: args.dir.is_some(),
        discard: args.discard,
        serve: args.serve,
        privileged: args.privileged,
        attributes: args.xattrs,
        overwrite: args.force,
        delete: args.delete,
        dry_run: args.dry_run,
        max_size: args.max_size,
        reserve: args.reserve,
        sync: !args.no_sync,
        name: args.called.clone(),
        start_timeout: args.start_timeout,
        receive_timeout: (!args.receive_timeout.is_zero()).then_some(args.receive_timeout),
        inject_damage: args.inject_damage,
        interrupt,
        ..RecvOptions::new(dest)
    }
}

/// Prints an event, whose texts name options then.
pub fn tell(out: &mut Output, mut event: RecvEvent) {
    if let RecvEvent::Trying { reason: text, .. } | RecvEvent::Notice { text } = &mut event {
        *text = with_options(text);
    }
    out.event(&event);
    say(out, &event);
}

/// Where what is received goes, in words.
fn goes_to(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "standard output".into(),
        Some(".") => "this directory".into(),
        _ => shown(path),
    }
}

/// Standard output, to write a file to.
fn stdout() -> Result<Arc<File>, Error> {
    if std::io::stdout().is_terminal() {
        let text = "standard output is a terminal, which the sender's bytes could control: name a \
                    file, or send them on to another program with |";
        return Err(Error::Usage(text.into()));
    }
    let file = std::io::stdout().as_fd().try_clone_to_owned();
    let file = file.map_err(|e| Error::io("opening standard output", e))?;
    Ok(Arc::new(file.into()))
}

/// Which announced sender the receiver may take: as the options tell, or as the user answers at the
/// terminal.
fn accept(args: &args::Recv, to_directory: bool) -> Result<Accept, Error> {
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let talks = !args.net.json && !args.net.quiet;
    let asks = terminal && talks && reads_terminal();
    match &args.name {
        Some(pattern) => Ok(Accept::Named(pattern.clone())),
        None if args.any => Ok(Accept::Any),
        None if args.from.is_some() => Ok(Accept::Nobody),
        None if asks => Ok(Accept::Asked(Question(Arc::new(
            move |offers: &[Offer]| ask(offers, to_directory),
        )))),
        None => {
            let why = match (terminal, talks) {
                (false, _) => "without a terminal nothing can be asked",
                (true, false) => "with --quiet or --json nothing is asked",
                (true, true) => "in the background nothing can be asked",
            };
            Err(Error::Usage(format!(
                "no sender is named, and {why}: name it with --from HOST, or take a file by its \
                 name with --name PATTERN, or any file from the only sender on this network with \
                 --any"
            )))
        }
    }
}

/// Asks the user at the terminal. A thread of its own reads the answer, so that a signal can end
/// the wait.
fn ask(offers: &[Offer], to_directory: bool) -> Receiver<Option<usize>> {
    let (tell, answer) = channel();
    let count = offers.len();
    let mut err = std::io::stderr();
    let question = question(offers, to_directory);
    let _ = write!(err, "{question}").and_then(|()| err.flush());
    thread::spawn(move || {
        let mut answer = typed(count);
        if answer == Answer::Unclear {
            let again = match count {
                1 => "Please answer y or n: ".into(),
                count => format!("Please answer with a number from 1 to {count}, or Enter: "),
            };
            let _ = write!(err, "{again}").and_then(|()| err.flush());
            answer = typed(count);
        }
        let _ = tell.send(match answer {
            Answer::Take(offer) => Some(offer),
            Answer::No | Answer::Unclear => None,
        });
    });
    answer
}

/// What a sender offers, by the name of the first.
fn offered(offer: &Offer) -> String {
    first_of(&offer.name, offer.tops as usize)
}

fn question(offers: &[Offer], to_directory: bool) -> String {
    let len = |o: &Offer| length(o.len);
    let mut text = String::new();
    for offer in offers {
        if to_directory && safe_name(&offer.name).is_none() {
            text += &format!(
                "{} is not used as a file name in a directory: to receive it, run this again \
                 with a DEST that names a file.\n",
                escaped(&offer.name)
            );
        }
    }
    if let [one] = offers {
        let (address, name) = (one.address, offered(one));
        return format!(
            "{text}{address} offers {name} ({}). Receive it? [y/N] ",
            len(one)
        );
    }
    text += "Several senders offer a file on this network:\n";
    for (i, offer) in offers.iter().enumerate() {
        let (address, name) = (offer.address, offered(offer));
        text += &format!("{:4}  {address}  {name} ({})\n", i + 1, len(offer));
    }
    text + &format!(
        "Receive which one? [1-{}, or Enter for none] ",
        offers.len()
    )
}

/// The user's answer to the question.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Answer {
    /// Take the offer with this index.
    Take(usize),
    /// Take no offer.
    No,
    /// Not understood, perhaps mistyped: ask once again.
    Unclear,
}

/// Reads the next line that the user types.
fn typed(count: usize) -> Answer {
    let mut line = String::new();
    match std::io::stdin().read_line(&mut line) {
        Ok(_) => chosen(&line, count),
        Err(_) => Answer::No,
    }
}

/// The meaning of an answer when `count` offers were listed.
fn chosen(line: &str, count: usize) -> Answer {
    let line = line.trim();
    let is = |words: &[&str]| words.iter().any(|word| line.eq_ignore_ascii_case(word));
    if is(&["", "n", "no"]) {
        return Answer::No;
    }
    match line.parse() {
        _ if count == 1 && is(&["y", "yes"]) => Answer::Take(0),
        Ok(number) if count > 1 && (1..=count).contains(&number) => Answer::Take(number - 1),
        _ => Answer::Unclear,
    }
}

fn say(out: &mut Output, event: &RecvEvent) {
    match event {
        RecvEvent::Searching { from: Some(from) } => out.say(&format!("Looking for {from}")),
        RecvEvent::Searching { from: None } => {
            out.say("Listening for a sender on this network (--from HOST names one)");
        }
        RecvEvent::Trying {
            from,
            seconds,
            reason,
        } => {
            let whom = from.as_deref().unwrap_or("any sender");
            out.say(&format!(
                "Still trying {whom} after {seconds:.0} s: {reason}"
            ));
        }
        RecvEvent::Connected {
            sender,
            name,
            tops,
            len,
            path,
            ..
        } => out.say(&format!(
            "{sender} offers {} ({}), which goes to {}; waiting for the start",
            first_of(name, *tops as usize),
            length(*len),
            goes_to(path)
        )),
        RecvEvent::Started { .. } => out.say("Receiving"),
        RecvEvent::Resumed { bytes } => out.say(&format!(
            "{} are here from an earlier run, and are proven",
            units::bytes(*bytes)
        )),
        RecvEvent::Demoted => {
            out.say("Too slow for the others: the rest comes when they have everything");
        }
        RecvEvent::Joined { packs, lacking } => out.say(&format!(
            "Joined the transfer, which runs already; what was sent before follows ({lacking} of \
             {packs} packs)"
        )),
        // Everything is here, and is being stored.
        RecvEvent::Progress { placed, len, .. } if Some(*placed) == *len => {}
        RecvEvent::Progress {
            seconds,
            placed,
            present,
            len,
            ..
        } => {
            let came = placed.saturating_sub(*present);
            let of = len.map_or(String::new(), |len| format!(" of {}", units::bytes(len)));
            let text = format!(
                "{}{of}  {}",
                units::bytes(*placed),
                units::bits(came as f64 / seconds.max(1e-3))
            );
            out.progress(*placed, *len, text);
        }
        RecvEvent::PeerLeft { peer, reason } => {
            out.say(&format!(
                "{peer}, which serves others, is not asked any more: {reason}"
            ));
        }
        RecvEvent::Comparing => out.say("Comparing the files that are here"),
        RecvEvent::Storing => out.finish(),
        RecvEvent::Surplus(path) => out.print(&format!("{}\n", escaped(&path.path))),
        RecvEvent::FileStored { path, len } => {
            out.say(&format!("+ {} ({})", shown(path), units::bytes(*len)));
        }
        RecvEvent::FileFailed { reason, .. } => {
            out.say(&format!("! {}", with_options(reason)));
        }
        RecvEvent::Notice { text } => out.say(&format!("note: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_for_what_they_mean() {
        for yes in ["y\n", "Yes\n", " Y "] {
            assert_eq!(chosen(yes, 1), Answer::Take(0));
        }
        for no in ["", "\n", "n\n", " NO\n"] {
            assert_eq!(chosen(no, 1), Answer::No, "{no:?}");
            assert_eq!(chosen(no, 2), Answer::No, "{no:?}");
        }
        for slip in ["1\n", "yy", "t\n"] {
            assert_eq!(chosen(slip, 1), Answer::Unclear, "{slip:?}");
        }
        assert_eq!(chosen("2\n", 2), Answer::Take(1));
        for slip in ["0", "3", "y", "-1"] {
            assert_eq!(chosen(slip, 2), Answer::Unclear, "{slip:?}");
        }
    }
}
