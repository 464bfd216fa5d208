//! Signals that ask the process to end.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fabricast::error::exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Returns a flag that becomes true when a signal asks the process to end. If the command ends
/// `in_order`, the next signal ends the process; otherwise the first one does. Signals that the
/// parent has ignored for this process stay ignored: `nohup` does so with SIGHUP.
pub fn watch_signals(in_order: bool) -> std::io::Result<Arc<AtomicBool>> {
    let interrupt = Arc::new(AtomicBool::new(!in_order));
    let ignored = ignored_signals();
    let taken = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(taken) {
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), interrupt.clone())?;
        flag::register(signal, interrupt.clone())?;
    }
    // A file that reaches the limit on file sizes is then an error like a full disk, and the
    // process goes on.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(interrupt)
}

/// The signals that are ignored, bit *n* − 1 for signal *n*. None if the system does not say.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
