//! Options of a receiver that follows a feed.

use std::net::SocketAddr;
use std::time::Duration;

use fabricast::feed::AT_ONCE_MAX;
use fabricast_console::units;

/// Options of `recv` for feeds.
#[derive(clap::Args, Debug)]
pub struct Follow {
    /// Follow a feed (`fabricast serve`): receive what is published there until stopped
    ///
    /// Everything goes to a directory of the feed's name in DEST, and a newer version replaces an
    /// older one. What this receiver has not received itself is replaced only with --force: without
    /// it, what is in the way is named, and the entry is wanted again later. While the feed is
    /// away, the receiver waits for it. DEST is a directory.
    #[arg(
        long,
        requires = "from",
        conflicts_with_all = ["any", "name", "discard", "dry_run", "launched"],
        help_heading = "Feeds",
    )]
    pub follow: bool,
    /// Run COMMAND for each file or directory of the feed that is new or changed, and proven
    ///
    /// COMMAND is split into words as a shell does, but no shell runs it. The path is added as one
    /// more argument. FABRICAST_FEED, FABRICAST_NAME, FABRICAST_PATH, FABRICAST_LEN and
    /// FABRICAST_DIGEST are in the environment. Hooks run one after another, beside the reception.
    /// One that fails is reported, and not repeated. One that was interrupted runs again at the
    /// next start.
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "follow",
        help_heading = "Feeds"
    )]
    pub hook: Option<String>,
    /// End a hook that runs longer
    #[arg(
        long,
        value_name = "TIME",
        value_parser = units::duration,
        default_value = "10m",
        requires = "hook",
        help_heading = "Feeds",
    )]
    pub hook_timeout: Duration,
    /// Take part in up to N transfers of the feed at the same time
    ///
    /// Each needs memory: count 100 MiB for a long one. What else is there comes after them. To
    /// have more than two at once, raise --at-once of `fabricast serve`, too.
    #[arg(
        long,
        value_name = "N",
        requires = "follow",
        default_value_t = 2,
        value_parser = clap::value_parser!(u8).range(1..=AT_ONCE_MAX as i64),
        help_heading = "Feeds",
    )]
    pub at_once: u8,
    /// Keep only the newest N files and directories of the feed, and do not receive older ones
    ///
    /// Removes only what this receiver has received. Directories count with all that they hold.
    #[arg(
        long,
        value_name = "N",
        requires = "follow",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Feeds",
    )]
    pub keep: Option<u32>,
    /// Remove files and directories of the feed this long after they were received
    #[arg(
        long,
        value_name = "TIME",
        requires = "follow",
        value_parser = units::some_time,
        help_heading = "Feeds",
    )]
    pub keep_for: Option<Duration>,
    /// How often to look whether what was received is still there
    #[arg(
        long,
        value_name = "TIME",
        requires = "follow",
        value_parser = units::duration,
        default_value = "1m",
        hide = true,
    )]
    pub look: Duration,
    /// Serve metrics for Prometheus by HTTP at this address; a port alone: on the loopback
    #[arg(
        long,
        value_name = "[ADDR:]PORT",
        requires = "follow",
        value_parser = metrics_address,
        help_heading = "Feeds",
    )]
    pub metrics: Option<SocketAddr>,
}

/// Parses `9100`, `10.0.0.1:9100` or `[::1]:9100`.
pub fn metrics_address(text: &str) -> Result<SocketAddr, String> {
    match (text.parse::<u16>(), text.parse()) {
        (Ok(port), _) => Ok(([127, 0, 0, 1], port).into()),
        (_, Ok(address)) => Ok(address),
        _ => Err("neither a port nor ADDR:PORT (0.0.0.0:PORT for all addresses)".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_on_the_loopback_unless_told_otherwise() {
        let shown = |text| metrics_address(text).map(|address| address.to_string());
        assert_eq!(shown("9100"), Ok("127.0.0.1:9100".into()));
        assert_eq!(shown("0.0.0.0:1"), Ok("0.0.0.0:1".into()));
        assert_eq!(shown("[::1]:1"), Ok("[::1]:1".into()));
        for bad in ["", "head:1", "70000", ":9100", "10.0.0.1"] {
            assert!(metrics_address(bad).is_err(), "{bad}");
        }
    }
}
