//! Signals that ask the process to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fabricast::error::exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// Returns a flag that becomes true when a signal asks the process to end. If the command ends
/// `in_order`, the next signal ends the process; otherwise the first one does.
pub fn watch_signals(in_order: bool) -> std::io::Result<Arc<AtomicBool>> {
    let interrupt = Arc::new(AtomicBool::new(!in_order));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), interrupt.clone())?;
        flag::register(signal, interrupt.clone())?;
    }
    // A file that reaches the limit on file sizes is then an error like a full disk, and the
    // process goes on.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(interrupt)
}
