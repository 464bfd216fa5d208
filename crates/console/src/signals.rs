//! Signals that ask the process to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io, process, thread};

use fabricast::error::exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// Returns a flag that becomes true when a signal asks the process to end. If the command ends
/// `in_order`, the next signal ends the process; otherwise the first one does. Signals that the
/// parent has ignored for this process stay ignored: `nohup` does so with SIGHUP.
pub fn watch_signals(in_order: bool) -> io::Result<Arc<AtomicBool>> {
    let interrupt = Arc::new(AtomicBool::new(!in_order));
    for signal in taken() {
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), interrupt.clone())?;
        flag::register(signal, interrupt.clone())?;
    }
    bear_file_limit()?;
    Ok(interrupt)
}

/// Like [`watch_signals`] for a command that ends in order. Before the second signal ends the
/// process, it runs `last`, on a thread of its own.
pub fn watch_signals_then(last: impl FnOnce() + Send + 'static) -> io::Result<Arc<AtomicBool>> {
    let interrupt = Arc::new(AtomicBool::new(false));
    let mut signals = Signals::new(taken())?;
    let first = interrupt.clone();
    thread::Builder::new()
        .name("fabricast-signal".into())
        .spawn(move || {
            let mut again = signals
                .forever()
                .skip_while(|_| !first.swap(true, Ordering::Relaxed));
            if again.next().is_some() {
                last();
                process::exit(exit::INTERRUPTED.into());
            }
        })?;
    bear_file_limit()?;
    Ok(interrupt)
}

/// The signals that ask this process to end.
fn taken() -> impl Iterator<Item = i32> {
    let ignored = ignored_signals();
    let taken = move |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(taken)
}

/// Makes a file that reaches the limit on file sizes an error like a full disk: the process goes
/// on.
fn bear_file_limit() -> io::Result<()> {
    flag::register(SIGXFSZ, Arc::default()).map(drop)
}

/// The signals that are ignored, bit *n* − 1 for signal *n*. None if the system does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
