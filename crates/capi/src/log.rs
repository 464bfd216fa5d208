//! FABRICAST_LOG: which events go to standard error.

use std::env;

const LOG: &str = "FABRICAST_LOG";

/// Begins to write the events that the environment asks for, if any. Says so if it makes no sense:
/// a job does not fail because of what it is to tell.
pub fn begin() {
    let Some(filter) = env::var(LOG).ok().filter(|filter| !filter.is_empty()) else {
        return;
    };
    if let Err(error) = fabricast_lib::log::to_stderr(&filter) {
        eprintln!("fabricast: {LOG}: {error}");
    }
}
