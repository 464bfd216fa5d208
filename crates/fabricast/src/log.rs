//! Events of `tracing` on standard error, for programs that have no subscriber of their own.
//!
//! The library reports path changes, fallbacks to unicast and membership at level `info`, groups
//! and summaries of retransmissions at level `debug`. Nothing is reported per packet.

use std::fmt::Display;
use std::io::{self, IsTerminal};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::{self, time};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Writes each event that `filter` lets through as a line on standard error, with the seconds since
/// this call. The filter is a level (`info`, `debug`, `trace`), or modules with levels of their own
/// (`info,fabricast::driver=debug`). Where the program has a subscriber already, nothing changes.
///
/// # Errors
/// The filter is neither; the text says what is wrong with it.
pub fn to_stderr(filter: &str) -> Result<(), String> {
    let refused = |why: &dyn Display| format!("'{filter}' is no filter of events: {why}");
    // To a filter of targets, a word that is no level is a target, which nothing may have.
    let is_known = |part: &str| {
        part.contains('=')
            || part == "fabricast"
            || part.starts_with("fabricast::")
            || part.parse::<LevelFilter>().is_ok()
    };
    if let Some(part) = filter.split(',').find(|part| !is_known(part)) {
        return Err(refused(&format!("{part} is no level")));
    }
    let filter: Targets = filter.parse().map_err(|error| refused(&error))?;
    let lines = fmt::layer()
        .with_timer(time::uptime())
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
    // The only error is that there is a subscriber.
    let _ = subscriber.try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_filter_that_means_nothing_is_refused() {
        let refused = |filter| super::to_stderr(filter).unwrap_err();
        assert_eq!(
            refused("info,loud"),
            "'info,loud' is no filter of events: loud is no level"
        );
        assert!(refused("fabricast=loud").starts_with("'fabricast=loud' is no filter"));
    }
}
