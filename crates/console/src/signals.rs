//! Signals that ask for an end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fabricast::error::exit;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag;

/// What becomes true when a signal asks for an end. The next signal ends the process, and so does
/// the first one unless the command ends `in_order`.
pub fn watch_signals(in_order: bool) -> std::io::Result<Arc<AtomicBool>> {
    let interrupt = Arc::new(AtomicBool::new(!in_order));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, exit::INTERRUPTED.into(), interrupt.clone())?;
        flag::register(signal, interrupt.clone())?;
    }
    // A limit on file sizes is an error like a full disk, not the death of the process.
    flag::register(SIGXFSZ, Arc::default())?;
    Ok(interrupt)
}
