//! `fabricast recv`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fabricast::config::RecvOptions;
use fabricast::error::{Error, exit};
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
    let options = RecvOptions {
        net: net_options(&args.net),
        from: args.from.clone(),
        overwrite: args.force,
        max_size: args.max_size,
        reserve: args.reserve,
        sync: !args.no_sync,
        name: args.name.clone(),
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
                report.path.display(),
                units::bytes(report.len),
                report.seconds,
                units::bits(rate)
            ));
            out.code(exit::OK)
        }
        Err(error) => out.error(&error),
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
            len,
            path,
        } => out.say(&format!(
            "{sender} offers {name} ({}); it goes to {}. Waiting for the start",
            units::bytes(*len),
            path.display()
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
