//! `fabricast recv`.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use fabricast::config::{Accept, Offer, Question, RecvOptions};
use fabricast::error::{Error, exit};
use fabricast::text::shown;
use fabricast::transfer::{self, RecvEvent};

use crate::args;
use crate::output::Output;
use crate::send::net_options;
use crate::units;

/// Runs it; the exit code.
pub fn run(args: &args::Recv, interrupt: Arc<AtomicBool>) -> u8 {
    let mut out = Output::new(&args.net);
    if args.dest.as_os_str() == "-" {
        let text = "receiving to standard output is not supported yet: name a file";
        return out.error(&Error::Usage(text.into()));
    }
    let accept = match accept(args) {
        Ok(accept) => accept,
        Err(error) => return out.error(&error),
    };
    let options = RecvOptions {
        net: net_options(&args.net),
        from: args.from.clone(),
        accept,
        scheme: args.scheme.clone(),
        overwrite: args.force,
        max_size: args.max_size,
        reserve: args.reserve,
        sync: !args.no_sync,
        name: args.called.clone(),
        start_timeout: args.start_timeout,
        receive_timeout: (!args.receive_timeout.is_zero()).then_some(args.receive_timeout),
        inject_damage: args.inject_damage,
        interrupt,
        ..RecvOptions::new(&args.dest)
    };
    let result = transfer::recv(&options, &mut |event| {
        out.event(&event);
        say(&mut out, &event);
    });
    match result {
        Ok(report) => {
            out.finish();
            out.result("done", &report);
            let rate = report.len as f64 / report.seconds.max(1e-9);
            out.say(&format!(
                "{}: {} in {:.2} s ({}), verified",
                shown(&report.path),
                units::bytes(report.len),
                report.seconds,
                units::bits(rate)
            ));
            out.code(exit::OK)
        }
        Err(error) => out.error(&error),
    }
}

/// Which announced sender may be taken: what the options say, or somebody at the terminal.
fn accept(args: &args::Recv) -> Result<Accept, Error> {
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    match &args.name {
        Some(pattern) => Ok(Accept::Named(pattern.clone())),
        None if args.any => Ok(Accept::Any),
        None if args.from.is_some() => Ok(Accept::Nobody),
        None if terminal && !args.net.json && !args.net.quiet => {
            Ok(Accept::Asked(Question(Arc::new(ask))))
        }
        None => Err(Error::Usage(
            "from whom? Name the sender with --from HOST, or take a file by its name with --name \
             PATTERN, or whatever the only sender on this network offers with --any; on a \
             terminal this would be a question"
                .into(),
        )),
    }
}

/// Asks at the terminal. A thread of its own reads the answer, so that a signal can end the wait.
fn ask(offers: &[Offer]) -> Receiver<Option<usize>> {
    let (tell, answer) = channel();
    let count = offers.len();
    let mut err = std::io::stderr();
    let _ = write!(err, "{}", question(offers)).and_then(|()| err.flush());
    thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line);
        let chosen = read.ok().and_then(|_| chosen(&line, count));
        let _ = tell.send(chosen);
    });
    answer
}

fn question(offers: &[Offer]) -> String {
    let len = |o: &Offer| o.len.map_or("length unknown".into(), units::bytes);
    if let [one] = offers {
        let (address, name) = (one.address, &one.name);
        return format!("{address} offers {name} ({}). Receive it? [y/N] ", len(one));
    }
    let mut text = "Several senders offer a file on this network:\n".to_string();
    for (i, offer) in offers.iter().enumerate() {
        let (address, name) = (offer.address, &offer.name);
        text += &format!("{:4}  {address}  {name} ({})\n", i + 1, len(offer));
    }
    text + &format!(
        "Receive which one? [1-{}, or Enter for none] ",
        offers.len()
    )
}

/// Which of so many offers an answer means.
fn chosen(line: &str, count: usize) -> Option<usize> {
    let line = line.trim();
    if count == 1 {
        let yes = ["y", "yes"]
            .iter()
            .any(|yes| line.eq_ignore_ascii_case(yes));
        return yes.then_some(0);
    }
    let number: usize = line.parse().ok()?;
    (1..=count).contains(&number).then(|| number - 1)
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
            len,
            path,
        } => out.say(&format!(
            "{sender} offers {name} ({}); it goes to {}. Waiting for the start",
            units::bytes(*len),
            shown(path)
        )),
        RecvEvent::Started { .. } => out.say("Receiving"),
        RecvEvent::Progress {
            seconds,
            placed,
            len,
        } => {
            let text = format!(
                "{} of {}  {}",
                units::bytes(*placed),
                units::bytes(*len),
                units::bits(*placed as f64 / seconds.max(1e-3))
            );
            out.progress(*placed, *len, text);
        }
        RecvEvent::Storing => out.finish(),
        RecvEvent::Notice { text } => out.say(&format!("note: {text}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_for_what_they_mean() {
        for yes in ["y\n", "Yes\n", " Y "] {
            assert_eq!(chosen(yes, 1), Some(0));
        }
        for no in ["", "\n", "n\n", "1\n", "yy"] {
            assert_eq!(chosen(no, 1), None, "{no:?}");
        }
        assert_eq!(chosen("2\n", 2), Some(1));
        for none in ["", "\n", "0", "3", "y", "-1"] {
            assert_eq!(chosen(none, 2), None, "{none:?}");
        }
    }
}
