//! `fabricast send`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fabricast::config::{SendOptions, StartRule};
use fabricast::object::safe_name;
use fabricast::text::first_of;
use fabricast::transfer::{self, SendEvent};

use crate::args;
use crate::conclusion::conclude;
use crate::output::{Output, reads_terminal};
use crate::sending;

/// Runs `fabricast send`. Returns the exit code.
pub fn run(args: &args::Send, interrupt: Arc<AtomicBool>) -> u8 {
    let mut out = Output::new(&args.how.net);
    if let Err(error) = sending::check_scheme(&args.how) {
        return out.error(&error);
    }
    if args.how.dry_run {
        let (name, selection) = (args.name.as_deref(), sending::selection(&args.how));
        return sending::dry_run(&args.sources, name, &args.how, &selection, &mut out);
    }
    if args.sources.len() > 1
        && let Err(error) = sending::check_names(&args.sources, ", or send it alone")
    {
        return out.error(&error);
    }
    let options = options(args, interrupt);
    let by_hand = options.start.by_hand.clone();
    let source = match sending::source(&args.sources, args.name.as_deref()) {
        Ok(source) => source,
        Err(error) => return out.error(&error),
    };
    let result = transfer::send(source, &options, &mut |event| {
        let event = sending::worded(event);
        out.event(&event);
        sending::say(&mut out, &event, &args.how, &options);
        if let SendEvent::Listening {
            address,
            name,
            tops,
            len,
            announced,
        } = &event
        {
            let offer = (*address, (name.as_str(), *tops), *len, *announced);
            say_offer(&out, args, offer, by_hand.is_some());
            if let Some(pressed) = &by_hand {
                await_enter(pressed.clone());
            }
        }
    });
    conclude(&mut out, result, &[])
}

fn options(args: &args::Send, interrupt: Arc<AtomicBool>) -> SendOptions {
    let chosen = args.min_receivers.is_some()
        || args.max_receivers.is_some()
        || args.min_wait.is_some()
        || args.max_wait.is_some()
        || !args.require.is_empty();
    let talks = !args.how.net.json && !args.how.net.quiet;
    // Where standard input is sent, Enter is a part of it.
    let is_free = !sending::is_stdin(&args.sources);
    let by_hand = !chosen && talks && is_free && reads_terminal();
    let defaults = StartRule::default();
    let start = StartRule {
        min_receivers: args
            .min_receivers
            .map_or(defaults.min_receivers, |n| n as usize),
        max_receivers: args
            .max_receivers
            .map_or(defaults.max_receivers, |n| n as usize),
        min_wait: args.min_wait.unwrap_or(defaults.min_wait),
        max_wait: args.max_wait,
        timeout: args.start_timeout,
        by_hand: by_hand.then(Arc::default),
        expected: None,
    };
    SendOptions {
        port: args.port,
        per_host: args.per_host as usize,
        announce: !args.no_announce,
        required: args.require.clone(),
        verified_only: args.accept == args::Accept::Verified,
        ..sending::options(&args.how, start, interrupt)
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

/// Prints what is offered and how a receiver takes it. The tuple holds the sender's address, the
/// name of the first file and how many there are, their length, and whether the sender announces
/// them.
fn say_offer(
    out: &Output,
    args: &args::Send,
    (address, (name, tops), len, announced): (SocketAddr, (&str, u32), Option<u64>, bool),
    by_hand: bool,
) {
    out.say(&format!(
        "Offering {} ({}). On each receiver run",
        first_of(name, tops as usize),
        sending::length(len)
    ));
    // A receiver refuses an unsafe name in a directory (`safe_name`), so the user must choose one.
    let dest = match safe_name(name) {
        Some(_) => ".",
        None => "FILE",
    };
    out.say(&format!(
        "    fabricast recv {dest} --from {}",
        sending::address(address, &args.how.net.interface)
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
